-- Statements about workflows. Those that change a tree run in a transaction that has locked the row of its root (WorkflowLock).
-- Rows go in portions of up to 1 000.

-- name: WorkflowInsert :execrows
-- Stores the workflows of a tree. An id that is taken is missing from the count.
INSERT INTO ojs.workflows (id, root_id, flow, last_flow, ancestors, parent_index, path, type, name, meta, trace_id, steps_form,
    total, open, job_count, callbacks, created_at, tenant)
SELECT i.id, @root_id::uuid, i.flow, i.last_flow, i.ancestors::integer[], NULLIF(i.parent_index, -1), i.path, i.type, i.name, i.meta, NULLIF(i.trace_id, ''), i.steps_form,
    i.total, i.total, i.job_count, i.callbacks::text[], @created_at::timestamptz, @tenant::text
FROM (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@flows::integer[]) AS flow, unnest(@last_flows::integer[]) AS last_flow, unnest(@ancestors::text[]) AS ancestors,
        unnest(@parent_indexes::integer[]) AS parent_index, unnest(@paths::text[]) AS path, unnest(@types::text[]) AS type, unnest(@names::text[]) AS name,
        unnest(@meta::json[]) AS meta, unnest(@trace_ids::text[]) AS trace_id, unnest(@steps_forms::boolean[]) AS steps_form,
        unnest(@totals::integer[]) AS total, unnest(@job_counts::integer[]) AS job_count, unnest(@callbacks::text[]) AS callbacks
) i
ON CONFLICT (id) DO NOTHING;

-- name: WorkflowStepInsert :exec
-- Stores steps of a tree. A job that was inserted before has begun; its step has no template.
INSERT INTO ojs.workflow_steps (root_id, flow, index, step_id, kind, callback, type, queue, state, job_id, child_flow, depends_on, needed_by, waits_on, template)
SELECT @root_id::uuid, i.flow, i.index, i.step_id, i.kind, NULLIF(i.callback, ''), i.type, NULLIF(i.queue, ''), i.state,
    NULLIF(i.job_id, '00000000-0000-0000-0000-000000000000'), NULLIF(i.child_flow, 0), i.depends_on::integer[], i.needed_by::integer[],
    COALESCE(cardinality(i.depends_on::integer[]), 0), i.template
FROM (
    SELECT unnest(@flows::integer[]) AS flow, unnest(@indexes::integer[]) AS index, unnest(@step_ids::text[]) AS step_id, unnest(@kinds::text[]) AS kind,
        unnest(@callbacks::text[]) AS callback, unnest(@types::text[]) AS type, unnest(@queues::text[]) AS queue, unnest(@states::text[]) AS state,
        unnest(@job_ids::uuid[]) AS job_id, unnest(@child_flows::integer[]) AS child_flow, unnest(@depends_on::text[]) AS depends_on,
        unnest(@needed_by::text[]) AS needed_by, unnest(@templates::json[]) AS template
) i;

-- name: WorkflowLock :many
-- Locks a root, and with it the tree; no row if it does not exist.
SELECT sqlc.embed(w) FROM ojs.workflows w WHERE w.id = @id AND w.flow = 0 FOR UPDATE;

-- name: WorkflowListFlows :many
-- Workflows of a tree by their numbers.
SELECT sqlc.embed(w) FROM ojs.workflows w WHERE w.root_id = @root_id AND w.flow = ANY(@flows::integer[]) ORDER BY w.flow;

-- name: WorkflowPendingList :many
-- The oldest changes of jobs of a tree, in their order, each with the step of the job. A job may be that of no step any more.
SELECT p.id, p.job_id, p.state, p.attempt, p.started_at, p.at, COALESCE(p.worker_id, '')::text AS worker_id, p.error,
    COALESCE(s.flow, -1)::integer AS flow, COALESCE(s.index, 0)::integer AS index, COALESCE(s.step_id, '')::text AS step_id, COALESCE(s.kind, '')::text AS kind,
    COALESCE(s.type, '')::text AS type, COALESCE(s.callback, '')::text AS callback, COALESCE(s.state, '')::text AS step_state
