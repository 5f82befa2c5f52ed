// Package workflow owns workflows: their definitions, their steps, and what follows from the end of a job that belongs to
// one. It inserts and cancels jobs through package queue, and must never change a job by a statement of its own. A root and
// all workflows nested in it are changed under the lock of the root's row only.
//
// The way of a change: a statement of package queue ends a job and writes a row into ojs.workflow_pending in the same
// transaction. After that commit the node calls Advance, which takes the row and changes the tree in a second transaction.
// A node that stops between the two leaves the row; the Follower of any node finds it. So the tree may lag behind its jobs,
// but no change is lost, and none is applied twice, because the row is deleted in the transaction that applies it.
//
// Reads take no lock. They show the job of a step beside the stored state of the step where the tree has not followed yet.
package workflow

import (
	"log/slog"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/schema"
)

// The states of workflows, and those of steps as they are stored. Answers show a step that is pending as active while its job is.
const (
	// running and the others are states: a workflow has running, completed, failed and cancelled; a step has all but running.
	running   = "running"
	waiting   = "waiting" // the step has no job yet
	pending   = "pending" // the job of the step, or its nested workflow, has not ended
	active    = "active"
	completed = "completed"
	failed    = "failed"
	cancelled = "cancelled"
)

// The kinds of steps. The first two are members and count; callbacks have the indexes behind the members, and counts of their own.
const (
	kindJob      = "job"
	kindWorkflow = "workflow"
	kindCallback = "callback"
)

const (
	// portion bounds the rows of a statement, and portionBytes, together with one more row, what it sends or reads. A
	// larger portion holds the lock of the root longer, during which every ack of the tree waits; a smaller one costs more
	// round trips for a group of 10 000.
	portion      = 1000
	portionBytes = job.MaxBytes

	// maxResults bounds the sum of the results that a job gets of other jobs, and of those in an answer. Beyond it results are left
	// out, the largest first (docs/reference/workflows.md, Results). A job stores the results that it gets, so without the
	// bound each step of a long chain would store all results before it again.
	maxResults = 4 << 20

	// changeTimeout bounds the transactions that change a tree, each of up to some dozen statements. It is above the 15 s
	// that the server allows a statement (package pg), so a single slow statement ends by its own limit. Callers of Cancel
	// and Create do not end the transaction by hanging up.
	changeTimeout = time.Minute

	// maxAdvancing bounds the trees that a node changes at the same time: each takes a connection of the pool, of which they have half at
	// most. Fewer would let a large tree delay the others; more would take connections from claims and acks.
	maxAdvancing = 4
)

// Deps are the parts of a node that the store uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Jobs    *queue.Store
	Logger  *slog.Logger
	Tracer  *tracing.Tracer
	Schemas *schema.Store

	// Limits apply to the jobs of workflows, which are decoded again when their step begins.
	Limits job.Limits
}

// Store creates, changes and reads workflows. Use New. It keeps no state of a workflow: what it has in memory is who waits
// for which root, and it may be lost with the node.
//
// mu guards turns and the next turn in each of its values, and is never held during a statement. turns has an entry for
// each root that a goroutine of this node serves. slots has an element for each transaction of Advance that runs, at most
// maxAdvancing. left has room for one signal: a second one before the Follower looks would have it look at the same rows.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	jobs    *queue.Store
	logger  *slog.Logger
	tracer  *tracing.Tracer
	schemas *schema.Store
	config  config.Config
	limits  job.Limits

	mu    sync.Mutex
	turns map[[16]byte]*turns
	slots chan struct{}

	left chan struct{} // signalled when changes may be left over: see Follower

	maxLooked int64 // pg.MaxLooked; only tests change it
}

// New returns a store on the database. Nodes with different settings may serve one database: a definition is checked by the settings of the
// node that takes it, and its later jobs by those of the node that advances it (see beginStep). Package queue is to call Follow when jobs
// of workflows have ended (queue.Hooks).
func New(deps Deps, c config.Config) *Store {
	// A pool of one connection has one place. The callers of Advance hold no connection while they wait for a place: queue
	// calls it after its commit, when the connection is back in the pool. Otherwise acks and advances could wait for each
	// other.
	places := min(maxAdvancing, max(1, int(deps.DB.Pool.Config().MaxConns)/2))
	return &Store{
		db: deps.DB, commits: deps.Commits, jobs: deps.Jobs, logger: deps.Logger, tracer: deps.Tracer,
		schemas: deps.Schemas, config: c, limits: deps.Limits,
		turns: map[[16]byte]*turns{}, slots: make(chan struct{}, places), left: make(chan struct{}, 1),
		maxLooked: pg.MaxLooked,
	}
}

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
