package ojs

import "fmt"

// ErrNotFound says that a resource is absent: 404. The JS SDK builds its exception from the two details.
func ErrNotFound(resourceType, id string) *Error {
	return NewError(KindNotFound, fmt.Sprintf("%s %s does not exist; check the id.", resourceType, id),
		map[string]any{"resource_type": resourceType, "resource_id": id})
}

// ErrConflict says that an operation is illegal in the job's state: 409. expected are the states in which it is legal.
func ErrConflict(jobID string, current JobState, expected ...JobState) *Error {
	var want any = expected
	if len(expected) == 1 {
		want = expected[0]
	}
	return NewError(KindInvalidStateTransition, fmt.Sprintf("Job %s is in state %s; this operation needs %s.", jobID, current, stateList(expected)),
		map[string]any{"job_id": jobID, "current_state": current, "expected_state": want})
}

// ErrNotOwner says that another worker holds the job: 409.
func ErrNotOwner(jobID, workerID, owner string) *Error {
	return NewError(KindNotOwner, fmt.Sprintf("Job %s is held by worker_id %s, not by %s.", jobID, owner, workerID),
		map[string]any{"job_id": jobID, "worker_id": workerID, "owner_worker_id": owner})
}

// ErrStaleAttempt says that the job has been fetched again since: 409.
func ErrStaleAttempt(jobID string, attempt, current int64) *Error {
	return NewError(KindStaleAttempt, fmt.Sprintf("attempt %d of job %s is over; the current attempt is %d.", attempt, jobID, current),
		map[string]any{"job_id": jobID, "attempt": attempt, "current_attempt": current})
}

// ErrWorkerLives says that only a dead worker may be deleted: 409.
func ErrWorkerLives(id string) *Error {
	return NewError(KindInvalidStateTransition, fmt.Sprintf("Worker %s is not stale; let it terminate or deregister instead.", id),
		map[string]any{"resource_type": "worker", "resource_id": id, "expected_state": "stale"})
}

// ErrIdempotencyConflict says that a key was used for a different request: 409.
func ErrIdempotencyConflict(key string) *Error {
	return NewError(KindIdempotencyConflict, "idempotency_key was already used with a different request body.",
		map[string]any{"field": "idempotency_key", "idempotency_key": key})
}

// ErrDuplicateID says that a client-chosen id is taken: 409.
func ErrDuplicateID(id string) *Error {
	return NewError(KindDuplicateJob, fmt.Sprintf("A job with id %s already exists.", id),
		map[string]any{"field": "id", "existing_job_id": id})
}

// ErrDuplicate says that a live job holds the unique key: 409. The key is given under both names that clients read.
func ErrDuplicate(existingID string, state JobState, uniqueKey string) *Error {
	return NewError(KindDuplicateJob, fmt.Sprintf("An equivalent job, %s, already exists.", existingID), map[string]any{
		"existing_job_id": existingID, "existing_job_state": state, "unique_key": uniqueKey, "uniqueness_key": uniqueKey,
	})
}

// ErrQueuePaused refuses a job for a draining queue: 422.
func ErrQueuePaused(queue string) *Error {
	return NewError(KindQueuePaused, fmt.Sprintf("queue %s is draining and takes no new jobs.", queue),
		map[string]any{"field": "queue", "queue": queue})
}

// ErrQueueFull refuses a job for a queue at its depth bound: 429.
func ErrQueueFull(queue string, limit int64, retryAfterSeconds int) *Error {
	return NewError(KindQueueFull, fmt.Sprintf("queue %s holds its limit of %d jobs.", queue, limit),
		map[string]any{"field": "queue", "queue": queue, "limit": limit, "retry_after_seconds": retryAfterSeconds})
}

// ErrRateLimited refuses a request over the API limit: 429.
func ErrRateLimited(limit, windowSeconds, retryAfterSeconds int) *Error {
	return NewError(KindRateLimited, fmt.Sprintf("More than %d requests in %d s; wait %d s.", limit, windowSeconds, retryAfterSeconds),
		map[string]any{"limit": limit, "window_seconds": windowSeconds, "retry_after_seconds": retryAfterSeconds})
}

// ErrUnavailable says that PostgreSQL cannot be reached, that no connection is free, or that the server drains: 503.
func ErrUnavailable() *Error {
	return NewError(KindUnavailable, "The server cannot take the request at the moment; send it again shortly.", nil)
}

// ErrTimeout says that the database did not answer in time: 504.
func ErrTimeout() *Error {
	return NewError(KindTimeout, "The database did not answer in time; try again.", nil)
}

// ErrInternal hides an unexpected failure, which is logged whole: 500.
func ErrInternal() *Error {
	return NewError(KindInternal, "An unexpected error occurred; it has been logged with the request id.", nil)
}

func stateList(states []JobState) string {
	text := ""
	for i, s := range states {
		if i > 0 {
			text += " or "
		}
		text += string(s)
	}
	return text
}
