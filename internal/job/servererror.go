package job

import "time"

// Codes of failures that the server finds out by itself (docs/reference/retries.md, Server-made errors).
// They are stored with jobs, and clients compare them. SQL writes some of these failures by itself (ojs.deadline_error), with
// the same codes.
const (
	VisibilityTimeout = "visibility_timeout"
	WorkerDeath       = "worker_death"
	Timeout           = "timeout"
	Stalled           = "stalled"
	TotalTimeout      = "total_timeout"
	EnqueueTTLExpired = "enqueue_ttl_expired"
	Expired           = "expired"
	RateLimited       = "rate_limited"
	Overflow          = "overflow"
	QueueDeleted      = "queue_deleted"
)

// serverError is a row of docs/reference/retries.md, Server-made errors.
type serverError struct {
	timeoutKind string
	retryable   bool
	message     string
}

var serverErrors = map[string]serverError{
	VisibilityTimeout: {"", true, "The reservation ran out before the job was acknowledged."},
	WorkerDeath:       {"", true, "The worker that held the job is dead."},
	Timeout:           {"execution", true, "The attempt ran longer than its execution timeout."},
	Stalled:           {"stalled", true, "The worker was silent for longer than the heartbeat timeout."},
	TotalTimeout:      {"total", false, "The job was not done within its total timeout."},
	EnqueueTTLExpired: {"enqueue_ttl", false, "The job was not started within its enqueue TTL."},
	Expired:           {"", false, "The job expired before it was started."},
	RateLimited:       {"", false, "The job was dropped because its rate limit was reached."},
	Overflow:          {"", false, "The job was dropped because its queue was full."},
	QueueDeleted:      {"", false, "The queue of the job was deleted."},
}

// ServerError is a failure that the server found out by itself. limit and elapsed are shown if limit is not 0.
// An unknown code is a mistake of this program, so it panics. Packages worker and queue make them, for lost reservations,
// deadlines and jobs that are dropped; the text is fixed, so that clients can group by it.
func ServerError(code string, limit, elapsed time.Duration) WorkerError {
	s, ok := serverErrors[code]
	if !ok {
		panic("job: no such server error: " + code)
	}
	return WorkerError{
		Code: code, Type: code, Message: s.message, Retryable: s.retryable, RetryableSet: true,
		ServerMade: code, TimeoutKind: s.timeoutKind, Limit: limit, Elapsed: elapsed,
	}
}
