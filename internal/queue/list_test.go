package queue_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestBoundedList: a filter that matches few jobs looks at a part of them at a time, and the pages together are complete.
func TestBoundedList(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	const id = `('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid`
	b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, args)
		SELECT ` + id + `, CASE WHEN i % 450 = 0 THEN 'rare' ELSE 't' END, 'q', 'available', now(), '[]' FROM generate_series(1, 999, 2) i`)
	b.Exec(`INSERT INTO ojs.jobs_done (id, type, queue, state, created_at, finished_at, args)
		SELECT ` + id + `, CASE WHEN i % 450 = 0 THEN 'rare' ELSE 't' END, 'q', 'completed', now(), now(), '[]' FROM generate_series(2, 500, 2) i`)
	b.Exec(`UPDATE ojs.jobs SET type = 'rare' WHERE id IN (SELECT ` + id + ` FROM generate_series(201, 999, 198) i)`)
	all, err := b.Jobs.List(t.Context(), queue.List{Types: []string{"rare"}, Limit: 50})
	require.NoError(t, err)
	require.Len(t, all.Jobs, 6, "five live ones and 450")
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
	some, err := b.Jobs.List(t.Context(), queue.List{Types: []string{"rare"}, Limit: 50})
	require.NoError(t, err)
	require.EqualValues(t, 2, some.Total, "of the newest 100 live ones and of the newest 100 that have ended")

	// The same for a tenant, between jobs of others.
	for _, table := range []string{"jobs", "jobs_done"} {
		b.Exec(`UPDATE ojs.` + table + ` SET lane = 'm'`)
		b.Exec(`INSERT INTO ojs.` + table + ` (id, type, queue, lane, state, created_at, finished_at, args) SELECT ojs.new_id(now()), 'rare', 'q', l.lane, 'completed', now(), now(), '[]'
			FROM unnest('{a,m0,z}'::text[]) l (lane) CROSS JOIN generate_series(1, 100)`)
	}
	got, n = pages(queue.List{Tenant: "m", Types: []string{"rare"}, Limit: 50})
	require.Equal(t, want, got)
	require.Equal(t, 8, n)
	some, err = b.Jobs.List(t.Context(), queue.List{Tenant: "m", Types: []string{"rare"}, Limit: 50})
	require.NoError(t, err)
	require.EqualValues(t, 2, some.Total)
	for _, table := range []string{"jobs", "jobs_done"} {
		b.Exec(`DELETE FROM ojs.` + table + ` WHERE lane <> 'm'`)
	}

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

	// A list of keys has no next part.
	b.Exec(`UPDATE ojs.jobs SET unique_key = lpad(id::text, 64)`)
	b.Jobs.LookAt(3)
	keys, err := b.Jobs.ListUnique(t.Context(), queue.UniqueList{Limit: 50})
	require.NoError(t, err)
	require.Len(t, keys.Jobs, 3)
	require.EqualValues(t, 3, keys.Total)
}

// TestListFilters: each filter of a list finds its jobs, newest first, with their number.
func TestListFilters(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	const all = 40
	b.variedJobs(all)
	for name, test := range map[string]struct {
		list  queue.List
		wants func(i int) bool
	}{
		"None":        {queue.List{}, func(int) bool { return true }},
		"States":      {queue.List{States: []string{"pending", "cancelled"}}, func(i int) bool { return i%6 == 3 || i%4 == 0 }},
		"Queues":      {queue.List{Queues: []string{"q0", "q2"}}, func(i int) bool { return i%3 != 1 }},
		"Types":       {queue.List{Types: []string{"a.b1", "a.b2", "a"}}, func(i int) bool { return i%4 == 1 || i%4 == 2 }},
		"Tenant":      {queue.List{Tenant: "acme"}, func(i int) bool { return i%5 == 1 || i%5 == 2 }},
		"OtherTenant": {queue.List{Tenant: "key"}, func(i int) bool { return i%5 == 4 }},
		"ShortTenant": {queue.List{Tenant: "a"}, func(i int) bool { return i%20 == 3 || i%20 == 8 }},
		"Together": {queue.List{Tenant: "acme", Queues: []string{"q1", "q2"}, Types: []string{"a.b1", "a.b2"}, States: []string{"available", "completed"}},
			func(i int) bool { return (i%5 == 1 || i%5 == 2) && i%3 > 0 && (i%4 == 1 || i%4 == 2) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want []int
			for i := all; i > 0; i-- {
				if test.wants(i) {
					want = append(want, i)
				}
			}
			for _, limit := range []int{1, 3, len(want), 100} {
				var got []int
				l := test.list
				l.Limit = limit
				for {
					page, err := b.Jobs.List(t.Context(), l)
					require.NoError(t, err)
					require.EqualValues(t, len(want), page.Total)
					for _, j := range page.Jobs {
						got = append(got, numberOf(j.ID))
					}
					if l.Before = page.Next; l.Before == nil {
						break
					}
					require.Len(t, page.Jobs, limit)
				}
				require.Equal(t, want, got)
			}
			l := test.list
			l.Limit, l.Offset = 2, 1
			page, err := b.Jobs.List(t.Context(), l)
			require.NoError(t, err)
			require.Equal(t, want[1:3], []int{numberOf(page.Jobs[0].ID), numberOf(page.Jobs[1].ID)})
		})
	}
}

// TestBulkFilters: each filter of a bulk change chooses its jobs, oldest first.
func TestBulkFilters(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	const all = 40
	base := b.variedJobs(all)
	at := func(s int) time.Time { return base.Add(time.Duration(s) * time.Second) }
	enqueued := func(i int) int { // in seconds from base
		if i%3 > 0 {
			return i + 100
		}
		return i
	}
	priority := int16(-2)
	states := []ojs.JobState{"available", "pending", "completed", "cancelled"}
	for name, test := range map[string]struct {
		filter job.BulkFilter
		wants  func(i int) bool
	}{
		"None":        {job.BulkFilter{}, func(int) bool { return true }},
		"States":      {job.BulkFilter{States: []ojs.JobState{"pending", "cancelled"}}, func(i int) bool { return i%6 == 3 || i%4 == 0 }},
		"Queue":       {job.BulkFilter{Queue: "q1"}, func(i int) bool { return i%3 == 1 }},
		"Type":        {job.BulkFilter{Type: "a.b1"}, func(i int) bool { return i%4 == 1 }},
		"NoType":      {job.BulkFilter{Type: "a.b"}, func(int) bool { return false }},
		"Prefix":      {job.BulkFilter{Type: "a.b3", TypePrefix: true}, func(i int) bool { return i%4 == 3 }},
		"AnyPrefix":   {job.BulkFilter{Type: "a.b", TypePrefix: true}, func(int) bool { return true }},
		"Priority":    {job.BulkFilter{Priority: &priority}, func(i int) bool { return i%6 == 1 }},
		"After":       {job.BulkFilter{EnqueuedAfter: at(111)}, func(i int) bool { return enqueued(i) > 111 }},
		"Before":      {job.BulkFilter{EnqueuedBefore: at(111)}, func(i int) bool { return enqueued(i) < 111 }},
		"Span":        {job.BulkFilter{Since: job.When{Set: true, At: at(9)}, OlderThan: job.When{Set: true, At: at(104)}}, func(i int) bool { return enqueued(i) > 9 && enqueued(i) < 104 }},
		"Tenant":      {job.BulkFilter{Tenant: "acme"}, func(i int) bool { return i%5 == 1 || i%5 == 2 }},
		"OtherTenant": {job.BulkFilter{Tenant: "key"}, func(i int) bool { return i%5 == 4 }},
		"ShortTenant": {job.BulkFilter{Tenant: "a"}, func(i int) bool { return i%20 == 3 || i%20 == 8 }},
		"Together": {job.BulkFilter{Tenant: "acme", Queue: "q1", Type: "a", TypePrefix: true, States: []ojs.JobState{"available", "completed"}, EnqueuedAfter: at(104)},
			func(i int) bool {
				return (i%5 == 1 || i%5 == 2) && i%3 == 1 && (i%2 == 1 || i%4 == 2) && enqueued(i) > 104
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want []int
			for i := 1; i <= all; i++ {
				if test.wants(i) {
					want = append(want, i)
				}
			}
			f := test.filter
			if f.States == nil {
				f.States = states
			}
			for _, limit := range []int{1, 5, all} {
				ids, more, err := b.Jobs.Candidates(t.Context(), f, limit)
				require.NoError(t, err)
				var got []int
				for _, id := range ids {
					got = append(got, numberOf(id))
				}
				require.Equal(t, want[:min(limit, len(want))], got)
				require.Equal(t, len(want) > limit, more)
			}
		})
	}
}
