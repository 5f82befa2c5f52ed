-- What holds in every database that only the server and the functions of the schema have written, while nothing runs. A query returns what
-- violates its rule.

-- name: columns of a waiting job
SELECT to_json(j) FROM ojs.jobs j
WHERE j.state <> 'active' AND (j.lease_until IS NOT NULL OR j.lease_ms IS NOT NULL OR j.stall_due_at IS NOT NULL
    OR j.state = 'available' AND (j.enqueued_at IS NULL OR j.ready_seq IS NULL AND j.limit_seq IS NULL AND NOT j.cron_serial)
    OR j.state <> 'available' AND (j.ready_seq IS NOT NULL OR j.limit_seq IS NOT NULL)
    OR j.ready_seq IS NOT NULL AND j.limit_seq IS NOT NULL OR j.limit_seq IS NOT NULL AND j.limit_key IS NULL
    OR j.state = 'retryable' AND (j.next_attempt_at IS NULL OR j.attempt = 0 OR j.error IS NULL OR j.errors IS NULL)
    OR j.state NOT IN ('retryable', 'scheduled') AND j.next_attempt_at IS NOT NULL
    OR (j.state = 'discarded') <> (j.finished_at IS NOT NULL) OR (j.state = 'discarded') <> (j.previous_state IS NOT NULL)
    OR j.state <> 'discarded' AND (j.dead_lettered_at IS NOT NULL OR j.failed)
    OR j.attempt > 0 AND j.ttl_due_at IS NOT NULL OR j.state = 'pending' AND (j.attempt > 0 OR j.enqueued_at IS NOT NULL)
    OR j.attempt = 0 AND j.started_at IS NOT NULL OR (j.replay_count > 0) <> (j.re_enqueued_at IS NOT NULL)
    OR j.enqueued_at < j.created_at OR j.finished_at < j.created_at OR j.result IS NOT NULL);

-- name: timer of a waiting job
SELECT to_json(j) FROM ojs.jobs j
WHERE CASE WHEN j.state = 'active' THEN false
    WHEN j.state = 'discarded' THEN j.due_at IS NOT NULL
    WHEN j.cron_serial THEN j.due_at > LEAST(j.expires_at, j.total_due_at, j.ttl_due_at)
    WHEN j.state = 'retryable' THEN j.due_at IS DISTINCT FROM LEAST(j.next_attempt_at, j.expires_at, j.total_due_at)
    WHEN j.state = 'scheduled' AND j.attempt = 0 AND j.replay_count = 0
        THEN j.due_at IS DISTINCT FROM LEAST(j.scheduled_at, j.expires_at, j.total_due_at, j.ttl_due_at)
    WHEN j.state = 'scheduled' THEN j.due_at IS NULL OR j.due_at > LEAST(j.expires_at, j.total_due_at, j.ttl_due_at)
    ELSE j.due_at IS DISTINCT FROM LEAST(j.expires_at, j.total_due_at, j.ttl_due_at) END;

-- name: columns of an active job
SELECT to_json(j) FROM ojs.jobs j
WHERE j.state = 'active' AND (j.lease_until IS NULL OR j.lease_ms IS NULL OR j.started_at IS NULL OR j.enqueued_at IS NULL
    OR j.ready_seq IS NULL OR j.ready_seq >= 0 OR j.attempt < 1 OR j.ttl_due_at IS NOT NULL OR j.limit_seq IS NOT NULL OR j.next_attempt_at IS NOT NULL
    OR j.finished_at IS NOT NULL OR j.previous_state IS NOT NULL OR j.dead_lettered_at IS NOT NULL OR j.failed OR j.result IS NOT NULL
    OR (j.stall_ms IS NULL) <> (j.stall_due_at IS NULL) OR j.started_at < j.enqueued_at OR j.lease_until < j.started_at);

-- name: timer of an active job
SELECT to_json(j) FROM ojs.jobs j, LATERAL (SELECT LEAST(j.lease_until, j.stall_due_at, j.total_due_at,
    j.started_at + (j.timeout_ms + COALESCE(j.grace_ms, 0)) * interval '1 millisecond' + ojs.outage_since(j.started_at)) AS at) due
