-- Webhooks: subscriptions, secrets, deliveries. No statement here touches a table of jobs.

-- name: WebhookCursorLock :many
-- At most one row; none means that another node creates deliveries. They are created by a reader of the log, not by the
-- relay: a burst of events for a hundred subscriptions must not delay publication.
SELECT c.place, (SELECT r.pruned FROM ojs.event_relay r)::bigint AS pruned FROM ojs.webhook_cursor c FOR UPDATE OF c SKIP LOCKED;

-- name: WebhookCountSubscribers :one
-- Subscriptions that get events. One that was deactivated still gets the events published before.
SELECT count(*) FROM ojs.webhooks w CROSS JOIN ojs.webhook_cursor c WHERE w.active OR w.upto_place > c.place;

-- name: WebhookListSubscribers :many
-- The subscriptions that get deliveries, from where on, and the end of the log in the same snapshot: a later subscription
-- begins behind it, so a pass up to there misses none. The locks make WebhookDelete wait until the deliveries are
-- created, so that it cancels them; nothing else waits for the locks.
SELECT w.id, w.from_place, ojs.event_place()::bigint AS head FROM ojs.webhooks w CROSS JOIN ojs.webhook_cursor c
WHERE (w.active OR w.upto_place > c.place) AND w.ordering <> 'subject'
ORDER BY w.id FOR KEY SHARE OF w;

-- name: WebhookListSubscribersOrdered :many
-- The same for ordered subscriptions. Their locks also exclude WebhookDeliveryRecord: a statement that inserts a
-- delivery behind another must read the current state of that one, or the new one would never become due. All
-- transactions take these locks in the order of ids, and before locks of deliveries.
SELECT w.id, w.from_place, ojs.event_place()::bigint AS head FROM ojs.webhooks w CROSS JOIN ojs.webhook_cursor c
WHERE (w.active OR w.upto_place > c.place) AND w.ordering = 'subject'
ORDER BY w.id FOR NO KEY UPDATE OF w;

-- name: WebhookDeliveryCreate :one
-- Creates exactly one delivery per event and matching subscription, with its own copy of the text. Of an ordered
-- subscription only the first unfinished delivery of a subject is due; the next becomes due when that one ends. IS NOT
-- DISTINCT FROM and OFFSET 0 leave the index on events as the only way to look for a delivery: a plan made while the
-- table was empty took the one on webhook_id, or read the whole table once per pass.
WITH page AS MATERIALIZED (
    SELECT p.seq, p.sub, p.time, p.internal, p.service, CAST(p.event AS ojs.events) AS event FROM ojs.event_published_all p
    WHERE p.seq >= @after_seq::bigint AND (p.seq, p.sub) > (@after_seq::bigint, @after_sub::integer) AND (p.seq, p.sub) <= (@upto_seq::bigint, @upto_sub::integer)
    ORDER BY p.seq, p.sub LIMIT @max_rows::integer
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), wanted AS MATERIALIZED (
    SELECT w.id AS webhook_id, w.payload_format, w.id = ANY(@ordered_ids::uuid[]) AS ordered, p.seq, p.sub, p.time, p.service, p.event,
        COALESCE((p.event).subject, (p.event).job_id::text, '') AS subject,
        row_number() OVER (PARTITION BY w.id, COALESCE((p.event).subject, (p.event).job_id::text, '') ORDER BY p.seq, p.sub) AS nth
    FROM page p JOIN ojs.webhooks w ON w.id = ANY(@webhook_ids::uuid[]) AND NOT p.internal AND (p.seq << 16 | p.sub) > w.from_place
        AND (w.active OR (p.seq << 16 | p.sub) <= w.upto_place)
        AND NOT EXISTS (SELECT FROM ojs.webhook_deliveries x
            WHERE x.event_seq = p.seq AND x.event_seq > 0 AND x.event_sub = p.sub AND x.webhook_id IS NOT DISTINCT FROM w.id OFFSET 0)
        AND ojs.event_matches(p.event, p.service, false, w.types, w.sources, w.queues, w.job_types, NULL, NULL, NULL, w.tenant)
), inserted AS (
    INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, trace_id, ordered, format,
        body, next_attempt_at, created_at)
    SELECT ojs.new_id(clock.now), n.webhook_id, n.seq, n.sub, n.time, (n.event).type, n.subject, (n.event).trace_id, n.ordered, n.payload_format,
        ojs.webhook_body(n.event, n.service, n.payload_format), CASE WHEN n.ordered AND (n.nth > 1 OR EXISTS (
            SELECT FROM ojs.webhook_deliveries d WHERE d.webhook_id = n.webhook_id AND d.subject = n.subject AND d.completed_at IS NULL))
            THEN NULL ELSE clock.now END, clock.now
    FROM wanted n CROSS JOIN clock
    ORDER BY n.seq, n.sub
    ON CONFLICT (event_seq, event_sub, webhook_id) WHERE event_seq > 0 DO NOTHING
    RETURNING 1
), advanced AS (
    UPDATE ojs.webhook_cursor c SET place = GREATEST(c.place, @after_seq::bigint << 16 | @after_sub::integer, (SELECT max(p.seq << 16 | p.sub) FROM page p))
)
SELECT (SELECT count(*) FROM inserted)::bigint AS deliveries, (SELECT count(*) FROM page)::bigint AS scanned,
    COALESCE(CASE WHEN (SELECT count(*) FROM inserted) > 0 THEN pg_notify('ojs_webhooks', 'made')::text END, '')::text AS notified;

