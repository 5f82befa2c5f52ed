package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/testsignal"
	"github.com/riverqueue/river/rivershared/util/serviceutil"
	"github.com/riverqueue/river/rivershared/util/testutil"
)

const (
	channelPublished = "ojs_published"
	channelWake      = "ojs_wake"

	minReconnect = 100 * time.Millisecond
	maxReconnect = 5 * time.Second

	listenTimeout = 10 * time.Second

	// silence after which a node that waits for news looks by itself: a full notification queue loses some.
	silence = 5 * time.Second
)

// keepAlive finds out that the connection is dead although nothing is ever sent on it.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// What Listener.Status answers.
const (
	ListenerOK       = "ok"
	ListenerDegraded = "degraded" // no LISTEN, or one behind a pooler, which may deliver nothing: the log is polled
)

// ListenerConfig says where to LISTEN.
type ListenerConfig struct {
	// URL of the database, past any transaction-mode pooler.
	URL string

	// PollFallback is how often everybody is told to look while LISTEN is impossible. 500 ms.
	PollFallback time.Duration

	// Waiting reports whether anybody on this node waits for news; if not, nobody is told to look. nil: polling goes on
	// in any case, but only while LISTEN is impossible.
	Waiting func() bool
}

// Listener holds the node's one LISTEN connection. A notification is only a wake-up: after every (re)connect, and at
// intervals while there is no connection, all that could have been missed is announced as a whole.
type Listener struct {
	baseservice.BaseService
	startstop.BaseStartStop

	// TestSignals are for tests.
	TestSignals ListenerTestSignals

	config ListenerConfig
	status atomic.Value // string

	listened   atomic.Bool
	reconnects atomic.Int64

	mu        sync.Mutex
	handlers  map[string][]func(payload string)
	published []func(Published)
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

// NewListener returns a listener; register what is to be told, then Start it.
func NewListener(archetype *baseservice.Archetype, config ListenerConfig) *Listener {
	if config.PollFallback == 0 {
		config.PollFallback = 500 * time.Millisecond
	}
	l := baseservice.Init(archetype, &Listener{config: config, handlers: map[string][]func(string){}})
	l.status.Store(ListenerDegraded)
	l.Handle(channelPublished, func(payload string) { l.tell(decodePublished(payload)) })
	return l
}

// Handle has f called with each notification of the channel, and with "" whenever some may have been missed. It must not
// block. Call it before Start.
func (l *Listener) Handle(channel string, f func(payload string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handlers[channel] = append(l.handlers[channel], f)
}

// OnPublished has f called when a relay of any node has published. It must not block. Call it before Start.
func (l *Listener) OnPublished(f func(Published)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published = append(l.published, f)
}

// OnWake has f called when an application has enqueued in SQL.
func (l *Listener) OnWake(f func()) { l.Handle(channelWake, func(string) { f() }) }

// Status is ListenerOK or ListenerDegraded.
func (l *Listener) Status() string { return l.status.Load().(string) }

// Reconnects is how often the connection has been made anew.
func (l *Listener) Reconnects() int64 { return l.reconnects.Load() }

// Start connects in the background.
func (l *Listener) Start(ctx context.Context) error {
	ctx, shouldStart, started, stopped := l.StartInit(ctx)
	if !shouldStart {
		return nil
	}
	go func() {
		started()
		defer stopped()
		l.run(ctx)
	}()
	return nil
}

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
		l.Logger.WarnContext(ctx, l.Name+": no LISTEN connection; polling", slog.Any("error", err), slog.Duration("retry_in", pause))
		l.poll(ctx, time.Now().Add(pause))
	}
}

// poll stands in for notifications until the next try.
func (l *Listener) poll(ctx context.Context, until time.Time) {
	for ctx.Err() == nil && time.Now().Before(until) {
		serviceutil.CancellableSleep(ctx, min(time.Until(until), l.config.PollFallback))
		if l.config.Waiting == nil || l.config.Waiting() {
			l.missed()
		}
	}
}

// patience is how long a connection may be silent before everybody is told to look. 0: for ever.
func (l *Listener) patience(pooled bool) time.Duration {
	switch {
	case pooled:
		return l.config.PollFallback
	case l.config.Waiting != nil:
		return silence
	default:
		return 0
	}
}

// listen holds a connection until it fails. LISTEN comes first, then what was missed before it, then what is live.
func (l *Listener) listen(ctx context.Context) (listened bool, err error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // it has failed or is not needed any more
	}()
	pooled, err := l.subscribe(ctx, conn)
	if err != nil {
		return false, err
	}
	if !pooled {
		l.status.Store(ListenerOK)
	}
	if l.listened.Swap(true) {
		l.reconnects.Add(1)
	}
	l.TestSignals.Listening.Signal(struct{}{})
	l.missed()
	for {
		n, err := l.next(ctx, conn, l.patience(pooled))
		switch {
		case err != nil:
			return true, err
		case n != nil:
			l.dispatch(n.Channel, n.Payload)
		case l.config.Waiting == nil || l.config.Waiting():
			l.missed()
		}
	}
}

// next is nil after the time without a notification; that does not harm the connection.
func (l *Listener) next(ctx context.Context, conn *pgx.Conn, patience time.Duration) (*pgconn.Notification, error) {
	wait := ctx
	if patience > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	n, err := conn.WaitForNotification(wait)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && !conn.IsClosed() {
		return nil, nil
	}
	return n, err
}

func (l *Listener) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(l.config.URL)
	if err != nil {
		return nil, fmt.Errorf("parse listen url: %w", err)
	}
	config.DialFunc = (&net.Dialer{KeepAliveConfig: keepAlive}).DialContext
	config.RuntimeParams["application_name"] = "ojsd listen"
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	return pgx.ConnectConfig(ctx, config)
}

// subscribe issues LISTEN and finds out whether a pooler is in between: then the server process is another one than the
// one that the connection was promised, and notifications may never come, although LISTEN succeeds.
func (l *Listener) subscribe(ctx context.Context, conn *pgx.Conn) (pooled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	l.mu.Lock()
	channels := make([]string, 0, len(l.handlers))
	for channel := range l.handlers {
		channels = append(channels, channel)
	}
	l.mu.Unlock()
	for _, channel := range channels {
		if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize(), pgx.QueryExecModeSimpleProtocol); err != nil {
			return false, fmt.Errorf("listen %q: %w", channel, err)
		}
	}
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return false, fmt.Errorf("read backend pid: %w", err)
	}
	return pid != conn.PgConn().PID(), nil
}

func (l *Listener) dispatch(channel, payload string) {
	l.mu.Lock()
	handlers := l.handlers[channel]
	l.mu.Unlock()
	for _, f := range handlers {
		f(payload)
	}
}

// missed tells everybody that anything may have happened.
func (l *Listener) missed() {
	l.mu.Lock()
	channels := make([]string, 0, len(l.handlers))
	for channel := range l.handlers {
		channels = append(channels, channel)
	}
	l.mu.Unlock()
	for _, channel := range channels {
		l.dispatch(channel, "")
	}
}

func (l *Listener) tell(p Published) {
	l.mu.Lock()
	published := l.published
	l.mu.Unlock()
	for _, f := range published {
		f(p)
	}
}
