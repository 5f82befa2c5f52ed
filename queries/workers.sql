-- The worker registry. A worker is quiet, and gets no jobs, while it has reported terminate, or its directive, or without one what it
-- has reported, is quiet or terminate. Every statement that changes whether a worker is quiet notifies channel ojs_workers, so that nodes can keep
-- the quiet workers in memory.

-- name: WorkerHeartbeat :many
-- Registers workers or stores their heartbeats, and writes the events of changes. Known rows are locked first, so that
-- the clock is read under the lock and a concurrent WorkerExpire is taken into account. A dead worker that sends a
-- heartbeat is revived: it starts anew, without its earlier jobs. A worker that another node inserts at the same moment is
-- missing from the result; the next call finds it. taken: a call that names a tenant has the id of a living worker of somebody else, and
-- nothing is stored.
WITH request AS (
    SELECT unnest(@ids::text[]) AS id,
        unnest(@registers::boolean[]) AS register,
        unnest(@states::text[]) AS state,
        unnest(@active_jobs::integer[]) AS active_jobs,
        unnest(@active_job_ids::json[]) AS active_job_ids,
        unnest(@queues::json[]) AS queues,
        unnest(@concurrency::integer[]) AS concurrency,
        unnest(@fetch_queues::json[]) AS fetch_queues,
        unnest(@fetch_counts::integer[]) AS fetch_count,
        unnest(@hostnames::text[]) AS hostname,
        unnest(@pids::bigint[]) AS pid,
        unnest(@facts::json[]) AS facts,
        unnest(@loads::text[]) AS load,
        unnest(@sources::text[]) AS source,
        unnest(@tenants::text[]) AS tenant
), known AS MATERIALIZED (
    SELECT w.id, w.state, w.directive, w.stopped, w.tenant FROM ojs.workers w WHERE w.id = ANY(@ids::text[]) ORDER BY w.id FOR UPDATE
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM known) k
), planned AS MATERIALIZED (
    SELECT r.*, k.id IS NOT NULL AS known, k.state AS was,
        r.tenant <> '' AND COALESCE(k.state <> 'stale' AND k.tenant <> r.tenant, false) AS taken,
        k.id IS NULL OR k.state = 'stale' AS starts,
        COALESCE(k.stopped, false) AND k.state <> 'stale' AND NOT r.register AS stopped,
        CASE WHEN k.id IS NULL OR k.state = 'stale' OR r.register THEN COALESCE(NULLIF(r.state, ''), 'running')
            WHEN k.state = 'terminate' OR r.state = '' THEN k.state
            ELSE r.state END AS becomes,
        CASE WHEN k.directive = 'running' AND r.state = 'running' THEN NULL ELSE k.directive END AS directed,
        COALESCE(k.state = 'terminate' OR COALESCE(k.directive, k.state) IN ('quiet', 'terminate'), false) AS was_quiet
    FROM request r LEFT JOIN known k ON k.id = r.id
), updated AS (
    UPDATE ojs.workers w
    SET state = n.becomes, directive = n.directed, stopped = n.stopped OR n.becomes = 'terminate' AND n.active_jobs = 0,
        active_jobs = n.active_jobs, active_job_ids = n.active_job_ids,
        queues = COALESCE(n.queues, w.queues), concurrency = COALESCE(NULLIF(n.concurrency, 0), w.concurrency),
        fetch_queues = COALESCE(n.fetch_queues, w.fetch_queues), fetch_count = COALESCE(NULLIF(n.fetch_count, 0), w.fetch_count),
        hostname = COALESCE(NULLIF(n.hostname, ''), w.hostname), pid = COALESCE(NULLIF(n.pid, 0), w.pid),
        facts = ojs.facts_merge(w.facts, n.facts),
        started_at = CASE WHEN n.starts THEN clock.now ELSE w.started_at END,
        last_beat_at = clock.now, last_seen_at = clock.now, stale_at = NULL, tenant = COALESCE(NULLIF(n.tenant, ''), w.tenant)
    FROM planned n CROSS JOIN clock
    WHERE w.id = ANY(ARRAY[n.id]) AND n.known AND NOT n.taken
    RETURNING w.*
), inserted AS (
    INSERT INTO ojs.workers AS w (id, state, stopped, active_jobs, active_job_ids, queues, concurrency, fetch_queues, fetch_count,
        hostname, pid, facts, started_at, last_beat_at, last_seen_at, tenant)
    SELECT n.id, n.becomes, n.becomes = 'terminate' AND n.active_jobs = 0, n.active_jobs, n.active_job_ids, n.queues, NULLIF(n.concurrency, 0),
        n.fetch_queues, NULLIF(n.fetch_count, 0), NULLIF(n.hostname, ''), NULLIF(n.pid, 0), n.facts, clock.now, clock.now, clock.now, n.tenant
    FROM planned n CROSS JOIN clock
    WHERE NOT n.known
    ORDER BY n.id
    ON CONFLICT (id) DO NOTHING
    RETURNING w.*
), beat AS (
    SELECT * FROM updated UNION ALL SELECT * FROM inserted
), described AS (
    SELECT b.*, COALESCE(b.queues, b.fetch_queues)::text AS from_queues, COALESCE(b.concurrency, b.fetch_count, 1) AS at_once,
        n.source, n.load, n.was_quiet,
        array_remove(ARRAY[
            CASE WHEN n.starts THEN 'worker.started' END,
            CASE WHEN @heartbeat_events::boolean AND NOT n.register THEN 'worker.heartbeat' END,
            CASE WHEN b.state = 'quiet' AND n.was IS DISTINCT FROM 'quiet' THEN 'worker.quiet' END,
            CASE WHEN b.stopped AND NOT n.stopped THEN 'worker.stopped' END], NULL) AS event_types
    FROM beat b JOIN planned n ON n.id = b.id
), event AS (
    INSERT INTO ojs.events (type, source, time, subject, worker_id, lane, node, data)
    SELECT e.type, b.source, b.last_beat_at, b.id, b.id, b.tenant, @node::integer,
        (CASE e.type
            WHEN 'worker.started' THEN '{"worker_id":' || to_json(b.id) || ',"queues":' || COALESCE(b.from_queues, '[]')
                || ',"concurrency":' || b.at_once || COALESCE(',"hostname":' || to_json(b.hostname), '') || COALESCE(',"pid":' || b.pid, '') || '}'
            WHEN 'worker.heartbeat' THEN '{"worker_id":' || to_json(b.id) || ',"active_jobs":' || b.active_jobs
                || ',"queues":' || COALESCE(b.from_queues, '[]') || b.load || '}'
            WHEN 'worker.quiet' THEN '{"worker_id":' || to_json(b.id) || ',"active_jobs":' || b.active_jobs || '}'
            ELSE '{"worker_id":' || to_json(b.id) || ',"reason":"signal","uptime_ms":' || (date_part('epoch', b.last_beat_at - b.started_at) * 1000)::bigint || '}'
        END)::json
    FROM described b
    CROSS JOIN LATERAL unnest(b.event_types) WITH ORDINALITY AS e (type, step)
    ORDER BY b.id, e.step
)
SELECT b.id::text AS id, b.state::text AS state, COALESCE(b.directive, '')::text AS directive, b.last_beat_at::timestamptz AS last_beat_at,
    b.event_types::text[] AS event_types,
    (CASE WHEN b.was_quiet <> (b.state = 'terminate' OR COALESCE(b.directive, b.state) IN ('quiet', 'terminate'))
        THEN pg_notify('ojs_workers', 'changed')::text ELSE '' END)::text AS notified,
    false AS taken
