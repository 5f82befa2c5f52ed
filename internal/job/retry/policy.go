package retry

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// field is a setting of the policy.
type field int

const (
	maxAttempts field = iota
	initialInterval
	maxInterval
	coefficient
	jitter
	nonRetryable
	onExhaustion
	strategy
	fieldCount
)

// spelling is one accepted name of a field.
type spelling struct {
	name  string
	field field
	ms    bool // an integer of ms, where 0 means not sent
}

// spellings has the canonical name of each field first, then the aliases, strongest first (docs/reference/retries.md, Aliases).
var spellings = [...]spelling{
	{"max_attempts", maxAttempts, false}, {"maxAttempts", maxAttempts, false},
	{"initial_interval", initialInterval, false}, {"initial_interval_ms", initialInterval, true},
	{"initial_delay_ms", initialInterval, true}, {"initialInterval", initialInterval, false},
	{"max_interval", maxInterval, false}, {"max_interval_ms", maxInterval, true}, {"maxInterval", maxInterval, false},
	{"backoff_coefficient", coefficient, false}, {"multiplier", coefficient, false}, {"backoffCoefficient", coefficient, false},
	{"jitter", jitter, false},
	{"non_retryable_errors", nonRetryable, false}, {"nonRetryableErrors", nonRetryable, false},
	{"on_exhaustion", onExhaustion, false}, {"onExhaustion", onExhaustion, false},
	{"backoff_strategy", strategy, false}, {"backoff_type", strategy, false}, {"strategy", strategy, false}, {"backoff", strategy, false},
}

// canonical is the name in error messages and in what Encode writes.
var spellingByName, canonical = indexSpellings()

// It walks backwards, so that the first spelling of a field, its canonical name, is the one that stays.
func indexSpellings() (byName map[string]int, names [fieldCount]string) {
	byName = map[string]int{}
	for i := len(spellings) - 1; i >= 0; i-- {
		byName[spellings[i].name] = i
		names[spellings[i].field] = spellings[i].name
	}
	return byName, names
}

// sent is a value as the client gave it, under the spelling that won.
type sent struct {
	value jsontext.Value // nil: the field was not sent
	*spelling
}

// Parse reads a retry object and fills what it leaves out from base. raw must be valid JSON; nil
// and null give base. Unknown members are ignored. On an error the policy that it returns is not usable. It stops at the first
// wrong field, in the order of the constants above.
func Parse(raw []byte, base Policy) (Policy, *ojs.Error) {
	if jsonread.IsNull(raw) {
		return base, nil
	}
	if raw[0] != '{' {
		return base, spec.Validation("retry", jsonread.Show(raw), "retry must be an object, got "+jsonread.Describe(raw)+".")
	}
	p := base
	fields := collect(raw)
	for f, s := range fields {
		if s.value == nil {
			continue
		}
		if want := p.set(field(f), s); want != "" {
			return base, refuse(s, want)
		}
	}
	return p, p.settleIntervals(fields[initialInterval], fields[maxInterval])
}

// collect finds for each field the spelling that wins. The last of equal names counts, so a later null takes a value back.
// A spelling that was sent as null, or as 0 where 0 means not sent, gives way to the next alias.
func collect(raw jsontext.Value) (won [fieldCount]sent) {
	var values [len(spellings)]jsontext.Value
	for name, value := range jsonread.Members(raw) {
		i, known := spellingByName[string(jsonread.Name(name))]
		if !known {
			continue
		}
		if jsonread.IsNull(value) || spellings[i].ms && isZero(value) {
			value = nil
		}
		values[i] = value
	}
	for i, v := range values {
		if s := &spellings[i]; v != nil && won[s.field].value == nil {
			won[s.field] = sent{v, s}
		}
	}
	return won
}

func isZero(v jsontext.Value) bool {
	n, kind := jsonread.Int(v)
	return kind == jsonread.IsInt && n == 0
}

// set takes over one value. It returns what the field must be if the value is something else.
func (p *Policy) set(f field, s sent) (want string) {
	var ok bool
	switch f {
	// The range has no upper end: a job may be retried for ever.
	case maxAttempts:
		var kind jsonread.IntResult
		p.MaxAttempts, kind = jsonread.Int(s.value)
		return expect(kind == jsonread.IsInt && p.MaxAttempts >= 0, "an integer >= 0")
	case initialInterval:
		p.InitialInterval, want = interval(s)
		return want
	case maxInterval:
		p.MaxInterval, want = interval(s)
		return want
	// A number that overflows a double is no number here.
	case coefficient:
		p.BackoffCoefficient, ok = number(s.value)
		return expect(ok && p.BackoffCoefficient >= 1, "a number >= 1.0")
	case jitter:
		p.Jitter, ok = jsonread.Bool(s.value)
		return expect(ok, "a boolean")
	// The list replaces that of the base: lists are not merged.
	case nonRetryable:
		p.NonRetryable, ok = patterns(s.value)
		return expect(ok, "an array of non-empty strings")
	case onExhaustion:
		p.OnExhaustion, _ = jsonread.Text(s.value)
		return expect(p.OnExhaustion == ExhaustDiscard || p.OnExhaustion == ExhaustDeadLetter, "discard or dead_letter")
	default:
		p.Strategy, ok = strategyOf(s.value)
		return expect(ok, "one of exponential, linear, polynomial, constant, none")
	}
}

