-- What administrators look at: jobs by other orders than that of ids, figures of queues and of the deployment.

-- name: JobSearchNewest :one
-- Up to max_rows - 1 jobs that match, newest id first, among max_looked: how many there are, and the ids of one page of them in the
-- order that was asked for. sort_by is priority, scheduled_at, started_at, or '' for ids. contains is a text in args or meta, '' for any. Both branches walk an index on id as in JobListPage; what
-- is sorted has at most max_rows rows, and is narrow. last_looked is not zero if max_looked jobs were looked at:
-- there may be more behind it.
WITH found AS MATERIALIZED (
    SELECT l.id, l.priority, l.scheduled_at, l.started_at, l.looked, l.matches FROM (
        SELECT p.id, p.priority, p.scheduled_at, p.started_at, row_number() OVER (ORDER BY p.id DESC) AS looked,
            (cardinality(@states::text[]) = 0 OR p.state = ANY(@states::text[]))
                AND (cardinality(@queues::text[]) = 0 OR p.queue = ANY(@queues::text[]))
                AND (cardinality(@types::text[]) + cardinality(@type_prefixes::text[]) = 0 OR p.type = ANY(@types::text[])
                    OR p.type ^@ ANY(@type_prefixes::text[]))
                AND p.created_at >= @since::timestamptz AND p.created_at <= @until::timestamptz
                AND (@contains::text = '' OR strpos(p.args::text, @contains::text) > 0 OR strpos(COALESCE(p.meta::text, ''), @contains::text) > 0) AS matches
        FROM (
            (SELECT j.id, j.state, j.queue, j.type, j.priority, j.scheduled_at, j.started_at, j.created_at, j.args, j.meta FROM ojs.jobs j
             WHERE @tenant::text = '' AND j.id < @before::uuid AND j.id > @after::uuid ORDER BY j.id DESC LIMIT @max_looked::bigint)
            UNION ALL
            (SELECT d.id, d.state, d.queue, d.type, d.priority, d.scheduled_at, d.started_at, d.created_at, d.args, d.meta FROM ojs.jobs_done d
             WHERE @tenant::text = '' AND d.id < @before::uuid AND d.id > @after::uuid ORDER BY d.id DESC LIMIT @max_looked::bigint)
            UNION ALL
            (SELECT t.id, t.state, t.queue, t.type, t.priority, t.scheduled_at, t.started_at, t.created_at, t.args, t.meta FROM ojs.jobs t
             WHERE @tenant::text <> '' AND octet_length(t.lane) > 0 AND split_part(t.lane, '/', 1) >= @tenant::text AND (split_part(t.lane, '/', 1), t.id) < (@tenant::text, @before::uuid)
                AND t.id > @after::uuid
             ORDER BY split_part(t.lane, '/', 1) DESC, t.id DESC LIMIT @max_looked::bigint)
            UNION ALL
            (SELECT f.id, f.state, f.queue, f.type, f.priority, f.scheduled_at, f.started_at, f.created_at, f.args, f.meta FROM ojs.jobs_done f
             WHERE @tenant::text <> '' AND octet_length(f.lane) > 0 AND split_part(f.lane, '/', 1) >= @tenant::text AND (split_part(f.lane, '/', 1), f.id) < (@tenant::text, @before::uuid)
                AND f.id > @after::uuid
             ORDER BY split_part(f.lane, '/', 1) DESC, f.id DESC LIMIT @max_looked::bigint)
            ORDER BY id DESC LIMIT @max_looked::bigint
        ) p
    ) l
    WHERE l.matches OR l.looked = @max_looked::bigint
    ORDER BY l.id DESC LIMIT @max_rows::bigint
)
SELECT (SELECT count(*) FILTER (WHERE f.matches) FROM found f)::bigint AS matches,
    ARRAY(SELECT f.id FROM found f WHERE f.matches
        ORDER BY CASE @sort_by::text WHEN 'priority' THEN f.priority::float8 WHEN 'scheduled_at' THEN date_part('epoch', f.scheduled_at) WHEN 'started_at' THEN date_part('epoch', f.started_at) END
            * (CASE WHEN @ascending::boolean THEN 1 ELSE -1 END) NULLS LAST, f.id DESC
        OFFSET @skip_rows::bigint LIMIT @page_rows::bigint)::uuid[] AS ids,
    COALESCE((SELECT (array_agg(f.id) FILTER (WHERE f.looked = @max_looked::bigint))[1] FROM found f), '00000000-0000-0000-0000-000000000000')::uuid AS last_looked;

