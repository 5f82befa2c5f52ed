-- The maintenance switch. It is on while there is a row, until its ends_at.

-- name: MaintenanceGet :one
-- The switch, and the clock of the database.
SELECT c.now::timestamptz AS now, m.started_at, m.ends_at, m.estimated_end, COALESCE(m.reason, '')::text AS reason, COALESCE(m.started_by, '')::text AS started_by
FROM (SELECT clock_timestamp() AS now) c LEFT JOIN ojs.maintenance m ON true;

-- name: MaintenanceStart :one
-- Turns the switch on, or changes how long it stays on, and notifies all nodes. Whoever has turned it on, and when, stays.
INSERT INTO ojs.maintenance AS m (started_at, ends_at, estimated_end, reason, started_by)
SELECT now(), now() + sqlc.narg('lasts')::interval, now() + COALESCE(sqlc.narg('estimate')::interval, sqlc.narg('lasts')::interval), @reason::text, @started_by::text
ON CONFLICT (only_row) DO UPDATE SET started_at = CASE WHEN m.ends_at <= now() THEN EXCLUDED.started_at ELSE m.started_at END,
    started_by = CASE WHEN m.ends_at <= now() THEN EXCLUDED.started_by ELSE m.started_by END,
    ends_at = EXCLUDED.ends_at, estimated_end = EXCLUDED.estimated_end, reason = EXCLUDED.reason
RETURNING m.started_at, m.ends_at, m.estimated_end, m.reason, m.started_by, clock_timestamp()::timestamptz AS now,
    pg_notify('ojs_maintenance', 'on')::text AS notified;

-- name: MaintenanceEnd :many
-- Turns the switch off and notifies all nodes; no row if it was off.
DELETE FROM ojs.maintenance m RETURNING m.started_at, pg_notify('ojs_maintenance', 'off')::text AS notified;
