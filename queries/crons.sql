-- Changes and ticks of a cron lock its row. A tick, its event, the advanced row and the insert of the job are one
-- transaction.

-- name: CronNotify :one
-- The time, and at commit a notification to the other nodes to read the earliest next_run_at: this node may have stopped
-- by then.
SELECT clock_timestamp()::timestamptz AS now, pg_notify('ojs_cron', '') IS NULL AS notified;

-- name: CronGet :one
-- A cron by name; with a tenant, only one of its own.
SELECT * FROM ojs.crons WHERE name = @name AND (@tenant::text = '' OR tenant = @tenant::text);

-- name: CronLock :one
-- CronGet, locked against firing and changes.
SELECT * FROM ojs.crons WHERE name = @name AND (@tenant::text = '' OR tenant = @tenant::text) FOR UPDATE;

-- name: CronList :many
-- A page of crons by name. Behind the one with which the sum of what clients fill exceeds max_bytes, args, meta and options are left
-- out: 1 000 crons may have 1 GiB.
SELECT s.name, s.id, s.expression, s.timezone, s.type, s.queue, (CASE WHEN s.bytes_before <= @max_bytes::bigint THEN s.args END)::json AS args,
    (CASE WHEN s.bytes_before <= @max_bytes::bigint THEN s.meta END)::json AS meta,
    (CASE WHEN s.bytes_before <= @max_bytes::bigint THEN s.options END)::json AS options,
    s.trace_id, s.overlap_policy, s.enabled, s.description, s.last_run_at, s.next_run_at, s.run_count, s.created_at, s.updated_at, s.tenant
FROM (SELECT m.*, sum(m.bytes) OVER w - m.bytes AS bytes_before, row_number() OVER w AS n FROM (
    SELECT c.*, octet_length(c.args::text) + COALESCE(octet_length(c.meta::text), 0) + COALESCE(octet_length(c.options::text), 0) AS bytes FROM ojs.crons c
    WHERE (sqlc.narg('enabled')::boolean IS NULL OR c.enabled = sqlc.narg('enabled')::boolean)
        AND (cardinality(@queues::text[]) = 0 OR c.queue = ANY(@queues::text[]))
        AND (@tenant::text = '' OR c.tenant = @tenant::text)
    ORDER BY c.name COLLATE "C" OFFSET @skip_rows::bigint LIMIT @max_rows::bigint) m WINDOW w AS (ROWS UNBOUNDED PRECEDING)) s
ORDER BY s.n;

-- name: CronCount :one
-- The number of crons of the same filters.
SELECT count(*) FROM ojs.crons c
WHERE (sqlc.narg('enabled')::boolean IS NULL OR c.enabled = sqlc.narg('enabled')::boolean)
    AND (cardinality(@queues::text[]) = 0 OR c.queue = ANY(@queues::text[]))
    AND (@tenant::text = '' OR c.tenant = @tenant::text);

-- name: CronInsert :many
-- Returns no row if the name is taken.
-- The caller then locks and updates the row that another transaction has inserted.
INSERT INTO ojs.crons (name, id, expression, timezone, type, queue, args, meta, options, trace_id, overlap_policy, enabled, description,
    next_run_at, created_at, updated_at, tenant)
VALUES (@name, @id, @expression, @timezone, @type, @queue, @args, @meta, @options, sqlc.narg('trace_id'), @overlap_policy, @enabled, sqlc.narg('description'),
    sqlc.narg('next_run_at'), @now, @now, @tenant::text)
ON CONFLICT (name) DO NOTHING
RETURNING *;

-- name: CronUpdate :one
-- Replaces everything but the history of a cron. The caller has locked its row.
UPDATE ojs.crons
SET expression = @expression, timezone = @timezone, type = @type, queue = @queue, args = @args, meta = @meta, options = @options,
    trace_id = sqlc.narg('trace_id'), overlap_policy = @overlap_policy, enabled = @enabled, description = sqlc.narg('description'),
    next_run_at = sqlc.narg('next_run_at'), updated_at = @now, tenant = @tenant::text
WHERE name = @name
RETURNING *;

