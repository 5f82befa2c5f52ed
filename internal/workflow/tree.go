package workflow

import (
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
)

// node is a workflow of a definition with its place in the tree. The embedded flow is the row to be inserted, and the pass
// of the creation goes on with the same value.
type node struct {
	*flow
	def      *Definition
	children map[int]*node // by the index of their step
}

// treeOf numbers the workflows of a definition, depth first, and makes their ids. It changes nothing in the definition, so
// it can be called for each try. Numbers are given before the children, and LastFlow after them: what is below a workflow
// is the range between the two, which WorkflowEndBelow and the list of a tree rely on.
func treeOf(def *Definition) []*node {
	var nodes []*node
	var add func(def *Definition, above *node, index int) *node
	add = func(def *Definition, above *node, index int) *node {
		n := newNode(def, int32(len(nodes)), above, index)
		nodes = append(nodes, n)
		for i, m := range def.Members {
			if m.Nested != nil {
				n.children[i] = add(m.Nested, n, i)
			}
		}
		n.LastFlow = int32(len(nodes) - 1)
		return n
	}
	add(def, nil, 0)
	for _, n := range nodes {
		n.RootID = nodes[0].ID
	}
	return nodes
}

// Open begins at Total, because members that wait count as open. Nested workflows begin as running even if their step
// waits; only their step tells.
func newNode(def *Definition, number int32, above *node, index int) *node {
	n := &node{def: def, children: map[int]*node{}, flow: &flow{Workflow: dbsqlc.Workflow{
		ID: def.ID, Flow: number, Ancestors: []int32{}, Type: string(def.Type), Name: def.Name, State: running, Meta: def.Meta, Tenant: def.Tenant, StepsForm: def.StepsForm,
		Total: int32(len(def.Members)), Open: int32(len(def.Members)), JobCount: int32(def.Leaves), Callbacks: []string{},
	}}}
	if n.ID == [16]byte{} {
		n.ID = job.NewID()
	}
	if n.Name == "" {
		n.Name = string(def.Type)
	}
	if trace := job.TraceID(def.Meta); trace != "" {
		n.TraceID = pgtype.Text{String: trace, Valid: true}
	}
	for _, c := range def.Callbacks {
		n.Callbacks = append(n.Callbacks, c.Name)
	}
	if above != nil {
		n.Ancestors = append(append(n.Ancestors, above.Ancestors...), above.Flow)
		n.ParentIndex = pgtype.Int4{Int32: int32(index), Valid: true}
		// Events and errors name steps by it: ids joined by dots, the nearest last.
		n.Path = above.Path + above.def.Members[index].ID + "."
	}
	return n
}

// first calls begin for the steps that begin when the tree does, in the order of the definition; child is nil for a job. A
// nested workflow comes directly before its own first steps. An error of begin ends the walk.
func (n *node) first(begin func(n *node, index int, child *node) error) error {
	for i, m := range n.def.Members {
		if n.def.Type == Chain && i > 0 {
			break
		}
		if len(m.DependsOn) > 0 {
			continue
		}
		child := n.children[i]
		if err := begin(n, i, child); err != nil {
			return err
		}
		if child == nil {
			continue
		}
		if err := child.first(begin); err != nil {
			return err
		}
	}
	return nil
}

// -1 stands for no parent, as in WorkflowInsert. The texts of arrays need no quotes: names of callbacks are fixed words.
func workflowRows(nodes []*node) dbsqlc.WorkflowInsertParams {
	var a dbsqlc.WorkflowInsertParams
	for _, n := range nodes {
		parent := int32(-1)
		if n.ParentIndex.Valid {
			parent = n.ParentIndex.Int32
		}
		a.Ids, a.Flows, a.LastFlows, a.Ancestors = append(a.Ids, n.ID), append(a.Flows, n.Flow), append(a.LastFlows, n.LastFlow), append(a.Ancestors, integers(n.Ancestors))
		a.ParentIndexes, a.Paths, a.Types, a.Names = append(a.ParentIndexes, parent), append(a.Paths, n.Path), append(a.Types, n.Type), append(a.Names, n.Name)
		a.Meta, a.TraceIds, a.StepsForms = append(a.Meta, n.Meta), append(a.TraceIds, n.TraceID.String), append(a.StepsForms, n.StepsForm)
		a.Totals, a.JobCounts, a.Callbacks = append(a.Totals, n.Total), append(a.JobCounts, n.JobCount), append(a.Callbacks, "{"+strings.Join(n.Callbacks, ",")+"}")
	}
	return a
}

