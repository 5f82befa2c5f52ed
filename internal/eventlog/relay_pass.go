package eventlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

const (
	// maxNumbers is how many numbers a pass looks at; RelayPublish has it as its LIMIT.
	maxNumbers = 5000
	// nothingSeen makes RelayScan look at all gaps: every horizon is above it.
	nothingSeen = "1:1:"
	// passTimeout is far above what a pass takes; it ends one that hangs.
	passTimeout = 10 * time.Second
)

// scan is one snapshot of the log (RelayScan).
type scan struct {
	snapshot  string
	xmin      int64 // every transaction below it has ended
	watermark int64
	limit     int64   // the last number looked at
	numbers   []int64 // visible, above the watermark up to limit, in order
	head      int64   // the last visible one, also beyond limit; 0: none above the watermark
	late      []int64 // passed numbers whose row has appeared
	gone      []int64 // passed numbers that belong to nothing
	gaps      bool    // there are numbers that were passed over and are still open
	lastSub   int32   // the last place taken at the watermark
}

// pass is what one run of the relay found and did.
type pass struct {
	locked    bool // false: another relay was at it, or retention or reset
	watermark int64
	head      int64
	published int           // rows
	late      int           // those of them whose number had been passed over
	passed    int           // numbers passed over
	more      bool          // there is more to do at once
	wait      time.Duration // > 0: a missing number holds up the rest, that long at most
	gaps      bool          // numbers that were passed over are still open
	announced announced     // set if published is
}

// caughtUp reports whether all that was visible to the pass is published.
func (p *pass) caughtUp() bool { return p.locked && !p.more && p.wait == 0 }

// errClaimed says that retention or reset holds the log.
var errClaimed = errors.New("the log is claimed")

// runOnce publishes what may be published, in one short READ COMMITTED transaction. The lock serialises the
// relays of all nodes, and every statement after it sees what earlier holders did.
func (r *Relay) runOnce(ctx context.Context) (pass, error) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	if err := r.configure(ctx); err != nil {
		return pass{}, err
	}
	tx, err := r.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return pass{}, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // does nothing after Commit; without it there is nothing to keep
	q := dbsqlc.New(tx)

	lock, err := q.RelayLock(ctx)
	if err != nil {
		return pass{}, fmt.Errorf("lock: %w", err)
	}
	if !lock.Locked {
		return pass{}, nil
	}
	found, err := r.scan(ctx, q)
	if err != nil {
		return pass{}, fmt.Errorf("scan: %w", err)
	}
	done, wrote, err := r.publish(ctx, q, found)
	if errors.Is(err, errClaimed) {
		return pass{}, nil
	}
	if err != nil {
		return pass{}, err
	}
	if wrote {
		if err := tx.Commit(ctx); err != nil {
			return pass{}, fmt.Errorf("commit: %w", err)
		}
	}
	// Only after the commit, and only if nothing was cut, has all that this snapshot shows of the gaps been dealt with.
	if done.late == len(found.late) && len(found.late) < maxNumbers && len(found.gone) < maxNumbers {
		r.seen = found.snapshot
	}
	return done, nil
}

// configure stores how events are shown, once.
func (r *Relay) configure(ctx context.Context) error {
	if r.configured {
		return nil
	}
	if err := dbsqlc.New(r.pool).RelayConfigure(ctx, r.config.Service, true); err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	r.configured = true
	return nil
}

func (r *Relay) scan(ctx context.Context, q *dbsqlc.Queries) (scan, error) {
	row, err := q.RelayScan(ctx, dbsqlc.RelayScanParams{Span: r.span, LateRows: maxNumbers, Seen: r.seen})
	return scan{
		snapshot: row.Snapshot, xmin: row.Xmin, watermark: row.Watermark, limit: row.Watermark + r.span,
		numbers: row.Numbers, head: row.Head, late: row.Late, gone: row.RolledBack, gaps: row.Gaps, lastSub: row.LastSub,
	}, err
}

// publish decides from one scan and writes. wrote is false if there was nothing to do.
func (r *Relay) publish(ctx context.Context, q *dbsqlc.Queries, found scan) (done pass, wrote bool, err error) {
	done = pass{locked: true, watermark: found.watermark, head: found.head, gaps: found.gaps}
	if len(found.late) > 0 {
		return done, true, r.publishLate(ctx, q, found, &done)
	}
	now := r.Time.Now()
	r.sightings.note(found.watermark, found.head, now)
	v := r.sightings.judge(found, now, r.config.GapDelay)
	done.wait = v.wait
	if v.upto == found.watermark && len(found.gone) == 0 {
		return done, false, r.bind(ctx, q)
	}
	bound, err := r.claim(ctx, q, found)
	if err != nil {
		return done, false, err
	}
	if v.upto > found.watermark {
		err = r.publishNext(ctx, q, found, v, bound, &done)
	}
	return done, true, err
}

