-- Execution history is a view of the event log.

-- name: HistoryCountByJob :one
-- Exact up to max_rows, which bounds the work.
SELECT count(*) FROM (
    SELECT FROM (SELECT * FROM ojs.event_published j WHERE j.job_id = @job_id::uuid AND ojs.in_history(j.type) OFFSET 0) p LIMIT @max_rows::bigint
) c;

-- name: HistoryListNewest :many
-- Entries of all jobs below a place, newest first, and how many match from the newest on, up to max_total. Both look at max_looked
-- numbers of the log at most; low is the lowest of those below the place, oldest the lowest whose rows readers may see. There is at
-- least one row.
WITH bounds AS MATERIALIZED (
    SELECT (r.floor_place >> 16)::bigint AS oldest, (r.watermark + 1 - @max_looked::bigint)::bigint AS newest,
        (LEAST(@before::bigint >> 16, r.watermark) + 1 - @max_looked::bigint)::bigint AS low
    FROM ojs.event_relay r
), matching AS MATERIALIZED (
    SELECT ojs.history_newest(9223372036854775807, (SELECT b.newest FROM bounds b), @max_total::integer, @types::text[], @actors::text[], @queues::text[], @job_types::text[],
        sqlc.narg('since'), sqlc.narg('until'), sqlc.narg('tenant'))::bigint AS place
), page AS MATERIALIZED (
    (SELECT m.place FROM matching m WHERE @before::bigint = 9223372036854775807 ORDER BY m.place DESC LIMIT @max_rows::integer)
    UNION ALL
    SELECT ojs.history_newest(@before::bigint, (SELECT b.low FROM bounds b), @max_rows::integer, @types::text[], @actors::text[], @queues::text[], @job_types::text[],
        sqlc.narg('since'), sqlc.narg('until'), sqlc.narg('tenant'))::bigint
    WHERE @before::bigint <> 9223372036854775807
)
SELECT t.total, b.oldest::bigint AS oldest, b.low::bigint AS low, COALESCE(s.seq, 0)::bigint AS seq, COALESCE(s.sub, 0)::integer AS sub, s.time, COALESCE(s.type, '')::text AS type,
    COALESCE(s.internal, false)::boolean AS internal, s.job_id, s.job_type, s.queue, s.attempt, s.worker_id, s.workflow_id,
    s.from_state, s.to_state, s.duration_ms, COALESCE(s.head, '')::text AS head, COALESCE(s.compat, '')::text AS compat,
    COALESCE(s.data, '')::text AS data, COALESCE(s.lane, '')::text AS lane
FROM (SELECT count(*) AS total FROM matching) t CROSS JOIN bounds b
    LEFT JOIN (page g JOIN ojs.event_shown s ON s.seq = g.place >> 16 AND s.sub = (g.place & 65535)::integer) ON true
ORDER BY s.seq DESC, s.sub DESC;