-- name: JobSearchOldest :one
-- JobSearchNewest from the other end, in the order of ids.
WITH found AS MATERIALIZED (
    SELECT l.id, l.looked, l.matches FROM (
        SELECT p.id, row_number() OVER (ORDER BY p.id) AS looked,
            (cardinality(@states::text[]) = 0 OR p.state = ANY(@states::text[]))
                AND (cardinality(@queues::text[]) = 0 OR p.queue = ANY(@queues::text[]))
                AND (cardinality(@types::text[]) + cardinality(@type_prefixes::text[]) = 0 OR p.type = ANY(@types::text[])
                    OR p.type ^@ ANY(@type_prefixes::text[]))
                AND p.created_at >= @since::timestamptz AND p.created_at <= @until::timestamptz
                AND (@contains::text = '' OR strpos(p.args::text, @contains::text) > 0 OR strpos(COALESCE(p.meta::text, ''), @contains::text) > 0) AS matches
        FROM (
            (SELECT j.id, j.state, j.queue, j.type, j.created_at, j.args, j.meta FROM ojs.jobs j
             WHERE @tenant::text = '' AND j.id < @before::uuid AND j.id > @after::uuid ORDER BY j.id LIMIT @max_looked::bigint)
            UNION ALL
            (SELECT d.id, d.state, d.queue, d.type, d.created_at, d.args, d.meta FROM ojs.jobs_done d
             WHERE @tenant::text = '' AND d.id < @before::uuid AND d.id > @after::uuid ORDER BY d.id LIMIT @max_looked::bigint)
            UNION ALL
            (SELECT t.id, t.state, t.queue, t.type, t.created_at, t.args, t.meta FROM ojs.jobs t
             WHERE @tenant::text <> '' AND octet_length(t.lane) > 0 AND split_part(t.lane, '/', 1) <= @tenant::text AND (split_part(t.lane, '/', 1), t.id) > (@tenant::text, @after::uuid)
                AND t.id < @before::uuid
             ORDER BY split_part(t.lane, '/', 1), t.id LIMIT @max_looked::bigint)
            UNION ALL
            (SELECT f.id, f.state, f.queue, f.type, f.created_at, f.args, f.meta FROM ojs.jobs_done f
             WHERE @tenant::text <> '' AND octet_length(f.lane) > 0 AND split_part(f.lane, '/', 1) <= @tenant::text AND (split_part(f.lane, '/', 1), f.id) > (@tenant::text, @after::uuid)
                AND f.id < @before::uuid
             ORDER BY split_part(f.lane, '/', 1), f.id LIMIT @max_looked::bigint)
            ORDER BY id LIMIT @max_looked::bigint
        ) p
    ) l
    WHERE l.matches OR l.looked = @max_looked::bigint
    ORDER BY l.id LIMIT @max_rows::bigint
)
SELECT (SELECT count(*) FILTER (WHERE f.matches) FROM found f)::bigint AS matches,
    ARRAY(SELECT f.id FROM found f WHERE f.matches ORDER BY f.id OFFSET @skip_rows::bigint LIMIT @page_rows::bigint)::uuid[] AS ids,
    COALESCE((SELECT (array_agg(f.id) FILTER (WHERE f.looked = @max_looked::bigint))[1] FROM found f), '00000000-0000-0000-0000-000000000000')::uuid AS last_looked;

