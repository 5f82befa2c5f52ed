-- Queues as clients create, change and delete them. Each statement that changes a row writes the event of the change; events of
-- extension types only with @extended. The row fires the triggers of migrations/00006_queues.sql, which notify all nodes.

-- name: QueueSetStatus :many
-- Changes the status, and creates the queue if there is none. While the queue is being deleted, only active is taken, which takes the deletion
-- back; refused tells the others. No row: another transaction has created the queue at this moment, and the caller tries again. previous is ''
-- for a new queue.
WITH locked AS MATERIALIZED (
    SELECT q.name, q.status, q.paused_at, q.updated_at, q.deletion IS NOT NULL AND @status::text <> 'active' AS refused
    FROM ojs.queues q WHERE q.name = @name FOR UPDATE
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, count(*) AS known FROM locked
), created AS (
    INSERT INTO ojs.queues (name, status, paused_at, created_at, updated_at)
    SELECT @name, @status, CASE WHEN @status::text = 'paused' THEN c.now END, c.now, c.now FROM clock c WHERE c.known = 0
    ON CONFLICT (name) DO NOTHING
    RETURNING status, paused_at, updated_at
), changed AS (
    UPDATE ojs.queues q SET status = @status, paused_at = CASE WHEN @status::text = 'paused' THEN c.now END, updated_at = c.now, deletion = NULL
    FROM locked l CROSS JOIN clock c WHERE q.name = l.name AND l.status <> @status::text AND NOT l.refused
    RETURNING q.status, q.paused_at, q.updated_at
), result AS (
    SELECT '' AS previous, true AS moved, false AS refused, n.* FROM created n
    UNION ALL
    SELECT l.status, true, false, u.* FROM changed u CROSS JOIN locked l
    UNION ALL
    SELECT l.status, false, l.refused, l.status, l.paused_at, l.updated_at FROM locked l WHERE l.status = @status::text OR l.refused
), event AS (
    INSERT INTO ojs.events (type, source, time, subject, queue, node, data)
    SELECT e.type, 'api', e.updated_at, @name, @name, @node::integer, e.data::json
    FROM (
        SELECT 0 AS step, 'queue.created' AS type, r.updated_at, '{"queue":"' || @name::text || '"}' AS data FROM result r WHERE r.previous = '' AND @extended::boolean
        UNION ALL
        SELECT 1, 'queue.paused', r.updated_at, '{"queue":"' || @name::text || '","paused_by":' || to_json(@by::text)::text || '}'
        FROM result r WHERE r.moved AND r.status = 'paused'
        UNION ALL
        SELECT 1, 'queue.resumed', r.updated_at, '{"queue":"' || @name::text || '","resumed_by":' || to_json(@by::text)::text || '}'
        FROM result r WHERE r.moved AND r.previous = 'paused'
        UNION ALL
        SELECT 2, 'queue.draining', r.updated_at, '{"queue":"' || @name::text || '","drained_by":' || to_json(@by::text)::text || '}'
        FROM result r WHERE r.moved AND r.status = 'draining' AND @extended::boolean
        UNION ALL
        SELECT 2, 'queue.accepting', r.updated_at, '{"queue":"' || @name::text || '","accepted_by":' || to_json(@by::text)::text || '}'
        FROM result r WHERE r.moved AND r.previous = 'draining' AND @extended::boolean
    ) e ORDER BY e.step
)
SELECT r.previous::text AS previous, r.moved::boolean AS moved, r.refused::boolean AS refused, r.status::text AS status, r.paused_at::timestamptz AS paused_at, r.updated_at::timestamptz AS updated_at FROM result r;

-- name: QueueCreate :many
-- Creates a queue. No row: it exists.
WITH created AS (
    INSERT INTO ojs.queues (name, config, settings, created_at, updated_at) VALUES (@name, sqlc.narg('config'), sqlc.narg('settings'), clock_timestamp(), clock_timestamp())
    ON CONFLICT (name) DO NOTHING
    RETURNING *
), event AS (
    INSERT INTO ojs.events (type, source, time, subject, queue, node, data)
    SELECT 'queue.created', 'api', c.created_at, c.name, c.name, @node::integer, ('{"queue":"' || c.name || '"}')::json FROM created c WHERE @extended::boolean
)
SELECT * FROM created;

