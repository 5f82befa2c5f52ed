-- +goose Up
-- Retention under transactions that overlap. DROP of a partition needs ACCESS EXCLUSIVE on its parent, and every transaction that has called
-- ojs.enqueue has ROW EXCLUSIVE on ojs.events until it ends. With ten clients in transactions of 200 ms there is hardly a time at which
-- nobody has it: 1 of 200 tries of 50 ms succeeded, and whoever waits longer makes all of them wait. ALTER TABLE … DETACH PARTITION … CONCURRENTLY
-- asks for no lock that they have; it waits for the transactions that were open when it began, while others begin. It cannot run in a
-- function, so the functions here say what is due and prepare it, and a node runs the statement that they return.

-- What retention has stored of the partitioned tables. A partition is leaving from when a node has decided on it until it is dropped, so
-- that any node goes on where another has stopped.
CREATE TABLE ojs.retention (
    parent  text PRIMARY KEY,           -- events, jobs_done
    keep    interval,                   -- of jobs_done, as the node that looked last has it; NULL: for ever
    leaving text                        -- the partition that is being detached; NULL: none
);
INSERT INTO ojs.retention (parent) VALUES ('events'), ('jobs_done');

-- Whether a partition of the table is being detached. PostgreSQL detaches one at a time, and until then refuses any other DETACH.
-- +goose StatementBegin
CREATE FUNCTION ojs.partition_is_leaving(parent text) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM ojs.retention r WHERE r.parent = partition_is_leaving.parent AND r.leaving IS NOT NULL)
        OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = ('ojs.' || parent)::regclass AND i.inhdetachpending)
$$;
-- +goose StatementEnd

