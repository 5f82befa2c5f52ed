package fakeserver

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ojsd/ojsd/ojs"
)

// maxNesting is the default of servers for workflows in workflows.
const maxNesting = 5

var (
	callbackNames = []string{"on_complete", "on_success", "on_failure"}
	workflowNames = append([]string{"type", "steps", "jobs", "tasks", "callbacks", "name", "options", "meta", "id"}, callbackNames...)
	workflowShown = []string{
		"state", "metadata", "created_at", "started_at", "completed_at", "cancelled_at", "failed_step_index", "job_id", "job_ids",
		"job_state", "callback", "fired", "index", "queue", "depends_on", "result", "error", "deduplicated", "step_count",
		"steps_total", "steps_completed",
	}
)

// definition is a workflow that a client has sent, checked, or one nested in another.
type definition struct {
	id, kind, name string
	meta           json.RawMessage
	members        []memberDef
	callbacks      map[string]json.RawMessage // jobs
}

// memberDef is a job or a nested workflow.
type memberDef struct {
	id     string
	deps   []string
	job    json.RawMessage // with the options of the workflows around it
	nested *definition
}

// workflowReader reads one definition. It keeps the first mistake.
type workflowReader struct {
	problems

	now time.Time
}

func readWorkflow(body json.RawMessage, now time.Time) (*definition, *ojs.Error) {
	w := &workflowReader{now: now}
	r, ok := w.open(body)
	if !ok {
		return nil, w.first
	}
	r.others(ojs.ErrInvalidRequest, slices.Concat(workflowNames, workflowShown)...)
	d := &definition{}
	if r.pick("type").value == nil && r.pick("steps").value != nil {
		w.steps(r, d)
	} else {
		w.typed(r, d, nil, 1)
	}
	if text, _ := textOf(r.pick("id").value); idPattern.MatchString(strings.TrimPrefix(text, "wf_")) {
		d.id = strings.TrimPrefix(text, "wf_")
	}
	return d, w.first
}

// refuse refuses the value at a path below that of r.
func (w *workflowReader) refuse(r reader, m member, expected string) {
	r.kind = ojs.ErrInvalidPayload
	r.refuse(m, expected)
}

// typed reads a chain, a group or a batch. outer are the options of the workflows around it.
func (w *workflowReader) typed(r reader, d *definition, outer map[string]json.RawMessage, level int) {
	kind := r.pick("type")
	text, _ := textOf(kind.value)
	switch {
	case text == "saga" && level == 1:
		w.add(newError(ojs.ErrUnsupported, object{"field": "type"}, "Workflows of type saga are not offered; send chain, group or batch."))
		return
	case !among("chain", "group", "batch")(text):
		w.refuse(r, kind, "chain, group or batch; a workflow without a type has steps with depends_on")
		return
	}
	d.kind = text
	options := w.head(r, d, outer, level == 1)
	list := r.pick("jobs", "steps", "tasks")
	if text == "chain" {
		list = r.pick("steps", "jobs")
	}
	var items []json.RawMessage
	if list.value == nil || json.Unmarshal(list.value, &items) != nil || len(items) == 0 {
		w.refuse(r, list, "an array of at least one job or workflow")
		return
	}
	ids := map[string]bool{}
	for i, item := range items {
		at := member{fmt.Sprintf("%s[%d]", list.name, i), item}
		members, isObject := objectOf(item)
		if !isObject {
			w.refuse(r, at, "a job or a workflow")
			continue
		}
		m := memberDef{id: strconv.Itoa(i)}
		if id := members["id"]; id != nil {
			m.id = w.stepID(r, member{at.name + ".id", id})
		}
		if ids[m.id] {
			w.refuse(r, member{at.name + ".id", members["id"]}, "unique among its siblings")
		}
		ids[m.id] = true
		w.member(r, &m, at, options, level)
		if i == 0 && text == "chain" {
			options = inheritPriority(options, item)
		}
		d.members = append(d.members, m)
	}
	if text == "batch" {
		w.callbacks(r, d, options)
	}
}

