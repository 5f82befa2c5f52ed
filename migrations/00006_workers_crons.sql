-- +goose Up
-- The worker registry with its signs of life, and cron (contract 20 §6, §11).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 6 $$;
-- +goose StatementEnd

ALTER TABLE ojs.workers
    ADD COLUMN seen_at        timestamptz NOT NULL DEFAULT now(), -- latest of heartbeat, registration, fetch, ack, nack, progress
    ADD COLUMN stale_at       timestamptz,                        -- when it was declared dead
    ADD COLUMN active_job_ids json;                               -- as reported last

-- SweepNextDue, WorkerBury: who has been silent for longest.
CREATE INDEX workers_seen ON ojs.workers (seen_at) WHERE stale_at IS NULL;

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
DROP INDEX ojs.workers_seen;
ALTER TABLE ojs.workers DROP COLUMN seen_at, DROP COLUMN stale_at, DROP COLUMN active_job_ids;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 5 $$;
-- +goose StatementEnd
