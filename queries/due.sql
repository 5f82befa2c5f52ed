-- What becomes due: leases, promotions, deadlines (queue/due.go), and when the next one does (loop/timer.go). The rules of jobs.sql hold here,
-- too.

-- name: JobListOverdue :many
-- Active jobs whose lease, run time, heartbeat timeout or total timeout has ended. The rows are not locked: JobFail compares
-- due_at again. @skip_rows leaves out those at the head that JobFail could not lock. After an outage there are none until their time was
-- extended (OutageCheck).
SELECT id, attempt, max_attempts, retry, worker_id, COALESCE(re_enqueued_at, created_at)::timestamptz AS entered_at, started_at,
    lease_until, timeout_ms, grace_ms, total_due_at, stall_ms, stall_due_at, now()::timestamptz AS now,
    (date_part('epoch', ojs.outage_since(started_at)) * 1000)::bigint AS outage_ms
FROM ojs.jobs
WHERE due_at >= @after AND due_at <= now() AND state = 'active' AND ojs.is_served()
ORDER BY due_at
OFFSET @skip_rows::integer LIMIT @max_rows::integer;

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

-- name: OutageCheck :one
-- Notes that this node has reached the database, and extends what was running if none had for a while. resting: it may rest, and nothing runs.
SELECT c.ended::boolean AS ended, c.lasted_ms::bigint AS lasted_ms, c.jobs::bigint AS jobs, c.resting::boolean AS resting
FROM ojs.outage_check(@may_rest::boolean) c;

-- name: DueGetNext :one
-- The earliest due time of each kind, with one index probe each. The caller has applied the transitions of jobs due before
-- @after. Under a pinned xmin their dead index entries stay, and every call would walk all of them. '-infinity' reads from
-- the start of the index. Crons due before @crons_after are left out in the same way.
SELECT clock_timestamp()::timestamptz AS now,
    (SELECT j.due_at FROM ojs.jobs j WHERE j.due_at >= @after ORDER BY j.due_at LIMIT 1) AS job_due,
    (SELECT w.last_seen_at FROM ojs.workers w WHERE w.stale_at IS NULL ORDER BY w.last_seen_at LIMIT 1) AS worker_seen,
    LEAST((SELECT w.reap_at FROM ojs.workers w WHERE w.reap_at IS NOT NULL ORDER BY w.reap_at LIMIT 1),
        (SELECT w.stale_at + interval '1 hour' FROM ojs.workers w WHERE w.stale_at IS NOT NULL ORDER BY w.stale_at LIMIT 1))::timestamptz AS worker_left,
    (SELECT c.next_run_at FROM ojs.crons c WHERE c.next_run_at >= @crons_after ORDER BY c.next_run_at LIMIT 1) AS cron_due;
