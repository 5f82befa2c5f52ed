package job

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One case or more for each row of docs/reference/retries.md, Failure.
func TestDecide(t *testing.T) {
	t.Parallel()
	steady := DefaultRetry()
	steady.Jitter = false
	deadLetter := steady
	deadLetter.OnExhaustion = ExhaustDeadLetter
	noDeadLetter := steady
	noDeadLetter.OnExhaustion = ExhaustDiscard
	picky := deadLetter
	picky.NonRetryable = []string{"Fatal", "auth.*", "worker_death", "visibility_timeout", "timeout"}
	first := func(change func(*Failure)) Failure {
		f := Failure{Attempt: 1, MaxAttempts: 3, Policy: steady, Code: "handler_error", Type: "handler_error", Retryable: true}
		change(&f)
		return f
	}
	retried := FailureOutcome{Kind: FailureRetry, Delay: time.Second}
	discarded, dead := FailureOutcome{Kind: FailureDiscard}, FailureOutcome{Kind: FailureDiscard, DeadLetter: true}
	no := func(f *Failure) { f.Retryable, f.RetryableSet = false, true }

	for name, c := range map[string]struct {
		in   Failure
		want FailureOutcome
	}{
		"1RequeueBeatsEverything":  {first(func(f *Failure) { f.Requeue, f.Attempt, f.Code = true, 9, "DISCARD" }), FailureOutcome{Kind: FailureRelease}},
		"2Discard":                 {first(func(f *Failure) { f.Code, f.Policy = "DISCARD", deadLetter }), discarded},
		"2Fail":                    {first(func(f *Failure) { f.Code, f.Policy, f.Attempt = "FAIL", deadLetter, 9 }), discarded},
		"2OnlyUpperCase":           {first(func(f *Failure) { f.Code = "discard" }), retried},
		"2OnlyTheCode":             {first(func(f *Failure) { f.Type = "DISCARD" }), retried},
		"3DeadLetter":              {first(func(f *Failure) { f.Code = "DEAD_LETTER" }), dead},
		"3DeadLetterAtTheLimit":    {first(func(f *Failure) { f.Code, f.Attempt = "DEAD_LETTER", 3 }), dead},
		"4Exhausted":               {first(func(f *Failure) { f.Attempt = 3 }), dead},
		"4ExhaustedDiscard":        {first(func(f *Failure) { f.Attempt, f.Policy = 3, noDeadLetter }), discarded},
		"4ExhaustedDeadLetter":     {first(func(f *Failure) { f.Attempt, f.Policy = 3, deadLetter }), dead},
		"4NotYet":                  {first(func(f *Failure) { f.Attempt = 2 }), FailureOutcome{Kind: FailureRetry, Delay: 2 * time.Second}},
		"4WorkerAsksForMore":       {first(func(f *Failure) { f.Delay = time.Minute }), FailureOutcome{Kind: FailureRetry, Delay: time.Minute}},
		"4WorkerAsksForLess":       {first(func(f *Failure) { f.Delay = time.Millisecond }), retried},
		"4ADelayIsNoAttempt":       {first(func(f *Failure) { f.Attempt, f.Delay = 3, time.Minute }), dead},
		"4ZeroMeansOneRun":         {first(func(f *Failure) { f.MaxAttempts = 0 }), dead},
		"4OneMeansOneRun":          {first(func(f *Failure) { f.MaxAttempts = 1 }), dead},
		"4RetryableExtendsNothing": {first(func(f *Failure) { f.Attempt, f.RetryableSet, f.Code = 3, true, "RETRY" }), dead},
		"4LostAtTheLimit":          {first(func(f *Failure) { f.Attempt, f.ServerMade, f.Policy = 3, WorkerDeath, deadLetter }), dead},
		"5MatchesType":             {first(func(f *Failure) { f.Type, f.Policy = "Fatal", picky }), dead},
		"5MatchesClass":            {first(func(f *Failure) { f.ErrorClass, f.Policy = "auth.expired", picky }), dead},
		"5MatchesCode":             {first(func(f *Failure) { f.Code, f.Policy = "Fatal", picky }), dead},
		"5BeatsRETRY":              {first(func(f *Failure) { f.Code, f.Type, f.Policy = "RETRY", "Fatal", picky }), dead},
		"5SkipsWorkerDeath": {first(func(f *Failure) {
			f.Code, f.ServerMade, f.Policy, f.RetryableSet = WorkerDeath, WorkerDeath, picky, true
		}), FailureOutcome{Kind: FailureLost}},
		"5SkipsVisibility": {first(func(f *Failure) {
			f.Code, f.ServerMade, f.Policy, f.RetryableSet = VisibilityTimeout, VisibilityTimeout, picky, true
		}), FailureOutcome{Kind: FailureLost}},
		"5NotForWorkersOwnWord":   {first(func(f *Failure) { f.Code, f.Policy = VisibilityTimeout, picky }), dead},
		"5TakesTimeout":           {first(func(f *Failure) { f.Code, f.ServerMade, f.Policy = "timeout", "timeout", picky }), dead},
		"6NotRetryable":           {first(no), dead},
		"6NotRetryableDiscard":    {first(func(f *Failure) { no(f); f.Policy = noDeadLetter }), discarded},
		"6NotRetryableDeadLetter": {first(func(f *Failure) { no(f); f.Policy = deadLetter }), dead},
		"6RETRYIgnoresTheFlag":    {first(func(f *Failure) { no(f); f.Code = "RETRY" }), retried},
		"6HopelessCode":           {first(func(f *Failure) { f.Code = "Not_Found" }), dead},
		"6HopelessButFlagged":     {first(func(f *Failure) { f.Code, f.RetryableSet = "not_found", true }), retried},
		"6HopelessTypeIsNoCode":   {first(func(f *Failure) { f.Type = "not_found" }), retried},
		"7NoTimeLeft": {first(func(f *Failure) {
			f.TotalTimeout, f.Elapsed, f.RunTimeout, f.Policy = time.Minute, 30*time.Second, 30*time.Second, deadLetter
		}), dead},
		"7JustEnoughTime": {first(func(f *Failure) {
			f.TotalTimeout, f.Elapsed, f.RunTimeout = time.Minute, 29*time.Second, 30*time.Second
		}), retried},
		"7LossNeedsNoDelay": {first(func(f *Failure) {
			f.ServerMade, f.TotalTimeout, f.Elapsed, f.RunTimeout = VisibilityTimeout, time.Minute, 30*time.Second, 30*time.Second
		}), FailureOutcome{Kind: FailureLost}},
		"7AppliesToLoss": {first(func(f *Failure) {
			f.ServerMade, f.TotalTimeout, f.Elapsed, f.RunTimeout = VisibilityTimeout, time.Minute, 31*time.Second, 30*time.Second
		}), dead},
		"8VisibilityTimeout":      {first(func(f *Failure) { f.ServerMade = VisibilityTimeout }), FailureOutcome{Kind: FailureLost}},
		"8WorkerDeath":            {first(func(f *Failure) { f.ServerMade, f.Attempt = WorkerDeath, 2 }), FailureOutcome{Kind: FailureLost}},
		"9Retry":                  {first(func(*Failure) {}), retried},
		"9ServerTimeout":          {first(func(f *Failure) { f.ServerMade, f.Code = "timeout", "timeout" }), retried},
		"9UnknownCodeNoFlag":      {first(func(f *Failure) { f.Code, f.Retryable = "whatever", false }), retried},
		"TotalTimeoutOfActiveJob": {first(func(f *Failure) { no(f); f.ServerMade, f.Code = "total_timeout", "total_timeout" }), dead},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, DecideFailure(c.in))
		})
	}
	for _, code := range []string{"cancelled", "invalid_payload", "invalid_request", "schema_validation", "not_found", "duplicate", "unsupported", "job_cancelled", "NON_RETRYABLE_ERROR"} {
		require.Equal(t, dead, DecideFailure(first(func(f *Failure) { f.Code = code })), code)
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entry, candidate string
		want             bool
	}{
		{"FatalError", "FatalError", true}, {"handler_error", "handler_error", true},
		{"FatalError", "FatalErrorX", false}, {"FatalError", "fatalerror", false}, {"FatalError", "a.FatalError", false},
		{"auth.*", "auth.token_expired", true}, {"auth.*", "auth.a.b", true},
		{"Auth.*", "Auth.TokenExpired", true}, {"Auth.*", "AuthenticationError", true},
		{"auth.*", "auth", false}, {"auth.*", "external.auth.failure", false}, {"auth.*", "validation.schema_error", false},
		{"auth.*", "authx.y", false}, {"auth.*", "Auth.x", false}, {"a.b.*", "a.b.c", true}, {"a.b.*", "a.bc", false},
		{"x*", "xy", false}, {"x*", "x*", true}, {".*", "anything", true}, {".*", "", false},
	} {
		require.Equal(t, c.want, matches(c.entry, c.candidate), "%s against %s", c.entry, c.candidate)
	}
	require.False(t, matches("a", ""))
}
