-- +goose Up
-- Copies of a database: what tells one from the original, and that it was made quiet.

-- Server, timeline and database; NULL: the service has no such functions, or this is a standby. A dump that is restored gets another database, a base backup that
-- is promoted another timeline. A copy of the disk of a stopped server cannot be told from the original.
-- +goose StatementBegin
CREATE FUNCTION ojs.database_identity() RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT s.system_identifier FROM pg_control_system() s) || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/'
        || (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported OR object_not_in_prerequisite_state THEN
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- SystemQuietCopy: the identity of the copy whose crons were paused and webhooks deactivated.
ALTER TABLE ojs.event_relay ADD COLUMN quieted text;

-- As in migration 11, but another database of the same server is another epoch, too: a dump that was restored beside the original. The
-- identity that releases before have stored has no database.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.event_epoch_check() RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    current text := ojs.database_identity();
    was text;
BEGIN
    IF current IS NULL OR NOT EXISTS (SELECT FROM ojs.event_relay r WHERE r.timeline IS DISTINCT FROM current) THEN
        RETURN true;
    END IF;
    SELECT r.timeline INTO was FROM ojs.event_relay r WHERE r.timeline IS DISTINCT FROM current FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE ojs.event_relay SET timeline = current;
    IF NOT starts_with(current, was || '/') THEN
        INSERT INTO ojs.event_epochs (began_at, after_place, timeline) VALUES (clock_timestamp(), ojs.event_place(), current);
        DELETE FROM ojs.event_epochs e WHERE e.began_at < now() - interval '1 year';
    END IF;
    RETURN true;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 15 $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.event_epoch_check() RETURNS boolean
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
-- The release before compares with what it would have stored itself.
UPDATE ojs.event_relay SET timeline = split_part(timeline, '/', 1) || '/' || split_part(timeline, '/', 2);
ALTER TABLE ojs.event_relay DROP COLUMN quieted;
DROP FUNCTION ojs.database_identity();
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 14 $$;
-- +goose StatementEnd
