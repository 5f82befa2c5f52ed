package fakeserver

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ojsd/ojsd/ojs"
)

// What clients send is read here by the rules of docs/reference, so that a program is refused in a test what a server would refuse. The
// rules stand in the server, too: the SDK requires none of its packages. TestSDKFakeRefuses compares both, request by request.

const (
	maxDuration = 36500 * 24 * time.Hour
	maxDepth    = 32 // of JSON
	maxJob      = 1 << 20
	maxMeta     = 64 << 10
	maxBatch    = 10_000
)

// problems keeps the refusal of the earliest check: mistakes of fields (400) come before those of policies (422), and those before sizes
// (413).
type problems struct{ first *ojs.Error }

func (p *problems) add(e *ojs.Error) {
	stage := func(e *ojs.Error) int {
		return slices.Index([]int{http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge}, statusOf(e))
	}
	if p.first == nil || stage(e) < stage(p.first) {
		p.first = e
	}
}

func tooLarge(kind ojs.ErrorKind, field string, most, actual int) *ojs.Error {
	return newError(kind, object{"field": field}, "%s has %d bytes or items; the limit is %d.", field, actual, most)
}

// member is a member of an object by the name under which it was sent; value is nil if it is absent or null.
type member struct {
	name  string
	value json.RawMessage
}

// reader reads the members of objects. Of several objects the first that has a member counts.
type reader struct {
	*problems
	objects []map[string]json.RawMessage
	prefix  string        // of the names of fields
	kind    ojs.ErrorKind // of refusals
}

// objectOf gives the members that are not null; ok is false for what is no object.
func objectOf(raw json.RawMessage) (members map[string]json.RawMessage, ok bool) {
	if len(raw) == 0 || raw[0] != '{' || json.Unmarshal(raw, &members) != nil {
		return nil, false
	}
	for name, value := range members {
		if string(value) == "null" {
			delete(members, name)
		}
	}
	return members, true
}

// open reads a body, which is an object.
func (p *problems) open(body json.RawMessage) (r reader, ok bool) {
	members, ok := objectOf(body)
	if !ok {
		p.add(invalidPayload("body", "The body must be one JSON object."))
	}
	return reader{problems: p, objects: []map[string]json.RawMessage{members}, kind: ojs.ErrInvalidPayload}, ok
}

// inner reads the object of a member.
func (r reader) inner(m member) (in reader, there bool) {
	if m.value == nil {
		return reader{}, false
	}
	members, ok := objectOf(m.value)
	if !ok || depth(m.value) > maxDepth {
		r.refuse(m, "an object, nested at most 32 levels")
		return reader{}, false
	}
	return reader{problems: r.problems, objects: []map[string]json.RawMessage{members}, prefix: r.prefix + m.name + ".", kind: r.kind}, true
}

// pick is the first of the names that was sent.
func (r reader) pick(names ...string) member {
	for _, o := range r.objects {
		for _, name := range names {
			if value := o[name]; value != nil {
				return member{name, value}
			}
		}
	}
	return member{name: names[0]}
}

func (r reader) refuse(m member, expected string) { r.refuseAs(r.kind, m, expected) }

func (r reader) refuseAs(kind ojs.ErrorKind, m member, expected string) {
	field := r.prefix + m.name
	e := newError(kind, object{"field": field, "expected": expected}, "'%s' must be %s, got %s.", field, expected, shorten(m.value))
	switch kind {
	case ojs.ErrInvalidJobType, ojs.ErrJobTypeTooLong, ojs.ErrInvalidQueue, ojs.ErrQueueNameTooLong,
		ojs.ErrInvalidArgs,
		ojs.ErrInvalidMetadata,
		ojs.ErrInvalidCron:
		e.Code = string(ojs.ErrInvalidPayload)
	}
	r.add(e)
}

func shorten(value json.RawMessage) string {
	switch {
	case value == nil:
		return "nothing"
	case len(value) > 60:
		return string(value[:60]) + "…"
	}
	return string(value)
}

