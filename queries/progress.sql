-- Reports of workers about jobs that they run. Each report also extends the lease, like a heartbeat, to the time chosen at
-- fetch from now, and never shortens it. Rows that another transaction has locked are skipped.

-- name: JobProgress :many
-- Stores reports of progress. progress never decreases. An event is written at most once a second per job, and when
-- progress reaches 1. A report without an event is later than progress_sent_at; if it is the last one of its run, the end of the run writes its
-- event. A claim clears progress_at only, so progress_sent_at may be that of a run before.
WITH request AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@workers::text[]) AS worker_id, unnest(@attempts::integer[]) AS attempt,
        unnest(@progress::double precision[]) AS progress, -- < 0: not sent
        unnest(@has_message::boolean[]) AS has_message, unnest(@messages::text[]) AS message,
        unnest(@data::json[]) AS data, unnest(@checkpoints::json[]) AS checkpoint,
        unnest(@event_data::text[]) AS event_data, unnest(@sources::text[]) AS source
), locked AS MATERIALIZED (
    SELECT r.*, j.progress AS was, CASE WHEN j.progress_at IS NOT NULL THEN j.progress_sent_at END AS sent_at
    FROM request r CROSS JOIN LATERAL (
        SELECT j.progress, j.progress_at, j.progress_sent_at FROM ojs.jobs j
        WHERE j.id = r.id AND j.state = 'active'
            AND (r.worker_id = '' OR j.worker_id IS NULL OR j.worker_id = r.worker_id)
            AND (r.attempt < 0 OR j.attempt = r.attempt)
        FOR UPDATE SKIP LOCKED
    ) j
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM locked LIMIT 1
), decided AS MATERIALIZED (
    SELECT l.*, clock.now, l.sent_at IS NULL OR clock.now < l.sent_at OR clock.now >= l.sent_at + interval '1 second'
        OR (l.progress >= 1 AND COALESCE(l.was, 0) < 1) AS emitted
    FROM locked l CROSS JOIN clock
), reported AS (
    UPDATE ojs.jobs j
    SET progress = GREATEST(j.progress, NULLIF(GREATEST(l.progress, -1), -1)),
        progress_message = CASE WHEN l.has_message THEN l.message ELSE j.progress_message END,
        progress_data = COALESCE(l.data, j.progress_data),
        progress_at = l.now,
        progress_sent_at = CASE WHEN l.emitted THEN l.now ELSE l.sent_at END,
        checkpoint = COALESCE(l.checkpoint, j.checkpoint),
        checkpoint_seq = CASE WHEN l.checkpoint IS NULL THEN j.checkpoint_seq ELSE COALESCE(j.checkpoint_seq, 0) + 1 END,
        checkpoint_at = CASE WHEN l.checkpoint IS NULL THEN j.checkpoint_at ELSE l.now END,
        size = CASE WHEN l.checkpoint IS NULL THEN j.size
            ELSE ojs.stored_size(j.args, j.meta, j.extra, j.errors, j.previous_errors, l.checkpoint, 0) END,
        lease_until = GREATEST(j.lease_until, l.now + j.lease_ms * interval '1 millisecond'),
        stall_due_at = l.now + j.stall_ms * interval '1 millisecond',
        due_at = LEAST(GREATEST(j.lease_until, l.now + j.lease_ms * interval '1 millisecond'),
            l.now + j.stall_ms * interval '1 millisecond', j.total_due_at,
            j.started_at + (COALESCE(j.timeout_ms, @default_timeout_ms::bigint) + COALESCE(j.grace_ms, 0)) * interval '1 millisecond' + ojs.outage_since(j.started_at))
    FROM decided l
    WHERE j.id = ANY(ARRAY[l.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.state, j.attempt, j.worker_id, j.workflow_id, j.trace_id, j.progress, j.progress_message, j.progress_data, j.progress_at,
        j.lease_until, j.due_at, l.now, l.emitted, l.worker_id AS reported_by, l.event_data, l.source
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, node, data)
    SELECT @event_type::text, CASE WHEN m.source = '' THEN ojs.worker_source(m.worker_id) ELSE m.source END, m.now, m.id, m.type, m.queue, m.lane, m.attempt,
        COALESCE(NULLIF(m.reported_by, ''), m.worker_id), m.workflow_id, m.trace_id, @node::integer,
        ('{"progress_percent":' || trim_scale(round((COALESCE(m.progress, 0) * 100)::numeric, 6)) || m.event_data
            || ',"visible_until":"' || ojs.time_text(m.lease_until) || '"}')::json
    FROM reported m WHERE m.emitted
)
SELECT id, type, queue, state, attempt, worker_id, progress, progress_message, progress_data, progress_at, due_at, now::timestamptz AS now,
    emitted::boolean AS emitted
FROM reported;

-- name: JobCheckpoint :many
-- Stores checkpoints of live jobs. Only for an active job this extends the lease. A sequence below 0 stands for the next
-- number.
WITH request AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@workers::text[]) AS worker_id, unnest(@attempts::integer[]) AS attempt,
        unnest(@checkpoints::json[]) AS checkpoint, unnest(@sequences::bigint[]) AS sequence
), locked AS MATERIALIZED (
    SELECT r.id, r.checkpoint, r.sequence
    FROM request r CROSS JOIN LATERAL (
        SELECT FROM ojs.jobs j
        WHERE j.id = r.id AND j.state IN ('scheduled', 'pending', 'available', 'active', 'retryable')
            AND (r.worker_id = '' OR j.worker_id IS NULL OR j.worker_id = r.worker_id)
            AND (r.attempt < 0 OR j.attempt = r.attempt)
            AND (r.sequence < 0 OR r.sequence > COALESCE(j.checkpoint_seq, 0))
        FOR UPDATE SKIP LOCKED
    ) j
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM locked LIMIT 1
), saved AS (
    UPDATE ojs.jobs j
    SET checkpoint = l.checkpoint,
        checkpoint_seq = CASE WHEN l.sequence < 0 THEN COALESCE(j.checkpoint_seq, 0) + 1 ELSE l.sequence END,
        checkpoint_at = clock.now,
        size = ojs.stored_size(j.args, j.meta, j.extra, j.errors, j.previous_errors, l.checkpoint, 0),
        lease_until = CASE WHEN j.state = 'active' THEN GREATEST(j.lease_until, clock.now + j.lease_ms * interval '1 millisecond') END,
        stall_due_at = CASE WHEN j.state = 'active' THEN clock.now + j.stall_ms * interval '1 millisecond' END,
        due_at = CASE WHEN j.state <> 'active' THEN j.due_at
            ELSE LEAST(GREATEST(j.lease_until, clock.now + j.lease_ms * interval '1 millisecond'),
                clock.now + j.stall_ms * interval '1 millisecond', j.total_due_at,
                j.started_at + (COALESCE(j.timeout_ms, @default_timeout_ms::bigint) + COALESCE(j.grace_ms, 0)) * interval '1 millisecond' + ojs.outage_since(j.started_at)) END
    FROM locked l CROSS JOIN clock
    WHERE j.id = ANY(ARRAY[l.id])
    RETURNING j.id, j.state, j.worker_id, j.checkpoint, j.checkpoint_seq, j.checkpoint_at, j.due_at, clock.now
)
SELECT id, state, worker_id, checkpoint, checkpoint_seq, checkpoint_at, due_at, now::timestamptz AS now FROM saved;

