package job

import (
	"bytes"
	"math/bits"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// DecodeJob reads the body of a PUSH. The first stage that fails answers: size, JSON, fields (400), policies (422), size
// of meta (docs/reference/http.md, Check order).
func DecodeJob(raw []byte, lim Limits) (*Job, *ojs.Error) {
	if err := lim.checkSize("envelope", len(raw)); err != nil {
		return nil, err
	}
	v, err := jsonread.Check(raw)
	if err != nil {
		return nil, err
	}
	return decodeValid(v, lim)
}

// DecodeItem is DecodeJob for text that is known to be valid JSON: an element that SplitBatch gave, or what gRPC has written. The limit
// holds for each element; the whole body has a limit of its own, which the transport checks. item is not kept.
func DecodeItem(item jsontext.Value, lim Limits) (*Job, *ojs.Error) {
	if err := lim.checkSize("envelope", len(item)); err != nil {
		return nil, err
	}
	v, err := jsonread.CheckObject(item, "job")
	if err != nil {
		return nil, err
	}
	return decodeValid(v, lim)
}

// Template is the job that a cron makes, as it is stored. A template is checked when the cron is registered and again whenever
// it fires: limits and the policies of queues may have changed since.
type Template struct {
	Type                string
	Args, Meta, Options []byte // valid JSON; Options nil: none
}

// Job checks a template by the rules of DecodeJob. The bounds of an envelope hold for what a client sends, not for this.
func (t Template) Job(lim Limits) (*Job, *ojs.Error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.lim, d.deep = lim, true
	if t.Type != "" {
		d.top.put(typeAttr, jsonread.Quote(t.Type))
	}
	d.top.put(argsAttr, t.Args)
	d.top.put(metaAttr, t.Meta)
	if t.Options != nil {
		d.top.put(optionsAttr, t.Options)
		d.sortOptions()
	}
	return d.job(len(t.Args) + len(t.Meta) + len(t.Options) + 64)
}

// decoder holds one job while its attributes are sorted and checked. Pooled: it is 2 KiB that every request needs.
// Each field is set by every use or emptied by release: one that is forgotten would carry values from one client's job into
// another's.
type decoder struct {
	lim      Limits
	top, opt sentAttrs // known attributes
	unknown  unknowns
	metas    [4]jsontext.Value // backs the list of metaSources
	// deep is false if the body has too few brackets for any value to be nested too deeply; then no attribute is measured.
	deep     bool // nesting has to be looked at
	problems jsonread.Problems
	policy   *ojs.Error // the first 422
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// decodeValid gets a value that has been checked as JSON; everything below relies on that and reads without looking for errors.
func decodeValid(v jsontext.Value, lim Limits) (*Job, *ojs.Error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.lim = lim
	// Fewer brackets than levels allowed: nearly every job is cleared by these two counts.
	d.deep = bytes.Count(v, []byte("{"))+bytes.Count(v, []byte("[")) > MaxNesting
	for literal, value := range jsonread.Members(v) {
		name := jsonread.Name(literal)
		switch a := attrsByName[string(name)]; a {
		case unknownAttr:
			d.unknown.put(name, literal, value)
		case serverAttr:
		default:
			d.top.put(a, value)
		}
	}
	d.sortOptions()
	return d.job(len(v) + 64)
}

// release empties the decoder, so that the pool keeps no request body alive.
func (d *decoder) release() {
	list := d.unknown.list
	clear(list)
	// A list that one job made long would otherwise stay in the pool for ever.
	if cap(list) > 4*indexFrom {
		list = nil
	}
	d.unknown = unknowns{list: list[:0]}
	d.top.clear()
	d.opt.clear()
	clear(d.metas[:])
	d.lim, d.problems, d.policy = Limits{}, jsonread.Problems{}, nil
	decoders.Put(d)
}

// sentAttrs are the known attributes that a job has at its top level, or in options. The bits spare a look at thirty absent ones.
// have is the truth: clear resets only the values whose bit is set.
type sentAttrs struct {
	values [attrCount]jsontext.Value // nil: absent or null
	have   attrSet
}

// put keeps the last of equal names; null takes the attribute back. That is the rule for repeated names everywhere
// (docs/reference/jobs.md, JSON).
func (s *sentAttrs) put(a attr, v jsontext.Value) {
	if jsonread.IsNull(v) {
		s.values[a], s.have = nil, s.have&^a.bit()
		return
	}
	s.values[a], s.have = v, s.have|a.bit()
}

func (s *sentAttrs) clear() {
	for set := s.have; set != 0; set &= set - 1 {
		s.values[bits.TrailingZeros64(uint64(set))] = nil
	}
	s.have = 0
}

// sortOptions takes the members of options, after all others, wherever options stands in the object: they win over the top level,
// except for names that are unknown (docs/reference/jobs.md, Accepted names). A null or absent options is not there at all. What is
// no object is a problem like any other, and the top-level members count.
func (d *decoder) sortOptions() {
	options := d.top.values[optionsAttr]
	if options == nil {
		return
	}
	if options[0] != '{' {
		d.problems.Add(ojs.ErrInvalidPayload, "options", "$.options", "an object", options)
		return
	}
	// From here on a name that the top level has is not replaced.
	d.unknown.lift()
	for literal, value := range jsonread.Members(options) {
		name := jsonread.Name(literal)
		switch a := attrsByName[string(name)]; {
		case a == unknownAttr:
			d.unknown.put(name, literal, value)
		case a != serverAttr && !a.onlyTop():
			d.opt.put(a, value)
		}
	}
}

// job checks the attributes in their documented order (docs/reference/jobs.md, Attributes) and builds the result. size is about
// what the kept parts have in all. A problem of one attribute does not end the checks; the first problem found is that of the
// answer's message, so the order of these calls can be seen by clients.
func (d *decoder) job(size int) (*Job, *ojs.Error) {
	j := &Job{Queue: "default"}
	d.identity(j)
	d.placement(j)
	meta := d.metaSources()
	if d.has(timeAttrs) {
		schedule := d.pick(scheduledAtAttr, delayUntilAttr)
		j.ScheduledAt, j.ExpiresAt = d.when(schedule), d.when(d.pick(expiresAtAttr))
		// A pending job waits for activate and not for a time. A time that is past means now.
		if j.Pending && j.ScheduledAt.future() {
			d.refuse(ojs.ErrInvalidPayload, schedule, "absent or past when 'pending' is true")
		}
	}
	if d.has(durationAttrs) {
		d.durations(j)
	}
	if d.has(labelAttrs) {
		d.labels(j)
		d.uniqueness(j)
		d.rateLimit(j)
	}
	d.unknownDepth()
	// From here on the attributes are known to be of the right kind, and what follows does not check them again.
	if err := d.problems.Err(); err != nil {
		return nil, err
	}
	// Only now, because a policy that cannot be used is reported by itself and not among the problems of fields.
	d.policies(j)
	if d.policy != nil {
		return nil, d.policy
	}
	return d.assemble(j, size, meta)
}

// given is the value that won among the names of a setting.
type given struct {
	value     jsontext.Value // nil: not sent
	attr      attr
	inOptions bool
}

func (g given) path() string {
	if g.inOptions {
		return "$.options." + attrNames[g.attr]
	}
	return "$." + attrNames[g.attr]
}

// pick finds the first of the attributes that is present, in options first, then at the top level. Losers are forgotten.
// The weaker names are not checked either: a wrong value that nobody uses is no error (docs/reference/jobs.md, Accepted names).
func (d *decoder) pick(attrs ...attr) given {
	for _, a := range attrs {
		if d.opt.have&a.bit() != 0 {
			return given{d.opt.values[a], a, true}
		}
	}
	for _, a := range attrs {
		if d.top.have&a.bit() != 0 {
			return given{d.top.values[a], a, false}
		}
	}
	return given{attr: attrs[0]}
}

// pickObject is pick for an attribute that must be an object; false: there is none, or it was refused.
func (d *decoder) pickObject(a attr) (g given, there bool) {
	g = d.pick(a)
	switch {
	case g.value == nil:
	case g.value[0] != '{':
		d.refuse(ojs.ErrInvalidPayload, g, "an object")
	case d.tooDeep(g.value):
		d.refuse(ojs.ErrInvalidPayload, g, shallow)
	default:
		there = true
	}
	return g, there
}

// has reports whether any of the attributes is present.
func (d *decoder) has(set attrSet) bool { return (d.top.have|d.opt.have)&set != 0 }

// refuse notes a problem with a setting, under the name that the client used.
func (d *decoder) refuse(kind ojs.ErrorKind, g given, expected string) {
	d.problems.Add(kind, attrNames[g.attr], g.path(), expected, g.value)
}

// tooDeep is false for nil, the value of an attribute that was not sent.
func (d *decoder) tooDeep(v jsontext.Value) bool {
	return d.deep && jsonread.Depth(v) > MaxNesting
}

// attr is an attribute of a new job that the server knows. Anything else is kept as it comes (docs/reference/jobs.md, Unknown attributes).
// The order matters in one place: onlyTop compares with the constants from typeAttr to optionsAttr.
type attr int

const (
	unknownAttr attr = iota
	serverAttr       // set by the server; a client's value is dropped silently
	typeAttr
	argsAttr
	idAttr
	specversionAttr
	optionsAttr
	queueAttr
	priorityAttr
	metaAttr
	metadataAttr
	scheduledAtAttr
	delayUntilAttr
	expiresAtAttr
	timeoutMSAttr
	timeoutAttr
	visibilityMSAttr
	visibilityAttr
	retryAttr
	retryPolicyAttr
	maxAttemptsAttr
	uniqueAttr
	uniqueKeyAttr
	tagsAttr
	schemaAttr
	rateLimitAttr
	pendingAttr
	graceAttr
	totalTimeoutAttr
	enqueueTTLAttr
	heartbeatTimeoutAttr
	resultTTLAttr
	attrCount
)

// attrNames is the name of each attribute in requests, in errors and in Job.Extra. serverAttr and unknownAttr have none.
var attrNames = [attrCount]string{
	typeAttr: "type", argsAttr: "args", idAttr: "id", specversionAttr: "specversion", optionsAttr: "options", queueAttr: "queue",
	priorityAttr: "priority", metaAttr: "meta", metadataAttr: "metadata", scheduledAtAttr: "scheduled_at", delayUntilAttr: "delay_until",
	expiresAtAttr: "expires_at", timeoutMSAttr: "timeout_ms", timeoutAttr: "timeout", visibilityMSAttr: "visibility_timeout_ms",
	visibilityAttr: "visibility_timeout", retryAttr: "retry", retryPolicyAttr: "retry_policy", maxAttemptsAttr: "max_attempts",
	uniqueAttr: "unique", uniqueKeyAttr: "unique_key", tagsAttr: "tags", schemaAttr: "schema", rateLimitAttr: "rate_limit",
	pendingAttr: "pending", graceAttr: "grace_period", totalTimeoutAttr: "total_timeout", enqueueTTLAttr: "enqueue_ttl",
	heartbeatTimeoutAttr: "heartbeat_timeout", resultTTLAttr: "result_ttl",
}

// attrSet has the bit 1<<a for each attribute a in it. 64 attributes fit. A shift by more gives 0, which neither the compiler
// nor a panic would report.
type attrSet uint64

func (a attr) bit() attrSet { return 1 << a }

func setOf(attrs ...attr) (s attrSet) {
	for _, a := range attrs {
		s |= a.bit()
	}
	return s
}

// Most jobs have no attribute of these sets.
var (
	// timeAttrs are tested as a set, which spares the functions that read it (decoder.job, appendExtra).
	timeAttrs     = setOf(scheduledAtAttr, delayUntilAttr, expiresAtAttr)
	durationAttrs = setOf(timeoutMSAttr, timeoutAttr, visibilityMSAttr, visibilityAttr, graceAttr, totalTimeoutAttr, enqueueTTLAttr,
		heartbeatTimeoutAttr, resultTTLAttr)
	labelAttrs = setOf(schemaAttr, tagsAttr, rateLimitAttr, retryAttr, retryPolicyAttr, uniqueAttr, uniqueKeyAttr)
)

// serverNames are the attributes that only the server sets. A client that enqueues a job which it has read sends them back;
// they are dropped, not refused.
var serverNames = []string{
	// docs/reference/jobs.md, Attributes
	"state", "attempt", "created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at", "discarded_at", "next_attempt_at",
	"retry_delay_ms", "error", "errors", "result", "worker_id", "previous_state", "activated_at", "parent_results",
	"lease_token",
	// docs/reference/retries.md, Dead letters
	"re_enqueued_at", "previous_errors", "replay_count", "dead_lettered_at", "total_attempts",
	"result_stored_at", "result_expires_at", "result_size_bytes", "progress", "progress_data", "last_checkpoint",
	// workflows and unique jobs
	"workflow_id", "root_workflow_id", "workflow_step", "workflow_step_id", "workflow_callback", "parent_results_map", "deduplicated",
}

// attrsByName is built once and only read afterwards; any number of decoders share it.
var attrsByName = func() map[string]attr {
	m := make(map[string]attr, int(attrCount)+len(serverNames))
	for a, name := range attrNames {
		if name != "" {
			m[name] = attr(a)
		}
	}
	for _, name := range serverNames {
		m[name] = serverAttr
	}
	return m
}()

// onlyTop reports whether an attribute is read from the top level alone. Inside options its name is taken, not free for
// lifting, because the envelope always has it.
func (a attr) onlyTop() bool {
	return a >= typeAttr && a <= optionsAttr
}

// IsOption reports whether name is an option that may stand at the root of a body that holds a job template; type, args,
// meta and queue are read elsewhere. Package cron moves such members into the options of the template.
func IsOption(name string) bool {
	a, known := attrsByName[name]
	return known && a != serverAttr && !a.onlyTop() && a != metaAttr && a != metadataAttr && a != queueAttr
}

// identity checks type, args, id and the form of specversion. That the id is not taken is found out when the job is inserted. A
// version that is not supported is a 422, so its text is looked at by policies.
func (d *decoder) identity(j *Job) {
	g := d.pick(typeAttr)
	text, ok := jsonread.Text(g.value)
	switch {
	// It comes first, because a type that is too long has a kind of error of its own.
	case len(text) > maxTypeBytes:
		d.refuse(ojs.ErrJobTypeTooLong, g, "at most 255 bytes long")
	case !ok || !ValidType(text):
		d.refuse(ojs.ErrInvalidJobType, g, "a job type of words joined by dots, each a lower-case letter and then lower-case letters, digits, _ and -, such as invoice.render")
	}
	j.Type = text
	d.args()
	// Upper case, a prefix and other versions of UUIDs are refused and not translated: the id is what clients compare
	// (docs/reference/jobs.md, Identifiers).
	if g := d.pick(idAttr); g.value != nil {
		text, _ := jsonread.Text(g.value)
		if j.ID, j.ClientID = spec.ParseUUIDv7(text); !j.ClientID {
			d.refuse(ojs.ErrInvalidPayload, g, "a UUIDv7 in lower case")
		}
	}
	if g := d.pick(specversionAttr); g.value != nil && g.value[0] != '"' {
		d.refuse(ojs.ErrInvalidPayload, g, "a string such as 1.0")
	}
}

// args are required: a job without arguments sends [], so that a member that was forgotten or misspelt is noticed.
func (d *decoder) args() {
	switch g := d.pick(argsAttr); {
	case g.value == nil || g.value[0] != '[':
		d.refuse(ojs.ErrInvalidArgs, g, "an array")
	case d.tooDeep(g.value):
		d.refuse(ojs.ErrInvalidArgs, g, shallow)
		d.problems.Hint(flatten)
	}
}

// ValidType reports whether s is ^[a-z][a-z0-9_\-]*(\.[a-z][a-z0-9_\-]*)*$. A loop and not a regular expression: it runs for
// every job.
func ValidType(s string) bool {
	if len(s) > maxTypeBytes {
		return false
	}
	start := true // of a word
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z':
			start = false
		case start:
			return false
		case c == '.':
			start = true
		case !(c >= '0' && c <= '9' || c == '_' || c == '-'):
			return false
		}
	}
	return !start
}

