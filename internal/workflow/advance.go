package workflow

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// turns are the callers of Advance for one root. They share transactions: who comes while one runs waits for the next, which
// begins after its change was committed. Roots do not wait for each other, but for a place among maxAdvancing.
type turns struct{ next *turn }

type turn struct {
	done chan struct{}
	err  error
}

// Advance lets a tree follow all changes of its jobs that are committed.
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
	own := t.next
	s.mu.Unlock()
	<-own.done
	return own.err
}

// serve takes the turns of a root until there is none.
func (s *Store) serve(ctx context.Context, root [16]byte, t *turns) {
	for {
		s.slots <- struct{}{}
		s.mu.Lock()
		own := t.next
		t.next = nil
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

// advancingKey marks the context of a turn. What it changes about jobs of other trees, or of its own, cannot wait for itself.
type advancingKey struct{}

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

// advancePortion is one transaction. Nobody but the holder of the root's lock takes changes of a tree, so a change is followed once.
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
	p.committed(ctx)
	return moved, more, nil
}

// follow is called after commits that ended or revived jobs of workflows. If a tree cannot follow now, the Follower lets it.
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

func (s *Store) followOne(ctx context.Context, root [16]byte) {
	if err := s.Advance(ctx, root); err != nil {
		s.logger.WarnContext(ctx, "a workflow did not follow the change of a job; trying again within seconds",
			slog.String("category", "error"), slog.Group("ojs", "workflow_id", ojs.FormatID(root)), slog.Any("error", err))
		s.Wake()
	}
}

// Wake lets the Follower look for changes that are left over, for example after an application has cancelled a job in SQL.
func (s *Store) Wake() {
	select {
	case s.left <- struct{}{}:
	default:
	}
}
