package queue_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
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

	// A bulk filter gets all of them, by as many statements.
	slices.Reverse(want)
	candidates := func(f job.BulkFilter, limit int) (ids [][16]byte, more bool) {
		f.States = []ojs.JobState{ojs.StateAvailable, ojs.StateCompleted}
		ids, more, err := b.Jobs.Candidates(t.Context(), f, limit)
		require.NoError(t, err)
		return ids, more
	}
	for looked := range 8 { // whatever row a statement ends with
		b.Jobs.LookAt(int64(96 + looked))
		ids, more := candidates(job.BulkFilter{Type: "rare"}, 50)
		require.Equal(t, want, ids)
		require.False(t, more)
		ids, more = candidates(job.BulkFilter{Type: "rare"}, 5)
		require.Equal(t, want[:5], ids)
		require.True(t, more)
		ids, more = candidates(job.BulkFilter{Type: "rare"}, 6)
		require.Equal(t, want, ids)
		require.False(t, more)
		ids, _ = candidates(job.BulkFilter{Queue: "q"}, 1000)
		require.Len(t, ids, 750)
		ids, more = candidates(job.BulkFilter{Type: "none"}, 5)
		require.Empty(t, ids)
		require.False(t, more)
	}
	b.Jobs.LookAt(1)
	ids, _ := candidates(job.BulkFilter{Type: "rare"}, 50)
	require.Equal(t, want, ids)
}
