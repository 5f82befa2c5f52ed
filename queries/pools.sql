-- name: PoolList :many
-- All pools; there are at most 1 000.
SELECT name, definition, created_at, updated_at FROM ojs.pools ORDER BY name LIMIT @max_rows;

-- name: PoolPut :many
-- Creates or replaces a pool, and notifies all nodes. No row: there are max_pools others.
WITH put AS (
    INSERT INTO ojs.pools AS p (name, definition, concurrency)
    SELECT @name, @definition, sqlc.narg('concurrency')::integer
    WHERE EXISTS (SELECT FROM ojs.pools o WHERE o.name = @name)
        OR (SELECT count(*) FROM (SELECT FROM ojs.pools o LIMIT @max_pools::bigint) c) < @max_pools::bigint
    ON CONFLICT (name) DO UPDATE SET definition = EXCLUDED.definition, concurrency = EXCLUDED.concurrency, updated_at = clock_timestamp()
    RETURNING p.name, p.created_at, p.updated_at, p.created_at = p.updated_at AS created
)
SELECT p.name, p.created_at, p.updated_at, p.created::boolean AS created, pg_notify('ojs_pools', p.name)::text AS notified FROM put p;

-- name: PoolDelete :many
-- Deletes a pool, and notifies all nodes. No row: there is none of that name.
WITH gone AS (
    DELETE FROM ojs.pools p WHERE p.name = @name RETURNING p.name
), freed AS (
    DELETE FROM ojs.pool_holds h WHERE h.pool = (SELECT g.name FROM gone g)
)
SELECT g.name, pg_notify('ojs_pools', g.name)::text AS notified FROM gone g;

-- name: PoolReserve :one
-- Room for up to want jobs; see ojs.pool_reserve.
SELECT ojs.pool_reserve(@pool, @reservation::uuid, @want)::integer AS room;

-- name: PoolHold :exec
-- Replaces a reservation by the jobs that were claimed with it. A pool that was deleted, or has no limit any more, counts none.
WITH gone AS (
    DELETE FROM ojs.pool_holds h WHERE h.pool = @pool AND h.id = @reservation::uuid
)
INSERT INTO ojs.pool_holds (pool, id, jobs, started_at)
SELECT @pool, c.id, 1, c.started_at FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@started_at::timestamptz[]) AS started_at) c
WHERE EXISTS (SELECT FROM ojs.pools p WHERE p.name = @pool AND p.concurrency IS NOT NULL)
ON CONFLICT (pool, id) DO UPDATE SET started_at = EXCLUDED.started_at;

-- name: PoolActive :many
-- The active jobs of pools with a concurrency.
SELECT h.pool, count(*) AS active FROM ojs.pool_holds h
WHERE h.pool = ANY(@names::text[]) AND h.started_at = (SELECT j.started_at FROM ojs.jobs j WHERE j.id = h.id AND j.state = 'active')
GROUP BY h.pool;

-- name: PoolWorkers :many
-- The living workers per pool that they name in registrations and heartbeats, among the 10 000 that called last.
SELECT w.pool::text AS pool, count(*) AS workers FROM (
    SELECT l.facts ->> 'pool' AS pool FROM ojs.workers l WHERE l.stale_at IS NULL ORDER BY l.last_seen_at DESC, l.id DESC LIMIT 10000
) w WHERE w.pool IS NOT NULL GROUP BY w.pool;

-- name: PoolOfWorker :many
-- The pool that a worker has named, if any.
SELECT (w.facts ->> 'pool')::text AS pool FROM ojs.workers w WHERE w.id = @id AND w.facts ->> 'pool' IS NOT NULL;

-- name: PoolQueueCounts :many
-- Jobs of the queues as of the published events.
SELECT c.queue, c.state, c.count FROM ojs.queue_counts c WHERE c.queue = ANY(@queues::text[]) AND c.state IN ('available', 'active');

-- name: SchedulingStats :many
-- What was started in the last 60 s per queue: in this minute, and the share of the minute before that is younger. See StatsMinuteGetLatest.
SELECT q.name, COALESCE(s.started, 0)::float8 AS started, COALESCE(s.wait_ms, 0)::float8 AS wait_ms,
    COALESCE((SELECT c.count FROM ojs.queue_counts c WHERE c.queue = q.name AND c.state = 'available'), 0)::bigint AS available,
    COALESCE((SELECT c.count FROM ojs.queue_counts c WHERE c.queue = q.name AND c.state = 'active'), 0)::bigint AS active
FROM (SELECT o.name FROM ojs.queues o ORDER BY o.name LIMIT @max_rows) q CROSS JOIN LATERAL (
    SELECT sum(m.started * w.share) AS started, sum(m.wait_ms * w.share) AS wait_ms
    FROM (VALUES (date_trunc('minute', now()), 1.0::float8),
        (date_trunc('minute', now()) - interval '1 minute', 1 - date_part('second', now()) / 60)) w (minute, share)
    CROSS JOIN LATERAL (SELECT * FROM ojs.stats_minute o WHERE o.queue = q.name AND o.minute = w.minute OFFSET 0) m
) s
ORDER BY q.name;
