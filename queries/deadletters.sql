-- Dead letters are discarded jobs with dead_lettered_at, which equals finished_at. Each of the two columns has an index
-- with the id, so that a page is found by its key and a prune starts at the oldest row.

-- name: DeadLetterListPage :many
-- Dead letters behind a key, newest first, up to max_bytes and max_looked as in JobListPage.
SELECT s.id, s.type, s.queue, s.state, s.priority, s.attempt, s.max_attempts, s.ready_seq, s.due_at, s.created_at, s.enqueued_at, s.started_at,
    s.finished_at, s.scheduled_at, s.next_attempt_at, s.expires_at, s.total_due_at, s.ttl_due_at, s.worker_id, s.lease_until, s.lease_ms,
    s.stall_due_at, s.visibility_ms, s.timeout_ms, s.grace_ms, s.stall_ms, s.retry_delay_ms, s.result_ttl_s, s.previous_state, s.failed,
    s.dead_lettered_at, s.re_enqueued_at, s.replay_count, s.trace_id, s.cron, s.cron_serial, s.workflow_id, s.unique_key, s.lane, s.limit_key, s.limit_seq, s.on_limit, s.on_exhaustion, s.retry, s.args, s.meta, s.extra, s.error, s.errors,
    s.previous_errors, s.progress, s.progress_message, s.progress_data, s.progress_at, s.progress_sent_at, s.checkpoint, s.checkpoint_seq, s.checkpoint_at,
    s.result, s.size FROM (
    SELECT r.*, row_number() OVER w AS n, sum(COALESCE(r.size, 8192)) OVER w - COALESCE(r.size, 8192) AS bytes_before FROM (
        SELECT j.* FROM (
            SELECT o.* FROM ojs.jobs o
            WHERE o.dead_lettered_at IS NOT NULL
                AND o.dead_lettered_at >= @since::timestamptz AND o.dead_lettered_at <= @until::timestamptz
                AND (o.dead_lettered_at, o.id) < (@before::timestamptz, @before_id::uuid)
            ORDER BY o.dead_lettered_at DESC, o.id DESC LIMIT @max_looked::bigint) j
        WHERE (@tenant::text = '' OR split_part(j.lane, '/', 1) = @tenant::text) AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, '{}', @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
        ORDER BY j.dead_lettered_at DESC, j.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint) r WINDOW w AS (ROWS UNBOUNDED PRECEDING)
) s WHERE s.bytes_before <= @max_bytes::bigint
ORDER BY s.n;

-- name: DeadLetterCount :one
-- The number of dead letters that match a filter, exact up to @max_rows (10 000), among the newest
-- max_looked.
SELECT count(*) FROM (
    SELECT FROM (
        SELECT o.id, o.queue, o.type, o.lane, o.error FROM ojs.jobs o
        WHERE o.dead_lettered_at IS NOT NULL
            AND o.dead_lettered_at >= @since::timestamptz AND o.dead_lettered_at <= @until::timestamptz
        ORDER BY o.dead_lettered_at DESC, o.id DESC LIMIT @max_looked::bigint) j
    WHERE (@tenant::text = '' OR split_part(j.lane, '/', 1) = @tenant::text) AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, '{}', @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
    LIMIT @max_rows::bigint
) c;

-- name: DeadLetterListFloor :many
-- The last of the jobs that DeadLetterListPage looks at, if there are as many, behind all others: where the next page begins.
SELECT o.dead_lettered_at AS at, o.id FROM ojs.jobs o
WHERE o.dead_lettered_at IS NOT NULL
    AND o.dead_lettered_at >= @since::timestamptz AND o.dead_lettered_at <= @until::timestamptz
    AND (o.dead_lettered_at, o.id) < (@before::timestamptz, @before_id::uuid)
ORDER BY o.dead_lettered_at DESC, o.id DESC OFFSET @others::bigint LIMIT 1;

