// Package store owns every state change of a job. Each is one SQL statement over arrays that moves the jobs and writes
// their events; concurrent callers share statements through package batch. It owns transactions and the knowledge of
// where ready jobs are (ready.go); it must never answer a caller before commit, and never read the clock of this
// machine to decide anything about a job.
package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/tracing"
)

// What no setting changes.
const (
	cronVisibility    = 10 * time.Minute // the reservation of a job whose cron sets none
	maxErrorHistory   = 50               // failures kept per job, the newest
	maxEventDataBytes = 24_576           // payload of an event
	secretOverlap     = 24 * time.Hour   // how long the secret before the current one stays valid, if the call does not say
)

// Config holds what the store decides by. Values are taken as they are; FromConfig makes those of the settings.
type Config struct {
	// DefaultVisibility is the reservation of a job when neither the fetch nor the job asks for another.
	DefaultVisibility time.Duration

	// DefaultTimeout is the execution timeout of a job that has none.
	DefaultTimeout time.Duration

	// WorkerDeadAfter is the silence after which a worker that has sent heartbeats is dead.
	WorkerDeadAfter time.Duration

	// Limits hold for the jobs of crons, whose templates are read anew at each firing.
	Limits envelope.Limits

	// ResultTTL is how long the result of a job that sets no result_ttl is shown, in whole seconds: below one it is not
	// kept; 0: as long as the job.
	ResultTTL time.Duration

	// StatementTimeout bounds every statement, waiting for a connection included. No setting; 0: 15 s.
	StatementTimeout time.Duration

	// Logger gets a line for each change of a job. nil: slog.Default().
	Logger *slog.Logger

	// LogPayloads shows args, results and meta of jobs in the log, but for members of meta that sound like secrets.
	LogPayloads bool

	// Tracer makes the spans of jobs and of passes over them. nil: none.
	Tracer *tracing.Tracer

	// TestDirectives lets meta.test_directive of a job decide what its worker is told. For tests only.
	TestDirectives bool

	// WebhookKeys seal the secrets of webhooks, 32 bytes each; the first is current, the others only open. None: plain text.
	WebhookKeys [][]byte

	// MaxWebhooks is the most subscriptions.
	MaxWebhooks int32

	// DisableWebhookAfter is how long a subscription may fail before a delivery that is given up disables it; 0: for ever.
	DisableWebhookAfter time.Duration

	// SourceInstance adds this node's mark to the sources api, scheduler and cron of events. No setting.
	SourceInstance bool

	// EnqueuedOnRequeue makes the events of jobs that become available again public job.enqueued. No setting.
	EnqueuedOnRequeue bool

	// JobHeartbeatInterval is the least time between two job.heartbeat events of a run. 0: one per extension. No setting.
	JobHeartbeatInterval time.Duration

	// WorkerHeartbeatEvents writes worker.heartbeat, one event per heartbeat call.
	WorkerHeartbeatEvents bool

	// Node marks what this process writes. 0: one at random.
	Node int32

	// OnChanges gets the events of each commit of this node, in their order, on the goroutine that committed and before
	// anybody is answered. It must not block. ctx is of whoever made the flush, which may serve many. nil: nobody.
	OnChanges func(ctx context.Context, changes []Change)

	// OnFlush gets, for each statement that callers share, the operation, how many requests shared it and what it took.
	// It must not block. nil: nobody.
	OnFlush func(operation string, requests int, took time.Duration)
}

// FromConfig takes over the settings that the store decides by.
func FromConfig(c config.Config) Config {
	sc := Config{
		DefaultVisibility: c.Jobs.VisibilityTimeout, DefaultTimeout: c.Jobs.Timeout, ResultTTL: c.Jobs.ResultTTL, WorkerDeadAfter: c.Workers.DeadAfter,
		Limits:      envelope.Limits{MaxEnvelopeBytes: int(c.Jobs.MaxSize), MaxResultBytes: int(c.Jobs.MaxSize)},
		LogPayloads: c.Logging.Payloads, TestDirectives: c.Tests.Directives, WorkerHeartbeatEvents: c.Events.WorkerHeartbeat,
		MaxWebhooks: int32(c.Webhooks.MaxSubscriptions), DisableWebhookAfter: c.Webhooks.DisableAfter,
	}
	for _, key := range c.Webhooks.EncryptionKeys {
		sc.WebhookKeys = append(sc.WebhookKeys, key)
	}
	return sc
}

// Store performs state changes. Use New.
type Store struct {
	pool     *pgxpool.Pool
	q        *dbsqlc.Queries
	config   Config
	instance string // what is put behind the sources of events, if anything
	node     int32  // marks this process's events, so that it does not announce its own jobs to itself

	enqueue   *batch.Batcher[*envelope.Job, enqueued]
	named     *batch.Batcher[*envelope.Job, enqueued] // jobs with client-chosen ids, which may have to wait for another's
	complete  *batch.Batcher[Ack, *dbsqlc.Job]
	fail      *batch.Batcher[nack, *dbsqlc.Job]
	cancel    *batch.Batcher[cancellation, *dbsqlc.Job]
	heartbeat *batch.Batcher[Beat, BeatResult]
	fetchers  fetchers

	progress   *batch.Batcher[Report, *dbsqlc.JobProgressRow]
	checkpoint *batch.Batcher[Save, *dbsqlc.JobCheckpointRow]
	results    *batch.Batcher[[16]byte, *dbsqlc.JobResultListRow]
	endings    endings

	deliveries *batch.Batcher[DeliveryOutcome, Recorded]
	vault      vault

	ready  ready
	crew   crew
	queues sync.Map // names known to exist
	hooks  hooks

	heardSince atomic.Pointer[time.Time] // before, workers may have called in vain; nil: never
}