-- name: StatsCountByState :many
-- Jobs of the deployment per state, exact in the snapshot as in QueueCountListByQueue: it sums up a row per queue and state.
SELECT c.state::text AS state, sum(c.n)::bigint AS count FROM (
    SELECT q.state, q.count AS n FROM ojs.queue_counts q
    UNION ALL
    SELECT u.state, u.n FROM ojs.event_uncounted() u
) c GROUP BY c.state;

-- name: StatsQueueListPage :many
-- A page of queues by name. total, in every row, is exact up to max_total.
SELECT q.name, q.status, q.paused_at, q.created_at, q.updated_at,
    (SELECT count(*) FROM (SELECT FROM ojs.queues n WHERE n.name <> '_default' LIMIT @max_total::bigint) c)::bigint AS total
FROM ojs.queues q WHERE q.name > @after::text AND q.name <> '_default' ORDER BY q.name OFFSET @skip_rows::bigint LIMIT @max_rows::bigint;

-- name: StatsQueueCountList :many
-- QueueCountListByQueue for many queues.
SELECT c.queue::text AS queue, c.state::text AS state, sum(c.n)::bigint AS count FROM (
    SELECT q.queue, q.state, q.count AS n FROM ojs.queue_counts q WHERE q.queue = ANY(@queues::text[])
    UNION ALL
    SELECT u.queue, u.state, u.n FROM ojs.event_uncounted() u WHERE u.queue = ANY(@queues::text[])
) c GROUP BY c.queue, c.state;

-- name: StatsQueueRateList :many
-- What queues did: the last 60 s as in StatsMinuteGetLatest, and the run times of the last 60 minutes.
SELECT q.name::text AS queue, l.completed::float8 AS completed, l.failed::float8 AS failed,
    ARRAY(SELECT sum(d.n)::bigint
        FROM (SELECT m.durations FROM ojs.stats_minute m WHERE m.queue = q.name AND m.minute > now() - interval '60 minutes' OFFSET 0) h
            CROSS JOIN LATERAL unnest(h.durations) WITH ORDINALITY d (n, i)
        GROUP BY d.i ORDER BY d.i)::bigint[] AS durations
FROM (SELECT unnest(@queues::text[]) AS name) q CROSS JOIN LATERAL (
    SELECT COALESCE(sum(s.completed * w.share), 0) AS completed, COALESCE(sum(s.failed * w.share), 0) AS failed
    FROM (VALUES (date_trunc('minute', now()), 1.0::float8),
            (date_trunc('minute', now()) - interval '1 minute', 1 - date_part('second', now()) / 60)) w (minute, share)
        CROSS JOIN LATERAL (SELECT * FROM ojs.stats_minute m WHERE m.queue = q.name AND m.minute = w.minute OFFSET 0) s) l;

