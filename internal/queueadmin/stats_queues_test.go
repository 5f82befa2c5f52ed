package queueadmin_test

import (
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
