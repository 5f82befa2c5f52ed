package dbsqlc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/pg"
)

// lockCase is what a statement does about a row that another transaction has locked: the first of two rows, or the only one. A statement
// that skips it takes the others, and takes it once it is unlocked. One that waits works with what the other transaction has committed.
type lockCase struct {
	rows  string // makes rows with which the statement has to do
	other string // locks the first one in the other transaction; a statement that waits sees the change
	call  func(c *call) ([]string, error)
	waits bool
	gets  []string // the numbers of the rows that it takes if none is locked; what a statement that waits gets after the change
}

// call is how a lockCase calls its statement.
type call struct {
	*dbsqlc.Queries

	ctx context.Context
	tx  pgx.Tx
}

// texts reads a column.
func (c *call) texts(sql string) ([]string, error) {
	rows, err := c.tx.Query(c.ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

const (
	// jobs are two available jobs of queue q.
	jobs = `INSERT INTO ojs.jobs (id, type, queue, state, created_at, args)
		SELECT ('00000000-0000-7000-8000-00000000000' || n)::uuid, 't', 'q', 'available', '2026-01-01Z', '[]' FROM generate_series(1, 2) n;`
	activeJobs = jobs + `UPDATE ojs.jobs SET state = 'active', attempt = 1, worker_id = 'w', started_at = '2026-01-01Z', due_at = '2026-01-02Z',
		lease_until = '2026-01-02Z', lease_ms = 1000;`
	discardedJobs = jobs + `UPDATE ojs.jobs SET state = 'discarded', finished_at = '2026-01-01Z';`
	queues        = `INSERT INTO ojs.queues (name) VALUES ('1'), ('2');`
	workers       = `INSERT INTO ojs.workers (id, started_at, last_beat_at, last_seen_at) SELECT n, '2026-01-01Z', '2026-01-01Z', '2026-01-01Z'
		FROM unnest('{1,2}'::text[]) n;`
	crons = `INSERT INTO ojs.crons (name, id, expression, type, queue, args, next_run_at) SELECT n, gen_random_uuid(), '* * * * *', 't', 'q', '[]', '2026-01-01Z'
		FROM unnest('{1,2}'::text[]) n;`
	webhooks = `INSERT INTO ojs.webhooks (id, url, events, types, sources, queues, job_types, active, from_place, timeout_ms, max_in_flight, ordering,
			payload_format, standard_webhooks)
		SELECT ('00000000-0000-7000-8000-00000000000' || n)::uuid, 'u', '{}', '{}', '{}', '{}', '{}', true, 0, 1, 1, 'none', 'ojs', false FROM generate_series(1, 2) n;`

	first    = ` WHERE id = '00000000-0000-7000-8000-000000000001'`
	firstJob = `SELECT FROM ojs.jobs` + first + ` FOR UPDATE`
	relay    = `SELECT FROM ojs.event_relay FOR UPDATE`

	cleanUp = `DELETE FROM ojs.jobs; DELETE FROM ojs.queues; DELETE FROM ojs.workers; DELETE FROM ojs.crons; DELETE FROM ojs.webhook_deliveries;
		DELETE FROM ojs.webhooks; DELETE FROM ojs.workflow_steps; DELETE FROM ojs.workflows; DELETE FROM ojs.stats_minute; DELETE FROM ojs.limits;
		DELETE FROM ojs.pools; DELETE FROM ojs.limit_pending;`
)

// ids are those of the rows of jobs and of webhooks.
var (
	ids   = [][16]byte{{6: 0x70, 8: 0x80, 15: 1}, {6: 0x70, 8: 0x80, 15: 2}}
	both  = []string{"1", "2"}
	began = pg.Timestamp(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
)

// numbers are the rows of an answer, by the numbers of their ids.
func numbers[T any](rows []T, err error, id func(T) [16]byte) ([]string, error) {
	return texts(rows, err, func(row T) string {
		id := id(row)
		return strconv.Itoa(int(id[15]))
	})
}

func texts[T any](rows []T, err error, text func(T) string) ([]string, error) {
	list := make([]string, len(rows))
	for i, row := range rows {
		list[i] = text(row)
	}
	slices.Sort(list)
	return list, err
}

// one is what a statement got that returns one row or none.
func one(err error) ([]string, error) {
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return []string{"1"}, err
}

func self(id [16]byte) [16]byte { return id }

// statements has the queries with a locking clause.
var statements = map[string]lockCase{
	"QueueLockBounded": {
		rows: queues, other: `UPDATE ojs.queues SET status = 'paused' WHERE name = '1'`, waits: true,
		call: func(c *call) ([]string, error) { return nil, c.QueueLockBounded(c.ctx, both) },
	},
	"JobDiscardWaiting": {
		rows: jobs, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobDiscardWaiting(c.ctx, dbsqlc.JobDiscardWaitingParams{Ids: ids, States: []string{"available"}, EventType: "job.discarded"})
			return numbers(rows, err, func(row dbsqlc.JobDiscardWaitingRow) [16]byte { return row.ID })
		},
	},

	"CronLock": {
		rows: crons, other: `UPDATE ojs.crons SET type = 'changed' WHERE name = '1'`, waits: true, gets: []string{"changed"},
		call: func(c *call) ([]string, error) {
			row, err := c.CronLock(c.ctx, "1", "")
			return []string{row.Type}, err
		},
	},
	"CronListDue": {
		rows: crons, other: `SELECT FROM ojs.crons WHERE name = '1' FOR UPDATE`, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.CronListDue(c.ctx, 10)
			return texts(rows, err, func(row dbsqlc.CronListDueRow) string { return row.Cron.Name })
		},
	},
	"CronReleaseQueued": {
		rows:  jobs + `UPDATE ojs.jobs SET cron = right(id::text, 1), cron_serial = true, enqueued_at = created_at`,
		other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.CronReleaseQueued(c.ctx, both)
			return numbers(rows, err, func(row dbsqlc.CronReleaseQueuedRow) [16]byte { return row.ID })
		},
	},

	"DeadLetterDelete": {
		rows: discardedJobs + `UPDATE ojs.jobs SET dead_lettered_at = finished_at`, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.DeadLetterDelete(c.ctx, dbsqlc.DeadLetterDeleteParams{
				After: pg.Beginning, Since: pg.Beginning, Until: pg.End, Ids: ids, Queues: []string{}, Types: []string{}, TypePrefixes: []string{},
				ErrorTypes: []string{}, ErrorCodes: []string{}, MaxRows: 10,
			})
			return numbers(rows, err, func(row dbsqlc.DeadLetterDeleteRow) [16]byte { return row.ID })
		},
	},
	"JobDiscardedPrune": {
		rows: discardedJobs, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobDiscardedPrune(c.ctx, dbsqlc.JobDiscardedPruneParams{
				After: pg.Beginning, Keep: pgtype.Interval{Valid: true}, OtherQueues: []string{}, MaxRows: 10,
			})
			return numbers(rows, err, func(row dbsqlc.JobDiscardedPruneRow) [16]byte { return row.ID })
		},
	},

	"RelayClaim": {
		other: relay, gets: []string{"1"},
		call: func(c *call) ([]string, error) {
			_, err := c.RelayClaim(c.ctx)
			return one(err)
		},
	},
	"RelayPublish": {
		other: relay, gets: []string{"1"},
		call: func(c *call) ([]string, error) {
			_, err := c.RelayPublish(c.ctx, dbsqlc.RelayPublishParams{Passed: []int64{}})
			return one(err)
		},
	},
	"StatsMinutePrune": {
		rows:  `INSERT INTO ojs.stats_minute (queue, minute) VALUES ('1', '2026-01-01Z'), ('2', '2026-01-01Z')`,
		other: `SELECT FROM ojs.stats_minute WHERE queue = '1' FOR UPDATE`, gets: both,
		call: func(c *call) ([]string, error) {
			if _, err := c.StatsMinutePrune(c.ctx, 10); err != nil {
				return nil, err
			}
			return c.texts(`SELECT queue FROM ojs.stats_hour ORDER BY queue`)
		},
	},

	"JobFetch": {
		rows: jobs + `UPDATE ojs.jobs SET ready_seq = right(id::text, 1)::bigint, enqueued_at = created_at`, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobFetch(c.ctx, dbsqlc.JobFetchParams{
				Queues: []string{"q"}, Lanes: []string{""}, Priorities: []int16{0}, Lows: []int64{0}, Wants: []int32{2}, Want: 2,
				Workers: []string{"w"}, Sources: []string{"workers/w"}, LeasesMs: []int64{0}, Owners: []int32{1, 1}, MaxBytes: 1 << 20,
				Claim: -1, DefaultLeaseMs: 1000, DefaultTimeoutMs: 1000, EventType: "job.started",
			})
			return numbers(rows, err, func(row dbsqlc.JobFetchRow) [16]byte { return row.ID })
		},
	},
	"JobFail": {
		rows: activeJobs, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobFail(c.ctx, dbsqlc.JobFailParams{
				Ids: ids, Workers: []string{"w", "w"}, Attempts: []int32{1, 1}, StartedAt: []pgtype.Timestamptz{began, began}, DueOnly: []bool{false, false},
				Outcomes: []string{"retryable", "retryable"}, Releases: []bool{false, false}, DeadLetters: []bool{false, false}, DelaysMs: []int64{1, 1},
				Errors: []string{`{"code":"x"}`, `{"code":"x"}`}, EventErrors: []string{"{}", "{}"}, Reasons: both, EventTypes: []string{"job.retrying", "job.retrying"},
				Sources: both, BlockedUntil: make([]pgtype.Timestamptz, 2), MaxErrors: 10, FailedEventType: "job.failed",
			})
			return numbers(rows, err, func(row dbsqlc.JobFailRow) [16]byte { return row.ID })
		},
	},
	"JobLockUnlocked": {
		rows: jobs, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobLockUnlocked(c.ctx, ids)
			return numbers(rows, err, self)
		},
	},
	"JobActivate": {
		rows: jobs + `UPDATE ojs.jobs SET state = 'pending'`, other: `UPDATE ojs.jobs SET state = 'available'` + first, waits: true, gets: []string{"2"},
		call: func(c *call) ([]string, error) {
			rows, err := c.JobActivate(c.ctx, dbsqlc.JobActivateParams{Ids: ids, EventType: "job.enqueued"})
			return numbers(rows, err, func(row dbsqlc.JobActivateRow) [16]byte { return row.ID })
		},
	},
	"JobLockForRetry": {
		rows: discardedJobs, other: `UPDATE ojs.jobs SET state = 'available'` + first, waits: true, gets: []string{"2"},
		call: func(c *call) ([]string, error) {
			rows, err := c.JobLockForRetry(c.ctx, dbsqlc.JobLockForRetryParams{Ids: ids, States: []string{"discarded"}})
			return numbers(rows, err, func(row dbsqlc.JobLockForRetryRow) [16]byte { return row.ID })
		},
	},
	"JobRetry": {
		rows: discardedJobs, other: `UPDATE ojs.jobs SET state = 'available'` + first, waits: true, gets: []string{"2"},
		call: func(c *call) ([]string, error) {
			rows, err := c.JobRetry(c.ctx, dbsqlc.JobRetryParams{
				Ids: ids, Extras: make([][]byte, 2), UnexpiredExtras: make([][]byte, 2), States: []string{"discarded"}, RequeueEventType: "job.state_changed",
			})
			return numbers(rows, err, func(row dbsqlc.JobRetryRow) [16]byte { return row.ID })
		},
	},
	"JobHeartbeat": {
		rows: activeJobs, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobHeartbeat(c.ctx, dbsqlc.JobHeartbeatParams{
				Ids: ids, Workers: []string{"w", "w"}, LeasesMs: []int64{0, 0}, Sources: both, EventType: "job.heartbeat",
			})
			return numbers(rows, err, func(row dbsqlc.JobHeartbeatRow) [16]byte { return row.ID })
		},
	},
	"JobPromoteDue": {
		rows:  jobs + `UPDATE ojs.jobs SET state = 'scheduled', scheduled_at = created_at, due_at = created_at`,
		other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobPromoteDue(c.ctx, dbsqlc.JobPromoteDueParams{After: pg.Beginning, MaxRows: 10, RequeueEventType: "job.state_changed"})
			return numbers(rows, err, func(row dbsqlc.JobPromoteDueRow) [16]byte { return row.ID })
		},
	},

	"LimitQueueLock": {
		rows: queues, other: `UPDATE ojs.queues SET config = '{"a":1}' WHERE name = '1'`, waits: true, gets: []string{`{"a":1}`},
		call: func(c *call) ([]string, error) {
			rows, err := c.LimitQueueLock(c.ctx, "1")
			return texts(rows, err, func(config []byte) string { return string(config) })
		},
	},
	"JobSetPriority": {
		rows: jobs, other: firstJob, gets: []string{"1"},
		call: func(c *call) ([]string, error) {
			rows, err := c.JobSetPriority(c.ctx, dbsqlc.JobSetPriorityParams{ID: ids[0], Priority: 5, EventType: "job.state_changed"})
			return numbers(rows, err, func(row dbsqlc.JobSetPriorityRow) [16]byte { return row.ID })
		},
	},

	"JobCheckpoint": {
		rows: activeJobs, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobCheckpoint(c.ctx, dbsqlc.JobCheckpointParams{
				Ids: ids, Workers: []string{"w", "w"}, Attempts: []int32{1, 1}, Checkpoints: [][]byte{[]byte("{}"), []byte("{}")}, Sequences: []int64{-1, -1},
			})
			return numbers(rows, err, func(row dbsqlc.JobCheckpointRow) [16]byte { return row.ID })
		},
	},
	"JobProgress": {
		rows: activeJobs, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobProgress(c.ctx, dbsqlc.JobProgressParams{
				Ids: ids, Workers: []string{"w", "w"}, Attempts: []int32{1, 1}, Progress: []float64{0.5, 0.5}, HasMessage: []bool{false, false}, Messages: both,
				Data: make([][]byte, 2), Checkpoints: make([][]byte, 2), EventData: []string{"", ""}, Sources: both, EventType: "job.progress",
			})
			return numbers(rows, err, func(row dbsqlc.JobProgressRow) [16]byte { return row.ID })
		},
	},
	"JobCheckpointDelete": {
		rows: activeJobs + `UPDATE ojs.jobs SET checkpoint = '{}', checkpoint_seq = 1`, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobCheckpointDelete(c.ctx, ids)
			return numbers(rows, err, self)
		},
	},
	"JobProgressFlush": {
		rows:  activeJobs + `UPDATE ojs.jobs SET progress = 0.5, progress_at = '2026-01-01Z', progress_sent_at = '2026-01-01Z'`,
		other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobProgressFlush(c.ctx, dbsqlc.JobProgressFlushParams{Ids: ids, Workers: []string{"w", "w"}, Attempts: []int32{1, 1}})
			return numbers(rows, err, self)
		},
	},

	"QueueSetStatus": {
		rows: queues, other: `UPDATE ojs.queues SET status = 'paused' WHERE name = '1'`, waits: true, gets: []string{"paused false"},
		call: func(c *call) ([]string, error) {
			rows, err := c.QueueSetStatus(c.ctx, dbsqlc.QueueSetStatusParams{Status: "paused", Name: "1"})
			return texts(rows, err, func(row dbsqlc.QueueSetStatusRow) string { return fmt.Sprint(row.Previous, " ", row.Moved) })
		},
	},
	"QueueLock": {
		rows: queues, other: `UPDATE ojs.queues SET status = 'paused' WHERE name = '1'`, waits: true, gets: []string{"paused"},
		call: func(c *call) ([]string, error) {
			rows, err := c.QueueLock(c.ctx, "1")
			return texts(rows, err, func(row dbsqlc.Queue) string { return row.Status })
		},
	},
	"JobMoveQueue": {
		rows: jobs, other: firstJob, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.JobMoveQueue(c.ctx, dbsqlc.JobMoveQueueParams{Ids: ids, Queue: "q", Target: "r", EventType: "job.state_changed"})
			return numbers(rows, err, func(row dbsqlc.JobMoveQueueRow) [16]byte { return row.ID })
		},
	},

	"WebhookCursorLock": {
		other: `SELECT FROM ojs.webhook_cursor FOR UPDATE`, gets: []string{"1"},
		call: func(c *call) ([]string, error) {
			rows, err := c.WebhookCursorLock(c.ctx)
			return texts(rows, err, func(dbsqlc.WebhookCursorLockRow) string { return "1" })
		},
	},
	"WebhookListSubscribers": {
		rows: webhooks, other: `DELETE FROM ojs.webhooks` + first, waits: true, gets: []string{"2"},
		call: func(c *call) ([]string, error) {
			rows, err := c.WebhookListSubscribers(c.ctx)
			return numbers(rows, err, func(row dbsqlc.WebhookListSubscribersRow) [16]byte { return row.ID })
		},
	},
	"WebhookListSubscribersOrdered": {
		rows:  webhooks + `UPDATE ojs.webhooks SET ordering = 'subject'`,
		other: `UPDATE ojs.webhooks SET active = false` + first, waits: true, gets: []string{"2"},
		call: func(c *call) ([]string, error) {
			rows, err := c.WebhookListSubscribersOrdered(c.ctx)
			return numbers(rows, err, func(row dbsqlc.WebhookListSubscribersOrderedRow) [16]byte { return row.ID })
		},
	},
	"WebhookGetForUpdate": {
		rows: webhooks, other: `UPDATE ojs.webhooks SET url = 'changed'` + first, waits: true, gets: []string{"changed"},
		call: func(c *call) ([]string, error) {
			rows, err := c.WebhookGetForUpdate(c.ctx, ids[0])
			return texts(rows, err, func(row dbsqlc.Webhook) string { return row.Url })
		},
	},
	"WebhookDeliveryLock": {
		rows: webhooks + `INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, body, next_attempt_at, created_at)
			SELECT gen_random_uuid(), w.id, 1, 0, now(), 't', 's', '{}', '2026-01-01Z', now() FROM ojs.webhooks w`,
		other: `UPDATE ojs.webhooks SET active = false` + first, waits: true, gets: []string{"2"},
		call: func(c *call) ([]string, error) {
			rows, err := c.WebhookDeliveryLock(c.ctx)
			return numbers(rows, err, self)
		},
	},
	"WebhookLockByID": {
		rows: webhooks, other: `UPDATE ojs.webhooks SET active = false` + first, waits: true,
		call: func(c *call) ([]string, error) { return nil, c.WebhookLockByID(c.ctx, ids) },
	},

	"WorkerHeartbeat": {
		rows: workers, other: `UPDATE ojs.workers SET state = 'stale', stale_at = now(), dead_at = now() WHERE id = '1'`, waits: true,
		gets: []string{"1 [worker.started]", "2 []"},
		call: func(c *call) ([]string, error) {
			rows, err := c.WorkerHeartbeat(c.ctx, dbsqlc.WorkerHeartbeatParams{
				Ids: both, Registers: []bool{false, false}, States: []string{"", ""}, ActiveJobs: []int32{0, 0}, ActiveJobIds: make([][]byte, 2), Queues: make([][]byte, 2),
				Concurrency: []int32{0, 0}, FetchQueues: make([][]byte, 2), FetchCounts: []int32{0, 0}, Hostnames: []string{"", ""}, Pids: []int64{0, 0},
				Facts: make([][]byte, 2), Loads: []string{"", ""}, Sources: both, Tenants: []string{"", ""},
			})
			return texts(rows, err, func(row dbsqlc.WorkerHeartbeatRow) string { return fmt.Sprint(row.ID, " ", row.EventTypes) })
		},
	},
	"WorkerUpdateSeen": {
		rows: workers, other: `SELECT FROM ojs.workers WHERE id = '1' FOR UPDATE`, gets: both,
		call: func(c *call) ([]string, error) {
			if err := c.WorkerUpdateSeen(c.ctx, both, []int64{0, 0}); err != nil {
				return nil, err
			}
			return c.texts(`SELECT id FROM ojs.workers WHERE last_seen_at > '2026-01-01Z' ORDER BY id`)
		},
	},
	"WorkerExpire": {
		rows: workers, other: `SELECT FROM ojs.workers WHERE id = '1' FOR UPDATE`, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.WorkerExpire(c.ctx, dbsqlc.WorkerExpireParams{ExpireAfterMs: 1000, MaxRows: 10, EventType: "worker.stopped"})
			return texts(rows, err, func(row dbsqlc.WorkerExpireRow) string { return row.ID })
		},
	},
	"WorkerReapClaim": {
		rows:  workers + `UPDATE ojs.workers SET state = 'stale', stale_at = started_at, dead_at = started_at, reap_at = started_at`,
		other: `SELECT FROM ojs.workers WHERE id = '1' FOR UPDATE`, gets: both,
		call: func(c *call) ([]string, error) {
			rows, err := c.WorkerReapClaim(c.ctx, 10)
			return texts(rows, err, func(row dbsqlc.WorkerReapClaimRow) string { return row.ID })
		},
	},
	"WorkerPrune": {
		rows:  workers + `UPDATE ojs.workers SET state = 'stale', stale_at = started_at, dead_at = started_at`,
		other: `SELECT FROM ojs.workers WHERE id = '1' FOR UPDATE`, gets: both,
		call: func(c *call) ([]string, error) {
			if _, err := c.WorkerPrune(c.ctx, 10); err != nil {
				return nil, err
			}
			return c.texts(`SELECT n FROM unnest('{1,2}'::text[]) n WHERE NOT EXISTS (SELECT FROM ojs.workers w WHERE w.id = n) ORDER BY n`)
		},
	},
	"WorkerUpdateDirectiveAll": {
		rows: workers, other: `UPDATE ojs.workers SET state = 'stale', stale_at = now(), dead_at = now() WHERE id = '1'`, waits: true, gets: []string{"2"},
		call: func(c *call) ([]string, error) {
			rows, err := c.WorkerUpdateDirectiveAll(c.ctx, "quiet")
			return texts(rows, err, func(row dbsqlc.WorkerUpdateDirectiveAllRow) string { return row.ID })
		},
	},

	"WorkflowLock": {
		rows: `INSERT INTO ojs.workflows (id, root_id, flow, last_flow, ancestors, path, type, name, steps_form, total, open, job_count, callbacks, created_at)
			SELECT id, id, 0, 0, '{}', '', 'group', 'n', false, 1, 1, 1, '{}', now() FROM (SELECT uuid '00000000-0000-7000-8000-000000000001' AS id) r`,
		other: `UPDATE ojs.workflows SET state = 'completed'` + first, waits: true, gets: []string{"completed"},
		call: func(c *call) ([]string, error) {
			rows, err := c.WorkflowLock(c.ctx, ids[0])
			return texts(rows, err, func(row dbsqlc.WorkflowLockRow) string { return row.Workflow.State })
		},
	},
	"WorkflowStepCancelBelow": {
		rows: `INSERT INTO ojs.workflow_steps (root_id, flow, index, step_id, kind, type, state)
			SELECT '00000000-0000-7000-8000-000000000001', 0, n, n, 'job', 't', 'waiting' FROM generate_series(1, 2) n`,
		other: `UPDATE ojs.workflow_steps SET state = 'pending' WHERE index = 1`, waits: true, gets: []string{"2"},
		call: func(c *call) ([]string, error) {
			rows, err := c.WorkflowStepCancelBelow(c.ctx, dbsqlc.WorkflowStepCancelBelowParams{RootID: ids[0], MaxRows: 10, EndedAt: began})
			return texts(rows, err, func(row dbsqlc.WorkflowStepCancelBelowRow) string { return strconv.Itoa(int(row.Index)) })
		},
	},
}