-- Adds to the counts of jobs. Only the holder of the row of the relay changes them, so they are added in any order.
-- +goose StatementBegin
CREATE FUNCTION ojs.counts_add(queues text[], states text[], tenants text[], counts bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF queues IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM ojs.event_relay FOR UPDATE;
    INSERT INTO ojs.queue_counts AS q (queue, state, count)
    SELECT c.queue, c.state, sum(c.n) FROM unnest(queues, states, counts) AS c (queue, state, n) GROUP BY 1, 2
    ON CONFLICT (queue, state) DO UPDATE SET count = q.count + EXCLUDED.count;
    INSERT INTO ojs.tenant_counts AS t (tenant, queue, state, count)
    SELECT c.tenant, c.queue, c.state, c.n FROM unnest(tenants, queues, states, counts) AS c (tenant, queue, state, n) WHERE c.tenant <> ''
    ON CONFLICT (tenant, queue, state) DO UPDATE SET count = t.count + EXCLUDED.count;
END
$$;
-- +goose StatementEnd

-- The oldest partition of events if all its rows are outside of the limits (see event_floor_raise); none: part is NULL. It is never that of
-- the watermark, behind which late rows are placed. Rows without their webhook deliveries are kept beyond max_count but not beyond max_age,
-- because a deployment whose nodes send no webhooks must not keep the log without end.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_partition_due(OUT part text, OUT low bigint, OUT upper bigint, OUT last_time timestamptz)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    r    ojs.event_relay;
    p    record;
    last record;
BEGIN
    SELECT * INTO r FROM ojs.event_relay;
    SELECT * INTO p FROM ojs.event_partitions() e ORDER BY e.low LIMIT 1;
    IF NOT FOUND OR p.upper > r.watermark THEN
        RETURN;
    END IF;
    EXECUTE format('SELECT seq << 16 | sub AS place, time FROM ojs.%I ORDER BY seq DESC, sub DESC LIMIT 1', p.part) INTO last;
    IF last.place > r.floor_place THEN
        RETURN;
    END IF;
    IF (r.max_age IS NULL OR last.time >= clock_timestamp() - r.max_age) AND EXISTS (
        SELECT FROM ojs.webhooks w CROSS JOIN ojs.webhook_cursor c
        WHERE (w.active OR w.upto_place > c.place) AND GREATEST(c.place, w.from_place) >> 16 < p.upper) THEN
        RETURN;
    END IF;
    part := p.part;
    low := p.low;
    upper := p.upper;
    last_time := last.time;
END
$$;
-- +goose StatementEnd

-- The oldest day of finished jobs if it has been over for keep; else NULL.
-- +goose StatementBegin
CREATE FUNCTION ojs.jobs_done_partition_due(keep interval) RETURNS text
LANGUAGE sql VOLATILE AS $$
    SELECT p.part FROM (
        SELECT c.relname::text AS part FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'ojs.jobs_done'::regclass ORDER BY c.relname LIMIT 1) p
    WHERE (to_date(substr(p.part, 12), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= clock_timestamp() - keep
$$;
-- +goose StatementEnd

-- EventPartitionLeave: decides on the partition of events that is detached next, and returns whether there is one. Readers see none of its
-- rows any more. The row of the relay is locked before anything else, as in a pass of the relay. A number whose transaction may still commit
-- keeps its partition; no gap appears below the watermark, so what is read under this lock stays true.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_partition_leave() RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    p record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune')) THEN
        RETURN false;
    END IF;
    IF ojs.partition_is_leaving('events') THEN
        RETURN true;
    END IF;
    SELECT * INTO p FROM ojs.event_partition_due();
    IF p.part IS NULL THEN
        RETURN false;
    END IF;
    PERFORM FROM ojs.event_relay FOR UPDATE;
    IF EXISTS (SELECT FROM ojs.event_gaps WHERE seq >= p.low AND seq < p.upper) THEN
        RETURN false;
    END IF;
    UPDATE ojs.event_relay SET pruned = p.upper - 1;
    UPDATE ojs.retention SET leaving = p.part WHERE parent = 'events';
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
-- +goose StatementEnd

-- JobFinishedPartitionLeave: deletes the rows of some pages of the day that is dropped next, with their counts, so that counts and tables
-- are equal at any time, and decides to detach the day when from_page is behind its end. due: there is such a day; next_page: where the
-- next call goes on, NULL when the day can be detached. DELETE needs no lock that others wait for, but takes 4 us and writes 250
-- bytes of WAL a row, as it writes every page once: so whoever calls this has tried jobs_done_partitions_prune before.
-- +goose StatementBegin
CREATE FUNCTION ojs.jobs_done_partition_leave(keep interval, from_page bigint, pages integer, OUT due boolean, OUT next_page bigint)
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    part    text;
    queues  text[];
    states  text[];
    tenants text[];
    counts  bigint[];
BEGIN
    due := false;
    IF NOT pg_try_advisory_xact_lock(hashtext('ojs.jobs_done_partitions_prune')) THEN
        RETURN;
    END IF;
    IF ojs.partition_is_leaving('jobs_done') THEN
        due := true;
        RETURN;
    END IF;
    part := ojs.jobs_done_partition_due(keep);
    IF part IS NULL THEN
        RETURN;
    END IF;
    IF from_page * current_setting('block_size')::bigint >= pg_relation_size(('ojs.' || part)::regclass) THEN
        UPDATE ojs.retention SET leaving = part WHERE parent = 'jobs_done';
        due := true;
        RETURN;
    END IF;
    EXECUTE format('WITH deleted AS (
            DELETE FROM ojs.%I WHERE ctid >= %L AND ctid < %L RETURNING queue, state, split_part(lane, ''/'', 1) AS tenant)
        SELECT array_agg(c.queue), array_agg(c.state), array_agg(c.tenant), array_agg(c.n)
        FROM (SELECT queue, state, tenant, -count(*) AS n FROM deleted GROUP BY 1, 2, 3) c',
        part, format('(%s,0)', from_page), format('(%s,0)', from_page + pages))
        INTO queues, states, tenants, counts;
    PERFORM ojs.counts_add(queues, states, tenants, counts);
    due := true;
    next_page := from_page + pages;
EXCEPTION WHEN lock_not_available THEN
    due := false;
END
$$;
-- +goose StatementEnd

-- PartitionDetach: the statement that detaches the partition that is leaving, to be run outside of a transaction, and for how long it may
-- wait; '' if it is detached. If a DETACH was interrupted, because its node stopped or a transaction was open for too long, what is left to
-- do is FINALIZE. That waits for all older snapshots, but for no transaction that only has a lock on the parent. It has ACCESS EXCLUSIVE on the
-- partition meanwhile, so it gives up before the deadlock_timeout of a reader that has such a snapshot.
-- +goose StatementBegin
CREATE FUNCTION ojs.partition_detach(parent text, OUT statement text, OUT wait_ms integer)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    SELECT format('ALTER TABLE ojs.%I DETACH PARTITION ojs.%I %s', parent, c.relname, CASE WHEN i.inhdetachpending THEN 'FINALIZE' ELSE 'CONCURRENTLY' END),
        CASE WHEN i.inhdetachpending THEN 500 ELSE 3000 END
    INTO statement, wait_ms
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = ('ojs.' || parent)::regclass
        AND (i.inhdetachpending OR c.relname = (SELECT r.leaving FROM ojs.retention r WHERE r.parent = partition_detach.parent))
    ORDER BY i.inhdetachpending DESC LIMIT 1;
    statement := COALESCE(statement, '');
    wait_ms := COALESCE(wait_ms, 0);
END
$$;
-- +goose StatementEnd

-- PartitionDrop: drops the partition that has been detached, and returns whether it is gone. Jobs that were moved to it since it was emptied, by
-- a transaction that began before the end of its day, are subtracted from the counts.
-- +goose StatementBegin
CREATE FUNCTION ojs.partition_drop(parent text) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    part    text := (SELECT r.leaving FROM ojs.retention r WHERE r.parent = partition_drop.parent);
    queues  text[];
    states  text[];
    tenants text[];
    counts  bigint[];
BEGIN
    IF part IS NULL OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = to_regclass('ojs.' || part)) THEN
        RETURN false;
    END IF;
    IF to_regclass('ojs.' || part) IS NOT NULL THEN
        EXECUTE format('LOCK TABLE ojs.%I IN ACCESS EXCLUSIVE MODE', part);
        IF parent = 'jobs_done' THEN
            EXECUTE format('SELECT array_agg(c.queue), array_agg(c.state), array_agg(c.tenant), array_agg(c.n)
                FROM (SELECT queue, state, split_part(lane, ''/'', 1) AS tenant, -count(*) AS n FROM ojs.%I GROUP BY 1, 2, 3) c', part)
                INTO queues, states, tenants, counts;
        END IF;
        EXECUTE format('DROP TABLE ojs.%I', part);
        PERFORM ojs.counts_add(queues, states, tenants, counts);
    END IF;
    UPDATE ojs.retention r SET leaving = NULL WHERE r.parent = partition_drop.parent;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
-- +goose StatementEnd

-- MetricsRetention, DoctorRetention: for how long the oldest partition should have been gone; 0: none should. By age it is due when its
-- last event has max_age. By number no time is stored: it was due when the log behind it was as long as what is kept now.
-- +goose StatementBegin
CREATE FUNCTION ojs.retention_behind() RETURNS TABLE (data text, seconds double precision, part text)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    now   CONSTANT timestamptz := clock_timestamp();
    r     ojs.event_relay;
    p     record;
    keep  CONSTANT interval := (SELECT t.keep FROM ojs.retention t WHERE t.parent = 'jobs_done');
    day   text;
    since timestamptz;
BEGIN
    SELECT * INTO r FROM ojs.event_relay;
    SELECT * INTO p FROM ojs.event_partition_due();
    IF p.part IS NOT NULL THEN
        SELECT e.time INTO since FROM ojs.events e
        WHERE r.max_count IS NOT NULL AND e.seq >= p.upper + r.watermark - (r.floor_place >> 16) ORDER BY e.seq LIMIT 1;
        since := LEAST(since, p.last_time + r.max_age);
    END IF;
    RETURN QUERY SELECT 'events', GREATEST(0, COALESCE(date_part('epoch', now - since), 0)), COALESCE(p.part, '');
    day := ojs.jobs_done_partition_due(keep);
    RETURN QUERY SELECT 'finished_jobs', COALESCE(
        date_part('epoch', now - keep - (to_date(substr(day, 12), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC'), 0), COALESCE(day, '');
END
$$;
-- +goose StatementEnd

-- DoctorRights: whether the role of the session sees the transactions of other roles, and how many of their sessions there are.
-- +goose StatementBegin
CREATE FUNCTION ojs.session_rights(OUT role text, OUT sees_all boolean, OUT hidden bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT current_user::text, pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'),
        (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = current_database() AND NOT pg_has_role(a.usesysid, 'USAGE'))
$$;
-- +goose StatementEnd

-- DoctorConnections: connections that are in use, of the server, the database and the role, with their limits; -1: none. A role that is no
-- superuser gets none of the reserved ones. Each node has one session that listens. A session of another role whose kind is not seen counts.
-- +goose StatementBegin
CREATE FUNCTION ojs.connection_use(OUT max_server bigint, OUT max_database bigint, OUT max_role bigint,
    OUT server bigint, OUT database bigint, OUT role bigint, OUT ojsd bigint, OUT nodes bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
            - COALESCE(current_setting('reserved_connections', true)::bigint, 0),
        COALESCE((SELECT d.datconnlimit FROM pg_database d WHERE d.datname = current_database()), -1)::bigint,
        COALESCE((SELECT r.rolconnlimit FROM pg_roles r WHERE r.rolname = current_user), -1)::bigint,
        count(*), count(*) FILTER (WHERE a.datname = current_database()),
        count(*) FILTER (WHERE a.usesysid = (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)),
        count(*) FILTER (WHERE a.datname = current_database() AND a.application_name IN ('ojsd', 'ojsd listen')),
        count(*) FILTER (WHERE a.datname = current_database() AND a.application_name = 'ojsd listen')
    FROM pg_stat_activity a
    WHERE a.datname IS NOT NULL AND a.usesysid IS NOT NULL AND COALESCE(a.backend_type, 'client backend') = 'client backend'
$$;
-- +goose StatementEnd

-- DoctorSlots: the replication slots that keep WAL, with how much. safe_bytes: how much more may be written before PostgreSQL gives the slot up;
-- -1: it never does, and keeps WAL until the disk is full. normal_bytes: what it keeps without slots.
-- +goose StatementBegin
CREATE FUNCTION ojs.slot_wal() RETURNS TABLE (name text, kind text, active boolean, wal_status text, kept_bytes bigint, safe_bytes bigint, normal_bytes bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT s.slot_name::text, s.slot_type::text, s.active, COALESCE(s.wal_status, ''),
        GREATEST(0, COALESCE(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn), 0))::bigint,
        COALESCE(s.safe_wal_size, -1), pg_size_bytes(current_setting('max_wal_size'))
    FROM pg_replication_slots s
    WHERE s.restart_lsn IS NOT NULL OR s.wal_status = 'lost'
$$;
-- +goose StatementEnd

-- DoctorWraparound: the ages of the oldest ids of the database, with those at which autovacuum freezes a table whatever happens in it.
-- +goose StatementBegin
CREATE FUNCTION ojs.wraparound_ages() RETURNS TABLE (kind text, age bigint, freeze_age bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT a.* FROM pg_database d CROSS JOIN LATERAL (VALUES
        ('transaction', age(d.datfrozenxid)::bigint, current_setting('autovacuum_freeze_max_age')::bigint),
        ('multixact', mxid_age(d.datminmxid)::bigint, current_setting('autovacuum_multixact_freeze_max_age')::bigint)) a
    WHERE d.datname = current_database()
$$;
-- +goose StatementEnd

-- Drops the oldest partition of events, if it is due, and returns how many it dropped (0 or 1). It is the first try, and all that is needed
-- where no transaction stays open: one transaction, which leaves nothing to another node. DETACH needs ACCESS EXCLUSIVE on the parent, and
-- waiting for it would stop every writer: a table in use is left to event_partition_leave.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.event_partitions_prune() RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    p record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune')) OR ojs.partition_is_leaving('events') THEN
        RETURN 0;
    END IF;
    SELECT * INTO p FROM ojs.event_partition_due();
    IF p.part IS NULL THEN
        RETURN 0;
    END IF;
    IF ojs.table_is_held('ojs.events') OR ojs.table_is_held(('ojs.' || p.part)::regclass) THEN
        RETURN 0;
    END IF;
    -- The row of the relay is locked first, as in a pass of the relay: the other order would deadlock with one. No gap
    -- appears below the watermark, so what is read under this lock stays true.
    PERFORM FROM ojs.event_relay FOR UPDATE;
    IF EXISTS (SELECT FROM ojs.event_gaps WHERE seq >= p.low AND seq < p.upper) THEN
        RETURN 0;
    END IF;
    EXECUTE format('ALTER TABLE ojs.events DETACH PARTITION ojs.%I', p.part);
    EXECUTE format('DROP TABLE ojs.%I', p.part);
    UPDATE ojs.event_relay SET pruned = p.upper - 1;
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd

-- The same for a day of finished jobs; subtracts its rows from the counts.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.jobs_done_partitions_prune(keep interval) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    part    text;
    queues  text[];
    states  text[];
    tenants text[];
    counts  bigint[];
BEGIN
    IF keep IS NULL OR NOT pg_try_advisory_xact_lock(hashtext('ojs.jobs_done_partitions_prune')) OR ojs.partition_is_leaving('jobs_done') THEN
        RETURN 0;
    END IF;
    part := ojs.jobs_done_partition_due(keep);
    IF part IS NULL OR ojs.table_is_held('ojs.jobs_done') OR ojs.table_is_held(('ojs.' || part)::regclass) THEN
        RETURN 0;
    END IF;
    -- Keeps deletes of single rows out while the rows are counted, which may take seconds; reading goes on.
    EXECUTE format('LOCK TABLE ojs.%I IN SHARE ROW EXCLUSIVE MODE', part);
    EXECUTE format('SELECT array_agg(c.queue), array_agg(c.state), array_agg(c.tenant), array_agg(c.n)
        FROM (SELECT queue, state, split_part(lane, ''/'', 1) AS tenant, -count(*) AS n FROM ojs.%I GROUP BY 1, 2, 3) c', part)
        INTO queues, states, tenants, counts;
    -- The rest is short: until the commit it blocks every ack, then the relay.
    EXECUTE format('ALTER TABLE ojs.jobs_done DETACH PARTITION ojs.%I', part);
    EXECUTE format('DROP TABLE ojs.%I', part);
    PERFORM ojs.counts_add(queues, states, tenants, counts);
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd

-- See 00002_events.sql. Not while a partition is leaving, because PostgreSQL would refuse it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.event_partition_close() RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    head  bigint;
    age   interval;
    p     record;
    began timestamptz;
    cut   bigint;
BEGIN
    SELECT last_value INTO head FROM ojs.event_seq;
    SELECT r.max_age INTO age FROM ojs.event_relay r;
    SELECT * INTO p FROM ojs.event_partitions() e WHERE e.low <= head AND head < e.upper - 1;
    IF NOT FOUND OR age IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT time FROM ojs.%I ORDER BY seq LIMIT 1', p.part) INTO began;
    IF began IS NULL OR began > clock_timestamp() - GREATEST(interval '1 day', age / 100)
        OR NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_ensure'))
        OR NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune'))
        OR ojs.partition_is_leaving('events') OR ojs.table_is_held('ojs.events') OR ojs.table_is_held(('ojs.' || p.part)::regclass) THEN
        RETURN false;
    END IF;
    PERFORM FROM ojs.event_relay FOR UPDATE; -- first, as in a pass of the relay
    EXECUTE format('ALTER TABLE ojs.events DETACH PARTITION ojs.%I', p.part);
    SELECT s.last_value + 1 INTO cut FROM ojs.event_seq s;
    EXECUTE format('ALTER TABLE ojs.events ATTACH PARTITION ojs.%I FOR VALUES FROM (%s) TO (%s)', p.part, p.low, LEAST(cut, p.upper));
    IF cut < p.upper THEN
        PERFORM ojs.event_partition_create(cut, p.upper);
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
-- +goose StatementEnd

-- The server owns the schema, and needs no grants.
-- +goose StatementBegin
DO $$
DECLARE f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'ojs'::regnamespace AND p.provolatile = 'v' LOOP
        EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || f || ' FROM PUBLIC';
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 12 $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.event_partitions_prune() RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    r    ojs.event_relay;
    p    record;
    last record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune')) THEN
        RETURN 0;
    END IF;
    SELECT * INTO r FROM ojs.event_relay;
    SELECT * INTO p FROM ojs.event_partitions() e ORDER BY e.low LIMIT 1;
    IF NOT FOUND OR p.upper > r.watermark THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT seq << 16 | sub AS place, time FROM ojs.%I ORDER BY seq DESC, sub DESC LIMIT 1', p.part) INTO last;
    IF last.place > r.floor_place THEN
        RETURN 0;
    END IF;
    IF (r.max_age IS NULL OR last.time >= clock_timestamp() - r.max_age) AND EXISTS (
        SELECT FROM ojs.webhooks w CROSS JOIN ojs.webhook_cursor c
        WHERE (w.active OR w.upto_place > c.place) AND GREATEST(c.place, w.from_place) >> 16 < p.upper) THEN
        RETURN 0;
    END IF;
    IF ojs.table_is_held('ojs.events') OR ojs.table_is_held(('ojs.' || p.part)::regclass) THEN
        RETURN 0;
    END IF;
    -- The row of the relay is locked first, as in a pass of the relay: the other order would deadlock with one. No gap
    -- appears below the watermark, so what is read under this lock stays true.
    PERFORM FROM ojs.event_relay FOR UPDATE;
    IF EXISTS (SELECT FROM ojs.event_gaps WHERE seq >= p.low AND seq < p.upper) THEN
        RETURN 0;
    END IF;
    EXECUTE format('ALTER TABLE ojs.events DETACH PARTITION ojs.%I', p.part);
    EXECUTE format('DROP TABLE ojs.%I', p.part);
    UPDATE ojs.event_relay SET pruned = p.upper - 1;
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.jobs_done_partitions_prune(keep interval) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    part    text;
    queues  text[];
    states  text[];
    tenants text[];
    counts  bigint[];
BEGIN
    IF keep IS NULL OR NOT pg_try_advisory_xact_lock(hashtext('ojs.jobs_done_partitions_prune')) THEN
        RETURN 0;
    END IF;
    SELECT c.relname INTO part FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'ojs.jobs_done'::regclass ORDER BY c.relname LIMIT 1;
    IF part IS NULL OR (to_date(substr(part, 12), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' > clock_timestamp() - keep
        OR ojs.table_is_held('ojs.jobs_done') OR ojs.table_is_held(('ojs.' || part)::regclass) THEN
        RETURN 0;
    END IF;
    -- Keeps deletes of single rows out while the rows are counted, which may take seconds; reading goes on.
    EXECUTE format('LOCK TABLE ojs.%I IN SHARE ROW EXCLUSIVE MODE', part);
    EXECUTE format('SELECT array_agg(c.queue), array_agg(c.state), array_agg(c.tenant), array_agg(c.n)
        FROM (SELECT queue, state, split_part(lane, ''/'', 1) AS tenant, -count(*) AS n FROM ojs.%I GROUP BY 1, 2, 3) c', part)
        INTO queues, states, tenants, counts;
    -- The rest is short: until the commit it blocks every ack, then the relay. Only the holder of the row of the relay changes counts, so
    -- they are added in any order.
    EXECUTE format('ALTER TABLE ojs.jobs_done DETACH PARTITION ojs.%I', part);
    EXECUTE format('DROP TABLE ojs.%I', part);
    PERFORM FROM ojs.event_relay FOR UPDATE;
    INSERT INTO ojs.queue_counts AS q (queue, state, count)
    SELECT c.queue, c.state, sum(c.n) FROM unnest(queues, states, counts) AS c (queue, state, n) GROUP BY 1, 2
    ON CONFLICT (queue, state) DO UPDATE SET count = q.count + EXCLUDED.count;
    INSERT INTO ojs.tenant_counts AS t (tenant, queue, state, count)
    SELECT c.tenant, c.queue, c.state, c.n FROM unnest(tenants, queues, states, counts) AS c (tenant, queue, state, n) WHERE c.tenant <> ''
    ON CONFLICT (tenant, queue, state) DO UPDATE SET count = t.count + EXCLUDED.count;
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.event_partition_close() RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    head  bigint;
    age   interval;
    p     record;
    began timestamptz;
    cut   bigint;
BEGIN
    SELECT last_value INTO head FROM ojs.event_seq;
    SELECT r.max_age INTO age FROM ojs.event_relay r;
    SELECT * INTO p FROM ojs.event_partitions() e WHERE e.low <= head AND head < e.upper - 1;
    IF NOT FOUND OR age IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT time FROM ojs.%I ORDER BY seq LIMIT 1', p.part) INTO began;
    IF began IS NULL OR began > clock_timestamp() - GREATEST(interval '1 day', age / 100)
        OR NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_ensure'))
        OR NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune'))
        OR ojs.table_is_held('ojs.events') OR ojs.table_is_held(('ojs.' || p.part)::regclass) THEN
        RETURN false;
    END IF;
    PERFORM FROM ojs.event_relay FOR UPDATE; -- first, as in a pass of the relay
    EXECUTE format('ALTER TABLE ojs.events DETACH PARTITION ojs.%I', p.part);
    SELECT s.last_value + 1 INTO cut FROM ojs.event_seq s;
    EXECUTE format('ALTER TABLE ojs.events ATTACH PARTITION ojs.%I FOR VALUES FROM (%s) TO (%s)', p.part, p.low, LEAST(cut, p.upper));
    IF cut < p.upper THEN
        PERFORM ojs.event_partition_create(cut, p.upper);
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
-- +goose StatementEnd
DROP FUNCTION ojs.wraparound_ages();
DROP FUNCTION ojs.slot_wal();
DROP FUNCTION ojs.connection_use();
DROP FUNCTION ojs.session_rights();
DROP FUNCTION ojs.retention_behind();
DROP FUNCTION ojs.partition_drop(text);
DROP FUNCTION ojs.partition_detach(text);
DROP FUNCTION ojs.jobs_done_partition_leave(interval, bigint, integer);
DROP FUNCTION ojs.event_partition_leave();
DROP FUNCTION ojs.jobs_done_partition_due(interval);
DROP FUNCTION ojs.event_partition_due();
DROP FUNCTION ojs.counts_add(text[], text[], text[], bigint[]);
DROP FUNCTION ojs.partition_is_leaving(text);
DROP TABLE ojs.retention;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 11 $$;
-- +goose StatementEnd
