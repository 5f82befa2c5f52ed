package job

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// SplitBatch reads {"<key>":[…]} with the other members that names has: 1 to maxItems elements of any kind, and gives the body with them, for its other members.
// Everything it returns points into raw and is valid JSON, so elements go to DecodeItem, DecodeAckItem or DecodeNackItem, which do
// not parse again. The whole body is checked as JSON before an element is looked at, so a broken last element refuses the batch.
// What an element says is judged later, one by one, so that in a batch that is not atomic the good ones go through. Package httpapi
// calls it for batches of acks and nacks and for batches of jobs; what becomes of single elements differs there.
func SplitBatch(raw []byte, maxItems int, key string, names ...string) ([]jsontext.Value, *jsonread.Object, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, append([]string{key}, names...)...)
	if err != nil {
		return nil, nil, err
	}
	if o.RefuseOthers(); o.Err() != nil {
		return nil, nil, o.Err()
	}
	list := o.Get(key)
	if list == nil || list[0] != '[' {
		return nil, nil, errNoItems(key, maxItems, list)
	}
	n := jsonread.Len(list)
	if err := CheckItemCount(key, n, maxItems); err != nil {
		return nil, nil, err
	}
	items := make([]jsontext.Value, 0, n)
	for e := range jsonread.Elements(list) {
		items = append(items, e)
	}
	return items, &o, nil
}

// CheckItemCount refuses a batch of n elements that is empty or too large. gRPC asks before it writes the elements as JSON.
func CheckItemCount(key string, n, maxItems int) *ojs.Error {
	switch {
	case n == 0:
		return errNoItems(key, maxItems, jsontext.Value(`[]`))
	// It is another error than a malformed body, 413: the client has to divide the request, not to correct it.
	case n > maxItems:
		return spec.BatchSize(maxItems, n)
	}
	return nil
}

func errNoItems(key string, maxItems int, received jsontext.Value) *ojs.Error {
	var ps jsonread.Problems
	ps.Add(ojs.ErrInvalidPayload, key, "$."+key, fmt.Sprintf("an array of 1 to %d elements", maxItems), received)
	return ps.Err()
}

// DecodeItems decodes all elements of an atomic batch. If any is refused, the lowest index decides the error, and
// validation_errors tells of all of them. It stops when as many problems are known as an answer lists; later elements are then
// not looked at, which changes nothing: nothing of the batch is stored.
func DecodeItems(items []jsontext.Value, lim Limits) ([]*Job, *ojs.Error) {
	jobs := make([]*Job, len(items))
	var first *ojs.Error
	var all []jsonread.Violation
	for i, item := range items {
		var err *ojs.Error
		if jobs[i], err = DecodeItem(item, lim); err == nil {
			continue
		}
		if first == nil {
			first = spec.Indexed(err, i)
		}
		if all = append(all, Violations(fmt.Sprintf("$.jobs[%d]", i), err)...); len(all) >= jsonread.MaxProblems {
			break
		}
	}
	if first != nil {
		return nil, spec.With(first, "validation_errors", all)
	}
	return jobs, nil
}

// At is the error of an object that has a place in the body, given as a JSONPath.
func At(path string, err *ojs.Error) *ojs.Error {
	if err == nil {
		return nil
	}
	return spec.With(err, "validation_errors", Violations(path, err))
}

// Violations are the problems that an error of the object at path lists; of an error without a list it is the only one. Paths of
// problems begin with $, which stands for the object itself; they are put behind the path of the object.
func Violations(path string, err *ojs.Error) []jsonread.Violation {
	list, ok := err.Details["validation_errors"].([]jsonread.Violation)
	if !ok {
		return []jsonread.Violation{{Path: path, Message: err.Message}}
	}
	res := make([]jsonread.Violation, len(list))
	for i, v := range list {
		v.Path = path + strings.TrimPrefix(v.Path, "$")
		res[i] = v
	}
	return res
}

// BulkOptions are the members that all bulk calls share (docs/reference/http.md, Bulk enqueue). Atomic means all or nothing:
// one refused item undoes the others. The default, partial, answers for each item.
type BulkOptions struct {
	Atomic         bool
	IdempotencyKey string // of the body; the header wins
}

// DecodeBulkOptions reads them from the body that SplitBatch gave.
func DecodeBulkOptions(o *jsonread.Object) (BulkOptions, *ojs.Error) {
	options := readBulkOptions(o)
	return options, o.Err()
}

// readBulkOptions takes absent for partial (docs/reference/http.md, Bulk enqueue).
func readBulkOptions(o *jsonread.Object) BulkOptions {
	mode := o.Text("atomicity", "partial or atomic", func(mode string) bool { return mode == "partial" || mode == "atomic" })
	return BulkOptions{
		Atomic:         mode == "atomic",
		IdempotencyKey: o.Text("idempotency_key", "a non-empty string of at most 256 characters without U+0000", ValidIdempotencyKey),
	}
}

