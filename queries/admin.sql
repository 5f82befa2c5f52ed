-- What administrators look at: jobs by other orders than that of ids, figures of queues and of the deployment.

-- name: JobSearchNewest :one
-- Up to max_rows - 1 jobs that match, newest id first, among max_looked: how many there are, and the ids of one page of them in the
-- order that was asked for. sort_by is priority, scheduled_at, or '' for ids. Both branches walk an index on id as in JobListPage; what
-- is sorted has at most max_rows rows, and is narrow. last_looked is not zero if max_looked jobs were looked at:
-- there may be more behind it.
WITH found AS MATERIALIZED (
    SELECT l.id, l.priority, l.scheduled_at, l.looked, l.matches FROM (
        SELECT p.id, p.priority, p.scheduled_at, row_number() OVER (ORDER BY p.id DESC) AS looked,
            (cardinality(@states::text[]) = 0 OR p.state = ANY(@states::text[]))
                AND (cardinality(@queues::text[]) = 0 OR p.queue = ANY(@queues::text[]))
                AND (cardinality(@types::text[]) + cardinality(@type_prefixes::text[]) = 0 OR p.type = ANY(@types::text[])
                    OR p.type ^@ ANY(@type_prefixes::text[]))
                AND p.created_at >= @since::timestamptz AND p.created_at <= @until::timestamptz AS matches
        FROM (
            (SELECT j.id, j.state, j.queue, j.type, j.priority, j.scheduled_at, j.created_at FROM ojs.jobs j
             WHERE j.id < @before::uuid AND j.id > @after::uuid ORDER BY j.id DESC LIMIT @max_looked::bigint)
            UNION ALL
            (SELECT d.id, d.state, d.queue, d.type, d.priority, d.scheduled_at, d.created_at FROM ojs.jobs_done d
             WHERE d.id < @before::uuid AND d.id > @after::uuid ORDER BY d.id DESC LIMIT @max_looked::bigint)
            ORDER BY id DESC LIMIT @max_looked::bigint
        ) p
    ) l
    WHERE l.matches OR l.looked = @max_looked::bigint
    ORDER BY l.id DESC LIMIT @max_rows::bigint
)
SELECT (SELECT count(*) FROM found f WHERE f.matches)::bigint AS matches,
    ARRAY(SELECT f.id FROM found f WHERE f.matches
        ORDER BY CASE @sort_by::text WHEN 'priority' THEN f.priority::float8 WHEN 'scheduled_at' THEN date_part('epoch', f.scheduled_at) END
            * (CASE WHEN @ascending::boolean THEN 1 ELSE -1 END) NULLS LAST, f.id DESC
        OFFSET @skip_rows::bigint LIMIT @page_rows::bigint)::uuid[] AS ids,
    COALESCE((SELECT f.id FROM found f WHERE f.looked = @max_looked::bigint), '00000000-0000-0000-0000-000000000000')::uuid AS last_looked;

-- name: JobSearchOldest :one
-- JobSearchNewest from the other end, in the order of ids.
WITH found AS MATERIALIZED (
    SELECT l.id, l.looked, l.matches FROM (
        SELECT p.id, row_number() OVER (ORDER BY p.id) AS looked,
            (cardinality(@states::text[]) = 0 OR p.state = ANY(@states::text[]))
                AND (cardinality(@queues::text[]) = 0 OR p.queue = ANY(@queues::text[]))
                AND (cardinality(@types::text[]) + cardinality(@type_prefixes::text[]) = 0 OR p.type = ANY(@types::text[])
                    OR p.type ^@ ANY(@type_prefixes::text[]))
                AND p.created_at >= @since::timestamptz AND p.created_at <= @until::timestamptz AS matches
        FROM (
            (SELECT j.id, j.state, j.queue, j.type, j.created_at FROM ojs.jobs j
             WHERE j.id < @before::uuid AND j.id > @after::uuid ORDER BY j.id LIMIT @max_looked::bigint)
            UNION ALL
            (SELECT d.id, d.state, d.queue, d.type, d.created_at FROM ojs.jobs_done d
             WHERE d.id < @before::uuid AND d.id > @after::uuid ORDER BY d.id LIMIT @max_looked::bigint)
            ORDER BY id LIMIT @max_looked::bigint
        ) p
    ) l
    WHERE l.matches OR l.looked = @max_looked::bigint
    ORDER BY l.id LIMIT @max_rows::bigint
)
SELECT (SELECT count(*) FROM found f WHERE f.matches)::bigint AS matches,
    ARRAY(SELECT f.id FROM found f WHERE f.matches ORDER BY f.id OFFSET @skip_rows::bigint LIMIT @page_rows::bigint)::uuid[] AS ids,
    COALESCE((SELECT f.id FROM found f WHERE f.looked = @max_looked::bigint), '00000000-0000-0000-0000-000000000000')::uuid AS last_looked;
