package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// Jobs that no call ends before their deadline.
func TestDeadlines(t *testing.T) {
	t.Parallel()

	t.Run("TotalTimeoutOfAWaitingJob", func(t *testing.T) {
		t.Parallel()
		for _, state := range []ojs.JobState{ojs.StateAvailable, ojs.StatePending, ojs.StateScheduled} {
			b := setup(t)
			id := b.Enqueued(domaintest.With(func(j *job.Job) {
				j.TotalTimeoutMS, j.Pending = 60, state == ojs.StatePending
				if state == ojs.StateScheduled {
					j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour}
				}
			}))[0].ID
			j := b.ApplyDueUntilLeft(id, state)
			require.Equal(t, string(ojs.StateDiscarded), j.State)
			require.False(t, j.Failed, "no completed_at")
			require.Empty(t, j.Errors)
			f := domaintest.ErrorOf(t, j)
			require.Equal(t, domaintest.Failure{Code: "total_timeout", TimeoutKind: "total", Limit: 0.06, Elapsed: f.Elapsed, Retryable: false}, f)
			require.GreaterOrEqual(t, f.Elapsed, 0.06)
			types := b.EventTypes(id)
			require.Equal(t, "job.discarded:"+string(state)+">discarded", types[len(types)-1])
		}
	})

	t.Run("OfAJobThatBecameAvailable", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Enqueued(domaintest.With(func(j *job.Job) {
			j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Millisecond}
			j.ExpiresAt = job.When{Set: true, Relative: true, In: time.Hour}
		}))[0].ID
		j := b.ApplyDueUntilLeft(id, ojs.StateScheduled)
		require.Equal(t, string(ojs.StateAvailable), j.State)
		require.Equal(t, j.ExpiresAt, j.DueAt)
	})

	t.Run("AreTold", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		for reason, change := range map[string]string{
			"": `scheduled_at = now()`, "retry": `state = 'retryable'`, "expired": `expires_at = now()`, "total_timeout": `total_due_at = now()`, "enqueue_ttl_expired": `ttl_due_at = now()`,
		} {
			commits := 0
			b := setup(t, func(c *domaintest.Config) { c.Committed = func() { commits++ } })
			b.Enqueued(domaintest.With(func(j *job.Job) { j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour} }))
			commits = 0
			_, err := b.PromoteDue(t.Context(), pg.Beginning)
			require.NoError(t, err)
			require.Zero(t, commits, "nothing is due")
			b.Exec(`UPDATE ojs.jobs SET due_at = now(), ` + change)
			_, err = b.PromoteDue(t.Context(), pg.Beginning)
			require.NoError(t, err)
			require.Equal(t, 1, commits, "the relay must not wait for another change")
			told := b.Emitted()
			require.Len(t, told, 2)
			require.Equal(t, reason, told[1].Reason)
		}
	})

	t.Run("TotalTimeoutOfARunningJob", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.TotalTimeoutMS = 60_000 }))[0].ID
		require.Len(t, b.Fetched(1, "q"), 1)
		b.Exec(`UPDATE ojs.jobs SET total_due_at = now(), due_at = now() WHERE id = $1`, id)
		j := b.ApplyDueUntilLeft(id, ojs.StateActive)
		require.Equal(t, string(ojs.StateDiscarded), j.State)
		require.True(t, j.Failed)
		require.Len(t, j.Errors, 1)
		require.Equal(t, "total_timeout", domaintest.ErrorOf(t, j).Code)
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active", "job.failed", "job.discarded:active>discarded"}, b.EventTypes(id))
	})

	t.Run("TotalTimeoutThatARetryWouldExceed", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.TotalTimeoutMS, j.TimeoutMS = 60_000, 60_000 }))[0].ID
		b.Fetched(1, "q")
		j, err := b.Fail(t.Context(), job.Nack{JobID: id, Attempt: -1, Error: job.WorkerError{Code: "x", Type: "x", Message: "x", Retryable: true}})
		require.NoError(t, err)
		require.Equal(t, string(ojs.StateDiscarded), j.State)
	})

	t.Run("TotalTimeoutDuringBackoff", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.TotalTimeoutMS, j.TimeoutMS = 60_000, 1 }))[0].ID
		b.Fetched(1, "q")
		j := b.ApplyDueUntilLeft(id, ojs.StateActive)
		require.Equal(t, string(ojs.StateRetryable), j.State, "%s", j.Error)
		b.Exec(`UPDATE ojs.jobs SET next_attempt_at = now() + interval '1 hour', total_due_at = now(), due_at = now() WHERE id = $1`, id)
		j = b.ApplyDueUntilLeft(id, ojs.StateRetryable)
		require.Equal(t, string(ojs.StateDiscarded), j.State)
		require.Equal(t, "total_timeout", domaintest.ErrorOf(t, j).Code)
		require.Len(t, j.Errors, 1, "only failed attempts are history")
	})

	t.Run("EnqueueTTLUntilTheFirstFetchOnly", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.EnqueueTTLMS = 50 }))[0].ID
		j := b.ApplyDueUntilLeft(id, ojs.StateAvailable)
		require.Equal(t, string(ojs.StateDiscarded), j.State)
		require.Equal(t, "enqueue_ttl_expired", domaintest.ErrorOf(t, j).Code)
		types := b.EventTypes(id)
		require.Equal(t, "job.expired:available>discarded", types[len(types)-1])

		claimed := b.Enqueued(domaintest.With(func(j *job.Job) { j.EnqueueTTLMS = 3_600_000 }))[0].ID
		require.Len(t, b.Fetched(1, "q"), 1)
		_, err := b.Fail(t.Context(), job.Nack{JobID: claimed, Attempt: -1, Requeue: true})
		require.NoError(t, err)
		b.Exec(`UPDATE ojs.jobs SET created_at = created_at - interval '2 hours', enqueued_at = enqueued_at - interval '2 hours', due_at = due_at - interval '2 hours' WHERE id = $1`, claimed)
		_, err = b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, b.State(claimed))
	})

	t.Run("JobsAfterTheirEnqueueTTLAreNotDelivered", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.With(func(j *job.Job) { j.EnqueueTTLMS = 1 }), domaintest.With(func(j *job.Job) { j.TotalTimeoutMS = 1 }))
		time.Sleep(10 * time.Millisecond)
		require.Empty(t, b.Fetched(2, "q"))
	})

	t.Run("HeartbeatTimeoutCountsFromTheLatestHeartbeat", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.HeartbeatTimeoutMS, j.VisibilityMS, j.TimeoutMS = 3_600_000, 7_200_000, 7_200_000 }))[0].ID
		b.Fetched(1, "q")
		b.Exec(`UPDATE ojs.jobs SET stall_due_at = stall_due_at - interval '30 minutes', due_at = due_at - interval '30 minutes' WHERE id = $1`, id)
		const left = `SELECT floor(extract(epoch FROM due_at - now()) / 60)::text FROM ojs.jobs WHERE id = $1 AND due_at = stall_due_at`
		require.Equal(t, "29", b.One(left, id))
		require.Equal(t, [][16]byte{id}, b.Beat("w1", id).Extended)
		require.Equal(t, "59", b.One(left, id))

		b.Exec(`UPDATE ojs.jobs SET stall_due_at = stall_due_at - interval '1 hour', due_at = due_at - interval '1 hour' WHERE id = $1`, id)
		j := b.ApplyDueUntilLeft(id, ojs.StateActive)
		require.Equal(t, string(ojs.StateRetryable), j.State)
		f := domaintest.ErrorOf(t, j)
		require.Equal(t, domaintest.Failure{Code: "stalled", TimeoutKind: "stalled", Limit: 3600, Elapsed: f.Elapsed, Retryable: true}, f)
		require.GreaterOrEqual(t, f.Elapsed, 3600.)
	})

	t.Run("ExecutionTimeoutTakesPrecedenceOverTheLease", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.TimeoutMS, j.VisibilityMS = 50, 50 }))[0].ID
		b.Fetched(1, "q")
		j := b.ApplyDueUntilLeft(id, ojs.StateActive)
		require.Equal(t, string(ojs.StateRetryable), j.State)
		f := domaintest.ErrorOf(t, j)
		require.Equal(t, domaintest.Failure{Code: "timeout", TimeoutKind: "execution", Limit: 0.05, Elapsed: f.Elapsed, Retryable: true}, f)
	})

	t.Run("MakesDeadLettersUnlessTheRetryPolicySaysDiscard", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for name, c := range map[string]struct {
			onExhaustion  string
			fails, expiry bool // whether a total timeout and an expiry make a dead letter
		}{
			"Silent": {"", true, false}, "DeadLetter": {job.ExhaustDeadLetter, true, true}, "Discard": {job.ExhaustDiscard, false, false},
		} {
			ids := b.Enqueued(
				domaintest.With(func(j *job.Job) { j.TotalTimeoutMS, j.OnExhaustion = 30, c.onExhaustion }),
				domaintest.With(func(j *job.Job) { j.EnqueueTTLMS, j.OnExhaustion = 30, c.onExhaustion }),
				domaintest.With(func(j *job.Job) {
					j.ExpiresAt, j.OnExhaustion = job.When{At: time.Now().Add(-time.Hour), Set: true}, c.onExhaustion
				}))
			require.Equal(t, c.fails, b.ApplyDueUntilLeft(ids[0].ID, ojs.StateAvailable).DeadLetteredAt.Valid, name)
			for _, waiting := range ids[1:] {
				require.Equal(t, c.expiry, b.ApplyDueUntilLeft(waiting.ID, ojs.StateAvailable).DeadLetteredAt.Valid, name)
			}
		}

		failing := domaintest.With(func(j *job.Job) { j.Retry, j.MaxAttempts = []byte(`{"on_exhaustion":"dead_letter"}`), 1 })
		id := b.Enqueued(failing)[0].ID
		b.Fetched(1, "q")
		j, err := b.Fail(t.Context(), job.Nack{JobID: id, Attempt: -1, Error: job.WorkerError{Code: "x", Type: "x", Message: "x", Retryable: true}})
		require.NoError(t, err)
		require.Equal(t, j.FinishedAt, j.DeadLetteredAt)
	})
}