// ValidIdempotencyKey also serves the header. The bound counts characters, not bytes.
func ValidIdempotencyKey(s string) bool {
	return jsonread.IsName(s) && utf8.RuneCountInString(s) <= maxKeyChars
}

// Defaults are what a workflow gives to each of its jobs: options that hold where the job has none of that name, and members of
// meta that it gets if it lacks them. They are sorted once, because a workflow may have 10 000 jobs. A Defaults is not changed
// after it was made: With and Under give new ones, so nested workflows can share the outer ones.
type Defaults struct {
	options []jsonread.Member
	meta    []jsonread.Member
}

// MaxDefaults is how many options a workflow may give to its jobs: each of the jobs compares them with its own.
const MaxDefaults = 256

// inheritedMeta are the members of a workflow's meta that its jobs get. Other members of a workflow's meta are its own business
// and would only make its jobs larger.
var inheritedMeta = map[string]bool{"tenant_id": true, "trace_id": true, "traceparent": true, "tracestate": true}

// NewDefaults reads the options and the meta of a workflow, valid objects or nil. The objects must have been checked as JSON.
// The result points into them.
func NewDefaults(options, meta jsontext.Value) Defaults {
	var d Defaults
	d.options = distinctMembers(options, func(string) bool { return true })
	d.meta = distinctMembers(meta, func(name string) bool { return inheritedMeta[name] })
	return d
}

// distinctMembers gives the members that are not null, compact; of equal names the last. Values are made compact here, once,
// instead of in each job that gets them.
func distinctMembers(object jsontext.Value, wanted func(string) bool) []jsonread.Member {
	if object == nil {
		return nil
	}
	var all unknowns
	for literal, value := range jsonread.Members(object) {
		if name := jsonread.Name(literal); wanted(string(name)) {
			all.put(name, literal, value)
		}
	}
	kept := all.list[:0]
	for _, m := range all.list {
		if !jsonread.IsNull(m.Value) {
			m.Value = jsonread.Compact(m.Value)
			kept = append(kept, m)
		}
	}
	return kept
}

// Len is the number of options.
func (d Defaults) Len() int { return len(d.options) }

// Has reports whether there is a default for an option. Package workflow asks it before it adds an option of its own.
func (d Defaults) Has(option string) bool { return hasMember(d.options, option) }

func hasMember(list []jsonread.Member, name string) bool {
	return slices.ContainsFunc(list, func(m jsonread.Member) bool { return string(m.Name) == name })
}

// With adds one option. Clip makes append copy the list: the receiver may be shared.
func (d Defaults) With(option string, value jsontext.Value) Defaults {
	literal := jsonread.Quote(option)
	d.options = append(slices.Clip(d.options), jsonread.Member{Name: []byte(option), Literal: literal, Value: value})
	return d
}

// Under gives the defaults of a nested workflow: its own, then those of the outer one. The inner workflow wins, option by
// option.
func (d Defaults) Under(outer Defaults) Defaults {
	var own sentNames
	for _, m := range d.options {
		own.add(m.Name, true)
	}
	for _, m := range outer.options {
		if !own.has(m.Name) {
			d.options = append(d.options, m)
		}
	}
	d.meta = append(d.meta, missingMeta(outer.meta, func(name string) bool { return hasMember(d.meta, name) })...)
	return d
}

// missingMeta gives the members that a job gets. A job with a trace of its own gets no part of another one: mixed, they would
// show it in both.
func missingMeta(inherited []jsonread.Member, has func(name string) bool) (missing []jsonread.Member) {
	traced := has("trace_id") || has("traceparent") || has("tracestate")
	for _, m := range inherited {
		if name := string(m.Name); !has(name) && (name == "tenant_id" || !traced) {
			missing = append(missing, m)
		}
	}
	return missing
}

// sentNames are the attributes that an object has, each with its other names. It answers the question whether a default may be
// added: never if the job says something about the same setting, under whatever name, because options win over the top level
// and a default in options would beat the job's own value.
type sentNames struct {
	attrs   attrSet
	unknown map[string]bool
}

// sameSetting are the attributes of which a job uses one.
var sameSetting = [...]attrSet{
	setOf(scheduledAtAttr, delayUntilAttr), setOf(timeoutMSAttr, timeoutAttr), setOf(visibilityMSAttr, visibilityAttr),
	setOf(retryAttr, retryPolicyAttr), setOf(metaAttr, metadataAttr),
}

