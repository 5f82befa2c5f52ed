-- Every state change of jobs is one statement over arrays: it changes the jobs and writes their events. State, owner and
-- attempt are guarded in the WHERE clause. A job that is missing from the result was refused; the caller then reads the
-- job to choose the error.
--
-- A CTE is joined to the rows that it chose by j.id = ANY(ARRAY[o.id]), not by j.id = o.id. After vacuum has found a table empty, the planner takes
-- it for one row, and PostgreSQL keeps the plan while the table grows. For an equation it then read the whole index and compared each row with each of the
-- CTE: with 30 000 jobs waiting, claims of 1 000 took 1 to 2 s, for a minute, until the next analyze. This form leaves the look-up by id as the only plan, and
-- costs the same. So do all statements on tables that grow; see TestPlansMadeWhileEmpty.

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

-- name: JobFetch :many
-- Claims the next available jobs. probe lists queues, lanes and priorities in dispatch order, each with the cursor of this node, the
-- lowest ready_seq of an available job, and the most jobs that it may give. The nested loop keeps that order, and the outer LIMIT ends it. The jobs are
-- picked in a CTE and not by WHERE id IN (SELECT … LIMIT): the planner may run such a subquery more than once and claim
-- more jobs than wanted. owners has, for each job in that order, the index of the fetch that gets it; workers, sources and
-- leases_ms have one element per fetch. They are read by subscript: a join with an unnest has no cheap plan but a hash
-- join, which the pool's settings rule out because of ojs.jobs. The claim ends with the job with which the sum of sizes
-- exceeds max_bytes, so the caller sees from the sum that it was cut. A job without size counts 8 KiB, and 1 000 of them are
-- less than the default: claims of small jobs are never cut. The rows beyond the end were locked for nothing and stay
-- available. A job that waits for a limit or for another job of its cron has no ready_seq, so the comparison with low leaves it out. An
-- active job has the number of the claim there (see JobListByClaim). Only columns that an active job can have are returned (claimedRecord
-- sets the others), those of the event first: of 51 columns in every step a claim of 8 jobs took 260 instead of 230 µs. The caller sorts by slot. The jobs are claimed before their events are written, so
-- workflow.started, which workflow_job_started writes, comes before job.started.
WITH probe AS (
    SELECT unnest(@queues::text[]) AS queue, unnest(@lanes::text[]) AS lane, unnest(@priorities::smallint[]) AS priority, unnest(@lows::bigint[]) AS low,
        unnest(@wants::integer[]) AS want
), found AS (
    SELECT c.id, c.ready_seq, c.size FROM probe p CROSS JOIN LATERAL (
        SELECT j.id, j.ready_seq, j.size FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = p.queue AND j.lane = p.lane AND j.priority = p.priority AND j.ready_seq >= p.low
            AND (j.due_at IS NULL OR j.due_at > now())
        ORDER BY j.ready_seq
        LIMIT p.want
        FOR UPDATE SKIP LOCKED
    ) c
    WHERE (SELECT q.status FROM ojs.queues q WHERE q.name = p.queue) IS DISTINCT FROM 'paused'
    LIMIT @want::integer
), picked AS MATERIALIZED (
    SELECT f.id, f.ready_seq, row_number() OVER w AS slot, sum(COALESCE(f.size, 8192)) OVER w - COALESCE(f.size, 8192) AS bytes_before
    FROM found f WINDOW w AS (ROWS UNBOUNDED PRECEDING)
), owned AS MATERIALIZED (
    SELECT p.id, p.ready_seq, p.slot, (@workers::text[])[o.n] AS worker_id, (@sources::text[])[o.n] AS source,
        NULLIF((@leases_ms::bigint[])[o.n], 0) AS lease_ms
    FROM picked p CROSS JOIN LATERAL (SELECT (@owners::integer[])[p.slot] AS n) o
    WHERE p.bytes_before <= @max_bytes::bigint
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), claimed AS (
    UPDATE ojs.jobs j
    SET state = 'active', attempt = j.attempt + 1, started_at = clock.now, ready_seq = @claim::bigint, worker_id = NULLIF(o.worker_id, ''),
        lease_ms = COALESCE(o.lease_ms, j.visibility_ms, @default_lease_ms::bigint),
        lease_until = clock.now + COALESCE(o.lease_ms, j.visibility_ms, @default_lease_ms::bigint) * interval '1 millisecond',
        due_at = LEAST(clock.now + LEAST(COALESCE(o.lease_ms, j.visibility_ms, @default_lease_ms::bigint),
            COALESCE(j.timeout_ms, @default_timeout_ms::bigint) + COALESCE(j.grace_ms, 0), j.stall_ms) * interval '1 millisecond', j.total_due_at),
        ttl_due_at = NULL, stall_due_at = clock.now + j.stall_ms * interval '1 millisecond',
        progress = NULL, progress_message = NULL, progress_data = NULL, progress_at = NULL
    FROM owned o CROSS JOIN clock
    WHERE j.id = ANY(ARRAY[o.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.attempt, j.worker_id, j.workflow_id, j.trace_id, j.enqueued_at, j.started_at, o.source, o.slot, -- what the event needs
        j.priority, j.max_attempts, o.ready_seq, j.due_at, j.created_at, j.scheduled_at, j.expires_at, j.total_due_at, j.lease_until, j.lease_ms, j.stall_due_at, j.visibility_ms, j.timeout_ms,
        j.grace_ms, j.stall_ms, j.retry_delay_ms, j.result_ttl_s, j.re_enqueued_at, j.replay_count, j.cron, j.cron_serial, j.unique_key, j.limit_key, j.on_limit, j.retry, j.args, j.meta,
        j.extra, j.error, j.errors, j.previous_errors, j.checkpoint, j.checkpoint_seq, j.checkpoint_at, j.size,
        CASE WHEN j.workflow_id IS NOT NULL THEN ojs.workflow_job_started(j.workflow_id, j.started_at) END AS starts_workflow,
        CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_started(j.limit_key, j.started_at) END AS limit_started
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, from_state, to_state, node, duration_ms)
    SELECT @event_type::text, c.source, c.started_at, c.id, c.type, c.queue, c.lane, c.attempt, c.worker_id, c.workflow_id, c.trace_id, 'available', 'active', @node::integer,
        (date_part('epoch', c.started_at - c.enqueued_at) * 1000)::bigint
    FROM claimed c
)
SELECT c.slot::bigint AS slot, c.id, c.type, c.queue, c.lane, c.attempt, c.worker_id, c.workflow_id, c.trace_id, c.enqueued_at, c.started_at, c.priority, c.max_attempts, c.ready_seq, c.due_at,
    c.created_at, c.scheduled_at, c.expires_at, c.total_due_at, c.lease_until, c.lease_ms, c.stall_due_at, c.visibility_ms, c.timeout_ms, c.grace_ms, c.stall_ms, c.retry_delay_ms,
    c.result_ttl_s, c.re_enqueued_at, c.replay_count, c.cron, c.cron_serial, c.unique_key, c.limit_key, c.on_limit, c.retry, c.args, c.meta, c.extra, c.error, c.errors, c.previous_errors,
    c.checkpoint, c.checkpoint_seq, c.checkpoint_at, c.size
FROM claimed c;

-- name: JobFetchRescan :many
-- The lowest ready_seq per lane and priority, found by skipping from one to the next: of each scope, those behind a lane and priority and
-- before another lane. It has no lower bound of ready_seq, so it finds jobs that a cursor has passed because their transaction committed
-- late. Jobs without ready_seq wait for another job of their cron, or for a limit, and are left out. The LIMIT ends the recursion.
WITH RECURSIVE level AS (
    SELECT unnest(@scopes::integer[]) AS scope, unnest(@queues::text[]) AS queue, unnest(@lanes::text[]) COLLATE "C" AS lane,
        unnest(@priorities::smallint[]) AS priority, unnest(@befores::text[]) AS before, NULL::bigint AS ready_seq
    UNION ALL
    SELECT l.scope, l.queue, n.lane, n.priority, l.before, n.ready_seq
    FROM level l CROSS JOIN LATERAL (
        (SELECT j.lane, j.priority, j.ready_seq FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = l.queue AND j.lane = l.lane AND j.priority < l.priority AND j.ready_seq IS NOT NULL
        ORDER BY j.priority DESC, j.ready_seq LIMIT 1)
        UNION ALL
        (SELECT j.lane, j.priority, j.ready_seq FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = l.queue AND j.lane > l.lane AND j.lane < l.before AND j.ready_seq IS NOT NULL
        ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
        LIMIT 1) n
)
SELECT l.scope::integer AS scope, l.queue::text AS queue, l.lane::text AS lane, l.priority::smallint AS priority, l.ready_seq::bigint AS ready_seq
FROM level l WHERE l.ready_seq IS NOT NULL LIMIT @max_rows::integer;

-- name: JobComplete :many
-- Completes active jobs. The row moves to jobs_done, so jobs stays small and finished jobs are never rewritten. Locking
-- the rows first, to skip those that another transaction has locked, costs a fifth of the throughput. Instead the
-- statement fails after the lock timeout; the caller then completes the unlocked jobs. ids are sorted, so that
-- width_bucket, a binary search, finds the elements of a row in the other arrays: a join with an unnest has no cheap plan
-- but a hash join, which has read all of ojs.jobs for three acks. owners is an index of workers and sources; results and
-- event_data are empty if no ack has a result.
--
-- A job is returned without what its client sent, args above all, if it is larger than max_whole_size: 1 000 acks of
-- jobs of 1 MiB would return 1 GiB. The caller reads the job again if it has to show all of it. As in JobFetch, only columns that a
-- completed job can have are returned (see completedRecord), and by the DELETE: RETURNING * of the INSERT cost a tenth of the statement.
--
-- A report of progress that had no event, because the one before was less than a second old, has it before that of the end. So in
-- every statement that ends a run; but here it would cost each ack 11 to 28 of 345 µs. Jobs with a report are left out unless @reported
-- is true: the caller calls JobProgressFlush first, in the same transaction.
WITH setting AS MATERIALIZED (
    SELECT set_config('lock_timeout', @lock_timeout::text, true) AS patience
), deleted AS (
    DELETE FROM ojs.jobs j
    WHERE (SELECT s.patience IS NOT NULL FROM setting s) AND j.id = ANY(@ids::uuid[]) AND j.state = 'active'
        AND (j.worker_id IS NULL OR (@workers::text[])[(@owners::integer[])[width_bucket(j.id, @ids::uuid[])]] IN ('', j.worker_id))
        AND (@attempts::integer[])[width_bucket(j.id, @ids::uuid[])] IN (-1, j.attempt)
        AND (j.progress_at IS NULL OR @reported::boolean)
    RETURNING j.id, j.type, j.queue, j.lane, j.attempt, j.worker_id, j.workflow_id, j.trace_id, j.started_at, clock_timestamp() AS completed_at,
        width_bucket(j.id, @ids::uuid[]) AS n, -- what the event needs
        j.priority, j.max_attempts, j.created_at, j.enqueued_at, j.scheduled_at, j.expires_at, j.visibility_ms, j.timeout_ms, j.grace_ms, j.retry_delay_ms, j.retry, j.args, j.meta, j.extra,
        j.errors, j.re_enqueued_at, j.replay_count, j.previous_errors, j.cron, j.unique_key, j.limit_key, j.progress, j.progress_message, j.progress_data, j.progress_at, j.progress_sent_at,
        j.checkpoint, j.checkpoint_seq, j.checkpoint_at, j.size, COALESCE(j.result_ttl_s, @default_result_ttl_s::bigint) AS ttl_s,
        CASE WHEN j.workflow_id IS NOT NULL THEN ojs.workflow_job_changed(j.workflow_id, j.id, 'completed', j.attempt, j.started_at, clock_timestamp(),
            COALESCE(NULLIF((@workers::text[])[(@owners::integer[])[width_bucket(j.id, @ids::uuid[])]], ''), j.worker_id),
            (@results::json[])[width_bucket(j.id, @ids::uuid[])], NULL) END AS advances,
        CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_changed(j.limit_key) END AS limit_changed
), moved AS (
    INSERT INTO ojs.jobs_done (id, type, queue, state, priority, attempt, max_attempts, created_at, enqueued_at, started_at, finished_at,
        scheduled_at, expires_at, visibility_ms, timeout_ms, grace_ms, retry_delay_ms, worker_id, trace_id, previous_state,
        retry, args, meta, extra, errors, result, result_ttl_s, re_enqueued_at, replay_count, previous_errors, cron, workflow_id, unique_key, lane, limit_key,
        progress, progress_message, progress_data, progress_at, checkpoint, checkpoint_seq, checkpoint_at, size)
    SELECT d.id, d.type, d.queue, 'completed', d.priority, d.attempt, d.max_attempts, d.created_at, d.enqueued_at, d.started_at, d.completed_at,
        d.scheduled_at, d.expires_at, d.visibility_ms, d.timeout_ms, d.grace_ms, d.retry_delay_ms, d.worker_id, d.trace_id, 'active',
        d.retry, d.args, d.meta, d.extra, d.errors, CASE WHEN d.ttl_s <> 0 THEN (@results::json[])[d.n] END,
        d.ttl_s, d.re_enqueued_at, d.replay_count, d.previous_errors, d.cron, d.workflow_id, d.unique_key, d.lane, d.limit_key,
        CASE WHEN d.progress IS NOT NULL THEN 1 END, d.progress_message, d.progress_data, d.progress_at,
        d.checkpoint, d.checkpoint_seq, d.checkpoint_at,
        NULLIF(GREATEST(8191, COALESCE(d.size, 0) + COALESCE(octet_length((@results::json[])[d.n]::text), 0)), 8191)
    FROM deleted d
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, from_state, to_state, node, duration_ms, data)
    SELECT @event_type::text, COALESCE(NULLIF((@sources::text[])[(@owners::integer[])[d.n]], ''), ojs.worker_source(d.worker_id)), d.completed_at,
        d.id, d.type, d.queue, d.lane, d.attempt, d.worker_id, d.workflow_id, d.trace_id, 'active', 'completed', @node::integer,
        (date_part('epoch', d.completed_at - d.started_at) * 1000)::bigint, (@event_data::json[])[d.n]
    FROM deleted d
)
SELECT d.id, d.type, d.queue, d.lane, d.attempt, d.worker_id, d.workflow_id, d.trace_id, d.started_at, d.completed_at::timestamptz AS finished_at, d.priority, d.max_attempts, d.created_at,
    d.enqueued_at, d.scheduled_at, d.expires_at, d.visibility_ms, d.timeout_ms, d.grace_ms, d.retry_delay_ms, d.ttl_s::bigint AS result_ttl_s, d.re_enqueued_at, d.replay_count, d.cron,
    d.unique_key, d.limit_key, d.retry, (CASE WHEN COALESCE(d.size, 0) <= @max_whole_size::integer THEN d.args END)::json AS args,
    (CASE WHEN COALESCE(d.size, 0) <= @max_whole_size::integer THEN d.meta END)::json AS meta, (CASE WHEN COALESCE(d.size, 0) <= @max_whole_size::integer THEN d.extra END)::json AS extra,
    (CASE WHEN COALESCE(d.size, 0) <= @max_whole_size::integer THEN d.errors END)::json[] AS errors,
    (CASE WHEN COALESCE(d.size, 0) <= @max_whole_size::integer THEN d.previous_errors END)::json[] AS previous_errors, d.progress, d.progress_message, d.progress_data, d.progress_at, d.progress_sent_at,
    d.checkpoint, d.checkpoint_seq, d.checkpoint_at, (CASE WHEN d.ttl_s <> 0 THEN (@results::json[])[d.n] END)::json AS result,
    (COALESCE(d.size, 0) + COALESCE(octet_length((@results::json[])[d.n]::text), 0))::integer AS size
FROM deleted d;

-- name: JobListForFail :many
-- The values that decide the outcome of a failure. All are fixed at enqueue, except attempt and started_at, which JobFail
-- guards. A manual retry restarts the total timeout; entered_at is then the time of that retry.
SELECT id, state, attempt, max_attempts, retry, worker_id, COALESCE(re_enqueued_at, created_at)::timestamptz AS entered_at, started_at,
    lease_until, timeout_ms, grace_ms, total_due_at, clock_timestamp()::timestamptz AS now
FROM ojs.jobs WHERE id = ANY(@ids::uuid[]);

-- name: JobListOverdue :many
-- Active jobs whose lease, run time, heartbeat timeout or total timeout has ended. The rows are not locked: JobFail compares
-- due_at again. @skip_rows leaves out those at the head that JobFail could not lock.
SELECT id, attempt, max_attempts, retry, worker_id, COALESCE(re_enqueued_at, created_at)::timestamptz AS entered_at, started_at,
    lease_until, timeout_ms, grace_ms, total_due_at, stall_ms, stall_due_at, now()::timestamptz AS now
FROM ojs.jobs
WHERE due_at >= @after AND due_at <= now() AND state = 'active'
ORDER BY due_at
OFFSET @skip_rows::integer LIMIT @max_rows::integer;

-- name: JobFail :many
-- Moves active jobs to retryable, discarded or back to available, or to scheduled if a worker has handed one back with a delay. Go has chosen the outcome from values that cannot
-- change while attempt and started_at stay the same; started_at is compared too, because a job that was handed back
-- gets the same attempt number again. The rows are locked first, so that the clock is read under the lock and times
-- never decrease along a job. Rows that another transaction has locked are skipped. As in the other statements that lock
-- what a request names, a LATERAL with FOR UPDATE leaves a look-up per id as the only plan.
WITH request AS (
    SELECT unnest(@ids::uuid[]) AS id,
        unnest(@workers::text[]) AS worker_id,
        unnest(@attempts::integer[]) AS attempt,
        unnest(@started_at::timestamptz[]) AS started_at,
        unnest(@due_only::boolean[]) AS due_only,
        unnest(@outcomes::text[]) AS outcome,
        unnest(@releases::boolean[]) AS release,
        unnest(@dead_letters::boolean[]) AS dead_letter,
        unnest(@delays_ms::bigint[]) AS delay_ms,
        unnest(@errors::text[]) AS error,
        unnest(@event_errors::text[]) AS event_error,
        unnest(@reasons::text[]) AS reason,
        unnest(@event_types::text[]) AS event_type,
        unnest(@sources::text[]) AS source,
        unnest(@blocked_until::timestamptz[]) AS blocked_until
), locked AS MATERIALIZED (
    SELECT j.id, r.blocked_until, j.started_at AS was_started_at, j.worker_id AS was_worker_id, r.worker_id, r.outcome, r.release, r.dead_letter, r.delay_ms, r.error, r.event_error, r.reason, r.event_type, r.source
    FROM request r CROSS JOIN LATERAL (
        SELECT j.id, j.started_at, j.worker_id FROM ojs.jobs j
        WHERE j.id = r.id AND j.state = 'active' AND j.attempt = r.attempt AND j.started_at IS NOT DISTINCT FROM r.started_at
            AND (r.worker_id = '' OR j.worker_id IS NULL OR j.worker_id = r.worker_id)
            AND (NOT r.due_only OR j.due_at <= clock_timestamp())
        FOR UPDATE SKIP LOCKED
    ) j
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM locked LIMIT 1
), failed AS (
    UPDATE ojs.jobs j
    SET state = l.outcome,
        attempt = CASE WHEN l.release THEN j.attempt - 1 ELSE j.attempt END,
        previous_state = CASE WHEN l.outcome = 'discarded' THEN 'active' END,
        failed = (l.outcome = 'discarded'),
        finished_at = CASE WHEN l.outcome = 'discarded' THEN clock.now END,
        started_at = CASE WHEN l.outcome IN ('available', 'scheduled') THEN NULL ELSE j.started_at END,
        enqueued_at = CASE WHEN l.outcome IN ('available', 'scheduled') THEN clock.now ELSE j.enqueued_at END,
        ready_seq = CASE WHEN l.outcome = 'available' AND NOT j.cron_serial AND j.limit_key IS NULL THEN nextval('ojs.ready_seq') END,
        limit_seq = CASE WHEN l.outcome = 'available' AND NOT j.cron_serial AND j.limit_key IS NOT NULL THEN nextval('ojs.ready_seq') END,
        next_attempt_at = CASE WHEN l.outcome = 'retryable' THEN clock.now + l.delay_ms * interval '1 millisecond' END,
        retry_delay_ms = CASE WHEN l.outcome = 'retryable' THEN l.delay_ms ELSE j.retry_delay_ms END,
        scheduled_at = CASE WHEN l.outcome = 'scheduled' THEN clock.now + l.delay_ms * interval '1 millisecond' ELSE j.scheduled_at END,
        extra = CASE WHEN l.outcome = 'scheduled' THEN ojs.with_scheduled_at(j.extra, j.scheduled_at, clock.now + l.delay_ms * interval '1 millisecond') ELSE j.extra END,
        due_at = CASE WHEN l.outcome IN ('retryable', 'scheduled') THEN LEAST(clock.now + l.delay_ms * interval '1 millisecond', j.expires_at, j.total_due_at)
            WHEN l.outcome = 'available' THEN LEAST(j.expires_at, j.total_due_at, CASE WHEN j.cron_serial THEN clock.now + interval '2 seconds' END) END,
        lease_until = NULL, lease_ms = NULL, stall_due_at = NULL,
        dead_lettered_at = CASE WHEN l.dead_letter THEN clock.now END,
        worker_id = CASE WHEN l.outcome = 'discarded' THEN j.worker_id END,
        error = CASE WHEN l.release THEN j.error ELSE ojs.error_at(l.error, clock.now) END,
        errors = CASE WHEN l.release THEN j.errors
            ELSE ojs.errors_append(j.errors, ojs.error_at(l.error, clock.now), @max_errors::integer) END,
        size = CASE WHEN l.release THEN j.size
            ELSE ojs.stored_size(j.args, j.meta, j.extra, j.errors, j.previous_errors, j.checkpoint, 2 * octet_length(l.error)) END
    FROM locked l CROSS JOIN clock
    WHERE j.id = ANY(ARRAY[l.id])
    RETURNING j.*, clock.now, l.release, l.was_worker_id, CASE WHEN l.release THEN j.attempt + 1 ELSE j.attempt END AS ended_attempt, l.error AS raw_error, l.event_error, l.reason, l.event_type,
        CASE WHEN l.source = '' THEN ojs.worker_source(NULLIF(l.worker_id, '')) ELSE l.source END AS source,
        (date_part('epoch', clock.now - l.was_started_at) * 1000)::bigint AS ran_ms,
        CASE WHEN j.workflow_id IS NOT NULL AND l.outcome = 'discarded' THEN ojs.workflow_job_changed(j.workflow_id, j.id, 'discarded', j.attempt,
            l.was_started_at, clock.now, l.was_worker_id, NULL, j.error) END AS advances,
        CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_failed(j.limit_key, l.blocked_until) END AS limit_changed
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, from_state, to_state, internal,
        priority, ready_seq, node, duration_ms, data)
    SELECT e.type, e.source, e.now, e.id, e.job_type, e.queue, e.lane, e.attempt, e.worker_id, e.workflow_id, e.trace_id, e.from_state, e.to_state, e.internal,
        e.priority, e.ready_seq, @node::integer, e.ran_ms, e.data::json
    FROM (
        SELECT 0 AS step, 'job.progress' AS type, f.source, f.now, f.id, f.type AS job_type, f.queue, f.lane, f.ended_attempt AS attempt, f.was_worker_id AS worker_id, f.workflow_id, f.trace_id,
            NULL AS from_state, NULL AS to_state, false AS internal, NULL::smallint AS priority, NULL::bigint AS ready_seq, NULL::bigint AS ran_ms,
            ojs.progress_data(f.progress, f.progress_message)::text AS data
        FROM failed f WHERE f.progress_at > f.progress_sent_at
        UNION ALL
        SELECT 1, @failed_event_type::text, f.source, f.now, f.id, f.type, f.queue, f.lane, f.attempt, f.worker_id, f.workflow_id, f.trace_id,
            NULL, NULL, false, NULL, NULL, f.ran_ms,
            '{"error":' || f.event_error || ',"next_state":"' || f.state || '"'
                || COALESCE(',"retry_at":"' || ojs.time_text(f.next_attempt_at) || '"', '') || '}'
        FROM failed f WHERE NOT f.release
        UNION ALL
        SELECT 2, f.event_type, f.source, f.now, f.id, f.type, f.queue, f.lane, f.attempt, f.worker_id, f.workflow_id, f.trace_id, 'active', f.state, f.event_type = 'job.state_changed',
            f.priority, f.ready_seq, NULL,
            CASE f.state
                WHEN 'retryable' THEN '{"max_attempts":' || f.max_attempts || ',"next_retry_at":"' || ojs.time_text(f.next_attempt_at)
                    || '","error":' || f.event_error || ',"next_attempt":' || f.attempt + 1 || '}'
                WHEN 'discarded' THEN '{"last_error":' || f.event_error || ',"error":' || f.event_error || '}'
                WHEN 'scheduled' THEN '{"reason":"' || f.reason || '","scheduled_at":"' || ojs.time_text(f.scheduled_at) || '"}'
                ELSE '{"reason":"' || f.reason || '"}' END
        FROM failed f
    ) e
    ORDER BY e.id, e.step
)
SELECT
    m.id, m.type, m.queue, m.state, m.priority, m.attempt, m.max_attempts, m.ready_seq, m.due_at, m.created_at,
    m.enqueued_at, m.started_at, m.finished_at, m.scheduled_at, m.next_attempt_at, m.expires_at, m.total_due_at,
    m.ttl_due_at, m.worker_id, m.lease_until, m.lease_ms, m.stall_due_at, m.visibility_ms, m.timeout_ms, m.grace_ms,
    m.stall_ms, m.retry_delay_ms, m.result_ttl_s, m.previous_state, m.failed, m.dead_lettered_at, m.re_enqueued_at,
    m.replay_count, m.trace_id, m.cron, m.cron_serial, m.workflow_id, m.unique_key, m.lane, m.limit_key, m.limit_seq, m.on_limit, m.on_exhaustion, m.retry, (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.args END)::json AS args,
    (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.meta END)::json AS meta, (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.extra END)::json AS extra, m.error,
    (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.errors END)::json[] AS errors,
    (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.previous_errors END)::json[] AS previous_errors, m.progress, m.progress_message,
    m.progress_data, m.progress_at, m.progress_sent_at, m.checkpoint, m.checkpoint_seq, m.checkpoint_at, m.result, m.size
