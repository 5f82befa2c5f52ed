package workflow

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Limits of a definition (docs/reference/workflows.md, Limits).
const (
	// DefaultDepth and MaxLeaves bound the answer that shows the whole tree, and the transaction that creates it.
	DefaultDepth = 5      // levels of workflows, the root included
	MaxLeaves    = 10_000 // jobs of the whole tree, callbacks not counted

	maxNameChars   = 255
	maxStepIDChars = 128
	// A million dependencies are stored twice, as depends_on and needed_by.
	maxEdges         = 1_000_000 // entries of all depends_on
	maxTemplateBytes = 64 << 20  // of all jobs with the options that they inherit, which would multiply a small body otherwise
)

// Decode is the function Decode with the depth of this server.
func (s *Store) Decode(raw []byte, lim job.Limits) (*Definition, *ojs.Error) {
	return Decode(raw, lim, s.config.MaxDepth)
}

// Define is the function Define with the depth of this server.
func (s *Store) Define(t Draft, lim job.Limits) (*Definition, *ojs.Error) {
	return Define(t, lim, s.config.MaxDepth)
}

// Decode reads a workflow in either form: typed (`type` with steps or jobs), or steps with depends_on. Everything is checked,
// each job by the rules of enqueue, before anything can be stored. It reads raw once and keeps no part of it but copies. It
// needs no database: queues, schemas and unique policies are asked by Create. On success the error is nil and the
// definition whole; a definition that is returned inside of the package beside refusals is incomplete and must not be used.
func Decode(raw []byte, lim job.Limits, maxDepth int) (*Definition, *ojs.Error) {
	return newReader(lim, maxDepth).decode(raw)
}

// A body that is no JSON object is refused by rawjson.Check with the errors of every other request.
func (r *reader) decode(raw []byte) (*Definition, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return nil, err
	}
	f, _ := payload.Read(v, workflowNames)
	var d *Definition
	// The form without a type is that of the SDKs. A body with a type is a typed one even if its steps have depends_on,
	// which is ignored there (docs/reference/workflows.md, Definition).
	if list := f.Get("steps"); f.Get("type") == nil && list != nil && list[0] == '[' {
		d = r.stepsForm(&f)
	} else {
		d = r.typedForm(&f, "$", job.Defaults{}, 1)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	d.jobs = r.jobs
	text, _ := rawjson.Text(f.Get("id"))
	// The id is read last, so it cannot be the cause of a refusal.
	d.ID, d.ClientID = spec.ParseUUIDv7(strings.TrimPrefix(text, "wf_")) // any other id is ignored
	return d, nil
}

// Other members are ignored, so that clients may send a workflow back as they got it.
var workflowNames = []string{
	"type", "steps", "jobs", "tasks", "callbacks", "on_complete", "on_success", "on_failure", "name", "options", "meta", "id",
}

// callbackNames in the order in which callbacks are inserted.
var callbackNames = [...]string{"on_complete", "on_success", "on_failure"}

// reader decodes one definition. It is used once. leaves, edges and templateRoom count over the whole tree, because the
// limits hold for the tree and not for each workflow in it. Reading goes on after a mistake, to report up to
// payload.MaxProblems of them, but not after a limit: the rest of a body that is too large is not worth the time.
type reader struct {
	refusals
	lim          job.Limits
	maxDepth     int
	leaves       int
	edges        int
	templateRoom int // bytes that the merged jobs may still have
	jobs         []placedJob
	stopped      bool // a limit was exceeded: the rest is not looked at
}

// A depth of 0 or below is the default.
func newReader(lim job.Limits, maxDepth int) *reader {
	if maxDepth <= 0 {
		maxDepth = DefaultDepth
	}
	return &reader{lim: lim, maxDepth: maxDepth, templateRoom: maxTemplateBytes}
}

// done reports whether reading on is of no use.
func (r *reader) done() bool { return r.stopped || r.full() }

