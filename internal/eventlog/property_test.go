package eventlog_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/riverqueue/river/rivershared/util/serviceutil"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/webhook"
)

// waitFor is how long tests wait for what must happen. It costs time only when a test fails.
const waitFor = time.Minute

// TestProperty drives many writers, two relays and three kinds of readers and checks the promises of the log: every
// committed event is read exactly once by each reader, in the order of its subject, and the counts are exact at every
// moment; a webhook gets each event once, too.
// OJSD_PROPERTY_EVENTS is how many events are written, OJSD_PROPERTY_SEED repeats the writers' choices.
func TestProperty(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*world{
		"Delay25ms":     {gapDelay: 25 * time.Millisecond},
		"NoDelay":       {gapDelay: -1},
		"RelaysAreShot": {gapDelay: 5 * time.Millisecond, shoot: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

const (
	writers  = 16
	subjects = 300
)

type world struct {
	gapDelay time.Duration
	shoot    bool // relays lose their connections now and then

	pool      *pgxpool.Pool
	relays    [2]*eventlog.Relay
	subjects  [][16]byte
	seed      uint64
	target    int64        // events to be written
	committed atomic.Int64 // events
	wg        sync.WaitGroup
}

func (w *world) run(t *testing.T) {
	w.seed = uint64(env("OJSD_PROPERTY_SEED", int(rand.Uint32())))
	t.Logf("seed %d", w.seed)
	dbtest.WritesTables(t)
	url := dbtest.URL(t)
	w.pool = connect(t, url, writers+8)
	_, err := w.pool.Exec(t.Context(), `
		CREATE TABLE subject (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), queue text, state text, n integer NOT NULL DEFAULT 0);
		INSERT INTO subject (queue) SELECT 'q' || i % 4 FROM generate_series(1, $1) i;
		INSERT INTO ojs.webhooks (id, url, events, types, sources, queues, job_types, active, timeout_ms, max_in_flight, ordering, payload_format, standard_webhooks, from_place)
		VALUES (gen_random_uuid(), 'https://example.com', '{*}', '{%}', '{}', '{}', '{}', true, 1000, 1, 'none', 'ojs', false, 0)`, pgx.QueryExecModeSimpleProtocol, subjects)
	require.NoError(t, err)
	rows, err := w.pool.Query(t.Context(), "SELECT id FROM subject")
	require.NoError(t, err)
	w.subjects, err = pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	require.NoError(t, err)
	for i := range w.relays {
		archetype := riversharedtest.BaseServiceArchetype(t)
		if w.shoot {
			archetype.Logger = slog.New(slog.DiscardHandler)
		}
		w.relays[i] = eventlog.NewRelay(archetype, connect(t, url, 2), eventlog.RelayConfig{GapDelay: w.gapDelay, Rest: time.Millisecond})
		require.NoError(t, w.relays[i].Start(t.Context()))
		t.Cleanup(w.relays[i].Stop)
	}

	reading, stopReading := context.WithCancel(t.Context())
	w.deliver(t, reading, url)
	readers := []*trace{w.poll(t, reading), w.listen(t, reading), w.pollSQL(t, reading)}
	writing, stopWriting := context.WithCancel(t.Context())
	defer stopWriting()
	var disturbing sync.WaitGroup
	disturbing.Go(func() { w.pinXmin(t, writing) })
	disturbing.Go(func() { w.checkCounts(t, writing) })
	if w.shoot {
		disturbing.Go(func() { w.shootRelays(t, writing) })
	}
	w.writeAll(t)
	for range 20 { // a busy machine may commit everything in order
		if w.late(t) > 0 {
			break
		}
		w.target += 500
		w.writeAll(t)
	}
	stopWriting()
	disturbing.Wait()

	for _, r := range readers {
		require.Eventually(t, func() bool { return r.count() >= w.committed.Load() }, waitFor, 10*time.Millisecond,
			"%s: %d of %d", r.name, r.count(), w.committed.Load())
	}
	require.Eventually(t, func() bool {
		var gaps int
		require.NoError(t, w.pool.QueryRow(t.Context(), "SELECT count(*) FROM ojs.event_gaps").Scan(&gaps))
		return gaps == 0
	}, waitFor, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		var made int64
		require.NoError(t, w.pool.QueryRow(t.Context(), "SELECT count(*) FROM ojs.webhook_deliveries").Scan(&made))
		return made >= w.committed.Load()
	}, waitFor, 10*time.Millisecond)
	stopReading()
	w.wg.Wait()
	for _, r := range append(readers, w.delivered(t)) {
		r.check(t, w.committed.Load())
	}
	w.requireCounts(t)
	late := w.late(t)
	require.Positive(t, late, "nothing came late: the test shows nothing")
	t.Logf("%d events, %d of them late", w.committed.Load(), late)
}

// late counts the events that became visible after the relay had passed over their numbers.
func (w *world) late(t *testing.T) (n int) {
	require.NoError(t, w.pool.QueryRow(t.Context(), "SELECT count(*) FROM ojs.events WHERE sub > 0").Scan(&n))
	return n
}

// writeAll runs the writers until there are as many events as wanted.
func (w *world) writeAll(t *testing.T) {
	w.target = max(w.target, int64(env("OJSD_PROPERTY_EVENTS", 1500)))
	var running sync.WaitGroup
	for i := range writers {
		running.Go(func() { w.write(t, rand.New(rand.NewPCG(w.seed, uint64(i)))) })
	}
	running.Wait()
}

// write is one application: it changes subjects and records that in the same transaction, with its own idea of time.
func (w *world) write(t *testing.T, rng *rand.Rand) {
	for w.committed.Load() < w.target {
		tx, err := w.pool.Begin(t.Context())
		if !assertNoError(t, err) {
			return
		}
		events := w.change(t, tx, rng, 1+rng.IntN(4))
		switch p := rng.IntN(100); {
		case p < 3:
			serviceutil.CancellableSleep(t.Context(), time.Duration(rng.IntN(2000))*time.Millisecond)
		case p < 30:
			serviceutil.CancellableSleep(t.Context(), time.Duration(rng.IntN(40_000))*time.Microsecond)
		}
		if rng.IntN(10) == 0 {
			assertNoError(t, tx.Rollback(t.Context()))
			continue
		}
		if !assertNoError(t, tx.Commit(t.Context())) {
			return
		}
		w.committed.Add(int64(events))
		if rng.IntN(20) > 0 { // sometimes the relay is not woken
			w.relays[rng.IntN(2)].Wake()
		}
	}
	w.relays[0].Wake()
}

func (w *world) change(t *testing.T, tx pgx.Tx, rng *rand.Rand, n int) (events int) {
	for range n {
		// Two statements: the second one sees the state that the lock protects.
		id := w.subjects[rng.IntN(len(w.subjects))]
		err := tx.QueryRow(t.Context(), `SELECT id FROM subject WHERE id = $1 FOR UPDATE SKIP LOCKED`, id).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			continue
		}
		assertNoError(t, err)
		_, err = tx.Exec(t.Context(), `
			WITH old AS (SELECT * FROM subject WHERE id = $1), new AS (
				UPDATE subject SET n = n + 1, state = $2 WHERE id = $1 RETURNING n
			)
			INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, from_state, to_state, internal, data)
			SELECT 'job.enqueued', 'api', clock_timestamp(), $1, 'test', old.queue, old.state, $2, false, ('{"n":' || new.n || '}')::json
			FROM old, new`, id, []string{"available", "active", "retryable", "completed"}[rng.IntN(4)])
		assertNoError(t, err)
		events++
	}
	return events
}

// deliver has two nodes make the deliveries of a subscription.
func (w *world) deliver(t *testing.T, ctx context.Context, url string) {
	for range 2 {
		s := webhook.NewStore(pg.New(connect(t, url, 1), time.Minute), config.Webhooks{}, slog.New(slog.DiscardHandler))
		w.wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.CreateDeliveries(t.Context()); err != nil && !w.shoot {
					t.Error(err)
				}
				serviceutil.CancellableSleep(ctx, time.Duration(rand.IntN(5000))*time.Microsecond)
			}
		})
	}
}

