-- name: SystemReset :exec
-- Deletes everything, for tests. Positions of events keep growing.
SELECT ojs.reset();

-- name: SystemLockTimeout :exec
-- Sets the lock timeout for the rest of the transaction.
SELECT set_config('lock_timeout', @lock_timeout::text, true);

-- name: SystemPing :one
-- Reads the clock of the database.
SELECT clock_timestamp()::timestamptz AS now;

-- name: SystemRoles :one
-- The role that has logged in, and the one whose rights the session has: ALTER ROLE … SET role lets them differ.
SELECT session_user::text AS login, current_user::text AS role;

-- name: SystemProbe :one
-- Whether the session can write: that of a standby, or of a primary that was set to read only, cannot.
SELECT clock_timestamp()::timestamptz AS now,
    (pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on')::boolean AS read_only;

-- name: SystemEndSession :one
-- Ends the session of a node whose connection broke. false: it still runs.
SELECT ojs.session_end(@backend, @age_s, @wait_ms)::boolean AS ended;

-- name: PartitionEnsure :one
-- Creates the partitions for the next days and for the next event numbers.
SELECT ojs.event_partitions_ensure()::bigint AS events_below, ojs.jobs_done_partitions_ensure()::timestamptz AS jobs_done_before,
    clock_timestamp()::timestamptz AS now;

-- name: EventPartitionClose :one
-- Ends the partition of the event log that is being written, if it is old.
SELECT ojs.event_partition_close()::boolean AS closed;

-- name: EventPartitionPrune :one
-- Drops at most one partition of the event log.
SELECT ojs.event_partitions_prune()::integer AS dropped;

-- name: JobFinishedPartitionPrune :one
-- Drops at most one day of finished jobs.
SELECT ojs.jobs_done_partitions_prune(sqlc.narg('keep')::interval)::integer AS dropped;

-- name: RetentionLock :one
-- Reserves the partitions of a table that are being detached for the rest of the transaction.
SELECT pg_try_advisory_xact_lock(hashtext('ojs.retention'), hashtext(@parent::text))::boolean AS locked;

-- name: RetentionKeepStore :exec
-- Stores for how long finished jobs are kept, for the figures of retention.
UPDATE ojs.retention r SET keep = sqlc.narg('keep')::interval WHERE r.parent = 'jobs_done' AND r.keep IS DISTINCT FROM sqlc.narg('keep')::interval;

-- name: EventPartitionLeave :one
-- Decides which partition of the event log is detached next.
SELECT ojs.event_partition_leave()::boolean AS due;

-- name: JobFinishedPartitionLeave :one
-- Deletes jobs from the day that is detached next. next_page: where the next call goes on; -1: the day can be detached.
SELECT l.due::boolean AS due, COALESCE(l.next_page, -1)::bigint AS next_page
FROM ojs.jobs_done_partition_leave(sqlc.narg('keep')::interval, @from_page::bigint, @pages::integer) l;

-- name: PartitionDetach :one
-- The statement that detaches the partition that is leaving, and for how long it may wait. It cannot run in a transaction.
SELECT d.statement::text AS statement, d.wait_ms::integer AS wait_ms FROM ojs.partition_detach(@parent::text) d;

-- name: PartitionDrop :one
-- Drops the partition that has been detached.
SELECT ojs.partition_drop(@parent::text)::boolean AS gone;

-- name: QueuePrune :one
-- Deletes queues that are not used any more, with their counts.
SELECT ojs.queues_prune(@max_rows)::integer AS deleted;

-- name: IdempotencyKeyGet :one
-- The answer to an earlier call with the same key.
SELECT * FROM ojs.idempotency_keys WHERE holder = @holder AND operation = @operation AND key = @key;

-- name: IdempotencyKeyInsert :execrows
-- Reserves a key. Waits for a transaction that has inserted the same key.
INSERT INTO ojs.idempotency_keys (holder, operation, key, body_hash, status, response)
VALUES (@holder, @operation, @key, @body_hash, 0, 'null')
ON CONFLICT (holder, operation, key) DO NOTHING;

-- name: IdempotencyKeyAnswer :exec
-- Stores the answer, in the transaction of the insert.
UPDATE ojs.idempotency_keys SET status = @status, response = @response WHERE holder = @holder AND operation = @operation AND key = @key;

-- name: IdempotencyKeyPrune :execrows
-- Deletes keys after 25 hours; clients can rely on 24.
DELETE FROM ojs.idempotency_keys WHERE (holder, operation, key) IN (
    SELECT k.holder, k.operation, k.key FROM ojs.idempotency_keys k WHERE k.created_at < now() - interval '25 hours' ORDER BY k.created_at LIMIT @max_rows);

-- name: JobListForRetention :many
-- The finished jobs that their queues keep no longer, among the next max_looked jobs behind an id. If there are as many, the last one that was
-- looked at is there too; the next call goes on from there. keeps has, by queue, the milliseconds for completed, discarded and cancelled
-- jobs; the others hold where a queue is not in it. -1: whole days are dropped, or the sweep of discarded jobs comes, in time.
SELECT l.id, l.old::boolean AS old, (l.looked = @max_looked::bigint)::boolean AS more FROM (
    SELECT p.id, row_number() OVER (ORDER BY p.id) AS looked,
        COALESCE(p.finished_at < now() - NULLIF(COALESCE(
            (@keeps::jsonb -> p.queue ->> CASE p.state WHEN 'completed' THEN 0 WHEN 'discarded' THEN 1 ELSE 2 END)::bigint,
            CASE p.state WHEN 'completed' THEN @completed_ms::bigint WHEN 'discarded' THEN @discarded_ms::bigint ELSE @cancelled_ms::bigint END), -1) * interval '1 millisecond', false) AS old
    FROM (
        (SELECT j.id, j.queue, j.state, j.finished_at FROM ojs.jobs j WHERE j.id > @after::uuid ORDER BY j.id LIMIT @max_looked::bigint)
        UNION ALL
        (SELECT d.id, d.queue, d.state, d.finished_at FROM ojs.jobs_done d WHERE d.id > @after::uuid ORDER BY d.id LIMIT @max_looked::bigint)
        ORDER BY id LIMIT @max_looked::bigint
    ) p
) l
WHERE l.old OR l.looked = @max_looked::bigint
ORDER BY l.id;

-- name: ServerSettingGet :one
-- The settings by which ojs.enqueue goes.
SELECT s.tenancy, s.max_job_bytes FROM ojs.server_settings s;

-- name: ServerSettingStore :exec
-- Stores the settings by which ojs.enqueue goes.
UPDATE ojs.server_settings SET tenancy = @tenancy, max_job_bytes = @max_job_bytes;

-- name: SystemGetIdentity :one
-- The database as the relays have last found it, and as it is now; '': unknown. It has moved on a copy, after a restore and after a failover.
-- The rule is that of ojs.event_epoch_check.
SELECT COALESCE(r.timeline, '')::text AS known, COALESCE(i.present, '')::text AS present,
    COALESCE(NOT starts_with(i.present || '/', r.timeline || '/'), false)::boolean AS moved
FROM ojs.event_relay r CROSS JOIN (SELECT ojs.database_identity() AS present) i;

-- name: SystemQuietCopy :one
-- Pauses all crons and deactivates all webhooks of a copy, once for each: what is registered on it later works.
WITH first AS (
    UPDATE ojs.event_relay r SET quieted = COALESCE(ojs.database_identity(), 'unknown')
    WHERE r.quieted IS DISTINCT FROM COALESCE(ojs.database_identity(), 'unknown') RETURNING r.quieted
), paused AS (
    UPDATE ojs.crons c SET enabled = false, next_run_at = NULL, updated_at = clock_timestamp() WHERE c.enabled AND EXISTS (SELECT FROM first) RETURNING c.name
), deactivated AS (
    UPDATE ojs.webhooks w SET active = false, disabled_reason = 'copy', disabled_at = clock_timestamp(), updated_at = clock_timestamp()
    WHERE w.active AND EXISTS (SELECT FROM first) RETURNING w.id
)
SELECT (SELECT count(*) FROM paused) AS crons, (SELECT count(*) FROM deactivated) AS webhooks, EXISTS (SELECT FROM first)::boolean AS first;
