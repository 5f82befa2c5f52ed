-- +goose Up
-- Partitions, and how an event is shown. The text of an event is made here and nowhere else: NOTIFY, SQL readers and
-- the HTTP API all show what these functions return.
-- Plain SQL expressions without FROM, so that the planner inlines them: 3 µs for the whole text, a tenth of plpgsql.

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 2 $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION ojs.time_text(t timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;
-- +goose StatementEnd

-- Whether events carry the flat members of contract 40 §1.3; a setting of the servers, like service.
ALTER TABLE ojs.event_relay ADD COLUMN compat boolean NOT NULL DEFAULT true;

-- Nobody's plan should expect the thousand rows that an unknown table is taken for.
ANALYZE ojs.event_relay;

-- RelayScan: only gaps noted while a transaction ran that has ended since. Horizons grow with the numbers, so under a
-- long transaction, which keeps every gap, a pass still touches the newest few.
CREATE INDEX event_gaps_horizon ON ojs.event_gaps (horizon);

-- Microseconds since 1970, exact: date_part's double holds them without loss until the year 2255.
-- +goose StatementBegin
CREATE FUNCTION ojs.time_us(t timestamptz) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT round(date_part('epoch', t) * 1000000)::bigint
$$;
-- +goose StatementEnd

-- evt_ + UUIDv7 of the event's time; its low 62 bits are the position: seq (46 bits) and sub (16 bits). lpad is for clocks
-- before 2004 only, but a row whose id cannot be made would stop the relay for good.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_id(t timestamptz, seq bigint, sub integer) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT 'evt_' || (lpad(to_hex((ojs.time_us(t) / 1000 << 16) | 28672 | (ojs.time_us(t) % 1000 * 4096 / 1000)), 16, '0')
        || to_hex((-9223372036854775808)::bigint | (seq << 16) | sub::bigint))::uuid
$$;
-- +goose StatementEnd

-- The position inside an id: seq * 65536 + sub. NULL for a text that is no event id.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_position(id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN id ~ '^evt_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
        THEN ('x' || substr(id, 24, 4) || substr(id, 29, 12))::bit(64)::bigint & 4611686018427387903 END
$$;
-- +goose StatementEnd

-- The pieces of an event. || and not concat() or format(): 10 ns a part against 50. Rows of job events leave subject
-- NULL (it is the job's id), all others have one; so that is how job events are told apart here.

-- The context attributes, without the closing brace.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_head(e ojs.events, service text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT '{"specversion":"1.0","id":"' || ojs.event_id(e.time, e.seq, e.sub)
        || ('","type":"' || e.type || '","source":"ojs://' || service || '/' || e.source || '","time":"' || ojs.time_text(e.time)
            || CASE WHEN e.subject IS NULL THEN '","subject":"' || COALESCE(e.job_id::text, '') || '"'
                ELSE '","subject":' || to_json(e.subject)::text END)
$$;
-- +goose StatementEnd

-- The flat members that readers of the short events page expect (contract 40 §1.3), each with a leading comma; progress
-- and message are added by the HTTP layer, a notification has none.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_compat(e ojs.events) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT ',"event":"' || e.type || '","timestamp":"' || ojs.time_text(e.time)
        || CASE WHEN e.subject IS NULL THEN COALESCE('","job_id":"' || e.job_id::text || '"', '"') ELSE '"' END
        || (COALESCE(',"job_type":"' || e.job_type || '"', '')
            || COALESCE(',"queue":"' || e.queue || '"', '')
            || CASE WHEN e.workflow_id IS NULL THEN '' ELSE ',"workflow_id":"' || e.workflow_id::text || '"' END
            || CASE WHEN e.from_state IS NULL THEN '' ELSE ',"from":"' || e.from_state || '"' END
            || CASE WHEN e.to_state IS NULL THEN '' ELSE ',"to":"' || e.to_state || '"' END
            || CASE WHEN e.type = 'job.started' OR e.type IN ('job.heartbeat', 'job.progress')
                    THEN ',"worker_id":' || to_json(COALESCE(e.worker_id, 'anonymous'))::text
                WHEN e.subject IS NOT NULL AND starts_with(e.type, 'worker.') THEN ',"worker_id":' || to_json(e.subject)::text
                ELSE '' END)
$$;
-- +goose StatementEnd

-- The beginning of the payload: what columns hold of it (contract 40 §3.3). Events about anything but a job keep their
-- payload in data. Types in the order of their frequency.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_members(e ojs.events) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN e.subject IS NULL THEN
            '{"job_type":"' || COALESCE(e.job_type, '') || '","queue":"' || COALESCE(e.queue, '')
            || CASE e.type
                WHEN 'job.enqueued' THEN '","priority":' || COALESCE(e.priority, 0) || ',"state":"available"'
                    || CASE WHEN e.from_state IS NULL THEN '' ELSE ',"previous_state":"' || e.from_state || '"' END
                WHEN 'job.started' THEN '","worker_id":' || to_json(COALESCE(e.worker_id, 'anonymous'))::text
                    || ',"attempt":' || COALESCE(e.attempt, 0)
                WHEN 'job.completed' THEN '","attempt":' || COALESCE(e.attempt, 0) || ',"duration_ms":' || COALESCE(e.duration_ms, 0)
                WHEN 'job.failed' THEN '","attempt":' || COALESCE(e.attempt, 0) || COALESCE(',"duration_ms":' || e.duration_ms, '')
                WHEN 'job.discarded' THEN '","total_attempts":' || COALESCE(e.attempt, 0) || COALESCE(',"attempt":' || e.attempt, '')
                WHEN 'job.scheduled' THEN '"' || COALESCE(',"priority":' || e.priority, '')
                WHEN 'job.cancelled' THEN '"' || COALESCE(',"previous_state":"' || e.from_state || '"', '')
                WHEN 'job.expired' THEN '"' || COALESCE(',"state":"' || e.to_state || '"', '')
                ELSE CASE WHEN e.type IN ('job.heartbeat', 'job.progress')
                        THEN '","worker_id":' || to_json(COALESCE(e.worker_id, 'anonymous'))::text ELSE '"' END
                    || COALESCE(',"attempt":' || e.attempt, '') END
            || CASE WHEN e.trace_id IS NULL THEN '' ELSE ',"trace_id":' || to_json(e.trace_id)::text END
        WHEN e.trace_id IS NOT NULL THEN '{"trace_id":' || to_json(e.trace_id)::text END
$$;
-- +goose StatementEnd

-- data must be one object without blanks around it, as everything of ours writes it.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_data(e ojs.events) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN e.subject IS NULL OR e.trace_id IS NOT NULL
        THEN ojs.event_members(e) || CASE
            WHEN e.data IS NULL THEN CASE WHEN e.type = 'job.completed' THEN ',"result":null}' ELSE '}' END
            WHEN octet_length(e.data::text) = 2 THEN '}'
            ELSE ',' || substr(e.data::text, 2) END
        ELSE COALESCE(e.data::text, '{}') END
$$;
-- +goose StatementEnd

-- The whole event.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_text(e ojs.events, service text, compat boolean) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT ojs.event_head(e, service) || (CASE WHEN compat THEN ojs.event_compat(e) ELSE '' END || (',"data":' || ojs.event_data(e) || '}'))
$$;
-- +goose StatementEnd

-- What NOTIFY carries of an event that does not fit: what identifies it and where to find the rest. A notification that
-- PostgreSQL refuses would stop the relay for good, so the last form has nothing that a client chose.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_short(at_seq bigint, at_sub integer, full_bytes integer) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN octet_length(t.head || t.compat || t.data || t.tail) < 8000 THEN t.head || t.compat || t.data || t.tail
        WHEN octet_length(t.head || t.compat || t.tail) < 7980 THEN t.head || t.compat || ',"data":{}' || t.tail
        ELSE '{"specversion":"1.0","id":"' || t.id || '","type":"' || t.type || '","time":"' || t.time || '","data":{}' || t.tail END
    FROM (
        SELECT ojs.event_id(e.time, e.seq, e.sub) AS id, e.type, ojs.time_text(e.time) AS time,
            ojs.event_head(e, r.service) AS head,
            CASE WHEN r.compat THEN ojs.event_compat(e) ELSE '' END AS compat,
            ',"data":' || CASE WHEN e.subject IS NULL THEN ojs.event_members(e)
                ELSE '{' || COALESCE(CASE split_part(e.type, '.', 1) WHEN 'worker' THEN '"worker_id":' WHEN 'queue' THEN '"queue":'
                    WHEN 'workflow' THEN '"workflow_id":' WHEN 'cron' THEN '"cron_name":' END || to_json(e.subject)::text, '') END || '}' AS data,
            ',"truncated":true,"truncated_bytes":' || full_bytes
                || ',"dataref":"/ojs/v1/events/' || ojs.event_id(e.time, e.seq, e.sub) || '"}' AS tail
        FROM ojs.event_relay r, ojs.events e
        WHERE e.seq = at_seq AND e.sub = at_sub
    ) t
$$;
-- +goose StatementEnd

-- What NOTIFY carries: the event whole below 8 000 bytes, which is PostgreSQL's limit. full_text is used twice, so it
-- must be a column (of a subquery that is not flattened), or the planner does not inline this.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_notice(full_text text, at_seq bigint, at_sub integer) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN octet_length(full_text) < 8000 THEN full_text
        ELSE ojs.event_short(at_seq, at_sub, octet_length(full_text)) END
$$;
-- +goose StatementEnd

-- What readers may see, gap rows included. A passed number whose row has appeared is not published yet: the relay moves it
-- behind the watermark, to sub > 0. The watermark is a scalar, because joined it would be a filter, and every reader would
-- walk what is not published; the rest of that row is joined, because then texts are made above the partitions, and not
-- prepared once for each.
CREATE VIEW ojs.event_published AS
SELECT e.seq, e.sub, e.time, e.type, e.internal, e.job_id, e.job_type, e.queue, e.attempt, e.worker_id, e.workflow_id,
    e.from_state, e.to_state, e.duration_ms, r.service, r.compat, CAST(e AS ojs.events) AS event
FROM ojs.event_relay r CROSS JOIN ojs.events e
WHERE e.seq <= (SELECT w.watermark FROM ojs.event_relay w)
    AND NOT (e.sub = 0 AND EXISTS (SELECT FROM ojs.event_gaps g WHERE g.seq = e.seq AND g.passed));

-- What the HTTP layer shows of a published row; it joins the texts as it needs them.
CREATE VIEW ojs.event_shown AS
SELECT p.seq, p.sub, p.time, p.type, p.internal, p.job_id, p.job_type, p.queue, p.attempt, p.worker_id, p.workflow_id,
    p.from_state, p.to_state, p.duration_ms,
    ojs.event_head(p.event, p.service) AS head, ojs.event_compat(p.event) AS compat, ojs.event_data(p.event) AS data
FROM ojs.event_published p;

-- The filters of contract 40 §5.2, on sources as they are shown. Arrays are empty, the others NULL, if not used; types and
-- sources are LIKE patterns. Gap rows must be asked for, and by their name if by any.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_matches(e ojs.events, service text, gap_rows boolean, types text[], sources text[], queues text[],
    job_types text[], for_workflow uuid, since timestamptz, until timestamptz) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (NOT e.internal OR (gap_rows AND (cardinality(types) = 0 OR 'job.state\_changed' = ANY(types))))
        AND (cardinality(types) = 0 OR e.type LIKE ANY(types))
        AND (cardinality(sources) = 0 OR ('ojs://' || service || '/' || e.source) LIKE ANY(sources))
        AND (cardinality(queues) = 0 OR e.queue = ANY(queues))
        AND (cardinality(job_types) = 0 OR e.job_type = ANY(job_types))
        AND (for_workflow IS NULL OR e.workflow_id = for_workflow)
        AND (since IS NULL OR e.time >= since)
        AND (until IS NULL OR e.time < until)
$$;
-- +goose StatementEnd

-- Published rows behind a position, oldest first (contract 40 §5.1). A function for its settings: the filters make the
-- planner expect one row, and then it sorts everything behind the position (370 ms in 300 000 events) instead of walking
-- the key to the limit (1 ms); and it would plan anew for most calls (3 ms).
-- +goose StatementBegin
CREATE FUNCTION ojs.event_page(after_seq bigint, after_sub integer, max_rows integer, gap_rows boolean, types text[], sources text[],
    queues text[], job_types text[], for_job uuid, for_workflow uuid, since timestamptz, until timestamptz)
RETURNS SETOF ojs.event_shown
LANGUAGE plpgsql STABLE ROWS 100
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF for_job IS NULL THEN
        RETURN QUERY
        SELECT p.seq, p.sub, p.time, p.type, p.internal, p.job_id, p.job_type, p.queue, p.attempt, p.worker_id,
            p.workflow_id, p.from_state, p.to_state, p.duration_ms,
            ojs.event_head(p.event, p.service), ojs.event_compat(p.event), ojs.event_data(p.event)
        FROM ojs.event_published p
        WHERE (p.seq, p.sub) > (after_seq, after_sub) AND p.seq >= after_seq -- by which partitions are pruned
            AND ojs.event_matches(p.event, p.service, gap_rows, types, sources, queues, job_types, for_workflow, since, until)
        ORDER BY p.seq, p.sub LIMIT max_rows;
    ELSE -- through events_job; the fence keeps the planner from walking the key for the order
        RETURN QUERY
        SELECT p.seq, p.sub, p.time, p.type, p.internal, p.job_id, p.job_type, p.queue, p.attempt, p.worker_id,
            p.workflow_id, p.from_state, p.to_state, p.duration_ms,
            ojs.event_head(p.event, p.service), ojs.event_compat(p.event), ojs.event_data(p.event)
        FROM (SELECT * FROM ojs.event_published j WHERE j.job_id = for_job OFFSET 0) p
        WHERE (p.seq, p.sub) > (after_seq, after_sub)
            AND ojs.event_matches(p.event, p.service, gap_rows, types, sources, queues, job_types, for_workflow, since, until)
        ORDER BY p.seq, p.sub LIMIT max_rows;
    END IF;
END
$$;
-- +goose StatementEnd

-- Positions (seq * 65536 + sub) of published rows, newest first, for the admin listing, which counts them (contract 40 §5.3).
-- +goose StatementBegin
CREATE FUNCTION ojs.event_newest(max_total integer, gap_rows boolean, types text[], sources text[], queues text[], job_types text[],
    for_job uuid, for_workflow uuid, since timestamptz, until timestamptz)
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF for_job IS NULL THEN
        RETURN QUERY
        SELECT p.seq << 16 | p.sub FROM ojs.event_published p
        WHERE ojs.event_matches(p.event, p.service, gap_rows, types, sources, queues, job_types, for_workflow, since, until)
        ORDER BY p.seq DESC, p.sub DESC LIMIT max_total;
    ELSE
        RETURN QUERY
        SELECT p.seq << 16 | p.sub FROM (SELECT * FROM ojs.event_published j WHERE j.job_id = for_job OFFSET 0) p
        WHERE ojs.event_matches(p.event, p.service, gap_rows, types, sources, queues, job_types, for_workflow, since, until)
        ORDER BY p.seq DESC, p.sub DESC LIMIT max_total;
    END IF;
END
$$;
-- +goose StatementEnd

-- How far the log goes: at most one row. Its texts are left out.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_last() RETURNS SETOF ojs.event_shown
LANGUAGE plpgsql STABLE ROWS 1
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT p.seq, p.sub, p.time, p.type, p.internal, p.job_id, p.job_type, p.queue, p.attempt, p.worker_id,
        p.workflow_id, p.from_state, p.to_state, p.duration_ms, NULL::text, NULL::text, NULL::text
    FROM ojs.event_published p ORDER BY p.seq DESC, p.sub DESC LIMIT 1;
END
$$;
-- +goose StatementEnd

-- Published events behind an id, in order, as LISTEN ojs_events shows them; NULL: from the oldest kept.
-- +goose StatementBegin
CREATE FUNCTION ojs.events_after(after text DEFAULT NULL, max_rows integer DEFAULT 1000)
RETURNS TABLE (id text, payload text)
LANGUAGE plpgsql STABLE
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    pos bigint := COALESCE(ojs.event_position(after), -1);
BEGIN
    IF after IS NOT NULL AND pos < 0 THEN
        RAISE EXCEPTION 'after must be an event id such as evt_019c0a11-2f40-7003-9a51-7be2c04d1e90' USING ERRCODE = '22023';
    END IF;
    RETURN QUERY
        SELECT t.id, ojs.event_notice(t.full_text, t.seq, t.sub)
        FROM (
            SELECT p.seq, p.sub, ojs.event_id(p.time, p.seq, p.sub) AS id, ojs.event_text(p.event, p.service, p.compat) AS full_text
            FROM ojs.event_published p
            WHERE (p.seq, p.sub) > (pos >> 16, (pos & 65535)::integer) AND p.seq >= pos >> 16 AND NOT p.internal
            ORDER BY p.seq, p.sub LIMIT max_rows
        ) t;
END
$$;
-- +goose StatementEnd

-- One published event, whole; NULL if it is unknown or dropped.
-- +goose StatementBegin
CREATE FUNCTION ojs.event(id text) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT ojs.event_text(p.event, p.service, p.compat)::json
    FROM ojs.event_published p
    WHERE p.seq = ojs.event_position(event.id) >> 16 AND p.sub = (ojs.event_position(event.id) & 65535)::integer
        AND NOT p.internal AND ojs.event_id(p.time, p.seq, p.sub) = event.id
$$;
-- +goose StatementEnd

-- Partitions are built detached and attached: CREATE TABLE … PARTITION OF takes ACCESS EXCLUSIVE on the parent and
-- behind one long transaction stops every writer. Returns the first number for which no partition exists.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_partitions_ensure(ahead integer DEFAULT 6) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    size CONSTANT bigint := 500000;
    head bigint;
    low  bigint;
    part text;
BEGIN
    SELECT last_value INTO head FROM ojs.event_seq;
    IF to_regclass('ojs.events_p' || lpad((head / size + ahead)::text, 8, '0')) IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtext('ojs.event_partitions_ensure'));
        FOR i IN 0..ahead LOOP
            low := (head / size + i) * size;
            part := 'events_p' || lpad((low / size)::text, 8, '0');
            CONTINUE WHEN to_regclass('ojs.' || part) IS NOT NULL;
            EXECUTE format('CREATE TABLE ojs.%I (LIKE ojs.events INCLUDING ALL)', part);
            EXECUTE format('ALTER TABLE ojs.%I ADD CONSTRAINT bounds CHECK (seq >= %s AND seq < %s)', part, low, low + size);
            EXECUTE format('ALTER TABLE ojs.events ATTACH PARTITION ojs.%I FOR VALUES FROM (%s) TO (%s)', part, low, low + size);
            EXECUTE format('ALTER TABLE ojs.%I DROP CONSTRAINT bounds', part);
        END LOOP;
    END IF;
    RETURN (head / size + ahead + 1) * size;
END
$$;
-- +goose StatementEnd

-- Days in UTC, from today; finished_at is always the database clock's, so no older day is ever written.
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

-- Who has held a lock on a table for longer than a second would make a DETACH wait, and everybody behind it. Other roles'
-- sessions show their age only to pg_read_all_stats; without it lock_timeout is what protects the writers.
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

-- Drops the oldest event partition if it is outside either limit (0 or a NULL age: no limit) and returns how many it
-- dropped; the caller repeats until 0, so that no transaction holds the relay for long. Never one with an unpublished
-- row or a number whose transaction may still commit. DETACH needs ACCESS EXCLUSIVE on the parent, and waiting for it
-- would stop every writer: a table in use is left for the next time.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_partitions_prune(max_age interval, max_count bigint) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    size CONSTANT bigint := 500000;
    mark bigint;
    low  bigint;
    part text;
    last timestamptz;
    kept bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune')) THEN
        RETURN 0;
    END IF;
    SELECT watermark INTO mark FROM ojs.event_relay;
    SELECT c.relname INTO part FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'ojs.events'::regclass ORDER BY c.relname LIMIT 1;
    low := substr(part, 9)::bigint * size;
    IF part IS NULL OR low + size > mark THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT time FROM ojs.%I ORDER BY seq DESC LIMIT 1', part) INTO last;
    IF max_age IS NULL OR last >= clock_timestamp() - max_age THEN
        IF COALESCE(max_count, 0) = 0 OR mark - (low + size) + 1 < max_count THEN
            RETURN 0;
        END IF;
        SELECT count(*) INTO kept FROM (
            SELECT FROM ojs.events e WHERE e.seq >= low + size AND e.seq <= mark AND NOT e.internal LIMIT max_count) k;
        IF kept < max_count THEN
            RETURN 0;
        END IF;
    END IF;
    IF ojs.table_is_held('ojs.events') OR ojs.table_is_held(('ojs.' || part)::regclass) THEN
        RETURN 0;
    END IF;
    -- First the relay's row, as a pass has it: the other order would deadlock with one. No gap appears below the
    -- watermark, so what is looked at under this lock stays true.
    PERFORM FROM ojs.event_relay FOR UPDATE;
    IF EXISTS (SELECT FROM ojs.event_gaps WHERE seq >= low AND seq < low + size) THEN
        RETURN 0;
    END IF;
    EXECUTE format('ALTER TABLE ojs.events DETACH PARTITION ojs.%I', part);
    EXECUTE format('DROP TABLE ojs.%I', part);
    UPDATE ojs.event_relay SET pruned = low + size - 1;
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd

-- Drops the oldest day of finished jobs if all of it is older than keep, takes its rows out of the counts in the same
-- transaction, and returns how many days it dropped (0 or 1), as event_partitions_prune.
-- +goose StatementBegin
CREATE FUNCTION ojs.jobs_done_partitions_prune(keep interval) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    part   text;
    queues text[];
    states text[];
    counts bigint[];
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
    EXECUTE format('SELECT array_agg(c.queue), array_agg(c.state), array_agg(c.n)
        FROM (SELECT queue, state, -count(*) AS n FROM ojs.%I GROUP BY 1, 2 ORDER BY 1, 2) c', part) INTO queues, states, counts;
    -- From here on nothing takes long: this holds up every ack, then the relay.
    EXECUTE format('ALTER TABLE ojs.jobs_done DETACH PARTITION ojs.%I', part);
    EXECUTE format('DROP TABLE ojs.%I', part);
    PERFORM FROM ojs.event_relay FOR UPDATE;
    INSERT INTO ojs.queue_counts AS q (queue, state, count)
    SELECT * FROM unnest(queues, states, counts)
    ON CONFLICT (queue, state) DO UPDATE SET count = q.count + EXCLUDED.count;
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd

SELECT ojs.event_partitions_ensure();
SELECT ojs.jobs_done_partitions_ensure();

-- +goose Down
-- +goose StatementBegin
DO $$
DECLARE part regclass;
BEGIN
    FOR part IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent IN ('ojs.events'::regclass, 'ojs.jobs_done'::regclass) LOOP
        EXECUTE 'DROP TABLE ' || part;
    END LOOP;
END
$$;
-- +goose StatementEnd
DROP FUNCTION ojs.jobs_done_partitions_prune(interval);
DROP FUNCTION ojs.event_partitions_prune(interval, bigint);
DROP FUNCTION ojs.jobs_done_partitions_ensure(integer);
DROP FUNCTION ojs.event_partitions_ensure(integer);
DROP FUNCTION ojs.event(text);
DROP FUNCTION ojs.events_after(text, integer);
DROP FUNCTION ojs.event_last();
DROP FUNCTION ojs.event_newest(integer, boolean, text[], text[], text[], text[], uuid, uuid, timestamptz, timestamptz);
DROP FUNCTION ojs.event_page(bigint, integer, integer, boolean, text[], text[], text[], text[], uuid, uuid, timestamptz, timestamptz);
DROP FUNCTION ojs.event_matches(ojs.events, text, boolean, text[], text[], text[], text[], uuid, timestamptz, timestamptz);
DROP VIEW ojs.event_shown;
DROP VIEW ojs.event_published;
DROP FUNCTION ojs.table_is_held(regclass);
DROP FUNCTION ojs.event_notice(text, bigint, integer);
DROP FUNCTION ojs.event_short(bigint, integer, integer);
DROP FUNCTION ojs.event_text(ojs.events, text, boolean);
DROP FUNCTION ojs.event_data(ojs.events);
DROP FUNCTION ojs.event_members(ojs.events);
DROP FUNCTION ojs.event_compat(ojs.events);
DROP FUNCTION ojs.event_head(ojs.events, text);
DROP FUNCTION ojs.event_position(text);
DROP FUNCTION ojs.event_id(timestamptz, bigint, integer);
DROP FUNCTION ojs.time_us(timestamptz);
DROP FUNCTION ojs.time_text(timestamptz);
DROP INDEX ojs.event_gaps_horizon;
ALTER TABLE ojs.event_relay DROP COLUMN compat;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 1 $$;
-- +goose StatementEnd
