-- name: QueueConfigVersion :one
-- The number of the latest change of a queue.
SELECT COALESCE((SELECT v.version FROM ojs.queue_version v WHERE v.one), 0)::bigint AS version;

-- name: QueueConfigList :many
-- All queues with a configuration or another status than active, with the number of the latest change, in one snapshot. One row
-- without a name if there are none.
SELECT COALESCE(n.version, 0)::bigint AS version, COALESCE(q.name, '')::text AS name, COALESCE(q.status, '')::text AS status, q.paused_at, q.config,
    (q.deletion IS NOT NULL)::boolean AS deleting
FROM (SELECT (SELECT v.version FROM ojs.queue_version v WHERE v.one) AS version) n LEFT JOIN LATERAL (
    SELECT s.name, s.status, s.paused_at, s.config, s.deletion FROM ojs.queues s
    WHERE s.status <> 'active' OR s.config IS NOT NULL ORDER BY s.name LIMIT @max_rows) q ON true;
