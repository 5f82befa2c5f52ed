-- name: SystemReset :exec
-- The test switch only (contract 10 §13.3): everything goes, positions of events go on ascending.
SELECT ojs.reset();

-- name: SystemLockTimeout :exec
-- For the rest of the transaction.
SELECT set_config('lock_timeout', @patience::text, true);

-- name: SystemPing :one
SELECT clock_timestamp()::timestamptz AS now;

-- name: SystemPartitionsEnsure :one
SELECT ojs.event_partitions_ensure()::bigint AS events_below, ojs.jobs_done_partitions_ensure()::timestamptz AS jobs_done_before;

-- name: EventPartitionsPrune :one
SELECT ojs.event_partitions_prune(sqlc.narg('max_age')::interval, @max_count)::integer AS dropped;

-- name: JobsDonePartitionsPrune :one
SELECT ojs.jobs_done_partitions_prune(sqlc.narg('keep')::interval)::integer AS dropped;

-- name: IdempotencyKeyGet :one
SELECT * FROM ojs.idempotency_keys WHERE operation = @operation AND key = @key;

-- name: IdempotencyKeyInsert :execrows
-- Waits for a transaction that holds the same key.
INSERT INTO ojs.idempotency_keys (operation, key, body_hash, status, response)
VALUES (@operation, @key, @body_hash, 0, 'null')
ON CONFLICT (operation, key) DO NOTHING;

-- name: IdempotencyKeyAnswer :exec
UPDATE ojs.idempotency_keys SET status = @status, response = @response WHERE operation = @operation AND key = @key;

-- name: IdempotencyKeyPrune :execrows
DELETE FROM ojs.idempotency_keys WHERE (operation, key) IN (
    SELECT k.operation, k.key FROM ojs.idempotency_keys k WHERE k.created_at < now() - interval '25 hours' LIMIT @max_rows);

-- name: SweepNextDue :one
-- What time will bring first: one probe of an index each. Due jobs before after have been swept already; under a pinned
-- xmin their dead index entries stay, and every look would walk them all. '-infinity' looks at everything.
SELECT clock_timestamp()::timestamptz AS now,
    (SELECT j.due_at FROM ojs.jobs j WHERE j.due_at >= @after ORDER BY j.due_at LIMIT 1) AS job_due,
    (SELECT w.seen_at FROM ojs.workers w WHERE w.stale_at IS NULL ORDER BY w.seen_at LIMIT 1) AS worker_seen,
    LEAST((SELECT w.bury_at FROM ojs.workers w WHERE w.bury_at IS NOT NULL ORDER BY w.bury_at LIMIT 1),
        (SELECT w.stale_at + interval '1 hour' FROM ojs.workers w WHERE w.stale_at IS NOT NULL ORDER BY w.stale_at LIMIT 1))::timestamptz AS worker_left,
    (SELECT c.next_run_at FROM ojs.crons c WHERE c.next_run_at IS NOT NULL ORDER BY c.next_run_at LIMIT 1) AS cron_due;
