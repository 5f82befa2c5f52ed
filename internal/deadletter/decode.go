package deadletter

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

var (
	// The names of docs/reference/retries.md, Dead-letter endpoints. Of state only discarded is accepted.
	conditionNames = []string{"queue", "type", "error_type", "error_code", "since", "until", "older_than", "ids", "state", "confirm"}
	selectNames    = []string{"filter", "confirm"}
)

// DecodeRetry reads the body of a retry of many dead letters, which may list at most maxIDs ids.
// A body without confirm is refused: a client that leaves out its filter by mistake would retry everything.
func DecodeRetry(raw []byte, maxIDs int) (Filter, *ojs.Error) {
	return decodeConfirmed(raw, "retries", maxIDs)
}

// DecodePurge reads the body of a purge, which may list at most maxIDs ids.
func DecodePurge(raw []byte, maxIDs int) (Filter, *ojs.Error) {
	return decodeConfirmed(raw, "deletes", maxIDs)
}

// Problems of the form come before a missing confirmation, so a client sees what is wrong with its filter first.
func decodeConfirmed(raw []byte, does string, maxIDs int) (Filter, *ojs.Error) {
	f, r, err := decode(raw)
	if err != nil {
		return f, err
	}
	if err := payload.CheckConfirmed(r.confirm, does+" every dead letter that matches"); err != nil {
		return f, err
	}
	if len(r.ids) > maxIDs {
		return f, spec.BatchSize(maxIDs, len(r.ids))
	}
	return f, nil
}

// request is what the body of a bulk call says besides its filter.
type request struct {
	confirm jsontext.Value // nil: not sent
	ids     []string       // as sent
}

// decode reads the body of a bulk call: a filter with confirm beside it, or a flat body, which is the filter. An unknown
// condition is refused, because ignoring it would touch more jobs than meant.
// All problems of the body are collected, so that a client sees them at once. fields of the filter are named with their prefix.
func decode(raw []byte) (f Filter, req request, err *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return f, req, err
	}
	// confirm is read from the body itself, also if there is a filter beside it.
	b := payload.Body{}
	b.Fields, _ = payload.Read(v, selectNames)
	b.Boolean("confirm")
	req.confirm = b.Get("confirm")
	// In a flat body confirm stands among the conditions, hence its place in conditionNames.
	prefix, filter := "filter.", b.Get("filter")
	if filter == nil {
		prefix, filter = "", v
	}
	if filter[0] != '{' {
		b.Refuse("filter", "an object")
		return f, req, b.Problems.Err()
	}
	fs, unknown := payload.Read(filter, conditionNames)
	r := conditions{fs, prefix, &b.Problems}
	for _, m := range unknown {
		r.Add(ojs.ErrInvalidPayload, prefix+string(m.Name), "$."+prefix+string(m.Name), "absent: there is no such condition", m.Value)
	}
	req.ids = r.list("ids")
	f = Filter{
		Queues: r.list("queue"), Types: r.list("type"), ErrorTypes: r.list("error_type"), ErrorCodes: r.list("error_code"),
		Since: r.when("since"), Until: r.when("until"), OlderThan: r.when("older_than"),
	}
	if req.ids != nil {
		// The zero id, which no job has, keeps the list from being empty, which would mean any.
		f.IDs = append([][16]byte{{}}, job.NewIDList(req.ids).IDs...)
	}
	if text, _ := rawjson.Text(r.Get("state")); r.Get("state") != nil && text != string(ojs.StateDiscarded) {
		r.refuse("state", "discarded")
	}
	return f, req, b.Problems.Err()
}

// conditions reads the members of a filter.
type conditions struct {
	payload.Fields
	prefix string
	*payload.Problems
}

// The path is that in the body as it was sent, with or without filter.
func (r *conditions) refuse(name, expected string) {
	r.Add(ojs.ErrInvalidPayload, r.prefix+name, "$."+r.prefix+name, expected, r.Get(name))
}

// list reads a text or an array of them.
// nil means that the member was not sent; a member that is refused gives what was read of it, which nobody uses.
func (r *conditions) list(name string) []string {
	v := r.Get(name)
	if v == nil {
		return nil
	}
	list, ok := []string{}, false
	if text, isText := rawjson.Text(v); isText {
		list, ok = []string{text}, true
	} else if v[0] == '[' {
		list, ok = payload.Texts(v)
		ok = ok && (len(list) > 0 || name == "ids") // an empty list of ids chooses nothing
	}
	for _, text := range list {
		ok = ok && payload.IsName(text)
	}
	if !ok {
		r.refuse(name, "a non-empty string without U+0000, or an array of them")
	}
	return list
}

// An age is resolved later, by the clock of the database (Store.criteria).
func (r *conditions) when(name string) job.When {
	text, _ := rawjson.Text(r.Get(name))
	w, ok := job.ParseAge(text)
	if r.Get(name) != nil && !ok {
		r.refuse(name, "an RFC 3339 time with offset, or an age such as 7d or P7D")
	}
	return w
}
