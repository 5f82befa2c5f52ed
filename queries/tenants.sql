-- To which tenant something belongs. It is fixed when a row is inserted, so a look before a change is enough to confine it.

-- name: TenantListJobs :many
-- The tenants of live jobs.
SELECT j.id, split_part(j.lane, '/', 1)::text AS tenant FROM ojs.jobs j WHERE j.id = ANY(@ids::uuid[]);

-- name: TenantListDone :many
-- The tenants of finished jobs.
SELECT d.id, split_part(d.lane, '/', 1)::text AS tenant FROM ojs.jobs_done d WHERE d.id = ANY(@ids::uuid[]);

-- name: TenantHasWorkflow :one
SELECT EXISTS (SELECT FROM ojs.workflows w WHERE w.id = @id AND w.tenant = @tenant::text)::boolean AS found;

-- name: TenantHasWebhook :one
SELECT EXISTS (SELECT FROM ojs.webhooks w WHERE w.id = @id AND w.tenant = @tenant::text)::boolean AS found;

-- name: TenantHasDelivery :one
SELECT EXISTS (SELECT FROM ojs.webhook_deliveries d JOIN ojs.webhooks w ON w.id = d.webhook_id
    WHERE d.id = @id AND w.tenant = @tenant::text)::boolean AS found;

-- name: TenantList :many
-- Tenants that have had jobs, by name behind one, with their jobs per state as of the last published event. Skips from tenant to
-- tenant, as far as upto_rows.
WITH RECURSIVE name AS (
    (SELECT c.tenant, 1 AS n FROM ojs.tenant_counts c WHERE c.tenant > @after::text ORDER BY c.tenant LIMIT 1)
    UNION ALL
    SELECT x.tenant, p.n + 1 FROM name p CROSS JOIN LATERAL (
        SELECT c.tenant FROM ojs.tenant_counts c WHERE c.tenant > p.tenant ORDER BY c.tenant LIMIT 1) x
    WHERE p.n < @upto_rows::integer
)
SELECT p.tenant::text AS tenant, COALESCE(s.state, '')::text AS state, COALESCE(s.count, 0)::bigint AS count
FROM (SELECT o.tenant FROM name o ORDER BY o.tenant OFFSET @skip_rows::integer) p LEFT JOIN LATERAL (
    SELECT c.state, sum(c.count)::bigint AS count FROM ojs.tenant_counts c WHERE c.tenant = p.tenant GROUP BY c.state HAVING sum(c.count) <> 0
) s ON true
ORDER BY p.tenant;

-- name: TenantCount :one
-- The number of tenants that have had jobs, exact up to max_rows.
WITH RECURSIVE name AS (
    (SELECT c.tenant, 1 AS n FROM ojs.tenant_counts c ORDER BY c.tenant LIMIT 1)
    UNION ALL
    SELECT x.tenant, p.n + 1 FROM name p CROSS JOIN LATERAL (
        SELECT c.tenant FROM ojs.tenant_counts c WHERE c.tenant > p.tenant ORDER BY c.tenant LIMIT 1) x
    WHERE p.n < @max_rows::integer
)
SELECT count(*) FROM name;

-- name: TenantCountList :many
-- Jobs of a tenant per queue and state, exact in the snapshot: the stored counts, which include published events, plus the
-- unpublished events. A queue of '' means all.
SELECT c.queue::text AS queue, c.state::text AS state, sum(c.n)::bigint AS count FROM (
    SELECT t.queue, t.state, t.count AS n FROM ojs.tenant_counts t WHERE t.tenant = @tenant::text AND (@queue::text = '' OR t.queue = @queue::text)
    UNION ALL
    SELECT u.queue, u.state, u.n FROM ojs.event_uncounted(NULLIF(@queue::text, '')) u
    WHERE u.lane <> '' AND split_part(u.lane, '/', 1) = @tenant::text
) c GROUP BY 1, 2 HAVING sum(c.n) <> 0 ORDER BY 1;

-- name: TenantQueueList :many
-- A page of the queues in which a tenant has had jobs, by name behind one, as of the last published event. Skips from queue to queue, as far
-- as upto_rows.
WITH RECURSIVE name AS (
    (SELECT c.queue, 1 AS n FROM ojs.tenant_counts c WHERE c.tenant = @tenant::text AND c.queue > @after::text ORDER BY c.tenant, c.queue LIMIT 1)
    UNION ALL
    SELECT x.queue, p.n + 1 FROM name p CROSS JOIN LATERAL (
        SELECT c.queue FROM ojs.tenant_counts c WHERE c.tenant = @tenant::text AND c.queue > p.queue ORDER BY c.tenant, c.queue LIMIT 1) x
    WHERE p.n < @upto_rows::integer
)
SELECT p.queue::text AS name, COALESCE(q.status, 'active')::text AS status, q.created_at,
    COALESCE((SELECT c.count FROM ojs.tenant_counts c WHERE c.tenant = @tenant::text AND c.queue = p.queue AND c.state = 'available'), 0)::bigint AS available
FROM (SELECT o.queue FROM name o ORDER BY o.queue OFFSET @skip_rows::integer) p
    LEFT JOIN LATERAL (SELECT o.status, o.created_at FROM ojs.queues o WHERE o.name = p.queue OFFSET 0) q ON true
ORDER BY p.queue;

-- name: TenantHasQueue :one
-- Whether a tenant has ever had a job in a queue, as of the last published event.
SELECT EXISTS (SELECT FROM ojs.tenant_counts c WHERE c.tenant = @tenant::text AND c.queue = @queue::text)::boolean AS found;

-- name: TenantQueueCount :one
-- The number of queues in which a tenant has had jobs, exact up to max_rows.
WITH RECURSIVE name AS (
    (SELECT c.queue, 1 AS n FROM ojs.tenant_counts c WHERE c.tenant = @tenant::text ORDER BY c.tenant, c.queue LIMIT 1)
    UNION ALL
    SELECT x.queue, p.n + 1 FROM name p CROSS JOIN LATERAL (
        SELECT c.queue FROM ojs.tenant_counts c WHERE c.tenant = @tenant::text AND c.queue > p.queue ORDER BY c.tenant, c.queue LIMIT 1) x
    WHERE p.n < @max_rows::integer
)
SELECT count(*) FROM name;

-- name: TenantExists :one
-- Whether a tenant has ever had a job.
SELECT EXISTS (SELECT FROM ojs.tenant_counts c WHERE c.tenant = @tenant::text)::boolean AS found;
