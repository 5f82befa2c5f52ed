package workflow

import (
	"log/slog"
	"sync"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/schema"
)

// The states of workflows, and those of steps as they are stored. Answers show a step that is pending as active while its job is.
const (
	// A workflow has running, completed, failed and cancelled; a step has all but running.
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

// Config holds the settings of the store. Both come from the settings of the node. Nodes with different settings may serve
// one database: a definition is checked by the settings of the node that takes it, and its later jobs by those of the node
// that advances it (see beginStep).
type Config struct {
	// Limits apply to the jobs of workflows, which are decoded again when their step begins.
	Limits job.Limits

	// MaxDepth is how deep workflows may be nested, the root included. 0: DefaultDepth.
	MaxDepth int
}

// Deps are the parts of a node that the store uses.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Jobs    *queue.Store
	Logger  *slog.Logger
	Tracer  *tracing.Tracer
	Schemas *schema.Store
}

// Store creates, changes and reads workflows. Use New. It keeps no state of a workflow: what it has in memory is who waits
// for which root, and it may be lost with the node.
//
// mu guards turns and the next turn in each of its values, and is never held during a statement. turns has an entry for
// each root that a goroutine of this node serves. slots has an element for each transaction of Advance that runs, at most
// places(db). left has room for one signal: a second one before the Follower looks would have it look at the same rows.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	jobs    *queue.Store
	logger  *slog.Logger
	tracer  *tracing.Tracer
	schemas *schema.Store
	config  Config

	mu    sync.Mutex
	turns map[[16]byte]*turns
	slots chan struct{}

	left chan struct{} // signalled when changes may be left over: see Follower

	maxLooked int64 // pg.MaxLooked; only tests change it
}

// New returns a store on the database. Package queue calls it when jobs of workflows have ended. It must be called before
// the node serves requests, because the hook that it sets is read without a lock.
func New(deps Deps, config Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, jobs: deps.Jobs, logger: deps.Logger, tracer: deps.Tracer,
		schemas: deps.Schemas, config: config,
		turns: map[[16]byte]*turns{}, slots: make(chan struct{}, places(deps.DB)), left: make(chan struct{}, 1),
		maxLooked: pg.MaxLooked,
	}
	deps.Jobs.OnWorkflowJobs(s.follow)
	return s
}

// A pool of one connection has one place. The callers of Advance hold no connection while they wait for a place: queue
// calls it after its commit, when the connection is back in the pool. Otherwise acks and advances could wait for each
// other.
func places(db *pg.DB) int { return min(maxAdvancing, max(1, int(db.Pool.Config().MaxConns)/2)) }
