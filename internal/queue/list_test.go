package queue_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/queue"
)

// TestBoundedList: a filter that matches few jobs looks at a part of them at a time, and the pages together are complete.
func TestBoundedList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const id = `('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid`
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, args)
		SELECT ` + id + `, CASE WHEN i % 290 = 0 THEN 'rare' ELSE 't' END, 'q', 'available', now(), '[]' FROM generate_series(1, 999, 2) i`)
	b.Exec(`INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args)
		SELECT ` + id + `, CASE WHEN i % 290 = 0 THEN 'rare' ELSE 't' END, 'q', 'completed', now(), now(), '[]' FROM generate_series(2, 500, 2) i`)
	b.Exec(`UPDATE ojs.jobs SET type = 'rare' WHERE id IN (SELECT ` + id + ` FROM generate_series(1, 999, 200) i)`)
	all, err := b.Jobs.List(t.Context(), queue.List{Types: []string{"rare"}, Limit: 50})
	require.NoError(t, err)
	require.Len(t, all.Jobs, 6, "five live ones and 290")
	require.EqualValues(t, 6, all.Total)
	require.Nil(t, all.Next)

	b.Jobs.LookAt(100)
	pages := func(l queue.List) (ids [][16]byte, n int) {
		for {
			page, err := b.Jobs.List(t.Context(), l)
			require.NoError(t, err)
			n++
			for _, j := range page.Jobs {
				ids = append(ids, j.ID)
			}
			if l.Before = page.Next; l.Before == nil {
				return ids, n
			}
		}
	}
	var want [][16]byte
	for _, j := range all.Jobs {
		want = append(want, j.ID)
	}
	got, n := pages(queue.List{Types: []string{"rare"}, Limit: 50})
	require.Equal(t, want, got)
	require.Equal(t, 8, n, "750 jobs")
	got, _ = pages(queue.List{Types: []string{"rare"}, Limit: 1})
	require.Equal(t, want, got)
	got, n = pages(queue.List{Types: []string{"none"}, Limit: 50})
	require.Empty(t, got)
	require.Equal(t, 8, n)
	got, _ = pages(queue.List{Limit: 200})
	require.Len(t, slices.Compact(got), 750)
}
