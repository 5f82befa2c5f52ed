package store_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/ojs"
)

// interposer lets something happen once, before the first statement of that name is sent.
type interposer struct {
	name string
	once sync.Once
	do   func()
}

func (i *interposer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "-- name: "+i.name+" ") && i.do != nil {
		i.once.Do(i.do)
	}
	return ctx
}

func (*interposer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// rerun is a job that w1 runs, and that is handed back and fetched by another worker before the statement: the attempt
// is 1 again. late is the store whose statement comes too late.
func rerun(t *testing.T, before, second string) (b, late *bundle, id [16]byte) {
	t.Helper()
	i := &interposer{name: before}
	pool := dbtest.New(t)
	b = newBundle(t, pool)
	config := pool.Config()
	config.ConnConfig.Tracer = i
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(traced.Close)
	late = newBundle(t, traced)
	id = b.enqueued(newJob("q"))[0].ID
	b.fetchedBy("w1", 1)
	i.do = func() {
		_, err := b.Fail(context.Background(), store.Nack{JobID: id, WorkerID: "w1", Attempt: 1, Requeue: true})
		assertNoError(t, err)
		jobs, err := b.Fetch(context.Background(), store.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: second})
		assertNoError(t, err)
		if len(jobs) != 1 || jobs[0].Attempt != 1 {
			t.Errorf("fetched again: %v", jobs)
		}
	}
	return b, late, id
}

func assertNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// A job that was handed back and fetched again has the same attempt number, and perhaps the same worker, but it is another
// run. What was decided about the first one must not become the second one's.
func TestLateForTheRun(t *testing.T) {
	t.Parallel()
	failure := decodeError(t, `{"code":"x","message":"no"}`)

	t.Run("NackWithoutWorkerDecidesAnew", func(t *testing.T) {
		t.Parallel()
		// Whose it is cannot be told (contract 20 §3.3); that it is accepted must be told of the run that it ends.
		b, late, id := rerun(t, "JobFail", "w2")
		failed, err := late.Fail(t.Context(), store.Nack{JobID: id, Attempt: -1, Error: failure})
		require.NoError(t, err)
		require.Equal(t, "retryable", failed.State)
		require.Equal(t, "workers/w2", b.one(`SELECT source FROM ojs.events WHERE job_id = $1 AND type = 'job.failed'`, id))
		require.Contains(t, string(failed.Error), `"w2"`)
		require.NotContains(t, string(failed.Error), `"w1"`)
	})

	t.Run("NackOfTheFirstWorkerIsRefused", func(t *testing.T) {
		t.Parallel()
		b, late, id := rerun(t, "JobFail", "w2")
		_, err := late.Fail(t.Context(), store.Nack{JobID: id, WorkerID: "w1", Attempt: 1, Error: failure})
		requireCode(t, err, ojs.KindNotOwner)
		require.Equal(t, ojs.StateActive, b.state(id))
	})

	t.Run("SweepLeavesIt", func(t *testing.T) {
		t.Parallel()
		b, late, id := rerun(t, "JobListForFail", "w2")
		b.exec(`UPDATE ojs.jobs SET due_at = now() - interval '1 hour', lease_until = now() - interval '1 hour' WHERE id = $1`, id)
		b.exec(`CREATE FUNCTION overdue() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.due_at := now() - interval '1 s'; RETURN NEW; END $$`)
		b.exec(`CREATE TRIGGER overdue BEFORE UPDATE ON ojs.jobs FOR EACH ROW WHEN (NEW.worker_id = 'w2') EXECUTE FUNCTION overdue()`)
		found, failed, err := late.FailOverdue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		require.Equal(t, 1, found)
		require.Zero(t, failed, "the second run is overdue as well, but for reasons of its own")
		_, failed, err = b.FailOverdue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
	})

	t.Run("BurialLeavesIt", func(t *testing.T) {
		t.Parallel()
		b, late, id := rerun(t, "JobListForFail", "w1") // it has come back to life
		b.beat("w1")
		b.silent(61, "w1")
		_, err := late.BuryWorkers(t.Context())
		require.NoError(t, err)
		require.Equal(t, ojs.StateActive, b.state(id))
	})

	// Statements that look and change at once judge the run they change.
	for name, call := range map[string]struct {
		before string
		do     func(s *bundle, id [16]byte, worker string) error
	}{
		"Ack": {"JobComplete", func(s *bundle, id [16]byte, worker string) error {
			_, err := s.Complete(context.Background(), store.Ack{JobID: id, WorkerID: worker, Attempt: 1})
			return err
		}},
		"Progress": {"JobProgress", func(s *bundle, id [16]byte, worker string) error {
			half := 0.5
			_, err := s.ReportProgress(context.Background(), store.Report{JobID: id, WorkerID: worker, Attempt: 1, Progress: &half})
			return err
		}},
		"Checkpoint": {"JobCheckpoint", func(s *bundle, id [16]byte, worker string) error {
			_, err := s.SaveCheckpoint(context.Background(), store.Save{JobID: id, WorkerID: worker, Attempt: 1, Stored: []byte(`{"state":1}`), Sequence: store.NextSequence})
			return err
		}},
	} {
		t.Run(name+"OfTheFirstWorkerIsRefused", func(t *testing.T) {
			t.Parallel()
			b, late, id := rerun(t, call.before, "w2")
			requireCode(t, call.do(late, id, "w1"), ojs.KindNotOwner)
			require.Equal(t, ojs.StateActive, b.state(id))
			require.NoError(t, call.do(late, id, ""), "nobody in particular is believed")
			require.Empty(t, b.texts(`SELECT source FROM ojs.events WHERE job_id = $1 AND source = 'workers/w1' AND seq > (SELECT max(seq) FROM ojs.events WHERE type = 'job.started')`, id))
		})
	}

	t.Run("HeartbeatOfTheFirstWorkerExtendsNothing", func(t *testing.T) {
		t.Parallel()
		_, late, id := rerun(t, "JobHeartbeat", "w2")
		res := late.beat("w1", id)
		require.Empty(t, res.Extended)
		require.Equal(t, [][16]byte{id}, res.Lost)
	})
}
