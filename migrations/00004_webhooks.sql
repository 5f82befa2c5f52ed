-- +goose Up
-- Webhooks: subscriptions, their secrets, and their deliveries. A place is a position in the event log as one number:
-- seq * 65536 + sub.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 4 $$;
-- +goose StatementEnd

CREATE TABLE ojs.webhooks (
    id                   uuid        PRIMARY KEY,         -- shown as sub_…
    url                  text        NOT NULL,
    events               text[]      NOT NULL,            -- patterns, as sent
    filter               json,                            -- as sent
    types                text[]      NOT NULL,            -- events and filter as arguments of ojs.event_matches: LIKE patterns, aliases translated
    sources              text[]      NOT NULL,
    queues               text[]      NOT NULL,
    job_types            text[]      NOT NULL,
    metadata             json,                            -- as sent
    active               boolean     NOT NULL,
    from_place           bigint      NOT NULL,            -- it gets events behind this place: those published since it was made or activated
    upto_place           bigint,                          -- while inactive: it gets events up to this place, which were published before
    timeout_ms           integer     NOT NULL,            -- of one request
    max_in_flight        integer     NOT NULL,            -- requests at the same time
    ordering             text        NOT NULL CHECK (ordering IN ('none', 'subject')), -- subject: the events of a subject one after the other
    payload_format       text        NOT NULL CHECK (payload_format IN ('ojs', 'cloudevents')),
    standard_webhooks    boolean     NOT NULL,            -- requests carry the headers of Standard Webhooks too
    proven_secret        uuid,                            -- the secret that signed the latest successful delivery
    success_count        bigint      NOT NULL DEFAULT 0,  -- deliveries
    failure_count        bigint      NOT NULL DEFAULT 0,  -- abandoned deliveries
    consecutive_failures integer     NOT NULL DEFAULT 0,  -- failed attempts since the latest success
    failing_since        timestamptz,                     -- first failed attempt since the latest success
    last_delivery_at     timestamptz,
    last_delivery_status integer,                         -- HTTP status; 0: no response
    disabled_reason      text,                            -- why the server deactivated it
    disabled_at          timestamptz,
    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),
    tenant               text,                            -- whose events it gets, and who may change it; NULL: an operator's, with those of all
    reorder_pending      boolean     NOT NULL DEFAULT false, -- its unfinished deliveries have to follow a change of ordering
    resume_pending       boolean     NOT NULL DEFAULT false  -- they have to follow an activation: what waits for a retry becomes due
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE ojs.webhook_secrets (
    id         uuid        PRIMARY KEY,                   -- shown as sec_…
    webhook_id uuid        NOT NULL,
    secret     bytea       NOT NULL,                      -- encrypted with the key that key_id names
    key_id     text        NOT NULL,                      -- '': secret is in plain text
    hint       text        NOT NULL,                      -- its last four characters
    created_at timestamptz NOT NULL,
    expires_at timestamptz                                -- NULL: the current secret
);
-- WebhookSecretList: the secrets of a subscription.
CREATE INDEX webhook_secrets_webhook ON ojs.webhook_secrets (webhook_id, id DESC);

CREATE TABLE ojs.webhook_deliveries (
    id               uuid        PRIMARY KEY,             -- shown as del_…
    webhook_id       uuid        NOT NULL,
    event_seq        bigint      NOT NULL,                -- position of the event; 0: a test
    event_sub        integer     NOT NULL,
    event_time       timestamptz NOT NULL,
    event_type       text        NOT NULL,
    subject          text        NOT NULL,
    trace_id         text,
    ordered          boolean     NOT NULL DEFAULT false,  -- deliveries of the same subject are made one after the other
    body             text        NOT NULL,                -- the request body, byte for byte
    format           text        NOT NULL DEFAULT 'ojs',
    status           text        NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'delivering', 'delivered', 'failed', 'dead', 'cancelled')),
    next_attempt_at  timestamptz,                         -- while delivering: end of the lease. NULL: finished, or it waits for an earlier one of its subject
    leased           boolean     NOT NULL DEFAULT false,  -- a node is sending it
    claims           integer     NOT NULL DEFAULT 0,      -- how often it was claimed; tells the result of a lost claim from that of the current one
    lost             integer     NOT NULL DEFAULT 0,      -- leases lost in a row
    attempt_count    integer     NOT NULL DEFAULT 0,      -- finished attempts
    round_start      integer     NOT NULL DEFAULT 0,      -- finished attempts before the latest manual retry, which begins the schedule again
    last_status_code integer,                             -- HTTP status; 0: no response
    last_error       text,
    created_at       timestamptz NOT NULL,
    completed_at     timestamptz                          -- entry into delivered, dead or cancelled
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

