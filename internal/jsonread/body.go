package jsonread

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// The limits of docs/reference/jobs.md, Limits.
	maxWorkerIDBytes = 255

	// MaxVisibilityMS is the longest visibility timeout: 7 days.
	MaxVisibilityMS = 604_800_000
)

// Fields holds the members of a flat object by name. The bodies of workers have a dozen names at most, so looking
// through them beats a map.
// It is a value without pointers to other fields, so it can be kept on the stack.
type Fields struct {
	names  []string
	values [16]jsontext.Value // nil: absent or null
}

// Read sorts the members of object v into names, at most 16; others are returned, with equal names repeated.
// A name beyond the 16th panics when a body has it. An unknown member is no error here; each caller decides.
func Read(v jsontext.Value, names []string) (f Fields, others []Member) {
	f.names = names
members:
	for literal, value := range Members(v) {
		name := Name(literal)
		for i, known := range names {
			if string(name) == known {
				f.values[i] = Present(value)
				continue members
			}
		}
		others = append(others, Member{name, literal, value})
	}
	return f, others
}

// Get is the value of a field; nil: absent or null.
// A name that Read was not given is a mistake of the program, hence the panic.
func (f *Fields) Get(name string) jsontext.Value {
	for i, known := range f.names {
		if name == known {
			return f.values[i]
		}
	}
	panic("payload: field was not read: " + name)
}

// Empty reports whether no field has a value.
func (f *Fields) Empty() bool {
	for _, v := range f.values {
		if v != nil {
			return false
		}
	}
	return true
}

// Named returns fields of these names without values.
func Named(names []string) Fields { return Fields{names: names} }

// Member is a member of an object, its name unescaped.
type Member struct {
	Name    []byte
	Literal jsontext.Value // the name as it stands in the object
	Value   jsontext.Value
}

// Body reads the flat object of a worker's call and collects what is wrong with it.
// Its methods return the zero value for a field that they refuse, so that callers go on and find the next problem. Problems.Err
// comes last.
type Body struct {
	Fields
	Problems Problems
}

// Refuse notes that a field is not what was expected.
func (b *Body) Refuse(field, expected string) {
	b.Problems.Add(ojs.ErrInvalidPayload, field, "$."+field, expected, b.Get(field))
}

// JobID reads the required job_id.
// Whether it has the form of an id is not checked: an unknown one is 404.
func (b *Body) JobID() string {
	text, _ := Text(b.Get("job_id"))
	if text == "" {
		b.Refuse("job_id", "the id of a job")
	}
	return text
}

// WorkerID reads the optional worker_id.
func (b *Body) WorkerID() string {
	v := b.Get("worker_id")
	text, ok := Text(v)
	if v != nil && (!ok || len(text) > maxWorkerIDBytes || strings.Contains(text, "\x00")) {
		b.Refuse("worker_id", "a string of at most 255 bytes without U+0000")
		return ""
	}
	return text
}

// Integer reads an optional integer from low to high.
// 0 is returned for a field that is refused and for one that is missing; given tells it from a 0 that was sent.
func (b *Body) Integer(field string, low, high int64, expected string) (n int64, given bool) {
	v := b.Get(field)
	if v == nil {
		return 0, false
	}
	n, kind := Int(v)
	if kind != IsInt || n < low || n > high {
		b.Refuse(field, expected)
		return 0, false
	}
	return n, true
}

// VisibilityMS reads the optional visibility timeout; 0: not sent.
func (b *Body) VisibilityMS() int64 {
	n, _ := b.Integer("visibility_timeout_ms", 0, MaxVisibilityMS, "an integer >= 0 of milliseconds, at most 7 days")
	return n
}

// Boolean reads an optional boolean; false: not sent.
func (b *Body) Boolean(field string) bool {
	value, ok := Bool(b.Get(field))
	if b.Get(field) != nil && !ok {
		b.Refuse(field, "a boolean")
	}
	return value
}

// CheckConfirmed refuses a call that changes many jobs unless its member confirm is true. does says what the call does.
func CheckConfirmed(confirm jsontext.Value, does string) *ojs.Error {
	if confirmed, _ := Bool(confirm); confirmed {
		return nil
	}
	return spec.InvalidPayload("confirm", "true", Show(confirm), "'confirm' must be true: this "+does+".")
}

// Attempt reads the optional number of an attempt.
// The range is not limited: an attempt that no job has is a stale one, not a malformed body.
func (b *Body) Attempt() (n int64, sent bool) {
	return b.Integer("attempt", math.MinInt64, math.MaxInt64, "an integer")
}

// IDs reads a present array of job ids, as sent.
func (b *Body) IDs(field string) []string {
	v := b.Get(field)
	if v[0] == '[' {
		if ids, ok := Texts(v); ok {
			return ids
		}
	}
	b.Refuse(field, "an array of job ids")
	return nil
}

