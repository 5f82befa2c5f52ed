-- Every state change of jobs is one statement over arrays: it changes the jobs and writes their events. State, owner and
-- attempt are guarded in the WHERE clause. A job that is missing from the result was refused; the caller then reads the
-- job to choose the error.
--
-- A CTE is joined to the rows that it chose by j.id = ANY(ARRAY[o.id]), not by j.id = o.id. After vacuum has found a table empty, the planner takes
-- it for one row, and PostgreSQL keeps the plan while the table grows. For an equation it then read the whole index and compared each row with each of the
-- CTE: with 30 000 jobs waiting, claims of 1 000 took 1 to 2 s, for a minute, until the next analyze. This form leaves the look-up by id as the only plan, and
-- costs the same. So do all statements on tables that grow; see TestPlansMadeWhileEmpty.

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

-- name: JobListByID :many
-- Live and finished jobs. One snapshot covers both tables, so a job that is being moved is found exactly once. Large jobs
-- are cut as by JobComplete, unless one is asked for.
SELECT
    m.id, m.type, m.queue, m.state, m.priority, m.attempt, m.max_attempts, m.ready_seq, m.due_at, m.created_at,
    m.enqueued_at, m.started_at, m.finished_at, m.scheduled_at, m.next_attempt_at, m.expires_at, m.total_due_at,
    m.ttl_due_at, m.worker_id, m.lease_until, m.lease_ms, m.stall_due_at, m.visibility_ms, m.timeout_ms, m.grace_ms,
    m.stall_ms, m.retry_delay_ms, m.result_ttl_s, m.previous_state, m.failed, m.dead_lettered_at, m.re_enqueued_at,
    m.replay_count, m.trace_id, m.cron, m.cron_serial, m.workflow_id, m.unique_key, m.lane, m.limit_key, m.limit_seq, m.on_limit, m.on_exhaustion, m.retry, (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.args END)::json AS args,
    (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.meta END)::json AS meta, (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.extra END)::json AS extra, m.error,
    (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.errors END)::json[] AS errors,
    (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.previous_errors END)::json[] AS previous_errors, m.progress, m.progress_message,
    m.progress_data, m.progress_at, m.progress_sent_at, (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.checkpoint END)::json AS checkpoint, m.checkpoint_seq,
    m.checkpoint_at, (CASE WHEN COALESCE(m.size <= @max_whole_size::integer, true) THEN m.result END)::json AS result, m.size
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