// ValidQueue reports whether s is ^[a-z0-9][a-z0-9\-\.]*$ of at most 128 bytes. Letters are lower-case only, so two names
// cannot differ in case alone.
func ValidQueue(s string) bool {
	if s == "" || len(s) > maxQueueBytes || s[0] == '-' || s[0] == '.' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.') {
			return false
		}
	}
	return true
}

// ValidVersion reports whether s is ^1(\.0(\.[0-9]+(-[0-9A-Za-z.\-]+)?)?)?$. Every patch of 1.0 is accepted.
func ValidVersion(s string) bool {
	if s == "1" || s == "1.0" {
		return true
	}
	rest, ok := strings.CutPrefix(s, "1.0.")
	if !ok {
		return false
	}
	patch, pre, hasPre := strings.Cut(rest, "-")
	return patch != "" && strings.Trim(patch, "0123456789") == "" && (!hasPre || pre != "" && jsonread.AllIn(pre, isPreRelease))
}

func isPreRelease(c byte) bool { return isAlphanumeric(c) || c == '.' || c == '-' }

// QueueProblem checks the text of a queue name. It serves wherever a queue is named in JSON, so that the messages are the same.
func QueueProblem(v jsontext.Value) (text string, kind ojs.ErrorKind, expected string) {
	text, isText := jsonread.Text(v)
	kind, expected = queueProblem(text, isText)
	return text, kind, expected
}

