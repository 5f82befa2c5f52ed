package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

const (
	// maxNumbers is how many numbers a pass reads; RelayPublish has it as its LIMIT. A larger pass would hold the lock, and the
	// row that retention waits for, longer, and delay its first event until its last is counted.
	maxNumbers = 5000
	// maxRolledBack is how many numbers of rolled back transactions a pass forgets. Until all are forgotten, each pass reads all of them:
	// in portions of 5 000, the passes behind a transaction of 100 000 took 2 s.
	maxRolledBack = 100_000
	// scannedNone has RelayPublish store that there are no gaps.
	scannedNone = "none"
	// noSnapshot makes RelayScan read all gaps: every horizon is above it.
	noSnapshot = "1:1:"
	// passTimeout is far above what a pass takes; it ends one that hangs. The same limit stands in RelayLock as
	// statement_timeout, for a node that has vanished.
	passTimeout = 10 * time.Second
)

// scan is one snapshot of the log (RelayScan). numbers, head and the gaps come from one snapshot. What commits later is not in
// it, even if the pass publishes after that commit.
type scan struct {
	snapshot   string
	xmin       int64 // every transaction below it has ended
	watermark  int64
	limit      int64   // the last number read
	numbers    []int64 // visible, above the watermark up to limit, in order
	head       int64   // the last visible one, also beyond limit; 0: none above the watermark
	late       []int64 // passed numbers whose row has appeared
	rolledBack []int64 // passed numbers whose transaction was rolled back
	gaps       bool    // the transactions of some passed numbers are still open
	lastSub    int32   // the last place taken at the watermark
}

// pass is what one run of the relay found and did. The zero value is a pass that did nothing, because another one has the lock.
type pass struct {
	locked    bool // false: another relay, retention or reset has the lock
	watermark int64
	head      int64
	published int           // rows
	late      int           // those of them whose number had been passed over
	passed    int           // numbers passed over
	more      bool          // the next pass has work at once
	wait      time.Duration // > 0: a missing number stops the watermark, that long at most
	gaps      bool          // the transactions of some passed numbers are still open
	counts    Counts        // set if published is
}

// caughtUp reports whether all that was visible to the pass is published. Open gaps do not count: their transactions have not
// committed. Once one has, the next scan finds a late row, and more is set.
func (p *pass) caughtUp() bool { return p.locked && !p.more && p.wait == 0 }

// errLogLocked says that retention or reset has locked the log.
var errLogLocked = errors.New("the log is locked by retention or reset")

// runOnce publishes what may be published, in one short READ COMMITTED transaction of two round trips if no number is
// missing. The lock serialises the relays of all nodes, and every statement after it reads what earlier holders of the lock
// wrote. If the connection breaks at the commit, the pass may have published or not. Either way the next scan reads the
// watermark anew.
func (r *Relay) runOnce(ctx context.Context) (pass, error) {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	// How events are shown is stored once. A later start of a node with another name changes it for all nodes.
	if !r.configured {
		if err := dbsqlc.New(r.pool).RelayConfigure(ctx, r.config.Events.ServiceName, true); err != nil {
			return pass{}, fmt.Errorf("configure: %w", err)
		}
		r.configured = true
	}
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return pass{}, fmt.Errorf("acquire a connection: %w", err)
	}
	defer conn.Release()
	// The connection may lead to another server than the one before. It is counted already, as it was acquired.
	if opened := r.pool.Stat().NewConnsCount(); opened != r.opened {
		checked, err := dbsqlc.New(conn).EventEpochCheck(ctx)
		if err != nil {
			return pass{}, fmt.Errorf("check the epoch of the log: %w", err)
		}
		if !checked { // as if another relay worked
			return pass{}, nil
		}
		r.opened = opened
	}
	done, err := r.transaction(ctx, conn.Conn())
	if conn.Conn().PgConn().TxStatus() != 'I' { // there is nothing to keep
		if _, rollbackErr := conn.Exec(ctx, "rollback"); rollbackErr != nil && err == nil {
			err = fmt.Errorf("rollback: %w", rollbackErr)
		}
	}
	return done, err
}

