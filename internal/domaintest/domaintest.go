// Package domaintest owns the fixture of domain tests: the domains of a node, connected as in a server but without loops and
// transports, each on a database of its own. At the end of each test it compares the changes that the domains emitted with
// the event rows that they wrote. Only tests may import it.
package domaintest

import (
	"context"
	"encoding/json"
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

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

// Config is the configuration of the domains of a test.
type Config struct {
	config.Config
	Logger *slog.Logger

	// Observer is told what package queue does.
	Observer queue.Observer

	// Hooks changes what package queue calls after its commits: a node that stops there calls nothing.
	Hooks func(h *queue.Hooks)

	// Changes and Committed subscribe to the commits of the node (eventlog.CommitsConfig), Listening and MaintenanceEnded are those of
	// api.DomainDeps. May be nil.
	Changes          func(ctx context.Context, changes []eventlog.Change)
	Committed        func()
	Listening        func() bool
	MaintenanceEnded func()

	// Sweeps connects the timer to the domains. Without it fetches apply nothing that is due, as many tests do that themselves.
	Sweeps bool

	// Unchecked leaves out the comparison of changes and event rows at the end, for tests that delete events.
	Unchecked bool
}

// WaitFor is how long tests wait for an event that must occur. It costs time only when a test fails.
const WaitFor = time.Minute

// Bundle is the domains of one node.
type Bundle struct {
	*queue.Store
	api.Domains

	T         testing.TB
	Pool      *pgxpool.Pool
	DB        *pg.DB
	Commits   *eventlog.Commits
	Timer     *loop.Timer
	Archetype *baseservice.Archetype

	mu      sync.Mutex
	emitted []eventlog.Change
}

// New returns the domains of a node on a new database.
func New(t testing.TB, change ...func(*Config)) *Bundle {
	t.Helper()
	return On(t, dbtest.New(t), change...)
}

// On returns the domains of a node on a database that other nodes may use too.
func On(t testing.TB, pool *pgxpool.Pool, change ...func(*Config)) *Bundle {
	t.Helper()
	c := Config{Config: config.Default(), Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	b := &Bundle{T: t, Pool: pool, DB: pg.New(pool, c.Database.StatementTimeout), Archetype: baseservice.NewArchetype(c.Logger)}
	commits := eventlog.CommitsConfig{Events: c.Events, Changes: []func(ctx context.Context, changes []eventlog.Change){
		b.record, func(ctx context.Context, changes []eventlog.Change) { b.Domains.Jobs.WakeRoomWaiters(ctx, changes) },
	}}
	if c.Changes != nil {
		commits.Changes = append(commits.Changes, c.Changes)
	}
	if c.Committed != nil {
		commits.Committed = append(commits.Committed, c.Committed)
	}
	b.Commits = eventlog.NewCommits(commits)
	var sources loop.TimerSources
	if c.Sweeps {
		sources = api.TimerSources(&b.Domains)
	}
	b.Timer = loop.NewTimer(b.Archetype, b.DB, sources)
	queues := queueconfig.NewCache(b.DB, c.Logger, queueconfig.CacheConfig{Listening: c.Listening})
	b.Domains = api.NewDomains(api.DomainDeps{
		DB: b.DB, Commits: b.Commits, Timer: b.Timer, Queues: queues, Logger: c.Logger, Observer: c.Observer, Hooks: c.Hooks,
		MaintenanceEnded: c.MaintenanceEnded, Listening: c.Listening,
	}, c.Config)
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

// ConfigureQueue stores the configuration of a queue as a request does, but without an event and in place of what was stored; "": none.
// Nodes do not know of it.
func (b *Bundle) ConfigureQueue(name, configuration string) {
	b.T.Helper()
	ConfigureQueue(b.T, b.Pool, name, configuration)
}

// ConfigureQueue is Bundle.ConfigureQueue on a pool.
func ConfigureQueue(t testing.TB, pool *pgxpool.Pool, name, configuration string) {
	t.Helper()
	var stored queueconfig.Stored
	if configuration != "" {
		object, invalid := jsonread.Check([]byte(configuration))
		require.Nil(t, invalid)
		change, invalid := queueconfig.ParseChange(object, "$")
		require.Nil(t, invalid)
		stored, invalid = change.Apply(nil)
		require.Nil(t, invalid)
	}
	_, err := pool.Exec(t.Context(), `INSERT INTO ojs.queues (name, config, settings) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET config = EXCLUDED.config, settings = EXCLUDED.settings`, name, stored.Config, stored.Settings)
	require.NoError(t, err)
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

// Await returns the next value of a channel, for example the WaitC of a test signal. The test fails after WaitFor.
func Await[T any](t testing.TB, c <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-c:
	case <-time.After(WaitFor):
		require.Fail(t, "no value on the channel", "within %s", WaitFor)
	}
	return value
}

// RequireCode requires an error with that code for clients.
func RequireCode(t testing.TB, err error, kind ojs.ErrorKind) {
	t.Helper()
	var wire *ojs.Error
	require.ErrorAs(t, err, &wire)
	require.Equal(t, string(kind), wire.Type, wire.Message)
}

// DecodeError decodes the error object of a nack.
func DecodeError(t testing.TB, text string) job.WorkerError {
	t.Helper()
	n, err := job.DecodeNack([]byte(`{"job_id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f","error":` + text + `}`))
	require.Nil(t, err)
	return n.Error
}

// Failure holds the members that tests read of an error object of the server.
type Failure struct {
	Code        string  `json:"code"`
	TimeoutKind string  `json:"timeout_kind"`
	Limit       float64 `json:"limit_seconds"`
	Elapsed     float64 `json:"elapsed_seconds"`
	Retryable   bool    `json:"retryable"`
}

// ErrorOf decodes the latest error of a job.
func ErrorOf(t testing.TB, j *job.Record) (f Failure) {
	t.Helper()
	require.NoError(t, json.Unmarshal(j.Error, &f), "%s", j.Error)
	return f
}

// Beat sends a heartbeat of the worker that extends the jobs.
func (b *Bundle) Beat(id string, jobs ...[16]byte) worker.BeatResult {
	b.T.Helper()
	res, err := b.Workers.Heartbeat(b.T.Context(), worker.Beat{WorkerID: id, Jobs: job.IDList{IDs: jobs}})
	require.NoError(b.T, err)
	return res
}

// Silent moves the last calls of the workers that many seconds into the past. It drops the beats that the node has collected,
// because they would be written later as recent calls.
func (b *Bundle) Silent(seconds int, workers ...string) {
	b.T.Helper()
	b.Cache.TakeBeats()
	b.Exec(`UPDATE ojs.workers SET last_seen_at = last_seen_at - $1::int * interval '1 second', last_beat_at = last_beat_at - $1::int * interval '1 second' WHERE id = ANY($2)`, seconds, workers)
}

// InsertDeadLetters inserts n dead letters with their event rows. They are a second apart, and the newest is a minute old.
func (b *Bundle) InsertDeadLetters(n int) {
	b.T.Helper()
	dbtest.WritesTables(b.T)
	b.Exec(`WITH made AS (
			INSERT INTO ojs.jobs (id, type, queue, state, attempt, created_at, finished_at, dead_lettered_at, failed, args, retry, error, errors)
			SELECT gen_random_uuid(), 'a.b' || g % 7, 'q' || g % 3, 'discarded', 1, now(), t, t, true, '[]', '{"max_attempts":1,"on_exhaustion":"dead_letter"}', e.e, ARRAY[e.e]
			FROM generate_series(1, $1::int) g, LATERAL (SELECT now() - interval '1 minute' - ($1 - g) * interval '1 second' AS t) t,
				LATERAL (SELECT ('{"attempt":1,"code":"c' || g % 5 || '","type":"t","message":"\u0000","retryable":true}')::json AS e) e
			RETURNING *)
		INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state) SELECT 'job.discarded', 'api', now(), id, type, queue, state FROM made`, n)
	b.Exec(`VACUUM ANALYZE ojs.jobs`)
}

// RequireCounts compares the counts by queue and state, summed up from the events, with the tables.
func (b *Bundle) RequireCounts() {
	b.T.Helper()
	require.Zero(b.T, b.Number(`SELECT count(*) FROM (
		SELECT c.queue, c.state, sum(c.n) AS n FROM (
			SELECT v.queue, v.state, v.n FROM (SELECT e.queue, e.to_state AS state, 1 AS n FROM ojs.events e UNION ALL SELECT e.queue, e.from_state, -1 FROM ojs.events e) v
			WHERE v.state IS NOT NULL
			UNION ALL SELECT j.queue, j.state, -1 FROM ojs.jobs j
			UNION ALL SELECT d.queue, d.state, -1 FROM ojs.jobs_done d
		) c GROUP BY 1, 2 HAVING sum(c.n) <> 0) wrong`))
}

// DeadLetter returns a dead letter, made by a failing job.
func (b *Bundle) DeadLetter(change ...func(j *job.Job)) *job.Record {
	b.T.Helper()
	in := NewJob("q")
	in.MaxAttempts, in.Retry = 1, []byte(`{"max_attempts":1,"on_exhaustion":"dead_letter"}`)
	for _, c := range change {
		c(in)
	}
	stored := b.Enqueued(in)[0]
	require.Len(b.T, b.Fetched(1, in.Queue), 1)
	stored, err := b.Fail(b.T.Context(), job.Nack{JobID: stored.ID, Attempt: -1, Error: DecodeError(b.T, `{"message":"m"}`)})
	require.NoError(b.T, err)
	require.True(b.T, stored.DeadLetteredAt.Valid)
	require.Equal(b.T, stored.FinishedAt, stored.DeadLetteredAt)
	return stored
}

// Subscribed creates a subscription to all events.
func (b *Bundle) Subscribed(change ...func(*webhook.Definition)) *webhook.Webhook {
	b.T.Helper()
	in := &webhook.Definition{
		URL: "https://example.com", Events: []string{"*"}, Active: true, TimeoutMS: 1000, MaxInFlight: 10, Ordering: "none",
		PayloadFormat: "ojs", Secret: "12345678",
	}
	for _, c := range change {
		c(in)
	}
	w, err := b.Webhooks.Create(b.T.Context(), in, webhook.Match{Types: []string{"%"}})
	require.NoError(b.T, err)
	return w
}

// Delivery puts a delivery that is due into the table, as the fan-out does, and returns its id.
func (b *Bundle) Delivery(w *webhook.Webhook, seq int, subject string) [16]byte {
	b.T.Helper()
	id := job.NewID()
	b.Exec(`INSERT INTO ojs.webhook_deliveries (id, webhook_id, event_seq, event_sub, event_time, event_type, subject, ordered, body, next_attempt_at, created_at)
		VALUES ($1, $2, $3, 0, now(), 'job.enqueued', $4, $5, '{}', clock_timestamp(), clock_timestamp())`, id, w.ID, seq, subject, w.Ordering == "subject")
	return id
}
