package job

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
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
			for literal, value := range jsonread.Members(meta) {
				if string(jsonread.Name(literal)) == want.Key {
					found = bytes.Equal(jsonread.Compact(value), want.Value)
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
	v, err := jsonread.Check(raw)
	if err != nil {
		return BulkSelect{}, err
	}
	b := body{}
	b.Fields, _ = jsonread.Read(v, selectNames)
	s := BulkSelect{Op: op, BulkOptions: bulkOptions(b.Get("atomicity"), b.Get("idempotency_key"), &b.Problems)}
	ids, filter := b.Get("job_ids"), b.Get("filter")
	switch {
	case ids == nil && filter == nil:
		b.Problems.Add(ojs.ErrInvalidPayload, "job_ids", "$.job_ids", "either job_ids or filter", nil)
	case ids != nil && filter != nil:
		b.Refuse("filter", "absent when 'job_ids' is sent")
	// The number is checked before the ids are read, so that a body with too many costs little.
	case ids != nil:
		if ids[0] == '[' && jsonread.Len(ids) > maxIDs {
			return s, spec.BatchSize(maxIDs, jsonread.Len(ids))
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
	v, err := jsonread.Check(raw)
	if err != nil {
		return nil, err
	}
	b := body{}
	b.Fields, _ = jsonread.Read(v, confirmedNames)
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
	return f, jsonread.CheckConfirmed(b.Get("confirm"), "changes every job that matches")
}

// filterReader reads the conditions of a filter. It reports under the name that the member has in the body, which is one level
// deeper if the filter is an object of its own.
type filterReader struct {
	jsonread.Fields
	prefix string // of the conditions in the body
	*jsonread.Problems
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
	fs, unknown := jsonread.Read(v, filterNames)
	r := filterReader{fs, prefix, &b.Problems}
	if prefix == "" {
		unknown = slices.DeleteFunc(unknown, func(m jsonread.Member) bool { return string(m.Name) == "confirm" })
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
	text, _ := jsonread.Text(r.Get(name))
	if r.Get(name) != nil && !jsonread.IsName(text) {
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
	if text, ok := jsonread.Text(v); ok && ojs.JobState(text).Valid() {
		return []ojs.JobState{ojs.JobState(text)}
	}
	var states []ojs.JobState
	if v[0] == '[' {
		list, ok := jsonread.Texts(v)
		for _, s := range jsonread.Distinct(list) {
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
	text, _ := jsonread.Text(r.Get(name))
	t, ok := ParseTime(text)
	if r.Get(name) != nil && !ok {
		r.refuse(name, "an RFC 3339 time with offset")
	}
	return t
}

// +7d is refused: elsewhere it means in seven days, and here an age is asked for.
func (r *filterReader) when(name string) When {
	text, _ := jsonread.Text(r.Get(name))
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
	for literal, value := range jsonread.Members(v) {
		merged.put(jsonread.Name(literal), literal, value)
	}
	list := make([]MetaEqual, len(merged.list))
	for i, m := range merged.list {
		list[i] = MetaEqual{string(m.Name), jsonread.Compact(m.Value)}
	}
	return list
}

// PurgeRequest is the body of DELETE /admin/queues/{name}/jobs (docs/reference/admin.md, Purge). Active jobs cannot be purged:
// a worker has them, and its ack would find nothing.
type PurgeRequest struct {
	States []ojs.JobState
	// It is compared with the end of a job, or with its creation if it has not ended (docs/reference/admin.md, Purge).
	OlderThan When
	By        string // who cancels, as the client says
}

// DecodePurge reads the body. confirm is looked at last, so that a first try without it tells everything else that is wrong.
func DecodePurge(raw []byte) (PurgeRequest, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return PurgeRequest{}, err
	}
	b := jsonread.Body{}
	var others []jsonread.Member
	b.Fields, others = jsonread.Read(v, []string{"states", "older_than", "confirm", "cancelled_by"})
	for _, m := range others { // ignoring a condition would remove more than meant
		b.Problems.Add(ojs.ErrInvalidPayload, string(m.Name), "$."+string(m.Name), "absent: there is no such member", m.Value)
	}
	var r PurgeRequest
	list, ok := []string(nil), false
	if states := b.Get("states"); states != nil && states[0] == '[' {
		list, ok = jsonread.Texts(states)
	}
	// Repetitions are no mistake and would only make the statement look twice.
	for _, text := range jsonread.Distinct(list) {
		state := ojs.JobState(text)
		// A purge of active jobs is refused as a whole, not narrowed.
		ok = ok && state.Valid() && state != ojs.StateActive
		r.States = append(r.States, state)
	}
	if !ok || len(list) == 0 {
		b.Refuse("states", "a non-empty array of job states other than active")
	}
	if age := b.Get("older_than"); age != nil {
		text, _ := jsonread.Text(age)
		if r.OlderThan, ok = ParseAge(text); !ok {
			b.Refuse("older_than", "an RFC 3339 time with offset, or an age such as 7d or P7D")
		}
	}
	r.By, _ = jsonread.Text(b.Get("cancelled_by"))
	b.Boolean("confirm")
	if err := b.Problems.Err(); err != nil {
		return PurgeRequest{}, err
	}
	return r, jsonread.CheckConfirmed(b.Get("confirm"), "removes every job that matches")
}

// CancelRequest is the optional body of POST /admin/jobs/{id}/cancel. By counts only if neither a key nor the header
// X-OJS-Actor names the caller (docs/reference/events.md, Payloads).
type CancelRequest struct {
	By     string // who cancels, as the client says; "": not sent
	Reason string
}

// DecodeCancel reads the body. None is like {}. A wrong type of a member is refused: a reason that is not recorded would be
// missed later.
func DecodeCancel(raw []byte) (CancelRequest, *ojs.Error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return CancelRequest{}, nil
	}
	v, err := jsonread.Check(raw)
	if err != nil {
		return CancelRequest{}, err
	}
	b := jsonread.Body{}
	b.Fields, _ = jsonread.Read(v, []string{"cancelled_by", "reason"})
	text := func(name string) string {
		text, ok := jsonread.Text(b.Get(name))
		if b.Get(name) != nil && !ok {
			b.Refuse(name, "a string")
		}
		return text
	}
	r := CancelRequest{By: text("cancelled_by"), Reason: text("reason")}
	return r, b.Problems.Err()
}

var priorityNames = []string{"priority"}

// DecodePriority reads the body that changes the priority of a job. Any other member is refused: nothing else of a job can be changed, and
// ignoring it would say otherwise. In which states the call is allowed is for the statement to find out
// (docs/reference/jobs.md, Priority).
func DecodePriority(raw []byte) (int16, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return 0, err
	}
	fields, unknown := jsonread.Read(v, priorityNames)
	b := jsonread.Body{Fields: fields}
	p, ok := priority(b.Get("priority"))
	if !ok {
		b.Refuse("priority", "an integer from -100 to 100, or HIGH, NORMAL or LOW")
	}
	for _, m := range unknown {
		b.Problems.Add(ojs.ErrInvalidPayload, string(m.Name), "$."+string(m.Name), "absent: only the priority of a job can be changed", m.Value)
	}
	return p, b.Problems.Err()
}

// MaxResults is how many results can be asked for at once.
const MaxResults = 100

// DecodeResults reads the body of POST /jobs/results: ids of jobs, without repetitions. A text that is no id is answered with
// null, like an unknown one.
func DecodeResults(raw []byte) (IDList, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return IDList{}, err
	}
	b := body{}
	b.Fields, _ = jsonread.Read(v, []string{"ids"})
	list := b.Get("ids")
	var ids []string
	ok := list != nil && list[0] == '['
	if ok {
		ids, ok = jsonread.Texts(list)
	}
	if !ok {
		b.Refuse("ids", "an array of job ids")
		return IDList{}, b.Problems.Err()
	}
	if len(ids) > MaxResults {
		return IDList{}, spec.BatchSize(MaxResults, len(ids))
	}
	return NewIDList(jsonread.Distinct(ids)), nil
}