FROM failed m;

-- name: JobCancel :many
-- Cancels jobs by moving them to jobs_done. The row keeps worker_id and previous_state, to answer a late ack of the
-- worker that ran the job. ids are sorted, and large jobs are cut; see
-- JobComplete.
WITH deleted AS (
    DELETE FROM ojs.jobs j
    WHERE j.id = ANY(@ids::uuid[]) AND j.state = ANY(@states::text[])
    RETURNING j.*, clock_timestamp() AS cancelled_at, (@event_data::json[])[width_bucket(j.id, @ids::uuid[])] AS event_data,
        CASE WHEN j.workflow_id IS NOT NULL THEN ojs.workflow_job_changed(j.workflow_id, j.id, 'cancelled', j.attempt, j.started_at, clock_timestamp(),
            NULL, NULL, NULL) END AS advances,
        CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_changed(j.limit_key) END AS limit_changed
), moved AS (
    INSERT INTO ojs.jobs_done (id, type, queue, state, priority, attempt, max_attempts, created_at, enqueued_at, started_at, finished_at,
        scheduled_at, expires_at, visibility_ms, timeout_ms, grace_ms, retry_delay_ms, worker_id, trace_id, previous_state,
        retry, args, meta, extra, error, errors, result_ttl_s, re_enqueued_at, replay_count, previous_errors, cron, workflow_id, unique_key, lane, limit_key,
        progress, progress_message, progress_data, progress_at, progress_sent_at, checkpoint, checkpoint_seq, checkpoint_at, size)
    SELECT d.id, d.type, d.queue, 'cancelled', d.priority, d.attempt, d.max_attempts, d.created_at, d.enqueued_at, d.started_at, d.cancelled_at,
        d.scheduled_at, d.expires_at, d.visibility_ms, d.timeout_ms, d.grace_ms, d.retry_delay_ms, d.worker_id, d.trace_id, d.state,
        d.retry, d.args, d.meta, d.extra, d.error, d.errors,
        d.result_ttl_s, d.re_enqueued_at, d.replay_count, d.previous_errors, d.cron, d.workflow_id, d.unique_key, d.lane, d.limit_key,
        d.progress, d.progress_message, d.progress_data, d.progress_at, d.progress_sent_at,
        d.checkpoint, d.checkpoint_seq, d.checkpoint_at, d.size
    FROM deleted d
    RETURNING *
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, from_state, to_state, node, data)
    SELECT 'job.progress', ojs.worker_source(d.worker_id), d.cancelled_at, d.id, d.type, d.queue, d.lane, d.attempt, d.worker_id, d.workflow_id, d.trace_id, NULL, NULL, @node::integer,
        ojs.progress_data(d.progress, d.progress_message)
    FROM deleted d WHERE d.state = 'active' AND d.progress_at > d.progress_sent_at
    UNION ALL
    SELECT @event_type::text, @source::text, d.cancelled_at, d.id, d.type, d.queue, d.lane, d.attempt, d.worker_id, d.workflow_id, d.trace_id, d.state, 'cancelled', @node::integer, d.event_data
    FROM deleted d
)
SELECT
    m.id, m.type, m.queue, m.state, m.priority, m.attempt, m.max_attempts, m.ready_seq, m.due_at, m.created_at,
    m.enqueued_at, m.started_at, m.finished_at, m.scheduled_at, m.next_attempt_at, m.expires_at, m.total_due_at,
    m.ttl_due_at, m.worker_id, m.lease_until, m.lease_ms, m.stall_due_at, m.visibility_ms, m.timeout_ms, m.grace_ms,
    m.stall_ms, m.retry_delay_ms, m.result_ttl_s, m.previous_state, m.failed, m.dead_lettered_at, m.re_enqueued_at,
    m.replay_count, m.trace_id, m.cron, m.cron_serial, m.workflow_id, m.unique_key, m.lane, m.limit_key, m.limit_seq, m.on_limit, m.on_exhaustion, m.retry, (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.args END)::json AS args,
    (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.meta END)::json AS meta, (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.extra END)::json AS extra, m.error,
    (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.errors END)::json[] AS errors,
    (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.previous_errors END)::json[] AS previous_errors, m.progress, m.progress_message,
    m.progress_data, m.progress_at, m.progress_sent_at, m.checkpoint, m.checkpoint_seq, m.checkpoint_at, m.result, m.size
