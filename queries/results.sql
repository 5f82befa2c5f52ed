-- name: JobResultList :many
-- The outcome of jobs, without their args. The clock of the database decides whether the TTL of a result is over. Results behind the
-- one with which their sum exceeds max_bytes are cut: left out.
SELECT s.id, s.state, s.finished_at, s.error, (CASE WHEN s.bytes_before <= @max_bytes::bigint THEN s.result END)::json AS result, s.failed, s.pruned::boolean AS pruned,
    (s.result IS NOT NULL AND s.bytes_before > @max_bytes::bigint)::boolean AS cut
FROM (SELECT o.*, sum(COALESCE(octet_length(o.result::text), 0)) OVER w - COALESCE(octet_length(o.result::text), 0) AS bytes_before FROM (
SELECT j.id, j.state, j.finished_at, j.error, NULL::json AS result, j.failed, false AS pruned
FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[])
UNION ALL
SELECT d.id, d.state, d.finished_at, d.error, CASE WHEN NOT ojs.result_is_over(d.finished_at, d.result_ttl_s) THEN d.result END, d.failed,
    d.result IS NOT NULL AND ojs.result_is_over(d.finished_at, d.result_ttl_s)
FROM ojs.jobs_done d WHERE d.id = ANY(@ids::uuid[])) o WINDOW w AS (ROWS UNBOUNDED PRECEDING)) s;
