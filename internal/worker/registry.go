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
	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Deregister removes a worker. Its jobs stay reserved until their leases end, unless the worker has been declared dead: then
// they are failed at once.
func (s *Store) Deregister(ctx context.Context, l Leave) error {
	worker, err := s.Get(ctx, l.WorkerID)
	if err != nil {
		return err
	}
	if worker.StaleAt.Valid {
		if _, err := s.reapOne(ctx, l.WorkerID); err != nil && !errors.Is(err, errAlive) {
			return err
		}
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	deleted, err := s.db.Q.WorkerDeregister(ctx, dbsqlc.WorkerDeregisterParams{
		ID: l.WorkerID, Source: eventlog.WorkerSource(l.WorkerID), Node: s.commits.Node, Reason: l.Reason, EventType: ojs.EventWorkerStopped,
		JobsCompleted: pgtype.Int8{Int64: l.JobsCompleted, Valid: l.JobsCompleted >= 0},
	})
	if err != nil {
		return pg.WriteError(err)
	}
	if len(deleted) == 0 {
		return ojs.ErrNotFound("worker", l.WorkerID)
	}
	eventlog.Emit(ctx, s.commits, deleted, deregisterChange)
	s.workers.SetQuiet(l.WorkerID, false)
	s.commits.Committed()
	return nil
}

// Get reads a worker. The error of an unknown id is ojs.ErrNotFound.
func (s *Store) Get(ctx context.Context, id string) (Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	w, err := s.db.Q.WorkerGet(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Record{}, ojs.ErrNotFound("worker", id)
	}
	return Record(w), pg.ClientError(err)
}

// Reserved returns those of the jobs that are reserved for the worker.
func (s *Store) Reserved(ctx context.Context, worker string, ids [][16]byte) ([]ReservedJob, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobListByWorker(ctx, ids, worker)
	return sliceutil.Map(rows, func(r dbsqlc.JobListByWorkerRow) ReservedJob { return ReservedJob(r) }), pg.ClientError(err)
}

// Filter chooses workers: the living before the dead, both with the latest sign of life first. Empty fields match all.
type Filter struct {
	Tenant         string // "": the workers of all
	States, Queues []string
	After          *Key // nil: from the first
	Offset, Limit  int
}

// Key is the place of a worker in the list. A worker that gives a sign of life moves to the front.
type Key struct {
	Dead bool
	Seen time.Time
	ID   string
}

// KeyOf is the place of a worker.
func KeyOf(w *Record) Key { return Key{w.StaleAt.Valid, w.LastSeenAt.Time, w.ID} }

// String encodes the key as a cursor: whether the worker is dead, the time in microseconds, the precision of the database,
// and the id.
func (k Key) String() string {
	b := []byte{0}
	if k.Dead {
		b[0] = 1
	}
	b = binary.BigEndian.AppendUint64(b, uint64(k.Seen.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(b, k.ID...))
}

// ParseKey decodes a cursor.
func ParseKey(text string) (key Key, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < 10 || b[0] > 1 {
		return key, false
	}
	key = Key{b[0] == 1, time.UnixMicro(int64(binary.BigEndian.Uint64(b[1:]))), string(b[9:])}
	year := key.Seen.UTC().Year()
	return key, year > 0 && year < 10_000 && payload.IsName(key.ID) && utf8.ValidString(key.ID)
}

// Page is a part of the list of workers.
type Page struct {
	Workers []Record
	More    bool   // workers follow this page
	Matches int64  // number of workers that match the filter, on all pages
	Totals  Totals // of all workers, or of all of the tenant
}

// List returns a page of workers.
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
	page := Page{Workers: sliceutil.Map(rows, func(w dbsqlc.Worker) Record { return Record(w) }), More: more}
	if page.Matches, err = s.db.Q.WorkerCount(ctx, dbsqlc.WorkerCountParams{Tenant: l.Tenant, States: states, Queues: queues}); err != nil {
		return Page{}, pg.ClientError(err)
	}
	page.Totals, err = s.totals(ctx, l.Tenant)
	return page, pg.ClientError(err)
}

// Totals counts workers by state.
func (s *Store) Totals(ctx context.Context) (Totals, error) { return s.totals(ctx, "") }

func (s *Store) totals(ctx context.Context, tenant string) (Totals, error) {
	row, err := s.db.Q.WorkerGetTotals(ctx, tenant)
	return Totals(row), err
}