FROM moved m;

-- name: JobLockUnlocked :many
-- Locks those of the jobs that no other transaction has locked, and returns them.
-- Finished jobs are missing, too: their rows are in jobs_done.
SELECT j.id FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) ORDER BY j.id FOR UPDATE SKIP LOCKED;

-- name: JobActivate :many
-- Makes pending jobs available.
-- The rows are locked in the order of their ids, so that two calls with the same ids in another order cannot deadlock. A job of a serial
-- cron becomes available without ready_seq: it waits until CronReleaseQueued lets it be fetched.
WITH locked AS MATERIALIZED (
    SELECT j.id FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'pending' ORDER BY j.id FOR UPDATE
), moved AS (
    UPDATE ojs.jobs j
    SET state = 'available', enqueued_at = clock_timestamp(), ready_seq = CASE WHEN NOT j.cron_serial AND j.limit_key IS NULL THEN nextval('ojs.ready_seq') END,
        limit_seq = CASE WHEN NOT j.cron_serial AND j.limit_key IS NOT NULL THEN nextval('ojs.ready_seq') END,
        due_at = LEAST(j.expires_at, j.total_due_at, j.ttl_due_at, CASE WHEN j.cron_serial THEN clock_timestamp() + interval '2 seconds' END)
    FROM locked l WHERE j.id = ANY(ARRAY[l.id])
    RETURNING j.*, CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_changed(j.limit_key) END AS limit_changed
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, workflow_id, trace_id, from_state, to_state, priority, ready_seq, node, data)
    SELECT @event_type::text, 'api', m.enqueued_at, m.id, m.type, m.queue, m.lane, m.workflow_id, m.trace_id, 'pending', 'available', m.priority, m.ready_seq, @node::integer,
        ojs.unique_key_data(m.unique_key)
    FROM moved m
)
SELECT m.id, m.type, m.queue, m.state, m.priority, m.attempt, m.max_attempts, m.ready_seq, m.due_at, m.created_at,
    m.enqueued_at, m.started_at, m.finished_at, m.scheduled_at, m.next_attempt_at, m.expires_at, m.total_due_at,
    m.ttl_due_at, m.worker_id, m.lease_until, m.lease_ms, m.stall_due_at, m.visibility_ms, m.timeout_ms, m.grace_ms,
    m.stall_ms, m.retry_delay_ms, m.result_ttl_s, m.previous_state, m.failed, m.dead_lettered_at, m.re_enqueued_at,
    m.replay_count, m.trace_id, m.cron, m.cron_serial, m.workflow_id, m.unique_key, m.lane, m.limit_key, m.limit_seq, m.on_limit, m.on_exhaustion, m.retry, m.args,
    m.meta, m.extra, m.error, m.errors, m.previous_errors, m.progress, m.progress_message, m.progress_data, m.progress_at, m.progress_sent_at, m.checkpoint,
    m.checkpoint_seq, m.checkpoint_at, m.result, m.size FROM moved m;

