-- +goose Up
-- What metrics need and cannot derive without counting jobs.

-- How many jobs the whole deployment has enqueued, completed and discarded, as far as it is published: stats_minute forgets.
-- Columns of the row that every pass of the relay updates anyway cost no further row versions.
-- The sums are made first: the relays of running nodes wait for the lock of ALTER TABLE.
SELECT set_config('ojs.totals', (
    SELECT json_build_array(COALESCE(sum(m.enqueued), 0), COALESCE(sum(m.completed), 0), COALESCE(sum(m.discarded), 0))::text FROM ojs.stats_minute m), true);

ALTER TABLE ojs.event_relay
    ADD COLUMN enqueued_total bigint NOT NULL DEFAULT 0,
    ADD COLUMN completed_total bigint NOT NULL DEFAULT 0,
    ADD COLUMN discarded_total bigint NOT NULL DEFAULT 0;

UPDATE ojs.event_relay SET enqueued_total = (current_setting('ojs.totals')::json->>0)::bigint,
    completed_total = (current_setting('ojs.totals')::json->>1)::bigint, discarded_total = (current_setting('ojs.totals')::json->>2)::bigint;

-- Who keeps the oldest dead rows of this database from being cleaned, if anybody does. Other sessions are hidden from a role
-- without pg_read_all_stats. A transaction that has written holds them up without any snapshot; autovacuum has one that does not.
-- +goose StatementBegin
CREATE FUNCTION ojs.xmin_holder() RETURNS TABLE (kind text, name text, pid integer, seconds double precision, transactions bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT h.* FROM (
        SELECT CASE WHEN a.backend_type = 'walsender' THEN 'standby' ELSE 'session' END, COALESCE(a.application_name, ''), a.pid,
            COALESCE(date_part('epoch', clock_timestamp() - a.xact_start), 0), GREATEST(age(a.backend_xmin), age(a.backend_xid))::bigint
        FROM pg_stat_activity a
        WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid() AND (a.datname = current_database() OR a.backend_type = 'walsender')
            AND NOT (a.backend_type = 'autovacuum worker' AND a.query LIKE 'autovacuum: VACUUM %')
        UNION ALL
        SELECT 'replication_slot', s.slot_name::text, COALESCE(s.active_pid, 0), 0, age(s.xmin)::bigint
        FROM pg_replication_slots s WHERE s.xmin IS NOT NULL
        UNION ALL
        SELECT 'prepared_transaction', p.gid, 0, date_part('epoch', clock_timestamp() - p.prepared), age(p.transaction)::bigint
        FROM pg_prepared_xacts p WHERE p.database = current_database()
    ) h (kind, name, pid, seconds, transactions)
    ORDER BY h.transactions DESC, h.seconds DESC LIMIT 1
$$;
-- +goose StatementEnd

-- Tables with their partitions and indexes, as the statistics know them. The size of each needs a moment's lock on it.
-- +goose StatementBegin
CREATE FUNCTION ojs.table_stats(names text[]) RETURNS TABLE (name text, live bigint, dead bigint, bytes bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT COALESCE(parent.relname, c.relname)::text, COALESCE(sum(pg_stat_get_live_tuples(c.oid)), 0)::bigint,
        COALESCE(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint, COALESCE(sum(pg_total_relation_size(c.oid)), 0)::bigint
    FROM pg_class c
        LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
        LEFT JOIN pg_class parent ON parent.oid = i.inhparent
    WHERE c.relnamespace = to_regnamespace('ojs') AND c.relkind = 'r' AND COALESCE(parent.relname, c.relname) = ANY(names)
    GROUP BY 1
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION ojs.xmin_holder(), ojs.table_stats(text[]) FROM PUBLIC;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 9 $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION IF EXISTS ojs.table_stats(text[]);
DROP FUNCTION IF EXISTS ojs.xmin_holder();
ALTER TABLE ojs.event_relay DROP COLUMN IF EXISTS enqueued_total, DROP COLUMN IF EXISTS completed_total, DROP COLUMN IF EXISTS discarded_total;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 8 $$;
-- +goose StatementEnd
