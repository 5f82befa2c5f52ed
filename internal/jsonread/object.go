package jsonread

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Object reads the members of one object of a body by name, and notes what is wrong with them. A decoder opens it with the names
// that it knows, reads them in the documented order, and asks for Err last. It goes on after a member that is refused, to find the
// next problem; with an error, what it has read means nothing.
//
// Objects have a dozen members at most, so looking through them beats a map. An Object is kept on the stack, and must not be copied
// once a member was read: the copies would collect problems apart.
type Object struct {
	Value  jsontext.Value // the object
	Others []Member       // members of other names, in order, with equal names repeated; what becomes of them is up to the decoder

	names    []string
	values   [16]jsontext.Value // nil: absent
	field    string             // its own name as clients know it; "": it needs none, as the body
	path     string             // its own JSONPath
	problems *Problems          // of the whole body; nil: none yet
}

// Member is a member of an object, its name unescaped.
type Member struct {
	Name    []byte
	Literal jsontext.Value // the name as it stands in the object
	Value   jsontext.Value
}

// OpenBody checks a body and opens its object.
func OpenBody(raw []byte, names ...string) (Object, *ojs.Error) {
	v, err := Check(raw)
	if err != nil {
		return Object{}, err
	}
	return Open(v, names...), nil
}

// Open sorts the members of object v into names, at most 16. Of equal names the last one counts.
// A name beyond the 16th panics when a body has it.
func Open(v jsontext.Value, names ...string) (o Object) {
	o.Value, o.names, o.path = v, names, "$"
members:
	for literal, value := range Members(v) {
		name := Name(literal)
		for i, known := range names {
			if string(name) == known {
				o.values[i] = value
				continue members
			}
		}
		o.Others = append(o.Others, Member{name, literal, value})
	}
	return o
}

// OpenAt is Open for an object that has a place in the body, as clients name it (unique; "": not at all) and as JSONPath
// ($.options.unique). Its problems go to ps.
func OpenAt(v jsontext.Value, field, path string, ps *Problems, names ...string) Object {
	o := Open(v, names...)
	o.field, o.path, o.problems = field, path, ps
	return o
}

// OpenMember opens the object of an optional member of o. ok is false if it is absent or refused; then the members of the result are
// absent.
func (o *Object) OpenMember(name, expected string, names ...string) (inner Object, ok bool) {
	v := o.Get(name)
	if v != nil && v[0] == '{' {
		return OpenAt(v, o.fieldOf(name), o.path+"."+name, o.Problems(), names...), true
	}
	if v != nil {
		o.Refuse(name, expected)
	}
	return Object{names: names}, false
}

// fieldOf is the name of a member as clients know it, such as unique.period.
func (o *Object) fieldOf(name string) string {
	if o.field == "" {
		return name
	}
	return o.field + "." + name
}

// OpenConfirmed opens the conditions of a call that changes many jobs, and reads dry_run and confirm (see Confirm): the body is an object
// with these and filter, or has the conditions beside them. Other conditions are refused.
func OpenConfirmed(raw []byte, does string, names ...string) (conditions Object, dryRun bool, err *ojs.Error) {
	v, err := Check(raw)
	if err != nil {
		return Object{}, false, err
	}
	body := Open(v, "filter", "confirm", "dry_run")
	if dryRun = body.Boolean("dry_run"); !dryRun {
		body.Confirm(does)
	}
	if body.Get("filter") != nil {
		body.RefuseOthers()
		conditions, ok := body.OpenMember("filter", "an object", names...)
		if !ok {
			return conditions, dryRun, body.Err()
		}
		conditions.RefuseOthers()
		return conditions, dryRun, nil
	}
	conditions = OpenAt(v, "", "$", body.Problems(), names...)
	conditions.Others = slices.DeleteFunc(conditions.Others, func(m Member) bool { return slices.Contains(body.names, string(m.Name)) })
	conditions.RefuseOthers()
	return conditions, dryRun, nil
}

// Get is the value of a member; nil: it is absent or null.
// A name that was not given is a mistake of the program, hence the panic.
func (o *Object) Get(name string) jsontext.Value {
	v, _ := o.Sent(name)
	return Present(v)
}

