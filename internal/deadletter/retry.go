package deadletter

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// RetryOne moves a dead letter back to available; see queue.Store.Retry.
// A job that is not discarded is 404 here, where queue.Store.Retry says 409.
func (s *Store) RetryOne(ctx context.Context, id ID, override *job.Override) (*job.Record, error) {
	if !id.valid {
		return nil, id.missing()
	}
	retried, err := s.jobs.Retry(ctx, id.id, override)
	return retried, id.orMissing(err)
}

// Retried is the outcome of a bulk retry.
type Retried struct {
	Matched, Succeeded int
	Failed             []FailedRetry
}

// FailedRetry is a job that matched the filter but was deleted, or no longer discarded, when it was retried, or whose unique key
// another job has.
type FailedRetry struct {
	ID     [16]byte
	Reason string
}

// Retry retries the jobs that match and were dead letters when it began, oldest first, in transactions of up to 1 000 jobs.
//
// Each transaction commits by itself. After an error the result has what was done before, and the error says that the outcome is
// partly known. Two calls at once divide the jobs: the later one waits for the rows and reports those that it finds available as
// failed.
func (s *Store) Retry(ctx context.Context, f Filter) (Retried, error) {
	var res Retried
	err := s.eachBatch(ctx, f, func(ids [][16]byte) error {
		// A batch that fails changes nothing, and the loop ends: what came before stays retried.
		err := s.retryBatch(ctx, ids, &res)
		if err != nil && res.Succeeded > 0 {
			err = pg.PartlyError(err)
		}
		return err
	})
	return res, err
}

// Matching counts the dead letters that match, and gives the ids of the oldest ten.
func (s *Store) Matching(ctx context.Context, f Filter) (n int64, sample [][16]byte, err error) {
	err = s.eachBatch(ctx, f, func(ids [][16]byte) error {
		n += int64(len(ids))
		sample = append(sample, ids[:min(len(ids), queue.Sampled-len(sample))]...)
		return nil
	})
	return n, sample, err
}

// eachBatch calls do with the ids of up to 1 000 jobs at a time that match and were dead letters when it began, oldest first.
func (s *Store) eachBatch(ctx context.Context, f Filter, do func(ids [][16]byte) error) error {
	now, err := s.db.Now(ctx) // a retried job that fails again is newer and must not match again
	if err != nil {
		return pg.ClientError(err)
	}
	w, err := s.criteria(ctx, f)
	if err != nil {
		return err
	}
	if w.until.InfinityModifier != pgtype.Finite || w.until.Time.After(now) {
		w.until = pg.Timestamp(now)
	}
	p := dbsqlc.DeadLetterListForBulkParams{
		Tenant: w.tenant,
		After:  pg.Beginning, AfterID: noID, Since: w.since, Until: w.until, Ids: w.ids, Queues: w.queues, Types: w.types,
		TypePrefixes: w.typePrefixes, ErrorTypes: w.errorTypes, ErrorCodes: w.errorCodes, MaxRows: batchRows,
	}
	for {
		// The rows are not locked here. Bulk checks their state under the lock. The read is bounded by the statement timeout and takes no
		// place among the slow reads, because the change that follows has none either.
		bounded, cancel := s.db.Bounded(ctx)
		rows, err := s.db.Q.DeadLetterListForBulk(bounded, p)
		cancel()
		if err != nil || len(rows) == 0 {
			return pg.ClientError(err)
		}
		ids := make([][16]byte, len(rows))
		for i, r := range rows {
			ids[i] = r.ID
		}
		if err := do(ids); err != nil || len(rows) < batchRows {
			return err
		}
		last := rows[len(rows)-1]
		// Jobs that could not be retried stay dead letters; the key keeps the loop from finding them again.
		p.After, p.AfterID = last.DeadLetteredAt, last.ID
	}
}

// retryBatch changes res only after the commit, so a batch that is tried again after a deadlock counts once.
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
		// The words are those of a bulk change (docs/reference/http.md, Bulk change).
		reason := "not found"
		if other, ok := done.Duplicates[id]; ok {
			reason = "job " + spec.FormatID(other) + " has its unique key"
		} else if state, ok := done.Skipped[id]; ok {
			reason = "job is " + string(state)
		}
		res.Failed = append(res.Failed, FailedRetry{id, reason})
	}
	return nil
}
