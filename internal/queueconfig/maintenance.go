package queueconfig

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/riverqueue/river/rivershared/baseservice"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// While the maintenance switch of the deployment is on, fetches get nothing, and scheduled jobs, retries and crons wait. Every node keeps
// what it knows of the switch in memory, and follows a change within a second. What waits is decided by the domains: they ask On.

// MaintenanceState is the switch.
// The zero value is off.
type MaintenanceState struct {
	On           bool
	Reason       string
	StartedAt    time.Time
	StartedBy    string
	EndsAt       time.Time // zero: it does not end by itself
	EstimatedEnd time.Time // zero: nobody has said
}

// on: a switch with an end is off from then on, by the clock of the database.
func (s *MaintenanceState) on() bool {
	return s != nil && s.On && (s.EndsAt.IsZero() || clock.Now().Before(s.EndsAt))
}

// Maintenance is the switch as a node knows it. Use NewMaintenance, and run its NewFollower.
type Maintenance struct {
	db     *pg.DB
	logger *slog.Logger
	state  *loop.Value[MaintenanceState]
	end    *time.Timer // has the follower read when the switch is to turn itself off
	config MaintenanceConfig
}

// MaintenanceConfig says who is told of the end of maintenance, and how the switch learns of changes.
type MaintenanceConfig struct {
	// Ended is called after the switch was on: what has waited is to go on. It must not block. nil: nobody is told.
	Ended func()

	// Listening is loop.ValueConfig.Listening.
	Listening func() bool
}

// NewMaintenance returns a switch that is off until it was read.
// app reads it before the first request.
func NewMaintenance(db *pg.DB, logger *slog.Logger, config MaintenanceConfig) *Maintenance {
	if config.Ended == nil {
		config.Ended = func() {}
	}
	s := &Maintenance{db: db, logger: logger, config: config}
	s.state = loop.NewValue(db, loop.ValueConfig[MaintenanceState]{Read: readState, Found: s.onRead, Listening: config.Listening})
	s.end = time.AfterFunc(math.MaxInt64, s.state.Changed)
	return s
}

// NewMaintenanceFollower returns the service that reads the switch when it may have changed, and notices when it is off again.
func NewMaintenanceFollower(archetype *baseservice.Archetype, s *Maintenance) *loop.Follower[MaintenanceState] {
	return loop.NewFollower(archetype, s.state, "maintenance switch")
}

// Changed is called when the switch may have changed on any node. It does not block.
func (s *Maintenance) Changed() { s.state.Changed() }

// On reports whether the switch is on. It reads memory only.
// It is asked by every fetch, sweep and tick, so it must not wait. A node that cannot reach the database goes on with what it
// knew last.
func (s *Maintenance) On() bool {
	s.state.Poll()
	return s.state.Latest().on()
}

// Forget is for a reset of the database, which turns the switch off.
// The state is forgotten at once, without waiting for the read.
func (s *Maintenance) Forget() {
	was := s.state.Latest()
	s.state.Forget()
	if was != nil && was.On {
		s.config.Ended()
	}
}

// Get reads the switch.
// It also remembers what it has read, and sets the clock of the node by the row.
func (s *Maintenance) Get(ctx context.Context) (MaintenanceState, error) {
	state, err := s.state.Read(ctx)
	if err != nil {
		return MaintenanceState{}, pg.ClientError(err)
	}
	return *state, nil
}

// readState reads the switch anew each time: it is one row, and whether it has ended is for the database to say.
func readState(ctx context.Context, q *dbsqlc.Queries, _ *MaintenanceState) (*MaintenanceState, error) {
	asked := time.Now()
	row, err := q.MaintenanceGet(ctx)
	if err != nil {
		return nil, err
	}
	clock.Set(row.Now.Time, asked)
	state := MaintenanceState{}
	if row.StartedAt.Valid && (!row.EndsAt.Valid || row.EndsAt.Time.After(row.Now.Time)) {
		state = newState(row)
	}
	return &state, nil
}

func (s *Maintenance) onRead(before, now *MaintenanceState) {
	s.end.Stop()
	if now.On && !now.EndsAt.IsZero() {
		s.end.Reset(now.EndsAt.Sub(clock.Now()))
	}
	if before != nil && before.On && !now.On {
		s.config.Ended()
	}
}

