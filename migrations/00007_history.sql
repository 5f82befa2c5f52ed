-- +goose Up
-- Results that end, and the view of the event log as the history of jobs (contract 20 §12).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 7 $$;
-- +goose StatementEnd

-- ttl_s as settled when the job completed; NULL or negative: as long as the job.
-- +goose StatementBegin
CREATE FUNCTION ojs.result_is_over(finished_at timestamptz, ttl_s bigint) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT ttl_s IS NOT NULL AND ttl_s >= 0 AND finished_at + ttl_s * interval '1 second' <= now()
$$;
-- +goose StatementEnd

-- What an event is called in the history. A job's first row has no state before; nor has one that a queue got from another.
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

-- Who caused an event. A cancellation says by whom; by the text, because -> fails for documents with \u0000.
-- +goose StatementBegin
CREATE FUNCTION ojs.history_actor(source text, data json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN starts_with(source, 'workers/') THEN 'worker'
        WHEN source <> 'api' THEN 'system'
        WHEN starts_with(data::text, '{"cancelled_by":"system:') OR starts_with(data::text, '{"cancelled_by":"workflow:') THEN 'system'
        WHEN starts_with(data::text, '{"cancelled_by":"') AND data::text !~ '^[{]"cancelled_by":"(api"|sql"|key:)' THEN 'user'
        ELSE 'client' END
$$;
-- +goose StatementEnd

-- Positions (seq * 65536 + sub) of published rows about jobs, newest first; see ojs.event_newest for the settings.
-- +goose StatementBegin
CREATE FUNCTION ojs.history_newest(before bigint, max_rows integer, types text[], actors text[], queues text[], job_types text[],
    since timestamptz, until timestamptz)
RETURNS SETOF bigint
LANGUAGE plpgsql STABLE
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY
    SELECT p.seq << 16 | p.sub FROM ojs.event_published p
    WHERE p.seq <= before >> 16 AND (p.seq, p.sub) < (before >> 16, (before & 65535)::integer)
        AND p.job_id IS NOT NULL AND starts_with(p.type, 'job.')
        AND (cardinality(queues) = 0 OR p.queue = ANY(queues))
        AND (cardinality(job_types) = 0 OR p.job_type = ANY(job_types))
        AND (since IS NULL OR p.time >= since)
        AND (until IS NULL OR p.time < until)
        AND (cardinality(types) = 0 OR ojs.history_type(p.type, p.internal, p.from_state, p.to_state) = ANY(types))
        AND (cardinality(actors) = 0 OR ojs.history_actor((p.event).source, (p.event).data) = ANY(actors))
    ORDER BY p.seq DESC, p.sub DESC LIMIT max_rows;
END
$$;
-- +goose StatementEnd

-- Jobs as the HTTP API shows them: without results whose time is over. In a DO block like before, for sqlc.
-- +goose StatementBegin
DO $$
BEGIN
    CREATE OR REPLACE VIEW ojs.job AS
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
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    CREATE OR REPLACE VIEW ojs.job AS
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
    FROM ojs.jobs_done d;
END
$$;
-- +goose StatementEnd
DROP FUNCTION ojs.history_newest(bigint, integer, text[], text[], text[], text[], timestamptz, timestamptz);
DROP FUNCTION ojs.history_actor(text, json);
DROP FUNCTION ojs.history_type(text, boolean, text, text);
DROP FUNCTION ojs.result_is_over(timestamptz, bigint);
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 6 $$;
-- +goose StatementEnd
