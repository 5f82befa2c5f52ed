package workflow

import (
	"time"

	"github.com/ojsd/ojsd/internal/job"
)

// Type is the kind of a workflow.
type Type string

// The types of workflows.
const (
	Chain Type = "chain" // one member after the other
	Group Type = "group" // all members at once
	Batch Type = "batch" // as Group, with callbacks
	DAG   Type = "dag"   // each member when those that it depends on are completed
)

// Definition is a validated workflow as a client has sent it, with its nested workflows.
type Definition struct {
	ID        [16]byte // zero: the store makes one
	ClientID  bool
	Type      Type
	Name      string     // default: the type word
	Meta      []byte     // valid compact JSON object; nil: {}
	Tenant    string     // of a root; "": none
	Options   []byte     // default options of all leaves and callbacks, as sent; nil: none
	Members   []Member   // in the order of the definition
	Callbacks []Callback // on_complete, on_success, on_failure, in this order
	StepsForm bool       // the callbacks were sent as steps, and are shown after the members
	Leaves    int        // jobs of the whole tree, callbacks not counted

	jobs []placedJob // of a root: all jobs of the tree, callbacks included
}

// placedJob is a job with its JSONPath in the definition.
type placedJob struct {
	*job.Job
	path string
}

// Member is a job or a nested workflow.
type Member struct {
	ID        string      // step id
	Nested    *Definition // nil: a job
	Job       *job.Job    // decoded and validated; nil: nested
	Template  []byte      // the merged enqueue object from which Job was decoded
	DependsOn []int       // indexes of members; dag only, in a chain the order rules
}

// Callback is a job that is inserted when all members have ended.
type Callback struct {
	Name     string // on_complete, on_success or on_failure
	StepID   string // as submitted among the steps; "": not submitted as a step
	Job      *job.Job
	Template []byte
}

// Workflow is a stored workflow as answers show it, with its nested ones.
type Workflow struct {
	ID, RootID [16]byte
	ParentID   *[16]byte
	Type       Type
	Name       string
	State      string
	Meta       []byte
	StepsForm  bool

	Total, Completed, Failed              int // direct members
	JobCount, CompletedCount, FailedCount int // leaves of the tree
	CreatedAt                             time.Time
	StartedAt, EndedAt                    *time.Time
	Steps                                 []Step
	Callbacks                             []Step // with Step.Callback
}

// Step is a member or a callback of a stored workflow.
type Step struct {
	Index                  int
	ID, Type, State        string
	JobState               string // "": no job yet
	Callback               string
	Queue                  string
	DependsOn              []string
	JobID                  *[16]byte
	StartedAt, CompletedAt *time.Time
	Result, Error          []byte // JSON
	Attempt                int
	Deduplicated           bool
	Progress               float64   // of an active job, 0 to 1
	Workflow               *Workflow // nested
}