-- name: JobDiscardedListPage :many
-- Discarded jobs behind a key, newest first, dead letters or not, up to max_bytes and max_looked as in JobListPage.
SELECT s.id, s.type, s.queue, s.state, s.priority, s.attempt, s.max_attempts, s.ready_seq, s.due_at, s.created_at, s.enqueued_at, s.started_at,
    s.finished_at, s.scheduled_at, s.next_attempt_at, s.expires_at, s.total_due_at, s.ttl_due_at, s.worker_id, s.lease_until, s.lease_ms,
    s.stall_due_at, s.visibility_ms, s.timeout_ms, s.grace_ms, s.stall_ms, s.retry_delay_ms, s.result_ttl_s, s.previous_state, s.failed,
    s.dead_lettered_at, s.re_enqueued_at, s.replay_count, s.trace_id, s.cron, s.cron_serial, s.workflow_id, s.unique_key, s.lane, s.limit_key, s.limit_seq, s.on_limit, s.on_exhaustion, s.retry, s.args, s.meta, s.extra, s.error, s.errors,
    s.previous_errors, s.progress, s.progress_message, s.progress_data, s.progress_at, s.progress_sent_at, s.checkpoint, s.checkpoint_seq, s.checkpoint_at,
    s.result, s.size FROM (
    SELECT r.*, row_number() OVER w AS n, sum(COALESCE(r.size, 8192)) OVER w - COALESCE(r.size, 8192) AS bytes_before FROM (
        SELECT j.* FROM (
            SELECT o.* FROM ojs.jobs o
            WHERE o.finished_at IS NOT NULL AND o.state = 'discarded'
                AND o.finished_at >= @since::timestamptz AND o.finished_at <= @until::timestamptz
                AND (o.finished_at, o.id) < (@before::timestamptz, @before_id::uuid)
            ORDER BY o.finished_at DESC, o.id DESC LIMIT @max_looked::bigint) j
        WHERE (@tenant::text = '' OR split_part(j.lane, '/', 1) = @tenant::text) AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, '{}', @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
        ORDER BY j.finished_at DESC, j.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint) r WINDOW w AS (ROWS UNBOUNDED PRECEDING)
) s WHERE s.bytes_before <= @max_bytes::bigint
ORDER BY s.n;

-- name: JobDiscardedCount :one
-- The number of discarded jobs that match a filter, exact up to @max_rows (10 000), among the newest
-- max_looked.
SELECT count(*) FROM (
    SELECT FROM (
        SELECT o.id, o.queue, o.type, o.lane, o.error FROM ojs.jobs o
        WHERE o.finished_at IS NOT NULL AND o.state = 'discarded'
            AND o.finished_at >= @since::timestamptz AND o.finished_at <= @until::timestamptz
        ORDER BY o.finished_at DESC, o.id DESC LIMIT @max_looked::bigint) j
    WHERE (@tenant::text = '' OR split_part(j.lane, '/', 1) = @tenant::text) AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, '{}', @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
    LIMIT @max_rows::bigint
) c;

-- name: JobDiscardedListFloor :many
-- The last of the jobs that JobDiscardedListPage looks at, if there are as many, behind all others: where the next page begins.
SELECT o.finished_at AS at, o.id FROM ojs.jobs o
WHERE o.finished_at IS NOT NULL AND o.state = 'discarded'
    AND o.finished_at >= @since::timestamptz AND o.finished_at <= @until::timestamptz
    AND (o.finished_at, o.id) < (@before::timestamptz, @before_id::uuid)
ORDER BY o.finished_at DESC, o.id DESC OFFSET @others::bigint LIMIT 1;

-- name: DeadLetterListForBulk :many
-- The oldest dead letters behind a key.
SELECT j.id, j.dead_lettered_at FROM ojs.jobs j
WHERE j.dead_lettered_at IS NOT NULL AND (j.dead_lettered_at, j.id) > (@after::timestamptz, @after_id::uuid)
    AND j.dead_lettered_at >= @since::timestamptz AND j.dead_lettered_at <= @until::timestamptz
    AND (@tenant::text = '' OR split_part(j.lane, '/', 1) = @tenant::text)
    AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, @ids::uuid[], @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
ORDER BY j.dead_lettered_at, j.id
LIMIT @max_rows::bigint;

