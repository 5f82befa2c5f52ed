-- Figures about the whole deployment. They are read when metrics are scraped, from stored counts and statistics, never by
-- counting jobs.

-- name: MetricsBegin :exec
-- Settings for the rest of the transaction: it never waits long, and no plan reads a whole table, or a whole partition
-- of the log that was empty when the plan was made.
SELECT set_config('statement_timeout', @statement::text, true), set_config('lock_timeout', @lock::text, true),
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true);

-- name: MetricsQueueCounts :many
-- Jobs per queue and state: the counts of published events, plus the unpublished ones from the log if there are at most
-- max_rows. Queues beyond max_queues are added up under one name: first the named ones stay, then those with the most jobs, finished
-- ones as long as they are kept. Powers of two are compared, so that the choice is the same on all nodes and seldom changes. Queues
-- without jobs are included. A join of the counts with the places would be a nested loop, 12 million rows with 5 000 queues, because the
-- planner cannot estimate either.
WITH counted AS (
    SELECT c.queue, c.state, sum(c.n) AS n FROM (
        SELECT q.queue, q.state, q.count AS n FROM ojs.queue_counts q
        UNION ALL
        SELECT u.queue, u.state, u.n FROM ojs.event_uncounted(NULL, @max_rows::bigint) u
        UNION ALL
        SELECT q.name, 'available', 0 FROM ojs.queues q WHERE q.name <> '_default'
    ) c GROUP BY c.queue, c.state
), totalled AS (
    SELECT c.queue, c.state, c.n, floor(log(2, 1 + GREATEST(sum(c.n) OVER (PARTITION BY c.queue), 0))) AS size FROM counted c
), ranked AS (
    SELECT t.queue, t.state, t.n,
        dense_rank() OVER (ORDER BY t.queue = ANY(@named::text[]) DESC, t.size DESC, t.queue COLLATE "C") AS place
    FROM totalled t
), shown AS (
    SELECT CASE WHEN r.place <= @max_queues::bigint THEN r.queue ELSE @other::text END AS queue, r.state, r.n FROM ranked r
)
SELECT s.queue::text AS queue, s.state::text AS state, sum(s.n)::bigint AS count FROM shown s GROUP BY s.queue, s.state;

-- name: MetricsEvents :one
-- The size of the log and the lag of its publication. unpublished is exact up to max_rows. Above that numbers are counted
-- instead of rows; there are fewer rows, because rolled back transactions use numbers, too.
SELECT clock_timestamp()::timestamptz AS now, r.watermark, LEAST(r.kept, r.max_count)::bigint AS retained,
    r.enqueued_total, r.completed_total, r.discarded_total,
    (SELECT count(*) FROM (SELECT FROM ojs.events e WHERE e.seq > (SELECT w.watermark FROM ojs.event_relay w) ORDER BY e.seq LIMIT @max_rows::bigint) u)::bigint AS unpublished,
    COALESCE((SELECT e.seq FROM ojs.events e WHERE e.seq > (SELECT w.watermark FROM ojs.event_relay w) ORDER BY e.seq DESC LIMIT 1), 0)::bigint AS head,
    (SELECT e.time FROM ojs.events e WHERE e.seq > (SELECT w.watermark FROM ojs.event_relay w) ORDER BY e.seq LIMIT 1) AS unpublished_since,
    (SELECT e.time FROM ojs.events e WHERE e.seq >= (SELECT w.floor_place >> 16 FROM ojs.event_relay w)
        AND (e.seq << 16 | e.sub) > (SELECT w.floor_place FROM ojs.event_relay w) ORDER BY e.seq, e.sub LIMIT 1) AS retained_since
FROM ojs.event_relay r;

-- name: MetricsBusyWorkers :many
-- Workers that reported active jobs with their last heartbeat, counted in every queue they serve. The order is that of index
-- workers_seen: planned while the table was small, the statement would read an index that has the dead workers, too.
SELECT q.name::text AS queue, count(DISTINCT w.id) AS workers
FROM (SELECT a.id, COALESCE(a.queues, a.fetch_queues, '[]') AS queues FROM ojs.workers a
        WHERE a.stale_at IS NULL AND a.active_jobs > 0 ORDER BY a.last_seen_at, a.id) w
    CROSS JOIN LATERAL json_array_elements_text(w.queues) q (name)
GROUP BY q.name;

-- name: MetricsDeadLetters :many
-- Dead letters per queue, by an index-only scan: no count of them is kept. 18 ms for 100 000.
SELECT j.queue, count(*) AS count FROM ojs.jobs j WHERE j.dead_lettered_at IS NOT NULL GROUP BY j.queue;

