package job

import (
	"errors"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// Cron is a validated cron (contract 20 §11.1). It owns its bytes.
type Cron struct {
	Name        string
	Expression  string // as sent
	Timezone    string
	Overlap     string
	Enabled     bool
	Description *string

	// The template, compact, as sent.
	Type    string
	Args    []byte
	Meta    []byte // nil: {}
	Options []byte // nil: {}

	Queue   string // what the options say
	TraceID string // "" if meta carries none
}

// What happens when a tick finds an unfinished job of its cron.
const (
	OverlapSkip           = "skip"
	OverlapAllow          = "allow"
	OverlapCancelPrevious = "cancel_previous"
	OverlapEnqueue        = "enqueue"
)

var (
	cronNames = []string{
		"name", "expression", "cron", "schedule", "timezone", "type", "args", "meta", "options", "job_template", "queue",
		"overlap_policy", "enabled", "description",
	}
	templateNames = []string{"type", "args", "meta", "options"}
	overlaps      = map[string]string{
		OverlapSkip: OverlapSkip, OverlapAllow: OverlapAllow, OverlapCancelPrevious: OverlapCancelPrevious,
		"cancel": OverlapCancelPrevious, OverlapEnqueue: OverlapEnqueue,
	}
)

const (
	maxCronNameBytes    = 255
	maxDescriptionBytes = 4096
	noLimit             = 1 << 30
)

// DecodeCron reads a whole cron. name is that of the path; "" if the body has it.
func DecodeCron(raw []byte, name string, lim Limits) (*Cron, *ojs.Error) {
	return decodeCron(raw, Cron{Name: name, Timezone: "UTC", Overlap: OverlapSkip, Enabled: true}, false, lim)
}

// PatchCron reads what changes in a cron. The template is merged member by member, its options too; null takes an option
// away.
func PatchCron(raw []byte, current Cron, lim Limits) (*Cron, *ojs.Error) {
	return decodeCron(raw, current, true, lim)
}

// cronReader reads a body on top of what holds without it.
type cronReader struct {
	body
	patch    bool
	template fields
	root     []byte // object of the options that stand at the root of the body (contract 20 §0); nil: none
	c        Cron
}

// cronRootOptions are the names of options that a cron's body may have at its root. Its own members, type to meta among
// them, are read elsewhere.
var cronRootOptions = func() map[string]bool {
	names := map[string]bool{}
	for name, a := range attrsByName {
		if a != serverAttr && !a.onlyTop() && a != metaAttr && a != metadataAttr && a != queueAttr {
			names[name] = true
		}
	}
	return names
}()

func decodeCron(raw []byte, base Cron, patch bool, lim Limits) (*Cron, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return nil, err
	}
	r := cronReader{patch: patch, c: base, template: fields{names: templateNames}}
	r.fields, _ = readFields(v, cronNames)
	for literal, value := range rawjson.Members(v) {
		switch name := string(rawjson.Name(literal)); {
		case name == "description" && rawjson.IsNull(value):
			r.c.Description = nil // the one member that null takes away
		case cronRootOptions[name] && (patch || !rawjson.IsNull(value)):
			if r.root == nil {
				r.root = []byte{'{'}
			}
			r.root = appendMember(r.root, literal, value)
		}
	}
	if r.root != nil {
		r.root = append(r.root, '}')
	}
	r.name()
	r.schedule()
	r.switches()
	r.content()
	if err := r.problems.err(); err != nil {
		return nil, err
	}
	return r.c.checked(lim)
}

func (r *cronReader) name() {
	v := r.get("name")
	text, ok := rawjson.Text(v)
	switch {
	case r.c.Name == "":
		r.c.Name = text
		if !ValidCronName(text) {
			r.refuse("name", "a cron name of lower-case letters, digits, - and ., starting with a letter or digit, at most 255 bytes long")
		}
	case !ValidCronName(r.c.Name):
		r.problems.add(ojs.KindInvalidPayload, "name", "$.name", "a cron name of lower-case letters, digits, - and ., at most 255 bytes long", nil)
	case v != nil && (!ok || text != r.c.Name):
		r.refuse("name", "absent or the name in the path")
	}
}

