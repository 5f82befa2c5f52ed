-- The relay publishes the log. A pass is one READ COMMITTED transaction: RelayLock, RelayScan and, if there is
-- something to write, RelayPublish; RelayClaim and the statements about gaps only if there are some.

-- name: RelayConfigure :exec
-- Stores the service name and the form of events for NOTIFY and SQL readers.
UPDATE ojs.event_relay SET service = @service, compat = @compat
WHERE service <> @service OR compat <> @compat;

-- name: EventRetentionConfigure :exec
-- Stores the limits of retention, which all nodes and SQL readers apply.
UPDATE ojs.event_relay SET max_age = sqlc.narg('max_age'), max_count = sqlc.narg('max_count')
WHERE max_age IS DISTINCT FROM sqlc.narg('max_age') OR max_count IS DISTINCT FROM sqlc.narg('max_count');

-- name: EventFloorRaise :one
-- Moves the beginning of the log for readers over what is outside of the limits, up to max_rows rows, and returns their number.
SELECT ojs.event_floor_raise(@max_rows)::bigint AS passed;

-- name: RelayIsDirty :one
-- Whether there is anything to publish. Takes no lock; for idle servers and for those that cannot LISTEN.
SELECT r.watermark, r.moved_at, (
    EXISTS (SELECT FROM ojs.events e WHERE e.seq > r.watermark) OR EXISTS (SELECT FROM ojs.event_gaps)
)::boolean AS dirty
FROM ojs.event_relay r;

-- name: RelayLock :one
-- Lets one relay work at a time. It does not lock the row of event_relay: that would give the transaction its id before
-- the scan, and RelayClaim needs an id drawn after it. It is a statement of its own, so that the scan reads everything
-- that the previous holder wrote. The settings last for this transaction: planning anew costs more than a pass, and a
-- plan made while a partition was empty must not scan it when it has 500 000 rows. 5 000 events with their texts take some 5 MB, which
-- the default of 4 MB writes to a temporary file. The timeouts end the transaction of a node
-- that has vanished or stands still, so that another one takes over.
SELECT pg_try_advisory_xact_lock(hashtext('ojs'), hashtext('event_relay'))::boolean AS locked,
    (set_config('plan_cache_mode', 'force_generic_plan', true) || set_config('enable_seqscan', 'off', true)
        || set_config('enable_bitmapscan', 'off', true) || set_config('jit', 'off', true) || set_config('work_mem', '16MB', true)
        || set_config('idle_in_transaction_session_timeout', '5s', true) || set_config('statement_timeout', '10s', true))::text AS settings;

-- name: EventEpochCheck :one
-- Notes that another server, or another timeline, has taken over. It comes before the first pass on a new connection.
SELECT ojs.event_epoch_check()::boolean AS checked;

-- name: RelayScan :one
-- Reads everything that a pass decides from, in one snapshot. A gap can have changed only if a transaction that ran at
-- `scanned` (the snapshot of the previous scan of the gaps) has ended since, and only if the gap was recorded while that
-- transaction ran. The horizons bound the rows read, so their number does not grow with the gaps that a long transaction
-- keeps. Of a transaction that was rolled back no row is looked for; the subquery
-- runs only if there is a gap. A horizon in the future comes from a dump of another server, where no transaction owns that number any more.
WITH snapshot AS MATERIALIZED (
    SELECT s.now, LEAST(pg_snapshot_xmax(s.scanned), (
        SELECT x FROM pg_snapshot_xip(s.scanned) x WHERE pg_visible_in_snapshot(x, s.now) ORDER BY x LIMIT 1
    )) AS ended
    FROM (SELECT pg_current_snapshot() AS now, CAST(CAST(@scanned AS text) AS pg_snapshot) AS scanned) s
), gap AS MATERIALIZED (
    SELECT g.seq, (g.horizon <= pg_snapshot_xmin(s.now) OR g.horizon > pg_snapshot_xmax(s.now)) AS over, g.horizon >= (SELECT ojs.event_committed_since(CAST(CAST(@scanned AS text) AS pg_snapshot))) AND ojs.event_is_visible(g.seq) AS late
    FROM snapshot s JOIN ojs.event_gaps g ON g.horizon >= s.ended
)
SELECT r.watermark, s.now::text AS snapshot, pg_snapshot_xmin(s.now)::text::bigint AS xmin, n.numbers::bigint[] AS numbers, n.head::bigint AS head,
    ARRAY(SELECT g.seq FROM gap g WHERE g.late ORDER BY g.seq LIMIT @late_rows::integer)::bigint[] AS late,
    ARRAY(SELECT g.seq FROM gap g WHERE g.over AND NOT g.late ORDER BY g.seq LIMIT @rolled_back_rows::integer)::bigint[] AS rolled_back,
    EXISTS (SELECT FROM ojs.event_gaps)::boolean AS gaps, n.last_sub::integer AS last_sub