// hooks are set once, before the store is used, by those who must know of commits.
type hooks struct {
	committed func()                    // events were written: the relay should look
	due       func(in time.Duration)    // a job becomes due then: arm a timer
	sweep     func(ctx context.Context) // apply what is due, if anything is; before a fetch
	seen      func()                    // there are signs of life to be written
	draining  atomic.Pointer[chan struct{}]
}

// New returns a store on the pool.
func New(pool *pgxpool.Pool, config Config) *Store {
	s := &Store{pool: pool, q: dbsqlc.New(pool), config: config, node: cmp.Or(config.Node, NewNode())}
	s.config.Logger = cmp.Or(config.Logger, slog.Default())
	s.config.StatementTimeout = cmp.Or(config.StatementTimeout, 15*time.Second)
	drain := make(chan struct{})
	s.hooks.draining.Store(&drain)
	s.ready.init()
	s.crew.init()
	s.fetchers.byQueues = map[string]*batch.Batcher[claimant, []*dbsqlc.Job]{}
	enqueue := batch.Config[*envelope.Job, enqueued]{
		Flush: s.flushEnqueue, Split: splittable, Retry: retryable,
		Key:     func(j *envelope.Job) ([16]byte, bool) { return j.ID, j.ClientID },
		Flushed: s.flushed("enqueue"),
	}
	s.enqueue, s.named = batch.New(enqueue), batch.New(enqueue)
	s.complete = batch.New(batch.Config[Ack, *dbsqlc.Job]{
		Flush: s.flushComplete, Split: splittable, Retry: retryable, Flushed: s.flushed("complete"),
		Key: func(a Ack) ([16]byte, bool) { return a.JobID, true },
	})
	s.fail = batch.New(batch.Config[nack, *dbsqlc.Job]{
		Flush: s.flushFail, Split: splittable, Retry: retryable, Flushed: s.flushed("fail"),
		Key: func(n nack) ([16]byte, bool) { return n.JobID, true },
	})
	s.cancel = batch.New(batch.Config[cancellation, *dbsqlc.Job]{
		Flush: s.flushCancel, Split: splittable, Retry: retryable, Flushed: s.flushed("cancel"),
		Key: func(c cancellation) ([16]byte, bool) { return c.id, true },
	})
	s.heartbeat = batch.New(batch.Config[Beat, BeatResult]{
		Flush: s.flushHeartbeat, Split: splittable, Retry: retryable, Flushed: s.flushed("heartbeat"),
		Key:    func(b Beat) ([16]byte, bool) { return hashKey(b.WorkerID), true },
		Weight: func(b Beat) int { return 1 + len(b.JobIDs) },
	})
	if s.config.SourceInstance {
		s.instance = "/" + strconv.Itoa(int(s.node))
	}
	s.buildReports()
	s.vault = newVault(s.config.WebhookKeys)
	s.deliveries = batch.New(batch.Config[DeliveryOutcome, Recorded]{
		Flush: s.flushDeliveries, Split: splittable, Retry: retryable,
		Key: func(o DeliveryOutcome) ([16]byte, bool) { return o.ID, true },
	})
	return s
}

func (s *Store) buildReports() {
	s.endings.waiters = map[[16]byte][]*ending{}
	s.progress = batch.New(batch.Config[Report, *dbsqlc.JobProgressRow]{
		Flush: s.flushProgress, Split: splittable, Retry: retryable, Flushed: s.flushed("progress"),
		Key:    func(r Report) ([16]byte, bool) { return r.JobID, true },
		Weight: func(r Report) int { return reportWeight(len(r.Data) + len(r.Checkpoint)) },
	})
	s.checkpoint = batch.New(batch.Config[Save, *dbsqlc.JobCheckpointRow]{
		Flush: s.flushCheckpoint, Split: splittable, Retry: retryable, Flushed: s.flushed("checkpoint"),
		Key:    func(save Save) ([16]byte, bool) { return save.JobID, true },
		Weight: func(save Save) int { return reportWeight(len(save.Stored)) },
	})
	s.results = batch.New(batch.Config[[16]byte, *dbsqlc.JobResultListRow]{Flush: s.flushResults, Retry: retryable, Flushed: s.flushed("result")})
}

// flushed is nil if nobody wants to know.
func (s *Store) flushed(operation string) func(requests int, took time.Duration) {
	if s.config.OnFlush == nil {
		return nil
	}
	return func(requests int, took time.Duration) { s.config.OnFlush(operation, requests, took) }
}

// OnCommit sets what is called after each commit that wrote events. It must not block.
func (s *Store) OnCommit(f func()) { s.hooks.committed = f }

// OnDue sets what is called when this node has written a due time. It must not block.
func (s *Store) OnDue(f func(in time.Duration)) { s.hooks.due = f }

// BeforeFetch sets what a fetch calls first, to have due jobs made available.
func (s *Store) BeforeFetch(f func(ctx context.Context)) { s.hooks.sweep = f }

// origin is a source of events: api, scheduler or cron.
func (s *Store) origin(source string) string { return source + s.instance }

// Node is the mark of this process in the events it writes.
func (s *Store) Node() int32 { return s.node }

// NewNode is the mark of a process, at random.
func NewNode() int32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return max(1, int32(binary.BigEndian.Uint32(b[:])&0x7fffffff))
}

// bounded is the context of a statement.
func (s *Store) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.config.StatementTimeout)
}

// committedEvents tells the relay.
func (s *Store) committedEvents() {
	if s.hooks.committed != nil {
		s.hooks.committed()
	}
}

// armed tells the sweeper of a due time, relative to the database's clock at the statement that wrote it.
func (s *Store) armed(in time.Duration) {
	if s.hooks.due != nil {
		s.hooks.due(in)
	}
}