// Sent is the value of a member, which may be null.
func (o *Object) Sent(name string) (v jsontext.Value, sent bool) {
	for i, known := range o.names {
		if name == known {
			return o.values[i], o.values[i] != nil
		}
	}
	panic("jsonread: member was not opened: " + name)
}

// Need refuses a member that is absent or null, and forgets it, so that it is refused once.
func (o *Object) Need(name, expected string) {
	if o.Get(name) == nil {
		o.Refuse(name, expected)
		o.values[slices.Index(o.names, name)] = nil
	}
}

// Empty reports whether no member has a value.
func (o *Object) Empty() bool {
	return !slices.ContainsFunc(o.values[:], func(v jsontext.Value) bool { return !IsNull(v) })
}

// Problems are those of the whole body.
func (o *Object) Problems() *Problems {
	if o.problems == nil {
		o.problems = new(Problems)
	}
	return o.problems
}

// Err is the error of the body, or nil: see Problems.Err.
func (o *Object) Err() *ojs.Error { return o.problems.Err() }

// Refuse notes that a member is not what was expected.
func (o *Object) Refuse(name, expected string) {
	o.RefuseValue(ojs.ErrInvalidPayload, name, expected, o.Get(name))
}

// RefuseValue is Refuse with a kind of error and a value, which may be a part of the member.
func (o *Object) RefuseValue(kind ojs.ErrorKind, name, expected string, v jsontext.Value) {
	o.Problems().Add(kind, o.fieldOf(name), o.path+"."+name, expected, v)
}

// RefuseOthers notes members of other names: ignoring one would do something else than was meant. It is docs/reference/http.md,
// Unknown names. shown are members that answers have and a client may send back.
func (o *Object) RefuseOthers(shown ...string) { o.RefuseOthersAs(ojs.ErrInvalidRequest, shown...) }

// RefuseOthersAs is RefuseOthers with a kind of error.
func (o *Object) RefuseOthersAs(kind ojs.ErrorKind, shown ...string) {
	for _, m := range o.Others {
		if name := string(m.Name); !slices.Contains(shown, name) {
			o.Problems().AddUnknown(kind, o.fieldOf(name), o.path+"."+name, o.names, m.Value)
		}
	}
}

// Optional is what read makes of a member; the zero value if it is absent or null. It costs an allocation: the compiler does not
// see that a generic function keeps no pointer to o.
func Optional[T any](o *Object, name, expected string, read func(jsontext.Value) (T, bool)) (t T) {
	v := o.Get(name)
	if v == nil {
		return t
	}
	t, ok := read(v)
	if !ok {
		o.Refuse(name, expected)
	}
	return t
}

// OptionalText is Optional for a text.
func OptionalText[T any](o *Object, name, expected string, read func(string) (T, bool)) T {
	return Optional(o, name, expected, func(v jsontext.Value) (t T, ok bool) {
		if text, isText := Text(v); isText {
			return read(text)
		}
		return t, false
	})
}

// Text reads an optional text that satisfies valid; nil: any does.
func (o *Object) Text(name, expected string, valid func(string) bool) string {
	v := o.Get(name)
	text, isText := Text(v)
	if v != nil && !(isText && (valid == nil || valid(text))) {
		o.Refuse(name, expected)
	}
	return text
}

// Integer reads an optional integer from low to high.
// 0 is returned for one that is refused and for one that is missing; given tells it from a 0 that was sent.
func (o *Object) Integer(name string, low, high int64, expected string) (n int64, given bool) {
	v := o.Get(name)
	if v == nil {
		return 0, false
	}
	n, kind := Int(v)
	if kind != IsInt || n < low || n > high {
		o.Refuse(name, expected)
		return 0, false
	}
	return n, true
}

// Duration reads an optional duration from low to high, in either form; 0: not sent.
func (o *Object) Duration(name, expected string, low, high time.Duration) time.Duration {
	return OptionalText(o, name, expected, func(text string) (time.Duration, bool) {
		d, err := ParseDuration(text)
		return d, err == nil && d >= low && d <= high
	})
}

// Boolean reads an optional boolean; false: not sent.
func (o *Object) Boolean(name string) bool {
	v := o.Get(name)
	value, isBool := Bool(v)
	if v != nil && !isBool {
		o.Refuse(name, "a boolean")
	}
	return value
}