FROM described b
UNION ALL
SELECT n.id::text, '', '', clock.now, '{}', '', true FROM planned n CROSS JOIN clock WHERE n.taken;

-- name: WorkerUpdateSeen :exec
-- Stores calls other than heartbeats, of workers that are known and not dead. @ages_ms is how long ago they were. COALESCE hides
-- stale_at IS NULL from the planner, which a plan made while the table was empty took as the predicate of workers_seen, and read it whole.
UPDATE ojs.workers w SET last_seen_at = GREATEST(w.last_seen_at, clock_timestamp() - a.age_ms * interval '1 millisecond')
FROM (
    SELECT k.id, i.age_ms FROM (SELECT unnest(@ids::text[]) AS id, unnest(@ages_ms::bigint[]) AS age_ms) i
    CROSS JOIN LATERAL (
        SELECT l.id FROM ojs.workers l
        WHERE l.id = i.id AND COALESCE(l.stale_at, 'infinity') = 'infinity' AND l.last_seen_at < clock_timestamp() - i.age_ms * interval '1 millisecond'
        FOR UPDATE SKIP LOCKED
    ) k
) a
WHERE w.id = ANY(ARRAY[a.id]);

-- name: WorkerListQuiet :many
-- The quiet workers.
SELECT w.id FROM ojs.workers w WHERE w.state = 'terminate' OR COALESCE(w.directive, w.state) IN ('quiet', 'terminate');