-- name: StatsQueueOldest :one
-- When the job entered the queue that has waited longest, among those that are next of the first 5 000 lanes and priorities. Not valid:
-- none waits.
WITH RECURSIVE level AS (
    (SELECT j.lane, j.priority, j.enqueued_at FROM ojs.jobs j
     WHERE j.state = 'available' AND j.queue = @queue::text AND j.ready_seq IS NOT NULL
     ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
    UNION ALL
    SELECT n.lane, n.priority, n.enqueued_at FROM level l CROSS JOIN LATERAL (
        (SELECT j.lane, j.priority, j.enqueued_at FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = @queue::text AND j.lane = l.lane AND j.priority < l.priority AND j.ready_seq IS NOT NULL
         ORDER BY j.priority DESC, j.ready_seq LIMIT 1)
        UNION ALL
        (SELECT j.lane, j.priority, j.enqueued_at FROM ojs.jobs j
         WHERE j.state = 'available' AND j.queue = @queue::text AND j.lane > l.lane AND j.ready_seq IS NOT NULL
         ORDER BY j.lane, j.priority DESC, j.ready_seq LIMIT 1)
        LIMIT 1) n
)
SELECT min(h.enqueued_at)::timestamptz AS at FROM (SELECT l.enqueued_at FROM level l LIMIT 5000) h;

-- name: StatsTypeList :many
-- What the newest events say about each type of jobs, at most max_events of the newest max_looked numbers of the log: attempts that completed
-- and failed, percentiles of run times and of waits, NULL without any, and the time of the oldest event of all. The slowest types come first.
WITH newest AS MATERIALIZED (
    SELECT ojs.event_newest((SELECT r.watermark + 1 - @max_looked::bigint FROM ojs.event_relay r), @max_events, false,
        '{"job.completed","job.failed","job.started"}'::text[], '{}'::text[], @queues::text[], '{}'::text[], NULL, NULL, NULL, NULL, NULL)::bigint AS place
), read AS MATERIALIZED (
    SELECT e.job_type, e.type, e.duration_ms, e.time FROM newest n CROSS JOIN LATERAL (
        SELECT o.job_type, o.type, o.duration_ms, o.time FROM ojs.events o WHERE o.seq = n.place >> 16 AND o.sub = (n.place & 65535)::integer OFFSET 0) e
)
SELECT COALESCE(t.job_type, '')::text AS type, count(*) FILTER (WHERE t.type = 'job.completed') AS completed, count(*) FILTER (WHERE t.type = 'job.failed') AS failed,
    percentile_disc('{0.5,0.95,0.99}'::float8[]) WITHIN GROUP (ORDER BY t.duration_ms) FILTER (WHERE t.type <> 'job.started')::bigint[] AS ran,
    percentile_disc('{0.5,0.95,0.99}'::float8[]) WITHIN GROUP (ORDER BY t.duration_ms) FILTER (WHERE t.type = 'job.started')::bigint[] AS waited,
    (SELECT min(r.time) FROM read r)::timestamptz AS since
FROM read t GROUP BY t.job_type
ORDER BY (percentile_disc(0.95) WITHIN GROUP (ORDER BY t.duration_ms) FILTER (WHERE t.type <> 'job.started')) DESC NULLS LAST, t.job_type LIMIT @max_rows::bigint;

-- name: StatsMinuteList :many
-- The minutes of a queue, or of all for ''.
SELECT m.minute, m.enqueued, m.completed, m.failed, m.discarded, m.cancelled, m.duration_ms, m.durations
FROM ojs.stats_minute m WHERE m.queue = @queue::text AND m.minute >= @since::timestamptz AND m.minute < @until::timestamptz ORDER BY m.minute;

-- name: StatsHourList :many
-- The same for hours, whose minutes were pruned.
SELECT h.hour, h.enqueued, h.completed, h.failed, h.discarded, h.cancelled, h.duration_ms, h.durations
FROM ojs.stats_hour h WHERE h.queue = @queue::text AND h.hour >= @since::timestamptz AND h.hour < @until::timestamptz ORDER BY h.hour;

-- name: JobListForPurge :many
-- The jobs of a queue in these states that ended, or if they have not ended were created, at @until or before, oldest id first, among
-- the next max_looked behind a job. looked is as in JobListForBulk.
SELECT l.id, l.state, l.looked::bigint AS looked, l.matches::boolean AS matches FROM (
    SELECT p.id, p.state, row_number() OVER (ORDER BY p.id) AS looked,
        p.queue = @queue::text AND p.state = ANY(@states::text[]) AND p.at <= @until::timestamptz AS matches
    FROM (
        (SELECT j.id, j.state, j.queue, COALESCE(j.finished_at, j.created_at) AS at FROM ojs.jobs j
         WHERE j.id > @after::uuid ORDER BY j.id LIMIT @max_looked::bigint)
        UNION ALL
        (SELECT d.id, d.state, d.queue, d.finished_at FROM ojs.jobs_done d
         WHERE d.id > @after::uuid ORDER BY d.id LIMIT @max_looked::bigint)
        ORDER BY id LIMIT @max_looked::bigint
    ) p
) l
WHERE l.matches OR l.looked = @max_looked::bigint
ORDER BY l.id
LIMIT @max_rows::bigint;
