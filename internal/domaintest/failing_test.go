package domaintest_test

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/workflow"
)

// pass is something that a service of a node does again and again.
type pass struct {
	prepare func(b *domaintest.Bundle)
	do      func(b *domaintest.Bundle) error
	left    string   // a query for the number of rows that wait for the pass
	passed  []string // statements that the pass can do without
}

// TestFailingPasses lets each statement of each pass fail, one at a time. The pass must report the error, so that its service logs it and
// comes back soon, and the next pass must do what is left.
func TestFailingPasses(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	for name, p := range map[string]pass{
		"PromoteDue": {
			prepare: func(b *domaintest.Bundle) {
				b.Enqueued(domaintest.With(func(j *job.Job) { j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour} }))
				b.Exec(`UPDATE ojs.jobs SET due_at = now() - interval '1 s' WHERE state = 'scheduled'`)
			},
			do:   applyDue,
			left: `SELECT count(*) FROM ojs.jobs WHERE state = 'scheduled'`,
		},
		"FailOverdue": {
			prepare: func(b *domaintest.Bundle) {
				b.Enqueued(domaintest.NewJob("q"))
				require.Len(b.T, b.FetchedBy("w1", 1), 1)
				b.Exec(`UPDATE ojs.jobs SET due_at = now() - interval '1 s'`)
			},
			do:   applyDue,
			left: `SELECT count(*) FROM ojs.jobs WHERE state = 'active'`,
		},
		"Reap": {
			prepare: func(b *domaintest.Bundle) {
				b.Beat("w1")
				b.Enqueued(domaintest.NewJob("q"))
				require.NotEmpty(b.T, b.FetchedBy("w1", 1))
				b.Silent(61, "w1")
			},
			do: func(b *domaintest.Bundle) error {
				b.Exec(`UPDATE ojs.workers SET reap_at = now() - interval '1 s' WHERE reap_at IS NOT NULL`)
				_, err := b.Workers.Reap(b.T.Context())
				return err
			},
			left: `SELECT (SELECT count(*) FROM ojs.jobs WHERE state = 'active') + (SELECT count(*) FROM ojs.workers WHERE reap_at IS NOT NULL)`,
		},
		"FireCrons": {
			prepare: func(b *domaintest.Bundle) {
				b.Exec(`DELETE FROM ojs.crons`)
				_, _, err := b.Crons.Put(b.T.Context(), &cron.Definition{Name: "c", Expression: "@every 1h", Timezone: "UTC", Overlap: "skip", Enabled: true, Type: "t", Queue: "q", Args: []byte(`[]`)})
				require.NoError(b.T, err)
				b.Exec(`UPDATE ojs.crons SET next_run_at = now() - interval '1 s'`)
			},
			do: func(b *domaintest.Bundle) error {
				_, err := b.Crons.Fire(b.T.Context())
				return err
			},
			left: `SELECT count(*) FROM ojs.crons WHERE next_run_at < now()`,
		},
		"Workflows": {
			prepare: func(b *domaintest.Bundle) {
				_, err := b.Workflows.Create(b.T.Context(), chain(b.T))
				require.NoError(b.T, err)
				ids := b.FetchedBy("w1", 1)
				require.Len(b.T, ids, 1)
				// As the statement of a node does that stops before the tree follows.
				b.Exec(`SELECT ojs.cancel($1)`, ids[0])
			},
			do:   followLeft,
			left: `SELECT count(*) FROM ojs.workflow_pending`,
		},
		"DependentSteps": {
			prepare: func(b *domaintest.Bundle) {
				def := chain(b.T)
				def.Type, def.Members[1].DependsOn = workflow.DAG, []int{0}
				w, err := b.Workflows.Create(b.T.Context(), def)
				require.NoError(b.T, err)
				// As the statement of a node does that stops before the tree follows.
				b.Exec(`INSERT INTO ojs.workflow_pending (root_id, job_id, state, at, result)
					SELECT s.root_id, s.job_id, 'completed', now(), '7' FROM ojs.workflow_steps s WHERE s.root_id = $1 AND s.step_id = '0'`, w.ID)
			},
			do:   followLeft,
			left: `SELECT (SELECT count(*) FROM ojs.workflow_pending) + (SELECT count(*) FROM ojs.workflow_steps WHERE state = 'waiting')`,
		},
		"PruneDeadLetters": {
			prepare: func(b *domaintest.Bundle) {
				b.InsertDeadLetters(3)
				b.Exec(`UPDATE ojs.jobs SET dead_lettered_at = dead_lettered_at - interval '2 h' WHERE id = (SELECT min(id::text)::uuid FROM ojs.jobs)`)
			},
			do: func(b *domaintest.Bundle) error {
				_, err := b.DeadLetters.Prune(b.T.Context(), time.Hour, 1)
				return err
			},
			left: `SELECT greatest(count(*) - 1, 0) FROM ojs.jobs`,
		},
		"PruneWorkflows": {
			prepare: func(b *domaintest.Bundle) {
				w, err := b.Workflows.Create(b.T.Context(), chain(b.T))
				require.NoError(b.T, err)
				_, _, err = b.Workflows.Cancel(b.T.Context(), w.ID, true, "")
				require.NoError(b.T, err)
				b.Exec(`UPDATE ojs.workflows SET ended_at = ended_at - interval '1 h'`)
			},
			do: func(b *domaintest.Bundle) error {
				_, err := b.Workflows.Prune(b.T.Context(), time.Minute)
				return err
			},
			left: `SELECT count(*) FROM ojs.workflows`,
		},
		"AdmitLimited": {
			prepare: func(b *domaintest.Bundle) {
				limited := func() *job.Job {
					j, wire := job.DecodeItem([]byte(`{"type":"t","args":[],"options":{"queue":"q","rate_limit":{"key":"k","concurrency":1}}}`), job.Limits{})
					require.Nil(b.T, wire)
					return j
				}
				b.Enqueued(limited(), limited())
				b.Exec(`INSERT INTO ojs.limit_pending (key, due_at, timer) SELECT l.key, now() - interval '1 s', false FROM ojs.limits l`)
			},
			do: func(b *domaintest.Bundle) error {
				_, err := b.Limits.AdmitDue(b.T.Context())
				return err
			},
			left: `SELECT count(*) FROM ojs.limit_pending WHERE due_at <= now()`,
		},
		"FinishDeletions": {
			prepare: func(b *domaintest.Bundle) {
				b.Enqueued(domaintest.NewJob("deleted"))
				b.Exec(`INSERT INTO ojs.queues (name) VALUES ('deleted') ON CONFLICT DO NOTHING`)
				b.Exec(`UPDATE ojs.queues SET status = 'draining', deletion = '{"strategy":"discard","previous":"active","began":"2026-01-01T00:00:00Z"}' WHERE name = 'deleted'`)
			},
			do: func(b *domaintest.Bundle) error {
				if err := b.Configured.Refresh(b.T.Context()); err != nil {
					return err
				}
				return b.Queues.Finish(b.T.Context())
			},
			left:   `SELECT count(*) FROM ojs.queues WHERE name = 'deleted'`,
			passed: []string{"QueueConfigVersion", "QueueConfigList"}, // the configurations are read again soon
		},
		"DeliverWebhooks": {
			prepare: delivery,
			do: func(b *domaintest.Bundle) error {
				claimed, err := b.Webhooks.ClaimDeliveries(b.T.Context(), webhook.Share{Want: 5, OwnerRoom: 5})
				for _, d := range claimed.Deliveries {
					_, recordErr := b.Webhooks.RecordDelivery(b.T.Context(), webhook.DeliveryOutcome{ID: d.ID, Claims: d.Claims, Status: "delivered", Code: 200, Secret: d.Secrets[0].ID})
					err = errors.Join(err, recordErr)
				}
				return err
			},
			left: `SELECT count(*) FROM ojs.webhook_deliveries WHERE completed_at IS NULL AND claims = 0`,
		},
		"CancelOrphans": {
			prepare: func(b *domaintest.Bundle) {
				delivery(b)
				b.Exec(`DELETE FROM ojs.webhooks`)
			},
			do:   func(b *domaintest.Bundle) error { return b.Webhooks.CancelOrphans(b.T.Context()) },
			left: `SELECT count(*) FROM ojs.webhook_deliveries WHERE completed_at IS NULL`,
		},
		"FinishWebhookChanges": {
			prepare: func(b *domaintest.Bundle) {
				delivery(b)
				b.Exec(`UPDATE ojs.webhooks SET resume_pending = true, reorder_pending = true`)
			},
			do: func(b *domaintest.Bundle) error {
				_, err := b.Webhooks.FinishChanges(b.T.Context())
				return err
			},
			left: `SELECT count(*) FROM ojs.webhooks WHERE resume_pending OR reorder_pending`,
		},
		"RestartDeliveries": {
			prepare: func(b *domaintest.Bundle) {
				delivery(b)
				b.Exec(`UPDATE ojs.webhooks SET ordering = 'subject'`)
				b.Exec(`UPDATE ojs.webhook_deliveries SET next_attempt_at = NULL WHERE completed_at IS NULL`)
			},
			do: func(b *domaintest.Bundle) error {
				_, err := b.Webhooks.RestartStuckDeliveries(b.T.Context())
				return err
			},
			left: `SELECT count(*) FROM ojs.webhook_deliveries WHERE completed_at IS NULL AND next_attempt_at IS NULL`,
		},
		"PruneDeliveries": {
			prepare: func(b *domaintest.Bundle) {
				delivery(b)
				b.Exec(`UPDATE ojs.webhook_deliveries SET status = 'delivered', completed_at = now() - interval '1 h', created_at = now() - interval '1 h'`)
			},
			do: func(b *domaintest.Bundle) error {
				_, err := b.Webhooks.PruneDeliveries(b.T.Context(), time.Minute)
				return err
			},
			left: `SELECT count(*) FROM ojs.webhook_deliveries`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p.requireErrors(t)
		})
	}
}

