package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/serviceutil"
	"github.com/riverqueue/river/rivershared/util/testutil"

	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
)

const (
	minReconnect = 100 * time.Millisecond // before the first try to connect again; twice as long each time, up to maxReconnect
	maxReconnect = 5 * time.Second

	listenTimeout = 10 * time.Second // to connect, and to LISTEN
)

// Values of Listener.Status.
const (
	ListenerOK       = "ok"
	ListenerDegraded = "degraded" // no LISTEN, or one behind a pooler, which may deliver nothing: the log is polled
)

// ListenerConfig says where to LISTEN, and to what.
type ListenerConfig struct {
	// Handlers are called with each notification of their channel, and with "" when some may be lost. They must not block: all run on the
	// one goroutine that reads the connection, and while one works, no notification is read.
	Handlers map[string]func(payload string)

	// URL of the database, past any transaction-mode pooler. A pooler accepts LISTEN and gives the session to another client,
	// so notifications never come.
	URL string

	// PollFallback is how often the handlers are called while LISTEN is impossible. 500 ms. A smaller value costs each idle
	// node a round of look-ups that often, a larger one delays events and jobs of other nodes.
	PollFallback time.Duration
}

// Listener owns the node's one LISTEN connection. A notification is only a wake-up, and some may be lost. After every
// (re)connect, and at intervals while there is no connection, the listener therefore calls all handlers with "".
// The connection is not of the pool, because a LISTEN lasts as long as its session.
type Listener struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals ListenerTestSignals

	config ListenerConfig
	status atomic.Value // string

	// listened becomes true with the first connection and stays so: it tells a first connection from a reconnect.
	listened   atomic.Bool
	reconnects atomic.Int64
}

// ListenerTestSignals are set up by tests with Init.
type ListenerTestSignals struct {
	Listening testsignal.TestSignal[struct{}]
	Lost      testsignal.TestSignal[struct{}]
}

// Init makes the signals usable.
func (s *ListenerTestSignals) Init(tb testutil.TestingTB) {
	s.Listening.Init(tb)
	s.Lost.Init(tb)
}

// NewListener returns a listener; Start it.
func NewListener(archetype *baseservice.Archetype, config ListenerConfig) *Listener {
	if config.PollFallback == 0 {
		config.PollFallback = 500 * time.Millisecond
	}
	l := baseservice.Init(archetype, &Listener{config: config})
	l.status.Store(ListenerDegraded)
	return l
}

// Status is ListenerOK or ListenerDegraded. It is stale by at most the time in which a dead connection is noticed; health and
// the caches of queues and pools ask it.
func (l *Listener) Status() string { return l.status.Load().(string) }

// Reconnects is how often the listener has connected again.
func (l *Listener) Reconnects() int64 { return l.reconnects.Load() }

// Start connects in the background.
func (l *Listener) Start(ctx context.Context) error {
	loop.Run(ctx, &l.BaseStartStop, l.run)
	return nil
}

// run doubles the pause before the next try while connecting fails and starts anew after a connection that had listened.
func (l *Listener) run(ctx context.Context) {
	for pause := minReconnect; ctx.Err() == nil; pause = min(2*pause, maxReconnect) {
		listened, err := l.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		l.status.Store(ListenerDegraded)
		l.TestSignals.Lost.Signal(struct{}{})
		if listened {
			pause = minReconnect
		}
		l.Logger.WarnContext(ctx, l.Name+": no LISTEN connection; polling until it is back", slog.Any("error", err),
			slog.Duration("retry_in", pause))
		// The handlers are called at intervals until the next try, and at least once, also if that is nearer than PollFallback.
		next := time.Now().Add(pause)
		for ctx.Err() == nil && time.Now().Before(next) {
			serviceutil.CancellableSleep(ctx, min(time.Until(next), l.config.PollFallback))
			l.dispatchAll()
		}
	}
}