WHERE j.state = 'active' AND (j.due_at IS NULL OR j.due_at > due.at AND NOT EXISTS (SELECT FROM ojs.outages o WHERE o.ended_at >= due.at - interval '10 s')
    OR j.due_at < due.at AND j.timeout_ms IS NOT NULL);

-- name: columns of a finished job
SELECT to_json(d) FROM ojs.jobs_done d
WHERE d.state NOT IN ('completed', 'cancelled') OR d.lease_until IS NOT NULL OR d.lease_ms IS NOT NULL OR d.stall_due_at IS NOT NULL OR d.due_at IS NOT NULL
    OR d.ready_seq IS NOT NULL OR d.limit_seq IS NOT NULL OR d.next_attempt_at IS NOT NULL OR d.dead_lettered_at IS NOT NULL OR d.failed OR d.ttl_due_at IS NOT NULL
    OR d.total_due_at IS NOT NULL OR d.finished_at < d.created_at OR d.finished_at < d.started_at OR d.enqueued_at < d.created_at
    OR d.state = 'completed' AND (d.previous_state <> 'active' OR d.attempt < 1 OR d.started_at IS NULL OR d.enqueued_at IS NULL)
    OR d.previous_state IS NULL OR d.state = 'cancelled' AND d.result IS NOT NULL OR (d.replay_count > 0) <> (d.re_enqueued_at IS NOT NULL);

-- name: a job is stored once
SELECT to_json(x.id) FROM (SELECT id FROM ojs.jobs UNION ALL SELECT id FROM ojs.jobs_done) x GROUP BY x.id HAVING count(*) > 1;

-- name: size of a job
SELECT json_build_object('id', j.id, 'state', j.state, 'size', j.size, 'is', s.size) FROM (SELECT * FROM ojs.jobs UNION ALL SELECT * FROM ojs.jobs_done) j, LATERAL (
    SELECT octet_length(j.args::text) + COALESCE(octet_length(j.meta::text), 0) + COALESCE(octet_length(j.extra::text), 0) + COALESCE(octet_length(j.errors::text), 0)
        + COALESCE(octet_length(j.previous_errors::text), 0) + COALESCE(octet_length(j.checkpoint::text), 0) + COALESCE(octet_length(j.result::text), 0) AS size) s
WHERE abs(COALESCE(j.size, 0) - s.size) > 8192 + s.size / 10 + COALESCE(octet_length(j.error::text), 0);

-- name: what an event says of its job
SELECT json_build_object('event', e, 'job', j) FROM ojs.events e
JOIN (SELECT id, type, queue, lane, workflow_id, trace_id, re_enqueued_at, attempt FROM ojs.jobs
    UNION ALL SELECT id, type, queue, lane, workflow_id, trace_id, re_enqueued_at, attempt FROM ojs.jobs_done) j ON j.id = e.job_id
WHERE e.type <> 'job.admitted' AND (e.job_type IS DISTINCT FROM j.type OR e.workflow_id IS DISTINCT FROM j.workflow_id OR e.queue IS NULL OR e.subject IS NOT NULL
    OR split_part(e.lane, '/', 1) <> split_part(j.lane, '/', 1) OR e.lane <> j.lane AND e.queue = j.queue
    OR e.trace_id IS DISTINCT FROM j.trace_id AND (j.re_enqueued_at IS NULL OR e.time > j.re_enqueued_at));

-- name: an event of a job begins in the state in which the one before ended
SELECT to_json(c) FROM (SELECT e.job_id, e.seq, e.sub, e.type, e.from_state, e.to_state, e.queue, lag(e.to_state) OVER w AS before, lag(e.queue) OVER w AS queue_before
    FROM ojs.events e WHERE e.job_id IS NOT NULL AND (e.from_state IS NOT NULL OR e.to_state IS NOT NULL) WINDOW w AS (PARTITION BY e.job_id ORDER BY e.seq, e.sub)) c
WHERE c.before IS NOT NULL AND (c.from_state IS DISTINCT FROM c.before OR c.queue_before <> c.queue);