-- name: WebhookLock :exec
-- Lets one caller at a time count and insert, because of max_webhooks. A statement of its own, so that the next one reads
-- what the other caller inserted.
SELECT pg_advisory_xact_lock(hashtext('ojs'), hashtext('webhooks'));

-- name: WebhookInsert :many
-- No row means that there are max_webhooks already.
WITH room AS MATERIALIZED (
    SELECT 1 WHERE (SELECT count(*) FROM ojs.webhooks) < @max_webhooks::integer
)
INSERT INTO ojs.webhooks (id, url, events, filter, types, sources, queues, job_types, metadata, active, timeout_ms, max_in_flight,
    ordering, payload_format, standard_webhooks, from_place, tenant)
SELECT @id::uuid, @url::text, @events::text[], sqlc.narg('filter')::json, @types::text[], @sources::text[], @queues::text[], @job_types::text[],
    sqlc.narg('metadata')::json, @active::boolean, @timeout_ms::integer, @max_in_flight::integer, @ordering::text, @payload_format::text,
    @standard_webhooks::boolean, ojs.event_place(), sqlc.narg('tenant')::text
FROM room
RETURNING *;

-- name: WebhookGet :many
-- A subscription.
SELECT * FROM ojs.webhooks WHERE id = @id;

-- name: WebhookGetForUpdate :many
-- A subscription, locked against changes and deliveries.
SELECT * FROM ojs.webhooks WHERE id = @id FOR NO KEY UPDATE;

-- name: WebhookList :many
-- A page of ids, newest first. There is at least one row, for the total; its id is zero if the page is empty.
WITH matching AS MATERIALIZED (
    SELECT w.id FROM ojs.webhooks w
    WHERE (sqlc.narg('active')::boolean IS NULL OR w.active = sqlc.narg('active')) AND (@url::text = '' OR w.url = @url)
        AND (sqlc.narg('tenant')::text IS NULL OR w.tenant = sqlc.narg('tenant'))
)
SELECT t.total, COALESCE(w.id, '00000000-0000-0000-0000-000000000000')::uuid AS id
FROM (SELECT count(*) AS total FROM matching) t LEFT JOIN LATERAL (
    SELECT m.id FROM matching m WHERE m.id < @before::uuid ORDER BY m.id DESC OFFSET @skip_rows::integer LIMIT @max_rows::integer
) w ON true
ORDER BY w.id DESC;

-- name: WebhookListByID :many
-- Subscriptions, newest first.
SELECT * FROM ojs.webhooks WHERE id = ANY(@ids::uuid[]) ORDER BY id DESC;

-- name: WebhookUpdate :one
-- Replaces a subscription. Activating it clears the reason why it was disabled. It then gets the events published from
-- now on, unless deliveries of events from before its deactivation are not created yet. The marks tell all nodes that its
-- unfinished deliveries have to follow; the statements that make them follow clear them.
UPDATE ojs.webhooks w
SET url = @url, events = @events, filter = sqlc.narg('filter'), types = @types, sources = @sources, queues = @queues, job_types = @job_types,
    metadata = sqlc.narg('metadata'), active = @active, timeout_ms = @timeout_ms, max_in_flight = @max_in_flight, ordering = @ordering,
    payload_format = @payload_format, standard_webhooks = @standard_webhooks, updated_at = clock_timestamp(),
    from_place = CASE WHEN @reactivate::boolean AND NOT EXISTS (SELECT FROM ojs.webhook_cursor c WHERE c.place < w.upto_place)
        THEN ojs.event_place() ELSE w.from_place END,
    upto_place = CASE WHEN @active THEN NULL WHEN w.active THEN ojs.event_place() ELSE w.upto_place END,
    disabled_reason = CASE WHEN @reactivate::boolean THEN NULL ELSE w.disabled_reason END,
    disabled_at = CASE WHEN @reactivate::boolean THEN NULL ELSE w.disabled_at END,
    failing_since = CASE WHEN @reactivate::boolean THEN NULL ELSE w.failing_since END,
    consecutive_failures = CASE WHEN @reactivate::boolean THEN 0 ELSE w.consecutive_failures END,
    reorder_pending = w.reorder_pending OR w.ordering <> @ordering,
    resume_pending = @active AND (w.resume_pending OR @reactivate::boolean)
WHERE w.id = @id::uuid
RETURNING w.*;