// inheritPriority lets the steps of a chain have the priority of the first one, unless the workflow gives one.
func inheritPriority(options map[string]json.RawMessage, first json.RawMessage) map[string]json.RawMessage {
	members, _ := objectOf(first)
	own, _ := objectOf(members["options"])
	priority := own["priority"]
	if priority == nil {
		priority = members["priority"]
	}
	if priority == nil || options["priority"] != nil {
		return options
	}
	options = maps.Clone(options)
	options["priority"] = priority
	return options
}

func (w *workflowReader) stepID(r reader, m member) string {
	text, ok := textOf(m.value)
	if !ok || !isName(text) || utf8.RuneCountInString(text) > 128 {
		w.refuse(r, m, "a string of 1 to 128 characters without U+0000")
	}
	return text
}

// head reads name, options and meta, and gives the options of the jobs.
func (w *workflowReader) head(r reader, d *definition, outer map[string]json.RawMessage, root bool) map[string]json.RawMessage {
	if d.name = r.text(r.pick("name"), "a string of at most 255 characters", validText(255)); d.name == "" {
		d.name = d.kind
	}
	options, meta := r.pick("options"), r.pick("meta")
	if root {
		d.meta = meta.value
	}
	probe := object{"type": "x", "args": []any{}}
	own, isObject := objectOf(options.value)
	if isObject {
		probe["options"] = without(own, "unique") // it may name args
	} else if options.value != nil {
		probe["options"] = options.value
	}
	if meta.value != nil {
		probe["meta"] = meta.value
	}
	if text, err := json.Marshal(probe); err == nil {
		if _, refused := readJob(text, w.now); refused != nil {
			w.add(refused)
		}
	}
	all := maps.Clone(outer)
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	maps.Copy(all, own)
	return all
}

func without(members map[string]json.RawMessage, names ...string) map[string]json.RawMessage {
	members = maps.Clone(members)
	for _, name := range names {
		delete(members, name)
	}
	return members
}

// member reads a job or a nested workflow.
func (w *workflowReader) member(r reader, m *memberDef, at member, options map[string]json.RawMessage, level int) {
	members, _ := objectOf(at.value)
	if !isNested(members) {
		m.job = w.job(members, options)
		return
	}
	if level >= maxNesting {
		w.refuse(r, at, fmt.Sprintf("a job: workflows are nested at most %d levels deep", maxNesting))
		return
	}
	m.nested = &definition{}
	in := reader{problems: &w.problems, objects: []map[string]json.RawMessage{members}, prefix: r.prefix + at.name + ".", kind: r.kind}
	in.others(ojs.ErrInvalidRequest, slices.Concat(workflowNames, workflowShown)...)
	w.typed(in, m.nested, options, level+1)
}

func isNested(members map[string]json.RawMessage) bool {
	return members["steps"] != nil || members["jobs"] != nil || members["tasks"] != nil || members["callbacks"] != nil
}

// job is a job with the options of its workflow: one that it has itself, under any of its names, counts.
func (w *workflowReader) job(members, options map[string]json.RawMessage) json.RawMessage {
	members = without(members, "id", "depends_on", "steps", "jobs", "tasks", "callbacks")
	own, isObject := objectOf(members["options"])
	if isObject || members["options"] == nil {
		all := map[string]json.RawMessage{}
		for name, value := range options {
			if !slices.ContainsFunc(sameSetting(name), func(other string) bool { return own[other] != nil || members[other] != nil }) {
				all[name] = value
			}
		}
		maps.Copy(all, own)
		if text, err := json.Marshal(all); err == nil {
			members["options"] = text
		}
	}
	text, err := json.Marshal(members)
	if err == nil {
		_, refused := readJob(text, w.now)
		if refused != nil {
			w.add(refused)
		}
	}
	return text
}