func (p pass) requireErrors(t *testing.T) {
	t.Helper()
	unchecked := func(c *domaintest.Config) { c.Unchecked = true }
	pool := dbtest.New(t)
	statements := &domaintest.Failing{}
	healthy, sick := domaintest.On(t, pool, unchecked), domaintest.On(t, domaintest.Traced(t, pool, statements), unchecked)
	var dropped []string
	for i := 0; ; i++ {
		p.prepare(healthy)
		require.Positive(t, healthy.Number(p.left), "there is nothing to do")
		statements.FailAt(i)
		err := p.do(sick)
		failed := statements.Heal()
		if err == nil && failed != "" && !slices.Contains(p.passed, failed) {
			dropped = append(dropped, failed)
		}
		if failed != "" {
			require.NoError(t, p.do(healthy), "behind a failure of %s", failed)
		}
		require.Zero(t, healthy.Number(p.left), "behind a failure of %q", failed)
		if failed == "" {
			require.NoError(t, err)
			require.Positive(t, i, "it sends no statement")
			require.Empty(t, dropped, "no error for these")
			return
		}
	}
}

func applyDue(b *domaintest.Bundle) error {
	_, err := b.ApplyDue(b.T.Context(), pg.Beginning)
	return err
}

func followLeft(b *domaintest.Bundle) error {
	_, err := b.Workflows.FollowLeft(b.T.Context(), 0)
	return err
}

// chain has two steps.
func chain(t testing.TB) *workflow.Definition {
	t.Helper()
	def := &workflow.Definition{Type: workflow.Chain, Name: "chain", Leaves: 2}
	for i := range 2 {
		template := []byte(`{"type":"t","args":[],"options":{"queue":"q","retry":{"max_attempts":1}}}`)
		step, wire := job.DecodeItem(template, job.Limits{})
		require.Nil(t, wire)
		def.Members = append(def.Members, workflow.Member{ID: strconv.Itoa(i), Job: step, Template: template})
	}
	return def
}

// delivery makes a subscription, the only one, with a delivery that is due.
func delivery(b *domaintest.Bundle) {
	b.T.Helper()
	b.Exec(`DELETE FROM ojs.webhook_deliveries`)
	b.Exec(`DELETE FROM ojs.webhooks`)
	b.Delivery(b.Subscribed(), 1, "s")
}
