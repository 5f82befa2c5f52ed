package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/migrations"
)

// doctorCmd checks a database: stored counts against the tables, the lag of the relay, overdue jobs and jobs stored twice, and what keeps
// PostgreSQL from removing dead rows. It must never write.
type doctorCmd struct{ settings }

// errFindings makes the exit code 1.
var errFindings = errors.New("something is wrong: see the lines that begin with BAD")

// Run prints one line per finding.
// It needs no running server, and writes nothing. A schema of another version is an error, because the checks would be wrong.
func (c *doctorCmd) Run(ctx context.Context, k *kong.Context) error {
	loaded, err := c.loadWithDatabase()
	if err != nil {
		return err
	}
	cfg, err := pgx.ParseConfig(loaded.Config.Database.URL)
	if err != nil {
		return fmt.Errorf("parse database url: %w", err)
	}
	// The name shows in pg_stat_activity.
	pg.Prepare(cfg, "ojsd doctor")
	conn, _, err := pg.ConnectSession(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing was written
	if err := migrations.Check(ctx, conn); err != nil {
		return err
	}
	// An error means that nothing is known, not that something is wrong; the exit code is 1 in both cases.
	findings, err := examine(ctx, conn)
	if err != nil {
		return err
	}
	ok := true
	for _, f := range findings {
		// Both marks have the same width, so that texts are aligned and grep '^BAD' finds the rest.
		mark := "ok  "
		if !f.OK {
			mark, ok = "BAD ", false
		}
		if _, err := fmt.Fprintln(k.Stdout, mark, f.Text); err != nil {
			return err
		}
	}
	if !ok {
		return errFindings
	}
	return nil
}

// finding is one result of an examination.
// Text is a whole sentence for an operator, with the figures; OK is false if something has to be done.
type finding struct {
	OK   bool
	Text string
}

// relayLate is how old an unpublished event may be before something is wrong.
// A working relay publishes within 100 ms.
const relayLate = 10 * time.Second

// examine runs all checks in one snapshot. It counts all jobs, which takes seconds for millions.
// The snapshot makes counts and tables comparable while jobs move, and holds back the cleaning of dead rows for as long as it
// runs. An error of one check ends all: the rest would fail, too.
func examine(ctx context.Context, conn *pgx.Conn) (findings []finding, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		e := examination{q: dbsqlc.New(tx)}
		for _, check := range []func(context.Context) error{e.writable, e.counts, e.rows, e.relay, e.tables, e.holders} {
			if err := check(ctx); err != nil {
				return err
			}
		}
		findings = e.findings
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("examine: %w", err)
	}
	return findings, nil
}

// examination runs its checks one after the other, on one connection.
type examination struct {
	q        *dbsqlc.Queries
	findings []finding
}

func (e *examination) addf(ok bool, format string, args ...any) {
	e.findings = append(e.findings, finding{ok, fmt.Sprintf(format, args...)})
}

// writable is the only finding that tells of a standby, and all checks work there.
func (e *examination) writable(ctx context.Context) error {
	probe, err := e.q.SystemProbe(ctx)
	if probe.ReadOnly {
		e.addf(false, "the database is read-only: it is a standby, or default_transaction_read_only is on; let DATABASE_URL lead to the primary")
	}
	return err
}

// counts finds differences, which are a defect of this program, or rows were changed by hand.
func (e *examination) counts(ctx context.Context) error {
	wrong, err := e.q.DoctorCounts(ctx)
	if err != nil {
		return err
	}
	for _, w := range wrong {
		e.addf(false, "queue %q: counts say %d %s jobs, the tables hold %d", w.Queue, w.Counted, w.State, w.Stored)
	}
	if len(wrong) == 0 {
		e.addf(true, "the kept counts of every queue and state equal the tables")
	}
	return nil
}

