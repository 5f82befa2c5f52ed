-- +goose Up
-- Webhooks: subscriptions, their secrets, and what is or was delivered to them (contract 40 §9).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 8 $$;
-- +goose StatementEnd

CREATE TABLE ojs.webhooks (
    id                   uuid        PRIMARY KEY,    -- shown as sub_…
    url                  text        NOT NULL,
    events               text[]      NOT NULL,       -- patterns as sent
    filter               json,                       -- as sent
    types                text[]      NOT NULL,       -- the same in the form of ojs.event_matches: LIKE patterns, aliases translated
    sources              text[]      NOT NULL,
    queues               text[]      NOT NULL,
    job_types            text[]      NOT NULL,
    metadata             json,
    active               boolean     NOT NULL,
    from_place           bigint      NOT NULL,       -- it gets events behind it: published since it was made or activated
    upto_place           bigint,                     -- inactive: it gets events up to there, which were published before
    timeout_ms           integer     NOT NULL,
    max_in_flight        integer     NOT NULL,
    ordering             text        NOT NULL CHECK (ordering IN ('none', 'subject')),
    payload_format       text        NOT NULL CHECK (payload_format IN ('ojs', 'cloudevents')),
    standard_webhooks    boolean     NOT NULL,
    proven_secret        uuid,                       -- the one that the latest successful delivery was signed with
    success_count        bigint      NOT NULL DEFAULT 0,
    failure_count        bigint      NOT NULL DEFAULT 0, -- abandoned deliveries
    consecutive_failures integer     NOT NULL DEFAULT 0, -- attempts since the latest success
    failing_since        timestamptz,
    last_delivery_at     timestamptz,
    last_delivery_status integer,                    -- 0: no response
    disabled_reason      text,
    disabled_at          timestamptz,
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE ojs.webhook_secrets (
    id         uuid        PRIMARY KEY,              -- shown as sec_…
    webhook_id uuid        NOT NULL,
    secret     bytea       NOT NULL,                 -- sealed with the key that key_id names
    key_id     text        NOT NULL,                 -- '': in plain text
    hint       text        NOT NULL,                 -- the last four characters
    created_at timestamptz NOT NULL,
    expires_at timestamptz                           -- NULL: the current one
);
-- WebhookSecretList.
CREATE INDEX webhook_secrets_webhook ON ojs.webhook_secrets (webhook_id, id DESC);

CREATE TABLE ojs.webhook_deliveries (
    id               uuid        PRIMARY KEY,        -- shown as del_…
    webhook_id       uuid        NOT NULL,
    event_seq        bigint      NOT NULL,           -- 0: a test
    event_sub        integer     NOT NULL,
    event_time       timestamptz NOT NULL,
    event_type       text        NOT NULL,
    subject          text        NOT NULL,
    trace_id         text,
    ordered          boolean     NOT NULL DEFAULT false,
    body             text        NOT NULL,           -- what is sent, byte for byte
    format           text        NOT NULL DEFAULT 'ojs',
    status           text        NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'delivering', 'delivered', 'failed', 'dead', 'cancelled')),
    next_attempt_at  timestamptz,                    -- while delivering: when the lease is lost; NULL: over, or it waits for an earlier one of its subject
    leased           boolean     NOT NULL DEFAULT false,
    claims           integer     NOT NULL DEFAULT 0, -- fences off the result of a claim that was lost
    lost             integer     NOT NULL DEFAULT 0, -- leases lost in a row
    attempt_count    integer     NOT NULL DEFAULT 0,
    round_start      integer     NOT NULL DEFAULT 0, -- attempts before the schedule was begun anew by hand
    last_status_code integer,                        -- 0: no response
    last_error       text,
    created_at       timestamptz NOT NULL,
    completed_at     timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

-- WebhookDeliveryClaim, WebhookDeliveryNext: in the order in which a subscription's deliveries are started. The predicates
-- name no status, so that the planner cannot take an index for one that it only nearly fits.
CREATE INDEX webhook_deliveries_due ON ojs.webhook_deliveries (webhook_id, next_attempt_at, event_seq, event_sub) WHERE completed_at IS NULL;
-- WebhookDeliveryClaim: how many are running.
CREATE INDEX webhook_deliveries_leased ON ojs.webhook_deliveries (webhook_id) WHERE leased;
-- WebhookDeliveryCreate, WebhookDeliveryRecord: who is before or after it in its subject?
CREATE INDEX webhook_deliveries_order ON ojs.webhook_deliveries (webhook_id, subject, event_seq, event_sub) WHERE completed_at IS NULL;
-- WebhookDeliveryList, by subscription and by status, newest first.
CREATE INDEX webhook_deliveries_log ON ojs.webhook_deliveries (webhook_id, id);
CREATE INDEX webhook_deliveries_status ON ojs.webhook_deliveries (status, id);
-- One delivery per event and subscription. WebhookDeliveryList: what became of an event?
CREATE UNIQUE INDEX webhook_deliveries_event ON ojs.webhook_deliveries (event_seq, event_sub, webhook_id) WHERE event_seq > 0;
-- WebhookDeliveryPrune.
CREATE INDEX webhook_deliveries_done ON ojs.webhook_deliveries (completed_at) WHERE completed_at IS NOT NULL;