// queueProblem has an empty kind, which means that there is no problem.
func queueProblem(text string, isText bool) (kind ojs.ErrorKind, expected string) {
	switch {
	case len(text) > maxQueueBytes:
		return ojs.ErrQueueNameTooLong, "at most 128 bytes long"
	case !isText || !ValidQueue(text):
		return ojs.ErrInvalidQueue, "a queue name of lower-case letters, digits, - and ., starting with a letter or digit"
	}
	return "", ""
}

// labels checks what is stored and echoed: schema, tags, and the nesting of retry. The retry policy is read later, by policies.
// Its nesting is looked at here, because it is a 400 like that of all attributes.
func (d *decoder) labels(j *Job) {
	if g := d.pick(schemaAttr); g.value != nil {
		text, ok := jsonread.Text(g.value)
		j.Schema = text
		if !ok || !AbsoluteURI(text) {
			d.refuse(ojs.ErrInvalidPayload, g, "an absolute URI such as urn:example:invoice:v1")
		}
	}
	if g := d.pick(tagsAttr); g.value != nil && !validTags(g.value) {
		d.refuse(ojs.ErrInvalidPayload, g, "an array of non-empty strings without U+0000")
	}
	if g := d.pick(retryAttr, retryPolicyAttr); d.tooDeep(g.value) {
		d.refuse(ojs.ErrInvalidPayload, g, shallow)
	}
}