-- name: CronDelete :many
-- Deletes a cron, with a tenant only one of its own, and its log. Its jobs stay.
-- Queued jobs among them are released as before: CronReleaseQueued asks the jobs, not the cron.
WITH deleted AS (
    DELETE FROM ojs.crons c WHERE c.name = @name AND (@tenant::text = '' OR c.tenant = @tenant::text) RETURNING *
), runs AS (
    DELETE FROM ojs.cron_runs r USING deleted d WHERE r.cron_id = d.id
)
SELECT * FROM deleted;

-- name: CronListDue :many
-- Locks crons that are due. Crons that another node is firing are skipped.
-- now() is used, because clock_timestamp() cannot be an index condition.
SELECT sqlc.embed(c), now()::timestamptz AS now FROM ojs.crons c
WHERE c.next_run_at <= now()
ORDER BY c.next_run_at
LIMIT @max_rows
FOR UPDATE SKIP LOCKED;

-- name: CronListUnfinishedJob :many
-- One unfinished job of each cron that has any.
SELECT n.cron::text AS cron, b.id::uuid AS id
FROM (SELECT unnest(@names::text[]) AS cron) n CROSS JOIN LATERAL (
    SELECT j.id FROM ojs.jobs j
    WHERE j.cron = n.cron AND j.state IN ('available', 'active', 'retryable', 'scheduled', 'pending') LIMIT 1
) b;

-- name: CronListUnfinishedJobs :many
-- All unfinished jobs of the crons.
SELECT j.id, j.cron FROM ojs.jobs j
WHERE j.cron = ANY(@names::text[]) AND j.state IN ('available', 'active', 'retryable', 'scheduled', 'pending');

-- name: QueueListDraining :many
-- Which of the queues take no new jobs.
SELECT q.name FROM ojs.queues q WHERE q.name = ANY(@queues::text[]) AND (q.status = 'draining' OR q.deletion IS NOT NULL);

-- name: CronRecordTick :many
-- Records the outcome of ticks: log row, event, next run. A tick that is in the log already only advances its cron.
WITH request AS (
    SELECT unnest(@ids::uuid[]) AS id,
        unnest(@scheduled_at::timestamptz[]) AS scheduled_at,
        unnest(@next_run_at::timestamptz[]) AS next_run_at,
        unnest(@outcomes::text[]) AS outcome,
        unnest(@reasons::text[]) AS reason,
        unnest(@job_ids::uuid[]) AS job_id,
        unnest(@event_data::json[]) AS data
), run AS (
    INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome, reason, job_id)
    SELECT i.id, i.scheduled_at, 'tick', i.outcome, NULLIF(i.reason, ''), CASE WHEN i.outcome = 'fired' THEN i.job_id END FROM request i
    ON CONFLICT DO NOTHING
    RETURNING cron_id
), moved AS (
    UPDATE ojs.crons c
    SET next_run_at = i.next_run_at,
        last_run_at = CASE WHEN r.cron_id IS NOT NULL AND i.outcome = 'fired' THEN i.scheduled_at ELSE c.last_run_at END,
        run_count = c.run_count + CASE WHEN r.cron_id IS NOT NULL AND i.outcome = 'fired' THEN 1 ELSE 0 END
    FROM request i LEFT JOIN run r ON r.cron_id = i.id
    WHERE c.id = i.id
    RETURNING c.id, c.name, c.type, c.queue, c.trace_id, c.tenant, i.outcome, i.data, r.cron_id IS NOT NULL AS fresh
), event AS (
    INSERT INTO ojs.events (type, source, time, subject, job_type, queue, trace_id, lane, node, data)
    SELECT @event_type::text, 'cron', clock_timestamp(), m.name, m.type, m.queue,
        m.trace_id, m.tenant, @node::integer, m.data
    FROM moved m WHERE m.fresh
)
SELECT m.id, COALESCE(m.fresh, false)::boolean AS fresh FROM moved m;

-- name: CronRunListLatest :many
-- The latest tick of each cron that has had one.
SELECT r.cron_id, r.scheduled_at, COALESCE(r.reason, '')::text AS reason
FROM (SELECT unnest(@ids::uuid[]) AS id) i CROSS JOIN LATERAL (
    SELECT l.* FROM ojs.cron_runs l WHERE l.cron_id = i.id AND l.kind = 'tick' ORDER BY l.scheduled_at DESC LIMIT 1
) r;