-- name: the last event of a job ends in its state
SELECT json_build_object('event', e, 'job', j) FROM (SELECT id, state, queue, finished_at, attempt, worker_id FROM ojs.jobs UNION ALL SELECT id, state, queue, finished_at, attempt, worker_id FROM ojs.jobs_done) j
JOIN LATERAL (SELECT e.type, e.seq, e.time, e.to_state, e.queue, e.from_state, e.attempt, e.worker_id FROM ojs.events e WHERE e.job_id = j.id AND (e.from_state IS NOT NULL OR e.to_state IS NOT NULL)
    ORDER BY e.seq DESC, e.sub DESC LIMIT 1) e ON true
WHERE e.to_state IS DISTINCT FROM j.state OR e.queue <> j.queue OR e.time <> j.finished_at
    OR e.type IN ('job.started', 'job.completed') AND (e.attempt <> j.attempt OR e.worker_id IS DISTINCT FROM j.worker_id);

-- name: columns of an event
SELECT to_json(e) FROM ojs.events e
WHERE e.job_id IS NOT NULL AND (e.type IN ('job.started', 'job.completed', 'job.failed', 'job.retrying', 'job.heartbeat', 'job.progress') AND COALESCE(e.attempt, 0) < 1
    OR e.type IN ('job.started', 'job.completed') AND e.duration_ms IS NULL OR e.duration_ms < 0
    OR e.to_state = 'available' AND e.priority IS NULL OR e.from_state = e.to_state
    OR e.type = 'job.state_changed' AND NOT e.internal OR e.type = 'job.admitted' AND e.ready_seq IS NULL)
    OR e.job_id IS NULL AND e.subject IS NULL;

-- name: counts of a queue
SELECT json_build_object('queue', queue, 'state', state, 'counted', sum(counted), 'jobs', sum(jobs)) FROM (
    SELECT queue, state, count AS counted, 0 AS jobs FROM ojs.queue_counts
    UNION ALL SELECT queue, state, 0, 1 FROM ojs.jobs UNION ALL SELECT queue, state, 0, 1 FROM ojs.jobs_done) c
WHERE (SELECT r.watermark = (SELECT last_value FROM ojs.event_seq) FROM ojs.event_relay r) AND NOT EXISTS (SELECT FROM ojs.event_gaps) AND EXISTS (SELECT FROM ojs.jobs UNION ALL SELECT FROM ojs.jobs_done)
GROUP BY queue, state HAVING sum(counted) <> sum(jobs);

-- name: counts of a tenant
SELECT json_build_object('tenant', tenant, 'queue', queue, 'state', state, 'counted', sum(counted), 'jobs', sum(jobs)) FROM (
    SELECT tenant, queue, state, count AS counted, 0 AS jobs FROM ojs.tenant_counts
    UNION ALL SELECT split_part(lane, '/', 1), queue, state, 0, 1 FROM ojs.jobs UNION ALL SELECT split_part(lane, '/', 1), queue, state, 0, 1 FROM ojs.jobs_done) c
WHERE tenant <> '' AND (SELECT r.watermark = (SELECT last_value FROM ojs.event_seq) FROM ojs.event_relay r) AND NOT EXISTS (SELECT FROM ojs.event_gaps) AND EXISTS (SELECT FROM ojs.jobs UNION ALL SELECT FROM ojs.jobs_done)
GROUP BY tenant, queue, state HAVING sum(counted) <> sum(jobs);

-- name: statistics of a minute
SELECT json_build_object('queue', s.queue, 'minute', s.minute, 'counted', s, 'events', e) FROM (
    SELECT queue, minute, enqueued, started, completed, failed, discarded, cancelled, duration_ms, wait_ms, (SELECT sum(d) FROM unnest(durations) d) AS bucketed FROM ojs.stats_minute) s