// integers is an array of integers as PostgreSQL reads it. Arrays of arrays of different lengths cannot be sent as one
// parameter, so each is sent as a text.
func integers(list []int32) string {
	b := []byte{'{'}
	for i, n := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(append(b, '}'))
}

// stepRow is a step as it is stored first. needed_by is the reverse of depends_on. It is stored, because the end of a step
// must find those that wait for it without reading all steps.
type stepRow struct {
	dependsOn, neededBy []int32
	step
	queue    string
	child    int32
	template []byte // nil: the job was inserted
}

// steps are the rows of the members and callbacks of a workflow. begun are the steps that have begun. Callbacks get the
// indexes behind the members. A step that stands for an existing job is stored as pending without a job first, and ended by
// settleFirst.
func (n *node) steps(begun map[place]*item) []stepRow {
	neededBy := make(map[int][]int32)
	for i, m := range n.def.Members {
		for _, d := range m.DependsOn {
			neededBy[d] = append(neededBy[d], int32(i))
		}
	}
	rows := make([]stepRow, 0, len(n.def.Members)+len(n.def.Callbacks))
	for i, m := range n.def.Members {
		r := stepRow{step: step{flow: n.Flow, index: int32(i), id: m.ID, kind: kindJob, state: waiting}, template: m.Template, neededBy: neededBy[i]}
		for _, d := range m.DependsOn {
			r.dependsOn = append(r.dependsOn, int32(d))
		}
		if m.Nested != nil {
			r.kind, r.jobType, r.child = kindWorkflow, string(m.Nested.Type), n.children[i].Flow
		} else {
			r.jobType, r.queue = m.Job.Type, m.Job.Queue
		}
		if it := begun[place{r.flow, r.index}]; it != nil {
			r.state, r.template = pending, nil
			if it.job != nil && it.duplicateOf == nil {
				r.job = it.job.ID
			}
		}
		rows = append(rows, r)
	}
	for i, c := range n.def.Callbacks {
		id := c.StepID
		if id == "" {
			id = c.Name
		}
		rows = append(rows, stepRow{
			step:  step{flow: n.Flow, index: n.Total + int32(i), id: id, kind: kindCallback, callback: c.Name, jobType: c.Job.Type, state: waiting},
			queue: c.Job.Queue, template: c.Template,
		})
	}
	return rows
}

// Zero ids and a child of 0 stand for NULL, as in WorkflowStepInsert: a nested workflow never has the number 0.
func stepRows(rows []stepRow) dbsqlc.WorkflowStepInsertParams {
	var a dbsqlc.WorkflowStepInsertParams
	for i := range rows {
		r := &rows[i]
		a.Flows, a.Indexes, a.StepIds, a.Kinds = append(a.Flows, r.flow), append(a.Indexes, r.index), append(a.StepIds, r.id), append(a.Kinds, r.kind)
		a.Callbacks, a.Types, a.Queues, a.States = append(a.Callbacks, r.callback), append(a.Types, r.jobType), append(a.Queues, r.queue), append(a.States, r.state)
		a.JobIds, a.ChildFlows, a.Templates = append(a.JobIds, r.job), append(a.ChildFlows, r.child), append(a.Templates, r.template)
		a.DependsOn, a.NeededBy = append(a.DependsOn, integers(r.dependsOn)), append(a.NeededBy, integers(r.neededBy))
	}
	return a
}
