-- +goose Up
-- Everything ojsd stores lives in schema ojs: jobs, the event log, and what is derived from it.
-- JSON sent by clients is json, never jsonb: number literals, key order and \u0000 must survive.
CREATE SCHEMA IF NOT EXISTS ojs;

-- Each migration replaces this number; a server compares it with the newest migration it was built with.
-- +goose StatementBegin
CREATE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 1 $$;
-- +goose StatementEnd

-- ready_seq is drawn whenever a job enters `available`; it is the FIFO order inside a priority.
CREATE SEQUENCE ojs.ready_seq AS bigint;

-- CACHE 1: the relay's proof that a missing number is gone needs numbers drawn in the order of the calls.
CREATE SEQUENCE ojs.event_seq AS bigint CACHE 1;

-- jobs: every live job, and discarded ones, which can be retried. Small and hot; the only table a fetch touches.
CREATE TABLE ojs.jobs (
    id              uuid        NOT NULL,
    type            text        NOT NULL,
    queue           text        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('scheduled', 'pending', 'available', 'active', 'retryable', 'completed', 'cancelled', 'discarded')),
    priority        smallint    NOT NULL DEFAULT 0,
    attempt         integer     NOT NULL DEFAULT 0,
    max_attempts    bigint      NOT NULL DEFAULT 3,
    ready_seq       bigint,                -- set while available
    due_at          timestamptz,           -- the next transition that time alone brings
    created_at      timestamptz NOT NULL,
    enqueued_at     timestamptz,           -- latest entry into available
    started_at      timestamptz,           -- latest entry into active
    finished_at     timestamptz,           -- entry into completed, cancelled or discarded
    scheduled_at    timestamptz,
    next_attempt_at timestamptz,           -- while retryable
    expires_at      timestamptz,
    lease_until     timestamptz,           -- while active
    lease_ms        bigint,                -- chosen at fetch; a heartbeat without its own value re-applies it
    visibility_ms   bigint,                -- the job's own reservation length; NULL: the server's default
    timeout_ms      bigint,                -- longest run of one attempt; NULL: the server's default
    grace_ms        bigint,                -- added to the execution deadline
    retry_delay_ms  bigint,
    worker_id       text,                  -- who holds it; kept in jobs_done to answer a late ack of a cancelled job
    trace_id        text,
    previous_state  text,                  -- state before cancelled or discarded
    failed          boolean     NOT NULL DEFAULT false, -- discarded by a failed attempt, so completed_at is shown
    retry           json,                  -- merged retry policy; NULL: the default policy
    args            json        NOT NULL,
    meta            json,                  -- NULL: {}
    extra           json,                  -- every other client attribute that is echoed, verbatim, as one object
    error           json,                  -- latest failure
    errors          json[],                -- failure history, oldest first
    result          json,                  -- only in jobs_done
    PRIMARY KEY (id)
);

-- JobFetch: exactly the fetch order, so no sort. The only index with a predicate on state: with a second one the
-- planner answers `id = ANY(…) AND state = 'active'` by walking that whole index (8 000 buffers for 200 rows).
CREATE INDEX jobs_fetch ON ojs.jobs (queue, priority DESC, ready_seq) WHERE state = 'available';

-- JobPromoteDue, JobListOverdue, JobNextDue: one timer column for every transition that time brings.
CREATE INDEX jobs_due ON ojs.jobs (due_at) WHERE due_at IS NOT NULL;

