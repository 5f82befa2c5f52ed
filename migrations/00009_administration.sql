-- +goose Up
-- Maintenance, pools and schemas.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 9 $$;
-- +goose StatementEnd

-- pools has a row for each pool of workers. At most 1 000 rows (PoolPut).
CREATE TABLE ojs.pools (
    name        text        PRIMARY KEY,
    definition  json        NOT NULL,                           -- as package pool writes it
    concurrency integer,                                        -- most active jobs of its workers; NULL: no limit
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now()              -- = created_at: never changed
);

-- pool_holds counts the active jobs of pools with a concurrency. A row of a job whose run has ended is deleted when its place is
-- needed, so acks know nothing of pools.
CREATE TABLE ojs.pool_holds (
    pool       text        NOT NULL,
    id         uuid        NOT NULL,                            -- of the job, or of a reservation
    jobs       integer     NOT NULL,                            -- 1, or how many a reservation may become
    started_at timestamptz,                                     -- of the run; NULL: a reservation
    expires_at timestamptz,                                     -- of a reservation; NULL: a job
    PRIMARY KEY (pool, id)                                      -- pool_reserve
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Reserves room for up to want jobs, and returns for how many. The row of the pool is locked, so that the reservations of two fetches
-- never exceed its concurrency; each statement after the lock reads what the one before has committed. The reservation of a node
-- that stops before it knows its jobs ends after a minute, in which its jobs reach no worker.
-- +goose StatementBegin
CREATE FUNCTION ojs.pool_reserve(pool_name text, reservation uuid, want integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    most integer;
    held bigint;
BEGIN
    SELECT p.concurrency INTO most FROM ojs.pools p WHERE p.name = pool_name FOR UPDATE;
    IF most IS NULL THEN
        RETURN want;
    END IF;
    SELECT COALESCE(sum(h.jobs), 0) INTO held FROM ojs.pool_holds h WHERE h.pool = pool_name;
    IF held + want > most THEN
        DELETE FROM ojs.pool_holds h WHERE h.pool = pool_name AND CASE WHEN h.started_at IS NULL THEN h.expires_at <= clock_timestamp()
            ELSE (SELECT j.started_at FROM ojs.jobs j WHERE j.id = h.id AND j.state = 'active') IS DISTINCT FROM h.started_at END;
        SELECT COALESCE(sum(h.jobs), 0) INTO held FROM ojs.pool_holds h WHERE h.pool = pool_name;
    END IF;
    want := LEAST(want, most - held);
    IF want <= 0 THEN
        RETURN 0;
    END IF;
    INSERT INTO ojs.pool_holds (pool, id, jobs, expires_at) VALUES (pool_name, reservation, want, clock_timestamp() + interval '1 minute');
    RETURN want;
END
$$;
-- +goose StatementEnd

-- maintenance has a row while fetches get nothing, and due jobs and crons wait.
CREATE TABLE ojs.maintenance (
    only_row      boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    started_at    timestamptz NOT NULL,
    ends_at       timestamptz,                          -- from then on it is off; NULL: it does not end by itself
    estimated_end timestamptz,                          -- shown only
    reason        text        NOT NULL,
    started_by    text        NOT NULL
);

-- schemas has a row for each version of the schema of a job type. At most 10 000 rows (SchemaInsert).
CREATE TABLE ojs.schemas (
    type           text        COLLATE "C" NOT NULL,
    version        text        COLLATE "C" NOT NULL,
    version_number boolean     NOT NULL,                       -- the client sent a number: answers show one
    uri            text        COLLATE "C" NOT NULL,
    schema         json        NOT NULL,
    enforce        boolean     NOT NULL,                       -- of the newest version: jobs that name no schema are checked, too
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (type, version)                                -- SchemaGet, SchemaList
);
-- SchemaInsert, SchemaGetByURI: a URI names one schema.
CREATE UNIQUE INDEX schemas_uri ON ojs.schemas (uri);

-- schema_change has one row from the first change on. Its version grows with every change of schemas, and every change locks it.
CREATE TABLE ojs.schema_change (
    id      boolean PRIMARY KEY DEFAULT true CHECK (id),
    version bigint  NOT NULL                                   -- µs of the clock, and more than before: other after a reset, too
);

-- ojs.explain tells why a job is not running. What it reads is bounded, whatever waits: counts end at a bound, and each look-up follows an
-- index. Its functions are called by each other only.

-- One reason. details are members beside code and message.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_reason(code text, message text, details json DEFAULT NULL) RETURNS json
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (left(json_build_object('code', code, 'message', message)::text, -1) || COALESCE(', ' || substr(NULLIF(json_strip_nulls(details)::text, '{}'), 2), '}'))::json
$$;
-- +goose StatementEnd

-- A count as text, where most is where counting ended.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_count(n bigint, most integer, noun text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN n >= most THEN 'more than ' || most - 1 ELSE n::text END || ' ' || noun || CASE WHEN n = 1 THEN '' ELSE 's' END
$$;
-- +goose StatementEnd

-- How many jobs of its lane are fetched before an available job. Both parts are read backwards from the job: dead index entries pile
-- up at the head of a queue.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_ahead(j ojs.jobs, most integer) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    n     bigint;
    above bigint := 0;
BEGIN
    SELECT count(*) INTO n FROM (
        SELECT FROM ojs.jobs o WHERE o.state = 'available' AND o.ready_seq IS NOT NULL AND o.queue = j.queue AND o.lane = j.lane AND o.priority = j.priority
            AND o.ready_seq < j.ready_seq ORDER BY o.priority, o.ready_seq DESC LIMIT most) s;
    IF n < most THEN
        SELECT count(*) INTO above FROM (
            SELECT FROM ojs.jobs o WHERE o.state = 'available' AND o.ready_seq IS NOT NULL AND o.queue = j.queue AND o.lane = j.lane
                AND o.priority > j.priority ORDER BY o.priority, o.ready_seq DESC LIMIT most - n) s;
    END IF;
    RETURN n + above;
END
$$;
-- +goose StatementEnd

-- The same among the jobs that wait for the rate limit of a job.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_waiting(j ojs.jobs, most integer) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    n     bigint;
    above bigint := 0;
BEGIN
    SELECT count(*) INTO n FROM (
        SELECT FROM ojs.jobs o WHERE o.limit_key = j.limit_key AND o.limit_seq IS NOT NULL AND o.priority = j.priority AND o.limit_seq < j.limit_seq
            ORDER BY o.priority, o.limit_seq DESC LIMIT most) s;
    IF n < most THEN
        SELECT count(*) INTO above FROM (
            SELECT FROM ojs.jobs o WHERE o.limit_key = j.limit_key AND o.limit_seq IS NOT NULL AND o.priority > j.priority
                ORDER BY o.priority, o.limit_seq DESC LIMIT most - n) s;
    END IF;
    RETURN n + above;
END
$$;
-- +goose StatementEnd

-- How many other lanes of its queue have available jobs. They are looked for from the job's lane on, forwards and backwards: most queues have
-- no other.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_lanes(j ojs.jobs, most integer) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
DECLARE
    n  integer := 0;
    at text := j.lane;
BEGIN
    WHILE n < most LOOP
        SELECT o.lane INTO at FROM ojs.jobs o WHERE o.state = 'available' AND o.ready_seq IS NOT NULL AND o.queue = j.queue AND o.lane > at COLLATE "C"
        ORDER BY o.lane, o.priority DESC, o.ready_seq LIMIT 1;
        EXIT WHEN NOT FOUND;
        n := n + 1;
    END LOOP;
    at := j.lane;
    WHILE n < most LOOP
        SELECT o.lane INTO at FROM ojs.jobs o WHERE o.state = 'available' AND o.ready_seq IS NOT NULL AND o.queue = j.queue AND o.lane < at COLLATE "C"
        ORDER BY o.lane DESC, o.priority, o.ready_seq DESC LIMIT 1;
        EXIT WHEN NOT FOUND;
        n := n + 1;
    END LOOP;
    RETURN n;
END
$$;
-- +goose StatementEnd

-- What a queue has started and completed in the last five minutes. per_s is NULL if nothing was.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_rates(job_queue text, now timestamptz, OUT started bigint, OUT per_s double precision, OUT run_s double precision)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT COALESCE(sum(m.started), 0), sum(m.started) / NULLIF(date_part('epoch', now - min(m.minute)), 0), sum(m.duration_ms) / NULLIF(sum(m.completed), 0) / 1000
    INTO started, per_s, run_s
    FROM ojs.stats_minute m WHERE m.queue = job_queue AND m.minute > now - interval '5 minutes';
    per_s := NULLIF(per_s, 0);
END
$$;
-- +goose StatementEnd

-- Why a job with a rate limit waits, and about how many seconds; NULL: that cannot be told.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_limit(j ojs.jobs, run_s double precision, now timestamptz, OUT reason json, OUT wait_s double precision)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    most  CONSTANT integer := 10001;
    ahead bigint := ojs.explain_waiting(j, most);
    l     record;
BEGIN
    SELECT o.concurrency, o.rate, o.rate_us, o.throttle_us, o.blocked_until, u.*,
        GREATEST(0, ojs.limit_allowance(o, now, u.active, u.started, u.last_start) - u.admitted) AS allowance
    INTO l FROM ojs.limits o CROSS JOIN LATERAL ojs.limit_usage(o, now) u WHERE o.key = j.limit_key;
    IF l.concurrency IS NULL OR l.concurrency > 0 AND (run_s IS NOT NULL OR ahead < l.allowance) THEN
        wait_s := GREATEST(0, date_part('epoch', l.blocked_until - now), (ahead + 1) / l.concurrency::double precision * run_s,
            ceil((ahead + 1 - l.allowance) / l.rate::double precision) * l.rate_us / 1000000,
            date_part('epoch', l.last_start - now) + (ahead + 1) * l.throttle_us / 1000000.0);
    END IF;
    reason := ojs.explain_reason('limited', format('Its rate limit %s lets %s start now, and %s before it.', j.limit_key,
            CASE WHEN COALESCE(l.allowance, 0) = 0 THEN 'no job' ELSE ojs.explain_count(l.allowance, 2147483647, 'job') END, ojs.explain_count(ahead, most, 'job')
            || CASE WHEN ahead = 1 THEN ' waits' ELSE ' wait' END),
        json_build_object('key', j.limit_key, 'room', l.allowance, 'waiting_ahead', LEAST(ahead, most - 1), 'more', ahead >= most, 'concurrency', l.concurrency,
            'active', CASE WHEN l.concurrency IS NOT NULL THEN ( -- limit_usage counts up to the limit
                SELECT count(*) FROM (SELECT FROM ojs.jobs o WHERE o.limit_key = j.limit_key AND o.limit_seq IS NULL AND o.state = 'active' LIMIT 10000) n) END,
            'rate_limit', l.rate, 'rate_period_ms', l.rate_us / 1000, 'started_in_period', CASE WHEN l.rate IS NOT NULL THEN l.started END,
            'throttle_interval_ms', l.throttle_us / 1000, 'admitted', l.admitted, 'blocked_until', CASE WHEN l.blocked_until > now THEN ojs.time_text(l.blocked_until) END));
END
$$;
-- +goose StatementEnd

-- Whether living workers fetch a queue. Workers that send no heartbeats are not known, so nothing is said while the queue starts jobs.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_workers(job_queue text, starts boolean) RETURNS json
LANGUAGE plpgsql STABLE AS $$
DECLARE
    w      record;
    counts json;
BEGIN
    SELECT count(*) AS living, count(*) FILTER (WHERE r.quiet) AS quiet, sum(r.active_jobs) FILTER (WHERE NOT r.quiet) AS active,
        CASE WHEN bool_and(r.slots IS NOT NULL) THEN sum(r.slots) FILTER (WHERE NOT r.quiet) END AS slots
    INTO w FROM (
        SELECT COALESCE(o.directive, o.state) IN ('quiet', 'terminate') AS quiet, o.active_jobs, o.concurrency AS slots, COALESCE(o.queues, o.fetch_queues) AS queues
        FROM ojs.workers o WHERE o.stale_at IS NULL ORDER BY o.last_seen_at DESC LIMIT 1000) r
    WHERE EXISTS (SELECT FROM json_array_elements_text(COALESCE(r.queues, '[]')) q (name) WHERE q.name = job_queue);
    counts := json_build_object('workers', w.living, 'quiet', w.quiet, 'active_jobs', w.active, 'concurrency', w.slots);
    RETURN CASE
        WHEN w.living = 0 AND NOT starts THEN ojs.explain_reason('no_workers', format('No living worker fetches queue %s. Workers that send no heartbeats are not known.', job_queue), counts)
        WHEN w.living > 0 AND w.quiet = w.living THEN ojs.explain_reason('workers_quiet', format('All %s of queue %s are quiet or terminate.', ojs.explain_count(w.living, 1001, 'worker'), job_queue), counts)
        WHEN w.active >= w.slots THEN ojs.explain_reason('workers_busy', format('The workers of queue %s run %s jobs, as many as they can.', job_queue, w.active), counts)
    END;
END
$$;
-- +goose StatementEnd

-- Whether the workers of isolated pools, the only ones that may fetch a queue, take jobs. NULL: it is in no such pool, or they do. Workers that
-- name their pool in fetches only are not known, so nothing is said of them while the queue starts jobs. The jobs of large pools are not counted.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_pools(job_queue text, starts boolean) RETURNS json
LANGUAGE plpgsql STABLE AS $$
DECLARE
    names   text[];
    limited integer;
    most    bigint;
    active  bigint;
    living  bigint;
BEGIN
    SELECT array_agg(p.name ORDER BY p.name), count(p.concurrency), sum(p.concurrency) INTO names, limited, most
    FROM ojs.pools p WHERE (p.definition ->> 'isolated')::boolean
        AND EXISTS (SELECT FROM json_array_elements_text(p.definition -> 'queues') q (name) WHERE q.name = job_queue);
    IF names IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT count(*) INTO living FROM (SELECT o.facts ->> 'pool' AS pool FROM ojs.workers o WHERE o.stale_at IS NULL ORDER BY o.last_seen_at DESC LIMIT 1000) r
    WHERE r.pool = ANY(names);
    IF living = 0 AND NOT starts THEN
        RETURN ojs.explain_reason('pool_no_workers', format('Only workers of pool %s may fetch queue %s, and none lives that has named it. Workers that name it only in fetches are not known.',
            array_to_string(names[:10], ' or '), job_queue), json_build_object('pools', to_json(names[:10])));
    END IF;
    IF limited = cardinality(names) AND most <= 1000 THEN
        SELECT count(*) INTO active FROM (SELECT h.id, h.started_at FROM ojs.pool_holds h WHERE h.pool = ANY(names) AND h.started_at IS NOT NULL LIMIT 1000) h
        WHERE h.started_at = (SELECT j.started_at FROM ojs.jobs j WHERE j.id = h.id AND j.state = 'active');
        IF active >= most THEN
            RETURN ojs.explain_reason('pool_limited', format('Only workers of pool %s may fetch queue %s, and they run %s jobs, as many as the pool permits.', array_to_string(names[:10], ' or '),
                job_queue, active), json_build_object('pools', to_json(names[:10]), 'concurrency', most, 'active', active));
        END IF;
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

-- What holds back all jobs of a queue.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_queue(job_queue text, now timestamptz) RETURNS json[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    reasons json[] := '{}';
    q       record;
    m       record;
    settings jsonb := ojs.queue_settings(job_queue);
    most    bigint := settings -> 'concurrency';
    active  bigint;
BEGIN
    IF to_regclass('ojs.maintenance') IS NOT NULL THEN
        SELECT o.started_at, o.ends_at, o.reason INTO m FROM ojs.maintenance o WHERE o.ends_at > now OR o.ends_at IS NULL;
        IF FOUND THEN
            reasons := reasons || ojs.explain_reason('maintenance', format('The server is in maintenance since %s.', ojs.time_text(m.started_at)),
                json_build_object('since', ojs.time_text(m.started_at), 'until', ojs.time_text(m.ends_at), 'reason', m.reason));
        END IF;
    END IF;
    SELECT o.status, o.paused_at INTO q FROM ojs.queues o WHERE o.name = job_queue;
    IF q.status = 'paused' THEN
        reasons := reasons || ojs.explain_reason('queue_paused', format('Queue %s is paused%s.', job_queue, ' since ' || ojs.time_text(q.paused_at)),
            json_build_object('since', ojs.time_text(q.paused_at)));
    END IF;
    IF settings ? 'rate_limit' THEN -- counted by claims
        SELECT o.rate, o.rate_us, o.throttle_us, o.blocked_until, u.started INTO m FROM ojs.limits o CROSS JOIN LATERAL ojs.limit_usage(o, now) u
        WHERE o.key = 'queue:' || job_queue AND ojs.limit_allowance(o, now, 0, u.started, u.last_start) = 0;
        IF FOUND THEN
            reasons := reasons || ojs.explain_reason('queue_limited', format('The rate limit of queue %s lets no job start now.', job_queue),
                json_build_object('rate_limit', m.rate, 'rate_period_ms', m.rate_us / 1000, 'started_in_period', CASE WHEN m.rate IS NOT NULL THEN m.started END,
                    'throttle_interval_ms', m.throttle_us / 1000, 'blocked_until', CASE WHEN m.blocked_until > now THEN ojs.time_text(m.blocked_until) END));
        END IF;
    END IF;
    IF most IS NOT NULL THEN
        SELECT c.count INTO active FROM ojs.queue_counts c WHERE c.queue = job_queue AND c.state = 'active';
        IF COALESCE(active, 0) >= most THEN
            reasons := reasons || ojs.explain_reason('queue_limited', format('Queue %s runs %s jobs at once at most, and runs %s.', job_queue, most, COALESCE(active, 0)),
                json_build_object('concurrency', most, 'active', COALESCE(active, 0)));
        END IF;
    END IF;
    RETURN reasons;
END
$$;
-- +goose StatementEnd

-- Why an available job is not running, and about how many seconds it will wait; NULL: that cannot be told.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_available(j ojs.jobs, now timestamptz, OUT reasons json[], OUT wait_s double precision)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    most       CONSTANT integer := 10001;
    most_lanes CONSTANT integer := 101;
    blocks     json;
    pools      json;
    rates      record := ojs.explain_rates(j.queue, now);
    ahead      bigint;
    lanes      integer := 0; -- others with jobs
    waiting    bigint;
    other      uuid;
    l          record;
BEGIN
    reasons := ojs.explain_queue(j.queue, now);
    blocks := ojs.explain_workers(j.queue, rates.started > 0);
    pools := ojs.explain_pools(j.queue, rates.started > 0);
    IF j.limit_seq IS NOT NULL THEN
        l := ojs.explain_limit(j, rates.run_s, now);
        reasons := reasons || l.reason;
        wait_s := l.wait_s;
    ELSIF j.ready_seq IS NULL THEN
        SELECT o.id INTO other FROM ojs.jobs o WHERE o.cron = j.cron AND o.state = 'active' LIMIT 1;
        reasons := reasons || ojs.explain_reason('cron_serial', format('Jobs of cron %s run one after the other, and another one is not done.', j.cron),
            json_build_object('cron', j.cron, 'running_job_id', other));
    ELSE
        ahead := ojs.explain_ahead(j, most);
        lanes := ojs.explain_lanes(j, most_lanes);
        IF ahead > 0 THEN
            reasons := reasons || ojs.explain_reason('jobs_ahead', format('%s of %squeue %s %s fetched before it.', initcap(left(ojs.explain_count(ahead, most, 'job'), 1)) || substr(ojs.explain_count(ahead, most, 'job'), 2),
                CASE WHEN lanes > 0 THEN 'its lane in ' ELSE '' END, j.queue, CASE WHEN ahead = 1 THEN 'is' ELSE 'are' END), json_build_object('ahead', LEAST(ahead, most - 1), 'more', ahead >= most));
        END IF;
        IF lanes > 0 THEN
            reasons := reasons || ojs.explain_reason('turns', format('The lanes of queue %s take turns: the job is number %s of %s, and %s.', j.queue, CASE WHEN ahead >= most THEN 'more than ' || most ELSE (ahead + 1)::text END,
                    CASE WHEN j.lane = '' THEN 'the lane of jobs without a key' ELSE 'lane ' || j.lane END, ojs.explain_count(lanes, most_lanes, 'other lane') || CASE WHEN lanes = 1 THEN ' has jobs' ELSE ' have jobs' END),
                json_build_object('lane', j.lane, 'position', LEAST(ahead + 1, most), 'other_lanes', LEAST(lanes, most_lanes - 1), 'more', lanes >= most_lanes));
        END IF;
        IF ahead >= most OR lanes > 0 THEN -- then those of all priorities and lanes
            SELECT c.count INTO waiting FROM ojs.queue_counts c WHERE c.queue = j.queue AND c.state = 'available';
            waiting := GREATEST(ahead, waiting);
            ahead := CASE WHEN ahead >= most THEN waiting ELSE LEAST((ahead + 1) * (lanes + 1) - 1, waiting) END;
        END IF;
        wait_s := (ahead + 1) / rates.per_s;
    END IF;
    IF pools IS NOT NULL THEN
        reasons := reasons || pools;
    END IF;
    IF blocks IS NOT NULL THEN
        reasons := reasons || blocks;
    END IF;
    IF (SELECT bool_or(r ->> 'code' IN ('maintenance', 'queue_paused', 'no_workers', 'workers_quiet', 'pool_no_workers', 'cron_serial')
        OR r ->> 'code' = 'queue_limited' AND r ->> 'concurrency' = '0') FROM unnest(reasons) r) THEN
        wait_s := NULL;
    END IF;
    IF cardinality(reasons) = 0 THEN
        reasons := ARRAY[ojs.explain_reason('next', format('It is the next job of queue %s. The next fetch that asks for a job of the queue gets it.', j.queue))];
    END IF;
END
$$;
-- +goose StatementEnd

-- Why a job in another state is not running, and when it may run.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain_state(j ojs.jobs) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT CASE j.state
        WHEN 'scheduled' THEN ojs.explain_reason('scheduled', format('It is scheduled for %s.', ojs.time_text(j.scheduled_at)), json_build_object('until', ojs.time_text(j.scheduled_at)))
        WHEN 'retryable' THEN ojs.explain_reason('retry', format('Attempt %s of %s failed; the next one is due at %s.', j.attempt, j.max_attempts, ojs.time_text(j.next_attempt_at)),
            json_build_object('until', ojs.time_text(j.next_attempt_at), 'attempt', j.attempt, 'max_attempts', j.max_attempts, 'error_code', substring(ojs.error_code(j.error) FROM '^[A-Za-z0-9_.:-]{1,255}$')))
        WHEN 'pending' THEN ojs.explain_reason('pending', 'It is pending until it is activated.')
        WHEN 'active' THEN ojs.explain_reason('running', format('It runs since %s%s.', ojs.time_text(j.started_at), ' on worker ' || NULLIF(j.worker_id, '')),
            json_build_object('worker_id', j.worker_id, 'since', ojs.time_text(j.started_at), 'lease_until', ojs.time_text(j.lease_until)))
        ELSE ojs.explain_reason('ended', format('It is %s since %s.', j.state, ojs.time_text(j.finished_at)),
            json_build_object('since', ojs.time_text(j.finished_at), 'error_code', substring(ojs.error_code(j.error) FROM '^[A-Za-z0-9_.:-]{1,255}$'))) END
$$;
-- +goose StatementEnd

-- Tells why a job is not running; NULL: there is no such job. The planner is left no way but the indexes, whatever the session has set.
-- +goose StatementBegin
CREATE FUNCTION ojs.explain(id uuid) RETURNS json
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on SET jit = off AS $$
DECLARE
    now     timestamptz := clock_timestamp();
    j       ojs.jobs;
    wait_s  double precision;
    reasons json[];
    waits   boolean;
    due     timestamptz;
BEGIN
    SELECT o.* INTO j FROM ojs.jobs o WHERE o.id = explain.id;
    IF NOT FOUND THEN
        SELECT o.* INTO j FROM ojs.jobs_done o WHERE o.id = explain.id;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    j.args := '[]'; -- it would be copied with each call
    j.meta := NULL; j.extra := NULL; j.errors := NULL; j.previous_errors := NULL; j.checkpoint := NULL; j.progress_data := NULL; j.result := NULL;
    waits := j.state IN ('scheduled', 'retryable', 'pending');
    IF j.state = 'available' THEN
        SELECT e.reasons, e.wait_s INTO reasons, wait_s FROM ojs.explain_available(j, now) e;
    ELSE
        reasons := ARRAY[ojs.explain_state(j)];
        IF waits THEN
            reasons := reasons || ojs.explain_queue(j.queue, now);
            wait_s := CASE WHEN cardinality(reasons) = 1 AND j.state <> 'pending' THEN GREATEST(0, date_part('epoch', CASE j.state WHEN 'scheduled' THEN j.scheduled_at WHEN 'retryable' THEN j.next_attempt_at END - now)) END;
        END IF;
    END IF;
    due := CASE WHEN waits OR j.state = 'available' THEN LEAST(j.expires_at, j.total_due_at, j.ttl_due_at) END;
    RETURN json_build_object('job_id', j.id, 'type', j.type, 'queue', j.queue, 'state', j.state, 'priority', j.priority, 'running', j.state = 'active',
        'summary', reasons[1] ->> 'message', 'reasons', array_to_json(reasons),
        'estimate', CASE WHEN wait_s IS NOT NULL THEN json_build_object('wait_seconds', round(wait_s::numeric, 1),
            'starts_at', CASE WHEN wait_s < 1000000000 THEN ojs.time_text(now + wait_s * interval '1 second') END) END,
        'deadline', ojs.time_text(due), 'workflow_id', j.workflow_id, 'computed_at', ojs.time_text(now));
END
$$;
-- +goose StatementEnd

COMMENT ON FUNCTION ojs.explain(uuid) IS
    'Why a job is not running, as a JSON object with reasons and an estimate of its wait; NULL if there is no such job.';

-- +goose Down
DROP FUNCTION ojs.explain(uuid);
DROP FUNCTION ojs.explain_state(ojs.jobs);
DROP FUNCTION ojs.explain_available(ojs.jobs, timestamptz);
DROP FUNCTION ojs.explain_queue(text, timestamptz);
DROP FUNCTION ojs.explain_pools(text, boolean);
DROP FUNCTION ojs.explain_workers(text, boolean);
DROP FUNCTION ojs.explain_limit(ojs.jobs, double precision, timestamptz);
DROP FUNCTION ojs.explain_rates(text, timestamptz);
DROP FUNCTION ojs.explain_waiting(ojs.jobs, integer);
DROP FUNCTION ojs.explain_ahead(ojs.jobs, integer);
DROP FUNCTION ojs.explain_lanes(ojs.jobs, integer);
DROP FUNCTION ojs.explain_count(bigint, integer, text);
DROP FUNCTION ojs.explain_reason(text, text, json);
DROP FUNCTION ojs.pool_reserve(text, uuid, integer);
DROP TABLE ojs.pool_holds, ojs.pools;
DROP TABLE ojs.schema_change, ojs.schemas, ojs.maintenance;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 8 $$;
-- +goose StatementEnd
