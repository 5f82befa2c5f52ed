package fakeserver

import (
	"math"
	"slices"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// retryPolicy understands the durations that package ojs writes, and always grows exponentially and without jitter, so that tests know the
// waits.
type retryPolicy struct {
	MaxAttempts        *int     `json:"max_attempts"`
	InitialInterval    string   `json:"initial_interval"`
	MaxInterval        string   `json:"max_interval"`
	BackoffCoefficient float64  `json:"backoff_coefficient"`
	BackoffStrategy    string   `json:"backoff_strategy"`
	OnExhaustion       string   `json:"on_exhaustion"`
	NonRetryableErrors []string `json:"non_retryable_errors"`
}

// fail ends an attempt. It follows the rows of docs/reference/retries.md, Failure, that tests of handlers need; total timeouts
// and patterns with .* are not among them.
func (s *Server) fail(j *record, e ojs.JobError, code string, delay time.Duration) {
	e.Attempt, e.OccurredAt, e.WorkerID = j.Attempt, s.now(), j.WorkerID
	j.Error, j.Errors = &e, append(j.Errors, e)
	s.emit(ojs.EventJobFailed, j, object{"error": e})
	p := j.request.Options.Retry
	final := j.Attempt >= max(j.MaxAttempts, 1) || !e.Retryable || code == "DISCARD" || code == "DEAD_LETTER" ||
		slices.Contains(p.NonRetryableErrors, e.Code) || slices.Contains(p.NonRetryableErrors, e.Type)
	if final {
		j.dead = code == "DEAD_LETTER" || code != "DISCARD" && p.OnExhaustion != "discard"
		s.end(j, ojs.StateDiscarded)
		return
	}
	wait := max(delay, p.backoff(j.Attempt))
	j.State, j.RetryDelayMS, j.due = ojs.StateRetryable, wait.Milliseconds(), s.now().Add(wait)
	j.NextAttemptAt = j.due
	s.emit(ojs.EventJobRetrying, j, object{"next_retry_at": j.due})
}

// backoff is exponential and has no jitter, so that tests know it. The first wait is the initial interval, and each is the
// coefficient times the one before, up to the maximum.
func (p retryPolicy) backoff(attempt int) time.Duration {
	first, most, coefficient := time.Second, 5*time.Minute, 2.0
	if d, err := readDuration(p.InitialInterval); err == nil {
		first = d
	}
	if d, err := readDuration(p.MaxInterval); err == nil {
		most = d
	} else {
		most = max(most, first)
	}
	if p.BackoffCoefficient >= 1 {
		coefficient = p.BackoffCoefficient
	}
	return time.Duration(min(float64(first)*math.Pow(coefficient, float64(attempt-1)), float64(most)))
}

// loseLease keeps the attempt counted.
func (s *Server) loseLease(j *record) {
	e := ojs.JobError{Code: "visibility_timeout", Type: "visibility_timeout", Message: "the reservation is over", Retryable: true,
		Attempt: j.Attempt}
	j.Error, j.Errors = &e, append(j.Errors, e)
	if j.Attempt >= max(j.MaxAttempts, 1) {
		j.dead = j.request.Options.Retry.OnExhaustion != "discard"
		s.end(j, ojs.StateDiscarded)
		return
	}
	s.available(j)
}