FROM snapshot s CROSS JOIN ojs.event_relay r CROSS JOIN LATERAL ojs.event_numbers(r.watermark, @span::bigint) n;

-- name: RelayExclude :exec
-- Waits for the pass of a relay, and keeps others from beginning until the transaction ends: a queue whose last job is counted and whose row
-- is deleted behind this lock gets its row back from the pass that publishes a job which was committed after the count.
SELECT pg_advisory_xact_lock(hashtext('ojs'), hashtext('event_relay'));

-- name: RelayClaim :one
-- Locks retention and reset out until the pass ends. No row means that one of them has locked the row. The transaction
-- id is drawn after the scan, so it is above that of every transaction that owns a number up to the last visible one.
-- The snapshot's xmax would not do: it is one past the last transaction that ended, and a running transaction may be at
-- or above it.
SELECT r.watermark, pg_current_xact_id()::text::bigint AS bound FROM ojs.event_relay r FOR NO KEY UPDATE SKIP LOCKED;

-- name: RelayBound :one
-- A transaction id for a pass that has nothing to write; see RelayClaim.
SELECT pg_current_xact_id()::text::bigint AS bound;

-- name: EventGapInsert :exec
-- Records numbers that the watermark passes although their transaction, which is below horizon, may still commit.
INSERT INTO ojs.event_gaps (seq, noted_at, horizon, passed)
SELECT unnest(@numbers::bigint[]), clock_timestamp(), @horizon::xid8, true;

-- name: EventGapDelete :exec
-- Deletes gaps whose transaction was rolled back: all that may own the number have ended, and it has no row.
DELETE FROM ojs.event_gaps WHERE seq = ANY(@numbers::bigint[]);

-- name: EventMoveLate :exec
-- Moves late rows behind everything published and before everything unpublished, in the order of their numbers.
WITH deleted AS (
    DELETE FROM ojs.event_gaps WHERE seq = ANY(@numbers::bigint[])
)
UPDATE ojs.events e SET seq = @watermark, sub = n.to_sub
FROM (
    SELECT unnest(@numbers::bigint[]) AS seq, unnest(@subs::integer[]) AS to_sub
) n
WHERE e.seq = n.seq AND e.sub = 0;

-- name: RelayDrawNumber :one
-- Makes sure, before RelayClaim, that the number behind the watermark has been drawn.
SELECT nextval('ojs.event_seq')::bigint AS seq;

-- name: RelaySkipNumber :exec
-- Used when late rows have taken all 65 535 places behind the watermark. The watermark passes over the next number, so
-- that its row becomes a late one and is published after the waiting ones, whose numbers are lower.
WITH moved AS (
    UPDATE ojs.event_relay SET watermark = @seq, moved_at = clock_timestamp()
)
INSERT INTO ojs.event_gaps (seq, noted_at, horizon, passed)
VALUES (@seq, clock_timestamp(), @horizon::xid8, true);

