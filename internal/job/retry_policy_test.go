package job

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func with(change func(*RetryPolicy)) RetryPolicy {
	p := DefaultRetry()
	change(&p)
	return p
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		json string
		want RetryPolicy
	}{
		"Null":               {`null`, DefaultRetry()},
		"Empty":              {`{}`, DefaultRetry()},
		"MaxAttempts":        {`{"max_attempts":5}`, with(func(p *RetryPolicy) { p.MaxAttempts = 5 })},
		"MaxAttemptsZero":    {`{"max_attempts":0}`, with(func(p *RetryPolicy) { p.MaxAttempts = 0 })},
		"IntegralNumber":     {`{"max_attempts":5.0}`, with(func(p *RetryPolicy) { p.MaxAttempts = 5 })},
		"NullIsOmitted":      {`{"max_attempts":null,"jitter":null,"initial_interval":null,"non_retryable_errors":null}`, DefaultRetry()},
		"UnknownIgnored":     {`{"max_attempts":5,"jitterbug":{"a":[1]},"Max_attempts":9}`, with(func(p *RetryPolicy) { p.MaxAttempts = 5 })},
		"LastOfEqualNames":   {`{"max_attempts":5,"max_attempts":6}`, with(func(p *RetryPolicy) { p.MaxAttempts = 6 })},
		"LaterNullTakesBack": {`{"max_attempts":5,"max_attempts":null}`, DefaultRetry()},
		"EscapedName":        {`{"max\u005fattempts":5}`, with(func(p *RetryPolicy) { p.MaxAttempts = 5 })},
		"Everything": {
			` { "max_attempts" : 7 , "initial_interval" : "PT2S", "backoff_coefficient":1.5, "max_interval":"PT1M", "jitter":false,
			"non_retryable_errors":["A.*","b"], "on_exhaustion":"dead_letter","backoff_strategy":"polynomial"}`,
			RetryPolicy{7, 2 * time.Second, time.Minute, 1.5, false, []string{"A.*", "b"}, "dead_letter", "polynomial"},
		},
		"CamelCase": {
			`{"maxAttempts":7,"initialInterval":"PT2S","backoffCoefficient":1.5,"maxInterval":"PT1M","nonRetryableErrors":["b"],"onExhaustion":"dead_letter"}`,
			RetryPolicy{7, 2 * time.Second, time.Minute, 1.5, true, []string{"b"}, "dead_letter", "exponential"},
		},
		"GoSDK":                   {`{"initial_interval_ms":500,"max_interval_ms":60000}`, with(func(p *RetryPolicy) { p.InitialInterval, p.MaxInterval = 500*time.Millisecond, time.Minute })},
		"ZeroMSIsDefault":         {`{"initial_interval_ms":0,"max_interval_ms":0}`, DefaultRetry()},
		"InitialDelayMS":          {`{"initial_delay_ms":250}`, with(func(p *RetryPolicy) { p.InitialInterval = 250 * time.Millisecond })},
		"Multiplier":              {`{"multiplier":3}`, with(func(p *RetryPolicy) { p.BackoffCoefficient = 3 })},
		"BackoffType":             {`{"backoff_type":"linear"}`, with(func(p *RetryPolicy) { p.Strategy = backoffLinear })},
		"Strategy":                {`{"strategy":"linear"}`, with(func(p *RetryPolicy) { p.Strategy = backoffLinear })},
		"Backoff":                 {`{"backoff":"linear"}`, with(func(p *RetryPolicy) { p.Strategy = backoffLinear })},
		"NoneIsConstant":          {`{"backoff_strategy":"none"}`, with(func(p *RetryPolicy) { p.Strategy = backoffConstant })},
		"CanonicalBeatsAlias":     {`{"initial_interval_ms":5,"initial_interval":"PT2S","initialInterval":"PT9S","maxAttempts":1,"max_attempts":2}`, with(func(p *RetryPolicy) { p.InitialInterval, p.MaxAttempts = 2*time.Second, 2 })},
		"CanonicalHidesBadAlias":  {`{"initial_interval_ms":"x","initial_interval":"PT2S"}`, with(func(p *RetryPolicy) { p.InitialInterval = 2 * time.Second })},
		"LoneInitialPullsMax":     {`{"initial_interval":"PT10M"}`, with(func(p *RetryPolicy) { p.InitialInterval, p.MaxInterval = 10*time.Minute, 10*time.Minute })},
		"LoneMaxPullsInitial":     {`{"max_interval":"PT0.2S"}`, with(func(p *RetryPolicy) { p.InitialInterval, p.MaxInterval = 200*time.Millisecond, 200*time.Millisecond })},
		"EqualIntervals":          {`{"initial_interval":"PT2S","max_interval":"PT2S"}`, with(func(p *RetryPolicy) { p.InitialInterval, p.MaxInterval = 2*time.Second, 2*time.Second })},
		"NoPatterns":              {`{"non_retryable_errors":[]}`, with(func(p *RetryPolicy) { p.NonRetryable = []string{} })},
		"CoefficientOne":          {`{"backoff_coefficient":1}`, with(func(p *RetryPolicy) { p.BackoffCoefficient = 1 })},
		"LargestMaxAttempts":      {`{"max_attempts":9223372036854775807}`, with(func(p *RetryPolicy) { p.MaxAttempts = 1<<63 - 1 })},
		"LargestIntervalMS":       {`{"max_interval_ms":3153600000000}`, with(func(p *RetryPolicy) { p.MaxInterval = 36500 * 24 * time.Hour })},
		"LargestInterval":         {`{"max_interval":"P36500D"}`, with(func(p *RetryPolicy) { p.MaxInterval = 36500 * 24 * time.Hour })},
		"InheritedIsNotRefused":   {`{"jitter":false}`, with(func(p *RetryPolicy) { p.Jitter = false })},
		"WhiteSpaceAndEscapes":    {"{\n\t\"on_exhaustion\" : \"dead\\u005fletter\" }", with(func(p *RetryPolicy) { p.OnExhaustion = "dead_letter" })},
		"NullAliasBesideValue":    {`{"max_attempts":null,"maxAttempts":4}`, with(func(p *RetryPolicy) { p.MaxAttempts = 4 })},
		"ZeroMSFallsToCamelAlias": {`{"initial_interval_ms":0,"initialInterval":"PT3S"}`, with(func(p *RetryPolicy) { p.InitialInterval = 3 * time.Second })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseRetry([]byte(strings.TrimSpace(c.json)), DefaultRetry())
			require.Nil(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestParseInheritsFromBase(t *testing.T) {
	t.Parallel()
	base := RetryPolicy{9, time.Minute, time.Hour, 3, false, []string{"x"}, "dead_letter", "linear"}
	got, err := ParseRetry([]byte(`{"max_attempts":2}`), base)
	require.Nil(t, err)
	base.MaxAttempts = 2
	require.Equal(t, base, got)
	got, err = ParseRetry([]byte(`{"initial_interval":"PT2H"}`), base)
	require.Nil(t, err)
	require.Equal(t, 2*time.Hour, got.MaxInterval)
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		`5`: "retry", `[]`: "retry", `"x"`: "retry", `true`: "retry",
		`{"max_attempts":-1}`: "retry.max_attempts", `{"max_attempts":1.5}`: "retry.max_attempts", `{"max_attempts":"3"}`: "retry.max_attempts",
		`{"max_attempts":true}`: "retry.max_attempts", `{"max_attempts":9223372036854775808}`: "retry.max_attempts", `{"max_attempts":1e999999999}`: "retry.max_attempts",
		`{"maxAttempts":-1}`:          "retry.max_attempts",
		`{"initial_interval":"PT0S"}`: "retry.initial_interval", `{"initial_interval":"PT0.0004S"}`: "retry.initial_interval",
		`{"initial_interval":"1s"}`: "retry.initial_interval", `{"initial_interval":"300s"}`: "retry.initial_interval", `{"initial_interval":5}`: "retry.initial_interval",
		`{"initial_interval":"-PT1S"}`: "retry.initial_interval", `{"initial_interval":"pt1s"}`: "retry.initial_interval", `{"initial_interval":""}`: "retry.initial_interval",
		`{"initial_interval_ms":-1}`: "retry.initial_interval", `{"initial_interval_ms":1.5}`: "retry.initial_interval", `{"initial_interval_ms":"5"}`: "retry.initial_interval",
		`{"initial_delay_ms":-1}`: "retry.initial_interval", `{"initial_interval_ms":9223372036854775807}`: "retry.initial_interval",
		`{"max_interval":"P36501D"}`: "retry.max_interval", `{"max_interval":"PT1.5H"}`: "retry.max_interval", `{"max_interval_ms":3153600000001}`: "retry.max_interval",
		`{"initial_interval":"PT2S","max_interval":"PT1S"}`: "retry.max_interval", `{"initial_interval_ms":2,"maxInterval":"PT0.001S"}`: "retry.max_interval",
		`{"backoff_coefficient":0.99}`: "retry.backoff_coefficient", `{"backoff_coefficient":-1}`: "retry.backoff_coefficient",
		`{"backoff_coefficient":"2"}`: "retry.backoff_coefficient", `{"backoff_coefficient":1e999}`: "retry.backoff_coefficient", `{"multiplier":0}`: "retry.backoff_coefficient",
		`{"backoff_coefficient":true}`: "retry.backoff_coefficient",
		`{"jitter":1}`:                 "retry.jitter", `{"jitter":"true"}`: "retry.jitter",
		`{"non_retryable_errors":"x"}`: "retry.non_retryable_errors", `{"non_retryable_errors":[""]}`: "retry.non_retryable_errors",
		`{"non_retryable_errors":[1]}`: "retry.non_retryable_errors", `{"non_retryable_errors":[null]}`: "retry.non_retryable_errors", `{"non_retryable_errors":{}}`: "retry.non_retryable_errors",
		`{"on_exhaustion":"explode"}`: "retry.on_exhaustion", `{"on_exhaustion":1}`: "retry.on_exhaustion", `{"on_exhaustion":""}`: "retry.on_exhaustion",
		`{"backoff_strategy":"random"}`: "retry.backoff_strategy", `{"backoff":{"type":"x"}}`: "retry.backoff_strategy", `{"backoff_strategy":"backoffLinear"}`: "retry.backoff_strategy",
	} {
		_, err := ParseRetry([]byte(text), DefaultRetry())
		require.NotNil(t, err, text)
		require.Equal(t, "validation_error", err.Code, text)
		require.Equal(t, "validation_error", err.Type, text)
		require.Equal(t, field, err.Details["field"], text)
		require.Contains(t, err.Message, strings.TrimPrefix(field, "retry."), text)
		require.Contains(t, err.Details, "received", text)
		require.False(t, err.Retryable)
	}
}

func TestParseShowsContractExample(t *testing.T) {
	t.Parallel()
	_, err := ParseRetry([]byte(`{"max_attempts":-1}`), DefaultRetry())
	require.Equal(t, "retry.max_attempts must be an integer >= 0, got -1.", err.Message)
}

// TestLeastInterval: an interval becomes neither 0, which means the default, nor another one without a word.
func TestLeastInterval(t *testing.T) {
	t.Parallel()
	_, err := ParseRetry([]byte(`{"initial_interval":"PT0.0004S"}`), DefaultRetry())
	require.Equal(t, `retry.initial_interval must be an ISO 8601 duration of at least 1 ms such as PT1S, at most 36500 days, got "PT0.0004S".`, err.Message)
	p, err := ParseRetry([]byte(`{"initial_interval":"PT0.0005S"}`), DefaultRetry())
	require.Nil(t, err)
	require.Equal(t, time.Millisecond, p.InitialInterval)
	back, failed := ParseStoredRetry(with(func(p *RetryPolicy) { p.InitialInterval = time.Microsecond }).Encode())
	require.NoError(t, failed)
	require.Equal(t, time.Millisecond, back.InitialInterval)
}

func TestEncodeDecodes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		if len(p.NonRetryable) == 0 {
			p.NonRetryable = nil
		}
		back, err := ParseStoredRetry(p.Encode())
		require.NoError(t, err)
		require.Equal(t, p, back)
	})
}

