-- name: QueueInsert :exec
-- A queue exists from its first job on. Callers skip the queues that they know, so that an enqueue need not write, and forget
-- them after an hour. A queue keeps its row for 30 days after used_at (ojs.queues_prune), which is therefore moved once a day.
INSERT INTO ojs.queues AS q (name)
SELECT r.name FROM (SELECT unnest(@names::text[]) AS name) r
WHERE (SELECT k.used_at > now() - interval '1 day' FROM ojs.queues k WHERE k.name = r.name) IS NOT TRUE
ON CONFLICT (name) DO UPDATE SET used_at = EXCLUDED.used_at;

-- name: QueueListKnown :many
-- Which of the queues exist.
SELECT q.name FROM ojs.queues q WHERE q.name = ANY(@names::text[]);

-- name: QueueGet :one
-- A queue by name.
SELECT * FROM ojs.queues WHERE name = @name;

-- name: QueueCountListByQueue :many
-- Jobs of a queue per state, exact in the snapshot: the stored counts, which include published events, plus the
-- unpublished events.
SELECT c.state::text AS state, sum(c.n)::bigint AS count FROM (
    SELECT q.state, q.count AS n FROM ojs.queue_counts q WHERE q.queue = @queue
    UNION ALL
    SELECT u.state, u.n FROM ojs.event_uncounted(@queue) u
) c GROUP BY c.state;

-- name: QueueGetRates :one
-- What happened in a queue in the last 60 minutes.
SELECT COALESCE(sum(completed), 0)::bigint AS completed, COALESCE(sum(failed), 0)::bigint AS failed,
    COALESCE(sum(started), 0)::bigint AS started,
    COALESCE(sum(duration_ms), 0)::bigint AS duration_ms, COALESCE(sum(wait_ms), 0)::bigint AS wait_ms
FROM ojs.stats_minute WHERE queue = @queue AND minute > now() - interval '60 minutes';

-- name: QueueGetTotals :one
-- Queues per status. _default is none.
SELECT count(*) AS total, count(*) FILTER (WHERE status = 'active') AS active, count(*) FILTER (WHERE status = 'paused') AS paused FROM ojs.queues WHERE name <> '_default';

-- name: QueueExists :one
-- Whether a queue has ever had a job or a setting.
SELECT EXISTS (SELECT FROM ojs.queues WHERE name = @name)::boolean AS found;

-- name: QueueCountList :many
-- Counts for live views. They include published events only, so the cost is a row per queue and state and does not depend
-- on the number of events.
SELECT c.queue, COALESCE(sum(c.count) FILTER (WHERE c.state = 'available'), 0)::bigint AS available,
    COALESCE(sum(c.count) FILTER (WHERE c.state = 'active'), 0)::bigint AS active,
    COALESCE(sum(c.count) FILTER (WHERE c.state = 'scheduled'), 0)::bigint AS scheduled,
    COALESCE(sum(c.count) FILTER (WHERE c.state = 'retryable'), 0)::bigint AS retryable
FROM ojs.queue_counts c GROUP BY c.queue ORDER BY c.queue LIMIT @max_rows;

-- name: StatsMinuteGetLatest :one
-- The last 60 s of a queue, or of all for '': this minute, and the share of the minute before that is younger than 60 s.
-- The comparison of rows is one that only the primary key can serve: PostgreSQL 18 read the index on minute while the table was small, and
-- so the figures of all queues.
SELECT COALESCE(sum(s.enqueued * w.share), 0)::float8 AS enqueued, COALESCE(sum(s.completed * w.share), 0)::float8 AS completed,
    COALESCE(sum(s.failed * w.share), 0)::float8 AS failed, COALESCE(sum(s.duration_ms * w.share), 0)::float8 AS duration_ms
FROM (VALUES (date_trunc('minute', now()), 1.0::float8),
        (date_trunc('minute', now()) - interval '1 minute', 1 - date_part('second', now()) / 60)) w (minute, share)
    CROSS JOIN LATERAL (SELECT * FROM ojs.stats_minute m WHERE m.queue = @queue::text
        AND (m.queue, m.minute) >= (@queue::text, w.minute) AND (m.queue, m.minute) <= (@queue::text, w.minute) OFFSET 0) s;

-- name: QueueListAfter :many
-- A page of queues by name, with the number of available jobs, exact in its snapshot as in QueueCountListByQueue.
WITH page AS (
    SELECT q.name, q.status, q.created_at FROM ojs.queues q WHERE q.name > @after::text AND q.name <> '_default' ORDER BY q.name LIMIT @max_rows
)
SELECT p.name, p.status, p.created_at,
    (COALESCE((SELECT sum(c.count) FROM ojs.queue_counts c WHERE c.queue = p.name AND c.state = 'available'), 0)
        + COALESCE(u.n, 0))::bigint AS available
FROM page p LEFT JOIN (
    SELECT e.queue, sum(e.n) AS n FROM ojs.event_uncounted() e (queue, lane, state, n) WHERE e.state = 'available' GROUP BY e.queue
) u ON u.queue = p.name ORDER BY p.name;
