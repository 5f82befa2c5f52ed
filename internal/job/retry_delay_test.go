package job

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The worked numbers of docs/reference/retries.md, Backoff.
func TestDelayTable(t *testing.T) {
	t.Parallel()
	s := time.Second
	for name, c := range map[string]struct {
		policy RetryPolicy
		want   []time.Duration
	}{
		"backoffExponential": {RetryPolicy{Strategy: backoffExponential, BackoffCoefficient: 2}, []time.Duration{1 * s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 64 * s, 128 * s, 256 * s, 300 * s, 300 * s}},
		"ExponentialCapped":  {RetryPolicy{Strategy: backoffExponential, BackoffCoefficient: 10, MaxInterval: 2 * s}, []time.Duration{1 * s, 2 * s, 2 * s}},
		"ExponentialByOne":   {RetryPolicy{Strategy: backoffExponential, BackoffCoefficient: 1}, []time.Duration{s, s, s}},
		"backoffLinear":      {RetryPolicy{Strategy: backoffLinear, BackoffCoefficient: 9}, []time.Duration{1 * s, 2 * s, 3 * s, 4 * s}},
		"LinearFiveSeconds":  {RetryPolicy{Strategy: backoffLinear, BackoffCoefficient: 2, InitialInterval: 5 * s}, []time.Duration{5 * s, 10 * s, 15 * s, 20 * s}},
		"backoffPolynomial":  {RetryPolicy{Strategy: backoffPolynomial, BackoffCoefficient: 4}, []time.Duration{1 * s, 16 * s, 81 * s, 256 * s, 300 * s}},
		"PolynomialHour":     {RetryPolicy{Strategy: backoffPolynomial, BackoffCoefficient: 4, InitialInterval: 15 * s, MaxInterval: time.Hour}, []time.Duration{15 * s, 240 * s, 1215 * s, 3600 * s}},
		"backoffConstant":    {RetryPolicy{Strategy: backoffConstant, BackoffCoefficient: 7}, []time.Duration{s, s, s}},
		"RoundedDown":        {RetryPolicy{Strategy: backoffExponential, BackoffCoefficient: 1.5, InitialInterval: time.Millisecond}, []time.Duration{time.Millisecond, time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}},
		"FractionOfInterval": {RetryPolicy{Strategy: backoffLinear, BackoffCoefficient: 1, InitialInterval: 500 * time.Millisecond}, []time.Duration{500 * time.Millisecond, s}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := c.policy
			if p.InitialInterval == 0 {
				p.InitialInterval = s
			}
			if p.MaxInterval == 0 {
				p.MaxInterval = 5 * time.Minute
			}
			for i, want := range c.want {
				require.Equal(t, want, p.delay(i+1), "retry %d", i+1)
			}
		})
	}
}

func TestDelayHasNoOverflow(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{backoffExponential, backoffLinear, backoffPolynomial, backoffConstant} {
		p := RetryPolicy{Strategy: strategy, BackoffCoefficient: math.MaxFloat64, InitialInterval: time.Second, MaxInterval: 36500 * 24 * time.Hour}
		d := p.delay(math.MaxInt)
		require.Greater(t, d, time.Duration(0), strategy)
		require.LessOrEqual(t, d, p.MaxInterval, strategy)
	}
}

func TestJitterRange(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{Strategy: backoffExponential, BackoffCoefficient: 1, InitialInterval: 2 * time.Second, MaxInterval: 5 * time.Minute, Jitter: true}
	require.Equal(t, 1000*time.Millisecond, p.delayWith(1, 0.5))
	require.Equal(t, 2999*time.Millisecond, p.delayWith(1, math.Nextafter(1.5, 0)))
	p.InitialInterval, p.MaxInterval = time.Millisecond, time.Millisecond
	require.Equal(t, time.Millisecond, p.delayWith(1, 0.5), "never below 1 ms")
}

func TestJitterBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		n := rapid.IntRange(1, 200).Draw(t, "n")
		p.Jitter = false
		effective := p.delayWith(n, 1)
		p.Jitter = true
		got := p.delay(n)
		if low := effective / 2; got < low-time.Millisecond || got > p.MaxInterval || got < time.Millisecond {
			t.Fatalf("effective %v, jittered %v, cap %v", effective, got, p.MaxInterval)
		}
		if high := effective + effective/2 + 2*time.Millisecond; got > high {
			t.Fatalf("effective %v, jittered %v", effective, got)
		}
		if got%time.Millisecond != 0 {
			t.Fatalf("%v is not whole ms", got)
		}
	})
}

func TestDelayNeverShrinks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPolicy(t)
		p.Jitter = false
		n := rapid.IntRange(1, 100).Draw(t, "n")
		if a, b := p.delay(n), p.delay(n+1); a > b {
			t.Fatalf("retry %d waits %v, the next %v", n, a, b)
		}
	})
}

func drawPolicy(t *rapid.T) RetryPolicy {
	first := rapid.Int64Range(1, 3_600_000).Draw(t, "initial")
	return RetryPolicy{
		MaxAttempts:        rapid.Int64Range(0, math.MaxInt64).Draw(t, "attempts"),
		InitialInterval:    time.Duration(first) * time.Millisecond,
		MaxInterval:        time.Duration(first+rapid.Int64Range(0, 36_000_000).Draw(t, "more")) * time.Millisecond,
		BackoffCoefficient: rapid.Float64Range(1, 50).Draw(t, "coefficient"),
		Jitter:             rapid.Bool().Draw(t, "jitter"),
		NonRetryable:       rapid.SliceOfN(rapid.StringN(1, 20, 40), 0, 3).Draw(t, "patterns"),
		OnExhaustion:       rapid.SampledFrom([]string{"", ExhaustDiscard, ExhaustDeadLetter}).Draw(t, "exhaustion"),
		Strategy:           rapid.SampledFrom([]string{backoffExponential, backoffLinear, backoffPolynomial, backoffConstant}).Draw(t, "strategy"),
	}
}
