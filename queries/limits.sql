-- Statements about rate and concurrency limits by key. What lets jobs start stands in the functions of migration 00007.

-- name: LimitAdmit :many
-- Gives jobs of the partitions their place in the fetch order, as many as may start. Rows without a queue are those of the partitions.
SELECT a.key::text AS key, COALESCE(a.more, false)::boolean AS more, COALESCE(a.wait_us, -1)::bigint AS wait_us, COALESCE(a.queue, '')::text AS queue,
    COALESCE(a.lane, '')::text AS lane, COALESCE(a.priority, 0)::smallint AS priority, COALESCE(a.ready_seq, 0)::bigint AS ready_seq
FROM ojs.limit_admit(@keys::text[], @node::integer) a;

-- name: LimitListDue :many
-- The partitions whose limit may allow more starts since a node stopped before it had looked, or since now; each once for each reason.
-- tableoid as in LimitNextDue.
SELECT p.key FROM ojs.limit_pending p WHERE p.due_at <= now() AND p.tableoid <> 0 ORDER BY p.due_at LIMIT @max_rows;

-- name: LimitNextDue :one
-- How long until a partition is due, in microseconds, below 0 if none is; and whether any job waits for a limit. tableoid keeps the planner from
-- reading the whole primary key, which has all that is read, and sorting: it did so where the table was empty and limit_pending_due had more pages.
SELECT COALESCE((SELECT GREATEST(0, date_part('epoch', p.due_at - clock_timestamp()) * 1000000) FROM ojs.limit_pending p WHERE p.tableoid <> 0 ORDER BY p.due_at LIMIT 1), -1)::bigint AS wait_us,
    EXISTS (SELECT FROM ojs.jobs j WHERE j.limit_seq IS NOT NULL) AS waiting;

-- name: LimitListBlockedQueues :many
-- Those of the queues in which jobs wait for a limit. EXISTS could become a join, which reads the waiting jobs of all queues.
SELECT q.name::text AS name FROM (SELECT unnest(@queues::text[]) AS name) q
WHERE (SELECT true FROM ojs.jobs j WHERE j.queue = q.name AND COALESCE(j.limit_seq, 0) > 0 LIMIT 1);

-- name: LimitHandleBlocked :many
-- What a fetch does about jobs of its queues, and of its tenant unless that is '', that wait for a limit.
SELECT m.outcome::text AS outcome, m.id::uuid AS id, m.type::text AS type, m.queue::text AS queue, m.lane::text AS lane, m.priority::smallint AS priority,
    COALESCE(m.ready_seq, 0)::bigint AS ready_seq, COALESCE(m.attempt, 0)::integer AS attempt,
    COALESCE(m.workflow_id, '00000000-0000-0000-0000-000000000000')::uuid AS workflow_id, COALESCE(m.cron, '')::text AS cron, COALESCE(m.due_us, 0)::bigint AS due_us, m.now::timestamptz AS now,
    m.limit_key::text AS limit_key
FROM ojs.limit_handle_blocked(@queues::text[], @tenant::text, @node::integer) m;

-- name: LimitQueueAllowances :many
-- Locks the partitions of limited queues, for the rest of the transaction, and returns how many jobs of each may start. queues are sorted.
-- wait_us is below 0 if only the end of a job lets another one start, for which the function has 0.
SELECT r.queue::text AS queue, COALESCE(r.allowance, 0)::bigint AS allowance, COALESCE(NULLIF(r.wait_us, 0), -1)::bigint AS wait_us FROM ojs.limit_queue_allowances(@queues::text[], @policies::json[]) r;

-- name: LimitQueueStarted :exec
-- Records starts of partitions with rate or throttle, with one element for each job. The partitions are locked by LimitQueueAllowances.
INSERT INTO ojs.limit_starts (key, at)
SELECT l.key, r.at FROM (SELECT unnest(@queues::text[]) AS queue, unnest(@started_at::timestamptz[]) AS at) r
    CROSS JOIN LATERAL (SELECT o.key FROM ojs.limits o WHERE o.key = ANY(ARRAY['queue:' || r.queue]) AND COALESCE(o.rate_us, o.throttle_us) IS NOT NULL) l;