JOIN LATERAL (SELECT count(*) FILTER (WHERE e.type = 'job.enqueued') AS enqueued, count(*) FILTER (WHERE e.type = 'job.started') AS started,
    count(*) FILTER (WHERE e.type = 'job.completed') AS completed, count(*) FILTER (WHERE e.type = 'job.failed') AS failed,
    count(*) FILTER (WHERE e.type IN ('job.discarded', 'job.expired')) AS discarded, count(*) FILTER (WHERE e.type = 'job.cancelled') AS cancelled,
    COALESCE(sum(e.duration_ms) FILTER (WHERE e.type = 'job.completed'), 0) AS duration_ms, COALESCE(sum(e.duration_ms) FILTER (WHERE e.type = 'job.started'), 0) AS wait_ms
    FROM ojs.events e WHERE (s.queue = '' OR e.queue = s.queue) AND date_bin('1 minute', e.time, timestamptz '2000-01-01 00:00:00+00') = s.minute) e ON true
WHERE (SELECT r.watermark = (SELECT last_value FROM ojs.event_seq) AND r.pruned = 0 FROM ojs.event_relay r) AND NOT EXISTS (SELECT FROM ojs.event_gaps) AND EXISTS (SELECT FROM ojs.jobs UNION ALL SELECT FROM ojs.jobs_done)
    AND (s.enqueued, s.started, s.completed, s.failed, s.discarded, s.cancelled, s.duration_ms, s.wait_ms, COALESCE(s.bucketed, 0))
        IS DISTINCT FROM (e.enqueued, e.started, e.completed, e.failed, e.discarded, e.cancelled, e.duration_ms, e.wait_ms, e.completed);

-- name: totals of the relay
SELECT json_build_object('relay', r, 'events', e) FROM ojs.event_relay r, LATERAL (SELECT count(*) FILTER (WHERE e.type = 'job.enqueued') AS enqueued,
    count(*) FILTER (WHERE e.type = 'job.completed') AS completed, count(*) FILTER (WHERE e.type = 'job.discarded') AS discarded,
    count(*) FILTER (WHERE NOT e.internal AND (e.seq << 16 | e.sub) > r.floor_place) AS public FROM ojs.events e) e
WHERE r.watermark = (SELECT last_value FROM ojs.event_seq) AND r.pruned = 0 AND NOT EXISTS (SELECT FROM ojs.event_gaps) AND EXISTS (SELECT FROM ojs.jobs UNION ALL SELECT FROM ojs.jobs_done) AND r.watermark > 0
    AND (r.enqueued_total, r.completed_total, r.discarded_total, r.kept) IS DISTINCT FROM (e.enqueued, e.completed, e.discarded, e.public);

-- name: a queue in which jobs wait is listed
SELECT to_json(j.queue) FROM ojs.jobs j WHERE j.state NOT IN ('active', 'discarded') AND NOT EXISTS (SELECT FROM ojs.queues q WHERE q.name = j.queue);

-- name: bytes of a queue
SELECT json_build_object('queue', s.queue, 'bytes', s.bytes, 'jobs', w.bytes) FROM ojs.queue_sizes s, LATERAL (
    SELECT sum(o.bytes) AS bytes FROM ojs.job_sizes o JOIN ojs.jobs j ON j.id = o.job_id AND j.queue = o.queue
    WHERE o.queue = s.queue AND j.state IN ('available', 'scheduled', 'retryable', 'pending')) w
WHERE s.bytes < w.bytes;

-- name: a limited job has a limit
SELECT to_json(j) FROM ojs.jobs j WHERE j.limit_key IS NOT NULL AND j.state = 'available' AND NOT EXISTS (SELECT FROM ojs.limits l WHERE l.key = j.limit_key);

-- name: a limit with room is noted
SELECT json_build_object('limit', l, 'let', n.let) FROM ojs.limits l, LATERAL (
    SELECT count(*) FILTER (WHERE j.limit_seq IS NULL AND j.state IN ('available', 'active')) AS let, count(*) FILTER (WHERE j.limit_seq IS NOT NULL) AS waiting FROM ojs.jobs j WHERE j.limit_key = l.key) n
WHERE n.waiting > 0 AND l.rate IS NULL AND l.throttle_us IS NULL AND n.let < l.concurrency AND l.blocked_until IS NULL AND NOT EXISTS (SELECT FROM ojs.limit_pending p WHERE p.key = l.key);