-- name: WorkerExpire :many
-- Declares silent workers dead. From now on the jobs that they had fetched are not extended. The caller fails these jobs;
-- if it stops before, another node does so after reap_at. The time of an outage is not silence.
WITH silent AS MATERIALIZED (
    SELECT w.id, w.state = 'terminate' OR COALESCE(w.directive, w.state) IN ('quiet', 'terminate') AS was_quiet FROM ojs.workers w
    WHERE w.stale_at IS NULL AND w.last_seen_at <= now() - interval '1 millisecond' * @expire_after_ms::bigint AND ojs.is_served()
        AND w.last_seen_at + ojs.outage_since(w.last_seen_at) <= now() - interval '1 millisecond' * @expire_after_ms::bigint
    ORDER BY w.last_seen_at
    LIMIT @max_rows
    FOR UPDATE SKIP LOCKED
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM silent LIMIT 1
), expired AS (
    UPDATE ojs.workers w
    SET state = 'stale', directive = NULL, stale_at = clock.now, dead_at = clock.now, reap_at = clock.now + interval '5 seconds'
    FROM silent d CROSS JOIN clock
    WHERE w.id = ANY(ARRAY[d.id])
    RETURNING w.id, w.dead_at, w.last_seen_at, w.started_at, w.stopped, w.tenant, d.was_quiet
), event AS (
    INSERT INTO ojs.events (type, source, time, subject, worker_id, lane, node, data)
    SELECT @event_type::text, 'scheduler', e.dead_at, e.id, e.id, e.tenant, @node::integer,
        ('{"worker_id":' || to_json(e.id) || ',"reason":"error","uptime_ms":' || (date_part('epoch', e.dead_at - e.started_at) * 1000)::bigint || '}')::json
    FROM expired e WHERE NOT e.stopped
    ORDER BY e.id
)
SELECT e.id, e.dead_at, e.last_seen_at, e.stopped, (CASE WHEN e.was_quiet THEN pg_notify('ojs_workers', 'changed')::text ELSE '' END)::text AS notified FROM expired e;

-- name: WorkerReapClaim :many
-- Dead workers whose jobs have not all been failed, because the node that declared them dead has stopped or a job was
-- locked. The next try is five seconds later.
UPDATE ojs.workers w SET reap_at = clock_timestamp() + interval '5 seconds'
WHERE w.id = ANY(ARRAY(
    SELECT b.id FROM ojs.workers b WHERE b.reap_at <= now() ORDER BY b.reap_at LIMIT @max_rows FOR UPDATE SKIP LOCKED))
RETURNING w.id, w.dead_at, w.last_seen_at;

-- name: WorkerReapDone :exec
-- Records that no jobs of dead workers are left. A worker that was declared dead again meanwhile has a later dead_at and
-- does not change.
UPDATE ojs.workers w SET reap_at = NULL
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@dead_at::timestamptz[]) AS dead_at) b
WHERE w.id = ANY(ARRAY[b.id]) AND w.dead_at = b.dead_at;

-- name: WorkerPrune :execrows
-- Deletes workers that were declared dead an hour ago.
DELETE FROM ojs.workers w WHERE w.id = ANY(ARRAY(
    SELECT p.id FROM ojs.workers p
    WHERE p.stale_at <= now() - interval '1 hour' AND p.reap_at IS NULL
    ORDER BY p.stale_at LIMIT @max_rows FOR UPDATE SKIP LOCKED));