-- name: JobLockForRetry :many
-- Locks the jobs and returns the JSON that Go rewrites before JobRetry in the same transaction, because json functions of
-- SQL fail for strings with \u0000. With @everything the retry changes attributes; without it only the echo of an expiry can
-- change.
-- The states are named twice, because @states comes from the call: whatever it says, jobs in other states stay as they are.
SELECT j.id, j.max_attempts, j.state, j.unique_key, j.queue, j.lane,
    (CASE WHEN @everything::boolean THEN j.retry END)::json AS retry,
    (CASE WHEN @everything::boolean THEN j.meta END)::json AS meta,
    (CASE WHEN @everything::boolean OR j.expires_at IS NOT NULL THEN j.extra END)::json AS extra
FROM ojs.jobs j
WHERE j.id = ANY(@ids::uuid[]) AND j.state = ANY(@states::text[]) AND j.state IN ('discarded', 'retryable')
ORDER BY j.id FOR UPDATE;

-- name: JobRetry :many
-- Makes discarded jobs available again with all their attempts, and ends the backoff of retryable jobs. Only discarded jobs
-- take changed attributes. @extras replaces extra; @unexpired_extras is the same without an expiry, for jobs that have
-- expired. NULL keeps the old object, {} stands for none. A job that changes its queue has two more internal events, which
-- move it from the counts of the old queue to those of the new one.
WITH request AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@extras::json[]) AS extra, unnest(@unexpired_extras::json[]) AS unexpired_extra
), locked AS MATERIALIZED (
    SELECT j.id, j.state AS was, j.queue AS old_queue, r.extra, r.unexpired_extra
    FROM request r JOIN ojs.jobs j ON j.id = ANY(ARRAY[r.id])
    WHERE j.state = ANY(@states::text[]) AND j.state IN ('discarded', 'retryable')
    ORDER BY r.id FOR UPDATE OF j
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM locked LIMIT 1
), planned AS (
    SELECT j.id, l.was, l.old_queue, clock.now, l.was = 'discarded' AS anew,
        CASE WHEN l.was = 'retryable' OR j.expires_at > clock.now THEN j.expires_at END AS expires_at,
        CASE WHEN l.was = 'retryable' THEN j.total_due_at
            ELSE clock.now + date_part('epoch', j.total_due_at - COALESCE(j.re_enqueued_at, j.created_at)) * interval '1 second' END AS total_due_at,
        COALESCE(CASE WHEN l.was = 'discarded' AND j.expires_at <= clock.now THEN l.unexpired_extra ELSE l.extra END, j.extra) AS extra,
        array_cat(j.previous_errors, j.errors) AS history
    FROM locked l JOIN ojs.jobs j ON j.id = ANY(ARRAY[l.id]) CROSS JOIN clock
), moved AS (
    UPDATE ojs.jobs j
    SET state = 'available', enqueued_at = p.now, next_attempt_at = NULL,
        ready_seq = CASE WHEN NOT j.cron_serial AND j.limit_key IS NULL THEN nextval('ojs.ready_seq') END,
        limit_seq = CASE WHEN NOT j.cron_serial AND j.limit_key IS NOT NULL THEN nextval('ojs.ready_seq') END,
        expires_at = p.expires_at, total_due_at = p.total_due_at, ttl_due_at = NULL,
        due_at = LEAST(p.expires_at, p.total_due_at, CASE WHEN j.cron_serial THEN p.now + interval '2 seconds' END),
        attempt = CASE WHEN p.anew THEN 0 ELSE j.attempt END,
        error = CASE WHEN NOT p.anew THEN j.error END,
        errors = CASE WHEN NOT p.anew THEN j.errors END,
        previous_errors = CASE WHEN p.anew THEN p.history[GREATEST(1, cardinality(p.history) - 49):] ELSE j.previous_errors END,
        replay_count = CASE WHEN p.anew THEN j.replay_count + 1 ELSE j.replay_count END,
        re_enqueued_at = CASE WHEN p.anew THEN p.now ELSE j.re_enqueued_at END,
        started_at = CASE WHEN NOT p.anew THEN j.started_at END,
        retry_delay_ms = CASE WHEN NOT p.anew THEN j.retry_delay_ms END,
        progress = CASE WHEN NOT p.anew THEN j.progress END,
        progress_message = CASE WHEN NOT p.anew THEN j.progress_message END,
        progress_data = CASE WHEN NOT p.anew THEN j.progress_data END,
        progress_at = CASE WHEN NOT p.anew THEN j.progress_at END,
        checkpoint = CASE WHEN NOT p.anew THEN j.checkpoint END,
        checkpoint_seq = CASE WHEN NOT p.anew THEN j.checkpoint_seq END,
        checkpoint_at = CASE WHEN NOT p.anew THEN j.checkpoint_at END,
        dead_lettered_at = NULL, finished_at = NULL, previous_state = NULL, failed = false, worker_id = NULL,
        queue = COALESCE(sqlc.narg('queue'), j.queue),
        lane = COALESCE(sqlc.narg('lane'), j.lane),
        priority = COALESCE(sqlc.narg('priority'), j.priority),
        max_attempts = COALESCE(sqlc.narg('max_attempts'), j.max_attempts),
        retry = COALESCE(sqlc.narg('retry'), j.retry),
        on_exhaustion = CASE WHEN CAST(sqlc.narg('retry') AS json) IS NULL THEN j.on_exhaustion ELSE sqlc.narg('on_exhaustion')::text END,
        args = COALESCE(sqlc.narg('args'), j.args),
        meta = COALESCE(sqlc.narg('meta'), j.meta),
        trace_id = CASE WHEN CAST(sqlc.narg('meta') AS json) IS NULL THEN j.trace_id ELSE sqlc.narg('trace_id')::text END,
        extra = CASE WHEN p.extra::text <> '{}' THEN p.extra END,
        size = ojs.stored_size(COALESCE(sqlc.narg('args')::json, j.args), COALESCE(sqlc.narg('meta')::json, j.meta), p.extra, j.errors, j.previous_errors, j.checkpoint, 0)
    FROM planned p WHERE j.id = ANY(ARRAY[p.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.priority, j.ready_seq, j.attempt, j.enqueued_at, j.due_at, j.workflow_id, j.trace_id, j.cron, j.unique_key, p.was, p.old_queue,
        CASE WHEN j.workflow_id IS NOT NULL AND p.anew THEN ojs.workflow_job_changed(j.workflow_id, j.id, 'available', 0, NULL, p.now, NULL, NULL, NULL) END AS advances,
        j.limit_key, CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_changed(j.limit_key) END AS limit_changed,
        CASE WHEN p.was = 'discarded' THEN 'job.enqueued' ELSE @requeue_event_type::text END AS event_type
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, workflow_id, trace_id, from_state, to_state, internal, priority, ready_seq, node, data)
    SELECT e.type, 'api', e.enqueued_at, e.id, e.job_type, e.queue, e.lane, e.attempt, e.workflow_id, e.trace_id, e.from_state, e.to_state, e.internal,
        e.priority, e.ready_seq, @node::integer, e.data::json
    FROM (
        SELECT 1 AS step, 'job.state_changed' AS type, m.enqueued_at, m.id, m.type AS job_type, m.old_queue AS queue, m.lane, NULL::integer AS attempt,
            m.workflow_id, m.trace_id, m.was AS from_state, NULL AS to_state, true AS internal, NULL::smallint AS priority, NULL::bigint AS ready_seq,
            '{"reason":"moved"}' AS data
        FROM moved m WHERE m.old_queue <> m.queue
        UNION ALL
        SELECT 2, 'job.state_changed', m.enqueued_at, m.id, m.type, m.queue, m.lane, NULL, m.workflow_id, m.trace_id, NULL, m.was, true, NULL, NULL, '{"reason":"moved"}'
        FROM moved m WHERE m.old_queue <> m.queue
        UNION ALL
        SELECT 3, m.event_type, m.enqueued_at, m.id, m.type, m.queue, m.lane,
            m.attempt, m.workflow_id, m.trace_id, m.was, 'available', m.event_type = 'job.state_changed', m.priority, m.ready_seq,
            CASE WHEN m.was = 'retryable' THEN '{"reason":"retry"}' ELSE ojs.unique_key_data(m.unique_key)::text END
        FROM moved m
    ) e
    ORDER BY e.id, e.step
)
SELECT m.id, m.type, m.queue, m.lane, m.priority, m.attempt, m.ready_seq, m.enqueued_at, m.due_at, m.cron, m.workflow_id, m.limit_key, m.was, m.old_queue,
    m.event_type::text AS event_type FROM moved m;

-- name: JobDelete :many
-- Deletes finished and discarded jobs, for a client or for retention. The internal event takes them out of the counts.
WITH deleted AS (
    DELETE FROM ojs.jobs j
    WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'discarded' AND 'discarded' = ANY(@states::text[])
    RETURNING j.id, j.type, j.queue, j.lane, j.state, j.workflow_id, j.trace_id, clock_timestamp() AS now
), deleted_done AS (
    DELETE FROM ojs.jobs_done d
    WHERE d.id = ANY(@ids::uuid[]) AND d.state = ANY(@states::text[])
    RETURNING d.id, d.type, d.queue, d.lane, d.state, d.workflow_id, d.trace_id, clock_timestamp() AS now
), all_deleted AS (
    SELECT * FROM deleted UNION ALL SELECT * FROM deleted_done
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, workflow_id, trace_id, from_state, internal, node, data)
    SELECT @event_type::text, @source::text, b.now, b.id, b.type, b.queue, b.lane, b.workflow_id, b.trace_id, b.state, true, @node::integer, ('{"reason":"' || @reason::text || '"}')::json
    FROM all_deleted b
)
SELECT b.id::uuid AS id, b.type::text AS type, b.queue::text AS queue, b.state::text AS state, b.now::timestamptz AS now FROM all_deleted b;

