package queue

import (
	"context"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// QueueGetTotals counts queues by status.
func (s *Store) QueueGetTotals(ctx context.Context) (dbsqlc.QueueGetTotalsRow, error) {
	return s.db.Q.QueueGetTotals(ctx)
}

// Forget drops what this node remembers of queues and jobs; what it needs it reads again.
func (s *Store) Forget() {
	s.queues.Clear()
	s.ready.forget()
}
