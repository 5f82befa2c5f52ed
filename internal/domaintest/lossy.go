package domaintest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

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
	if m := c.mode(); m != 0 && m != holdAnswer { // pgx reads ahead after a slow write: this read began before the statement at which the connection breaks
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
