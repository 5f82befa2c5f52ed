package job

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// policies checks what answers 422: the spec version and the retry policy. They come last because they answer another status: a
// body that has a field of the wrong kind as well is a 400, and says nothing of the policy (docs/reference/http.md, Check
// order).
func (d *decoder) policies(j *Job) {
	if g := d.pick(specversionAttr); g.value != nil {
		if text, _ := d.text(g); !ValidVersion(text) {
			d.policy = spec.Version("specversion", text)
			return
		}
	}
	// Both are picked before the policy is parsed, because the queue's policy is only needed if there is something to parse or
	// to inherit.
	g, shortcut := d.pick(retryAttr, retryPolicyAttr), d.pick(maxAttemptsAttr)
	base, inherited := d.baseRetry(j.Queue)
	// Most jobs send neither, so nothing is parsed and nothing stored: NULL in the column retry stands for the default policy.
	if g.value == nil && shortcut.value == nil && !inherited {
		j.MaxAttempts = base.MaxAttempts
		return
	}
	const notSent = -1 // no client can send it, so it shows whether retry.max_attempts was there
	limit := base.MaxAttempts
	base.MaxAttempts = notSent
	p, err := retry.Parse(g.value, base)
	if err != nil {
		field, _ := err.Details["field"].(string)
		d.policy = spec.With(err, "validation_errors", []payload.Violation{{Path: g.path() + strings.TrimPrefix(field, "retry"), Message: err.Message}})
		return
	}
	if p.MaxAttempts == notSent {
		if p.MaxAttempts, err = d.attemptsShortcut(shortcut, limit); err != nil {
			d.policy = err
			return
		}
	}
	j.MaxAttempts = p.MaxAttempts
	// max_attempts has a column of its own, so a policy that differs in it alone is not stored either.
	if !p.IsDefault() {
		j.Retry = p.Encode()
	}
}

// The policy of the queue is copied into the job. A later change of the queue does not change jobs that wait already.
func (d *decoder) baseRetry(queue string) (p retry.Policy, inherited bool) {
	if d.lim.QueueRetry != nil {
		if p, ok := d.lim.QueueRetry(queue); ok {
			return p, true
		}
	}
	return retry.Default(), false
}

// Outside of a policy, max_attempts counts only if the policy has none (docs/reference/retries.md, Policy).
func (d *decoder) attemptsShortcut(g given, otherwise int64) (int64, *ojs.Error) {
	if g.value == nil {
		return otherwise, nil
	}
	n, kind := d.integer(g)
	if kind != rawjson.IsInt || n < 0 {
		err := spec.Validation("max_attempts", rawjson.Show(d.json(g)), "max_attempts must be an integer >= 0, got "+payload.Brief(d.json(g))+".")
		return 0, spec.With(err, "validation_errors", []payload.Violation{{Path: g.path(), Message: err.Message}})
	}
	return n, nil
}

// assemble copies everything that is kept into one new buffer. The job must not point into the request, whose bytes may be used
// again while the job waits for its flush. One buffer for all parts is one allocation a job; clipped slices keep an append to
// one part from writing into the next.
func (d *decoder) assemble(j *Job, size int, metaSources []jsontext.Value) (*Job, *ojs.Error) {
	buf := make([]byte, 0, size)
	cut := func() []byte { // what has been appended since the last cut; nil if nothing
		if len(buf) == 0 {
			return nil
		}
		part := slices.Clip(buf)
		buf = buf[len(buf):]
		return part
	}
	buf = rawjson.AppendCompact(buf, d.top.values[argsAttr])
	j.Args = cut()
	buf = appendMeta(buf, metaSources)
	j.Meta = cut()
	// The size can only be known after merging the sources and dropping white space, so this is the last stage of all.
	if len(j.Meta) > d.lim.Meta() {
		return nil, spec.TooLarge("meta", d.lim.Meta(), len(j.Meta))
	}
	// The tenant of the caller goes into meta after the check of its size: what the server adds itself is never refused.
	if err := d.tenant(j); err != nil {
		return nil, err
	}
	buf = d.appendExtra(buf, j)
	j.Extra = cut()
	// After the tenant, because that may replace meta.
	j.TraceID = TraceID(j.Meta)
	// A job names the version of its schema by an attribute that is not known otherwise; most jobs have none.
	if len(d.unknown.list) > 0 {
		j.SchemaVersion = d.schemaVersion()
	}
	return j, nil
}