// delivered reads what they made: exactly one delivery per event.
func (w *world) delivered(t *testing.T) *trace {
	tr := &trace{name: "webhook"}
	rows, err := w.pool.Query(t.Context(), "SELECT body FROM ojs.webhook_deliveries ORDER BY event_seq, event_sub")
	require.NoError(t, err)
	var body string
	_, err = pgx.ForEachRow(rows, []any{&body}, func() error {
		tr.add([]byte(body))
		return nil
	})
	require.NoError(t, err)
	return tr
}

// pinXmin is an application that writes, but no events.
func (w *world) pinXmin(t *testing.T, ctx context.Context) {
	for ctx.Err() == nil {
		tx, err := w.pool.Begin(t.Context())
		if !assertNoError(t, err) {
			return
		}
		_, err = tx.Exec(t.Context(), "SELECT pg_current_xact_id()")
		assertNoError(t, err)
		serviceutil.CancellableSleep(ctx, time.Duration(rand.IntN(1500))*time.Millisecond)
		assertNoError(t, tx.Rollback(t.Context()))
	}
}

// shootRelays ends the connections of relays in the middle of what they do, each time after they have come further: on a
// busy machine they would not come far otherwise.
func (w *world) shootRelays(t *testing.T, ctx context.Context) {
	var before int64
	for ctx.Err() == nil {
		serviceutil.CancellableSleep(ctx, time.Duration(rand.IntN(200))*time.Millisecond)
		var watermark int64
		if !assertNoError(t, w.pool.QueryRow(t.Context(), "SELECT watermark FROM ojs.event_relay").Scan(&watermark)) {
			return
		}
		if watermark == before {
			continue
		}
		before = watermark
		_, err := w.pool.Exec(t.Context(), `
			SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND (query LIKE '-- name: Relay%' OR query LIKE '-- name: Webhook%') AND state <> 'idle'`)
		assertNoError(t, err)
	}
}

