package queueadmin_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/ojs"
)

// inEachState enqueues a job of queue q in each waiting state: available, scheduled, pending, retryable, and one that a limit holds back.
func (b *bundle) inEachState() (ids [][16]byte) {
	b.T.Helper()
	retryable := b.Enqueued(domaintest.NewJob("q"))[0]
	b.Fetched(1, "q")
	_, err := b.Fail(b.T.Context(), job.Nack{JobID: retryable.ID, WorkerID: "w1", Attempt: 1, Error: job.WorkerError{Code: "x", Message: "x"}})
	require.NoError(b.T, err)
	stored := b.Enqueued(
		domaintest.NewJob("q"),
		domaintest.With(func(j *job.Job) { j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour} }),
		domaintest.With(func(j *job.Job) { j.Pending = true }),
		domaintest.With(func(j *job.Job) { j.LimitKey, j.Limit = "k", &job.LimitPolicy{Concurrency: new(int64)} }),
	)
	ids = [][16]byte{retryable.ID}
	for _, j := range stored {
		ids = append(ids, j.ID)
	}
	return ids
}

func TestDelete(t *testing.T) {
	t.Parallel()

	t.Run("RejectRefusesUnfinishedJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		_, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Reject})
		requireKind(t, ojs.ErrNotFound, err)
		b.Enqueued(domaintest.NewJob("q"))
		_, err = b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Reject})
		requireKind(t, ojs.ErrInvalidStateTransition, err)
		require.Equal(t, "active", b.status("q"))
	})

	t.Run("RejectDeletesAnEmptyQueue", func(t *testing.T) {
		t.Parallel()
		b := setup(t, extended)
		other := b.Node()
		done := b.Enqueued(domaintest.NewJob("q"))[0]
		b.Fetched(1, "q")
		_, err := b.Complete(t.Context(), job.Ack{JobID: done.ID, WorkerID: "w1", Attempt: 1})
		require.NoError(t, err)
		b.configure("q", `{"concurrency":5}`)
		res, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Reject})
		require.NoError(t, err)
		require.Equal(t, queueadmin.Deleted{}, res)
		require.Empty(t, b.status("q"))
		require.Equal(t, ojs.StateCompleted, b.State(done.ID), "finished jobs stay")
		require.Equal(t, []string{`queue.config_updated {"queue":"q","config":{"concurrency":5}}`, `queue.deleted {"queue":"q"}`}, b.events("q"))

		require.Eventually(t, func() bool { // the other node has not been told: the notification is not delivered in this test
			other.QueueChanged("q")
			require.NoError(t, other.Configured.Refresh(t.Context()))
			_, err := other.Enqueue(t.Context(), domaintest.NewJob("q"))
			return err == nil && b.status("q") == "active"
		}, domaintest.WaitFor, 10*time.Millisecond)
		_, err = b.Queues.Get(t.Context(), "q")
		require.NoError(t, err)
	})

	t.Run("DiscardTakesAllWaitingJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		ids := b.inEachState()
		others := b.Enqueued(domaintest.NewJob("other"))
		res, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Discard})
		require.NoError(t, err)
		require.Equal(t, queueadmin.Deleted{Affected: 5}, res)
		for _, id := range ids {
			stored, err := b.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, "discarded", stored.State)
			require.Contains(t, string(stored.Error), `"code":"queue_deleted"`)
		}
		require.Equal(t, ojs.StateAvailable, b.State(others[0].ID))
		require.Empty(t, b.status("q"))
	})

	t.Run("MoveKeepsStateAndPlace", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := b.Node()
		require.Empty(t, other.Fetched(1, "to"))
		b.inEachState()
		first := b.Enqueued(domaintest.NewJob("q"), domaintest.With(func(j *job.Job) { j.Priority = 5 }))
		second := b.Enqueued(domaintest.NewJob("to"))
		before := b.Texts(`SELECT id || state || priority || COALESCE(ready_seq, limit_seq, 0) FROM ojs.jobs WHERE queue = 'q' ORDER BY id`)
		res, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Move, Target: "to"})
		require.NoError(t, err)
		require.EqualValues(t, len(before), res.Affected)
		ids := map[[16]byte]bool{}
		for _, j := range b.Fetched(9, "to") {
			ids[j.ID] = true
		}
		require.Len(t, ids, 4)
		require.True(t, ids[first[0].ID] && ids[first[1].ID], "all that can be fetched is found at its place")
		require.True(t, ids[second[0].ID])
		require.Empty(t, b.status("q"))
	})

	t.Run("ActiveJobsEndFirst", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		running := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
		b.Fetched(2, "q")
		res, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Discard})
		require.NoError(t, err)
		require.Equal(t, queueadmin.Deleted{Draining: true}, res)
		require.Equal(t, "draining deleting", b.status("q"))
		_, err = b.Enqueue(t.Context(), domaintest.NewJob("q"))
		requireKind(t, ojs.ErrQueuePaused, err)
		_, err = b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Discard})
		requireKind(t, ojs.ErrInvalidStateTransition, err)

		_, err = b.Complete(t.Context(), job.Ack{JobID: running[0].ID, WorkerID: "w1", Attempt: 1})
		require.NoError(t, err)
		_, err = b.Fail(t.Context(), job.Nack{JobID: running[1].ID, WorkerID: "w1", Attempt: 1, Error: job.WorkerError{Code: "x", Message: "x"}})
		require.NoError(t, err)
		other := b.Node()
		other.Queues.SetSettled(0, 0)
		require.NoError(t, other.Configured.Refresh(t.Context()))
		require.NoError(t, other.Queues.Finish(t.Context()))
		require.Empty(t, b.status("q"))
		require.Equal(t, ojs.StateDiscarded, b.State(running[1].ID), "it failed after the deletion had begun")
		require.NoError(t, other.Queues.Finish(t.Context()))
	})

	t.Run("ResumeTakesItBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		b.Fetched(1, "q")
		_, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Discard})
		require.NoError(t, err)
		_, err = b.Queues.Resume(t.Context(), "q", "a")
		require.NoError(t, err)
		require.Equal(t, "active", b.status("q"))
		b.Enqueued(domaintest.NewJob("q"))
		require.NoError(t, b.Queues.Finish(t.Context()))
		require.Equal(t, "active", b.status("q"))
	})

	t.Run("OfAPausedQueueGivesNoJobAway", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Queues.SetSettled(3*time.Second, 0) // a busy machine must look at it meanwhile
		b.Enqueued(domaintest.NewJob("q"))
		_, err := b.Queues.Pause(t.Context(), "q", "a")
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Discard})
			done <- err
		}()
		require.Eventually(t, func() bool { return b.Configured.Known("q").Draining() }, domaintest.WaitFor, time.Millisecond)
		require.Equal(t, "paused deleting", b.status("q"))
		require.Empty(t, b.Fetched(1, "q"))
		_, err = b.Enqueue(t.Context(), domaintest.NewJob("q"))
		requireKind(t, ojs.ErrQueuePaused, err)
		require.NoError(t, <-done)
		require.Empty(t, b.status("q"))
	})

	t.Run("WaitsForOpenTransactions", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q', '{"notify":false}')`)
		require.NoError(t, err)
		done := make(chan queueadmin.Deleted, 1)
		go func() {
			res, _ := b.Queues.Delete(context.Background(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Discard})
			done <- res
		}()
		require.Eventually(t, func() bool { return len(done) > 0 || b.status("q") == "draining deleting" }, domaintest.WaitFor, time.Millisecond)
		require.NoError(t, tx.Commit(t.Context()))
		require.EqualValues(t, 2, domaintest.Await(t, done).Affected)
	})

	t.Run("NotWhatWasResumedMeanwhile", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Exec(`INSERT INTO ojs.queues (name) VALUES ('q')`)
		deleted, err := dbsqlc.New(b.Pool).QueueDelete(t.Context(), dbsqlc.QueueDeleteParams{Name: "q"})
		require.NoError(t, err)
		require.Zero(t, deleted)
		require.Equal(t, "active", b.status("q"))
	})

	t.Run("TheFinisherLeavesNewOnesAlone", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Queues.SetSettled(time.Millisecond, time.Minute)
		b.Exec(`INSERT INTO ojs.queues (name, status, deletion)
			VALUES ('q', 'draining', json_build_object('strategy', 'discard', 'previous', 'active', 'began', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.USZ')))`)
		require.NoError(t, b.Configured.Refresh(t.Context()))
		require.NoError(t, b.Queues.Finish(t.Context()))
		require.Equal(t, "draining deleting", b.status("q"), "the request that has begun it finishes it")
		b.Queues.SetSettled(time.Millisecond, 0)
		require.NoError(t, b.Queues.Finish(t.Context()))
		require.Empty(t, b.status("q"))
	})

	t.Run("LeavesLockedJobsToTheFinisher", func(t *testing.T) {
		t.Parallel()
		for strategy, done := range map[string]string{
			queueadmin.Discard: `SELECT count(*) FROM ojs.jobs WHERE queue = 'q' AND state = 'discarded'`,
			queueadmin.Move:    `SELECT count(*) FROM ojs.jobs WHERE queue = 'to'`,
		} {
			t.Run(strategy, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				jobs := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"))
				tx := b.Lock(jobs[1].ID)
				res, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: strategy, Target: map[string]string{queueadmin.Move: "to"}[strategy]})
				require.NoError(t, err)
				require.True(t, res.Draining)
				require.Equal(t, 2, b.Number(done))
				require.NoError(t, tx.Rollback(t.Context()))
				require.NoError(t, b.Queues.Finish(t.Context()))
				require.Equal(t, 3, b.Number(done))
				require.Empty(t, b.status("q"))
			})
		}
	})

	// Others let go of their jobs when the deletion has looked at all jobs, before it counts what is left: the second look finds no more.
	t.Run("GoesOnWhileItMakesProgress", func(t *testing.T) {
		t.Parallel()
		for _, locked := range []int{1, 2} {
			b := setup(t)
			jobs := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"))
			var txs []pgx.Tx
			for _, j := range jobs[:locked] {
				txs = append(txs, b.Lock(j.ID))
			}
			node := domaintest.On(t, domaintest.BeforeNth(t, b.Pool, "QueueJobListWaiting", 2, func() {
				for _, tx := range txs {
					require.NoError(t, tx.Rollback(t.Context()))
				}
			}))
			res, err := node.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Discard})
			require.NoError(t, err)
			require.Equal(t, queueadmin.Deleted{Affected: 3}, res, locked)
			require.Empty(t, b.status("q"))
		}
	})

	t.Run("MoveNeedsAnotherQueue", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		done := make(chan error, 1)
		go func() {
			_, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Move, Target: "q"})
			done <- err
		}()
		requireKind(t, ojs.ErrInvalidPayload, domaintest.Await(t, done))
		require.Equal(t, "active", b.status("q"))
	})

	// Two queues that move their jobs to each other would never be empty. Another node has begun the other deletion.
	t.Run("MoveNeedsATargetThatIsNotDeleted", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("to"))
		b.Exec(`UPDATE ojs.queues SET deletion = '{"strategy":"move","target_queue":"q"}' WHERE name = 'to'`)
		_, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Move, Target: "to"})
		require.ErrorContains(t, err, "Queue to is being deleted")
		require.Equal(t, "active", b.status("q"), "nothing was begun")
	})

	// Jobs that come back later would make it anew.
	t.Run("TargetCannotBeDeletedMeanwhile", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		active := b.Fetched(1, "q")[0]
		_, err := b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Move, Target: "to"})
		require.NoError(t, err)
		_, err = b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "to", Strategy: queueadmin.Discard})
		requireKind(t, ojs.ErrInvalidStateTransition, err)
		require.ErrorContains(t, err, "gets the jobs of queue q")
		_, err = b.Complete(t.Context(), job.Ack{JobID: active.ID, WorkerID: "w1", Attempt: 1})
		require.NoError(t, err)
		require.NoError(t, b.Queues.Finish(t.Context()))
		_, err = b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "to", Strategy: queueadmin.Discard})
		require.NoError(t, err)
	})

	t.Run("MoveNeedsATargetThatTakesJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		_, err := b.Queues.Drain(t.Context(), "to", "a")
		require.NoError(t, err)
		_, err = b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Move, Target: "to"})
		requireKind(t, ojs.ErrQueuePaused, err)
	})
}

