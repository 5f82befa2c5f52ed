-- +goose Up
-- Fair queues and tenants.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 8 $$;
-- +goose StatementEnd

-- tenant_counts holds the jobs of tenants per queue and state, summed over all published events, like queue_counts. A job without a
-- tenant is in no row.
CREATE TABLE ojs.tenant_counts (
    tenant text   COLLATE "C" NOT NULL,
    queue  text   NOT NULL,
    state  text   NOT NULL,
    count  bigint NOT NULL,
    PRIMARY KEY (tenant, queue, state)                       -- TenantList, TenantCountList, TenantQueueList
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
-- queues_prune: the tenants of a queue.
CREATE INDEX tenant_counts_queue ON ojs.tenant_counts (queue);

-- Counts the events behind (after_seq, after_sub) up to upto, without those of the numbers passed, as RelayPublish selects them. It calls this only
-- if one of them has a lane: as a part of RelayPublish it would cost each pass 3 to 5 %.
-- +goose StatementBegin
CREATE FUNCTION ojs.tenant_counts_add(after_seq bigint, after_sub integer, upto bigint, passed bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ojs.tenant_counts AS c (tenant, queue, state, count)
    SELECT split_part(p.lane, '/', 1), p.queue, v.state, sum(v.n)
    FROM (
        SELECT e.lane, e.queue, e.from_state, e.to_state FROM ojs.events e
        WHERE (e.seq, e.sub) > (after_seq, after_sub) AND e.seq >= after_seq AND e.seq <= upto AND e.seq <> ALL(passed) AND e.lane <> ''
        ORDER BY e.seq, e.sub LIMIT 5000
    ) p CROSS JOIN LATERAL (VALUES (p.to_state, 1), (p.from_state, -1)) v (state, n)
    WHERE split_part(p.lane, '/', 1) <> '' AND p.queue IS NOT NULL AND v.state IS NOT NULL
    GROUP BY 1, 2, 3 HAVING sum(v.n) <> 0 ORDER BY 1, 2, 3
    ON CONFLICT (tenant, queue, state) DO UPDATE SET count = c.count + EXCLUDED.count;
    RETURN true;
END
$$;
-- +goose StatementEnd

-- The unique key under which a job of a tenant is stored, for the one that its client has sent or that its policy gives.
-- +goose StatementBegin
CREATE FUNCTION ojs.tenant_key(tenant text, key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN tenant = '' THEN key ELSE encode(sha256(convert_to(tenant || '/' || key, 'UTF8')), 'hex') END
$$;
-- +goose StatementEnd

-- server_settings has one row: the settings of the server by which ojs.enqueue goes. Nodes store them when they start; until the first one does,
-- those of a server without settings hold.
CREATE TABLE ojs.server_settings (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    tenancy       boolean NOT NULL,                     -- whether meta.tenant_id names the tenant of a job (OJS_TENANCY)
    max_job_bytes bigint  NOT NULL                      -- OJS_JOBS_MAX_SIZE
);
INSERT INTO ojs.server_settings (tenancy, max_job_bytes) VALUES (true, 1048576);

-- The tenant in the meta of a job, by the rule of the server (docs/reference/tenants.md, SQL); '': none.
-- +goose StatementBegin
CREATE FUNCTION ojs.tenant_of(meta jsonb) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF jsonb_typeof(meta -> 'tenant_id') IS DISTINCT FROM 'string' OR meta ->> 'tenant_id' !~ '^[A-Za-z0-9._-]{1,128}$' THEN
        RETURN '';
    END IF;
    RETURN CASE WHEN (SELECT s.tenancy FROM ojs.server_settings s) THEN meta ->> 'tenant_id' ELSE '' END;
END
$$;
-- +goose StatementEnd

-- The lane of a new job: that of its tenant, '' for none, and within it that of the fairness key of its queue, NULL for none (queue/fairness.go).
-- +goose StatementBegin
CREATE FUNCTION ojs.job_lane(fair_key text, tenant text, meta json) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT tenant || CASE WHEN f.value = '' THEN '' WHEN octet_length(f.value) <= 128 THEN '/' || f.value
        ELSE '/sha256:' || encode(sha256(convert_to(f.value, 'UTF8')), 'hex') END
    FROM (SELECT COALESCE((
        SELECT meta ->> k.name
        FROM (SELECT substr(fair_key, 6) AS name WHERE starts_with(fair_key, 'meta.')) k
        WHERE json_typeof(meta -> k.name) NOT IN ('object', 'array')), '') AS value) f
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ojs.tenant_of(jsonb);
DROP TABLE ojs.server_settings;
DROP FUNCTION ojs.tenant_key(text, text);
DROP FUNCTION ojs.tenant_counts_add(bigint, integer, bigint, bigint[]);
DROP TABLE ojs.tenant_counts;
DROP FUNCTION ojs.job_lane(text, text, json);
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 7 $$;
-- +goose StatementEnd
