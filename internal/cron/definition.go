package cron

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Definition is a validated cron (docs/reference/scheduling.md, Cron fields). It owns its bytes. The template stays text
// and is decoded at each tick, so that relative times count from the tick. Queue and TraceID repeat what is in it, for
// lists and events. caller is set by the limits of the call and is not stored.
type Definition struct {
	Name        string
	Expression  string // as sent
	Timezone    string // UTC or an IANA name
	Overlap     string // one of the constants below
	Enabled     bool
	Description *string // nil: none

	// The template, compact, as sent.
	Type    string
	Args    []byte
	Meta    []byte // nil: {}
	Options []byte // nil: {}

	Queue   string // what the options say
	Tenant  string // to which its jobs belong; "": none
	caller  string // the tenant whose crons alone it may replace; "": those of all
	TraceID string // "" if meta carries none
}

// What happens when a tick finds an unfinished job of its cron.
const (
	// OverlapSkip and the others have their meaning from docs/reference/scheduling.md, Overlap. They are stored, so they must not change.
	OverlapSkip           = "skip"
	OverlapAllow          = "allow"
	OverlapCancelPrevious = "cancel_previous"
	OverlapEnqueue        = "enqueue"
)

// overlaps has cancel as an alias (docs/reference/scheduling.md, Cron fields); the stored word is that of the constant.
var overlaps = map[string]string{
	OverlapSkip: OverlapSkip, OverlapAllow: OverlapAllow, OverlapCancelPrevious: OverlapCancelPrevious,
	"cancel": OverlapCancelPrevious, OverlapEnqueue: OverlapEnqueue,
}

const (
	// maxCronNameBytes bounds names, which are parts of paths and of keys of locks.
	maxCronNameBytes    = 255
	maxDescriptionBytes = 4096
)

// Decode reads a whole cron. name is that of the path; "" if the body has it. It reads no database. The job of the template
// is checked by the rules of enqueue, against schemas only when it is stored.
func Decode(raw []byte, name string, lim job.Limits) (*Definition, *ojs.Error) {
	return decode(raw, Definition{Name: name, Timezone: "UTC", Overlap: OverlapSkip, Enabled: true}, false, lim)
}

// Patch reads what changes in a cron. The template is merged member by member, its options too; null takes an option
// away. The caller holds the lock of the cron from the read of current to the write. A template that another release has
// accepted is checked as a whole again, so a patch may be refused for what it does not touch.
func Patch(raw []byte, current Definition, lim job.Limits) (*Definition, *ojs.Error) {
	return decode(raw, current, true, lim)
}

// reader reads a body on top of what holds without it. c starts with what holds without the body: the defaults, or the
// current cron.
type reader struct {
	jsonread.Object
	patch bool
	root  []byte // object of the options that stand at the root of the body (docs/reference/jobs.md, Accepted names); nil: none
	c     Definition
}

