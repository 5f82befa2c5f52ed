package workflow

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// Draft is a workflow in the form of steps with dependencies that a transport has read. The gRPC transport makes it; a
// definition that it describes is the same as one in JSON.
type Draft struct {
	Name  string
	Steps []StepDraft
}

// StepDraft is a step of a Draft. DependsOn names ids of steps. A step cannot be a nested workflow in this form.
type StepDraft struct {
	ID        string
	DependsOn []string
	Job       job.Draft
}

// Define checks a draft by the rules of Decode, and with the same messages. The job of each step is written as JSON and
// read by the same decoder, so that the rules and the stored template are the same for both transports.
func Define(t Draft, lim job.Limits, maxDepth int) (*Definition, *ojs.Error) {
	r := newReader(lim, maxDepth)
	f := payload.Named(workflowNames)
	if t.Name != "" {
		f.Set("name", payload.Quote(t.Name))
	}
	var d *Definition
	if len(t.Steps) == 0 {
		r.refuse("$.steps", stepsExpected, jsontext.Value(`[]`))
	} else if r.fits(len(t.Steps)-maxCallbackSteps, "$.steps", jsontext.Value(`[]`)) {
		list := make([]sentStep, len(t.Steps))
		for i, s := range t.Steps {
			list[i] = sentStep{id: s.ID, dependsOn: s.DependsOn, item: s.Job.Encode(), callback: -1}
			r.checkStepID(&list[i], payload.Quote(s.ID), indexed("$.steps", i))
		}
		d = r.graph(&f, list)
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	d.jobs = r.jobs
	return d, nil
}

const stepsExpected = "an array of at least one step"

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
func (r *reader) stepsForm(f *payload.Fields) *Definition {
	array := f.Get("steps")
	n := rawjson.Len(array)
	if n == 0 {
		r.refuse("$.steps", stepsExpected, array)
	}
	if n == 0 || !r.fits(n-maxCallbackSteps, "$.steps", array) {
		return nil
	}
	list := make([]sentStep, 0, n)
	for item := range rawjson.Elements(array) {
		if r.done() {
			return nil
		}
		list = append(list, r.step(item, indexed("$.steps", len(list))))
	}
	return r.graph(f, list)
}

// A mistake leaves the parts empty that could not be read. item is nil for an element that is no object.
func (r *reader) step(item jsontext.Value, path string) sentStep {
	s := sentStep{item: item, callback: -1}
	if item[0] != '{' {
		r.refuse(path, "an object with id, type and args", item)
		s.item = nil
		return s
	}
	s.shape = shapeOf(item)
	s.id, _ = rawjson.Text(s.shape.id)
	r.checkStepID(&s, s.shape.id, path)
	if v := s.shape.dependsOn; v != nil {
		texts, ok := []string(nil), v[0] == '['
		if ok {
			texts, ok = payload.Texts(v)
		}
		if !ok {
			r.refuse(path+".depends_on", "an array of ids of steps", v)
		}
		s.dependsOn = texts
	}
	r.callbackType(&s, path)
	return s
}

// An empty text counts as missing, in the message.
func (r *reader) checkStepID(s *sentStep, sent jsontext.Value, path string) {
	if s.id == "" && string(sent) == `""` {
		sent = nil
	}
	if !validStepID(s.id) {
		r.refuse(path+".id", stepIDExpected, sent)
	}
}

// callbackType reads options.callback_type, by which the Python SDK marks callbacks, and takes it out of the options. It
// must be taken out before the job is decoded, whose options know no such name (docs/reference/workflows.md, Steps with
// dependencies).
func (r *reader) callbackType(s *sentStep, path string) {
	options := payload.Present(payload.Find(s.item, "options"))
	if options == nil || options[0] != '{' {
		return
	}
	v := payload.Find(options, "callback_type")
	if v == nil {
		return
	}
	if !rawjson.IsNull(v) {
		text, _ := rawjson.Text(v)
		if s.callback = callbackIndex(text); s.callback < 0 {
			r.refuse(path+".options.callback_type", "on_complete, on_success or on_failure", v)
		}
		s.explicit = s.callback >= 0
	}
	s.item = withoutCallbackType(s.item)
}

func callbackIndex(name string) int {
	for i, n := range callbackNames {
		if n == name {
			return i
		}
	}
	return -1
}

// All other members keep their order and bytes.
func withoutCallbackType(item jsontext.Value) jsontext.Value {
	b := []byte{'{'}
	for literal, value := range rawjson.Members(item) {
		if string(rawjson.Name(literal)) == "options" && value[0] == '{' {
			options := []byte{'{'}
			for name, v := range rawjson.Members(value) {
				if string(rawjson.Name(name)) != "callback_type" {
					options = payload.AppendMember(options, name, v)
				}
			}
			options = append(options, '}')
			value = options
		}
		b = payload.AppendMember(b, literal, value)
	}
	return append(b, '}')
}

// graph makes the workflow that the steps describe. Each step of this function needs what the one before has found: ids,
// edges, callbacks, types, jobs. Mistakes in ids or edges end it early, because later checks index by them.
func (r *reader) graph(f *payload.Fields, list []sentStep) *Definition {
	g := &graph{reader: r, list: list, index: make(map[string]int, len(list))}
	d := &Definition{StepsForm: true}
	if !g.indexSteps() || !g.checkEdges() {
		return d
	}
	// Before order: places and types depend on which steps are callbacks.
	g.findCallbacks()
	g.order(d)
	defaults := r.head(d, f, "$", job.Defaults{})
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
	g.readCallbacks(d, defaults)
	d.Leaves = r.leaves
	return d
}

// graph finds out what steps with dependencies are. index maps an id to the place in list.
type graph struct {
	*reader
	list  []sentStep
	index map[string]int // by step id
}

// It returns false if any mistake was noted, of any kind.
func (g *graph) indexSteps() bool {
	for i, s := range g.list {
		if _, taken := g.index[s.id]; taken && s.id != "" {
			g.refuse(indexed("$.steps", i)+".id", "unique among the steps", payload.Quote(s.id))
		}
		g.index[s.id] = i
		// The bound is checked before the edges are looked at.
		if g.edges += len(s.dependsOn); g.edges > maxEdges {
			g.stopped = true
			g.refuse("$.steps["+strconv.Itoa(i)+"].depends_on", "short enough for at most "+strconv.Itoa(maxEdges)+" dependencies in the whole workflow", quoteAll(s.dependsOn[:1]))
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
				g.refuse(indexed(path, n), "the id of a step", payload.Quote(id))
			case on == i:
				g.refuse(indexed(path, n), "the id of another step", payload.Quote(id))
			case latest[on] == i+1:
				g.refuse(indexed(path, n), "named once", payload.Quote(id))
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

// The count and the check of each suffice, because checkEdges has refused repeated ids.
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
				g.refuse(indexed(path+".depends_on", n), "the id of a step that is no callback", payload.Quote(id))
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
// takes time in proportion to steps and edges. There is no recursion: a chain of 10 000 steps would be as deep.
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
	for i, n := range open {
		if n > 0 {
			g.refuseCycleAt(d, open, i)
			return
		}
	}
}

// refuseCycleAt walks from a step that never becomes free to those it waits for, until one comes again. The message names
// at most 10 steps of the cycle.
func (g *graph) refuseCycleAt(d *Definition, open []int, i int) {
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
		quoteAll(g.list[at].dependsOn))
}

func quoteAll(texts []string) jsontext.Value {
	b := []byte{'['}
	for i, text := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, payload.Quote(text)...)
	}
	return append(b, ']')
}

// readCallbacks reads the jobs of the callbacks, in the order in which they fire. They come after the members, because the
// defaults of a chain include the priority of its first step.
func (g *graph) readCallbacks(d *Definition, defaults job.Defaults) {
	for c, name := range callbackNames {
		for i := range g.list {
			if s := &g.list[i]; s.callback == c && !g.done() {
				cb := Callback{Name: name, StepID: s.id}
				cb.Job, cb.Template = g.job(s.item, indexed("$.steps", i), defaults)
				d.Callbacks = append(d.Callbacks, cb)
			}
		}
	}
}
