-- +goose Up
-- Maintenance, pools and schemas.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 9 $$;
-- +goose StatementEnd

-- pools has a row for each pool of workers. At most 1 000 rows (PoolPut).
CREATE TABLE ojs.pools (
    name        text        PRIMARY KEY,
    definition  json        NOT NULL,                           -- as package pool writes it
    concurrency integer,                                        -- most active jobs of its workers; NULL: no limit
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now()              -- = created_at: never changed
);

-- pool_holds counts the active jobs of pools with a concurrency. A row of a job whose run has ended is deleted when its place is
-- needed, so acks know nothing of pools.
CREATE TABLE ojs.pool_holds (
    pool       text        NOT NULL,
    id         uuid        NOT NULL,                            -- of the job, or of a reservation
    jobs       integer     NOT NULL,                            -- 1, or how many a reservation may become
    started_at timestamptz,                                     -- of the run; NULL: a reservation
    expires_at timestamptz,                                     -- of a reservation; NULL: a job
    PRIMARY KEY (pool, id)                                      -- pool_reserve
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Reserves room for up to want jobs, and returns for how many. The row of the pool is locked, so that the reservations of two fetches
-- never exceed its concurrency; each statement after the lock reads what the one before has committed. The reservation of a node
-- that stops before it knows its jobs ends after a minute, in which its jobs reach no worker.
-- +goose StatementBegin
CREATE FUNCTION ojs.pool_reserve(pool_name text, reservation uuid, want integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    most integer;
    held bigint;
BEGIN
    SELECT p.concurrency INTO most FROM ojs.pools p WHERE p.name = pool_name FOR UPDATE;
    IF most IS NULL THEN
        RETURN want;
    END IF;
    SELECT COALESCE(sum(h.jobs), 0) INTO held FROM ojs.pool_holds h WHERE h.pool = pool_name;
    IF held + want > most THEN
        DELETE FROM ojs.pool_holds h WHERE h.pool = pool_name AND CASE WHEN h.started_at IS NULL THEN h.expires_at <= clock_timestamp()
            ELSE (SELECT j.started_at FROM ojs.jobs j WHERE j.id = h.id AND j.state = 'active') IS DISTINCT FROM h.started_at END;
        SELECT COALESCE(sum(h.jobs), 0) INTO held FROM ojs.pool_holds h WHERE h.pool = pool_name;
    END IF;
    want := LEAST(want, most - held);
    IF want <= 0 THEN
        RETURN 0;
    END IF;
    INSERT INTO ojs.pool_holds (pool, id, jobs, expires_at) VALUES (pool_name, reservation, want, clock_timestamp() + interval '1 minute');
    RETURN want;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ojs.pool_reserve(text, uuid, integer);
DROP TABLE ojs.pool_holds, ojs.pools;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 8 $$;
-- +goose StatementEnd
