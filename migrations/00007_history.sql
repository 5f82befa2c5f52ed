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

-- +goose Down
DROP FUNCTION ojs.history_newest(bigint, integer, text[], text[], text[], text[], timestamptz, timestamptz);
DROP FUNCTION ojs.history_actor(text, json);
DROP FUNCTION ojs.history_type(text, boolean, text, text);
DROP FUNCTION ojs.result_is_over(timestamptz, bigint);
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 6 $$;
-- +goose StatementEnd
