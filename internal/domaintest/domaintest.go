// Package domaintest owns the fixture of domain tests: the domains of a node, connected as in a server but without loops and
// transports, each on a database of its own. At the end of each test it compares the changes that the domains emitted with
// the event rows that they wrote. Only tests may import it.
package domaintest

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app/domains"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/progress"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/timer"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/internal/workflow"
	"github.com/ojsd/ojsd/ojs"
)

// Config is the configuration of the domains of a test.
type Config struct {
	domains.Config
	StatementTimeout  time.Duration
	EnqueuedOnRequeue bool
	Logger            *slog.Logger

	// Unchecked leaves out the comparison of changes and event rows at the end, for tests that delete events.
	Unchecked bool
}

// WaitFor is how long tests wait for an event that must occur. It costs time only when a test fails.
const WaitFor = time.Minute

// Bundle is the domains of one node.
type Bundle struct {
	*queue.Store
	domains.Domains

	T         testing.TB
	Pool      *pgxpool.Pool
	DB        *pg.DB
	Commits   *eventlog.Commits
	Timer     *timer.Timer
	Archetype *baseservice.Archetype

	mu      sync.Mutex
	emitted []eventlog.Change
}

// New returns the domains of a node on a new database.
func New(t testing.TB, change ...func(*Config)) *Bundle {
	t.Helper()
	return On(t, dbtest.New(t), change...)
}

// defaults is the configuration of a server whose settings are not changed.
func defaults() domains.Config {
	c := config.Default()
	limits := job.Limits{MaxEnvelopeBytes: int(c.Jobs.MaxSize), MaxResultBytes: int(c.Jobs.MaxSize)}
	return domains.Config{
		Queue: queue.Config{DefaultVisibility: c.Jobs.VisibilityTimeout, DefaultTimeout: c.Jobs.Timeout, FullRetryAfter: c.Queues.FullRetryAfter},
		Queues: queueadmin.Config{
			ExtensionEvents: c.Events.ExtensionTypes,
			Retention:       queueadmin.Retention{Completed: c.Retention.Completed, Discarded: c.Retention.Discarded, Cancelled: c.Retention.Completed},
		},
		Progress: progress.Config{DefaultTimeout: c.Jobs.Timeout},
		Worker: worker.Config{
			DeadAfter: c.Workers.DeadAfter, DefaultTimeout: c.Jobs.Timeout, HeartbeatEvents: c.Events.WorkerHeartbeat,
			JobHeartbeatInterval: c.Events.JobHeartbeatMinInterval,
		},
		Cron:     cron.Config{Limits: limits},
		Workflow: workflow.Config{Limits: limits, MaxDepth: c.Workflows.MaxDepth},
		Webhook:  webhook.StoreConfig{MaxWebhooks: int32(c.Webhooks.MaxSubscriptions)},
	}
}

// On returns the domains of a node on a database that other nodes may use too.
func On(t testing.TB, pool *pgxpool.Pool, change ...func(*Config)) *Bundle {
	t.Helper()
	c := Config{
		Config: defaults(), StatementTimeout: 15 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&c)
	}
	b := &Bundle{T: t, Pool: pool, DB: pg.New(pool, c.StatementTimeout), Commits: eventlog.NewCommits()}
	if c.EnqueuedOnRequeue {
		b.Commits.RequeueEvent = ojs.EventJobEnqueued
	}
	b.Commits.OnChanges(b.record)
	b.Archetype = baseservice.NewArchetype(c.Logger)
	b.Timer = timer.New(b.Archetype, b.DB)
	b.Domains = domains.New(domains.Deps{DB: b.DB, Commits: b.Commits, Timer: b.Timer, Logger: c.Logger}, c.Config)
	b.Store = b.Domains.Jobs
	if !c.Unchecked {
		t.Cleanup(b.RequireEmitted)
	}
	return b
}

// Fetch claims jobs as the transports do.
func (b *Bundle) Fetch(ctx context.Context, f job.Fetch) ([]*job.Record, error) {
	return b.Pools.Fetch(ctx, f)
}

// Node returns another node on the same database.
func (b *Bundle) Node(change ...func(*Config)) *Bundle {
	b.T.Helper()
	return On(b.T, b.Pool, change...)
}

func (b *Bundle) record(_ context.Context, changes []eventlog.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.emitted = append(b.emitted, changes...)
}

// Emitted returns the changes that the domains of this node have emitted so far.
func (b *Bundle) Emitted() []eventlog.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]eventlog.Change(nil), b.emitted...)
}

// line formats a change as RequireEmitted formats an event row.
func line(c eventlog.Change) string {
	subject, ms := c.Subject, "-"
	if c.JobID != [16]byte{} {
		subject = spec.FormatID(c.JobID)
	}
	if c.Timed {
		ms = fmt.Sprint(c.Milliseconds())
	}
	return fmt.Sprintf("%s %s %s %s %s>%s %s", c.Type, subject, c.JobType, c.Queue, c.From, c.To, ms)
}

