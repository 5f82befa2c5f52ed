package webhook

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Definition is a subscription as its owner decides it (docs/reference/webhooks.md, Subscription). Decode fills in the
// defaults. Events and Sources are checked by the caller, which knows the event types and translates aliases; Match has the
// outcome. Secret is plain text in memory only for the time of the call; String and MarshalJSON keep it out of logs.
type Definition struct {
	URL              string
	Events           []string // patterns as sent; not checked
	Queues, JobTypes []string
	Sources          []string // patterns; not checked
	Filter, Metadata []byte   // as sent; nil: none
	Tenant           string   // whose events it gets; "": those of all
	Active           bool
	TimeoutMS        int32
	MaxInFlight      int32
	Ordering         string // none or subject
	PayloadFormat    string // ojs or cloudevents
	StandardWebhooks bool
	Secret           string // "": none was sent
}

const (
	// docs/reference/webhooks.md, Subscription has the limits. The filter is compared with each event in SQL, so its size
	// is a cost of every event.
	defaultWebhookTimeoutMS = 30_000
	defaultWebhookInFlight  = 10
	maxWebhookPatterns      = 50     // of one list
	maxWebhookMetadata      = 4096   // bytes of JSON
	maxWebhookURL           = 2048   // bytes
	maxWebhookFilter        = 16_384 // bytes of JSON
	minSecret, maxSecret    = 8, 256 // characters
)

// Decode reads a new subscription. A secret may be missing although it is needed: the caller then puts a generated one into
// the body before, if the server is set up for that.
func Decode(raw []byte) (*Definition, *ojs.Error) {
	w := &Definition{
		Active: true, TimeoutMS: defaultWebhookTimeoutMS, MaxInFlight: defaultWebhookInFlight, Ordering: "none", PayloadFormat: "ojs",
	}
	r, err := read(raw, w)
	if err != nil {
		return nil, err
	}
	r.need("url", "an https URL")
	r.need("events", "an array of event types or patterns such as job.*")
	r.need("secret", "a string of 8 to 256 printable ASCII characters")
	return w, r.read()
}

// Patch puts a partial update over current: what is absent stays. current is a copy, so a refusal leaves nothing half
// changed. null resets a member to its default (docs/reference/webhooks.md, Subscription).
func Patch(raw []byte, current Definition) (*Definition, *ojs.Error) {
	r, err := read(raw, &current)
	if err != nil {
		return nil, err
	}
	return &current, r.read()
}

// DecodeRotation reads the optional body of a rotation; overlap is -1 if it is not said.
func DecodeRotation(raw []byte) (secret string, overlapS int64, err *ojs.Error) {
	overlapS = -1
	if len(strings.TrimSpace(string(raw))) == 0 {
		return "", overlapS, nil
	}
	w := &Definition{}
	r, err := read(raw, w)
	if err != nil {
		return "", overlapS, err
	}
	r.secret()
	if v := r.members["overlap_seconds"]; !jsonread.IsNull(v) {
		n, kind := jsonread.Int(v)
		switch {
		case kind == jsonread.NotInt:
			r.mistyped("overlap_seconds", "an integer of seconds")
		case kind != jsonread.IsInt || n < 0 || n > 30*24*3600:
			r.limit("overlap_seconds", "from 0 to 2592000 s")
		default:
			overlapS = n
		}
	}
	return w.Secret, overlapS, r.err()
}

// Replay is what a replay asks for (docs/reference/webhooks.md, Routes). Ages are relative to the clock of the database and
// are resolved by Store.Replay.
type Replay struct {
	Since, Until job.When
	All          bool // not only what was abandoned
}

// DecodeReplay reads it.
func DecodeReplay(raw []byte) (res Replay, err *ojs.Error) {
	r, err := read(raw, &Definition{})
	if err != nil {
		return res, err
	}
	r.need("since", "an RFC 3339 time with offset, or an age such as 1h")
	res.Since, res.Until = r.when("since"), r.when("until")
	switch text, _ := jsonread.Text(r.members["only"]); {
	case jsonread.IsNull(r.members["only"]), text == "failed":
	case text == "all":
		res.All = true
	default:
		r.mistyped("only", `"failed" or "all"`)
	}
	return res, r.err()
}