// claim must come after the scan and before anything is written.
func (r *Relay) claim(ctx context.Context, q *dbsqlc.Queries, found scan) (bound string, err error) {
	row, err := q.RelayClaim(ctx)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && row.Watermark != found.watermark {
		return "", errClaimed
	}
	if err != nil {
		return "", fmt.Errorf("claim: %w", err)
	}
	r.sightings.bind(row.Bound)
	if len(found.gone) > 0 {
		if err := q.EventGapDelete(ctx, found.gone); err != nil {
			return "", fmt.Errorf("delete gaps: %w", err)
		}
	}
	return strconv.FormatInt(row.Bound, 10), nil
}

// bind completes the sighting of a pass that writes nothing.
func (r *Relay) bind(ctx context.Context, q *dbsqlc.Queries) error {
	if !r.sightings.unbound() {
		return nil
	}
	bound, err := q.RelayBound(ctx)
	if err != nil {
		return fmt.Errorf("bound: %w", err)
	}
	r.sightings.bind(bound)
	return nil
}

// publishLate moves rows whose number was passed over behind all that is published and before all that is not, and
// leaves the rest to the next pass. Both matter for the order of a subject: the late transaction held its row lock, so
// its event follows what was published of the subject before, and whatever followed the lock's release is not published
// yet, because this same snapshot is the first to show either.
func (r *Relay) publishLate(ctx context.Context, q *dbsqlc.Queries, found scan, done *pass) error {
	done.more = true
	late := found.late[:min(len(found.late), maxSub-int(found.lastSub))]
	if len(late) == 0 {
		return r.giveWay(ctx, q, found, done)
	}
	if _, err := r.claim(ctx, q, found); err != nil {
		return err
	}
	subs := make([]int32, len(late))
	for i := range subs {
		subs[i] = found.lastSub + 1 + int32(i)
	}
	err := q.EventMoveLate(ctx, dbsqlc.EventMoveLateParams{Watermark: found.watermark, Numbers: late, Subs: subs})
	if err != nil {
		return fmt.Errorf("move late rows: %w", err)
	}
	done.late, done.published = len(late), len(late)
	return r.announce(ctx, q, dbsqlc.RelayPublishParams{AfterSeq: found.watermark, AfterSub: found.lastSub, Upto: found.watermark}, done)
}

// giveWay makes room for more late rows than one number has places: a transaction of 100 000 events that others have
// overtaken. The draw comes before the claim, so that whoever owns the number is below its bound.
func (r *Relay) giveWay(ctx context.Context, q *dbsqlc.Queries, found scan, done *pass) error {
	if _, err := q.RelayDrawNumber(ctx); err != nil {
		return fmt.Errorf("draw number: %w", err)
	}
	bound, err := r.claim(ctx, q, found)
	if err != nil {
		return err
	}
	done.watermark++
	if err := q.RelaySkipNumber(ctx, done.watermark, bound); err != nil {
		return fmt.Errorf("give way: %w", err)
	}
	return nil
}

func (r *Relay) publishNext(ctx context.Context, q *dbsqlc.Queries, found scan, v verdict, bound string, done *pass) error {
	done.watermark, done.published, done.passed = v.upto, v.rows, len(v.passed)
	done.more = v.wait == 0 && v.upto < found.head
	if len(v.passed) > 0 {
		done.gaps = true
		if err := q.EventGapInsert(ctx, v.passed, bound); err != nil {
			return fmt.Errorf("note gaps: %w", err)
		}
	}
	// The next statement sees more than the scan did. Up to the new watermark that can only be rows of the numbers passed
	// over, so these are excluded by number; they come as late ones.
	return r.announce(ctx, q, dbsqlc.RelayPublishParams{AfterSeq: found.watermark, AfterSub: maxSub, Upto: v.upto, Passed: v.passed}, done)
}

func (r *Relay) announce(ctx context.Context, q *dbsqlc.Queries, params dbsqlc.RelayPublishParams, done *pass) error {
	params.NoNotify = r.Time.Now().Before(r.mutedUntil)
	if params.Passed == nil {
		params.Passed = []int64{} // NULL would exclude everything
	}
	row, err := q.RelayPublish(ctx, params)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	done.announced = announced{types: row.Types, unclaimed: row.FromSql}
	return nil
}
