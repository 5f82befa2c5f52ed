-- Bounds of queues (docs/reference/backpressure.md). Whoever enqueues to a bounded queue locks its row before it counts the jobs, in a
-- statement of its own: only a later snapshot has what the last holder committed. Jobs of other queues meet none of these statements.

-- name: QueueLockBounded :exec
-- Locks queues, in the order of their names.
SELECT q.name FROM ojs.queues q WHERE q.name = ANY(@names::text[]) ORDER BY q.name FOR UPDATE;

-- name: QueueSizeGet :one
-- A number of bytes that the waiting jobs of a queue do not exceed.
SELECT COALESCE((SELECT s.bytes FROM ojs.queue_sizes s WHERE s.queue = @queue), 0)::bigint AS bytes;

-- name: QueueSizeMeasure :one
-- The bytes of the waiting jobs of a queue, from a row of job_sizes and a look-up of the job for each: 185 ms for 100 000 in memory.
SELECT m.waiting::bigint AS waiting FROM ojs.queue_size_measure(@queue) m;

-- name: QueueSizeAdd :exec
-- Records the sizes of new jobs of a queue.
WITH added AS (
    INSERT INTO ojs.job_sizes (queue, job_id, bytes) SELECT @queue, unnest(@ids::uuid[]), unnest(@bytes::integer[])
)
INSERT INTO ojs.queue_sizes AS s (queue, bytes) VALUES (@queue, @sum::bigint) ON CONFLICT (queue) DO UPDATE SET bytes = s.bytes + EXCLUDED.bytes;

