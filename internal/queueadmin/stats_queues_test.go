package queueadmin_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queueadmin"
)

// Figures are kept per minute. Of the minute before this one, as much counts as is younger than 60 s.
func TestRatesOfTheLastMinute(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO ojs.stats_minute (queue, minute, enqueued, completed, failed, duration_ms)
		SELECT q, date_trunc('minute', now()) + i * interval '1 minute', 6000, 600, 60, 6 FROM generate_series(-10, 10) i, (VALUES ('q'), ('')) v (q)`)
	require.NoError(t, err)
	s := queueadmin.NewStatistics(pg.New(pool, 10*time.Second))
	second := func() (n float64) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT date_part('second', clock_timestamp())`).Scan(&n))
		return n
	}
	for _, queue := range []string{"q", ""} {
		begin, end := 1.0, 0.0
		var d queueadmin.Deployment
		for begin > end { // until no minute ends in between
			begin = second()
			d, err = s.Deployment(t.Context(), queue)
			require.NoError(t, err)
			end = second()
		}
		most, least := 2-begin/60, 2-end/60 // minutes
		for minute, got := range map[float64]float64{6000: d.Rates.Enqueued, 600: d.Rates.Completed, 60: d.Rates.Failed, 6: float64(d.Rates.Ran) / 1e6} {
			require.LessOrEqual(t, got, minute*most+0.001)
			require.GreaterOrEqual(t, got, minute*least-0.001)
		}
	}
	d, err := s.Deployment(t.Context(), "idle")
	require.NoError(t, err)
	require.Zero(t, d.Rates)
}

// A day begins with its first minute, of UTC.
func TestFiguresOfToday(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for {
		day := b.One(`SELECT date_trunc('day', now(), 'UTC')::text`)
		b.Exec(`DELETE FROM ojs.stats_minute`)
		b.Exec(`INSERT INTO ojs.stats_minute (queue, minute, completed, failed)
			SELECT q, $1::timestamptz + g * interval '1 minute', 2 ^ (g + 1), 10 * 2 ^ (g + 1) FROM generate_series(-1, 1) g, unnest('{q,other}'::text[]) q`, day)
		got, err := b.Queues.Figures(t.Context(), "q")
		require.NoError(t, err)
		if day == b.One(`SELECT date_trunc('day', now(), 'UTC')::text`) {
			require.Equal(t, []int64{6, 60}, []int64{got.CompletedToday, got.FailedToday})
			return
		}
	}
}

func TestQueuePages(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO ojs.queues (name) VALUES ('a'), ('b'), ('c')`)
	require.NoError(t, err)
	s := queueadmin.NewStatistics(pg.New(pool, 10*time.Second))
	for _, test := range []struct {
		page  queueadmin.StatisticsPage
		names []string
		more  bool
	}{
		{queueadmin.StatisticsPage{Limit: 2}, []string{"a", "b"}, true},
		{queueadmin.StatisticsPage{Limit: 3}, []string{"a", "b", "c"}, false},
		{queueadmin.StatisticsPage{Limit: 2, Offset: 1}, []string{"b", "c"}, false},
		{queueadmin.StatisticsPage{Limit: 1, After: "a"}, []string{"b"}, true},
	} {
		page, err := s.Queues(t.Context(), test.page)
		require.NoError(t, err)
		var names []string
		for _, q := range page.Queues {
			names = append(names, q.Name)
		}
		require.Equal(t, test.names, names)
		require.Equal(t, test.more, page.More, "%+v", test.page)
		require.EqualValues(t, 3, page.Total)
	}
}

// The job that has waited longest is found in every lane and priority. Jobs of one may have entered the queue before others that are
// fetched before them: a job of a cron waits for the one before.
func TestOldestOfAQueue(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	pool := dbtest.New(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	s := queueadmin.NewStatistics(pg.New(pool, 10*time.Second))
	oldest := func() time.Time {
		t.Helper()
		q, err := s.Queue(t.Context(), "q")
		require.NoError(t, err)
		return q.OldestAt
	}
	exec(`INSERT INTO ojs.queues (name) VALUES ('q'), ('other')`)
	require.Zero(t, oldest())
	exec(`INSERT INTO ojs.jobs (id, type, queue, lane, state, args, priority, created_at, enqueued_at, ready_seq)
		SELECT ojs.new_id(now()), 't', q, 'l' || lane, 'available', '[]', priority + lane - 20, now(), timestamptz '2026-01-01' + CASE q WHEN 'q' THEN interval '1 day' ELSE '0' END,
			lane * 10 + priority
		FROM generate_series(11, 35) lane, (VALUES (-5), (0), (5)) p (priority), (VALUES ('q'), ('other')) o (q)`)
	first := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	require.Equal(t, first, oldest().UTC())
	for i, lane := range []int{11, 12, 34, 35} { // the later ones have higher priorities
		for j, priority := range []int{-5, 0, 5} {
			at := first.Add(-time.Duration(i*3+j+1) * time.Minute)
			exec(`UPDATE ojs.jobs SET enqueued_at = $1 WHERE queue = 'q' AND lane = $2 AND priority = $3`, at, fmt.Sprint("l", lane), priority+lane-20)
			require.Equal(t, at, oldest().UTC(), "l%d, priority %d", lane, priority+lane-20)
		}
	}
}