-- name: QueueLock :many
-- The queue, locked against other changes. Enqueues and fetches do not wait for the lock.
SELECT * FROM ojs.queues WHERE name = @name FOR NO KEY UPDATE;

-- name: QueueConfigure :one
-- Replaces the configuration of a locked queue.
WITH changed AS (
    UPDATE ojs.queues SET config = sqlc.narg('config'), settings = sqlc.narg('settings'), updated_at = clock_timestamp() WHERE name = @name
    RETURNING *
), event AS (
    INSERT INTO ojs.events (type, source, time, subject, queue, node, data)
    SELECT 'queue.config_updated', 'api', c.updated_at, c.name, c.name, @node::integer, ('{"queue":"' || c.name || '","config":' || COALESCE(c.config::text, '{}') || '}')::json
    FROM changed c WHERE @extended::boolean
)
SELECT * FROM changed;

-- name: QueueCountConfigured :one
-- How many queues have a configuration or another status than active, counted up to @most.
SELECT count(*) FROM (SELECT FROM ojs.queues q WHERE (q.status <> 'active' OR q.config IS NOT NULL) AND q.name <> @besides::text LIMIT @most) n;

-- name: QueueListPage :many
-- A page of queues by name, with their number, counted up to max_total. One row without a name if the page is empty.
SELECT n.total::bigint AS total, COALESCE(p.name, '')::text AS name, COALESCE(p.status, '')::text AS status, p.created_at
FROM (SELECT count(*) AS total FROM (SELECT FROM ojs.queues q WHERE q.name <> '_default' LIMIT @max_total) c) n
    LEFT JOIN LATERAL (
        SELECT q.name, q.status, q.created_at FROM ojs.queues q WHERE q.name > @after::text AND q.name <> '_default' ORDER BY q.name
        OFFSET @skip_rows::integer LIMIT @max_rows::integer) p ON true
ORDER BY p.name;

-- name: QueueGetToday :one
-- What happened in a queue since midnight (UTC).
SELECT COALESCE(sum(s.completed), 0)::bigint AS completed, COALESCE(sum(s.failed), 0)::bigint AS failed
FROM ojs.stats_minute s WHERE s.queue = @queue AND s.minute >= date_trunc('day', now(), 'UTC');

-- name: QueueBeginDeletion :exec
-- Refuses new jobs of a locked queue. A paused queue stays paused, so that no worker gets a job that is about to be discarded or moved.
UPDATE ojs.queues SET status = CASE WHEN status = 'paused' THEN status ELSE 'draining' END, deletion = @deletion, updated_at = clock_timestamp() WHERE name = @name;

-- name: QueueListMovingTo :many
-- A queue whose deletion moves its jobs to this one, which must not be deleted meanwhile: the jobs would make it anew.
SELECT q.name FROM ojs.queues q WHERE q.status <> 'active' AND q.deletion ->> 'target_queue' = @name::text ORDER BY q.name LIMIT 1;

-- name: QueueDrainDeleted :exec
-- Lets the active jobs of a queue that is being deleted end; nothing else is left in it.
UPDATE ojs.queues SET status = 'draining', paused_at = NULL WHERE name = @name AND status <> 'draining';

-- name: QueueTakeBackDeletion :exec
-- Makes a queue what it was before its deletion began.
UPDATE ojs.queues SET status = @status, deletion = NULL, updated_at = clock_timestamp() WHERE name = @name;

-- name: QueueDelete :one
-- Deletes the row of a queue whose deletion was begun. The counts stay, because its finished jobs do.
WITH deleted AS (
    DELETE FROM ojs.queues WHERE name = @name AND deletion IS NOT NULL RETURNING name
), event AS (
    INSERT INTO ojs.events (type, source, time, subject, queue, node, data)
    SELECT 'queue.deleted', 'api', clock_timestamp(), d.name, d.name, @node::integer, ('{"queue":"' || d.name || '"}')::json FROM deleted d WHERE @extended::boolean
)
SELECT count(*) FROM deleted;