// others refuses members that a call does not know, with the kind of docs/reference/http.md, Unknown names.
func (r reader) others(kind ojs.ErrorKind, known ...string) {
	names := []string{}
	for name := range r.objects[0] {
		if !slices.Contains(known, name) {
			names = append(names, r.prefix+name)
		}
	}
	if len(names) > 0 {
		r.add(unknownName(kind, slices.Min(names), known))
	}
}

func unknownName(kind ojs.ErrorKind, name string, known []string) *ojs.Error {
	return newError(kind, object{"field": name, "expected": known}, "'%s' is not known here; known are %s.", name,
		strings.Join(known, ", "))
}

func (r reader) text(m member, expected string, valid func(string) bool) string {
	if m.value == nil {
		return ""
	}
	text, ok := textOf(m.value)
	if !ok || valid != nil && !valid(text) {
		r.refuse(m, expected)
	}
	return text
}

func textOf(value json.RawMessage) (text string, ok bool) {
	return text, len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) == nil
}

func (r reader) boolean(m member) (value bool) {
	if m.value != nil && json.Unmarshal(m.value, &value) != nil {
		r.refuse(m, "a boolean")
	}
	return value
}

// integer reads a whole number, which may be written with a zero fraction.
func (r reader) integer(m member, low, high int64) (n int64, there bool) {
	if m.value == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(m.value), 10, 64)
	if err != nil {
		f, floatErr := strconv.ParseFloat(string(m.value), 64)
		if n, err = int64(f), floatErr; err == nil && (f != math.Trunc(f) || math.Abs(f) > 1<<53) {
			err = strconv.ErrSyntax
		}
	}
	if err != nil || n < low || n > high {
		r.refuse(m, fmt.Sprintf("an integer from %d to %d", low, high))
		return 0, false
	}
	return n, true
}

// texts reads an array of strings, each once if they are distinct.
func (r reader) texts(m member, distinct bool, expected string, valid func(string) bool) (list []string) {
	if m.value == nil {
		return nil
	}
	ok := m.value[0] == '[' && json.Unmarshal(m.value, &list) == nil
	for i, text := range list {
		ok = ok && valid(text) && !(distinct && slices.Contains(list[:i], text))
	}
	if !ok {
		r.refuse(m, expected)
		return nil
	}
	return list
}

func isName(text string) bool { return text != "" && !strings.Contains(text, "\x00") }

// time reads a time, or a duration from now on. A duration counts from the clock of the server, Advance included.
func (r reader) time(m member, now time.Time) time.Time {
	if m.value == nil {
		return time.Time{}
	}
	if text, ok := textOf(m.value); ok {
		if at, ok := readTime(text, now); ok {
			return at
		}
	}
	r.refuse(m, "an RFC 3339 time with offset such as 2026-05-04T03:02:01Z, or a duration such as +PT5M")
	return time.Time{}
}

// duration reads a duration above zero; those of policies have the ISO form only.
func (r reader) duration(m member, read func(string) (time.Duration, bool)) (d time.Duration) {
	if m.value == nil {
		return 0
	}
	text, ok := textOf(m.value)
	if ok {
		d, ok = read(text)
	}
	if !ok || d < time.Millisecond {
		r.refuse(m, "a duration above zero such as PT30M")
		return 0
	}
	return d
}

// depth is how deeply arrays and objects are nested.
func depth(value []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

func readTime(text string, now time.Time) (time.Time, bool) {
	if d, ok := readDuration(strings.TrimPrefix(text, "+")); ok {
		return now.Add(d), true
	}
	for _, clock := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "20060102T150405", "20060102T1504"} {
		for _, zone := range []string{"Z07:00", "Z0700", "Z07"} {
			if at, err := time.Parse(clock+zone, text); err == nil {
				return at.UTC(), true
			}
		}
	}
	return time.Time{}, false
}

