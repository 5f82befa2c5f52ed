package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// A job that was handed back and fetched again is in another run, with the same attempt and perhaps the same worker. A decision
// about the first run must not be applied to the second one.
func TestLateForTheRun(t *testing.T) {
	t.Parallel()
	failure := domaintest.DecodeError(t, `{"code":"x","message":"no"}`)

	t.Run("NackWithoutWorkerEndsTheSecondRun", func(t *testing.T) {
		t.Parallel()
		// A nack without a worker id is accepted; its events must name the worker whose run it ends.
		b, late, id := domaintest.Rerun(t, "JobFail", "w2")
		failed, err := late.Fail(t.Context(), job.Nack{JobID: id, Attempt: -1, Error: failure})
		require.NoError(t, err)
		require.Equal(t, "retryable", failed.State)
		require.Equal(t, "workers/w2", b.One(`SELECT source FROM ojs.events WHERE job_id = $1 AND type = 'job.failed'`, id))
		require.Contains(t, string(failed.Error), `"w2"`)
		require.NotContains(t, string(failed.Error), `"w1"`)
	})

	t.Run("NackOfTheFirstWorkerIsRefused", func(t *testing.T) {
		t.Parallel()
		b, late, id := domaintest.Rerun(t, "JobFail", "w2")
		_, err := late.Fail(t.Context(), job.Nack{JobID: id, WorkerID: "w1", Attempt: 1, Error: failure})
		domaintest.RequireCode(t, err, ojs.ErrNotOwner)
		require.Equal(t, ojs.StateActive, b.State(id))
	})

	// Attempt, start and worker of a job stay those of the run that has ended until the next one begins.
	t.Run("ASecondReportOfOneRunChangesNothing", func(t *testing.T) {
		t.Parallel()
		nack := func(ctx context.Context, b *domaintest.Bundle, id [16]byte, retryable bool) error {
			_, err := b.Fail(ctx, job.Nack{JobID: id, WorkerID: "w1", Attempt: 1, Error: domaintest.DecodeError(t, fmt.Sprintf(`{"code":"x","message":"no","retryable":%t}`, retryable))})
			return err
		}
		for name, first := range map[string]func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error{
			"Retried":   func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error { return nack(ctx, b, id, true) },
			"Discarded": func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error { return nack(ctx, b, id, false) },
			"Cancelled": func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error {
				_, err := b.Cancel(ctx, id, queue.Cancel{})
				return err
			},
			"Completed": func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error {
				_, err := b.Complete(ctx, job.Ack{JobID: id, WorkerID: "w1", Attempt: 1})
				return err
			},
		} {
			for _, statement := range []string{"JobFail", "JobComplete"} {
				b := domaintest.New(t)
				id := b.Enqueued(domaintest.NewJob("q"))[0].ID
				b.FetchedBy("w1", 1)
				var events []string
				late := domaintest.On(t, domaintest.Before(t, b.Pool, statement, func() {
					if err := first(context.Background(), b, id); err != nil {
						t.Error(err)
					}
					events = b.EventTypes(id)
				}))
				// It is refused, or, as the same report, has the answer of the first one.
				if statement == "JobFail" {
					_ = nack(t.Context(), late, id, true)
				} else {
					_, _ = late.Complete(t.Context(), job.Ack{JobID: id, WorkerID: "w1", Attempt: 1})
				}
				require.NotEmpty(t, events)
				require.Equal(t, events, b.EventTypes(id), name+statement)
			}
		}
	})

	t.Run("SweepDoesNotFailTheSecondRun", func(t *testing.T) {
		t.Parallel()
		b, late, id := domaintest.Rerun(t, "JobListForFail", "w2")
		b.Exec(`UPDATE ojs.jobs SET due_at = now() - interval '1 hour', lease_until = now() - interval '1 hour' WHERE id = $1`, id)
		b.Exec(`CREATE FUNCTION overdue() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.due_at := now() - interval '1 s'; RETURN NEW; END $$`)
		b.Exec(`CREATE TRIGGER overdue BEFORE UPDATE ON ojs.jobs FOR EACH ROW WHEN (NEW.worker_id = 'w2') EXECUTE FUNCTION overdue()`)
		found, failed, err := late.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, found)
		require.Zero(t, failed, "the second run is overdue as well, but was not listed")
		_, failed, err = b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, failed)
	})

	t.Run("HeartbeatBetweenLookAndChange", func(t *testing.T) {
		t.Parallel()
		beat := &before{statement: "-- name: JobFail "}
		b := setup(t)
		sweeper := domaintest.On(t, domaintest.Traced(t, b.Pool, beat))
		id := b.Enqueued(domaintest.NewJob("q"))[0].ID
		b.Fetched(1, "q")
		b.Exec(`UPDATE ojs.jobs SET due_at = now(), lease_until = now()`)
		beat.do = func() {
			b.Exec(`UPDATE ojs.jobs SET due_at = now() + interval '1 hour', lease_until = now() + interval '1 hour'`)
		}
		found, failed, err := sweeper.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, 1, found)
		require.Zero(t, failed, "the worker is alive and has extended its lease")
		require.Equal(t, ojs.StateActive, b.State(id))
	})

	// JobComplete checks and changes the row at once, so it sees the second run.
	t.Run("AckOfTheFirstWorkerIsRefused", func(t *testing.T) {
		t.Parallel()
		b, late, id := domaintest.Rerun(t, "JobComplete", "w2")
		_, err := late.Complete(t.Context(), job.Ack{JobID: id, WorkerID: "w1", Attempt: 1})
		domaintest.RequireCode(t, err, ojs.ErrNotOwner)
		require.Equal(t, ojs.StateActive, b.State(id))
		_, err = late.Complete(t.Context(), job.Ack{JobID: id, Attempt: 1})
		require.NoError(t, err, "without a worker id, the attempt decides")
		require.Empty(t, b.Texts(`SELECT source FROM ojs.events WHERE job_id = $1 AND source = 'workers/w1' AND seq > (SELECT max(seq) FROM ojs.events WHERE type = 'job.started')`, id))
	})
}

// before is a tracer that calls do before each statement of that name.
type before struct {
	statement string
	do        func()
}

func (b *before) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.HasPrefix(q.SQL, b.statement) {
		b.do()
	}
	return ctx
}

func (*before) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