// locking is a clause that locks rows, or a call that waits for an advisory lock of functions.
var locking = regexp.MustCompile(`\bFOR (NO KEY )?UPDATE\b|\bFOR (KEY )?SHARE\b|PERFORM pg_advisory_xact_lock`)

// withLocks are the parts of SQL files that lock something, by their names. A part begins with the line that has its name. Comments may speak
// of locks, too.
func withLocks(t *testing.T, files string, name *regexp.Regexp) map[string]bool {
	t.Helper()
	paths, err := filepath.Glob(files)
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	found := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		part := ""
		for line := range bytes.Lines(text) {
			if match := name.FindSubmatch(line); match != nil {
				part = string(match[1])
			}
			sql, _, _ := bytes.Cut(line, []byte("--"))
			if locking.Match(sql) {
				found[part] = true
			}
		}
	}
	return found
}

func TestStatementsAndLockedRows(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	names := withLocks(t, "../../queries/*.sql", regexp.MustCompile(`^-- name: (\w+) `))
	require.ElementsMatch(t, slices.Collect(maps.Keys(names)), slices.Collect(maps.Keys(statements)), "each query that locks rows, and no other")
	for name, c := range statements {
		t.Run(name, func(t *testing.T) { c.run(t, pool) })
	}
}

// execer is the pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// run leaves the database as it was.
func (lc lockCase) run(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec := func(db execer, sql string) {
		_, err := db.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(pool, lc.rows)
	defer exec(pool, cleanUp)
	other, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = other.Rollback(t.Context()) }()
	exec(other, lc.other)

	if !lc.waits {
		got, err := lc.called(t.Context(), pool, "50ms")
		require.NoError(t, err, "it waits, or does what another transaction excludes")
		others := slices.DeleteFunc(slices.Clone(lc.gets), func(n string) bool { return n == "1" })
		require.Equal(t, others, append([]string{}, got...), "it takes what is not locked, and only that")
		require.NoError(t, other.Rollback(t.Context()))
		got, err = lc.called(t.Context(), pool, "50ms")
		require.NoError(t, err)
		require.Equal(t, lc.gets, got, "it takes all that are free")
		return
	}
	type answer struct {
		got []string
		err error
	}
	done := make(chan answer, 1)
	go func() {
		got, err := lc.called(context.WithoutCancel(t.Context()), pool, "1min")
		done <- answer{got, err}
	}()
	require.Eventually(t, func() bool {
		var waiting bool
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting)
		return err != nil || waiting || len(done) > 0
	}, time.Minute, time.Millisecond)
	require.Empty(t, done, "it has to wait")
	require.NoError(t, other.Commit(t.Context()))
	a := <-done
	require.NoError(t, a.err)
	require.Equal(t, lc.gets, a.got, "what the other transaction has committed holds")
}

