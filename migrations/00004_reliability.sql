-- +goose Up
-- What retries, dead letters, timeouts, cron, progress and checkpoints need of a job (contract 20). All columns are NULL or
-- constant for existing rows, so no table is rewritten.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 4 $$;
-- +goose StatementEnd

ALTER TABLE ojs.jobs
    ADD COLUMN total_due_at     timestamptz, -- created_at + total_timeout
    ADD COLUMN ttl_due_at       timestamptz, -- created_at + enqueue_ttl, until the first claim
    ADD COLUMN stall_ms         bigint,      -- longest silence while active (heartbeat_timeout); NULL: no limit
    ADD COLUMN stall_due_at     timestamptz, -- latest sign of life + stall_ms, while active
    ADD COLUMN result_ttl_s     bigint,      -- NULL: the server's default, 0: not kept, -1: kept as long as the job
    ADD COLUMN dead_lettered_at timestamptz, -- set: a dead letter; only discarded jobs
    ADD COLUMN re_enqueued_at   timestamptz, -- latest manual retry
    ADD COLUMN replay_count     integer      NOT NULL DEFAULT 0,
    ADD COLUMN previous_errors  json[],      -- failures before the latest manual retry, oldest first
    ADD COLUMN cron             text,        -- name of the cron that made it
    ADD COLUMN cron_serial      boolean      NOT NULL DEFAULT false, -- at most one job of its cron runs: the others are available without ready_seq
    ADD COLUMN progress         double precision, -- 0 to 1, of the current or latest attempt
    ADD COLUMN progress_message text,
    ADD COLUMN progress_data    json,
    ADD COLUMN progress_at      timestamptz,
    ADD COLUMN checkpoint       json,        -- object with state, step_index and metadata; until a terminal state
    ADD COLUMN checkpoint_seq   bigint,
    ADD COLUMN checkpoint_at    timestamptz;

ALTER TABLE ojs.jobs_done
    ADD COLUMN total_due_at     timestamptz,
    ADD COLUMN ttl_due_at       timestamptz,
    ADD COLUMN stall_ms         bigint,
    ADD COLUMN stall_due_at     timestamptz,
    ADD COLUMN result_ttl_s     bigint,
    ADD COLUMN dead_lettered_at timestamptz,
    ADD COLUMN re_enqueued_at   timestamptz,
    ADD COLUMN replay_count     integer      NOT NULL DEFAULT 0,
    ADD COLUMN previous_errors  json[],
    ADD COLUMN cron             text,
    ADD COLUMN cron_serial      boolean      NOT NULL DEFAULT false,
    ADD COLUMN progress         double precision,
    ADD COLUMN progress_message text,
    ADD COLUMN progress_data    json,
    ADD COLUMN progress_at      timestamptz,
    ADD COLUMN checkpoint       json,
    ADD COLUMN checkpoint_seq   bigint,
    ADD COLUMN checkpoint_at    timestamptz;

-- Whether a policy, as stored, makes dead letters. By the text, because -> fails for documents with \u0000; inside a
-- string the quotes would be escaped.
-- +goose StatementBegin
CREATE FUNCTION ojs.makes_dead_letters(retry json) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT COALESCE(strpos(retry::text, '"on_exhaustion":"dead_letter"') > 0, false)
$$;
-- +goose StatementEnd