-- name: QueueFence :one
-- The transactions that run now are below the first number; all that ran before the second have ended. A caller that waits until the second of
-- a later call has reached the first of an earlier one knows that every insert which had begun has committed or rolled back.
SELECT pg_snapshot_xmax(s.s)::text::bigint AS upper, pg_snapshot_xmin(s.s)::text::bigint AS ended FROM (SELECT pg_current_snapshot() AS s) s;

-- name: QueueJobListReady :many
-- Available jobs of a queue, by the index of the fetch. Jobs that a limit or a cron holds back are not in it.
SELECT j.id FROM ojs.jobs j WHERE j.state = 'available' AND j.queue = @queue AND j.ready_seq IS NOT NULL ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT @max_rows;

-- name: QueueJobListWaiting :many
-- The jobs of a queue that wait, among the next max_looked jobs of all queues behind an id: nothing else finds scheduled and pending ones. The
-- last one that was looked at is there too, as its own row without queue; the next call goes on from there.
SELECT l.id, l.waiting::boolean AS waiting FROM (
    SELECT p.id, p.queue = @queue::text AND p.state IN ('available', 'scheduled', 'retryable', 'pending') AS waiting, row_number() OVER (ORDER BY p.id) AS looked
    FROM (SELECT j.id, j.queue, j.state FROM ojs.jobs j WHERE j.id > @after::uuid ORDER BY j.id LIMIT @max_looked::bigint) p
) l
WHERE l.waiting OR l.looked = @max_looked::bigint
ORDER BY l.id;

-- name: JobMoveQueue :many
-- Moves waiting jobs to another queue, at their place: state, priority and number stay. The lane becomes that of their fairness key there:
-- @fair_keys has one for each id, or none if the queue is not fair. Two internal events move each from the counts of
-- one queue to those of the other; the second tells other nodes of the place. Jobs that another transaction has locked are left out.
WITH locked AS MATERIALIZED (
    SELECT j.id FROM ojs.jobs j
    WHERE j.id = ANY(@ids::uuid[]) AND j.queue = @queue AND j.state IN ('scheduled', 'pending', 'available', 'retryable')
    ORDER BY j.id FOR UPDATE SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM locked LIMIT 1
), moved AS (
    UPDATE ojs.jobs j
    SET queue = @target, lane = split_part(j.lane, '/', 1) || COALESCE('/' || NULLIF((@fair_keys::text[])[array_position(@ids::uuid[], j.id)], ''), '')
    WHERE j.id = ANY(ARRAY(SELECT l.id FROM locked l))
    RETURNING j.id, j.type, j.queue, j.lane, j.state, j.priority, j.ready_seq, j.workflow_id, j.trace_id, (SELECT c.now FROM clock c) AS now,
        j.limit_key, CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_changed(j.limit_key) END AS limit_changed
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, workflow_id, trace_id, from_state, to_state, internal, priority, ready_seq, node, data)
    SELECT @event_type::text, 'api', e.now, e.id, e.type, e.queue, e.lane, e.workflow_id, e.trace_id, e.from_state, e.to_state, true, e.priority, e.ready_seq, @node::integer, '{"reason":"moved"}'::json
    FROM (
        SELECT 1 AS step, m.now, m.id, m.type, @queue::text AS queue, m.lane, m.workflow_id, m.trace_id, m.state AS from_state, NULL AS to_state, NULL::smallint AS priority, NULL::bigint AS ready_seq FROM moved m
        UNION ALL
        SELECT 2, m.now, m.id, m.type, m.queue, m.lane, m.workflow_id, m.trace_id, NULL, m.state, m.priority, m.ready_seq FROM moved m
    ) e ORDER BY e.id, e.step
)
SELECT m.id, m.type, m.queue, m.lane, m.state, m.priority, m.ready_seq, m.limit_key, m.now::timestamptz AS now FROM moved m;

-- name: JobListMeta :many
-- What fairness keys are read from.
SELECT j.id, j.meta FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) AND j.meta IS NOT NULL;