FROM (SELECT o.* FROM ojs.workflow_pending o WHERE o.root_id = @root_id ORDER BY o.id LIMIT @max_rows) p
    LEFT JOIN LATERAL (SELECT t.* FROM ojs.workflow_steps t WHERE t.job_id = p.job_id AND t.job_id IS NOT NULL AND NOT t.deduplicated LIMIT 1) s ON true
ORDER BY p.id;

-- name: WorkflowPendingApply :exec
-- Takes the changes that WorkflowPendingList has returned. Each step gets the last change of its job: job_ids are sorted, and the arrays behind
-- have an element for each. Results go from table to table. A join with the changes would have another plan while the tables are empty.
WITH taken AS (
    DELETE FROM ojs.workflow_pending p WHERE p.root_id = @root_id AND p.id = ANY(@ids::bigint[])
)
UPDATE ojs.workflow_steps s
SET state = (@states::text[])[width_bucket(s.job_id, @job_ids::uuid[])],
    attempt = (@attempts::integer[])[width_bucket(s.job_id, @job_ids::uuid[])],
    started_at = (@started_at::timestamptz[])[width_bucket(s.job_id, @job_ids::uuid[])],
    ended_at = (@ended_at::timestamptz[])[width_bucket(s.job_id, @job_ids::uuid[])],
    error = (@errors::json[])[width_bucket(s.job_id, @job_ids::uuid[])],
    result = (SELECT c.result FROM ojs.workflow_pending c
        WHERE c.root_id = @root_id AND c.id = (@last_ids::bigint[])[width_bucket(s.job_id, @job_ids::uuid[])])
WHERE s.job_id = ANY(@job_ids::uuid[]) AND s.job_id IS NOT NULL AND NOT s.deduplicated;

-- name: WorkflowUpdate :exec
-- Stores the state and the counts of workflows of a tree.
UPDATE ojs.workflows w
SET state = i.state, completed = i.completed, failed = i.failed, open = i.open, completed_count = i.completed_count, failed_count = i.failed_count,
    members_failed = CASE i.members_failed WHEN 0 THEN false WHEN 1 THEN true END, callbacks_open = i.callbacks_open, callbacks_failed = i.callbacks_failed,
    ended_at = i.ended_at
FROM (
    SELECT unnest(@flows::integer[]) AS flow, unnest(@states::text[]) AS state, unnest(@completed::integer[]) AS completed, unnest(@failed::integer[]) AS failed,
        unnest(@open::integer[]) AS open, unnest(@completed_counts::integer[]) AS completed_count, unnest(@failed_counts::integer[]) AS failed_count,
        unnest(@members_failed::integer[]) AS members_failed, unnest(@callbacks_open::integer[]) AS callbacks_open,
        unnest(@callbacks_failed::integer[]) AS callbacks_failed, unnest(@ended_at::timestamptz[]) AS ended_at
) i
WHERE w.root_id = @root_id AND w.flow = i.flow;

-- name: WorkflowStepListWaiting :many
-- The steps of a workflow that have not begun, from an index on, up to the one with which the sum of their templates exceeds max_bytes.
SELECT w.index, w.step_id, w.kind, w.callback, w.type, w.child_flow, w.template, w.depends_on FROM (
    SELECT s.*, sum(COALESCE(octet_length(s.template::text), 0)) OVER (ROWS UNBOUNDED PRECEDING) - COALESCE(octet_length(s.template::text), 0) AS bytes_before FROM (
        SELECT o.* FROM ojs.workflow_steps o WHERE o.root_id = @root_id AND o.flow = @flow AND o.index >= @low AND o.index <= @high AND o.state = 'waiting'
        ORDER BY o.index LIMIT @max_rows) s
) w WHERE w.bytes_before <= @max_bytes::bigint ORDER BY w.index;