-- name: WebhookListUnfinishedChanges :many
-- The subscriptions whose deliveries have to follow a change.
SELECT w.id FROM ojs.webhooks w WHERE w.reorder_pending OR (w.resume_pending AND w.active);

-- name: WebhookClearReorder :exec
-- All deliveries have followed a change of ordering. The caller has locked the subscription before its last batch.
UPDATE ojs.webhooks SET reorder_pending = false WHERE id = @id;

-- name: WebhookClearResume :exec
-- All deliveries have followed an activation. The caller has locked the subscription before its last batch.
UPDATE ojs.webhooks SET resume_pending = false WHERE id = @id;

-- name: WebhookDeliveryResume :execrows
-- Makes deliveries due that were waiting for a retry. In batches, because there may be 1 000 000.
UPDATE ojs.webhook_deliveries d SET next_attempt_at = clock_timestamp()
WHERE d.id = ANY(ARRAY(
    SELECT h.id FROM ojs.webhook_deliveries h
    WHERE h.webhook_id = @webhook_id AND h.completed_at IS NULL AND h.next_attempt_at > now() AND NOT h.leased
    ORDER BY h.next_attempt_at LIMIT @max_rows::integer));

-- name: WebhookDeliveryReorder :execrows
-- After a change of ordering: a delivery behind another unfinished one of its subject waits for it, or no delivery
-- waits.
UPDATE ojs.webhook_deliveries d
SET ordered = @ordered::boolean, next_attempt_at = CASE WHEN NOT @ordered::boolean THEN COALESCE(d.next_attempt_at, clock_timestamp())
    WHEN d.leased OR NOT EXISTS (
        SELECT FROM ojs.webhook_deliveries p
        WHERE p.webhook_id = d.webhook_id AND p.subject = d.subject AND p.completed_at IS NULL AND (p.event_seq, p.event_sub) < (d.event_seq, d.event_sub))
    THEN d.next_attempt_at END
WHERE d.id = ANY(ARRAY(
    SELECT o.id FROM ojs.webhook_deliveries o
    WHERE o.webhook_id = @webhook_id::uuid AND o.completed_at IS NULL AND o.ordered <> @ordered::boolean LIMIT @max_rows::integer));

-- name: WebhookDelete :many
-- Deletes a subscription and its secrets. WebhookDeliveryCancel ends its deliveries.
WITH deleted AS (
    DELETE FROM ojs.webhooks w WHERE w.id = @id RETURNING w.id
), secrets AS (
    DELETE FROM ojs.webhook_secrets s USING deleted d WHERE s.webhook_id = d.id
)
SELECT id FROM deleted;

-- name: WebhookDeliveryCancel :execrows
-- Cancels deliveries of a deleted subscription. The result of a running request is then not recorded. status stands in for
-- completed_at IS NULL, which is the predicate of an index that a plan made while the table was empty read whole.
UPDATE ojs.webhook_deliveries d SET status = 'cancelled', next_attempt_at = NULL, leased = false, completed_at = clock_timestamp()
WHERE d.status IN ('pending', 'delivering', 'failed') AND d.id = ANY(ARRAY(
    SELECT c.id FROM ojs.webhook_deliveries c WHERE c.webhook_id = @webhook_id AND c.completed_at IS NULL LIMIT @max_rows::integer));

-- name: WebhookSecretInsert :one
-- Stores the current secret of a subscription.
INSERT INTO ojs.webhook_secrets (id, webhook_id, secret, key_id, hint, created_at)
VALUES (@id, @webhook_id, @secret, @key_id, @hint, clock_timestamp())
RETURNING *;

-- name: WebhookSecretRetire :exec
-- Lets the current secret expire after a rotation. The caller has locked the subscription and has deleted the previous
-- secret.
UPDATE ojs.webhook_secrets s SET expires_at = clock_timestamp() + CAST(@overlap_s AS bigint) * interval '1 second'
WHERE s.webhook_id = @webhook_id AND s.expires_at IS NULL;

-- name: WebhookSecretDeletePrevious :execrows
-- Deletes the previous secret.
DELETE FROM ojs.webhook_secrets WHERE webhook_id = @webhook_id AND expires_at IS NOT NULL;

-- name: WebhookSecretList :many
-- The valid secrets, newest first, the current one in front.
SELECT * FROM ojs.webhook_secrets
WHERE webhook_id = ANY(@webhook_ids::uuid[]) AND (expires_at IS NULL OR expires_at > clock_timestamp())
ORDER BY webhook_id, expires_at IS NOT NULL, id DESC;

-- name: WebhookSecretExists :one
-- Whether a rotation has stored its secret.
SELECT EXISTS (SELECT FROM ojs.webhook_secrets s WHERE s.id = @id)::boolean AS there;

-- name: WebhookSecretHasPrevious :one
-- Whether a subscription has a secret besides the current one.
SELECT EXISTS (SELECT FROM ojs.webhook_secrets s WHERE s.webhook_id = @webhook_id AND s.expires_at IS NOT NULL)::boolean AS there;