// called calls the statement in a transaction that is rolled back.
func (lc lockCase) called(ctx context.Context, pool *pgxpool.Pool, lockTimeout string) ([]string, error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '"+lockTimeout+"'"); err != nil {
		return nil, err
	}
	return lc.call(&call{dbsqlc.New(tx), ctx, tx})
}

var (
	lockingClause = regexp.MustCompile(`\bFOR (?:NO KEY )?(?:UPDATE|SHARE|KEY SHARE)\b(?: OF (\w+))?( SKIP LOCKED)?`)
	inner         = regexp.MustCompile(`\([^()]*\)`)
	lockedTable   = regexp.MustCompile(`\b(?:FROM|JOIN) ojs\.(\w+)(?: (\w+)\b)?`)
	inOrder       = regexp.MustCompile(` ORDER BY ([\w., ]+?)(?: LIMIT @\w+)? $`)
)

// TestLocksAreTakenInOrder: a query that waits for several rows of a table takes them in the ascending order of the primary key, or two such
// queries would wait for each other. One that waits for a single row names its key.
func TestLocksAreTakenInOrder(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	paths, err := filepath.Glob("../../queries/*.sql")
	require.NoError(t, err)
	waiting := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for part := range strings.SplitSeq("\n"+string(text), "\n-- name: ") {
			name, sql, _ := strings.Cut(part, " ")
			_, sql, _ = strings.Cut(sql, "\n")
			sql = strings.Join(strings.Fields(comment.ReplaceAllString(sql, "")), " ")
			for _, at := range lockingClause.FindAllStringSubmatchIndex(sql, -1) {
				if at[4] >= 0 { // SKIP LOCKED
					continue
				}
				waiting++
				of := ""
				if at[2] >= 0 {
					of = sql[at[2]:at[3]]
				}
				requireInOrder(t, pool, name, querySoFar(sql[:at[0]]), of)
			}
		}
	}
	require.Greater(t, waiting, 10, "the queries that wait")
}