// ValidCronName reports whether s is ^[a-z0-9][a-z0-9\-.]*$ of at most 255 bytes.
func ValidCronName(s string) bool {
	return s != "" && len(s) <= maxCronNameBytes && s[0] != '-' && s[0] != '.' &&
		allIn(s, func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' })
}

// schedule checks expression and time zone together.
func (r *cronReader) schedule() {
	name := "expression"
	for _, alias := range []string{"expression", "cron", "schedule"} {
		if r.get(alias) != nil {
			name = alias
			break
		}
	}
	expression, zone := r.get(name), r.get("timezone")
	if expression != nil || !r.patch {
		var isText bool
		if r.c.Expression, isText = rawjson.Text(expression); !isText && expression != nil {
			r.problems = append(r.problems, cronProblem(expression, "$."+name, "it is no string"))
			return
		}
	}
	zoned := true
	if zone != nil {
		r.c.Timezone, zoned = rawjson.Text(zone)
		if r.c.Timezone == "" {
			r.c.Timezone = "UTC"
		}
	}
	_, err := cron.Parse(r.c.Expression, r.c.Timezone)
	if !zoned || errors.Is(err, cron.ErrTimezone) {
		r.refuse("timezone", "UTC or an IANA name with a slash, such as Europe/Berlin")
		_, err = cron.Parse(r.c.Expression, "UTC")
	}
	switch {
	case expression == nil && !r.patch:
		r.problems.add(ojs.KindInvalidCron, "expression", "$.expression", "a cron expression such as 0 9 * * 1-5", nil)
	case err != nil:
		r.problems = append(r.problems, cronProblem(expression, "$."+name, err.Error()))
	}
}

// cronProblem says what is wrong with an expression.
func cronProblem(received jsontext.Value, path, why string) problem {
	return problem{
		kind: ojs.KindInvalidCron, field: "expression", path: path, expected: "a cron expression of five or six fields, or a descriptor such as @hourly",
		received: received, message: "The cron expression cannot be used: " + why + ".",
	}
}

// ErrCronNever refuses an expression that is right but never fires.
func ErrCronNever(expression string) *ojs.Error {
	quoted, _ := jsontext.AppendQuote(nil, expression)
	return problems{cronProblem(quoted, "$.expression", "it never fires within 10 years")}.err()
}

func (r *cronReader) switches() {
	if v := r.get("overlap_policy"); v != nil {
		text, _ := rawjson.Text(v)
		if r.c.Overlap = overlaps[text]; r.c.Overlap == "" {
			r.refuse("overlap_policy", "skip, allow, cancel_previous or enqueue")
		}
	}
	if r.get("enabled") != nil {
		r.c.Enabled = r.boolean("enabled")
	}
	if v := r.get("description"); v != nil {
		text, ok := rawjson.Text(v)
		if !ok || len(text) > maxDescriptionBytes || strings.Contains(text, "\x00") {
			r.refuse("description", "a string of at most 4096 bytes without U+0000")
		}
		r.c.Description = &text
	}
}

// content reads the template, at the top level or in job_template.
func (r *cronReader) content() {
	if v := r.get("job_template"); v != nil {
		if v[0] != '{' {
			r.refuse("job_template", "an object")
			return
		}
		r.template, _ = readFields(v, templateNames)
	}
	either := func(name string) jsontext.Value {
		if v := r.get(name); v != nil {
			return v
		}
		return r.template.get(name)
	}
	if v := either("type"); v != nil {
		text, ok := rawjson.Text(v)
		if !ok {
			r.problems.add(ojs.KindInvalidJobType, "type", "$.type", "a job type such as invoice.render", v)
		}
		r.c.Type = text
	}
	if v := either("args"); v != nil {
		if v[0] != '[' {
			r.problems.add(ojs.KindInvalidArgs, "args", "$.args", "an array", v)
		}
		r.c.Args = rawjson.Compact(v)
	}
	if r.c.Args == nil {
		r.c.Args = []byte(`[]`)
	}
	if v := either("meta"); v != nil {
		if v[0] != '{' {
			r.problems.add(ojs.KindInvalidMetadata, "meta", "$.meta", "an object", v)
		}
		r.c.Meta = rawjson.Compact(v)
	}
	r.options(either("options"))
}

// options merges what a patch sends into what there is. A queue beside the options counts if they have none, because
// the cron is shown like that.
func (r *cronReader) options(top jsontext.Value) {
	queue := r.get("queue")
	if r.patch && r.root != nil {
		r.c.Options = mergeObjects(r.c.Options, r.root)
	}
	for _, v := range []jsontext.Value{r.template.get("options"), r.get("options")} {
		switch {
		case v == nil:
		case v[0] != '{':
			r.problems.add(ojs.KindInvalidPayload, "options", "$.options", "an object", v)
			return
		case r.patch:
			r.c.Options = mergeObjects(r.c.Options, v)
		}
		if v != nil && hasMember(v, "queue") {
			queue = nil
		}
	}
	switch {
	case r.patch: // done above
	case r.root != nil:
		r.c.Options = mergeObjects(r.root, top)
	case top != nil:
		r.c.Options = rawjson.Compact(top)
	}
	if queue != nil {
		r.c.Options = mergeObjects(r.c.Options, append(appendMember([]byte{'{'}, []byte(`"queue"`), queue), '}'))
	}
}

func hasMember(object jsontext.Value, name string) bool {
	for literal := range rawjson.Members(object) {
		if string(rawjson.Name(literal)) == name {
			return true
		}
	}
	return false
}

// mergeObjects puts the members of change over those of base; null takes one away.
func mergeObjects(base, change jsontext.Value) []byte {
	var merged unknowns
	for _, object := range []jsontext.Value{base, change} {
		if object == nil {
			continue
		}
		for literal, value := range rawjson.Members(object) {
			merged.put(rawjson.Name(literal), literal, value)
		}
	}
	out := []byte{'{'}
	for _, m := range merged.list {
		if !rawjson.IsNull(m.value) {
			out = appendMember(out, m.literal, m.value)
		}
	}
	return append(out, '}')
}

// checked reads the template as it will be read at each firing.
func (c *Cron) checked(lim Limits) (*Cron, *ojs.Error) {
	job, err := c.Job(time.Unix(0, 0), lim)
	if err != nil {
		return nil, err
	}
	c.Queue, c.TraceID = job.Queue, job.TraceID
	if string(c.Meta) == "{}" {
		c.Meta = nil
	}
	if string(c.Options) == "{}" {
		c.Options = nil
	}
	return c, nil
}

// Job is the job of a firing (contract 20 §11.7). Relative times count from the insert.
func (c *Cron) Job(at time.Time, lim Limits) (*Job, *ojs.Error) {
	doc := append([]byte(`{"args":`), c.Args...)
	if c.Type != "" {
		doc, _ = jsontext.AppendQuote(append(doc, `,"type":`...), c.Type)
	}
	if c.Options != nil {
		doc = append(append(doc, `,"options":`...), c.Options...)
	}
	doc = append(doc, `,"meta":`...)
	doc = append(c.appendMeta(doc, at), '}')
	// The bounds of one envelope hold for what the client sent, not for what is added here.
	lim.MaxEnvelopeBytes = noLimit
	return DecodeJob(doc, lim)
}

func (c *Cron) appendMeta(b []byte, at time.Time) []byte {
	b = append(b, '{')
	if c.Meta != nil {
		for literal, value := range rawjson.Members(c.Meta) {
			if name := string(rawjson.Name(literal)); name != "cron_name" && name != "cron_triggered_at" {
				b = appendMember(b, literal, value)
			}
		}
	}
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b, _ = jsontext.AppendQuote(append(b, `"cron_name":`...), c.Name)
	return append(append(append(b, `,"cron_triggered_at":"`...), ojs.FormatTime(at)...), `"}`...)
}
