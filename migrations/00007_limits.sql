-- +goose Up
-- Rate and concurrency limits by key. A job with a key waits without place in the fetch order (limit_seq) until it is admitted: it gets
-- its ready_seq when its limit allows a start. So claims know nothing of limits, and jobs without a key pay nothing for them.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 7 $$;
-- +goose StatementEnd

-- limits has a row for each partition that a job or a client has named. Nothing is admitted without the lock of the row. What it permits
-- stands in the columns behind policy and override, for the functions of this file: override over policy. NULL: no limit.
CREATE TABLE ojs.limits (
    key            text        COLLATE "C" PRIMARY KEY,
    policy         json        NOT NULL,                   -- as job.LimitPolicy encodes it
    override       json,                                   -- parts of a policy that hold instead; NULL: none
    override_until timestamptz,                            -- NULL: until it is deleted
    concurrency    bigint,                                 -- most active jobs
    rate           bigint,                                 -- most starts in rate_us
    rate_us        bigint,
    throttle_us    bigint,                                 -- least time between two starts
    blocked_until  timestamptz,                            -- a worker has reported that nothing may start before
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    used_at        timestamptz NOT NULL DEFAULT now()      -- about the latest use: limit_prune looks at partitions that are unused for a day
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
-- limit_prune
CREATE INDEX limits_used ON ojs.limits (used_at);

-- limit_starts has the starts of partitions with rate or throttle, as long as they count.
CREATE TABLE ojs.limit_starts (
    key text        COLLATE "C" NOT NULL,
    at  timestamptz NOT NULL,
    id  bigint      GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (key, at, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- limit_pending has the partitions whose limit may allow more starts. A change is followed by the node that made it, after its commit; if that
-- node stops, any node finds the row when it is due, a second later. A timer is the time at which a start no longer counts.
CREATE TABLE ojs.limit_pending (
    key    text        COLLATE "C" NOT NULL,
    due_at timestamptz NOT NULL,
    timer  boolean     NOT NULL,
    id     bigint      GENERATED ALWAYS AS IDENTITY,
    PRIMARY KEY (key, due_at, id)                          -- limit_admit
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
-- LimitListDue
CREATE INDEX limit_pending_due ON ojs.limit_pending (due_at);

-- A limit of a policy and its override.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_part(policy json, override json, strategy text, member text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (COALESCE(override -> strategy, policy -> strategy) ->> member)::bigint
$$;
-- +goose StatementEnd

-- Called by every statement that lets a job with a key enter or leave available or active, except by a claim; it costs other jobs the
-- test that limit_key is NULL. There may be an allowance now, or a job that could use it.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_changed(key text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ojs.limit_pending (key, due_at, timer) VALUES (key, clock_timestamp() + interval '1 second', false);
    RETURN true;
END
$$;
-- +goose StatementEnd

-- Stores a policy, unless it is the stored one, and computes what it permits. A partition that was not used for long is written in any case:
-- limit_prune does not see the job for which this is called, but it waits for the row, or this finds that the row is gone.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_set(limit_key text, new_policy json) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM ojs.limits l WHERE l.key = limit_key AND l.policy::text = new_policy::text AND l.used_at > clock_timestamp() - interval '12 hours') THEN
        RETURN false;
    END IF;
    INSERT INTO ojs.limits AS l (key, policy, concurrency, rate, rate_us, throttle_us)
    VALUES (limit_key, new_policy, (new_policy ->> 'concurrency')::bigint, (new_policy -> 'rate' ->> 'limit')::bigint, (new_policy -> 'rate' ->> 'us')::bigint,
        ojs.limit_part(new_policy, NULL, 'throttle', 'us') / ojs.limit_part(new_policy, NULL, 'throttle', 'limit'))
    ON CONFLICT (key) DO UPDATE SET policy = new_policy, used_at = clock_timestamp(),
        updated_at = CASE WHEN l.policy::text = new_policy::text THEN l.updated_at ELSE clock_timestamp() END,
        concurrency = COALESCE((l.override ->> 'concurrency')::bigint, (new_policy ->> 'concurrency')::bigint),
        rate = ojs.limit_part(new_policy, l.override, 'rate', 'limit'), rate_us = ojs.limit_part(new_policy, l.override, 'rate', 'us'),
        throttle_us = ojs.limit_part(new_policy, l.override, 'throttle', 'us') / ojs.limit_part(new_policy, l.override, 'throttle', 'limit');
    RETURN true;
END
$$;
-- +goose StatementEnd

-- Called for each new job with a key. The policy that is sent last holds.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_enqueued(limit_key text, policy json, waits boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF ojs.limit_set(limit_key, policy) OR waits THEN
        PERFORM ojs.limit_changed(limit_key);
    END IF;
    RETURN waits;
END
$$;
-- +goose StatementEnd

-- Replaces parts of a policy until a time; NULL deletes the override. A partition that does not exist is created without limits.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_override(limit_key text, new_override json, until timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ojs.limits (key, policy) VALUES (limit_key, '{}') ON CONFLICT (key) DO NOTHING;
    UPDATE ojs.limits l SET override = new_override, override_until = until, updated_at = clock_timestamp(), used_at = clock_timestamp(),
        concurrency = COALESCE((new_override ->> 'concurrency')::bigint, (l.policy ->> 'concurrency')::bigint),
        rate = ojs.limit_part(l.policy, new_override, 'rate', 'limit'), rate_us = ojs.limit_part(l.policy, new_override, 'rate', 'us'),
        throttle_us = ojs.limit_part(l.policy, new_override, 'throttle', 'us') / ojs.limit_part(l.policy, new_override, 'throttle', 'limit')
    WHERE l.key = limit_key;
    INSERT INTO ojs.limit_pending (key, due_at, timer)
    SELECT limit_key, t.at, t.timer FROM (VALUES (clock_timestamp() + interval '1 second', false), (until, true)) t (at, timer) WHERE t.at IS NOT NULL;
END
$$;
-- +goose StatementEnd

-- Called by JobFail instead of limit_changed. until: nothing may start before, if it is not NULL.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_failed(limit_key text, until timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF until > clock_timestamp() THEN
        UPDATE ojs.limits l SET blocked_until = GREATEST(l.blocked_until, until) WHERE l.key = limit_key;
    END IF;
    RETURN ojs.limit_changed(limit_key);
END
$$;
-- +goose StatementEnd

-- Called for each fetched job with a key. The timer is left out if a later change of the partition will set one: there is a timer that
-- is due before, but not before this transaction has ended.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_started(limit_key text, started_at timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    l  record;
    due timestamptz;
BEGIN
    SELECT p.rate_us, p.throttle_us INTO l FROM ojs.limits p WHERE p.key = limit_key;
    due := started_at + LEAST(l.rate_us, l.throttle_us) * interval '1 microsecond';
    IF due IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO ojs.limit_starts (key, at) VALUES (limit_key, started_at);
    IF NOT EXISTS (SELECT FROM ojs.limit_pending n WHERE n.key = limit_key AND n.due_at > started_at + interval '20 seconds' AND n.due_at <= due AND n.timer) THEN
        INSERT INTO ojs.limit_pending (key, due_at, timer) VALUES (limit_key, due, true);
    END IF;
    RETURN true;
END
$$;
-- +goose StatementEnd

-- The jobs of a queue in a state, exact in the snapshot: see QueueCountListByQueue.
-- +goose StatementBegin
CREATE FUNCTION ojs.queue_count(queue_name text, state_name text) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT COALESCE((SELECT q.count FROM ojs.queue_counts q WHERE q.queue = queue_name AND q.state = state_name), 0)
        + COALESCE((SELECT sum(u.n) FROM ojs.event_uncounted(queue_name) u WHERE u.state = state_name), 0)
$$;
-- +goose StatementEnd

-- What a partition has at a time, read in one snapshot: a claim moves a job from one count to the other in one commit. Counts of jobs that
-- run or have started end at the limit, beyond which they do not matter. They are counted and not kept, so they cannot drift: an admission takes 0.14 ms with
-- 1 active job, 0.2 ms with 1 000, and 0.9 ms with 10 000; 2.5 ms with 10 000 starts. admitted are jobs that may be fetched. Keys of partitions have the
-- collation "C", names of queues that of the database: an index serves comparisons in its own collation only.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_usage(l ojs.limits, now timestamptz, OUT admitted bigint, OUT active bigint, OUT started bigint, OUT first_start timestamptz, OUT last_start timestamptz)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    admitted := 0; active := 0; started := 0;
    IF COALESCE(l.concurrency, l.rate, l.throttle_us) IS NULL AND l.blocked_until IS NULL THEN
        RETURN;
    END IF;
    SELECT count(*) INTO admitted FROM (SELECT FROM ojs.jobs j WHERE j.limit_key = l.key AND j.limit_seq IS NULL AND j.state = 'available' AND COALESCE(j.ready_seq, 0) <> 0
        LIMIT 1001 + COALESCE(LEAST(l.concurrency, l.rate), 0)) n;
    IF l.concurrency IS NOT NULL AND starts_with(l.key, 'queue:') THEN
        active := ojs.queue_count(substr(l.key, 7) COLLATE "default", 'active');
    ELSIF l.concurrency IS NOT NULL THEN
        SELECT count(*) INTO active FROM (SELECT FROM ojs.jobs j WHERE j.limit_key = l.key AND j.limit_seq IS NULL AND j.state = 'active' LIMIT l.concurrency) n;
    END IF;
    IF l.rate IS NOT NULL THEN
        SELECT count(*) INTO started FROM (SELECT FROM ojs.limit_starts s WHERE s.key = l.key AND s.at > now - l.rate_us * interval '1 microsecond' LIMIT l.rate) n;
        SELECT s.at INTO first_start FROM ojs.limit_starts s WHERE s.key = l.key AND s.at > now - l.rate_us * interval '1 microsecond' ORDER BY s.key, s.at LIMIT 1;
    END IF;
    IF l.throttle_us IS NOT NULL THEN
        SELECT s.at INTO last_start FROM ojs.limit_starts s WHERE s.key = l.key ORDER BY s.key DESC, s.at DESC LIMIT 1;
    END IF;
END
$$;
-- +goose StatementEnd

-- The allowance of a limit: how many jobs of its partition may start now.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_allowance(l ojs.limits, now timestamptz, active bigint, started bigint, last_start timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN l.blocked_until > now OR last_start + l.throttle_us * interval '1 microsecond' > now THEN 0
        ELSE GREATEST(0, LEAST(l.concurrency - active, l.rate - started, CASE WHEN l.throttle_us IS NOT NULL THEN 1 END, 9000000000000000000)) END
$$;
-- +goose StatementEnd

-- Takes the place in the fetch order from jobs of a partition that were admitted, those that would be fetched last first: up to max_jobs with a
-- priority below the given one. Jobs that are being claimed are left alone. Returns how many there were.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_withdraw(limit_key text, below smallint, max_jobs bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    withdrawn bigint;
BEGIN
    UPDATE ojs.jobs j SET limit_seq = j.ready_seq, ready_seq = NULL
    WHERE j.id = ANY(ARRAY(SELECT o.id FROM (SELECT w.id, w.priority, w.ready_seq FROM ojs.jobs w
            WHERE w.limit_key = limit_withdraw.limit_key AND w.limit_seq IS NULL AND w.state = 'available' AND COALESCE(w.ready_seq, 0) <> 0 AND w.priority < below
            LIMIT 1000 FOR UPDATE SKIP LOCKED) o
        ORDER BY o.priority, o.ready_seq DESC LIMIT max_jobs));
    GET DIAGNOSTICS withdrawn = ROW_COUNT;
    RETURN withdrawn;
END
$$;
-- +goose StatementEnd

-- Gives jobs of the partitions their place in the fetch order, as many as may start, and returns the places. The last row of each
-- partition has no queue: wait_us is when the limit may allow more, and more that this call was not the end of it. The counts are read
-- under the locks of the partitions, so what other calls admit is in them. No row of a job is waited for.
--
-- What was admitted and is not fetched yet is taken back if it may not start any more, and if a job with a higher priority waits.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_admit(keys text[], node integer)
RETURNS TABLE (key text, more boolean, wait_us bigint, queue text, lane text, priority smallint, ready_seq bigint)
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    l         ojs.limits;
    u         record;
    now       timestamptz;
    next      timestamptz;
    allowance bigint;
    best      smallint;
    n         bigint;
BEGIN
    PERFORM FROM ojs.limits o WHERE o.key = ANY(keys) ORDER BY o.key FOR UPDATE;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n < cardinality(keys) THEN -- jobs must not wait for a partition that is missing
        INSERT INTO ojs.limits (key, policy) SELECT p.key, '{}' FROM ojs.limit_pending p WHERE p.key = ANY(keys) GROUP BY p.key ON CONFLICT (key) DO NOTHING;
    END IF;
    FOR l IN SELECT o.* FROM ojs.limits o WHERE o.key = ANY(keys) ORDER BY o.key LOOP
        now := clock_timestamp();
        DELETE FROM ojs.limit_pending p WHERE p.key = l.key AND (NOT p.timer OR p.due_at <= now);
        IF l.used_at < now - interval '1 hour' THEN
            UPDATE ojs.limits o SET used_at = now WHERE o.key = l.key;
        END IF;
        IF l.override_until <= now THEN
            PERFORM ojs.limit_override(l.key, NULL, NULL);
            SELECT o.* INTO l FROM ojs.limits o WHERE o.key = l.key;
        END IF;
        DELETE FROM ojs.limit_starts s WHERE s.key = l.key AND s.at <= now - GREATEST(l.rate_us, l.throttle_us, 0) * interval '1 microsecond'
            AND s.id = ANY(ARRAY(SELECT d.id FROM ojs.limit_starts d WHERE d.key = l.key ORDER BY d.key, d.at LIMIT 1000));
        u := ojs.limit_usage(l, now);
        allowance := ojs.limit_allowance(l, now, u.active, u.started, u.last_start) - u.admitted;
        more := false;
        IF allowance < 0 THEN
            n := ojs.limit_withdraw(l.key, 32767::smallint, LEAST(-allowance, 1000));
            more := n = 1000;
        ELSIF allowance = 0 AND u.admitted > 0 THEN
            FOR i IN 1..100 LOOP
                SELECT w.priority INTO best FROM ojs.jobs w WHERE w.limit_key = l.key AND w.limit_seq IS NOT NULL ORDER BY w.priority DESC OFFSET allowance LIMIT 1;
                EXIT WHEN NOT FOUND OR ojs.limit_withdraw(l.key, best, 1) = 0;
                allowance := allowance + 1;
            END LOOP;
        END IF;
        n := 0;
        IF allowance > 0 THEN
            FOR key, queue, lane, priority, ready_seq IN
                WITH admitted AS (
                    UPDATE ojs.jobs j SET ready_seq = j.limit_seq, limit_seq = NULL
                    WHERE j.id = ANY(ARRAY(SELECT w.id FROM ojs.jobs w WHERE w.limit_key = l.key AND w.limit_seq IS NOT NULL
                        ORDER BY w.priority DESC, w.limit_seq LIMIT LEAST(allowance, 1000) FOR UPDATE SKIP LOCKED))
                    RETURNING j.id, j.queue, j.lane, j.priority, j.ready_seq
                ), event AS (
                    INSERT INTO ojs.events (type, source, time, job_id, queue, lane, internal, priority, ready_seq, node)
                    SELECT 'job.admitted', 'scheduler', now, a.id, a.queue, a.lane, true, a.priority, a.ready_seq, NULLIF(limit_admit.node, 0) FROM admitted a
                )
                SELECT l.key, a.queue, a.lane, a.priority, a.ready_seq FROM admitted a
            LOOP
                n := n + 1;
                RETURN NEXT;
            END LOOP;
            more := n = 1000;
        END IF;
        next := LEAST(u.first_start + l.rate_us * interval '1 microsecond',
            CASE WHEN u.last_start + l.throttle_us * interval '1 microsecond' > now THEN u.last_start + l.throttle_us * interval '1 microsecond' END,
            CASE WHEN l.blocked_until > now THEN l.blocked_until END, l.override_until);
        IF next IS NOT NULL AND NOT EXISTS (SELECT FROM ojs.limit_pending p WHERE p.key = l.key AND p.due_at > now AND p.due_at <= next AND p.timer) THEN
            INSERT INTO ojs.limit_pending (key, due_at, timer) VALUES (l.key, next, true);
        END IF;
        key := l.key;
        wait_us := date_part('epoch', next - now) * 1000000;
        queue := NULL; lane := NULL; priority := NULL; ready_seq := NULL;
        RETURN NEXT;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Locks the partitions of queues for the rest of the transaction and returns how many jobs of each may start. Claims of a limited queue follow one
-- another, so a claim counts the starts of all before it. The policies come from the configuration of the queues, as the caller knows it. queues are
-- sorted. wait_us is when the limit may allow more.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_queue_allowances(queues text[], policies json[]) RETURNS TABLE (queue text, allowance bigint, wait_us bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    l    ojs.limits;
    u    record;
    now  timestamptz;
    next timestamptz;
BEGIN
    FOR i IN 1..cardinality(queues) LOOP
        PERFORM ojs.limit_set('queue:' || queues[i], policies[i]);
        PERFORM FROM ojs.limits o WHERE o.key = 'queue:' || queues[i] FOR UPDATE;
    END LOOP;
    FOR i IN 1..cardinality(queues) LOOP
        now := clock_timestamp();
        SELECT o.* INTO l FROM ojs.limits o WHERE o.key = 'queue:' || queues[i];
        IF l.override_until <= now THEN
            PERFORM ojs.limit_override(l.key, NULL, NULL);
            SELECT o.* INTO l FROM ojs.limits o WHERE o.key = 'queue:' || queues[i];
        END IF;
        DELETE FROM ojs.limit_starts s WHERE s.key = l.key AND s.at <= now - GREATEST(l.rate_us, l.throttle_us, 0) * interval '1 microsecond'
            AND s.id = ANY(ARRAY(SELECT d.id FROM ojs.limit_starts d WHERE d.key = l.key ORDER BY d.key, d.at LIMIT 1000));
        u := ojs.limit_usage(l, now);
        next := LEAST(u.first_start + l.rate_us * interval '1 microsecond',
            CASE WHEN u.last_start + l.throttle_us * interval '1 microsecond' > now THEN u.last_start + l.throttle_us * interval '1 microsecond' END, l.blocked_until, l.override_until);
        queue := queues[i];
        allowance := ojs.limit_allowance(l, now, u.active, u.started, u.last_start);
        wait_us := GREATEST(0, date_part('epoch', next - now) * 1000000);
        RETURN NEXT;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- limit_handle_blocked, LimitListBlockedQueues: the jobs of a queue that wait for a limit. Its predicate is not that of jobs_waiting: while the tables are small the planner
-- would take either index for both, and keep the plan. For the same reason other statements say COALESCE(ready_seq, 0) <> 0, which does not imply the predicate of
-- jobs_fetch.
CREATE INDEX jobs_limit_blocked ON ojs.jobs (queue, on_limit, priority DESC, limit_seq) WHERE COALESCE(limit_seq, 0) > 0;

-- The earliest time at which a limit that permits no start now may permit one; a second later if only the end of a job permits one.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_next(l ojs.limits, now timestamptz, active bigint, started bigint, first_start timestamptz, last_start timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
    SELECT GREATEST(now + interval '1 millisecond', l.blocked_until, CASE WHEN started >= l.rate THEN first_start + l.rate_us * interval '1 microsecond' END,
        last_start + l.throttle_us * interval '1 microsecond', CASE WHEN active >= l.concurrency THEN now + interval '1 second' END)
$$;
-- +goose StatementEnd

-- Drops an available job, which the caller has locked, or schedules it for a time, because a limit does not let it start.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_block(j ojs.jobs, effect text, limit_key text, at timestamptz, now timestamptz, node integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    shown text;
    err   text;
BEGIN
    IF effect = 'drop' THEN
        err := '{"attempt":' || j.attempt || ',"code":"rate_limited","type":"rate_limited","message":"The rate limit ' || limit_key || ' did not let the job start.","retryable":false}';
        UPDATE ojs.jobs o SET state = 'discarded', ready_seq = NULL, limit_seq = NULL, due_at = NULL, finished_at = now, previous_state = 'available',
            dead_lettered_at = CASE WHEN ojs.makes_dead_letters(o.on_exhaustion, 'rate_limited') THEN now END, error = ojs.error_at(err, now)
        WHERE o.id = j.id;
        PERFORM CASE WHEN j.workflow_id IS NOT NULL THEN ojs.workflow_job_changed(j.workflow_id, j.id, 'discarded', j.attempt, NULL, now, NULL, NULL, ojs.error_at(err, now)) END;
        shown := '{' || substr(err, length('{"attempt":' || j.attempt || ',') + 1);
        INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, workflow_id, trace_id, from_state, to_state, node, data)
        VALUES ('job.discarded', 'scheduler', now, j.id, j.type, j.queue, j.lane, j.attempt, j.workflow_id, j.trace_id, 'available', 'discarded', node,
            ('{"last_error":' || shown || ',"error":' || shown || '}')::json);
    ELSE
        shown := '"scheduled_at":"' || ojs.time_text(at) || '"';
        UPDATE ojs.jobs o SET state = 'scheduled', ready_seq = NULL, limit_seq = NULL, scheduled_at = at, due_at = LEAST(at, o.expires_at, o.total_due_at, o.ttl_due_at),
            extra = ojs.with_scheduled_at(o.extra, o.scheduled_at, at)
        WHERE o.id = j.id;
        INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, attempt, workflow_id, trace_id, from_state, to_state, internal, node, data)
        VALUES ('job.state_changed', 'scheduler', now, j.id, j.type, j.queue, j.lane, j.attempt, j.workflow_id, j.trace_id, 'available', 'scheduled', true, node,
            ('{"reason":"rate_limit",' || shown || '}')::json);
    END IF;
END
$$;
-- +goose StatementEnd

-- What a fetch does about jobs of its queues (of its tenant; '': of all) that wait for a limit, when it found fewer jobs than it wanted. A job gives way to it that was
-- admitted for a queue that the fetch does not ask for, or that is paused. A job that may not start is dropped or scheduled if its policy says so. It looks at the first
-- jobs of each queue only. outcome: handled, admitted, dropped or rescheduled.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_handle_blocked(queues text[], of_tenant text, node integer)
RETURNS TABLE (outcome text, id uuid, type text, queue text, lane text, priority smallint, ready_seq bigint, attempt integer, workflow_id uuid, cron text, due_us bigint, now timestamptz,
    limit_key text)
LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    asked     text[];
    keys      text[];
    ids       uuid[];
    j         ojs.jobs;
    l         ojs.limits;
    u         record;
    other     uuid;
    allowance bigint;
    at        timestamptz;
BEGIN
    SELECT array_agg(q.name ORDER BY q.n) INTO asked FROM unnest(queues) WITH ORDINALITY AS q (name, n)
    WHERE (SELECT s.status FROM ojs.queues s WHERE s.name = q.name) IS DISTINCT FROM 'paused';
    SELECT array_agg(w.id ORDER BY q.n, w.on_limit, w.priority DESC, w.limit_seq), array_agg(DISTINCT w.limit_key) INTO ids, keys
    FROM unnest(asked) WITH ORDINALITY AS q (name, n) CROSS JOIN LATERAL (
        (SELECT p.id, p.limit_key, p.on_limit, p.priority, p.limit_seq FROM ojs.jobs p WHERE p.queue = q.name AND p.on_limit = 'drop' AND COALESCE(p.limit_seq, 0) > 0
            AND (of_tenant = '' OR split_part(p.lane, '/', 1) = of_tenant)
            ORDER BY p.priority DESC, p.limit_seq LIMIT 100)
        UNION ALL
        (SELECT p.id, p.limit_key, p.on_limit, p.priority, p.limit_seq FROM ojs.jobs p WHERE p.queue = q.name AND p.on_limit = 'reschedule' AND COALESCE(p.limit_seq, 0) > 0
            AND (of_tenant = '' OR split_part(p.lane, '/', 1) = of_tenant)
            ORDER BY p.priority DESC, p.limit_seq LIMIT 100)
        UNION ALL
        (SELECT p.id, p.limit_key, p.on_limit, p.priority, p.limit_seq FROM ojs.jobs p WHERE p.queue = q.name AND p.on_limit IS NULL AND COALESCE(p.limit_seq, 0) > 0
            AND (of_tenant = '' OR split_part(p.lane, '/', 1) = of_tenant)
            ORDER BY p.priority DESC, p.limit_seq LIMIT 20)) w;
    PERFORM FROM ojs.limits o WHERE o.key = ANY(keys) ORDER BY o.key FOR UPDATE;
    FOR i IN 1..COALESCE(cardinality(ids), 0) LOOP
        SELECT p.* INTO j FROM ojs.jobs p WHERE p.id = ids[i] FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND OR j.limit_seq IS NULL; -- as a condition of the look-up, it would allow a walk through jobs_waiting
        SELECT o.* INTO l FROM ojs.limits o WHERE o.key = j.limit_key;
        CONTINUE WHEN NOT FOUND;
        now := clock_timestamp();
        u := ojs.limit_usage(l, now);
        allowance := ojs.limit_allowance(l, now, u.active, u.started, u.last_start);
        id := j.id; type := j.type; queue := j.queue; lane := j.lane; priority := j.priority; attempt := j.attempt; workflow_id := j.workflow_id; cron := j.cron;
        limit_key := j.limit_key;
        outcome := 'handled'; ready_seq := NULL; due_us := NULL;
        IF allowance > 0 THEN
            IF allowance <= u.admitted THEN
                SELECT o.id INTO other FROM ojs.jobs o WHERE o.limit_key = l.key AND o.limit_seq IS NULL AND o.state = 'available' AND COALESCE(o.ready_seq, 0) <> 0
                    AND o.queue <> ALL(asked) LIMIT 1 FOR UPDATE SKIP LOCKED;
                CONTINUE WHEN NOT FOUND;
                UPDATE ojs.jobs o SET limit_seq = o.ready_seq, ready_seq = NULL WHERE o.id = other;
            END IF;
            UPDATE ojs.jobs o SET ready_seq = o.limit_seq, limit_seq = NULL WHERE o.id = j.id RETURNING o.ready_seq INTO ready_seq;
            INSERT INTO ojs.events (type, source, time, job_id, queue, lane, internal, priority, ready_seq, node)
            VALUES ('job.admitted', 'scheduler', now, j.id, j.queue, j.lane, true, j.priority, ready_seq, limit_handle_blocked.node);
            outcome := 'admitted';
        ELSIF j.on_limit = 'drop' THEN
            PERFORM ojs.limit_block(j, 'drop', l.key, NULL, now, limit_handle_blocked.node);
            outcome := 'dropped';
        ELSIF j.on_limit = 'reschedule' THEN
            at := ojs.limit_next(l, now, u.active, u.started, u.first_start, u.last_start);
            PERFORM ojs.limit_block(j, 'reschedule', l.key, at, now, limit_handle_blocked.node);
            outcome := 'rescheduled';
            due_us := date_part('epoch', at - now) * 1000000;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- What a fetch that had slots left does about jobs of a queue whose own limit permits no more, if the policy of the queue says so: the first ones are
-- dropped or scheduled. lanes, priorities and lows are where the fetch looked for them. The caller holds the lock of the partition since limit_queue_allowances,
-- and has recorded its starts.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_queue_handle_blocked(queue text, effect text, lanes text[], priorities smallint[], lows bigint[], max_jobs bigint, node integer)
RETURNS TABLE (outcome text, id uuid, type text, lane text, attempt integer, workflow_id uuid, cron text, due_us bigint, now timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ids uuid[];
    j   ojs.jobs;
    l   ojs.limits;
    u   record;
    at  timestamptz;
BEGIN
    SELECT o.* INTO l FROM ojs.limits o WHERE o.key = 'queue:' || limit_queue_handle_blocked.queue;
    now := clock_timestamp();
    u := ojs.limit_usage(l, now);
    IF ojs.limit_allowance(l, now, u.active, u.started, u.last_start) > 0 OR EXISTS (SELECT FROM ojs.queues q WHERE q.name = limit_queue_handle_blocked.queue AND q.status = 'paused') THEN
        RETURN;
    END IF;
    at := ojs.limit_next(l, now, u.active, u.started, u.first_start, u.last_start);
    ids := ARRAY(SELECT w.id FROM unnest(lanes, priorities, lows) WITH ORDINALITY AS p (lane, priority, low, n) CROSS JOIN LATERAL (
            SELECT f.id, f.ready_seq FROM ojs.jobs f
            WHERE f.state = 'available' AND f.queue = limit_queue_handle_blocked.queue AND f.lane = p.lane AND f.priority = p.priority AND f.ready_seq >= p.low
            ORDER BY f.ready_seq LIMIT max_jobs) w
        ORDER BY p.n, w.ready_seq LIMIT max_jobs);
    FOR i IN 1..cardinality(ids) LOOP
        SELECT f.* INTO j FROM ojs.jobs f WHERE f.id = ids[i] AND f.state = 'available' AND f.queue = limit_queue_handle_blocked.queue FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        PERFORM ojs.limit_block(j, effect, l.key, at, now, limit_queue_handle_blocked.node);
        PERFORM CASE WHEN j.limit_key IS NOT NULL THEN ojs.limit_changed(j.limit_key) END;
        outcome := CASE effect WHEN 'drop' THEN 'dropped' ELSE 'rescheduled' END;
        id := j.id; type := j.type; lane := j.lane; attempt := j.attempt; workflow_id := j.workflow_id; cron := j.cron;
        due_us := CASE effect WHEN 'drop' THEN NULL ELSE date_part('epoch', at - now) * 1000000 END;
        RETURN NEXT;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Deletes partitions that nothing has used for a day, up to max_rows, with their starts: every enqueue that names a key sends its policy again.
-- A partition stays while a job has its key, also a discarded one, which may be retried; while it has an override or a pause; and while a
-- start counts. It is looked at again a day later then. more: there is more to do.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_prune(max_rows bigint, OUT deleted bigint, OUT more boolean)
LANGUAGE plpgsql AS $$
DECLARE
    l      ojs.limits;
    now    timestamptz := clock_timestamp();
    looked bigint := 0;
    starts bigint := 0;
    n      bigint;
BEGIN
    deleted := 0;
    FOR l IN SELECT o.* FROM ojs.limits o WHERE o.used_at < now - interval '1 day' ORDER BY o.used_at LIMIT max_rows FOR UPDATE SKIP LOCKED LOOP
        looked := looked + 1;
        DELETE FROM ojs.limit_starts s WHERE s.key = l.key AND s.at <= now - GREATEST(l.rate_us, l.throttle_us, 0) * interval '1 microsecond'
            AND s.id = ANY(ARRAY(SELECT d.id FROM ojs.limit_starts d WHERE d.key = l.key ORDER BY d.key, d.at LIMIT 1000));
        GET DIAGNOSTICS n = ROW_COUNT;
        starts := starts + n;
        IF n < 1000 THEN -- these statements see what was committed before the row was locked
            IF (l.override IS NULL OR l.override_until <= now) AND (l.blocked_until IS NULL OR l.blocked_until <= now)
                AND NOT EXISTS (SELECT FROM ojs.limit_starts s WHERE s.key = l.key) AND NOT EXISTS (SELECT FROM ojs.limit_pending p WHERE p.key = l.key)
                AND NOT EXISTS (SELECT FROM ojs.jobs j WHERE j.limit_key = l.key AND j.limit_seq IS NULL)
                AND (SELECT true FROM ojs.jobs j WHERE j.limit_key = l.key AND j.limit_seq IS NOT NULL ORDER BY j.priority DESC, j.limit_seq LIMIT 1) IS NULL THEN -- see limit_view
                DELETE FROM ojs.limits o WHERE o.key = l.key;
                deleted := deleted + 1;
            ELSE
                UPDATE ojs.limits o SET used_at = now WHERE o.key = l.key;
            END IF;
        END IF;
        EXIT WHEN starts >= 10000;
    END LOOP;
    more := looked = max_rows OR starts >= 1000;
END
$$;
-- +goose StatementEnd

-- What clients see of a partition. waiting are its available jobs; counts of jobs end at 10 000, those of starts at the limit. reset_at is when a start
-- stops counting, or now; next_at when the throttle permits a start.
-- +goose StatementBegin
CREATE FUNCTION ojs.limit_view(l ojs.limits, OUT active bigint, OUT waiting bigint, OUT started bigint, OUT reset_at timestamptz, OUT next_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    now timestamptz := clock_timestamp();
    u   record;
BEGIN
    u := ojs.limit_usage(l, now);
    started := u.started;
    reset_at := COALESCE(u.first_start + l.rate_us * interval '1 microsecond', now);
    next_at := GREATEST(now, u.last_start + l.throttle_us * interval '1 microsecond', l.blocked_until);
    IF starts_with(l.key, 'queue:') THEN
        active := ojs.queue_count(substr(l.key, 7) COLLATE "default", 'active');
        waiting := ojs.queue_count(substr(l.key, 7) COLLATE "default", 'available');
        RETURN;
    END IF;
    SELECT count(*) INTO active FROM (SELECT FROM ojs.jobs j WHERE j.limit_key = l.key AND j.limit_seq IS NULL AND j.state = 'active' LIMIT 10000) n;
    SELECT count(*) INTO waiting FROM (SELECT FROM ojs.jobs j WHERE j.limit_key = l.key AND j.limit_seq IS NULL AND j.state = 'available' LIMIT 10000) n;
    -- Without the order, which jobs_waiting alone has, the planner may read all of jobs_waiting_queue.
    SELECT LEAST(10000, waiting + count(*)) INTO waiting
    FROM (SELECT FROM ojs.jobs j WHERE j.limit_key = l.key AND j.limit_seq IS NOT NULL ORDER BY j.priority DESC, j.limit_seq LIMIT 10000) n;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ojs.limit_queue_handle_blocked(text, text, text[], smallint[], bigint[], bigint, integer);
DROP FUNCTION ojs.limit_handle_blocked(text[], text, integer);
DROP FUNCTION ojs.limit_block(ojs.jobs, text, text, timestamptz, timestamptz, integer);
DROP FUNCTION ojs.limit_next(ojs.limits, timestamptz, bigint, bigint, timestamptz, timestamptz);
DROP INDEX ojs.jobs_limit_blocked;
DROP FUNCTION ojs.limit_view(ojs.limits);
DROP FUNCTION ojs.limit_prune(bigint);
DROP FUNCTION ojs.limit_queue_allowances(text[], json[]);
DROP FUNCTION ojs.limit_admit(text[], integer);
DROP FUNCTION ojs.limit_withdraw(text, smallint, bigint);
DROP FUNCTION ojs.limit_allowance(ojs.limits, timestamptz, bigint, bigint, timestamptz);
DROP FUNCTION ojs.limit_usage(ojs.limits, timestamptz);
DROP FUNCTION ojs.queue_count(text, text);
DROP FUNCTION ojs.limit_started(text, timestamptz);
DROP FUNCTION ojs.limit_failed(text, timestamptz);
DROP FUNCTION ojs.limit_override(text, json, timestamptz);
DROP FUNCTION ojs.limit_enqueued(text, json, boolean);
DROP FUNCTION ojs.limit_set(text, json);
DROP FUNCTION ojs.limit_changed(text);
DROP FUNCTION ojs.limit_part(json, json, text, text);
DROP TABLE ojs.limit_pending, ojs.limit_starts, ojs.limits;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 6 $$;
-- +goose StatementEnd
