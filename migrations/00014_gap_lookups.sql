-- +goose Up
-- Published rows on PostgreSQL 18, whose planner would read every gap into a hash for each statement that reads published rows. OFFSET 0
-- leaves it only the lookup by key, which it chooses on the versions before.
CREATE OR REPLACE VIEW ojs.event_published_all AS
SELECT e.seq, e.sub, e.time, e.type, e.internal, e.subject, e.job_id, e.job_type, e.queue, e.attempt, e.worker_id, e.workflow_id,
    e.from_state, e.to_state, e.duration_ms, e.lane, r.service, r.compat, CAST(e AS ojs.events) AS event
FROM ojs.event_relay r CROSS JOIN ojs.events e
WHERE e.seq <= (SELECT w.watermark FROM ojs.event_relay w)
    AND NOT (e.sub = 0 AND EXISTS (SELECT FROM ojs.event_gaps g WHERE g.seq = e.seq AND g.passed OFFSET 0));

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 14 $$;
-- +goose StatementEnd

-- +goose Down
CREATE OR REPLACE VIEW ojs.event_published_all AS
SELECT e.seq, e.sub, e.time, e.type, e.internal, e.subject, e.job_id, e.job_type, e.queue, e.attempt, e.worker_id, e.workflow_id,
    e.from_state, e.to_state, e.duration_ms, e.lane, r.service, r.compat, CAST(e AS ojs.events) AS event
FROM ojs.event_relay r CROSS JOIN ojs.events e
WHERE e.seq <= (SELECT w.watermark FROM ojs.event_relay w)
    AND NOT (e.sub = 0 AND EXISTS (SELECT FROM ojs.event_gaps g WHERE g.seq = e.seq AND g.passed));
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 13 $$;
-- +goose StatementEnd
