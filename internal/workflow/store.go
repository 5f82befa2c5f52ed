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
	running   = "running"
	waiting   = "waiting" // the step has no job yet
	pending   = "pending" // the job of the step, or its nested workflow, has not ended
	active    = "active"
	completed = "completed"
	failed    = "failed"
	cancelled = "cancelled"
)

// The kinds of steps.
const (
	kindJob      = "job"
	kindWorkflow = "workflow"
	kindCallback = "callback"
)

const (
	// portion bounds the rows of a statement, and portionBytes, together with one more row, what it sends or reads.
	portion      = 1000
	portionBytes = job.MaxBytes

	// maxResults bounds the sum of the results that a job gets of other jobs, and of those in an answer. Beyond it results are left
	// out, the largest first (docs/reference/workflows.md, Results).
	maxResults = 4 << 20

	// changeTimeout bounds the transactions that change a tree, each of up to some dozen statements.
	changeTimeout = time.Minute

	// maxAdvancing bounds the trees that a node changes at the same time: each takes a connection of the pool, of which they have half at
	// most.
	maxAdvancing = 4
)

// Config holds the settings of the store.
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

// Store creates, changes and reads workflows. Use New.
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
}

// New returns a store on the database. Package queue calls it when jobs of workflows have ended.
func New(deps Deps, config Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, jobs: deps.Jobs, logger: deps.Logger, tracer: deps.Tracer,
		schemas: deps.Schemas, config: config,
		turns: map[[16]byte]*turns{}, slots: make(chan struct{}, places(deps.DB)), left: make(chan struct{}, 1),
	}
	deps.Jobs.OnWorkflowJobs(s.follow)
	return s
}

func places(db *pg.DB) int { return min(maxAdvancing, max(1, int(db.Pool.Config().MaxConns)/2)) }
