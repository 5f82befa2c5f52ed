-- The ends of runs, cancels and activations (queue/ack.go). The rules of jobs.sql hold here, too.

-- name: JobComplete :many
-- Completes active jobs. The row moves to jobs_done, so jobs stays small and finished jobs are never rewritten. Locking
-- the rows first, to skip those that another transaction has locked, costs a fifth of the throughput. Instead the
-- statement fails after the lock timeout; the caller then completes the unlocked jobs. ids are sorted, so that
-- width_bucket, a binary search, finds the elements of a row in the other arrays: a join with an unnest has no cheap plan
-- but a hash join, which has read all of ojs.jobs for three acks. owners is an index of workers and sources; results and
-- event_data are empty if no ack has a result, starts if none has a lease token.
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
        AND COALESCE((@starts::timestamptz[])[width_bucket(j.id, @ids::uuid[])], j.started_at) = j.started_at
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
    d.unique_key, d.limit_key, d.retry, (CASE WHEN COALESCE(d.size <= @max_whole_size::integer, true) THEN d.args END)::json AS args,
    (CASE WHEN COALESCE(d.size <= @max_whole_size::integer, true) THEN d.meta END)::json AS meta, (CASE WHEN COALESCE(d.size <= @max_whole_size::integer, true) THEN d.extra END)::json AS extra,
    (CASE WHEN COALESCE(d.size <= @max_whole_size::integer, true) THEN d.errors END)::json[] AS errors,
    (CASE WHEN COALESCE(d.size <= @max_whole_size::integer, true) THEN d.previous_errors END)::json[] AS previous_errors, d.progress, d.progress_message, d.progress_data, d.progress_at, d.progress_sent_at,
    d.checkpoint, d.checkpoint_seq, d.checkpoint_at, (CASE WHEN d.ttl_s <> 0 THEN (@results::json[])[d.n] END)::json AS result,
    (COALESCE(d.size, 0) + COALESCE(octet_length((@results::json[])[d.n]::text), 0))::integer AS size
FROM deleted d;

-- name: JobListForFail :many
-- The values that decide the outcome of a failure. All are fixed at enqueue, except attempt and started_at, which JobFail
-- guards. A manual retry restarts the total timeout; entered_at is then the time of that retry.
SELECT id, state, attempt, max_attempts, retry, worker_id, COALESCE(re_enqueued_at, created_at)::timestamptz AS entered_at, started_at,
    lease_until, timeout_ms, grace_ms, total_due_at, clock_timestamp()::timestamptz AS now
FROM ojs.jobs WHERE id = ANY(@ids::uuid[]);

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
    m.replay_count, m.trace_id, m.cron, m.cron_serial, m.workflow_id, m.unique_key, m.lane, m.limit_key, m.limit_seq, m.on_limit, m.on_exhaustion, m.retry, (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.args END)::json AS args,
    (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.meta END)::json AS meta, (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.extra END)::json AS extra, m.error,
    (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.errors END)::json[] AS errors,
    (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.previous_errors END)::json[] AS previous_errors, m.progress, m.progress_message,
    m.progress_data, m.progress_at, m.progress_sent_at, m.checkpoint, m.checkpoint_seq, m.checkpoint_at, m.result, m.size
FROM failed m;

-- name: JobLockUnlocked :many
-- Locks those of the jobs that no other transaction has locked, and returns them.
-- Finished jobs are missing, too: their rows are in jobs_done.
SELECT j.id FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) ORDER BY j.id FOR UPDATE SKIP LOCKED;

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
    m.replay_count, m.trace_id, m.cron, m.cron_serial, m.workflow_id, m.unique_key, m.lane, m.limit_key, m.limit_seq, m.on_limit, m.on_exhaustion, m.retry, (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.args END)::json AS args,
    (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.meta END)::json AS meta, (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.extra END)::json AS extra, m.error,
    (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.errors END)::json[] AS errors,
    (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.previous_errors END)::json[] AS previous_errors, m.progress, m.progress_message,
    m.progress_data, m.progress_at, m.progress_sent_at, m.checkpoint, m.checkpoint_seq, m.checkpoint_at, m.result, m.size
FROM moved m;

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
