package queue_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestBoundedSearch: a filter that matches few jobs looks at a part of them at a time, and the pages together are complete.
func TestBoundedSearch(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
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

// variedJobs stores jobs 1 to n, which differ in all that filters compare: odd ones are live, even ones have ended. The number is the end of
// the id, and the seconds of created_at from the time that it returns.
func (b *bundle) variedJobs(n int) (base time.Time) {
	b.T.Helper()
	base = time.UnixMilli(0x019000000000).Truncate(time.Second) // as in the ids
	const columns = `(id, type, queue, lane, state, priority, scheduled_at, created_at, enqueued_at, args`
	const values = `('01900000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'a.b' || i % 4, 'q' || i % 3,
		CASE WHEN i % 20 IN (0, 5) THEN '/acme' WHEN i % 20 IN (3, 8) THEN 'a' ELSE (ARRAY['', 'acme', 'acme/key', 'acme.eu', 'key/acme'])[i % 5 + 1] END, STATE, i % 6 - 3,
		CASE WHEN i % 7 > 0 THEN $1::timestamptz + i * 37 % 11 * interval '1 hour' END, $1::timestamptz + i * interval '1 s',
		CASE WHEN i % 3 > 0 THEN $1::timestamptz + (i + 100) * interval '1 s' END, '[]'`
	rows := func(state string) string { return strings.Replace(values, "STATE", state, 1) }
	b.Exec(`INSERT INTO ojs.jobs `+columns+`) SELECT `+rows(`CASE WHEN i % 3 = 0 THEN 'pending' ELSE 'available' END`)+` FROM generate_series(1, $2::int, 2) i`, base, n)
	b.Exec(`INSERT INTO ojs.jobs_done `+columns+`, finished_at) SELECT `+rows(`CASE WHEN i % 4 = 0 THEN 'cancelled' ELSE 'completed' END`)+`, now() FROM generate_series(2, $2::int, 2) i`, base, n)
	return base
}

// numberOf is that of one of variedJobs.
func numberOf(id [16]byte) int { return int(binary.BigEndian.Uint64(id[8:]) & 0xffff) }

// TestSearchFilters: each filter finds its jobs, live ones and ended ones, in each order and page by page.
func TestSearchFilters(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	const all = 40
	base := b.variedJobs(all)
	at := func(i int) job.When { return job.When{Set: true, At: base.Add(time.Duration(i) * time.Second)} }
	for name, test := range map[string]struct {
		search queue.Search
		wants  func(i int) bool
	}{
		"None":         {queue.Search{}, func(int) bool { return true }},
		"LiveStates":   {queue.Search{States: []string{"available", "pending"}}, func(i int) bool { return i%2 == 1 }},
		"States":       {queue.Search{States: []string{"pending", "cancelled"}}, func(i int) bool { return i%6 == 3 || i%4 == 0 }},
		"Queues":       {queue.Search{Queues: []string{"q1", "q2"}}, func(i int) bool { return i%3 > 0 }},
		"Types":        {queue.Search{Types: []string{"a.b1", "a.b2", "a"}}, func(i int) bool { return i%4 == 1 || i%4 == 2 }},
		"Prefixes":     {queue.Search{TypePrefixes: []string{"a.b3", "b"}}, func(i int) bool { return i%4 == 3 }},
		"TypeOrPrefix": {queue.Search{Types: []string{"a.b0"}, TypePrefixes: []string{"a.b3"}}, func(i int) bool { return i%4 == 0 || i%4 == 3 }},
		"Since":        {queue.Search{Since: at(11)}, func(i int) bool { return i >= 11 }},
		"Until":        {queue.Search{Until: at(11)}, func(i int) bool { return i <= 11 }},
		"Tenant":       {queue.Search{Tenant: "acme"}, func(i int) bool { return i%5 == 1 || i%5 == 2 }},
		"OtherTenant":  {queue.Search{Tenant: "key"}, func(i int) bool { return i%5 == 4 }},
		"ShortTenant":  {queue.Search{Tenant: "a"}, func(i int) bool { return i%20 == 3 || i%20 == 8 }},
		"Together": {queue.Search{Tenant: "acme", Queues: []string{"q1", "q2"}, TypePrefixes: []string{"a.b"}, States: []string{"available", "completed"}, Since: at(3), Until: at(36)},
			func(i int) bool {
				return (i%5 == 1 || i%5 == 2) && i%3 > 0 && (i%2 == 1 || i%4 == 2) && i >= 3 && i <= 36
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, sort := range []string{queue.SortCreated, queue.SortPriority, queue.SortScheduled} {
				for _, ascending := range []bool{false, true} {
					key := func(i int) (n int, last bool) {
						switch sort {
						case queue.SortPriority:
							return i%6 - 3, false
						case queue.SortScheduled:
							return i * 37 % 11, i%7 == 0
						}
						return i, false
					}
					var want []int
					for i := 1; i <= all; i++ {
						if test.wants(i) {
							want = append(want, i)
						}
					}
					slices.SortFunc(want, func(x, y int) int {
						a, aLast := key(x)
						b, bLast := key(y)
						switch {
						case aLast && bLast || aLast == bLast && a == b:
							return y - x
						case aLast || bLast:
							return map[bool]int{true: 1, false: -1}[aLast]
						case ascending:
							return a - b
						}
						return b - a
					})
					f := test.search
					f.Sort, f.Ascending, f.Limit = sort, ascending, 3
					var got []int
					for {
						page, err := b.Jobs.Search(t.Context(), f)
						require.NoError(t, err)
						if f.Cursor == nil {
							require.EqualValues(t, len(want), page.Total)
						}
						for _, j := range page.Jobs {
							got = append(got, numberOf(j.ID))
						}
						if !page.More {
							break
						}
						require.Len(t, page.Jobs, 3)
						if f.Offset += 3; sort == queue.SortCreated {
							f.Offset, f.Cursor = 0, page.Next
						}
					}
					require.Equal(t, want, got, "%s ascending %t", sort, ascending)
				}
			}
		})
	}
}