-- name: WorkerReapAgain :one
-- Prepares the deletion of a dead worker: a later dead_at covers all jobs that are reserved for it now.
UPDATE ojs.workers w SET dead_at = clock_timestamp(), reap_at = clock_timestamp() + interval '5 seconds'
WHERE w.id = @id AND w.stale_at IS NOT NULL AND (@tenant::text = '' OR w.tenant = @tenant::text)
RETURNING w.id, w.dead_at, w.last_seen_at;

-- name: WorkerDeleteStale :execrows
-- Deletes a dead worker.
DELETE FROM ojs.workers w WHERE w.id = @id AND w.stale_at IS NOT NULL AND (@tenant::text = '' OR w.tenant = @tenant::text);

-- name: WorkerDeregister :many
-- Deletes a worker that deregisters. Its jobs stay reserved until their leases end. One that has said by a heartbeat that it stops, or is
-- dead, has its event already.
WITH deleted AS (
    DELETE FROM ojs.workers w WHERE w.id = @id::text AND (@tenant::text = '' OR w.tenant = @tenant::text)
    RETURNING w.id, w.started_at, w.stopped OR w.state = 'stale' AS stopped, w.tenant, clock_timestamp() AS now,
        w.state = 'terminate' OR COALESCE(w.directive, w.state) IN ('quiet', 'terminate') AS was_quiet
), event AS (
    INSERT INTO ojs.events (type, source, time, subject, worker_id, lane, node, data)
    SELECT @event_type::text, @source::text, d.now, d.id, d.id, d.tenant, @node::integer,
        ('{"worker_id":' || to_json(d.id) || ',"reason":"' || @reason::text || '"' || COALESCE(',"jobs_completed":' || sqlc.narg('jobs_completed')::bigint, '')
            || ',"uptime_ms":' || (date_part('epoch', d.now - d.started_at) * 1000)::bigint || '}')::json
    FROM deleted d WHERE NOT d.stopped
)
SELECT d.id, d.now::timestamptz AS now, d.stopped::boolean AS stopped, (CASE WHEN d.was_quiet THEN pg_notify('ojs_workers', 'changed')::text ELSE '' END)::text AS notified FROM deleted d;

-- name: WorkerUpdateDirective :many
-- Stores the directive of an operator for one worker.
UPDATE ojs.workers w SET directive = @directive::text WHERE w.id = @id::text AND (@tenant::text = '' OR w.tenant = @tenant::text)
RETURNING w.id, w.state, pg_notify('ojs_workers', 'changed')::text AS notified;

-- name: WorkerUpdateDirectiveAll :many
-- Stores the directive of an operator for all workers that are not dead. Locks them in the order of WorkerHeartbeat.
WITH live AS MATERIALIZED (
    SELECT l.id FROM ojs.workers l WHERE l.stale_at IS NULL ORDER BY l.id FOR UPDATE
), directed AS (
    UPDATE ojs.workers w SET directive = @directive::text FROM live l WHERE w.id = ANY(ARRAY[l.id]) RETURNING w.id, w.state
)
SELECT d.id, d.state, pg_notify('ojs_workers', 'changed')::text AS notified FROM directed d;

-- name: WorkerGet :one
-- A worker by id; with a tenant, only one of its own.
SELECT * FROM ojs.workers WHERE id = @id AND (@tenant::text = '' OR tenant = @tenant::text);