// listen keeps a connection until it fails. LISTEN comes first, then the handlers run for what was missed before it.
// In the other order a notification that is sent between the two would be lost: its event is not yet visible to the handlers'
// queries, and nobody listens yet.
func (l *Listener) listen(ctx context.Context) (listened bool, err error) {
	config, err := pgx.ParseConfig(l.config.URL)
	if err != nil {
		return false, fmt.Errorf("parse listen url: %w", err)
	}
	pg.Prepare(config, "ojsd listen")
	connecting, cancel := context.WithTimeout(ctx, listenTimeout)
	conn, pooled, err := pg.ConnectSession(connecting, config)
	cancel()
	if err != nil {
		return false, err
	}
	defer func() {
		// ctx is cancelled when the node stops, so the message that ends the session has a time limit of its own.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // an error of Close changes nothing: the connection is given up
	}()
	if err := l.subscribe(ctx, conn); err != nil {
		return false, err
	}
	// Behind a pooler the status stays degraded, although LISTEN succeeded: notifications may never come.
	if !pooled {
		l.status.Store(ListenerOK)
	}
	if l.listened.Swap(true) {
		l.reconnects.Add(1)
	}
	l.TestSignals.Listening.Signal(struct{}{})
	l.dispatchAll()
	for {
		wait, cancel := ctx, context.CancelFunc(func() {})
		if pooled {
			wait, cancel = context.WithTimeout(ctx, l.config.PollFallback)
		}
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil:
			l.config.Handlers[n.Channel](n.Payload)
		// The time has passed without a notification. The connection stays usable.
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && !conn.IsClosed():
			l.dispatchAll()
		default:
			return true, err
		}
	}
}

// subscribe issues LISTEN for each channel that has a handler. The simple protocol needs no prepared statement, which not every pooler
// keeps.
func (l *Listener) subscribe(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	for channel := range l.config.Handlers {
		if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("listen %q: %w", channel, err)
		}
	}
	return nil
}

// dispatchAll calls all handlers, because notifications may be lost. Handlers must bear calls in vain: after a reconnect and in
// every round of polling they get one each.
func (l *Listener) dispatchAll() {
	for _, handle := range l.config.Handlers {
		handle("")
	}
}

// Publication is the notification (ojs_published) that a relay sends to all nodes after a pass. It is sent in the transaction of the
// pass, so a node that gets it can read the events. Notifications may be lost or late; nothing may depend on getting each of them.
type Publication struct {
	Watermark int64
	Ready     []Ready // where jobs became available
	All       bool    // the list was too long, or notifications may be lost: jobs may be available everywhere
}

// Ready says that jobs became available in a lane of a queue with a priority, the first of them with MinSeq.
// The relay leaves out places whose jobs of this pass have all been claimed by then. A job may still be gone when the node
// looks for it.
type Ready struct {
	Queue    string
	Lane     string
	Priority int16
	// MinSeq is the lowest ready_seq among them: the cursor of the node must go back to it.
	MinSeq int64
	Node   int32 // the node that made them available; 0: an application in SQL
}

// DecodePublication reads {"w":…,"q":[[queue,priority,min_ready_seq,node,lane],…]}; jobs without a lane have none. An unreadable
// payload means All: a wake-up too many is harmless, one too few is not. A node of a later release may send more fields, which this
// one cannot read; All is right for it too.
func DecodePublication(payload string) Publication {
	var message struct {
		Watermark int64               `json:"w"`
		Queues    [][]json.RawMessage `json:"q"`
	}
	if json.Unmarshal([]byte(payload), &message) != nil || message.Queues == nil {
		return Publication{Watermark: message.Watermark, All: true}
	}
	p := Publication{Watermark: message.Watermark, Ready: make([]Ready, 0, len(message.Queues))}
	for _, q := range message.Queues {
		var r Ready
		if len(q) < 4 || len(q) > 5 || json.Unmarshal(q[0], &r.Queue) != nil || json.Unmarshal(q[1], &r.Priority) != nil ||
			json.Unmarshal(q[2], &r.MinSeq) != nil || json.Unmarshal(q[3], &r.Node) != nil || len(q) == 5 &&
			json.Unmarshal(q[4], &r.Lane) != nil {
			return Publication{Watermark: message.Watermark, All: true}
		}
		p.Ready = append(p.Ready, r)
	}
	return p
}
