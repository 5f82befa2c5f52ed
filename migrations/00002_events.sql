-- +goose Up
-- The event log, its publication, and the text of events. Only the functions below make that text: NOTIFY, SQL readers
-- and the HTTP API all show what they return.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 2 $$;
-- +goose StatementEnd

-- CACHE 1: the relay may take a missing number for a rolled back one only because numbers are drawn in the order of the
-- calls.
CREATE SEQUENCE ojs.event_seq AS bigint CACHE 1;

-- events is the outbox and the event log in one. Rows are inserted, and the relay moves those that
-- committed late; partitioned by ranges of seq. A row is published when its seq is at or below the watermark of event_relay,
-- unless the relay has passed its number and not moved it yet (view event_published). A transaction must own its transaction id before
-- it draws a number: without that the relay could take the number of an open transaction for that of a rolled back one.
-- The default of seq therefore asks for the id first.
CREATE TABLE ojs.events (
    seq         bigint      NOT NULL DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('ojs.event_seq') END,
    sub         integer     NOT NULL DEFAULT 0,     -- > 0: committed late; the relay placed it behind the row (seq, 0)
    type        text        NOT NULL,               -- such as job.enqueued
    source      text        NOT NULL,               -- api, workers/{id}, scheduler, cron, each perhaps with /{node}; the service name is put in front when shown
    time        timestamptz NOT NULL,
    subject     text,                               -- what the event is about; NULL: the job
    job_id      uuid,
    job_type    text,
    queue       text,
    attempt     integer,
    worker_id   text,
    workflow_id uuid,
    trace_id    text,
    from_state  text,                               -- state before; NULL: the job is new, or its state did not change
    to_state    text,                               -- state after; NULL: the job was deleted, or its state did not change
    internal    boolean     NOT NULL DEFAULT false, -- not a public event: only for counts, state frames and the job's history
    priority    smallint,
    lane        text        NOT NULL DEFAULT '',    -- that of the job; '': none
    ready_seq   bigint,                             -- that of the job when it became available: wakes fetchers on other nodes
    node        integer,                            -- the node that wrote the row and has woken its own fetchers; NULL: written from SQL
    duration_ms bigint,                             -- run time of the attempt; for job.started the time in the queue
    data        json,                               -- members of the payload that no column holds
    PRIMARY KEY (seq, sub)                          -- EventListAfter, RelayScan, RelayPublish
) PARTITION BY RANGE (seq);

-- EventListByJob, HistoryCountByJob, JobHeartbeat: the history of a job.
-- The predicate keeps conditions on seq alone away, which a plan made while the table was empty might answer by reading
-- the whole index.
CREATE INDEX events_job ON ojs.events (job_id, seq) WHERE job_id IS NOT NULL;
-- EventListAfter, EventListNewest: the events of a worker, a queue or a cron. The events of jobs have no subject and do not write it.
CREATE INDEX events_subject ON ojs.events (subject, seq) WHERE subject IS NOT NULL;

