-- +goose Up
-- Maintenance, pools and schemas.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 9 $$;
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

-- +goose Down
DROP TABLE ojs.maintenance;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 8 $$;
-- +goose StatementEnd
