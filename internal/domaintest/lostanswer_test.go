package domaintest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

// TestLostAnswerOfOtherWrites: a write whose outcome the node does not find out is answered 504 with outcome unknown, never 503,
// which promises that nothing was done. Packages queue and webhook have the writes whose outcome is found out.
func TestLostAnswerOfOtherWrites(t *testing.T) {
	t.Parallel()
	schedule := func() *cron.Definition {
		return &cron.Definition{Name: "c", Expression: "@every 1h", Timezone: "UTC", Overlap: "allow", Enabled: true, Type: "t", Queue: "q", Args: []byte(`[]`)}
	}
	type node = domaintest.Bundle
	type call struct {
		at string
		do func(b *node, p *prepared) error
	}
	half := 0.5
	for name, c := range map[string]call{
		"Activate": {"name: JobActivate ", func(b *node, p *prepared) error {
			_, err := b.Activate(t.Context(), p.pending)
			return err
		}},
		"Progress": {"name: JobProgress ", func(b *node, p *prepared) error {
			_, err := b.Progress.Report(t.Context(), job.ProgressReport{JobID: p.active, Attempt: -1, Progress: &half})
			return err
		}},
		"SaveCheckpoint": {"name: JobCheckpoint ", func(b *node, p *prepared) error {
			_, err := b.Progress.SaveCheckpoint(t.Context(), job.CheckpointSave{JobID: p.active, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: -1})
			return err
		}},
		"DeleteCheckpoint": {"name: JobCheckpointDelete ", func(b *node, p *prepared) error {
			return b.Progress.DeleteCheckpoint(t.Context(), p.active)
		}},
		"Heartbeat": {"name: WorkerHeartbeat ", func(b *node, _ *prepared) error {
			_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w1"})
			return err
		}},
		"HeartbeatOfJobs": {"name: JobHeartbeat ", func(b *node, p *prepared) error {
			_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w1", Jobs: job.IDList{IDs: [][16]byte{p.active}}})
			return err
		}},
		"Direct": {"name: WorkerUpdateDirective ", func(b *node, _ *prepared) error {
			return b.Workers.Direct(t.Context(), worker.Ref{ID: "w1"}, "quiet")
		}},
		"DirectAll": {"name: WorkerUpdateDirectiveAll ", func(b *node, _ *prepared) error {
			_, err := b.Workers.DirectAll(t.Context(), "quiet")
			return err
		}},
		"Deregister": {"name: WorkerDeregister ", func(b *node, _ *prepared) error {
			return b.Workers.Deregister(t.Context(), worker.Leave{Ref: worker.Ref{ID: "w1"}})
		}},
		"PutCron": {"commit", func(b *node, _ *prepared) error {
			_, _, err := b.Crons.Put(t.Context(), schedule())
			return err
		}},
		"TriggerCron": {"commit", func(b *node, _ *prepared) error {
			_, err := b.Crons.Trigger(t.Context(), cron.Ref{Name: "c"})
			return err
		}},
		"DeleteCron": {"name: CronDelete ", func(b *node, _ *prepared) error {
			_, err := b.Crons.Delete(t.Context(), cron.Ref{Name: "c"})
			return err
		}},
		"RetryDelivery": {"name: WebhookDeliveryRetry ", func(b *node, _ *prepared) error {
			_, _, err := b.Webhooks.RetryDelivery(t.Context(), job.NewID())
			return err
		}},
		"PurgeDeadLetters": {"name: DeadLetterDelete ", func(b *node, _ *prepared) error {
			_, err := b.DeadLetters.Purge(t.Context(), deadletter.Filter{})
			return err
		}},
		"Reset": {"name: SystemReset ", func(b *node, _ *prepared) error { return b.DB.Reset(t.Context()) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := dbtest.New(t)
			sane := domaintest.On(t, pool, func(c *domaintest.Config) { c.Unchecked = true })
			lossy, network := domaintest.NewLossy(t, pool)
			b := domaintest.On(t, lossy, func(c *domaintest.Config) { c.Unchecked = true })
			p := prepare(t, sane, schedule())
			require.NoError(t, lossy.Ping(t.Context()))

			network.Break(domaintest.LoseAnswer, c.at)
			err := c.do(b, p)
			require.Equal(t, 1, network.Broken())
			domaintest.RequireCode(t, err, ojs.ErrTimeout)
			var wire *ojs.Error
			require.ErrorAs(t, err, &wire)
			require.Equal(t, "unknown", wire.Details["outcome"])
		})
	}
}

// prepared are the things that writes change.
type prepared struct{ pending, active [16]byte }

func prepare(t *testing.T, b *domaintest.Bundle, schedule *cron.Definition) *prepared {
	t.Helper()
	b.Beat("w1")
	p := &prepared{pending: b.Enqueued(domaintest.With(func(j *job.Job) { j.Pending = true }))[0].ID}
	p.active = b.Enqueued(domaintest.NewJob("q"))[0].ID
	require.Len(t, b.Fetched(1, "q"), 1)
	b.DeadLetter()
	_, _, err := b.Crons.Put(t.Context(), schedule)
	require.NoError(t, err)
	return p
}
