package eventlog

import (
	"cmp"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/pg"
)

// testBundle is a database with a relay that the test drives itself, pass by pass.
type testBundle struct {
	pool   *pgxpool.Pool
	relay  *Relay
	reader *Reader
}

func setup(t *testing.T, c RelayConfig) *testBundle {
	t.Helper()
	dbtest.WritesTables(t) // events of jobs that there are not
	pool := dbtest.New(t)
	c.Events.ServiceName = cmp.Or(c.Events.ServiceName, "ojs")
	relay := NewRelay(riversharedtest.BaseServiceArchetype(t), pool, c)
	return &testBundle{pool: pool, relay: relay, reader: NewReader(pg.New(pool, time.Minute), relay)}
}

func (b *testBundle) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := b.pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// reset empties the tables. Like the server it tries again after a deadlock with a statement that reads several of them.
func (b *testBundle) reset(t *testing.T) {
	t.Helper()
	require.NoError(t, pg.New(b.pool, time.Minute).Reset(t.Context()))
}

// pass runs one pass.
func (b *testBundle) pass(t *testing.T) pass {
	t.Helper()
	done, err := b.relay.runOnce(t.Context())
	require.NoError(t, err)
	return done
}

// passOver runs the two passes that a missing number takes without delay: one sees it missing, the next goes past it.
func (b *testBundle) passOver(t *testing.T) {
	t.Helper()
	b.pass(t)
	b.pass(t)
}

// publishAll runs passes until everything visible is published.
func (b *testBundle) publishAll(t *testing.T) {
	t.Helper()
	b.passUntil(t, func(p pass) bool { return p.caughtUp() })
}

// passUntil runs passes until one is as wanted. Transactions of other tests hold back xmin for a while: a server has one
// set of xids for all its databases.
func (b *testBundle) passUntil(t *testing.T, wanted func(pass) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return wanted(b.pass(t)) }, waitFor, time.Millisecond)
}

// noGaps is reached when every number that was passed over is accounted for.
func noGaps(p pass) bool { return p.caughtUp() && !p.gaps }

func (b *testBundle) readAll(t *testing.T) []Event {
	t.Helper()
	events := []Event{}
	for query := (Query{Limit: 100_000}); ; {
		page, err := b.reader.ListAfter(t.Context(), query)
		require.NoError(t, err)
		if events = append(events, page.Events...); !page.HasMore {
			return events
		}
		query.After = &page.End
	}
}

func queues(events []Event) []string {
	list := make([]string, 0, len(events))
	for _, e := range events {
		list = append(list, e.Queue)
	}
	return list
}

// insert writes one public event that carries its name as its queue. It is not published yet.
const insertEvent = `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state, priority)
	VALUES ('job.enqueued', 'api', clock_timestamp(), gen_random_uuid(), 'test', $1, 'available', 0)`

// open begins a transaction that has written the named events and stays open.
func (b *testBundle) open(t *testing.T, names ...string) pgx.Tx {
	t.Helper()
	tx, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	for _, name := range names {
		_, err := tx.Exec(t.Context(), insertEvent, name)
		require.NoError(t, err)
	}
	return tx
}

// waitFor is how long tests wait for what must happen. It costs time only when a test fails.
const waitFor = time.Minute

// await is the next value of a test signal's WaitC.
func await[T any](t testing.TB, c <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-c:
	case <-time.After(waitFor):
		require.Fail(t, "nothing came", "within %s", waitFor)
	}
	return value
}

// logLines are lines that a logger has written.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	offer(l, string(line))
	return len(line), nil
}

func discardLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }
