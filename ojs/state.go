package ojs

// JobState is the state of a job (docs/reference/jobs.md, States).
type JobState string

// The eight states of a job (docs/reference/jobs.md, States).
const (
	StateScheduled JobState = "scheduled" // waits for scheduled_at
	StatePending   JobState = "pending"   // waits to be activated by a call
	StateAvailable JobState = "available" // can be fetched
	StateActive    JobState = "active"    // reserved by a worker
	StateRetryable JobState = "retryable" // failed, waits for its backoff
	StateCompleted JobState = "completed" // acknowledged
	StateCancelled JobState = "cancelled" // final
	StateDiscarded JobState = "discarded" // failed without further retries, or expired; only a manual retry changes it
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

// Terminal reports whether the server never changes the state s by itself. A discarded job can still be retried by hand.
func (s JobState) Terminal() bool {
	return s == StateCompleted || s == StateCancelled || s == StateDiscarded
}
