package ojs

// JobState is where a job is in its life (docs/reference/jobs.md, States).
type JobState string

// The eight states of a job (docs/reference/jobs.md, States).
const (
	StateScheduled JobState = "scheduled" // waits for scheduled_at
	StatePending   JobState = "pending"   // parked until it is activated
	StateAvailable JobState = "available" // may be fetched
	StateActive    JobState = "active"    // claimed by a worker
	StateRetryable JobState = "retryable" // failed, waits for its backoff
	StateCompleted JobState = "completed" // acknowledged
	StateCancelled JobState = "cancelled" // cancelled, for ever
	StateDiscarded JobState = "discarded" // failed for good or expired; only a manual retry brings it back
)

// Valid reports whether s is one of the eight states.
func (s JobState) Valid() bool {
	switch s {
	case StateScheduled, StatePending, StateAvailable, StateActive, StateRetryable:
		return true
	default:
		return s.Terminal()
	}
}

// Terminal reports whether time alone never takes a job out of s.
func (s JobState) Terminal() bool {
	return s == StateCompleted || s == StateCancelled || s == StateDiscarded
}
