package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
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

// Two nodes that purge the same queue remove each job once, and so does one that is beside fetches.
func TestConcurrentPurges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.node()
	jobs := make([]*job.Job, 2500)
	for i := range jobs {
		jobs[i] = domaintest.NewJob("q")
	}
	b.Enqueued(jobs...)
	purge := queue.Purge{Queue: "q", States: []ojs.JobState{ojs.StateAvailable}, Cancel: queue.Cancel{By: "api"}}
	type outcome struct {
		n   int
		err error
	}
	outcomes := make(chan outcome, 2)
	for _, s := range []*queue.Store{b.Store, other.Store} {
		go func() {
			n, more, err := s.Purge(t.Context(), purge)
			if more {
				n = -1_000_000
			}
			outcomes <- outcome{n, err}
		}()
	}
	fetched := len(b.Fetched(10, "q"))
	total := fetched
	for range 2 {
		o := <-outcomes
		require.NoError(t, o.err)
		total += o.n
	}
	require.Equal(t, 2500, total)
	require.EqualValues(t, fetched, b.Number(`SELECT count(*) FROM ojs.jobs`))
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs_done`))
}
