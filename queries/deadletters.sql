-- Dead letters: discarded jobs with dead_lettered_at, which equals finished_at. Both have an index with
-- the id, so that pages are found by their key and prunes start at the oldest.

-- name: DeadLetterListPage :many
-- Newest first, from a key on.
SELECT j.* FROM ojs.jobs j
WHERE j.dead_lettered_at IS NOT NULL
    AND j.dead_lettered_at >= @since::timestamptz AND j.dead_lettered_at <= @until::timestamptz
    AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, '{}', @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
    AND (j.dead_lettered_at, j.id) < (@before::timestamptz, @before_id::uuid)
ORDER BY j.dead_lettered_at DESC, j.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint;

-- name: DeadLetterCount :one
-- Exact up to max_rows (10 000), which bounds the work.
SELECT count(*) FROM (
    SELECT FROM ojs.jobs j
    WHERE j.dead_lettered_at IS NOT NULL
        AND j.dead_lettered_at >= @since::timestamptz AND j.dead_lettered_at <= @until::timestamptz
        AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, '{}', @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
    LIMIT @max_rows::bigint
) c;

-- name: JobDiscardedListPage :many
-- The same list for every discarded job.
SELECT j.* FROM ojs.jobs j
WHERE j.finished_at IS NOT NULL AND j.state = 'discarded'
    AND j.finished_at >= @since::timestamptz AND j.finished_at <= @until::timestamptz
    AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, '{}', @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
    AND (j.finished_at, j.id) < (@before::timestamptz, @before_id::uuid)
ORDER BY j.finished_at DESC, j.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint;

-- name: JobDiscardedCount :one
-- Exact up to max_rows (10 000), which bounds the work.
SELECT count(*) FROM (
    SELECT FROM ojs.jobs j
    WHERE j.finished_at IS NOT NULL AND j.state = 'discarded'
        AND j.finished_at >= @since::timestamptz AND j.finished_at <= @until::timestamptz
        AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, '{}', @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
    LIMIT @max_rows::bigint
) c;

-- name: DeadLetterListForBulk :many
-- The oldest dead letters behind a key.
SELECT j.id, j.dead_lettered_at FROM ojs.jobs j
WHERE j.dead_lettered_at IS NOT NULL AND (j.dead_lettered_at, j.id) > (@after::timestamptz, @after_id::uuid)
    AND j.dead_lettered_at >= @since::timestamptz AND j.dead_lettered_at <= @until::timestamptz
    AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, @ids::uuid[], @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
ORDER BY j.dead_lettered_at, j.id
LIMIT @max_rows::bigint;

-- name: DeadLetterDelete :many
-- The oldest dead letters behind a key, for good; the gap row takes them out of the counts. Rows that are being retried
-- or deleted by others are theirs. The key spares later batches the dead index entries of earlier ones.
WITH picked AS MATERIALIZED (
    SELECT j.id, j.dead_lettered_at FROM ojs.jobs j
    WHERE j.dead_lettered_at IS NOT NULL AND (j.dead_lettered_at, j.id) > (@after::timestamptz, @after_id::uuid)
        AND j.dead_lettered_at >= @since::timestamptz AND (j.dead_lettered_at, j.id) <= (@until::timestamptz, @until_id::uuid)
        AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, @ids::uuid[], @queues::text[], @types::text[], @type_prefixes::text[], @error_types::text[], @error_codes::text[])
    ORDER BY j.dead_lettered_at, j.id
    LIMIT @max_rows::bigint
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM ojs.jobs j USING picked p WHERE j.id = p.id
    RETURNING j.id, j.type, j.queue, j.state, j.trace_id, j.dead_lettered_at, clock_timestamp() AS now
), ev AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, trace_id, from_state, internal, node, data)
    SELECT 'job.state_changed', @source::text, g.now, g.id, g.type, g.queue, g.trace_id, g.state, true, @node::integer, ('{"reason":"' || @reason::text || '"}')::json
    FROM gone g
)
SELECT g.id, g.type, g.queue, g.state, g.dead_lettered_at, g.now::timestamptz AS now FROM gone g ORDER BY g.dead_lettered_at, g.id;

-- name: DeadLetterStats :many
-- Groups instead of rows. error_type as it stands in the text of the error.
SELECT j.queue, j.type, COALESCE(ojs.error_type(j.error), '')::text AS error_type, count(*) AS count,
    min(j.dead_lettered_at)::timestamptz AS oldest, max(j.dead_lettered_at)::timestamptz AS newest
FROM ojs.jobs j
WHERE j.dead_lettered_at IS NOT NULL AND (cardinality(@queues::text[]) = 0 OR j.queue = ANY(@queues::text[]))
GROUP BY 1, 2, 3;

-- name: DeadLetterCutoff :many
-- The newest dead letter beyond the count, if there is one.
SELECT j.dead_lettered_at, j.id FROM ojs.jobs j WHERE j.dead_lettered_at IS NOT NULL
ORDER BY j.dead_lettered_at DESC, j.id DESC OFFSET @max_count::bigint LIMIT 1;

-- name: JobDiscardedPrune :many
-- Discarded jobs that are no dead letters, oldest first, behind a key.
WITH picked AS MATERIALIZED (
    SELECT j.id, j.finished_at FROM ojs.jobs j
    WHERE j.finished_at IS NOT NULL AND (j.finished_at, j.id) > (@after::timestamptz, @after_id::uuid)
        AND j.finished_at <= now() - @keep::interval AND j.dead_lettered_at IS NULL AND j.state = 'discarded'
    ORDER BY j.finished_at, j.id
    LIMIT @max_rows::bigint
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM ojs.jobs j USING picked p WHERE j.id = p.id
    RETURNING j.id, j.type, j.queue, j.state, j.trace_id, j.finished_at, clock_timestamp() AS now
), ev AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, trace_id, from_state, internal, node, data)
    SELECT 'job.state_changed', 'scheduler', g.now, g.id, g.type, g.queue, g.trace_id, g.state, true, @node::integer, '{"reason":"retention"}'::json
    FROM gone g
)
SELECT g.id, g.type, g.queue, g.state, g.finished_at, g.now::timestamptz AS now FROM gone g ORDER BY g.finished_at, g.id;

-- name: JobsDoneDayList :many
-- The days of jobs_done that are over for longer than keep, oldest first, with their size in pages.
SELECT d.day::text AS day, d.pages::bigint AS pages FROM ojs.jobs_done_days(@keep::interval) d ORDER BY d.day;

-- name: JobsDonePrune :many
-- The jobs of one state on some pages of one day: there is no index to find them by, and reading a range of pages needs none.
WITH gone AS (
    DELETE FROM ojs.jobs_done d
    WHERE d.finished_at >= @day_start::timestamptz AND d.finished_at < @day_end::timestamptz
        AND d.ctid >= CAST(@from_tid::text AS tid) AND d.ctid < CAST(@to_tid::text AS tid)
        AND d.state = @state::text
    RETURNING d.id, d.type, d.queue, d.state, d.trace_id, clock_timestamp() AS now
)
INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, trace_id, from_state, internal, node, data)
SELECT 'job.state_changed', 'scheduler', g.now, g.id, g.type, g.queue, g.trace_id, g.state, true, @node::integer, '{"reason":"retention"}'::json
FROM gone g
RETURNING job_id::uuid AS id, job_type::text AS type, queue::text AS queue, from_state::text AS state, time;
