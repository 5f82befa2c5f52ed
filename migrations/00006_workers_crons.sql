-- +goose Up
-- The worker registry with its signs of life, and cron (contract 20 §6, §11).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 6 $$;
-- +goose StatementEnd

ALTER TABLE ojs.workers
    ADD COLUMN seen_at        timestamptz NOT NULL DEFAULT now(), -- latest of heartbeat, registration, fetch, ack, nack, progress
    ADD COLUMN stale_at       timestamptz,                        -- when it was declared dead
    ADD COLUMN died_at        timestamptz,                        -- latest death: what it claimed before is not its own any more
    ADD COLUMN bury_at        timestamptz,                        -- jobs from before died_at are still to be taken away: the next try
    ADD COLUMN stopped        boolean NOT NULL DEFAULT false,     -- worker.stopped has been written since it started
    ADD COLUMN active_job_ids json,                               -- as reported last
    ADD COLUMN fetch_queues   json,                               -- of its FETCH calls, for workers that report none
    ADD COLUMN fetch_count    integer;

-- SweepNextDue, WorkerDie: who has been silent for longest.
CREATE INDEX workers_seen ON ojs.workers (seen_at) WHERE stale_at IS NULL;
-- SweepNextDue, WorkerBuryClaim: the dead whose jobs are not all recovered.
CREATE INDEX workers_bury ON ojs.workers (bury_at) WHERE bury_at IS NOT NULL;
-- SweepNextDue, WorkerPrune.
CREATE INDEX workers_stale ON ojs.workers (stale_at) WHERE stale_at IS NOT NULL;

-- What a worker reported before and does not repeat stays. Neither document holds U+0000.
-- +goose StatementBegin
CREATE FUNCTION ojs.facts_merge(known json, reported json) RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN known IS NULL OR reported IS NULL OR known::text = reported::text THEN COALESCE(reported, known)
        ELSE (SELECT json_object_agg(f.key, f.value) FROM (
            SELECT k.key, k.value FROM json_each(known) k WHERE k.key NOT IN (SELECT json_object_keys(reported))
            UNION ALL
            SELECT r.key, r.value FROM json_each(reported) r) f) END
$$;
-- +goose StatementEnd

CREATE TABLE ojs.crons (
    name           text        PRIMARY KEY,
    id             uuid        NOT NULL,          -- a name that is deleted and registered again is another cron
    expression     text        NOT NULL,          -- as sent
    timezone       text        NOT NULL DEFAULT 'UTC',
    type           text        NOT NULL,
    queue          text        NOT NULL,          -- that of the template, for filters and events
    args           json        NOT NULL,
    meta           json,                          -- NULL: {}
    options        json,                          -- as sent; NULL: {}
    trace_id       text,                          -- that of meta
    overlap_policy text        NOT NULL DEFAULT 'skip' CHECK (overlap_policy IN ('skip', 'allow', 'cancel_previous', 'enqueue')),
    enabled        boolean     NOT NULL DEFAULT true,
    description    text,
    last_run_at    timestamptz,
    next_run_at    timestamptz,                   -- NULL while paused
    run_count      bigint      NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now()
);

-- SweepNextDue, CronListDue.
CREATE INDEX crons_next ON ojs.crons (next_run_at) WHERE next_run_at IS NOT NULL;

-- cron_runs: what became of each tick. The primary key makes a tick happen once, whoever is at it. The newest 1 000 of a
-- cron are kept, for 30 days at most.
CREATE TABLE ojs.cron_runs (
    cron_id      uuid        NOT NULL,
    scheduled_at timestamptz NOT NULL,            -- of a manual run: when it was triggered
    kind         text        NOT NULL CHECK (kind IN ('tick', 'manual', 'gap')), -- gap: a local time that a clock change left out
    outcome      text        NOT NULL CHECK (outcome IN ('fired', 'skipped', 'manual')),
    reason       text,
    job_id       uuid,
    PRIMARY KEY (cron_id, scheduled_at, kind)
);

-- +goose Down
DROP TABLE ojs.cron_runs, ojs.crons;
DROP FUNCTION ojs.facts_merge(json, json);
DROP INDEX ojs.workers_seen, ojs.workers_bury, ojs.workers_stale;
ALTER TABLE ojs.workers DROP COLUMN seen_at, DROP COLUMN stale_at, DROP COLUMN died_at, DROP COLUMN bury_at, DROP COLUMN stopped,
    DROP COLUMN active_job_ids, DROP COLUMN fetch_queues, DROP COLUMN fetch_count;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 5 $$;
-- +goose StatementEnd