-- name: WebhookSecretListByKey :many
-- Valid secrets that are not encrypted with this key.
SELECT * FROM ojs.webhook_secrets WHERE key_id <> @key_id AND (expires_at IS NULL OR expires_at > clock_timestamp());

-- name: WebhookSecretReseal :exec
-- Stores a secret under another key, unless another node has done so.
UPDATE ojs.webhook_secrets SET secret = @secret, key_id = @key_id WHERE id = @id AND key_id = @old_key_id;

-- name: WebhookDeliverySetPlanner :exec
-- Settings for the transaction. The statistics of a table whose rows all change are always out of date, and no plan made
-- while most of the table was pending may read the whole log when it has 1 000 000 rows.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true);

-- name: WebhookDeliveryLock :many
-- Locks the active subscriptions with a due delivery. Under these locks only this claim changes how many of their
-- deliveries are running, which the next statement counts. It waits for locks of other transactions, which are short: a
-- skipped subscription would wait until another delivery is due. now() is used, because clock_timestamp() cannot be an
-- index condition. ORDER BY leaves webhook_deliveries_due: a plan made while the table was empty read all that waits for a retry.
SELECT w.id FROM ojs.webhooks w
WHERE w.active AND (
    SELECT true FROM ojs.webhook_deliveries d WHERE d.webhook_id = w.id AND d.completed_at IS NULL AND d.next_attempt_at <= now() ORDER BY d.next_attempt_at LIMIT 1)
ORDER BY w.id
FOR NO KEY UPDATE OF w;

-- name: WebhookDeliveryClaim :many
-- Claims due deliveries in turns: the owner with the fewest deliveries that this node runs comes next, then the subscription with the
-- fewest running and claimed ones, and ties are broken at random. An owner is a tenant, or a subscription without one; it gets at most
-- owner_room places of the node, so that slow endpoints of one leave room for the others. running is what owners have already. An endpoint that has failed ten times in a row gets one request at a time. next_attempt_at is
-- set to the end of the lease, when another node may claim the delivery. What a request needs of its subscription is
-- carried along: joined again by webhook_id, all deliveries of the subscription were read.
-- A delivery that is due and still leased has lost its lease: its node stopped, or could not record the outcome. lost counts that.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), subscription AS MATERIALIZED (
    SELECT w.id, w.url, w.timeout_ms, w.standard_webhooks, w.proven_secret, r.running, random() AS tiebreak, COALESCE(w.tenant, w.id::text) AS owner,
        CASE WHEN w.consecutive_failures >= 10 THEN 1 ELSE w.max_in_flight END - r.running AS room
    FROM ojs.webhooks w CROSS JOIN LATERAL (
        SELECT count(*)::integer AS running FROM ojs.webhook_deliveries d CROSS JOIN clock WHERE d.webhook_id = w.id AND d.leased AND d.next_attempt_at > clock.now
    ) r
    WHERE w.id = ANY(@webhook_ids::uuid[]) AND w.active
), due AS MATERIALIZED (
    SELECT d.id, h.url, h.timeout_ms, h.standard_webhooks, h.proven_secret, h.owner, h.tiebreak, h.running + row_number() OVER (PARTITION BY h.id ORDER BY d.next_attempt_at, d.event_seq, d.event_sub) AS turn
    FROM subscription h CROSS JOIN clock CROSS JOIN LATERAL (
        SELECT c.id, c.next_attempt_at, c.event_seq, c.event_sub FROM ojs.webhook_deliveries c
        WHERE c.webhook_id = h.id AND c.completed_at IS NULL AND c.next_attempt_at <= clock.now AND NOT (c.ordered AND EXISTS (
            SELECT FROM ojs.webhook_deliveries p
            WHERE p.webhook_id = c.webhook_id AND p.subject = c.subject AND p.completed_at IS NULL
                AND (p.event_seq, p.event_sub) < (c.event_seq, c.event_sub)))
        ORDER BY c.next_attempt_at, c.event_seq, c.event_sub
        LIMIT GREATEST(h.room, 0)
    ) d
), picked AS MATERIALIZED (
    SELECT o.id, o.url, o.timeout_ms, o.standard_webhooks, o.proven_secret, o.owner, o.turn FROM (
        SELECT d.*, COALESCE((SELECT b.n FROM (SELECT unnest(@owners::text[]) AS owner, unnest(@running::bigint[]) AS n) b WHERE b.owner = d.owner), 0)
            + row_number() OVER (PARTITION BY d.owner ORDER BY d.turn, d.tiebreak) AS place
        FROM due d) o
    WHERE o.place <= @owner_room::bigint ORDER BY o.place, o.turn, o.tiebreak LIMIT @max_rows::integer
), claimed AS (
    UPDATE ojs.webhook_deliveries d
    SET status = 'delivering', leased = true, claims = d.claims + 1, lost = CASE WHEN d.leased THEN d.lost + 1 ELSE d.lost END,
        next_attempt_at = clock.now + (k.timeout_ms + @lease_room_ms::integer) * interval '1 millisecond'
    FROM picked k CROSS JOIN clock
    WHERE d.id = ANY(ARRAY[k.id])
    RETURNING d.id, d.webhook_id, d.event_seq, d.event_sub, d.event_time, d.event_type, d.subject, d.trace_id, d.body, d.format, d.claims, d.lost,
        d.attempt_count, d.round_start, k.turn, k.owner, k.url, k.timeout_ms, k.standard_webhooks, k.proven_secret
)
SELECT id, webhook_id, event_seq, event_sub, event_time, event_type, subject, trace_id, body, format, claims, lost, attempt_count, round_start,
    turn, owner::text AS owner, url, timeout_ms, standard_webhooks, proven_secret