// RequireEmitted compares the emitted changes with all event rows of this node.
func (b *Bundle) RequireEmitted() {
	b.T.Helper()
	rows, err := b.Pool.Query(context.Background(), `
		SELECT type || ' ' || COALESCE(subject, job_id::text) || ' ' || COALESCE(job_type, '') || ' ' || COALESCE(queue, '') || ' '
			|| COALESCE(from_state, '') || '>' || COALESCE(to_state, '') || ' ' || COALESCE(duration_ms::text, '-')
		FROM ojs.events WHERE node = $1 AND type <> 'job.admitted' ORDER BY seq, sub`, b.Commits.Node)
	require.NoError(b.T, err)
	events, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.T, err)
	var emitted []string
	for _, c := range b.Emitted() {
		emitted = append(emitted, line(c))
	}
	require.ElementsMatch(b.T, events, emitted)
}

// NewJob returns a job with required attributes only.
func NewJob(queue string) *job.Job {
	return &job.Job{Type: "test.job", Queue: queue, MaxAttempts: 3, Args: []byte(`[1]`)}
}

// With returns a job in queue q after change.
func With(change func(j *job.Job)) *job.Job {
	j := NewJob("q")
	change(j)
	return j
}

// Enqueued enqueues jobs and returns them as stored.
func (b *Bundle) Enqueued(jobs ...*job.Job) []*job.Record {
	b.T.Helper()
	stored, errs := b.EnqueueEach(b.T.Context(), jobs)
	require.Nil(b.T, errs)
	return stored
}

// Fetched fetches jobs for worker w1.
func (b *Bundle) Fetched(count int, queues ...string) []*job.Record {
	b.T.Helper()
	jobs, err := b.Fetch(b.T.Context(), job.Fetch{Queues: queues, Count: count, WorkerID: "w1"})
	require.NoError(b.T, err)
	return jobs
}

// FetchedBy fetches from queue q.
func (b *Bundle) FetchedBy(worker string, count int) (ids [][16]byte) {
	b.T.Helper()
	jobs, err := b.Fetch(b.T.Context(), job.Fetch{Queues: []string{"q"}, Count: count, WorkerID: worker})
	require.NoError(b.T, err)
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// State reads the state of a job.
func (b *Bundle) State(id [16]byte) ojs.JobState {
	b.T.Helper()
	stored, err := b.Get(b.T.Context(), id)
	require.NoError(b.T, err)
	return ojs.JobState(stored.State)
}

// ApplyDueUntilLeft applies what is due until the job has left the state.
func (b *Bundle) ApplyDueUntilLeft(id [16]byte, from ojs.JobState) *job.Record {
	b.T.Helper()
	require.Eventually(b.T, func() bool {
		_, err := b.ApplyDue(b.T.Context(), pg.Beginning)
		require.NoError(b.T, err)
		return b.State(id) != from
	}, WaitFor, 5*time.Millisecond)
	stored, err := b.Get(b.T.Context(), id)
	require.NoError(b.T, err)
	return stored
}

// Exec runs SQL.
func (b *Bundle) Exec(sql string, args ...any) {
	b.T.Helper()
	_, err := b.Pool.Exec(context.Background(), sql, args...)
	require.NoError(b.T, err)
}

// Texts returns the rows of a query with one column.
func (b *Bundle) Texts(sql string, args ...any) []string {
	b.T.Helper()
	rows, err := b.Pool.Query(b.T.Context(), sql, args...)
	require.NoError(b.T, err)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(b.T, err)
	return texts
}

// One returns the only row of a query with one column.
func (b *Bundle) One(sql string, args ...any) string {
	b.T.Helper()
	texts := b.Texts(sql, args...)
	require.Len(b.T, texts, 1)
	return texts[0]
}

// Number returns the only row of a query with one number.
func (b *Bundle) Number(sql string, args ...any) (n int) {
	b.T.Helper()
	require.NoError(b.T, b.Pool.QueryRow(b.T.Context(), sql, args...).Scan(&n))
	return n
}

// EventTypes returns the events of a job, in order, as type:from>to.
func (b *Bundle) EventTypes(id [16]byte) []string {
	b.T.Helper()
	return b.Texts(`SELECT type || COALESCE(':' || from_state, '') || COALESCE('>' || to_state, '') FROM ojs.events WHERE job_id = $1 ORDER BY seq, sub`, id)
}

// Plan returns the plan of a query.
func (b *Bundle) Plan(query string) string {
	b.T.Helper()
	return strings.Join(b.Texts("EXPLAIN "+query), "\n")
}

// Lock locks the row of a job, as an application does that calls ojs.cancel and keeps its transaction open.
func (b *Bundle) Lock(id [16]byte) pgx.Tx {
	b.T.Helper()
	tx, err := b.Pool.Begin(b.T.Context())
	require.NoError(b.T, err)
	_, err = tx.Exec(b.T.Context(), `SELECT FROM ojs.jobs WHERE id = $1 FOR UPDATE`, id)
	require.NoError(b.T, err)
	b.T.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}