// unknownDepth checks the nesting of attributes that nobody knows. Paths name the place where the member was sent, although it
// will be shown at the top level.
func (d *decoder) unknownDepth() {
	if !d.deep {
		return
	}
	for i, m := range d.unknown.list {
		if d.tooDeep(m.Value) {
			path := "$."
			if i >= d.unknown.fixed {
				path = "$.options."
			}
			d.problems.Add(ojs.ErrInvalidPayload, string(m.Name), path+string(m.Name), shallow, m.Value)
		}
	}
}

// schemaVersion is the attribute version, by which a job names a version of the schema of its type. Anything else that clients
// send under this name is theirs. It is no known attribute: a job without a schema may use the name version for anything.
func (d *decoder) schemaVersion() string {
	i, sent := d.unknown.find([]byte("version"))
	if !sent {
		return ""
	}
	v := d.unknown.list[i].Value
	if text, ok := jsonread.Text(v); ok {
		return text
	}
	if _, kind := jsonread.Int(v); kind == jsonread.IsInt {
		return string(v)
	}
	return ""
}

// AbsoluteURI reports whether s is one, without spaces and control characters. Package schema uses it for the URI under which a
// schema is registered, so both are held to one rule.
func AbsoluteURI(s string) bool {
	u, err := url.Parse(s) // it refuses control characters
	return err == nil && !strings.Contains(s, " ") && u.IsAbs() && (u.Opaque != "" || u.Host != "" || u.Path != "")
}

