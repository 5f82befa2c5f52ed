package metrics

import (
	"context"
	"time"
)

// ReadySurvey finds the ages of the first jobs of queues.
type ReadySurvey = readySurvey

// ErrTooCostly says that a full read has to wait.
var ErrTooCostly = errTooSlow

// Ages reads the ages.
func (s *readySurvey) Ages(ctx context.Context, db *Database, queues []string) (map[string]time.Duration, error) {
	return s.ages(ctx, db, queues)
}

// SetLast sets the time of the last full read, and how long it took.
func (s *readySurvey) SetLast(at time.Time, cost time.Duration) { s.at, s.took = at, cost }