// sameSetting has the names of a setting (docs/reference/jobs.md, Accepted names).
func sameSetting(name string) []string {
	for _, names := range [][]string{
		{"meta", "metadata"}, {"scheduled_at", "delay_until"}, {"timeout_ms", "timeout"},
		{"visibility_timeout_ms", "visibility_timeout"}, {"retry", "retry_policy"},
	} {
		if slices.Contains(names, name) {
			return names
		}
	}
	return []string{name}
}

func (w *workflowReader) callbacks(r reader, d *definition, options map[string]json.RawMessage) {
	m := r.pick("callbacks")
	given, isObject := objectOf(m.value)
	if m.value != nil && !isObject {
		w.refuse(r, m, "an object with on_complete, on_success or on_failure")
		return
	}
	for name, value := range given {
		if !slices.Contains(callbackNames, name) {
			w.refuse(r, member{"callbacks." + name, value}, "absent: callbacks are on_complete, on_success and on_failure")
		}
	}
	d.callbacks = map[string]json.RawMessage{}
	for _, name := range callbackNames {
		at := member{"callbacks." + name, given[name]}
		if at.value == nil {
			at = r.pick(name)
		}
		if at.value == nil {
			continue
		}
		if members, isJob := objectOf(at.value); isJob && !isNested(members) {
			d.callbacks[name] = w.job(members, options)
		} else {
			w.refuse(r, at, "a job, which is no workflow")
		}
	}
	if len(d.callbacks) == 0 {
		w.refuse(r, m, "an object with at least one of on_complete, on_success and on_failure")
	}
}

// sentStep is a step of a workflow without a type.
type sentStep struct {
	memberDef

	item     json.RawMessage
	callback string
	explicit bool
}

// steps reads steps with dependencies (docs/reference/workflows.md, Steps with dependencies).
func (w *workflowReader) steps(r reader, d *definition) {
	var items []json.RawMessage
	if m := r.pick("steps"); json.Unmarshal(m.value, &items) != nil || len(items) == 0 {
		w.refuse(r, m, "an array of at least one step")
		return
	}
	list, index := make([]sentStep, len(items)), map[string]int{}
	for i, item := range items {
		at := fmt.Sprintf("steps[%d]", i)
		members, isObject := objectOf(item)
		if !isObject {
			w.refuse(r, member{at, item}, "an object with id, type and args")
			continue
		}
		s := &list[i]
		s.id = w.stepID(r, member{at + ".id", members["id"]})
		if deps := members["depends_on"]; deps != nil && json.Unmarshal(deps, &s.deps) != nil {
			w.refuse(r, member{at + ".depends_on", deps}, "an array of ids of steps")
		}
		options, _ := objectOf(members["options"])
		if mark := options["callback_type"]; mark != nil {
			if s.callback, _ = textOf(mark); !slices.Contains(callbackNames, s.callback) {
				w.refuse(r, member{at + ".options.callback_type", mark}, "on_complete, on_success or on_failure")
			}
			s.explicit = true
			if text, err := json.Marshal(without(options, "callback_type")); err == nil {
				members["options"] = text
			}
		}
		s.item, _ = json.Marshal(members) // it was decoded
		if _, taken := index[s.id]; taken {
			w.refuse(r, member{at + ".id", members["id"]}, "unique among the steps")
		}
		index[s.id] = i
	}
	if w.first == nil {
		w.edges(r, list, index)
	}
	if w.first == nil {
		w.graph(r, d, list, index)
	}
}

func (w *workflowReader) edges(r reader, list []sentStep, index map[string]int) {
	for i, s := range list {
		for n, id := range s.deps {
			at := member{fmt.Sprintf("steps[%d].depends_on[%d]", i, n), quoted(id)}
			on, known := index[id]
			switch {
			case !known:
				w.refuse(r, at, "the id of a step")
			case on == i:
				w.refuse(r, at, "the id of another step")
			case slices.Contains(s.deps[:n], id):
				w.refuse(r, at, "named once")
			}
		}
	}
}

