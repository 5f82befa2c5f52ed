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
	DryRun bool // nothing is changed; the answer says what would be
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
	filterNames = []string{
		"type", "queue", "state", "enqueued_before", "enqueued_after", "since", "until", "older_than", "priority", "meta",
	}
	// defaultStates has none for a delete: what is deleted is gone, so its states must be said.
	defaultStates = map[BulkOp][]ojs.JobState{
		BulkCancel: {ojs.StateAvailable, ojs.StateScheduled},
		BulkRetry:  {ojs.StateDiscarded},
	}
)

// DecodeBulkSelect reads the body of a bulk call. maxIDs bounds job_ids. Both or neither of job_ids and filter is refused: a
// call whose filter was lost on the way must not change every job. What it selects is found and changed by queue.Store, in
// portions; the filter is applied there in SQL but for meta (MatchesMeta).
func DecodeBulkSelect(op BulkOp, raw []byte, maxIDs int) (BulkSelect, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "job_ids", "filter", "atomicity", "idempotency_key", "dry_run", "confirm")
	if err != nil {
		return BulkSelect{}, err
	}
	o.RefuseOthers()
	s := BulkSelect{Op: op, BulkOptions: readBulkOptions(&o), DryRun: o.Boolean("dry_run")}
	ids, filter := o.Get("job_ids"), o.Get("filter")
	switch {
	case ids == nil && filter == nil:
		o.Refuse("job_ids", "either job_ids or filter")
	case ids != nil && filter != nil:
		o.Refuse("filter", "absent when 'job_ids' is sent")
	// The number is checked before the ids are read, so that a body with too many costs little.
	case ids != nil:
		if ids[0] == '[' && jsonread.Len(ids) > maxIDs {
			return s, spec.BatchSize(maxIDs, jsonread.Len(ids))
		}
		texts := ReadIDs(&o, "job_ids")
		if texts != nil && len(texts) == 0 {
			o.Refuse("job_ids", "a non-empty array of job ids")
		}
		s.IDs = NewIDList(texts)
	default:
		if conditions, ok := o.OpenMember("filter", "an object", filterNames...); ok {
			conditions.RefuseOthers()
			s.Filter = readFilter(&conditions, op)
		}
	}
	return s, o.Err()
}

// DecodeConfirmedBulk reads the body of POST /admin/jobs/bulk/{cancel,retry,delete}: confirm, and a filter or its members at the top
// level (docs/reference/admin.md, Bulk change). confirm is looked at last, so that a call without it learns everything else
// that is wrong. It must be the literal true.
func DecodeConfirmedBulk(op BulkOp, raw []byte) (BulkSelect, *ojs.Error) {
	o, dryRun, err := jsonread.OpenConfirmed(raw, "changes every job that matches", filterNames...)
	if err != nil {
		return BulkSelect{}, err
	}
	return BulkSelect{Op: op, DryRun: dryRun, Filter: readFilter(&o, op)}, o.Err()
}

// readFilter reads the conditions. The operation decides the default states only; which states it can change is for the statement to
// know.
func readFilter(o *jsonread.Object, op BulkOp) *BulkFilter {
	// An empty filter would take every job; with an unknown condition it is the smaller mistake and is not mentioned.
	if len(o.Others) == 0 && o.Empty() {
		o.Problems().Add(ojs.ErrInvalidPayload, "filter", "$.filter", "an object with at least one condition", o.Value)
	}
	f := &BulkFilter{States: readStates(o, op)}
	// nil is no condition; 0 is a priority.
	f.Priority = jsonread.Optional(o, "priority", "an integer from -100 to 100", func(v jsontext.Value) (*int16, bool) {
		p, ok := priority(v)
		return &p, ok
	})
	f.Meta = jsonread.Optional(o, "meta", "an object", readMetaEqual)
	const name = "a non-empty string without U+0000"
	// A lone * is a prefix of nothing, which every type has.
	f.Type, f.TypePrefix = strings.CutSuffix(o.Text("type", name, jsonread.IsName), "*")
	f.Queue = o.Text("queue", name, jsonread.IsName)
	// These two take no ages, unlike the other bounds.
	f.EnqueuedBefore = jsonread.OptionalText(o, "enqueued_before", "an RFC 3339 time with offset", ParseTime)
	f.EnqueuedAfter = jsonread.OptionalText(o, "enqueued_after", "an RFC 3339 time with offset", ParseTime)
	f.Since, f.Until, f.OlderThan = ReadAge(o, "since"), ReadAge(o, "until"), ReadAge(o, "older_than")
	return f
}

// ReadAge reads an optional time, or an age.
func ReadAge(o *jsonread.Object, name string) When {
	return jsonread.OptionalText(o, name, "an RFC 3339 time with offset, or an age such as 7d or P7D", ParseAge)
}

// readStates reads a state or an array of them.
func readStates(o *jsonread.Object, op BulkOp) []ojs.JobState {
	v := o.Get("state")
	if v == nil && op == BulkDelete {
		o.Refuse("state", "the states of the jobs to delete")
	}
	if v == nil {
		return defaultStates[op]
	}
	states, ok := statesOf(v)
	if text, isText := jsonread.Text(v); isText {
		states, ok = []ojs.JobState{ojs.JobState(text)}, true
	}
	if !ok || slices.ContainsFunc(states, isNoState) {
		o.Refuse("state", "a job state, or a non-empty array of them")
	}
	return states
}

