-- name: WorkerBeat :many
-- Registers or refreshes workers and writes what the catalogue wants to hear of it (contract 40 §3.3).
WITH item AS (
    SELECT unnest(@ids::text[]) AS id,
        unnest(@states::text[]) AS state,
        unnest(@active_jobs::integer[]) AS active_jobs,
        unnest(@queues::json[]) AS queues,
        unnest(@concurrency::integer[]) AS concurrency,
        unnest(@hostnames::text[]) AS hostname,
        unnest(@pids::bigint[]) AS pid,
        unnest(@facts::json[]) AS facts,
        unnest(@sources::text[]) AS source
), known AS MATERIALIZED (
    SELECT w.id, w.state FROM ojs.workers w WHERE w.id = ANY(@ids::text[]) ORDER BY w.id FOR UPDATE
), beat AS (
    INSERT INTO ojs.workers AS w (id, state, active_jobs, queues, concurrency, hostname, pid, facts, started_at, last_beat_at)
    SELECT i.id, COALESCE(NULLIF(i.state, ''), 'running'), i.active_jobs, i.queues, NULLIF(i.concurrency, 0), NULLIF(i.hostname, ''),
        NULLIF(i.pid, 0), i.facts, clock_timestamp(), clock_timestamp()
    FROM item i ORDER BY i.id
    ON CONFLICT (id) DO UPDATE
    SET state = CASE WHEN EXCLUDED.state = 'running' AND NOT EXISTS (SELECT FROM item i WHERE i.id = w.id AND i.state <> '') AND w.state <> 'stale'
            THEN w.state ELSE EXCLUDED.state END,
        active_jobs = EXCLUDED.active_jobs,
        queues = COALESCE(EXCLUDED.queues, w.queues),
        concurrency = COALESCE(EXCLUDED.concurrency, w.concurrency),
        hostname = COALESCE(EXCLUDED.hostname, w.hostname),
        pid = COALESCE(EXCLUDED.pid, w.pid),
        facts = COALESCE(EXCLUDED.facts, w.facts),
        last_beat_at = clock_timestamp()
    RETURNING w.id, w.state, w.directive, w.active_jobs, w.queues, w.concurrency, w.hostname, w.pid, w.started_at, w.last_beat_at
), ev AS (
    INSERT INTO ojs.events (type, source, time, subject, worker_id, node, data)
    SELECT e.type, i.source, b.last_beat_at, b.id, b.id, @node::integer,
        (CASE e.type
            WHEN 'worker.started' THEN '{"worker_id":' || to_json(b.id) || ',"queues":' || COALESCE(b.queues::text, '[]')
                || ',"concurrency":' || COALESCE(b.concurrency, 1) || COALESCE(',"hostname":' || to_json(b.hostname), '') || COALESCE(',"pid":' || b.pid, '') || '}'
            WHEN 'worker.heartbeat' THEN '{"worker_id":' || to_json(b.id) || ',"active_jobs":' || b.active_jobs || ',"queues":' || COALESCE(b.queues::text, '[]') || '}'
            WHEN 'worker.quiet' THEN '{"worker_id":' || to_json(b.id) || ',"active_jobs":' || b.active_jobs || '}'
            ELSE '{"worker_id":' || to_json(b.id) || ',"reason":"signal","uptime_ms":' || (date_part('epoch', b.last_beat_at - b.started_at) * 1000)::bigint || '}'
        END)::json
    FROM beat b JOIN item i ON i.id = b.id LEFT JOIN known k ON k.id = b.id
    CROSS JOIN LATERAL (VALUES
        (1, 'worker.started', k.id IS NULL OR k.state = 'stale'),
        (2, 'worker.heartbeat', @heartbeat_events::boolean),
        (3, 'worker.quiet', b.state = 'quiet' AND k.state IS DISTINCT FROM 'quiet'),
        (4, 'worker.stopped', b.state = 'terminate' AND b.active_jobs = 0 AND k.state IS DISTINCT FROM 'terminate')
    ) e (step, type, happened)
    WHERE e.happened
    ORDER BY b.id, e.step
)
SELECT id, state, directive, last_beat_at FROM beat;

-- name: WorkerListLatest :many
-- For live views (contract 40 §6.6): in every row how many there are.
SELECT w.id, w.state, w.active_jobs, w.last_beat_at, count(*) OVER () AS total
FROM ojs.workers w ORDER BY w.last_beat_at DESC, w.id LIMIT @max_rows;