-- name: WorkerListPage :many
-- A page of workers behind a key: the living before the dead, both with the latest sign of life first. Each half walks its
-- index to the end of the page, so only pages are sorted. queues contains valid names only, so the json functions of SQL
-- cannot fail for it.
SELECT p.* FROM (
    (SELECT w.* FROM ojs.workers w
     WHERE w.stale_at IS NULL AND (w.last_seen_at, w.id) < (@living_before::timestamptz, @living_before_id::text)
        AND (@tenant::text = '' OR w.tenant = @tenant::text)
        AND (cardinality(@states::text[]) = 0 OR w.state = ANY(@states::text[]))
        AND (cardinality(@queues::text[]) = 0
            OR EXISTS (SELECT FROM json_array_elements_text(COALESCE(w.queues, w.fetch_queues, '[]')) q (name) WHERE q.name = ANY(@queues::text[])))
     ORDER BY w.last_seen_at DESC, w.id DESC LIMIT @max_rows::bigint)
    UNION ALL
    (SELECT w.* FROM ojs.workers w
     WHERE w.state = 'stale' AND (w.last_seen_at, w.id) < (@dead_before::timestamptz, @dead_before_id::text)
        AND (@tenant::text = '' OR w.tenant = @tenant::text)
        AND (cardinality(@states::text[]) = 0 OR w.state = ANY(@states::text[]))
        AND (cardinality(@queues::text[]) = 0
            OR EXISTS (SELECT FROM json_array_elements_text(COALESCE(w.queues, w.fetch_queues, '[]')) q (name) WHERE q.name = ANY(@queues::text[])))
     ORDER BY w.last_seen_at DESC, w.id DESC LIMIT @max_rows::bigint)
) p ORDER BY (p.stale_at IS NOT NULL), p.last_seen_at DESC, p.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint;

-- name: WorkerCount :one
-- The number of workers that match the same filters.
SELECT count(*) FROM ojs.workers w
WHERE (@tenant::text = '' OR w.tenant = @tenant::text) AND (cardinality(@states::text[]) = 0 OR w.state = ANY(@states::text[]))
    AND (cardinality(@queues::text[]) = 0
        OR EXISTS (SELECT FROM json_array_elements_text(COALESCE(w.queues, w.fetch_queues, '[]')) q (name) WHERE q.name = ANY(@queues::text[])));

-- name: WorkerGetTotals :one
-- Workers per state.
SELECT count(*) AS total,
    count(*) FILTER (WHERE w.state = 'running') AS running,
    count(*) FILTER (WHERE w.state = 'quiet') AS quiet,
    count(*) FILTER (WHERE w.state = 'terminate') AS terminate,
    count(*) FILTER (WHERE w.state = 'stale') AS stale
FROM ojs.workers w WHERE (@tenant::text = '' OR w.tenant = @tenant::text);

-- name: WorkerListLatest :many
-- The workers that sent a heartbeat last, for live views. Every row has the number of all workers.
SELECT w.id, w.state, w.active_jobs, w.last_beat_at, count(*) OVER () AS total
FROM ojs.workers w ORDER BY w.last_beat_at DESC, w.id LIMIT @max_rows;

