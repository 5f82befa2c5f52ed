// Package maintenance owns the maintenance switch of the deployment: while it is on, fetches get nothing, and scheduled jobs, retries and
// crons wait. Every node keeps what it knows of the switch in memory, and follows a change within a second. The package must never
// decide what waits: the domains ask On.
package maintenance

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// lookInterval is how old what a node knows may be while fetches come, in case a notification was lost.
const lookInterval = time.Second

// State is the switch.
type State struct {
	On           bool
	Reason       string
	StartedAt    time.Time
	StartedBy    string
	EndsAt       time.Time // zero: it does not end by itself
	EstimatedEnd time.Time // zero: nobody has said
}

// Switch is the switch as a node knows it. Use New.
type Switch struct {
	db     *pg.DB
	logger *slog.Logger
	known  atomic.Pointer[known]
	look   chan struct{} // asks the Follower to read
}

// known is a state with the time at which it was read.
type known struct {
	state State
	at    time.Duration // clock.Running
}

// New returns a switch that is off until it was read.
func New(db *pg.DB, logger *slog.Logger) *Switch {
	s := &Switch{db: db, logger: logger, look: make(chan struct{}, 1)}
	s.known.Store(&known{})
	return s
}

// On reports whether the switch is on. It reads memory only.
func (s *Switch) On() bool {
	k := s.known.Load()
	if clock.Running()-k.at >= lookInterval {
		s.Look()
	}
	return k.on()
}

// on: a switch with an end is off from then on, by the clock of the database.
func (k *known) on() bool {
	return k.state.On && (k.state.EndsAt.IsZero() || clock.Now().Before(k.state.EndsAt))
}

// Look asks the Follower to read the switch, which may have changed. It does not block.
func (s *Switch) Look() {
	select {
	case s.look <- struct{}{}:
	default:
	}
}

// Forget is for a reset of the database, which turns the switch off.
func (s *Switch) Forget() {
	s.remember(State{})
	s.Look()
}

// Get reads the switch.
func (s *Switch) Get(ctx context.Context) (State, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	asked := time.Now()
	row, err := s.db.Q.MaintenanceGet(ctx)
	if err != nil {
		return State{}, pg.ClientError(err)
	}
	clock.Set(row.Now.Time, asked)
	state := State{}
	if row.StartedAt.Valid && (!row.EndsAt.Valid || row.EndsAt.Time.After(row.Now.Time)) {
		state = newState(row)
	}
	s.remember(state)
	return state, nil
}

// Start is a request to turn the switch on.
type Start struct {
	Reason   string
	Lasts    time.Duration // then it turns itself off; 0: it does not
	Estimate time.Duration // until the end, shown only; 0: Lasts
	By       string
}

// Start turns the switch on, or changes its end and its reason.
func (s *Switch) Start(ctx context.Context, p Start) (State, error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.MaintenanceStart(bounded, dbsqlc.MaintenanceStartParams{
		Lasts: interval(p.Lasts), Estimate: interval(p.Estimate), Reason: p.Reason, StartedBy: p.By,
	})
	if err != nil {
		return State{}, pg.WriteError(err)
	}
	state := newState(dbsqlc.MaintenanceGetRow{
		StartedAt: row.StartedAt, EndsAt: row.EndsAt, EstimatedEnd: row.EstimatedEnd, Reason: row.Reason, StartedBy: row.StartedBy, Now: row.Now,
	})
	s.remember(state)
	s.Look() // the Follower waits for its end
	s.logger.InfoContext(ctx, "maintenance is on: no job is fetched until it ends", slog.String("category", "system"),
		slog.Group("attributes", "reason", p.Reason, "by", p.By, "ends_at", state.EndsAt))
	return state, nil
}

// End turns the switch off.
func (s *Switch) End(ctx context.Context, by string) error {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	ended, err := s.db.Q.MaintenanceEnd(bounded)
	if err != nil {
		return pg.WriteError(err)
	}
	s.remember(State{})
	s.Look() // the Follower goes on with what has waited
	if len(ended) > 0 {
		s.logger.InfoContext(ctx, "maintenance is off", slog.String("category", "system"), slog.Group("attributes", "by", by))
	}
	return nil
}

func (s *Switch) remember(state State) { s.known.Store(&known{state, clock.Running()}) }

func newState(row dbsqlc.MaintenanceGetRow) State {
	return State{
		On: true, Reason: row.Reason, StartedAt: row.StartedAt.Time, StartedBy: row.StartedBy, EndsAt: row.EndsAt.Time, EstimatedEnd: row.EstimatedEnd.Time,
	}
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: d > 0}
}