-- name: WorkflowStepListReady :many
-- WorkflowStepListWaiting for steps with these indexes.
SELECT w.index, w.step_id, w.kind, w.callback, w.type, w.child_flow, w.template, w.depends_on FROM (
    SELECT s.*, sum(COALESCE(octet_length(s.template::text), 0)) OVER (ROWS UNBOUNDED PRECEDING) - COALESCE(octet_length(s.template::text), 0) AS bytes_before FROM (
        SELECT o.* FROM ojs.workflow_steps o WHERE o.root_id = @root_id AND o.flow = @flow AND o.index = ANY(@indexes::integer[]) AND o.state = 'waiting'
        ORDER BY o.index) s
) w WHERE w.bytes_before <= @max_bytes::bigint ORDER BY w.index;

-- name: WorkflowStepBegin :exec
-- Stores the outcome of the inserts of jobs of steps: pending, or completed or failed at once by a unique policy.
UPDATE ojs.workflow_steps s
SET state = i.state, job_id = NULLIF(i.job_id, '00000000-0000-0000-0000-000000000000'), deduplicated = i.deduplicated, error = i.error, template = NULL,
    ended_at = CASE WHEN i.state <> 'pending' THEN clock_timestamp() END
FROM (
    SELECT unnest(@flows::integer[]) AS flow, unnest(@indexes::integer[]) AS index, unnest(@states::text[]) AS state, unnest(@job_ids::uuid[]) AS job_id,
        unnest(@deduplicated::boolean[]) AS deduplicated, unnest(@errors::json[]) AS error
) i
WHERE s.root_id = @root_id AND s.flow = i.flow AND s.index = i.index;

-- name: WorkflowStepEnd :exec
-- Ends the step of a nested workflow, with its value.
UPDATE ojs.workflow_steps s SET state = @state, ended_at = @ended_at, result = @result, result_map = @result_map, error = @error
WHERE s.root_id = @root_id AND s.flow = @flow AND s.index = @index;

-- name: WorkflowStepValues :many
-- The values of members: those with an index below the bound or, if indexes are given, these. Values whose sum exceeds max_bytes are
-- left out, the largest first.
SELECT v.index, v.step_id, v.state, v.kind, v.job_id, v.size::bigint AS size,
    (CASE WHEN v.bytes_upto <= @max_bytes::bigint THEN v.result END)::json AS result,
    (CASE WHEN v.bytes_upto <= @max_bytes::bigint THEN v.result_map END)::json AS result_map,
    (CASE WHEN v.bytes_upto <= @max_bytes::bigint THEN v.error END)::json AS error, (v.bytes_upto > @max_bytes::bigint)::boolean AS omitted FROM (
    SELECT m.*, sum(m.size) OVER (ORDER BY m.size, m.index ROWS UNBOUNDED PRECEDING) AS bytes_upto FROM (
        SELECT s.index, s.step_id, s.state, s.kind, s.job_id, s.result, s.result_map, s.error,
            GREATEST(COALESCE(octet_length(s.result::text), 0), COALESCE(octet_length(s.result_map::text), 0)) + COALESCE(octet_length(s.error::text), 0) AS size
        FROM ojs.workflow_steps s
        WHERE s.root_id = @root_id AND s.flow = @flow AND s.index < @below AND s.kind <> 'callback'
            AND (cardinality(@indexes::integer[]) = 0 OR s.index = ANY(@indexes::integer[]))
    ) m
) v ORDER BY v.index;

-- name: WorkflowStepReadyAfter :many
-- Of the steps that wait for a completed one, those that wait for no other. The caller has locked the root, so counts do not race.
UPDATE ojs.workflow_steps s SET waits_on = s.waits_on - 1
WHERE s.root_id = @root_id AND s.flow = @flow AND s.state = 'waiting'
    AND s.index = ANY((SELECT d.needed_by FROM ojs.workflow_steps d WHERE d.root_id = @root_id AND d.flow = @flow AND d.index = @index)::integer[])