ALTER TABLE ojs.jobs SET (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- jobs_done: completed and cancelled jobs, moved here by the ack or cancel itself. Insert-only, one partition a day;
-- retention drops partitions instead of deleting rows.
CREATE TABLE ojs.jobs_done (LIKE ojs.jobs INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (finished_at);
ALTER TABLE ojs.jobs_done ALTER COLUMN finished_at SET NOT NULL;

-- JobGetByID, JobListPage. Not unique: a partitioned unique index would need finished_at, and ids are guarded by jobs
-- and by the look-up after an insert with a client's id.
CREATE INDEX jobs_done_id ON ojs.jobs_done (id);

-- events: outbox and event log in one. Insert-only, partitioned by ranges of seq; published when seq <= watermark.
-- A transaction must own its xid before it draws a number, or the relay could take an open number for a dead one.
CREATE TABLE ojs.events (
    seq         bigint      NOT NULL DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('ojs.event_seq') END,
    sub         integer     NOT NULL DEFAULT 0, -- > 0: committed late, placed behind the row (seq, 0)
    type        text        NOT NULL,
    source      text        NOT NULL,           -- api, workers/{id}, scheduler, cron; the service name is put in front when shown
    time        timestamptz NOT NULL,
    subject     text,                           -- NULL: the job's id
    job_id      uuid,
    job_type    text,
    queue       text,
    attempt     integer,
    worker_id   text,
    workflow_id uuid,
    trace_id    text,
    from_state  text,
    to_state    text,
    internal    boolean     NOT NULL DEFAULT false, -- counts, state frames and the job's history only
    priority    smallint,
    ready_seq   bigint,                         -- set when the job became available: wakes fetchers on other nodes
    node        integer,                        -- who wrote it; that node has already woken its own fetchers
    duration_ms bigint,                         -- run time, for job.started the time waited in the queue
    data        json,                           -- members of the payload that no column holds
    PRIMARY KEY (seq, sub)
) PARTITION BY RANGE (seq);

-- EventListByJob: a job's history.
CREATE INDEX events_job ON ojs.events (job_id, seq);

-- event_relay: one row. Numbers at or below the watermark are published; the relay that locks the row publishes.
CREATE TABLE ojs.event_relay (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    watermark  bigint      NOT NULL DEFAULT 0,
    pruned     bigint      NOT NULL DEFAULT 0,  -- numbers at or below it have been dropped by retention
    service    text        NOT NULL DEFAULT 'ojs',
    moved_at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO ojs.event_relay DEFAULT VALUES;

-- event_gaps: numbers that were missing when the relay came by: a transaction still open, or rolled back.
CREATE TABLE ojs.event_gaps (
    seq      bigint      PRIMARY KEY,
    noted_at timestamptz NOT NULL,
    horizon  xid8        NOT NULL,              -- every transaction that may still own the number is below it
    passed   boolean     NOT NULL DEFAULT false -- the watermark has gone past it
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE ojs.queues (
    name       text        PRIMARY KEY,
    status     text        NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'draining')),
    paused_at  timestamptz,
    config     json,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE ojs.workers (
    id             text        PRIMARY KEY,
    state          text        NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'quiet', 'terminate', 'stale')),
    directive      text        CHECK (directive IN ('running', 'quiet', 'terminate')),
    active_jobs    integer     NOT NULL DEFAULT 0,
    queues         json,
    concurrency    integer,
    hostname       text,
    pid            bigint,
    facts          json,                        -- everything else the worker reported last
    started_at     timestamptz NOT NULL,
    last_beat_at   timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- queue_counts: jobs per queue and state over all published events; exact together with the unpublished ones.
CREATE TABLE ojs.queue_counts (
    queue text   NOT NULL,
    state text   NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (queue, state)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE ojs.stats_minute (
    queue       text        NOT NULL,
    minute      timestamptz NOT NULL,
    enqueued    bigint      NOT NULL DEFAULT 0,
    started     bigint      NOT NULL DEFAULT 0,
    completed   bigint      NOT NULL DEFAULT 0,
    failed      bigint      NOT NULL DEFAULT 0, -- failed attempts
    discarded   bigint      NOT NULL DEFAULT 0,
    cancelled   bigint      NOT NULL DEFAULT 0,
    duration_ms bigint      NOT NULL DEFAULT 0, -- sum over completed
    wait_ms     bigint      NOT NULL DEFAULT 0, -- sum over started
    PRIMARY KEY (queue, minute)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- idempotency_keys: answers of bulk calls, replayed for the same key and body for at least a day.
CREATE TABLE ojs.idempotency_keys (
    operation  text        NOT NULL,
    key        text        NOT NULL,
    body_hash  bytea       NOT NULL,
    status     integer     NOT NULL,
    response   json        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (operation, key)
);
-- IdempotencyKeyPrune.
CREATE INDEX idempotency_keys_created ON ojs.idempotency_keys (created_at);

-- Error objects are made without their time: only the statement that stores them knows the clock under the lock.
-- +goose StatementBegin
CREATE FUNCTION ojs.error_at(error text, t timestamptz) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT (left(error, -1) || ',"occurred_at":"' || to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
        || '","timestamp":"' || to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') || '"}')::json
$$;
-- +goose StatementEnd

-- The newest keep entries, oldest first.
-- +goose StatementBegin
CREATE FUNCTION ojs.errors_append(errors json[], error json, keep integer) RETURNS json[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT errors[GREATEST(1, COALESCE(cardinality(errors), 0) - keep + 2):] || error
$$;
-- +goose StatementEnd

-- Who keeps dead rows from being cleaned for more than a minute.
-- +goose StatementBegin
CREATE FUNCTION ojs.xmin_holders() RETURNS TABLE (holder text, seconds double precision)
LANGUAGE sql VOLATILE AS $$
    SELECT 'session ' || a.pid || COALESCE(' (' || NULLIF(a.application_name, '') || ')', '') || ', ' || COALESCE(a.state, 'unknown state'),
        COALESCE(date_part('epoch', clock_timestamp() - a.xact_start), 0)
    FROM pg_stat_activity a
    WHERE a.backend_xmin IS NOT NULL AND a.pid <> pg_backend_pid() AND a.xact_start < clock_timestamp() - interval '1 minute'
    UNION ALL
    SELECT 'replication slot ' || s.slot_name, 0 FROM pg_replication_slots s
    WHERE NOT s.active AND (s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL)
    UNION ALL
    SELECT 'prepared transaction ' || p.gid, date_part('epoch', clock_timestamp() - p.prepared) FROM pg_prepared_xacts p
    WHERE p.prepared < clock_timestamp() - interval '1 minute'
$$;
-- +goose StatementEnd

-- The tables that are updated all the time, as the statistics collector knows them.
-- +goose StatementBegin
CREATE FUNCTION ojs.table_sizes() RETURNS TABLE (name text, live bigint, dead bigint, bytes bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT s.relname::text, s.n_live_tup, s.n_dead_tup, pg_total_relation_size(s.relid)
    FROM pg_stat_user_tables s
    WHERE s.schemaname = 'ojs' AND s.relname IN ('jobs', 'queue_counts', 'event_relay', 'event_gaps', 'stats_minute', 'workers')
$$;
-- +goose StatementEnd

-- The event source of a worker whose call did not name itself. Ids made of unreserved characters, nearly all, skip the
-- percent-encoding.
-- +goose StatementBegin
CREATE FUNCTION ojs.worker_source(worker_id text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN worker_id IS NULL OR worker_id = '' THEN 'workers/anonymous'
        WHEN worker_id ~ '^[A-Za-z0-9._~-]+$' THEN 'workers/' || worker_id
        ELSE 'workers/' || (
            SELECT string_agg(CASE WHEN c ~ '^[A-Za-z0-9._~-]$' THEN c
                ELSE regexp_replace(upper(encode(convert_to(c, 'UTF8'), 'hex')), '(..)', '%\1', 'g') END, '' ORDER BY n)
            FROM regexp_split_to_table(worker_id, '') WITH ORDINALITY AS r (c, n)) END
$$;
-- +goose StatementEnd

-- Only for tests (contract 10 §13.3). DELETE of what a relay may hold, TRUNCATE of the rest; sequences go on.
-- +goose StatementBegin
CREATE FUNCTION ojs.reset() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM ojs.event_relay FOR UPDATE;
    TRUNCATE ojs.jobs, ojs.jobs_done, ojs.events, ojs.event_gaps, ojs.queues, ojs.workers, ojs.queue_counts, ojs.stats_minute, ojs.idempotency_keys;
    UPDATE ojs.event_relay SET watermark = (SELECT last_value FROM ojs.event_seq), pruned = (SELECT last_value FROM ojs.event_seq);
    PERFORM pg_notify('ojs_reset', 'all');
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ojs.reset();
DROP FUNCTION ojs.worker_source(text);
DROP FUNCTION ojs.table_sizes();
DROP FUNCTION ojs.xmin_holders();
DROP FUNCTION ojs.errors_append(json[], json, integer);
DROP FUNCTION ojs.error_at(text, timestamptz);
-- The schema itself stays: goose's own version table may live in it.
DROP TABLE ojs.idempotency_keys, ojs.stats_minute, ojs.queue_counts, ojs.workers, ojs.queues,
    ojs.event_gaps, ojs.event_relay, ojs.events, ojs.jobs_done, ojs.jobs;
DROP SEQUENCE ojs.event_seq, ojs.ready_seq;
DROP FUNCTION ojs.schema_version();