// Confirm reads confirm, which must be true for a call that changes many jobs. does says what the call does. It is missed only after
// everything else, so that a first try without it learns all that is wrong.
func (o *Object) Confirm(does string) {
	v := o.Get("confirm")
	if confirmed, isBool := Bool(v); v != nil && !isBool {
		o.Refuse("confirm", "a boolean")
	} else if !confirmed {
		o.Problems().Later(spec.InvalidPayload("confirm", "true", Show(v), "'confirm' must be true: this "+does+"."))
	}
}

// CheckObject returns item if it is a JSON object, for the elements of a batch.
func CheckObject(item jsontext.Value, what string) (jsontext.Value, *ojs.Error) {
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

// AppendOthers appends the members of an object, or of nil, but those of one name, to an object that has been opened.
func AppendOthers(dst []byte, object jsontext.Value, name string) []byte {
	if len(object) == 0 {
		return dst
	}
	for literal, value := range Members(object) {
		if string(Name(literal)) != name {
			dst = AppendMember(dst, literal, value)
		}
	}
	return dst
}

// AppendTexts appends an array of strings. Invalid UTF-8 is replaced.
func AppendTexts(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, text := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst, _ = jsontext.AppendQuote(dst, text)
	}
	return append(dst, ']')
}

// Texts reads an array of strings.
func Texts(v jsontext.Value) ([]string, bool) {
	if v == nil || v[0] != '[' {
		return nil, false
	}
	list := []string{}
	for e := range Elements(v) {
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
type Problems struct {
	list  []Problem
	later *ojs.Error
}

// MaxProblems bounds the answer to a body that consists of nothing but mistakes.
// A body of 10 000 bad jobs would be answered with megabytes.
const MaxProblems = 50

// Add notes that field, found at path with value v, is not what was expected.
func (ps *Problems) Add(kind ojs.ErrorKind, field, path, expected string, v jsontext.Value) {
	message := fmt.Sprintf("'%s' must be %s, got %s.", field, expected, Brief(v))
	if v == nil {
		message = fmt.Sprintf("'%s' is required: send %s.", field, expected)
	}
	ps.Note(Problem{Kind: kind, Field: field, Path: path, Expected: expected, Received: v, Message: message})
}

// AddUnknown notes that there is no such field; known are the names at its place.
func (ps *Problems) AddUnknown(kind ojs.ErrorKind, field, path string, known []string, v jsontext.Value) {
	expected, message := spec.UnknownName(field, known)
	ps.Note(Problem{Kind: kind, Field: field, Path: path, Expected: expected, Received: v, Message: message, Hint: spec.UnknownHint})
}

// Note adds a problem with a message of its own.
func (ps *Problems) Note(p Problem) {
	if len(ps.list) < MaxProblems {
		ps.list = append(ps.list, p)
	}
}

// Hint replaces the hint of the latest problem, for a mistake that the hint of its kind does not fit.
// There must be one.
func (ps *Problems) Hint(hint string) {
	ps.list[len(ps.list)-1].Hint = hint
}

// Later notes an error of a check that comes after those of form, such as a 422: it is that of the body only if there is no
// problem. The first one counts, because such an error has room for one field.
func (ps *Problems) Later(err *ojs.Error) { ps.later = cmp.Or(ps.later, err) }

// Len is the number of problems.
func (ps *Problems) Len() int { return len(ps.list) }

// Err is the 400 for all problems, else what was noted for later, or nil.
// It is docs/reference/errors.md, Body.
func (ps *Problems) Err() *ojs.Error {
	if ps == nil {
		return nil
	}
	if len(ps.list) == 0 {
		return ps.later
	}
	first := ps.list[0]
	e := spec.InvalidField(first.Kind, first.Field, first.Expected, Show(first.Received), first.Message)
	e.Hint = cmp.Or(first.Hint, e.Hint)
	violations := make([]Violation, len(ps.list))
	for i, p := range ps.list {
		violations[i] = Violation{Path: p.Path, Message: p.Message}
	}
	return spec.With(e, "validation_errors", violations)
}

// Violation is an element of details.validation_errors.
type Violation struct {
	Path    string `json:"path"`
	Pointer string `json:"pointer,omitempty"` // JSON Pointer inside the checked value, if a schema was violated
	Message string `json:"message"`
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