// validTags leaves their number and length to the limit of the envelope.
func validTags(v jsontext.Value) bool {
	if v[0] != '[' {
		return false
	}
	for e := range jsonread.Elements(v) {
		if text, _ := jsonread.Text(e); text == "" || strings.Contains(text, "\x00") {
			return false
		}
	}
	return true
}

// appendTags appends the tags without repetitions, in order of first appearance, as the client wrote them.
// Repetitions are compared as the tags read, so "a" and "\u0061" are one tag.
func appendTags(dst []byte, v jsontext.Value) []byte {
	seen := make(map[string]bool)
	dst = append(dst, '[')
	for e := range jsonread.Elements(v) {
		text := string(jsonread.Name(e))
		if seen[text] {
			continue
		}
		if len(seen) > 0 {
			dst = append(dst, ',')
		}
		seen[text] = true
		dst = append(dst, e...)
	}
	return append(dst, ']')
}

// placement checks queue, priority and pending.
func (d *decoder) placement(j *Job) {
	// The usual name is compared as bytes first, because most jobs are in it.
	if g := d.pick(queueAttr); g.value != nil && string(g.value) != `"default"` {
		text, kind, expected := QueueProblem(g.value)
		if kind != "" {
			d.refuse(kind, g, expected)
		}
		j.Queue = text
	}
	if g := d.pick(priorityAttr); g.value != nil {
		p, ok := priority(g.value)
		if !ok {
			d.refuse(ojs.ErrInvalidPayload, g, "an integer from -100 to 100, or HIGH, NORMAL or LOW")
		}
		j.Priority = p
	}
	if g := d.pick(pendingAttr); g.value != nil {
		var ok bool
		if j.Pending, ok = jsonread.Bool(g.value); !ok {
			d.refuse(ojs.ErrInvalidPayload, g, "a boolean")
		}
	}
}