func (w *world) checkCounts(t *testing.T, ctx context.Context) {
	for ctx.Err() == nil {
		w.requireCounts(t)
		serviceutil.CancellableSleep(ctx, time.Duration(rand.IntN(30))*time.Millisecond)
	}
}

// requireCounts compares, in one snapshot, the subjects with what the counts and the unpublished rows add up to.
func (w *world) requireCounts(t *testing.T) {
	var wrong int
	err := w.pool.QueryRow(t.Context(), `
		WITH change AS (
			SELECT e.queue, e.from_state, e.to_state FROM ojs.events e WHERE e.seq > (SELECT watermark FROM ojs.event_relay)
			UNION ALL
			SELECT e.queue, e.from_state, e.to_state FROM ojs.event_gaps g JOIN ojs.events e ON e.seq = g.seq AND e.sub = 0
			WHERE g.passed
		), seen AS (
			SELECT queue, state, sum(n) AS n FROM (
				SELECT queue, state, count AS n FROM ojs.queue_counts
				UNION ALL SELECT queue, to_state, 1 FROM change WHERE to_state IS NOT NULL
				UNION ALL SELECT queue, from_state, -1 FROM change WHERE from_state IS NOT NULL
			) s GROUP BY 1, 2
		), truth AS (
			SELECT queue, state, count(*) AS n FROM subject WHERE state IS NOT NULL GROUP BY 1, 2
		)
		SELECT count(*) FROM seen FULL JOIN truth USING (queue, state) WHERE COALESCE(seen.n, 0) <> COALESCE(truth.n, 0)`).Scan(&wrong)
	if assertNoError(t, err) && wrong != 0 {
		t.Errorf("%d counts are wrong", wrong)
	}
}

