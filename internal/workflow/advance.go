package workflow

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
)

// turns are the callers of Advance for one root. They share transactions: who comes while one runs waits for the next, which
// begins after its change was committed. Roots do not wait for each other, but for a place among maxAdvancing. next is nil
// while no caller waits, and is guarded by Store.mu. Sharing matters for groups: the acks of a hundred members come close
// together, and all that came during one transaction need one more, not a hundred.
type turns struct{ next *turn }

// err is written before done is closed and read after it, so it needs no lock.
type turn struct {
	done chan struct{}
	err  error
}

// Advance lets a tree follow all changes of its jobs that are committed. When it returns nil, all changes that were
// committed before the call have been followed, by this node or by another one. After an error, portions that were
// committed stay, the rest is left in workflow_pending, and a later call goes on. It may run on several nodes for one root
// at once: they wait for each other at the lock of the root, and the one that comes late finds no rows.
//
// It returns only when its turn has ended, even if ctx ends before: an answer that goes out earlier would promise a next
// step that cannot be fetched yet. The turn keeps the values of ctx but not its end, because other callers share it. An
// unknown root is no error; what is pending of it is deleted.
func (s *Store) Advance(ctx context.Context, root [16]byte) error {
	s.mu.Lock()
	t := s.turns[root]
	if t == nil {
		t = &turns{}
		s.turns[root] = t
		go s.serve(context.WithoutCancel(ctx), root, t)
	}
	if t.next == nil {
		t.next = &turn{done: make(chan struct{})}
	}
	// The turn is taken under mu together with the check for nil. A caller that added itself after serve has taken the turn
	// would wait for a transaction that may have read the pending rows before the change of that caller was committed.
	own := t.next
	s.mu.Unlock()
	<-own.done
	return own.err
}

// serve takes the turns of a root until there is none. One goroutine per root and node runs it, so a node never holds two
// connections for one root.
func (s *Store) serve(ctx context.Context, root [16]byte, t *turns) {
	for {
		// The place is taken before the turn: callers that arrive while the root waits for a place join the turn that is to
		// come, and not one more behind it.
		s.slots <- struct{}{}
		s.mu.Lock()
		own := t.next
		t.next = nil
		// The entry is deleted under the mu that found no caller. Otherwise a caller could add itself to an entry that
		// nobody serves any more.
		if own == nil {
			delete(s.turns, root)
		}
		s.mu.Unlock()
		if own != nil {
			own.err = s.advance(ctx, root)
			close(own.done)
		}
		<-s.slots
		if own == nil {
			return
		}
	}
}

// advancingKey marks the context of a turn. What it changes about jobs of other trees, or of its own, cannot wait for
// itself. Example: an insert of a turn replaces a job of another workflow, by its unique policy. The hook of that change is
// called in the turn. If it waited for Advance of the same root, it would wait for itself; if for another root, two turns
// could wait for each other or for the places that they hold.
type advancingKey struct{}

// It runs portions until none is left, each in a transaction of its own, so that the lock of the root is free in between
// and a cancel gets its turn.
func (s *Store) advance(ctx context.Context, root [16]byte) (err error) {
	defer func() { // a panic would leave every later caller waiting
		if p := recover(); p != nil {
			err = fmt.Errorf("advance workflow: panic: %v", p)
		}
	}()
	ctx, span := s.tracer.Pass(context.WithValue(ctx, advancingKey{}, true), "ojs.workflow.advance")
	moved := 0
	defer func() { span.End(moved, err) }()
	for more := true; more; {
		var n int
		if n, more, err = s.advancePortion(ctx, root); err != nil {
			return err
		}
		moved += n
	}
	return nil
}

// advancePortion is one transaction. Nobody but the holder of the root's lock takes changes of a tree, so a change is
// followed once. It is repeated after a deadlock or a serialization failure, with a new pass: what the failed try had in
// memory was never stored. A commit whose outcome did not arrive is an error here, and harmless: if it has committed, the
// pending rows are gone, and the next try does not find them. Its log lines, spans and wake-ups are lost then; the loops
// that poll make up for the wake-ups.
func (s *Store) advancePortion(ctx context.Context, root [16]byte) (moved int, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	var p *pass
	err = pg.Retry(func() error {
		return s.db.InPartitionedTx(ctx, func(tx pgx.Tx) (err error) {
			p = newPass(s, tx)
			moved, more, err = p.advance(ctx, root)
			return err
		})
	})
	if err != nil {
		return 0, false, err
	}
	// Only after the commit: a fetch that is woken earlier would not find the jobs.
	p.committed(ctx)
	return moved, more, nil
}

// follow is called after commits that ended or revived jobs of workflows. If a tree cannot follow now, the Follower lets
// it. It is the hook of queue.Store.OnWorkflowJobs and returns no error, because the change of the job is committed and
// must be answered as a success. Roots go side by side, and maxAdvancing bounds how many transactions that makes: an ack of
// many jobs may name hundreds of roots.
func (s *Store) follow(ctx context.Context, roots [][16]byte) {
	if ctx.Value(advancingKey{}) != nil {
		s.Wake()
		return
	}
	if len(roots) == 1 {
		s.followOne(ctx, roots[0])
		return
	}
	var all sync.WaitGroup
	for _, root := range roots {
		all.Go(func() { s.followOne(ctx, root) })
	}
	all.Wait()
}

// The line is a warning, as nothing is lost: the pending rows stay.
func (s *Store) followOne(ctx context.Context, root [16]byte) {
	if err := s.Advance(ctx, root); err != nil {
		s.logger.WarnContext(ctx, "a workflow did not follow the change of a job; trying again within seconds",
			slog.String("category", "error"), slog.Group("ojs", "workflow_id", spec.FormatID(root)), slog.Any("error", err))
		s.Wake()
	}
}

// Wake lets the Follower look for changes that are left over, for example after an application has cancelled a job in SQL.
// It never blocks and may be called from any goroutine, also before the Follower has started: the signal stays in the
// channel.
func (s *Store) Wake() {
	select {
	case s.left <- struct{}{}:
	default:
	}
}