-- The predicates of the next three indexes name no status: the planner would use such an index for conditions that it
-- fits badly.

-- WebhookDeliveryLock, WebhookDeliveryClaim, WebhookDeliveryGetNextDue, WebhookDeliveryListOrphans: the order in which deliveries are
-- started.
CREATE INDEX webhook_deliveries_due ON ojs.webhook_deliveries (webhook_id, next_attempt_at, event_seq, event_sub) WHERE completed_at IS NULL;
-- WebhookDeliveryClaim: how many deliveries of a subscription are running.
CREATE INDEX webhook_deliveries_leased ON ojs.webhook_deliveries (webhook_id) WHERE leased;
-- WebhookDeliveryCreate, WebhookDeliveryClaim, WebhookDeliveryRecord: the unfinished deliveries before or after one of
-- its subject.
CREATE INDEX webhook_deliveries_order ON ojs.webhook_deliveries (webhook_id, subject, event_seq, event_sub) WHERE completed_at IS NULL;
-- The predicate of the next two is always true, and only webhook_delivery_newest says so. It keeps the planner from taking
-- them for other look-ups by id or webhook_id: planned while the table was empty, these read 200 000 finished deliveries.
-- WebhookDeliveryList by subscription, newest first.
CREATE INDEX webhook_deliveries_log ON ojs.webhook_deliveries (webhook_id, id) WHERE id > '00000000-0000-0000-0000-000000000000';
-- WebhookDeliveryList by status, newest first.
CREATE INDEX webhook_deliveries_status ON ojs.webhook_deliveries (status, id) WHERE id > '00000000-0000-0000-0000-000000000000';
-- WebhookDeliveryCreate, WebhookReplayAll: one delivery per event and subscription. WebhookDeliveryList: the deliveries
-- of an event.
CREATE UNIQUE INDEX webhook_deliveries_event ON ojs.webhook_deliveries (event_seq, event_sub, webhook_id) WHERE event_seq > 0;
-- WebhookDeliveryPrune: the oldest finished deliveries.
CREATE INDEX webhook_deliveries_done ON ojs.webhook_deliveries (completed_at) WHERE completed_at IS NOT NULL;