// priority compares the three words in any letter case, and keeps the column, a smallint, in the range that clients are told
// (docs/reference/jobs.md, Priority). A number that does not fit into an int16 is out of range, so its conversion is never used.
func priority(v jsontext.Value) (int16, bool) {
	if text, ok := jsonread.Text(v); ok {
		switch strings.ToUpper(text) {
		case "HIGH":
			return 10, true
		case "NORMAL":
			return 0, true
		case "LOW":
			return -10, true
		default:
			return 0, false
		}
	}
	n, kind := jsonread.Int(v)
	return int16(n), kind == jsonread.IsInt && n >= -100 && n <= 100
}

// when does not ask whether the time is past: a job that is due at once is available at once.
func (d *decoder) when(g given) When {
	if g.value == nil {
		return When{}
	}
	text, _ := jsonread.Text(g.value)
	w, ok := parseWhen(text)
	if !ok {
		d.refuse(ojs.ErrInvalidPayload, g, "an RFC 3339 time with offset such as 2026-05-04T03:02:01Z, or a duration such as +PT5M")
	}
	return w
}

// durations checks everything that lasts. 0 means the server's default for all but result_ttl (docs/reference/retries.md,
// Timeouts).
func (d *decoder) durations(j *Job) {
	timeout := d.pick(timeoutMSAttr, timeoutAttr)
	j.TimeoutMS = d.lasting(timeout, unitOf(timeout.attr == timeoutAttr))
	j.VisibilityMS = d.visibility()
	j.GraceMS = d.lasting(d.pick(graceAttr), 1000)
	j.EnqueueTTLMS = d.lasting(d.pick(enqueueTTLAttr), 1000)
	j.HeartbeatTimeoutMS = d.lasting(d.pick(heartbeatTimeoutAttr), 1000)
	total := d.pick(totalTimeoutAttr)
	j.TotalTimeoutMS = d.lasting(total, 1000)
	// Otherwise the job could never run for as long as its own timeout permits. Only what the job itself says is compared: the
	// server's default timeout may be longer than its total.
	if j.TotalTimeoutMS > 0 && j.TotalTimeoutMS < j.TimeoutMS {
		d.refuse(ojs.ErrInvalidPayload, total, "at least the execution timeout ("+strconv.FormatInt(j.TimeoutMS, 10)+" ms)")
	}
	if g := d.pick(resultTTLAttr); g.value != nil {
		n, kind := jsonread.Int(g.value)
		if kind != jsonread.IsInt || n < -1 || n > maxMS/1000 {
			d.refuse(ojs.ErrInvalidPayload, g, "an integer of seconds >= 0, or -1 to keep the result with the job")
		}
		j.ResultTTL = &n
	}
}

func unitOf(seconds bool) int64 {
	if seconds {
		return 1000
	}
	return 1
}

// lasting reads an integer of unit ms each; 0 if absent. The range is checked before the multiplication, which therefore cannot
// overflow.
func (d *decoder) lasting(g given, unit int64) int64 {
	if g.value == nil {
		return 0
	}
	n, kind := jsonread.Int(g.value)
	if kind == jsonread.IsInt && n >= 0 && n <= maxMS/unit {
		return n * unit
	}
	name := "milliseconds"
	if unit == 1000 {
		name = "seconds"
	}
	d.refuse(ojs.ErrInvalidPayload, g, "an integer >= 0 of "+name+", at most 36500 days")
	return 0
}

// visibility: visibility_timeout_ms is an integer of ms; visibility_timeout one of seconds, or a duration.
// Its range is narrower than that of other durations (docs/reference/retries.md, Reservations).
func (d *decoder) visibility() int64 {
	g := d.pick(visibilityMSAttr, visibilityAttr)
	if g.value == nil {
		return 0
	}
	// Only this name takes a duration; a text under the other falls through to the refusal.
	if text, ok := jsonread.Text(g.value); ok && g.attr == visibilityAttr {
		if length, err := jsonread.ParseDuration(text); err == nil && length.Milliseconds() <= MaxVisibilityMS {
			return length.Milliseconds()
		}
	}
	n, kind := jsonread.Int(g.value)
	if unit := unitOf(g.attr == visibilityAttr); kind == jsonread.IsInt && n >= 0 && n <= MaxVisibilityMS/unit {
		return n * unit
	}
	d.refuse(ojs.ErrInvalidPayload, g, "an integer >= 0 of milliseconds (visibility_timeout: seconds or a duration such as PT30S), at most 7 days")
	return 0
}

