// Package cron owns recurring jobs: expressions and time zones, the registry, and the ticks of due crons. It must never store
// or cancel a job except through package queue.
//
// A tick is one transaction: its log row, its event, its job and the next time of its cron. So it happens once, whichever
// nodes look at the same time, and a node that stops leaves the cron due. No node owns a cron.
//
// The timer of each node calls Fire when the earliest next_run_at has come (app/domains.go connects them). A cron whose row
// another node has locked is skipped, not waited for. Ticks that were missed are not made up for, apart from the latest one
// of each cron (docs/reference/scheduling.md, Firing).
//
// The files follow that way: schedule.go, fields.go and days.go compute times, tick.go and its neighbours fire, trigger.go
// makes a job by hand, serial.go lets jobs of one cron run one after the other, registry.go and definition.go store crons.
package cron

import (
	"log/slog"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/maintenance"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/internal/timer"
)

// visibility is the visibility timeout of a cron's job if the template sets none. It is longer than that of other jobs by
// default (docs/reference/scheduling.md, Firing).
const visibility = 10 * time.Minute

// Config holds the settings of the registry. A template that an older setting has accepted may be refused at a tick, which
// is then skipped.
type Config struct {
	// Limits apply to the jobs of crons, whose templates are decoded at each tick.
	Limits job.Limits
}

// Deps are the parts of a node that the registry uses. Without Schemas nothing is checked against one.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *timer.Timer
	Jobs    *queue.Store
	Logger  *slog.Logger
	Tracer  *tracing.Tracer
	Schemas *schema.Store

	Maintenance *maintenance.Switch
}

// Store registers and fires crons. Use New. It has no state of crons: what is due is read from the database, when the timer
// of the node says so.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *timer.Timer
	jobs    *queue.Store
	logger  *slog.Logger
	tracer  *tracing.Tracer
	schemas *schema.Store
	config  Config

	// During maintenance no cron fires; a manual run is not stopped by it here.
	maintenance *maintenance.Switch
}

// New returns a registry on the database. Package queue calls it when a job of a serial cron has ended, to release the
// next. It must be called before the node serves, as the hook is read without a lock.
func New(deps Deps, config Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, timer: deps.Timer, jobs: deps.Jobs, logger: deps.Logger, tracer: deps.Tracer, config: config,
		maintenance: deps.Maintenance, schemas: deps.Schemas,
	}
	deps.Jobs.OnCronJobs(s.release)
	return s
}