-- name: JobListOldest :many
-- The available jobs of a queue that entered it first, whatever their lane and priority, behind a number. Those that a rate limit holds
-- back are among them; those that wait for another job of their cron are not. It skips from level to level, and reads max_rows of each.
WITH RECURSIVE level AS (
    (SELECT j.lane, j.priority FROM ojs.jobs j
     WHERE j.state = 'available' AND j.queue = @queue AND j.ready_seq IS NOT NULL
     ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
    UNION ALL
    SELECT n.lane, n.priority
    FROM level l CROSS JOIN LATERAL (
        (SELECT j.lane, j.priority FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = @queue AND j.lane = l.lane AND j.priority < l.priority AND j.ready_seq IS NOT NULL
         ORDER BY j.priority DESC, j.ready_seq LIMIT 1)
        UNION ALL
        (SELECT j.lane, j.priority FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = @queue AND j.lane > l.lane AND j.ready_seq IS NOT NULL
         ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
        LIMIT 1) n
), level_list AS MATERIALIZED (
    SELECT l.lane, l.priority FROM level l LIMIT @max_levels::bigint
), oldest AS MATERIALIZED (
    SELECT c.id, c.seq FROM (
        SELECT f.id, f.seq FROM level_list l CROSS JOIN LATERAL (
            SELECT j.id, j.ready_seq AS seq FROM ojs.jobs j
            WHERE j.state = 'available' AND j.queue = @queue AND j.lane = l.lane AND j.priority = l.priority AND j.ready_seq > @after_seq::bigint
            ORDER BY j.ready_seq LIMIT @max_rows::bigint) f
        UNION ALL
        (SELECT j.id, j.limit_seq FROM ojs.jobs j
         WHERE j.queue = @queue AND j.limit_seq > @after_seq::bigint ORDER BY j.limit_seq LIMIT @max_rows::bigint)
    ) c ORDER BY c.seq LIMIT @max_rows::bigint
)
SELECT o.id, o.seq::bigint AS seq, COALESCE((SELECT s.bytes FROM ojs.job_sizes s WHERE s.queue = @queue AND s.job_id = o.id), 0)::bigint AS bytes
FROM oldest o ORDER BY o.seq;

-- name: JobListOldestByTenant :many
-- JobListOldest for the jobs of a tenant: its own lane, and those of its fairness keys.
WITH RECURSIVE level AS (
    (SELECT j.lane, j.priority FROM ojs.jobs j
     WHERE j.state = 'available' AND j.queue = @queue AND j.lane = @tenant::text AND j.ready_seq IS NOT NULL
     ORDER BY j.priority DESC, j.ready_seq LIMIT 1)
    UNION ALL
    SELECT n.lane, n.priority
    FROM level l CROSS JOIN LATERAL (
        SELECT j.lane, j.priority FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = @queue AND j.lane = l.lane AND j.priority < l.priority AND j.ready_seq IS NOT NULL
        ORDER BY j.priority DESC, j.ready_seq LIMIT 1) n
), keyed AS (
    (SELECT j.lane, j.priority FROM ojs.jobs j
     WHERE j.state = 'available' AND j.queue = @queue AND j.lane > @tenant::text || '/' AND j.lane < @tenant::text || '0' AND j.ready_seq IS NOT NULL
     ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
    UNION ALL
    SELECT n.lane, n.priority
    FROM keyed l CROSS JOIN LATERAL (
        (SELECT j.lane, j.priority FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = @queue AND j.lane = l.lane AND j.priority < l.priority AND j.ready_seq IS NOT NULL
         ORDER BY j.priority DESC, j.ready_seq LIMIT 1)
        UNION ALL
        (SELECT j.lane, j.priority FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = @queue AND j.lane > l.lane AND j.lane < @tenant::text || '0' AND j.ready_seq IS NOT NULL
         ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
        LIMIT 1) n
), level_list AS MATERIALIZED (
    SELECT l.lane, l.priority FROM level l
    UNION ALL
    (SELECT k.lane, k.priority FROM keyed k LIMIT @max_levels::bigint)
), oldest AS MATERIALIZED (
    SELECT c.id, c.seq FROM (
        SELECT f.id, f.seq FROM level_list l CROSS JOIN LATERAL (
            SELECT j.id, j.ready_seq AS seq FROM ojs.jobs j
            WHERE j.state = 'available' AND j.queue = @queue AND j.lane = l.lane AND j.priority = l.priority AND j.ready_seq > @after_seq::bigint
            ORDER BY j.ready_seq LIMIT @max_rows::bigint) f
        UNION ALL
        SELECT w.id, w.limit_seq FROM (
            SELECT j.id, j.limit_seq, j.lane FROM ojs.jobs j
            WHERE j.queue = @queue AND j.limit_seq > @after_seq::bigint ORDER BY j.limit_seq LIMIT @max_levels::bigint) w
        WHERE split_part(w.lane, '/', 1) = @tenant::text
    ) c ORDER BY c.seq LIMIT @max_rows::bigint
)
SELECT o.id, o.seq::bigint AS seq FROM oldest o ORDER BY o.seq;

-- name: JobDiscardWaiting :many
-- Discards jobs that wait, with an error of the server's: code and message. Jobs that another transaction has locked, or that have
-- left the states, are left out. The update has no join, because on an empty table the planner answers one by reading the whole index.
WITH locked AS MATERIALIZED (
    SELECT j.id FROM ojs.jobs j
    WHERE j.id = ANY(@ids::uuid[]) AND j.state = ANY(@states::text[]) AND j.state IN ('scheduled', 'pending', 'available', 'retryable')
    ORDER BY j.id FOR UPDATE SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM locked LIMIT 1
), moved AS (
    UPDATE ojs.jobs j
    SET state = 'discarded', ready_seq = NULL, limit_seq = NULL, due_at = NULL, next_attempt_at = NULL, finished_at = (SELECT c.now FROM clock c), previous_state = j.state,
        dead_lettered_at = CASE WHEN ojs.makes_dead_letters(j.on_exhaustion, @code::text) THEN (SELECT c.now FROM clock c) END,
        error = ojs.error_at('{"attempt":' || j.attempt || ',"code":"' || @code::text || '","type":"' || @code::text || '","message":' || to_json(@message::text) || ',"retryable":false}', (SELECT c.now FROM clock c))
    WHERE j.id = ANY(ARRAY(SELECT l.id FROM locked l))
    RETURNING j.id, j.type, j.queue, j.lane, j.attempt, j.cron, j.workflow_id, j.trace_id, j.finished_at AS now, j.previous_state AS was,
        CASE WHEN j.workflow_id IS NOT NULL THEN ojs.workflow_job_changed(j.workflow_id, j.id, 'discarded', j.attempt, NULL, j.finished_at, NULL, NULL, j.error) END AS advances,
        j.limit_key, CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_changed(j.limit_key) END AS limit_changed
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, workflow_id, trace_id, from_state, to_state, node, data)
    SELECT @event_type::text, @source::text, m.now, m.id, m.type, m.queue, m.lane, m.attempt, m.workflow_id, m.trace_id, m.was, 'discarded', @node::integer, e.data::json
    FROM moved m CROSS JOIN LATERAL (
        SELECT '{"last_error":' || s.error || ',"error":' || s.error || '}' AS data
        FROM (SELECT '{"code":"' || @code::text || '","type":"' || @code::text || '","message":' || to_json(@message::text) || ',"retryable":false}' AS error) s
    ) e
)
SELECT m.id, m.type, m.queue, m.lane, m.attempt, m.cron, m.workflow_id, m.limit_key, m.was::text AS was, m.now::timestamptz AS now FROM moved m;
