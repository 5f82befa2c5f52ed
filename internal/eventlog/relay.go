package eventlog

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/serviceutil"
	"github.com/riverqueue/river/rivershared/util/testutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/observe/tracing"
)

// RelayConfig says how events are shown and how fast. The zero value of a field means its default.
type RelayConfig struct {
	// Service is the {service} of event sources (docs/reference/events.md, Source). ojs. All nodes should have the same.
	Service string

	// Tracer makes the spans of passes. nil: none.
	Tracer *tracing.Tracer

	// GapDelay is how long a missing number may hold up those behind it. 25 ms; negative: not at all.
	GapDelay time.Duration

	// Rest is the least time between two passes under load; a pass takes whatever has accumulated. 10 ms.
	Rest time.Duration

	// LookInterval is how often an idle relay looks whether something was written without waking it. 60 s.
	LookInterval time.Duration
}

func (c RelayConfig) withDefaults() RelayConfig {
	if c.Service == "" {
		c.Service = "ojs"
	}
	if c.GapDelay == 0 {
		c.GapDelay = 25 * time.Millisecond
	}
	c.GapDelay = max(c.GapDelay, 0)
	if c.Rest == 0 {
		c.Rest = 10 * time.Millisecond
	}
	if c.LookInterval == 0 {
		c.LookInterval = time.Minute
	}
	return c
}

// Relay publishes committed events: it moves the watermark, notifies, and keeps the counts. Every node runs
// one; a lock in the database lets one at a time work. An idle relay issues one statement per LookInterval.
type Relay struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals RelayTestSignals

	config RelayConfig
	pool   *pgxpool.Pool
	span   int64 // numbers a pass looks at

	published func()       // tells this node, nil if nobody wants to know
	counted   func(Counts) // nil if nobody counts

	wake     chan struct{}
	woken    atomic.Uint64 // calls of Wake
	progress progress
	status   relayStatus

	// Only the running goroutine touches these. They are what it learnt of the database, and forgotten after an error,
	// because the next connection may lead to another server.
	configured bool
	seen       string // the snapshot of the last look at all gaps
	sightings  sightings
	mutedUntil time.Time // the notification queue is full
}

// RelayTestSignals are set up by tests with Init.
type RelayTestSignals struct {
	Published testsignal.TestSignal[int64] // the watermark, after a pass that published something
	Looked    testsignal.TestSignal[bool]  // an idle look: whether there was anything to do
}

// Init makes the signals usable.
func (s *RelayTestSignals) Init(tb testutil.TestingTB) {
	s.Published.Init(tb)
	s.Looked.Init(tb)
}

// NewRelay returns a relay; Start it.
func NewRelay(archetype *baseservice.Archetype, pool *pgxpool.Pool, config RelayConfig) *Relay {
	return baseservice.Init(archetype, &Relay{
		config: config.withDefaults(), pool: pool, span: maxNumbers, wake: make(chan struct{}, 1), seen: nothingSeen,
	})
}

// Wake tells the relay that this node has committed events, or that somebody else says so. It only sets a flag.
func (r *Relay) Wake() {
	r.woken.Add(1)
	select {
	case r.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// OnPublished has f called after each pass that published something. It must not block. Call it before Start.
func (r *Relay) OnPublished(f func()) { r.published = f }

// Start begins to publish and returns at once.
func (r *Relay) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := r.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		r.run(ctx)
	}()
	return nil
}

func (r *Relay) run(ctx context.Context) {
	r.forget()
	p := pace{config: r.config}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			r.finish(ctx)
			return
		case <-r.wake:
			// A pause after the last pass, in which more may come.
			serviceutil.CancellableSleep(ctx, time.Until(p.restUntil))
		case <-timer.C:
			if p.idle && !r.look(ctx) {
				timer.Reset(r.config.LookInterval)
				continue
			}
		}
		timer.Reset(r.step(ctx, &p))
	}
}

// step runs one pass and returns when to look again without being woken.
func (r *Relay) step(ctx context.Context, p *pace) time.Duration {
	select {
	case <-r.wake: // whoever set it has committed, so this pass sees it
	default:
	}
	woken := r.woken.Load()
	started := time.Now()
	// Not cancelled by Stop: the work in hand is finished.
	pass, span := r.config.Tracer.Pass(context.WithoutCancel(ctx), "ojs.events.publish")
	done, err := r.runOnce(pass)
	span.End(done.published, err)
	r.status.record(done, err)
	if err != nil {
		r.failed(ctx, err)
	}
	if done.caughtUp() {
		r.progress.reach(woken)
	}
	if done.published > 0 {
		r.count(ctx, done.announced)
		if r.published != nil {
			r.published()
		}
		r.TestSignals.Published.Signal(done.watermark)
	}
	return p.next(done, err, time.Since(started))
}

// finish publishes what the last commits of this node left, so that a stopped node does not leave it to others.
func (r *Relay) finish(ctx context.Context) {
	p := pace{config: r.config}
	for range 3 {
		if r.progress.reached.Load() >= r.woken.Load() || p.failures > 0 {
			return
		}
		r.step(ctx, &p)
	}
}

// look is the idle relay's only statement.
func (r *Relay) look(ctx context.Context) (dirty bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), passTimeout)
	defer cancel()
	row, err := dbsqlc.New(r.pool).RelayIsDirty(ctx)
	if err != nil {
		r.failed(ctx, err)
		return true
	}
	r.status.watermark.Store(row.Watermark)
	r.TestSignals.Looked.Signal(row.Dirty)
	return row.Dirty
}

func (r *Relay) failed(ctx context.Context, err error) {
	r.forget()
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "54000" { // program_limit_exceeded: too many notifications
		// A session that LISTENs and stays in a transaction has let the queue fill up. Events are published all the same;
		// listeners find what they missed in the table, as after a reconnect.
		r.mutedUntil = r.Time.Now().Add(muteTime)
		r.Logger.ErrorContext(ctx, r.Name+": the notification queue is full; publishing without notifications",
			slog.Duration("for", muteTime), slog.Any("error", err))
		return
	}
	r.Logger.ErrorContext(ctx, r.Name+": pass failed", slog.Any("error", err))
}

const muteTime = 10 * time.Second

func (r *Relay) forget() {
	r.configured, r.seen, r.sightings = false, nothingSeen, nil
}