-- name: MetricsReadyHeads :many
-- The next job to be fetched of each queue, lane and priority, by skipping from one to the next as in JobFetchRescan. The LIMIT ends the
-- recursion, which goes on in all queues in turn: those with few lanes are read whole. Under a pinned xmin it reads the dead entries at the
-- head: 300 ms for 500 000.
WITH RECURSIVE level AS (
    (SELECT q.queue, f.lane, f.priority, f.ready_seq, f.enqueued_at
     FROM (SELECT unnest(@queues::text[]) AS queue) q CROSS JOIN LATERAL (
        SELECT j.lane, j.priority, j.ready_seq, j.enqueued_at FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = q.queue AND j.ready_seq IS NOT NULL
        ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1) f)
    UNION ALL
    SELECT l.queue, n.lane, n.priority, n.ready_seq, n.enqueued_at
    FROM level l CROSS JOIN LATERAL (
        (SELECT j.lane, j.priority, j.ready_seq, j.enqueued_at FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = l.queue AND j.lane = l.lane AND j.priority < l.priority AND j.ready_seq IS NOT NULL
         ORDER BY j.priority DESC, j.ready_seq LIMIT 1)
        UNION ALL
        (SELECT j.lane, j.priority, j.ready_seq, j.enqueued_at FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = l.queue AND j.lane > l.lane AND j.ready_seq IS NOT NULL
         ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
        LIMIT 1) n
)
SELECT l.queue::text AS queue, l.lane::text AS lane, l.priority::smallint AS priority, l.ready_seq::bigint AS ready_seq, l.enqueued_at::timestamptz AS enqueued_at,
    clock_timestamp()::timestamptz AS now
FROM level l LIMIT @max_levels::integer;

-- name: MetricsReadyHeadsFrom :many
-- The same, starting at the previous heads, which skips the dead entries.
SELECT p.queue::text AS queue, p.lane::text AS lane, p.priority::smallint AS priority, c.ready_seq::bigint AS ready_seq, c.enqueued_at::timestamptz AS enqueued_at,
    clock_timestamp()::timestamptz AS now
FROM (SELECT unnest(@queues::text[]) AS queue, unnest(@lanes::text[]) AS lane, unnest(@priorities::smallint[]) AS priority, unnest(@lows::bigint[]) AS low) p
    CROSS JOIN LATERAL (
        SELECT j.ready_seq, j.enqueued_at FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = p.queue AND j.lane = p.lane AND j.priority = p.priority AND j.ready_seq >= p.low
        ORDER BY j.ready_seq LIMIT 1) c;

-- name: MetricsXminHolder :one
-- The session, slot or prepared transaction that keeps the oldest dead rows from being cleaned; kind is empty if none is seen.
-- sees_all: whether the role sees the transactions of other roles; if not, there may be another.
SELECT COALESCE(h.kind, '')::text AS kind, COALESCE(h.name, '')::text AS name, COALESCE(h.pid, 0)::integer AS pid,
    COALESCE(h.seconds, 0)::float8 AS seconds, COALESCE(h.transactions, 0)::bigint AS transactions, r.sees_all::boolean AS sees_all
FROM ojs.session_rights() r LEFT JOIN ojs.xmin_holder() h ON true;

-- name: MetricsRelayHolder :many
-- The session that has kept the relays of all nodes from publishing for longest; at most one row.
SELECT h.name::text AS name, h.pid::integer AS pid, h.seconds::double precision AS seconds FROM ojs.relay_holders() h LIMIT 1;

-- name: MetricsRetention :many
-- For how long the oldest partition of the event log and the oldest day of finished jobs should have been gone.
SELECT b.data::text AS data, b.seconds::float8 AS seconds FROM ojs.retention_behind() b;

-- name: MetricsTables :many
-- Live and dead rows and sizes of tables.
SELECT t.name::text AS name, t.live::bigint AS live, t.dead::bigint AS dead, t.bytes::bigint AS bytes FROM ojs.table_stats(@names::text[]) t;

-- name: MetricsLimits :many
-- Active and waiting jobs of the first max_keys limit keys that have jobs. It skips from key to key, and counts at most 200 000 entries of each
-- kind: 10 000 of each key, fewer of more than 20.
WITH RECURSIVE found AS (
    SELECT LEAST(
        (SELECT j.limit_key FROM ojs.jobs j WHERE j.limit_key IS NOT NULL AND j.limit_seq IS NULL ORDER BY j.limit_key LIMIT 1),
        (SELECT j.limit_key FROM ojs.jobs j WHERE j.limit_key IS NOT NULL AND j.limit_seq IS NOT NULL ORDER BY j.limit_key LIMIT 1)) AS key
    UNION ALL
    SELECT LEAST(
        (SELECT j.limit_key FROM ojs.jobs j WHERE j.limit_key > f.key AND j.limit_seq IS NULL ORDER BY j.limit_key LIMIT 1),
        (SELECT j.limit_key FROM ojs.jobs j WHERE j.limit_key > f.key AND j.limit_seq IS NOT NULL ORDER BY j.limit_key LIMIT 1))
    FROM found f WHERE f.key IS NOT NULL
), keys AS MATERIALIZED (
    SELECT f.key FROM found f WHERE f.key IS NOT NULL LIMIT @max_keys::bigint
), share AS MATERIALIZED (
    SELECT LEAST(10000, GREATEST(100, 200000 / GREATEST(count(*), 1)))::bigint AS n FROM keys
)
SELECT k.key::text AS key,
    (SELECT count(*) FROM (SELECT FROM ojs.jobs j WHERE j.limit_key = k.key AND j.limit_seq IS NULL AND j.state = 'active' LIMIT (SELECT s.n FROM share s)) n)::bigint AS active,
    ((SELECT count(*) FROM (SELECT FROM ojs.jobs j WHERE j.limit_key = k.key AND j.limit_seq IS NULL AND j.state = 'available' LIMIT (SELECT s.n FROM share s)) n)
        + (SELECT count(*) FROM (SELECT FROM ojs.jobs j WHERE j.limit_key = k.key AND j.limit_seq IS NOT NULL ORDER BY j.priority DESC, j.limit_seq LIMIT (SELECT s.n FROM share s)) n))::bigint AS waiting
FROM keys k;
