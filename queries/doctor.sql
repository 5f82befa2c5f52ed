-- name: DoctorCounts :many
-- Compares the stored counts with the rows of the tables, in the snapshot of the caller. Returns only differences.
WITH counted AS (
    SELECT c.queue, c.state, sum(c.n)::bigint AS n FROM (
        SELECT q.queue, q.state, q.count AS n FROM ojs.queue_counts q
        UNION ALL
        SELECT u.queue, u.state, u.n FROM ojs.event_uncounted() u
    ) c GROUP BY c.queue, c.state
), stored AS (
    SELECT t.queue, t.state, count(*) AS n FROM (
        SELECT j.queue, j.state FROM ojs.jobs j UNION ALL SELECT d.queue, d.state FROM ojs.jobs_done d
    ) t GROUP BY t.queue, t.state
)
SELECT COALESCE(k.queue, h.queue)::text AS queue, COALESCE(k.state, h.state)::text AS state,
    COALESCE(k.n, 0)::bigint AS counted, COALESCE(h.n, 0)::bigint AS stored
FROM counted k FULL JOIN stored h ON h.queue = k.queue AND h.state = k.state
WHERE COALESCE(k.n, 0) <> COALESCE(h.n, 0)
ORDER BY 1, 2;

-- name: DoctorRelay :one
-- The lag of publication, and the age of the oldest kept event.
SELECT r.watermark, (SELECT count(*) FROM ojs.events e WHERE e.seq > r.watermark) AS unpublished,
    (SELECT count(*) FROM ojs.event_gaps) AS gaps,
    COALESCE((SELECT date_part('epoch', clock_timestamp() - min(e.time)) FROM ojs.events e WHERE e.seq > r.watermark), 0)::double precision AS lag_seconds,
    COALESCE((SELECT date_part('epoch', clock_timestamp() - e.time) FROM ojs.events e WHERE (e.seq << 16 | e.sub) > r.floor_place AND e.seq >= r.floor_place >> 16 ORDER BY e.seq, e.sub LIMIT 1), 0)::double precision AS kept_seconds
FROM ojs.event_relay r;

-- name: DoctorXmin :many
-- The sessions, slots and prepared transactions that keep dead rows from being cleaned.
SELECT h.holder::text AS holder, h.seconds::double precision AS seconds FROM ojs.xmin_holders() h ORDER BY 2 DESC LIMIT 10;

-- name: DoctorRelayHolders :many
-- The sessions that keep the relays of all nodes from publishing.
SELECT h.name::text AS name, h.pid::integer AS pid, h.state::text AS state, h.seconds::double precision AS seconds FROM ojs.relay_holders() h;

-- name: DoctorTables :many
-- Live and dead rows and sizes of the tables that are updated all the time.
SELECT t.name::text AS name, t.live::bigint AS live, t.dead::bigint AS dead, t.bytes::bigint AS bytes
FROM ojs.table_stats('{jobs,queue_counts,event_relay,event_gaps,stats_minute,workers,workflows,workflow_steps,workflow_pending,limits,limit_starts,limit_pending}') t ORDER BY 1;

-- name: DoctorRows :one
-- Jobs that break a rule: overdue, in both tables, or available without a place in the fetch order; and changes of jobs that their workflow
-- has not followed, or after which nobody has looked whether others of the same rate limit may start. Of the overdue ones, waiting are those
-- that maintenance keeps where they are (see JobPromoteDue): no deadline of theirs is over.
SELECT count(*) AS overdue, count(*) FILTER (WHERE o.state IN ('scheduled', 'retryable')
        AND NOT COALESCE(LEAST(o.expires_at, o.total_due_at, o.ttl_due_at) < now() - interval '10 seconds', false)) AS waiting,
    (SELECT count(*) FROM ojs.jobs j JOIN ojs.jobs_done d ON d.id = j.id) AS twice,
    (SELECT count(*) FROM ojs.jobs j WHERE (j.state = 'available') <> (j.ready_seq IS NOT NULL OR j.limit_seq IS NOT NULL)
        AND j.state <> 'active' AND NOT (j.state = 'available' AND j.cron_serial)) AS unordered,
    (SELECT count(*) FROM ojs.workflow_pending p WHERE p.at < clock_timestamp() - interval '10 seconds') AS unfollowed,
    (SELECT count(*) FROM ojs.limit_pending p WHERE p.due_at < clock_timestamp() - interval '10 seconds') AS unadmitted
FROM ojs.jobs o WHERE o.due_at < now() - interval '10 seconds';

-- name: DoctorRights :one
-- Whether the role sees the transactions of other roles, and how many of their sessions there are.
SELECT r.role::text AS role, r.sees_all::boolean AS sees_all, r.hidden::bigint AS hidden FROM ojs.session_rights() r;

-- name: DoctorConnections :one
-- Connections that are in use, of the server, the database and the role, with their limits, and how many nodes of ojsd there are.
SELECT c.max_server::bigint AS max_server, c.max_database::bigint AS max_database, c.max_role::bigint AS max_role,
    c.server::bigint AS server, c.database::bigint AS database, c.role::bigint AS role, c.ojsd::bigint AS ojsd, c.nodes::bigint AS nodes
FROM ojs.connection_use() c;

-- name: DoctorSlots :many
-- The replication slots that keep WAL, with how much, and how much PostgreSQL normally keeps.
SELECT s.name::text AS name, s.kind::text AS kind, s.active::boolean AS active, s.wal_status::text AS wal_status, s.kept_bytes::bigint AS kept_bytes,
    s.safe_bytes::bigint AS safe_bytes, s.normal_bytes::bigint AS normal_bytes
FROM ojs.slot_wal() s ORDER BY 5 DESC LIMIT 10;

-- name: DoctorWraparound :many
-- The ages of the oldest ids, of transactions and of multixacts, with those at which autovacuum freezes.
SELECT w.kind::text AS kind, w.age::bigint AS age, w.freeze_age::bigint AS freeze_age FROM ojs.wraparound_ages() w;

-- name: DoctorRetention :many
-- For how long the oldest partition of the event log and the oldest day of finished jobs should have been gone.
SELECT b.data::text AS data, b.seconds::double precision AS seconds, b.part::text AS part FROM ojs.retention_behind() b;
