package job

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Values of RetryPolicy.OnExhaustion: what a job becomes when it will not run again. Empty, as by default, means that a failure
// makes a dead letter and that expiry does not.
const (
	ExhaustDiscard    = "discard"
	ExhaustDeadLetter = "dead_letter"
)

// Values of RetryPolicy.Strategy. The input word "none" is stored as backoffConstant.
const (
	backoffExponential = "exponential"
	backoffLinear      = "linear"
	backoffPolynomial  = "polynomial"
	backoffConstant    = "constant"
)

var backoffs = []string{backoffExponential, backoffLinear, backoffPolynomial, backoffConstant}

// RetryPolicy says how often a job runs and how long it waits in between (docs/reference/retries.md, Policy). The merged policy is settled
// at enqueue and stored with the job.
type RetryPolicy struct {
	MaxAttempts        int64         // upper bound on executions, the first included; 0 and 1 both mean one
	InitialInterval    time.Duration // > 0, whole ms
	MaxInterval        time.Duration // ≥ InitialInterval, whole ms
	BackoffCoefficient float64       // ≥ 1
	Jitter             bool
	NonRetryable       []string // compared with type, error class and code, never with the message
	OnExhaustion       string   // ExhaustDiscard, ExhaustDeadLetter or empty
	Strategy           string
}

// DefaultRetry is the policy of a job whose client and queue set nothing. It returns a new value: NonRetryable of one policy is
// never shared with another.
func DefaultRetry() RetryPolicy {
	return RetryPolicy{
		MaxAttempts: 3, InitialInterval: time.Second, MaxInterval: 5 * time.Minute, BackoffCoefficient: 2,
		Jitter: true, Strategy: backoffExponential,
	}
}

// IsDefault reports whether p is DefaultRetry() but for MaxAttempts, which has a column of its own. Such a policy is stored as NULL,
// so a release with other defaults would apply them to jobs that are queued already.
func (p RetryPolicy) IsDefault() bool {
	d := DefaultRetry()
	return p.InitialInterval == d.InitialInterval && p.MaxInterval == d.MaxInterval && p.BackoffCoefficient == d.BackoffCoefficient &&
		p.Jitter && len(p.NonRetryable) == 0 && p.OnExhaustion == d.OnExhaustion && p.Strategy == d.Strategy
}

// delay is the wait after failed attempt n, with the policy's jitter (docs/reference/retries.md, Backoff).
// It draws a random number, so two calls differ; the delay that a job gets is drawn once, when its failure is decided, and
// stored.
func (p RetryPolicy) delay(n int) time.Duration {
	return p.delayWith(n, 0.5+rand.Float64())
}

// delayWith is delay with the jitter factor u, uniform in [0.5, 1.5). Tests and the worked numbers of the reference use it. An
// attempt below 1 counts as 1. The result is at least 1 ms and at most MaxInterval, in whole ms.
func (p RetryPolicy) delayWith(n int, u float64) time.Duration {
	first, limit, attempt := milliseconds(p.InitialInterval), milliseconds(p.MaxInterval), float64(max(n, 1))
	var d float64 // may be infinite
	switch p.Strategy {
	case backoffLinear:
		d = first * attempt
	case backoffPolynomial:
		d = first * math.Pow(attempt, p.BackoffCoefficient)
	case backoffConstant:
		d = first
	default: // a strategy that is not known, too
		d = first * math.Pow(p.BackoffCoefficient, attempt-1)
	}
	d = min(d, limit)
	// The cap comes before and after the jitter: with jitter the delay may not exceed it either.
	if math.IsNaN(d) { // 0 · Inf
		d = limit
	}
	if p.Jitter {
		d = min(d*u, limit)
	}
	return time.Duration(max(math.Floor(d), 1)) * time.Millisecond
}

func milliseconds(d time.Duration) float64 { return float64(d.Milliseconds()) }

// retryField is a setting of the policy.
type retryField int

const (
	retryMaxAttempts retryField = iota
	retryInitial
	retryMax
	retryCoefficient
	retryJitter
	retryNonRetryable
	retryExhaustion
	retryStrategy
	retryFieldCount
)

// retrySpelling is one accepted name of a field.
type retrySpelling struct {
	name  string
	field retryField
	ms    bool // an integer of ms, where 0 means not sent
}

// retrySpellings has the canonical name of each field first, then the aliases, strongest first (docs/reference/retries.md, Aliases).
var retrySpellings = [...]retrySpelling{
	{"max_attempts", retryMaxAttempts, false}, {"maxAttempts", retryMaxAttempts, false},
	{"initial_interval", retryInitial, false}, {"initial_interval_ms", retryInitial, true},
	{"initial_delay_ms", retryInitial, true}, {"initialInterval", retryInitial, false},
	{"max_interval", retryMax, false}, {"max_interval_ms", retryMax, true}, {"maxInterval", retryMax, false},
	{"backoff_coefficient", retryCoefficient, false}, {"multiplier", retryCoefficient, false},
	{"backoffCoefficient", retryCoefficient, false},
	{"jitter", retryJitter, false},
	{"non_retryable_errors", retryNonRetryable, false}, {"nonRetryableErrors", retryNonRetryable, false},
	{"on_exhaustion", retryExhaustion, false}, {"onExhaustion", retryExhaustion, false},
	{"backoff_strategy", retryStrategy, false}, {"backoff_type", retryStrategy, false}, {"strategy", retryStrategy, false},
	{"backoff", retryStrategy, false},
}

