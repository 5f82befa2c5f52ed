package retry

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
)

// Encode gives the compact JSON that is stored with the job. It is a retry object that Parse reads, with every field, so
// that a later release with other defaults does not change jobs that are already queued. Only on_exhaustion is left out if
// it was not sent, because expiry asks whether it was. It is read in Go only; statements that discard jobs read the column
// on_exhaustion.
func (p Policy) Encode() []byte {
	b := make([]byte, 0, 224)
	b = strconv.AppendInt(append(b, `{"max_attempts":`...), p.MaxAttempts, 10)
	b = strconv.AppendInt(append(b, `,"initial_interval_ms":`...), wholeMS(p.InitialInterval), 10)
	b = strconv.AppendInt(append(b, `,"max_interval_ms":`...), wholeMS(p.MaxInterval), 10)
	b = jsontext.AppendFloat(append(b, `,"backoff_coefficient":`...), p.BackoffCoefficient, 64)
	b = strconv.AppendBool(append(b, `,"jitter":`...), p.Jitter)
	if p.OnExhaustion != "" {
		b = append(append(append(b, `,"on_exhaustion":"`...), p.OnExhaustion...), '"')
	}
	b = append(append(b, `,"backoff_strategy":"`...), p.Strategy...)
	b = append(b, '"')
	if len(p.NonRetryable) > 0 {
		b = append(b, `,"non_retryable_errors":[`...)
		for i, s := range p.NonRetryable {
			if i > 0 {
				b = append(b, ',')
			}
			b, _ = jsontext.AppendQuote(b, s) // an error means invalid UTF-8, which is replaced
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

// wholeMS rounds up, because 0 would mean the default. Intervals that Parse has read are whole ms anyway.
func wholeMS(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Decode reads what Encode or ojs.enqueue wrote. nil means Default. ojs.enqueue stores the fields that it got, with the policy of the
// queue, as Encode wrote it, in the member inherits: here one is read over the other, as for a job over HTTP. It leaves the check of the values to the
// server: with an error the policy is Default, which the caller goes on with. Jobs that came by HTTP or gRPC never give an
// error: their policy was checked when it was stored.
func Decode(stored []byte) (Policy, error) {
	if stored == nil {
		return Default(), nil
	}
	v, invalid := jsonread.Check(stored)
	if invalid != nil {
		return Default(), errors.New("decode retry policy: not a JSON object")
	}
	base := Default()
	if v[0] == '{' {
		// What is inherited was checked when it was set.
		if base, invalid = Parse(jsonread.Find(v, "inherits"), base); invalid != nil {
			return Default(), fmt.Errorf("decode inherited retry policy: %w", invalid)
		}
	}
	p, invalid := Parse(v, base)
	if invalid != nil {
		return Default(), fmt.Errorf("decode retry policy: %w", invalid)
	}
	return p, nil
}
