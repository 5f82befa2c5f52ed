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

-- The unique key under which a job of a tenant is stored, for the one that its client has sent or that its policy gives.
-- +goose StatementBegin
CREATE FUNCTION ojs.tenant_key(tenant text, key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN tenant = '' THEN key ELSE encode(sha256(convert_to(tenant || '/' || key, 'UTF8')), 'hex') END
$$;
-- +goose StatementEnd

-- tenancy has one row: whether meta.tenant_id names the tenant of a job that ojs.enqueue stores. Nodes store it when they start.
CREATE TABLE ojs.tenancy (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    enabled  boolean NOT NULL
);
INSERT INTO ojs.tenancy (enabled) VALUES (true);

-- The tenant in the meta of a job, by the rule of the server (docs/reference/tenants.md, SQL); '': none.
-- +goose StatementBegin
CREATE FUNCTION ojs.tenant_of(meta jsonb) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF jsonb_typeof(meta -> 'tenant_id') IS DISTINCT FROM 'string' OR meta ->> 'tenant_id' !~ '^[A-Za-z0-9._-]{1,128}$' THEN
        RETURN '';
    END IF;
    RETURN CASE WHEN (SELECT t.enabled FROM ojs.tenancy t) THEN meta ->> 'tenant_id' ELSE '' END;
END
$$;
-- +goose StatementEnd

-- The lane of a new job: that of its tenant, '' for none, and within it that of the fairness key of its queue (queue/lanes.go).
-- +goose StatementBegin
CREATE FUNCTION ojs.job_lane(queue text, tenant text, meta json) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT tenant || CASE WHEN f.value = '' THEN '' WHEN octet_length(f.value) <= 128 THEN '/' || f.value
        ELSE '/sha256:' || encode(sha256(convert_to(f.value, 'UTF8')), 'hex') END
    FROM (SELECT COALESCE((
        SELECT meta ->> k.name
        FROM (SELECT substr(c.key, 6) AS name FROM (SELECT COALESCE(
            (SELECT q.config #>> '{fairness,key}' FROM ojs.queues q WHERE q.name = queue),
            (SELECT q.config #>> '{fairness,key}' FROM ojs.queues q WHERE q.name = '_default')) AS key) c
            WHERE starts_with(c.key, 'meta.')) k
        WHERE json_typeof(meta -> k.name) NOT IN ('object', 'array')), '') AS value) f
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ojs.tenant_of(jsonb);
DROP TABLE ojs.tenancy;
DROP FUNCTION ojs.tenant_key(text, text);
DROP TABLE ojs.tenant_counts;
DROP FUNCTION ojs.job_lane(text, text, json);
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 7 $$;
-- +goose StatementEnd
