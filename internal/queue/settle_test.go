package queue_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// lossyBundle is a node whose connection breaks at a statement, and another one that looks at the database.
type lossyBundle struct {
	*bundle
	network *domaintest.Lossy
	sane    *bundle
}

func setupLossy(t *testing.T, change ...func(*domaintest.Config)) *lossyBundle {
	t.Helper()
	pool := dbtest.New(t)
	lossy, network := domaintest.NewLossy(t, pool)
	return &lossyBundle{&bundle{domaintest.On(t, lossy, append(change, unchecked)...)}, network, &bundle{domaintest.On(t, pool)}}
}

// warm prepares the statements of a worker's day on the only connection, so that the next call sends only itself.
func (b *lossyBundle) warm() {
	b.Enqueued(domaintest.NewJob("warm"), domaintest.NewJob("warm"), domaintest.NewJob("warm"), domaintest.NewJob("warm"))
	named := domaintest.NewJob("warm2")
	named.ClientID, named.ID = true, job.NewID()
	b.Enqueued(named)
	jobs := b.Fetched(4, "warm")
	require.Len(b.T, jobs, 4)
	ctx := b.T.Context()
	_, err := b.Complete(ctx, job.Ack{JobID: jobs[0].ID, Attempt: -1})
	require.NoError(b.T, err)
	_, err = b.Fail(ctx, job.Nack{JobID: jobs[1].ID, Attempt: -1, Error: domaintest.DecodeError(b.T, `{"code":"x","message":"no"}`)})
	require.NoError(b.T, err)
	_, err = b.Cancel(ctx, jobs[2].ID, queue.Cancel{By: "test"})
	require.NoError(b.T, err)
	require.NoError(b.T, b.bulkCancel(b.Enqueued(domaintest.NewJob("warm"))[0].ID))
}

func (b *lossyBundle) bulkCancel(id [16]byte) error {
	_, err := b.Once(b.T.Context(), queue.IdempotencyKey{}, func(tx *queue.Tx) (queue.Answer, bool, error) {
		res, err := tx.Bulk(b.T.Context(), queue.BulkChange{Op: job.BulkCancel, IDs: [][16]byte{id}, States: queue.Eligible(job.BulkCancel)})
		return queue.Answer{Status: 200}, len(res.Changed) > 0, err
	})
	return err
}

