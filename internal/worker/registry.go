package worker

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Ref names a worker. The statement that acts on it compares the tenant, because an id that is free again may be taken by another one.
type Ref struct {
	Tenant string // "": an operator, who reaches the workers of all
	ID     string
}

// Deregister removes a worker. Its jobs stay reserved until their leases end, unless the worker has been declared dead: then
// they are failed at once. The delete and its event are one statement. Of two calls at once the second one gets not found.
// The cache is changed after the commit: a worker with the same id that comes back is not quiet.
func (s *Store) Deregister(ctx context.Context, l Leave) error {
	worker, err := s.Get(ctx, l.Ref)
	if err != nil {
		return err
	}
	// The entry is what tells other nodes that jobs of a dead worker are left, so they must be failed before it goes.
	if worker.StaleAt.Valid {
		if _, err := s.reapOne(ctx, l.Ref); err != nil && !errors.Is(err, errAlive) {
			return err
		}
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	// It takes the row whatever its state; a heartbeat that arrives later registers the worker anew.
	deleted, err := s.db.Q.WorkerDeregister(ctx, dbsqlc.WorkerDeregisterParams{
		ID: l.ID, Tenant: l.Tenant, Source: eventlog.WorkerSource(l.ID), Node: s.commits.Node,
		Reason: l.Reason, EventType: ojs.EventWorkerStopped,
		JobsCompleted: pgtype.Int8{Int64: l.JobsCompleted, Valid: l.JobsCompleted >= 0},
	})
	if err != nil {
		return pg.WriteError(err)
	}
	if len(deleted) == 0 {
		return spec.NotFound("worker", l.ID)
	}
	if !deleted[0].Stopped {
		eventlog.Emit(ctx, s.commits, deleted, deregisterChange)
	}
	s.workers.SetQuiet(l.ID, false)
	s.commits.Committed()
	return nil
}

// Get reads a worker. The error of an unknown id is spec.NotFound. A dead worker is found, too, for an hour.
func (s *Store) Get(ctx context.Context, ref Ref) (Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	w, err := s.db.Q.WorkerGet(ctx, ref.ID, ref.Tenant)
	if errors.Is(err, pgx.ErrNoRows) {
		return Record{}, spec.NotFound("worker", ref.ID)
	}
	return w, pg.ClientError(err)
}

// Reserved returns those of the jobs that are reserved for the worker. At most those of the given ids, because no index has
// the jobs of a worker.
func (s *Store) Reserved(ctx context.Context, worker Ref, ids [][16]byte) ([]ReservedJob, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListByWorker(ctx, dbsqlc.JobListByWorkerParams{Ids: ids, WorkerID: worker.ID, Tenant: worker.Tenant})
	return rows, pg.ClientError(err)
}

// Filter chooses workers: the living before the dead, both with the latest sign of life first. Empty fields match all. Of
// After and Offset at most one counts. States are those of Record, and stale. Queues matches reported queues and those of
// fetches.
type Filter struct {
	Tenant         string // "": the workers of all
	States, Queues []string
	After          *Key // nil: from the first
	Offset, Limit  int
}

// Key is the place of a worker in the list. A worker that gives a sign of life moves to the front. Pages may therefore miss
// or repeat a worker that calls between them (docs/reference/workers.md, Registry).
type Key struct {
	Dead bool
	Seen time.Time
	ID   string
}

// KeyOf is the place of a worker. It is taken from the row as it was read; the place of the worker may have changed since.
func KeyOf(w *Record) Key { return Key{w.StaleAt.Valid, w.LastSeenAt.Time, w.ID} }

// String encodes the key as a cursor: whether the worker is dead, the time in microseconds, the precision of the database,
// and the id. The id comes last, as it may contain any byte but U+0000.
func (k Key) String() string {
	b := []byte{0}
	if k.Dead {
		b[0] = 1
	}
	b = binary.BigEndian.AppendUint64(b, uint64(k.Seen.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(b, k.ID...))
}

// ParseKey decodes a cursor. It refuses what String cannot have made, because PostgreSQL refuses times and texts that are
// out of its range.
func ParseKey(text string) (key Key, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < 10 || b[0] > 1 {
		return key, false
	}
	key = Key{b[0] == 1, time.UnixMicro(int64(binary.BigEndian.Uint64(b[1:]))), string(b[9:])}
	year := key.Seen.UTC().Year()
	return key, year > 0 && year < 10_000 && jsonread.IsName(key.ID) && utf8.ValidString(key.ID)
}

// Page is a part of the list of workers. The three figures come from three statements without a common snapshot.
type Page struct {
	Workers []Record
	More    bool   // workers follow this page
	Matches int64  // number of workers that match the filter, on all pages
	Totals  Totals // of all workers, or of all of the tenant
}

// List returns a page of workers. A page behind a dead worker has no living ones any more: LivingBefore is then before all
// times.
func (s *Store) List(ctx context.Context, l Filter) (Page, error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return Page{}, pg.ClientError(err)
	}
	defer done()
	states, queues := pg.Strings(l.States), pg.Strings(l.Queues)
	p := dbsqlc.WorkerListPageParams{
		Tenant: l.Tenant, LivingBefore: pg.End, DeadBefore: pg.End, States: states, Queues: queues, SkipRows: int64(l.Offset),
		PageRows: int64(l.Limit) + 1, MaxRows: int64(l.Offset+l.Limit) + 1, // one more tells whether there are more
	}
	switch {
	case l.After != nil && l.After.Dead:
		p.LivingBefore, p.DeadBefore, p.DeadBeforeID = pg.Beginning, pg.Timestamp(l.After.Seen), l.After.ID
	case l.After != nil:
		p.LivingBefore, p.LivingBeforeID = pg.Timestamp(l.After.Seen), l.After.ID
	}
	rows, err := s.db.Q.WorkerListPage(ctx, p)
	if err != nil {
		return Page{}, pg.ClientError(err)
	}
	more := len(rows) > l.Limit
	rows = rows[:min(len(rows), l.Limit)]
	page := Page{Workers: rows, More: more}
	if page.Matches, err = s.db.Q.WorkerCount(ctx, dbsqlc.WorkerCountParams{Tenant: l.Tenant, States: states, Queues: queues}); err != nil {
		return Page{}, pg.ClientError(err)
	}
	page.Totals, err = s.totals(ctx, l.Tenant)
	return page, pg.ClientError(err)
}

// Totals counts workers by state. The answer about the health of a node shows them.
func (s *Store) Totals(ctx context.Context) (Totals, error) { return s.totals(ctx, "") }

// totals counts all rows: dead workers go after an hour, so there are few.
func (s *Store) totals(ctx context.Context, tenant string) (Totals, error) {
	row, err := s.db.Q.WorkerGetTotals(ctx, tenant)
	return Totals(row), err
}

// desiredState is the state that a worker should have (docs/reference/workers.md, Directives). A worker that terminates
// stays so. Otherwise the directive of an operator takes precedence, then that of a test, then the state it reported. Every
// argument is "" if there is none. A resume, the directive running, hides a reported quiet until the worker reports
// running; the statement removes it then.
func desiredState(reported, directive, test string) string {
	switch {
	case reported == terminate:
		return reported
	case directive != "":
		return directive
	case test != "":
		return test
	case reported == quiet:
		return reported
	}
	return running
}

// States of a worker, and directives.
const (
	running   = "running"
	quiet     = "quiet"
	terminate = "terminate"
)

// isQuiet reports whether a worker in that desired state gets no jobs. The cache of quiet workers is made by this rule and WorkerListQuiet
// by the same in SQL; both must agree.
func isQuiet(desired string) bool { return desired == quiet || desired == terminate }

// Direct stores an operator's directive: running, quiet or terminate. It is committed when it returns, and may be repeated.
// This node follows at once, the others by the notification that the statement sends (docs/reference/workers.md, Quiet
// workers). The directive is stored even if the worker terminates; desiredState decides what it is told.
func (s *Store) Direct(ctx context.Context, ref Ref, directive string) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkerUpdateDirective(ctx, dbsqlc.WorkerUpdateDirectiveParams{Directive: directive, ID: ref.ID, Tenant: ref.Tenant})
	if err != nil {
		return pg.WriteError(err)
	}
	if len(rows) == 0 {
		return spec.NotFound("worker", ref.ID)
	}
	// After the commit, or a fetch could be refused for a change that is rolled back.
	s.workers.SetQuiet(ref.ID, isQuiet(desiredState(rows[0].State, directive, "")))
	return nil
}

