// Package cron is everything about recurring jobs: expressions and time zones, the registry, and the firing of ticks. It
// stores jobs only through package queue.
package cron

import (
	"log/slog"
	"time"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/observe/tracing"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/timer"
)

// visibility is the reservation of a job made by a cron whose template sets none.
const visibility = 10 * time.Minute

// Config holds what the registry decides by.
type Config struct {
	// Limits hold for the jobs of crons, whose templates are read anew at each firing.
	Limits job.Limits
}

// Deps are the parts of a node that the registry works with.
type Deps struct {
	DB      *pg.DB
	Commits *eventlog.Commits
	Timer   *timer.Timer
	Jobs    *queue.Store
	Logger  *slog.Logger
	Tracer  *tracing.Tracer
}

// Store registers and fires crons. Use New.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	timer   *timer.Timer
	jobs    *queue.Store
	logger  *slog.Logger
	tracer  *tracing.Tracer
	config  Config
}

// New returns a registry on the database. It releases the jobs of serial crons when others of theirs have ended.
func New(deps Deps, config Config) *Store {
	s := &Store{
		db: deps.DB, commits: deps.Commits, timer: deps.Timer, jobs: deps.Jobs, logger: deps.Logger, tracer: deps.Tracer, config: config,
	}
	deps.Jobs.OnCronJobs(s.release)
	return s
}
