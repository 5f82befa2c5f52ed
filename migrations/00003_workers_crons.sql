-- +goose Up
-- The worker registry and crons.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 3 $$;
-- +goose StatementEnd

-- workers has a row for each worker that registered or sent a heartbeat, until an hour after it was declared dead.
CREATE TABLE ojs.workers (
    id             text        PRIMARY KEY,
    state          text        NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'quiet', 'terminate', 'stale')), -- as reported; stale: declared dead
    directive      text        CHECK (directive IN ('running', 'quiet', 'terminate')),                                 -- what an operator asked for
    started_at     timestamptz NOT NULL,
    last_beat_at   timestamptz NOT NULL,                       -- latest heartbeat or registration
    last_seen_at   timestamptz NOT NULL DEFAULT now(),         -- latest heartbeat, registration, fetch, ack, nack or progress report
    stale_at       timestamptz,                                -- when it was declared dead; NULL: alive
    dead_at        timestamptz,                                -- latest time it was declared dead; it lost the jobs it had fetched before
    reap_at        timestamptz,                                -- next try to take away the jobs fetched before dead_at; NULL: none are left
    stopped        boolean     NOT NULL DEFAULT false,         -- worker.stopped has been written since started_at
    active_jobs    integer     NOT NULL DEFAULT 0,             -- as reported last
    active_job_ids json,                                       -- as reported last
    queues         json,                                       -- as reported; NULL: never
    concurrency    integer,                                    -- as reported
    fetch_queues   json,                                       -- queues of its fetch calls, for workers that report none
    fetch_count    integer,                                    -- jobs asked for by its fetch calls
    hostname       text,
    pid            bigint,
    facts          json,                                       -- everything else the worker reported
    tenant         text        NOT NULL DEFAULT ''             -- named by its calls; '': none
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- DueGetNext, WorkerExpire: the workers without a call for the longest time. WorkerListPage: the living ones.
CREATE INDEX workers_seen ON ojs.workers (last_seen_at, id) WHERE stale_at IS NULL;
-- WorkerListPage: the dead ones. By state, because WorkerPrune, planned while the table was empty, would read the whole of an index on
-- stale_at IS NOT NULL, which its own condition implies.
CREATE INDEX workers_stale_seen ON ojs.workers (last_seen_at, id) WHERE state = 'stale';
-- DueGetNext, WorkerReapClaim: dead workers whose jobs have not all been taken away.
CREATE INDEX workers_reap ON ojs.workers (reap_at) WHERE reap_at IS NOT NULL;
-- DueGetNext, WorkerPrune: dead workers to be removed.
CREATE INDEX workers_stale ON ojs.workers (stale_at) WHERE stale_at IS NOT NULL;

-- Merges a report into the earlier reports of a worker: members that are not repeated stay. Neither document contains
-- U+0000 or half of a surrogate pair, which PostgreSQL stores in a json and refuses to read.
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
    id             uuid        NOT NULL,                       -- a name that is deleted and registered again gets a new id
    expression     text        NOT NULL,                       -- as sent
    timezone       text        NOT NULL DEFAULT 'UTC',
    type           text        NOT NULL,                       -- type, queue, args, meta and options describe the jobs it enqueues
    queue          text        NOT NULL,
    args           json        NOT NULL,
    meta           json,                                       -- NULL: {}
    options        json,                                       -- as sent; NULL: {}
    trace_id       text,                                       -- trace id found in meta
    overlap_policy text        NOT NULL DEFAULT 'skip' CHECK (overlap_policy IN ('skip', 'allow', 'cancel_previous', 'enqueue')),
    enabled        boolean     NOT NULL DEFAULT true,
    description    text,
    last_run_at    timestamptz,
    next_run_at    timestamptz,                                -- NULL: paused
    run_count      bigint      NOT NULL DEFAULT 0,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    tenant         text        NOT NULL DEFAULT ''             -- to which its jobs belong, found in meta; '': none
);

-- DueGetNext, CronListDue: the crons that run next.
CREATE INDEX crons_next ON ojs.crons (next_run_at) WHERE next_run_at IS NOT NULL;

-- cron_runs records the outcome of each tick. Its primary key makes a tick happen once, whichever nodes try. The newest
-- 1 000 rows of a cron are kept, for 30 days at most.
CREATE TABLE ojs.cron_runs (
    cron_id      uuid        NOT NULL,
    scheduled_at timestamptz NOT NULL,                         -- of a manual run: when it was triggered
    kind         text        NOT NULL CHECK (kind IN ('tick', 'manual', 'gap')), -- gap: a local time that a clock change skipped
    outcome      text        NOT NULL CHECK (outcome IN ('fired', 'skipped', 'manual')),
    reason       text,                                         -- why it was skipped
    job_id       uuid,                                         -- the job it enqueued
    PRIMARY KEY (cron_id, scheduled_at, kind)                  -- CronRecordTick, CronRunInsertGap; CronRunList reads it backwards
);

-- +goose Down
DROP TABLE ojs.cron_runs, ojs.crons;
DROP FUNCTION ojs.facts_merge(json, json);
DROP TABLE ojs.workers;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 2 $$;
-- +goose StatementEnd
