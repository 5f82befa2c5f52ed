-- +goose Up
-- ojs.enqueue, ojs.cancel and the view ojs.job: the job calls of the HTTP API, for SQL callers inside their own
-- transactions. An invalid call raises SQLSTATE 22023 with a sentence that names the option, and stores nothing. Only
-- what the columns need is checked here: names, types, ranges, sizes. The server checks the rules of a retry policy when
-- it reads one.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 10 $$;
-- +goose StatementEnd

-- Arrays and objects are not shown: 1 MB of numbers such as 1e100000 is 10 GB of text when jsonb writes it.
-- +goose StatementBegin
CREATE FUNCTION ojs.refuse(name text, rule text, got jsonb DEFAULT NULL) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    shown text := CASE WHEN jsonb_typeof(got) IN ('array', 'object') THEN 'an ' || jsonb_typeof(got) ELSE left(got #>> '{}', 60) END;
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = format('%L must %s%s.', left(name, 60), rule, ', got ' || shown);
END
$$;
-- +goose StatementEnd

-- Whether a document has more than `levels` levels. It reads the text, because a cast to jsonb fails for \u0000. Once
-- escapes are removed, every second piece between quotes is outside of strings. Of those only the brackets are kept;
-- each round removes the innermost pairs.
-- +goose StatementBegin
CREATE FUNCTION ojs.json_is_deep(document json, levels integer) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    rest text := document;
BEGIN
    IF length(rest) - length(translate(rest, '[{', '')) <= levels THEN
        RETURN false;
    END IF;
    SELECT string_agg(regexp_replace(translate(part.outside, '{}', '[]'), '[^][]+', '', 'g'), '' ORDER BY part.n) INTO rest
    FROM string_to_table(replace(replace(rest, E'\\\\', ''), E'\\"', ''), '"') WITH ORDINALITY AS part (outside, n) WHERE part.n % 2 = 1;
    FOR level IN 1..levels LOOP
        rest := replace(rest, '[]', '');
    END LOOP;
    RETURN rest <> '';
END
$$;
-- +goose StatementEnd

-- The options that are not null, as jsonb. Of equal names the last one counts.
-- +goose StatementBegin
CREATE FUNCTION ojs.options_read(options json) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    known CONSTANT text[] := '{id,priority,pending,scheduled_at,expires_at,timeout_ms,visibility_timeout_ms,grace_period,
        total_timeout,enqueue_ttl,heartbeat_timeout,result_ttl,max_attempts,retry,meta,tags,schema,unique,unique_key,notify}';
    given jsonb;
    other text;
BEGIN
    IF json_typeof(options) <> 'object' THEN
        PERFORM ojs.refuse('options', 'be an object');
    ELSIF ojs.json_is_deep(options, 33) THEN
        PERFORM ojs.refuse('options', 'be nested at most 32 levels in each option');
    END IF;
    BEGIN
        given := options;
    EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
        PERFORM ojs.refuse('options', format('hold no U+0000, no lone surrogate and no number beyond numeric (%s)', SQLERRM));
    END;
    SELECT o.name INTO other FROM jsonb_object_keys(given) AS o (name) WHERE o.name <> ALL (known) ORDER BY 1 LIMIT 1;
    IF other = 'rate_limit' THEN
        PERFORM ojs.refuse(other, 'be left out, because it is not supported by ojs.enqueue: nothing would enforce it');
    ELSIF other IS NOT NULL THEN
        PERFORM ojs.refuse(other, 'be left out, because ojs.enqueue does not know it. It knows ' || array_to_string(known, ', '));
    END IF;
    RETURN (SELECT COALESCE(jsonb_object_agg(o.key, o.value), '{}') FROM jsonb_each(given) o WHERE o.value <> 'null');
END
$$;
-- +goose StatementEnd

