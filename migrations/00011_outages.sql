-- +goose Up
-- Outages: times in which no node could reach the database. They do not count against reservations, run times, the silence of a job, and
-- the silence of a worker (docs/reference/retries.md, Outages). All is decided here, by the clock of the database, so that a node that was
-- cut off alone changes nothing.

-- The latest time at which a node has reached the database, in ms since 1970. Each node sets it every second. A sequence, because a row that
-- changes each second leaves 86 400 dead versions a day where an open transaction keeps them.
CREATE SEQUENCE ojs.served_at AS bigint;

-- OutageCheck, ojs.outage_since: one row for each outage of the last 30 days.
CREATE TABLE ojs.outages (
    began_at timestamptz PRIMARY KEY,     -- when a node had last reached the database
    ended_at timestamptz NOT NULL,        -- when a node reached it again
    jobs     bigint      NOT NULL         -- jobs whose time was extended
);

-- Whether a node has reached the database within the last three seconds, or none ever has. If not, nobody may take a job from its worker:
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
-- a second node, or the second call, sees that it is done.
-- +goose StatementBegin
CREATE FUNCTION ojs.outage_check(OUT ended boolean, OUT lasted_ms bigint, OUT jobs bigint)
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
REVOKE EXECUTE ON FUNCTION ojs.outage_check() FROM PUBLIC;

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
DROP FUNCTION ojs.outage_check();
DROP FUNCTION ojs.outage_since(timestamptz);
DROP FUNCTION ojs.is_served();
DROP TABLE ojs.outages;
DROP SEQUENCE ojs.served_at;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 10 $$;
-- +goose StatementEnd