RETURNING s.index, s.waits_on;

-- name: WorkflowStepListDependents :many
-- The steps that depend on a step, directly or by others, and have not begun.
WITH RECURSIVE below AS (
    SELECT unnest(d.needed_by) AS index FROM ojs.workflow_steps d WHERE d.root_id = @root_id AND d.flow = @flow AND d.index = @index
    UNION
    SELECT unnest(n.needed_by) FROM below b CROSS JOIN LATERAL (
        SELECT s.needed_by FROM ojs.workflow_steps s WHERE s.root_id = @root_id AND s.flow = @flow AND s.index = b.index AND s.state = 'waiting') n
)
SELECT w.index, COALESCE(w.child_flow, 0)::integer AS child_flow FROM below b CROSS JOIN LATERAL (
    SELECT s.index, s.child_flow FROM ojs.workflow_steps s WHERE s.root_id = @root_id AND s.flow = @flow AND s.index = b.index AND s.state = 'waiting') w
ORDER BY w.index;

-- name: WorkflowStepCancel :exec
-- Cancels steps of a workflow that have not begun.
UPDATE ojs.workflow_steps s SET state = 'cancelled', ended_at = @ended_at, template = NULL
WHERE s.root_id = @root_id AND s.flow = @flow AND s.index = ANY(@indexes::integer[]) AND s.state = 'waiting';

-- name: WorkflowStepCancelBelow :many
-- Cancels steps that have not begun, of workflows with numbers in a range, in their order behind a place. Returns their kinds.
WITH picked AS MATERIALIZED (
    SELECT o.flow, o.index FROM ojs.workflow_steps o
    WHERE o.root_id = @root_id AND (o.flow, o.index) > (@after_flow::integer, @after_index::integer) AND o.flow <= @last_flow::integer AND o.state = 'waiting'
    ORDER BY o.root_id, o.flow, o.index LIMIT @max_rows FOR UPDATE
), cancelled AS (
    UPDATE ojs.workflow_steps s SET state = 'cancelled', ended_at = @ended_at, template = NULL
    FROM picked p WHERE s.root_id = @root_id AND s.flow = p.flow AND s.index = p.index
    RETURNING s.flow, s.index, s.kind
)
SELECT c.flow, c.index, c.kind FROM cancelled c ORDER BY c.flow, c.index;

-- name: WorkflowEndBelow :exec
-- Ends the running workflows with numbers in a range as cancelled, with their steps in the workflows above them.
WITH ended AS (
    UPDATE ojs.workflows w SET state = 'cancelled', ended_at = @ended_at
    WHERE w.root_id = @root_id AND w.flow >= @first_flow::integer AND w.flow <= @last_flow::integer AND w.state = 'running'
    RETURNING w.ancestors[cardinality(w.ancestors)] AS parent, w.parent_index
)
UPDATE ojs.workflow_steps s SET state = 'cancelled', ended_at = @ended_at
FROM ended e WHERE s.root_id = @root_id AND s.flow = e.parent AND s.index = e.parent_index AND s.state IN ('pending', 'waiting');

-- name: WorkflowFirstFailure :many
-- The earliest failure in a tree, outside of nested workflows that ended well in spite of it.
SELECT (w.path || CASE s.kind WHEN 'callback' THEN s.callback ELSE s.step_id END)::text AS step_id, s.type, s.error, s.job_id
FROM ojs.workflow_steps s CROSS JOIN LATERAL (
    SELECT o.path, o.state FROM ojs.workflows o WHERE o.root_id = @root_id AND o.flow = s.flow OFFSET 0) w
