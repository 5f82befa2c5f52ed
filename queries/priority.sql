-- name: JobSetPriority :many
-- Changes the priority of a job that is available or scheduled. ready_seq stays, so among the jobs of the new priority it has the
-- place that it would have had from the beginning. The event is internal and of no change of state; its ready_seq lowers the cursors of
-- other nodes. A job that waits for a limit may take the place of another one. There is no event if the priority stays the same. A row that another transaction has locked is left out: see queue/operation.go.
WITH locked AS MATERIALIZED (
    SELECT j.id, j.priority AS previous FROM ojs.jobs j
    WHERE j.id = @id::uuid AND j.state IN ('available', 'scheduled') FOR UPDATE SKIP LOCKED
), changed AS (
    UPDATE ojs.jobs j SET priority = @priority::smallint FROM locked l WHERE j.id = ANY(ARRAY[l.id])
    RETURNING j.id, j.type, j.queue, j.lane, j.priority, j.ready_seq, j.workflow_id, j.trace_id, l.previous, clock_timestamp() AS now,
        j.limit_key, CASE WHEN j.limit_key IS NOT NULL AND l.previous <> j.priority THEN ojs.limit_changed(j.limit_key) END AS limit_changed
), event AS (
    INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, lane, workflow_id, trace_id, internal, priority, ready_seq, node, data)
    SELECT @event_type::text, 'api', c.now, c.id, c.type, c.queue, c.lane, c.workflow_id, c.trace_id, true, c.priority, c.ready_seq, @node::integer,
        ('{"priority":' || c.priority || ',"previous_priority":' || c.previous || '}')::json
    FROM changed c WHERE c.previous <> c.priority
)
SELECT c.id, c.type, c.queue, c.lane, c.priority, c.ready_seq, c.previous, c.limit_key, c.now::timestamptz AS now FROM changed c;

-- name: JobPriorityList :many
-- The jobs of a queue that can be fetched, by lane and priority. It skips from one to the next and counts the first entries of
-- each, so it reads about max_counted entries of the index however many jobs wait. first_seq, counted_seq and last_seq are the
-- numbers of the first job, of the last one that was counted, and of the last one: the caller estimates from them how many follow.
WITH RECURSIVE level AS (
    (SELECT j.lane, j.priority, j.ready_seq FROM ojs.jobs j
     WHERE j.state = 'available' AND j.queue = @queue AND j.ready_seq IS NOT NULL
     ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
    UNION ALL
    SELECT n.lane, n.priority, n.ready_seq
    FROM level l CROSS JOIN LATERAL (
        (SELECT j.lane, j.priority, j.ready_seq FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = @queue AND j.lane = l.lane AND j.priority < l.priority AND j.ready_seq IS NOT NULL
         ORDER BY j.priority DESC, j.ready_seq LIMIT 1)
        UNION ALL
        (SELECT j.lane, j.priority, j.ready_seq FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = @queue AND j.lane > l.lane AND j.ready_seq IS NOT NULL
         ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
        LIMIT 1) n
), level_list AS MATERIALIZED (
    SELECT l.lane, l.priority, l.ready_seq FROM level l LIMIT @max_levels::bigint
), share AS MATERIALIZED (
    SELECT (sqlc.arg('max_counted')::bigint / GREATEST(count(*), 1))::bigint AS n FROM level_list
)
SELECT l.priority::smallint AS priority, c.n::bigint AS counted, l.ready_seq::bigint AS first_seq, c.high::bigint AS counted_seq, e.ready_seq::bigint AS last_seq
FROM level_list l CROSS JOIN LATERAL (
    SELECT count(*) AS n, max(f.ready_seq) AS high FROM (
        SELECT j.ready_seq FROM ojs.jobs j
        WHERE j.state = 'available' AND j.queue = @queue AND j.lane = l.lane AND j.priority = l.priority AND j.ready_seq IS NOT NULL
        ORDER BY j.ready_seq LIMIT (SELECT s.n FROM share s)) f
) c CROSS JOIN LATERAL (
    SELECT j.ready_seq FROM ojs.jobs j
    WHERE j.state = 'available' AND j.queue = @queue AND j.lane = l.lane AND j.priority = l.priority AND j.ready_seq IS NOT NULL
    ORDER BY j.ready_seq DESC LIMIT 1
) e;

-- name: JobPriorityListWaiting :many
-- The jobs of a queue that a rate limit holds back, by priority, among the first max_looked of them.
WITH waiting AS MATERIALIZED (
    SELECT j.priority FROM ojs.jobs j WHERE j.queue = @queue AND j.limit_seq IS NOT NULL ORDER BY j.limit_seq LIMIT @max_looked::bigint
)
SELECT w.priority, count(*) AS counted FROM waiting w GROUP BY w.priority;
