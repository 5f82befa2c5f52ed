package fakeserver

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// retryPolicy is that of docs/reference/retries.md, Policy, with its defaults. There is no jitter, so that tests know the waits.
type retryPolicy struct {
	first, most  time.Duration
	coefficient  float64
	strategy     string
	onExhaustion string // "": the default, which is dead_letter but for expiry
	final        []string
}

// readRetry reads the policy of a job, whose mistakes are 422, and how often the job runs.
func readRetry(r reader) (p retryPolicy, maxAttempts int) {
	p, maxAttempts = retryPolicy{first: time.Second, most: 5 * time.Minute, coefficient: 2, strategy: "exponential"}, 3
	if n, there := r.integer(r.pick("max_attempts"), 0, math.MaxInt64); there {
		maxAttempts = int(min(n, math.MaxInt32))
	}
	m := r.pick("retry", "retry_policy")
	m.name = "retry"
	r.kind = ojs.ErrValidation
	in, there := r.inner(m)
	if !there {
		return p, maxAttempts
	}
	if n, there := in.integer(in.pick("max_attempts", "maxAttempts"), 0, math.MaxInt64); there {
		maxAttempts = int(min(n, math.MaxInt32))
	}
	interval := func(names ...string) time.Duration {
		m := in.pick(names...)
		if strings.HasSuffix(m.name, "_ms") {
			n, _ := in.integer(m, 0, maxDuration.Milliseconds())
			return time.Duration(n) * time.Millisecond
		}
		return in.duration(m, readISO)
	}
	first := interval("initial_interval", "initial_interval_ms", "initial_delay_ms", "initialInterval")
	most := interval("max_interval", "max_interval_ms", "maxInterval")
	switch {
	case first > 0 && most > 0 && most < first:
		in.refuse(in.pick("max_interval", "max_interval_ms", "maxInterval"), "at least initial_interval")
	case first > 0 && most == 0:
		p.first, p.most = first, max(p.most, first)
	case most > 0 && first == 0:
		p.first, p.most = min(p.first, most), most
	case first > 0:
		p.first, p.most = first, most
	}
	if m := in.pick("backoff_coefficient", "multiplier", "backoffCoefficient"); m.value != nil {
		if json.Unmarshal(m.value, &p.coefficient) != nil || p.coefficient < 1 {
			in.refuse(m, "a number of at least 1")
		}
	}
	in.boolean(in.pick("jitter"))
	if text := in.text(in.pick("backoff_strategy", "backoff_type", "strategy", "backoff"),
		"exponential, linear, polynomial, constant or none",
		among("exponential", "linear", "polynomial", "constant", "none")); text != "" {
		p.strategy = text
	}
	p.final = in.texts(in.pick("non_retryable_errors", "nonRetryableErrors"), false, "an array of non-empty strings", isName)
	p.onExhaustion = in.text(in.pick("on_exhaustion", "onExhaustion"), "discard or dead_letter", among("discard", "dead_letter"))
	return p, maxAttempts
}

func among(words ...string) func(string) bool {
	return func(text string) bool { return slices.Contains(words, text) }
}

// fail ends an attempt. It follows the rows of docs/reference/retries.md, Failure; total timeouts are not among them.
func (s *Server) fail(j *record, e ojs.JobError, code string, delay time.Duration) {
	class, _ := e.Details["error_class"].(string)
	e.Code = cmp.Or(e.Code, "handler_error")
	e.Type = cmp.Or(e.Type, class, e.Code)
	e.Message = cmp.Or(e.Message, e.Type)
	e.Attempt, e.OccurredAt, e.WorkerID = j.Attempt, s.now(), j.WorkerID
	j.Error, j.Errors = &e, append(j.Errors, e)
	s.emit(ojs.EventJobFailed, j, object{"error": e})
	p := j.request.Retry
	discard := code == "DISCARD" || code == "FAIL"
	if discard || code == "DEAD_LETTER" || j.Attempt >= max(j.MaxAttempts, 1) || p.isFinal(e) || !e.Retryable && code != "RETRY" {
		j.dead = code == "DEAD_LETTER" || !discard && p.onExhaustion != "discard"
		j.CompletedAt = s.now()
		s.end(j, ojs.StateDiscarded)
		return
	}
	wait := max(delay, p.backoff(j.Attempt))
	j.State, j.RetryDelayMS, j.due = ojs.StateRetryable, wait.Milliseconds(), s.now().Add(wait)
	j.NextAttemptAt = j.due
	s.emit(ojs.EventJobRetrying, j, object{"next_retry_at": j.due})
}

// isFinal compares as docs/reference/retries.md, Non-retryable errors says.
func (p retryPolicy) isFinal(e ojs.JobError) bool {
	class, _ := e.Details["error_class"].(string)
	for _, entry := range p.final {
		prefix, wild := strings.CutSuffix(entry, ".*")
		for _, text := range []string{e.Type, class, e.Code} {
			switch {
			case !wild && text == entry:
				return true
			case wild && strings.Contains(text, ".") && strings.HasPrefix(text, prefix+"."):
				return true
			case wild && !strings.Contains(text, ".") && strings.HasPrefix(text, prefix) && len(text) > len(prefix):
				return true
			}
		}
	}
	return false
}

// backoff is the wait after an attempt that failed, from 1.
func (p retryPolicy) backoff(attempt int) time.Duration {
	raw := float64(p.first)
	switch p.strategy {
	case "exponential":
		raw *= math.Pow(p.coefficient, float64(attempt-1))
	case "linear":
		raw *= float64(attempt)
	case "polynomial":
		raw *= math.Pow(float64(attempt), p.coefficient)
	}
	return max(time.Millisecond, time.Duration(min(raw, float64(p.most))).Truncate(time.Millisecond))
}

// loseLease keeps the attempt counted.
func (s *Server) loseLease(j *record) {
	e := ojs.JobError{Code: "visibility_timeout", Type: "visibility_timeout", Message: "the reservation is over", Retryable: true,
		Attempt: j.Attempt}
	j.Error, j.Errors = &e, append(j.Errors, e)
	if j.Attempt >= max(j.MaxAttempts, 1) {
		j.dead = j.request.Retry.onExhaustion != "discard"
		j.CompletedAt = s.now()
		s.end(j, ojs.StateDiscarded)
		return
	}
	s.available(j)
}
