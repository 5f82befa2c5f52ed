// Package retry owns the retry policy: its JSON, its delays, and what becomes of a job when an attempt fails
// (docs/reference/retries.md, Policy).
//
// It computes; it never reads a clock or a database.
package retry

import (
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// Values of Policy.OnExhaustion: what a job becomes when it will not run again. Empty, as by default, means that a failure
// makes a dead letter and that expiry does not.
const (
	ExhaustDiscard    = "discard"
	ExhaustDeadLetter = "dead_letter"
)

// Values of Policy.Strategy. The input word "none" is stored as Constant.
const (
	Exponential = "exponential"
	Linear      = "linear"
	Polynomial  = "polynomial"
	Constant    = "constant"
)

// Policy says how often a job runs and how long it waits in between (docs/reference/retries.md, Policy). The merged policy is settled at
// enqueue and stored with the job.
type Policy struct {
	MaxAttempts        int64         // upper bound on executions, the first included; 0 and 1 both mean one
	InitialInterval    time.Duration // > 0, whole ms
	MaxInterval        time.Duration // ≥ InitialInterval, whole ms
	BackoffCoefficient float64       // ≥ 1
	Jitter             bool
	NonRetryable       []string // compared with type, error class and code, never with the message
	OnExhaustion       string   // ExhaustDiscard, ExhaustDeadLetter or empty
	Strategy           string
}

// Default is the policy of a job whose client and queue set nothing. It returns a new value: NonRetryable of one policy is
// never shared with another.
func Default() Policy {
	return Policy{
		MaxAttempts: 3, InitialInterval: time.Second, MaxInterval: 5 * time.Minute, BackoffCoefficient: 2,
		Jitter: true, Strategy: Exponential,
	}
}

// IsDefault reports whether p is Default but for MaxAttempts, which has a column of its own. Such a policy is stored as NULL,
// so a release with other defaults would apply them to jobs that are queued already.
func (p Policy) IsDefault() bool {
	d := Default()
	return p.InitialInterval == d.InitialInterval && p.MaxInterval == d.MaxInterval && p.BackoffCoefficient == d.BackoffCoefficient &&
		p.Jitter && len(p.NonRetryable) == 0 && p.OnExhaustion == d.OnExhaustion && p.Strategy == d.Strategy
}

// Delay is the wait after failed attempt n, with the policy's jitter (docs/reference/retries.md, Backoff).
// It draws a random number, so two calls differ; the delay that a job gets is drawn once, when its failure is decided, and
// stored.
func Delay(p Policy, n int) time.Duration {
	return DelayWith(p, n, 0.5+rand.Float64())
}

// DelayWith is Delay with the jitter factor u, uniform in [0.5, 1.5). Tests and the worked numbers of the reference use it. An
// attempt below 1 counts as 1. The result is at least 1 ms and at most MaxInterval, in whole ms.
func DelayWith(p Policy, n int, u float64) time.Duration {
	limit := ms(p.MaxInterval)
	d := min(rawDelay(p, float64(max(n, 1))), limit)
	// The cap comes before and after the jitter: with jitter the delay may not exceed it either.
	if math.IsNaN(d) { // 0 · Inf
		d = limit
	}
	if p.Jitter {
		d = min(d*u, limit)
	}
	return time.Duration(max(math.Floor(d), 1)) * time.Millisecond
}

// rawDelay is the wait in ms before the cap. It may be infinite. A strategy that is not known counts as exponential, which is
// the default.
func rawDelay(p Policy, n float64) float64 {
	first := ms(p.InitialInterval)
	switch p.Strategy {
	case Linear:
		return first * n
	case Polynomial:
		return first * math.Pow(n, p.BackoffCoefficient)
	case Constant:
		return first
	default:
		return first * math.Pow(p.BackoffCoefficient, n-1)
	}
}

func ms(d time.Duration) float64 { return float64(d.Milliseconds()) }

// Server-made failures that give the job back at once, without backoff (docs/reference/retries.md, Server-made errors).
const (
	VisibilityTimeout = "visibility_timeout"
	WorkerDeath       = "worker_death"
)

// Failure is one failed attempt, as Decide sees it. The caller takes all of it from one snapshot of the job's row, the clock
// included. It decides outside of the statement that applies the outcome, so that statement checks again that the run is still
// the one that failed.
type Failure struct {
	Attempt     int64 // the attempt that failed, from 1
	MaxAttempts int64 // of the job; Policy.MaxAttempts plays no part
	Policy      Policy

	Requeue      bool          // the worker hands the job back; the error does not matter
	Delay        time.Duration // with Requeue: how long it is not to be fetched
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

// Kind is the transition that a failure takes. Numbers T8 to T10 are those of the reference; a Kind is never stored.
type Kind int

// The transitions that a failure can take, numbered as in docs/reference/jobs.md, Transitions.
const (
	Retry           Kind = iota // T8: wait for Delay in retryable
	Release                     // T10: back to available, or with a Delay to scheduled; the attempt is not counted
	Discard                     // T9
	LoseToAvailable             // T10: back to available at once, the attempt is counted
)

// Outcome is what Decide chose.
type Outcome struct {
	Kind       Kind
	DeadLetter bool          // with Discard: the job becomes a dead letter
	Delay      time.Duration // with Retry and Release
}

// Decide applies docs/reference/retries.md, Failure; the first rule that fits wins. It has no side effects, but a delay with
// jitter is drawn anew by each call: decide once.
func Decide(in Failure) Outcome {
	switch {
	// First, because a worker that hands a job back says nothing about the job, whatever error it may have sent.
	case in.Requeue:
		return Outcome{Kind: Release, Delay: in.Delay}
	// Letter case counts (docs/reference/retries.md, Failure).
	case in.Code == "DISCARD" || in.Code == "FAIL":
		return Outcome{Kind: Discard}
	case in.Code == "DEAD_LETTER":
		return Outcome{Kind: Discard, DeadLetter: true}
	}
	discard := Outcome{Kind: Discard, DeadLetter: in.Policy.OnExhaustion != ExhaustDiscard}
	// max_attempts 0 means one attempt. The number of the job counts, not that of the policy, because a manual retry or a
	// shortcut may have set it alone.
	if in.Attempt >= max(1, in.MaxAttempts) || in.nonRetryable() {
		return discard
	}
	// Nobody knows how a lost attempt ended, so there is nothing to back off from.
	next := Outcome{Kind: LoseToAvailable}
	if !in.lost() {
		next = Outcome{Kind: Retry, Delay: Delay(in.Policy, int(in.Attempt))}
	}
	if in.TotalTimeout > 0 && in.TotalTimeout < in.Elapsed+next.Delay+in.RunTimeout {
		return discard // the next attempt could not end in time
	}
	return next
}

// lost reports whether nobody knows how the attempt ended. Its error is made by the server, so a pattern of the client must not
// match it.
func (in Failure) lost() bool {
	return in.ServerMade == VisibilityTimeout || in.ServerMade == WorkerDeath
}

// The flag of the worker decides if it was sent; the list of codes is only for workers that send none.
func (in Failure) nonRetryable() bool {
	if !in.lost() && Match(in.Policy.NonRetryable, in.Type, in.ErrorClass, in.Code) {
		return true
	}
	if in.RetryableSet {
		return !in.Retryable && in.Code != "RETRY"
	}
	return hopeless(in.Code)
}

// hopeless lists the codes that a missing retryable flag turns into a discard, in any letter case.
func hopeless(code string) bool {
	switch strings.ToLower(code) {
	case "cancelled", "invalid_payload", "invalid_request", "schema_validation", "not_found", "duplicate", "unsupported",
		"job_cancelled", "non_retryable_error":
		return true
	default:
		return false
	}
}

// Match reports whether one of the candidates fits one of the entries of non_retryable_errors (docs/reference/retries.md, Non-retryable
// errors). Empty candidates never do. Comparison is exact, letter case included.
func Match(entries []string, candidates ...string) bool {
	for _, entry := range entries {
		for _, c := range candidates {
			if c != "" && matches(entry, c) {
				return true
			}
		}
	}
	return false
}

// matches: "X.*" takes X.anything, and for names without dots any longer name that starts with X, because class names
// such as AuthenticationError have no dots.
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
