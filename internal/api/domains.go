// Package api owns what both transports do: who may call, whose doing a failure is and what a client is told about it, the
// line in the log and the span of each request, checks of parameters that both have, limits of streams, health and the
// manifest's facts. httpapi and grpcapi speak the protocols and call the same operations of the domains, which this package connects
// (NewDomains).
//
// It must never speak a protocol, hold a rule about jobs, or read the database other than through a domain.
package api

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/limit"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/pool"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/internal/workflow"
)

// Domains are the domains of a node, and what it keeps in memory of them. Both interfaces share them; none of the fields is nil in a
// server, except in tests of a part. Events and Feed are added after the others, when the relay exists.
type Domains struct {
	DB          *pg.DB
	Jobs        *queue.Store
	Pools       *pool.Store
	Progress    *queue.ProgressStore
	Queues      *queueadmin.Store
	DeadLetters *deadletter.Store
	Workers     *worker.Store
	Crons       *cron.Store
	Workflows   *workflow.Store
	Maintenance *queueconfig.Maintenance
	Stats       *queueadmin.Statistics
	Limits      *limit.Store
	Webhooks    *webhook.Store
	Schemas     *schema.Store
	Tenants     *queueadmin.Tenants
	Events      *eventlog.Reader
	Feed        *eventlog.Feed

	// JobLimits bound what clients send, and give the retry policy that a queue sets for its jobs. The tenant of a call may change them.
	JobLimits job.Limits

	// Cache is what the node knows of workers, Configured what it knows of the configuration of queues; both are read again on demand.
	Cache      *queue.Workers
	Configured *queueconfig.Cache
}

// DomainDeps are the parts that the domains of a node share.
type DomainDeps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *loop.Timer
	Queues  *queueconfig.Cache
	Logger  *slog.Logger
	Tracer  *tracing.Tracer // nil: nothing is traced

	// Observer is told what package queue and the registry of workers do.
	Observer queue.Observer

	// Hooks changes what package queue calls after its commits. Tests have a node stop there. May be nil.
	Hooks func(h *queue.Hooks)

	// MaintenanceEnded is queueconfig.MaintenanceConfig.Ended. May be nil.
	MaintenanceEnded func()

	// Listening tells whether notifications arrive. Without them, the domains look themselves whether other nodes have changed what this
	// one keeps in memory. nil: they do not.
	Listening func() bool
}

// NewDomains builds each domain once, in the order in which they need each other; the caller adds the event reader and the feed. It knows
// neither loops nor interfaces, so that tests of a domain get the domains of a server without the rest of it.
// It sends no statement. Package queue is made first, because the others call it. What it calls in them is read from the variables
// below, which are set before NewDomains returns; no job moves before that.
func NewDomains(d DomainDeps, c config.Config) Domains {
	var (
		crons     *cron.Store
		workflows *workflow.Store
		limited   *limit.Store
	)
	hooks := queue.Hooks{
		CronJobs:      func(ctx context.Context, names []string) { crons.Release(ctx, names) },
		WorkflowJobs:  func(ctx context.Context, roots [][16]byte) { workflows.Follow(ctx, roots) },
		LimitedJobs:   func(ctx context.Context, keys []string) { limited.Follow(ctx, keys) },
		LimitedStarts: func() { limited.Started() },
	}
	if d.Hooks != nil {
		d.Hooks(&hooks)
	}
	limits := job.Limits{MaxJobBytes: int(c.Jobs.MaxJobBytes), QueueRetry: d.Queues.Retry}
	// Crons and workflows decode definitions again that are stored already: those were enqueued by a tenant, or before that was required.
	stored := queueadmin.TenantMode(c.Server.Tenancy).Limits(limits, "")
	stored.TenantRequired = false
	workers, schemas := queue.NewWorkers(), schema.New(d.DB, d.Logger, d.Listening)
	upkeep := queueconfig.NewMaintenance(d.DB, d.Logger, queueconfig.MaintenanceConfig{Ended: d.MaintenanceEnded, Listening: d.Listening})
	jobs := queue.New(queue.Deps{
		DB: d.DB, Commits: d.Commits, Timer: d.Timer, Workers: workers, Queues: d.Queues, Logger: d.Logger, Tracer: d.Tracer,
		Maintenance: upkeep, Schemas: schemas, Hooks: hooks, Observer: d.Observer,
	}, c)
	crons = cron.New(cron.Deps{
		DB: d.DB, Commits: d.Commits, Timer: d.Timer, Jobs: jobs, Logger: d.Logger, Tracer: d.Tracer, Maintenance: upkeep, Schemas: schemas,
		Limits: stored,
	})
	workflows = workflow.New(workflow.Deps{DB: d.DB, Commits: d.Commits, Jobs: jobs, Logger: d.Logger, Tracer: d.Tracer, Schemas: schemas,
		Limits: stored}, c)
	limited = limit.New(limit.Deps{DB: d.DB, Commits: d.Commits, Jobs: jobs, Logger: d.Logger})
	return Domains{
		DB: d.DB, Jobs: jobs, Maintenance: upkeep, Stats: queueadmin.NewStatistics(d.DB), Schemas: schemas,
		Pools:       pool.New(pool.Deps{DB: d.DB, Jobs: jobs, Logger: d.Logger, Listening: d.Listening}),
		Progress:    queue.NewProgressStore(queue.ProgressDeps{DB: d.DB, Commits: d.Commits, Timer: d.Timer, Workers: workers, Jobs: jobs}),
		Queues:      queueadmin.New(queueadmin.Deps{DB: d.DB, Commits: d.Commits, Jobs: jobs, Queues: d.Queues, Logger: d.Logger}, c),
		DeadLetters: deadletter.New(d.DB, d.Commits, jobs),
		Workers: worker.New(worker.Deps{
			DB: d.DB, Commits: d.Commits, Timer: d.Timer, Workers: workers, Jobs: jobs, Logger: d.Logger,
			Tracer: d.Tracer, OnFlush: d.Observer.Flush,
		}, c),
		Crons:     crons,
		Workflows: workflows,
		Limits:    limited,
		Webhooks:  webhook.NewStore(d.DB, c.Webhooks, d.Logger),
		Tenants:   queueadmin.NewTenants(d.DB),
		Cache:     workers, Configured: d.Queues, JobLimits: limits,
	}
}

// TimerSources are what the timer calls in the domains when something is due. The timer is built before them, because they schedule on it,
// so d is read at each call: NewDomains must have filled it before the timer starts.
func TimerSources(d *Domains) loop.TimerSources {
	return loop.TimerSources{
		Jobs:         func(ctx context.Context, after pgtype.Timestamptz) (int, error) { return d.Jobs.ApplyDue(ctx, after) },
		Workers:      func(ctx context.Context) (int, error) { return d.Workers.Reap(ctx) },
		Crons:        func(ctx context.Context) (int, error) { return d.Crons.Fire(ctx) },
		WorkerDeadAt: func(lastBeat time.Time) time.Time { return d.Workers.DeadAt(lastBeat) },
	}
}

// Forget drops the caches of this node, after a reset of the database.
// Each cache is read again when it is needed.
func (d Domains) Forget() {
	d.Jobs.Forget()
	d.Maintenance.Forget()
	d.Cache.Forget()
	d.Schemas.Forget()
	d.Configured.Forget()
	d.Pools.Forget()
}