// retryFieldNames are the canonical names, in error messages and in what Encode writes.
var retrySpellingByName, retryFieldNames = indexRetrySpellings()

// indexRetrySpellings walks backwards, so that the first spelling of a field, its canonical name, is the one that stays.
func indexRetrySpellings() (byName map[string]int, names [retryFieldCount]string) {
	byName = map[string]int{}
	for i := len(retrySpellings) - 1; i >= 0; i-- {
		byName[retrySpellings[i].name] = i
		names[retrySpellings[i].field] = retrySpellings[i].name
	}
	return byName, names
}

// sentRetry is a value as the client gave it, under the spelling that won.
type sentRetry struct {
	value jsontext.Value // nil: the field was not sent
	*retrySpelling
}

// ParseRetry reads a retry object and fills what it leaves out from base. raw must be valid JSON; nil
// and null give base. Unknown members are ignored. On an error the policy that it returns is not usable. It stops at the first
// wrong field, in the order of the constants above.
func ParseRetry(raw []byte, base RetryPolicy) (RetryPolicy, *ojs.Error) {
	if jsonread.IsNull(raw) {
		return base, nil
	}
	if raw[0] != '{' {
		return base, spec.Validation("retry", jsonread.Show(raw), "retry must be an object, got "+jsonread.Describe(raw)+".")
	}
	p := base
	fields := collectRetry(raw)
	for f, s := range fields {
		if s.value == nil {
			continue
		}
		if want := p.set(retryField(f), s); want != "" {
			return base, refuseRetry(s, want)
		}
	}
	// MaxInterval stays ≥ InitialInterval: a lone interval pulls the other along, two that contradict each other are refused. The
	// base may be the policy of a queue, so a client's lone interval can contradict one that it has never seen.
	if initial, limit := fields[retryInitial], fields[retryMax]; p.MaxInterval < p.InitialInterval {
		// The base never breaks this rule, so at least one of the two was sent.
		switch {
		case initial.value != nil && limit.value != nil:
			return p, refuseRetry(limit, "at least initial_interval ("+jsonread.FormatDuration(p.InitialInterval)+")")
		case limit.value != nil:
			p.InitialInterval = p.MaxInterval
		default:
			p.MaxInterval = p.InitialInterval
		}
	}
	return p, nil
}

// collectRetry finds for each field the spelling that wins. The last of equal names counts, so a later null takes a value back.
// A spelling that was sent as null, or as 0 where 0 means not sent, gives way to the next alias.
func collectRetry(raw jsontext.Value) (won [retryFieldCount]sentRetry) {
	var values [len(retrySpellings)]jsontext.Value
	for name, value := range jsonread.Members(raw) {
		i, known := retrySpellingByName[string(jsonread.Name(name))]
		if !known {
			continue
		}
		values[i] = jsonread.Present(value)
		if retrySpellings[i].ms {
			if n, kind := jsonread.Int(value); kind == jsonread.IsInt && n == 0 {
				values[i] = nil
			}
		}
	}
	for i, v := range values {
		if s := &retrySpellings[i]; v != nil && won[s.field].value == nil {
			won[s.field] = sentRetry{v, s}
		}
	}
	return won
}

// set takes over one value. It returns what the field must be if the value is something else.
func (p *RetryPolicy) set(f retryField, s sentRetry) (want string) {
	var ok bool
	switch f {
	// The range has no upper end: a job may be retried for ever.
	case retryMaxAttempts:
		var kind jsonread.IntResult
		p.MaxAttempts, kind = jsonread.Int(s.value)
		return expect(kind == jsonread.IsInt && p.MaxAttempts >= 0, "an integer >= 0")
	case retryInitial:
		p.InitialInterval, want = retryInterval(s)
		return want
	case retryMax:
		p.MaxInterval, want = retryInterval(s)
		return want
	// A number that overflows a double is no number here.
	case retryCoefficient:
		var err error
		p.BackoffCoefficient, err = strconv.ParseFloat(string(s.value), 64)
		return expect(err == nil && p.BackoffCoefficient >= 1, "a number >= 1.0")
	case retryJitter:
		p.Jitter, ok = jsonread.Bool(s.value)
		return expect(ok, "a boolean")
	// The list replaces that of the base: lists are not merged. Any text may be the name of an error.
	case retryNonRetryable:
		p.NonRetryable, ok = jsonread.Texts(s.value)
		return expect(ok && !slices.Contains(p.NonRetryable, ""), "an array of non-empty strings")
	case retryExhaustion:
		p.OnExhaustion, _ = jsonread.Text(s.value)
		return expect(p.OnExhaustion == ExhaustDiscard || p.OnExhaustion == ExhaustDeadLetter, "discard or dead_letter")
	default:
		if p.Strategy, _ = jsonread.Text(s.value); p.Strategy == "none" {
			p.Strategy = backoffConstant
		}
		return expect(slices.Contains(backoffs, p.Strategy), "one of exponential, linear, polynomial, constant, none")
	}
}