func expect(ok bool, want string) string {
	if ok {
		return ""
	}
	return want
}

// Inside a policy only the ISO form is a duration (docs/reference/retries.md, Durations); names that end in _ms take integers. The least
// interval is 1 ms. One below half of it would be rounded to 0, which is stored as the default: it is refused.
func interval(s sent) (d time.Duration, want string) {
	if s.ms {
		n, kind := jsonread.Int(s.value)
		ok := kind == jsonread.IsInt && n > 0 && n <= jsonread.MaxDuration.Milliseconds()
		return time.Duration(n) * time.Millisecond, expect(ok, "an integer >= 0 of milliseconds, at most 36500 days")
	}
	text, _ := jsonread.Text(s.value)
	d, err := jsonread.ParseISODuration(text)
	return d, expect(err == nil && d > 0, "an ISO 8601 duration of at least 1 ms such as PT1S, at most 36500 days")
}

func number(v jsontext.Value) (float64, bool) {
	f, err := strconv.ParseFloat(string(v), 64)
	return f, err == nil
}

// Entries are not checked further: any text may be the name of an error.
func patterns(v jsontext.Value) ([]string, bool) {
	if v[0] != '[' {
		return nil, false
	}
	var list []string
	for e := range jsonread.Elements(v) {
		text, _ := jsonread.Text(e)
		if text == "" {
			return nil, false
		}
		list = append(list, text)
	}
	return list, true
}

func strategyOf(v jsontext.Value) (string, bool) {
	switch text, _ := jsonread.Text(v); text {
	case Exponential, Linear, Polynomial, Constant:
		return text, true
	case "none":
		return Constant, true
	default:
		return "", false
	}
}

// settleIntervals keeps MaxInterval ≥ InitialInterval: a lone interval pulls the other along, two that contradict each
// other are refused. The base may be the policy of a queue, so a client's lone interval can contradict one that it has never
// seen.
func (p *Policy) settleIntervals(initial, limit sent) *ojs.Error {
	// The base never breaks this rule, so at least one of the two was sent.
	if p.MaxInterval >= p.InitialInterval {
		return nil
	}
	switch {
	case initial.value != nil && limit.value != nil:
		return refuse(limit, "at least initial_interval ("+jsonread.FormatDuration(p.InitialInterval)+")")
	case limit.value != nil:
		p.InitialInterval = p.MaxInterval
	default:
		p.MaxInterval = p.InitialInterval
	}
	return nil
}

// refuse names the canonical field in details; the message has the client's own spelling as well if it is another.
func refuse(s sent, want string) *ojs.Error {
	name := canonical[s.field]
	message := "retry." + name + " must be " + want + ", got " + shorten(s.value) + "."
	if s.name != name {
		message = "retry." + s.name + " (" + name + ") must be " + want + ", got " + shorten(s.value) + "."
	}
	return spec.Validation("retry."+name, jsonread.Show(s.value), message)
}

func shorten(v jsontext.Value) string {
	if len(v) > 60 {
		return jsonread.Describe(v)
	}
	return string(jsonread.Compact(v))
}

// Merge gives the retry object that shows a policy after a change of some of its fields: what was sent first (nil: nothing),
// without the fields that the change sets under any name, and then the change. It changes only what is shown. The policy in
// force is computed by Parse, from the same two objects.
func Merge(first, change []byte) []byte {
	// A field may be there under an alias: the change of initial_interval also removes an initial_interval_ms that was sent
	// before.
	set := collect(change)
	b := []byte{'{'}
	member := func(literal, value []byte) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = jsonread.AppendCompact(append(append(b, literal...), ':'), value)
	}
	if !jsonread.IsNull(first) {
		for literal, value := range jsonread.Members(first) {
			i, known := spellingByName[string(jsonread.Name(literal))]
			if !known || set[spellings[i].field].value == nil {
				member(literal, value)
			}
		}
	}
	for literal, value := range jsonread.Members(change) {
		if !jsonread.IsNull(value) {
			member(literal, value)
		}
	}
	return append(b, '}')
}

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
// queue, as Encode wrote it, in the member inherits: here one is read over the other, as for a job over HTTP. It leaves the check of the
// values to the server: with an error the policy is Default, which the caller goes on with. Jobs that came by HTTP or gRPC never give an
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
