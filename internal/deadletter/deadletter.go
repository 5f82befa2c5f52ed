// Package deadletter owns lists, statistics, bulk retries and deletion of dead letters: discarded jobs that are kept because
// their retry policy says so. It deletes dead letters itself; it must never change a job in another way than through package
// queue.
package deadletter

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Store reads, retries and deletes dead letters. Use New.
// It keeps nothing in memory. Every node has one, and all of them may be used at once.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	jobs    *queue.Store

	maxLooked int64 // only tests change it
}

// New returns a store on the database.
func New(db *pg.DB, commits *eventlog.Commits, jobs *queue.Store) *Store {
	return &Store{db: db, commits: commits, jobs: jobs, maxLooked: pg.MaxLooked}
}

// batchRows bounds the rows of one statement. A delete of 1 000 rows takes 20 ms.
// More would keep the rows locked for longer and the statement nearer to its time limit; fewer cost round trips.
const batchRows = 1000

// Key is a position in the list, which has the newest dead letter first and, of the same time, the highest id.
// At is dead_lettered_at, or finished_at in a list of everything: the two are equal for a dead letter.
type Key struct {
	At time.Time
	ID [16]byte
}

// String encodes the key as a cursor: the time in microseconds, the precision of the database, and the id.
// Clients must not look into it.
func (k Key) String() string {
	b := binary.BigEndian.AppendUint64(nil, uint64(k.At.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(b, k.ID[:]...))
}

// ParseKey decodes a cursor.
// It accepts what String makes, and refuses years that PostgreSQL would not read back.
func ParseKey(text string) (key Key, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != 24 {
		return key, false
	}
	key.At, key.ID = time.UnixMicro(int64(binary.BigEndian.Uint64(b))), [16]byte(b[8:])
	year := key.At.UTC().Year()
	return key, year > 0 && year < 10_000
}

// Page chooses a part of the list.
type Page struct {
	Everything bool // all discarded jobs, also those that are not dead letters
	Before     *Key // nil: from the newest
	// Both are within the bounds of the API.
	Offset, Limit int
}

var (
	// noID and the others are bounds of the statements that are not set: noID is below every id, highest above, and anyIDs stands for no
	// condition.
	noID    [16]byte
	highest = [16]byte(bytes.Repeat([]byte{0xff}, 16))
	anyIDs  = [][16]byte{}
)

// Found is a page of dead letters. It may be shorter than the limit although there are more: its jobs are large, or few of those
// that were looked at match.
type Found struct {
	Jobs  []*job.Record
	Next  *Key  // the cursor of the next page; nil: there is none
	Total int64 // matches up to queue.CountLimit, among the newest jobs that were looked at
}

// List returns a page.
// It takes a place among the slow reads of the node.
func (s *Store) List(ctx context.Context, f Filter, page Page) (found Found, err error) {
	w, err := s.criteria(ctx, f)
	if err != nil {
		return found, err
	}
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return found, pg.ClientError(err)
	}
	defer done()
	// The count leaves out the position of the page: it is the same on each page.
	count := dbsqlc.DeadLetterCountParams{
		Tenant: w.tenant,
		Since:  w.since, Until: w.until, Queues: w.queues, Types: w.types, TypePrefixes: w.typePrefixes,
		ErrorTypes: w.errorTypes, ErrorCodes: w.errorCodes, MaxLooked: s.maxLooked, MaxRows: queue.CountLimit,
	}
	list := dbsqlc.DeadLetterListPageParams{
		Tenant: w.tenant,
		Since:  w.since, Until: w.until, Queues: w.queues, Types: w.types, TypePrefixes: w.typePrefixes,
		ErrorTypes: w.errorTypes, ErrorCodes: w.errorCodes, Before: pg.End, BeforeID: highest,
		MaxLooked: s.maxLooked, SkipRows: int64(page.Offset), PageRows: int64(page.Limit) + 1, MaxBytes: job.MaxBytes,
	}
	// The key is exclusive: the dead letter that it names was on the page before.
	if page.Before != nil {
		list.Before, list.BeforeID = pgtype.Timestamptz{Time: page.Before.At, Valid: true}, page.Before.ID
	}
	// Every job that is looked at matches, so no more than the page is looked at.
	if !w.selective() {
		count.MaxLooked, list.MaxLooked = count.MaxRows, list.SkipRows+list.PageRows
	}
	// The jobs that one statement looks at must be those of the other.
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if found.Jobs, found.Next, err = s.listPage(ctx, q, list, page); err != nil {
			return err
		}
		if page.Everything {
			found.Total, err = q.JobDiscardedCount(ctx, dbsqlc.JobDiscardedCountParams(count))
		} else {
			found.Total, err = q.DeadLetterCount(ctx, count)
		}
		return err
	})
	return found, pg.ClientError(err)
}

