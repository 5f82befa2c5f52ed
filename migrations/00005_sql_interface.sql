-- +goose Up
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 5 $$;
-- +goose StatementEnd
CREATE TYPE ojs.job_options AS (
    id            uuid,
    queue         text,
    priority      smallint,
    pending       boolean,
    run_at        timestamptz,
    dead_at       timestamptz,
    timeout_ms    bigint,
    visibility_ms bigint,
    grace_ms      bigint,
    max_attempts  bigint,
    retry         json,
    meta          json,
    trace_id      text,
    extra         json,
    notify        boolean
);
CREATE TABLE ojs.queue_notes (name text NOT NULL);
-- +goose StatementBegin
CREATE FUNCTION ojs.json_seal(doc text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN strpos(doc, E'\\') = 0 AND strpos(doc, E'\x7f') = 0 THEN doc
        ELSE replace(replace(replace(replace(doc, E'\x7f', E'\x7f0'), E'\\\\', E'\x7f1'), E'\\"', E'\x7f2'), E'\\', E'\x7f3') END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_unseal(sealed text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN strpos(sealed, E'\x7f') = 0 THEN sealed
        ELSE replace(replace(replace(replace(sealed, E'\x7f3', E'\\'), E'\x7f2', E'\\"'), E'\x7f1', E'\\\\'), E'\x7f0', E'\x7f') END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_compact(sealed text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF strpos(sealed, ' ') = 0 AND strpos(sealed, E'\n') = 0 AND strpos(sealed, E'\t') = 0 AND strpos(sealed, E'\r') = 0 THEN
        RETURN sealed;
    END IF;
    RETURN (SELECT string_agg(CASE WHEN s.n % 2 = 1 THEN translate(s.piece, E' \n\t\r', '') ELSE s.piece END, '"' ORDER BY s.n)
        FROM string_to_table(sealed, '"') WITH ORDINALITY AS s (piece, n));
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_is_deep(v text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    rest text;
BEGIN
    IF v IS NULL OR octet_length(v) < 66 OR length(v) - length(replace(replace(v, '{', ''), '[', '')) <= 32 THEN
        RETURN false;
    END IF;
    SELECT string_agg(regexp_replace(translate(s.piece, '{}', '[]'), '[^][]+', '', 'g'), '' ORDER BY s.n) INTO rest
    FROM string_to_table(v, '"') WITH ORDINALITY AS s (piece, n) WHERE s.n % 2 = 1;
    FOR level IN 1..32 LOOP
        rest := replace(rest, '[]', '');
    END LOOP;
    RETURN rest <> '';
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_unquote(sealed text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    t text := sealed;
BEGIN
    IF strpos(t, E'\x7f') = 0 THEN
        RETURN t;
    END IF;
    t := regexp_replace(t, E'\x7f3(u[dD][89abAB][0-9a-fA-F]{2})\x7f3(u[dD][c-fC-F][0-9a-fA-F]{2})', E'\x7f4\\1\x7f4\\2', 'g');
    t := regexp_replace(t, E'\x7f3u[dD][89a-fA-F][0-9a-fA-F]{2}', E'\x7f3ufffd', 'g');
    t := replace(replace(t, E'\x7f4', E'\x7f3'), E'\x7f3u0000', E'\x7f3uffff\x7f3ufffe\x7f3uffff');
    RETURN ('["' || ojs.json_unseal(t) || '"]')::json ->> 0;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_has_nul(v text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT strpos(v, E'\x7f3u0000') > 0
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_text(v text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN starts_with(v, '"') THEN ojs.json_unquote(substr(v, 2, length(v) - 2)) END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_requote(v text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT '"' || string_agg(substr(q.piece, 2, length(q.piece) - 2), E'\\u0000' ORDER BY q.n) || '"'
    FROM (
        SELECT to_json(ojs.json_unquote(s.piece))::text AS piece, s.n
        FROM string_to_table(substr(v, 2, length(v) - 2), E'\x7f3u0000') WITH ORDINALITY AS s (piece, n)
    ) q
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_integer(v text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    part   text[];
    digits text;
    shift  integer;
    n      numeric;
BEGIN
    IF v ~ '^-?[0-9]{1,18}$' THEN
        RETURN v::bigint;
    END IF;
    part := regexp_match(v, '^(-?)([0-9]+)(?:[.]([0-9]+))?(?:[eE][+]?(-?)0*([0-9]*))?$');
    IF part IS NULL THEN
        RETURN NULL;
    END IF;
    digits := ltrim(part[2] || COALESCE(part[3], ''), '0');
    IF digits = '' THEN
        RETURN 0;
    ELSIF length(part[5]) > 9 THEN
        RETURN NULL;
    END IF;
    shift := length(digits) - length(rtrim(digits, '0')) - COALESCE(length(part[3]), 0)
        + COALESCE((part[4] || NULLIF(part[5], ''))::integer, 0);
    digits := rtrim(digits, '0');
    IF shift < 0 OR length(digits) + shift > 19 THEN
        RETURN NULL;
    END IF;
    n := (part[1] || digits || repeat('0', shift))::numeric;
    IF n BETWEEN -9223372036854775808 AND 9223372036854775807 THEN
        RETURN n::bigint;
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_members(sealed text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN (SELECT COALESCE(jsonb_object_agg(ojs.json_unquote(m.key), NULLIF(m.value::text, 'null')), '{}')
        FROM json_each(sealed::json) m);
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_describe(v text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE left(v, 1) WHEN '{' THEN 'an object' WHEN '[' THEN 'an array' WHEN '"' THEN 'a string' WHEN 'n' THEN 'null'
        WHEN 't' THEN 'a boolean' WHEN 'f' THEN 'a boolean' ELSE 'a number' END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.json_brief(v text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN octet_length(ojs.json_unseal(v)) > 60 THEN ojs.json_describe(v) ELSE ojs.json_unseal(ojs.json_compact(v)) END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.refuse(message text) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = message;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.refuse_field(field text, expected text, v text) RETURNS void
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ojs.refuse('''' || field || CASE WHEN v IS NULL THEN ''' is required: send ' || expected || '.'
        ELSE ''' must be ' || expected || ', got ' || ojs.json_brief(v) || '.' END)
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.refuse_retry(name text, canonical text, expected text, v text) RETURNS void
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ojs.refuse('retry.' || name || CASE WHEN name = canonical THEN '' ELSE ' (' || canonical || ')' END
        || ' must be ' || expected || ', got ' || ojs.json_brief(v) || '.')
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.duration_part(number text, unit_ms bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    n text := left('0' || ltrim(number, '0'), 60);
BEGIN
    IF length(split_part(n, '.', 1)) > 14 OR n::double precision > 3153600000000::double precision / unit_ms THEN
        RETURN NULL;
    ELSIF strpos(n, '.') > 0 THEN
        RETURN round(n::double precision * (unit_ms * 1000000)::double precision);
    END IF;
    RETURN n::bigint * unit_ms * 1000000;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.duration_ms(t text, short boolean) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    rest   text := substr(t, 2);
    clock  boolean := false; -- behind the T
    number text;
    ns     bigint := 0;
BEGIN
    IF short AND t ~ '^[0-9]+([.][0-9]+)?(ms|s|m|h|d|w)$' THEN
        number := rtrim(t, 'mshdw');
        RETURN (ojs.duration_part(number, CASE substr(t, length(number) + 1) WHEN 'ms' THEN 1 WHEN 's' THEN 1000 WHEN 'm' THEN 60000
            WHEN 'h' THEN 3600000 WHEN 'd' THEN 86400000 ELSE 604800000 END) + 500000) / 1000000;
    ELSIF (t ~ '^P([0-9]+Y)?([0-9]+M)?([0-9]+W)?([0-9]+D)?(T([0-9]+H)?([0-9]+M)?([0-9]+([.][0-9]+)?S)?)?$') IS NOT TRUE
        OR right(t, 1) IN ('P', 'T') THEN
        RETURN NULL;
    END IF;
    WHILE rest <> '' LOOP
        clock := clock OR starts_with(rest, 'T');
        rest := ltrim(rest, 'T');
        number := substring(rest FROM '^[0-9.]+');
        ns := ns + ojs.duration_part(number, CASE substr(rest, length(number) + 1, 1)
            WHEN 'Y' THEN 31536000000 WHEN 'M' THEN CASE WHEN clock THEN 60000 ELSE 2592000000 END
            WHEN 'W' THEN 604800000 WHEN 'D' THEN 86400000 WHEN 'H' THEN 3600000 ELSE 1000 END);
        IF ns > 3153600000000000000 THEN
            RETURN NULL;
        END IF;
        rest := substr(rest, length(number) + 2);
    END LOOP;
    RETURN (ns + 500000) / 1000000;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.duration_text(ms bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 'PT' || COALESCE(NULLIF(ms / 3600000, 0) || 'H', '') || COALESCE(NULLIF(ms % 3600000 / 60000, 0) || 'M', '')
        || CASE WHEN ms % 60000 > 0 OR ms < 60000 THEN trim_scale(ms % 60000 / 1000.0)::text || 'S' ELSE '' END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.time_read(t text) RETURNS timestamptz
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    zone  text := CASE WHEN right(t, 1) <> 'Z' THEN right(t, 6) END;
    year  integer;
    local timestamp;
BEGIN
    IF (t ~ '^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$') IS NOT TRUE THEN
        RETURN NULL;
    END IF;
    year := left(t, 4);
    IF substr(t, 9, 2) > (CASE
        WHEN substr(t, 6, 2) IN ('04', '06', '09', '11') THEN '30'
        WHEN substr(t, 6, 2) <> '02' THEN '31'
        WHEN year % 4 = 0 AND (year % 100 <> 0 OR year % 400 = 0) THEN '29'
        ELSE '28' END) THEN
        RETURN NULL;
    END IF;
    local := (CASE WHEN year = 0 THEN '0001' ELSE left(t, 4) END || substr(t, 5, 15)
        || COALESCE(left(substring(t FROM '[.][0-9]+'), 7), '') || CASE WHEN year = 0 THEN ' BC' ELSE '' END)::timestamp;
    IF zone IS NOT NULL THEN
        local := local - make_interval(hours => (left(zone, 3))::integer, mins => (left(zone, 1) || right(zone, 2))::integer);
    END IF;
    RETURN local AT TIME ZONE 'UTC';
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.uri_authority_ok(scheme text, authority text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    userinfo text := substring(authority FROM '^.*@');
    host     text := substr(authority, COALESCE(length(userinfo), 0) + 1);
BEGIN
    IF userinfo !~ '^[A-Za-z0-9._:~!$&''()*+,;=%@-]*$' OR userinfo ~ '%(?![0-9A-Fa-f]{2})' THEN
        RETURN false;
    ELSIF strpos(host, '[') > 0 THEN
        RETURN host ~ '^[[][0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%25[A-Za-z0-9._~-]+)?[]](:[0-9]*)?$';
    ELSIF strpos(host, ':') > 0 AND host !~ (CASE WHEN lower(scheme) IN ('http', 'https') THEN '^[^:]*:[0-9]*$' ELSE ':[0-9]*$' END) THEN
        RETURN false;
    END IF;
    RETURN host !~ E'[\\^`{|}\\\\]' AND host !~ '%(?!25|[89A-Fa-f][0-9A-Fa-f])';
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.is_absolute_uri(uri text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    bad_escape CONSTANT text := '%(?![0-9A-Fa-f]{2})';
    main      text := split_part(uri, '#', 1);
    scheme    text := split_part(main, ':', 1);
    rest      text := split_part(substr(main, length(scheme) + 2), '?', 1);
    authority text;
BEGIN
    IF uri ~ E'[\x01-\x20\x7f]' OR scheme !~ '^[A-Za-z][A-Za-z0-9+.-]*$' OR rest = '' OR substr(uri, length(main) + 1) ~ bad_escape THEN
        RETURN false;
    ELSIF NOT starts_with(rest, '/') THEN
        RETURN true;
    ELSIF NOT starts_with(rest, '//') THEN
        RETURN rest !~ bad_escape;
    END IF;
    authority := split_part(rest, '/', 3);
    rest := substr(rest, length(authority) + 3);
    RETURN rest !~ bad_escape AND ojs.uri_authority_ok(scheme, authority) AND (rest <> '' OR authority !~ '(^|@)$');
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_names() RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT '{type,args,id,specversion,options,queue,priority,meta,metadata,scheduled_at,delay_until,expires_at,timeout_ms,timeout,
        visibility_timeout_ms,visibility_timeout,retry,retry_policy,max_attempts,unique,unique_key,tags,schema,rate_limit,pending,
        grace_period,total_timeout,enqueue_ttl,heartbeat_timeout,result_ttl,notify,
        state,attempt,created_at,enqueued_at,started_at,completed_at,cancelled_at,discarded_at,next_attempt_at,retry_delay_ms,error,
        errors,result,worker_id,previous_state,activated_at,parent_results,
        re_enqueued_at,previous_errors,replay_count,dead_lettered_at,total_attempts,result_stored_at,result_expires_at,
        result_size_bytes,progress,progress_data,last_checkpoint,
        workflow_id,root_workflow_id,workflow_step,workflow_step_id,workflow_callback,parent_results_map,deduplicated}'::text[]
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_id(v text) RETURNS uuid
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    id text := ojs.json_text(v);
BEGIN
    IF v IS NOT NULL AND (id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$') IS NOT TRUE THEN
        PERFORM ojs.refuse_field('id', 'a UUIDv7 in lower case', v);
    END IF;
    RETURN id::uuid;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_queue(v text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    name text := ojs.json_text(v);
BEGIN
    IF octet_length(name) > 128 THEN
        PERFORM ojs.refuse_field('queue', 'at most 128 bytes long', v);
    ELSIF (name ~ '^[a-z0-9][a-z0-9.-]*$') IS NOT TRUE THEN
        PERFORM ojs.refuse_field('queue', 'a queue name of lower-case letters, digits, - and ., starting with a letter or digit', v);
    END IF;
    RETURN name;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.queue_read(queue text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF queue ~ '^[a-z0-9][a-z0-9.-]*$' AND octet_length(queue) <= 128 THEN
        RETURN queue;
    END IF;
    RETURN ojs.option_queue(ojs.json_seal(to_json(queue)::text));
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_priority(v text) RETURNS smallint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    p bigint := CASE WHEN starts_with(v, '"') THEN
        CASE upper(ojs.json_text(v)) WHEN 'HIGH' THEN 10 WHEN 'NORMAL' THEN 0 WHEN 'LOW' THEN -10 END
        ELSE ojs.json_integer(v) END;
BEGIN
    IF v IS NOT NULL AND (p BETWEEN -100 AND 100) IS NOT TRUE THEN
        PERFORM ojs.refuse_field('priority', 'an integer from -100 to 100, or HIGH, NORMAL or LOW', v);
    END IF;
    RETURN p;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_boolean(name text, v text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF v NOT IN ('true', 'false') THEN
        PERFORM ojs.refuse_field(name, 'a boolean', v);
    END IF;
    RETURN v = 'true';
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_time(name text, v text, now timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    t  text := ojs.json_text(v);
    at timestamptz := ojs.time_read(t);
BEGIN
    IF at IS NULL THEN
        at := now + ojs.duration_ms(CASE WHEN starts_with(t, '+') THEN substr(t, 2) ELSE t END, true) * interval '1 millisecond';
    END IF;
    IF v IS NOT NULL AND at IS NULL THEN
        PERFORM ojs.refuse_field(name, 'an RFC 3339 time with offset such as 2026-05-04T03:02:01Z, or a duration such as +PT5M', v);
    END IF;
    RETURN at;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.extra_times(run_v text, run_at timestamptz, dead_v text, dead_at timestamptz, absolute boolean) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT NULLIF(concat_ws(',',
        CASE WHEN absolute = (strpos(ojs.json_text(run_v), '-') > 0)
            THEN '"scheduled_at":' || CASE WHEN absolute THEN run_v ELSE '"' || ojs.time_text(run_at) || '"' END END,
        CASE WHEN absolute = (strpos(ojs.json_text(dead_v), '-') > 0)
            THEN '"expires_at":' || CASE WHEN absolute THEN dead_v ELSE '"' || ojs.time_text(dead_at) || '"' END END), '')
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_lasting(name text, v text, unit bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    n bigint := ojs.json_integer(v);
BEGIN
    IF v IS NOT NULL AND (n BETWEEN 0 AND 3153600000000 / unit) IS NOT TRUE THEN
        PERFORM ojs.refuse_field(name, 'an integer >= 0 of ' || CASE unit WHEN 1 THEN 'milliseconds' ELSE 'seconds' END
            || ', at most 36500 days', v);
    END IF;
    RETURN n * unit;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_visibility(in_ms text, other text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    max_ms CONSTANT bigint := 604800000;
    n      bigint := ojs.json_integer(COALESCE(in_ms, other));
    ms     bigint := CASE WHEN in_ms IS NOT NULL THEN n
        WHEN starts_with(other, '"') THEN ojs.duration_ms(ojs.json_text(other), true)
        WHEN n BETWEEN 0 AND max_ms THEN n * 1000 END;
BEGIN
    IF COALESCE(in_ms, other) IS NOT NULL AND (ms BETWEEN 0 AND max_ms) IS NOT TRUE THEN
        PERFORM ojs.refuse_field(CASE WHEN in_ms IS NULL THEN 'visibility_timeout' ELSE 'visibility_timeout_ms' END,
            'an integer >= 0 of milliseconds (visibility_timeout: seconds or a duration such as PT30S), at most 7 days', COALESCE(in_ms, other));
    END IF;
    RETURN ms;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_limits(opt jsonb, grace_ms bigint, timeout_ms bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    ttl       bigint := ojs.option_lasting('enqueue_ttl', opt ->> 'enqueue_ttl', 1000);
    heartbeat bigint := ojs.option_lasting('heartbeat_timeout', opt ->> 'heartbeat_timeout', 1000);
    total     bigint := ojs.option_lasting('total_timeout', opt ->> 'total_timeout', 1000);
    result    bigint := ojs.json_integer(opt ->> 'result_ttl');
BEGIN
    IF total > 0 AND total < timeout_ms THEN
        PERFORM ojs.refuse_field('total_timeout', 'at least the execution timeout (' || timeout_ms || ' ms)', opt ->> 'total_timeout');
    ELSIF opt ->> 'result_ttl' IS NOT NULL AND (result BETWEEN -1 AND 3153600000) IS NOT TRUE THEN
        PERFORM ojs.refuse_field('result_ttl', 'an integer of seconds >= 0, or -1 to keep the result with the job', opt ->> 'result_ttl');
    END IF;
    RETURN NULLIF(concat_ws(',', '"grace_period":' || grace_ms / 1000, '"total_timeout":' || total / 1000, '"enqueue_ttl":' || ttl / 1000,
        '"heartbeat_timeout":' || heartbeat / 1000, '"result_ttl":' || result), '');
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_object(name text, v text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    IF NOT starts_with(v, '{') THEN
        PERFORM ojs.refuse_field(name, 'an object', v);
    ELSIF ojs.json_is_deep(v) THEN
        PERFORM ojs.refuse_field(name, 'nested at most 32 levels', v);
    END IF;
    RETURN ojs.json_compact(v);
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_meta(metadata text, meta text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    first  text := ojs.option_object('metadata', metadata);
    second text := ojs.option_object('meta', meta);
    merged text := COALESCE(first, second);
BEGIN
    IF first IS NOT NULL AND second IS NOT NULL THEN
        SELECT '{' || string_agg(m.member, ',' ORDER BY m.place) || '}' INTO merged FROM (
            SELECT '"' || (array_agg(s.key ORDER BY s.source, s.n))[1] || '":' || (array_agg(s.value::text ORDER BY s.source, s.n DESC))[1] AS member,
                min(ARRAY[s.source, s.n]) AS place
            FROM (
                SELECT 1 AS source, e.n, e.key, e.value FROM json_each(first::json) WITH ORDINALITY AS e (key, value, n)
                UNION ALL
                SELECT 2, e.n, e.key, e.value FROM json_each(second::json) WITH ORDINALITY AS e (key, value, n)
            ) s
            GROUP BY ojs.json_unquote(s.key)
        ) m;
    END IF;
    RETURN NULLIF(merged, '{}');
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.traceparent_id(t text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (regexp_match(t, '^(?!ff|00-.{53})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?$'))[1]
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.meta_trace_id(meta text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    m  jsonb;
    id text;
BEGIN
    IF strpos(meta, '"trace') = 0 AND strpos(meta, '"ojs.otel.') = 0 AND strpos(meta, E'\x7f') = 0 THEN
        RETURN NULL;
    END IF;
    m := ojs.json_members(meta);
    id := ojs.json_text(m ->> 'trace_id');
    IF id <> '' AND octet_length(id) <= 255 AND NOT ojs.json_has_nul(m ->> 'trace_id') THEN
        RETURN id;
    END IF;
    RETURN COALESCE(ojs.traceparent_id(ojs.json_text(m ->> 'traceparent')), ojs.traceparent_id(ojs.json_text(m ->> 'ojs.otel.traceparent')));
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_tags(v text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    ok   boolean := starts_with(v, '[');
    kept text;
BEGIN
    IF ok THEN
        SELECT string_agg(t.first, ',' ORDER BY t.n), COALESCE(bool_and(t.ok), true) INTO kept, ok FROM (
            SELECT (array_agg(e.value::text ORDER BY e.n))[1] AS first, min(e.n) AS n,
                bool_and(COALESCE(ojs.json_text(e.value::text) <> '' AND NOT ojs.json_has_nul(e.value::text), false)) AS ok
            FROM json_array_elements(v::json) WITH ORDINALITY AS e (value, n)
            GROUP BY ojs.json_text(e.value::text)
        ) t;
    END IF;
    IF NOT ok THEN
        PERFORM ojs.refuse_field('tags', 'an array of non-empty strings without U+0000', v);
    END IF;
    RETURN '[' || kept || ']';
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_labels(opt jsonb, retry_name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    schema     text := opt ->> 'schema';
    unique_key text := opt ->> 'unique_key';
    tags       text;
    rate_limit text;
BEGIN
    IF schema IS NOT NULL AND (ojs.is_absolute_uri(ojs.json_text(schema)) AND NOT ojs.json_has_nul(schema)) IS NOT TRUE THEN
        PERFORM ojs.refuse_field('schema', 'an absolute URI such as urn:example:invoice:v1', schema);
    END IF;
    tags := ojs.option_tags(opt ->> 'tags');
    rate_limit := ojs.option_object('rate_limit', opt ->> 'rate_limit');
    IF ojs.json_is_deep(opt ->> retry_name) THEN
        PERFORM ojs.refuse_field(retry_name, 'nested at most 32 levels', opt ->> retry_name);
    ELSIF unique_key IS NOT NULL AND (ojs.json_text(unique_key) ~ '^[0-9a-f]{64}$') IS NOT TRUE THEN
        PERFORM ojs.refuse_field('unique_key', '64 lower-case hex digits', unique_key);
    ELSIF ojs.option_object('unique', opt ->> 'unique') IS NOT NULL THEN
        PERFORM ojs.refuse('''unique'' is not supported by ojs.enqueue: enqueue unique jobs over HTTP.');
    END IF;
    RETURN NULLIF(concat_ws(',', '"retry":' || ojs.json_compact(opt ->> retry_name), '"unique_key":' || unique_key,
        '"rate_limit":' || rate_limit, '"schema":' || schema, '"tags":' || tags), '');
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_unknown(sealed text, opt jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    members     text;
    deep_names  text[];
    deep_values text[];
BEGIN
    IF opt - ojs.option_names() = '{}' THEN
        RETURN NULL;
    END IF;
    SELECT string_agg('"' || u.key || '":' || u.value, ',' ORDER BY u.place),
        array_agg(u.name ORDER BY u.place) FILTER (WHERE ojs.json_is_deep(u.value)),
        array_agg(u.value ORDER BY u.place) FILTER (WHERE ojs.json_is_deep(u.value))
    INTO members, deep_names, deep_values
    FROM (
        SELECT ojs.json_unquote(e.key) AS name, min(e.n) AS place, (array_agg(e.key ORDER BY e.n))[1] AS key,
            (array_agg(e.value::text ORDER BY e.n DESC))[1] AS value
        FROM json_each(sealed::json) WITH ORDINALITY AS e (key, value, n)
        WHERE ojs.json_unquote(e.key) <> ALL (ojs.option_names())
        GROUP BY 1
    ) u;
    IF deep_names IS NOT NULL THEN
        PERFORM ojs.refuse_field(deep_names[1], 'nested at most 32 levels', deep_values[1]);
    END IF;
    RETURN ojs.json_compact(members);
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.retry_name(r jsonb, VARIADIC names text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY names LOOP
        IF r ->> name IS NOT NULL AND (right(name, 3) <> '_ms' OR ojs.json_integer(r ->> name) IS DISTINCT FROM 0) THEN
            RETURN name;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.retry_interval(name text, canonical text, v text) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    in_ms boolean := right(name, 3) = '_ms';
    ms    bigint := CASE WHEN in_ms THEN ojs.json_integer(v) ELSE ojs.duration_ms(ojs.json_text(v), false) END;
BEGIN
    IF v IS NOT NULL AND (ms BETWEEN 1 AND 3153600000000) IS NOT TRUE THEN
        PERFORM ojs.refuse_retry(name, canonical, CASE WHEN in_ms THEN 'an integer >= 0 of milliseconds, at most 36500 days'
            ELSE 'an ISO 8601 duration above zero such as PT1S, at most 36500 days' END, v);
    END IF;
    RETURN ms;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.retry_coefficient(v text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET extra_float_digits = 1 AS $$
DECLARE
    part text[] := regexp_match(v, '^([0-9]+)([.][0-9]+)?(?:[eE]([+-]?)0*([0-9]{1,3}))?$');
    n    numeric := (CASE WHEN length(part[1]) <= 310 THEN part[1] || left(COALESCE(part[2], ''), 400) || 'e' || COALESCE(part[3] || part[4], '0') END)::numeric;
    f    double precision := CASE WHEN n >= 0.5 AND n < 1.797693134862315808e308 THEN n::text END;
BEGIN
    RETURN CASE WHEN f >= 1e21 THEN f::text WHEN f >= 1 THEN f::text::numeric::text END;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.retry_patterns(name text, v text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    ok   boolean := starts_with(v, '[');
    list text;
BEGIN
    IF ok THEN
        SELECT string_agg(CASE WHEN ojs.json_text(e.value::text) <> '' THEN ojs.json_requote(e.value::text) END, ',' ORDER BY e.n),
            COALESCE(bool_and(COALESCE(ojs.json_text(e.value::text), '') <> ''), true)
        INTO list, ok
        FROM json_array_elements(v::json) WITH ORDINALITY AS e (value, n);
    END IF;
    IF NOT ok THEN
        PERFORM ojs.refuse_retry(name, 'non_retryable_errors', 'an array of non-empty strings', v);
    END IF;
    RETURN list;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.retry_backoff(r jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    initial_name text := ojs.retry_name(r, 'initial_interval', 'initial_interval_ms', 'initial_delay_ms', 'initialInterval');
    max_name     text := ojs.retry_name(r, 'max_interval', 'max_interval_ms', 'maxInterval');
    coefficient_name text := ojs.retry_name(r, 'backoff_coefficient', 'multiplier', 'backoffCoefficient');
    patterns_name text := ojs.retry_name(r, 'non_retryable_errors', 'nonRetryableErrors');
    exhaustion_name text := ojs.retry_name(r, 'on_exhaustion', 'onExhaustion');
    strategy_name text := ojs.retry_name(r, 'backoff_strategy', 'backoff_type', 'strategy', 'backoff');
    initial_ms  bigint;
    max_ms      bigint;
    coefficient text := '2';
    jitter      text := COALESCE(r ->> 'jitter', 'true');
    patterns    text;
    exhaustion  text := 'discard';
    strategy    text := 'exponential';
    tail        text;
BEGIN
    initial_ms := ojs.retry_interval(initial_name, 'initial_interval', r ->> initial_name);
    max_ms := ojs.retry_interval(max_name, 'max_interval', r ->> max_name);
    IF coefficient_name IS NOT NULL THEN
        coefficient := ojs.retry_coefficient(r ->> coefficient_name);
        IF coefficient IS NULL THEN
            PERFORM ojs.refuse_retry(coefficient_name, 'backoff_coefficient', 'a number >= 1.0', r ->> coefficient_name);
        END IF;
    END IF;
    IF jitter NOT IN ('true', 'false') THEN
        PERFORM ojs.refuse_retry('jitter', 'jitter', 'a boolean', jitter);
    END IF;
    patterns := ojs.retry_patterns(patterns_name, r ->> patterns_name);
    IF exhaustion_name IS NOT NULL THEN
        exhaustion := ojs.json_text(r ->> exhaustion_name);
        IF (exhaustion IN ('discard', 'dead_letter')) IS NOT TRUE THEN
            PERFORM ojs.refuse_retry(exhaustion_name, 'on_exhaustion', 'discard or dead_letter', r ->> exhaustion_name);
        END IF;
    END IF;
    IF strategy_name IS NOT NULL THEN
        strategy := ojs.json_text(r ->> strategy_name);
        strategy := CASE strategy WHEN 'none' THEN 'constant' ELSE strategy END;
        IF (strategy IN ('exponential', 'linear', 'polynomial', 'constant')) IS NOT TRUE THEN
            PERFORM ojs.refuse_retry(strategy_name, 'backoff_strategy', 'one of exponential, linear, polynomial, constant, none', r ->> strategy_name);
        END IF;
    END IF;
    -- A lone interval pulls the other along, two that contradict each other are refused.
    IF max_ms < initial_ms THEN
        PERFORM ojs.refuse_retry(max_name, 'max_interval', 'at least initial_interval (' || ojs.duration_text(initial_ms) || ')', r ->> max_name);
    END IF;
    initial_ms := COALESCE(initial_ms, LEAST(1000, max_ms));
    max_ms := COALESCE(max_ms, GREATEST(300000, initial_ms));
    tail := ',"initial_interval_ms":' || initial_ms || ',"max_interval_ms":' || max_ms || ',"backoff_coefficient":' || coefficient
        || ',"jitter":' || jitter || ',"on_exhaustion":"' || exhaustion || '","backoff_strategy":"' || strategy || '"'
        || COALESCE(',"non_retryable_errors":[' || patterns || ']', '') || '}';
    RETURN NULLIF(tail, ',"initial_interval_ms":1000,"max_interval_ms":300000,"backoff_coefficient":2,"jitter":true'
        ',"on_exhaustion":"discard","backoff_strategy":"exponential"}');
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.option_retry(given text, shortcut text, OUT max_attempts bigint, OUT policy text)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    r    jsonb := '{}';
    name text;
BEGIN
    IF starts_with(given, '{') THEN
        r := ojs.json_members(given);
    ELSIF given IS NOT NULL THEN
        PERFORM ojs.refuse('retry must be an object, got ' || ojs.json_describe(given) || '.');
    END IF;
    name := ojs.retry_name(r, 'max_attempts', 'maxAttempts');
    max_attempts := ojs.json_integer(r ->> name);
    IF name IS NOT NULL AND (max_attempts >= 0) IS NOT TRUE THEN
        PERFORM ojs.refuse_retry(name, 'max_attempts', 'an integer >= 0', r ->> name);
    END IF;
    IF r - '{max_attempts,maxAttempts}'::text[] <> '{}' THEN
        policy := ojs.retry_backoff(r);
    END IF;
    IF name IS NULL THEN
        max_attempts := CASE WHEN shortcut IS NULL THEN 3 ELSE ojs.json_integer(shortcut) END;
        IF (max_attempts >= 0) IS NOT TRUE THEN
            PERFORM ojs.refuse('max_attempts must be an integer >= 0, got ' || ojs.json_brief(shortcut) || '.');
        END IF;
    END IF;
    policy := '{"max_attempts":' || max_attempts || policy;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.options_read(options json, queue text, now timestamptz) RETURNS ojs.job_options
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    sealed     text := ojs.json_seal(options::text);
    opt        jsonb := ojs.json_members(sealed);
    retry_name text := CASE WHEN opt ->> 'retry' IS NULL THEN 'retry_policy' ELSE 'retry' END;
    run_name   text := CASE WHEN opt ->> 'scheduled_at' IS NULL THEN 'delay_until' ELSE 'scheduled_at' END;
    meta       text;
    early      text; -- pieces of extra, in their order there
    timeouts   text;
    labels     text;
    limits     text;
    late       text;
    r          record;
    o          ojs.job_options;
BEGIN
    IF opt ? 'id' THEN
        o.id := ojs.option_id(opt ->> 'id');
    END IF;
    o.queue := CASE WHEN opt ->> 'queue' IS NULL THEN ojs.queue_read(queue) ELSE ojs.option_queue(opt ->> 'queue') END;
    IF opt ?| '{priority,pending}' THEN
        o.priority := ojs.option_priority(opt ->> 'priority');
        o.pending := ojs.option_boolean('pending', opt ->> 'pending');
    END IF;
    IF opt ?| '{metadata,meta}' THEN
        meta := ojs.option_meta(opt ->> 'metadata', opt ->> 'meta');
    END IF;
    IF opt ?| '{scheduled_at,delay_until,expires_at}' THEN
        o.run_at := ojs.option_time(run_name, opt ->> run_name, now);
        o.dead_at := ojs.option_time('expires_at', opt ->> 'expires_at', now);
        IF o.pending AND o.run_at > now THEN
            PERFORM ojs.refuse_field(run_name, 'absent or past when ''pending'' is true', opt ->> run_name);
        END IF;
        early := ojs.extra_times(opt ->> run_name, o.run_at, opt ->> 'expires_at', o.dead_at, true);
        late := ojs.extra_times(opt ->> run_name, o.run_at, opt ->> 'expires_at', o.dead_at, false);
    END IF;
    IF opt ?| '{timeout_ms,timeout,visibility_timeout_ms,visibility_timeout,grace_period,total_timeout,enqueue_ttl,heartbeat_timeout,result_ttl}' THEN
        o.timeout_ms := CASE WHEN opt ->> 'timeout_ms' IS NULL THEN ojs.option_lasting('timeout', opt ->> 'timeout', 1000)
            ELSE ojs.option_lasting('timeout_ms', opt ->> 'timeout_ms', 1) END;
        o.visibility_ms := NULLIF(ojs.option_visibility(opt ->> 'visibility_timeout_ms', opt ->> 'visibility_timeout'), 0);
        o.grace_ms := ojs.option_lasting('grace_period', opt ->> 'grace_period', 1000);
        limits := ojs.option_limits(opt, o.grace_ms, o.timeout_ms);
        timeouts := concat_ws(',', CASE WHEN opt ->> 'timeout_ms' IS NULL THEN '"timeout":' || o.timeout_ms / 1000 END,
            '"timeout_ms":' || o.timeout_ms, '"visibility_timeout_ms":' || o.visibility_ms);
    END IF;
    IF opt ?| '{schema,tags,rate_limit,retry,retry_policy,unique,unique_key}' THEN
        labels := ojs.option_labels(opt, retry_name);
    END IF;
    o.extra := NULLIF('{' || ojs.json_unseal(concat_ws(',', NULLIF(timeouts, ''), early, labels, limits, ojs.option_unknown(sealed, opt), late)) || '}', '{}');
    o.notify := ojs.option_boolean('notify', opt ->> 'notify');
    IF opt ?| '{retry,retry_policy,max_attempts}' THEN
        r := ojs.option_retry(opt ->> retry_name, opt ->> 'max_attempts');
        o.max_attempts := r.max_attempts;
        o.retry := r.policy;
    END IF;
    IF meta IS NOT NULL THEN
        IF octet_length(ojs.json_unseal(meta)) > 65536 THEN
            PERFORM ojs.refuse('meta is larger than 65536 bytes; send less.');
        END IF;
        o.meta := ojs.json_unseal(meta);
        o.trace_id := ojs.meta_trace_id(meta);
    END IF;
    RETURN o;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.refuse_type(type text) RETURNS void
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ojs.refuse_field('type', CASE WHEN octet_length(type) > 255 THEN 'at most 255 bytes long'
        ELSE 'a job type of lower-case letters, digits, _ and -, in words joined by dots, such as invoice.render' END,
        ojs.json_seal(to_json(type)::text))
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.args_read(args json) RETURNS json
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    sealed text := ojs.json_seal(args::text);
    dense  text := ojs.json_compact(sealed);
BEGIN
    IF (json_typeof(args) = 'array') IS NOT TRUE THEN
        PERFORM ojs.refuse_field('args', 'an array', CASE WHEN dense <> 'null' THEN sealed END);
    ELSIF ojs.json_is_deep(dense) THEN
        PERFORM ojs.refuse_field('args', 'nested at most 32 levels', sealed);
    ELSIF dense <> sealed THEN
        RETURN ojs.json_unseal(dense);
    END IF;
    RETURN args;
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.id_was_used(job_id uuid) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM ojs.jobs_done d WHERE d.id = job_id) OR (SELECT count(*) > 1 FROM ojs.jobs j WHERE j.id = job_id);
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION ojs.queue_insert_noted() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM ojs.queue_notes n WHERE n.name = NEW.name;
    BEGIN
        INSERT INTO ojs.queues (name) VALUES (NEW.name) ON CONFLICT (name) DO NOTHING;
    EXCEPTION WHEN serialization_failure THEN
        NULL; -- REPEATABLE READ: somebody else has inserted it since the snapshot
    END;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE CONSTRAINT TRIGGER queue_insert_noted AFTER INSERT ON ojs.queue_notes
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION ojs.queue_insert_noted();
-- +goose StatementBegin
CREATE FUNCTION ojs.enqueue(type text, args json, queue text DEFAULT 'default', options json DEFAULT NULL) RETURNS uuid
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
CREATE FUNCTION ojs.cancel(id uuid, reason text DEFAULT NULL) RETURNS boolean
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
        NULL, NULL, d.expires_at, d.retry_delay_ms, NULL, d.error, array_to_json(d.errors),
        CASE WHEN NOT ojs.result_is_over(d.finished_at, d.result_ttl_s) THEN d.result END
    FROM ojs.jobs_done d;
COMMENT ON FUNCTION ojs.enqueue(text, json, text, json) IS
    'Stores a job in the transaction of the caller and returns its id. options: what the HTTP API takes in options, and id, notify.';
COMMENT ON FUNCTION ojs.cancel(uuid, text) IS
    'Cancels a job in the transaction of the caller; false if it is unknown or already completed, cancelled or discarded.';
COMMENT ON VIEW ojs.job IS 'All jobs, live and finished, as the HTTP API shows them. Find one by id; other conditions read everything.';
COMMENT ON COLUMN ojs.job.state IS 'scheduled, pending, available, active, retryable, completed, cancelled or discarded';
COMMENT ON COLUMN ojs.job.priority IS '-100 to 100, higher first';
COMMENT ON COLUMN ojs.job.attempt IS 'how often a worker has taken it; 0 before the first time';
COMMENT ON COLUMN ojs.job.attributes IS 'everything else the producer sent and gets back (timeout_ms, retry, tags, unknown names), as one object; NULL if nothing';
COMMENT ON COLUMN ojs.job.enqueued_at IS 'latest entry into available; NULL before the first';
COMMENT ON COLUMN ojs.job.scheduled_at IS 'when it was to become available, if it was scheduled; stays after that time';
COMMENT ON COLUMN ojs.job.started_at IS 'latest entry into active';
COMMENT ON COLUMN ojs.job.completed_at IS 'entry into completed, or into discarded by a failed attempt; NULL for jobs that expired or were cancelled';
COMMENT ON COLUMN ojs.job.next_attempt_at IS 'end of the backoff, while retryable';
COMMENT ON COLUMN ojs.job.retry_delay_ms IS 'backoff computed at the latest failure, in ms';
COMMENT ON COLUMN ojs.job.worker_id IS 'who holds it, while active';
COMMENT ON COLUMN ojs.job.error IS 'latest failure; NULL once completed';
COMMENT ON COLUMN ojs.job.errors IS 'failure history as a JSON array, oldest first; NULL if none';
COMMENT ON COLUMN ojs.job.result IS 'what the worker returned, if completed';
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
DROP FUNCTION ojs.args_read(json);
DROP FUNCTION ojs.refuse_type(text);
DROP FUNCTION ojs.options_read(json, text, timestamptz);
DROP FUNCTION ojs.option_retry(text, text);
DROP FUNCTION ojs.retry_backoff(jsonb);
DROP FUNCTION ojs.retry_patterns(text, text);
DROP FUNCTION ojs.retry_coefficient(text);
DROP FUNCTION ojs.retry_interval(text, text, text);
DROP FUNCTION ojs.retry_name(jsonb, text[]);
DROP FUNCTION ojs.option_unknown(text, jsonb);
DROP FUNCTION ojs.option_labels(jsonb, text);
DROP FUNCTION ojs.option_tags(text);
DROP FUNCTION ojs.meta_trace_id(text);
DROP FUNCTION ojs.traceparent_id(text);
DROP FUNCTION ojs.option_meta(text, text);
DROP FUNCTION ojs.option_object(text, text);
DROP FUNCTION ojs.option_limits(jsonb, bigint, bigint);
DROP FUNCTION ojs.option_visibility(text, text);
DROP FUNCTION ojs.option_lasting(text, text, bigint);
DROP FUNCTION ojs.extra_times(text, timestamptz, text, timestamptz, boolean);
DROP FUNCTION ojs.option_time(text, text, timestamptz);
DROP FUNCTION ojs.option_boolean(text, text);
DROP FUNCTION ojs.option_priority(text);
DROP FUNCTION ojs.queue_read(text);
DROP FUNCTION ojs.option_queue(text);
DROP FUNCTION ojs.option_id(text);
DROP FUNCTION ojs.option_names();
DROP FUNCTION ojs.is_absolute_uri(text);
DROP FUNCTION ojs.uri_authority_ok(text, text);
DROP FUNCTION ojs.time_read(text);
DROP FUNCTION ojs.duration_text(bigint);
DROP FUNCTION ojs.duration_ms(text, boolean);
DROP FUNCTION ojs.duration_part(text, bigint);
DROP FUNCTION ojs.refuse_retry(text, text, text, text);
DROP FUNCTION ojs.refuse_field(text, text, text);
DROP FUNCTION ojs.refuse(text);
DROP FUNCTION ojs.json_brief(text);
DROP FUNCTION ojs.json_describe(text);
DROP FUNCTION ojs.json_members(text);
DROP FUNCTION ojs.json_integer(text);
DROP FUNCTION ojs.json_requote(text);
DROP FUNCTION ojs.json_text(text);
DROP FUNCTION ojs.json_has_nul(text);
DROP FUNCTION ojs.json_unquote(text);
DROP FUNCTION ojs.json_is_deep(text);
DROP FUNCTION ojs.json_compact(text);
DROP FUNCTION ojs.json_unseal(text);
DROP FUNCTION ojs.json_seal(text);
DROP TYPE ojs.job_options;
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
LANGUAGE sql IMMUTABLE AS $$ SELECT 4 $$;
-- +goose StatementEnd
