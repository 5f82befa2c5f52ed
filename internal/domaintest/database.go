package domaintest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// Statements counts the statements that are sent on a Traced pool, by the name of the query.
type Statements struct {
	mu   sync.Mutex
	sent map[string]int
}

var queryName = regexp.MustCompile(`^-- name: (\w+) `)

// TraceQueryStart counts a statement.
func (s *Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if name := queryName.FindStringSubmatch(q.SQL); name != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sent == nil {
			s.sent = map[string]int{}
		}
		s.sent[name[1]]++
	}
	return ctx
}

// TraceQueryEnd does nothing.
func (*Statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Sent returns how often the query was sent.
func (s *Statements) Sent(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[name]
}

// Total returns how many named queries were sent.
func (s *Statements) Total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, count := range s.sent {
		n += count
	}
	return n
}

// interposer calls do once, before the nth statement of that name is sent.
type interposer struct {
	name string
	n    int64
	sent atomic.Int64
	do   func()
}

func (i *interposer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "-- name: "+i.name+" ") && i.sent.Add(1) == i.n {
		i.do()
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
	return BeforeNth(t, pool, statement, 1, do)
}

// BeforeNth is Before for a later statement of that name, counted from 1.
func BeforeNth(t testing.TB, pool *pgxpool.Pool, statement string, n int, do func()) *pgxpool.Pool {
	t.Helper()
	return Traced(t, pool, &interposer{name: statement, n: int64(n), do: do})
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

// Failing lets some of the statements that are sent on a Traced pool fail, before PostgreSQL gets them.
type Failing struct {
	mu     sync.Mutex
	left   int    // statements before the first that fails
	fail   int    // statements that fail then
	failed string // the statement that failed last; "": none did
}

// FailAt lets the statement fail that comes after so many others.
func (f *Failing) FailAt(n int) { f.FailSome(n, 1) }

// FailSome lets so many statements fail, one after the other, that come after n others.
func (f *Failing) FailSome(n, fail int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.fail, f.failed = n, fail, ""
}

// Heal returns the name of the query that has failed last, or "". Statements succeed from now on.
func (f *Failing) Heal() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = 0
	return f.failed
}

// fails counts a statement and reports whether it is the one that shall fail.
func (f *Failing) fails(sql string) bool {
	name := queryName.FindStringSubmatch(sql)
	f.mu.Lock()
	defer f.mu.Unlock()
	if name == nil || f.fail == 0 {
		return false
	}
	if f.left > 0 {
		f.left--
		return false
	}
	f.fail--
	f.failed = name[1]
	return true
}

func cancelledContext(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// TraceQueryStart lets a statement fail.
func (f *Failing) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if f.fails(q.SQL) {
		return cancelledContext(ctx)
	}
	return ctx
}

// TraceQueryEnd does nothing.
func (*Failing) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart lets a batch fail that contains the statement.
func (f *Failing) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		if f.fails(q.SQL) {
			return cancelledContext(ctx)
		}
	}
	return ctx
}

// TraceBatchQuery does nothing.
func (*Failing) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd does nothing.
func (*Failing) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// Loss is how a connection to the database breaks.
type Loss int

// The ways in which a connection breaks.
const (
	LoseRequest Loss = iota + 1 // before the statement reaches Postgres
	LoseAnswer                  // after Postgres has answered, before the answer is read
	LoseSession                 // while the statement runs; Postgres does not notice
	holdAnswer                  // see Hold
)

// Lossy is a network to the database that breaks a connection at a statement, once.
type Lossy struct {
	mu     sync.Mutex
	at     string // "name: X " of a query, or a whole command; "": none
	loss   Loss
	broken int
	away   bool // no new connections
	held   *Held
}

// Held is an answer of Postgres that has not reached the node.
type Held struct {
	Arrived   chan struct{} // closed when Postgres has answered
	Abandoned chan struct{} // closed when the node waits no longer
	released  chan struct{}
	abandon   sync.Once
}

// Release lets the answer reach the node.
func (h *Held) Release() { close(h.released) }