var (
	isoForm   = regexp.MustCompile(`^P(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$`)
	shortForm = regexp.MustCompile(`^(\d+(?:\.\d+)?)(ms|s|m|h|d|w)$`)
	isoUnits  = []time.Duration{365 * 24 * time.Hour, 30 * 24 * time.Hour, 7 * 24 * time.Hour, 24 * time.Hour, time.Hour, time.Minute,
		time.Second}
	units = map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour,
		"d": 24 * time.Hour, "w": 7 * 24 * time.Hour}
)

// readDuration reads the ISO form and the short form of docs/reference/jobs.md, Times and durations.
func readDuration(text string) (time.Duration, bool) {
	if m := shortForm.FindStringSubmatch(text); m != nil {
		return sum([]string{m[1]}, []time.Duration{units[m[2]]})
	}
	return readISO(text)
}

func readISO(text string) (time.Duration, bool) {
	m := isoForm.FindStringSubmatch(text)
	if m == nil || text == "P" || strings.HasSuffix(text, "T") {
		return 0, false
	}
	return sum(m[1:], isoUnits)
}

func sum(amounts []string, lengths []time.Duration) (total time.Duration, ok bool) {
	for i, amount := range amounts {
		if amount == "" {
			continue
		}
		n, err := strconv.ParseFloat(amount, 64)
		if err != nil || n > float64(maxDuration-total)/float64(lengths[i]) {
			return 0, false
		}
		total += time.Duration(math.Round(n * float64(lengths[i])))
	}
	return total.Round(time.Millisecond), true
}

// lists are the parameters of pages.
var lists = []string{"limit", "offset", "page", "per_page", "cursor"}

// parameters refuses those of a query that a call does not know, and pages that there are not.
func parameters(r *Request, known ...string) *ojs.Error {
	for name := range r.Query {
		if !slices.Contains(known, name) {
			return unknownName(ojs.ErrInvalidRequest, name, known)
		}
	}
	for _, name := range lists {
		low := map[string]int{"limit": 1, "per_page": 1, "page": 1}[name]
		if text := r.Query.Get(name); text != "" && name != "cursor" && slices.Contains(known, name) {
			if n, err := strconv.Atoi(text); err != nil || n < low || n > 1_000_000 {
				return newError(ojs.ErrInvalidRequest, object{"field": name}, "'%s' must be an integer of at least %d, got %q.", name,
					low, text)
			}
		}
	}
	return nil
}

// oneOf refuses a filter with another value than those of a list.
func oneOf[T ~string](r *Request, name string, values ...T) *ojs.Error {
	for value := range strings.SplitSeq(r.Query.Get(name), ",") {
		if value != "" && !slices.Contains(values, T(value)) {
			return newError(ojs.ErrInvalidRequest, object{"field": name}, "'%s' must be of %v, got %q.", name, values, value)
		}
	}
	return nil
}

// checkQueue reports a queue name that servers refuse.
func checkQueue(value json.RawMessage) (name string, kind ojs.ErrorKind) {
	text, ok := textOf(value)
	switch {
	case len(text) > 128:
		return text, ojs.ErrQueueNameTooLong
	case !ok || !queuePattern.MatchString(text):
		return text, ojs.ErrInvalidQueue
	}
	return text, ""
}

func validText(most int) func(string) bool {
	return func(text string) bool { return utf8.RuneCountInString(text) <= most && !strings.Contains(text, "\x00") }
}

// refusal answers an error with its status.
func refusal(e *ojs.Error) answer { return refuse(statusOf(e), e) }

// statusOf knows the kinds that this server answers, and 400 for the rest.
func statusOf(e *ojs.Error) int {
	switch e.Code {
	case "conflict", "duplicate":
		return http.StatusConflict
	case string(ojs.ErrNotFound):
		return http.StatusNotFound
	case string(ojs.ErrValidation), string(ojs.ErrUnsupported), string(ojs.ErrQueuePaused):
		return http.StatusUnprocessableEntity
	case string(ojs.ErrPayloadTooLarge), string(ojs.ErrMetadataTooLarge), string(ojs.ErrBatchSize):
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusBadRequest
}