-- name: RelayPublish :one
-- Claims the row of event_relay as RelayClaim does (no row: nothing is published), notifies and counts the rows behind (after_seq, after_sub) up to upto, in order, and moves the watermark. A row that
-- became visible only after the scan is left out: its number is among the passed ones, and a later pass publishes it as
-- a late row. For metrics it returns the number of published rows per public type, and those written from SQL, which no
-- node has counted. The LIMIT never cuts, because a pass has at most 5 000 numbers. It is there for the planner, which
-- without it builds hash tables for a tenth of the log (1.5 ms a pass instead of 0.4 ms). The commit waits for the disk
-- only if the pass is @durable: an ordinary one that a crash undoes is repeated with the same positions. ready names the
-- places that gained jobs, for the fetches that other nodes have parked. A place whose jobs of this pass have all been claimed
-- is left out: with workers on every node each job would otherwise cost one claim in vain per node. A queue that was deleted before one of
-- these jobs was committed exists again (see RelayExclude).
WITH claimed AS MATERIALIZED (
    SELECT r.service, r.compat, pg_current_xact_id()::text::bigint AS bound FROM ojs.event_relay r WHERE r.watermark = @watermark
    FOR NO KEY UPDATE SKIP LOCKED
), published AS MATERIALIZED (
    SELECT e.seq, e.sub, e.type, e.internal, e.job_id, e.queue, e.lane, e.from_state, e.to_state, e.priority, e.ready_seq, e.node, e.duration_ms,
        CASE WHEN e.node IS NULL THEN e.job_type END AS foreign_type,
        date_bin('1 minute', e.time, timestamptz '2000-01-01 00:00:00+00') AS minute,
        CASE WHEN e.internal OR @no_notify::boolean THEN NULL WHEN @without_data::boolean
            THEN ojs.event_head(e, r.service) || ',"data":{},"truncated":true,"dataref":"/ojs/v1/events/' || ojs.event_id(e.time, e.seq, e.sub) || '"}'
            ELSE ojs.event_text(e, r.service, r.compat) END AS full_text
    FROM claimed r CROSS JOIN ojs.events e
    WHERE (e.seq, e.sub) > (@after_seq::bigint, @after_sub::integer) AND e.seq >= @after_seq::bigint AND e.seq <= @upto::bigint -- the second condition prunes partitions
        AND e.seq <> ALL(@passed::bigint[])
    ORDER BY e.seq, e.sub
    LIMIT 5000
), delta AS MATERIALIZED (
    SELECT p.queue, p.minute, p.type, p.internal, p.from_state, p.to_state, count(*) AS n, COALESCE(sum(p.duration_ms), 0) AS ms,
        CASE p.type WHEN 'job.completed' THEN ojs.duration_bucket(p.duration_ms) END AS bucket
    FROM published p GROUP BY 1, 2, 3, 4, 5, 6, 9
), counted AS (
    INSERT INTO ojs.queue_counts AS c (queue, state, count)
    SELECT d.queue, v.state, sum(v.n)
    FROM delta d CROSS JOIN LATERAL (VALUES (d.to_state, d.n), (d.from_state, -d.n)) v (state, n)
    WHERE d.queue IS NOT NULL AND v.state IS NOT NULL GROUP BY 1, 2 HAVING sum(v.n) <> 0 ORDER BY 1, 2
    ON CONFLICT (queue, state) DO UPDATE SET count = c.count + EXCLUDED.count
), stats AS (
    INSERT INTO ojs.stats_minute AS s (queue, minute, enqueued, started, completed, failed, discarded, cancelled, duration_ms, wait_ms, durations)
    SELECT q.name, d.minute,
        COALESCE(sum(d.n) FILTER (WHERE d.type = 'job.enqueued'), 0),
        COALESCE(sum(d.n) FILTER (WHERE d.type = 'job.started'), 0),
        COALESCE(sum(d.n) FILTER (WHERE d.type = 'job.completed'), 0),
        COALESCE(sum(d.n) FILTER (WHERE d.type = 'job.failed'), 0),
        COALESCE(sum(d.n) FILTER (WHERE d.type IN ('job.discarded', 'job.expired')), 0),
        COALESCE(sum(d.n) FILTER (WHERE d.type = 'job.cancelled'), 0),
        COALESCE(sum(d.ms) FILTER (WHERE d.type = 'job.completed'), 0),
        COALESCE(sum(d.ms) FILTER (WHERE d.type = 'job.started'), 0),
        ojs.durations_of(array_agg(d.bucket) FILTER (WHERE d.bucket IS NOT NULL), array_agg(d.n) FILTER (WHERE d.bucket IS NOT NULL))
    FROM delta d CROSS JOIN LATERAL (VALUES (d.queue), ('')) q (name)
    WHERE d.queue IS NOT NULL AND d.type IN ('job.enqueued', 'job.started', 'job.completed', 'job.failed', 'job.discarded', 'job.expired', 'job.cancelled')
    GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (queue, minute) DO UPDATE SET enqueued = s.enqueued + EXCLUDED.enqueued, started = s.started + EXCLUDED.started,
        completed = s.completed + EXCLUDED.completed, failed = s.failed + EXCLUDED.failed, discarded = s.discarded + EXCLUDED.discarded,
        cancelled = s.cancelled + EXCLUDED.cancelled, duration_ms = s.duration_ms + EXCLUDED.duration_ms, wait_ms = s.wait_ms + EXCLUDED.wait_ms,
        durations = ojs.durations_add(s.durations, EXCLUDED.durations)
), advanced AS (
    UPDATE ojs.event_relay r SET watermark = @upto::bigint, moved_at = clock_timestamp(), scanned = CASE WHEN @scanned::text = '' THEN r.scanned ELSE CAST(NULLIF(@scanned::text, 'none') AS pg_snapshot) END, kept = r.kept + s.public,
        enqueued_total = r.enqueued_total + s.enqueued, completed_total = r.completed_total + s.completed, discarded_total = r.discarded_total + s.discarded
    FROM (
        SELECT COALESCE(sum(d.n) FILTER (WHERE d.type = 'job.enqueued'), 0) AS enqueued,
            COALESCE(sum(d.n) FILTER (WHERE d.type = 'job.completed'), 0) AS completed,
            COALESCE(sum(d.n) FILTER (WHERE d.type = 'job.discarded'), 0) AS discarded,
            COALESCE(sum(d.n) FILTER (WHERE NOT d.internal), 0) AS public
        FROM delta d
    ) s
    WHERE EXISTS (SELECT FROM claimed)
), by_type AS (
    SELECT array_agg(t.type) AS types, array_agg(t.n) AS counts
    FROM (SELECT d.type, sum(d.n)::bigint AS n FROM delta d WHERE NOT d.internal GROUP BY 1) t
), written_by_sql AS (
    SELECT array_agg(f.type) AS types, array_agg(f.foreign_type) AS job_types, array_agg(f.queue) AS queues, array_agg(f.n) AS counts
    FROM (SELECT p.type, p.foreign_type, p.queue, count(*) AS n FROM published p WHERE p.foreign_type IS NOT NULL AND p.queue IS NOT NULL GROUP BY 1, 2, 3) f
), notified AS (
    SELECT count(pg_notify('ojs_events', ojs.event_notice(p.full_text, p.seq, p.sub))) AS n
    FROM published p WHERE p.full_text IS NOT NULL
), tenant_counted AS (
    SELECT CASE WHEN EXISTS (SELECT FROM published p WHERE p.lane <> '') THEN ojs.tenant_counts_add(@after_seq::bigint, @after_sub::integer, @upto::bigint, @passed::bigint[]) END AS n
), unlisted AS MATERIALIZED (
    SELECT array_agg(n.queue) AS names FROM (SELECT DISTINCT d.queue FROM delta d WHERE d.to_state IN ('available', 'scheduled', 'retryable', 'pending')) n
    WHERE (SELECT true FROM ojs.queues q WHERE q.name = n.queue) IS NULL
), listed AS (
    INSERT INTO ojs.queues (name)
    SELECT DISTINCT p.queue FROM unlisted u CROSS JOIN published p
    WHERE u.names IS NOT NULL AND p.queue = ANY(u.names) AND (SELECT j.state FROM ojs.jobs j WHERE j.id = p.job_id AND j.queue = p.queue) <> 'discarded'
    ORDER BY p.queue
    ON CONFLICT (name) DO NOTHING
), ready AS (
    SELECT string_agg('[' || to_json(g.queue)::text || ',' || COALESCE(g.priority, 0) || ',' || g.low || ',' || COALESCE(g.node::text, 'null')
        || CASE WHEN g.lane <> '' THEN ',' || to_json(g.lane)::text ELSE '' END || ']', ',') AS list
    FROM (SELECT p.queue, p.lane, p.priority, p.node, min(p.ready_seq) AS low, max(p.ready_seq) AS high
        FROM published p WHERE p.ready_seq IS NOT NULL GROUP BY 1, 2, 3, 4) g
    WHERE CASE WHEN g.high - g.low > 50 THEN true -- more would be read than a claim costs
        ELSE EXISTS (SELECT FROM ojs.jobs j WHERE j.state = 'available' AND j.queue = g.queue AND j.lane = g.lane AND j.priority = g.priority
            AND j.ready_seq BETWEEN g.low AND g.high) END
)
SELECT (CASE WHEN NOT @no_notify::boolean THEN pg_notify('ojs_published', '{"w":' || @upto::bigint || ',"q":'
    || CASE WHEN octet_length(r.list) >= 7860 THEN 'null' ELSE '[' || COALESCE(r.list, '') || ']' END || '}')::text ELSE '' END)::text AS notified,
    a.n AS events_notified, (CASE WHEN NOT @durable::boolean THEN set_config('synchronous_commit', 'off', true) ELSE '' END)::text AS commit_mode, t.types::text[] AS types, t.counts::bigint[] AS counts,
    u.types::text[] AS sql_types, u.job_types::text[] AS sql_job_types, u.queues::text[] AS sql_queues, u.counts::bigint[] AS sql_counts, c.bound
