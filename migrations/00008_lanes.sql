-- +goose Up
-- Fair queues and tenants.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 8 $$;
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
DROP FUNCTION ojs.job_lane(text, text, json);
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 7 $$;
-- +goose StatementEnd