// Object returns item if it is a JSON object, for the elements of a batch.
func Object(item jsontext.Value, what string) (jsontext.Value, *ojs.Error) {
	if item[0] != '{' {
		return nil, spec.InvalidPayload(what, "a JSON object", Show(item), "'"+what+"' must be a JSON object, got "+Describe(item)+".")
	}
	return item, nil
}

// Present turns null into nil.
func Present(v jsontext.Value) jsontext.Value {
	if IsNull(v) {
		return nil
	}
	return v
}

// Find finds a member that may be null; nil: it is absent. Of equal names the last counts.
// It is linear; whoever needs several members reads the object once.
func Find(object jsontext.Value, name string) (found jsontext.Value) {
	for literal, value := range Members(object) {
		if string(Name(literal)) == name {
			found = value
		}
	}
	return found
}

// AppendMember appends a member to an object that has been opened.
// The literal is copied as it is, so a name keeps the escapes of the client.
func AppendMember(dst []byte, literal, value jsontext.Value) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(append(dst, literal...), ':')
	return AppendCompact(dst, value)
}

// Texts reads an array of strings.
func Texts(array jsontext.Value) ([]string, bool) {
	list := []string{}
	for e := range Elements(array) {
		text, ok := Text(e)
		if !ok {
			return nil, false
		}
		list = append(list, text)
	}
	return list, true
}

// Distinct keeps the first of equal names, in place.
func Distinct(names []string) []string {
	if len(names) < 2 {
		return names
	}
	seen := make(map[string]bool, len(names))
	kept := names[:0]
	for _, n := range names {
		if !seen[n] {
			seen[n] = true
			kept = append(kept, n)
		}
	}
	return kept
}

// IsName reports whether s can be stored as a name.
// PostgreSQL cannot store U+0000 in a text.
func IsName(s string) bool { return s != "" && !strings.Contains(s, "\x00") }

// AllIn reports whether all bytes of s are of the class.
func AllIn(s string, class func(byte) bool) bool {
	for i := range len(s) {
		if !class(s[i]) {
			return false
		}
	}
	return true
}

// IsNameByte is the class of bytes in the names of tenants and pools: letters, digits, ., _ and -.
func IsNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// Quote gives a text as JSON.
func Quote(s string) jsontext.Value {
	v, _ := jsontext.AppendQuote(nil, s) // invalid UTF-8 is replaced
	return v
}

// Problem is one thing wrong with a body.
type Problem struct {
	Kind     ojs.ErrorKind
	Field    string // as clients know it, such as unique.period
	Path     string // JSONPath in this body
	Expected string
	Received jsontext.Value // nil: missing
	Message  string
	Hint     string // empty: that of the kind
}

// Problems collects what is wrong, so that a client sees all of it at once. The first one decides code and details.
// The order is that of the checks and not of the body, so that the code of the answer does not depend on how a client sorts its
// members.
type Problems []Problem

// MaxProblems bounds the answer to a body that consists of nothing but mistakes.
// A body of 10 000 bad jobs would be answered with megabytes.
const MaxProblems = 50

// Add notes that field, found at path with value v, is not what was expected.
func (ps *Problems) Add(kind ojs.ErrorKind, field, path, expected string, v jsontext.Value) {
	if len(*ps) == MaxProblems {
		return
	}
	message := fmt.Sprintf("'%s' must be %s, got %s.", field, expected, Brief(v))
	if v == nil {
		message = fmt.Sprintf("'%s' is required: send %s.", field, expected)
	}
	*ps = append(*ps, Problem{Kind: kind, Field: field, Path: path, Expected: expected, Received: v, Message: message})
}

// Hint replaces the hint of the latest problem, for a mistake that the hint of its kind does not fit.
// There must be one.
func (ps Problems) Hint(hint string) {
	ps[len(ps)-1].Hint = hint
}

// Err is the 400 for all problems, or nil.
// It is docs/reference/errors.md, Body.
func (ps Problems) Err() *ojs.Error {
	if len(ps) == 0 {
		return nil
	}
	first := ps[0]
	e := spec.InvalidField(first.Kind, first.Field, first.Expected, Show(first.Received), first.Message)
	e.Hint = cmp.Or(first.Hint, e.Hint)
	return spec.With(e, "validation_errors", ps.list())
}

// Violation is an element of details.validation_errors.
type Violation struct {
	Path    string `json:"path"`
	Pointer string `json:"pointer,omitempty"` // JSON Pointer inside the checked value, if a schema was violated
	Message string `json:"message"`
}

func (ps Problems) list() []Violation {
	list := make([]Violation, len(ps))
	for i, p := range ps {
		list[i] = Violation{Path: p.Path, Message: p.Message}
	}
	return list
}

// Brief shows a value inside a sentence.
func Brief(v jsontext.Value) string {
	if len(v) > 60 && v[0] == '"' {
		return fmt.Sprintf("%s of about %d bytes", Describe(v), len(v)-2)
	}
	if len(v) > 60 {
		return Describe(v)
	}
	return string(Compact(v))
}