func expect(ok bool, want string) string {
	if ok {
		return ""
	}
	return want
}

// retryInterval is in a policy, where only the ISO form is a duration (docs/reference/retries.md, Durations); names that end in _ms take
// integers. The least interval is 1 ms. One below half of it would be rounded to 0, which is stored as the default: it is refused.
func retryInterval(s sentRetry) (d time.Duration, want string) {
	if s.ms {
		n, kind := jsonread.Int(s.value)
		ok := kind == jsonread.IsInt && n > 0 && n <= jsonread.MaxDuration.Milliseconds()
		return time.Duration(n) * time.Millisecond, expect(ok, "an integer >= 0 of milliseconds, at most 36500 days")
	}
	text, _ := jsonread.Text(s.value)
	d, err := jsonread.ParseISODuration(text)
	return d, expect(err == nil && d > 0, "an ISO 8601 duration of at least 1 ms such as PT1S, at most 36500 days")
}

// refuseRetry names the canonical field in details; the message has the client's own spelling as well if it is another.
func refuseRetry(s sentRetry, want string) *ojs.Error {
	name, shown, got := retryFieldNames[s.field], s.name, jsonread.Describe(s.value)
	if s.name != name {
		shown += " (" + name + ")"
	}
	if len(s.value) <= 60 {
		got = string(jsonread.Compact(s.value))
	}
	return spec.Validation("retry."+name, jsonread.Show(s.value), "retry."+shown+" must be "+want+", got "+got+".")
}

// MergeRetry gives the retry object that shows a policy after a change of some of its fields: what was sent first (nil: nothing),
// without the fields that the change sets under any name, and then the change. It changes only what is shown. The policy in
// force is computed by ParseRetry, from the same two objects.
func MergeRetry(first, change []byte) []byte {
	// A field may be there under an alias: the change of initial_interval also removes an initial_interval_ms that was sent
	// before.
	set := collectRetry(change)
	b := []byte{'{'}
	if !jsonread.IsNull(first) {
		for literal, value := range jsonread.Members(first) {
			i, known := retrySpellingByName[string(jsonread.Name(literal))]
			if !known || set[retrySpellings[i].field].value == nil {
				b = jsonread.AppendMember(b, literal, value)
			}
		}
	}
	for literal, value := range jsonread.Members(change) {
		if !jsonread.IsNull(value) {
			b = jsonread.AppendMember(b, literal, value)
		}
	}
	return append(b, '}')
}

// Encode gives the compact JSON that is stored with the job. It is a retry object that ParseRetry reads, with every field, so
// that a later release with other defaults does not change jobs that are already queued. Only on_exhaustion is left out if
// it was not sent, because expiry asks whether it was. It is read in Go only; statements that discard jobs read the column
// on_exhaustion.
func (p RetryPolicy) Encode() []byte {
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
		b = jsonread.AppendTexts(append(b, `,"non_retryable_errors":`...), p.NonRetryable)
	}
	return append(b, '}')
}

// wholeMS rounds up, because 0 would mean the default. Intervals that ParseRetry has read are whole ms anyway.
func wholeMS(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// ParseStoredRetry reads what Encode or ojs.enqueue wrote. nil means DefaultRetry. ojs.enqueue stores the fields that it got, with the
// policy of the queue, as Encode wrote it, in the member inherits: here one is read over the other, as for a job over HTTP. It leaves the
// check of the values to the server: with an error the policy is DefaultRetry, which the caller goes on with. Jobs that came by HTTP or
// gRPC never give an error: their policy was checked when it was stored.
func ParseStoredRetry(stored []byte) (RetryPolicy, error) {
	if stored == nil {
		return DefaultRetry(), nil
	}
	v, invalid := jsonread.Check(stored)
	if invalid != nil {
		return DefaultRetry(), errors.New("decode retry policy: not a JSON object")
	}
	base := DefaultRetry()
	if v[0] == '{' {
		// What is inherited was checked when it was set.
		if base, invalid = ParseRetry(jsonread.Find(v, "inherits"), base); invalid != nil {
			return DefaultRetry(), fmt.Errorf("decode inherited retry policy: %w", invalid)
		}
	}
	p, invalid := ParseRetry(v, base)
	if invalid != nil {
		return DefaultRetry(), fmt.Errorf("decode retry policy: %w", invalid)
	}
	return p, nil
}
