package job

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// BulkOp is what a bulk call does with the jobs it selects.
type BulkOp string

// The bulk operations.
const (
	BulkCancel BulkOp = "cancel"
	BulkRetry  BulkOp = "retry"
	BulkDelete BulkOp = "delete"
)

// BulkSelect is the body of POST /jobs/bulk/{cancel,retry,delete} (docs/reference/http.md, Bulk change).
// Exactly one of IDs and Filter selects. Texts in IDs that are no ids are answered one by one as not found.
type BulkSelect struct {
	BulkOptions
	Op     BulkOp
	IDs    IDList
	Filter *BulkFilter // nil: IDs selects
}

// BulkFilter selects jobs that satisfy every condition that is set.
type BulkFilter struct {
	Tenant         string // that of the caller; "": the jobs of all
	Type           string // exact, or a prefix if TypePrefix
	TypePrefix     bool
	Queue          string
	States         []ojs.JobState // never empty: the operation's default if none were sent
	EnqueuedAfter  time.Time
	EnqueuedBefore time.Time
	// The two kinds of bounds are of the same time, enqueued_at or else created_at; EnqueuedAfter and EnqueuedBefore are
	// exclusive (docs/reference/http.md, Bulk change).
	Since     When // Relative: In before now
	Until     When // Relative: In before now
	OlderThan When // Relative: In before now
	Priority  *int16
	Meta      []MetaEqual
}

