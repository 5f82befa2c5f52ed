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
	// defaultWebhookTimeoutMS and the others are in docs/reference/webhooks.md, Subscription. The filter is compared with each event in
	// SQL, so its size is a cost of every event.
	defaultWebhookTimeoutMS = 30_000
	defaultWebhookInFlight  = 10
	maxWebhookPatterns      = 50     // of one list
	maxWebhookMetadata      = 4096   // bytes of compact JSON
	maxWebhookURL           = 2048   // bytes
	maxWebhookFilter        = 16_384 // bytes of JSON
	minSecret, maxSecret    = 8, 256 // characters
)

// Decode reads a new subscription. A secret may be missing although it is needed: the caller then puts a generated one into
// the body before, if the server is set up for that.
func Decode(raw []byte) (*Definition, *ojs.Error) {
	r, err := open(raw)
	if err != nil {
		return nil, err
	}
	w := &Definition{
		Active: true, TimeoutMS: defaultWebhookTimeoutMS, MaxInFlight: defaultWebhookInFlight, Ordering: "none", PayloadFormat: "ojs",
	}
	r.Need("url", "an https URL")
	r.Need("events", "an array of event types or patterns such as job.*")
	r.Need("secret", "a string of 8 to 256 printable ASCII characters")
	r.read(w)
	return w, r.Err()
}

// Patch puts a partial update over current: what is absent stays. current is a copy, so a refusal leaves nothing half
// changed. null resets a member to its default (docs/reference/webhooks.md, Subscription).
func Patch(raw []byte, current Definition) (*Definition, *ojs.Error) {
	r, err := open(raw)
	if err != nil {
		return nil, err
	}
	r.read(&current)
	return &current, r.Err()
}

// DecodeRotation reads the optional body of a rotation; overlap is -1 if it is not said.
func DecodeRotation(raw []byte) (secret string, overlapS int64, err *ojs.Error) {
	if len(strings.TrimSpace(string(raw))) == 0 {
		return "", -1, nil
	}
	object, err := jsonread.OpenBody(raw, "secret", "overlap_seconds")
	if err != nil {
		return "", -1, err
	}
	object.RefuseOthers()
	r := reader{object}
	secret = r.secret()
	overlapS = -1
	if v := r.Get("overlap_seconds"); v != nil {
		n, kind := jsonread.Int(v)
		switch {
		case kind == jsonread.NotInt:
			r.Refuse("overlap_seconds", "an integer of seconds")
		case kind != jsonread.IsInt || n < 0 || n > 30*24*3600:
			r.limit("overlap_seconds", "from 0 to 2592000 s", v)
		default:
			overlapS = n
		}
	}
	return secret, overlapS, r.Err()
}

// Replay is what a replay asks for (docs/reference/webhooks.md, Routes). Ages are relative to the clock of the database and
// are resolved by Store.Replay.
type Replay struct {
	Since, Until job.When
	All          bool // not only what was abandoned
}

// DecodeReplay reads it.
func DecodeReplay(raw []byte) (res Replay, err *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "since", "until", "only")
	if err != nil {
		return res, err
	}
	o.RefuseOthers()
	const expected = "an RFC 3339 time with offset, or an age such as 1h"
	o.Need("since", expected)
	res.Since = jsonread.OptionalText(&o, "since", expected, job.ParseAge)
	res.Until = jsonread.OptionalText(&o, "until", expected, job.ParseAge)
	res.All = o.Text("only", `"failed" or "all"`, func(text string) bool { return text == "failed" || text == "all" }) == "all"
	return res, o.Err()
}

// reader reads a subscription. What is not of its type (400) goes before what is not admissible (422).
type reader struct{ jsonread.Object }

func open(raw []byte) (reader, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "url", "events", "secret", "filter", "metadata", "timeout_ms", "max_in_flight", "ordering",
		"payload_format",
		"standard_webhooks", "active")
	o.RefuseOthers("id", "success_count", "failure_count", "created_at", "updated_at", "secrets", "last_delivery_at",
		"last_delivery_status", "disabled_reason", "disabled_at", "failing_since")
	return reader{o}, err
}

// mistyped refuses a value, which may be null: that has no meaning where there is no default.
func (r *reader) mistyped(name, expected string) {
	v, _ := r.Sent(name)
	r.RefuseValue(ojs.ErrInvalidPayload, name, expected, v)
}

// limit refuses a value that has the right type.
func (r *reader) limit(name, expected string, v jsontext.Value) {
	r.Problems().Later(spec.Validation(name, jsonread.Show(v), "'"+name+"' must be "+expected+"."))
}