WHERE s.root_id = @root_id AND s.state IN ('failed', 'cancelled') AND s.error IS NOT NULL AND s.kind <> 'workflow' AND w.state <> 'completed'
ORDER BY s.ended_at, s.flow, s.index LIMIT 1;

-- name: WorkflowEventInsert :exec
-- Events of a root, in order. The steps of a tree are no part of the counts, so these rows have no states.
INSERT INTO ojs.events (type, source, time, subject, workflow_id, trace_id, lane, node, data)
SELECT i.type, i.source, @time::timestamptz, @subject::text, @root_id::uuid, sqlc.narg('trace_id')::text, @tenant::text, @node::integer, i.data
FROM (SELECT unnest(@types::text[]) AS type, unnest(@sources::text[]) AS source, unnest(@data::json[]) AS data) i;

-- name: WorkflowGetStart :many
-- When the first job of a tree was fetched; no row if none was.
SELECT s.started_at FROM ojs.workflow_starts s WHERE s.root_id = @root_id;

-- name: WorkflowGet :many
-- A workflow, root or nested.
SELECT sqlc.embed(w) FROM ojs.workflows w WHERE w.id = @id;

-- name: WorkflowListTree :many
-- The workflows of a tree with numbers in a range, in their order behind a number.
SELECT sqlc.embed(w) FROM ojs.workflows w
WHERE w.root_id = @root_id AND w.flow > @after_flow AND w.flow <= @last_flow ORDER BY w.root_id, w.flow LIMIT @max_rows;

-- name: WorkflowStepListTree :many
-- The steps of workflows with numbers in a range, in their order behind a place, with what is known of live jobs. A job that is
-- not live has a change in workflow_pending, until its workflow has followed. Results whose sum exceeds max_bytes are left out, the largest first.
SELECT v.flow, v.index, v.step_id, v.kind, COALESCE(v.callback, '')::text AS callback, v.type, COALESCE(v.queue, '')::text AS queue, v.state,
    v.job_id, COALESCE(v.child_flow, 0)::integer AS child_flow, v.deduplicated, v.depends_on, COALESCE(v.attempt, 0)::integer AS attempt,
    v.started_at, v.ended_at, v.error, v.size::bigint AS size,
    (CASE WHEN v.bytes_upto <= @max_bytes::bigint THEN v.result END)::json AS result, (v.bytes_upto > @max_bytes::bigint)::boolean AS omitted,
    COALESCE(j.state, CASE WHEN v.state = 'pending' AND v.kind <> 'workflow' THEN (
        SELECT p.state FROM ojs.workflow_pending p WHERE p.root_id = @root_id AND p.job_id = v.job_id ORDER BY p.id DESC LIMIT 1) END, '')::text AS job_state,
    COALESCE(j.attempt, 0)::integer AS job_attempt, j.started_at AS job_started_at, COALESCE(j.progress, 0)::double precision AS progress
FROM (
    SELECT m.*, sum(m.size) OVER (ORDER BY m.size, m.flow, m.index ROWS UNBOUNDED PRECEDING) AS bytes_upto FROM (
        SELECT s.*, COALESCE(octet_length(s.result::text), 0) AS size FROM ojs.workflow_steps s
        WHERE s.root_id = @root_id AND (s.flow, s.index) > (@after_flow::integer, @after_index::integer) AND s.flow <= @last_flow::integer
        ORDER BY s.root_id, s.flow, s.index LIMIT @max_rows
    ) m
) v LEFT JOIN LATERAL (
    SELECT l.state, l.attempt, l.started_at, l.progress FROM ojs.jobs l WHERE l.id = v.job_id AND v.state = 'pending' LIMIT 1) j ON true
ORDER BY v.flow, v.index;