// typedForm reads a chain, a group or a batch: a root, or a nested workflow. f has the members of the workflow by name. The
// returned definition is never nil; Type is "" if it could not be read, and then nothing below it is.
func (r *reader) typedForm(f *payload.Fields, path string, outer job.Defaults, depth int) *Definition {
	d := &Definition{Type: r.workflowType(f.Get("type"), path, depth)}
	if d.Type == "" {
		return d
	}
	// Leaves of a workflow are those that its members have added, nested ones included.
	before := r.leaves
	defaults := r.head(d, f, path, outer)
	r.members(d, f, path, defaults, depth)
	if d.Type == Batch {
		r.callbacks(d, f, path, defaults)
	}
	d.Leaves = r.leaves - before
	return d
}

// dag is no type that can be sent. saga is answered 422, because it is a word that clients know, not a mistake of form
// (docs/reference/workflows.md, Errors).
func (r *reader) workflowType(v jsontext.Value, path string, depth int) Type {
	text, _ := rawjson.Text(v)
	switch t := Type(text); {
	case t == Chain || t == Group || t == Batch:
		return t
	case text == "saga" && depth == 1:
		r.add(path, spec.Unsupported("Workflows of type saga are not offered; send chain, group or batch.", map[string]any{"field": "type", "feature": "saga"}))
	default:
		r.refuse(path+".type", "chain, group or batch; a workflow without a type has steps with depends_on", v)
	}
	return ""
}

// head reads name, options and meta of a workflow, and gives what its jobs inherit. outer are the options of the workflows
// around it; its own come before them. After a mistake in options the jobs are read with outer only: each of them would
// report the same mistake again.
func (r *reader) head(d *Definition, f *payload.Fields, path string, outer job.Defaults) job.Defaults {
	d.Name = string(d.Type)
	if v := f.Get("name"); v != nil {
		text, ok := rawjson.Text(v)
		if !ok || utf8.RuneCountInString(text) > maxNameChars || strings.Contains(text, "\x00") {
			r.refuse(path+".name", "a string of at most 255 characters without U+0000", v)
		}
		if text != "" {
			d.Name = text
		}
	}
	options, meta := f.Get("options"), f.Get("meta")
	if err := r.probe(options, meta); err != nil {
		r.add(path, err)
		return outer // so that the jobs do not repeat the mistake
	}
	if meta != nil {
		d.Meta = rawjson.Compact(meta)
	}
	if path == "$" { // what is nested belongs to the tenant of the root
		var err *ojs.Error
		if d.Meta, d.Tenant, err = r.lim.WithTenant(d.Meta); err != nil {
			r.add(path, err)
			return outer
		}
		meta = d.Meta
	}
	// Each job is merged with all defaults, so many options on a workflow of 10 000 jobs would cost their product.
	own := job.NewDefaults(options, meta)
	if own.Len() > job.MaxDefaults {
		r.refuse(path+".options", "an object of at most "+strconv.Itoa(job.MaxDefaults)+" members", options)
		return outer
	}
	return own.Under(outer)
}

// probe checks options and meta as those of a job. A unique policy is left to the jobs, because it may name their args. A
// job with a minimal body carries them through the decoder of jobs, so that one set of rules holds for both.
func (r *reader) probe(options, meta jsontext.Value) *ojs.Error {
	if options == nil && meta == nil {
		return nil
	}
	b := []byte(`{"type":"x","args":[]`)
	if meta != nil {
		b = payload.AppendMember(b, []byte(`"meta"`), meta)
	}
	if options != nil && options[0] == '{' {
		b = append(b, `,"options":{`...)
		for literal, value := range rawjson.Members(options) {
			if string(rawjson.Name(literal)) != "unique" {
				b = payload.AppendMember(b, literal, value)
			}
		}
		b = append(b, '}')
	} else if options != nil {
		b = payload.AppendMember(b, []byte(`"options"`), options)
	}
	_, err := job.DecodeItem(append(b, '}'), r.lim)
	return err
}

