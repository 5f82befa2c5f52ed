package workflow

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
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
	// maxEdges allows a million dependencies, which are stored twice, as depends_on and needed_by.
	maxEdges         = 1_000_000 // entries of all depends_on
	maxTemplateBytes = 64 << 20  // of all jobs with the options that they inherit, which would multiply a small body otherwise
)

// Decode is the function Decode with the depth of this server.
func (s *Store) Decode(raw []byte, lim job.Limits) (*Definition, *ojs.Error) {
	return Decode(raw, lim, s.config.Workflows.MaxDepth)
}

// Decode reads a workflow in either form: typed (`type` with steps or jobs), or steps with depends_on. Everything is checked,
// each job by the rules of enqueue, before anything can be stored. It reads raw once and keeps no part of it but copies. It
// needs no database: queues, schemas and unique policies are asked by Create. A maxDepth of 0 or below is the default. On success the
// error is nil and the definition whole; a definition that is returned inside of the package beside refusals is incomplete and must
// not be used.
func Decode(raw []byte, lim job.Limits, maxDepth int) (*Definition, *ojs.Error) {
	if maxDepth <= 0 {
		maxDepth = DefaultDepth
	}
	r := &reader{lim: lim, maxDepth: maxDepth, templateRoom: maxTemplateBytes}
	return r.decode(raw)
}

// decode has a body that is no JSON object refused by jsonread.Check with the errors of every other request.
func (r *reader) decode(raw []byte) (*Definition, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, workflowNames...)
	if err != nil {
		return nil, err
	}
	r.checkMembers(&o, "$")
	var d *Definition
	// The form without a type is that of the SDKs. A body with a type is a typed one even if its steps have depends_on,
	// which is ignored there (docs/reference/workflows.md, Definition).
	if list := o.Get("steps"); o.Get("type") == nil && list != nil && list[0] == '[' {
		d = r.stepsForm(&o)
	} else {
		d = r.typedForm(&o, "$", job.Defaults{}, 1)
	}
	// The details have all mistakes, also when one of them decided the code.
	if r.first != nil {
		return nil, spec.With(r.first, "validation_errors", r.all)
	}
	d.jobs = r.jobs
	text, _ := jsonread.Text(o.Get("id"))
	// The id is read last, so it cannot be the cause of a refusal.
	d.ID, d.ClientID = spec.ParseUUIDv7(strings.TrimPrefix(text, "wf_")) // any other id is ignored
	return d, nil
}

// workflowNames are read.
var workflowNames = []string{
	"type", "steps", "jobs", "tasks", "callbacks", "on_complete", "on_success", "on_failure", "name", "options", "meta", "id",
}

// shownNames are members of answers: clients may send a workflow back as they got it.
var shownNames = []string{
	"state", "metadata", "created_at", "started_at", "completed_at", "cancelled_at", "failed_step_index", "job_id", "job_ids", "job_state",
	"callback", "fired", "index", "queue", "depends_on", "result", "error", "deduplicated", "step_count", "steps_total", "steps_completed",
}

// checkMembers refuses what a workflow does not have.
func (r *reader) checkMembers(o *jsonread.Object, path string) {
	if o.RefuseOthers(shownNames...); o.Err() != nil {
		r.add(path, o.Err())
	}
}

// callbackNames in the order in which callbacks are inserted.
var callbackNames = [...]string{"on_complete", "on_success", "on_failure"}

// reader decodes one definition. It is used once. leaves, edges and templateRoom count over the whole tree, because the
// limits hold for the tree and not for each workflow in it. Reading goes on after a mistake, to report up to
// jsonread.MaxProblems of them, but not after a limit: the rest of a body that is too large is not worth the time.
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

// done reports whether reading on is of no use: a body of nothing but mistakes ends early.
func (r *reader) done() bool { return r.stopped || len(r.all) >= jsonread.MaxProblems }

