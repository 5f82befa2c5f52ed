-- name: JobResultList :many
-- The outcome of jobs, without their args. The clock of the database decides whether the TTL of a result is over.
SELECT j.id, j.state, j.finished_at, j.error, NULL::json AS result, j.failed, false AS pruned
FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[])
UNION ALL
SELECT d.id, d.state, d.finished_at, d.error, CASE WHEN NOT ojs.result_is_over(d.finished_at, d.result_ttl_s) THEN d.result END, d.failed,
    d.result IS NOT NULL AND ojs.result_is_over(d.finished_at, d.result_ttl_s)
FROM ojs.jobs_done d WHERE d.id = ANY(@ids::uuid[]);