-- name: LimitQueueHandleBlocked :many
-- What a claim does about jobs of a limited queue whose allowance is used up, with the same columns as LimitHandleBlocked.
SELECT m.outcome::text AS outcome, m.id::uuid AS id, m.type::text AS type, @queue::text AS queue, m.lane::text AS lane, 0::smallint AS priority, 0::bigint AS ready_seq,
    COALESCE(m.attempt, 0)::integer AS attempt, COALESCE(m.workflow_id, '00000000-0000-0000-0000-000000000000')::uuid AS workflow_id, COALESCE(m.cron, '')::text AS cron,
    COALESCE(m.due_us, 0)::bigint AS due_us, m.now::timestamptz AS now, ('queue:' || @queue::text)::text AS limit_key
FROM ojs.limit_queue_handle_blocked(@queue::text, @effect::text, @lanes::text[], @priorities::smallint[], @lows::bigint[], @max_jobs::bigint, @node::integer) m;

-- name: LimitQueueLock :many
-- Locks a queue and returns its configuration.
SELECT q.config FROM ojs.queues q WHERE q.name = @name FOR NO KEY UPDATE;

-- name: LimitQueueStore :exec
-- Stores the configuration of a queue, which the caller has locked.
UPDATE ojs.queues q SET config = @config, settings = @settings, updated_at = clock_timestamp() WHERE q.name = @name;

-- name: LimitGet :many
-- A partition as clients see it; at most one row.
SELECT l.key, l.policy, (CASE WHEN l.override_until IS NULL OR l.override_until > clock_timestamp() THEN l.override END)::json AS override, l.override_until,
    (CASE WHEN l.blocked_until > clock_timestamp() THEN l.blocked_until END)::timestamptz AS blocked_until,
    COALESCE(v.active, 0)::bigint AS active, COALESCE(v.waiting, 0)::bigint AS waiting, COALESCE(v.started, 0)::bigint AS started, v.reset_at, v.next_at
FROM ojs.limits l CROSS JOIN LATERAL ojs.limit_view(l) v WHERE l.key = @key;

-- name: LimitListPage :many
-- Partitions by key, between two keys. Those of queues are listed if their queue has a limit.
SELECT l.key, l.policy, (CASE WHEN l.override_until IS NULL OR l.override_until > clock_timestamp() THEN l.override END)::json AS override, l.override_until,
    (CASE WHEN l.blocked_until > clock_timestamp() THEN l.blocked_until END)::timestamptz AS blocked_until,
    COALESCE(v.active, 0)::bigint AS active, COALESCE(v.waiting, 0)::bigint AS waiting, COALESCE(v.started, 0)::bigint AS started, v.reset_at, v.next_at
FROM (
    SELECT o.* FROM ojs.limits o WHERE o.key > @after::text AND o.key < @before::text AND (NOT starts_with(o.key, 'queue:') OR o.key = ANY(@queue_keys::text[]))
    ORDER BY o.key OFFSET @skip_rows::bigint LIMIT @page_rows::bigint
) l CROSS JOIN LATERAL ojs.limit_view(l::ojs.limits) v
ORDER BY l.key;

-- name: LimitCount :one
-- The number of partitions between two keys, up to max_rows.
SELECT count(*) FROM (
    SELECT FROM ojs.limits o WHERE o.key > @after::text AND o.key < @before::text AND (NOT starts_with(o.key, 'queue:') OR o.key = ANY(@queue_keys::text[])) ORDER BY o.key LIMIT @max_rows::bigint
) n;

-- name: LimitSet :exec
-- Stores policies that are not the stored ones.
SELECT ojs.limit_set(r.key, r.policy) FROM (SELECT unnest(@keys::text[]) AS key, unnest(@policies::json[]) AS policy ORDER BY 1) r;

-- name: LimitPrune :one
-- Deletes partitions that nothing uses any more.
SELECT p.deleted::bigint AS deleted, p.more::boolean AS more FROM ojs.limit_prune(@max_rows::bigint) p;

-- name: LimitOverride :exec
-- Replaces parts of the policy of a partition, which is created if it does not exist; no override takes the old one away.
SELECT ojs.limit_override(@key::text, sqlc.narg('override')::json, sqlc.narg('until')::timestamptz);
