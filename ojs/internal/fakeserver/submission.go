package fakeserver

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// submission is a job that a client has sent, checked.
type submission struct {
	ID, Type, Queue, Schema string
	Args                    json.RawMessage
	Meta                    map[string]any
	Priority                int
	Tags                    []string
	At, Expires             time.Time // zero: not sent
	TTL                     time.Duration
	TimeoutMS, VisibilityMS int64
	MaxAttempts             int
	Retry                   retryPolicy
	Unique                  *uniquePolicy
	UniqueKey               string
	Limit                   *limitPolicy
	Pending                 bool
	Extra                   []byte // members that are shown beside those of ojs.Job, each with a comma behind it
}

var (
	typePattern  = regexp.MustCompile(`^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$`)
	queuePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)
	idPattern    = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	keyPattern   = regexp.MustCompile(`^[0-9a-f]{64}$`)
	uriPattern   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:[!-~]+$`)
	version      = regexp.MustCompile(`^1(\.0(\.\d+(-.+)?)?)?$`)
)

// topNames are read from the top level of a job only, optionNames from options, too (docs/reference/jobs.md, Accepted names).
// serverNames are dropped.
var (
	topNames    = []string{"type", "args", "id", "specversion", "options"}
	optionNames = []string{
		"queue", "priority", "tags", "schema", "pending", "meta", "metadata", "scheduled_at", "delay_until", "expires_at",
		"timeout_ms", "timeout", "visibility_timeout_ms", "visibility_timeout", "retry", "retry_policy", "max_attempts", "unique",
		"unique_key", "rate_limit", "grace_period", "total_timeout", "enqueue_ttl", "heartbeat_timeout", "result_ttl",
	}
	serverNames = []string{
		"state", "attempt", "created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at", "discarded_at",
		"next_attempt_at", "retry_delay_ms", "error", "errors", "result", "worker_id", "previous_state", "activated_at",
		"parent_results", "lease_token", "re_enqueued_at", "previous_errors", "replay_count", "dead_lettered_at", "total_attempts",
		"result_stored_at", "result_expires_at", "result_size_bytes", "progress", "progress_data", "last_checkpoint",
		"workflow_id", "root_workflow_id", "workflow_step", "workflow_step_id", "workflow_callback", "parent_results_map",
		"deduplicated",
	}
	// echoed are shown as they were sent; ojs.Job has no fields for them.
	echoed = []string{
		"retry", "unique", "unique_key", "rate_limit", "grace_period", "total_timeout", "enqueue_ttl", "heartbeat_timeout",
		"result_ttl", "timeout",
	}
)

// readJob reads a job at a time of the server.
func readJob(raw json.RawMessage, now time.Time) (sub submission, refused *ojs.Error) {
	p := &problems{}
	top, ok := p.open(raw)
	if !ok {
		return sub, p.first
	}
	r := top
	if m := top.pick("options"); m.value != nil {
		options, ok := objectOf(m.value)
		if !ok {
			top.refuse(m, "an object")
		}
		r.objects = []map[string]json.RawMessage{options, top.objects[0]}
	}
	m := top.pick("type")
	switch text, ok := textOf(m.value); {
	case len(text) > 255:
		r.refuseAs(ojs.ErrJobTypeTooLong, m, "at most 255 bytes long")
	case !ok || !typePattern.MatchString(text):
		r.refuseAs(ojs.ErrInvalidJobType, m, "a job type of words joined by dots, such as invoice.render")
	default:
		sub.Type = text
	}
	if m = top.pick("args"); m.value == nil || m.value[0] != '[' || depth(m.value) > maxDepth {
		r.refuseAs(ojs.ErrInvalidArgs, m, "an array, nested at most 32 levels")
	}
	sub.Args = m.value
	sub.ID = top.text(top.pick("id"), "a UUIDv7 in lower case", idPattern.MatchString)
	if m = top.pick("specversion"); m.value != nil {
		if text := top.text(m, "a string such as 1.0", nil); !version.MatchString(text) {
			r.add(newError(ojs.ErrUnsupported, object{"field": "specversion"}, "specversion %q is not supported; send 1.0.", text))
		}
	}
	sub.readOptions(r, now)
	sub.readMeta(r, top)
	sub.Retry, sub.MaxAttempts = readRetry(r)
	sub.Unique = readUnique(r, sub.Args)
	sub.UniqueKey = r.text(r.pick("unique_key"), "64 lower-case hex digits", keyPattern.MatchString)
	sub.Limit = readLimit(r)
	if text, err := json.Marshal(sub.Meta); err == nil && len(text) > maxMeta {
		r.add(tooLarge(ojs.ErrMetadataTooLarge, "meta", maxMeta, len(text)))
	}
	if len(raw) > maxJob {
		r.add(tooLarge(ojs.ErrPayloadTooLarge, "envelope", maxJob, len(raw)))
	}
	sub.Extra = extra(r)
	return sub, p.first
}

func (sub *submission) readOptions(r reader, now time.Time) {
	const seconds = int64(maxDuration / time.Second)
	if m := r.pick("queue"); m.value != nil {
		var kind ojs.ErrorKind
		if sub.Queue, kind = checkQueue(m.value); kind != "" {
			r.refuseAs(kind, m, "lower-case letters, digits, - and ., starting with a letter or digit, at most 128 bytes long")
		}
	}
	m := r.pick("priority")
	switch text, _ := textOf(m.value); strings.ToUpper(text) {
	case "HIGH":
		sub.Priority = 10
	case "NORMAL":
	case "LOW":
		sub.Priority = -10
	default:
		n, _ := r.integer(m, -100, 100)
		sub.Priority = int(n)
	}
	for _, tag := range r.texts(r.pick("tags"), false, "an array of non-empty strings", isName) {
		if !slices.Contains(sub.Tags, tag) {
			sub.Tags = append(sub.Tags, tag)
		}
	}
	sub.Schema = r.text(r.pick("schema"), "an absolute URI such as urn:example:invoice:v1", uriPattern.MatchString)
	sub.Pending = r.boolean(r.pick("pending"))
	at := r.pick("scheduled_at", "delay_until")
	if sub.At = r.time(at, now); sub.Pending && sub.At.After(now) {
		r.refuse(at, "absent or past when pending is true")
	}
	sub.Expires = r.time(r.pick("expires_at"), now)
	if n, there := r.integer(r.pick("timeout_ms"), 0, seconds*1000); there {
		sub.TimeoutMS = n
	} else if n, there := r.integer(r.pick("timeout"), 0, seconds); there {
		sub.TimeoutMS = n * 1000
	}
	if n, there := r.integer(r.pick("visibility_timeout_ms"), 0, 604_800_000); there {
		sub.VisibilityMS = n
	} else if m := r.pick("visibility_timeout"); m.value != nil && m.value[0] == '"' {
		sub.VisibilityMS = r.duration(m, readDuration).Milliseconds()
	} else if n, there := r.integer(m, 0, 604_800); there {
		sub.VisibilityMS = n * 1000
	}
	r.integer(r.pick("grace_period"), 0, seconds)
	total := r.pick("total_timeout")
	if n, there := r.integer(total, 0, seconds); there && n > 0 && n*1000 < sub.TimeoutMS {
		r.refuse(total, "at least the execution timeout")
	}
	ttl, _ := r.integer(r.pick("enqueue_ttl"), 0, seconds)
	sub.TTL = time.Duration(ttl) * time.Second
	r.integer(r.pick("heartbeat_timeout"), 0, seconds)
	r.integer(r.pick("result_ttl"), -1, seconds)
}

// readMeta merges what was sent under the names of meta; the first of them has precedence.
func (sub *submission) readMeta(r, top reader) {
	sub.Meta = map[string]any{}
	sources := []member{top.pick("metadata"), {"meta", nil}, {"metadata", nil}, top.pick("meta")}
	if len(r.objects) == 2 {
		sources[1].value, sources[2].value = r.objects[0]["meta"], r.objects[0]["metadata"]
	}
	for _, m := range sources {
		if m.value == nil {
			continue
		}
		var members map[string]any
		if m.value[0] != '{' || depth(m.value) > maxDepth || json.Unmarshal(m.value, &members) != nil {
			r.refuseAs(ojs.ErrInvalidMetadata, m, "an object, nested at most 32 levels")
		}
		maps.Copy(sub.Meta, members)
	}
}

// extra has the members of a job that are shown as they were sent, and those that nobody knows.
func extra(r reader) []byte {
	shown := map[string]json.RawMessage{"specversion": json.RawMessage(`"1.0"`)}
	for _, name := range echoed {
		if m := r.pick(name); m.value != nil {
			shown[name] = m.value
		}
	}
	for _, o := range slices.Backward(r.objects) {
		for name, value := range o {
			if !slices.Contains(topNames, name) && !slices.Contains(optionNames, name) && !slices.Contains(serverNames, name) {
				if depth(value) > maxDepth {
					r.refuse(member{name, value}, "nested at most 32 levels")
				}
				if _, taken := shown[name]; !taken {
					shown[name] = value
				}
			}
		}
	}
	text, err := json.Marshal(shown)
	if err != nil {
		return nil
	}
	return append(bytes.TrimSuffix(text[1:], []byte("}")), ',')
}

// shownJob is a job as answers have it.
type shownJob struct {
	ojs.Job

	extra []byte
}

// MarshalJSON adds what the client has sent beside what ojs.Job has.
func (j shownJob) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(j.Job)
	if err != nil || len(j.extra) == 0 {
		return text, err
	}
	return append(append([]byte{'{'}, j.extra...), text[1:]...), nil
}

func (j *record) show() shownJob { return shownJob{j.Job, j.request.Extra} }
