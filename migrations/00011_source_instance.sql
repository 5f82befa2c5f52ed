-- +goose Up
-- Sources may name the node: api/1234. Who caused an event is told by what is before that.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.history_actor(source text, data json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN starts_with(source, 'workers/') THEN 'worker'
        WHEN split_part(source, '/', 1) <> 'api' THEN 'system'
        WHEN starts_with(data::text, '{"cancelled_by":"system:') OR starts_with(data::text, '{"cancelled_by":"workflow:') THEN 'system'
        WHEN starts_with(data::text, '{"cancelled_by":"') AND data::text !~ '^[{]"cancelled_by":"(api"|sql"|key:)' THEN 'user'
        ELSE 'client' END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 11 $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.history_actor(source text, data json) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN starts_with(source, 'workers/') THEN 'worker'
        WHEN source <> 'api' THEN 'system'
        WHEN starts_with(data::text, '{"cancelled_by":"system:') OR starts_with(data::text, '{"cancelled_by":"workflow:') THEN 'system'
        WHEN starts_with(data::text, '{"cancelled_by":"') AND data::text !~ '^[{]"cancelled_by":"(api"|sql"|key:)' THEN 'user'
        ELSE 'client' END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 10 $$;
-- +goose StatementEnd
