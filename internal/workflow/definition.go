package workflow

import (
	"time"

	"github.com/ojsd/ojsd/internal/job"
)

// Type is the kind of a workflow. It is stored as text and never changes. Clients send the first three; a dag has no type
// of its own in a request.
type Type string

// The types of workflows.
const (
	Chain Type = "chain" // one member after the other
	Group Type = "group" // all members at once
	Batch Type = "batch" // as Group, with callbacks
	DAG   Type = "dag"   // each member when those that it depends on are completed
)

// Definition is a validated workflow as a client has sent it, with its nested workflows. Decode and Define make it, and
// Create reads it. Create writes one thing in it: the jobs get what they inherit from their queues (queue.Store.Admit). All
// else is built anew in each try of the transaction, so that a try that failed leaves no counts behind.
//
// ClientID is set with ID if the client chose the id; the server then has to expect that the id is taken. Options that were
// sent for all jobs are not in it: they are merged into the templates already. DependsOn of the members is empty in every
// type but a dag, where the order of the rows cannot tell the dependencies.
type Definition struct {
	ID        [16]byte // zero: the store makes one
	ClientID  bool
	Type      Type
	Name      string     // default: the type word
	Meta      []byte     // valid compact JSON object; nil: {}
	Tenant    string     // of a root; "": none
	Members   []Member   // in the order of the definition
	Callbacks []Callback // on_complete, on_success, on_failure, in this order
	StepsForm bool       // the callbacks were sent as steps, and are shown after the members
	Leaves    int        // jobs of the whole tree, callbacks not counted

	jobs []placedJob // of a root: all jobs of the tree, callbacks included
}

// placedJob is a job with its JSONPath in the definition. The path goes into the refusal of a job that violates a schema,
// which is known only in the transaction of the creation.
type placedJob struct {
	*job.Job
	path string
}

// Member is a job or a nested workflow. Exactly one of Nested and Job is set in a definition without mistakes.
//
// The template is stored with the step and decoded again when the step begins, perhaps on another node and days later.
// The decoded job is not stored: relative times count from the moment of its insert (docs/reference/workflows.md,
// Definition).
type Member struct {
	ID        string      // step id
	Nested    *Definition // nil: a job
	Job       *job.Job    // decoded and validated; nil: nested
	Template  []byte      // the merged enqueue object from which Job was decoded
	DependsOn []int       // indexes of members; dag only, in a chain the order rules
}

// Callback is a job that is inserted when all members have ended. It is neither counted as a member nor as a leaf, and it
// has the index behind the last member.
type Callback struct {
	Name     string // on_complete, on_success or on_failure
	StepID   string // as submitted among the steps; "": not submitted as a step
	Job      *job.Job
	Template []byte
}

// Workflow is a stored workflow as answers show it, with its nested ones. Get fills all of it. List leaves Steps and
// Callbacks empty, because its page would read every step of every tree.
//
// State is that of the row, in one snapshot with the steps. The counts may lag behind the steps: a step shows what its
// job tells before the tree has followed, and the counts change with the tree. StartedAt of a root is the first fetch of a
// job of the tree, StartedAt of a nested workflow the earliest start among its steps; nil means that no job has started.
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

// Step is a member or a callback of a stored workflow. Type is that of the job or of the nested workflow.
//
// State is one of docs/reference/workflows.md, States; active is not stored but derived from the job. JobID is nil before
// the job exists, and stays when retention has deleted the job. Attempt and StartedAt are those of the run that ended the
// job or, while it runs, of the run at hand. Result may be the placeholder of a result that was left out (see omitted).
// Deduplicated says that JobID is a job that existed before and does not belong to the workflow.
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
