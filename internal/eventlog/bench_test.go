package eventlog

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/pg"
)

func BenchmarkListAfter(b *testing.B) {
	pool := dbtest.New(b)
	_, err := pool.Exec(b.Context(), `
		INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state, priority)
		SELECT 'job.enqueued', 'api', clock_timestamp(), gen_random_uuid(), 'test', 'q', 'available', 0 FROM generate_series(1, 100000)`)
	require.NoError(b, err)
	_, err = pool.Exec(b.Context(), "UPDATE ojs.event_relay SET watermark = 100000")
	require.NoError(b, err)
	reader := NewReader(pg.New(pool, time.Minute), nil)
	head, err := reader.Head(b.Context())
	require.NoError(b, err)
	b.Run("Empty", func(b *testing.B) {
		for b.Loop() {
			_, err := reader.ListAfter(b.Context(), Query{After: &head})
			require.NoError(b, err)
		}
	})
	b.Run("First100", func(b *testing.B) {
		for b.Loop() {
			_, err := reader.ListAfter(b.Context(), Query{})
			require.NoError(b, err)
		}
	})
	b.Run("First1000", func(b *testing.B) {
		for b.Loop() {
			_, err := reader.ListAfter(b.Context(), Query{Limit: 1000})
			require.NoError(b, err)
		}
	})
	b.Run("Newest", func(b *testing.B) {
		for b.Loop() {
			_, _, err := reader.ListNewest(b.Context(), Query{Limit: 50}, 0)
			require.NoError(b, err)
		}
	})
}

const insertMixed = `
	INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, attempt, worker_id, from_state, to_state, priority, ready_seq, node, duration_ms, data)
	SELECT (ARRAY['job.enqueued', 'job.started', 'job.completed'])[1 + g % 3],
		CASE g % 3 WHEN 0 THEN 'api' ELSE 'workers/w-' || g % 20 END, clock_timestamp(), gen_random_uuid(), 'invoice.render', 'billing' || g % 4,
		CASE g % 3 WHEN 0 THEN NULL ELSE 1 END, CASE g % 3 WHEN 0 THEN NULL ELSE 'w-' || g % 20 END,
		(ARRAY[NULL, 'available', 'active'])[1 + g % 3], (ARRAY['available', 'active', 'completed'])[1 + g % 3],
		CASE g % 3 WHEN 0 THEN 0 END, CASE g % 3 WHEN 0 THEN g END, 1, CASE g % 3 WHEN 0 THEN NULL ELSE 12 END,
		CASE g % 3 WHEN 2 THEN '{"result":{"pages":3,"url":"s3://bucket/x"}}'::json END
	FROM generate_series(1, $1) g`

// BenchmarkRelay publishes a backlog with full passes; every envelope is notified and one client listens.
func BenchmarkRelay(b *testing.B) {
	const events = 100_000
	for _, size := range []int{100, 1000, maxNumbers} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			pool := dbtest.New(b)
			relay := NewRelay(riversharedtest.BaseServiceArchetype(b), pool, RelayConfig{})
			relay.span = int64(size)
			_, err := pool.Exec(b.Context(), `INSERT INTO ojs.queues (name) SELECT 'billing' || n FROM generate_series(0, 3) n`)
			require.NoError(b, err)
			listener, err := pgx.Connect(b.Context(), pool.Config().ConnString())
			require.NoError(b, err)
			defer func() { _ = listener.Close(context.Background()) }()
			_, err = listener.Exec(b.Context(), "LISTEN ojs_events")
			require.NoError(b, err)
			go func() {
				for {
					if _, err := listener.WaitForNotification(b.Context()); err != nil {
						return
					}
				}
			}()
			published := 0
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				_, err := pool.Exec(b.Context(), insertMixed, events)
				require.NoError(b, err)
				b.StartTimer()
				for {
					done, err := relay.runOnce(b.Context())
					require.NoError(b, err)
					published += done.published
					if done.caughtUp() {
						break
					}
				}
			}
			b.ReportMetric(float64(published)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(published), "µs/event")
		})
	}
}
