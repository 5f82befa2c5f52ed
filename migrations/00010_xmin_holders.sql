-- +goose Up
-- Who keeps dead rows of this database from being cleaned, oldest transaction first: one list for `ojsd doctor` and for
-- metrics. A transaction that has written holds them up without any snapshot; autovacuum has one that does not. A slot's
-- catalog_xmin holds up the catalogs only, so it comes last. Other sessions are hidden from a role without pg_read_all_stats.
-- +goose StatementBegin
CREATE FUNCTION ojs.xmin_list() RETURNS TABLE (kind text, name text, pid integer, state text, seconds double precision, transactions bigint, catalog boolean)
LANGUAGE sql VOLATILE AS $$
    SELECT h.* FROM (
        SELECT CASE WHEN a.backend_type = 'walsender' THEN 'standby' ELSE 'session' END, COALESCE(a.application_name, ''), a.pid, a.state,
            COALESCE(date_part('epoch', clock_timestamp() - a.xact_start), 0), GREATEST(age(a.backend_xmin), age(a.backend_xid))::bigint, false
        FROM pg_stat_activity a
        WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid() AND (a.datname = current_database() OR a.backend_type = 'walsender')
            AND NOT (a.backend_type = 'autovacuum worker' AND a.query LIKE 'autovacuum: VACUUM %')
        UNION ALL
        SELECT 'replication_slot', s.slot_name::text, COALESCE(s.active_pid, 0), CASE WHEN s.active THEN 'active' ELSE 'inactive' END, 0,
            age(COALESCE(s.xmin, s.catalog_xmin))::bigint, s.xmin IS NULL
        FROM pg_replication_slots s WHERE s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL
        UNION ALL
        SELECT 'prepared_transaction', p.gid, 0, 'prepared', date_part('epoch', clock_timestamp() - p.prepared), age(p.transaction)::bigint, false
        FROM pg_prepared_xacts p WHERE p.database = current_database()
    ) h (kind, name, pid, state, seconds, transactions, catalog)
    ORDER BY h.catalog, h.transactions DESC, h.seconds DESC
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION ojs.xmin_list() FROM PUBLIC;

-- Metrics: the oldest one.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.xmin_holder() RETURNS TABLE (kind text, name text, pid integer, seconds double precision, transactions bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT l.kind, l.name, l.pid, l.seconds, l.transactions FROM ojs.xmin_list() l WHERE NOT l.catalog LIMIT 1
$$;
-- +goose StatementEnd

-- Doctor: those of more than a minute, and slots that nobody reads. Standbys and slots in use have no age to judge by.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.xmin_holders() RETURNS TABLE (holder text, seconds double precision)
LANGUAGE sql VOLATILE AS $$
    SELECT CASE l.kind WHEN 'replication_slot' THEN 'replication slot ' || l.name
            WHEN 'prepared_transaction' THEN 'prepared transaction ' || l.name
            ELSE l.kind || ' ' || l.pid || COALESCE(' (' || NULLIF(l.name, '') || ')', '') || ', ' || COALESCE(l.state, 'unknown state') END,
        l.seconds
    FROM ojs.xmin_list() l
    WHERE CASE l.kind WHEN 'replication_slot' THEN l.state = 'inactive' ELSE l.seconds > 60 END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 10 $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.xmin_holders() RETURNS TABLE (holder text, seconds double precision)
LANGUAGE sql VOLATILE AS $$
    SELECT 'session ' || a.pid || COALESCE(' (' || NULLIF(a.application_name, '') || ')', '') || ', ' || COALESCE(a.state, 'unknown state'),
        COALESCE(date_part('epoch', clock_timestamp() - a.xact_start), 0)
    FROM pg_stat_activity a
    WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid() AND a.xact_start < clock_timestamp() - interval '1 minute'
    UNION ALL
    SELECT 'replication slot ' || s.slot_name, 0 FROM pg_replication_slots s
    WHERE NOT s.active AND (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
    UNION ALL
    SELECT 'prepared transaction ' || p.gid, date_part('epoch', clock_timestamp() - p.prepared) FROM pg_prepared_xacts p
    WHERE p.prepared < clock_timestamp() - interval '1 minute'
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.xmin_holder() RETURNS TABLE (kind text, name text, pid integer, seconds double precision, transactions bigint)
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
DROP FUNCTION ojs.xmin_list();
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 9 $$;
-- +goose StatementEnd