func (s *sentNames) add(name []byte, inOptions bool) {
	switch a := attrsByName[string(name)]; a {
	case unknownAttr:
		if s.unknown == nil {
			s.unknown = make(map[string]bool)
		}
		s.unknown[string(name)] = true
	case metaAttr, metadataAttr: // of the top level they are merged into those of options
		if inOptions {
			s.attrs |= setOf(metaAttr, metadataAttr)
		}
	default:
		s.attrs |= a.bit()
		for _, same := range sameSetting {
			if same&a.bit() != 0 {
				s.attrs |= same
			}
		}
	}
}

func (s *sentNames) has(name []byte) bool {
	if a := attrsByName[string(name)]; a != unknownAttr {
		return s.attrs&a.bit() != 0
	}
	return s.unknown[string(name)]
}

// Apply gives the enqueue object of a job as it is with these defaults, compact. item must be a valid object; its members for
// which drop answers true are left out. The result is decoded like a job that a client sends, so a default that is not valid is
// refused there, with the place of the job that got it.
func (d Defaults) Apply(item jsontext.Value, drop func(name string) bool) []byte {
	var sent sentNames
	options, meta := jsonread.Present(jsonread.Find(item, "options")), jsonread.Present(jsonread.Find(item, "meta"))
	b := append(make([]byte, 0, len(item)+64), '{')
	for literal, value := range jsonread.Members(item) {
		name := jsonread.Name(literal)
		// Both are written at the end, with what they inherit.
		if text := string(name); text == "options" || text == "meta" || drop(text) {
			continue
		}
		if !jsonread.IsNull(value) {
			sent.add(name, false)
		}
		b = jsonread.AppendMember(b, literal, value)
	}
	if meta = d.appliedMeta(item, options, meta); meta != nil {
		b = jsonread.AppendMember(b, []byte(`"meta"`), meta)
	}
	if options = d.appliedOptions(&sent, item, options); options != nil {
		b = jsonread.AppendMember(b, []byte(`"options"`), options)
	}
	return append(b, '}')
}

// appliedOptions gives the options of a job; what is no object stays, so that it is refused where the client sent it.
// sent must have the top-level names of the job already.
func (d Defaults) appliedOptions(sent *sentNames, item, options jsontext.Value) jsontext.Value {
	if len(d.options) == 0 || options != nil && options[0] != '{' {
		return options
	}
	b := []byte{'{'}
	if options != nil {
		for literal, value := range jsonread.Members(options) {
			if !jsonread.IsNull(value) {
				sent.add(jsonread.Name(literal), true)
			}
			b = jsonread.AppendMember(b, literal, value)
		}
	}
	for _, m := range d.options {
		if sent.has(m.Name) {
			continue
		}
		// A policy is inherited whole or not at all, but for the number of attempts.
		if a := attrsByName[string(m.Name)]; a == retryAttr || a == retryPolicyAttr {
			m.Value = withAttempts(m.Value, sent, item, options)
		}
		b = jsonread.AppendMember(b, m.Literal, m.Value)
	}
	return append(b, '}')
}

// withAttempts lets max_attempts of a job win over that of the policy it inherits; in one object it would lose.
// In an object retry, max_attempts wins over the shortcut beside it. A job that sends only the shortcut would lose it to the
// policy of its workflow.
func withAttempts(policy jsontext.Value, sent *sentNames, item, options jsontext.Value) jsontext.Value {
	if sent.attrs&maxAttemptsAttr.bit() == 0 || policy[0] != '{' {
		return policy
	}
	own := jsonread.Present(jsonread.Find(item, "max_attempts"))
	if options != nil {
		if v := jsonread.Present(jsonread.Find(options, "max_attempts")); v != nil {
			own = v
		}
	}
	if own == nil {
		return policy
	}
	return MergeRetry(policy, append(jsonread.AppendMember([]byte{'{'}, []byte(`"max_attempts"`), own), '}'))
}

// appliedMeta gives the top-level meta of a job. A member that any of the job's own objects has is not inherited, whichever of
// them would win.
func (d Defaults) appliedMeta(item, options, meta jsontext.Value) jsontext.Value {
	if len(d.meta) == 0 || meta != nil && meta[0] != '{' {
		return meta
	}
	sources := []jsontext.Value{meta, jsonread.Present(jsonread.Find(item, "metadata"))}
	if options != nil && options[0] == '{' {
		sources = append(sources, jsonread.Present(jsonread.Find(options, "meta")), jsonread.Present(jsonread.Find(options, "metadata")))
	}
	missing := missingMeta(d.meta, func(name string) bool {
		for _, s := range sources {
			if s != nil && s[0] == '{' && jsonread.Find(s, name) != nil {
				return true
			}
		}
		return false
	})
	if len(missing) == 0 {
		return meta
	}
	b := []byte{'{'}
	if meta != nil {
		for literal, value := range jsonread.Members(meta) {
			b = jsonread.AppendMember(b, literal, value)
		}
	}
	for _, m := range missing {
		b = jsonread.AppendMember(b, m.Literal, m.Value)
	}
	return append(b, '}')
}