FROM claimed c CROSS JOIN notified a CROSS JOIN ready r CROSS JOIN by_type t CROSS JOIN written_by_sql u CROSS JOIN tenant_counted;

-- name: RelayNotifyLost :exec
-- Has all listeners read the log, after passes that published without notifications.
SELECT pg_notify('ojs_published', '');

-- name: SystemNotifyProbe :exec
-- Sends a notification through the pool, to find out whether the LISTEN connection receives it: a pooler may accept
-- LISTEN and drop what follows.
SELECT pg_notify('ojs_probe', @token);

-- name: EventFloor :one
-- Where the log begins for readers at this moment.
SELECT f.floor_place::bigint AS floor_place, f.lost_place::bigint AS lost_place FROM ojs.event_floor() f;

-- name: EventListAfter :many
-- Events behind a position and, in every row (there is at least one), the end of the log and where it begins, as it is stored.
-- All come from one snapshot, so no event up to the watermark is missing. inexact means that the position may be before the
-- exact beginning, which EventFloor returns: it is of an event older than max_age, or further from the end than half of max_count.
-- rewritten_behind is the place behind which a failover has lost the event that was read last, or -1.
-- It looks at max_looked numbers of the log at most.
SELECT r.watermark, r.floor_place, r.lost_place,
    COALESCE(@after_time::timestamptz < now() - r.max_age OR (r.kept > r.max_count AND r.watermark - (@after_place::bigint >> 16) > r.max_count / 2), false)::boolean AS inexact,
    COALESCE(ojs.event_rewritten(@after_time::timestamptz, @after_place::bigint), -1)::bigint AS rewritten_behind,
    COALESCE(h.seq, 0)::bigint AS head_seq, COALESCE(h.sub, 0)::integer AS head_sub, h.time AS head_time,
    COALESCE(e.seq, 0)::bigint AS seq, COALESCE(e.sub, 0)::integer AS sub, e.time, COALESCE(e.type, '')::text AS type,
    COALESCE(e.internal, false)::boolean AS internal, e.job_id, e.job_type, e.queue, e.attempt, e.worker_id, e.workflow_id,
    e.from_state, e.to_state, e.duration_ms, COALESCE(e.head, '')::text AS head, COALESCE(e.compat, '')::text AS compat,
    COALESCE(e.data, '')::text AS data, COALESCE(e.lane, '')::text AS lane
