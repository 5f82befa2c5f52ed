-- New jobs, and the ids that are in use (queue/insert.go). The rules of jobs.sql hold here, too.

-- name: JobInsert :many
-- Stores new jobs as pending, scheduled or available. All times come from one reading of the clock, so the jobs of a
-- batch are due together. A time that was sent as a duration is echoed as an absolute time. The statement adds that text
-- to extra, because only the database knows the time. A job whose id is taken is missing from the result.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), request AS (
    SELECT unnest(@ids::uuid[]) AS id,
        unnest(@types::text[]) AS type,
        unnest(@queues::text[]) AS queue,
        unnest(@priorities::smallint[]) AS priority,
        unnest(@max_attempts::bigint[]) AS max_attempts,
        unnest(@pending::boolean[]) AS pending,
        unnest(@scheduled_at::timestamptz[]) AS scheduled_at,
        unnest(@scheduled_in_us::bigint[]) AS scheduled_in_us,
        unnest(@expires_at::timestamptz[]) AS expires_at,
        unnest(@expires_in_us::bigint[]) AS expires_in_us,
        unnest(@timeout_ms::bigint[]) AS timeout_ms,
        unnest(@visibility_ms::bigint[]) AS visibility_ms,
        unnest(@grace_ms::bigint[]) AS grace_ms,
        unnest(@total_ms::bigint[]) AS total_ms,
        unnest(@ttl_ms::bigint[]) AS ttl_ms,
        unnest(@stall_ms::bigint[]) AS stall_ms,
        unnest(@result_ttl_s::bigint[]) AS result_ttl_s,
        unnest(@trace_ids::text[]) AS trace_id,
        unnest(@retry::json[]) AS retry,
        unnest(@args::json[]) AS args,
        unnest(@meta::json[]) AS meta,
        unnest(@extra::json[]) AS extra,
        unnest(@sizes::integer[]) AS size,
        unnest(@workflow_ids::uuid[]) AS workflow_id,
        unnest(@unique_keys::text[]) AS unique_key,
        unnest(@lanes::text[]) AS lane,
        unnest(@limit_keys::text[]) AS limit_key,
        unnest(@on_limits::text[]) AS on_limit,
        unnest(@on_exhaustions::text[]) AS on_exhaustion
), timed AS (
    SELECT i.*, clock.now,
        CASE WHEN i.scheduled_in_us >= 0 THEN clock.now + i.scheduled_in_us * interval '1 microsecond' ELSE i.scheduled_at END AS run_at,
        CASE WHEN i.expires_in_us >= 0 THEN clock.now + i.expires_in_us * interval '1 microsecond' ELSE i.expires_at END AS dead_at,
        clock.now + NULLIF(i.total_ms, 0) * interval '1 millisecond' AS total_due_at,
        clock.now + NULLIF(i.ttl_ms, 0) * interval '1 millisecond' AS ttl_due_at
    FROM request i CROSS JOIN clock
), placed AS (
    SELECT d.*, CASE WHEN d.pending THEN 'pending' WHEN d.run_at > d.now THEN 'scheduled' ELSE 'available' END AS state
    FROM timed d
), inserted AS (
    INSERT INTO ojs.jobs (id, type, queue, state, priority, max_attempts, ready_seq, due_at, created_at, enqueued_at,
        scheduled_at, expires_at, timeout_ms, visibility_ms, grace_ms, trace_id, retry, args, meta, extra,
        total_due_at, ttl_due_at, stall_ms, result_ttl_s, size, workflow_id, unique_key, lane, limit_key, limit_seq, on_limit, on_exhaustion)
    SELECT p.id, p.type, p.queue, p.state, p.priority, p.max_attempts,
        CASE WHEN p.state = 'available' AND p.limit_key = '' THEN nextval('ojs.ready_seq') END,
        LEAST(CASE WHEN p.state = 'scheduled' THEN p.run_at END, p.dead_at, p.total_due_at, p.ttl_due_at),
        p.now, CASE WHEN p.state = 'available' THEN p.now END,
        p.run_at, p.dead_at, NULLIF(p.timeout_ms, 0), NULLIF(p.visibility_ms, 0), NULLIF(p.grace_ms, 0), NULLIF(p.trace_id, ''),
        p.retry, p.args, p.meta,
        CASE WHEN p.scheduled_in_us < 0 AND p.expires_in_us < 0 THEN p.extra
            ELSE ('{' || concat_ws(',', NULLIF(substr(p.extra::text, 2, length(p.extra::text) - 2), ''),
                CASE WHEN p.scheduled_in_us >= 0 THEN '"scheduled_at":"' || ojs.time_text(p.run_at) || '"' END,
                CASE WHEN p.expires_in_us >= 0 THEN '"expires_at":"' || ojs.time_text(p.dead_at) || '"' END) || '}')::json END,
        p.total_due_at, p.ttl_due_at, NULLIF(p.stall_ms, 0), NULLIF(p.result_ttl_s, -2), NULLIF(p.size, 0),
        NULLIF(p.workflow_id, '00000000-0000-0000-0000-000000000000'), NULLIF(p.unique_key, ''),
        p.lane, NULLIF(p.limit_key, ''), CASE WHEN p.state = 'available' AND p.limit_key <> '' THEN nextval('ojs.ready_seq') END, NULLIF(p.on_limit, ''), NULLIF(p.on_exhaustion, '')
    FROM placed p
    ON CONFLICT (id) DO NOTHING
    RETURNING id, type, queue, state, priority, ready_seq, due_at, created_at, scheduled_at, expires_at, trace_id, workflow_id, unique_key, lane, limit_key,
        CASE WHEN scheduled_at IS NULL AND expires_at IS NULL THEN NULL ELSE extra END AS extra
), described AS (
    SELECT i.*, CASE i.state WHEN 'available' THEN 'job.enqueued' WHEN 'scheduled' THEN 'job.scheduled' ELSE 'job.state_changed' END AS event_type,
        CASE WHEN i.limit_key IS NOT NULL THEN ojs.limit_enqueued(i.limit_key, (@limit_policies::json[])[array_position(@ids::uuid[], i.id)], i.state = 'available') END AS waits
    FROM inserted i
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, workflow_id, trace_id, to_state, internal, priority, ready_seq, node, data)
    SELECT d.event_type, @source::text, d.created_at, d.id, d.type, d.queue, d.lane, d.workflow_id, d.trace_id, d.state, d.event_type = 'job.state_changed', d.priority, d.ready_seq, @node::integer,
        CASE WHEN d.state = 'scheduled' THEN ('{"scheduled_at":"' || ojs.time_text(d.scheduled_at) || '"}')::json
            WHEN d.state = 'available' THEN ojs.unique_key_data(d.unique_key) END
    FROM described d
)
SELECT id, state, ready_seq, due_at, created_at, scheduled_at, expires_at, extra::json AS extra, event_type::text AS event_type FROM described;