// decode reads a body on top of base: the current cron of a patch, else the defaults. The options of a job may stand at the
// root, too. All mistakes of the members are reported at once, those of the template only if there are none.
func decode(raw []byte, base Definition, patch bool, lim job.Limits) (*Definition, *ojs.Error) {
	v, err := jsonread.Check(raw)
	if err != nil {
		return nil, err
	}
	r := reader{patch: patch, c: base, Object: jsonread.Open(v, "name", "expression", "cron", "schedule", "timezone", "type", "args",
		"meta", "options",
		"job_template", "queue", "overlap_policy", "enabled", "description")}
	for literal, value := range jsonread.Members(v) {
		if name := string(jsonread.Name(literal)); job.IsOption(name) && (patch || !jsonread.IsNull(value)) {
			if r.root == nil {
				r.root = []byte{'{'}
			}
			r.root = jsonread.AppendMember(r.root, literal, value)
		}
	}
	if r.root != nil {
		r.root = append(r.root, '}')
	}
	r.Others = slices.DeleteFunc(r.Others, func(m jsonread.Member) bool { return job.IsOption(string(m.Name)) })
	r.RefuseOthers("id", "status", "last_run_at", "next_run_at", "run_count", "created_at", "updated_at")
	// All parts add their problems; none of them ends the reading.
	sent := r.Get("name")
	name, isText := jsonread.Text(sent)
	switch {
	case r.c.Name == "":
		r.c.Name = name
		if !ValidName(name) {
			r.Refuse("name", "a cron name of lower-case letters, digits, - and ., starting with a letter or digit, at most 255 bytes long")
		}
	// A name in the path that is not valid cannot be one of a cron.
	case !ValidName(r.c.Name):
		r.RefuseValue(ojs.ErrInvalidPayload, "name", "a cron name of lower-case letters, digits, - and ., at most 255 bytes long", nil)
	// It may repeat that of the path, as clients send back what they have read.
	case sent != nil && (!isText || name != r.c.Name):
		r.Refuse("name", "absent or the name in the path")
	}
	r.schedule()
	// Absent members keep what base has.
	if r.Get("overlap_policy") != nil {
		r.c.Overlap = jsonread.OptionalText(&r.Object, "overlap_policy", "skip, allow, cancel_previous or enqueue",
			func(text string) (string, bool) {
				return overlaps[text], overlaps[text] != ""
			})
	}
	if r.Get("enabled") != nil {
		r.c.Enabled = r.Boolean("enabled")
	}
	// The one member that null takes away.
	if _, sent := r.Sent("description"); sent {
		r.c.Description = jsonread.OptionalText(&r.Object, "description", "a string of at most 4096 bytes without U+0000",
			func(text string) (*string, bool) {
				return &text, len(text) <= maxDescriptionBytes && !strings.Contains(text, "\x00")
			})
	}
	r.content()
	if err := r.Err(); err != nil {
		return nil, err
	}
	// The template is read as it will be at each firing. The time is any: only the form matters.
	c := &r.c
	j, err := c.Job(time.Unix(0, 0), lim)
	if err != nil {
		return nil, err
	}
	c.Queue, c.TraceID, c.Tenant = j.Queue, j.TraceID, job.TenantOf(j.Lane)
	c.caller = lim.Tenant
	if lim.Tenant != "" { // a call of another one must not take it out of the template again
		// The template then carries the tenant, so each of its jobs belongs to it.
		if c.Meta, _, err = lim.WithTenant(c.Meta); err != nil {
			return nil, err
		}
	}
	if string(c.Meta) == "{}" {
		c.Meta = nil
	}
	if string(c.Options) == "{}" {
		c.Options = nil
	}
	return c, nil
}