-- event_relay has one row. The relay is chosen by an advisory lock; the lock on this row keeps retention and reset
-- out while it publishes.
CREATE TABLE ojs.event_relay (
    only_row        boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    watermark       bigint      NOT NULL DEFAULT 0,
    pruned          bigint      NOT NULL DEFAULT 0,     -- retention has dropped the partitions with the numbers at or below it
    floor_place     bigint      NOT NULL DEFAULT 0,     -- seq * 65536 + sub of the last row outside of the limits, as of the latest event_floor_raise
    lost_place      bigint      NOT NULL DEFAULT 0,     -- of the last public one: a reader that has not read it has missed something
    kept            bigint      NOT NULL DEFAULT 0,     -- published public rows behind floor_place
    max_age         interval,                           -- of kept rows; NULL: no limit
    max_count       bigint,                             -- of kept public rows; NULL: no limit
    service         text        NOT NULL DEFAULT 'ojs', -- name of the service in the source of events
    compat          boolean     NOT NULL DEFAULT true,  -- events carry the flat members too (see event_compat)
    moved_at        timestamptz NOT NULL DEFAULT now(), -- latest move of the watermark
    enqueued_total  bigint      NOT NULL DEFAULT 0,     -- published job.enqueued events since the schema was made
    completed_total bigint      NOT NULL DEFAULT 0,     -- the same for job.completed
    discarded_total bigint      NOT NULL DEFAULT 0      -- the same for job.discarded
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO ojs.event_relay DEFAULT VALUES;
-- Without statistics the planner expects a thousand rows here.
ANALYZE ojs.event_relay;

-- event_gaps has the numbers without a row that the watermark has passed: their transaction was open or had been rolled
-- back.
CREATE TABLE ojs.event_gaps (
    seq      bigint      PRIMARY KEY,
    noted_at timestamptz NOT NULL,
    horizon  xid8        NOT NULL,                      -- every transaction that may own the number is below it
    passed   boolean     NOT NULL DEFAULT false         -- the watermark has moved past the number
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- RelayScan: only gaps that were recorded while a transaction ran that has ended since. Horizons grow with the numbers,
-- so under a long transaction, which keeps every gap, a pass reads only the newest few.
CREATE INDEX event_gaps_horizon ON ojs.event_gaps (horizon);

-- queue_counts holds the jobs per queue and state, summed over all published events. Together with the unpublished
-- events the counts are exact.
CREATE TABLE ojs.queue_counts (
    queue text   NOT NULL,
    state text   NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (queue, state)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- stats_minute holds published events per queue and minute, for a day; queue '' sums up all of them. durations counts the completed jobs by
-- run time (see ojs.duration_bucket); NULL: none.
CREATE TABLE ojs.stats_minute (
    queue       text        NOT NULL,
    minute      timestamptz NOT NULL,
    enqueued    bigint      NOT NULL DEFAULT 0,
    started     bigint      NOT NULL DEFAULT 0,
    completed   bigint      NOT NULL DEFAULT 0,
    failed      bigint      NOT NULL DEFAULT 0,         -- failed attempts
    discarded   bigint      NOT NULL DEFAULT 0,
    cancelled   bigint      NOT NULL DEFAULT 0,
    duration_ms bigint      NOT NULL DEFAULT 0,         -- sum of the run times of completed
    wait_ms     bigint      NOT NULL DEFAULT 0,         -- sum of the times in the queue of started
    durations   bigint[],
    PRIMARY KEY (queue, minute)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
-- StatsMinutePrune: the oldest minutes. A row is inserted once a minute and queue, and minute never changes, so the updates
-- of the relay stay HOT.
CREATE INDEX stats_minute_minute ON ojs.stats_minute (minute);

-- stats_hour holds the minutes that were pruned, added up per hour, for 30 days.
CREATE TABLE ojs.stats_hour (LIKE ojs.stats_minute INCLUDING DEFAULTS);
ALTER TABLE ojs.stats_hour RENAME COLUMN minute TO hour;
ALTER TABLE ojs.stats_hour ADD PRIMARY KEY (queue, hour);
-- StatsHourPrune: the oldest hours.
CREATE INDEX stats_hour_hour ON ojs.stats_hour (hour);

-- The number, from 1, of the range of run times to which one belongs; the last is that above 30 minutes. stats.bounds in Go is the same.
-- +goose StatementBegin
CREATE FUNCTION ojs.duration_bucket(ms bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT 1 + width_bucket(ms, '{1,2,5,10,20,50,100,200,500,1000,2000,5000,10000,30000,60000,300000,1800000}'::bigint[])
$$;
-- +goose StatementEnd

-- Counts by run time, from those of some buckets. Not an array of 18 sums with FILTER: their set-up costs each pass of the relay more
-- than this loop.
-- +goose StatementBegin
CREATE FUNCTION ojs.durations_of(buckets integer[], counts bigint[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    durations bigint[] := '{0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}';
BEGIN
    FOR i IN 1..cardinality(buckets) LOOP
        durations[buckets[i]] := durations[buckets[i]] + counts[i];
    END LOOP;
    RETURN durations;
END
$$;
-- +goose StatementEnd

-- The sums of counts by run time. One expression without FROM, which the planner inlines.
-- +goose StatementBegin
CREATE FUNCTION ojs.durations_add(a bigint[], b bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN a IS NULL THEN b WHEN b IS NULL THEN a ELSE ARRAY[
        a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4], a[5] + b[5], a[6] + b[6], a[7] + b[7], a[8] + b[8], a[9] + b[9],
        a[10] + b[10], a[11] + b[11], a[12] + b[12], a[13] + b[13], a[14] + b[14], a[15] + b[15], a[16] + b[16], a[17] + b[17], a[18] + b[18]] END
$$;
-- +goose StatementEnd

-- The functions that follow make the text of an event. They are plain SQL expressions without FROM, so that the planner
-- inlines them: 3 µs for the whole text, a tenth of PL/pgSQL. They use || instead of concat() or format(): 10 ns a part
-- instead of 50. Rows about jobs leave subject NULL, all others set it; that is how the functions tell them apart.

-- evt_ and a UUIDv7 of the event's time, whose low 62 bits are the position: seq (46 bits) and sub (16 bits). lpad is
-- needed only for a clock before 2004, but a row whose id cannot be made would stop the relay.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_id(t timestamptz, seq bigint, sub integer) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT 'evt_' || (lpad(to_hex((ojs.time_us(t) / 1000 << 16) | 28672 | (ojs.time_us(t) % 1000 * 4096 / 1000)), 16, '0')
        || to_hex((-9223372036854775808)::bigint | (seq << 16) | sub::bigint))::uuid
$$;
-- +goose StatementEnd

-- The position inside an id: seq * 65536 + sub. NULL for a text that is not an event id.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_position(id text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN id ~ '^evt_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
        THEN ('x' || substr(id, 24, 4) || substr(id, 29, 12))::bit(64)::bigint & 4611686018427387903 END
$$;
-- +goose StatementEnd

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

-- The flat members for clients that read events without the envelope, each with a leading comma. The HTTP layer adds
-- progress and message; a notification has neither.
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

-- The beginning of the payload: the members that come from columns. Events that are not about a job have their whole
-- payload in data. Types are in the order of their frequency.
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

-- The payload. data must be one object without white space around it, as the server writes it.
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

-- error, and last_error if the event has it, in brief, each with a leading comma; '': the event has no error.
-- +goose StatementBegin
CREATE FUNCTION ojs.error_members(data text) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT COALESCE(CASE WHEN starts_with(data, '{"last_error":') THEN ',"last_error":' || e.brief ELSE '' END || ',"error":' || e.brief, '')
    FROM (SELECT ojs.error_brief(data, 512) AS brief) e
$$;
-- +goose StatementEnd

-- The notification of an event that is too long: its identity, for failures the code and a cut message, and where to read the rest. A notification that PostgreSQL
-- refuses would stop the relay, so the last form contains nothing that a client chose.
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
                    || CASE WHEN e.type IN ('job.failed', 'job.retrying', 'job.discarded') THEN ojs.error_members(e.data::text) ELSE '' END
                ELSE '{' || COALESCE(CASE split_part(e.type, '.', 1) WHEN 'worker' THEN '"worker_id":' WHEN 'queue' THEN '"queue":'
                    WHEN 'workflow' THEN '"workflow_id":' WHEN 'cron' THEN '"cron_name":' END || to_json(e.subject)::text, '') END || '}' AS data,
            ',"truncated":true,"truncated_bytes":' || full_bytes
                || ',"dataref":"/ojs/v1/events/' || ojs.event_id(e.time, e.seq, e.sub) || '"}' AS tail
        FROM ojs.event_relay r, ojs.events e
        WHERE e.seq = at_seq AND e.sub = at_sub
    ) t
$$;
-- +goose StatementEnd

-- The notification of an event: the whole event below 8 000 bytes, PostgreSQL's limit. The caller passes full_text as a
-- column of a subquery that is not flattened: it is used twice, and the planner would not inline this function otherwise.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_notice(full_text text, at_seq bigint, at_sub integer) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN octet_length(full_text) < 8000 THEN full_text
        ELSE ojs.event_short(at_seq, at_sub, octet_length(full_text)) END
$$;
-- +goose StatementEnd

-- The published rows, internal ones included, also those outside of the limits of retention, of which webhooks may still need
-- some. A passed number whose row has appeared is not published yet: the relay
-- moves it behind the watermark, to sub > 0. The watermark is a scalar subquery, because as a join it would be a filter
-- and every reader would read the unpublished rows too. The rest of that row is joined, because texts are then made
-- above the partitions instead of being prepared once per partition.
CREATE VIEW ojs.event_published_all AS
SELECT e.seq, e.sub, e.time, e.type, e.internal, e.subject, e.job_id, e.job_type, e.queue, e.attempt, e.worker_id, e.workflow_id,
    e.from_state, e.to_state, e.duration_ms, e.lane, r.service, r.compat, CAST(e AS ojs.events) AS event
FROM ojs.event_relay r CROSS JOIN ojs.events e
WHERE e.seq <= (SELECT w.watermark FROM ojs.event_relay w)
    AND NOT (e.sub = 0 AND EXISTS (SELECT FROM ojs.event_gaps g WHERE g.seq = e.seq AND g.passed));

-- Where the log begins for readers at this moment: floor_place and lost_place as in event_relay, how many rows were passed since
-- these were stored, and how many of them are public, looking at no more than max_rows. A row is passed if it is too old, or if
-- there are max_count public ones behind it. The walk ends at the first row that is neither: a row that was committed late is
-- kept as long as those published with it. SECURITY DEFINER, because readers of event_published need no other right.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_floor(max_rows bigint DEFAULT NULL, OUT floor_place bigint, OUT lost_place bigint, OUT passed bigint, OUT passed_public bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    r      ojs.event_relay;
    e      record;
    excess bigint;
    oldest timestamptz;
BEGIN
    SELECT * INTO r FROM ojs.event_relay;
    floor_place := r.floor_place;
    lost_place := r.lost_place;
    passed := 0;
    passed_public := 0;
    excess := COALESCE(r.kept - r.max_count, 0);
    oldest := clock_timestamp() - r.max_age;
    IF excess <= 0 AND oldest IS NULL THEN
        RETURN;
    END IF;
    FOR e IN
        SELECT p.seq, p.sub, p.time, p.internal FROM ojs.event_published_all p
        WHERE p.seq >= r.floor_place >> 16 AND (p.seq, p.sub) > (r.floor_place >> 16, (r.floor_place & 65535)::integer)
        ORDER BY p.seq, p.sub LIMIT max_rows
    LOOP
        EXIT WHEN passed_public >= excess AND (oldest IS NULL OR e.time >= oldest);
        floor_place := e.seq << 16 | e.sub;
        passed := passed + 1;
        IF NOT e.internal THEN
            lost_place := floor_place;
            passed_public := passed_public + 1;
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Stores how far event_floor has come, so that readers begin there, and returns how many rows it has passed: max_rows if there may
-- be more. The walk locks nothing.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_floor_raise(max_rows bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    f      record;
BEGIN
    SELECT r.floor_place INTO before FROM ojs.event_relay r;
    SELECT * INTO f FROM ojs.event_floor(max_rows);
    IF f.passed > 0 THEN
        UPDATE ojs.event_relay r SET floor_place = f.floor_place, lost_place = f.lost_place, kept = r.kept - f.passed_public
        WHERE r.floor_place = before;
    END IF;
    RETURN CASE WHEN FOUND THEN f.passed ELSE 0 END;
END
$$;
-- +goose StatementEnd

-- The published rows that readers see: those within the limits of retention. The condition is no condition of an index on
-- purpose: with a range of seq the primary key would compete with the indexes on job_id and subject. A statement that reads
-- the log from its beginning adds a condition on seq.
CREATE VIEW ojs.event_published AS
SELECT p.* FROM ojs.event_published_all p
WHERE (p.seq << 16 | p.sub) > (SELECT f.floor_place FROM ojs.event_floor() f);

-- A published row for the HTTP layer, which joins the texts.
CREATE VIEW ojs.event_shown AS
SELECT p.seq, p.sub, p.time, p.type, p.internal, p.job_id, p.job_type, p.queue, p.attempt, p.worker_id, p.workflow_id,
    p.from_state, p.to_state, p.duration_ms,
    ojs.event_head(p.event, p.service) AS head, ojs.event_compat(p.event) AS compat, ojs.event_data(p.event) AS data, p.lane
FROM ojs.event_published p;

-- The filters of event lists, streams and webhooks, on sources as they are shown. An array is empty and another filter
-- NULL if it is not used. types and sources are LIKE patterns. with_internal asks for internal rows, which match by their
-- name if types is used.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_matches(e ojs.events, service text, with_internal boolean, types text[], sources text[], queues text[],
    job_types text[], for_workflow uuid, since timestamptz, until timestamptz, for_tenant text DEFAULT NULL) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (NOT e.internal OR (with_internal AND (cardinality(types) = 0 OR 'job.state\_changed' = ANY(types))))
        AND (cardinality(types) = 0 OR e.type LIKE ANY(types))
        AND (cardinality(sources) = 0 OR ('ojs://' || service || '/' || e.source) LIKE ANY(sources))
        AND (cardinality(queues) = 0 OR e.queue = ANY(queues))
        AND (cardinality(job_types) = 0 OR e.job_type = ANY(job_types))
        AND (for_workflow IS NULL OR e.workflow_id = for_workflow)
        AND (since IS NULL OR e.time >= since)
        AND (until IS NULL OR e.time < until)
        AND (for_tenant IS NULL OR split_part(e.lane, '/', 1) = for_tenant)
$$;
-- +goose StatementEnd

-- Published rows about a subject from a number on, by indexes events_subject and events_job. The subject of an event without
-- one of its own is its job.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_about(about text, from_seq bigint) RETURNS SETOF ojs.event_published_all
LANGUAGE sql STABLE AS $$
    (SELECT * FROM ojs.event_published_all s WHERE s.subject = about AND s.seq >= from_seq OFFSET 0)
    UNION ALL
    (SELECT * FROM ojs.event_published_all j
     WHERE j.subject IS NULL AND j.seq >= from_seq
        AND j.job_id = CASE WHEN about ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN about::uuid END OFFSET 0)
$$;
-- +goose StatementEnd

-- Published rows behind a position, oldest first, up to the number last_seq: a filter that matches nothing would read the whole
-- log. The caller begins at event_floor or later. Rows of a job or a subject are found by their index, whatever their number. It is
-- a function because it needs its own planner settings. The filters make the planner expect one row, so it would sort everything
-- behind the position (370 ms in 300 000 events) instead of reading the key up to the limit (1 ms); and without a generic plan it
-- would plan most calls anew (3 ms). The server's sessions have most of these settings, but those behind a pooler have none; each
-- takes 3 µs a call.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_page(after_seq bigint, after_sub integer, last_seq bigint, max_rows integer, with_internal boolean, types text[], sources text[],
    queues text[], job_types text[], for_job uuid, for_subject text, for_workflow uuid, since timestamptz, until timestamptz, for_tenant text DEFAULT NULL)
RETURNS SETOF ojs.event_shown
LANGUAGE plpgsql STABLE ROWS 100
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF for_subject IS NOT NULL THEN
        RETURN QUERY
        SELECT p.seq, p.sub, p.time, p.type, p.internal, p.job_id, p.job_type, p.queue, p.attempt, p.worker_id,
            p.workflow_id, p.from_state, p.to_state, p.duration_ms,
            ojs.event_head(p.event, p.service), ojs.event_compat(p.event), ojs.event_data(p.event), p.lane
        FROM ojs.event_about(for_subject, after_seq) p
        WHERE (p.seq, p.sub) > (after_seq, after_sub) AND (for_job IS NULL OR p.job_id = for_job)
            AND ojs.event_matches(p.event, p.service, with_internal, types, sources, queues, job_types, for_workflow, since, until, for_tenant)
        ORDER BY p.seq, p.sub LIMIT max_rows;
    ELSIF for_job IS NULL THEN
        RETURN QUERY
        SELECT p.seq, p.sub, p.time, p.type, p.internal, p.job_id, p.job_type, p.queue, p.attempt, p.worker_id,
            p.workflow_id, p.from_state, p.to_state, p.duration_ms,
            ojs.event_head(p.event, p.service), ojs.event_compat(p.event), ojs.event_data(p.event), p.lane
        FROM ojs.event_published_all p
        WHERE (p.seq, p.sub) > (after_seq, after_sub) AND p.seq >= after_seq -- the second condition prunes partitions
            AND p.seq <= last_seq AND ojs.event_matches(p.event, p.service, with_internal, types, sources, queues, job_types, for_workflow, since, until, for_tenant)
        ORDER BY p.seq, p.sub LIMIT max_rows;
    ELSE -- by index events_job; OFFSET 0 keeps the planner from walking the primary key for the order
        RETURN QUERY
        SELECT p.seq, p.sub, p.time, p.type, p.internal, p.job_id, p.job_type, p.queue, p.attempt, p.worker_id,
            p.workflow_id, p.from_state, p.to_state, p.duration_ms,
            ojs.event_head(p.event, p.service), ojs.event_compat(p.event), ojs.event_data(p.event), p.lane
        FROM (SELECT * FROM ojs.event_published_all j WHERE j.job_id = for_job OFFSET 0) p
        WHERE (p.seq, p.sub) > (after_seq, after_sub)
            AND ojs.event_matches(p.event, p.service, with_internal, types, sources, queues, job_types, for_workflow, since, until, for_tenant)
        ORDER BY p.seq, p.sub LIMIT max_rows;
    END IF;
END
$$;
-- +goose StatementEnd

-- Positions (seq * 65536 + sub) of published rows from the number first_seq on, newest first, for the admin list, which counts them.
-- Rows of a job or a subject are found by their index, whatever their number.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_newest(first_seq bigint, max_total integer, with_internal boolean, types text[], sources text[], queues text[], job_types text[],
    for_job uuid, for_subject text, for_workflow uuid, since timestamptz, until timestamptz, for_tenant text DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    low bigint := (SELECT f.floor_place FROM ojs.event_floor() f);
BEGIN
    IF for_subject IS NOT NULL THEN
        RETURN QUERY
        SELECT p.seq << 16 | p.sub FROM ojs.event_about(for_subject, low >> 16) p
        WHERE (p.seq << 16 | p.sub) > low AND (for_job IS NULL OR p.job_id = for_job)
            AND ojs.event_matches(p.event, p.service, with_internal, types, sources, queues, job_types, for_workflow, since, until, for_tenant)
        ORDER BY p.seq DESC, p.sub DESC LIMIT max_total;
    ELSIF for_job IS NULL THEN
        RETURN QUERY
        SELECT p.seq << 16 | p.sub FROM ojs.event_published_all p
        WHERE p.seq >= GREATEST(first_seq, low >> 16) AND (p.seq << 16 | p.sub) > low
            AND ojs.event_matches(p.event, p.service, with_internal, types, sources, queues, job_types, for_workflow, since, until, for_tenant)
        ORDER BY p.seq DESC, p.sub DESC LIMIT max_total;
    ELSE
        RETURN QUERY
        SELECT p.seq << 16 | p.sub FROM (SELECT * FROM ojs.event_published_all j WHERE j.job_id = for_job OFFSET 0) p
        WHERE (p.seq << 16 | p.sub) > low
            AND ojs.event_matches(p.event, p.service, with_internal, types, sources, queues, job_types, for_workflow, since, until, for_tenant)
        ORDER BY p.seq DESC, p.sub DESC LIMIT max_total;
    END IF;
END
$$;
-- +goose StatementEnd

-- The newest published row, without its texts; no row if the log is empty.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_last() RETURNS SETOF ojs.event_shown
LANGUAGE plpgsql STABLE ROWS 1
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT p.seq, p.sub, p.time, p.type, p.internal, p.job_id, p.job_type, p.queue, p.attempt, p.worker_id,
        p.workflow_id, p.from_state, p.to_state, p.duration_ms, NULL::text, NULL::text, NULL::text, p.lane
    FROM ojs.event_published_all p ORDER BY p.seq DESC, p.sub DESC LIMIT 1;
END
$$;
-- +goose StatementEnd

-- What RelayScan reads behind the watermark: the numbers that are visible, in order, up to span behind it; the last visible one, also beyond
-- that, 0 if there is none; and the last place that is taken at the watermark. PL/pgSQL gives the bounds to the statements as parameters, so
-- each opens the one or two partitions that it needs. In RelayScan they would come from a subquery: 5 µs a pass for each partition
-- of the log. No row has a number above the last that was drawn, so the search for the head leaves out the partitions made ahead.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_numbers(watermark bigint, span bigint, OUT numbers bigint[], OUT head bigint, OUT last_sub integer)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    drawn bigint := (SELECT s.last_value FROM ojs.event_seq s);
BEGIN
    numbers := ARRAY(SELECT e.seq FROM ojs.events e WHERE e.seq > watermark AND e.seq <= watermark + span ORDER BY e.seq);
    IF drawn > watermark + span THEN
        head := (SELECT e.seq FROM ojs.events e WHERE e.seq > watermark + span AND e.seq <= drawn ORDER BY e.seq DESC LIMIT 1);
    END IF;
    head := COALESCE(head, numbers[cardinality(numbers)], 0);
    last_sub := COALESCE((SELECT e.sub FROM ojs.events e WHERE e.seq = watermark ORDER BY e.seq DESC, e.sub DESC LIMIT 1), 0);
END
$$;
-- +goose StatementEnd

-- Whether the transaction of a number has committed its row. In PL/pgSQL for the reason of event_numbers.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_is_visible(number bigint) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT FROM ojs.events e WHERE e.seq = number AND e.sub = 0);
END
$$;
-- +goose StatementEnd

-- The changes that queue_counts and tenant_counts do not include yet, in the snapshot of the caller: those of unpublished rows, and of rows
-- whose number the watermark has passed. Added to the counts they make them exact. n is 1 for the state after a change and -1 for the
-- one before. of_queue: one queue; NULL: all. max_rows bounds the rows of each kind; NULL: all. In PL/pgSQL for the reason of
-- event_numbers: a claim of a limited queue and an enqueue to a bounded one call it.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_uncounted(of_queue text DEFAULT NULL, max_rows bigint DEFAULT NULL)
RETURNS TABLE (queue text, lane text, state text, n integer)
LANGUAGE plpgsql STABLE ROWS 10 AS $$
DECLARE
    mark  bigint := (SELECT r.watermark FROM ojs.event_relay r);
    drawn bigint := (SELECT s.last_value FROM ojs.event_seq s);
BEGIN
    RETURN QUERY
        SELECT e.queue, e.lane, v.state, v.n
        FROM (SELECT o.queue, o.lane, o.from_state, o.to_state FROM ojs.events o
            WHERE o.seq > mark AND o.seq <= drawn AND (of_queue IS NULL OR o.queue = of_queue) ORDER BY o.seq, o.sub LIMIT max_rows) e
            CROSS JOIN LATERAL (VALUES (e.to_state, 1), (e.from_state, -1)) v (state, n)
        WHERE e.queue IS NOT NULL AND v.state IS NOT NULL;
    IF EXISTS (SELECT FROM ojs.event_gaps g WHERE g.passed AND g.seq <= mark) THEN
        -- OFFSET 0 keeps the planner from reading all events for the few gaps.
        RETURN QUERY
            SELECT e.queue, e.lane, v.state, v.n
            FROM (SELECT g.seq FROM ojs.event_gaps g WHERE g.passed AND g.seq <= mark LIMIT max_rows) g
                CROSS JOIN LATERAL (SELECT o.queue, o.lane, o.from_state, o.to_state FROM ojs.events o
                    WHERE o.seq = g.seq AND o.sub = 0 AND (of_queue IS NULL OR o.queue = of_queue) OFFSET 0) e
                CROSS JOIN LATERAL (VALUES (e.to_state, 1), (e.from_state, -1)) v (state, n)
            WHERE e.queue IS NOT NULL AND v.state IS NOT NULL;
    END IF;
END
$$;
-- +goose StatementEnd

-- The position behind all published rows, as seq * 65536 + sub.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_place() RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT r.watermark << 16 | COALESCE((SELECT e.sub FROM ojs.events e WHERE e.seq = r.watermark ORDER BY e.seq DESC, e.sub DESC LIMIT 1), 0)
    FROM ojs.event_relay r
$$;
-- +goose StatementEnd

-- Published events behind an id, in order, as LISTEN ojs_events shows them. NULL: from the oldest that is kept.
-- +goose StatementBegin
CREATE FUNCTION ojs.events_after(after text DEFAULT NULL, max_rows integer DEFAULT 1000)
RETURNS TABLE (id text, payload text)
LANGUAGE plpgsql STABLE
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    pos bigint := COALESCE(ojs.event_position(after), -1);
    low bigint := GREATEST(pos, (SELECT f.floor_place FROM ojs.event_floor() f)) >> 16;
BEGIN
    IF after IS NOT NULL AND pos < 0 THEN
        RAISE EXCEPTION '''after'' must be an event id such as evt_019c0a11-2f40-7003-9a51-7be2c04d1e90' USING ERRCODE = '22023';
    END IF;
    RETURN QUERY
        SELECT t.id, ojs.event_notice(t.full_text, t.seq, t.sub)
        FROM (
            SELECT p.seq, p.sub, ojs.event_id(p.time, p.seq, p.sub) AS id, ojs.event_text(p.event, p.service, p.compat) AS full_text
            FROM ojs.event_published p
            WHERE (p.seq, p.sub) > (pos >> 16, (pos & 65535)::integer) AND p.seq >= low AND NOT p.internal
            ORDER BY p.seq, p.sub LIMIT max_rows
        ) t;
END
$$;
-- +goose StatementEnd

-- One published event, whole. NULL if it is unknown or dropped.
-- +goose StatementBegin
CREATE FUNCTION ojs.event(id text) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT ojs.event_text(p.event, p.service, p.compat)::json
    FROM ojs.event_published p
    WHERE p.seq = ojs.event_position(event.id) >> 16 AND p.sub = (ojs.event_position(event.id) & 65535)::integer
        AND NOT p.internal AND ojs.event_id(p.time, p.seq, p.sub) = event.id
$$;
-- +goose StatementEnd

-- Execution history is a view of the event log.

-- Whether an event belongs to the history, which lists changes of state and attempts.
-- +goose StatementBegin
CREATE FUNCTION ojs.in_history(type text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT type NOT IN ('job.heartbeat', 'job.progress', 'priority.changed')
$$;
-- +goose StatementEnd

-- The name of an event in the history. The first row of a job has no state before; neither has one that a job gets when
-- it moves to another queue.
-- +goose StatementBegin
CREATE FUNCTION ojs.history_type(type text, internal boolean, from_state text, to_state text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE type
        WHEN 'job.started' THEN 'job.attempt_started'
        WHEN 'job.completed' THEN 'job.attempt_completed'
        WHEN 'job.failed' THEN 'job.attempt_failed'
        WHEN 'job.cancelled' THEN 'job.cancelled'
        WHEN 'job.discarded' THEN 'job.discarded'
        ELSE CASE WHEN from_state IS NULL AND (type IN ('job.enqueued', 'job.scheduled') OR (internal AND to_state = 'pending'))
            THEN 'job.created' ELSE 'job.state_changed' END
        END
$$;
-- +goose StatementEnd

-- Who caused an event, by the source before the slash: sources may name the node, as in api/1234. A cancellation has
-- cancelled_by, which is read from the text, because -> fails for documents with \u0000.
-- +goose StatementBegin
CREATE FUNCTION ojs.history_actor(source text, data json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN starts_with(source, 'workers/') THEN 'worker'
        WHEN split_part(source, '/', 1) <> 'api' THEN 'system'
        WHEN starts_with(data::text, '{"cancelled_by":"system:') OR starts_with(data::text, '{"cancelled_by":"workflow:') THEN 'system'
        WHEN starts_with(data::text, '{"cancelled_by":"') AND data::text !~ '^[{]"cancelled_by":"(api"|sql"|key:)' THEN 'user'
        ELSE 'client' END
$$;
-- +goose StatementEnd

-- Positions (seq * 65536 + sub) of published rows about jobs from the number first_seq on, newest first. See event_page for the
-- settings.
-- +goose StatementBegin
CREATE FUNCTION ojs.history_newest(before bigint, first_seq bigint, max_rows integer, types text[], actors text[], queues text[], job_types text[],
    since timestamptz, until timestamptz, for_tenant text DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    low bigint := (SELECT f.floor_place FROM ojs.event_floor() f);
BEGIN
    RETURN QUERY
    SELECT p.seq << 16 | p.sub FROM ojs.event_published_all p
    WHERE p.seq >= GREATEST(first_seq, low >> 16) AND (p.seq << 16 | p.sub) > low AND p.seq <= before >> 16 AND (p.seq, p.sub) < (before >> 16, (before & 65535)::integer)
        AND p.job_id IS NOT NULL AND starts_with(p.type, 'job.') AND ojs.in_history(p.type)
        AND (cardinality(queues) = 0 OR p.queue = ANY(queues))
        AND (cardinality(job_types) = 0 OR p.job_type = ANY(job_types))
        AND (since IS NULL OR p.time >= since)
        AND (until IS NULL OR p.time < until)
        AND (for_tenant IS NULL OR split_part(p.lane, '/', 1) = for_tenant)
        AND (cardinality(types) = 0 OR ojs.history_type(p.type, p.internal, p.from_state, p.to_state) = ANY(types))
        AND (cardinality(actors) = 0 OR ojs.history_actor((p.event).source, (p.event).data) = ANY(actors))
    ORDER BY p.seq DESC, p.sub DESC LIMIT max_rows;
END
$$;
-- +goose StatementEnd

-- The partitions of events, each with its first number and the one behind its last. The name has the first number. Ranges of
-- 500 000 numbers have one partition each, or several if event_partition_close has cut some off.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_partitions() RETURNS TABLE (part text, low bigint, upper bigint)
LANGUAGE sql STABLE AS $$
    SELECT p.part, p.low, COALESCE(lead(p.low) OVER (ORDER BY p.low), (p.low / 500000 + 1) * 500000)
    FROM (SELECT c.relname::text AS part, substr(c.relname, 9)::bigint AS low FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'ojs.events'::regclass) p
$$;
-- +goose StatementEnd

-- Creates a partition and returns its name. See jobs_done_partitions_ensure for why partitions are attached.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_partition_create(low bigint, upper bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    part text := 'events_p' || lpad(low::text, 14, '0');
BEGIN
    EXECUTE format('CREATE TABLE ojs.%I (LIKE ojs.events INCLUDING ALL)', part);
    EXECUTE format('ALTER TABLE ojs.%I ADD CONSTRAINT bounds CHECK (seq >= %s AND seq < %s)', part, low, upper);
    EXECUTE format('ALTER TABLE ojs.events ATTACH PARTITION ojs.%I FOR VALUES FROM (%s) TO (%s)', part, low, upper);
    EXECUTE format('ALTER TABLE ojs.%I DROP CONSTRAINT bounds', part);
    RETURN part;
END
$$;
-- +goose StatementEnd

-- Creates the partitions for the next `ahead` ranges of numbers and returns the first number without one.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_partitions_ensure(ahead integer DEFAULT 6) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    size CONSTANT bigint := 500000;
    head bigint;
    made bigint;
    goal bigint;
BEGIN
    SELECT last_value INTO head FROM ojs.event_seq;
    goal := (head / size + ahead + 1) * size;
    SELECT max(p.upper) INTO made FROM ojs.event_partitions() p;
    IF COALESCE(made, 0) < goal THEN
        PERFORM pg_advisory_xact_lock(hashtext('ojs.event_partitions_ensure'));
        SELECT GREATEST(max(p.upper), head / size * size) INTO made FROM ojs.event_partitions() p;
        WHILE made < goal LOOP
            PERFORM ojs.event_partition_create(made, made + size);
            made := made + size;
        END LOOP;
    END IF;
    RETURN goal;
END
$$;
-- +goose StatementEnd

-- Ends the partition that is being written, so that it can be dropped by itself, if it is older than a day or a hundredth of
-- max_age: with few events its 500 000 numbers would take years. The rest of its range gets a partition of its own. DETACH needs
-- ACCESS EXCLUSIVE on the parent, as in event_partitions_prune: from there on no transaction has inserted an event and is
-- open, so no row can have a number from the cut on. Writers wait while ATTACH reads the rows of the partition, 0.1 s at most.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_partition_close() RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    head  bigint;
    age   interval;
    p     record;
    began timestamptz;
    cut   bigint;
BEGIN
    SELECT last_value INTO head FROM ojs.event_seq;
    SELECT r.max_age INTO age FROM ojs.event_relay r;
    SELECT * INTO p FROM ojs.event_partitions() e WHERE e.low <= head AND head < e.upper - 1;
    IF NOT FOUND OR age IS NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('SELECT time FROM ojs.%I ORDER BY seq LIMIT 1', p.part) INTO began;
    IF began IS NULL OR began > clock_timestamp() - GREATEST(interval '1 day', age / 100)
        OR NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_ensure'))
        OR NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune'))
        OR ojs.table_is_held('ojs.events') OR ojs.table_is_held(('ojs.' || p.part)::regclass) THEN
        RETURN false;
    END IF;
    PERFORM FROM ojs.event_relay FOR UPDATE; -- first, as in a pass of the relay
    EXECUTE format('ALTER TABLE ojs.events DETACH PARTITION ojs.%I', p.part);
    SELECT s.last_value + 1 INTO cut FROM ojs.event_seq s;
    EXECUTE format('ALTER TABLE ojs.events ATTACH PARTITION ojs.%I FOR VALUES FROM (%s) TO (%s)', p.part, p.low, LEAST(cut, p.upper));
    IF cut < p.upper THEN
        PERFORM ojs.event_partition_create(cut, p.upper);
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END
$$;
-- +goose StatementEnd

-- Drops the oldest partition of events if all its rows are outside of the limits (see event_floor_raise, which the caller has
-- called) and returns how many it dropped. The caller repeats until 0, so that no transaction locks the relay out for long. It
-- keeps the partition of the watermark, behind which late rows are placed, and one with a number whose transaction may still
-- commit. Rows without their webhook deliveries are kept beyond max_count but not beyond max_age, because a deployment whose
-- nodes send no webhooks must not keep the log without end. DETACH needs ACCESS EXCLUSIVE on the parent, and waiting for it
-- would stop every writer: a table in use is left for the next call.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_partitions_prune() RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    r    ojs.event_relay;
    p    record;
    last record;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune')) THEN
        RETURN 0;
    END IF;
    SELECT * INTO r FROM ojs.event_relay;
    SELECT * INTO p FROM ojs.event_partitions() e ORDER BY e.low LIMIT 1;
    IF NOT FOUND OR p.upper > r.watermark THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT seq << 16 | sub AS place, time FROM ojs.%I ORDER BY seq DESC, sub DESC LIMIT 1', p.part) INTO last;
    IF last.place > r.floor_place THEN
        RETURN 0;
    END IF;
    IF (r.max_age IS NULL OR last.time >= clock_timestamp() - r.max_age) AND EXISTS (
        SELECT FROM ojs.webhooks w CROSS JOIN ojs.webhook_cursor c
        WHERE (w.active OR w.upto_place > c.place) AND GREATEST(c.place, w.from_place) >> 16 < p.upper) THEN
        RETURN 0;
    END IF;
    IF ojs.table_is_held('ojs.events') OR ojs.table_is_held(('ojs.' || p.part)::regclass) THEN
        RETURN 0;
    END IF;
    -- The row of the relay is locked first, as in a pass of the relay: the other order would deadlock with one. No gap
    -- appears below the watermark, so what is read under this lock stays true.
    PERFORM FROM ojs.event_relay FOR UPDATE;
    IF EXISTS (SELECT FROM ojs.event_gaps WHERE seq >= p.low AND seq < p.upper) THEN
        RETURN 0;
    END IF;
    EXECUTE format('ALTER TABLE ojs.events DETACH PARTITION ojs.%I', p.part);
    EXECUTE format('DROP TABLE ojs.%I', p.part);
    UPDATE ojs.event_relay SET pruned = p.upper - 1;
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd

-- Deletes queues to which nothing was enqueued for 30 days, which have no jobs, and for which nobody has set anything: clients
-- choose the names, so their number has no bound. Returns how many. A node that enqueues has moved used_at less than a day and an
-- hour before (see QueueInsert), so no queue that one of them remembers is deleted. The row of the relay is locked first, as in a
-- pass of the relay, so the counts stay as they are read. A queue whose row is locked is left for the next call.
-- +goose StatementBegin
CREATE FUNCTION ojs.queues_prune(max_rows integer) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    unused text[];
BEGIN
    SELECT array_agg(u.name) INTO unused FROM (
        SELECT q.name FROM ojs.queues q
        WHERE q.used_at < now() - interval '30 days' AND q.status = 'active' AND q.config IS NULL
            AND NOT EXISTS (SELECT FROM ojs.queue_counts c WHERE c.queue = q.name AND c.count <> 0)
        LIMIT max_rows) u;
    IF unused IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM FROM ojs.event_relay FOR UPDATE;
    SELECT array_agg(l.name) INTO unused FROM (
        SELECT q.name FROM ojs.queues q
        WHERE q.name = ANY(unused) AND q.used_at < now() - interval '30 days' AND q.status = 'active' AND q.config IS NULL
            AND NOT EXISTS (SELECT FROM ojs.queue_counts c WHERE c.queue = q.name AND c.count <> 0)
        FOR UPDATE SKIP LOCKED) l;
    DELETE FROM ojs.queue_counts WHERE queue = ANY(unused);
    DELETE FROM ojs.tenant_counts WHERE queue = ANY(unused);
    DELETE FROM ojs.queues WHERE name = ANY(unused);
    RETURN COALESCE(cardinality(unused), 0);
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd

-- The sessions, slots and prepared transactions that keep dead rows of this database from being cleaned, oldest
-- transaction first. A transaction that has written keeps them even without a snapshot; the snapshot of autovacuum does
-- not. The catalog_xmin of a slot keeps those of the catalogs only, so it comes last. A role without pg_read_all_stats
-- does not see other sessions.
-- +goose StatementBegin
CREATE FUNCTION ojs.xmin_list() RETURNS TABLE (kind text, name text, pid integer, state text, seconds double precision, transactions bigint, catalog boolean)
LANGUAGE sql VOLATILE AS $$
    SELECT h.* FROM (
        SELECT CASE WHEN a.backend_type = 'walsender' THEN 'standby' ELSE 'session' END, COALESCE(a.application_name, ''), a.pid, a.state,
            COALESCE(date_part('epoch', clock_timestamp() - a.xact_start), 0), GREATEST(age(a.backend_xmin), age(a.backend_xid))::bigint, false
        FROM pg_stat_activity a
        WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid() AND (a.datname = current_database() OR a.backend_type = 'walsender')
            AND NOT (a.backend_type = 'autovacuum worker' AND a.query LIKE 'autovacuum: VACUUM %')
        UNION ALL
        SELECT 'replication_slot', s.slot_name::text, COALESCE(s.active_pid, 0), CASE WHEN s.active THEN 'active' ELSE 'inactive' END, 0,
            age(COALESCE(s.xmin, s.catalog_xmin))::bigint, s.xmin IS NULL
        FROM pg_replication_slots s WHERE s.xmin IS NOT NULL OR s.catalog_xmin IS NOT NULL
        UNION ALL
        SELECT 'prepared_transaction', p.gid, 0, 'prepared', date_part('epoch', clock_timestamp() - p.prepared), age(p.transaction)::bigint, false
        FROM pg_prepared_xacts p WHERE p.database = current_database()
    ) h (kind, name, pid, state, seconds, transactions, catalog)
    ORDER BY h.catalog, h.transactions DESC, h.seconds DESC
$$;
-- +goose StatementEnd

-- MetricsXminHolder: the oldest of them.
-- +goose StatementBegin
CREATE FUNCTION ojs.xmin_holder() RETURNS TABLE (kind text, name text, pid integer, seconds double precision, transactions bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT l.kind, l.name, l.pid, l.seconds, l.transactions FROM ojs.xmin_list() l WHERE NOT l.catalog LIMIT 1
$$;
-- +goose StatementEnd

-- DoctorXmin: those older than a minute, and inactive slots. Standbys and slots in use have no known age.
-- +goose StatementBegin
CREATE FUNCTION ojs.xmin_holders() RETURNS TABLE (holder text, seconds double precision)
LANGUAGE sql VOLATILE AS $$
    SELECT CASE l.kind WHEN 'replication_slot' THEN 'replication slot ' || l.name
            WHEN 'prepared_transaction' THEN 'prepared transaction ' || l.name
            ELSE l.kind || ' ' || l.pid || COALESCE(' (' || NULLIF(l.name, '') || ')', '') || ', ' || COALESCE(l.state, 'unknown state') END,
        l.seconds
    FROM ojs.xmin_list() l
    WHERE CASE l.kind WHEN 'replication_slot' THEN l.state = 'inactive' ELSE l.seconds > 60 END
$$;
-- +goose StatementEnd

-- DoctorRelayHolders, MetricsRelayHolder: the sessions that have kept the relays of all nodes from publishing for at least 5 s, a
-- hundred times as long as a pass takes: one that holds the lock of the relay, or a lock on event_relay that excludes its update.
-- The first key of an advisory lock is in classid, the second in objid, both without sign.
-- +goose StatementBegin
CREATE FUNCTION ojs.relay_holders() RETURNS TABLE (name text, pid integer, state text, seconds double precision)
LANGUAGE sql VOLATILE AS $$
    SELECT COALESCE(a.application_name, ''), a.pid, COALESCE(a.state, 'unknown state'), date_part('epoch', clock_timestamp() - a.xact_start)
    FROM pg_stat_activity a
    WHERE a.xact_start < clock_timestamp() - interval '5 seconds' AND EXISTS (
        SELECT FROM pg_locks l
        WHERE l.pid = a.pid AND l.granted AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
            AND (l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid::bigint = (hashtext('ojs')::bigint & 4294967295)
                    AND l.objid::bigint = (hashtext('event_relay')::bigint & 4294967295)
                OR l.locktype = 'relation' AND l.relation = 'ojs.event_relay'::regclass AND l.mode <> 'AccessShareLock'))
    ORDER BY 4 DESC
$$;
-- +goose StatementEnd

-- Row counts and sizes of tables with their partitions and indexes, from the statistics. Reading a size takes a lock for
-- a moment.
-- +goose StatementBegin
CREATE FUNCTION ojs.table_stats(names text[]) RETURNS TABLE (name text, live bigint, dead bigint, bytes bigint)
LANGUAGE sql VOLATILE AS $$
    SELECT COALESCE(parent.relname, c.relname)::text, COALESCE(sum(pg_stat_get_live_tuples(c.oid)), 0)::bigint,
        COALESCE(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint, COALESCE(sum(pg_total_relation_size(c.oid)), 0)::bigint
    FROM pg_class c
        LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
        LEFT JOIN pg_class parent ON parent.oid = i.inhparent
    WHERE c.relnamespace = to_regnamespace('ojs') AND c.relkind = 'r' AND COALESCE(parent.relname, c.relname) = ANY(names)
    GROUP BY 1
$$;
-- +goose StatementEnd

SELECT ojs.event_partitions_ensure();

-- +goose Down
DROP FUNCTION ojs.table_stats(text[]);
DROP FUNCTION ojs.relay_holders();
DROP FUNCTION ojs.xmin_holders();
DROP FUNCTION ojs.xmin_holder();
DROP FUNCTION ojs.xmin_list();
DROP FUNCTION ojs.queues_prune(integer);
DROP FUNCTION ojs.event_partitions_prune();
DROP FUNCTION ojs.event_partition_close();
DROP FUNCTION ojs.event_partitions_ensure(integer);
DROP FUNCTION ojs.event_partition_create(bigint, bigint);
DROP FUNCTION ojs.event_partitions();
DROP FUNCTION ojs.history_newest(bigint, bigint, integer, text[], text[], text[], text[], timestamptz, timestamptz, text);
DROP FUNCTION ojs.history_actor(text, json);
DROP FUNCTION ojs.history_type(text, boolean, text, text);
DROP FUNCTION ojs.in_history(text);
DROP FUNCTION ojs.event(text);
DROP FUNCTION ojs.events_after(text, integer);
DROP FUNCTION ojs.event_uncounted(text, bigint);
DROP FUNCTION ojs.event_is_visible(bigint);
DROP FUNCTION ojs.event_numbers(bigint, bigint);
DROP FUNCTION ojs.event_place();
DROP FUNCTION ojs.event_last();
DROP FUNCTION ojs.event_newest(bigint, integer, boolean, text[], text[], text[], text[], uuid, text, uuid, timestamptz, timestamptz, text);
DROP FUNCTION ojs.event_page(bigint, integer, bigint, integer, boolean, text[], text[], text[], text[], uuid, text, uuid, timestamptz, timestamptz, text);
DROP FUNCTION ojs.event_about(text, bigint);
DROP FUNCTION ojs.event_matches(ojs.events, text, boolean, text[], text[], text[], text[], uuid, timestamptz, timestamptz, text);
DROP VIEW ojs.event_shown;
DROP VIEW ojs.event_published;
DROP FUNCTION ojs.event_floor_raise(bigint);
DROP FUNCTION ojs.event_floor(bigint);
DROP VIEW ojs.event_published_all;
DROP FUNCTION ojs.event_notice(text, bigint, integer);
DROP FUNCTION ojs.event_short(bigint, integer, integer);
DROP FUNCTION ojs.error_members(text);
DROP FUNCTION ojs.event_text(ojs.events, text, boolean);
DROP FUNCTION ojs.event_data(ojs.events);
DROP FUNCTION ojs.event_members(ojs.events);
DROP FUNCTION ojs.event_compat(ojs.events);
DROP FUNCTION ojs.event_head(ojs.events, text);
DROP FUNCTION ojs.event_position(text);
DROP FUNCTION ojs.event_id(timestamptz, bigint, integer);
DROP FUNCTION ojs.durations_add(bigint[], bigint[]);
DROP FUNCTION ojs.durations_of(integer[], bigint[]);
DROP FUNCTION ojs.duration_bucket(bigint);
DROP TABLE ojs.stats_hour, ojs.stats_minute, ojs.queue_counts, ojs.event_gaps, ojs.event_relay, ojs.events;
DROP SEQUENCE ojs.event_seq;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 1 $$;
-- +goose StatementEnd