// reader collects what is wrong: what is not of its type (400) goes before what is not admissible (422). w holds the values
// that were there before and gets those that were read, mistakes included: it must not be used after an error.
type reader struct {
	members  map[string]jsontext.Value
	w        *Definition
	problems jsonread.Problems
	refused  *ojs.Error
}

// read begins a decoding on top of w, which holds what is not sent. Of members with equal names the last one counts.
func read(raw []byte, w *Definition) (*reader, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return nil, err
	}
	r := &reader{members: map[string]jsontext.Value{}, w: w}
	for literal, value := range jsonread.Members(v) {
		r.members[string(jsonread.Name(literal))] = value
	}
	return r, nil
}

// need refuses a member that is absent or null, and forgets it, so that it is refused once.
func (r *reader) need(name, expected string) {
	if jsonread.IsNull(r.members[name]) {
		r.problems.Add(ojs.ErrInvalidPayload, name, "$."+name, expected, nil)
		delete(r.members, name)
	}
}

func (r *reader) mistyped(name, expected string) {
	r.problems.Add(ojs.ErrInvalidPayload, name, "$."+name, expected, r.members[name])
}

// when reads a time or an age; without the member it is not set.
func (r *reader) when(name string) (when job.When) {
	if v := r.members[name]; !jsonread.IsNull(v) {
		text, _ := jsonread.Text(v)
		var ok bool
		if when, ok = job.ParseAge(text); !ok {
			r.mistyped(name, "an RFC 3339 time with offset, or an age such as 1h")
		}
	}
	return when
}

// limit refuses a value that has the right type. Only the first one is named: the answer has room for one field.
func (r *reader) limit(name, expected string) {
	if r.refused == nil {
		r.refused = spec.Validation(name, jsonread.Show(r.members[name]), "'"+name+"' must be "+expected+".")
	}
}

func (r *reader) err() *ojs.Error {
	if err := r.problems.Err(); err != nil {
		return err
	}
	return r.refused
}

// Members that are absent keep their values in w, so it serves creation and change alike.
func (r *reader) read() *ojs.Error {
	if v, sent := r.members["url"]; sent {
		text, ok := jsonread.Text(v)
		switch {
		case !ok || strings.Contains(text, "\x00"):
			r.mistyped("url", "an https URL")
		case len(text) > maxWebhookURL:
			r.limit("url", "at most 2048 bytes long")
		}
		r.w.URL = text
	}
	if v, sent := r.members["events"]; sent {
		r.w.Events = r.list("events", v)
		if v[0] == '[' && jsonread.Len(v) == 0 {
			r.limit("events", "a list of 1 to 50 patterns")
		}
	}
	r.secret()
	r.filter()
	r.metadata()
	r.options()
	return r.err()
}

// list reads an array of different strings.
func (r *reader) list(name string, v jsontext.Value) []string {
	values, ok := job.DistinctStrings(v, func(s string) bool { return !strings.Contains(s, "\x00") })
	if !ok {
		r.problems.Add(ojs.ErrInvalidPayload, name, "$."+name, "an array of different strings", v)
		return nil
	}
	if len(values) > maxWebhookPatterns {
		r.limit(name, "a list of at most "+strconv.Itoa(maxWebhookPatterns))
	}
	return values
}

// The value must not be in an error: errors are logged and shown.
func (r *reader) secret() {
	v := r.members["secret"]
	if jsonread.IsNull(v) { // like one that was not sent
		return
	}
	text, ok := jsonread.Text(v)
	switch {
	case !ok:
		r.problems = append(r.problems, jsonread.Problem{
			Kind: ojs.ErrInvalidPayload, Field: "secret", Path: "$.secret", Expected: "a string", Message: "'secret' must be a string of 8 to 256 printable ASCII characters.",
		})
	case !printable(text) || len(text) < minSecret || len(text) > maxSecret:
		if r.refused == nil { // the value is not repeated: it may be a real one with a slip
			r.refused = spec.Validation("secret", nil, "'secret' must be 8 to 256 printable ASCII characters long.")
		}
	}
	r.w.Secret = text
}