// NewLossy returns a pool of one connection on the same database, over a network that breaks.
func NewLossy(t testing.TB, pool *pgxpool.Pool) (*pgxpool.Pool, *Lossy) {
	t.Helper()
	l := &Lossy{}
	config := pool.Config()
	config.MaxConns, config.MinIdleConns, config.MinConns = 1, 0, 0
	config.ConnConfig.Tracer = l
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		l.mu.Lock()
		away := l.away
		l.mu.Unlock()
		if away {
			return nil, errors.New("the database is away")
		}
		conn, err := dial(ctx, network, addr)
		return &lossyConn{Conn: conn}, err
	}
	lossy, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(lossy.Close)
	return lossy, l
}

// Break breaks the connection at the next statement: "name: X " for a query, else the whole command.
func (l *Lossy) Break(loss Loss, at string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at, l.loss = at, loss
}

// Hold holds the answer to the next statement back, which is named as for Break.
func (l *Lossy) Hold(at string) *Held {
	l.Break(holdAnswer, at)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = &Held{Arrived: make(chan struct{}), Abandoned: make(chan struct{}), released: make(chan struct{})}
	return l.held
}

// BreakForGood is Break; no connection can be made afterwards.
func (l *Lossy) BreakForGood(loss Loss, at string) {
	l.Break(loss, at)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = true
}

// Restore lets connections be made again.
func (l *Lossy) Restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = false
}

// Broken is how many connections have been broken.
func (l *Lossy) Broken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken
}

func (l *Lossy) start(conn *pgx.Conn, sql string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == "" || sql != l.at && (!strings.HasPrefix(l.at, "name: ") || !strings.Contains(sql, l.at)) {
		return
	}
	conn.PgConn().Conn().(*lossyConn).lose(l.loss, l.held)
	l.at = ""
	l.broken++
}

// TraceQueryStart looks at a statement before it is sent.
func (l *Lossy) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	l.start(conn, q.SQL)
	return ctx
}

// TraceQueryEnd does nothing.
func (*Lossy) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart looks at a pipeline before it is sent.
func (l *Lossy) TraceBatchStart(ctx context.Context, conn *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	for _, q := range b.Batch.QueuedQueries {
		l.start(conn, q.SQL)
	}
	return ctx
}

// TraceBatchQuery does nothing.
func (*Lossy) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd does nothing.
func (*Lossy) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

type lossyConn struct {
	net.Conn
	mu   sync.Mutex
	loss Loss
	held *Held
}

func (c *lossyConn) lose(loss Loss, held *Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loss, c.held = loss, held
	if loss == LoseRequest || loss == LoseSession {
		_ = c.Conn.SetReadDeadline(time.Now()) // ends a read that has begun
	}
}

func (c *lossyConn) mode() Loss {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loss
}

// cancelRequest is the beginning of the message by which pgx cancels a statement whose connection broke.
var cancelRequest = []byte{0, 0, 0, 16, 4, 210, 22, 46}

// Write loses cancel requests too: a network that is broken for the statement does not carry them.
func (c *lossyConn) Write(b []byte) (int, error) {
	if bytes.HasPrefix(b, cancelRequest) {
		return 0, io.ErrClosedPipe
	}
	if c.mode() == LoseRequest {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *lossyConn) Read(b []byte) (int, error) {
	switch c.mode() {
	case LoseRequest, LoseSession:
		return 0, io.ErrUnexpectedEOF
	case LoseAnswer:
		if _, err := c.Conn.Read(b); err != nil {
			return 0, err
		}
		return 0, io.ErrUnexpectedEOF
	case holdAnswer:
		n, err := c.Conn.Read(b)
		close(c.held.Arrived)
		select {
		case <-c.held.released:
		case <-c.held.Abandoned:
			c.lose(LoseRequest, nil)
			return 0, os.ErrDeadlineExceeded
		}
		c.lose(0, nil)
		return n, err
	}
	n, err := c.Conn.Read(b)
	// pgx reads ahead after a slow write: this read began before the statement at which the connection breaks.
	if m := c.mode(); m != 0 && m != holdAnswer {
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// SetDeadline is how pgx gives a statement up.
func (c *lossyConn) SetDeadline(t time.Time) error {
	if c.mode() == holdAnswer && !t.IsZero() {
		c.held.abandon.Do(func() { close(c.held.Abandoned) })
	}
	return c.Conn.SetDeadline(t)
}

// Close leaves the connection of a lost session open, as a network does that swallows packets.
func (c *lossyConn) Close() error {
	if c.mode() == LoseSession {
		return nil
	}
	return c.Conn.Close()
}

// LockedCall is a call of worker w1 for an active job, and the state of the job after the call.
type LockedCall struct {
	Do   func(ctx context.Context, b *Bundle, id [16]byte) error
	Then ojs.JobState
}

// TestLocked runs a subtest for each call. While another transaction has locked the row of a job, the call for that job waits,
// and the same call for another job does not.
func TestLocked(t *testing.T, calls map[string]LockedCall) {
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := New(t)
			b.Enqueued(NewJob("q"), NewJob("q"))
			jobs := b.Fetched(2, "q")
			require.Len(t, jobs, 2)
			tx := b.Lock(jobs[0].ID)

			locked := make(chan error, 1)
			go func() { locked <- call.Do(t.Context(), b, jobs[0].ID) }()
			free := make(chan error, 1)
			go func() { free <- call.Do(t.Context(), b, jobs[1].ID) }()
			select {
			case err := <-free:
				require.NoError(t, err)
			case <-time.After(WaitFor):
				require.Fail(t, "the call waits for the row of another job")
			}
			require.Equal(t, call.Then, b.State(jobs[1].ID))
			require.Empty(t, locked)

			require.NoError(t, tx.Rollback(t.Context()))
			require.NoError(t, <-locked)
			require.Equal(t, call.Then, b.State(jobs[0].ID))
		})
	}
}