func TestDecode(t *testing.T) {
	t.Parallel()
	p, err := ParseStoredRetry(nil)
	require.NoError(t, err)
	require.Equal(t, DefaultRetry(), p)
	require.True(t, p.IsDefault())
	for _, bad := range []string{``, `[]`, `{`, `{"max_attempts":-1}`} {
		p, err = ParseStoredRetry([]byte(bad))
		require.ErrorContains(t, err, "decode retry policy", bad)
		require.Equal(t, DefaultRetry(), p, bad)
	}
	require.Equal(t, `{"max_attempts":3,"initial_interval_ms":1000,"max_interval_ms":300000,"backoff_coefficient":2,"jitter":true,"backoff_strategy":"exponential"}`,
		string(DefaultRetry().Encode()))
}

func TestIsDefault(t *testing.T) {
	t.Parallel()
	require.True(t, with(func(p *RetryPolicy) { p.MaxAttempts = 99 }).IsDefault())
	for _, change := range []func(*RetryPolicy){
		func(p *RetryPolicy) { p.InitialInterval++ }, func(p *RetryPolicy) { p.MaxInterval++ }, func(p *RetryPolicy) { p.BackoffCoefficient++ },
		func(p *RetryPolicy) { p.Jitter = false }, func(p *RetryPolicy) { p.NonRetryable = []string{"a"} }, func(p *RetryPolicy) { p.OnExhaustion = ExhaustDeadLetter },
		func(p *RetryPolicy) { p.OnExhaustion = ExhaustDiscard },
		func(p *RetryPolicy) { p.Strategy = backoffLinear },
	} {
		require.False(t, with(change).IsDefault())
	}
}

// A changed field disappears under every name it was sent with, or the alias that stays would lie.
func TestMerge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, change, want string }{
		{`{}`, `{"max_attempts":5}`, `{"max_attempts":5}`},
		{`null`, `{"max_attempts":5}`, `{"max_attempts":5}`},
		{`{"maxAttempts":1,"x":[1, 2],"jitter":false}`, `{"max_attempts":5}`, `{"x":[1,2],"jitter":false,"max_attempts":5}`},
		{`{"max_attempts":1}`, `{"maxAttempts":5,"jitter":null}`, `{"maxAttempts":5}`},
		{`{"initial_interval":"PT1S"}`, `{"initial_interval_ms":0}`, `{"initial_interval":"PT1S","initial_interval_ms":0}`},
		{`{"max_attempts":1}`, `{}`, `{"max_attempts":1}`},
	} {
		require.Equal(t, c.want, string(MergeRetry([]byte(c.first), []byte(c.change))), "%s and %s", c.first, c.change)
	}
	require.Equal(t, `{"jitter":true}`, string(MergeRetry(nil, []byte(`{"jitter":true}`))))
}