// findCallbacks marks steps with the name of a callback that depend on all steps that are none.
func findCallbacks(list []sentStep) (members int) {
	for i := range list {
		s := &list[i]
		found, _ := objectOf(s.item)
		if name := strings.ReplaceAll(s.id, "-", "_"); s.callback == "" && slices.Contains(callbackNames, name) && !isNested(found) {
			s.callback = name
		}
	}
	for changed := true; changed; {
		changed, members = false, 0
		for _, s := range list {
			if s.callback == "" {
				members++
			}
		}
		for i := range list {
			s := &list[i]
			onCallback := slices.ContainsFunc(list, func(o sentStep) bool { return o.callback != "" && slices.Contains(s.deps, o.id) })
			if s.callback != "" && !s.explicit && (members == 0 || len(s.deps) != members || onCallback) {
				s.callback, changed = "", true
				break
			}
		}
	}
	return members
}

func (w *workflowReader) graph(r reader, d *definition, list []sentStep, index map[string]int) {
	if findCallbacks(list) == 0 {
		w.refuse(r, member{name: "steps"}, "an array with at least one step that is no callback")
		return
	}
	edges, inOrder, previous := false, true, ""
	for i, s := range list {
		for n, id := range s.deps {
			if list[index[id]].callback != "" {
				w.refuse(r, member{fmt.Sprintf("steps[%d].depends_on[%d]", i, n), quoted(id)}, "the id of a step that is no callback")
			}
		}
		if s.callback != "" {
			if d.callbacks[s.callback] != nil {
				w.refuse(r, member{fmt.Sprintf("steps[%d]", i), s.item}, "the only step for "+s.callback)
			}
			if d.callbacks == nil {
				d.callbacks = map[string]json.RawMessage{}
			}
			d.callbacks[s.callback] = s.item
			continue
		}
		edges = edges || len(s.deps) > 0
		inOrder = inOrder && (previous == "" && len(s.deps) == 0 || len(s.deps) == 1 && s.deps[0] == previous)
		previous = s.id
	}
	members := len(list) - len(d.callbacks)
	switch {
	case len(d.callbacks) > 0 && !edges:
		d.kind = "batch"
	case len(d.callbacks) == 0 && (members == 1 && !edges || edges && inOrder):
		d.kind = "chain"
	case !edges:
		d.kind = "group"
	default:
		d.kind = "dag"
	}
	w.cycle(r, list, index)
	options := w.head(r, d, nil, true)
	for i, s := range list {
		if s.callback == "" {
			w.member(r, &s.memberDef, member{fmt.Sprintf("steps[%d]", i), s.item}, options, 1)
			d.members = append(d.members, s.memberDef)
		}
	}
	for name, item := range d.callbacks {
		found, _ := objectOf(item)
		d.callbacks[name] = w.job(found, options)
	}
}

// cycle refuses steps that wait for each other: those that are left when all whose dependencies are gone were taken away.
func (w *workflowReader) cycle(r reader, list []sentStep, index map[string]int) {
	gone := map[string]bool{}
	for changed := true; changed; {
		changed = false
		for _, s := range list {
			if !gone[s.id] && !slices.ContainsFunc(s.deps, func(id string) bool { return !gone[id] }) {
				gone[s.id], changed = true, true
			}
		}
	}
	i := slices.IndexFunc(list, func(s sentStep) bool { return s.callback == "" && !gone[s.id] })
	if i < 0 || w.first != nil {
		return
	}
	for visited := map[int]bool{}; !visited[i]; { // from a step that waits for the cycle into it
		visited[i] = true
		next := slices.IndexFunc(list[i].deps, func(id string) bool { return !gone[id] })
		i = index[list[i].deps[next]]
	}
	w.refuse(r, member{fmt.Sprintf("steps[%d].depends_on", i), quoted(strings.Join(list[i].deps, ", "))}, "free of cycles")
}