-- name: columns of a delivery
SELECT to_json(d) FROM ojs.webhook_deliveries d
WHERE (d.status IN ('delivered', 'dead', 'cancelled')) <> (d.completed_at IS NOT NULL) OR d.completed_at IS NOT NULL AND (d.next_attempt_at IS NOT NULL OR d.leased)
    OR d.leased <> (d.status = 'delivering') OR d.attempt_count < d.round_start OR d.leased AND (d.next_attempt_at IS NULL OR d.claims = 0)
    OR d.attempt_count < (SELECT count(*) FROM ojs.webhook_attempts a WHERE a.delivery_id = d.id)
    OR d.status = 'delivered' AND d.last_status_code / 100 <> 2
    OR d.status IN ('pending', 'delivering', 'failed') AND NOT d.ordered AND d.next_attempt_at IS NULL;

-- name: a delivery waits for one of its subject only
SELECT to_json(d) FROM ojs.webhook_deliveries d
WHERE d.completed_at IS NULL AND d.next_attempt_at IS NULL AND NOT EXISTS (SELECT FROM ojs.webhook_deliveries o
    WHERE o.webhook_id = d.webhook_id AND o.subject = d.subject AND o.completed_at IS NULL AND o.next_attempt_at IS NOT NULL);

-- name: columns of a webhook
SELECT to_json(w) FROM ojs.webhooks w
WHERE (w.consecutive_failures = 0) <> (w.failing_since IS NULL) OR (w.disabled_reason IS NULL) <> (w.disabled_at IS NULL) OR w.active AND (w.disabled_at IS NOT NULL OR w.upto_place IS NOT NULL)
    OR w.from_place > w.upto_place;

-- name: columns of a worker
SELECT to_json(w) FROM ojs.workers w
WHERE (w.state = 'stale') <> (w.stale_at IS NOT NULL) OR w.reap_at IS NOT NULL AND w.dead_at IS NULL OR w.stale_at IS NOT NULL AND w.dead_at IS NULL OR w.stopped AND w.state = 'running';

-- name: counts of a workflow
SELECT json_build_object('workflow', f, 'steps', s) FROM ojs.workflows f, LATERAL (
    SELECT count(*) FILTER (WHERE s.kind <> 'callback') AS total, count(*) FILTER (WHERE s.kind <> 'callback' AND s.state = 'completed') AS completed,
        count(*) FILTER (WHERE s.kind <> 'callback' AND s.state IN ('waiting', 'pending')) AS open, count(*) FILTER (WHERE s.kind = 'callback' AND s.state = 'pending') AS callbacks_open
    FROM ojs.workflow_steps s WHERE s.root_id = f.root_id AND s.flow = f.flow) s
WHERE (f.total, f.completed) <> (s.total, s.completed) OR f.completed + f.failed + f.open > f.total OR (f.state = 'running') <> (f.ended_at IS NULL)
    OR f.state = 'running' AND f.cancelling IS NULL AND (f.open, f.callbacks_open) <> (s.open, s.callbacks_open) OR f.state = 'completed' AND f.open + f.callbacks_open > 0;

-- name: a step and its job
SELECT json_build_object('step', s, 'job', j) FROM ojs.workflow_steps s JOIN (SELECT id, state, type, queue, workflow_id, replay_count FROM ojs.jobs UNION ALL SELECT id, state, type, queue, workflow_id, replay_count FROM ojs.jobs_done) j ON j.id = s.job_id
WHERE NOT EXISTS (SELECT FROM ojs.workflow_pending p WHERE p.root_id = s.root_id) AND NOT s.deduplicated AND j.replay_count = 0
    AND (j.type <> s.type OR j.workflow_id IS DISTINCT FROM s.root_id OR (s.state = 'pending') <> (j.state NOT IN ('completed', 'cancelled', 'discarded')) OR (s.state = 'completed') <> (j.state = 'completed'));

-- name: last run of a cron
SELECT to_json(c) FROM ojs.crons c
WHERE c.next_run_at <= c.last_run_at OR c.run_count < 0 OR c.run_count > 0 AND c.last_run_at IS NULL OR c.enabled <> (c.next_run_at IS NOT NULL);