// Plan is a node of a plan, with those below it.
type Plan struct {
	Type     string `json:"Node Type"`
	Relation string `json:"Relation Name"`
	Index    string `json:"Index Name"`
	Cond     string `json:"Index Cond"`
	Plans    []Plan `json:"Plans"`
}

// Explained is the plan that the sessions of the pool use for a statement with parameters.
func Explained(t testing.TB, conn *pgxpool.Conn, statement string) Plan {
	t.Helper()
	described, err := conn.Conn().Prepare(t.Context(), "", statement)
	require.NoError(t, err)
	args := strings.TrimSuffix(strings.Repeat("NULL,", len(described.ParamOIDs)), ",")
	if args != "" {
		args = "(" + args + ")"
	}
	_, err = conn.Exec(t.Context(), "PREPARE explained AS "+statement)
	require.NoError(t, err)
	var text []byte
	require.NoError(t, conn.QueryRow(t.Context(), "EXPLAIN (FORMAT JSON) EXECUTE explained"+args).Scan(&text))
	_, err = conn.Exec(t.Context(), "DEALLOCATE explained")
	require.NoError(t, err)
	var plans []struct{ Plan Plan }
	require.NoError(t, json.Unmarshal(text, &plans))
	return plans[0].Plan
}

// Problems are joins that read whole tables, and scans of all of a table that grows or of an index of it. whole says of which indexes
// the statement may read the beginning, up to its LIMIT.
func (p Plan) Problems(grows, whole func(name string) bool) (found []string) {
	switch {
	case strings.Contains(p.Type, "Hash Join") || strings.Contains(p.Type, "Merge Join"):
		found = append(found, p.Type)
	case grows(p.Relation) && (p.Type == "Seq Scan" || strings.HasPrefix(p.Type, "Bitmap")),
		grows(p.Relation) && strings.HasPrefix(p.Type, "Index") && p.Cond == "" && !whole(p.Index):
		found = append(found, p.Type+" of "+p.Relation+" "+p.Index)
	}
	for _, child := range p.Plans {
		found = append(found, child.Problems(grows, whole)...)
	}
	return found
}

// Indexes are those that the plan reads.
func (p Plan) Indexes() (found []string) {
	if p.Index != "" {
		found = append(found, p.Index)
	}
	for _, child := range p.Plans {
		found = append(found, child.Indexes()...)
	}
	return found
}

// Sorted are the indexes whose order does not serve the plan: it reads and sorts all that their condition finds, whatever LIMIT follows.
func (p Plan) Sorted() (found []string) {
	if strings.HasSuffix(p.Type, "Sort") {
		found = p.unbounded()
	}
	for _, child := range p.Plans {
		found = append(found, child.Sorted()...)
	}
	return found
}

// unbounded are the indexes that the plan reads without a LIMIT.
func (p Plan) unbounded() (found []string) {
	if p.Type == "Limit" {
		return nil
	}
	if p.Index != "" {
		found = append(found, p.Index)
	}
	for _, child := range p.Plans {
		found = append(found, child.unbounded()...)
	}
	return found
}