FROM claimed ORDER BY turn, event_seq, event_sub;

-- name: WebhookDeliveryGetNextDue :one
-- The time until the next delivery is due, in ms; -1 if none waits. And the time, for the timestamps of requests.
SELECT clock_timestamp()::timestamptz AS now, CASE WHEN min(n.next_attempt_at) IS NULL THEN -1
        ELSE GREATEST(date_part('epoch', min(n.next_attempt_at) - clock_timestamp()) * 1000, 0) END::bigint AS wait_ms
FROM ojs.webhooks w CROSS JOIN LATERAL (
    SELECT d.next_attempt_at FROM ojs.webhook_deliveries d
    WHERE d.webhook_id = w.id AND d.completed_at IS NULL AND d.next_attempt_at > now() ORDER BY d.next_attempt_at LIMIT 1
) n
WHERE w.active;

-- name: WebhookLockByID :exec
-- Locks subscriptions before their deliveries, in the order that every caller keeps.
SELECT FROM ojs.webhooks w WHERE w.id = ANY(@ids::uuid[]) ORDER BY w.id FOR NO KEY UPDATE;

-- name: WebhookDeliveryRecord :many
-- Stores the results of attempts and counts them for their subscriptions, which the caller has locked. The result of a
-- lost claim counts only if it is a success. A finished delivery makes the next one of its subject due. HTTP status 410
-- ends a subscription only if it came from the URL that the subscription has now.
WITH outcome AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@claims::integer[]) AS claims, unnest(@statuses::text[]) AS status, unnest(@disable_urls::text[]) AS gone_url,
        unnest(@codes::integer[]) AS code, unnest(@errors::text[]) AS error, unnest(@snippets::text[]) AS snippet,
        unnest(@durations_ms::bigint[]) AS duration_ms, unnest(@delays_ms::bigint[]) AS delay_ms, unnest(@secrets::uuid[]) AS secret,
        generate_subscripts(@ids::uuid[], 1) AS turn
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), recorded AS (
    UPDATE ojs.webhook_deliveries d
    SET status = o.status, leased = false, lost = 0, attempt_count = d.attempt_count + 1, last_status_code = o.code,
        last_error = NULLIF(o.error, ''), next_attempt_at = CASE WHEN o.status = 'failed' THEN clock.now + o.delay_ms * interval '1 millisecond' END,
        completed_at = CASE WHEN o.status <> 'failed' THEN clock.now END
    FROM outcome o CROSS JOIN clock
    WHERE d.id = ANY(@ids::uuid[]) AND d.id = o.id AND d.status = 'delivering' AND (d.claims = o.claims OR o.status = 'delivered')
    RETURNING d.id, d.webhook_id, d.event_seq, d.event_sub, d.subject, d.status, d.attempt_count,
        o.turn, o.gone_url, o.code, o.error, o.snippet, o.duration_ms, o.secret
), attempts AS (
    INSERT INTO ojs.webhook_attempts (delivery_id, attempt, started_at, duration_ms, status_code, error, snippet)
    SELECT d.id, d.attempt_count, clock.now - d.duration_ms * interval '1 millisecond', d.duration_ms, d.code, NULLIF(d.error, ''), NULLIF(d.snippet, '')
    FROM recorded d CROSS JOIN clock
    ON CONFLICT DO NOTHING
), next_due AS (
    UPDATE ojs.webhook_deliveries s SET next_attempt_at = clock.now
    FROM clock
    WHERE s.id = ANY(ARRAY(
        SELECT n.id FROM recorded d CROSS JOIN LATERAL (
            SELECT c.id, c.next_attempt_at FROM ojs.webhook_deliveries c
            WHERE c.webhook_id = d.webhook_id AND c.subject = d.subject AND c.completed_at IS NULL
                AND c.id <> ALL(ARRAY(SELECT o.id FROM recorded o WHERE o.status <> 'failed'))
            ORDER BY c.event_seq, c.event_sub LIMIT 1
        ) n
        WHERE d.status <> 'failed' AND n.next_attempt_at IS NULL))
), report AS (
    SELECT d.webhook_id, count(*) FILTER (WHERE d.status = 'delivered') AS delivered, count(*) FILTER (WHERE d.status = 'dead') AS dead,
        count(*) FILTER (WHERE d.status <> 'delivered') AS failed, array_agg(d.gone_url) AS gone_urls,
        (array_agg(d.code ORDER BY d.turn DESC))[1] AS code,
        (array_agg(d.secret ORDER BY d.turn DESC) FILTER (WHERE d.status = 'delivered'))[1] AS proven
    FROM recorded d GROUP BY d.webhook_id
), decision AS MATERIALIZED (
    SELECT y.webhook_id, y.delivered, y.dead, y.failed, y.code, y.proven, CASE WHEN f.url = ANY(y.gone_urls) THEN 'gone'
        WHEN y.dead > 0 AND y.delivered = 0
            AND f.failing_since < clock.now - make_interval(secs => @disable_after_s::double precision) THEN 'failing' END AS reason
    FROM report y JOIN ojs.webhooks f ON f.id = y.webhook_id CROSS JOIN clock
), updated AS (
    UPDATE ojs.webhooks w
    SET success_count = w.success_count + v.delivered, failure_count = w.failure_count + v.dead,
        last_delivery_at = clock.now, last_delivery_status = v.code, proven_secret = COALESCE(v.proven, w.proven_secret),
        consecutive_failures = CASE WHEN v.delivered > 0 THEN 0 ELSE w.consecutive_failures + v.failed END,
        failing_since = CASE WHEN v.delivered > 0 THEN NULL ELSE COALESCE(w.failing_since, clock.now) END,
        active = w.active AND v.reason IS NULL,
        upto_place = CASE WHEN w.active AND v.reason IS NOT NULL THEN ojs.event_place() ELSE w.upto_place END,
        disabled_reason = CASE WHEN w.active THEN v.reason ELSE w.disabled_reason END,
        disabled_at = CASE WHEN NOT w.active THEN w.disabled_at WHEN v.reason IS NOT NULL THEN clock.now END
    FROM decision v CROSS JOIN clock
    WHERE w.id = v.webhook_id
    RETURNING w.id, w.disabled_reason, w.disabled_at = clock.now AS disabled
)
SELECT d.id, COALESCE(CASE WHEN j.disabled THEN j.disabled_reason END, '')::text AS disabled
FROM recorded d LEFT JOIN updated j ON j.id = d.webhook_id
ORDER BY d.turn;