FROM ojs.event_relay r LEFT JOIN ojs.event_last() h ON true LEFT JOIN ojs.event_page(@after_place::bigint >> 16, (@after_place::bigint & 65535)::integer,
    (@after_place::bigint >> 16) + @max_looked::bigint, @max_rows, @with_internal,
    @types::text[], @sources::text[], @queues::text[], @job_types::text[], sqlc.narg('job_id'), sqlc.narg('subject'), sqlc.narg('workflow_id'), sqlc.narg('since'), sqlc.narg('until'), sqlc.narg('tenant')) e ON true
ORDER BY e.seq, e.sub;

-- name: EventListNewest :many
-- The admin list, newest first, of the newest max_looked numbers of the log. total is exact up to max_total. There is at least one
-- row.
WITH bounds AS (
    SELECT r.watermark + 1 - @max_looked::bigint AS low FROM ojs.event_relay r
), matching AS MATERIALIZED (
    SELECT ojs.event_newest((SELECT b.low FROM bounds b), @max_total, @with_internal, @types::text[], @sources::text[], @queues::text[], @job_types::text[],
        sqlc.narg('job_id'), sqlc.narg('subject'), sqlc.narg('workflow_id'), sqlc.narg('since'), sqlc.narg('until'), sqlc.narg('tenant'))::bigint AS place
), page AS MATERIALIZED (
    SELECT m.place FROM matching m ORDER BY m.place DESC OFFSET @skip_rows::integer LIMIT @max_rows::integer
)
SELECT t.total, COALESCE(s.seq, 0)::bigint AS seq, COALESCE(s.sub, 0)::integer AS sub, s.time, COALESCE(s.type, '')::text AS type,
    COALESCE(s.internal, false)::boolean AS internal, s.job_id, s.job_type, s.queue, s.attempt, s.worker_id, s.workflow_id,
    s.from_state, s.to_state, s.duration_ms, COALESCE(s.head, '')::text AS head, COALESCE(s.compat, '')::text AS compat,
    COALESCE(s.data, '')::text AS data, COALESCE(s.lane, '')::text AS lane
