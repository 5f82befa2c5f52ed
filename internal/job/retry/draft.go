package retry

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
)

// Draft is a retry policy that a transport has read, before any rule was applied. A zero field was not sent.
// gRPC fills it. MaxAttempts 0 and Jitter false therefore cannot be asked for there: they count as not sent.
type Draft struct {
	MaxAttempts        int64
	InitialIntervalMS  int64
	MaxIntervalMS      int64
	BackoffCoefficient float64
	Jitter             bool
	NonRetryable       []string
	OnExhaustion       string
}

// Encode gives the policy as it is stored with the job, which shows it as it was sent. Parse reads the result and checks it by
// the same rules as JSON from a client.
func (d *Draft) Encode() []byte {
	b := []byte{'{'}
	member := func(f string) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), f...), '"', ':')
	}
	integer := func(name string, n int64) {
		if n != 0 {
			member(name)
			b = strconv.AppendInt(b, n, 10)
		}
	}
	integer("max_attempts", d.MaxAttempts)
	integer("initial_interval_ms", d.InitialIntervalMS)
	integer("max_interval_ms", d.MaxIntervalMS)
	if d.BackoffCoefficient != 0 {
		member("backoff_coefficient")
		b = jsonread.AppendNumber(b, d.BackoffCoefficient)
	}
	if d.Jitter {
		member("jitter")
		b = append(b, "true"...)
	}
	if len(d.NonRetryable) > 0 {
		member("non_retryable_errors")
		b = append(b, '[')
		for i, s := range d.NonRetryable {
			if i > 0 {
				b = append(b, ',')
			}
			b, _ = jsontext.AppendQuote(b, s) // proto3 strings are valid UTF-8
		}
		b = append(b, ']')
	}
	if d.OnExhaustion != "" {
		member("on_exhaustion")
		b, _ = jsontext.AppendQuote(b, d.OnExhaustion)
	}
	return append(b, '}')
}