// listPage has two pairs of statements, which differ in the column by which they read, and so in their index.
func (s *Store) listPage(ctx context.Context, q *dbsqlc.Queries, list dbsqlc.DeadLetterListPageParams, page Page) ([]*job.Record, *Key,
	error) {
	var rows []dbsqlc.Job
	var err error
	if page.Everything {
		rows, err = q.JobDiscardedListPage(ctx, dbsqlc.JobDiscardedListPageParams(list))
	} else {
		rows, err = q.DeadLetterListPage(ctx, list)
	}
	if err != nil {
		return nil, nil, err
	}
	jobs, more := job.CutPage(rows, page.Limit, func(r *dbsqlc.Job) *job.Record { return (*job.Record)(r) })
	if more {
		last := jobs[len(jobs)-1]
		return jobs, &Key{At: last.FinishedAt.Time, ID: last.ID}, nil
	}
	// The list was not selective, and its page is not full: there are no more.
	if list.MaxLooked < s.maxLooked {
		return jobs, nil, nil
	}
	floor := dbsqlc.DeadLetterListFloorParams{Since: list.Since, Until: list.Until, Before: list.Before, BeforeID: list.BeforeID,
		Others: list.MaxLooked - 1}
	var last []dbsqlc.DeadLetterListFloorRow
	if page.Everything {
		var row []dbsqlc.JobDiscardedListFloorRow
		row, err = q.JobDiscardedListFloor(ctx, dbsqlc.JobDiscardedListFloorParams(floor))
		for _, r := range row {
			last = append(last, dbsqlc.DeadLetterListFloorRow(r))
		}
	} else {
		last, err = q.DeadLetterListFloor(ctx, floor)
	}
	if err != nil || len(last) == 0 {
		return jobs, nil, err
	}
	return jobs, &Key{At: last[0].At.Time, ID: last[0].ID}, nil
}

// Get reads a dead letter. The error of a job in another state is that of an unknown dead letter.
// Every discarded job can be read, a dead letter or not.
func (s *Store) Get(ctx context.Context, id ID) (*job.Record, error) {
	if !id.valid {
		return nil, id.missing()
	}
	found, err := s.jobs.Get(ctx, id.id)
	if err != nil {
		return nil, id.orMissing(err)
	}
	if found.State != string(ojs.StateDiscarded) {
		return nil, id.missing()
	}
	return found, nil
}

// ID is the id of a dead letter. Errors show it as the client sent it.
// The zero value is malformed, and so belongs to no dead letter.
type ID struct {
	text  string
	id    [16]byte
	valid bool
}

// ParseID never fails: the error of a malformed id is that of an unknown dead letter.
// A client cannot tell a malformed id from one that was pruned, and need not.
func ParseID(text string) ID {
	id, valid := spec.ParseID(text)
	return ID{text, id, valid}
}

// String is the id in its canonical form.
func (id ID) String() string { return spec.FormatID(id.id) }

func (id ID) missing() error { return spec.NotFound("dead_letter_job", id.text) }

// orMissing replaces the errors of a job that is unknown, or not discarded, by that of an unknown dead letter.
// docs/reference/retries.md, Dead-letter endpoints. Other errors, such as a duplicate, stay.
func (id ID) orMissing(err error) error {
	if errors.Is(err, &ojs.Error{Code: "not_found"}) || errors.Is(err, &ojs.Error{Code: "conflict"}) {
		return id.missing()
	}
	return err
}

// Stats are the figures of all dead letters, or of those of some queues.
// A map has no key without dead letters. Error types are decoded from JSON.
type Stats struct {
	Total                        int64
	ByQueue, ByType, ByErrorType map[string]int64
	Oldest, Newest               time.Time // zero if there are no dead letters
	Now                          time.Time // by the clock of the database
}

// Stats reads the figures in one statement. Without queues, or a tenant, it reads those of all.
// It groups all dead letters that match, so it costs as much as there are, and takes a place among the slow reads. Now is read
// before them, and may be a little older.
func (s *Store) Stats(ctx context.Context, tenant string, queues []string) (Stats, error) {
	stats := Stats{ByQueue: map[string]int64{}, ByType: map[string]int64{}, ByErrorType: map[string]int64{}}
	now, err := s.db.Now(ctx)
	if err != nil {
		return stats, pg.ClientError(err)
	}
	stats.Now = now
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return stats, pg.ClientError(err)
	}
	defer done()
	// An error leaves the sums of the rows that have come; the caller must look at the error first.
	groups, err := s.db.Q.DeadLetterStats(ctx, pg.Strings(queues), tenant)
	for _, g := range groups {
		errorType, _ := jsontext.AppendUnquote(nil, `"`+g.ErrorType+`"`) // the reverse of literals; SQL has cut it out of valid JSON
		stats.Total += g.Count
		stats.ByQueue[g.Queue] += g.Count
		stats.ByType[g.Type] += g.Count
		stats.ByErrorType[string(errorType)] += g.Count
		if stats.Oldest.IsZero() || g.Oldest.Time.Before(stats.Oldest) {
			stats.Oldest = g.Oldest.Time
		}
		if g.Newest.Time.After(stats.Newest) {
			stats.Newest = g.Newest.Time
		}
	}
	return stats, pg.ClientError(err)
}
