package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/queue"
)

// TestBoundedSearch: a filter that matches few jobs looks at a part of them at a time, and the pages together are complete.
func TestBoundedSearch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const id = `('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid`
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, args)
		SELECT ` + id + `, CASE WHEN i % 99 = 0 THEN 'rare' ELSE 't' END, 'q', 'available', now(), '[]' FROM generate_series(1, 999, 2) i`)
	b.Exec(`INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args)
		SELECT ` + id + `, CASE WHEN i % 99 = 0 THEN 'rare' ELSE 't' END, 'q', 'completed', now(), now(), '[]' FROM generate_series(2, 500, 2) i`)
	all, err := b.Jobs.Search(t.Context(), queue.Search{Types: []string{"rare"}, Sort: queue.SortCreated, Limit: 50})
	require.NoError(t, err)
	require.Len(t, all.Jobs, 7)
	require.EqualValues(t, 7, all.Total)
	require.Nil(t, all.Next)
	for looked := range 8 {
		b.Jobs.LookAt(int64(96 + looked))
		for _, ascending := range []bool{false, true} {
			for _, limit := range []int{1, 3, 50} {
				var got [][16]byte
				f := queue.Search{Types: []string{"rare"}, Sort: queue.SortCreated, Ascending: ascending, Limit: limit}
				for {
					page, err := b.Jobs.Search(t.Context(), f)
					require.NoError(t, err)
					for _, j := range page.Jobs {
						got = append(got, j.ID)
					}
					require.Equal(t, page.Next != nil, page.More)
					if f.Cursor = page.Next; f.Cursor == nil {
						break
					}
				}
				require.Len(t, got, 7)
				for i := range got {
					want := all.Jobs[i].ID
					if ascending {
						want = all.Jobs[6-i].ID
					}
					require.Equal(t, want, got[i])
				}
			}
		}
	}
}
