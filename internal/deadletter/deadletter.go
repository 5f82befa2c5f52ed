// Package deadletter lists, retries and deletes dead letters: jobs that failed for good. It changes jobs only through
// package queue.
package deadletter

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// Store is the dead letters. Use New.
type Store struct {
	db      *pg.DB
	commits *eventlog.Commits
	jobs    *queue.Store
}

// New returns the dead letters of the jobs.
func New(db *pg.DB, commits *eventlog.Commits, jobs *queue.Store) *Store {
	return &Store{db, commits, jobs}
}

// batchRows bounds a statement that retries or deletes many: 20 ms for a delete.
const batchRows = 1000

// Key is a place in the list: newest first, then the highest id.
type Key struct {
	At time.Time
	ID [16]byte
}

// String is a cursor: the time in microseconds, which is what the database has, and the id.
func (k Key) String() string {
	b := binary.BigEndian.AppendUint64(nil, uint64(k.At.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(append(b, k.ID[:]...))
}

// ParseKey reads a cursor.
func ParseKey(text string) (key Key, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != 24 {
		return key, false
	}
	key.At, key.ID = time.UnixMicro(int64(binary.BigEndian.Uint64(b))), [16]byte(b[8:])
	year := key.At.UTC().Year()
	return key, year > 0 && year < 10_000
}

// Page is which part of the list is wanted.
type Page struct {
	Everything    bool // every discarded job
	Before        *Key // nil: from the newest on
	Offset, Limit int
}

var (
	forever = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	noID    [16]byte
	highest = [16]byte(bytes.Repeat([]byte{0xff}, 16))
	anyIDs  = [][16]byte{}
)

// List returns a page, whether there is more, and the number of matches up to 10 000.
func (s *Store) List(ctx context.Context, f Filter, page Page) (jobs []*job.Record, more bool, total int64, err error) {
	w, err := s.criteria(ctx, f)
	if err != nil {
		return nil, false, 0, err
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	count := dbsqlc.DeadLetterCountParams{
		Since: w.since, Until: w.until, Queues: w.queues, Types: w.types, TypePrefixes: w.typePrefixes,
		ErrorTypes: w.errorTypes, ErrorCodes: w.errorCodes, MaxRows: queue.CountLimit,
	}
	list := dbsqlc.DeadLetterListPageParams{
		Since: w.since, Until: w.until, Queues: w.queues, Types: w.types, TypePrefixes: w.typePrefixes,
		ErrorTypes: w.errorTypes, ErrorCodes: w.errorCodes, Before: forever, BeforeID: highest,
		SkipRows: int64(page.Offset), PageRows: int64(page.Limit) + 1,
	}
	if page.Before != nil {
		list.Before, list.BeforeID = pgtype.Timestamptz{Time: page.Before.At, Valid: true}, page.Before.ID
	}
	var rows []dbsqlc.Job
	if page.Everything {
		rows, err = s.db.Q.JobDiscardedListPage(ctx, dbsqlc.JobDiscardedListPageParams(list))
	} else {
		rows, err = s.db.Q.DeadLetterListPage(ctx, list)
	}
	if err != nil {
		return nil, false, 0, pg.ClientError(err)
	}
	if page.Everything {
		total, err = s.db.Q.JobDiscardedCount(ctx, dbsqlc.JobDiscardedCountParams(count))
	} else {
		total, err = s.db.Q.DeadLetterCount(ctx, count)
	}
	if err != nil {
		return nil, false, 0, pg.ClientError(err)
	}
	if more = len(rows) > page.Limit; more {
		rows = rows[:page.Limit]
	}
	for i := range rows {
		jobs = append(jobs, (*job.Record)(&rows[i]))
	}
	return jobs, more, total, nil
}

// Stats are the figures of all dead letters, or of those of a queue.
type Stats struct {
	Total                        int64
	ByQueue, ByType, ByErrorType map[string]int64
	Oldest, Newest               time.Time // zero: there are none
	Now                          time.Time // by the database's clock
}

// Stats reads them in one statement.
func (s *Store) Stats(ctx context.Context, queues []string) (Stats, error) {
	stats := Stats{ByQueue: map[string]int64{}, ByType: map[string]int64{}, ByErrorType: map[string]int64{}}
	now, err := s.db.Now(ctx)
	if err != nil {
		return stats, pg.ClientError(err)
	}
	stats.Now = now
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	groups, err := s.db.Q.DeadLetterStats(ctx, pg.Strings(queues))
	for _, g := range groups {
		stats.Total += g.Count
		stats.ByQueue[g.Queue] += g.Count
		stats.ByType[g.Type] += g.Count
		stats.ByErrorType[unquoted(g.ErrorType)] += g.Count
		if stats.Oldest.IsZero() || g.Oldest.Time.Before(stats.Oldest) {
			stats.Oldest = g.Oldest.Time
		}
		if g.Newest.Time.After(stats.Newest) {
			stats.Newest = g.Newest.Time
		}
	}
	return stats, pg.ClientError(err)
}

func unquoted(literal string) string {
	text, _ := jsontext.AppendUnquote(nil, `"`+literal+`"`) // it was cut out of valid JSON
	return string(text)
}

// Get reads a dead letter. A job in another state is none.
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

// RetryOne moves a dead letter back to available; see queue.Store.Retry.
func (s *Store) RetryOne(ctx context.Context, id ID, override *job.Override) (*job.Record, error) {
	if !id.valid {
		return nil, id.missing()
	}
	retried, err := s.jobs.Retry(ctx, id.id, override)
	return retried, id.orMissing(err)
}

// Delete removes a discarded job for good.
func (s *Store) Delete(ctx context.Context, id ID) error {
	if !id.valid {
		return id.missing()
	}
	deleted, err := s.deleteDiscarded(ctx, id.id)
	if err == nil && !deleted {
		err = id.missing()
	}
	return err
}

func (s *Store) deleteDiscarded(ctx context.Context, id [16]byte) (deleted bool, err error) {
	err = s.jobs.InTx(ctx, func(tx *queue.Tx) error {
		res, err := tx.Bulk(ctx, queue.BulkChange{Op: job.BulkDelete, IDs: [][16]byte{id}, States: []ojs.JobState{ojs.StateDiscarded}})
		deleted = res.Changed[id]
		return err
	})
	return deleted, err
}

// Retried is what became of a bulk retry.
type Retried struct {
	Matched, Succeeded int
	Failed             []FailedRetry
}

// FailedRetry is a job that matched and was gone, or no dead letter any more, when its turn came.
type FailedRetry struct {
	ID     [16]byte
	Reason string
}

// Retry retries all that match and were dead letters when it began, oldest first, in transactions of up to 1 000.
func (s *Store) Retry(ctx context.Context, f Filter) (Retried, error) {
	var res Retried
	now, err := s.db.Now(ctx) // a job that fails again meanwhile is newer
	if err != nil {
		return res, pg.ClientError(err)
	}
	w, err := s.criteria(ctx, f)
	if err != nil {
		return res, err
	}
	if w.until.InfinityModifier != pgtype.Finite || w.until.Time.After(now) {
		w.until = pg.Timestamp(now)
	}
	p := dbsqlc.DeadLetterListForBulkParams{
		After: pg.Beginning, AfterID: noID, Since: w.since, Until: w.until, Ids: w.ids, Queues: w.queues, Types: w.types,
		TypePrefixes: w.typePrefixes, ErrorTypes: w.errorTypes, ErrorCodes: w.errorCodes, MaxRows: batchRows,
	}
	for {
		rows, err := s.deadLettersForBulk(ctx, p)
		if err != nil || len(rows) == 0 {
			return res, err
		}
		ids := make([][16]byte, len(rows))
		for i, r := range rows {
			ids[i] = r.ID
		}
		if err := s.retryBatch(ctx, ids, &res); err != nil {
			return res, err
		}
		last := rows[len(rows)-1]
		p.After, p.AfterID = last.DeadLetteredAt, last.ID
		if len(rows) < batchRows {
			return res, nil
		}
	}
}

func (s *Store) deadLettersForBulk(ctx context.Context, p dbsqlc.DeadLetterListForBulkParams) ([]dbsqlc.DeadLetterListForBulkRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.DeadLetterListForBulk(ctx, p)
	return rows, pg.ClientError(err)
}

func (s *Store) retryBatch(ctx context.Context, ids [][16]byte, res *Retried) error {
	var done queue.BulkResult
	err := s.jobs.InTx(ctx, func(tx *queue.Tx) (err error) {
		done, err = tx.Bulk(ctx, queue.BulkChange{Op: job.BulkRetry, IDs: ids, States: []ojs.JobState{ojs.StateDiscarded}})
		return err
	})
	if err != nil {
		return err
	}
	res.Matched += len(ids)
	res.Succeeded += len(done.Changed)
	for _, id := range ids {
		if done.Changed[id] {
			continue
		}
		reason := "not found"
		if state, ok := done.Skipped[id]; ok {
			reason = "job is " + string(state)
		}
		res.Failed = append(res.Failed, FailedRetry{id, reason})
	}
	return nil
}

// Purge deletes all that match, oldest first, in statements of up to 1 000, and returns how many.
func (s *Store) Purge(ctx context.Context, f Filter) (int64, error) {
	w, err := s.criteria(ctx, f)
	if err != nil {
		return 0, err
	}
	return s.deleteDeadLetters(ctx, w, Key{}, "api", "purged")
}

// deleteDeadLetters deletes what matches, up to a key if it has a time.
func (s *Store) deleteDeadLetters(ctx context.Context, w criteria, upTo Key, source, reason string) (deleted int64, err error) {
	p := dbsqlc.DeadLetterDeleteParams{
		After: pg.Beginning, AfterID: noID, Since: w.since, Until: w.until, UntilID: highest, Ids: w.ids, Queues: w.queues,
		Types: w.types, TypePrefixes: w.typePrefixes, ErrorTypes: w.errorTypes, ErrorCodes: w.errorCodes,
		MaxRows: batchRows, Source: source, Reason: reason, Node: s.commits.Node, EventType: eventlog.StateChanged,
	}
	if !upTo.At.IsZero() {
		p.Until, p.UntilID = pgtype.Timestamptz{Time: upTo.At, Valid: true}, upTo.ID
	}
	for {
		rows, err := s.deadLetterDelete(ctx, p)
		deleted += int64(len(rows))
		if err != nil || len(rows) < batchRows {
			return deleted, err
		}
		last := rows[len(rows)-1]
		p.After, p.AfterID = last.DeadLetteredAt, last.ID
	}
}

func (s *Store) deadLetterDelete(ctx context.Context, p dbsqlc.DeadLetterDeleteParams) ([]dbsqlc.DeadLetterDeleteRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.DeadLetterDelete(ctx, p)
	if err == nil {
		eventlog.Emit(ctx, s.commits, rows, deadLetterDeleteChange(p.Reason))
	}
	if len(rows) > 0 {
		s.commits.Committed()
	}
	return rows, pg.ClientError(err)
}
