package queue

import (
	"context"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// QueueTotals counts queues by status.
func (s *Store) QueueTotals(ctx context.Context) (dbsqlc.QueueTotalsRow, error) {
	return s.db.Q.QueueTotals(ctx)
}

// Forget drops what this node remembers of queues and jobs; what it needs it reads again.
func (s *Store) Forget() {
	s.queues.Clear()
	s.ready.forget()
}