// TestLostAnswer: when the connection breaks after a write was sent, the caller is told what is true.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	failure := domaintest.DecodeError(t, `{"code":"x","message":"no"}`)
	type call struct {
		statement string
		from, to  ojs.JobState // "": there is no job before
		do        func(b *lossyBundle, id [16]byte) error
	}
	insert := func(change func(j *job.Job), do func(b *lossyBundle, j *job.Job) (*job.Record, error)) func(b *lossyBundle, id [16]byte) error {
		return func(b *lossyBundle, _ [16]byte) error {
			j := domaintest.NewJob("q")
			change(j)
			stored, err := do(b, j)
			if err == nil {
				require.Equal(b.T, j.ID, stored.ID)
				require.Equal(b.T, `[1]`, string(stored.Args))
			}
			return err
		}
	}
	one := func(b *lossyBundle, j *job.Job) (*job.Record, error) { return b.Enqueue(b.T.Context(), j) }
	each := func(b *lossyBundle, j *job.Job) (*job.Record, error) {
		stored, errs := b.EnqueueEach(b.T.Context(), []*job.Job{j})
		return stored[0], errors.Join(errs...)
	}
	all := func(b *lossyBundle, j *job.Job) (*job.Record, error) {
		stored, _, err := b.EnqueueAll(b.T.Context(), []*job.Job{j})
		if err != nil {
			return nil, err
		}
		return stored[0], nil
	}
	inTx := func(b *lossyBundle, j *job.Job) (*job.Record, error) {
		var stored []*job.Record
		err := b.InTx(b.T.Context(), func(tx *queue.Tx) (err error) {
			stored, _, err = tx.Enqueue(b.T.Context(), []*job.Job{j}, true)
			return err
		})
		if err != nil {
			return nil, err
		}
		return stored[0], nil
	}
	plain := func(*job.Job) {}
	named := func(j *job.Job) { j.ClientID, j.ID = true, job.NewID() }
	calls := map[string]call{
		"Enqueue":      {"name: JobInsertAlike ", "", ojs.StateAvailable, insert(plain, one)},
		"EnqueueNamed": {"commit", "", ojs.StateAvailable, insert(named, one)},
		"EnqueueLater": {"name: JobInsert ", "", ojs.StateScheduled, insert(func(j *job.Job) {
			j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour}
		}, one)},
		"EnqueueUnique": {"commit", "", ojs.StateAvailable, insert(func(j *job.Job) { j.Unique = uniqueJob("k", "reject").Unique }, one)},
		"EnqueueEach":   {"name: JobInsertAlike ", "", ojs.StateAvailable, insert(plain, each)},
		"EnqueueAll":    {"name: JobInsertAlike ", "", ojs.StateAvailable, insert(plain, all)},
		"EnqueueInTx":   {"commit", "", ojs.StateAvailable, insert(plain, inTx)},
		"Complete": {"name: JobComplete ", ojs.StateActive, ojs.StateCompleted, func(b *lossyBundle, id [16]byte) error {
			stored, err := b.Complete(b.T.Context(), job.Ack{JobID: id, WorkerID: "w1", Attempt: 1})
			if err == nil {
				require.Equal(b.T, "completed", stored.State)
			}
			return err
		}},
		"CompleteEach": {"name: JobComplete ", ojs.StateActive, ojs.StateCompleted, func(b *lossyBundle, id [16]byte) error {
			_, errs := b.CompleteEach(b.T.Context(), []job.Ack{{JobID: id, Attempt: -1}})
			return errors.Join(errs...)
		}},
		"Fail": {"name: JobFail ", ojs.StateActive, ojs.StateRetryable, func(b *lossyBundle, id [16]byte) error {
			stored, err := b.Fail(b.T.Context(), job.Nack{JobID: id, WorkerID: "w1", Attempt: 1, Error: failure})
			if err == nil {
				require.Equal(b.T, "retryable", stored.State)
			}
			return err
		}},
		"Requeue": {"name: JobFail ", ojs.StateActive, ojs.StateAvailable, func(b *lossyBundle, id [16]byte) error {
			_, err := b.Fail(b.T.Context(), job.Nack{JobID: id, WorkerID: "w1", Attempt: 1, Requeue: true})
			return err
		}},
		"RequeueLater": {"name: JobFail ", ojs.StateActive, ojs.StateScheduled, func(b *lossyBundle, id [16]byte) error {
			_, err := b.Fail(b.T.Context(), job.Nack{JobID: id, WorkerID: "w1", Attempt: 1, Requeue: true, Delay: time.Hour})
			return err
		}},
		"Cancel": {"commit", ojs.StateAvailable, ojs.StateCancelled, func(b *lossyBundle, id [16]byte) error {
			_, err := b.Cancel(b.T.Context(), id, queue.Cancel{By: "test"})
			return err
		}},
		"Retry": {"commit", ojs.StateDiscarded, ojs.StateAvailable, func(b *lossyBundle, id [16]byte) error {
			stored, err := b.Retry(b.T.Context(), id, nil)
			if err == nil {
				require.Equal(b.T, "available", stored.State)
			}
			return err
		}},
		"BulkCancel": {"commit", ojs.StateAvailable, ojs.StateCancelled, func(b *lossyBundle, id [16]byte) error {
			return b.bulkCancel(id)
		}},
	}
	prepared := func(t *testing.T, c call) (b *lossyBundle, id [16]byte) {
		t.Helper()
		b = setupLossy(t)
		b.warm()
		switch c.from {
		case "":
		case ojs.StateDiscarded:
			id = b.DeadLetter().ID
		default:
			id = b.Enqueued(domaintest.NewJob("q"))[0].ID
		}
		if c.from == ojs.StateActive {
			require.Len(t, b.Fetched(1, "q"), 1)
		}
		return b, id
	}
	count := `SELECT count(*) FROM (SELECT queue, state FROM ojs.jobs UNION ALL SELECT queue, state FROM ojs.jobs_done) j WHERE queue = 'q' AND state = $1`
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("Committed", func(t *testing.T) {
				t.Parallel()
				b, id := prepared(t, c)
				b.network.Break(domaintest.LoseAnswer, c.statement)
				require.NoError(t, c.do(b, id))
				require.Equal(t, 1, b.network.Broken())
				require.Equal(t, 1, b.sane.Number(count, c.to))
				require.Equal(t, 1, b.sane.Number(`SELECT count(*) FROM (SELECT FROM ojs.jobs WHERE queue = 'q' UNION ALL SELECT FROM ojs.jobs_done WHERE queue = 'q') j`))
			})
			t.Run("NotCommitted", func(t *testing.T) {
				t.Parallel()
				b, id := prepared(t, c)
				b.network.Break(domaintest.LoseRequest, c.statement)
				err := c.do(b, id)
				domaintest.RequireCode(t, err, ojs.ErrUnavailable)
				require.Equal(t, 1, b.network.Broken())
				require.Zero(t, b.sane.Number(count, c.to))
				require.NoError(t, c.do(b, id), "the same call again succeeds")
				require.Equal(t, 1, b.sane.Number(count, c.to))
			})
		})
	}

	t.Run("JobThatReplacedAnother", func(t *testing.T) {
		t.Parallel()
		b, _ := prepared(t, call{})
		old := b.Enqueued(uniqueJob("k", "reject"))[0]
		b.network.Break(domaintest.LoseAnswer, "commit")
		stored, err := b.Enqueue(t.Context(), uniqueJob("k", "replace"))
		require.NoError(t, err)
		require.Equal(t, ojs.StateCancelled, b.State(old.ID))
		require.Equal(t, ojs.StateAvailable, b.State(stored.ID))
		b.RequireEmitted()
	})

	// The end of another run is not taken for that of the one which the caller means, even for one that no job has.
	t.Run("AnotherRunHasEnded", func(t *testing.T) {
		t.Parallel()
		for _, attempt := range []int32{0, 2} {
			b, id := prepared(t, calls["Complete"])
			_, err := b.Complete(t.Context(), job.Ack{JobID: id, WorkerID: "w1", Attempt: 1})
			require.NoError(t, err)
			b.network.Break(domaintest.LoseAnswer, "name: JobComplete ")
			_, err = b.Complete(t.Context(), job.Ack{JobID: id, WorkerID: "w1", Attempt: attempt})
			domaintest.RequireCode(t, err, ojs.ErrUnavailable)
		}
	})

	// Nothing was stored whether or not the transaction has committed, and the client is not told that something was.
	t.Run("JobThatWasIgnored", func(t *testing.T) {
		t.Parallel()
		b, _ := prepared(t, call{})
		b.Enqueued(uniqueJob("k", "reject"))
		b.network.Break(domaintest.LoseAnswer, "commit")
		_, err := b.Enqueue(t.Context(), uniqueJob("k", "ignore"))
		domaintest.RequireCode(t, err, ojs.ErrUnavailable)
		require.Equal(t, 1, b.sane.Number(`SELECT count(*) FROM ojs.jobs WHERE unique_key IS NOT NULL`))
	})

	t.Run("JobThatWasCompletedMeanwhile", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b, _ := prepared(t, call{})
		b.Exec(`CREATE FUNCTION ojs.done() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO ojs.jobs_done (id, type, queue, state, priority, attempt, max_attempts, created_at, finished_at, args)
			VALUES (NEW.id, NEW.type, NEW.queue, 'completed', 0, 1, 1, NEW.created_at, now(), NEW.args);
			DELETE FROM ojs.jobs WHERE id = NEW.id; RETURN NULL; END $$`)
		b.Exec(`CREATE TRIGGER done AFTER INSERT ON ojs.jobs FOR EACH ROW EXECUTE FUNCTION ojs.done()`)
		b.network.Break(domaintest.LoseAnswer, "name: JobInsertAlike ")
		stored, err := b.Enqueue(t.Context(), domaintest.NewJob("q"))
		require.NoError(t, err)
		require.Equal(t, "completed", stored.State)
		require.Zero(t, b.sane.Number(`SELECT count(*) FROM ojs.jobs WHERE queue = 'q'`))
	})

	t.Run("JobThatWasDeletedMeanwhile", func(t *testing.T) {
		t.Parallel()
		b, _ := prepared(t, call{})
		b.Exec(`CREATE FUNCTION ojs.gone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DELETE FROM ojs.jobs WHERE id = NEW.id; RETURN NULL; END $$`)
		b.Exec(`CREATE TRIGGER gone AFTER INSERT ON ojs.jobs FOR EACH ROW EXECUTE FUNCTION ojs.gone()`)
		b.network.Break(domaintest.LoseAnswer, "name: JobInsertAlike ")
		stored, err := b.Enqueue(t.Context(), domaintest.NewJob("q"))
		require.NoError(t, err, "it was stored")
		require.Equal(t, "available", stored.State)
	})

	// The backend waits for a lock while the node looks: without its end it would store the job after the answer 503.
	t.Run("BackendThatStillRuns", func(t *testing.T) {
		t.Parallel()
		b, _ := prepared(t, call{})
		tx, err := b.sane.Pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), `LOCK TABLE ojs.jobs IN ACCESS EXCLUSIVE MODE`)
		require.NoError(t, err)
		b.network.Break(domaintest.LoseSession, "name: JobInsertAlike ")
		waiting := `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%name: JobInsertAlike %'`
		_, err = b.Enqueue(t.Context(), domaintest.NewJob("q"))
		domaintest.RequireCode(t, err, ojs.ErrUnavailable)
		require.Equal(t, 1, b.network.Broken())
		require.Zero(t, b.sane.Number(waiting), "the backend would store the job after the answer")
		require.NoError(t, tx.Rollback(context.Background()))
		require.Zero(t, b.sane.Number(`SELECT count(*) FROM ojs.jobs WHERE queue = 'q'`))
	})

	t.Run("DatabaseThatStaysAway", func(t *testing.T) {
		t.Parallel()
		b := setupLossy(t, func(c *domaintest.Config) { c.Database.StatementTimeout = 2 * time.Second })
		b.warm()
		b.network.BreakForGood(domaintest.LoseAnswer, "name: JobInsertAlike ")
		_, err := b.Enqueue(t.Context(), domaintest.NewJob("q"))
		domaintest.RequireCode(t, err, ojs.ErrTimeout)
		wire, ok := errors.AsType[*ojs.Error](err)
		require.True(t, ok)
		require.Equal(t, "unknown", wire.Details["outcome"])
		require.True(t, wire.Retryable)
	})
}