var comment = regexp.MustCompile(`--.*`)

// querySoFar is the SELECT in which the text ends, without what is in parentheses.
func querySoFar(sql string) string {
	for inner.MatchString(sql) {
		sql = inner.ReplaceAllString(sql, "…")
	}
	return sql[strings.LastIndex(sql, "(")+1:]
}

// requireInOrder reads the primary key of the table that the SELECT locks. of is the alias in its locking clause, or "".
func requireInOrder(t *testing.T, pool *pgxpool.Pool, name, query, of string) {
	t.Helper()
	var table string
	for _, found := range lockedTable.FindAllStringSubmatch(query, -1) {
		if of == "" || of == found[2] {
			require.Empty(t, table, "%s locks rows of several tables", name)
			table = found[1]
		}
	}
	var key []string
	err := pool.QueryRow(t.Context(), `SELECT array_agg(a.attname::text ORDER BY k.n) FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k (col, n), pg_attribute a
		WHERE i.indrelid = ('ojs.' || $1)::regclass AND i.indisprimary AND a.attrelid = i.indrelid AND a.attnum = k.col`, table).Scan(&key)
	require.NoError(t, err, "%s locks rows of %q", name, table)

	single := true
	for _, column := range key {
		single = single && regexp.MustCompile(`\b`+column+` = (@\w+|\d+)( |$)`).MatchString(query)
	}
	if single {
		return
	}
	order := inOrder.FindStringSubmatch(query)
	require.NotNil(t, order, "%s locks rows of %s in no order", name, table)
	var terms []string
	for term := range strings.SplitSeq(order[1], ", ") {
		terms = append(terms, term[strings.LastIndex(term, ".")+1:])
	}
	require.Equal(t, key, terms, "%s locks rows of %s in another order than that of their keys", name, table)
}
