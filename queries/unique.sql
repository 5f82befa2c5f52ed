-- Unique keys (docs/reference/unique.md). Whoever stores a job with a policy holds the advisory locks of its key until the commit,
-- and takes them before it looks for other jobs, in a statement of their own: only a later snapshot has what the last holder
-- committed. Jobs without a policy meet none of these statements.

-- name: UniqueLock :exec
-- Locks keys, in the order of the array, which has to ascend.
SELECT pg_advisory_xact_lock(k.lock) FROM (SELECT unnest(@locks::bigint[]) AS lock) k;

-- name: UniqueTryLock :many
-- Locks those of the keys that no other transaction has locked, and returns them.
SELECT k.lock::bigint AS lock FROM (SELECT unnest(@locks::bigint[]) AS lock) k WHERE pg_try_advisory_xact_lock(k.lock);

-- name: UniqueListHolders :many
-- The jobs that hold keys, oldest first: those in one of the states that are younger than the period, up to max_rows for each key.
-- states_lists has the states of each key with commas between them; a period or max_rows of 0 is none.
WITH request AS (
    SELECT unnest(@keys::text[]) AS key, unnest(@states_lists::text[]) AS states, unnest(@periods_us::bigint[]) AS period_us,
        unnest(@max_rows::bigint[]) AS max_rows
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
SELECT r.key::text AS key, h.id, h.state, h.created_at, h.scheduled_at, clock.now::timestamptz AS now
FROM request r CROSS JOIN clock CROSS JOIN LATERAL (
    SELECT j.id, j.state, j.created_at, j.scheduled_at FROM ojs.jobs j
    WHERE j.unique_key = r.key AND j.state = ANY(string_to_array(r.states, ','))
        AND j.created_at > COALESCE(clock.now - NULLIF(r.period_us, 0) * interval '1 microsecond', '-infinity')
    ORDER BY j.created_at, j.id
    LIMIT NULLIF(r.max_rows, 0)
) h;

-- name: UniqueListDone :many
-- UniqueListHolders for completed and cancelled jobs. A job ends after it was created, so a period leaves out the older partitions.
WITH request AS (
    SELECT unnest(@keys::text[]) AS key, unnest(@states_lists::text[]) AS states, unnest(@periods_us::bigint[]) AS period_us,
        unnest(@max_rows::bigint[]) AS max_rows
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
SELECT r.key::text AS key, h.id, h.state, h.created_at, h.scheduled_at, clock.now::timestamptz AS now
FROM request r CROSS JOIN clock CROSS JOIN LATERAL (
    SELECT d.id, d.state, d.created_at, d.scheduled_at FROM ojs.jobs_done d
    WHERE d.unique_key = r.key AND d.state = ANY(string_to_array(r.states, ','))
        AND d.created_at > COALESCE(clock.now - NULLIF(r.period_us, 0) * interval '1 microsecond', '-infinity')
        AND d.finished_at > COALESCE(clock.now - NULLIF(r.period_us, 0) * interval '1 microsecond', '-infinity')
    ORDER BY d.created_at, d.id
    LIMIT NULLIF(r.max_rows, 0)
) h;

-- name: UniqueLockDiscarded :exec
-- Locks the keys of discarded jobs before the rows, which is the order of every transaction that needs both.
SELECT pg_advisory_xact_lock(k.lock) FROM (
    SELECT DISTINCT ('x' || left(j.unique_key, 16))::bit(64)::bigint AS lock FROM ojs.jobs j
    WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'discarded' AND octet_length(j.unique_key) = 64
    ORDER BY 1 OFFSET 0
) k;

-- name: UniqueListPage :many
-- The jobs that hold a key and have not ended, newest id first, with what shows their policy. It looks at up to max_looked jobs with
-- a key; the others, which are discarded ones, are left out.
SELECT p.id, p.type, p.queue, p.state, p.created_at, p.unique_key::text AS unique_key,
    (CASE WHEN COALESCE(p.size <= @max_whole_size::integer, true) THEN p.extra END)::json AS extra, COALESCE(p.size > @max_whole_size::integer, false)::boolean AS cut
FROM (
    SELECT j.id, j.type, j.queue, j.state, j.created_at, j.unique_key, j.extra, j.size, j.lane FROM ojs.jobs j
    WHERE octet_length(j.unique_key) = 64 AND j.id < COALESCE(sqlc.narg('before')::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    ORDER BY j.id DESC LIMIT @max_looked::bigint
) p
WHERE p.state <> 'discarded' AND (@tenant::text = '' OR split_part(p.lane, '/', 1) = @tenant::text)
ORDER BY p.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint;

-- name: UniqueCount :one
-- The number of jobs that UniqueListPage finds, exact up to max_rows.
SELECT count(*) FROM (
    SELECT FROM (
        SELECT j.state, j.lane FROM ojs.jobs j WHERE octet_length(j.unique_key) = 64 ORDER BY j.id DESC LIMIT @max_looked::bigint
    ) p WHERE p.state <> 'discarded' AND (@tenant::text = '' OR split_part(p.lane, '/', 1) = @tenant::text) LIMIT @max_rows::bigint
) c;

-- name: UniqueListExisting :many
-- The jobs that answer for others, whole. Large ones, and those that have ended meanwhile, are left out: the caller reads them by
-- JobListByID, which takes ten times as long because of the partitions of jobs_done.
SELECT * FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) AND COALESCE(j.size <= @max_whole_size::integer, true);
