-- +goose Up
-- Jobs, queues, and the stored responses of idempotent calls. Everything that ojsd stores is in schema ojs. JSON of
-- clients is stored as json, never as jsonb: number literals, key order and \u0000 must survive. Times are always those
-- of the database's clock.
CREATE SCHEMA IF NOT EXISTS ojs;

-- Every migration replaces this function with one that returns its own number. A server compares the number with that
-- of the newest migration it was built with.
-- +goose StatementBegin
CREATE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 1 $$;
-- +goose StatementEnd

-- A number is drawn whenever a job enters `available`. The numbers are the FIFO order inside a priority.
CREATE SEQUENCE ojs.ready_seq AS bigint;

-- The value of column size of a job whose failures have changed, with room for one more. An array of json takes about the bytes
-- of its elements. STABLE, as the cast of json to text is: a function that promises more than its body is not inlined, and takes 20 instead of 2 µs.
-- +goose StatementBegin
CREATE FUNCTION ojs.stored_size(args json, meta json, extra json, errors json[], previous_errors json[], checkpoint json, more integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT NULLIF(GREATEST(8191, octet_length(args::text) + COALESCE(octet_length(meta::text), 0) + COALESCE(octet_length(extra::text), 0)
        + COALESCE(octet_length(errors::text), 0) + COALESCE(octet_length(previous_errors::text), 0)
        + COALESCE(octet_length(checkpoint::text), 0) + COALESCE(more, 0)), 8191)
$$;
-- +goose StatementEnd

-- jobs holds every live job, and discarded jobs, which can be retried. It stays small, and it is the only table that a
-- fetch reads. The columns that a fetch filters by come first, because PostgreSQL unpacks a row from the left.
CREATE TABLE ojs.jobs (
    id               uuid        PRIMARY KEY,             -- UUIDv7
    type             text        NOT NULL,                -- what is to be done, such as invoice.render
    queue            text        NOT NULL,                -- where workers look for it
    state            text        NOT NULL,                -- scheduled, pending, available, active, retryable or discarded. No CHECK: PostgreSQL parses it for every statement, 5 % of its time under light load
    priority         smallint    NOT NULL DEFAULT 0,      -- -100 to 100, higher first
    attempt          integer     NOT NULL DEFAULT 0,      -- number of the current or latest attempt; 0: never fetched
    max_attempts     bigint      NOT NULL DEFAULT 3,      -- attempts after which a failure discards the job
    ready_seq        bigint,                              -- while available the place in the fetch order, NULL for a job that waits for a limit or for another job of its cron; while active the number of the claim, negative
    due_at           timestamptz,                         -- earliest of the times below at which a sweep has to act on the job

    created_at       timestamptz NOT NULL,
    enqueued_at      timestamptz,                         -- latest entry into available
    started_at       timestamptz,                         -- latest entry into active
    finished_at      timestamptz,                         -- entry into completed, cancelled or discarded
    scheduled_at     timestamptz,                         -- requested time of the first entry into available
    next_attempt_at  timestamptz,                         -- end of the backoff; set while retryable
    expires_at       timestamptz,                         -- a job that is not active at this time is discarded
    total_due_at     timestamptz,                         -- created_at, or the latest manual retry, plus total_timeout
    ttl_due_at       timestamptz,                         -- created_at plus enqueue_ttl; NULL from the first fetch on

    worker_id        text,                                -- the worker that holds the job; kept at the end, to answer a late ack of a cancelled job
    lease_until      timestamptz,                         -- end of the reservation; set while active
    lease_ms         bigint,                              -- length of the reservation, chosen at fetch; a heartbeat without a length of its own uses it again
    stall_due_at     timestamptz,                         -- latest sign of life plus stall_ms; set while active
    visibility_ms    bigint,                              -- length of the reservation that the job asks for; NULL: the server's default
    timeout_ms       bigint,                              -- longest run of one attempt; NULL: the server's default
    grace_ms         bigint,                              -- added to timeout_ms
    stall_ms         bigint,                              -- longest silence of the worker during an attempt (heartbeat_timeout); NULL: no limit

    retry_delay_ms   bigint,                              -- backoff computed at the latest failure
    result_ttl_s     bigint,                              -- how long the result is kept; NULL: the server's default, 0: not at all, -1: as long as the job
    previous_state   text,                                -- state before cancelled or discarded
    failed           boolean     NOT NULL DEFAULT false,  -- a failed attempt discarded the job, so finished_at is shown as completed_at
    dead_lettered_at timestamptz,                         -- set: the job is a dead letter. Only discarded jobs are
    re_enqueued_at   timestamptz,                         -- latest manual retry
    replay_count     integer     NOT NULL DEFAULT 0,      -- number of manual retries

    trace_id         text,                                -- trace id found in meta
    cron             text,                                -- name of the cron that enqueued the job
    cron_serial      boolean     NOT NULL DEFAULT false,  -- one job of the cron runs at a time; the others are available without ready_seq
    workflow_id      uuid,                                -- root of the workflow to which the job belongs; NULL: none
    unique_key       text,                                -- fingerprint by its unique policy, 64 hex digits; NULL: it has none
    lane             text        COLLATE "C" NOT NULL DEFAULT '', -- part of the queue in which the job waits: tenant, tenant/fairness key, /fairness key, or '' for most jobs
    limit_key        text        COLLATE "C",             -- key of its rate limit, in the collation of ojs.limits, without which no index finds it; NULL: it has none
    limit_seq        bigint,                              -- place in the fetch order of an available job that its rate limit holds back; it gets no ready_seq until then
    on_limit         text,                                -- what its rate limit does when it blocks the job: reschedule or drop; NULL: it waits
    on_exhaustion    text,                                -- what its retry policy makes of a job that will not run again: discard or dead_letter; NULL: it does not say (see makes_dead_letters)

    retry            json,                                -- merged retry policy; NULL: the default policy
    args             json        NOT NULL,                -- what the worker is called with, an array
    meta             json,                                -- NULL: {}
    extra            json,                                -- all other attributes of the client that are echoed, as one object
    error            json,                                -- latest failure
    errors           json[],                              -- failures, oldest first
    previous_errors  json[],                              -- failures before the latest manual retry, oldest first

    progress         double precision,                    -- 0 to 1, of the current or latest attempt
    progress_message text,
    progress_data    json,
    progress_at      timestamptz,                         -- latest report
    progress_sent_at timestamptz,                         -- latest report with an event; before progress_at: the end of the run writes one (JobProgress)
    checkpoint       json,                                -- object with state, step_index and metadata; kept when the job ends
    checkpoint_seq   bigint,                              -- number of the latest checkpoint, from 1
    checkpoint_at    timestamptz,
    result           json,                                -- what the worker returned; only in jobs_done

    -- Bytes of the values above that clients fill, if 8 KiB or more; NULL for small jobs, which need no byte of it. Claims and
    -- pages are bounded by its sum, because the stored size of a compressed value says little: 1 MiB may take 12 KiB. Each
    -- statement that changes a value keeps it, within 8 KiB. A generated column would be parsed and planned for every statement.
    size             integer
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- JobFetch, JobFetchRescan, MetricsReadyHeads: exactly the fetch order, so nothing is sorted. It is the only index
-- whose predicate names a state: with a second one the planner answered `id = ANY(…) AND state = 'active'` by reading
-- that whole index (8 000 buffers for 200 rows).
CREATE INDEX jobs_fetch ON ojs.jobs (queue, lane, priority DESC, ready_seq) WHERE state = 'available' AND ready_seq IS NOT NULL;

-- JobPromoteDue, JobListOverdue, DueGetNext, JobListByDeadWorkers, JobListByClaim: one timer column serves every transition that time
-- brings.
CREATE INDEX jobs_due ON ojs.jobs (due_at) WHERE due_at IS NOT NULL;

-- The remaining indexes are partial, with IS NOT NULL on a column that live jobs leave NULL (or set once), so state
-- changes of ordinary jobs do not write them.

-- DeadLetterListPage, DeadLetterCount, DeadLetterListForBulk, DeadLetterDelete: pages by key, newest or oldest first. MetricsDeadLetters counts
-- per queue by an index-only scan; an index of its own would cost each insert and each claim 1.5 µs.
CREATE INDEX jobs_dead_letter ON ojs.jobs (dead_lettered_at, id) INCLUDE (queue) WHERE dead_lettered_at IS NOT NULL;

-- JobDiscardedListPage, JobDiscardedCount, JobDiscardedPrune: in ojs.jobs only discarded jobs have finished_at.
CREATE INDEX jobs_discarded ON ojs.jobs (finished_at, id) WHERE finished_at IS NOT NULL;

-- CronListUnfinishedJob, CronListUnfinishedJobs, CronListQueued, CronReleaseQueued, CronQueueJobs: the unfinished jobs of a cron. The state is in the
-- key because discarded jobs of a cron accumulate.
CREATE INDEX jobs_cron ON ojs.jobs (cron, state) WHERE cron IS NOT NULL;

-- UniqueListHolders: the jobs that hold a key, oldest first. The state is in the key because discarded jobs accumulate.
CREATE INDEX jobs_unique ON ojs.jobs (unique_key, state, created_at, id) WHERE unique_key IS NOT NULL;

-- UniqueListPage, UniqueCount: all jobs with a key, newest first. With the predicate of jobs_unique, which follows from
-- unique_key = …, the planner answered UniqueListHolders by reading this whole index for each key (2.9 ms for 16 keys, and 0.2 without it).
CREATE INDEX jobs_unique_page ON ojs.jobs (id) WHERE octet_length(unique_key) = 64;

-- JobListPage, JobListFloor, JobCountPage, JobListForBulk for a tenant: its jobs by id. With the predicate lane <> '', which follows from
-- lane > …, the planner answered ojs.explain_lanes by reading this whole index for each lane (14 500 buffers). Each insert and claim of any job evaluates the predicate, so it is cheap: lanes of keys without tenant are in the index, too.
CREATE INDEX jobs_tenant ON ojs.jobs (split_part(lane, '/', 1), id) WHERE octet_length(lane) > 0;

-- LimitAdmit: the jobs that wait for a rate limit, in the order in which it lets them through.
CREATE INDEX jobs_waiting ON ojs.jobs (limit_key, priority DESC, limit_seq) WHERE limit_seq IS NOT NULL;

-- LimitAdmit: counts the jobs of a key that are active, or that may be fetched. Jobs that wait are left out: there may be many.
CREATE INDEX jobs_limited ON ojs.jobs (limit_key, state) WHERE limit_key IS NOT NULL AND limit_seq IS NULL;

-- jobs_done holds completed and cancelled jobs, moved here by the ack or cancel itself. Rows are only inserted (but for the
-- deletion of a checkpoint), one partition per day of finished_at (UTC); retention drops partitions instead of deleting rows. Column state alone tells
-- completed from cancelled jobs; the columns mean what they mean in jobs.
CREATE TABLE ojs.jobs_done (LIKE ojs.jobs INCLUDING DEFAULTS INCLUDING CONSTRAINTS) PARTITION BY RANGE (finished_at);
ALTER TABLE ojs.jobs_done ALTER COLUMN finished_at SET NOT NULL;

-- JobListByID, JobListPage, JobListDoneIDs, JobListUnextended: look-up by id. Not unique, because a unique index of a
-- partitioned table would have to contain finished_at. Unique ids are guarded by the primary key of jobs and by the
-- look-up in jobs_done after an insert with an id that the client chose.
CREATE INDEX jobs_done_id ON ojs.jobs_done (id);

-- UniqueListDone: completed and cancelled jobs that had a key, for policies that name these states.
CREATE INDEX jobs_done_unique ON ojs.jobs_done (unique_key, state, created_at, id) WHERE unique_key IS NOT NULL;

-- JobListPage, JobListFloor, JobCountPage, JobListForBulk for a tenant: its completed and cancelled jobs by id.
CREATE INDEX jobs_done_tenant ON ojs.jobs_done (split_part(lane, '/', 1), id) WHERE octet_length(lane) > 0;

-- queues has a row for each queue that has a job, had one in the last 30 days, or was paused or set up.
CREATE TABLE ojs.queues (
    name       text        PRIMARY KEY,
    status     text        NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'draining')),
    paused_at  timestamptz,                             -- since when; NULL: not paused
    config     json,                                    -- settings of the queue as clients sent them; NULL: those of the server
    settings   jsonb,                                   -- what SQL reads of config, as queueconfig/patch.go writes it; NULL: nothing (see ojs.queue_settings)
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    used_at    timestamptz NOT NULL DEFAULT now()       -- latest enqueue, to a day: an enqueue to a known queue writes nothing here (see QueueInsert)
);