-- name: reservations of a pool
SELECT to_json(h) FROM ojs.pool_holds h WHERE NOT EXISTS (SELECT FROM ojs.pools p WHERE p.name = h.pool);

-- name: columns of a step
SELECT to_json(s) FROM ojs.workflow_steps s JOIN ojs.workflows f ON f.root_id = s.root_id AND f.flow = s.flow
WHERE (s.state IN ('completed', 'failed', 'cancelled')) <> (s.ended_at IS NOT NULL) OR s.kind <> 'workflow' AND s.state = 'pending' AND s.job_id IS NULL
    OR s.state = 'waiting' AND s.job_id IS NOT NULL OR (s.kind = 'workflow') <> (s.child_flow IS NOT NULL)
    OR (s.kind = 'callback') <> (s.callback IS NOT NULL) OR s.state = 'completed' AND s.error IS NOT NULL OR s.kind <> 'workflow' AND s.state <> 'completed' AND s.result IS NOT NULL
    OR f.state = 'running' AND s.state = 'waiting' AND s.kind <> 'callback' AND s.waits_on <> (SELECT count(*) FROM ojs.workflow_steps d
        WHERE d.root_id = s.root_id AND d.flow = s.flow AND d.index = ANY(s.depends_on) AND d.state <> 'completed');

-- name: jobs of a tree
SELECT json_build_object('root', f, 'steps', s) FROM ojs.workflows f, LATERAL (SELECT count(*) AS jobs, count(*) FILTER (WHERE s.state = 'completed') AS completed
    FROM ojs.workflow_steps s WHERE s.root_id = f.root_id AND s.flow BETWEEN f.flow AND f.last_flow AND s.kind = 'job') s
WHERE (f.job_count, f.completed_count) <> (s.jobs, s.completed) OR f.completed_count + f.failed_count > f.job_count;

-- name: columns of a queue
SELECT to_json(q) FROM ojs.queues q
WHERE (q.status = 'paused') <> (q.paused_at IS NOT NULL) OR q.config IS NULL AND q.settings IS NOT NULL OR q.updated_at < q.created_at;

-- name: secrets of a webhook
SELECT to_json(w.id) FROM ojs.webhooks w WHERE (SELECT count(*) FROM ojs.webhook_secrets s WHERE s.webhook_id = w.id AND s.expires_at IS NULL) <> 1
UNION ALL
SELECT to_json(s.id) FROM ojs.webhook_secrets s WHERE NOT EXISTS (SELECT FROM ojs.webhooks w WHERE w.id = s.webhook_id);

-- name: runs of a cron
SELECT to_json(r) FROM ojs.cron_runs r
WHERE (r.outcome = 'skipped') <> (r.reason IS NOT NULL) OR (r.outcome = 'skipped') <> (r.job_id IS NULL) OR (r.kind = 'manual') <> (r.outcome = 'manual')
    OR NOT EXISTS (SELECT FROM ojs.crons c WHERE c.id = r.cron_id);

-- name: source of an event
SELECT to_json(e) FROM ojs.events e
WHERE e.source !~ '^(api|scheduler|cron|workers/.+)(/.+)?$' OR e.type IN ('job.started', 'job.completed') AND e.worker_id IS NOT NULL AND e.source !~ '^workers/';

-- name: what a limit permits
SELECT to_json(l) FROM ojs.limits l
WHERE l.concurrency IS DISTINCT FROM COALESCE(l.override ->> 'concurrency', l.policy ->> 'concurrency')::bigint
    OR l.rate IS DISTINCT FROM (COALESCE(l.override -> 'rate', l.policy -> 'rate') ->> 'limit')::bigint
    OR l.rate_us IS DISTINCT FROM (COALESCE(l.override -> 'rate', l.policy -> 'rate') ->> 'us')::bigint
    OR l.throttle_us IS DISTINCT FROM (COALESCE(l.override -> 'throttle', l.policy -> 'throttle') ->> 'us')::bigint / (COALESCE(l.override -> 'throttle', l.policy -> 'throttle') ->> 'limit')::bigint;