FROM (SELECT count(*) AS total FROM matching) t
    LEFT JOIN (page g JOIN ojs.event_shown s ON s.seq = g.place >> 16 AND s.sub = (g.place & 65535)::integer) ON true
ORDER BY s.seq DESC, s.sub DESC;

-- name: EventGet :many
-- One public event; at most one row.
SELECT s.* FROM ojs.event_shown s WHERE s.seq = @seq AND s.sub = @sub AND NOT s.internal;

-- name: EventListByJob :many
-- The history of a job, internal rows included, oldest first, up to the row with which the sum of the payloads exceeds max_bytes. No
-- index has the order of seq + 0: in the order of the primary key, a plan made while the log was empty read all of it.
SELECT e.seq, e.sub, e.time, e.type, e.internal, e.job_id, e.job_type, e.queue, e.attempt, e.worker_id, e.workflow_id, e.from_state, e.to_state,
    e.duration_ms, e.head, e.compat, e.data, e.lane FROM (
    SELECT o.*, row_number() OVER w AS n, sum(octet_length(o.data)) OVER w - octet_length(o.data) AS bytes_before FROM (
        SELECT s.* FROM ojs.event_shown s WHERE s.job_id = @job_id::uuid ORDER BY s.seq + 0, s.sub LIMIT @max_rows) o WINDOW w AS (ROWS UNBOUNDED PRECEDING)
) e WHERE e.bytes_before <= @max_bytes::bigint
ORDER BY e.n;

-- name: EventListOwnByJob :many
-- What a node has changed about jobs, oldest first, and the clock: every change commits with its event, so a node whose
-- connection broke learns from here what it has done. No index has the order of seq + 0 (see EventListByJob).
SELECT e.job_id::uuid AS job_id, e.type, COALESCE(e.from_state, '')::text AS from_state, COALESCE(e.to_state, '')::text AS to_state,
    COALESCE(e.attempt, 0)::integer AS attempt, COALESCE(e.worker_id, '')::text AS worker_id, e.time, clock_timestamp()::timestamptz AS now