-- webhook_cursor has one row: the place up to which deliveries have been created. It moves only while there are active
-- subscriptions.
CREATE TABLE ojs.webhook_cursor (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    place    bigint  NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO ojs.webhook_cursor (place) SELECT watermark << 16 FROM ojs.event_relay;

CREATE TABLE ojs.webhook_attempts (
    delivery_id uuid        NOT NULL,
    attempt     integer     NOT NULL,                     -- from 1
    started_at  timestamptz NOT NULL,
    duration_ms bigint      NOT NULL,
    status_code integer     NOT NULL,                     -- HTTP status; 0: no response
    error       text,
    snippet     text,                                     -- beginning of the response
    PRIMARY KEY (delivery_id, attempt)                    -- WebhookAttemptList
);

-- The body of a delivery: the event without the flat members, or in CloudEvents form.
-- +goose StatementBegin
CREATE FUNCTION ojs.webhook_body(e ojs.events, service text, format text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN format = 'cloudevents'
        THEN replace(ojs.event_head(e, service), '","type":"', '","type":"org.openjobspec.') || ',"datacontenttype":"application/json"'
        ELSE ojs.event_head(e, service) END || ',"data":' || ojs.event_data(e) || '}'
$$;
-- +goose StatementEnd

-- The delivery log, newest first. It is planned anew for each call: filters that are NULL drop out. Subscription or status and
-- the event choose the index that is walked; the other filters look at no more than max_looked of its rows. If fewer than max_rows of
-- these match, the last one looked at follows with matches = false: where the next page begins. There is no such row if the walk
-- came to its end.
-- +goose StatementBegin
CREATE FUNCTION ojs.webhook_delivery_newest(for_webhook uuid, with_status text, with_type text, at_seq bigint, at_sub integer,
    since timestamptz, until timestamptz, before uuid, max_rows integer, max_looked integer, for_tenant text DEFAULT NULL)
RETURNS TABLE (id uuid, matches boolean)
LANGUAGE plpgsql STABLE
SET plan_cache_mode = force_custom_plan SET jit = off AS $$
DECLARE
    -- Of one subscription, nearly all deliveries are delivered; those of another status are few.
    by_webhook CONSTANT uuid := CASE WHEN with_status IS NULL OR with_status = 'delivered' THEN for_webhook END;
    by_status  CONSTANT text := CASE WHEN by_webhook IS NULL THEN with_status END;
    found_rows bigint;
BEGIN
    RETURN QUERY
    SELECT l.id, true FROM (
        SELECT d.id, d.webhook_id, d.status, d.event_type, d.created_at FROM ojs.webhook_deliveries d
        WHERE (by_webhook IS NULL OR d.webhook_id = by_webhook)
            AND (by_status IS NULL OR d.status = by_status)
            AND (at_seq IS NULL OR (d.event_seq = at_seq AND d.event_sub = at_sub))
            AND d.id < before AND d.id > '00000000-0000-0000-0000-000000000000'
        ORDER BY d.id DESC LIMIT max_looked) l
    WHERE (for_webhook IS NULL OR l.webhook_id = for_webhook)
        AND (with_status IS NULL OR l.status = with_status)
        AND (with_type IS NULL OR l.event_type = with_type)
        AND (since IS NULL OR l.created_at >= since)
        AND (until IS NULL OR l.created_at < until)
        AND (for_tenant IS NULL OR EXISTS (SELECT FROM ojs.webhooks w WHERE w.id = l.webhook_id AND w.tenant = for_tenant))
    ORDER BY l.id DESC LIMIT max_rows;
    GET DIAGNOSTICS found_rows = ROW_COUNT;
    IF found_rows < max_rows THEN
        RETURN QUERY
        SELECT d.id, false FROM ojs.webhook_deliveries d
        WHERE (by_webhook IS NULL OR d.webhook_id = by_webhook)
            AND (by_status IS NULL OR d.status = by_status)
            AND (at_seq IS NULL OR (d.event_seq = at_seq AND d.event_sub = at_sub))
            AND d.id < before AND d.id > '00000000-0000-0000-0000-000000000000'
        ORDER BY d.id DESC OFFSET max_looked - 1 LIMIT 1;
    END IF;
END
$$;
-- +goose StatementEnd

-- Empties all tables, for tests. The sequences keep their numbers, so event positions keep growing.
-- +goose StatementBegin
CREATE FUNCTION ojs.reset() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    tables text;
    mark   bigint;
BEGIN
    -- This is the lock of RelayLock: a pass of the relay and TRUNCATE lock the tables in different orders.
    PERFORM pg_advisory_xact_lock(hashtext('ojs'), hashtext('event_relay'));
    PERFORM FROM ojs.event_relay FOR UPDATE;
    SELECT string_agg(c.oid::regclass::text, ', ') INTO tables FROM pg_class c
    WHERE c.relnamespace = 'ojs'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND c.relname NOT IN ('event_relay', 'webhook_cursor', 'tenancy', 'goose_db_version');
    EXECUTE 'TRUNCATE ' || tables;
    SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO mark FROM ojs.event_seq;
    UPDATE ojs.event_relay SET watermark = mark, pruned = mark, floor_place = mark << 16, lost_place = mark << 16, kept = 0;
    UPDATE ojs.webhook_cursor SET place = mark << 16;
    PERFORM pg_notify('ojs_reset', 'all');
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ojs.reset();
DROP FUNCTION ojs.webhook_delivery_newest(uuid, text, text, bigint, integer, timestamptz, timestamptz, uuid, integer, integer, text);
DROP FUNCTION ojs.webhook_body(ojs.events, text, text);
DROP TABLE ojs.webhook_attempts, ojs.webhook_cursor, ojs.webhook_deliveries, ojs.webhook_secrets, ojs.webhooks;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 3 $$;
-- +goose StatementEnd