// rows counts jobs as overdue after 10 s, so that a sweep that is just running is not reported. Those that are to wait for the end of
// maintenance are no fault; deadlines and lost leases are applied during it, too.
func (e *examination) rows(ctx context.Context) error {
	r, err := e.q.DoctorRows(ctx)
	if err != nil {
		return err
	}
	on, err := e.maintenance(ctx, r.Waiting)
	if err != nil {
		return err
	}
	if on {
		r.Overdue -= r.Waiting
	}
	e.addf(r.Overdue == 0, "%d jobs are overdue for more than 10 s%s", r.Overdue,
		hint(r.Overdue > 0, "no server is running, or its sweeps fail: see its log"))
	e.addf(r.Twice == 0, "%d jobs are stored both as live and as finished", r.Twice)
	e.addf(r.Unfollowed == 0, "%d changes of jobs wait for their workflow to follow for more than 10 s%s", r.Unfollowed,
		hint(r.Unfollowed > 0, "no server is running, or its workflows fail: see its log"))
	e.addf(r.Unadmitted == 0, "%d changes may let jobs start that wait for a rate limit, and were not looked at for more than 10 s%s",
		r.Unadmitted,
		hint(r.Unadmitted > 0, "no server is running, or its limits fail: see its log"))
	e.addf(r.Unordered == 0, "%d jobs have a place in the queue that does not fit their state", r.Unordered)
	return nil
}

// maintenance tells that the switch is on, and how many jobs wait for its end.
func (e *examination) maintenance(ctx context.Context, waiting int64) (on bool, err error) {
	m, err := e.q.MaintenanceGet(ctx)
	if err != nil || !m.StartedAt.Valid || m.EndsAt.Valid && !m.EndsAt.Time.After(m.Now.Time) {
		return false, err
	}
	until := "until it is turned off"
	if m.EndsAt.Valid {
		until = "until " + spec.FormatTime(m.EndsAt.Time)
	}
	e.addf(true, "maintenance is on since %s, %s: no job is fetched, and %d scheduled or retryable jobs that are due wait for its end",
		spec.FormatTime(m.StartedAt.Time), until, waiting)
	return true, nil
}

// relay counts missing numbers, which belong to transactions that are open or were rolled back; some are normal.
func (e *examination) relay(ctx context.Context) error {
	r, err := e.q.DoctorRelay(ctx)
	if err != nil {
		return err
	}
	lag, kept := seconds(r.LagSeconds), seconds(r.KeptSeconds)
	e.addf(lag < relayLate, "%d events wait to be published, the oldest for %s; %d numbers are missing%s", r.Unpublished, lag, r.Gaps,
		hint(lag >= relayLate, "no server is running, or its relay fails: see its log"))
	e.addf(true, "events reach back %s", kept)
	holders, err := e.q.DoctorRelayHolders(ctx)
	for _, h := range holders {
		e.addf(false, "session %d (%s), %s, keeps every relay from publishing, for %s: end it with SELECT pg_terminate_backend(%d)",
			h.Pid, h.Name, h.State, seconds(h.Seconds), h.Pid)
	}
	return err
}

// tables takes a table for bloated with more than 100 000 dead rows, twice as many as live ones: below that the cleaning is normally just
// due.
func (e *examination) tables(ctx context.Context) error {
	tables, err := e.q.DoctorTables(ctx)
	if err != nil {
		return err
	}
	for _, t := range tables {
		bloated := t.Dead > 100_000 && t.Dead > 2*t.Live
		e.addf(!bloated, "table %s: %d rows, %d dead, %d KiB%s", t.Name, t.Live, t.Dead, t.Bytes/1024,
			hint(bloated, "autovacuum does not keep up, or is held back by a session below"))
	}
	return nil
}

// holders shows ten at most, the oldest first.
func (e *examination) holders(ctx context.Context) error {
	holders, err := e.q.DoctorXmin(ctx)
	if err != nil {
		return err
	}
	for _, h := range holders {
		e.addf(false, "%s keeps dead rows from being cleaned, for %s", h.Holder, seconds(h.Seconds))
	}
	if len(holders) == 0 {
		e.addf(true, "no transaction older than a minute keeps dead rows from being cleaned")
	}
	return nil
}

// hint is what to do, if there is something.
func hint(wanted bool, text string) string {
	if !wanted {
		return ""
	}
	return ": " + text
}

// seconds has milliseconds, which are fine enough for people.
func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}