-- name: JobInsertPlain :many
-- JobInsert for jobs that are available at once, with ids made here and without deadlines: most jobs. PostgreSQL sets up each
-- expression of a statement anew, which costs more than a row while few jobs share it. An id that is taken, as it never should
-- be, fails the statement.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), request AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@types::text[]) AS type, unnest(@queues::text[]) AS queue,
        unnest(@priorities::smallint[]) AS priority, unnest(@max_attempts::bigint[]) AS max_attempts,
        unnest(@timeout_ms::bigint[]) AS timeout_ms, unnest(@visibility_ms::bigint[]) AS visibility_ms,
        unnest(@trace_ids::text[]) AS trace_id, unnest(@retry::json[]) AS retry, unnest(@args::json[]) AS args,
        unnest(@meta::json[]) AS meta, unnest(@extra::json[]) AS extra, unnest(@sizes::integer[]) AS size
), inserted AS (
    INSERT INTO ojs.jobs (id, type, queue, state, priority, max_attempts, ready_seq, created_at, enqueued_at,
        timeout_ms, visibility_ms, trace_id, retry, args, meta, extra, size)
    SELECT r.id, r.type, r.queue, 'available', r.priority, r.max_attempts, nextval('ojs.ready_seq'), clock.now, clock.now,
        NULLIF(r.timeout_ms, 0), NULLIF(r.visibility_ms, 0), NULLIF(r.trace_id, ''), r.retry, r.args, r.meta, r.extra, NULLIF(r.size, 0)
    FROM request r CROSS JOIN clock
    RETURNING id, type, queue, priority, ready_seq, created_at, trace_id
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, trace_id, to_state, priority, ready_seq, node)
    SELECT @event_type::text, @source::text, i.created_at, i.id, i.type, i.queue, i.trace_id, 'available', i.priority, i.ready_seq, @node::integer
    FROM inserted i
)
SELECT id, ready_seq, created_at FROM inserted;

-- name: JobInsertAlike :many
-- JobInsertPlain for jobs that differ in nothing but id and args: a single one, and most batches. An array costs about 5 µs a statement and 0.1 µs a
-- job, which a value that all jobs share does not.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), request AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@args::json[]) AS args
), inserted AS (
    INSERT INTO ojs.jobs (id, type, queue, state, priority, max_attempts, ready_seq, created_at, enqueued_at,
        timeout_ms, visibility_ms, trace_id, retry, args, meta, extra, size)
    SELECT r.id, @type::text, @queue::text, 'available', @priority::smallint, @max_attempts::bigint, nextval('ojs.ready_seq'), clock.now, clock.now,
        sqlc.narg('timeout_ms')::bigint, sqlc.narg('visibility_ms')::bigint, sqlc.narg('trace_id')::text, sqlc.narg('retry')::json, r.args,
        sqlc.narg('meta')::json, sqlc.narg('extra')::json, sqlc.narg('size')::integer
    FROM request r CROSS JOIN clock
    RETURNING id, ready_seq, created_at
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, trace_id, to_state, priority, ready_seq, node)
    SELECT @event_type::text, @source::text, i.created_at, i.id, @type::text, @queue::text, sqlc.narg('trace_id')::text, 'available', @priority::smallint, i.ready_seq, @node::integer
    FROM inserted i
)
SELECT id, ready_seq, created_at FROM inserted;

-- name: JobListDoneIDs :many
-- Which of the ids belong to finished jobs. Called after an insert with client-chosen ids, as a statement of its own:
-- only a new snapshot includes a job that an ack moved to jobs_done while the insert waited for the lock on its id.
SELECT id FROM ojs.jobs_done WHERE id = ANY(@ids::uuid[]);

-- name: JobListTaken :many
-- Which of the ids belong to jobs.
SELECT j.id FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[])
UNION ALL
SELECT d.id FROM ojs.jobs_done d WHERE d.id = ANY(@ids::uuid[]);
