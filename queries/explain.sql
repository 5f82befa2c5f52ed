-- name: JobExplain :one
-- Why a job is not running; NULL: there is no such job.
SELECT ojs.explain(@id::uuid)::json AS explanation;