// A secret may be copied into headers and shells of receivers.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// A filter is replaced as a whole, so what it does not name is cleared.
func (r *reader) filter() {
	v, sent := r.members["filter"]
	if !sent {
		return
	}
	w := r.w
	w.Filter, w.Queues, w.JobTypes, w.Sources = nil, nil, nil, nil
	switch {
	case jsonread.IsNull(v):
		return
	case v[0] != '{':
		r.mistyped("filter", "an object with queues, job_types or sources")
		return
	}
	for literal, value := range jsonread.Members(v) {
		name := string(jsonread.Name(literal))
		into, known := map[string]*[]string{"queues": &w.Queues, "job_types": &w.JobTypes, "sources": &w.Sources}[name]
		switch {
		case !known:
			r.problems.Add(ojs.ErrInvalidPayload, "filter."+name, "$.filter."+name, "absent: filters are queues, job_types and sources", value)
		case jsonread.IsNull(value): // of equal names the last counts
			*into = nil
		default:
			*into = nonEmpty(r.list("filter."+name, value))
		}
	}
	if w.Filter = jsonread.Compact(v); len(w.Filter) > maxWebhookFilter {
		r.limit("filter", "at most 16384 bytes long")
	}
}

// nonEmpty drops empty items, as every filter of events does (docs/reference/events.md, Filters).
func nonEmpty(values []string) []string {
	return slices.DeleteFunc(values, func(v string) bool { return v == "" })
}

// FilterOf reads a stored filter. The table keeps the filter as sent, for answers, beside the columns that matching uses.
func FilterOf(filter []byte) (w Definition) {
	if filter == nil {
		return w
	}
	r := reader{members: map[string]jsontext.Value{"filter": filter}, w: &w}
	r.filter() // it was checked when it was stored
	return w
}

// Its size is that of the compact form.
func (r *reader) metadata() {
	v, sent := r.members["metadata"]
	switch {
	case !sent:
	case jsonread.IsNull(v):
		r.w.Metadata = nil
	case v[0] != '{':
		r.mistyped("metadata", "an object")
	default:
		r.w.Metadata = jsonread.Compact(v)
		if len(r.w.Metadata) > maxWebhookMetadata {
			r.limit("metadata", "at most 4096 bytes long")
		}
	}
}

func (r *reader) options() {
	w := r.w
	r.integer("timeout_ms", &w.TimeoutMS, 1_000, 60_000, defaultWebhookTimeoutMS)
	r.integer("max_in_flight", &w.MaxInFlight, 1, 100, defaultWebhookInFlight)
	r.choice("ordering", &w.Ordering, "none", "subject")
	r.choice("payload_format", &w.PayloadFormat, "ojs", "cloudevents")
	r.boolean("standard_webhooks", &w.StandardWebhooks)
	r.boolean("active", &w.Active)
}

// A text such as "5" is not taken for a number.
func (r *reader) integer(name string, into *int32, low, high int64, otherwise int32) {
	v, sent := r.members[name]
	if !sent {
		return
	}
	n, kind := jsonread.Int(v)
	switch {
	case jsonread.IsNull(v):
		*into = otherwise
	case kind == jsonread.NotInt:
		r.mistyped(name, "an integer")
	case kind != jsonread.IsInt || n < low || n > high:
		r.limit(name, "an integer from "+strconv.FormatInt(low, 10)+" to "+strconv.FormatInt(high, 10))
	default:
		*into = int32(n)
	}
}

// choice reads one of a few words; the first is the default.
func (r *reader) choice(name string, into *string, words ...string) {
	v, sent := r.members[name]
	if !sent {
		return
	}
	if jsonread.IsNull(v) {
		*into = words[0]
		return
	}
	text, ok := jsonread.Text(v)
	switch {
	case !ok:
		r.mistyped(name, strings.Join(words, " or "))
	case !slices.Contains(words, text):
		r.limit(name, strings.Join(words, " or "))
	}
	*into = text
}

func (r *reader) boolean(name string, into *bool) {
	if v, sent := r.members[name]; sent {
		value, ok := jsonread.Bool(v)
		if !ok {
			r.mistyped(name, "a boolean")
			return
		}
		*into = value
	}
}

// String keeps the secret out of logs.
func (w Definition) String() string { return "webhook to " + strconv.Quote(w.URL) }

// MarshalJSON keeps it out of them, too.
func (w Definition) MarshalJSON() ([]byte, error) { return json.Marshal(w.String()) }