// members reads the list of a typed workflow. d.Members grows by one for each element that is read, also for one with a
// mistake: paths of later mistakes count elements.
func (r *reader) members(d *Definition, f *payload.Fields, path string, defaults job.Defaults, depth int) {
	list, path := memberList(d.Type, f, path)
	// path is that of the name that was sent, or of the preferred one if none was.
	if list == nil || list[0] != '[' || rawjson.Len(list) == 0 {
		r.refuse(path, "an array of at least one job or workflow", list)
		return
	}
	if !r.fits(rawjson.Len(list), path, list) {
		return
	}
	ids := make(map[string]bool, rawjson.Len(list))
	for item := range rawjson.Elements(list) {
		if r.done() {
			return
		}
		i := len(d.Members)
		at := indexed(path, i)
		// The index as an id keeps results of members without ids apart in parent_results_map.
		m := Member{ID: strconv.Itoa(i)}
		if item[0] != '{' {
			r.refuse(at, "a job or a workflow", item)
			d.Members = append(d.Members, m)
			continue
		}
		s := shapeOf(item)
		if s.id != nil {
			m.ID = r.stepID(s.id, at)
		}
		if ids[m.ID] {
			r.refuse(at+".id", "unique among its siblings; without an id a step has its index as one", s.id)
		}
		ids[m.ID] = true
		r.member(&m, item, s, at, defaults, depth)
		if i == 0 && d.Type == Chain {
			defaults = inheritPriority(defaults, item, &m)
		}
		d.Members = append(d.Members, m)
	}
}

// memberList finds the list under the name that counts for the type, and its path. Clients use different names for one
// thing; the order of the names decides if a body has several (docs/reference/workflows.md, Definition).
func memberList(t Type, f *payload.Fields, path string) (jsontext.Value, string) {
	names := []string{"jobs", "steps", "tasks"}
	if t == Chain {
		names = []string{"steps", "jobs"}
	}
	for _, name := range names {
		if v := f.Get(name); v != nil {
			return v, path + "." + name
		}
	}
	return nil, path + "." + names[0]
}

// fits reports whether n more leaves are allowed. It is called with the length of a list before the list is read: ten
// million empty objects are refused by their number, not one by one.
func (r *reader) fits(n int, path string, v jsontext.Value) bool {
	if r.leaves+n <= MaxLeaves {
		return true
	}
	r.refuse(path, "short enough for at most "+strconv.Itoa(MaxLeaves)+" jobs in the whole workflow", v)
	r.stopped = true
	return false
}

// inheritPriority lets the steps of a chain have the priority of the first one, unless the workflow gives one. A later step
// would otherwise fall behind jobs that were enqueued after the first step.
func inheritPriority(defaults job.Defaults, first jsontext.Value, m *Member) job.Defaults {
	if m.Job == nil || defaults.Has("priority") {
		return defaults
	}
	v := payload.Present(payload.Find(first, "priority"))
	if options := payload.Present(payload.Find(first, "options")); options != nil {
		if own := payload.Present(payload.Find(options, "priority")); own != nil {
			v = own
		}
	}
	if v == nil {
		return defaults
	}
	return defaults.With("priority", bytes.Clone(v))
}

// member reads a job or a nested workflow. The depth is checked before the nested workflow is read, so the recursion is
// bounded by the setting and not by the body.
func (r *reader) member(m *Member, item jsontext.Value, s shape, path string, defaults job.Defaults, depth int) {
	if !s.nested {
		if r.fits(1, path, item) {
			r.leaves++
			m.Job, m.Template = r.job(item, path, defaults)
		}
		return
	}
	if depth >= r.maxDepth {
		r.refuse(path, "a job: workflows are nested at most "+strconv.Itoa(r.maxDepth)+" levels deep", item)
		return
	}
	f, _ := payload.Read(item, workflowNames)
	m.Nested = r.typedForm(&f, path, defaults, depth+1)
}