// read puts what was sent over w. Members that are absent keep their values, so it serves creation and change alike.
func (r *reader) read(w *Definition) {
	if v, sent := r.Sent("url"); sent {
		text, ok := jsonread.Text(v)
		switch {
		case !ok || strings.Contains(text, "\x00"):
			r.mistyped("url", "an https URL")
		case len(text) > maxWebhookURL:
			r.limit("url", "at most 2048 bytes long", v)
		}
		w.URL = text
	}
	if v, sent := r.Sent("events"); sent {
		w.Events = r.list("events", v, v)
		if v[0] == '[' && jsonread.Len(v) == 0 {
			r.limit("events", "a list of 1 to 50 patterns", v)
		}
	}
	if secret := r.secret(); secret != "" {
		w.Secret = secret
	}
	if v, sent := r.Sent("filter"); sent {
		r.filter(w, v)
	}
	if v, sent := r.Sent("metadata"); sent {
		switch {
		case jsonread.IsNull(v):
			w.Metadata = nil
		case v[0] != '{':
			r.Refuse("metadata", "an object")
		default:
			if w.Metadata = jsonread.Compact(v); len(w.Metadata) > maxWebhookMetadata {
				r.limit("metadata", "at most 4096 bytes long", v)
			}
		}
	}
	r.integer("timeout_ms", &w.TimeoutMS, 1_000, 60_000, defaultWebhookTimeoutMS)
	r.integer("max_in_flight", &w.MaxInFlight, 1, 100, defaultWebhookInFlight)
	r.choice("ordering", &w.Ordering, "none", "subject")
	r.choice("payload_format", &w.PayloadFormat, "ojs", "cloudevents")
	r.boolean("standard_webhooks", &w.StandardWebhooks)
	r.boolean("active", &w.Active)
}

// list reads an array of different strings. shown is what an error repeats if there are too many.
func (r *reader) list(name string, v, shown jsontext.Value) []string {
	values, ok := job.DistinctStrings(v, func(s string) bool { return !strings.Contains(s, "\x00") })
	if !ok {
		r.RefuseValue(ojs.ErrInvalidPayload, name, "an array of different strings", v)
		return nil
	}
	if len(values) > maxWebhookPatterns {
		r.limit(name, "a list of at most "+strconv.Itoa(maxWebhookPatterns), shown)
	}
	return values
}

// secret reads the secret; "": none was sent, or null. The value must not be in an error: errors are logged and shown, and it may be a
// real one with a slip.
func (r *reader) secret() string {
	v := r.Get("secret")
	text, ok := jsonread.Text(v)
	switch {
	case v == nil:
	case !ok:
		r.Problems().Note(jsonread.Problem{
			Kind: ojs.ErrInvalidPayload, Field: "secret", Path: "$.secret",
			Expected: "a string", Message: "'secret' must be a string of 8 to 256 printable ASCII characters.",
		})
	case !jsonread.AllIn(text, printable) || len(text) < minSecret || len(text) > maxSecret:
		r.limit("secret", "8 to 256 printable ASCII characters long", nil)
	}
	return text
}

// printable holds for secrets, which may be copied into headers and shells of receivers.
func printable(c byte) bool { return c >= 0x20 && c <= 0x7e }

// A filter is replaced as a whole, so what it does not name is cleared.
func (r *reader) filter(w *Definition, v jsontext.Value) {
	w.Filter, w.Queues, w.JobTypes, w.Sources = nil, nil, nil, nil
	switch {
	case jsonread.IsNull(v):
		return
	case v[0] != '{':
		r.RefuseValue(ojs.ErrInvalidPayload, "filter", "an object with queues, job_types or sources", v)
		return
	}
	for literal, value := range jsonread.Members(v) {
		name := string(jsonread.Name(literal))
		into, known := map[string]*[]string{"queues": &w.Queues, "job_types": &w.JobTypes, "sources": &w.Sources}[name]
		switch {
		case !known:
			r.RefuseValue(ojs.ErrInvalidPayload, "filter."+name, "absent: filters are queues, job_types and sources", value)
		case jsonread.IsNull(value): // of equal names the last counts
			*into = nil
		default:
			// Empty items go, as from every filter of events (docs/reference/events.md, Filters).
			*into = slices.DeleteFunc(r.list("filter."+name, value, nil), func(v string) bool { return v == "" })
		}
	}
	if w.Filter = jsonread.Compact(v); len(w.Filter) > maxWebhookFilter {
		r.limit("filter", "at most 16384 bytes long", v)
	}
}

// FilterOf reads a stored filter. The table keeps the filter as sent, for answers, beside the columns that matching uses.
func FilterOf(filter []byte) (w Definition) {
	if filter == nil {
		return w
	}
	new(reader).filter(&w, filter) // it was checked when it was stored
	return w
}

// integer does not take a text such as "5" for a number.
func (r *reader) integer(name string, into *int32, low, high int64, otherwise int32) {
	v, sent := r.Sent(name)
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
		r.limit(name, "an integer from "+strconv.FormatInt(low, 10)+" to "+strconv.FormatInt(high, 10), v)
	default:
		*into = int32(n)
	}
}

// choice reads one of a few words; the first is the default.
func (r *reader) choice(name string, into *string, words ...string) {
	v, sent := r.Sent(name)
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
		r.limit(name, strings.Join(words, " or "), v)
	}
	*into = text
}

func (r *reader) boolean(name string, into *bool) {
	if v, sent := r.Sent(name); sent {
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
