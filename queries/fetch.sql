-- Claims, and the rescans that keep their cursors right (queue/fetch.go, queue/cursors.go). The rules of jobs.sql hold here, too.

-- name: JobFetch :many
-- Claims the next available jobs. probe lists queues, lanes and priorities in dispatch order, each with the cursor of this node, the
-- lowest ready_seq of an available job, and the most jobs that it may give. The nested loop keeps that order, and the outer LIMIT ends it. The jobs are
-- picked in a CTE and not by WHERE id IN (SELECT … LIMIT): the planner may run such a subquery more than once and claim
-- more jobs than wanted. owners has, for each job in that order, the index of the fetch that gets it; workers, sources and
-- leases_ms have one element per fetch. They are read by subscript: a join with an unnest has no cheap plan but a hash
-- join, which the pool's settings rule out because of ojs.jobs. The claim ends with the job with which the sum of sizes
-- exceeds max_bytes, so the caller sees from the sum that it was cut. A job without size counts 8 KiB, and 1 000 of them are
-- less than the default: claims of small jobs are never cut. The rows beyond the end were locked for nothing and stay
-- available. A job that waits for a limit or for another job of its cron has no ready_seq, so the comparison with low leaves it out. An
-- active job has the number of the claim there (see JobListByClaim). Only columns that an active job can have are returned (claimedRecord
-- sets the others), those of the event first: of 51 columns in every step a claim of 8 jobs took 260 instead of 230 µs. The caller sorts by slot. The jobs are claimed before their events are written, so
-- workflow.started, which workflow_job_started writes, comes before job.started.
WITH probe AS (
    SELECT unnest(@queues::text[]) AS queue, unnest(@lanes::text[]) AS lane, unnest(@priorities::smallint[]) AS priority, unnest(@lows::bigint[]) AS low,
        unnest(@wants::integer[]) AS want
), found AS (
    SELECT c.id, c.ready_seq, c.size FROM probe p CROSS JOIN LATERAL (
        SELECT j.id, j.ready_seq, j.size FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = p.queue AND j.lane = p.lane AND j.priority = p.priority AND j.ready_seq >= p.low
            AND (j.due_at IS NULL OR j.due_at > now())
        ORDER BY j.ready_seq
        LIMIT p.want
        FOR UPDATE SKIP LOCKED
    ) c
    WHERE (SELECT q.status FROM ojs.queues q WHERE q.name = p.queue) IS DISTINCT FROM 'paused'
    LIMIT @want::integer
), picked AS MATERIALIZED (
    SELECT f.id, f.ready_seq, row_number() OVER w AS slot, sum(COALESCE(f.size, 8192)) OVER w - COALESCE(f.size, 8192) AS bytes_before
    FROM found f WINDOW w AS (ROWS UNBOUNDED PRECEDING)
), owned AS MATERIALIZED (
    SELECT p.id, p.ready_seq, p.slot, (@workers::text[])[o.n] AS worker_id, (@sources::text[])[o.n] AS source,
        NULLIF((@leases_ms::bigint[])[o.n], 0) AS lease_ms
    FROM picked p CROSS JOIN LATERAL (SELECT (@owners::integer[])[p.slot] AS n) o
    WHERE p.bytes_before <= @max_bytes::bigint
), clock AS MATERIALIZED ( -- after the rows were locked: one may have become available again since the statement began
    SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM owned) o
), claimed AS (
    UPDATE ojs.jobs j
    SET state = 'active', attempt = j.attempt + 1, started_at = clock.now, ready_seq = @claim::bigint, worker_id = NULLIF(o.worker_id, ''),
        lease_ms = COALESCE(o.lease_ms, j.visibility_ms, @default_lease_ms::bigint),
        lease_until = clock.now + COALESCE(o.lease_ms, j.visibility_ms, @default_lease_ms::bigint) * interval '1 millisecond',
        due_at = LEAST(clock.now + LEAST(COALESCE(o.lease_ms, j.visibility_ms, @default_lease_ms::bigint),
            COALESCE(j.timeout_ms, @default_timeout_ms::bigint) + COALESCE(j.grace_ms, 0), j.stall_ms) * interval '1 millisecond', j.total_due_at),
        ttl_due_at = NULL, stall_due_at = clock.now + j.stall_ms * interval '1 millisecond',
        progress = NULL, progress_message = NULL, progress_data = NULL, progress_at = NULL
    FROM owned o CROSS JOIN clock
    WHERE j.id = ANY(ARRAY[o.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.attempt, j.worker_id, j.workflow_id, j.trace_id, j.enqueued_at, j.started_at, o.source, o.slot, -- what the event needs
        j.priority, j.max_attempts, o.ready_seq, j.due_at, j.created_at, j.scheduled_at, j.expires_at, j.total_due_at, j.lease_until, j.lease_ms, j.stall_due_at, j.visibility_ms, j.timeout_ms,
        j.grace_ms, j.stall_ms, j.retry_delay_ms, j.result_ttl_s, j.re_enqueued_at, j.replay_count, j.cron, j.cron_serial, j.unique_key, j.limit_key, j.on_limit, j.retry, j.args, j.meta,
        j.extra, j.error, j.errors, j.previous_errors, j.checkpoint, j.checkpoint_seq, j.checkpoint_at, j.size,
        CASE WHEN j.workflow_id IS NOT NULL THEN ojs.workflow_job_started(j.workflow_id, j.started_at) END AS starts_workflow,
        CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_started(j.limit_key, j.started_at) END AS limit_started
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, from_state, to_state, node, duration_ms)
    SELECT @event_type::text, c.source, c.started_at, c.id, c.type, c.queue, c.lane, c.attempt, c.worker_id, c.workflow_id, c.trace_id, 'available', 'active', @node::integer,
        (date_part('epoch', c.started_at - c.enqueued_at) * 1000)::bigint
    FROM claimed c
)
SELECT c.slot::bigint AS slot, c.id, c.type, c.queue, c.lane, c.attempt, c.worker_id, c.workflow_id, c.trace_id, c.enqueued_at, c.started_at, c.priority, c.max_attempts, c.ready_seq, c.due_at,
    c.created_at, c.scheduled_at, c.expires_at, c.total_due_at, c.lease_until, c.lease_ms, c.stall_due_at, c.visibility_ms, c.timeout_ms, c.grace_ms, c.stall_ms, c.retry_delay_ms,
    c.result_ttl_s, c.re_enqueued_at, c.replay_count, c.cron, c.cron_serial, c.unique_key, c.limit_key, c.on_limit, c.retry, c.args, c.meta, c.extra, c.error, c.errors, c.previous_errors,
    c.checkpoint, c.checkpoint_seq, c.checkpoint_at, c.size
FROM claimed c;

-- name: JobFetchRescan :many
-- The lowest ready_seq per lane and priority, found by skipping from one to the next: of each scope, those behind a lane and priority and
-- before another lane. It has no lower bound of ready_seq, so it finds jobs that a cursor has passed because their transaction committed
-- late. Jobs without ready_seq wait for another job of their cron, or for a limit, and are left out. The LIMIT ends the recursion.
WITH RECURSIVE level AS (
    SELECT unnest(@scopes::integer[]) AS scope, unnest(@queues::text[]) AS queue, unnest(@lanes::text[]) COLLATE "C" AS lane,
        unnest(@priorities::smallint[]) AS priority, unnest(@befores::text[]) AS before, NULL::bigint AS ready_seq
    UNION ALL
    SELECT l.scope, l.queue, n.lane, n.priority, l.before, n.ready_seq
    FROM level l CROSS JOIN LATERAL (
        (SELECT j.lane, j.priority, j.ready_seq FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = l.queue AND j.lane = l.lane AND j.priority < l.priority AND j.ready_seq IS NOT NULL
        ORDER BY j.priority DESC, j.ready_seq LIMIT 1)
        UNION ALL
        (SELECT j.lane, j.priority, j.ready_seq FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = l.queue AND j.lane > l.lane AND j.lane < l.before AND j.ready_seq IS NOT NULL
        ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
        LIMIT 1) n
)
SELECT l.scope::integer AS scope, l.queue::text AS queue, l.lane::text AS lane, l.priority::smallint AS priority, l.ready_seq::bigint AS ready_seq
FROM level l WHERE l.ready_seq IS NOT NULL LIMIT @max_rows::integer;

-- name: JobListByClaim :many
-- The jobs of claims whose answer did not reach the node, by the numbers of the claims. Reads index jobs_due like
-- JobListByDeadWorkers; it runs only after a connection has broken.
SELECT j.id, j.attempt, j.started_at, j.worker_id
FROM ojs.jobs j
WHERE j.state = 'active' AND j.ready_seq = ANY(@claims::bigint[]) AND j.due_at <= now() + interval '1 millisecond' * @longest_ms::bigint
LIMIT @max_rows;