-- name: DeadLetterDelete :many
-- Deletes the oldest dead letters behind a key. The internal event subtracts them from the counts. Rows that another
-- transaction retries or deletes are skipped. With the key, a batch does not walk the dead index entries of earlier ones.
WITH picked AS MATERIALIZED (
    SELECT j.id, j.dead_lettered_at FROM ojs.jobs j
    WHERE j.dead_lettered_at IS NOT NULL AND (j.dead_lettered_at, j.id) > (@after::timestamptz, @after_id::uuid)
        AND j.dead_lettered_at >= @since::timestamptz AND (j.dead_lettered_at, j.id) <= (@until::timestamptz, @until_id::uuid)
        AND (@tenant::text = '' OR split_part(j.lane, '/', 1) = @tenant::text)
    AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, @ids::uuid[], @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
    ORDER BY j.dead_lettered_at, j.id
    LIMIT @max_rows::bigint
    FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM ojs.jobs j USING picked p WHERE j.id = ANY(ARRAY[p.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.state, j.workflow_id, j.trace_id, j.dead_lettered_at, clock_timestamp() AS now
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, workflow_id, trace_id, from_state, internal, node, data)
    SELECT @event_type::text, @source::text, d.now, d.id, d.type, d.queue, d.lane, d.workflow_id, d.trace_id, d.state, true, @node::integer, ('{"reason":"' || @reason::text || '"}')::json
    FROM deleted d
)
SELECT d.id, d.type, d.queue, d.state, d.dead_lettered_at, d.now::timestamptz AS now FROM deleted d ORDER BY d.dead_lettered_at, d.id;

-- name: DeadLetterStats :many
-- Dead letters per queue, job type and error type. error_type is encoded as in the JSON of the error.
SELECT j.queue, j.type, COALESCE(ojs.error_type(j.error), '')::text AS error_type, count(*) AS count,
    min(j.dead_lettered_at)::timestamptz AS oldest, max(j.dead_lettered_at)::timestamptz AS newest
FROM ojs.jobs j
WHERE j.dead_lettered_at IS NOT NULL AND (cardinality(@queues::text[]) = 0 OR j.queue = ANY(@queues::text[]))
    AND (@tenant::text = '' OR split_part(j.lane, '/', 1) = @tenant::text)
GROUP BY 1, 2, 3;

-- name: DeadLetterCutoff :many
-- The newest dead letter that is not among the newest @max_count; no row if there are not more than that.
SELECT j.dead_lettered_at, j.id FROM ojs.jobs j WHERE j.dead_lettered_at IS NOT NULL
ORDER BY j.dead_lettered_at DESC, j.id DESC OFFSET @max_count::bigint LIMIT 1;

-- name: JobDiscardedPrune :many
-- Deletes discarded jobs that are not dead letters, oldest first, behind a key; not those of queues that have a retention of their own.
WITH picked AS MATERIALIZED (
    SELECT j.id, j.finished_at FROM ojs.jobs j
    WHERE j.finished_at IS NOT NULL AND (j.finished_at, j.id) > (@after::timestamptz, @after_id::uuid)
        AND j.finished_at <= now() - @keep::interval AND j.dead_lettered_at IS NULL AND j.state = 'discarded'
        AND j.queue <> ALL(@other_queues::text[])
    ORDER BY j.finished_at, j.id
    LIMIT @max_rows::bigint
    FOR UPDATE SKIP LOCKED
), deleted AS (
    DELETE FROM ojs.jobs j USING picked p WHERE j.id = ANY(ARRAY[p.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.state, j.workflow_id, j.trace_id, j.finished_at, clock_timestamp() AS now
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, workflow_id, trace_id, from_state, internal, node, data)
    SELECT @event_type::text, 'scheduler', d.now, d.id, d.type, d.queue, d.lane, d.workflow_id, d.trace_id, d.state, true, @node::integer, ('{"reason":"' || @reason::text || '"}')::json
    FROM deleted d
)
SELECT d.id, d.type, d.queue, d.state, d.finished_at, d.now::timestamptz AS now FROM deleted d ORDER BY d.finished_at, d.id;