// TestDeadlineOfARunningJob: it is the earliest of the lease, the execution timeout with its grace, the heartbeat timeout and the total
// timeout, and each call that extends the lease keeps the others.
func TestDeadlineOfARunningJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	half := 0.5
	calls := map[string]func(id [16]byte){
		"Fetch":     func([16]byte) {},
		"Heartbeat": func(id [16]byte) { require.Equal(t, [][16]byte{id}, b.Beat("w1", id).Extended) },
		"Progress": func(id [16]byte) {
			_, err := b.Progress.Report(t.Context(), job.ProgressReport{JobID: id, Attempt: -1, Progress: &half})
			require.NoError(t, err)
		},
		"Checkpoint": func(id [16]byte) {
			_, err := b.Progress.SaveCheckpoint(t.Context(), job.CheckpointSave{JobID: id, Attempt: -1, Stored: []byte(`{"state":1}`), Sequence: job.NextSequence})
			require.NoError(t, err)
		},
	}
	const hour = 3_600_000
	for name, deadline := range map[string]struct {
		change func(j *job.Job)
		holds  string // of the row after the call
	}{
		"Timeout":        {func(j *job.Job) { j.TimeoutMS = hour / 2 }, `due_at = started_at + interval '30 min'`},
		"Grace":          {func(j *job.Job) { j.TimeoutMS, j.GraceMS = hour/2, 5000 }, `due_at = started_at + interval '30 min 5 s'`},
		"DefaultTimeout": {func(j *job.Job) { j.GraceMS, j.VisibilityMS = 5000, 100*hour }, `due_at = started_at + interval '30 min 5 s'`},
		"Lease":          {func(j *job.Job) { j.TimeoutMS, j.VisibilityMS = hour, hour/4 }, `due_at = lease_until AND due_at - now() BETWEEN interval '14 min' AND interval '15 min'`},
		"Stall":          {func(j *job.Job) { j.TimeoutMS, j.HeartbeatTimeoutMS = hour, hour/4 }, `due_at = stall_due_at AND due_at - now() BETWEEN interval '14 min' AND interval '15 min'`},
		"Total":          {func(j *job.Job) { j.TimeoutMS, j.TotalTimeoutMS = hour, hour/4 }, `due_at = total_due_at AND due_at - created_at = interval '15 min'`},
	} {
		t.Run(name, func(t *testing.T) {
			for call, do := range calls {
				id := b.Enqueued(domaintest.With(func(j *job.Job) {
					j.VisibilityMS = 2 * hour
					deadline.change(j)
				}))[0].ID
				require.Len(t, b.Fetched(1, "q"), 1)
				if call != "Fetch" {
					b.Exec(`UPDATE ojs.jobs SET lease_until = lease_until - interval '5 min', stall_due_at = stall_due_at - interval '5 min', due_at = now() + interval '1 min' WHERE id = $1`, id)
				}
				do(id)
				require.Equal(t, "true", b.One(`SELECT (`+deadline.holds+`)::text FROM ojs.jobs WHERE id = $1`, id), call)
			}
		})
	}

	// What a client has sent as grace is no part of the limit that its error names.
	t.Run("GraceIsOver", func(t *testing.T) {
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.TimeoutMS, j.GraceMS, j.VisibilityMS = 60_000, 30_000, hour }))[0].ID
		require.Len(t, b.Fetched(1, "q"), 1)
		b.Exec(`UPDATE ojs.jobs SET started_at = now() - interval '91 s', due_at = now() - interval '1 s' WHERE id = $1`, id)
		f := domaintest.ErrorOf(t, b.ApplyDueUntilLeft(id, ojs.StateActive))
		require.Equal(t, domaintest.Failure{Code: "timeout", TimeoutKind: "execution", Limit: 60, Elapsed: f.Elapsed, Retryable: true}, f)
		require.GreaterOrEqual(t, f.Elapsed, 91.)
	})
}