-- name: WebhookDeliveryRelease :exec
-- Ends the lease of a delivery whose request a stopping node has cancelled.
-- claims leaves out one that another node has claimed since. It is due at once, and the attempt does not count.
UPDATE ojs.webhook_deliveries
SET leased = false, status = CASE WHEN attempt_count > round_start THEN 'failed' ELSE 'pending' END, next_attempt_at = clock_timestamp()
WHERE id = @id AND claims = @claims AND status = 'delivering';

-- name: WebhookDeliveryInsertTest :exec
-- Stores a test delivery, which is in the log like every other request.
WITH test AS MATERIALIZED (
    SELECT @id::uuid AS id, @webhook_id::uuid AS webhook_id, @event_time::timestamptz AS event_time, @event_type::text AS event_type,
        @subject::text AS subject, @body::text AS body, @status::text AS status, @code::integer AS code, NULLIF(@error::text, '') AS error,
        NULLIF(@snippet::text, '') AS snippet, @duration_ms::bigint AS duration_ms, @secret::uuid AS secret, clock_timestamp() AS now
), logged AS (
    INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, status, attempt_count,
        last_status_code, last_error, created_at, completed_at)
    SELECT t.id, t.webhook_id, 0, 0, t.event_time, t.event_type, t.subject, t.body, t.status, 1, t.code, t.error,
        t.now - t.duration_ms * interval '1 millisecond', t.now
    FROM test t
), attempt AS (
    INSERT INTO ojs.webhook_attempts (delivery_id, attempt, started_at, duration_ms, status_code, error, snippet)
    SELECT t.id, 1, t.now - t.duration_ms * interval '1 millisecond', t.duration_ms, t.code, t.error, t.snippet FROM test t
), subscription AS (
    UPDATE ojs.webhooks w SET last_delivery_at = t.now, last_delivery_status = t.code,
        proven_secret = CASE WHEN t.status = 'delivered' THEN t.secret ELSE w.proven_secret END
    FROM test t WHERE w.id = t.webhook_id
)
SELECT now FROM test;

-- name: WebhookDeliveryList :many
-- Deliveries, newest first. There is at least one row, for the total, which is counted up to max_total among the max_looked newest,
-- and for the floor, the last of these that was looked at; it is zero if all were. The id of that row is zero if the page is empty.
WITH looked AS MATERIALIZED (
    SELECT n.id::uuid AS id, n.matches::boolean AS matches FROM ojs.webhook_delivery_newest(sqlc.narg('webhook_id'), sqlc.narg('status'), sqlc.narg('event_type'), sqlc.narg('event_seq'),
        sqlc.narg('event_sub'), sqlc.narg('since'), sqlc.narg('until'), @before, @max_total, @max_looked::integer, sqlc.narg('tenant')) n
)
SELECT t.total, COALESCE(d.id, '00000000-0000-0000-0000-000000000000')::uuid AS id,
    COALESCE((SELECT f.id FROM looked f WHERE NOT f.matches), '00000000-0000-0000-0000-000000000000')::uuid AS floor