// typedForm reads a chain, a group or a batch: a root, or a nested workflow. o is the object of the workflow. The
// returned definition is never nil; Type is "" if it could not be read, and then nothing below it is.
func (r *reader) typedForm(o *jsonread.Object, path string, outer job.Defaults, depth int) *Definition {
	d := &Definition{}
	text, _ := jsonread.Text(o.Get("type"))
	switch t := Type(text); {
	case t == Chain || t == Group || t == Batch:
		d.Type = t
	// It is answered 422, because it is a word that clients know, not a mistake of form (docs/reference/workflows.md, Errors).
	case text == "saga" && depth == 1:
		r.add(path, spec.Unsupported("Workflows of type saga are not offered; send chain, group or batch.",
			map[string]any{"field": "type", "feature": "saga"}))
		return d
	default:
		r.refuse(path+".type", "chain, group or batch; a workflow without a type has steps with depends_on", o.Get("type"))
		return d
	}
	// Leaves of a workflow are those that its members have added, nested ones included.
	before := r.leaves
	defaults := r.head(d, o, path, outer)
	r.members(d, o, path, defaults, depth)
	if d.Type == Batch {
		r.callbacks(d, o, path, defaults)
	}
	d.Leaves = r.leaves - before
	return d
}

// head reads name, options and meta of a workflow, and gives what its jobs inherit. outer are the options of the workflows
// around it; its own come before them. After a mistake in options the jobs are read with outer only: each of them would
// report the same mistake again.
func (r *reader) head(d *Definition, o *jsonread.Object, path string, outer job.Defaults) job.Defaults {
	d.Name = string(d.Type)
	if v := o.Get("name"); v != nil {
		text, ok := jsonread.Text(v)
		if !ok || utf8.RuneCountInString(text) > maxNameChars || strings.Contains(text, "\x00") {
			r.refuse(path+".name", "a string of at most 255 characters without U+0000", v)
		}
		if text != "" {
			d.Name = text
		}
	}
	options, meta := o.Get("options"), o.Get("meta")
	if err := r.probe(options, meta); err != nil {
		r.add(path, err)
		return outer // so that the jobs do not repeat the mistake
	}
	if meta != nil {
		d.Meta = jsonread.Compact(meta)
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
		b = jsonread.AppendMember(b, []byte(`"meta"`), meta)
	}
	if options != nil && options[0] == '{' {
		b = append(jsonread.AppendOthers(append(b, `,"options":{`...), options, "unique"), '}')
	} else if options != nil {
		b = jsonread.AppendMember(b, []byte(`"options"`), options)
	}
	_, err := job.DecodeItem(append(b, '}'), r.lim)
	return err
}

