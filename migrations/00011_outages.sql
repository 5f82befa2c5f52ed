-- +goose Up
-- What happens while the database is away, and when another server takes its place.

-- Outages: times in which no node could reach the database. They do not count against reservations, run times, the silence of a job, and
-- the silence of a worker (docs/reference/retries.md, Outages). All is decided here, by the clock of the database, so that a node that was
-- cut off alone changes nothing.

-- The latest time at which a node has reached the database, in ms since 1970. Each node sets it every second; not called: nothing runs, and
-- nobody needs to. A sequence, because a row that changes each second leaves 86 400 dead versions a day where an open transaction keeps them.
CREATE SEQUENCE ojs.served_at AS bigint;

-- OutageCheck, ojs.outage_since: one row for each outage of the last 30 days.
CREATE TABLE ojs.outages (
    began_at timestamptz PRIMARY KEY,     -- when a node had last reached the database
    ended_at timestamptz NOT NULL,        -- when a node reached it again
    jobs     bigint      NOT NULL         -- jobs whose time was extended
);

-- Whether a node has reached the database within the last three seconds, or none needs to. If not, nobody may take a job from its worker:
-- outage_check extends it first. STABLE, so that a statement that waits does not ask again.
-- +goose StatementBegin
CREATE FUNCTION ojs.is_served() RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT NOT s.is_called OR date_part('epoch', clock_timestamp()) * 1000 - s.last_value < 3000 FROM ojs.served_at s
$$;
-- +goose StatementEnd

-- The outages since a time, together.
-- +goose StatementBegin
CREATE FUNCTION ojs.outage_since(since timestamptz) RETURNS interval
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT COALESCE(sum(o.ended_at - GREATEST(o.began_at, since)), interval '0') FROM ojs.outages o WHERE o.ended_at > since);
END
$$;
-- +goose StatementEnd

-- Notes that a node has reached the database. If none had for three seconds, that was an outage, and all that was running when it began
-- gets its time back. ended: the caller must commit, and call again; until then jobs stay with their workers. began_at is the key by which
-- a second node, or the second call, sees that it is done. resting: the caller may rest, and no job is active as far as it looks: of the next
-- 10 000 jobs that become due, because there is no index of active ones.
-- +goose StatementBegin
CREATE FUNCTION ojs.outage_check(may_rest boolean, OUT ended boolean, OUT lasted_ms bigint, OUT jobs bigint, OUT resting boolean)
LANGUAGE plpgsql AS $$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    now_ms CONSTANT bigint := date_part('epoch', now) * 1000;
    served_ms CONSTANT bigint := (SELECT s.last_value FROM ojs.served_at s);
    began CONSTANT timestamptz := to_timestamp(served_ms / 1000.0);
BEGIN
    ended := false;
    lasted_ms := 0;
    jobs := 0;
    IF NOT ojs.is_served() THEN
        INSERT INTO ojs.outages (began_at, ended_at, jobs) VALUES (began, now, 0) ON CONFLICT DO NOTHING;
        ended := FOUND;
    END IF;
    resting := may_rest AND NOT ended AND (
        SELECT count(*) < 10000 AND NOT COALESCE(bool_or(n.state = 'active'), false)
        FROM (SELECT j.state FROM ojs.jobs j WHERE j.due_at IS NOT NULL ORDER BY j.due_at LIMIT 10000) n);
    IF resting THEN
        PERFORM setval('ojs.served_at', 1, false);
        RETURN;
    END IF;
    IF NOT ended THEN
        -- Half of the nodes that call within a second need not write.
        IF now_ms - served_ms >= 900 THEN
            PERFORM setval('ojs.served_at', now_ms);
        END IF;
        RETURN;
    END IF;
    lasted_ms := now_ms - served_ms;
    -- Reservations that end more than an hour after the outage have time enough to be renewed; further ahead there may be millions of
    -- scheduled jobs. What another transaction has locked is being renewed or ended. Workers repeat within ten seconds what they
    -- could not report, even of jobs whose total timeout is over.
    WITH running AS MATERIALIZED (
        SELECT j.id FROM ojs.jobs j
        WHERE j.due_at >= began AND j.due_at < now + interval '1 hour' AND j.state = 'active'
        ORDER BY j.due_at
        FOR UPDATE SKIP LOCKED
    ), extended AS (
        UPDATE ojs.jobs j
        SET lease_until = j.lease_until + (now - began), stall_due_at = j.stall_due_at + (now - began),
            due_at = GREATEST(LEAST(j.due_at + (now - began), j.total_due_at), now + interval '10 seconds')
        FROM running r
        WHERE j.id = ANY(ARRAY[r.id])
        RETURNING 1
    )
    SELECT count(*) INTO jobs FROM extended;
    UPDATE ojs.outages o SET jobs = outage_check.jobs WHERE o.began_at = began;
    DELETE FROM ojs.outages o WHERE o.ended_at < now - interval '30 days';
END
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION ojs.outage_check(boolean) FROM PUBLIC;

-- Epochs of the event log. After a failover to a standby that had not received everything, or on a restored copy, new events get places that
-- lost events had. Who has read a lost event would pass over the new ones up to its place. So the first relay that works on another server, or
-- on another timeline of it, notes how far the log was published before it publishes anything.
ALTER TABLE ojs.event_relay ADD COLUMN timeline text; -- server and timeline of the latest check; NULL: there was none

-- EventListAfter, ojs.events_after.
CREATE TABLE ojs.event_epochs (
    began_at    timestamptz PRIMARY KEY, -- when a relay noticed it
    after_place bigint      NOT NULL,    -- seq * 65536 + sub of the last event that was published before
    timeline    text        NOT NULL
);