-- name: WorkflowListPage :many
-- Ids of roots, newest first, of the max_looked newest behind an id.
SELECT l.id FROM (SELECT o.id, o.type, o.name FROM ojs.workflows o WHERE o.parent_index IS NULL AND o.id < @before::uuid ORDER BY o.id DESC LIMIT @max_looked::bigint) l
WHERE (@type::text = '' OR l.type = @type::text) AND (@name::text = '' OR l.name = @name::text)
ORDER BY l.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint;

-- name: WorkflowListPageByState :many
-- WorkflowListPage for roots in a state. The range of one state, and not an equation, leaves the index by state as the only one that has
-- the order.
SELECT l.id FROM (
    SELECT o.id, o.type, o.name FROM ojs.workflows o WHERE o.flow = 0 AND o.state >= @state::text AND (o.state, o.id) < (@state::text, @before::uuid)
    ORDER BY o.state DESC, o.id DESC LIMIT @max_looked::bigint) l
WHERE (@type::text = '' OR l.type = @type::text) AND (@name::text = '' OR l.name = @name::text)
ORDER BY l.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint;

-- name: WorkflowListPageByTenant :many
-- WorkflowListPage for roots of a tenant; the range of one tenant as in WorkflowListPageByState.
SELECT l.id FROM (
    SELECT o.id, o.type, o.name, o.state FROM ojs.workflows o
    WHERE o.flow = 0 AND o.tenant <> '' AND o.tenant >= @tenant::text AND (o.tenant, o.id) < (@tenant::text, @before::uuid)
    ORDER BY o.tenant DESC, o.id DESC LIMIT @max_looked::bigint) l
WHERE (@state::text = '' OR l.state = @state::text) AND (@type::text = '' OR l.type = @type::text) AND (@name::text = '' OR l.name = @name::text)
ORDER BY l.id DESC OFFSET @skip_rows::bigint LIMIT @page_rows::bigint;

-- name: WorkflowListFloor :many
-- The last of the roots that WorkflowListPage looks at, or its form for the tenant or the state, if there are as many: where the next
-- page begins. One branch runs, with the index of its form.
SELECT f.id FROM (
    (SELECT o.id FROM ojs.workflows o WHERE @tenant::text = '' AND @state::text = '' AND o.parent_index IS NULL AND o.id < @before::uuid
     ORDER BY o.id DESC OFFSET (-1 + @max_looked::bigint) LIMIT 1)
    UNION ALL
    (SELECT o.id FROM ojs.workflows o
     WHERE @tenant::text = '' AND @state::text <> '' AND o.flow = 0 AND o.state >= @state::text AND (o.state, o.id) < (@state::text, @before::uuid)
     ORDER BY o.state DESC, o.id DESC OFFSET (-1 + @max_looked::bigint) LIMIT 1)
    UNION ALL
    (SELECT o.id FROM ojs.workflows o
     WHERE @tenant::text <> '' AND o.flow = 0 AND o.tenant <> '' AND o.tenant >= @tenant::text AND (o.tenant, o.id) < (@tenant::text, @before::uuid)
     ORDER BY o.tenant DESC, o.id DESC OFFSET (-1 + @max_looked::bigint) LIMIT 1)
) f;

-- name: WorkflowCountByTenant :one
-- WorkflowCount for roots of a tenant.
SELECT count(*) FROM (
    SELECT FROM (SELECT o.type, o.name, o.state FROM ojs.workflows o WHERE o.flow = 0 AND o.tenant <> '' AND o.tenant >= @tenant::text AND o.tenant <= @tenant::text
        ORDER BY o.tenant DESC, o.id DESC LIMIT @max_looked::bigint) l
    WHERE (@state::text = '' OR l.state = @state::text) AND (@type::text = '' OR l.type = @type::text) AND (@name::text = '' OR l.name = @name::text)
    LIMIT @max_rows::bigint) c;

-- name: WorkflowListRoots :many
-- Roots by their ids, newest first.
SELECT sqlc.embed(w) FROM ojs.workflows w WHERE w.id = ANY(@ids::uuid[]) ORDER BY w.id DESC;

