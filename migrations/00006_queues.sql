-- +goose Up
-- Queues: their configuration and their bounds.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 6 $$;
-- +goose StatementEnd

-- What becomes of the jobs of a queue that is being deleted: an object with strategy and target_queue; NULL: it is not. The queue
-- is draining until its active jobs have ended, and then its row goes.
ALTER TABLE ojs.queues ADD COLUMN deletion json;

-- QueueConfigList, QueueConfigVersion: the queues that nodes keep in memory, normally a few.
CREATE INDEX queues_set ON ojs.queues (name) WHERE status <> 'active' OR config IS NOT NULL;

-- queue_version has a number that every change of a queue moves, by its one row; none: nothing was changed since the tables were
-- emptied. A node that knows the number knows the configuration of all queues, and reads nothing else to find out that nothing
-- has changed. The number is drawn under the lock of the row, so numbers become visible in their order.
CREATE SEQUENCE ojs.queue_version_seq AS bigint;
CREATE TABLE ojs.queue_version (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    version bigint  NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Counts a change and notifies all nodes; the payload is the name of the queue.
-- +goose StatementBegin
CREATE FUNCTION ojs.queue_changed() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ojs.queue_version AS v (version) VALUES (0) ON CONFLICT (one) DO NOTHING;
    UPDATE ojs.queue_version SET version = nextval('ojs.queue_version_seq') WHERE one;
    PERFORM pg_notify('ojs_queues', COALESCE(NEW.name, OLD.name));
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- The triggers run at the commit, so the row of queue_version is locked last and only until then: transactions that change several
-- queues cannot deadlock. A new queue without configuration, and used_at, fire none of them.
CREATE CONSTRAINT TRIGGER queue_inserted AFTER INSERT ON ojs.queues DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.status <> 'active' OR NEW.config IS NOT NULL) EXECUTE FUNCTION ojs.queue_changed();
CREATE CONSTRAINT TRIGGER queue_updated AFTER UPDATE OF status, paused_at, config, deletion ON ojs.queues DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ojs.queue_changed();
CREATE CONSTRAINT TRIGGER queue_deleted AFTER DELETE ON ojs.queues DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.status <> 'active' OR OLD.config IS NOT NULL) EXECUTE FUNCTION ojs.queue_changed();

-- +goose Down
DROP TRIGGER queue_deleted ON ojs.queues;
DROP TRIGGER queue_updated ON ojs.queues;
DROP TRIGGER queue_inserted ON ojs.queues;
DROP FUNCTION ojs.queue_changed();
DROP TABLE ojs.queue_version;
DROP SEQUENCE ojs.queue_version_seq;
DROP INDEX ojs.queues_set;
ALTER TABLE ojs.queues DROP COLUMN deletion;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 5 $$;
-- +goose StatementEnd
