package webhook

import (
	"context"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

// Replay delivers events of a time span again: those whose delivery was given up, or all that match and are kept. It returns
// their number. Portions that were committed stay after an error, and the number counts what they made. Replays of one
// subscription take turns by its lock, a page each. It waits for no request.
func (s *Store) Replay(ctx context.Context, id [16]byte, r Replay) (int64, error) {
	// An age such as 24h counts back from the clock of the database.
	if err := job.ResolveAges(ctx, s.db.Now, &r.Since, &r.Until); err != nil {
		return 0, pg.ClientError(err)
	}
	since, until := r.Since.At, r.Until.At
	w, err := s.Get(ctx, id)
	if err != nil {
		return 0, err
	}
	if r.All {
		return s.replayAll(ctx, w, since, until)
	}
	// Deliveries that fail again while the replay runs are left out by it; otherwise a fast failing endpoint would keep the
	// loop going without end.
	began, err := s.db.Now(ctx)
	if err != nil {
		return 0, pg.ClientError(err)
	}
	var total int64
	for {
		var n int64
		err := s.replayPage(ctx, w, func(ctx context.Context, q *dbsqlc.Queries) error {
			row, err := q.WebhookReplayFailed(ctx, dbsqlc.WebhookReplayFailedParams{
				WebhookID: id, Began: pg.Timestamp(began), Since: pg.Timestamp(since), Until: pg.Timestamp(until), MaxRows: replayRows,
			})
			n = row.Deliveries
			return err
		})
		if err != nil {
			return total, replayError(total, err)
		}
		if total += n; n < replayRows {
			return total, nil
		}
	}
}

// It bounds how long the lock of the subscription keeps outcomes from being recorded.
const replayRows = 1000

// replayPage locks the subscription, so that two replays do not both insert a missing delivery, and a delivery that finishes
// meanwhile makes the next one due.
func (s *Store) replayPage(ctx context.Context, w *Webhook, replay func(ctx context.Context, q *dbsqlc.Queries) error) error {
	return pg.ClientError(s.inPlannedTx(ctx, func(ctx context.Context, q *dbsqlc.Queries) error {
		if err := q.WebhookLockByID(ctx, [][16]byte{w.ID}); err != nil {
			return err
		}
		if err := replay(ctx, q); err != nil || w.Ordering != "subject" {
			return err
		}
		return q.WebhookDeliveryQueueOrdered(ctx, w.ID)
	}))
}

// replayError is the error of a replay that has made deliveries before.
func replayError(made int64, err error) error {
	if made == 0 {
		return err
	}
	return pg.PartlyError(err)
}

// replayAll reads the log once, one page per transaction. The place of the last event that was looked at leads to the next
// page. It ends with a page that is not full, or one that lies behind until.
func (s *Store) replayAll(ctx context.Context, w *Webhook, since, until time.Time) (total int64, err error) {
	p := dbsqlc.WebhookReplayAllParams{WebhookID: w.ID, Since: pg.Timestamp(since), Until: pg.Timestamp(until), MaxRows: replayRows}
	for {
		var row dbsqlc.WebhookReplayAllRow
		err := s.replayPage(ctx, w, func(ctx context.Context, q *dbsqlc.Queries) (err error) {
			row, err = q.WebhookReplayAll(ctx, p)
			return err
		})
		if err != nil {
			return total, replayError(total, err)
		}
		if total += row.Deliveries; row.Scanned < replayRows || row.Over {
			return total, nil
		}
		p.AfterSeq, p.AfterSub = row.LastSeq, row.LastSub
	}
}