-- name: JobCheckpointDelete :many
-- Deletes checkpoints and returns the jobs that have none now. The sequence begins at 1 again.
WITH locked AS MATERIALIZED (
    SELECT j.id FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) FOR UPDATE OF j SKIP LOCKED
), cleared AS (
    UPDATE ojs.jobs j SET checkpoint = NULL, checkpoint_seq = NULL, checkpoint_at = NULL
    FROM locked l
    WHERE j.id = ANY(ARRAY[l.id]) AND j.checkpoint_seq IS NOT NULL
), cleared_done AS (
    UPDATE ojs.jobs_done d SET checkpoint = NULL, checkpoint_seq = NULL, checkpoint_at = NULL
    WHERE d.id = ANY(@ids::uuid[]) AND d.checkpoint_seq IS NOT NULL
    RETURNING d.id
)
SELECT l.id::uuid AS id FROM locked l UNION ALL SELECT c.id FROM cleared_done c;

-- name: JobReportGet :many
-- The latest report about a job, without its args; at most one row.
SELECT j.id, j.state, j.attempt, j.worker_id, j.created_at, j.enqueued_at, j.started_at, j.finished_at, j.next_attempt_at, j.retry_delay_ms,
    j.progress, j.progress_message, j.progress_data, j.progress_at, j.checkpoint, j.checkpoint_seq, j.checkpoint_at
FROM ojs.jobs j WHERE j.id = @id::uuid
UNION ALL
SELECT d.id, d.state, d.attempt, d.worker_id, d.created_at, d.enqueued_at, d.started_at, d.finished_at, d.next_attempt_at, d.retry_delay_ms,
    d.progress, d.progress_message, d.progress_data, d.progress_at, d.checkpoint, d.checkpoint_seq, d.checkpoint_at
FROM ojs.jobs_done d WHERE d.id = @id::uuid;

-- name: JobProgressFlush :many
-- Before JobComplete in the same transaction: writes the event of the last report of each run that has had none, and returns the runs
-- with a report.
WITH request AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@workers::text[]) AS worker_id, unnest(@attempts::integer[]) AS attempt
), locked AS MATERIALIZED (
    SELECT j.* FROM request r CROSS JOIN LATERAL (
        SELECT j.id, j.type, j.queue, j.lane, j.attempt, j.worker_id, j.workflow_id, j.trace_id, j.progress, j.progress_message, j.progress_at, j.progress_sent_at FROM ojs.jobs j
        WHERE j.id = r.id AND j.state = 'active' AND j.progress_at IS NOT NULL
            AND (r.worker_id = '' OR j.worker_id IS NULL OR j.worker_id = r.worker_id)
            AND (r.attempt < 0 OR j.attempt = r.attempt)
        FOR UPDATE SKIP LOCKED
    ) j
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, node, data)
    SELECT 'job.progress', ojs.worker_source(l.worker_id), clock_timestamp(), l.id, l.type, l.queue, l.lane, l.attempt, l.worker_id, l.workflow_id, l.trace_id, @node::integer,
        ojs.progress_data(l.progress, l.progress_message)
    FROM locked l WHERE l.progress_at > l.progress_sent_at
)
SELECT id FROM locked;