-- name: CronRunInsertGap :many
-- Records local times that a clock change left out. Each writes one event, when its row is inserted.
WITH request AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@scheduled_at::timestamptz[]) AS scheduled_at, unnest(@event_data::json[]) AS data
), run AS (
    INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome, reason)
    SELECT i.id, i.scheduled_at, 'gap', 'skipped', 'dst_skip' FROM request i
    ON CONFLICT DO NOTHING
    RETURNING cron_id, scheduled_at
)
INSERT INTO ojs.events (type, source, time, subject, job_type, queue, trace_id, lane, node, data)
SELECT @event_type::text, 'cron', clock_timestamp(), c.name, c.type, c.queue, c.trace_id, c.tenant, @node::integer, i.data
FROM run r JOIN request i ON i.id = r.cron_id AND i.scheduled_at = r.scheduled_at JOIN ojs.crons c ON c.id = r.cron_id
RETURNING subject::text AS name, job_type::text AS job_type, queue::text AS queue;

-- name: CronTrigger :one
-- Records a manual run. The schedule does not change.
WITH run AS (
    INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome, job_id) VALUES (@id, @now, 'manual', 'manual', @job_id)
)
UPDATE ojs.crons SET last_run_at = @now, run_count = run_count + 1 WHERE id = @id RETURNING *;

-- name: CronRunList :many
-- The log of a cron, newest first, with the state of each job. A job that retention has removed has no state.
SELECT r.scheduled_at, r.outcome, r.reason, r.job_id, COALESCE(j.state, d.state, '')::text AS state,
    COALESCE(j.started_at, d.started_at)::timestamptz AS started_at, COALESCE(j.finished_at, d.finished_at)::timestamptz AS finished_at
FROM (
    SELECT * FROM ojs.cron_runs l WHERE l.cron_id = @cron_id
    ORDER BY l.scheduled_at DESC, l.kind OFFSET @skip_rows::bigint LIMIT @max_rows::bigint
) r
    LEFT JOIN LATERAL (SELECT * FROM ojs.jobs x WHERE x.id = ANY(ARRAY[r.job_id])) j ON true
    LEFT JOIN LATERAL (SELECT * FROM ojs.jobs_done x WHERE x.id = r.job_id LIMIT 1) d ON true
ORDER BY r.scheduled_at DESC, r.kind;

-- name: CronRunCount :one
-- The number of rows in the log of a cron.
SELECT count(*) FROM ojs.cron_runs WHERE cron_id = @cron_id;

-- name: CronRunPrune :execrows
-- Keeps the newest 1 000 rows of each cron, for 30 days at most.
DELETE FROM ojs.cron_runs r USING (
    SELECT x.cron_id, x.scheduled_at, x.kind FROM ojs.crons c CROSS JOIN LATERAL (
        (SELECT l.cron_id, l.scheduled_at, l.kind FROM ojs.cron_runs l WHERE l.cron_id = c.id
         ORDER BY l.scheduled_at DESC, l.kind OFFSET 1000 LIMIT @max_rows)
        UNION
        (SELECT l.cron_id, l.scheduled_at, l.kind FROM ojs.cron_runs l WHERE l.cron_id = c.id AND l.scheduled_at < now() - interval '30 days'
         LIMIT @max_rows)
    ) x LIMIT @max_rows
) old
WHERE r.cron_id = old.cron_id AND r.scheduled_at = old.scheduled_at AND r.kind = old.kind;

-- name: JobUpdateCron :many
-- Marks jobs as those of a cron, after their insert in the same transaction: JobInsert leaves out columns that few jobs
-- have. A queued job gets no ready_seq until CronReleaseQueued releases it. It is due soon, because the node that should
-- release it may stop before.
UPDATE ojs.jobs j
SET cron = i.cron, cron_serial = i.serial,
    ready_seq = CASE WHEN i.serial AND i.queued THEN NULL ELSE j.ready_seq END,
    limit_seq = CASE WHEN i.serial AND i.queued THEN NULL ELSE j.limit_seq END,
    due_at = CASE WHEN j.state = 'available' AND i.serial AND i.queued THEN LEAST(j.due_at, clock_timestamp() + interval '2 seconds') ELSE j.due_at END