-- idempotency_keys holds the answers of enqueues and bulk calls, which are repeated for the same key and body for at least a day.
CREATE TABLE ojs.idempotency_keys (
    holder     text        NOT NULL,                    -- the API key of the caller, by its hash; '': none
    operation  text        NOT NULL,                    -- name of the endpoint
    key        text        NOT NULL,                    -- as the client sent it
    body_hash  bytea       NOT NULL,                    -- of the request body, to refuse the key with another body
    status     integer     NOT NULL,                    -- HTTP status of the answer; 0: the call is not finished
    response   json        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (holder, operation, key)
);
-- IdempotencyKeyPrune: the oldest keys.
CREATE INDEX idempotency_keys_created ON ojs.idempotency_keys (created_at);

-- How the API shows a time.
-- +goose StatementBegin
CREATE FUNCTION ojs.time_text(t timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;
-- +goose StatementEnd

-- The attributes of a job whose scheduled_at changes from was to at. They show it as the client has sent it, or as the server does.
-- +goose StatementBegin
CREATE FUNCTION ojs.with_scheduled_at(extra json, was timestamptz, at timestamptz) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN extra IS NULL THEN '{' || s.shown || '}' WHEN was IS NULL THEN left(extra::text, -1) || ',' || s.shown || '}'
        WHEN extra::text ~ '^{("timeout":\d+,)?("timeout_ms":\d+,)?("visibility_timeout_ms":\d+,)?"scheduled_at":"'
            THEN regexp_replace(extra::text, '"scheduled_at":"[^"]*"', s.shown)
        ELSE replace(extra::text, '"scheduled_at":"' || ojs.time_text(was) || '"', s.shown) END::json
    FROM (SELECT '"scheduled_at":"' || ojs.time_text(at) || '"' AS shown) s
$$;
-- +goose StatementEnd

-- Microseconds since 1970. Exact until the year 2255, up to which the double of date_part holds them.
-- +goose StatementBegin
CREATE FUNCTION ojs.time_us(t timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT round(date_part('epoch', t) * 1000000)::bigint
$$;
-- +goose StatementEnd

-- A UUIDv7 for a time, with microseconds, so that the ids of one transaction grow. The time part has 15 hex digits from
-- 2004 to 2527, hence the leading 0.
-- +goose StatementBegin
CREATE FUNCTION ojs.new_id(t timestamptz) RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT ('0' || to_hex((ojs.time_us(t) / 1000 << 16) | 28672 | (ojs.time_us(t) % 1000 * 4096 / 1000)) || right(gen_random_uuid()::text, 17))::uuid
$$;
-- +goose StatementEnd

-- Adds the time to an error object. The server writes error objects without it, because only the statement that stores
-- one reads the clock under the lock of the row.
-- +goose StatementBegin
CREATE FUNCTION ojs.error_at(error text, at timestamptz) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT (left(error, -1) || ',"occurred_at":"' || ojs.time_text(at) || '","timestamp":"' || ojs.time_text(at) || '"}')::json
$$;
-- +goose StatementEnd

-- errors with one more at the end; the newest `keep` of them, oldest first.
-- +goose StatementBegin
CREATE FUNCTION ojs.errors_append(errors json[], error json, keep integer) RETURNS json[]
LANGUAGE sql IMMUTABLE AS $$
    SELECT errors[GREATEST(1, COALESCE(cardinality(errors), 0) - keep + 2):] || error
$$;
-- +goose StatementEnd

-- The error of a job whose deadline passed before it was started, as text without its time (see error_at).
-- +goose StatementBegin
CREATE FUNCTION ojs.deadline_error(code text, message text, attempt integer, created_at timestamptz, due timestamptz, now timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT '{"attempt":' || attempt || ',"code":"' || code || '","type":"' || code || '","message":"' || message || '","retryable":false'
        || CASE code WHEN 'total_timeout' THEN ',"timeout_kind":"total"' WHEN 'enqueue_ttl_expired' THEN ',"timeout_kind":"enqueue_ttl"' ELSE '' END
        || ',"limit_seconds":' || GREATEST(0, round(date_part('epoch', due - created_at)::numeric, 3))
        || ',"elapsed_seconds":' || GREATEST(0, round(date_part('epoch', now - created_at)::numeric, 3)) || '}'
$$;
-- +goose StatementEnd

-- code and type of a stored error, as they stand in its text between the quotes, escapes included. They are cut out of
-- the beginning of the text, which the server always writes as {"attempt":…,"code":…,"type":…,"message":…. The operator
-- -> fails for documents with \u0000. A quote inside a string is escaped, so the separators cannot occur in one. A
-- regular expression takes ten times as long.
-- +goose StatementBegin
CREATE FUNCTION ojs.error_code(error json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT split_part(split_part(left(error::text, 4096), ',"code":"', 2), '","type":"', 1)
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.error_type(error json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT split_part(split_part(left(error::text, 4096), '","type":"', 2), '","message":', 1)
$$;
-- +goose StatementEnd

-- code and the beginning of the message of a stored error, or of the first one in the data of an event, as an object; NULL: there is none.
-- The last expression ends the message between two characters of JSON.
-- +goose StatementBegin
CREATE FUNCTION ojs.error_brief(stored text, message_length integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT '{"code":"' || split_part(e.rest, '","type":"', 1) || '","message":"' || substring(
        left(split_part(split_part(e.rest, '","message":"', 2), '","retryable":', 1), message_length)
        FROM E'^(?:[^\\\\]|\\\\u[0-9a-fA-F]{4}|\\\\[^u])*') || '"}'
    FROM (SELECT NULLIF(split_part(stored, '"code":"', 2), '') AS rest) e
$$;
-- +goose StatementEnd

-- Whether a waiting job whose time is over becomes a dead letter. A total timeout is a failure, which makes one unless the
-- retry policy says discard; any other reason makes one only if the policy asks for it.
-- +goose StatementBegin
CREATE FUNCTION ojs.makes_dead_letters(on_exhaustion text, reason text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE reason WHEN 'total_timeout' THEN on_exhaustion IS DISTINCT FROM 'discard' ELSE on_exhaustion IS NOT DISTINCT FROM 'dead_letter' END
$$;
-- +goose StatementEnd

-- The filters of the dead-letter list; an empty array accepts everything. error_codes and error_types are written as
-- error_code and error_type return them.
-- +goose StatementBegin
CREATE FUNCTION ojs.dead_letter_matches(id uuid, queue text, type text, error json, ids uuid[], queues text[], types text[],
    type_prefixes text[], error_types text[], error_codes text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (cardinality(ids) = 0 OR id = ANY(ids))
        AND (cardinality(queues) = 0 OR queue = ANY(queues))
        AND (cardinality(types) + cardinality(type_prefixes) = 0 OR type = ANY(types) OR type ^@ ANY(type_prefixes))
        AND (cardinality(error_types) = 0 OR COALESCE(ojs.error_type(error) = ANY(error_types), false))
        AND (cardinality(error_codes) = 0 OR COALESCE(ojs.error_code(error) = ANY(error_codes), false))
$$;
-- +goose StatementEnd

-- Whether the time of a result is over. ttl_s is what was fixed when the job completed; NULL or negative: as long as
-- the job.
-- +goose StatementBegin
CREATE FUNCTION ojs.result_is_over(finished_at timestamptz, ttl_s bigint) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT ttl_s IS NOT NULL AND ttl_s >= 0 AND finished_at + ttl_s * interval '1 second' <= now()
$$;
-- +goose StatementEnd

-- Finished jobs as they are read: without a result whose time is over. The planner inlines the view, so a condition on
-- id reaches the index. It lists the columns in the order of ojs.jobs, for UNION ALL with that table.
CREATE VIEW ojs.job_finished AS
SELECT d.id, d.type, d.queue, d.state, d.priority, d.attempt, d.max_attempts, d.ready_seq, d.due_at, d.created_at,
    d.enqueued_at, d.started_at, d.finished_at, d.scheduled_at, d.next_attempt_at, d.expires_at, d.total_due_at,
    d.ttl_due_at, d.worker_id, d.lease_until, d.lease_ms, d.stall_due_at, d.visibility_ms, d.timeout_ms, d.grace_ms,
    d.stall_ms, d.retry_delay_ms, d.result_ttl_s, d.previous_state, d.failed, d.dead_lettered_at, d.re_enqueued_at,
    d.replay_count, d.trace_id, d.cron, d.cron_serial, d.workflow_id, d.unique_key, d.lane, d.limit_key, d.limit_seq, d.on_limit, d.on_exhaustion, d.retry, d.args, d.meta, d.extra, d.error, d.errors,
    d.previous_errors, d.progress, d.progress_message, d.progress_data, d.progress_at, d.progress_sent_at, d.checkpoint, d.checkpoint_seq,
    d.checkpoint_at,
    CASE WHEN NOT ojs.result_is_over(d.finished_at, d.result_ttl_s) THEN d.result END AS result,
    d.size
FROM ojs.jobs_done d;

-- A text with every byte but the unreserved characters of URLs percent-encoded.
-- +goose StatementBegin
CREATE FUNCTION ojs.percent_encoded(t text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT string_agg(CASE WHEN c ~ '^[A-Za-z0-9._~-]$' THEN c
        ELSE regexp_replace(upper(encode(convert_to(c, 'UTF8'), 'hex')), '(..)', '%\1', 'g') END, '' ORDER BY n)
    FROM regexp_split_to_table(t, '') WITH ORDINALITY AS r (c, n)
$$;
-- +goose StatementEnd

-- The event source of a worker whose call named no source: its id, percent-encoded. Ids of unreserved characters, which
-- are nearly all ids, skip the encoding. It has no subquery, so that the planner inlines it: a call of a function in SQL took 45 000 of the 157 000
-- instructions of an ack without worker_id.
-- +goose StatementBegin
CREATE FUNCTION ojs.worker_source(worker_id text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN worker_id IS NULL OR worker_id = '' THEN 'workers/anonymous'
        WHEN worker_id ~ '^[A-Za-z0-9._~-]+$' THEN 'workers/' || worker_id
        ELSE 'workers/' || ojs.percent_encoded(worker_id) END
$$;
-- +goose StatementEnd

-- The data of an event that the end of a run writes for the latest report, with the beginning of its message.
-- +goose StatementBegin
CREATE FUNCTION ojs.progress_data(progress double precision, message text) RETURNS json
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT ('{"progress_percent":' || trim_scale(round((COALESCE(progress, 0) * 100)::numeric, 6))
        || COALESCE(',"progress_message":' || to_json(left(NULLIF(message, ''), 2048)), '') || '}')::json
$$;
-- +goose StatementEnd

-- The data of the event job.enqueued of a job with a unique key; NULL for other jobs.
-- +goose StatementBegin
CREATE FUNCTION ojs.unique_key_data(unique_key text) RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ('{"unique_key":"' || unique_key || '"}')::json
$$;
-- +goose StatementEnd

-- Creates the partitions of jobs_done from today to `ahead` days from now (UTC) and returns the end of the last.
-- finished_at is always the database's clock, so no earlier day is ever written. A partition is created detached and
-- then attached: CREATE TABLE … PARTITION OF takes ACCESS EXCLUSIVE on the parent and, behind one long transaction,
-- stops every writer.
-- +goose StatementBegin
CREATE FUNCTION ojs.jobs_done_partitions_ensure(ahead integer DEFAULT 3) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    day   date;
    part  text;
BEGIN
    IF to_regclass('ojs.jobs_done_p' || to_char(today + ahead, 'YYYYMMDD')) IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtext('ojs.jobs_done_partitions_ensure'));
        FOR i IN 0..ahead LOOP
            day := today + i;
            part := 'jobs_done_p' || to_char(day, 'YYYYMMDD');
            CONTINUE WHEN to_regclass('ojs.' || part) IS NOT NULL;
            EXECUTE format('CREATE TABLE ojs.%I (LIKE ojs.jobs_done INCLUDING ALL)', part);
            EXECUTE format('ALTER TABLE ojs.%I ADD CONSTRAINT bounds CHECK (finished_at >= %L AND finished_at < %L)',
                part, day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00');
            EXECUTE format('ALTER TABLE ojs.jobs_done ATTACH PARTITION ojs.%I FOR VALUES FROM (%L) TO (%L)',
                part, day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00');
            EXECUTE format('ALTER TABLE ojs.%I DROP CONSTRAINT bounds', part);
        END LOOP;
    END IF;
    RETURN (today + ahead + 1)::timestamp AT TIME ZONE 'UTC';
END
$$;
-- +goose StatementEnd

-- Whether another transaction has held a lock on the table for longer than a second. A DETACH would wait for it, and
-- every writer would wait for the DETACH. The age of other roles' sessions is visible only with pg_read_all_stats;
-- without it lock_timeout alone protects the writers.
-- +goose StatementBegin
CREATE FUNCTION ojs.table_is_held(target regclass) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (
        SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
        WHERE l.locktype = 'relation' AND l.relation = target AND l.granted
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
            AND a.xact_start < clock_timestamp() - interval '1 second' AND l.pid <> pg_backend_pid())
$$;
-- +goose StatementEnd

-- Ends the session of a node whose connection broke and waits for its end, so that its transaction can no longer commit.
-- Returns whether it has ended. A backend that began after the node sent its statement is another one with the same pid. A
-- backend that waited for a synchronous standby leaves a commit that no standby may have: the message makes this transaction
-- write WAL, so that its own commit waits for the standby too, and with it for all commits before.
-- +goose StatementBegin
CREATE FUNCTION ojs.session_end(backend integer, age_s double precision, wait_ms bigint) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT pg_logical_emit_message(true, 'ojs', 'session_end');
    SELECT COALESCE(bool_and(pg_terminate_backend(a.pid, wait_ms)), true) FROM pg_stat_activity a
    WHERE a.pid = backend AND a.usename = current_user AND a.backend_start < clock_timestamp() - age_s * interval '1 second'
$$;
-- +goose StatementEnd

-- Drops the oldest partition of finished jobs if all of it is older than keep, subtracts its rows from the counts in
-- the same transaction, and returns how many days it dropped (0 or 1). The caller repeats until 0, so that no
-- transaction holds the relay for long.
-- +goose StatementBegin
CREATE FUNCTION ojs.jobs_done_partitions_prune(keep interval) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    part    text;
    queues  text[];
    states  text[];
    tenants text[];
    counts  bigint[];
BEGIN
    IF keep IS NULL OR NOT pg_try_advisory_xact_lock(hashtext('ojs.jobs_done_partitions_prune')) THEN
        RETURN 0;
    END IF;
    SELECT c.relname INTO part FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'ojs.jobs_done'::regclass ORDER BY c.relname LIMIT 1;
    IF part IS NULL OR (to_date(substr(part, 12), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' > clock_timestamp() - keep
        OR ojs.table_is_held('ojs.jobs_done') OR ojs.table_is_held(('ojs.' || part)::regclass) THEN
        RETURN 0;
    END IF;
    -- Keeps deletes of single rows out while the rows are counted, which may take seconds; reading goes on.
    EXECUTE format('LOCK TABLE ojs.%I IN SHARE ROW EXCLUSIVE MODE', part);
    EXECUTE format('SELECT array_agg(c.queue), array_agg(c.state), array_agg(c.tenant), array_agg(c.n)
        FROM (SELECT queue, state, split_part(lane, ''/'', 1) AS tenant, -count(*) AS n FROM ojs.%I GROUP BY 1, 2, 3) c', part)
        INTO queues, states, tenants, counts;
    -- The rest is short: until the commit it blocks every ack, then the relay. Only the holder of the row of the relay changes counts, so
    -- they are added in any order.
    EXECUTE format('ALTER TABLE ojs.jobs_done DETACH PARTITION ojs.%I', part);
    EXECUTE format('DROP TABLE ojs.%I', part);
    PERFORM FROM ojs.event_relay FOR UPDATE;
    INSERT INTO ojs.queue_counts AS q (queue, state, count)
    SELECT c.queue, c.state, sum(c.n) FROM unnest(queues, states, counts) AS c (queue, state, n) GROUP BY 1, 2
    ON CONFLICT (queue, state) DO UPDATE SET count = q.count + EXCLUDED.count;
    INSERT INTO ojs.tenant_counts AS t (tenant, queue, state, count)
    SELECT c.tenant, c.queue, c.state, c.n FROM unnest(tenants, queues, states, counts) AS c (tenant, queue, state, n) WHERE c.tenant <> ''
    ON CONFLICT (tenant, queue, state) DO UPDATE SET count = t.count + EXCLUDED.count;
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd

-- The days of jobs_done that ended longer than keep ago, with their size in pages.
-- +goose StatementBegin
CREATE FUNCTION ojs.jobs_done_days(keep interval) RETURNS TABLE (day text, pages bigint)
LANGUAGE sql STABLE AS $$
    SELECT substr(c.relname, 12), pg_relation_size(c.oid) / current_setting('block_size')::bigint
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'ojs.jobs_done'::regclass
        AND (to_date(substr(c.relname, 12), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= clock_timestamp() - keep
$$;
-- +goose StatementEnd

SELECT ojs.jobs_done_partitions_ensure();

-- +goose Down
-- The schema itself stays, because goose's version table may live in it. Dropping a partitioned table drops its
-- partitions.
DROP VIEW ojs.job_finished;
DROP FUNCTION ojs.jobs_done_days(interval);
DROP FUNCTION ojs.jobs_done_partitions_prune(interval);
DROP FUNCTION ojs.session_end(integer, double precision, bigint);
DROP FUNCTION ojs.table_is_held(regclass);
DROP FUNCTION ojs.jobs_done_partitions_ensure(integer);
DROP FUNCTION ojs.unique_key_data(text);
DROP FUNCTION ojs.progress_data(double precision, text);
DROP FUNCTION ojs.worker_source(text);
DROP FUNCTION ojs.percent_encoded(text);
DROP FUNCTION ojs.result_is_over(timestamptz, bigint);
DROP FUNCTION ojs.dead_letter_matches(uuid, text, text, json, uuid[], text[], text[], text[], text[], text[]);
DROP FUNCTION ojs.makes_dead_letters(text, text);
DROP FUNCTION ojs.error_brief(text, integer);
DROP FUNCTION ojs.error_type(json);
DROP FUNCTION ojs.error_code(json);
DROP FUNCTION ojs.deadline_error(text, text, integer, timestamptz, timestamptz, timestamptz);
DROP FUNCTION ojs.errors_append(json[], json, integer);
DROP FUNCTION ojs.error_at(text, timestamptz);
DROP FUNCTION ojs.new_id(timestamptz);
DROP FUNCTION ojs.time_us(timestamptz);
DROP FUNCTION ojs.with_scheduled_at(json, timestamptz, timestamptz);
DROP FUNCTION ojs.time_text(timestamptz);
DROP TABLE ojs.idempotency_keys, ojs.queues, ojs.jobs_done, ojs.jobs;
DROP FUNCTION ojs.stored_size(json, json, json, json[], json[], json, integer);
DROP SEQUENCE ojs.ready_seq;
DROP FUNCTION ojs.schema_version();
