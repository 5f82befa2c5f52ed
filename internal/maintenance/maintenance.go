// Package maintenance owns the maintenance switch of the deployment: while it is on, fetches get nothing, and scheduled jobs, retries and
// crons wait. Every node keeps what it knows of the switch in memory, and follows a change within a second. The package must never
// decide what waits: the domains ask On.
package maintenance

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/riverqueue/river/rivershared/baseservice"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/follow"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// State is the switch.
// The zero value is off.
type State struct {
	On           bool
	Reason       string
	StartedAt    time.Time
	StartedBy    string
	EndsAt       time.Time // zero: it does not end by itself
	EstimatedEnd time.Time // zero: nobody has said
}

// on: a switch with an end is off from then on, by the clock of the database.
func (s *State) on() bool {
	return s != nil && s.On && (s.EndsAt.IsZero() || clock.Now().Before(s.EndsAt))
}

// Switch is the switch as a node knows it. Use New, and run its NewFollower.
type Switch struct {
	db     *pg.DB
	logger *slog.Logger
	state  *follow.Value[State]
	end    *time.Timer // has the follower read when the switch is to turn itself off
	ended  func()
}

// New returns a switch that is off until it was read.
// app reads it before the first request.
func New(db *pg.DB, logger *slog.Logger) *Switch {
	s := &Switch{db: db, logger: logger, ended: func() {}}
	s.state = follow.New(db, readState)
	s.state.OnRead(s.onRead)
	s.end = time.AfterFunc(math.MaxInt64, s.state.Changed)
	return s
}

// NewFollower returns the service that reads the switch when it may have changed, and notices when it is off again.
func NewFollower(archetype *baseservice.Archetype, s *Switch) *follow.Follower[State] {
	return follow.NewFollower(archetype, s.state, "maintenance switch")
}

// OnEnded sets what is called after the switch was on: what has waited is to go on. It must not block.
func (s *Switch) OnEnded(f func()) { s.ended = f }

// OnListening sets how the switch learns whether notifications arrive.
func (s *Switch) OnListening(f func() bool) { s.state.OnListening(f) }

// Changed is called when the switch may have changed on any node. It does not block.
func (s *Switch) Changed() { s.state.Changed() }

// On reports whether the switch is on. It reads memory only.
// It is asked by every fetch, sweep and tick, so it must not wait. A node that cannot reach the database goes on with what it
// knew last.
func (s *Switch) On() bool {
	s.state.Poll()
	return s.state.Latest().on()
}

// Forget is for a reset of the database, which turns the switch off.
// The state is forgotten at once, without waiting for the read.
func (s *Switch) Forget() {
	was := s.state.Latest()
	s.state.Forget()
	if was != nil && was.On {
		s.ended()
	}
}

// Get reads the switch.
// It also remembers what it has read, and sets the clock of the node by the row.
func (s *Switch) Get(ctx context.Context) (State, error) {
	state, err := s.state.Read(ctx)
	if err != nil {
		return State{}, pg.ClientError(err)
	}
	return *state, nil
}

// readState reads the switch anew each time: it is one row, and whether it has ended is for the database to say.
func readState(ctx context.Context, q *dbsqlc.Queries, _ *State) (*State, error) {
	asked := time.Now()
	row, err := q.MaintenanceGet(ctx)
	if err != nil {
		return nil, err
	}
	clock.Set(row.Now.Time, asked)
	state := State{}
	if row.StartedAt.Valid && (!row.EndsAt.Valid || row.EndsAt.Time.After(row.Now.Time)) {
		state = newState(row)
	}
	return &state, nil
}

func (s *Switch) onRead(before, now *State) {
	s.end.Stop()
	if now.On && !now.EndsAt.IsZero() {
		s.end.Reset(now.EndsAt.Sub(clock.Now()))
	}
	if before != nil && before.On && !now.On {
		s.ended()
	}
}

// refresh lets this node know of a change that it has made; other nodes are notified by the change itself.
func (s *Switch) refresh(ctx context.Context) {
	if _, err := s.state.Read(ctx); err != nil {
		s.state.Changed() // the follower tries again
	}
}

// Start is a request to turn the switch on.
// Durations count from now by the clock of the database.
type Start struct {
	Reason   string
	Lasts    time.Duration // then it turns itself off; 0: it does not
	Estimate time.Duration // until the end, shown only; 0: Lasts
	By       string
}

// Start turns the switch on, or changes its end and its reason.
// It is idempotent but for the times. The statement notifies the other nodes. Who began it, and when, stays if it is on
// already.
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
	s.refresh(ctx)
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
	s.refresh(ctx)
	if len(ended) > 0 {
		s.logger.InfoContext(ctx, "maintenance is off", slog.String("category", "system"), slog.Group("attributes", "by", by))
	}
	return nil
}

func newState(row dbsqlc.MaintenanceGetRow) State {
	return State{
		On: true, Reason: row.Reason, StartedAt: row.StartedAt.Time, StartedBy: row.StartedBy, EndsAt: row.EndsAt.Time, EstimatedEnd: row.EstimatedEnd.Time,
	}
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: d > 0}
}

// maxReason bounds the bytes of a reason.
// It is shown to everybody who looks at the switch.
const maxReason = 1024

// Request is the body of POST /admin/system/maintenance (docs/reference/admin.md, Maintenance).
// Without Enabled the other members are checked and have no effect.
type Request struct {
	Enabled bool
	Start   Start // only with Enabled; By is what the body claims
}

// Decode reads a request.
// All problems are listed. A reason with U+0000 could not be stored.
func Decode(raw []byte) (Request, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return Request{}, err
	}
	b := payload.Body{}
	b.Fields, _ = payload.Read(v, []string{"enabled", "reason", "duration", "estimated_duration", "started_by"})
	r := Request{Enabled: b.Boolean("enabled")}
	if b.Get("enabled") == nil {
		b.Refuse("enabled", "true or false")
	}
	text, _ := rawjson.Text(b.Get("reason"))
	if b.Get("reason") != nil && (len(text) > maxReason || text != "" && !payload.IsName(text)) {
		b.Refuse("reason", "a string of at most 1024 bytes without U+0000")
	} else if v := b.Get("reason"); v != nil && v[0] != '"' {
		b.Refuse("reason", "a string")
	}
	by, _ := rawjson.Text(b.Get("started_by"))
	r.Start = Start{Reason: text, Lasts: length(&b, "duration"), Estimate: length(&b, "estimated_duration"), By: by}
	return r, b.Problems.Err()
}

// It is 0 if the member was not sent; 0 itself is refused, because it would end maintenance at once.
func length(b *payload.Body, name string) time.Duration {
	v := b.Get(name)
	if v == nil {
		return 0
	}
	text, _ := rawjson.Text(v)
	d, err := duration.Parse(text)
	if err != nil || d <= 0 {
		b.Refuse(name, "a duration above 0, such as 30m or PT30M")
	}
	return d
}