// transaction is one pass. It leaves the transaction open if there is nothing to commit. The scan is sent together with the
// lock, before it is known whether the lock was taken: that saves a round trip in every pass, and costs a scan in vain when
// another relay works.
func (r *Relay) transaction(ctx context.Context, conn *pgx.Conn) (pass, error) {
	var locked bool
	var found scan
	err := pg.Pipeline(ctx, conn, pg.Begin,
		func(db dbsqlc.DBTX) error {
			lock, err := dbsqlc.New(db).RelayLock(ctx)
			locked = lock.Locked
			return err
		},
		func(db dbsqlc.DBTX) (err error) {
			found, err = r.scan(ctx, dbsqlc.New(db))
			return err
		})
	if err != nil {
		return pass{}, fmt.Errorf("scan: %w", err)
	}
	if !locked {
		return pass{}, nil
	}
	p := &publication{
		relay: r, conn: conn, q: dbsqlc.New(conn), found: found,
		done: pass{locked: true, watermark: found.watermark, head: found.head, gaps: found.gaps},
	}
	err = p.run(ctx)
	if errors.Is(err, errLogLocked) {
		return pass{}, nil
	}
	if err != nil {
		return pass{}, err
	}
	// The next scan may skip the gaps of this snapshot only if the pass dealt with all of them and has committed.
	if p.dealtWithLate() && len(found.rolledBack) < maxRolledBack {
		r.scanned = found.snapshot
	}
	return p.done, nil
}

func (r *Relay) scan(ctx context.Context, q *dbsqlc.Queries) (scan, error) {
	row, err := q.RelayScan(ctx, dbsqlc.RelayScanParams{Span: r.span, LateRows: maxNumbers, RolledBackRows: maxRolledBack,
		Scanned: r.scanned})
	return scan{
		snapshot: row.Snapshot, xmin: row.Xmin, watermark: row.Watermark, limit: row.Watermark + r.span,
		numbers: row.Numbers, head: row.Head, late: row.Late, rolledBack: row.RolledBack, gaps: row.Gaps, lastSub: row.LastSub,
	}, err
}

// An observation is the end of the log in one snapshot, with a transaction id drawn after it. Numbers are drawn in order,
// and every transaction owns its id before it draws a number (the default of ojs.events.seq). So a transaction that drew a
// number up to head, which is visible, has an id below bound. For a number up to head that is missing later it follows:
//   - it has been drawn, and has been missing since at;
//   - once xmin of a later snapshot has reached bound, every transaction that may own it has ended: it was rolled back.
//
// Observations live in memory. A number that is missing for some milliseconds, as at every commit in flight and every
// rollback, costs no write, and an open transaction costs one delay however many numbers it has drawn.
type observation struct {
	head  int64
	bound int64 // 0: not drawn yet
	at    time.Time
}

// maxObservations bounds the memory; while it is full, numbers drawn later are observed later. A pass adds at most one, and
// those at or below the watermark go, so it is full only while a missing number stops the watermark for many passes.
const maxObservations = 32

// observations are in ascending order of all three members.
type observations []observation

// record adds the head of a scan and forgets what is below the watermark. A head that is no higher than the last one adds
// nothing: the older observation has waited longer.
func (o *observations) record(watermark, head int64, now time.Time) {
	*o = slices.DeleteFunc(*o, func(old observation) bool { return old.head <= watermark })
	if head <= watermark || len(*o) == maxObservations || len(*o) > 0 && (*o)[len(*o)-1].head >= head {
		return
	}
	*o = append(*o, observation{head: head, at: now})
}

// bind completes the observations without a bound with a transaction id drawn now. The id must be drawn after the scan whose
// head was recorded. One id serves all of them: a higher bound is only waited for longer.
func (o observations) bind(bound int64) {
	for i := range o {
		if o[i].bound == 0 {
			o[i].bound = bound
		}
	}
}

// decision is how far the watermark may go.
type decision struct {
	upto   int64         // the new watermark
	rows   int           // visible rows up to it
	passed []int64       // missing numbers up to it whose transaction may still commit
	wait   time.Duration // > 0: stopped at a missing number, which may be passed over then
}

// decide accepts numbers in order: visible ones, missing ones that were rolled back, and missing ones that have been
// waited for long enough. It stops at the first other one. A number that was rolled back needs no row in event_gaps. A passed
// one gets one, because its row may still appear and must then be found.
func (o observations) decide(found scan, now time.Time, delay time.Duration) decision {
	d := decision{upto: found.watermark}
	var rolledBack, due int64 // missing numbers up to these were rolled back, or may be passed over
	for _, old := range o {
		if old.bound != 0 && found.xmin >= old.bound {
			rolledBack = old.head
		}
		if now.Sub(old.at) >= delay {
			due = old.head
		}
	}
	numbers := found.numbers
	for n := found.watermark + 1; n <= min(found.head, found.limit); n++ {
		switch {
		case len(numbers) > 0 && numbers[0] == n:
			numbers = numbers[1:]
			d.rows++
		case n <= rolledBack:
		case n <= due:
			d.passed = append(d.passed, n)
		default:
			d.wait = o.untilDue(n, now, delay)
			return d
		}
		d.upto = n
	}
	return d
}

