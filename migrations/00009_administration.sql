-- +goose Up
-- Maintenance, pools and schemas.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 9 $$;
-- +goose StatementEnd

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

-- +goose Down
DROP TABLE ojs.schema_change, ojs.schemas;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 8 $$;
-- +goose StatementEnd