// metaSources gives the objects to merge into meta, strongest first: top-level meta, then the order of docs/reference/jobs.md, Accepted
// names. The list is backed by the decoder and is valid until release.
func (d *decoder) metaSources() []jsontext.Value {
	list := d.metas[:0]
	for _, g := range [...]given{
		{d.top.values[metaAttr], metaAttr, false}, {d.opt.values[metadataAttr], metadataAttr, true},
		{d.opt.values[metaAttr], metaAttr, true}, {d.top.values[metadataAttr], metadataAttr, false},
	} {
		switch {
		case g.value == nil:
		case g.value[0] != '{':
			d.refuse(ojs.ErrInvalidMetadata, g, "an object")
		case d.tooDeep(g.value):
			d.refuse(ojs.ErrInvalidMetadata, g, shallow)
			d.problems.Hint(flatten)
		default:
			list = append(list, g.value)
		}
	}
	return list
}

// appendMeta appends the merged meta, compact; nothing if it is empty. A lone source is kept as it is, repetitions of a
// name included. Order is that of the strongest source, then what the weaker ones add (docs/reference/jobs.md, JSON).
func appendMeta(dst []byte, sources []jsontext.Value) []byte {
	switch len(sources) {
	case 0:
		return dst
	// That is the usual case, and one pass over the bytes.
	case 1:
		return dropEmpty(jsonread.AppendCompact(dst, sources[0]), len(dst))
	}
	var merged unknowns
	for _, source := range sources {
		merged.putAll(source)
		// What an earlier source has set is fixed for the later ones.
		merged.lift()
	}
	return dropEmpty(merged.appendObject(dst), len(dst))
}

// dropEmpty lets an empty object be stored as NULL and shown as {}.
func dropEmpty(b []byte, start int) []byte {
	if string(b[start:]) == "{}" {
		return b[:start]
	}
	return b
}

// unknowns are the attributes nobody knows, in order of appearance, top level before options. Of equal names at one
// level the last value counts; a name of the top level beats the same one in options. The zero value is ready. It is used
// wherever members of several objects are merged, because it keeps their order.
type unknowns struct {
	list  []jsonread.Member
	fixed int            // members below it came from the top level
	index map[string]int // made when the list is long: looking through it for each of 100 000 names would be quadratic
}

// indexFrom is from how many unknown members a map is made; most jobs have fewer.
const indexFrom = 16

// put does not replace a name that is fixed: what comes later is weaker. name, literal and value point into the body.
func (u *unknowns) put(name []byte, literal, value jsontext.Value) {
	if i, ok := u.find(name); ok {
		if i >= u.fixed {
			u.list[i].Value = value
		}
		return
	}
	u.list = append(u.list, jsonread.Member{Name: name, Literal: literal, Value: value})
	if u.index != nil {
		u.index[string(name)] = len(u.list) - 1
	} else if len(u.list) == indexFrom {
		u.index = make(map[string]int, 2*indexFrom)
		for i, m := range u.list {
			u.index[string(m.Name)] = i
		}
	}
}

// putAll puts the members of an object; nil stands for {}.
func (u *unknowns) putAll(object jsontext.Value) {
	if len(object) == 0 {
		return
	}
	for literal, value := range jsonread.Members(object) {
		u.put(jsonread.Name(literal), literal, value)
	}
}

// appendObject appends the object of the members.
func (u *unknowns) appendObject(b []byte) []byte {
	b = append(b, '{')
	for _, m := range u.list {
		b = jsonread.AppendMember(b, m.Literal, m.Value)
	}
	return append(b, '}')
}

// lift protects what has been put so far: what follows comes from options.
func (u *unknowns) lift() { u.fixed = len(u.list) }

func (u *unknowns) find(name []byte) (int, bool) {
	if u.index != nil {
		i, ok := u.index[string(name)]
		return i, ok
	}
	for i, m := range u.list {
		if string(m.Name) == string(name) {
			return i, true
		}
	}
	return 0, false
}

// MergeObjects puts the members of change over those of base; null takes one away. Members of base keep their place; new ones
// follow. A null in base goes too.
func MergeObjects(base, change jsontext.Value) []byte {
	var merged unknowns
	merged.putAll(base)
	merged.putAll(change)
	merged.list = slices.DeleteFunc(merged.list, func(m jsonread.Member) bool { return jsonread.IsNull(m.Value) })
	return merged.appendObject(nil)
}

