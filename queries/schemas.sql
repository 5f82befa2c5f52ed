-- name: SchemaChange :exec
-- Begins a change of schemas: one transaction at a time makes one. At its commit all nodes are notified.
WITH notified AS MATERIALIZED (SELECT pg_notify('ojs_schemas', ''))
INSERT INTO ojs.schema_change AS c (version)
SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint FROM notified
ON CONFLICT (id) DO UPDATE SET version = GREATEST(c.version + 1, EXCLUDED.version);

-- name: SchemaChangeVersion :one
-- The latest change of schemas; 0: none was ever made.
SELECT COALESCE((SELECT c.version FROM ojs.schema_change c WHERE c.id), 0)::bigint AS version;

-- name: SchemaListAll :many
-- All schemas, without their documents.
SELECT type, version, version_number, uri, enforce, created_at FROM ojs.schemas ORDER BY type, version LIMIT @max_rows;

-- name: SchemaGet :one
-- A version of the schema of a type.
SELECT * FROM ojs.schemas WHERE type = @type AND version = @version;

-- name: SchemaGetByURI :one
-- A schema by its URI.
SELECT * FROM ojs.schemas WHERE uri = @uri;

-- name: SchemaCount :one
-- The number of schemas, up to a bound.
SELECT count(*) AS count FROM (SELECT FROM ojs.schemas s ORDER BY s.type, s.version LIMIT @most) counted;

-- name: SchemaInsert :many
-- Registers a schema; no row: the version or the URI is taken.
INSERT INTO ojs.schemas (type, version, version_number, uri, schema, enforce)
VALUES (@type, @version, @version_number, @uri, @schema, @enforce)
ON CONFLICT DO NOTHING
RETURNING *;

-- name: SchemaEnforce :one
-- Sets whether jobs must satisfy the schema. Nothing else of a schema changes.
UPDATE ojs.schemas SET enforce = @enforce WHERE type = @type AND version = @version RETURNING *;

-- name: SchemaDelete :many
-- Deletes a version of the schema of a type.
DELETE FROM ojs.schemas WHERE type = @type AND version = @version RETURNING *;