-- name: WorkflowListStarts :many
-- When the first jobs of trees were fetched.
SELECT s.root_id, s.started_at FROM ojs.workflow_starts s WHERE s.root_id = ANY(@ids::uuid[]);

-- name: WorkflowCount :one
-- The number of roots that match, exact up to max_rows, among the newest max_looked.
SELECT count(*) FROM (
    SELECT FROM (SELECT o.type, o.name FROM ojs.workflows o WHERE o.parent_index IS NULL ORDER BY o.id DESC LIMIT @max_looked::bigint) l
    WHERE (@type::text = '' OR l.type = @type::text) AND (@name::text = '' OR l.name = @name::text) LIMIT @max_rows::bigint) c;

-- name: WorkflowCountByState :one
-- WorkflowCount for roots in a state.
SELECT count(*) FROM (
    SELECT FROM (SELECT o.type, o.name FROM ojs.workflows o WHERE o.flow = 0 AND o.state >= @state::text AND o.state <= @state::text
        ORDER BY o.state DESC, o.id DESC LIMIT @max_looked::bigint) l
    WHERE (@type::text = '' OR l.type = @type::text) AND (@name::text = '' OR l.name = @name::text) LIMIT @max_rows::bigint) c;

-- name: WorkflowCancel :exec
-- Ends a root as cancelled; its jobs follow in transactions of their own, while cancelling is set.
UPDATE ojs.workflows w SET state = 'cancelled', ended_at = @ended_at, cancelling = true, forced = @forced WHERE w.id = @id;

-- name: WorkflowCancelDone :exec
UPDATE ojs.workflows w SET cancelling = NULL WHERE w.id = @id AND w.cancelling IS NOT NULL;

-- name: WorkflowStepListLive :many
-- The steps of a tree whose job has not ended, in their order behind a place.
SELECT s.flow, s.index, s.kind, s.job_id FROM ojs.workflow_steps s
WHERE s.root_id = @root_id AND s.state = 'pending' AND (s.flow, s.index) > (@after_flow::integer, @after_index::integer)
ORDER BY s.root_id, s.flow, s.index LIMIT @max_rows;

-- name: WorkflowListLeft :many
-- Roots with changes that they have not followed, and roots whose cancel has not ended. old: for longer than min_age_s, or for five
-- times as long; otherwise a node is probably at it. Skips from root to root.
WITH RECURSIVE root AS (
    (SELECT p.root_id, p.at FROM ojs.workflow_pending p ORDER BY p.root_id, p.id LIMIT 1)
    UNION ALL
    SELECT n.root_id, n.at FROM root r CROSS JOIN LATERAL (
        SELECT p.root_id, p.at FROM ojs.workflow_pending p WHERE p.root_id > r.root_id ORDER BY p.root_id, p.id LIMIT 1) n
)
SELECT l.root_id::uuid AS root_id, l.cancelling::boolean AS cancelling, (l.at < clock_timestamp() - l.age)::boolean AS old FROM (
    SELECT r.root_id, false AS cancelling, r.at, interval '1 second' * @min_age_s::double precision AS age FROM root r
    UNION ALL
    (SELECT w.id, true, w.ended_at, interval '5 seconds' * @min_age_s::double precision FROM ojs.workflows w WHERE w.cancelling IS NOT NULL ORDER BY w.id LIMIT 100)
) l LIMIT @max_rows;

-- name: WorkflowListStuck :many
-- Running roots behind an id none of whose steps has a live job, and the last root that was looked at. There should be none.
SELECT w.id, NOT EXISTS (
    SELECT FROM ojs.workflow_steps s CROSS JOIN LATERAL (SELECT j.id FROM ojs.jobs j WHERE j.id = s.job_id AND j.state <> 'discarded' OFFSET 0) j
    WHERE s.root_id = w.id AND s.state = 'pending') AND NOT EXISTS (SELECT FROM ojs.workflow_pending p WHERE p.root_id = w.id) AS stuck