// policies checks what answers 422: the spec version and the retry policy. They come last because they answer another status: a
// body that has a field of the wrong kind as well is a 400, and says nothing of the policy (docs/reference/http.md, Check
// order).
func (d *decoder) policies(j *Job) {
	if g := d.pick(specversionAttr); g.value != nil {
		if text, _ := jsonread.Text(g.value); !ValidVersion(text) {
			d.policy = spec.Version("specversion", text)
			return
		}
	}
	// Both are picked before the policy is parsed, because the queue's policy is only needed if there is something to parse or
	// to inherit.
	g, shortcut := d.pick(retryAttr, retryPolicyAttr), d.pick(maxAttemptsAttr)
	// The policy of the queue is copied into the job: a later change of the queue does not change jobs that wait already.
	var base RetryPolicy
	inherited := false
	if d.lim.QueueRetry != nil {
		base, inherited = d.lim.QueueRetry(j.Queue)
	}
	if !inherited {
		base = DefaultRetry()
	}
	// Most jobs send neither, so nothing is parsed and nothing stored: NULL in the column retry stands for the default policy.
	if g.value == nil && shortcut.value == nil && !inherited {
		j.MaxAttempts = base.MaxAttempts
		return
	}
	const notSent = -1 // no client can send it, so it shows whether retry.max_attempts was there
	limit := base.MaxAttempts
	base.MaxAttempts = notSent
	p, err := ParseRetry(g.value, base)
	if err != nil {
		field, _ := err.Details["field"].(string)
		d.policy = At(g.path()+strings.TrimPrefix(field, "retry"), err)
		return
	}
	// max_attempts outside of the policy counts only if the policy has none (docs/reference/retries.md, Policy).
	if p.MaxAttempts == notSent {
		p.MaxAttempts = limit
		if v := shortcut.value; v != nil {
			n, kind := jsonread.Int(v)
			if kind != jsonread.IsInt || n < 0 {
				d.policy = At(shortcut.path(), spec.Validation("max_attempts", jsonread.Show(v),
					"max_attempts must be an integer >= 0, got "+jsonread.Brief(v)+"."))
				return
			}
			p.MaxAttempts = n
		}
	}
	j.MaxAttempts = p.MaxAttempts
	// max_attempts has a column of its own, so a policy that differs in it alone is not stored either.
	if !p.IsDefault() {
		j.Retry, j.OnExhaustion = p.Encode(), p.OnExhaustion
	}
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
	buf = jsonread.AppendCompact(buf, d.top.values[argsAttr])
	j.Args = cut()
	buf = appendMeta(buf, metaSources)
	j.Meta = cut()
	// The size can only be known after merging the sources and dropping white space, so this is the last stage of all.
	if len(j.Meta) > MaxMetaBytes {
		return nil, spec.TooLarge("meta", MaxMetaBytes, len(j.Meta))
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
		b = appendAttr(b, scheduledAtAttr, g.value)
	}
	if g := d.pick(expiresAtAttr); g.value != nil && !j.ExpiresAt.Relative {
		b = appendAttr(b, expiresAtAttr, g.value)
	}
	// The policies are shown as they were sent, not as they were merged, so that a client finds its own words again. What
	// applies is in columns.
	b = d.appendVerbatim(b, retryAttr, retryPolicyAttr)
	b = d.appendVerbatim(b, uniqueAttr)
	b = d.appendVerbatim(b, uniqueKeyAttr)
	b = d.appendVerbatim(b, rateLimitAttr)
	b = d.appendVerbatim(b, schemaAttr)
	if g := d.pick(tagsAttr); g.value != nil && jsonread.Len(g.value) > 0 {
		b = appendTags(appendName(b, tagsAttr), g.value)
	}
	for _, a := range [...]attr{graceAttr, totalTimeoutAttr, enqueueTTLAttr, heartbeatTimeoutAttr, resultTTLAttr} {
		if g := d.pick(a); g.value != nil {
			n, _ := jsonread.Int(g.value) // checked by durations
			b = appendInt(b, a, n)
		}
	}
	for _, m := range d.unknown.list {
		b = jsonread.AppendMember(b, m.Literal, m.Value)
	}
	return dropEmpty(append(b, '}'), start)
}

// appendVerbatim takes the first attribute of the list for the canonical name; the value is that of the name that won.
func (d *decoder) appendVerbatim(b []byte, attrs ...attr) []byte {
	if g := d.pick(attrs...); g.value != nil {
		return appendAttr(b, attrs[0], g.value)
	}
	return b
}

func appendAttr(b []byte, a attr, v jsontext.Value) []byte {
	return jsonread.AppendCompact(appendName(b, a), v)
}

func appendInt(b []byte, a attr, n int64) []byte {
	return strconv.AppendInt(appendName(b, a), n, 10)
}

// appendName needs a b that ends with the brace or a member of the object that is being written.
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