// untilDue is never 0, because a wait of 0 means that no number is missing.
func (o observations) untilDue(n int64, now time.Time, delay time.Duration) time.Duration {
	for _, old := range o {
		if old.head >= n {
			return max(old.at.Add(delay).Sub(now), time.Millisecond)
		}
	}
	return max(delay, time.Millisecond)
}

// publication is the writing part of a pass: it decides from one scan.
type publication struct {
	relay *Relay
	conn  *pgx.Conn       // in the pass's transaction
	q     *dbsqlc.Queries // of conn
	found scan
	done  pass
}

// dealtWithLate reports whether the pass publishes every row of a passed number that its scan can see.
func (p *publication) dealtWithLate() bool {
	return p.done.late == len(p.found.late) && len(p.found.late) < maxNumbers
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
	case len(r.observations) == 0 || r.observations[len(r.observations)-1].bound != 0:
		return nil
	}
	// The observation of this scan needs a bound, or no later pass could take the missing number for a rolled back one. The id that is
	// drawn makes this transaction one that has to be ended; runOnce rolls it back.
	bound, err := p.q.RelayBound(ctx)
	if err != nil {
		return fmt.Errorf("bound: %w", err)
	}
	r.observations.bind(bound)
	return nil
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

// publishLate moves rows whose number was passed over behind all published rows and before all unpublished ones, and
// leaves the rest to the next pass. Both keep the order of a subject. The late transaction had locked the subject's row,
// so its event follows the published ones of that subject. A change made after that lock was released is not published
// yet, because this same snapshot is the first to show both.
func (p *publication) publishLate(ctx context.Context) error {
	p.done.more = true
	watermark, lastSub := p.found.watermark, p.found.lastSub
	late := p.found.late[:min(len(p.found.late), maxSub-int(lastSub))]
	// All places of one number are taken after a transaction of 100 000 events that others have overtaken. The watermark moves over one
	// number, to have places for more late rows. The number is drawn before the claim, so that the transaction that owns it is below the
	// claim's bound.
	if len(late) == 0 {
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
	return p.publishRows(ctx, dbsqlc.RelayPublishParams{AfterSeq: p.found.watermark, AfterSub: maxSub, Upto: d.upto, Passed: d.passed,
		Durable: durable})
}

// publishRows publishes and commits. No row comes back if retention or reset has locked the row of the relay, or has moved the
// watermark; then nothing was written.
func (p *publication) publishRows(ctx context.Context, params dbsqlc.RelayPublishParams) error {
	params.Watermark = p.found.watermark
	params.NoNotify = p.relay.Time.Now().Before(p.relay.noNotifyUntil)
	params.WithoutData = p.relay.config.Events.Notify == "envelope"
	// ojs.event_uncounted goes by it. Gaps of rolled back transactions may be left: they have no rows to count.
	switch {
	case !p.done.gaps:
		params.Scanned = scannedNone
	case p.dealtWithLate():
		params.Scanned = p.found.snapshot
	}
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
	// The columns are arrays of one length for each of the two counts.
	p.done.counts = Counts{Types: make(map[string]int64, len(row.Types)), FromSQL: make([]SQLCount, len(row.SqlTypes))}
	for i, name := range row.Types {
		p.done.counts.Types[name] = row.Counts[i]
	}
	for i := range row.SqlTypes {
		p.done.counts.FromSQL[i] = SQLCount{Type: row.SqlTypes[i], JobType: row.SqlJobTypes[i], Queue: row.SqlQueues[i],
			N: row.SqlCounts[i]}
	}
	return nil
}

// Counts are the events that a pass of the relay has published, for metrics. Each event is published by one relay of the
// deployment, so the sum over all nodes counts each once, not always on the node that wrote it. A node that stops between the
// commit of a pass and the report loses the counts of that pass.
type Counts struct {
	// Types is the number of events per public type.
	Types map[string]int64

	// FromSQL are job events that an application wrote in SQL. No node has counted them after its commit.
	// A node counts the job events of its own commits with more detail (metrics.Changes); these would be missing there.
	FromSQL []SQLCount
}

// SQLCount is a number of events of one type, job type and queue.
type SQLCount struct {
	Type, JobType, Queue string
	N                    int64
}