// trace is what one reader read, in the order it read it.
type trace struct {
	name string
	mu   sync.Mutex
	read []json.RawMessage
}

func (tr *trace) add(payload []byte) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.read = append(tr.read, payload)
}

func (tr *trace) count() int64 {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return int64(len(tr.read))
}

// check: all of them, once, each subject from 1 on without a gap, positions ascending.
func (tr *trace) check(t *testing.T, committed int64) {
	require.EqualValues(t, committed, len(tr.read), tr.name)
	next := map[string]int{}
	last := eventlog.Position{Seq: -1}
	for _, payload := range tr.read {
		var e struct {
			ID      string `json:"id"`
			Subject string `json:"subject"`
			Data    struct {
				N int `json:"n"`
			} `json:"data"`
		}
		require.NoError(t, json.Unmarshal(payload, &e), tr.name)
		p, err := eventlog.ParsePosition(e.ID)
		require.NoError(t, err)
		require.True(t, last.Before(p), "%s: %s after %s", tr.name, e.ID, last)
		last = p
		next[e.Subject]++
		require.Equal(t, next[e.Subject], e.Data.N, "%s: subject %s", tr.name, e.Subject)
	}
}

// poll reads as HTTP polling does.
func (w *world) poll(t *testing.T, ctx context.Context) *trace {
	tr := &trace{name: "polling"}
	reader := eventlog.NewReader(pg.New(connect(t, w.pool.Config().ConnString(), 1), time.Minute), nil)
	w.wg.Go(func() {
		var query eventlog.Query
		for ctx.Err() == nil {
			query.Limit = 1 + rand.IntN(50)
			page, err := reader.ListAfter(t.Context(), query)
			if !assertNoError(t, err) {
				return
			}
			for _, e := range page.Events {
				tr.add(e.Append(nil, true, false))
			}
			if page.Cursor != "" {
				p, err := eventlog.ParsePosition(page.Cursor)
				assertNoError(t, err)
				query.After = &p
			}
			if !page.HasMore {
				serviceutil.CancellableSleep(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
			}
		}
	})
	return tr
}

// pollSQL reads as an SQL client catches up.
func (w *world) pollSQL(t *testing.T, ctx context.Context) *trace {
	tr := &trace{name: "ojs.events_after"}
	pool := connect(t, w.pool.Config().ConnString(), 1)
	w.wg.Go(func() {
		var after *string
		for ctx.Err() == nil {
			rows, err := pool.Query(t.Context(), "SELECT id, payload FROM ojs.events_after($1, $2)", after, 1+rand.IntN(50))
			if !assertNoError(t, err) {
				return
			}
			var id, payload string
			_, err = pgx.ForEachRow(rows, []any{&id, &payload}, func() error {
				tr.add([]byte(payload))
				last := id
				after = &last
				return nil
			})
			assertNoError(t, err)
		}
	})
	return tr
}

// listen reads the notifications of LISTEN ojs_events.
func (w *world) listen(t *testing.T, ctx context.Context) *trace {
	tr := &trace{name: "LISTEN"}
	conn, err := pgx.Connect(t.Context(), w.pool.Config().ConnString())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "LISTEN ojs_events")
	require.NoError(t, err)
	w.wg.Go(func() {
		defer func() { _ = conn.Close(context.Background()) }()
		for {
			n, err := conn.WaitForNotification(ctx)
			if ctx.Err() != nil {
				return
			}
			if !assertNoError(t, err) {
				return
			}
			tr.add([]byte(n.Payload))
		}
	})
	return tr
}

func connect(t *testing.T, url string, conns int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// assertNoError is for goroutines, where require must not be used.
func assertNoError(t *testing.T, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(fmt.Errorf("unexpected: %w", err))
	}
	return err == nil
}

func env(name string, byDefault int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return byDefault
}