FROM (SELECT unnest(@ids::uuid[]) AS id) i CROSS JOIN LATERAL (
    SELECT o.* FROM ojs.events o WHERE o.job_id = i.id AND o.node = @node::integer AND (o.from_state IS NOT NULL OR o.to_state IS NOT NULL)
    ORDER BY o.seq + 0, o.sub) e;

-- name: EventGetOldest :many
-- The oldest event that is kept; at most one row.
SELECT s.seq, s.sub, s.time FROM ojs.event_shown s
WHERE s.seq >= (SELECT r.floor_place >> 16 FROM ojs.event_relay r) AND NOT s.internal ORDER BY s.seq, s.sub LIMIT 1;

-- name: EventGetHead :one
-- The end of the log and where it begins, in one snapshot. An empty log ends at the watermark.
SELECT r.watermark, f.floor_place::bigint AS floor_place, COALESCE(h.seq, 0)::bigint AS head_seq, COALESCE(h.sub, 0)::integer AS head_sub,
    COALESCE(h.time, clock_timestamp())::timestamptz AS at
FROM ojs.event_relay r CROSS JOIN ojs.event_floor() f LEFT JOIN ojs.event_last() h ON true;

-- name: StatsMinutePrune :execrows
-- Moves the minutes that are older than a day into the sums of their hours, so that each is counted once, however late it was written.
-- It begins with whole hours, oldest first.
WITH old AS MATERIALIZED (
    SELECT s.queue, s.minute FROM ojs.stats_minute s WHERE s.minute < date_trunc('hour', now() - interval '1 day')
    ORDER BY s.minute LIMIT @max_rows FOR UPDATE SKIP LOCKED
), moved AS (
    DELETE FROM ojs.stats_minute s USING old o WHERE s.queue = o.queue AND s.minute = o.minute RETURNING s.*
), summed AS (
    SELECT m.queue, date_trunc('hour', m.minute) AS hour, sum(m.enqueued) AS enqueued, sum(m.started) AS started, sum(m.completed) AS completed,
        sum(m.failed) AS failed, sum(m.discarded) AS discarded, sum(m.cancelled) AS cancelled, sum(m.duration_ms) AS duration_ms, sum(m.wait_ms) AS wait_ms
    FROM moved m GROUP BY 1, 2
), runs AS (
    SELECT b.queue, b.hour, array_agg(b.n ORDER BY b.i)::bigint[] AS durations
    FROM (SELECT m.queue, date_trunc('hour', m.minute) AS hour, d.i, sum(d.n) AS n
        FROM moved m CROSS JOIN LATERAL unnest(m.durations) WITH ORDINALITY d (n, i) GROUP BY 1, 2, 3) b
    GROUP BY 1, 2
), added AS (
    INSERT INTO ojs.stats_hour AS h (queue, hour, enqueued, started, completed, failed, discarded, cancelled, duration_ms, wait_ms, durations)
    SELECT s.queue, s.hour, s.enqueued, s.started, s.completed, s.failed, s.discarded, s.cancelled, s.duration_ms, s.wait_ms, r.durations
    FROM summed s LEFT JOIN runs r ON r.queue = s.queue AND r.hour = s.hour
    ORDER BY 1, 2
    ON CONFLICT (queue, hour) DO UPDATE SET enqueued = h.enqueued + EXCLUDED.enqueued, started = h.started + EXCLUDED.started,
        completed = h.completed + EXCLUDED.completed, failed = h.failed + EXCLUDED.failed, discarded = h.discarded + EXCLUDED.discarded,
        cancelled = h.cancelled + EXCLUDED.cancelled, duration_ms = h.duration_ms + EXCLUDED.duration_ms, wait_ms = h.wait_ms + EXCLUDED.wait_ms,
        durations = ojs.durations_add(h.durations, EXCLUDED.durations)
)
SELECT FROM moved;

-- name: StatsHourPrune :execrows
-- Keeps 30 days.
DELETE FROM ojs.stats_hour WHERE (queue, hour) IN (
    SELECT s.queue, s.hour FROM ojs.stats_hour s WHERE s.hour < now() - interval '30 days' ORDER BY s.hour LIMIT @max_rows);