// ValidName reports whether s is ^[a-z0-9][a-z0-9\-.]*$ of at most 255 bytes.
func ValidName(s string) bool {
	return s != "" && len(s) <= maxCronNameBytes && s[0] != '-' && s[0] != '.' &&
		jsonread.AllIn(s, func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' })
}

// schedule checks expression and time zone together. The zone is judged first: with a bad one, the expression is checked in
// UTC, so that both mistakes are reported.
func (r *reader) schedule() {
	name := "expression"
	for _, alias := range []string{"expression", "cron", "schedule"} {
		if r.Get(alias) != nil {
			name = alias
			break
		}
	}
	expression, zone := r.Get(name), r.Get("timezone")
	if expression != nil || !r.patch {
		var isText bool
		if r.c.Expression, isText = jsonread.Text(expression); !isText && expression != nil {
			r.Problems().Note(cronProblem(expression, "$."+name, "it is no string"))
			return
		}
	}
	// A time zone that is no text counts as an unknown one.
	zoned := true
	if zone != nil {
		r.c.Timezone, zoned = jsonread.Text(zone)
		if r.c.Timezone == "" {
			r.c.Timezone = "UTC"
		}
	}
	_, err := Parse(r.c.Expression, r.c.Timezone)
	if !zoned || errors.Is(err, ErrTimezone) {
		r.Refuse("timezone", "UTC or an IANA name with a slash, such as Europe/Berlin")
		_, err = Parse(r.c.Expression, "UTC")
	}
	switch {
	case expression == nil && !r.patch:
		r.RefuseValue(ojs.ErrInvalidCron, "expression", "a cron expression such as 0 9 * * 1-5", nil)
	case err != nil:
		r.Problems().Note(cronProblem(expression, "$."+name, err.Error()))
	}
}

// cronProblem says what is wrong with an expression. why is a part of a sentence, as the errors of Parse are.
func cronProblem(received jsontext.Value, path, why string) jsonread.Problem {
	return jsonread.Problem{
		Kind: ojs.ErrInvalidCron, Field: "expression", Path: path,
		Expected: "a cron expression of five or six fields, or a descriptor such as @hourly", Received: received,
		Message: "The cron expression cannot be used: " + why + ".",
	}
}

// ErrNever refuses an expression that is right but never fires. It is found only when the next time is searched, at the
// registration.
func ErrNever(expression string) *ojs.Error {
	var ps jsonread.Problems
	ps.Note(cronProblem(jsonread.Quote(expression), "$.expression", "it never fires within 10 years"))
	ps.Hint("Send an expression with dates that exist, such as 0 0 28 2 * for the last days of February.")
	return ps.Err()
}

// content reads the template, at the top level or in job_template. A member at the top level wins over the same one in
// job_template.
func (r *reader) content() {
	template, ok := r.OpenMember("job_template", "an object", "type", "args", "meta", "options")
	if !ok && r.Get("job_template") != nil {
		return
	}
	template.RefuseOthers()
	either := func(name string) jsontext.Value {
		if v := r.Get(name); v != nil {
			return v
		}
		return template.Get(name)
	}
	if v := either("type"); v != nil {
		text, ok := jsonread.Text(v)
		if !ok {
			r.RefuseValue(ojs.ErrInvalidJobType, "type", "a job type such as invoice.render", v)
		}
		r.c.Type = text
	}
	if v := either("args"); v != nil { // whether it is an array is checked with the job
		r.c.Args = jsonread.Compact(v)
	}
	if r.c.Args == nil {
		r.c.Args = []byte(`[]`)
	}
	if v := either("meta"); v != nil {
		if v[0] != '{' {
			r.RefuseValue(ojs.ErrInvalidMetadata, "meta", "an object", v)
		}
		r.c.Meta = jsonread.Compact(v)
	}
	// What a patch sends is merged into the options that there are; without a patch, options replace those that were stored. A queue
	// beside the options counts if they have none, because the cron is shown like that.
	queue := r.Get("queue")
	if r.patch && r.root != nil {
		r.c.Options = job.MergeObjects(r.c.Options, r.root)
	}
	var strongest jsontext.Value
	for _, v := range []jsontext.Value{template.Get("options"), r.Get("options")} {
		if v == nil {
			continue
		}
		if v[0] != '{' {
			r.RefuseValue(ojs.ErrInvalidPayload, "options", "an object", v)
			return
		}
		if r.patch {
			r.c.Options = job.MergeObjects(r.c.Options, v)
		}
		if jsonread.Find(v, "queue") != nil {
			queue = nil
		}
		strongest = v
	}
	switch {
	case r.patch: // done above
	case r.root != nil:
		r.c.Options = job.MergeObjects(r.root, strongest)
	case strongest != nil:
		r.c.Options = jsonread.Compact(strongest)
	}
	if queue != nil {
		r.c.Options = job.MergeObjects(r.c.Options, append(jsonread.AppendMember([]byte{'{'}, []byte(`"queue"`), queue), '}'))
	}
}

// Job is the job of a firing (docs/reference/scheduling.md, Firing). Relative times count from the insert. at is the
// scheduled time, not that of the insert. It is made anew at each firing and may be changed by the caller.
func (c *Definition) Job(at time.Time, lim job.Limits) (*job.Job, *ojs.Error) {
	meta := []byte{'{'}
	// What the template says about the two members of the server is replaced. Members keep their order, and these two stand at the end.
	if c.Meta != nil {
		for literal, value := range jsonread.Members(c.Meta) {
			if name := string(jsonread.Name(literal)); name != "cron_name" && name != "cron_triggered_at" {
				meta = jsonread.AppendMember(meta, literal, value)
			}
		}
	}
	if len(meta) > 1 {
		meta = append(meta, ',')
	}
	meta, _ = jsontext.AppendQuote(append(meta, `"cron_name":`...), c.Name)
	meta = append(append(append(meta, `,"cron_triggered_at":"`...), spec.FormatTime(at)...), `"}`...)
	return job.Template{Type: c.Type, Args: c.Args, Meta: meta, Options: c.Options}.Job(lim)
}

// Template is the job as it was registered, without what each firing adds. Schemas are checked against it when the cron is
// stored; only args matter for them.
func (c *Definition) Template(lim job.Limits) (*job.Job, *ojs.Error) {
	meta := c.Meta
	if meta == nil {
		meta = []byte(`{}`)
	}
	return job.Template{Type: c.Type, Args: c.Args, Meta: meta, Options: c.Options}.Job(lim)
}
