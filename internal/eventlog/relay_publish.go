package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// publication is the writing part of a pass: it decides from one scan.
type publication struct {
	relay *Relay
	conn  *pgx.Conn       // in the pass's transaction
	q     *dbsqlc.Queries // of conn
	found scan
	done  pass
}

// run commits what it has written. If there is nothing to write it leaves the transaction open. Late rows come first, and
// alone: they must be published before anything that the same scan shows as new.
func (p *publication) run(ctx context.Context) error {
	if len(p.found.late) > 0 {
		return p.publishLate(ctx)
	}
	r := p.relay
	now := r.Time.Now()
	r.observations.record(p.found.watermark, p.found.head, now)
	d := r.observations.decide(p.found, now, r.config.GapDelay)
	p.done.wait = d.wait
	switch {
	case d.upto > p.found.watermark:
		return p.publishNext(ctx, d)
	// Nothing is published, but the rows of gaps that are over must go: only a claim deletes them.
	case len(p.found.rolledBack) > 0:
		if _, err := p.claim(ctx); err != nil {
			return err
		}
		return p.commit(ctx)
	// The observation of this scan needs a bound, or no later pass could take the missing number for a rolled back one.
	default:
		return p.bind(ctx)
	}
}

// claim locks the log against retention and reset, and deletes the gaps of transactions that were rolled back. It must come
// after the scan and before the first write: the bound that it returns is above the transaction ids of all that the scan
// shows. A pass without gaps needs no claim of its own, because RelayPublish makes one. The watermark is compared with that of
// the scan, because a reset may have committed in between.
func (p *publication) claim(ctx context.Context) (bound string, err error) {
	row, err := p.q.RelayClaim(ctx)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && row.Watermark != p.found.watermark {
		return "", errLogLocked
	}
	if err != nil {
		return "", fmt.Errorf("claim: %w", err)
	}
	p.relay.observations.bind(row.Bound)
	if len(p.found.rolledBack) > 0 {
		if err := p.q.EventGapDelete(ctx, p.found.rolledBack); err != nil {
			return "", fmt.Errorf("delete gaps: %w", err)
		}
	}
	return strconv.FormatInt(row.Bound, 10), nil
}

// commit ends a pass whose writes have been sent. Those that publish rows send the commit with the statement (publishRows).
// These wait for the disk as every commit does; see RelayPublish for those that do not.
func (p *publication) commit(ctx context.Context) error {
	if err := pg.Pipeline(ctx, p.conn, pg.Commit); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// bind completes the observation of a pass that writes nothing. The id that is drawn makes this transaction one that has to be
// ended; runOnce rolls it back.
func (p *publication) bind(ctx context.Context) error {
	if !p.relay.observations.unbound() {
		return nil
	}
	bound, err := p.q.RelayBound(ctx)
	if err != nil {
		return fmt.Errorf("bound: %w", err)
	}
	p.relay.observations.bind(bound)
	return nil
}

// publishLate moves rows whose number was passed over behind all published rows and before all unpublished ones, and
// leaves the rest to the next pass. Both keep the order of a subject. The late transaction had locked the subject's row,
// so its event follows the published ones of that subject. A change made after that lock was released is not published
// yet, because this same snapshot is the first to show both.
func (p *publication) publishLate(ctx context.Context) error {
	p.done.more = true
	watermark, lastSub := p.found.watermark, p.found.lastSub
	late := p.found.late[:min(len(p.found.late), maxSub-int(lastSub))]
	if len(late) == 0 {
		return p.skipNumber(ctx)
	}
	if _, err := p.claim(ctx); err != nil {
		return err
	}
	subs := make([]int32, len(late))
	for i := range subs {
		subs[i] = lastSub + 1 + int32(i)
	}
	err := p.q.EventMoveLate(ctx, dbsqlc.EventMoveLateParams{Watermark: watermark, Numbers: late, Subs: subs})
	if err != nil {
		return fmt.Errorf("move late rows: %w", err)
	}
	p.done.late, p.done.published = len(late), len(late)
	return p.publishRows(ctx, dbsqlc.RelayPublishParams{AfterSeq: watermark, AfterSub: lastSub, Upto: watermark, Durable: true})
}

// skipNumber moves the watermark over one number, to have places for more late rows: all places of one number are taken
// after a transaction of 100 000 events that others have overtaken. The number is drawn before the claim, so that the
// transaction that owns it is below the claim's bound.
func (p *publication) skipNumber(ctx context.Context) error {
	if _, err := p.q.RelayDrawNumber(ctx); err != nil {
		return fmt.Errorf("draw number: %w", err)
	}
	bound, err := p.claim(ctx)
	if err != nil {
		return err
	}
	p.done.watermark++
	if err := p.q.RelaySkipNumber(ctx, p.done.watermark, bound); err != nil {
		return fmt.Errorf("skip number: %w", err)
	}
	return p.commit(ctx)
}

// publishNext publishes the rows up to the new watermark and records the numbers that it passes over.
func (p *publication) publishNext(ctx context.Context, d decision) error {
	p.done.watermark, p.done.published, p.done.passed = d.upto, d.rows, len(d.passed)
	p.done.more = d.wait == 0 && d.upto < p.found.head
	if len(d.passed) > 0 || len(p.found.rolledBack) > 0 {
		bound, err := p.claim(ctx)
		if err != nil {
			return err
		}
		if len(d.passed) > 0 {
			p.done.gaps = true
			if err := p.q.EventGapInsert(ctx, d.passed, bound); err != nil {
				return fmt.Errorf("insert gaps: %w", err)
			}
		}
	}
	// A number that was passed over must stay so: readers are past it. Without one, repeating the pass after a crash gives
	// every row the same position.
	durable := len(d.passed) > 0
	// The next statement reads a newer snapshot than the scan. Up to the new watermark only rows of passed numbers can be
	// new in it. They are excluded by number; a later pass publishes them as late rows.
	return p.publishRows(ctx, dbsqlc.RelayPublishParams{AfterSeq: p.found.watermark, AfterSub: maxSub, Upto: d.upto, Passed: d.passed, Durable: durable})
}

// publishRows publishes and commits. No row comes back if retention or reset has locked the row of the relay, or has moved the
// watermark; then nothing was written.
func (p *publication) publishRows(ctx context.Context, params dbsqlc.RelayPublishParams) error {
	params.Watermark = p.found.watermark
	params.NoNotify = p.relay.Time.Now().Before(p.relay.noNotifyUntil)
	if params.Passed == nil {
		params.Passed = []int64{} // NULL would exclude everything
	}
	var row dbsqlc.RelayPublishRow
	err := pg.Pipeline(ctx, p.conn,
		func(db dbsqlc.DBTX) (err error) {
			row, err = dbsqlc.New(db).RelayPublish(ctx, params)
			return err
		}, pg.Commit)
	if errors.Is(err, pgx.ErrNoRows) {
		return errLogLocked
	}
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	p.relay.owesNotify = p.relay.owesNotify || params.NoNotify
	p.relay.observations.bind(row.Bound)
	p.done.counts = passCounts{types: row.Types, fromSQL: row.FromSql}
	return nil
}
