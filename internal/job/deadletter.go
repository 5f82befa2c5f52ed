package job

import (
	"strings"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// DeadLetterFilter chooses dead letters (contract 20 §8.2). Empty fields match all.
type DeadLetterFilter struct {
	IDs                     []string // as sent; nil: any
	Queues, Types           []string // a type may end in *
	ErrorTypes, ErrorCodes  []string
	Since, Until, OlderThan When // Relative: In before now
}

var (
	deadLetterNames       = []string{"queue", "type", "error_type", "error_code", "since", "until", "older_than", "ids", "state", "confirm"}
	deadLetterSelectNames = []string{"filter", "confirm"}
)

// DecodeDeadLetterFilter reads the body of a bulk call: a filter with confirm beside it, or a flat body, which is the filter.
// An unknown condition is refused, because ignoring it would touch more jobs than meant.
func DecodeDeadLetterFilter(raw []byte) (f DeadLetterFilter, confirmed bool, err *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return f, false, err
	}
	b := payload.Body{}
	b.Fields, _ = payload.Read(v, deadLetterSelectNames)
	confirmed = b.Boolean("confirm")
	prefix, filter := "filter.", b.Get("filter")
	if filter == nil {
		prefix, filter = "", v
	}
	if filter[0] != '{' {
		b.Refuse("filter", "an object")
		return f, confirmed, b.Problems.Err()
	}
	fs, strange := payload.Read(filter, deadLetterNames)
	r := conditions{fs, prefix, &b.Problems}
	for _, m := range strange {
		r.Add(ojs.KindInvalidPayload, prefix+string(m.Name), "$."+prefix+string(m.Name), "absent: there is no such condition", m.Value)
	}
	f = DeadLetterFilter{
		IDs: r.list("ids"), Queues: r.list("queue"), Types: r.list("type"), ErrorTypes: r.list("error_type"), ErrorCodes: r.list("error_code"),
		Since: r.when("since"), Until: r.when("until"), OlderThan: r.when("older_than"),
	}
	if text, _ := rawjson.Text(r.Get("state")); r.Get("state") != nil && text != string(ojs.StateDiscarded) {
		r.refuse("state", "discarded")
	}
	return f, confirmed, b.Problems.Err()
}

// conditions reads the members of a filter.
type conditions struct {
	payload.Fields
	prefix string
	*payload.Problems
}

func (r *conditions) refuse(name, expected string) {
	r.Add(ojs.KindInvalidPayload, r.prefix+name, "$."+r.prefix+name, expected, r.Get(name))
}

// list reads a text or an array of them.
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

func (r *conditions) when(name string) When {
	text, _ := rawjson.Text(r.Get(name))
	w, ok := ParseAge(text)
	if r.Get(name) != nil && !ok {
		r.refuse(name, "an RFC 3339 time with offset, or an age such as 7d or P7D")
	}
	return w
}

// ParseAge reads a time, or an age: Relative then means that long before now.
func ParseAge(text string) (When, bool) {
	w, ok := ParseWhen(text)
	return w, ok && !strings.HasPrefix(text, "+")
}