FROM (SELECT count(*) FILTER (WHERE l.matches) AS total FROM looked l) t
    LEFT JOIN LATERAL (SELECT m.id FROM looked m WHERE m.matches ORDER BY m.id DESC OFFSET @skip_rows::integer LIMIT @max_rows::integer) d ON true
ORDER BY d.id DESC;

-- name: WebhookDeliveryListByID :many
-- Deliveries, newest first.
SELECT * FROM ojs.webhook_deliveries WHERE id = ANY(@ids::uuid[]) ORDER BY id DESC;

-- name: WebhookAttemptList :many
-- The attempts of a delivery, oldest first.
SELECT * FROM ojs.webhook_attempts WHERE delivery_id = @delivery_id ORDER BY attempt;

-- name: WebhookDeliveryRetry :many
-- A manual retry: due now, and the schedule of retries begins again. A running delivery only gets the new schedule. A
-- delivery of a deleted subscription cannot be retried.
UPDATE ojs.webhook_deliveries d
SET round_start = d.attempt_count, lost = 0, completed_at = NULL,
    status = CASE WHEN d.leased THEN d.status ELSE 'pending' END, next_attempt_at = CASE WHEN d.leased THEN d.next_attempt_at ELSE clock_timestamp() END
FROM ojs.webhooks w
WHERE d.id = @id AND w.id = d.webhook_id AND d.event_seq > 0
RETURNING d.id;

-- name: WebhookReplayFailed :one
-- Starts again the abandoned deliveries of a time span that ended before the replay began, oldest first, at most
-- max_rows.
WITH picked AS MATERIALIZED (
    SELECT d.id FROM ojs.webhook_deliveries d
    WHERE d.webhook_id = @webhook_id::uuid AND d.status IN ('dead', 'cancelled') AND d.event_seq > 0 AND d.completed_at < @began::timestamptz
        AND d.event_time >= @since::timestamptz AND (sqlc.narg('until')::timestamptz IS NULL OR d.event_time < sqlc.narg('until'))
    ORDER BY d.id LIMIT @max_rows::integer
), restarted AS (
    UPDATE ojs.webhook_deliveries d
    SET status = 'pending', next_attempt_at = clock_timestamp(), round_start = d.attempt_count, lost = 0, completed_at = NULL
    FROM picked p WHERE d.id = ANY(ARRAY[p.id]) RETURNING 1
)
SELECT count(*) AS deliveries, COALESCE(CASE WHEN count(*) > 0 THEN pg_notify('ojs_webhooks', '')::text END, '')::text AS notified FROM restarted;

-- name: WebhookReplayAll :one
-- Delivers the published events of a time span behind a position: again under the delivery's old id, or for the first
-- time.
WITH page AS MATERIALIZED (
    SELECT p.seq, p.sub, p.time, CAST(p.event AS ojs.events) AS event, p.service, p.internal FROM ojs.event_published p
    WHERE p.seq >= GREATEST(@after_seq::bigint, (SELECT r.floor_place >> 16 FROM ojs.event_relay r))
        AND (p.seq, p.sub) > (@after_seq::bigint, @after_sub::integer)
    ORDER BY p.seq, p.sub LIMIT @max_rows::integer
), wanted AS MATERIALIZED (
    SELECT p.seq, p.sub, p.time, p.event, p.service, w.id AS webhook_id, w.payload_format, w.ordering = 'subject' AS ordered
    FROM page p JOIN ojs.webhooks w ON w.id = @webhook_id::uuid AND NOT p.internal
        AND ojs.event_matches(p.event, p.service, false, w.types, w.sources, w.queues, w.job_types, NULL, @since::timestamptz, sqlc.narg('until')::timestamptz, w.tenant)
), restarted AS (
    UPDATE ojs.webhook_deliveries d
    SET status = 'pending', next_attempt_at = clock_timestamp(), round_start = d.attempt_count, lost = 0, completed_at = NULL
    FROM wanted n WHERE d.event_seq = n.seq AND d.event_sub = n.sub AND d.webhook_id = n.webhook_id AND d.completed_at IS NOT NULL
    RETURNING 1
), inserted AS (
    INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, trace_id, ordered, format, body, next_attempt_at, created_at)
    SELECT ojs.new_id(clock_timestamp()), n.webhook_id, n.seq, n.sub, n.time, (n.event).type, COALESCE((n.event).subject, (n.event).job_id::text, ''),
        (n.event).trace_id, n.ordered, n.payload_format, ojs.webhook_body(n.event, n.service, n.payload_format), clock_timestamp(), clock_timestamp()
    FROM wanted n
    ON CONFLICT (event_seq, event_sub, webhook_id) WHERE event_seq > 0 DO NOTHING
    RETURNING 1
), total AS (
    SELECT (SELECT count(*) FROM restarted) + (SELECT count(*) FROM inserted) AS n
)
SELECT (SELECT n FROM total)::bigint AS deliveries, (SELECT count(*) FROM page)::bigint AS scanned,
    COALESCE((SELECT p.seq FROM page p ORDER BY p.seq DESC, p.sub DESC LIMIT 1), 0)::bigint AS last_seq,
    COALESCE((SELECT p.sub FROM page p ORDER BY p.seq DESC, p.sub DESC LIMIT 1), 0)::integer AS last_sub,
    COALESCE((SELECT bool_and(sqlc.narg('until')::timestamptz IS NOT NULL AND p.time >= sqlc.narg('until')) FROM page p), true)::boolean AS over,
    COALESCE(CASE WHEN (SELECT n FROM total) > 0 THEN pg_notify('ojs_webhooks', '')::text END, '')::text AS notified;