// MatchesMeta reports whether a stored meta has all the wanted members. nil stands for {}. It compares texts of JSON: 1 and 1.0
// differ, and so do objects whose members have another order. Of equal names the last value counts.
func (f *BulkFilter) MatchesMeta(meta []byte) bool {
	for _, want := range f.Meta {
		found := false
		if len(meta) > 0 {
			for literal, value := range rawjson.Members(meta) {
				if string(rawjson.Name(literal)) == want.Key {
					found = bytes.Equal(rawjson.Compact(value), want.Value)
				}
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// MetaEqual asks for a member of meta with an equal value.
type MetaEqual struct {
	Key   string
	Value []byte // compact JSON
}

var (
	// The first two lists are of members that are read; others are ignored. In filterNames an unknown one is an error.
	selectNames    = []string{"job_ids", "filter", "atomicity", "idempotency_key"}
	confirmedNames = []string{"filter", "confirm"}
	filterNames    = []string{
		"type", "queue", "state", "enqueued_before", "enqueued_after", "since", "until", "older_than", "priority", "meta",
	}
	// A delete has no default: what is deleted is gone, so its states must be said.
	defaultStates = map[BulkOp][]ojs.JobState{
		BulkCancel: {ojs.StateAvailable, ojs.StateScheduled},
		BulkRetry:  {ojs.StateDiscarded},
	}
)

// DecodeBulkSelect reads the body of a bulk call. maxIDs bounds job_ids. Both or neither of job_ids and filter is refused: a
// call whose filter was lost on the way must not change every job. What it selects is found and changed by queue.Store, in
// portions; the filter is applied there in SQL but for meta (MatchesMeta).
func DecodeBulkSelect(op BulkOp, raw []byte, maxIDs int) (BulkSelect, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return BulkSelect{}, err
	}
	b := body{}
	b.Fields, _ = payload.Read(v, selectNames)
	s := BulkSelect{Op: op, BulkOptions: bulkOptions(b.Get("atomicity"), b.Get("idempotency_key"), &b.Problems)}
	ids, filter := b.Get("job_ids"), b.Get("filter")
	switch {
	case ids == nil && filter == nil:
		b.Problems.Add(ojs.ErrInvalidPayload, "job_ids", "$.job_ids", "either job_ids or filter", nil)
	case ids != nil && filter != nil:
		b.Refuse("filter", "absent when 'job_ids' is sent")
	// The number is checked before the ids are read, so that a body with too many costs little.
	case ids != nil:
		if ids[0] == '[' && rawjson.Len(ids) > maxIDs {
			return s, spec.BatchSize(maxIDs, rawjson.Len(ids))
		}
		texts := b.IDs("job_ids")
		if texts != nil && len(texts) == 0 {
			b.Refuse("job_ids", "a non-empty array of job ids")
		}
		s.IDs = NewIDList(texts)
	default:
		s.Filter = b.filter(op, "filter.", filter)
	}
	return s, b.Problems.Err()
}

// DecodeConfirmedBulk reads the body of POST /admin/jobs/bulk/{cancel,retry,delete}: confirm, and a filter or its members at the top
// level (docs/reference/admin.md, Bulk change). confirm is looked at last, so that a call without it learns everything else
// that is wrong. It must be the literal true.
func DecodeConfirmedBulk(op BulkOp, raw []byte) (*BulkFilter, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return nil, err
	}
	b := body{}
	b.Fields, _ = payload.Read(v, confirmedNames)
	b.Boolean("confirm")
	prefix, filter := "filter.", b.Get("filter")
	if filter == nil {
		// The conditions stand beside confirm, which is no condition and must not count as an unknown one.
		prefix, filter = "", v
	}
	f := b.filter(op, prefix, filter)
	if err := b.Problems.Err(); err != nil {
		return nil, err
	}
	return f, payload.CheckConfirmed(b.Get("confirm"), "changes every job that matches")
}

// filterReader reads the conditions of a filter. It reports under the name that the member has in the body, which is one level
// deeper if the filter is an object of its own.
type filterReader struct {
	payload.Fields
	prefix string // of the conditions in the body
	*payload.Problems
}

func (r *filterReader) refuse(name, expected string) {
	r.Add(ojs.ErrInvalidPayload, r.prefix+name, "$."+r.prefix+name, expected, r.Get(name))
}

// filter: an unknown condition is refused, because ignoring it would touch more jobs than meant. The operation decides the
// default states only; which states it can change is for the statement to know.
func (b *body) filter(op BulkOp, prefix string, v jsontext.Value) *BulkFilter {
	if v[0] != '{' {
		b.Refuse("filter", "an object")
		return nil
	}
	fs, unknown := payload.Read(v, filterNames)
	r := filterReader{fs, prefix, &b.Problems}
	if prefix == "" {
		unknown = slices.DeleteFunc(unknown, func(m payload.Member) bool { return string(m.Name) == "confirm" })
	}
	for _, m := range unknown {
		r.Add(ojs.ErrInvalidPayload, prefix+string(m.Name), "$."+prefix+string(m.Name), "absent: there is no such condition", m.Value)
	}
	// An empty filter would take every job; with an unknown condition it is the smaller mistake and is not mentioned.
	if len(unknown) == 0 && r.Empty() {
		b.Problems.Add(ojs.ErrInvalidPayload, "filter", "$.filter", "an object with at least one condition", v)
	}
	f := &BulkFilter{States: r.states(op), Priority: r.priority(), Meta: r.meta()}
	// A lone * is a prefix of nothing, which every type has.
	f.Type, f.TypePrefix = strings.CutSuffix(r.text("type"), "*")
	f.Queue = r.text("queue")
	f.EnqueuedBefore, f.EnqueuedAfter = r.instant("enqueued_before"), r.instant("enqueued_after")
	f.Since, f.Until, f.OlderThan = r.when("since"), r.when("until"), r.when("older_than")
	return f
}

// An absent one is "", which the statements take for no condition.
func (r *filterReader) text(name string) string {
	text, _ := rawjson.Text(r.Get(name))
	if r.Get(name) != nil && !payload.IsName(text) {
		r.refuse(name, "a non-empty string without U+0000")
	}
	return text
}

// states reads a state or an array of them. A refused list gives no states, and the call is refused before anyone uses them.
func (r *filterReader) states(op BulkOp) []ojs.JobState {
	v := r.Get("state")
	if v == nil {
		if op == BulkDelete {
			r.refuse("state", "the states of the jobs to delete")
		}
		return defaultStates[op]
	}
	if text, ok := rawjson.Text(v); ok && ojs.JobState(text).Valid() {
		return []ojs.JobState{ojs.JobState(text)}
	}
	var states []ojs.JobState
	if v[0] == '[' {
		list, ok := payload.Texts(v)
		for _, s := range payload.Distinct(list) {
			ok = ok && ojs.JobState(s).Valid()
			states = append(states, ojs.JobState(s))
		}
		if ok && len(states) > 0 {
			return states
		}
	}
	r.refuse("state", "a job state, or a non-empty array of them")
	return nil
}

// enqueued_before and enqueued_after take no ages, unlike the other bounds.
func (r *filterReader) instant(name string) time.Time {
	text, _ := rawjson.Text(r.Get(name))
	t, ok := ParseTime(text)
	if r.Get(name) != nil && !ok {
		r.refuse(name, "an RFC 3339 time with offset")
	}
	return t
}

// +7d is refused: elsewhere it means in seven days, and here an age is asked for.
func (r *filterReader) when(name string) When {
	text, _ := rawjson.Text(r.Get(name))
	w, ok := parseWhen(text)
	if r.Get(name) != nil && (!ok || text[0] == '+') {
		r.refuse(name, "an RFC 3339 time with offset, or an age such as 7d or P7D")
	}
	return w
}

// nil is no condition; 0 is a priority.
func (r *filterReader) priority() *int16 {
	v := r.Get("priority")
	if v == nil {
		return nil
	}
	p, ok := priority(v)
	if !ok {
		r.refuse("priority", "an integer from -100 to 100")
	}
	return &p
}

// unknowns is used for its rule about equal names, and because it stays fast with many names.
func (r *filterReader) meta() []MetaEqual {
	v := r.Get("meta")
	if v == nil {
		return nil
	}
	if v[0] != '{' {
		r.refuse("meta", "an object")
		return nil
	}
	var merged unknowns
	for literal, value := range rawjson.Members(v) {
		merged.put(rawjson.Name(literal), literal, value)
	}
	list := make([]MetaEqual, len(merged.list))
	for i, m := range merged.list {
		list[i] = MetaEqual{string(m.Name), rawjson.Compact(m.Value)}
	}
	return list
}
