-- +goose NO TRANSACTION
-- +goose Up
-- Built while jobs run. A build that was interrupted leaves an invalid index, which the next attempt removes first. All are
-- partial with IS NOT NULL on a column that live jobs leave NULL, so a job's way through the states does not touch them.

-- DeadLetterList, DeadLetterPrune: newest first.
DROP INDEX CONCURRENTLY IF EXISTS ojs.jobs_dead_letter;
CREATE INDEX CONCURRENTLY jobs_dead_letter ON ojs.jobs (dead_lettered_at, id) WHERE dead_lettered_at IS NOT NULL;

-- JobDiscardedPrune, and the list of every discarded job: finished_at in jobs is only set while discarded.
DROP INDEX CONCURRENTLY IF EXISTS ojs.jobs_discarded;
CREATE INDEX CONCURRENTLY jobs_discarded ON ojs.jobs (finished_at, id) WHERE finished_at IS NOT NULL;

-- CronListBusy, CronListLive, CronSettle: the unfinished jobs of a cron. With state, because discarded ones pile up.
DROP INDEX CONCURRENTLY IF EXISTS ojs.jobs_cron;
CREATE INDEX CONCURRENTLY jobs_cron ON ojs.jobs (cron, state) WHERE cron IS NOT NULL;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 5 $$;
-- +goose StatementEnd

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS ojs.jobs_cron;
DROP INDEX CONCURRENTLY IF EXISTS ojs.jobs_discarded;
DROP INDEX CONCURRENTLY IF EXISTS ojs.jobs_dead_letter;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 4 $$;
-- +goose StatementEnd