// refresh lets this node know of a change that it has made; other nodes are notified by the change itself.
func (s *Maintenance) refresh(ctx context.Context) {
	if _, err := s.state.Read(ctx); err != nil {
		s.state.Changed() // the follower tries again
	}
}

// MaintenanceStart is a request to turn the switch on.
// Durations count from now by the clock of the database.
type MaintenanceStart struct {
	Reason   string
	Lasts    time.Duration // then it turns itself off; 0: it does not
	Estimate time.Duration // until the end, shown only; 0: Lasts
	By       string
}

// Start turns the switch on, or changes its end and its reason.
// It is idempotent but for the times. The statement notifies the other nodes. Who began it, and when, stays if it is on
// already.
func (s *Maintenance) Start(ctx context.Context, p MaintenanceStart) (MaintenanceState, error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.MaintenanceStart(bounded, dbsqlc.MaintenanceStartParams{
		Lasts: interval(p.Lasts), Estimate: interval(p.Estimate), Reason: p.Reason, StartedBy: p.By,
	})
	if err != nil {
		return MaintenanceState{}, pg.WriteError(err)
	}
	state := newState(dbsqlc.MaintenanceGetRow{
		StartedAt: row.StartedAt, EndsAt: row.EndsAt, EstimatedEnd: row.EstimatedEnd, Reason: row.Reason,
		StartedBy: row.StartedBy, Now: row.Now,
	})
	s.refresh(ctx)
	s.logger.InfoContext(ctx, "maintenance is on: no job is fetched until it ends", slog.String("category", "system"),
		slog.Group("attributes", "reason", p.Reason, "by", p.By, "ends_at", state.EndsAt))
	return state, nil
}

// End turns the switch off.
func (s *Maintenance) End(ctx context.Context, by string) error {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	ended, err := s.db.Q.MaintenanceEnd(bounded)
	if err != nil {
		return pg.WriteError(err)
	}
	s.refresh(ctx)
	if len(ended) > 0 {
		s.logger.InfoContext(ctx, "maintenance is off", slog.String("category", "system"), slog.Group("attributes", "by", by))
	}
	return nil
}

func newState(row dbsqlc.MaintenanceGetRow) MaintenanceState {
	return MaintenanceState{
		On: true, Reason: row.Reason, StartedAt: row.StartedAt.Time, StartedBy: row.StartedBy,
		EndsAt: row.EndsAt.Time, EstimatedEnd: row.EstimatedEnd.Time,
	}
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: d > 0}
}

// maxReason bounds the bytes of a reason.
// It is shown to everybody who looks at the switch.
const maxReason = 1024

// MaintenanceRequest is the body of POST /admin/system/maintenance (docs/reference/admin.md, Maintenance).
// Without Enabled the other members are checked and have no effect.
type MaintenanceRequest struct {
	Enabled bool
	Start   MaintenanceStart // only with Enabled; By is what the body claims
}

// DecodeMaintenance reads a request.
// All problems are listed. A reason with U+0000 could not be stored.
func DecodeMaintenance(raw []byte) (MaintenanceRequest, *ojs.Error) {
	o, err := jsonread.OpenBody(raw, "enabled", "reason", "duration", "estimated_duration", "started_by")
	if err != nil {
		return MaintenanceRequest{}, err
	}
	o.RefuseOthers()
	r := MaintenanceRequest{Enabled: o.Boolean("enabled")}
	if o.Get("enabled") == nil {
		o.Refuse("enabled", "true or false")
	}
	if v := o.Get("reason"); v != nil && v[0] != '"' {
		o.Refuse("reason", "a string")
	} else {
		r.Start.Reason = o.Text("reason", "a string of at most 1024 bytes without U+0000", func(s string) bool {
			return len(s) <= maxReason && !strings.Contains(s, "\x00")
		})
	}
	// 0 would end maintenance at once.
	const expected = "a duration above 0, such as 30m or PT30M"
	r.Start.Lasts = o.Duration("duration", expected, 1, jsonread.MaxDuration)
	r.Start.Estimate = o.Duration("estimated_duration", expected, 1, jsonread.MaxDuration)
	r.Start.By, _ = jsonread.Text(o.Get("started_by"))
	return r, o.Err()
}
