package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

const (
	// maxNumbers is how many numbers a pass reads; RelayPublish has it as its LIMIT. A larger pass would hold the lock, and the
	// row that retention waits for, longer, and delay its first event until its last is counted.
	maxNumbers = 5000
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
	counts    passCounts    // set if published is
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
	if err := r.configure(ctx); err != nil {
		return pass{}, err
	}
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return pass{}, fmt.Errorf("acquire a connection: %w", err)
	}
	defer conn.Release()
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
	if p.done.late == len(found.late) && len(found.late) < maxNumbers && len(found.rolledBack) < maxNumbers {
		r.scanned = found.snapshot
	}
	return p.done, nil
}

// configure stores how events are shown, once. A later start of a node with another name changes it for all nodes.
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
	row, err := q.RelayScan(ctx, dbsqlc.RelayScanParams{Span: r.span, LateRows: maxNumbers, Scanned: r.scanned})
	return scan{
		snapshot: row.Snapshot, xmin: row.Xmin, watermark: row.Watermark, limit: row.Watermark + r.span,
		numbers: row.Numbers, head: row.Head, late: row.Late, rolledBack: row.RolledBack, gaps: row.Gaps, lastSub: row.LastSub,
	}, err
}
