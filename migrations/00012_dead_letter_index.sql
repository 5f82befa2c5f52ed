-- +goose NO TRANSACTION
-- +goose Up
-- MetricsDeadLetters counts by an index-only scan of dead letters alone. Live jobs leave dead_lettered_at NULL, so their way
-- through the states does not touch it. Built while jobs run; each statement can be run again after an interruption.
DROP INDEX CONCURRENTLY IF EXISTS ojs.jobs_dead_letter_queue;
CREATE INDEX CONCURRENTLY jobs_dead_letter_queue ON ojs.jobs (queue) WHERE dead_lettered_at IS NOT NULL;

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 12 $$;
-- +goose StatementEnd

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS ojs.jobs_dead_letter_queue;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 11 $$;
-- +goose StatementEnd
