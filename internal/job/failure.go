package job

import (
	"slices"
	"strings"
	"time"
)

// Failure is one failed attempt, as DecideFailure sees it. The caller takes all of it from one snapshot of the job's row, the clock
// included. It decides outside of the statement that applies the outcome, so that statement checks again that the run is still
// the one that failed.
type Failure struct {
	Attempt     int64 // the attempt that failed, from 1
	MaxAttempts int64 // of the job; Policy.MaxAttempts plays no part
	Policy      RetryPolicy

	Requeue      bool          // the worker hands the job back; the error does not matter
	Delay        time.Duration // asked for by the worker: how long the job is not to be fetched
	Code         string        // of the normalised error
	Type         string
	ErrorClass   string // details.error_class, if it is a string
	Retryable    bool   // the error's flag
	RetryableSet bool   // false: the flag was absent
	ServerMade   string // code of a server-made failure, else ""

	// It is compared with TotalTimeout, together with the delay and the run that would follow.
	Elapsed      time.Duration // since the enqueue or the latest manual retry, by the database clock
	TotalTimeout time.Duration // 0: none
	RunTimeout   time.Duration // execution timeout of the next attempt
}

// FailureKind is the transition that a failure takes. Numbers T8 to T10 are those of the reference; a FailureKind is never stored.
type FailureKind int

// The transitions that a failure can take, numbered as in docs/reference/jobs.md, Transitions.
const (
	FailureRetry   FailureKind = iota // T8: wait for Delay in retryable
	FailureRelease                    // T10: back to available, or with a Delay to scheduled; the attempt is not counted
	FailureDiscard                    // T9
	FailureLost                       // T10: back to available at once, the attempt is counted
)

// FailureOutcome is what DecideFailure chose.
type FailureOutcome struct {
	Kind       FailureKind
	DeadLetter bool          // with FailureDiscard: the job becomes a dead letter
	Delay      time.Duration // with FailureRetry and FailureRelease
}

// DecideFailure applies docs/reference/retries.md, Failure; the first rule that fits wins. It has no side effects, but a delay with
// jitter is drawn anew by each call: decide once.
func DecideFailure(in Failure) FailureOutcome {
	switch {
	// First, because a worker that hands a job back says nothing about the job, whatever error it may have sent.
	case in.Requeue:
		return FailureOutcome{Kind: FailureRelease, Delay: in.Delay}
	// Letter case counts (docs/reference/retries.md, Failure).
	case in.Code == "DISCARD" || in.Code == "FAIL":
		return FailureOutcome{Kind: FailureDiscard}
	case in.Code == "DEAD_LETTER":
		return FailureOutcome{Kind: FailureDiscard, DeadLetter: true}
	}
	discard := FailureOutcome{Kind: FailureDiscard, DeadLetter: in.Policy.OnExhaustion != ExhaustDiscard}
	// max_attempts 0 means one attempt. The number of the job counts, not that of the policy, because a manual retry or a
	// shortcut may have set it alone.
	if in.Attempt >= max(1, in.MaxAttempts) || in.nonRetryable() {
		return discard
	}
	// Nobody knows how a lost attempt ended, so there is nothing to back off from.
	next := FailureOutcome{Kind: FailureLost}
	if !in.lost() {
		next = FailureOutcome{Kind: FailureRetry, Delay: max(in.Delay, in.Policy.delay(int(in.Attempt)))}
	}
	if in.TotalTimeout > 0 && in.TotalTimeout < in.Elapsed+next.Delay+in.RunTimeout {
		return discard // the next attempt could not end in time
	}
	return next
}

// lost reports whether nobody knows how the attempt ended: the job goes back at once, without backoff. Its error is made by the
// server, so a pattern of the client must not match it.
func (in Failure) lost() bool {
	return in.ServerMade == VisibilityTimeout || in.ServerMade == WorkerDeath
}

// nonRetryable goes by the flag of the worker if it was sent; the list of codes, in any letter case, is only for workers that send none.
func (in Failure) nonRetryable() bool {
	if !in.lost() && slices.ContainsFunc(in.Policy.NonRetryable, func(entry string) bool {
		return matches(entry, in.Type) || matches(entry, in.ErrorClass) || matches(entry, in.Code)
	}) {
		return true
	}
	if in.RetryableSet {
		return !in.Retryable && in.Code != "RETRY"
	}
	switch strings.ToLower(in.Code) {
	case "cancelled", "invalid_payload", "invalid_request", "schema_validation", "not_found", "duplicate", "unsupported",
		"job_cancelled", "non_retryable_error":
		return true
	default:
		return false
	}
}

// matches reports whether a type, class or code fits an entry of non_retryable_errors (docs/reference/retries.md, Non-retryable
// errors); an empty one fits none, because no entry is empty. Comparison is exact, letter case included. "X.*" takes X.anything, and
// for names without dots any longer name that starts with X, because class names such as AuthenticationError have no dots.
func matches(entry, candidate string) bool {
	prefix, wild := strings.CutSuffix(entry, ".*")
	if !wild {
		return entry == candidate
	}
	if strings.Contains(candidate, ".") {
		return strings.HasPrefix(candidate, prefix+".")
	}
	return strings.HasPrefix(candidate, prefix) && len(candidate) > len(prefix)
}