-- The error of a job that time ended while it waited (T13, T16), as text without its time.
-- +goose StatementBegin
CREATE FUNCTION ojs.deadline_error(code text, message text, attempt integer, created_at timestamptz, due timestamptz, now timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT '{"attempt":' || attempt || ',"code":"' || code || '","type":"' || code || '","message":"' || message || '","retryable":false'
        || CASE code WHEN 'total_timeout' THEN ',"timeout_kind":"total"' WHEN 'enqueue_ttl_expired' THEN ',"timeout_kind":"enqueue_ttl"' ELSE '' END
        || ',"limit_seconds":' || GREATEST(0, round(date_part('epoch', due - created_at)::numeric, 3))
        || ',"elapsed_seconds":' || GREATEST(0, round(date_part('epoch', now - created_at)::numeric, 3)) || '}'
$$;
-- +goose StatementEnd

-- code and type of a stored error, as they stand in its text between the quotes, escapes included. Read from the head of the
-- text, which the server always writes as {"attempt":…,"code":…,"type":…,"message":…: -> fails for documents with \u0000, and
-- quotes inside of a text are escaped, so the separators cannot be part of one. A regular expression takes ten times as long.
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

-- The filters of the dead-letter list (contract 20 §8.2); an empty array takes all. error_codes and error_types are as
-- error_code and error_type give them.
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

-- Days of jobs_done that are over for longer than keep, with their size.
-- +goose StatementBegin
CREATE FUNCTION ojs.jobs_done_days(keep interval) RETURNS TABLE (day text, pages bigint)
LANGUAGE sql STABLE AS $$
    SELECT substr(c.relname, 12), pg_relation_size(c.oid) / current_setting('block_size')::bigint
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'ojs.jobs_done'::regclass
        AND (to_date(substr(c.relname, 12), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= clock_timestamp() - keep
$$;
-- +goose StatementEnd

-- Only for tests (contract 10 §13.3). TRUNCATE of everything but the relay's own row; sequences go on.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.reset() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    tables text;
BEGIN
    -- The lock of RelayLock: a pass and TRUNCATE take the tables' locks in different orders.
    PERFORM pg_advisory_xact_lock(hashtext('ojs'), hashtext('event_relay'));
    PERFORM FROM ojs.event_relay FOR UPDATE;
    SELECT string_agg(c.oid::regclass::text, ', ') INTO tables FROM pg_class c
    WHERE c.relnamespace = 'ojs'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND c.relname NOT IN ('event_relay', 'goose_db_version');
    EXECUTE 'TRUNCATE ' || tables;
    UPDATE ojs.event_relay SET watermark = (SELECT last_value FROM ojs.event_seq), pruned = (SELECT last_value FROM ojs.event_seq);
    PERFORM pg_notify('ojs_reset', 'all');
END
$$;
-- +goose StatementEnd

-- ojs.enqueue and ojs.cancel with the new columns; CREATE OR REPLACE keeps the rights that were granted on them.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.enqueue(type text, args json, queue text DEFAULT 'default', options json DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    t         timestamptz := clock_timestamp();
    o         ojs.job_options;
    job_id    uuid;
    state     text := 'available';
    status    text;
    event_seq bigint;
    limits    jsonb;
    total     interval;
    ttl       interval;
BEGIN
    IF octet_length(args::text) + COALESCE(octet_length(options::text), 0) > 1048576 THEN
        PERFORM ojs.refuse('envelope is larger than 1048576 bytes; send less.');
    ELSIF json_typeof(options) NOT IN ('object', 'null') THEN
        PERFORM ojs.refuse_field('options', 'an object', ojs.json_seal(options::text));
    ELSIF (type ~ '^[a-z][a-z0-9_-]*([.][a-z][a-z0-9_-]*)*$' AND octet_length(type) <= 255) IS NOT TRUE THEN
        PERFORM ojs.refuse_type(type);
    END IF;
    args := ojs.args_read(args);
    queue := COALESCE(queue, 'default');
    IF json_typeof(options) = 'object' THEN
        o := ojs.options_read(options, queue, t);
        queue := o.queue;
        state := CASE WHEN o.pending THEN 'pending' WHEN o.run_at > t THEN 'scheduled' ELSE 'available' END;
        IF o.extra::text ~ '"(total_timeout|enqueue_ttl|heartbeat_timeout|result_ttl)"' THEN
            limits := ojs.json_members(ojs.json_seal(options::text));
            total := NULLIF(ojs.json_integer(limits ->> 'total_timeout'), 0) * interval '1 second';
            ttl := NULLIF(ojs.json_integer(limits ->> 'enqueue_ttl'), 0) * interval '1 second';
        END IF;
    ELSE
        queue := ojs.queue_read(queue);
    END IF;
    SELECT q.status INTO status FROM ojs.queues q WHERE q.name = queue;
    IF NOT FOUND THEN
        INSERT INTO ojs.queue_notes (name) SELECT queue WHERE NOT EXISTS (SELECT FROM ojs.queue_notes n WHERE n.name = queue);
    ELSIF status = 'draining' THEN
        PERFORM ojs.refuse('queue ' || queue || ' is draining and takes no new jobs.');
    END IF;

    job_id := COALESCE(o.id, ojs.new_id(t));
    WITH job AS (
        INSERT INTO ojs.jobs (id, type, queue, state, priority, max_attempts, ready_seq, due_at, created_at, enqueued_at,
            scheduled_at, expires_at, timeout_ms, visibility_ms, grace_ms, trace_id, retry, args, meta, extra,
            total_due_at, ttl_due_at, stall_ms, result_ttl_s)
        VALUES (job_id, type, queue, state, COALESCE(o.priority, 0), COALESCE(o.max_attempts, 3),
            CASE WHEN state = 'available' THEN nextval('ojs.ready_seq') END,
            LEAST(CASE WHEN state = 'scheduled' THEN o.run_at END, o.dead_at, t + total, t + ttl),
            t, CASE WHEN state = 'available' THEN t END,
            o.run_at, o.dead_at, NULLIF(o.timeout_ms, 0), o.visibility_ms, NULLIF(o.grace_ms, 0), o.trace_id,
            o.retry, args, o.meta, o.extra, t + total, t + ttl,
            NULLIF(ojs.json_integer(limits ->> 'heartbeat_timeout'), 0) * 1000, ojs.json_integer(limits ->> 'result_ttl'))
        ON CONFLICT (id) DO NOTHING
        RETURNING priority, ready_seq
    )
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, trace_id, to_state, internal, priority, ready_seq, data)
    SELECT CASE state WHEN 'available' THEN 'job.enqueued' WHEN 'scheduled' THEN 'job.scheduled' ELSE 'job.state_changed' END,
        'api', t, job_id, type, queue, o.trace_id, state, state = 'pending', job.priority, job.ready_seq,
        CASE WHEN state = 'scheduled' THEN ('{"scheduled_at":"' || ojs.time_text(o.run_at) || '"}')::json END
    FROM job
    RETURNING seq INTO event_seq;

    IF NOT FOUND OR o.id IS NOT NULL AND ojs.id_was_used(o.id) THEN
        RAISE EXCEPTION USING ERRCODE = 'unique_violation', MESSAGE = 'A job with id ' || job_id || ' already exists.';
    END IF;
    IF o.notify IS DISTINCT FROM false THEN
        PERFORM pg_notify('ojs_wake', '');
    END IF;
    -- Servers keep partitions ready far ahead; this is for producers that go on without one.
    IF event_seq % 50000 = 0 THEN
        PERFORM ojs.event_partitions_ensure(1);
    END IF;
    RETURN job_id;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.cancel(id uuid, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF octet_length(reason) > 1024 THEN
        PERFORM ojs.refuse('reason must be a text of at most 1024 bytes.');
    END IF;
    -- Without a server nobody makes tomorrow's partition; a look-up in the catalog if it is there.
    PERFORM ojs.jobs_done_partitions_ensure(1);
    WITH gone AS (
        DELETE FROM ojs.jobs j
        WHERE j.id = cancel.id AND j.state IN ('scheduled', 'pending', 'available', 'active', 'retryable')
        RETURNING j.id, j.type, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.created_at, j.enqueued_at, j.started_at,
            clock_timestamp() AS finished_at, j.scheduled_at, j.expires_at, j.visibility_ms, j.timeout_ms, j.grace_ms,
            j.retry_delay_ms, j.worker_id, j.trace_id, j.retry, j.args, j.meta, j.extra, j.error, j.errors,
            j.result_ttl_s, j.re_enqueued_at, j.replay_count, j.previous_errors, j.cron, j.progress, j.progress_message, j.progress_data, j.progress_at
    ), done AS (
        INSERT INTO ojs.jobs_done (id, type, queue, state, priority, attempt, max_attempts, created_at, enqueued_at, started_at, finished_at,
            scheduled_at, expires_at, visibility_ms, timeout_ms, grace_ms, retry_delay_ms, worker_id, trace_id, previous_state,
            retry, args, meta, extra, error, errors, result_ttl_s, re_enqueued_at, replay_count, previous_errors, cron, progress,
            progress_message, progress_data, progress_at)
        SELECT g.id, g.type, g.queue, 'cancelled', g.priority, g.attempt, g.max_attempts, g.created_at, g.enqueued_at, g.started_at, g.finished_at,
            g.scheduled_at, g.expires_at, g.visibility_ms, g.timeout_ms, g.grace_ms, g.retry_delay_ms, g.worker_id, g.trace_id, g.state,
            g.retry, g.args, g.meta, g.extra, g.error, g.errors, g.result_ttl_s, g.re_enqueued_at, g.replay_count, g.previous_errors, g.cron, g.progress,
            g.progress_message, g.progress_data, g.progress_at
        FROM gone g
    )
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, attempt, worker_id, trace_id, from_state, to_state, data)
    SELECT 'job.cancelled', 'api', g.finished_at, g.id, g.type, g.queue, g.attempt, g.worker_id, g.trace_id, g.state, 'cancelled',
        ('{"cancelled_by":"sql"' || COALESCE(',"reason":' || to_json(NULLIF(reason, ''))::text, '') || '}')::json
    FROM gone g;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('ojs_wake', '');
    RETURN true;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.reset() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM ojs.event_relay FOR UPDATE;
    TRUNCATE ojs.jobs, ojs.jobs_done, ojs.events, ojs.event_gaps, ojs.queues, ojs.workers, ojs.queue_counts, ojs.stats_minute, ojs.idempotency_keys;
    UPDATE ojs.event_relay SET watermark = (SELECT last_value FROM ojs.event_seq), pruned = (SELECT last_value FROM ojs.event_seq);
    PERFORM pg_notify('ojs_reset', 'all');
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.enqueue(type text, args json, queue text DEFAULT 'default', options json DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    t         timestamptz := clock_timestamp();
    o         ojs.job_options;
    job_id    uuid;
    state     text := 'available';
    status    text;
    event_seq bigint;
BEGIN
    IF octet_length(args::text) + COALESCE(octet_length(options::text), 0) > 1048576 THEN
        PERFORM ojs.refuse('envelope is larger than 1048576 bytes; send less.');
    ELSIF json_typeof(options) NOT IN ('object', 'null') THEN
        PERFORM ojs.refuse_field('options', 'an object', ojs.json_seal(options::text));
    ELSIF (type ~ '^[a-z][a-z0-9_-]*([.][a-z][a-z0-9_-]*)*$' AND octet_length(type) <= 255) IS NOT TRUE THEN
        PERFORM ojs.refuse_type(type);
    END IF;
    args := ojs.args_read(args);
    queue := COALESCE(queue, 'default');
    IF json_typeof(options) = 'object' THEN
        o := ojs.options_read(options, queue, t);
        queue := o.queue;
        state := CASE WHEN o.pending THEN 'pending' WHEN o.run_at > t THEN 'scheduled' ELSE 'available' END;
    ELSE
        queue := ojs.queue_read(queue);
    END IF;
    SELECT q.status INTO status FROM ojs.queues q WHERE q.name = queue;
    IF NOT FOUND THEN
        INSERT INTO ojs.queue_notes (name) SELECT queue WHERE NOT EXISTS (SELECT FROM ojs.queue_notes n WHERE n.name = queue);
    ELSIF status = 'draining' THEN
        PERFORM ojs.refuse('queue ' || queue || ' is draining and takes no new jobs.');
    END IF;

    job_id := COALESCE(o.id, ojs.new_id(t));
    WITH job AS (
        INSERT INTO ojs.jobs (id, type, queue, state, priority, max_attempts, ready_seq, due_at, created_at, enqueued_at,
            scheduled_at, expires_at, timeout_ms, visibility_ms, grace_ms, trace_id, retry, args, meta, extra)
        VALUES (job_id, type, queue, state, COALESCE(o.priority, 0), COALESCE(o.max_attempts, 3),
            CASE WHEN state = 'available' THEN nextval('ojs.ready_seq') END,
            LEAST(CASE WHEN state = 'scheduled' THEN o.run_at END, o.dead_at),
            t, CASE WHEN state = 'available' THEN t END,
            o.run_at, o.dead_at, NULLIF(o.timeout_ms, 0), o.visibility_ms, NULLIF(o.grace_ms, 0), o.trace_id,
            o.retry, args, o.meta, o.extra)
        ON CONFLICT (id) DO NOTHING
        RETURNING priority, ready_seq
    )
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, trace_id, to_state, internal, priority, ready_seq, data)
    SELECT CASE state WHEN 'available' THEN 'job.enqueued' WHEN 'scheduled' THEN 'job.scheduled' ELSE 'job.state_changed' END,
        'api', t, job_id, type, queue, o.trace_id, state, state = 'pending', job.priority, job.ready_seq,
        CASE WHEN state = 'scheduled' THEN ('{"scheduled_at":"' || ojs.time_text(o.run_at) || '"}')::json END
    FROM job
    RETURNING seq INTO event_seq;

    IF NOT FOUND OR o.id IS NOT NULL AND ojs.id_was_used(o.id) THEN
        RAISE EXCEPTION USING ERRCODE = 'unique_violation', MESSAGE = 'A job with id ' || job_id || ' already exists.';
    END IF;
    IF o.notify IS DISTINCT FROM false THEN
        PERFORM pg_notify('ojs_wake', '');
    END IF;
    -- Servers keep partitions ready far ahead; this is for producers that go on without one.
    IF event_seq % 50000 = 0 THEN
        PERFORM ojs.event_partitions_ensure(1);
    END IF;
    RETURN job_id;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.cancel(id uuid, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF octet_length(reason) > 1024 THEN
        PERFORM ojs.refuse('reason must be a text of at most 1024 bytes.');
    END IF;
    -- Without a server nobody makes tomorrow's partition; a look-up in the catalog if it is there.
    PERFORM ojs.jobs_done_partitions_ensure(1);
    WITH gone AS (
        DELETE FROM ojs.jobs j
        WHERE j.id = cancel.id AND j.state IN ('scheduled', 'pending', 'available', 'active', 'retryable')
        RETURNING j.id, j.type, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.created_at, j.enqueued_at, j.started_at,
            clock_timestamp() AS finished_at, j.scheduled_at, j.expires_at, j.visibility_ms, j.timeout_ms, j.grace_ms,
            j.retry_delay_ms, j.worker_id, j.trace_id, j.retry, j.args, j.meta, j.extra, j.error, j.errors
    ), done AS (
        INSERT INTO ojs.jobs_done (id, type, queue, state, priority, attempt, max_attempts, created_at, enqueued_at, started_at, finished_at,
            scheduled_at, expires_at, visibility_ms, timeout_ms, grace_ms, retry_delay_ms, worker_id, trace_id, previous_state,
            retry, args, meta, extra, error, errors)
        SELECT g.id, g.type, g.queue, 'cancelled', g.priority, g.attempt, g.max_attempts, g.created_at, g.enqueued_at, g.started_at, g.finished_at,
            g.scheduled_at, g.expires_at, g.visibility_ms, g.timeout_ms, g.grace_ms, g.retry_delay_ms, g.worker_id, g.trace_id, g.state,
            g.retry, g.args, g.meta, g.extra, g.error, g.errors
        FROM gone g
    )
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, attempt, worker_id, trace_id, from_state, to_state, data)
    SELECT 'job.cancelled', 'api', g.finished_at, g.id, g.type, g.queue, g.attempt, g.worker_id, g.trace_id, g.state, 'cancelled',
        ('{"cancelled_by":"sql"' || COALESCE(',"reason":' || to_json(NULLIF(reason, ''))::text, '') || '}')::json
    FROM gone g;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('ojs_wake', '');
    RETURN true;
END
$$;
-- +goose StatementEnd
DROP FUNCTION ojs.deadline_error(text, text, integer, timestamptz, timestamptz, timestamptz);
DROP FUNCTION ojs.makes_dead_letters(json);
DROP FUNCTION ojs.dead_letter_matches(uuid, text, text, json, uuid[], text[], text[], text[], text[], text[]);
DROP FUNCTION ojs.jobs_done_days(interval);
DROP FUNCTION ojs.error_type(json);
DROP FUNCTION ojs.error_code(json);
ALTER TABLE ojs.jobs_done
    DROP COLUMN total_due_at, DROP COLUMN ttl_due_at, DROP COLUMN stall_ms, DROP COLUMN stall_due_at,
    DROP COLUMN result_ttl_s, DROP COLUMN dead_lettered_at, DROP COLUMN re_enqueued_at, DROP COLUMN replay_count,
    DROP COLUMN previous_errors, DROP COLUMN cron, DROP COLUMN cron_serial, DROP COLUMN progress,
    DROP COLUMN progress_message, DROP COLUMN progress_data, DROP COLUMN progress_at, DROP COLUMN checkpoint,
    DROP COLUMN checkpoint_seq, DROP COLUMN checkpoint_at;
ALTER TABLE ojs.jobs
    DROP COLUMN total_due_at, DROP COLUMN ttl_due_at, DROP COLUMN stall_ms, DROP COLUMN stall_due_at,
    DROP COLUMN result_ttl_s, DROP COLUMN dead_lettered_at, DROP COLUMN re_enqueued_at, DROP COLUMN replay_count,
    DROP COLUMN previous_errors, DROP COLUMN cron, DROP COLUMN cron_serial, DROP COLUMN progress,
    DROP COLUMN progress_message, DROP COLUMN progress_data, DROP COLUMN progress_at, DROP COLUMN checkpoint,
    DROP COLUMN checkpoint_seq, DROP COLUMN checkpoint_at;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 3 $$;
-- +goose StatementEnd