FROM (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@names::text[]) AS cron, unnest(@serial::boolean[]) AS serial, unnest(@queued::boolean[]) AS queued
) i
WHERE j.id = ANY(ARRAY[i.id])
RETURNING j.id, j.ready_seq, j.due_at;

-- name: CronListQueued :many
-- Which of the crons have jobs that wait for another job of the cron, and how many.
SELECT j.cron::text AS cron, count(*) AS queued FROM ojs.jobs j
WHERE j.cron = ANY(@names::text[]) AND j.state = 'available' AND j.ready_seq IS NULL AND j.limit_seq IS NULL
GROUP BY j.cron;

-- name: CronLockSerial :exec
-- Serializes decisions about the jobs of a cron. It is a statement of its own, so that the next statement sees the
-- previous decision.
SELECT pg_advisory_xact_lock(hashtextextended('ojs.cron/' || n.name, 0))
FROM (SELECT unnest(@names::text[]) AS name ORDER BY 1) n;

-- name: CronReleaseQueued :many
-- Releases the oldest queued job of each cron of which no job is active or can be fetched; it goes to the end of its
-- priority. Runs after CronLockSerial. The next queued job is due again in two seconds, the others behind it once a
-- minute (JobPromoteDue).
WITH waiting AS MATERIALIZED (
    SELECT n.cron, h.id, h.enqueued_at, b.blocked
    FROM (SELECT DISTINCT unnest(@names::text[]) AS cron) n
    CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM ojs.jobs o WHERE o.cron = n.cron AND o.state = 'active')
            OR EXISTS (SELECT FROM ojs.jobs o WHERE o.cron = n.cron AND o.state = 'available' AND (o.ready_seq IS NOT NULL OR o.limit_seq IS NOT NULL)) AS blocked
    ) b
    CROSS JOIN LATERAL (
        SELECT j.id, j.enqueued_at FROM ojs.jobs j
        WHERE j.cron = n.cron AND j.state = 'available' AND j.ready_seq IS NULL AND j.limit_seq IS NULL AND j.cron_serial
        ORDER BY j.enqueued_at, j.id LIMIT 2
        FOR UPDATE SKIP LOCKED
    ) h
), ranked AS (
    SELECT h.id, h.blocked, row_number() OVER (PARTITION BY h.cron ORDER BY h.enqueued_at, h.id) AS nth FROM waiting h
), released AS (
    UPDATE ojs.jobs j
    SET ready_seq = CASE WHEN p.nth = 1 AND NOT p.blocked AND j.limit_key IS NULL THEN nextval('ojs.ready_seq') END,
        limit_seq = CASE WHEN p.nth = 1 AND NOT p.blocked AND j.limit_key IS NOT NULL THEN nextval('ojs.ready_seq') END,
        due_at = LEAST(j.expires_at, j.total_due_at, j.ttl_due_at,
            CASE WHEN p.nth > 1 OR p.blocked THEN clock_timestamp() + interval '2 seconds' END)
    FROM ranked p WHERE j.id = ANY(ARRAY[p.id]) AND (p.nth = 1 OR NOT p.blocked)
    RETURNING j.id, j.queue, j.lane, j.priority, j.ready_seq, j.limit_key,
        CASE WHEN j.limit_seq IS NOT NULL THEN ojs.limit_changed(j.limit_key) END AS limit_changed
)
SELECT id, queue, lane, priority, ready_seq, limit_key FROM released;

-- name: CronQueueJobs :exec
-- Queues jobs of a cron that can be fetched, except keep: a manual run goes first, or the cron has just become serial.
-- Runs after CronLockSerial.
-- Jobs in other states only become serial, so that they wait when they become available.
UPDATE ojs.jobs j
SET cron_serial = true,
    ready_seq = CASE WHEN j.state = 'available' THEN NULL ELSE j.ready_seq END,
    limit_seq = NULL,
    due_at = CASE WHEN j.state = 'available' THEN LEAST(j.due_at, clock_timestamp() + interval '2 seconds') ELSE j.due_at END
WHERE j.cron = @cron::text AND j.id <> @keep::uuid AND j.state IN ('available', 'active', 'retryable', 'scheduled', 'pending')
    AND (NOT j.cron_serial OR j.state = 'available' AND (j.ready_seq IS NOT NULL OR j.limit_seq IS NOT NULL));