FROM (SELECT o.id FROM ojs.workflows o WHERE o.flow = 0 AND o.state = 'running' AND o.id > @after_id::uuid ORDER BY o.state, o.id LIMIT @max_rows) w
ORDER BY w.id;

-- name: WorkflowPendingRepair :execrows
-- Writes the changes of jobs that have ended without one, or do not exist any more.
INSERT INTO ojs.workflow_pending (root_id, job_id, state, attempt, started_at, at, worker_id, result, error)
SELECT s.root_id, s.job_id, CASE WHEN j.id IS NOT NULL THEN 'discarded' ELSE COALESCE(d.state, 'cancelled') END, COALESCE(j.attempt, d.attempt),
    COALESCE(j.started_at, d.started_at), COALESCE(j.finished_at, d.finished_at, clock_timestamp()), COALESCE(j.worker_id, d.worker_id), d.result,
    CASE WHEN j.error IS NOT NULL THEN ojs.error_brief(j.error::text, 2048)::json
        WHEN d.id IS NULL THEN '{"code":"cancelled","message":"The job does not exist any more."}'::json
        WHEN d.state = 'cancelled' THEN '{"code":"cancelled","message":"The job was cancelled."}'::json END
FROM ojs.workflow_steps s
    LEFT JOIN LATERAL (SELECT o.id, o.attempt, o.started_at, o.finished_at, o.worker_id, o.error, o.state FROM ojs.jobs o WHERE o.id = s.job_id LIMIT 1) j ON true
    LEFT JOIN LATERAL (SELECT o.id, o.state, o.attempt, o.started_at, o.finished_at, o.worker_id, o.result FROM ojs.jobs_done o WHERE o.id = s.job_id LIMIT 1) d ON true
WHERE s.root_id = @root_id AND s.state = 'pending' AND s.kind <> 'workflow' AND (j.id IS NULL OR j.state = 'discarded');

-- name: WorkflowListEnded :many
-- Roots that ended longer than keep ago.
SELECT w.id FROM ojs.workflows w WHERE w.flow = 0 AND w.ended_at IS NOT NULL AND w.ended_at <= now() - @keep::interval
ORDER BY w.ended_at, w.id LIMIT @max_rows;

-- name: WorkflowStepListPlace :many
-- The last of the first max_rows steps of a tree; no row if there are fewer.
SELECT o.flow, o.index FROM ojs.workflow_steps o WHERE o.root_id = @root_id ORDER BY o.root_id, o.flow, o.index OFFSET @max_rows - 1 LIMIT 1;

-- name: WorkflowStepDelete :exec
-- Deletes the steps of a tree up to a place.
DELETE FROM ojs.workflow_steps s WHERE s.root_id = @root_id AND (s.flow, s.index) <= (@flow::integer, @index::integer);

-- name: WorkflowDelete :execrows
-- Deletes up to max_rows workflows of a tree, the root last.
DELETE FROM ojs.workflows w WHERE w.root_id = @root_id AND w.flow >= COALESCE((
    SELECT o.flow FROM ojs.workflows o WHERE o.root_id = @root_id ORDER BY o.root_id DESC, o.flow DESC OFFSET @max_rows - 1 LIMIT 1), 0);

-- name: WorkflowStartDelete :exec
DELETE FROM ojs.workflow_starts s WHERE s.root_id = @root_id;

-- name: WorkflowPendingDelete :execrows
-- Forgets up to max_rows changes of jobs whose workflow is gone.
DELETE FROM ojs.workflow_pending p WHERE p.root_id = @root_id AND p.id <= COALESCE((
    SELECT o.id FROM ojs.workflow_pending o WHERE o.root_id = @root_id ORDER BY o.root_id, o.id OFFSET @max_rows - 1 LIMIT 1), 9223372036854775807);
