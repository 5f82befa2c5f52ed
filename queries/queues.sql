-- name: QueueInsert :exec
-- A queue exists from its first job on; known queues cost an enqueue no write.
INSERT INTO ojs.queues (name) SELECT unnest(@names::text[]) ON CONFLICT (name) DO NOTHING;

-- name: QueueGet :one
SELECT * FROM ojs.queues WHERE name = @name;

-- name: QueueCountList :many
-- Exact at its snapshot: what is published is summed up, what is not yet is read from the log (design §4 Counts).
SELECT c.state::text AS state, sum(c.n)::bigint AS count FROM (
    SELECT q.state, q.count AS n FROM ojs.queue_counts q WHERE q.queue = @queue
    UNION ALL
    SELECT v.state, v.n FROM ojs.events e CROSS JOIN LATERAL (VALUES (e.to_state, 1), (e.from_state, -1)) v (state, n)
    WHERE e.seq > (SELECT r.watermark FROM ojs.event_relay r) AND e.queue = @queue AND v.state IS NOT NULL
    UNION ALL
    SELECT v.state, v.n FROM ojs.event_gaps g JOIN ojs.events e ON e.seq = g.seq AND e.sub = 0
        CROSS JOIN LATERAL (VALUES (e.to_state, 1), (e.from_state, -1)) v (state, n)
    WHERE g.passed AND e.queue = @queue AND v.state IS NOT NULL
        AND g.seq <= (SELECT r.watermark FROM ojs.event_relay r)
) c GROUP BY c.state;

-- name: QueueRates :one
-- The last 60 minutes of stats_minute.
SELECT COALESCE(sum(completed), 0)::bigint AS completed, COALESCE(sum(failed), 0)::bigint AS failed,
    COALESCE(sum(started), 0)::bigint AS started,
    COALESCE(sum(duration_ms), 0)::bigint AS duration_ms, COALESCE(sum(wait_ms), 0)::bigint AS wait_ms
FROM ojs.stats_minute WHERE queue = @queue AND minute > now() - interval '60 minutes';

-- name: QueueTotals :one
SELECT count(*) AS total, count(*) FILTER (WHERE status = 'active') AS active, count(*) FILTER (WHERE status = 'paused') AS paused FROM ojs.queues;
