-- name: SystemReset :exec
-- Deletes everything, for tests. Positions of events keep growing.
SELECT ojs.reset();

-- name: SystemLockTimeout :exec
-- For the rest of the transaction.
SELECT set_config('lock_timeout', @patience::text, true);

-- name: SystemPing :one
-- The database's clock.
SELECT clock_timestamp()::timestamptz AS now;

-- name: SystemPartitionsEnsure :one
-- Creates the partitions of the coming days and numbers.
SELECT ojs.event_partitions_ensure()::bigint AS events_below, ojs.jobs_done_partitions_ensure()::timestamptz AS jobs_done_before;

-- name: EventPartitionsPrune :one
-- Drops at most one partition of the log.
SELECT ojs.event_partitions_prune(sqlc.narg('max_age')::interval, @max_count)::integer AS dropped;

-- name: JobsDonePartitionsPrune :one
-- Drops at most one day of finished jobs.
SELECT ojs.jobs_done_partitions_prune(sqlc.narg('keep')::interval)::integer AS dropped;

-- name: IdempotencyKeyGet :one
-- The answer to an earlier call with the same key.
SELECT * FROM ojs.idempotency_keys WHERE operation = @operation AND key = @key;

-- name: IdempotencyKeyInsert :execrows
-- Reserves a key. Waits for a transaction that has inserted the same key.
INSERT INTO ojs.idempotency_keys (operation, key, body_hash, status, response)
VALUES (@operation, @key, @body_hash, 0, 'null')
ON CONFLICT (operation, key) DO NOTHING;

-- name: IdempotencyKeyAnswer :exec
-- Stores the answer, in the transaction of the insert.
UPDATE ojs.idempotency_keys SET status = @status, response = @response WHERE operation = @operation AND key = @key;

-- name: IdempotencyKeyPrune :execrows
-- Keeps 25 hours: an hour more than is promised.
DELETE FROM ojs.idempotency_keys WHERE (operation, key) IN (
    SELECT k.operation, k.key FROM ojs.idempotency_keys k WHERE k.created_at < now() - interval '25 hours' LIMIT @max_rows);

-- name: SweepNextDue :one
-- The earliest of everything that time brings: one probe of an index each. Jobs due before `after` have been swept
-- already. Under a pinned xmin their dead index entries stay, and every look would walk them all; '-infinity' looks at
-- everything.
SELECT clock_timestamp()::timestamptz AS now,
    (SELECT j.due_at FROM ojs.jobs j WHERE j.due_at >= @after ORDER BY j.due_at LIMIT 1) AS job_due,
    (SELECT w.seen_at FROM ojs.workers w WHERE w.stale_at IS NULL ORDER BY w.seen_at LIMIT 1) AS worker_seen,
    LEAST((SELECT w.bury_at FROM ojs.workers w WHERE w.bury_at IS NOT NULL ORDER BY w.bury_at LIMIT 1),
        (SELECT w.stale_at + interval '1 hour' FROM ojs.workers w WHERE w.stale_at IS NOT NULL ORDER BY w.stale_at LIMIT 1))::timestamptz AS worker_left,
    (SELECT c.next_run_at FROM ojs.crons c WHERE c.next_run_at IS NOT NULL ORDER BY c.next_run_at LIMIT 1) AS cron_due;