// A job that is committed when its queue has been deleted makes the queue anew, whoever has enqueued it.
func TestDeletedQueueReturnsWithItsJob(t *testing.T) {
	t.Parallel()
	relayed := func(t *testing.T) *bundle {
		b := setup(t)
		relay := eventlog.NewRelay(b.Archetype, b.Pool, eventlog.RelayConfig{PollInterval: 10 * time.Millisecond})
		require.NoError(t, relay.Start(t.Context()))
		t.Cleanup(relay.Stop)
		b.configure("q", `{"concurrency":5}`)
		return b
	}
	remove := func(b *bundle) {
		res, err := b.Queues.Delete(context.Background(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Discard})
		if err != nil || res.Draining {
			b.T.Errorf("%+v %v", res, err)
		}
	}
	returned := func(b *bundle) {
		b.T.Helper()
		require.Eventually(b.T, func() bool { return b.status("q") == "active" }, domaintest.WaitFor/6, time.Millisecond)
		require.Equal(b.T, 1, b.Number(`SELECT count(*) FROM ojs.queues WHERE name = 'q' AND config IS NULL`))
		stats, err := b.Queues.Figures(b.T.Context(), "q")
		require.NoError(b.T, err)
		require.EqualValues(b.T, 1, stats.Counts[ojs.StateAvailable])
		require.Len(b.T, b.Fetched(2, "q"), 1)
	}
	// fenceWait is over when the deletion is answered: the application keeps its transaction open for longer.
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		t.Run("OfOpenTransaction/"+string(level), func(t *testing.T) {
			t.Parallel()
			b := relayed(t)
			tx, err := b.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.Background()) }()
			_, err = tx.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q', '{"notify":false}')`)
			require.NoError(t, err)
			remove(b)
			require.Empty(t, b.status("q"))
			require.NoError(t, tx.Commit(t.Context()))
			returned(b)
		})

		t.Run("RolledBack/"+string(level), func(t *testing.T) {
			t.Parallel()
			b := relayed(t)
			tx, err := b.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.Background()) }()
			_, err = tx.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q', '{"notify":false}')`)
			require.NoError(t, err)
			remove(b)
			require.NoError(t, tx.Rollback(t.Context()))
			b.Exec(`SELECT ojs.enqueue('test.job', '[]', 'other')`)
			require.Eventually(t, func() bool {
				return b.Number(`SELECT count(*) FROM ojs.queue_counts WHERE queue = 'other'`) > 0 && b.Number(`SELECT count(*) FROM ojs.event_gaps`) == 0
			}, domaintest.WaitFor, time.Millisecond)
			require.Empty(t, b.status("q"))
		})
	}

	// Its snapshot shows the queue as it was before the deletion.
	t.Run("OfOldSnapshot", func(t *testing.T) {
		t.Parallel()
		b := relayed(t)
		tx, err := b.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), `SELECT`)
		require.NoError(t, err)
		remove(b)
		_, err = tx.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q', '{"notify":false}')`)
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		returned(b)
	})

	// A node that has taken the job before it knew of the deletion, and stores it later than the deletion waits.
	t.Run("OfSlowNode", func(t *testing.T) {
		t.Parallel()
		b := relayed(t)
		slow := domaintest.On(t, domaintest.Before(t, b.Pool, "JobInsertAlike", func() { remove(b) }))
		_, err := slow.Enqueue(t.Context(), domaintest.NewJob("q"))
		require.NoError(t, err)
		returned(b)
	})

	t.Run("NotWithDiscardedJob", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		remove(b)
		relay := eventlog.NewRelay(b.Archetype, b.Pool, eventlog.RelayConfig{})
		require.NoError(t, relay.Start(t.Context())) // it publishes that the job was enqueued
		t.Cleanup(relay.Stop)
		require.Eventually(t, func() bool { return b.Number(`SELECT count(*) FROM ojs.queue_counts WHERE state = 'discarded'`) > 0 }, domaintest.WaitFor, time.Millisecond)
		require.Empty(t, b.status("q"))
	})

	// A pass of a relay must not have looked at the queue before the deletion that it does not see.
	t.Run("DeletionsAndPassesFollowOneAnother", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		b.Fetched(1, "q")
		b.Exec(`INSERT INTO ojs.queues (name, status, deletion) VALUES ('gone', 'draining', '{"strategy":"discard","previous":"active","began":"2026-01-01T00:00:00Z"}')`)
		require.NoError(t, b.Configured.Refresh(t.Context()))
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		lock, err := dbsqlc.New(tx).RelayLock(t.Context())
		require.NoError(t, err)
		require.True(t, lock.Locked)
		done := make(chan error, 1)
		go func() { done <- b.Queues.Finish(context.Background()) }()
		require.Eventually(t, func() bool {
			return len(done) > 0 || b.Number(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 1
		}, domaintest.WaitFor, time.Millisecond)
		require.Equal(t, "draining deleting", b.status("gone"))
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, domaintest.Await(t, done))
		require.Empty(t, b.status("gone"))
	})
}

func TestPurge(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.inEachState()
	others := b.Enqueued(domaintest.NewJob("other"))
	done, err := b.Queues.Purge(t.Context(), queueadmin.Purge{Queue: "q", States: []ojs.JobState{ojs.StateCompleted}, By: "a"})
	require.NoError(t, err)
	require.Zero(t, done)
	done, err = b.Queues.Purge(t.Context(), queueadmin.Purge{Queue: "q", States: []ojs.JobState{ojs.StateScheduled, ojs.StatePending}, By: "a"})
	require.NoError(t, err)
	require.EqualValues(t, 2, done.Jobs)
	require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'job.cancelled'`))
	require.Equal(t, 3, b.Number(`SELECT count(*) FROM ojs.jobs WHERE queue = 'q'`))
	require.Equal(t, ojs.StateAvailable, b.State(others[0].ID))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Queues.Purge(ctx, queueadmin.Purge{Queue: "q", States: []ojs.JobState{ojs.StateAvailable}, By: "a"})
	require.ErrorIs(t, err, context.Canceled, "it has not looked")
}
