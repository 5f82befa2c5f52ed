package domaintest

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Failing lets one of the statements that are sent on a Traced pool fail, before PostgreSQL gets it.
type Failing struct {
	mu     sync.Mutex
	on     bool
	left   int    // statements before the one that fails
	failed string // the statement that failed; "": none did
}

// FailAt lets the statement fail that comes after so many others.
func (f *Failing) FailAt(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on, f.left, f.failed = true, n, ""
}

// Heal returns the name of the query that has failed, or "". Statements succeed from now on.
func (f *Failing) Heal() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on = false
	return f.failed
}

// fails counts a statement and reports whether it is the one that shall fail.
func (f *Failing) fails(sql string) bool {
	name := queryName.FindStringSubmatch(sql)
	f.mu.Lock()
	defer f.mu.Unlock()
	if name == nil || !f.on {
		return false
	}
	f.left--
	if f.left != -1 {
		return false
	}
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
