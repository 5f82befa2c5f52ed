package job

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Override is what a manual retry changes of a job (docs/reference/retries.md, Manual retry). It points into the request body.
// Its Merged functions are called with the stored job under the lock of its row, so what they compute is from the state that
// they change.
type Override struct {
	Queue    string // "": keep
	Priority *int16
	Args     []byte // nil: keep

	// Both are kept as sent, because they can be merged only with what is stored. retry has been checked against the default
	// policy already.
	meta, retry jsontext.Value // as sent, nil: keep
	lim         Limits
}

// DecodeRetry reads the optional body of a manual retry; nil without an override. An empty body, null and {} are a retry
// without changes.
func DecodeRetry(raw []byte, lim Limits) (*Override, *ojs.Error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	o, err := jsonread.OpenBody(raw, "override")
	if err != nil {
		return nil, err
	}
	o.RefuseOthers()
	v := o.Get("override")
	switch {
	case o.Err() != nil || v == nil:
		return nil, o.Err()
	case v[0] != '{':
		o.Refuse("override", "an object with queue, args, priority, meta or retry")
		return nil, o.Err()
	}
	return decodeOverride(v, lim)
}

// decodeOverride checks the fields as at enqueue. An unknown one is refused: ignoring it would retry another job than meant.
// The fields are checked as if they were the attributes of a new job; the Job that results is only a container for them.
// The fields answer 400 and come first, the policy answers 422, as at enqueue.
func decodeOverride(v jsontext.Value, lim Limits) (*Override, *ojs.Error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.lim, d.deep = lim, true
	fields := jsonread.OpenAt(v, "", "$", &d.problems, "queue", "args", "priority", "meta", "retry")
	for _, a := range []attr{queueAttr, argsAttr, priorityAttr, metaAttr} {
		d.top.put(a, fields.Get(attrNames[a]))
	}
	j := &Job{Queue: "default"}
	d.placement(j)
	if fields.Get("args") != nil {
		d.args()
	}
	d.metaSources()
	fields.RefuseOthers()
	if err := d.problems.Err(); err != nil {
		// The decoder knows nothing of the object around the fields.
		field, _ := err.Details["field"].(string)
		return nil, spec.With(At("$.override", err), "field", "override."+field)
	}
	o := &Override{meta: fields.Get("meta"), retry: fields.Get("retry"), lim: lim}
	if _, err := ParseRetry(o.retry, DefaultRetry()); err != nil {
		field, _ := err.Details["field"].(string)
		return nil, At("$.override."+field, err)
	}
	// The decoder has set the default queue, so what was sent is asked of the fields.
	if fields.Get("queue") != nil {
		o.Queue = j.Queue
	}
	if fields.Get("priority") != nil {
		o.Priority = &j.Priority
	}
	if args := fields.Get("args"); args != nil {
		o.Args = jsonread.Compact(args)
	}
	return o, nil
}

// MergedMeta is the job's meta with the override's members put over it; nil if there are none. The tenant must stay, because
// the job's lane was made from it and a caller's rights depend on it. Members are replaced whole, one by one; what the override
// does not name stays. The limit of meta holds for the result.
func (o Override) MergedMeta(meta []byte) ([]byte, *ojs.Error) {
	if o.meta == nil {
		return nil, nil
	}
	var merged unknowns
	merged.putAll(meta)
	merged.putAll(o.meta)
	if len(merged.list) == 0 {
		return nil, nil
	}
	b := merged.appendObject(nil)
	if o.lim.TenantOfMeta(b) != o.lim.TenantOfMeta(meta) {
		return nil, spec.InvalidPayload("override.meta.tenant_id", "absent, or the tenant of the job",
			jsonread.Show(jsonread.Find(b, tenantMember)),
			"override.meta.tenant_id would give the job to another tenant; enqueue a new job there instead.")
	}
	if len(b) > MaxMetaBytes {
		return nil, spec.TooLarge("meta", MaxMetaBytes, len(b))
	}
	return b, nil
}

// MergedRetry is the job's policy with the override's fields; nil if there are none. The check can fail here although the
// override was valid by itself: its interval may contradict that of the stored policy.
func (o Override) MergedRetry(stored []byte, maxAttempts int64) (*RetryPolicy, error) {
	if o.retry == nil {
		return nil, nil
	}
	base, _ := ParseStoredRetry(stored) // an invalid policy is replaced by the default, as in a failure
	// The column counts, not the copy in the policy.
	base.MaxAttempts = maxAttempts
	p, wire := ParseRetry(o.retry, base)
	if wire != nil {
		return nil, wire
	}
	return &p, nil
}

// MergedExtra is what the job echoes, with the override's retry fields in the echoed policy; nil if nothing changes.
// MergedRetry must have accepted the override before: this one checks nothing.
func (o Override) MergedExtra(extra []byte) []byte {
	if o.retry == nil {
		return extra
	}
	found := false
	b := []byte{'{'}
	if extra != nil {
		for literal, value := range jsonread.Members(extra) {
			if string(jsonread.Name(literal)) == "retry" {
				value, found = MergeRetry(value, o.retry), true
			}
			b = jsonread.AppendMember(b, literal, value)
		}
	}
	if !found {
		b = jsonread.AppendMember(b, []byte(`"retry"`), MergeRetry(nil, o.retry))
	}
	return append(b, '}')
}

// WithoutExpiry is Job.Extra without the echo of expires_at: {} if nothing is left, nil for nil. A manual retry passes both
// forms to JobRetry, which takes this one for a job that does not expire any more.
func WithoutExpiry(extra []byte) []byte {
	if extra == nil {
		return nil
	}
	return append(jsonread.AppendOthers([]byte{'{'}, extra, "expires_at"), '}')
}

// ScheduledFor is Job.Extra with another echo of scheduled_at; "": none, because the statement that stores the job adds one.
func ScheduledFor(extra []byte, at string) []byte {
	b := jsonread.AppendOthers([]byte{'{'}, extra, "scheduled_at")
	if at != "" {
		b = jsonread.AppendMember(b, []byte(`"scheduled_at"`), jsonread.Quote(at))
	}
	if b = append(b, '}'); len(b) == len(`{}`) {
		return nil
	}
	return b
}