-- How far deliveries have been made: a place is seq * 65536 + sub. Only while there are active subscriptions.
CREATE TABLE ojs.webhook_cursor (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    place    bigint  NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO ojs.webhook_cursor (place) SELECT watermark << 16 FROM ojs.event_relay;

CREATE TABLE ojs.webhook_attempts (
    delivery_id uuid        NOT NULL,
    attempt     integer     NOT NULL,
    started_at  timestamptz NOT NULL,
    duration_ms bigint      NOT NULL,
    status_code integer     NOT NULL,                -- 0: no response
    error       text,
    snippet     text,                                -- of the response
    PRIMARY KEY (delivery_id, attempt)
);

-- The envelope without the flat members, or in CloudEvents form (contract 40 §1.4).
-- +goose StatementBegin
CREATE FUNCTION ojs.webhook_body(e ojs.events, service text, format text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN format = 'cloudevents'
        THEN overlay(ojs.event_head(e, service) PLACING 'org.openjobspec.' FROM strpos(ojs.event_head(e, service), '"type":"') + 8 FOR 0)
            || ',"datacontenttype":"application/json"'
        ELSE ojs.event_head(e, service) END || ',"data":' || ojs.event_data(e) || '}'
$$;
-- +goose StatementEnd

-- The place behind all that is published.
-- +goose StatementBegin
CREATE FUNCTION ojs.event_place() RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT r.watermark << 16 | COALESCE((SELECT e.sub FROM ojs.events e WHERE e.seq = r.watermark ORDER BY e.seq DESC, e.sub DESC LIMIT 1), 0)
    FROM ojs.event_relay r
$$;
-- +goose StatementEnd

-- The delivery log, newest first. Planned anew each time: the filters that are NULL fall away, and the others find their index.
-- +goose StatementBegin
CREATE FUNCTION ojs.webhook_delivery_newest(for_webhook uuid, with_status text, with_type text, at_seq bigint, at_sub integer,
    since timestamptz, until timestamptz, before uuid, max_rows integer)
RETURNS SETOF uuid
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT d.id FROM ojs.webhook_deliveries d
    WHERE (for_webhook IS NULL OR d.webhook_id = for_webhook)
        AND (with_status IS NULL OR d.status = with_status)
        AND (with_type IS NULL OR d.event_type = with_type)
        AND (at_seq IS NULL OR (d.event_seq = at_seq AND d.event_sub = at_sub))
        AND (since IS NULL OR d.created_at >= since)
        AND (until IS NULL OR d.created_at < until)
        AND d.id < before
    ORDER BY d.id DESC LIMIT max_rows;
END
$$;
-- +goose StatementEnd

-- As in 00002, but what deliveries are still to be made of is kept, whatever its count. Its age goes first: nodes without webhooks
-- must not keep the log for ever.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.event_partitions_prune(max_age interval, max_count bigint) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    size CONSTANT bigint := 500000;
    mark bigint;
    low  bigint;
    part text;
    last timestamptz;
    kept bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune')) THEN
        RETURN 0;
    END IF;
    SELECT watermark INTO mark FROM ojs.event_relay;
    SELECT c.relname INTO part FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'ojs.events'::regclass ORDER BY c.relname LIMIT 1;
    low := substr(part, 9)::bigint * size;
    IF part IS NULL OR low + size > mark THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT time FROM ojs.%I ORDER BY seq DESC LIMIT 1', part) INTO last;
    IF max_age IS NULL OR last >= clock_timestamp() - max_age THEN
        IF COALESCE(max_count, 0) = 0 OR mark - (low + size) + 1 < max_count THEN
            RETURN 0;
        END IF;
        IF EXISTS (SELECT FROM ojs.webhooks w CROSS JOIN ojs.webhook_cursor c WHERE (w.active OR w.upto_place > c.place) AND GREATEST(c.place, w.from_place) >> 16 < low + size) THEN
            RETURN 0;
        END IF;
        SELECT count(*) INTO kept FROM (
            SELECT FROM ojs.events e WHERE e.seq >= low + size AND e.seq <= mark AND NOT e.internal LIMIT max_count) k;
        IF kept < max_count THEN
            RETURN 0;
        END IF;
    END IF;
    IF ojs.table_is_held('ojs.events') OR ojs.table_is_held(('ojs.' || part)::regclass) THEN
        RETURN 0;
    END IF;
    -- First the relay's row, as a pass has it: the other order would deadlock with one. No gap appears below the
    -- watermark, so what is looked at under this lock stays true.
    PERFORM FROM ojs.event_relay FOR UPDATE;
    IF EXISTS (SELECT FROM ojs.event_gaps WHERE seq >= low AND seq < low + size) THEN
        RETURN 0;
    END IF;
    EXECUTE format('ALTER TABLE ojs.events DETACH PARTITION ojs.%I', part);
    EXECUTE format('DROP TABLE ojs.%I', part);
    UPDATE ojs.event_relay SET pruned = low + size - 1;
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd

-- As in 00004. A sequence that nobody has drawn from has a last value for all that.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.reset() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    tables text;
    mark   bigint;
BEGIN
    -- The lock of RelayLock: a pass and TRUNCATE take the tables' locks in different orders.
    PERFORM pg_advisory_xact_lock(hashtext('ojs'), hashtext('event_relay'));
    PERFORM FROM ojs.event_relay FOR UPDATE;
    SELECT string_agg(c.oid::regclass::text, ', ') INTO tables FROM pg_class c
    WHERE c.relnamespace = 'ojs'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND c.relname NOT IN ('event_relay', 'webhook_cursor', 'goose_db_version');
    EXECUTE 'TRUNCATE ' || tables;
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO mark FROM ojs.event_seq;
    UPDATE ojs.event_relay SET watermark = mark, pruned = mark;
    UPDATE ojs.webhook_cursor SET place = mark << 16;
    PERFORM pg_notify('ojs_reset', 'all');
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.reset() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    tables text;
BEGIN
    -- The lock of RelayLock: a pass and TRUNCATE take the tables' locks in different orders.
    PERFORM pg_advisory_xact_lock(hashtext('ojs'), hashtext('event_relay'));
    PERFORM FROM ojs.event_relay FOR UPDATE;
    SELECT string_agg(c.oid::regclass::text, ', ') INTO tables FROM pg_class c
    WHERE c.relnamespace = 'ojs'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND c.relname NOT IN ('event_relay', 'goose_db_version');
    EXECUTE 'TRUNCATE ' || tables;
    UPDATE ojs.event_relay SET watermark = (SELECT last_value FROM ojs.event_seq), pruned = (SELECT last_value FROM ojs.event_seq);
    PERFORM pg_notify('ojs_reset', 'all');
END
$$;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.event_partitions_prune(max_age interval, max_count bigint) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '50ms' AS $$
DECLARE
    size CONSTANT bigint := 500000;
    mark bigint;
    low  bigint;
    part text;
    last timestamptz;
    kept bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('ojs.event_partitions_prune')) THEN
        RETURN 0;
    END IF;
    SELECT watermark INTO mark FROM ojs.event_relay;
    SELECT c.relname INTO part FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'ojs.events'::regclass ORDER BY c.relname LIMIT 1;
    low := substr(part, 9)::bigint * size;
    IF part IS NULL OR low + size > mark THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT time FROM ojs.%I ORDER BY seq DESC LIMIT 1', part) INTO last;
    IF max_age IS NULL OR last >= clock_timestamp() - max_age THEN
        IF COALESCE(max_count, 0) = 0 OR mark - (low + size) + 1 < max_count THEN
            RETURN 0;
        END IF;
        SELECT count(*) INTO kept FROM (
            SELECT FROM ojs.events e WHERE e.seq >= low + size AND e.seq <= mark AND NOT e.internal LIMIT max_count) k;
        IF kept < max_count THEN
            RETURN 0;
        END IF;
    END IF;
    IF ojs.table_is_held('ojs.events') OR ojs.table_is_held(('ojs.' || part)::regclass) THEN
        RETURN 0;
    END IF;
    -- First the relay's row, as a pass has it: the other order would deadlock with one. No gap appears below the
    -- watermark, so what is looked at under this lock stays true.
    PERFORM FROM ojs.event_relay FOR UPDATE;
    IF EXISTS (SELECT FROM ojs.event_gaps WHERE seq >= low AND seq < low + size) THEN
        RETURN 0;
    END IF;
    EXECUTE format('ALTER TABLE ojs.events DETACH PARTITION ojs.%I', part);
    EXECUTE format('DROP TABLE ojs.%I', part);
    UPDATE ojs.event_relay SET pruned = low + size - 1;
    RETURN 1;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END
$$;
-- +goose StatementEnd
DROP FUNCTION ojs.event_place();
DROP FUNCTION ojs.webhook_delivery_newest(uuid, text, text, bigint, integer, timestamptz, timestamptz, uuid, integer);
DROP FUNCTION ojs.webhook_body(ojs.events, text, text);
DROP TABLE ojs.webhook_attempts;
DROP TABLE ojs.webhook_cursor;
DROP TABLE ojs.webhook_deliveries;
DROP TABLE ojs.webhook_secrets;
DROP TABLE ojs.webhooks;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 7 $$;
-- +goose StatementEnd