// DirectAll stores a directive for all workers that are alive, and returns their number. It is one statement, so either all
// have the directive or none; a worker that registers at the same time may miss it.
func (s *Store) DirectAll(ctx context.Context, directive string) (int, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.WorkerUpdateDirectiveAll(ctx, directive)
	for _, r := range rows {
		s.workers.SetQuiet(r.ID, isQuiet(desiredState(r.State, directive, "")))
	}
	return len(rows), pg.WriteError(err)
}

// testDirectives lets jobs choose the state in the answers to these beats (docs/reference/workers.md, Test directives). It is
// off by default, because it lets any producer make a worker quiet. Of the jobs of one worker terminate wins over quiet.
// Nothing is stored.
func (s *Store) testDirectives(ctx context.Context, beats []Beat, res []BeatResult) error {
	if !s.config.Tests.Directives {
		return nil
	}
	var ids [][16]byte
	for _, b := range beats {
		ids = append(ids, b.Jobs.IDs...)
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := s.db.Q.JobListMetaActive(ctx, ids)
	if err != nil {
		return err
	}
	requested := make(map[string]string)
	for _, r := range rows {
		if directive := testDirective(r.Meta); directive != "" && requested[r.WorkerID.String] != terminate {
			requested[r.WorkerID.String] = directive
		}
	}
	for i, b := range beats {
		if directive := requested[b.WorkerID]; directive != "" && !b.jobsOnly {
			res[i].State = desiredState(res[i].reported, res[i].directive, directive)
		}
	}
	return nil
}

// testDirective ignores other values: meta belongs to the client.
func testDirective(meta []byte) (directive string) {
	for literal, value := range jsonread.Members(meta) {
		if string(jsonread.Name(literal)) == "test_directive" {
			directive, _ = jsonread.Text(value)
		}
	}
	if !isQuiet(directive) {
		return ""
	}
	return directive
}
