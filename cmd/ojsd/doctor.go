package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/migrations"
)

// doctorCmd checks a database: stored counts against the tables, the lag of the relay, overdue jobs and jobs stored twice, what keeps
// PostgreSQL from removing dead rows, data beyond its retention, and what stops PostgreSQL as a whole: connections, WAL and ids that run
// out. It must never write.
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
	findings, err := examine(ctx, conn, loaded.Config.Database)
	if err != nil {
		return err
	}
	findings = append(findings, certificates(loaded.Config)...)
	ok := true
	for _, f := range findings {
		// The marks have the same width, so that texts are aligned and grep '^BAD' finds what is wrong.
		mark := "ok  "
		switch {
		case f.Blind:
			mark = "?   "
		case !f.OK:
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

// renewBefore is how long before its end a certificate should have been replaced.
const renewBefore = 14 * 24 * time.Hour

// certificates reports when the certificates of the interfaces end. It reads the files of the machine on which it runs.
func certificates(c config.Config) (findings []finding) {
	files := []config.TLS{c.Server.TLS()}
	if c.GRPC.Enabled() && c.GRPCTLS() != files[0] {
		files = append(files, c.GRPCTLS())
	}
	for _, f := range files {
		if f.Cert == "" {
			continue
		}
		read, err := api.NewCertificates(f, tls.RequireAndVerifyClientCert, slog.New(slog.DiscardHandler))
		if err != nil {
			findings = append(findings, finding{Text: err.Error()})
			continue
		}
		left := time.Until(read.Expires())
		text := fmt.Sprintf("certificate %s ends on %s", f.Cert, spec.FormatTime(read.Expires()))
		switch {
		case left <= 0:
			text = fmt.Sprintf("certificate %s has ended on %s: clients refuse it; replace the files, which servers then read by themselves", f.Cert,
				spec.FormatTime(read.Expires()))
		case left < renewBefore:
			text += ", in less than 14 days: replace the files, which servers then read by themselves"
		}
		findings = append(findings, finding{OK: left >= renewBefore, Text: text})
	}
	return findings
}

// finding is one result of an examination.
// Text is a whole sentence for an operator, with the figures; OK is false if something has to be done. Blind: the role of the session
// cannot see it, so it is neither OK nor wrong.
type finding struct {
	OK    bool
	Text  string
	Blind bool
}

// relayLate is how old an unpublished event may be before something is wrong.
// A working relay publishes within 100 ms.
const relayLate = 10 * time.Second

// examine runs all checks in one snapshot. It counts all jobs, which takes seconds for millions.
// The snapshot makes counts and tables comparable while jobs move, and holds back the cleaning of dead rows for as long as it
// runs. An error of one check ends all: the rest would fail, too.
func examine(ctx context.Context, conn *pgx.Conn, c config.Database) (findings []finding, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		e := examination{q: dbsqlc.New(tx), config: c}
		for _, check := range []func(context.Context) error{e.writable, e.identity, e.counts, e.rows, e.relay, e.retention, e.tables,
			e.holders, e.connections, e.slots, e.wraparound} {
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
	config   config.Database
	findings []finding
}

func (e *examination) addf(ok bool, format string, args ...any) {
	e.findings = append(e.findings, finding{OK: ok, Text: fmt.Sprintf(format, args...)})
}

// writable is the only finding that tells of a standby, and all checks work there.
func (e *examination) writable(ctx context.Context) error {
	probe, err := e.q.SystemProbe(ctx)
	if probe.ReadOnly {
		e.addf(false, "the database is read-only: it is a standby, or default_transaction_read_only is on; let DATABASE_URL lead to the primary")
	}
	return err
}

// identity reports a copy, or a restored backup, on which no node has worked yet.
func (e *examination) identity(ctx context.Context) error {
	found, err := e.q.SystemGetIdentity(ctx)
	if err == nil && found.Moved {
		e.addf(false, "the database was restored or copied, or its server has failed over, and no node has worked on it since: if it is a copy, start nodes with OJS_COPY=true, "+
			"or they send its webhooks and fire its crons; consumers of events that are ahead of it are answered 410")
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

// holders shows ten at most, the oldest first. PostgreSQL shows the transactions of other roles only to members of pg_read_all_stats.
func (e *examination) holders(ctx context.Context) error {
	holders, err := e.q.DoctorXmin(ctx)
	if err != nil {
		return err
	}
	rights, err := e.q.DoctorRights(ctx)
	if err != nil {
		return err
	}
	for _, h := range holders {
		e.addf(false, "%s keeps dead rows from being cleaned, for %s", h.Holder, seconds(h.Seconds))
	}
	if !rights.SeesAll {
		e.findings = append(e.findings, finding{Blind: true,
			Text: fmt.Sprintf("cannot see whether transactions of other roles, which have %d sessions in this database, "+
				"keep dead rows from being cleaned or events from being published: GRANT pg_read_all_stats TO %s",
				rights.Hidden, pgx.Identifier{rights.Role}.Sanitize())})
	} else if len(holders) == 0 {
		e.addf(true, "no transaction older than a minute keeps dead rows from being cleaned")
	}
	return nil
}

// retentionLate is how long data may be stored beyond its retention: it is looked at every minute, or ten if nothing happens.
const retentionLate = time.Hour

// retention finds partitions that should have been dropped.
func (e *examination) retention(ctx context.Context) error {
	rows, err := e.q.DoctorRetention(ctx)
	for _, r := range rows {
		behind := seconds(r.Seconds)
		what := strings.ReplaceAll(r.Data, "_", " ")
		if behind < retentionLate {
			e.addf(true, "%s are dropped in time: the oldest partition is %s beyond its retention, limit %s", what, behind, retentionLate)
			continue
		}
		e.addf(false, "%s are kept too long: partition ojs.%s should have been dropped %s ago, limit %s: no server is running, its retention fails "+
			"(see its log), or a transaction that uses the table stays open (see below, and pg_locks)", what, r.Part, behind, retentionLate)
	}
	return err
}

// otherConns are those of a node that are not of its pool: one for LISTEN, one for health checks.
const otherConns = 2

// connections compares what is free with what the nodes may still open. Without a node it is what one would open. The nodes are taken to
// have the settings of this call. Behind a pooler the pool is that of the pooler.
func (e *examination) connections(ctx context.Context) error {
	c, err := e.q.DoctorConnections(ctx)
	if err != nil {
		return err
	}
	each := int64(e.config.MaxConns) + otherConns
	if e.config.Pooler() {
		each = otherConns
	}
	nodes := max(1, c.Nodes)
	wanted := max(0, nodes*each-c.Ojsd)
	for _, l := range []struct {
		of, change  string
		used, limit int64
	}{
		{"the server", "raise max_connections", c.Server, c.MaxServer},
		{"the database", "raise it with ALTER DATABASE … CONNECTION LIMIT", c.Database, c.MaxDatabase},
		{"the role", "raise it with ALTER ROLE … CONNECTION LIMIT", c.Role, c.MaxRole},
	} {
		if l.limit < 0 { // none
			continue
		}
		low := l.limit-l.used < wanted
		e.addf(!low, "%d of %d connections of %s are in use, and %d nodes with OJS_DATABASE_MAX_CONNS=%d may open %d more%s",
			l.used, l.limit, l.of, nodes, e.config.MaxConns, wanted,
			hint(low, "lower OJS_DATABASE_MAX_CONNS, end other sessions (pg_stat_activity), or "+l.change))
	}
	return nil
}

// slots takes a slot for forgotten, or its reader for too slow, when it keeps more WAL than PostgreSQL does by itself.
func (e *examination) slots(ctx context.Context) error {
	slots, err := e.q.DoctorSlots(ctx)
	if err != nil {
		return err
	}
	for _, s := range slots {
		use, advice := "in use", "look at the reader of the slot"
		if !s.Active {
			use, advice = "not in use", fmt.Sprintf("start its reader, or SELECT pg_drop_replication_slot('%s')",
				strings.ReplaceAll(s.Name, "'", "''"))
		}
		until := "it is kept until the disk is full"
		if s.SafeBytes >= 0 {
			until = fmt.Sprintf("PostgreSQL gives the slot up after %d MiB more", s.SafeBytes>>20)
		}
		switch {
		case s.WalStatus == "lost":
			e.addf(false, "replication slot %s (%s, %s) has lost WAL that its reader needs: make the standby or subscriber anew, and SELECT pg_drop_replication_slot('%s')",
				s.Name, s.Kind, use, strings.ReplaceAll(s.Name, "'", "''"))
		case s.WalStatus == "unreserved" || s.KeptBytes > s.NormalBytes:
			e.addf(false, "replication slot %s (%s, %s) keeps %d MiB of WAL, limit %d MiB (max_wal_size); %s: %s",
				s.Name, s.Kind, use, s.KeptBytes>>20, s.NormalBytes>>20, until, advice)
		default:
			e.addf(true, "replication slot %s (%s, %s) keeps %d MiB of WAL, limit %d MiB (max_wal_size)", s.Name, s.Kind, use,
				s.KeptBytes>>20, s.NormalBytes>>20)
		}
	}
	if len(slots) == 0 {
		e.addf(true, "no replication slot keeps WAL")
	}
	return nil
}

const (
	// failsafeAge is the default of vacuum_failsafe_age, at which vacuum leaves out all but freezing.
	failsafeAge = 1_600_000_000

	// lastAge is about where PostgreSQL refuses new ids, and with them all writes.
	lastAge = 2_144_000_000
)

// wraparound begins at twice the age at which autovacuum freezes whatever happens: until then it may be just about to.
func (e *examination) wraparound(ctx context.Context) error {
	ages, err := e.q.DoctorWraparound(ctx)
	for _, a := range ages {
		limit := min(2*a.FreezeAge, failsafeAge)
		old := a.Age > limit
		e.addf(!old, "the oldest %s id of the database is %d ids old, limit %d; PostgreSQL stops writes at %d%s", a.Kind, a.Age, limit,
			lastAge,
			hint(old, "autovacuum does not freeze: end old transactions, drop unused slots, then VACUUM (FREEZE) the tables with the oldest "+
				"relfrozenxid or relminmxid in pg_class"))
	}
	return err
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