// job reads a leaf or a callback. The template has the defaults merged in, because the workflow's options are not there
// when the step begins. isStepName takes out what belongs to the step: an id would become the id of the job.
func (r *reader) job(item jsontext.Value, path string, defaults job.Defaults) (*job.Job, []byte) {
	template := defaults.Apply(item, isStepName)
	// A workflow with options of 60 KiB and 10 000 jobs would otherwise become 600 MB from a body of less than a MB.
	if r.templateRoom -= len(template); r.templateRoom < 0 {
		r.stopped = true
		r.add("$", spec.TooLarge("workflow", maxTemplateBytes, 0))
		return nil, nil
	}
	j, err := job.DecodeItem(template, r.lim)
	if err != nil {
		r.add(path, err)
	} else {
		r.jobs = append(r.jobs, placedJob{j, path})
	}
	return j, template
}

// isStepName tells of members that describe the step, not its job.
func isStepName(name string) bool {
	switch name {
	case "id", "depends_on", "steps", "jobs", "tasks", "callbacks":
		return true
	}
	return false
}

// shape is what decides how an element of a list is read. Its values point into the body.
type shape struct {
	id, dependsOn jsontext.Value
	nested        bool // it has a list of its own
}

// One pass over the members, as each look-up by name would be one.
func shapeOf(item jsontext.Value) (s shape) {
	var lists [4]bool
	for literal, value := range rawjson.Members(item) {
		switch string(rawjson.Name(literal)) {
		case "id":
			s.id = payload.Present(value)
		case "depends_on":
			s.dependsOn = payload.Present(value)
		case "steps":
			lists[0] = !rawjson.IsNull(value)
		case "jobs":
			lists[1] = !rawjson.IsNull(value)
		case "tasks":
			lists[2] = !rawjson.IsNull(value)
		case "callbacks":
			lists[3] = !rawjson.IsNull(value)
		}
	}
	s.nested = lists[0] || lists[1] || lists[2] || lists[3]
	return s
}

func (r *reader) stepID(v jsontext.Value, path string) string {
	text, ok := rawjson.Text(v)
	if !ok || !validStepID(text) {
		r.refuse(path+".id", stepIDExpected, v)
	}
	return text
}

const stepIDExpected = "a string of 1 to 128 characters without U+0000"

func validStepID(s string) bool {
	return payload.IsName(s) && utf8.RuneCountInString(s) <= maxStepIDChars
}

// callbacks reads those of a batch, from callbacks or from the workflow itself. A member of `callbacks` comes before one of
// the same name at the top level. Both places are in use by clients (docs/reference/workflows.md, Definition).
func (r *reader) callbacks(d *Definition, f *payload.Fields, path string, defaults job.Defaults) {
	var given payload.Fields
	if v := f.Get("callbacks"); v != nil && v[0] != '{' {
		r.refuse(path+".callbacks", "an object with on_complete, on_success or on_failure", v)
		return
	} else if v != nil {
		var unknown []payload.Member
		given, unknown = payload.Read(v, callbackNames[:])
		for _, m := range unknown[:min(len(unknown), payload.MaxProblems)] {
			r.refuse(path+".callbacks."+job.Shorten(string(m.Name), 60), "absent: callbacks are on_complete, on_success and on_failure", m.Value)
		}
	} else {
		given = payload.Named(callbackNames[:])
	}
	for _, name := range callbackNames {
		v, at := given.Get(name), path+".callbacks."+name
		if v == nil {
			v, at = f.Get(name), path+"."+name
		}
		if v == nil || r.done() {
			continue
		}
		c := Callback{Name: name}
		if v[0] != '{' || shapeOf(v).nested {
			r.refuse(at, "a job, which is no workflow", v)
		} else {
			c.Job, c.Template = r.job(v, at, defaults)
		}
		d.Callbacks = append(d.Callbacks, c)
	}
	if len(d.Callbacks) == 0 && !r.done() {
		r.refuse(path+".callbacks", "an object with at least one of on_complete, on_success and on_failure", f.Get("callbacks"))
	}
}

func indexed(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
