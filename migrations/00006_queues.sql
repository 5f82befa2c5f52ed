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

-- JobListOldest, JobPriorityListWaiting: the jobs of a queue that a rate limit holds back. Other jobs do not write it.
CREATE INDEX jobs_waiting_queue ON ojs.jobs (queue, limit_seq) WHERE limit_seq IS NOT NULL;

-- job_sizes has the jobs that were enqueued to a queue with a bound in bytes. A row stays until QueueSizeMeasure finds that its job is
-- gone, so neither a fetch nor an ack writes here.
CREATE TABLE ojs.job_sizes (
    queue  text    NOT NULL,
    job_id uuid    NOT NULL,
    bytes  integer NOT NULL,                            -- of args, meta and the other attributes that are shown
    PRIMARY KEY (queue, job_id)                         -- QueueSizeMeasure, JobListOldest
);

-- queue_sizes has, for each of these queues, a number of bytes that its waiting jobs do not exceed: what was measured last, jobs that may come
-- back to the queue included, plus all that was enqueued since. While it leaves room for a job, nothing has to be measured.
CREATE TABLE ojs.queue_sizes (
    queue text   PRIMARY KEY,
    bytes bigint NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What QueueSizeMeasure does: deletes the rows of jobs that are gone, and returns the bytes of the waiting jobs, and those of all that are live
-- or can be retried. The caller has locked the row of the queue.
-- +goose StatementBegin
CREATE FUNCTION ojs.queue_size_measure(name text, OUT waiting bigint, OUT stored bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    WITH found AS MATERIALIZED (
        SELECT s.job_id, s.bytes, (SELECT j.state FROM ojs.jobs j WHERE j.id = s.job_id AND j.queue = s.queue) AS state
        FROM ojs.job_sizes s WHERE s.queue = name
    ), deleted AS (
        DELETE FROM ojs.job_sizes s WHERE s.queue = name AND s.job_id = ANY(ARRAY(SELECT f.job_id FROM found f WHERE f.state IS NULL))
    )
    SELECT COALESCE(sum(f.bytes) FILTER (WHERE f.state IN ('available', 'scheduled', 'retryable', 'pending')), 0),
        COALESCE(sum(f.bytes) FILTER (WHERE f.state IS NOT NULL), 0)
    INTO waiting, stored FROM found f;
    INSERT INTO ojs.queue_sizes AS q (queue, bytes) VALUES (name, stored) ON CONFLICT (queue) DO UPDATE SET bytes = EXCLUDED.bytes;
END
$$;
-- +goose StatementEnd

-- The jobs that wait in a queue, exact in the snapshot; see QueueCountListByQueue.
-- +goose StatementBegin
CREATE FUNCTION ojs.queue_depth(name text) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (
        SELECT COALESCE(sum(c.n), 0)::bigint FROM (
            SELECT q.state, q.count AS n FROM ojs.queue_counts q WHERE q.queue = name
            UNION ALL
            SELECT u.state, u.n FROM ojs.event_uncounted(name) u
        ) c WHERE c.state IN ('available', 'scheduled', 'retryable', 'pending'));
END
$$;
-- +goose StatementEnd

-- The settings that hold for a queue: its own over those of _default. The server has decoded them when they were set, so SQL knows one name and one
-- unit of each (queueconfig/patch.go), and a setting that is inherited as a whole is one member, so || is all there is to inheritance. It is
-- resolved here and not stored with each queue: a change of _default stays one row, and queues without a row inherit, too.
-- +goose StatementBegin
CREATE FUNCTION ojs.queue_settings(name text) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT COALESCE((SELECT q.settings FROM ojs.queues q WHERE q.name = '_default'), '{}')
        || COALESCE((SELECT q.settings FROM ojs.queues q WHERE q.name = queue_settings.name), '{}')
$$;
-- +goose StatementEnd

-- The jobs of a tenant that wait in a queue, exact in the snapshot; see TenantCountList.
-- +goose StatementBegin
CREATE FUNCTION ojs.tenant_depth(name text, of_tenant text) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (
        SELECT COALESCE(sum(c.n), 0)::bigint FROM (
            SELECT t.state, t.count AS n FROM ojs.tenant_counts t WHERE t.tenant = of_tenant AND t.queue = name
            UNION ALL
            SELECT u.state, u.n FROM ojs.event_uncounted(name) u WHERE split_part(u.lane, '/', 1) = of_tenant
        ) c WHERE c.state IN ('available', 'scheduled', 'retryable', 'pending'));
END
$$;
-- +goose StatementEnd

-- Raises an error if the queue, or the part of it that a tenant may have, has no room for more. measured: its bytes are counted, not taken from queue_sizes.
-- +goose StatementBegin
CREATE FUNCTION ojs.queue_bounds_check(name text, of_tenant text, more_jobs bigint, more_bytes bigint, measured boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    settings   jsonb := ojs.queue_settings(name);
    max_depth  bigint := settings -> 'max_depth';
    max_bytes  bigint := settings -> 'max_size_bytes';
    per_tenant bigint := CASE WHEN of_tenant <> '' THEN settings -> 'max_depth_per_tenant' END;
    bound      text;
BEGIN
    IF per_tenant > 0 AND ojs.tenant_depth(name, of_tenant) + more_jobs > per_tenant THEN
        RAISE EXCEPTION USING ERRCODE = 'configuration_limit_exceeded', MESSAGE = 'tenant ' || of_tenant || ' reached its bound of ' || per_tenant || ' jobs in queue ' || name || '.',
            HINT = 'Enqueue again when workers have fetched jobs of the tenant.';
    ELSIF max_depth > 0 AND ojs.queue_depth(name) + more_jobs > max_depth THEN
        bound := max_depth || ' jobs';
    ELSIF max_bytes > 0 AND (measured OR more_bytes + COALESCE((SELECT s.bytes FROM ojs.queue_sizes s WHERE s.queue = name), 0) > max_bytes)
        AND more_bytes + (SELECT m.waiting FROM ojs.queue_size_measure(name) m) > max_bytes THEN
        bound := max_bytes || ' bytes';
    ELSE
        RETURN;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'configuration_limit_exceeded', MESSAGE = 'Queue ' || name || ' reached its bound of ' || bound || '.',
        HINT = 'Enqueue again when workers have fetched jobs of the queue.';
END
$$;
-- +goose StatementEnd

-- bound_notes has the bounded queues, and the tenants in them, for which a transaction has enqueued by ojs.enqueue, until its commit: no other
-- one sees a row.
CREATE TABLE ojs.bound_notes (queue text NOT NULL, tenant text NOT NULL);

-- Checks the bounds of the queues of this transaction, in the order of their names. Their rows are locked from the commit on only: servers
-- that enqueue would otherwise wait for as long as an application keeps its transaction open.
-- +goose StatementBegin
CREATE FUNCTION ojs.bounds_check_noted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    noted record;
BEGIN
    FOR noted IN WITH deleted AS (DELETE FROM ojs.bound_notes RETURNING queue, tenant) SELECT d.queue, d.tenant FROM deleted d ORDER BY 1, 2 LOOP
        PERFORM FROM ojs.queues q WHERE q.name = noted.queue FOR UPDATE;
        PERFORM ojs.queue_bounds_check(noted.queue, noted.tenant, 0, 0, true);
    END LOOP;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE CONSTRAINT TRIGGER bounds_check AFTER INSERT ON ojs.bound_notes DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ojs.bounds_check_noted();

-- Refuses a job of ojs.enqueue for a full queue, and lets the commit check again. settings are those of the queue.
-- +goose StatementBegin
CREATE FUNCTION ojs.bound_note(name text, settings jsonb, tenant text, job_id uuid, bytes integer) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF NOT settings ?| '{max_depth,max_size_bytes,max_depth_per_tenant}' THEN
        RETURN;
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'Queue ' || bound_note.name || ' has a bound; the transaction must be READ COMMITTED, because no other sees what was committed since it began.';
    END IF;
    PERFORM ojs.queue_bounds_check(bound_note.name, bound_note.tenant, 1, bound_note.bytes, false);
    INSERT INTO ojs.bound_notes (queue, tenant) SELECT bound_note.name, bound_note.tenant
        WHERE NOT EXISTS (SELECT FROM ojs.bound_notes n WHERE n.queue = bound_note.name AND n.tenant = bound_note.tenant);
    IF (settings -> 'max_size_bytes')::bigint > 0 THEN
        INSERT INTO ojs.job_sizes (queue, job_id, bytes) VALUES (bound_note.name, bound_note.job_id, bound_note.bytes);
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ojs.bound_note(text, jsonb, text, uuid, integer);
DROP TABLE ojs.bound_notes;
DROP FUNCTION ojs.bounds_check_noted();
DROP FUNCTION ojs.queue_bounds_check(text, text, bigint, bigint, boolean);
DROP FUNCTION ojs.tenant_depth(text, text);
DROP FUNCTION ojs.queue_settings(text);
DROP FUNCTION ojs.queue_depth(text);
DROP FUNCTION ojs.queue_size_measure(text);
DROP TABLE ojs.queue_sizes, ojs.job_sizes;
DROP INDEX ojs.jobs_waiting_queue;
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
