package stats_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/stats"
)

func TestQueuePages(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO ojs.queues (name) VALUES ('a'), ('b'), ('c')`)
	require.NoError(t, err)
	s := stats.New(pg.New(pool, 10*time.Second))
	for _, test := range []struct {
		page  stats.Page
		names []string
		more  bool
	}{
		{stats.Page{Limit: 2}, []string{"a", "b"}, true},
		{stats.Page{Limit: 3}, []string{"a", "b", "c"}, false},
		{stats.Page{Limit: 2, Offset: 1}, []string{"b", "c"}, false},
		{stats.Page{Limit: 1, After: "a"}, []string{"b"}, true},
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