-- An option of one JSON type; NULL if it was not sent.
-- +goose StatementBegin
CREATE FUNCTION ojs.option(options jsonb, name text, kind text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF jsonb_typeof(options -> name) <> kind THEN
        PERFORM ojs.refuse(name, 'be of type ' || kind, options -> name);
    END IF;
    RETURN options -> name;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION ojs.option_integer(options jsonb, name text, low bigint, high bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    value numeric := ojs.option(options, name, 'number');
BEGIN
    IF value NOT BETWEEN low AND high OR value <> trunc(value) THEN
        PERFORM ojs.refuse(name, format('be an integer from %s to %s', low, high), to_jsonb(value));
    END IF;
    RETURN value;
END
$$;
-- +goose StatementEnd

-- An RFC 3339 time with offset, also in basic form or without seconds, cut to microseconds, or a duration from `now` on in
-- whole milliseconds: ISO 8601 without years and months, whose length varies. The shape is tested first, because PostgreSQL also reads infinity,
-- tomorrow, 24:00 and years up to 294276. A duration is added in seconds, because a day of an interval may have 23
-- hours.
-- +goose StatementBegin
CREATE FUNCTION ojs.option_time(options jsonb, name text, now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    value   text := ojs.option(options, name, 'string') #>> '{}';
    p       text[] := regexp_match(value, E'^([0-9]{4})(-?)([0-9]{2})\\2([0-9]{2})T([01][0-9]|2[0-3])(:?)([0-5][0-9])'
        '(?:\\6([0-5][0-9])(?:([.][0-9]{1,6})[0-9]{0,3})?)?(Z|[+-][0-9]{2}(?::?[0-5][0-9])?)$');
    seconds numeric;
BEGIN
    IF p IS NOT NULL AND (p[2] = '') = (p[6] = '') THEN
        RETURN (p[1] || '-' || p[3] || '-' || p[4] || 'T' || p[5] || ':' || p[7] || ':' || COALESCE(p[8], '00') || COALESCE(p[9], '') || p[10])::timestamptz;
    ELSIF value ~ '^[+]?P(?=[0-9T])([0-9]+W)?([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9]+([.][0-9]+)?S)?)?$' THEN
        seconds := round(EXTRACT(epoch FROM ltrim(value, '+')::interval), 3);
    END IF;
    IF value IS NOT NULL AND (seconds <= 3153600000) IS NOT TRUE THEN
        RAISE invalid_datetime_format;
    END IF;
    RETURN now + seconds * interval '1 second';
EXCEPTION WHEN data_exception THEN
    PERFORM ojs.refuse(name, 'be an RFC 3339 time with offset such as 2026-05-04T03:02:01Z, '
        'or a duration such as PT5M or P1D of at most 36500 days', to_jsonb(value));
END
$$;
-- +goose StatementEnd

-- The trace-id field of a valid W3C traceparent, else NULL.
-- +goose StatementBegin
CREATE FUNCTION ojs.traceparent_id(traceparent jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (regexp_match(CASE jsonb_typeof(traceparent) WHEN 'string' THEN traceparent #>> '{}' END,
        '^(?!ff|00-.{53})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?$'))[1]
$$;
-- +goose StatementEnd

-- Whether a finished job has the id of a job that has just been inserted. Called after the insert, with a new snapshot:
-- before it, a row that an ack moves meanwhile would be missed. Under REPEATABLE READ there is no new snapshot; the old
-- one may still show the row that was moved away next to the new one.
-- +goose StatementBegin
CREATE FUNCTION ojs.id_was_used(job_id uuid) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM ojs.jobs_done d WHERE d.id = job_id) OR (SELECT count(*) > 1 FROM ojs.jobs j WHERE j.id = job_id);
END
$$;
-- +goose StatementEnd

-- Moves jobs to jobs_done as cancelled, as JobCancel does, with this data in their events. Returns how many there were; the others
-- are unknown, or in none of the states.
-- +goose StatementBegin
CREATE FUNCTION ojs.cancel_as(ids uuid[], states text[], data json) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    cancelled bigint;
BEGIN
    -- Without a server, tomorrow's partition may be missing. If it exists, this call is one catalogue lookup.
    PERFORM ojs.jobs_done_partitions_ensure(1);
    WITH deleted AS (
        DELETE FROM ojs.jobs j
        WHERE j.id = ANY(ids) AND j.state = ANY(states) AND j.state <> 'discarded'
        RETURNING j.*, clock_timestamp() AS cancelled_at,
            CASE WHEN j.workflow_id IS NOT NULL THEN ojs.workflow_job_changed(j.workflow_id, j.id, 'cancelled', j.attempt, j.started_at, clock_timestamp(),
                NULL, NULL, NULL) END AS advances,
            CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_changed(j.limit_key) END AS limit_changed
    ), moved AS (
        INSERT INTO ojs.jobs_done (id, type, queue, state, priority, attempt, max_attempts, created_at, enqueued_at, started_at, finished_at,
            scheduled_at, expires_at, visibility_ms, timeout_ms, grace_ms, retry_delay_ms, worker_id, trace_id, previous_state,
            retry, args, meta, extra, error, errors, result_ttl_s, re_enqueued_at, replay_count, previous_errors, cron, workflow_id, unique_key, lane, limit_key, progress,
            progress_message, progress_data, progress_at, progress_sent_at, checkpoint, checkpoint_seq, checkpoint_at, size)
        SELECT d.id, d.type, d.queue, 'cancelled', d.priority, d.attempt, d.max_attempts, d.created_at, d.enqueued_at, d.started_at, d.cancelled_at,
            d.scheduled_at, d.expires_at, d.visibility_ms, d.timeout_ms, d.grace_ms, d.retry_delay_ms, d.worker_id, d.trace_id, d.state,
            d.retry, d.args, d.meta, d.extra, d.error, d.errors, d.result_ttl_s, d.re_enqueued_at, d.replay_count, d.previous_errors, d.cron, d.workflow_id, d.unique_key, d.lane, d.limit_key, d.progress,
            d.progress_message, d.progress_data, d.progress_at, d.progress_sent_at, d.checkpoint, d.checkpoint_seq, d.checkpoint_at, d.size
        FROM deleted d
    ), event AS (
        INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, worker_id, workflow_id, trace_id, from_state, to_state, data)
        SELECT 'job.progress', ojs.worker_source(d.worker_id), d.cancelled_at, d.id, d.type, d.queue, d.lane, d.attempt, d.worker_id, d.workflow_id, d.trace_id, NULL, NULL,
            ojs.progress_data(d.progress, d.progress_message)
        FROM deleted d WHERE d.state = 'active' AND d.progress_at > d.progress_sent_at
        UNION ALL
        SELECT 'job.cancelled', 'api', d.cancelled_at, d.id, d.type, d.queue, d.lane, d.attempt, d.worker_id, d.workflow_id, d.trace_id, d.state, 'cancelled', cancel_as.data
        FROM deleted d
    )
    SELECT count(*) INTO cancelled FROM deleted;
    RETURN cancelled;
END
$$;
-- +goose StatementEnd

-- What ojs.enqueue does about jobs that hold the unique key of a new one, as the server does: locks the key, looks in a statement of
-- its own, and then cancels them for the new job or names one that prevents it. `own` are the options of the new job, of
-- which unique was sent.
-- +goose StatementBegin
CREATE FUNCTION ojs.unique_check(own jsonb, job_id uuid, OUT existing uuid, OUT state text, OUT on_conflict text, OUT takes_time timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    given  jsonb := ojs.option(own, 'unique', 'object');
    key    text := ojs.option(own, 'unique_key', 'string') #>> '{}';
    states text[] := '{available,active,scheduled,retryable,pending}';
    now    timestamptz := clock_timestamp();
    since  timestamptz := '-infinity';
    holder record;
    held   uuid[];
BEGIN
    IF (key ~ '^[0-9a-f]{64}$') IS NOT TRUE THEN
        PERFORM ojs.refuse('unique_key', 'be 64 lower-case hex digits; ojs.enqueue computes no key', own -> 'unique_key');
    ELSIF given - '{period,states,on_conflict}'::text[] <> '{}' THEN
        PERFORM ojs.refuse('unique', 'have no members but period, states, on_conflict, because unique_key stands for the rest');
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM ojs.refuse('unique', 'be left out unless the transaction is READ COMMITTED: no other sees what was committed since it began');
    END IF;
    on_conflict := COALESCE(ojs.option(given, 'on_conflict', 'string') #>> '{}', 'reject');
    IF on_conflict <> ALL ('{reject,replace,replace_except_schedule,ignore}') THEN
        PERFORM ojs.refuse('on_conflict', 'be one of reject, replace, replace_except_schedule, ignore', given -> 'on_conflict');
    END IF;
    IF ojs.option(given, 'states', 'array') IS NOT NULL THEN
        SELECT array_agg(s.state) INTO states FROM jsonb_array_elements_text(given -> 'states') AS s (state);
        IF (states <@ '{scheduled,pending,available,active,retryable,completed,cancelled,discarded}') IS NOT TRUE
            OR cardinality(states) > (SELECT count(DISTINCT s.state) FROM unnest(states) AS s (state)) THEN
            PERFORM ojs.refuse('states', 'be a non-empty array of job states, each once');
        END IF;
    END IF;
    IF (ojs.option(given, 'period', 'string') #>> '{}') !~ '^P' OR ojs.option_time(given, 'period', now) <= now THEN
        PERFORM ojs.refuse('period', 'be an ISO 8601 duration above zero such as PT1H', given -> 'period');
    END IF;

    key := ojs.tenant_key(ojs.tenant_of(own -> 'meta'), key);
    PERFORM pg_advisory_xact_lock(('x' || left(key, 16))::bit(64)::bigint);
    now := clock_timestamp();
    IF given -> 'period' IS NOT NULL THEN
        since := now - (ojs.option_time(given, 'period', now) - now);
    END IF;
    FOR holder IN
        SELECT j.id, j.state, j.created_at, j.scheduled_at FROM ojs.jobs j
        WHERE j.unique_key = key AND j.state = ANY(states) AND j.created_at > since
        UNION ALL
        SELECT d.id, d.state, d.created_at, d.scheduled_at FROM ojs.jobs_done d
        WHERE states && '{completed,cancelled}' AND d.unique_key = key AND d.state = ANY(states) AND d.created_at > since AND d.finished_at > since
        ORDER BY 3, 1
    LOOP
        IF existing IS NULL THEN
            existing := holder.id;
            state := holder.state;
            takes_time := CASE WHEN on_conflict = 'replace_except_schedule' AND holder.state = 'scheduled' THEN holder.scheduled_at END;
        END IF;
        EXIT WHEN on_conflict IN ('reject', 'ignore');
        held := held || holder.id;
    END LOOP;
    IF held IS NOT NULL THEN
        existing := NULL;
        PERFORM ojs.cancel_as((SELECT array_agg(h.id ORDER BY h.id) FROM unnest(held) AS h (id)), states,
            ('{"cancelled_by":"system:unique","reason":"replaced by ' || job_id || '"}')::json);
    END IF;
END
$$;
-- +goose StatementEnd

-- queue_notes holds the queues whose first job, or the first for a day, comes from a transaction that is still open. An insert of a row that
-- another transaction has inserted waits for it, and an HTTP server that waits enqueues nothing at all. So a
-- transaction inserts its new queues, and moves used_at of the others, at commit. The trigger deletes the rows, so no other transaction sees one.
CREATE TABLE ojs.queue_notes (name text NOT NULL);

-- +goose StatementBegin
CREATE FUNCTION ojs.queue_insert_noted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM ojs.queue_notes n WHERE n.name = NEW.name;
    BEGIN
        INSERT INTO ojs.queues (name) VALUES (NEW.name) ON CONFLICT (name) DO UPDATE SET used_at = EXCLUDED.used_at;
    EXCEPTION WHEN serialization_failure THEN
        NULL; -- REPEATABLE READ: another transaction has inserted or changed it since the snapshot
    END;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE CONSTRAINT TRIGGER queue_insert_noted AFTER INSERT ON ojs.queue_notes
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION ojs.queue_insert_noted();

-- Stores a job as JobInsert does: the same row for the same options, and the same event. It is SECURITY DEFINER so that
-- a producer needs no right on a table; the search path is pinned because the function has the rights of its owner.
-- +goose StatementBegin
CREATE FUNCTION ojs.enqueue(type text, args json, queue text DEFAULT 'default', options json DEFAULT NULL) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    max_s        CONSTANT bigint := 3153600000; -- 36 500 days
    retry_names  CONSTANT text[] := '{max_attempts,initial_interval,max_interval,backoff_coefficient,jitter,non_retryable_errors,
        on_exhaustion,backoff_strategy}';
    now          timestamptz := clock_timestamp();
    given        jsonb := '{}';
    job_id       uuid := ojs.new_id(now);
    state        text := 'available';
    status       text;
    in_use       boolean; -- the row of the queue needs no change
    run_at       timestamptz;
    expires_at   timestamptz;
    total_due_at timestamptz;
    ttl_due_at   timestamptz;
    priority     smallint;
    max_attempts bigint;
    timeout_ms   bigint;
    visible_ms   bigint;
    grace_s      bigint;
    total_s      bigint;
    ttl_s        bigint;
    stall_s      bigint;
    result_s     bigint;
    retry        jsonb;
    policy       json;
    on_exhaustion text;
    tags         text;
    meta         json;
    trace_id     text;
    unique_key   text; -- as sent
    tenant       text := '';
    lane         text;
    extra        text;
    event_seq    bigint;
    settings     jsonb; -- of the queue
    max_bytes    bigint := (SELECT s.max_job_bytes FROM ojs.server_settings s);
    other        record; -- the outcome of ojs.unique_check
BEGIN
    IF (type ~ '^[a-z][a-z0-9_-]*([.][a-z][a-z0-9_-]*)*$' AND octet_length(type) <= 255) IS NOT TRUE THEN
        PERFORM ojs.refuse('type', 'be words of lower-case letters, digits, _ and - joined by dots, such as invoice.render, of at most 255 bytes', to_jsonb(type));
    ELSIF octet_length(args::text) + COALESCE(octet_length(options::text), 0) > max_bytes THEN
        PERFORM ojs.refuse('args', format('have at most %s bytes together with options', max_bytes));
    ELSIF (json_typeof(args) = 'array') IS NOT TRUE OR ojs.json_is_deep(args, 32) THEN
        PERFORM ojs.refuse('args', 'be an array, nested at most 32 levels');
    END IF;
    queue := COALESCE(queue, 'default');
    IF queue !~ '^[a-z0-9][a-z0-9.-]*$' OR octet_length(queue) > 128 THEN
        PERFORM ojs.refuse('queue', 'be lower-case letters, digits, - and ., starting with a letter or digit, of at most 128 bytes', to_jsonb(queue));
    END IF;

    IF json_typeof(options) <> 'null' THEN
        given := ojs.options_read(options);
        IF (ojs.option(given, 'id', 'string') #>> '{}') !~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' THEN
            PERFORM ojs.refuse('id', 'be a UUIDv7 in lower case', given -> 'id');
        END IF;
        job_id := COALESCE((given ->> 'id')::uuid, job_id);
        IF given ? 'unique' THEN
            other := ojs.unique_check(given, job_id);
            IF other.existing IS NOT NULL AND other.on_conflict = 'ignore' THEN
                RETURN other.existing;
            ELSIF other.existing IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = 'unique_violation', DETAIL = 'unique_key ' || (given ->> 'unique_key'),
                    MESSAGE = format('An equivalent job, %s, already exists in state %s.', other.existing, other.state);
            ELSIF other.takes_time IS NOT NULL THEN
                given := jsonb_set(given - 'pending', '{scheduled_at}', to_jsonb(ojs.time_text(other.takes_time)));
            END IF;
            unique_key := given ->> 'unique_key';
            now := clock_timestamp(); -- the lock may have taken long
        ELSIF given ? 'unique_key' THEN
            PERFORM ojs.refuse('unique_key', 'come with unique, such as {"on_conflict":"reject"}: nothing would enforce it');
        END IF;
        priority := ojs.option_integer(given, 'priority', -100, 100);
        timeout_ms := ojs.option_integer(given, 'timeout_ms', 0, max_s * 1000);
        visible_ms := NULLIF(ojs.option_integer(given, 'visibility_timeout_ms', 0, 604800000), 0);
        grace_s := ojs.option_integer(given, 'grace_period', 0, max_s);
        total_s := ojs.option_integer(given, 'total_timeout', 0, max_s);
        total_due_at := now + NULLIF(total_s, 0) * interval '1 second';
        ttl_s := ojs.option_integer(given, 'enqueue_ttl', 0, max_s);
        ttl_due_at := now + NULLIF(ttl_s, 0) * interval '1 second';
        stall_s := ojs.option_integer(given, 'heartbeat_timeout', 0, max_s);
        result_s := ojs.option_integer(given, 'result_ttl', -1, max_s);
        run_at := ojs.option_time(given, 'scheduled_at', now);
        expires_at := ojs.option_time(given, 'expires_at', now);
        state := CASE WHEN ojs.option(given, 'pending', 'boolean') = 'true' THEN 'pending'
            WHEN run_at > now THEN 'scheduled' ELSE 'available' END;
        IF state = 'pending' AND run_at > now THEN
            PERFORM ojs.refuse('scheduled_at', 'be absent or past when pending is true', given -> 'scheduled_at');
        ELSIF total_s > 0 AND total_s * 1000 < timeout_ms THEN
            PERFORM ojs.refuse('total_timeout', 'be at least timeout_ms', given -> 'total_timeout');
        END IF;
        PERFORM ojs.option(given, 'notify', 'boolean');

        retry := jsonb_strip_nulls(ojs.option(given, 'retry', 'object'));
        IF retry - retry_names <> '{}' THEN
            PERFORM ojs.refuse('retry', 'have no members but ' || array_to_string(retry_names, ', '));
        END IF;
        max_attempts := COALESCE(ojs.option_integer(retry, 'max_attempts', 0, 9223372036854775807),
            ojs.option_integer(given, 'max_attempts', 0, 9223372036854775807));
        on_exhaustion := retry ->> 'on_exhaustion';
        IF retry - 'max_attempts' <> '{}' THEN
            policy := options -> 'retry';
        END IF;

        IF jsonb_path_exists(ojs.option(given, 'tags', 'array'), 'strict $[*] ? (@.type() != "string" || @ == "")') THEN
            PERFORM ojs.refuse('tags', 'be an array of non-empty strings');
        ELSIF given ? 'tags' THEN -- without repetitions
            SELECT '[' || string_agg(to_json(t.tag)::text, ',' ORDER BY t.place) || ']' INTO tags
            FROM (SELECT e.tag, min(e.n) FROM jsonb_array_elements_text(given -> 'tags') WITH ORDINALITY AS e (tag, n) GROUP BY e.tag) t (tag, place);
        END IF;
        IF (ojs.option(given, 'schema', 'string') #>> '{}') !~ '^[A-Za-z][A-Za-z0-9+.-]*:[!-~]+$' THEN
            PERFORM ojs.refuse('schema', 'be an absolute URI such as urn:example:invoice:v1', given -> 'schema');
        END IF;
        IF ojs.option(given, 'meta', 'object') <> '{}' THEN
            meta := options -> 'meta';
            tenant := ojs.tenant_of(given -> 'meta');
            IF octet_length(meta::text) > 65536 THEN
                PERFORM ojs.refuse('meta', 'have at most 65536 bytes');
            END IF;
            IF jsonb_typeof(given #> '{meta,trace_id}') = 'string' THEN
                trace_id := given #>> '{meta,trace_id}';
            END IF;
            IF (octet_length(trace_id) BETWEEN 1 AND 255) IS NOT TRUE THEN
                trace_id := COALESCE(ojs.traceparent_id(given #> '{meta,traceparent}'), ojs.traceparent_id(given #> '{meta,ojs.otel.traceparent}'));
            END IF;
        END IF;

        -- What is shown of the options. Times sent as durations come last, as the time they stand for.
        extra := concat_ws(',', '"timeout_ms":' || timeout_ms, '"visibility_timeout_ms":' || visible_ms,
            CASE WHEN given ->> 'scheduled_at' ~ '^[0-9]' THEN '"scheduled_at":' || (given -> 'scheduled_at')::text END,
            CASE WHEN given ->> 'expires_at' ~ '^[0-9]' THEN '"expires_at":' || (given -> 'expires_at')::text END,
            CASE WHEN given ? 'retry' THEN '"retry":' || (options -> 'retry')::text END,
            CASE WHEN given ? 'unique' THEN '"unique":' || (options -> 'unique')::text END, '"unique_key":"' || unique_key || '"',
            '"schema":' || (given -> 'schema')::text, '"tags":' || tags,
            '"grace_period":' || grace_s, '"total_timeout":' || total_s, '"enqueue_ttl":' || ttl_s,
            '"heartbeat_timeout":' || stall_s, '"result_ttl":' || result_s,
            CASE WHEN given ->> 'scheduled_at' !~ '^[0-9]' THEN '"scheduled_at":"' || ojs.time_text(run_at) || '"' END,
            CASE WHEN given ->> 'expires_at' !~ '^[0-9]' THEN '"expires_at":"' || ojs.time_text(expires_at) || '"' END);
    END IF;

    SELECT CASE WHEN q.deletion IS NULL THEN q.status ELSE 'draining' END, q.used_at > now - interval '1 day' INTO status, in_use
    FROM ojs.queues q WHERE q.name = queue;
    IF in_use IS NOT TRUE THEN
        INSERT INTO ojs.queue_notes (name) SELECT queue WHERE NOT EXISTS (SELECT FROM ojs.queue_notes n WHERE n.name = queue);
    END IF;
    IF status = 'draining' THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'Queue ' || queue || ' is draining and takes no new jobs.';
    END IF;
    settings := ojs.queue_settings(queue);
    IF settings ? 'allowed_job_types' AND NOT EXISTS (
        SELECT FROM jsonb_array_elements_text(settings -> 'allowed_job_types') AS a (pattern)
        WHERE a.pattern = type OR right(a.pattern, 1) = '*' AND starts_with(type, left(a.pattern, -1))) THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'Queue ' || queue || ' takes no jobs of type ' || type || ' (allowed_job_types).';
    END IF;
    timeout_ms := COALESCE(NULLIF(timeout_ms, 0), (settings -> 'timeout_ms')::bigint);
    visible_ms := COALESCE(visible_ms, (settings -> 'visibility_ms')::bigint);
    IF settings ? 'retry' THEN -- the server reads the fields of the options over those of inherits (job.ParseStoredRetry)
        max_attempts := COALESCE(max_attempts, (settings #> '{retry,max_attempts}')::bigint);
        on_exhaustion := COALESCE(on_exhaustion, settings #>> '{retry,on_exhaustion}');
        policy := COALESCE(overlay(policy::text PLACING '{"inherits":' || (settings -> 'retry')::text || ',' FROM 1 FOR 1), settings ->> 'retry');
    END IF;

    PERFORM ojs.bound_note(queue, settings, tenant, job_id, octet_length(args::text) + COALESCE(octet_length(meta::text), 0) + COALESCE(octet_length(extra), 0));
    lane := ojs.job_lane(settings ->> 'fair_key', tenant, meta);
    WITH inserted AS (
        INSERT INTO ojs.jobs AS j (id, type, queue, lane, state, priority, max_attempts, ready_seq, due_at, created_at, enqueued_at,
            scheduled_at, expires_at, total_due_at, ttl_due_at, visibility_ms, timeout_ms, grace_ms, stall_ms, result_ttl_s,
            trace_id, retry, on_exhaustion, args, meta, extra, size, unique_key)
        VALUES (job_id, type, queue, lane, state, COALESCE(priority, 0), COALESCE(max_attempts, 3),
            CASE WHEN state = 'available' THEN nextval('ojs.ready_seq') END,
            LEAST(CASE WHEN state = 'scheduled' THEN run_at END, expires_at, total_due_at, ttl_due_at),
            now, CASE WHEN state = 'available' THEN now END,
            run_at, expires_at, total_due_at, ttl_due_at,
            visible_ms, NULLIF(timeout_ms, 0), NULLIF(grace_s, 0) * 1000, NULLIF(stall_s, 0) * 1000, result_s,
            trace_id, policy, CASE WHEN on_exhaustion IN ('discard', 'dead_letter') THEN on_exhaustion END, args, meta, ('{' || NULLIF(extra, '') || '}')::json,
            ojs.stored_size(args, meta, NULL, NULL, NULL, NULL, octet_length(extra)), ojs.tenant_key(tenant, unique_key))
        ON CONFLICT (id) DO NOTHING
        RETURNING j.priority, j.ready_seq
    )
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, trace_id, to_state, internal, priority, ready_seq, data)
    SELECT CASE state WHEN 'available' THEN 'job.enqueued' WHEN 'scheduled' THEN 'job.scheduled' ELSE 'job.state_changed' END,
        'api', now, job_id, type, queue, lane, trace_id, state, state = 'pending', inserted.priority, inserted.ready_seq,
        CASE WHEN state = 'scheduled' THEN ('{"scheduled_at":"' || ojs.time_text(run_at) || '"}')::json
            WHEN state = 'available' THEN ojs.unique_key_data(ojs.tenant_key(tenant, unique_key)) END
    FROM inserted
    RETURNING seq INTO event_seq;

    IF NOT FOUND OR given ? 'id' AND ojs.id_was_used(job_id) THEN
        RAISE EXCEPTION USING ERRCODE = 'unique_violation', MESSAGE = 'A job with id ' || job_id || ' already exists.';
    END IF;
    IF given -> 'notify' IS DISTINCT FROM 'false' THEN
        PERFORM pg_notify('ojs_wake', '');
    END IF;
    -- Servers create partitions far ahead. This is for producers that run without a server.
    IF event_seq % 50000 = 0 THEN
        PERFORM ojs.event_partitions_ensure(1);
    END IF;
    RETURN job_id;
END
$$;
-- +goose StatementEnd

-- Cancels a job as JobCancel does. Returns false if the job is unknown or finished.
-- +goose StatementBegin
CREATE FUNCTION ojs.cancel(id uuid, reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF octet_length(reason) > 1024 THEN
        PERFORM ojs.refuse('reason', 'have at most 1024 bytes');
    END IF;
    IF ojs.cancel_as(ARRAY[id], '{scheduled,pending,available,active,retryable}',
        ('{"cancelled_by":"sql"' || COALESCE(',"reason":' || to_json(NULLIF(reason, ''))::text, '') || '}')::json) = 0 THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('ojs_wake', '');
    RETURN true;
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION ojs.enqueue(text, json, text, json) IS
    'Stores a job in the transaction of the caller and returns its id. options are those of the HTTP API under their first names, and id, notify.';
COMMENT ON FUNCTION ojs.cancel(uuid, text) IS
    'Cancels a job in the transaction of the caller; false if it is unknown or already completed, cancelled or discarded.';

-- All jobs as the HTTP API shows them. Both branches have an index on id, which a condition on the view reaches.
CREATE VIEW ojs.job AS
SELECT j.id, j.type, j.queue, j.state, j.priority, j.attempt, j.max_attempts, j.args, COALESCE(j.meta, '{}') AS meta,
    j.extra AS attributes, j.created_at, j.enqueued_at, j.scheduled_at, j.started_at,
    CASE WHEN j.failed THEN j.finished_at END AS completed_at,
    NULL::timestamptz AS cancelled_at,
    CASE WHEN j.state = 'discarded' THEN j.finished_at END AS discarded_at,
    CASE WHEN j.state = 'retryable' THEN j.next_attempt_at END AS next_attempt_at,
    j.expires_at, j.retry_delay_ms,
    CASE WHEN j.state = 'active' THEN j.worker_id END AS worker_id,
    j.error, array_to_json(j.errors) AS errors, j.result
FROM ojs.jobs j
UNION ALL
SELECT d.id, d.type, d.queue, d.state, d.priority, d.attempt, d.max_attempts, d.args, COALESCE(d.meta, '{}'),
    d.extra, d.created_at, d.enqueued_at, d.scheduled_at, d.started_at,
    CASE WHEN d.state = 'completed' THEN d.finished_at END,
    CASE WHEN d.state = 'cancelled' THEN d.finished_at END,
    NULL, NULL, d.expires_at, d.retry_delay_ms, NULL, d.error, array_to_json(d.errors), d.result
FROM ojs.job_finished d;

COMMENT ON VIEW ojs.job IS 'All jobs, live and finished, as the HTTP API shows them. Find one by id; other conditions read everything.';
COMMENT ON COLUMN ojs.job.state IS 'scheduled, pending, available, active, retryable, completed, cancelled or discarded';
COMMENT ON COLUMN ojs.job.priority IS '-100 to 100, higher first';
COMMENT ON COLUMN ojs.job.attempt IS 'how often a worker has fetched it; 0 before the first time';
COMMENT ON COLUMN ojs.job.attributes IS 'everything else the producer sent and gets back (timeout_ms, retry, tags, unknown names), as one object; NULL if nothing';
COMMENT ON COLUMN ojs.job.enqueued_at IS 'latest entry into available; NULL before the first';
COMMENT ON COLUMN ojs.job.scheduled_at IS 'when it was to become available, if it was scheduled; stays after that time';
COMMENT ON COLUMN ojs.job.started_at IS 'latest entry into active';
COMMENT ON COLUMN ojs.job.completed_at IS 'entry into completed, or into discarded by a failed attempt; NULL for jobs that expired or were cancelled';
COMMENT ON COLUMN ojs.job.next_attempt_at IS 'end of the backoff, while retryable';
COMMENT ON COLUMN ojs.job.retry_delay_ms IS 'backoff computed at the latest failure, in ms';
COMMENT ON COLUMN ojs.job.worker_id IS 'the worker that holds it, while active';
COMMENT ON COLUMN ojs.job.error IS 'latest failure; NULL once completed';
COMMENT ON COLUMN ojs.job.errors IS 'failure history as a JSON array, oldest first; NULL if none';
COMMENT ON COLUMN ojs.job.result IS 'what the worker returned, if completed';

-- PostgreSQL lets PUBLIC execute every new function. A volatile function may change something, hold locks or run with
-- the rights of its owner, so only roles that were granted it may call it: a producer with USAGE on the schema enqueues
-- and does nothing else.
-- +goose StatementBegin
DO $$
DECLARE f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'ojs'::regnamespace AND p.provolatile = 'v' LOOP
        EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || f || ' FROM PUBLIC';
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP VIEW ojs.job;
DROP FUNCTION ojs.cancel(uuid, text);
DROP FUNCTION ojs.enqueue(text, json, text, json);
DROP TABLE ojs.queue_notes;
DROP FUNCTION ojs.queue_insert_noted();
DROP FUNCTION ojs.id_was_used(uuid);
DROP FUNCTION ojs.unique_check(jsonb, uuid);
DROP FUNCTION ojs.cancel_as(uuid[], text[], json);
DROP FUNCTION ojs.traceparent_id(jsonb);
DROP FUNCTION ojs.option_time(jsonb, text, timestamptz);
DROP FUNCTION ojs.option_integer(jsonb, text, bigint, bigint);
DROP FUNCTION ojs.option(jsonb, text, text);
DROP FUNCTION ojs.options_read(json);
DROP FUNCTION ojs.json_is_deep(json, integer);
DROP FUNCTION ojs.refuse(text, text, jsonb);
-- +goose StatementBegin
DO $$
DECLARE f regprocedure;
BEGIN
    FOR f IN SELECT p.oid FROM pg_proc p WHERE p.pronamespace = 'ojs'::regnamespace AND p.provolatile = 'v' LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION ' || f || ' TO PUBLIC';
    END LOOP;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 9 $$;
-- +goose StatementEnd