-- name: WebhookDeliveryQueueOrdered :exec
-- After a replay: of a subject of an ordered subscription only the first unfinished delivery is due.
UPDATE ojs.webhook_deliveries d SET next_attempt_at = NULL
WHERE d.webhook_id = @webhook_id AND d.completed_at IS NULL AND d.next_attempt_at <= clock_timestamp() AND d.ordered AND NOT d.leased AND EXISTS (
    SELECT FROM ojs.webhook_deliveries p
    WHERE p.webhook_id = d.webhook_id AND p.subject = d.subject AND p.completed_at IS NULL AND (p.event_seq, p.event_sub) < (d.event_seq, d.event_sub));

-- name: WebhookNotify :exec
-- Wakes the dispatchers and the fan-outs of all nodes.
SELECT pg_notify('ojs_webhooks', '');

-- name: WebhookDeliveryPrune :execrows
-- Deletes the oldest finished deliveries with their attempts.
WITH finished AS MATERIALIZED (
    SELECT d.id FROM ojs.webhook_deliveries d
    WHERE d.completed_at < now() - CAST(@keep_s AS bigint) * interval '1 second' ORDER BY d.completed_at LIMIT @max_rows::integer
), attempts AS (
    DELETE FROM ojs.webhook_attempts a USING finished o WHERE a.delivery_id = ANY(ARRAY[o.id])
)
DELETE FROM ojs.webhook_deliveries d USING finished o WHERE d.id = ANY(ARRAY[o.id]);

-- name: WebhookListOrdered :many
-- The active ordered subscriptions.
SELECT w.id FROM ojs.webhooks w WHERE w.active AND w.ordering = 'subject';

-- name: WebhookDeliveryMakeDue :execrows
-- A safety net: makes the first unfinished delivery of a subject due if it is not. The caller has locked the
-- subscription.
UPDATE ojs.webhook_deliveries d SET next_attempt_at = clock_timestamp()
WHERE d.id = ANY(ARRAY(
    SELECT h.id FROM ojs.webhook_deliveries h
    WHERE h.webhook_id = @webhook_id AND h.completed_at IS NULL AND h.next_attempt_at IS NULL AND NOT EXISTS (
        SELECT FROM ojs.webhook_deliveries p
        WHERE p.webhook_id = h.webhook_id AND p.subject = h.subject AND p.completed_at IS NULL AND (p.event_seq, p.event_sub) < (h.event_seq, h.event_sub))
    LIMIT 1000));

-- name: WebhookDeliveryListOrphans :many
-- Deleted subscriptions with unfinished deliveries: the node that deleted them has stopped before it cancelled all. The
-- query steps from subscription to subscription instead of reading all unfinished deliveries.
WITH RECURSIVE subscription AS (
    (SELECT d.webhook_id FROM ojs.webhook_deliveries d WHERE d.completed_at IS NULL ORDER BY d.webhook_id, d.next_attempt_at LIMIT 1)
    UNION ALL
    SELECT n.webhook_id FROM subscription h CROSS JOIN LATERAL (
        SELECT d.webhook_id FROM ojs.webhook_deliveries d
        WHERE d.completed_at IS NULL AND d.webhook_id > h.webhook_id ORDER BY d.webhook_id, d.next_attempt_at LIMIT 1) n
)
SELECT h.webhook_id FROM subscription h WHERE NOT EXISTS (SELECT FROM ojs.webhooks w WHERE w.id = h.webhook_id);

-- name: WebhookGetBacklog :one
-- The number of subscriptions, and of unfinished deliveries, counted up to max_pending.
SELECT (SELECT count(*) FROM ojs.webhooks) AS webhooks, (
    SELECT count(*) FROM (SELECT FROM ojs.webhook_deliveries d WHERE d.completed_at IS NULL LIMIT @max_pending::integer) p) AS pending;
