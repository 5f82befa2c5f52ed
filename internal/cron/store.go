// Package cron owns recurring jobs: expressions and time zones, the registry, and the ticks of due crons. It must never store
// or cancel a job except through package queue.
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

// visibility is the visibility timeout of a cron's job if the template sets none.
const visibility = 10 * time.Minute

// Config holds the settings of the registry.
type Config struct {
	// Limits apply to the jobs of crons, whose templates are decoded at each tick.
	Limits job.Limits
}

// Deps are the parts of a node that the registry uses.
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

// Store registers and fires crons. Use New.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *timer.Timer
	jobs    *queue.Store
	logger  *slog.Logger
	tracer  *tracing.Tracer
	schemas *schema.Store
	config  Config

	maintenance *maintenance.Switch
}

// New returns a registry on the database. Package queue calls it when a job of a serial cron has ended, to release the next.
func New(deps Deps, config Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, timer: deps.Timer, jobs: deps.Jobs, logger: deps.Logger, tracer: deps.Tracer, config: config,
		maintenance: deps.Maintenance, schemas: deps.Schemas,
	}
	deps.Jobs.OnCronJobs(s.release)
	return s
}