// appendExtra appends the object of Job.Extra; nothing if it would be empty. timeout comes first, for WithoutTimeout.
// It echoes what was sent under the canonical name, not what the server made of it. Times that are relative are left out: the
// store adds what they resolve to by the clock of the database.
func (d *decoder) appendExtra(b []byte, j *Job) []byte {
	if !d.has(timeAttrs|durationAttrs|labelAttrs) && len(d.unknown.list) == 0 {
		return b
	}
	start := len(b)
	b = append(b, '{')
	if g := d.pick(timeoutMSAttr, timeoutAttr); g.value != nil {
		if g.attr == timeoutAttr {
			b = appendInt(b, timeoutAttr, j.TimeoutMS/1000)
		}
		b = appendInt(b, timeoutMSAttr, j.TimeoutMS)
	}
	if j.VisibilityMS > 0 { // 0 means not set (docs/reference/retries.md, Reservations)
		b = appendInt(b, visibilityMSAttr, j.VisibilityMS)
	}
	if g := d.pick(scheduledAtAttr, delayUntilAttr); g.value != nil && !j.ScheduledAt.Relative {
		b = appendAttr(b, scheduledAtAttr, d.json(g))
	}
	if g := d.pick(expiresAtAttr); g.value != nil && !j.ExpiresAt.Relative {
		b = appendAttr(b, expiresAtAttr, d.json(g))
	}
	// The policies are shown as they were sent, not as they were merged, so that a client finds its own words again. What
	// applies is in columns.
	b = d.appendVerbatim(b, retryAttr, retryPolicyAttr)
	b = d.appendVerbatim(b, uniqueAttr)
	b = d.appendVerbatim(b, uniqueKeyAttr)
	b = d.appendVerbatim(b, rateLimitAttr)
	b = d.appendVerbatim(b, schemaAttr)
	if g := d.pick(tagsAttr); g.value != nil && rawjson.Len(g.value) > 0 {
		b = appendTags(appendName(b, tagsAttr), g.value)
	}
	b = d.appendSeconds(b, graceAttr, totalTimeoutAttr, enqueueTTLAttr, heartbeatTimeoutAttr, resultTTLAttr)
	for _, m := range d.unknown.list {
		b = payload.AppendMember(b, m.Literal, m.Value)
	}
	return dropEmpty(append(b, '}'), start)
}

// The first attribute of the list is the canonical name; the value is that of the name that won.
func (d *decoder) appendVerbatim(b []byte, attrs ...attr) []byte {
	if g := d.pick(attrs...); g.value != nil {
		return appendAttr(b, attrs[0], g.value)
	}
	return b
}

// The values were checked by durations, so an error cannot occur here.
func (d *decoder) appendSeconds(b []byte, attrs ...attr) []byte {
	for _, a := range attrs {
		if g := d.pick(a); g.value != nil {
			n, _ := d.integer(g)
			b = appendInt(b, a, n)
		}
	}
	return b
}

func appendAttr(b []byte, a attr, v jsontext.Value) []byte {
	return rawjson.AppendCompact(appendName(b, a), v)
}

func appendInt(b []byte, a attr, n int64) []byte {
	return strconv.AppendInt(appendName(b, a), n, 10)
}

// b must end with the brace or a member of the object that is being written.
func appendName(b []byte, a attr) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(append(append(b, '"'), attrNames[a]...), `":`...)
}

// WithoutTimeout gives Job.Extra as FETCH shows it: the JS worker reads `timeout`, which is in seconds, as milliseconds
// (docs/reference/jobs.md, Attributes). Whoever writes extra puts that member first, so that it costs nothing to find.
// Only the answer to a fetch leaves it out. timeout_ms stays, and says the same.
func WithoutTimeout(extra []byte) []byte {
	if !bytes.HasPrefix(extra, []byte(`{"timeout":`)) {
		return extra
	}
	_, rest, more := bytes.Cut(extra, []byte(","))
	// The object had no other member, which is as good as no object.
	if !more {
		return nil
	}
	return append([]byte{'{'}, rest...)
}