-- name: JobHeartbeat :many
-- Extends the lease of active jobs that are reserved for the worker, or for no worker, to the given time from now or the one
-- chosen at fetch, but never shortens it. Jobs that the worker fetched before it was declared dead are not extended, even if it has come back.
-- Rows that another transaction has locked are skipped. At most one event per job is written in @event_interval_s seconds.
WITH request AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@workers::text[]) AS worker_id, unnest(@leases_ms::bigint[]) AS lease_ms, unnest(@sources::text[]) AS source
), locked AS MATERIALIZED (
    SELECT j.id, r.worker_id, r.lease_ms, r.source
    FROM request r CROSS JOIN LATERAL (
        SELECT j.id FROM ojs.jobs j
        WHERE j.id = r.id AND j.state = 'active' AND (j.worker_id IS NULL OR j.worker_id = r.worker_id)
            AND NOT COALESCE((SELECT w.reap_at IS NOT NULL AND j.started_at <= w.dead_at FROM ojs.workers w WHERE w.id = j.worker_id), false)
        FOR UPDATE SKIP LOCKED
    ) j
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM locked LIMIT 1
), extended AS (
    UPDATE ojs.jobs j
    SET lease_until = GREATEST(j.lease_until, clock.now + COALESCE(NULLIF(l.lease_ms, 0), j.lease_ms) * interval '1 millisecond'),
        stall_due_at = clock.now + j.stall_ms * interval '1 millisecond',
        due_at = LEAST(GREATEST(j.lease_until, clock.now + COALESCE(NULLIF(l.lease_ms, 0), j.lease_ms) * interval '1 millisecond'),
            clock.now + j.stall_ms * interval '1 millisecond', j.total_due_at,
            j.started_at + (COALESCE(j.timeout_ms, @default_timeout_ms::bigint) + COALESCE(j.grace_ms, 0)) * interval '1 millisecond')
    FROM locked l CROSS JOIN clock
    WHERE j.id = ANY(ARRAY[l.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.attempt, j.workflow_id, j.trace_id, j.lease_until, j.due_at, clock.now, l.worker_id AS beat_by, l.source
), paced AS MATERIALIZED (
    SELECT b.*, @event_interval_s::double precision = 0 OR NOT EXISTS (
        SELECT FROM ojs.events e WHERE e.job_id = b.id AND e.type = @event_type::text AND e.attempt = b.attempt
            AND e.time > b.now - make_interval(secs => @event_interval_s::double precision)) AS emitted
    FROM extended b
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, node, data)
    SELECT @event_type::text, b.source, b.now, b.id, b.type, b.queue, b.lane, b.attempt, b.beat_by, b.workflow_id, b.trace_id, @node::integer,
        ('{"visible_until":"' || ojs.time_text(b.lease_until) || '"}')::json
    FROM paced b WHERE b.emitted
)
SELECT b.id, b.type, b.queue, b.attempt, b.beat_by::text AS worker_id, b.due_at, b.now::timestamptz AS now, b.emitted::boolean AS emitted
FROM paced b;

-- name: JobListUnextended :many
-- For ids that a worker reported and that were not extended: which jobs were cancelled during its run, which are
-- finished, and which are still reserved for it because another transaction had locked the row. taken means that the
-- worker fetched the job before it was declared dead.
SELECT d.id, d.state, d.previous_state, d.worker_id, false AS taken FROM ojs.jobs_done d WHERE d.id = ANY(@ids::uuid[])
UNION ALL
SELECT j.id, j.state, j.previous_state, j.worker_id,
    EXISTS (SELECT FROM ojs.workers w WHERE w.id = j.worker_id AND w.reap_at IS NOT NULL AND j.started_at <= w.dead_at)
FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'active';

-- name: JobListByDeadWorkers :many
-- The jobs that are reserved for dead workers: active jobs fetched before dead_at. There is no index on worker_id, because
-- every claim would have to write it. An active job always has a due_at, at most the longest reservation ahead. So this
-- reads index jobs_due up to that time and filters: 70 ms with 200 000 jobs scheduled over 30 days and 200 000 available
-- ones, once for all workers that expire together. @skip_rows leaves out those at the head that could not be locked.
SELECT j.id, j.attempt, j.started_at, j.worker_id::text AS worker_id
FROM ojs.jobs j
WHERE j.state = 'active' AND j.worker_id = ANY(@worker_ids::text[])
    AND j.started_at <= (@dead_at::timestamptz[])[array_position(@worker_ids::text[], j.worker_id)]
    AND j.due_at <= now() + interval '1 millisecond' * @longest_ms::bigint
ORDER BY j.due_at
OFFSET @skip_rows::integer LIMIT @max_rows::integer;

-- name: JobListByClaim :many
-- The jobs of claims whose answer did not reach the node, by the numbers of the claims. Reads index jobs_due like
-- JobListByDeadWorkers; it runs only after a connection has broken.
SELECT j.id, j.attempt, j.started_at, j.worker_id
FROM ojs.jobs j
WHERE j.state = 'active' AND j.ready_seq = ANY(@claims::bigint[]) AND j.due_at <= now() + interval '1 millisecond' * @longest_ms::bigint
LIMIT @max_rows;

-- name: JobListByWorker :many
-- Of the ids that a worker reported, the jobs that are reserved for it; with a tenant, only its own.
SELECT j.id, j.type, j.queue, j.attempt, j.started_at, j.lease_until
FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'active' AND j.worker_id = @worker_id::text
    AND (@tenant::text = '' OR split_part(j.lane, '/', 1) = @tenant::text)
ORDER BY j.id;

-- name: JobListMetaActive :many
-- The meta of active jobs, for test directives. The caller parses meta, because -> on json fails for documents with
-- \u0000.
SELECT j.id, j.worker_id, j.meta FROM ojs.jobs j
WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'active' AND j.worker_id IS NOT NULL AND j.meta IS NOT NULL;

-- name: JobPromoteDue :many
-- Applies the due transitions of jobs that are not active: scheduled and retryable jobs become available, jobs past a
-- deadline are discarded. @after is explained at DueGetNext. A job that waits for another job of its cron becomes due every
-- minute; the caller then runs CronReleaseQueued, in case the node that should have released the job has stopped. now() is
-- used instead of clock_timestamp(), which cannot be an index condition. During maintenance (@deadlines_only) scheduled and retryable
-- jobs stay where they are; a full sweep then reads all of them that are due, 0.4 s for 500 000.
WITH due AS MATERIALIZED (
    SELECT j.id, j.state AS was,
        CASE WHEN j.expires_at <= now() THEN 'expired' WHEN j.total_due_at <= now() THEN 'total_timeout'
            WHEN j.ttl_due_at <= now() THEN 'enqueue_ttl_expired' END AS reason,
        j.state = 'available' AND j.cron_serial AND j.ready_seq IS NULL AND j.limit_seq IS NULL AS queued
    FROM ojs.jobs j
    WHERE j.due_at >= @after AND j.due_at <= now() AND j.state <> 'active'
        AND (NOT @deadlines_only::boolean OR j.state = 'available' OR LEAST(j.expires_at, j.total_due_at, j.ttl_due_at) <= now())
    ORDER BY j.due_at
    LIMIT @max_rows
    FOR UPDATE SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM due LIMIT 1
), moved AS (
    UPDATE ojs.jobs j
    SET state = CASE WHEN d.reason IS NOT NULL THEN 'discarded' ELSE 'available' END,
        due_at = CASE WHEN d.reason IS NOT NULL THEN NULL
            ELSE LEAST(j.expires_at, j.total_due_at, j.ttl_due_at,
                CASE WHEN d.queued THEN clock.now + interval '1 minute' WHEN j.cron_serial THEN clock.now + interval '2 seconds' END) END,
        next_attempt_at = NULL,
        ready_seq = CASE WHEN d.reason IS NULL AND NOT j.cron_serial AND j.limit_key IS NULL THEN nextval('ojs.ready_seq') END,
        limit_seq = CASE WHEN d.reason IS NULL AND NOT j.cron_serial AND j.limit_key IS NOT NULL THEN nextval('ojs.ready_seq') END,
        enqueued_at = CASE WHEN d.reason IS NOT NULL OR d.queued THEN j.enqueued_at ELSE clock.now END,
        finished_at = CASE WHEN d.reason IS NOT NULL THEN clock.now END,
        previous_state = CASE WHEN d.reason IS NOT NULL THEN d.was END,
        dead_lettered_at = CASE WHEN d.reason IS NOT NULL AND ojs.makes_dead_letters(j.on_exhaustion, d.reason) THEN clock.now END,
        error = CASE d.reason
            WHEN 'expired' THEN ojs.error_at(ojs.deadline_error(d.reason, CASE WHEN j.attempt > 0 THEN 'The job expired before its next attempt was started.' ELSE 'The job expired before it was started.' END, j.attempt, j.created_at, j.expires_at, clock.now), clock.now)
            WHEN 'total_timeout' THEN ojs.error_at(ojs.deadline_error(d.reason, 'The job was not done within its total timeout.', j.attempt, COALESCE(j.re_enqueued_at, j.created_at), j.total_due_at, clock.now), clock.now)
            WHEN 'enqueue_ttl_expired' THEN ojs.error_at(ojs.deadline_error(d.reason, 'The job was not started within its enqueue TTL.', j.attempt, j.created_at, j.ttl_due_at, clock.now), clock.now)
            ELSE j.error END
    FROM due d CROSS JOIN clock
    WHERE j.id = ANY(ARRAY[d.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.state, j.priority, j.attempt, j.ready_seq, j.created_at, j.scheduled_at, j.workflow_id, j.trace_id, j.unique_key, j.error, j.cron, clock.now, d.was, d.reason,
        CASE WHEN j.workflow_id IS NOT NULL AND d.reason IS NOT NULL THEN ojs.workflow_job_changed(j.workflow_id, j.id, 'discarded', j.attempt, NULL,
            clock.now, NULL, NULL, j.error) END AS advances,
        j.limit_key, CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_changed(j.limit_key) END AS limit_changed,
        d.queued AND d.reason IS NULL AS queued,
        CASE d.reason WHEN 'expired' THEN j.expires_at ELSE j.ttl_due_at END AS deadline,
        CASE WHEN d.reason = 'total_timeout' THEN 'job.discarded' WHEN d.reason IS NOT NULL THEN 'job.expired' WHEN d.was = 'scheduled' THEN 'job.enqueued'
            ELSE @requeue_event_type::text END AS event_type
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, workflow_id, trace_id, from_state, to_state, internal, priority, ready_seq, node, data)
    SELECT m.event_type, 'scheduler', m.now, m.id, m.type, m.queue, m.lane, m.attempt, m.workflow_id, m.trace_id, m.was, m.state, m.event_type = 'job.state_changed',
        m.priority, m.ready_seq, @node::integer,
        CASE WHEN m.reason = 'total_timeout' THEN '{"last_error":{"code":"total_timeout","type":"total_timeout","message":"The job was not done within its total timeout.","retryable":false},"error":{"code":"total_timeout","type":"total_timeout","message":"The job was not done within its total timeout.","retryable":false}}'::json
            WHEN m.state = 'discarded' THEN ('{"created_at":"' || ojs.time_text(m.created_at) || '","expired_at":"' || ojs.time_text(m.now)
                || '","ttl_ms":' || GREATEST(0, (date_part('epoch', m.deadline - m.created_at) * 1000)::bigint) || '}')::json
            WHEN m.was = 'scheduled' THEN ('{"scheduled_at":"' || ojs.time_text(m.scheduled_at) || '"'
                || COALESCE(',"unique_key":"' || m.unique_key || '"', '') || '}')::json
            ELSE '{"reason":"retry"}'::json END
    FROM moved m WHERE NOT m.queued
)
SELECT id, type, queue, lane, state, priority, attempt, ready_seq, cron, workflow_id, limit_key, was, COALESCE(reason, CASE was WHEN 'retryable' THEN 'retry' END, '')::text AS reason, event_type::text AS event_type, queued, now::timestamptz AS now FROM moved;

-- name: JobListByID :many
-- Live and finished jobs. One snapshot covers both tables, so a job that is being moved is found exactly once. Large jobs
-- are cut as by JobComplete, unless one is asked for.
SELECT
    m.id, m.type, m.queue, m.state, m.priority, m.attempt, m.max_attempts, m.ready_seq, m.due_at, m.created_at,
    m.enqueued_at, m.started_at, m.finished_at, m.scheduled_at, m.next_attempt_at, m.expires_at, m.total_due_at,
    m.ttl_due_at, m.worker_id, m.lease_until, m.lease_ms, m.stall_due_at, m.visibility_ms, m.timeout_ms, m.grace_ms,
    m.stall_ms, m.retry_delay_ms, m.result_ttl_s, m.previous_state, m.failed, m.dead_lettered_at, m.re_enqueued_at,
    m.replay_count, m.trace_id, m.cron, m.cron_serial, m.workflow_id, m.unique_key, m.lane, m.limit_key, m.limit_seq, m.on_limit, m.on_exhaustion, m.retry, (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.args END)::json AS args,
    (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.meta END)::json AS meta, (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.extra END)::json AS extra, m.error,
    (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.errors END)::json[] AS errors,
    (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.previous_errors END)::json[] AS previous_errors, m.progress, m.progress_message,
    m.progress_data, m.progress_at, m.progress_sent_at, (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.checkpoint END)::json AS checkpoint, m.checkpoint_seq,
    m.checkpoint_at, (CASE WHEN COALESCE(m.size, 0) <= @max_whole_size::integer THEN m.result END)::json AS result, m.size
FROM (
    SELECT j.* FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[])
    UNION ALL
    SELECT d.* FROM ojs.job_finished d WHERE d.id = ANY(@ids::uuid[])
) m;

-- name: JobListPage :many
-- Jobs, newest id first. Both branches walk an index on id and stop at the limit, or when max_looked jobs were looked at: see
-- JobListFloor. Only the first two run without a tenant, and only the others with one; the range of one tenant, and not an equation, leaves
-- its index as the only one that has the order. COALESCE is used instead of IS NULL OR, which a generic plan cannot turn into an index condition. The page ends with the job with which the sum of sizes
-- exceeds max_bytes; the caller takes it for the sign that there are more, unless it is the only one.
SELECT s.id, s.type, s.queue, s.state, s.priority, s.attempt, s.max_attempts, s.ready_seq, s.due_at, s.created_at, s.enqueued_at, s.started_at,
    s.finished_at, s.scheduled_at, s.next_attempt_at, s.expires_at, s.total_due_at, s.ttl_due_at, s.worker_id, s.lease_until, s.lease_ms,
    s.stall_due_at, s.visibility_ms, s.timeout_ms, s.grace_ms, s.stall_ms, s.retry_delay_ms, s.result_ttl_s, s.previous_state, s.failed,
    s.dead_lettered_at, s.re_enqueued_at, s.replay_count, s.trace_id, s.cron, s.cron_serial, s.workflow_id, s.unique_key, s.lane, s.limit_key, s.limit_seq, s.on_limit, s.on_exhaustion, s.retry, s.args, s.meta, s.extra, s.error, s.errors,
    s.previous_errors, s.progress, s.progress_message, s.progress_data, s.progress_at, s.progress_sent_at, s.checkpoint, s.checkpoint_seq, s.checkpoint_at,
    s.result, s.size FROM (
    SELECT r.*, row_number() OVER w AS n, sum(COALESCE(r.size, 8192)) OVER w - COALESCE(r.size, 8192) AS bytes_before FROM (SELECT l.* FROM (SELECT p.* FROM (
    (SELECT j.* FROM ojs.jobs j
     WHERE @tenant::text = '' AND j.id < COALESCE(sqlc.narg('before')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
     ORDER BY j.id DESC LIMIT @max_looked::bigint)
    UNION ALL
    (SELECT d.* FROM ojs.job_finished d
     WHERE @tenant::text = '' AND d.id < COALESCE(sqlc.narg('before')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
     ORDER BY d.id DESC LIMIT @max_looked::bigint)
    UNION ALL
    (SELECT t.* FROM ojs.jobs t
     WHERE @tenant::text <> '' AND octet_length(t.lane) > 0 AND split_part(t.lane, '/', 1) >= @tenant::text
        AND (split_part(t.lane, '/', 1), t.id) < (@tenant::text, COALESCE(sqlc.narg('before')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
     ORDER BY split_part(t.lane, '/', 1) DESC, t.id DESC LIMIT @max_looked::bigint)
    UNION ALL
    (SELECT f.* FROM ojs.job_finished f
     WHERE @tenant::text <> '' AND octet_length(f.lane) > 0 AND split_part(f.lane, '/', 1) >= @tenant::text
        AND (split_part(f.lane, '/', 1), f.id) < (@tenant::text, COALESCE(sqlc.narg('before')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
     ORDER BY split_part(f.lane, '/', 1) DESC, f.id DESC LIMIT @max_looked::bigint)
) p ORDER BY p.id DESC LIMIT @max_looked::bigint) l
    WHERE (cardinality(@states::text[]) = 0 OR l.state = ANY(@states::text[]))
        AND (cardinality(@queues::text[]) = 0 OR l.queue = ANY(@queues::text[]))
        AND (cardinality(@types::text[]) = 0 OR l.type = ANY(@types::text[]))
    ORDER BY l.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint) r WINDOW w AS (ROWS UNBOUNDED PRECEDING)
) s WHERE s.bytes_before <= @max_bytes::bigint
ORDER BY s.n;

-- name: JobListFloor :many
-- The last of the jobs that JobListPage looks at, if there are as many, behind all others: where the next page begins.
-- sqlc cannot read max_looked - 1 in an OFFSET.
SELECT p.id FROM (
    (SELECT j.id FROM ojs.jobs j WHERE @tenant::text = '' AND j.id < COALESCE(sqlc.narg('before')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
     ORDER BY j.id DESC LIMIT @max_looked::bigint)
    UNION ALL
    (SELECT d.id FROM ojs.jobs_done d WHERE @tenant::text = '' AND d.id < COALESCE(sqlc.narg('before')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
     ORDER BY d.id DESC LIMIT @max_looked::bigint)
    UNION ALL
    (SELECT t.id FROM ojs.jobs t
     WHERE @tenant::text <> '' AND octet_length(t.lane) > 0 AND split_part(t.lane, '/', 1) >= @tenant::text
        AND (split_part(t.lane, '/', 1), t.id) < (@tenant::text, COALESCE(sqlc.narg('before')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
     ORDER BY split_part(t.lane, '/', 1) DESC, t.id DESC LIMIT @max_looked::bigint)
    UNION ALL
    (SELECT f.id FROM ojs.jobs_done f
     WHERE @tenant::text <> '' AND octet_length(f.lane) > 0 AND split_part(f.lane, '/', 1) >= @tenant::text
        AND (split_part(f.lane, '/', 1), f.id) < (@tenant::text, COALESCE(sqlc.narg('before')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
     ORDER BY split_part(f.lane, '/', 1) DESC, f.id DESC LIMIT @max_looked::bigint)
) p ORDER BY p.id DESC OFFSET (-1 + @max_looked::bigint) LIMIT 1;

-- name: JobCountPage :one
-- The number of jobs that match a filter, exact up to @max_rows (10 000), among the newest max_looked of either table.
SELECT count(*) FROM (
    (SELECT FROM (
        (SELECT o.state, o.queue, o.type FROM ojs.jobs o WHERE @tenant::text = '' ORDER BY o.id DESC LIMIT @max_looked::bigint)
        UNION ALL
        (SELECT t.state, t.queue, t.type FROM ojs.jobs t
         WHERE @tenant::text <> '' AND octet_length(t.lane) > 0 AND split_part(t.lane, '/', 1) >= @tenant::text AND split_part(t.lane, '/', 1) <= @tenant::text
         ORDER BY split_part(t.lane, '/', 1) DESC, t.id DESC LIMIT @max_looked::bigint)) j
     WHERE (cardinality(@states::text[]) = 0 OR j.state = ANY(@states::text[]))
        AND (cardinality(@queues::text[]) = 0 OR j.queue = ANY(@queues::text[]))
        AND (cardinality(@types::text[]) = 0 OR j.type = ANY(@types::text[]))
     LIMIT @max_rows::bigint)
    UNION ALL
    (SELECT FROM (
        (SELECT o.state, o.queue, o.type FROM ojs.jobs_done o WHERE @tenant::text = '' ORDER BY o.id DESC LIMIT @max_looked::bigint)
        UNION ALL
        (SELECT t.state, t.queue, t.type FROM ojs.jobs_done t
         WHERE @tenant::text <> '' AND octet_length(t.lane) > 0 AND split_part(t.lane, '/', 1) >= @tenant::text AND split_part(t.lane, '/', 1) <= @tenant::text
         ORDER BY split_part(t.lane, '/', 1) DESC, t.id DESC LIMIT @max_looked::bigint)) d
     WHERE (cardinality(@states::text[]) = 0 OR d.state = ANY(@states::text[]))
        AND (cardinality(@queues::text[]) = 0 OR d.queue = ANY(@queues::text[]))
        AND (cardinality(@types::text[]) = 0 OR d.type = ANY(@types::text[]))
     LIMIT @max_rows::bigint)
) c;

-- name: JobListForBulk :many
-- The jobs that match a bulk filter, oldest first, among the next max_looked behind a job. If there are as many, the last one that was
-- looked at is there too, perhaps without matching: its looked is max_looked, and the next call goes on from there. The caller compares
-- meta, because -> on json fails for a row with \u0000 in any string.
SELECT l.id, l.state, l.meta, l.looked::bigint AS looked, l.matches::boolean AS matches FROM (
    SELECT p.id, p.state, p.meta, row_number() OVER (ORDER BY p.id) AS looked, p.state = ANY(@states::text[])
        AND (sqlc.narg('type')::text IS NULL OR p.type = sqlc.narg('type')::text
            OR @type_prefix::boolean AND starts_with(p.type, sqlc.narg('type')::text))
        AND (sqlc.narg('queue')::text IS NULL OR p.queue = sqlc.narg('queue')::text)
        AND (sqlc.narg('priority')::smallint IS NULL OR p.priority = sqlc.narg('priority')::smallint)
        AND (sqlc.narg('enqueued_before')::timestamptz IS NULL OR p.enqueued_at < sqlc.narg('enqueued_before')::timestamptz)
        AND (sqlc.narg('enqueued_after')::timestamptz IS NULL OR p.enqueued_at > sqlc.narg('enqueued_after')::timestamptz) AS matches
    FROM (
        (SELECT j.id, j.state, j.meta, j.type, j.queue, j.priority, COALESCE(j.enqueued_at, j.created_at) AS enqueued_at FROM ojs.jobs j
         WHERE @tenant::text = '' AND j.id > COALESCE(sqlc.narg('after')::uuid, '00000000-0000-0000-0000-000000000000')
         ORDER BY j.id LIMIT @max_looked::bigint)
        UNION ALL
        (SELECT d.id, d.state, d.meta, d.type, d.queue, d.priority, COALESCE(d.enqueued_at, d.created_at) FROM ojs.jobs_done d
         WHERE @tenant::text = '' AND d.id > COALESCE(sqlc.narg('after')::uuid, '00000000-0000-0000-0000-000000000000')
         ORDER BY d.id LIMIT @max_looked::bigint)
        UNION ALL
        (SELECT t.id, t.state, t.meta, t.type, t.queue, t.priority, COALESCE(t.enqueued_at, t.created_at) FROM ojs.jobs t
         WHERE @tenant::text <> '' AND octet_length(t.lane) > 0 AND split_part(t.lane, '/', 1) <= @tenant::text
            AND (split_part(t.lane, '/', 1), t.id) > (@tenant::text, COALESCE(sqlc.narg('after')::uuid, '00000000-0000-0000-0000-000000000000'))
         ORDER BY split_part(t.lane, '/', 1), t.id LIMIT @max_looked::bigint)
        UNION ALL
        (SELECT f.id, f.state, f.meta, f.type, f.queue, f.priority, COALESCE(f.enqueued_at, f.created_at) FROM ojs.jobs_done f
         WHERE @tenant::text <> '' AND octet_length(f.lane) > 0 AND split_part(f.lane, '/', 1) <= @tenant::text
            AND (split_part(f.lane, '/', 1), f.id) > (@tenant::text, COALESCE(sqlc.narg('after')::uuid, '00000000-0000-0000-0000-000000000000'))
         ORDER BY split_part(f.lane, '/', 1), f.id LIMIT @max_looked::bigint)
        ORDER BY id LIMIT @max_looked::bigint
    ) p
) l
WHERE l.matches OR l.looked = @max_looked::bigint
ORDER BY l.id
LIMIT @max_rows::bigint;