-- name: JobHeartbeat :many
-- Extends the lease of active jobs that are reserved for the worker, or for no worker, to the given time from now or the one
-- chosen at fetch, but never shortens it. Jobs that the worker fetched before it was declared dead are not extended, even if it has come back.
-- Rows that another transaction has locked are skipped. At most one event per job is written in @event_interval_s seconds.
WITH request AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@workers::text[]) AS worker_id, unnest(@leases_ms::bigint[]) AS lease_ms, unnest(@sources::text[]) AS source,
        unnest(@starts::timestamptz[]) AS started_at
), locked AS MATERIALIZED (
    SELECT j.id, r.worker_id, r.lease_ms, r.source
    FROM request r CROSS JOIN LATERAL (
        SELECT j.id FROM ojs.jobs j
        WHERE j.id = r.id AND j.state = 'active' AND (j.worker_id IS NULL OR j.worker_id = r.worker_id)
            AND (r.started_at IS NULL OR j.started_at = r.started_at)
            AND NOT COALESCE((SELECT w.reap_at IS NOT NULL AND j.started_at <= w.dead_at FROM ojs.workers w WHERE w.id = j.worker_id), false)
        FOR UPDATE SKIP LOCKED
    ) j
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now FROM locked LIMIT 1
), extended AS (
    UPDATE ojs.jobs j
    SET lease_until = GREATEST(j.lease_until, clock.now + COALESCE(NULLIF(l.lease_ms, 0), j.lease_ms) * interval '1 millisecond'),
        stall_due_at = clock.now + j.stall_ms * interval '1 millisecond',
        due_at = LEAST(GREATEST(j.lease_until, clock.now + COALESCE(NULLIF(l.lease_ms, 0), j.lease_ms) * interval '1 millisecond'),
            clock.now + j.stall_ms * interval '1 millisecond', j.total_due_at,
            j.started_at + (COALESCE(j.timeout_ms, @default_timeout_ms::bigint) + COALESCE(j.grace_ms, 0)) * interval '1 millisecond'
                + ojs.outage_since(j.started_at))
    FROM locked l CROSS JOIN clock
    WHERE j.id = ANY(ARRAY[l.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.attempt, j.workflow_id, j.trace_id, j.lease_until, j.due_at, clock.now, l.worker_id AS beat_by, l.source
), paced AS MATERIALIZED (
    SELECT b.*, @event_interval_s::double precision = 0 OR NOT EXISTS (
        SELECT FROM ojs.events e WHERE e.job_id = b.id AND e.type = @event_type::text AND e.attempt = b.attempt
            AND e.time > b.now - make_interval(secs => @event_interval_s::double precision)) AS emitted
    FROM extended b
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, node, data)
    SELECT @event_type::text, b.source, b.now, b.id, b.type, b.queue, b.lane, b.attempt, b.beat_by, b.workflow_id, b.trace_id, @node::integer,
        ('{"visible_until":"' || ojs.time_text(b.lease_until) || '"}')::json
    FROM paced b WHERE b.emitted
)
SELECT b.id, b.type, b.queue, b.attempt, b.beat_by::text AS worker_id, b.due_at, b.now::timestamptz AS now, b.emitted::boolean AS emitted
FROM paced b;

-- name: JobListUnextended :many
-- For ids that a worker reported and that were not extended: which jobs were cancelled during its run, which are
-- finished, and which are still reserved for it because another transaction had locked the row. taken means that the
-- worker fetched the job before it was declared dead.
SELECT d.id, d.state, d.previous_state, d.worker_id, d.started_at, false AS taken FROM ojs.jobs_done d WHERE d.id = ANY(@ids::uuid[])
UNION ALL
SELECT j.id, j.state, j.previous_state, j.worker_id, j.started_at,
    EXISTS (SELECT FROM ojs.workers w WHERE w.id = j.worker_id AND w.reap_at IS NOT NULL AND j.started_at <= w.dead_at)
FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'active';

-- name: JobListByDeadWorkers :many
-- The jobs that are reserved for dead workers: active jobs fetched before dead_at. There is no index on worker_id, because
-- every claim would have to write it. An active job always has a due_at, at most the longest reservation ahead. So this
-- reads index jobs_due up to that time and filters: 70 ms with 200 000 jobs scheduled over 30 days and 200 000 available
-- ones, once for all workers that expire together. @skip_rows leaves out those at the head that could not be locked.
SELECT j.id, j.attempt, j.started_at, j.worker_id::text AS worker_id
FROM ojs.jobs j
WHERE j.state = 'active' AND j.worker_id = ANY(@worker_ids::text[])
    AND j.started_at <= (@dead_at::timestamptz[])[array_position(@worker_ids::text[], j.worker_id)]
    AND j.due_at <= now() + interval '1 millisecond' * @longest_ms::bigint
ORDER BY j.due_at
OFFSET @skip_rows::integer LIMIT @max_rows::integer;

-- name: JobListByWorker :many
-- Of the ids that a worker reported, the jobs that are reserved for it; with a tenant, only its own.
SELECT j.id, j.type, j.queue, j.attempt, j.started_at, j.lease_until
FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'active' AND j.worker_id = @worker_id::text
    AND (@tenant::text = '' OR split_part(j.lane, '/', 1) = @tenant::text)
ORDER BY j.id;

-- name: JobListMetaActive :many
-- The meta of active jobs, for test directives. The caller parses meta, because -> on json fails for documents with
-- \u0000.
SELECT j.id, j.worker_id, j.meta FROM ojs.jobs j
WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'active' AND j.worker_id IS NOT NULL AND j.meta IS NOT NULL;