-- Called on new connections, which a failover needs. false: another relay, or retention, has the row. A service whose functions differ from
-- those of PostgreSQL has no epochs.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_epoch_check() RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    current text;
    was text;
BEGIN
    BEGIN
        current := (SELECT s.system_identifier FROM pg_control_system() s) || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
    EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
        RETURN true;
    END;
    IF NOT EXISTS (SELECT FROM ojs.event_relay r WHERE r.timeline IS DISTINCT FROM current) THEN
        RETURN true;
    END IF;
    SELECT r.timeline INTO was FROM ojs.event_relay r WHERE r.timeline IS DISTINCT FROM current FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE ojs.event_relay SET timeline = current;
    IF was IS NOT NULL THEN
        INSERT INTO ojs.event_epochs (began_at, after_place, timeline) VALUES (clock_timestamp(), ojs.event_place(), current);
        DELETE FROM ojs.event_epochs e WHERE e.began_at < now() - interval '1 year';
    END IF;
    RETURN true;
END
$$;
-- +goose StatementEnd
REVOKE EXECUTE ON FUNCTION ojs.event_epoch_check() FROM PUBLIC;

-- The place behind which the log was written anew since an event with that time and place was read; NULL: it was not. An event that is still
-- there was not lost: it was received, or is of the new epoch and was written before a relay noticed that. SECURITY DEFINER, because
-- readers of ojs.events_after need no other right.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_rewritten(at timestamptz, place bigint) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT e.after_place FROM ojs.event_epochs e
    WHERE e.began_at > at AND e.after_place < place AND NOT EXISTS (
        SELECT FROM ojs.event_published_all p WHERE p.seq = place >> 16 AND p.sub = (place & 65535)::integer
            AND date_trunc('milliseconds', p.time) = date_trunc('milliseconds', at))
    ORDER BY e.began_at LIMIT 1
$$;
-- +goose StatementEnd

-- The time in an event id, in ms; NULL for other texts.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_time(id text) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT to_timestamp(('x' || substr(id, 5, 8) || substr(id, 14, 4))::bit(48)::bigint / 1000.0) WHERE ojs.event_position(id) >= 0
$$;
-- +goose StatementEnd

-- As in migration 2, but behind the end of the epoch of the id, if that has ended: some events may come twice, and none is missing.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.events_after(after text DEFAULT NULL, max_rows integer DEFAULT 1000)
RETURNS TABLE (id text, payload text)
LANGUAGE plpgsql STABLE
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    pos bigint := COALESCE(ojs.event_position(after), -1);
    low bigint;
BEGIN
    IF after IS NOT NULL AND pos < 0 THEN
        RAISE EXCEPTION '''after'' must be an event id such as evt_019c0a11-2f40-7003-9a51-7be2c04d1e90' USING ERRCODE = '22023';
    END IF;
    pos := COALESCE(ojs.event_rewritten(ojs.event_time(after), pos), pos);
    low := GREATEST(pos, (SELECT f.floor_place FROM ojs.event_floor() f)) >> 16;
    RETURN QUERY
        SELECT t.id, ojs.event_notice(t.full_text, t.seq, t.sub)
        FROM (
            SELECT p.seq, p.sub, ojs.event_id(p.time, p.seq, p.sub) AS id, ojs.event_text(p.event, p.service, p.compat) AS full_text
            FROM ojs.event_published p
            WHERE (p.seq, p.sub) > (pos >> 16, (pos & 65535)::integer) AND p.seq >= low AND NOT p.internal
            ORDER BY p.seq, p.sub LIMIT max_rows
        ) t;
END
$$;
-- +goose StatementEnd

-- The oldest release that works on this schema, by the number of its newest migration. A migration that takes away what the releases before
-- it use replaces this function; one that only adds leaves it, so that nodes of the release before can be started again.
-- +goose StatementBegin
CREATE FUNCTION ojs.schema_compatible_from() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 11 $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 11 $$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ojs.schema_compatible_from();
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.events_after(after text DEFAULT NULL, max_rows integer DEFAULT 1000)
RETURNS TABLE (id text, payload text)
LANGUAGE plpgsql STABLE
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    pos bigint := COALESCE(ojs.event_position(after), -1);
    low bigint := GREATEST(pos, (SELECT f.floor_place FROM ojs.event_floor() f)) >> 16;
BEGIN
    IF after IS NOT NULL AND pos < 0 THEN
        RAISE EXCEPTION '''after'' must be an event id such as evt_019c0a11-2f40-7003-9a51-7be2c04d1e90' USING ERRCODE = '22023';
    END IF;
    RETURN QUERY
        SELECT t.id, ojs.event_notice(t.full_text, t.seq, t.sub)
        FROM (
            SELECT p.seq, p.sub, ojs.event_id(p.time, p.seq, p.sub) AS id, ojs.event_text(p.event, p.service, p.compat) AS full_text
            FROM ojs.event_published p
            WHERE (p.seq, p.sub) > (pos >> 16, (pos & 65535)::integer) AND p.seq >= low AND NOT p.internal
            ORDER BY p.seq, p.sub LIMIT max_rows
        ) t;
END
$$;
-- +goose StatementEnd
DROP FUNCTION ojs.event_time(text);
DROP FUNCTION ojs.event_rewritten(timestamptz, bigint);
DROP FUNCTION ojs.event_epoch_check();
DROP TABLE ojs.event_epochs;
ALTER TABLE ojs.event_relay DROP COLUMN timeline;
DROP FUNCTION ojs.outage_check(boolean);
DROP FUNCTION ojs.outage_since(timestamptz);
DROP FUNCTION ojs.is_served();
DROP TABLE ojs.outages;
DROP SEQUENCE ojs.served_at;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 10 $$;
-- +goose StatementEnd