// members reads the list of a typed workflow. d.Members grows by one for each element that is read, also for one with a
// mistake: paths of later mistakes count elements.
func (r *reader) members(d *Definition, o *jsonread.Object, path string, defaults job.Defaults, depth int) {
	// Clients use different names for one thing; the order of the names decides if a body has several (docs/reference/workflows.md,
	// Definition).
	names := []string{"jobs", "steps", "tasks"}
	if d.Type == Chain {
		names = []string{"steps", "jobs"}
	}
	name := names[0] // also if none was sent
	for _, n := range slices.Backward(names) {
		if o.Get(n) != nil {
			name = n
		}
	}
	list, path := o.Get(name), path+"."+name
	if list == nil || list[0] != '[' || jsonread.Len(list) == 0 {
		r.refuse(path, "an array of at least one job or workflow", list)
		return
	}
	if !r.fits(jsonread.Len(list), path, list) {
		return
	}
	ids := make(map[string]bool, jsonread.Len(list))
	for item := range jsonread.Elements(list) {
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
			if m.ID, _ = jsonread.Text(s.id); !validStepID(m.ID) {
				r.refuse(at+".id", stepIDExpected, s.id)
			}
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
	v := jsonread.Present(jsonread.Find(first, "priority"))
	if options := jsonread.Present(jsonread.Find(first, "options")); options != nil {
		if own := jsonread.Present(jsonread.Find(options, "priority")); own != nil {
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
	o := jsonread.Open(item, workflowNames...)
	r.checkMembers(&o, path)
	m.Nested = r.typedForm(&o, path, defaults, depth+1)
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

// shapeOf makes one pass over the members, as each look-up by name would be one.
func shapeOf(item jsontext.Value) (s shape) {
	var lists [4]bool
	for literal, value := range jsonread.Members(item) {
		switch string(jsonread.Name(literal)) {
		case "id":
			s.id = jsonread.Present(value)
		case "depends_on":
			s.dependsOn = jsonread.Present(value)
		case "steps":
			lists[0] = !jsonread.IsNull(value)
		case "jobs":
			lists[1] = !jsonread.IsNull(value)
		case "tasks":
			lists[2] = !jsonread.IsNull(value)
		case "callbacks":
			lists[3] = !jsonread.IsNull(value)
		}
	}
	s.nested = lists[0] || lists[1] || lists[2] || lists[3]
	return s
}

const stepIDExpected = "a string of 1 to 128 characters without U+0000"

func validStepID(s string) bool {
	return jsonread.IsName(s) && utf8.RuneCountInString(s) <= maxStepIDChars
}

// callbacks reads those of a batch, from callbacks or from the workflow itself. A member of `callbacks` comes before one of
// the same name at the top level. Both places are in use by clients (docs/reference/workflows.md, Definition).
func (r *reader) callbacks(d *Definition, o *jsonread.Object, path string, defaults job.Defaults) {
	object := o.Get("callbacks")
	if object == nil {
		object = jsontext.Value(`{}`)
	}
	if object[0] != '{' {
		r.refuse(path+".callbacks", "an object with on_complete, on_success or on_failure", object)
		return
	}
	given := jsonread.Open(object, callbackNames[:]...)
	for _, m := range given.Others[:min(len(given.Others), jsonread.MaxProblems)] {
		r.refuse(path+".callbacks."+job.Shorten(string(m.Name), 60), "absent: callbacks are on_complete, on_success and on_failure",
			m.Value)
	}
	for _, name := range callbackNames {
		v, at := given.Get(name), path+".callbacks."+name
		if v == nil {
			v, at = o.Get(name), path+"."+name
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
		r.refuse(path+".callbacks", "an object with at least one of on_complete, on_success and on_failure", o.Get("callbacks"))
	}
}

func indexed(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// refusals collects what is wrong with a definition. The earliest check decides the error, as for one job: fields (400) before
// policies (422) before sizes (413), and of equal ones the first in the body; validation_errors tells of all. all has at
// most jsonread.MaxProblems entries; first counts whether it is among them or not.
type refusals struct {
	first *ojs.Error
	all   []jsonread.Violation
}

// refuse notes that the value at path is not what was expected; nil: it is missing.
func (r *refusals) refuse(path, expected string, v jsontext.Value) {
	var ps jsonread.Problems
	ps.Add(ojs.ErrInvalidPayload, strings.TrimPrefix(path, "$."), path, expected, v)
	ps.Hint("Correct the definition of the workflow; docs/reference/workflows.md shows each form.")
	r.add("$", ps.Err())
}

// add notes a refusal of the object at path. Paths inside of a job begin with $; they are put behind the path of the job.
// Reading goes from the front of the body to its end, so a later refusal replaces the first one only if its check comes
// earlier.
func (r *refusals) add(path string, err *ojs.Error) {
	r.all = append(r.all, job.Violations(path, err)...)
	r.all = r.all[:min(len(r.all), jsonread.MaxProblems)]
	if r.first != nil && stage(r.first) <= stage(err) {
		return
	}
	if place := strings.TrimPrefix(strings.TrimPrefix(path, "$"), "."); place != "" {
		err.Message = place + ": " + err.Message
	}
	r.first = err
}

// stage orders refusals by the check that makes them. A size is checked last, as in the decoder of a job: a client that
// corrects what is wrong should not have to shorten it first.
func stage(e *ojs.Error) int {
	switch ojs.ErrorKind(e.Type) {
	case ojs.ErrValidation, ojs.ErrUnsupported:
		return 1
	case ojs.ErrPayloadTooLarge, ojs.ErrMetadataTooLarge:
		return 2
	}
	return 0
}

// maxCallbackSteps is how many steps can have a name of a callback, with - or _. The number of leaves is known only when it
// is known which steps are callbacks. Until then so many more steps are let through; member counts the leaves exactly.
const maxCallbackSteps = 2 * len(callbackNames)

// sentStep is one element of the list before its part in the workflow is known. callback and member are set by
// findCallbacks and order; before, callback is -1 unless the options name it.
type sentStep struct {
	id        string
	dependsOn []string
	item      jsontext.Value
	shape     shape
	callback  int // index into callbackNames; -1: a member
	// It cannot be taken back, unlike a callback that is only recognized by its id.
	explicit bool // the options name the callback
	member   int  // index into Definition.Members, if it is none
}

// stepsForm reads the steps of a body. It returns nil if nothing of the steps can be read; a refusal is noted then.
func (r *reader) stepsForm(o *jsonread.Object) *Definition {
	array := o.Get("steps")
	n := jsonread.Len(array)
	if n == 0 {
		r.refuse("$.steps", "an array of at least one step", array)
	}
	if n == 0 || !r.fits(n-maxCallbackSteps, "$.steps", array) {
		return nil
	}
	list := make([]sentStep, 0, n)
	for item := range jsonread.Elements(array) {
		if r.done() {
			return nil
		}
		list = append(list, r.step(item, indexed("$.steps", len(list))))
	}
	return r.graph(o, list)
}

// step leaves, after a mistake, the parts empty that could not be read. item is nil for an element that is no object.
func (r *reader) step(item jsontext.Value, path string) sentStep {
	s := sentStep{item: item, callback: -1}
	if item[0] != '{' {
		r.refuse(path, "an object with id, type and args", item)
		s.item = nil
		return s
	}
	s.shape = shapeOf(item)
	s.id, _ = jsonread.Text(s.shape.id)
	if !validStepID(s.id) {
		sent := s.shape.id
		if string(sent) == `""` { // an empty text counts as missing
			sent = nil
		}
		r.refuse(path+".id", stepIDExpected, sent)
	}
	if v := s.shape.dependsOn; v != nil {
		var ok bool
		if s.dependsOn, ok = jsonread.Texts(v); !ok {
			r.refuse(path+".depends_on", "an array of ids of steps", v)
		}
	}
	r.callbackType(&s, path)
	return s
}

// callbackType reads options.callback_type, by which the Python SDK marks callbacks, and takes it out of the options. It
// must be taken out before the job is decoded, whose options know no such name (docs/reference/workflows.md, Steps with
// dependencies).
func (r *reader) callbackType(s *sentStep, path string) {
	options := jsonread.Present(jsonread.Find(s.item, "options"))
	if options == nil || options[0] != '{' {
		return
	}
	v := jsonread.Find(options, "callback_type")
	if v == nil {
		return
	}
	if !jsonread.IsNull(v) {
		text, _ := jsonread.Text(v)
		if s.callback = callbackIndex(text); s.callback < 0 {
			r.refuse(path+".options.callback_type", "on_complete, on_success or on_failure", v)
		}
		s.explicit = s.callback >= 0
	}
	// All other members keep their order and bytes.
	b := []byte{'{'}
	for literal, value := range jsonread.Members(s.item) {
		if string(jsonread.Name(literal)) == "options" && value[0] == '{' {
			value = append(jsonread.AppendOthers([]byte{'{'}, value, "callback_type"), '}')
		}
		b = jsonread.AppendMember(b, literal, value)
	}
	b = append(b, '}')
	s.item = b
}

// callbackIndex is -1 for what is no name of a callback.
func callbackIndex(name string) int { return slices.Index(callbackNames[:], name) }

// graph makes the workflow that the steps describe. Each step of this function needs what the one before has found: ids,
// edges, callbacks, types, jobs. Mistakes in ids or edges end it early, because later checks index by them.
func (r *reader) graph(o *jsonread.Object, list []sentStep) *Definition {
	g := &graph{reader: r, list: list, index: make(map[string]int, len(list))}
	d := &Definition{StepsForm: true}
	if !g.indexSteps() || !g.checkEdges() {
		return d
	}
	// Before order: places and types depend on which steps are callbacks.
	g.findCallbacks()
	g.order(d)
	defaults := r.head(d, o, "$", job.Defaults{})
	for i := range g.list {
		if r.done() {
			return d
		}
		s, path := &g.list[i], indexed("$.steps", i)
		if s.item == nil || s.callback >= 0 {
			continue
		}
		m := &d.Members[s.member]
		r.member(m, s.item, s.shape, path, defaults, 1)
		if s.member == 0 && d.Type == Chain {
			defaults = inheritPriority(defaults, s.item, m)
		}
	}
	// The callbacks in the order in which they fire. They come after the members, because the defaults of a chain include the priority of
	// its first step.
	for c, name := range callbackNames {
		for i := range g.list {
			if s := &g.list[i]; s.callback == c && !g.done() {
				cb := Callback{Name: name, StepID: s.id}
				cb.Job, cb.Template = g.job(s.item, indexed("$.steps", i), defaults)
				d.Callbacks = append(d.Callbacks, cb)
			}
		}
	}
	d.Leaves = r.leaves
	return d
}

// graph finds out what steps with dependencies are. index maps an id to the place in list.
type graph struct {
	*reader
	list  []sentStep
	index map[string]int // by step id
}

// indexSteps returns false if any mistake was noted, of any kind.
func (g *graph) indexSteps() bool {
	for i, s := range g.list {
		if _, taken := g.index[s.id]; taken && s.id != "" {
			g.refuse(indexed("$.steps", i)+".id", "unique among the steps", jsonread.Quote(s.id))
		}
		g.index[s.id] = i
		// The bound is checked before the edges are looked at.
		if g.edges += len(s.dependsOn); g.edges > maxEdges {
			g.stopped = true
			g.refuse("$.steps["+strconv.Itoa(i)+"].depends_on",
				"short enough for at most "+strconv.Itoa(maxEdges)+" dependencies in the whole workflow",
				jsonread.AppendTexts(nil, s.dependsOn[:1]))
		}
		if g.done() {
			return false
		}
	}
	return g.first == nil
}

// checkEdges refuses dependencies on nothing, on the step itself and on a step twice. It takes time in proportion to the
// edges: latest finds a repeated id without a set for each step.
func (g *graph) checkEdges() bool {
	latest := make([]int, len(g.list)) // step that named this one last, from 1 on
	for i, s := range g.list {
		path := indexed("$.steps", i) + ".depends_on"
		for n, id := range s.dependsOn {
			on, known := g.index[id]
			switch {
			case !known:
				g.refuse(indexed(path, n), "the id of a step", jsonread.Quote(id))
			case on == i:
				g.refuse(indexed(path, n), "the id of another step", jsonread.Quote(id))
			case latest[on] == i+1:
				g.refuse(indexed(path, n), "named once", jsonread.Quote(id))
			default:
				latest[on] = i + 1
			}
			if g.done() {
				return false
			}
		}
	}
	return g.first == nil
}

// findCallbacks marks the steps that the Go SDK sends as callbacks: they have the name of one and depend on all members.
// What is a member depends on what is a callback, so candidates are taken back until nothing changes. Taking one back makes
// it a member, on which the other candidates then have to depend, too. There are at most six candidates, so the loop is
// short.
func (g *graph) findCallbacks() {
	var candidates []int
	members := 0
	for i := range g.list {
		s := &g.list[i]
		if s.callback < 0 && !s.shape.nested {
			if s.callback = callbackIndex(strings.ReplaceAll(s.id, "-", "_")); s.callback >= 0 {
				candidates = append(candidates, i)
			}
		}
		if s.callback < 0 {
			members++
		}
	}
	for changed := true; changed; {
		changed = false
		for _, i := range candidates {
			if s := &g.list[i]; s.callback >= 0 && !g.dependsOnAll(s, members) {
				s.callback, changed = -1, true
				members++
			}
		}
	}
	if members == 0 {
		g.refuse("$.steps", "an array with at least one step that is no callback", jsontext.Value(`[]`))
	}
	g.checkCallbacks()
}

// dependsOnAll needs only the count and the check of each, because checkEdges has refused repeated ids.
func (g *graph) dependsOnAll(s *sentStep, members int) bool {
	if members == 0 || len(s.dependsOn) != members {
		return false
	}
	for _, id := range s.dependsOn {
		if g.list[g.index[id]].callback >= 0 {
			return false
		}
	}
	return true
}

// checkCallbacks refuses two callbacks of a name, and steps that wait for a callback.
func (g *graph) checkCallbacks() {
	var taken [len(callbackNames)]bool
	for i, s := range g.list {
		path := indexed("$.steps", i)
		if s.callback >= 0 {
			switch {
			case taken[s.callback]:
				g.refuse(path, "the only step for "+callbackNames[s.callback], s.item)
			case s.shape.nested:
				g.refuse(path, "a job, because it is a callback", s.item)
			}
			taken[s.callback] = true
		}
		for n, id := range s.dependsOn {
			if g.list[g.index[id]].callback >= 0 && !g.done() {
				g.refuse(indexed(path+".depends_on", n), "the id of a step that is no callback", jsonread.Quote(id))
			}
		}
	}
}

// order gives the members their places, their dependencies and the workflow its type. The type is what answers show
// (docs/reference/workflows.md, Steps with dependencies). A chain, group or batch loses its dependencies, which the type
// says already; only a dag stores edges.
func (g *graph) order(d *Definition) {
	for i := range g.list {
		if s := &g.list[i]; s.callback < 0 {
			s.member = len(d.Members)
			d.Members = append(d.Members, Member{ID: s.id})
		}
	}
	edges, callbacks, inOrder := false, false, true
	for i := range g.list {
		s := &g.list[i]
		if s.callback >= 0 {
			callbacks = true
			continue
		}
		m := &d.Members[s.member]
		for _, id := range s.dependsOn {
			m.DependsOn = append(m.DependsOn, g.list[g.index[id]].member)
		}
		edges = edges || len(m.DependsOn) > 0
		if s.member == 0 {
			inOrder = inOrder && len(m.DependsOn) == 0
		} else {
			inOrder = inOrder && len(m.DependsOn) == 1 && m.DependsOn[0] == s.member-1
		}
	}
	switch {
	case callbacks && !edges:
		d.Type = Batch
	case !callbacks && (len(d.Members) == 1 && !edges || edges && inOrder):
		d.Type = Chain
	case !edges:
		d.Type = Group
	default:
		d.Type = DAG
		g.refuseCycle(d)
		return
	}
	for i := range d.Members {
		d.Members[i].DependsOn = nil
	}
}

// refuseCycle takes away steps without open dependencies until none is left; if some are, they wait for each other. It
// takes time in proportion to steps and edges. There is no recursion: a chain of 10 000 steps would be as deep. The message names
// at most 10 steps of the cycle.
func (g *graph) refuseCycle(d *Definition) {
	if g.first != nil { // a dependency on a callback has no place here
		return
	}
	open := make([]int, len(d.Members))
	dependents := make([][]int, len(d.Members))
	var free []int
	for i, m := range d.Members {
		open[i] = len(m.DependsOn)
		for _, on := range m.DependsOn {
			dependents[on] = append(dependents[on], i)
		}
		if open[i] == 0 {
			free = append(free, i)
		}
	}
	for len(free) > 0 {
		i := free[len(free)-1]
		free = free[:len(free)-1]
		for _, dependent := range dependents[i] {
			if open[dependent]--; open[dependent] == 0 {
				free = append(free, dependent)
			}
		}
	}
	i := slices.IndexFunc(open, func(n int) bool { return n > 0 })
	if i < 0 {
		return
	}
	// From a step that never becomes free to those it waits for, until one comes again.
	visited := make(map[int]bool)
	blocking := func(i int) int {
		for _, on := range d.Members[i].DependsOn {
			if open[on] > 0 {
				return on
			}
		}
		return -1 // cannot be: a step is open because of an open one
	}
	for !visited[i] {
		visited[i] = true
		i = blocking(i)
	}
	names := []string{d.Members[i].ID}
	for at := blocking(i); at != i && len(names) < 10; at = blocking(at) {
		names = append(names, d.Members[at].ID)
	}
	at := g.index[d.Members[i].ID]
	g.refuse(indexed("$.steps", at)+".depends_on", "free of cycles (each of these waits for the next, the last for the first: "+strings.Join(names, ", ")+")",
		jsonread.AppendTexts(nil, g.list[at].dependsOn))
}
