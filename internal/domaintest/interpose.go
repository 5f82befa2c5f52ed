package domaintest

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
)

// interposer calls do once, before the first statement of that name is sent.
type interposer struct {
	name string
	once sync.Once
	do   func()
}

func (i *interposer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "-- name: "+i.name+" ") {
		i.once.Do(i.do)
	}
	return ctx
}

func (*interposer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Traced returns another pool on the same database, with a tracer of its statements.
func Traced(t testing.TB, pool *pgxpool.Pool, tracer pgx.QueryTracer) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	config.ConnConfig.Tracer = tracer
	traced, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(traced.Close)
	return traced
}

// Before returns another pool on the same database. It calls do before it sends the first statement of that name.
func Before(t testing.TB, pool *pgxpool.Pool, statement string, do func()) *pgxpool.Pool {
	t.Helper()
	return Traced(t, pool, &interposer{name: statement, do: do})
}

// Rerun returns a job that worker w1 runs, and two nodes. Right before node late sends the statement of that name, the job is
// handed back and fetched by worker second; its attempt is 1 again.
func Rerun(t testing.TB, statement, second string) (b, late *Bundle, id [16]byte) {
	t.Helper()
	b = New(t)
	late = On(t, Before(t, b.Pool, statement, func() { b.handOver(id, second) }))
	id = b.Enqueued(NewJob("q"))[0].ID
	b.FetchedBy("w1", 1)
	return b, late, id
}

// handOver may run outside of the goroutine of the test, so it must not call FailNow.
func (b *Bundle) handOver(id [16]byte, worker string) {
	_, err := b.Fail(context.Background(), job.Nack{JobID: id, WorkerID: "w1", Attempt: 1, Requeue: true})
	if err != nil {
		b.T.Error(err)
	}
	jobs, err := b.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: worker})
	if err != nil {
		b.T.Error(err)
	}
	if len(jobs) != 1 || jobs[0].Attempt != 1 {
		b.T.Errorf("fetched again: %v", jobs)
	}
}
