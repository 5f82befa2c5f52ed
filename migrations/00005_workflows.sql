-- +goose Up
-- Workflows. A tree of nested workflows is changed only under the lock of its root's row. Statements about jobs do not take that
-- lock: what they change goes to workflow_pending, and the tree follows in a transaction of its own.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 5 $$;
-- +goose StatementEnd

-- workflows has a row for each workflow, nested ones included. Numbers in a tree are given depth first, so those below a workflow
-- are a range.
CREATE TABLE ojs.workflows (
    id               uuid        PRIMARY KEY,
    root_id          uuid        NOT NULL,                   -- the workflow that the client created; of a root its own id
    flow             integer     NOT NULL,                   -- number in the tree; 0: the root
    last_flow        integer     NOT NULL,                   -- highest number of those nested in it; its own: none are
    ancestors        integer[]   NOT NULL,                   -- numbers of the workflows above it, the root first
    parent_index     integer,                                -- its step in the nearest of them; NULL: a root
    path             text        NOT NULL,                   -- ids of the steps above it, each followed by a dot
    type             text        NOT NULL,                   -- chain, group, batch, dag
    name             text        NOT NULL,
    state            text        NOT NULL DEFAULT 'running', -- running, completed, failed, cancelled
    meta             json,                                   -- NULL: {}
    trace_id         text,                                   -- trace id found in meta
    steps_form       boolean     NOT NULL,                   -- callbacks were sent as steps
    total            integer     NOT NULL,                   -- direct members
    completed        integer     NOT NULL DEFAULT 0,         -- of them
    failed           integer     NOT NULL DEFAULT 0,         -- of them, failed, or cancelled after they had a job
    open             integer     NOT NULL,                   -- of them, not ended
    job_count        integer     NOT NULL,                   -- jobs of the tree below it, callbacks not counted
    completed_count  integer     NOT NULL DEFAULT 0,
    failed_count     integer     NOT NULL DEFAULT 0,
    callbacks        text[]      NOT NULL,                   -- names of its callbacks
    members_failed   boolean,                                -- whether a member had failed when all had ended; NULL: not all have
    callbacks_open   integer     NOT NULL DEFAULT 0,         -- fired callbacks that have not ended
    callbacks_failed integer     NOT NULL DEFAULT 0,
    cancelling       boolean,                                -- its jobs are being cancelled; NULL: they are not
    forced           boolean     NOT NULL DEFAULT false,     -- active jobs are cancelled too
    created_at       timestamptz NOT NULL,
    ended_at         timestamptz,
    tenant           text        NOT NULL DEFAULT '',        -- to which the tree belongs, found in the meta of the root; '': none
    UNIQUE (root_id, flow)                                   -- WorkflowListFlows, WorkflowListTree, WorkflowEndBelow, WorkflowDelete
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- WorkflowListPageByState, WorkflowCountByState, WorkflowListStuck: roots in a state.
CREATE INDEX workflows_state ON ojs.workflows (state, id) WHERE flow = 0;
-- WorkflowListEnded: the roots that ended first.
CREATE INDEX workflows_ended ON ojs.workflows (ended_at, id) WHERE flow = 0 AND ended_at IS NOT NULL;
-- WorkflowListPage, WorkflowCount: roots, newest first. Its predicate is another one than that of the two before, which a plan made while the
-- table was empty would otherwise answer by reading all of it.
CREATE INDEX workflows_newest ON ojs.workflows (id) WHERE parent_index IS NULL;
-- WorkflowListPageByTenant, WorkflowCountByTenant: roots of a tenant, newest first.
CREATE INDEX workflows_tenant ON ojs.workflows (tenant, id) WHERE flow = 0 AND tenant <> '';
-- WorkflowListLeft: workflows whose cancel was interrupted.
CREATE INDEX workflows_cancelling ON ojs.workflows (id) WHERE cancelling IS NOT NULL;

-- workflow_steps has a row for each member and each callback. Callbacks have the numbers after those of the members.
CREATE TABLE ojs.workflow_steps (
    root_id      uuid        NOT NULL,
    flow         integer     NOT NULL,
    index        integer     NOT NULL,                       -- from 0, in the order of the definition
    step_id      text        NOT NULL,
    kind         text        NOT NULL,                       -- job, workflow, callback
    callback     text,                                       -- on_complete, on_success or on_failure
    type         text        NOT NULL,                       -- of the job or of the nested workflow
    queue        text,                                       -- of the job
    state        text        NOT NULL,                       -- waiting, pending (has begun), completed, failed, cancelled
    job_id       uuid,
    child_flow   integer,                                    -- number of the nested workflow
    deduplicated boolean     NOT NULL DEFAULT false,         -- job_id is of a job that existed before
    depends_on   integer[],                                  -- steps that must be completed before
    needed_by    integer[],                                  -- steps that wait for this one
    waits_on     integer     NOT NULL DEFAULT 0,             -- of depends_on, not completed
    template     json,                                       -- from which its job is made; NULL once it has been made
    attempt      integer,                                    -- attempt, started_at: of the run that ended the job
    started_at   timestamptz,
    ended_at     timestamptz,
    result       json,                                       -- of the job, or value of the nested workflow
    result_map   json,                                       -- the latter with step ids as names, where it differs
    error        json,                                       -- code and message
    PRIMARY KEY (root_id, flow, index)                       -- every statement about steps
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- WorkflowPendingList, WorkflowPendingApply: the step of a job. A job is never that of two steps.
CREATE UNIQUE INDEX workflow_steps_job ON ojs.workflow_steps (job_id) WHERE job_id IS NOT NULL AND NOT deduplicated;
-- A callback of a workflow exists once.
CREATE UNIQUE INDEX workflow_steps_callback ON ojs.workflow_steps (root_id, flow, callback) WHERE callback IS NOT NULL;
-- WorkflowStepListLive, WorkflowListStuck: steps whose job, or nested workflow, has not ended.
CREATE INDEX workflow_steps_live ON ojs.workflow_steps (root_id, flow, index) WHERE state = 'pending';

-- workflow_pending has what statements have changed about jobs of workflows, until the workflow has followed: for milliseconds.
CREATE TABLE ojs.workflow_pending (
    root_id    uuid        NOT NULL,
    id         bigint      GENERATED ALWAYS AS IDENTITY,
    job_id     uuid        NOT NULL,
    state      text        NOT NULL,                         -- of the job: completed, discarded, cancelled or, after a manual retry, available
    attempt    integer,
    started_at timestamptz,
    at         timestamptz NOT NULL,
    worker_id  text,
    result     json,                                         -- what the worker sent, also if it is not kept with the job
    error      json,                                         -- code and message
    PRIMARY KEY (root_id, id)                                -- WorkflowPendingList, WorkflowPendingApply, WorkflowListLeft
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- workflow_starts has the time when the first job of a tree was fetched. It is a table of its own, so that no fetch waits for
-- the row of a root.
CREATE TABLE ojs.workflow_starts (
    root_id    uuid        PRIMARY KEY,
    started_at timestamptz NOT NULL
);

-- Called by every statement that ends or revives a job that belongs to a workflow, and by no other: for all other jobs
-- it costs the test that workflow_id is NULL.
-- +goose StatementBegin
CREATE FUNCTION ojs.workflow_job_changed(root uuid, job uuid, state text, attempt integer, started_at timestamptz, at timestamptz,
    worker_id text, result json, error json) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ojs.workflow_pending (root_id, job_id, state, attempt, started_at, at, worker_id, result, error)
    VALUES (root, job, state, attempt, started_at, at, worker_id, result,
        CASE WHEN state = 'cancelled' THEN '{"code":"cancelled","message":"The job was cancelled."}'::json
            WHEN error IS NOT NULL THEN ojs.error_brief(error::text, 2048)::json END);
    RETURN true;
END
$$;
-- +goose StatementEnd

-- Called for each fetched job of a workflow. The first one writes workflow.started, before its own job.started. It looks first,
-- because an INSERT that finds the row takes a lock on the way.
-- +goose StatementBegin
CREATE FUNCTION ojs.workflow_job_started(root uuid, at timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM ojs.workflow_starts s WHERE s.root_id = root) THEN
        RETURN false;
    END IF;
    INSERT INTO ojs.workflow_starts (root_id, started_at) VALUES (root, at) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO ojs.events (type, source, time, subject, workflow_id, trace_id, lane, data)
    SELECT 'workflow.started', 'api', at, w.id::text, w.id, w.trace_id, w.tenant,
        ('{"workflow_id":"' || w.id::text || '","workflow_name":' || to_json(w.name)::text || ',"total_steps":' || w.job_count || '}')::json
    FROM ojs.workflows w WHERE w.id = root AND w.state = 'running';
    RETURN true;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION ojs.workflow_job_started(uuid, timestamptz);
DROP FUNCTION ojs.workflow_job_changed(uuid, uuid, text, integer, timestamptz, timestamptz, text, json, json);
DROP TABLE ojs.workflow_starts, ojs.workflow_pending, ojs.workflow_steps, ojs.workflows;
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS integer
LANGUAGE sql IMMUTABLE AS $$ SELECT 4 $$;
-- +goose StatementEnd