// readMetaEqual uses unknowns for its rule about equal names, and because it stays fast with many names.
func readMetaEqual(v jsontext.Value) ([]MetaEqual, bool) {
	if v[0] != '{' {
		return nil, false
	}
	var merged unknowns
	merged.putAll(v)
	list := make([]MetaEqual, len(merged.list))
	for i, m := range merged.list {
		list[i] = MetaEqual{string(m.Name), jsonread.Compact(m.Value)}
	}
	return list, true
}

// PurgeRequest is a purge of a queue. Active jobs cannot be purged: a worker has them, and its ack would find nothing.
type PurgeRequest struct {
	States []ojs.JobState
	Shown  []byte // States as sent, compact; only by DecodeQueuePurge
	// It is compared with the end of a job, or with its creation if it has not ended (docs/reference/admin.md, Purge).
	OlderThan When
	By        string // who cancels, as the client says
	DryRun    bool   // nothing is removed; the answer says what would be
}

// DecodePurge reads the body of DELETE /admin/queues/{name}/jobs (docs/reference/admin.md, Purge).
func DecodePurge(raw []byte) (PurgeRequest, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, purgeNames...)
	if err != nil {
		return PurgeRequest{}, err
	}
	o.RefuseOthers()
	states, ok := statesOf(o.Get("states"))
	if !ok || slices.ContainsFunc(states, isNotPurged) {
		o.Refuse("states", "a non-empty array of job states other than active")
	}
	r := PurgeRequest{States: states}
	r.readRest(&o)
	if !r.DryRun {
		o.Confirm("removes every job that matches")
	}
	return r, o.Err()
}

var purgeNames = []string{"states", "older_than", "confirm", "cancelled_by", "dry_run"}

// readRest reads what the two purges have alike.
func (r *PurgeRequest) readRest(o *jsonread.Object) {
	r.OlderThan, r.DryRun = ReadAge(o, "older_than"), o.Boolean("dry_run")
	r.By, _ = jsonread.Text(o.Get("cancelled_by"))
}

// DecodeQueuePurge reads the body of POST /queues/{name}/purge (docs/reference/queues.md, Endpoints). confirm is needed only for states
// that are not final: those jobs are cancelled, with effect on their workflows. The first mistake is the answer.
func DecodeQueuePurge(raw []byte) (PurgeRequest, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, purgeNames...)
	if err != nil {
		return PurgeRequest{}, err
	}
	o.RefuseOthers()
	const expected = "an array of job states but active, at least one"
	states, ok := statesOf(o.Get("states"))
	if !ok {
		o.Refuse("states", expected)
		return PurgeRequest{}, o.Err()
	}
	r := PurgeRequest{States: states, Shown: jsonread.Compact(o.Get("states"))}
	r.readRest(&o)
	confirmed := o.Boolean("confirm") || r.DryRun
	for i := 0; i < len(states) && o.Err() == nil; i++ {
		if isNotPurged(states[i]) {
			o.Refuse("states", expected)
		} else if !states[i].Terminal() && !confirmed {
			o.Refuse("confirm", "true to cancel and remove jobs that have not ended")
		}
	}
	return r, o.Err()
}

// isNotPurged has a purge of active jobs refused as a whole, not narrowed.
func isNotPurged(s ojs.JobState) bool { return isNoState(s) || s == ojs.StateActive }

func isNoState(s ojs.JobState) bool { return !s.Valid() }

// statesOf reads a non-empty array of states, which it does not check. Repetitions are no mistake and would only make the statement
// look twice.
func statesOf(v jsontext.Value) (states []ojs.JobState, ok bool) {
	list, ok := jsonread.Texts(v)
	for _, text := range jsonread.Distinct(list) {
		states = append(states, ojs.JobState(text))
	}
	return states, ok && len(states) > 0
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
	o, err := jsonread.OpenBody(raw, "cancelled_by", "reason")
	if err != nil {
		return CancelRequest{}, err
	}
	o.RefuseOthers()
	r := CancelRequest{By: o.Text("cancelled_by", "a string", nil), Reason: o.Text("reason", "a string", nil)}
	return r, o.Err()
}

// DecodePriority reads the body that changes the priority of a job. Any other member is refused: nothing else of a job can be changed, and
// ignoring it would say otherwise. In which states the call is allowed is for the statement to find out
// (docs/reference/jobs.md, Priority).
func DecodePriority(raw []byte) (int16, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "priority")
	if err != nil {
		return 0, err
	}
	o.RefuseOthers()
	p, ok := priority(o.Get("priority"))
	if !ok {
		o.Refuse("priority", "an integer from -100 to 100, or HIGH, NORMAL or LOW")
	}
	return p, o.Err()
}

// MaxResults is how many results can be asked for at once.
const MaxResults = 100

// DecodeResults reads the body of POST /jobs/results: ids of jobs, without repetitions. A text that is no id is answered with
// null, like an unknown one.
func DecodeResults(raw []byte) (IDList, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "ids")
	if err != nil {
		return IDList{}, err
	}
	o.RefuseOthers()
	ids, ok := jsonread.Texts(o.Get("ids"))
	if !ok {
		o.Refuse("ids", "an array of job ids")
	}
	if err := o.Err(); err != nil {
		return IDList{}, err
	}
	if len(ids) > MaxResults {
		return IDList{}, spec.BatchSize(MaxResults, len(ids))
	}
	return NewIDList(jsonread.Distinct(ids)), nil
}
