package deadletter_test

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// SQL reads the types and codes of stored errors as Go has written them.
func TestErrorLabels(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nasty := []string{`x`, `","type":"`, `\`, `a\","message":"`, `,"code":"`, "ü\u0001", strings.Repeat("\x01", 255)}
	for _, code := range nasty {
		for _, kind := range nasty {
			e := job.WorkerError{Code: code, Type: kind, Message: `","type":"`, Details: []byte(`{"a":"\u0000","code":"no","type":"no"}`)}
			quoted := func(s string) string {
				text, err := jsontext.AppendQuote(nil, s)
				require.NoError(t, err)
				return string(text[1 : len(text)-1])
			}
			var gotCode, gotType string
			err := b.Pool.QueryRow(t.Context(), `SELECT ojs.error_code($1::json), ojs.error_type($1::json)`, string(e.Encode(1, time.Time{}, "w"))).Scan(&gotCode, &gotType)
			require.NoError(t, err)
			require.Equal(t, quoted(code), gotCode)
			require.Equal(t, quoted(kind), gotType)
		}
	}
}

// Lists, bulk retries and purges of many thousand dead letters.
func TestDeadLettersAtSize(t *testing.T) {
	t.Parallel()

	t.Run("TotalsStopAtTenThousand", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.InsertDeadLetters(10_050)
		found, err := b.DeadLetters.List(t.Context(), deadletter.Filter{}, deadletter.Page{Limit: 3})
		require.NoError(t, err)
		require.Len(t, found.Jobs, 3)
		require.NotNil(t, found.Next)
		require.EqualValues(t, 10_000, found.Total)
		found, err = b.DeadLetters.List(t.Context(), deadletter.Filter{ErrorCodes: []string{"c1"}}, deadletter.Page{Limit: 3, Everything: true})
		require.NoError(t, err)
		require.EqualValues(t, 2010, found.Total)
		stats, err := b.DeadLetters.Stats(t.Context(), "", nil)
		require.NoError(t, err)
		require.EqualValues(t, 10_050, stats.Total)
	})

	t.Run("ListsLookAtPartsOfThem", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.InsertDeadLetters(1000)
		b.Exec(`UPDATE ojs.jobs SET queue = 'rare' WHERE id IN (SELECT id FROM ojs.jobs ORDER BY finished_at OFFSET 20 LIMIT 3)`)
		b.DeadLetters.LookAt(100)
		for _, times := range []string{"different", "the same"} {
			if times == "the same" {
				b.Exec(`UPDATE ojs.jobs SET finished_at = now(), dead_lettered_at = now(), queue = 'q'`)
				b.Exec(`UPDATE ojs.jobs SET queue = 'rare' WHERE id IN (SELECT id FROM ojs.jobs ORDER BY id OFFSET 20 LIMIT 3)`)
			}
			for _, everything := range []bool{false, true} {
				var jobs []*job.Record
				page, pages := deadletter.Page{Limit: 50, Everything: everything}, 0
				for more := true; more; pages++ {
					found, err := b.DeadLetters.List(t.Context(), deadletter.Filter{Queues: []string{"rare"}}, page)
					require.NoError(t, err)
					require.Zero(t, found.Total, "of the newest 100")
					jobs, page.Before, more = append(jobs, found.Jobs...), found.Next, found.Next != nil
				}
				require.Len(t, jobs, 3, times)
				require.Equal(t, 11, pages, "the tenth has looked at the last of them and cannot know it")
			}
		}
	})

	t.Run("ListsThoseOfOneInstant", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.InsertDeadLetters(10)
		b.Exec(`UPDATE ojs.jobs SET finished_at = now(), dead_lettered_at = now()`)
		for _, everything := range []bool{false, true} {
			var got []string
			page := deadletter.Page{Limit: 3, Everything: everything}
			for more := true; more; {
				found, err := b.DeadLetters.List(t.Context(), deadletter.Filter{}, page)
				require.NoError(t, err)
				for _, j := range found.Jobs {
					got = append(got, spec.FormatID(j.ID))
				}
				page.Before, more = found.Next, found.Next != nil
			}
			require.Equal(t, b.Texts(`SELECT id::text FROM ojs.jobs ORDER BY id DESC`), got)
		}
	})

	t.Run("PurgesInBatches", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.InsertDeadLetters(20_000)
		n, err := b.DeadLetters.Purge(t.Context(), deadletter.Filter{})
		require.NoError(t, err)
		require.EqualValues(t, 20_000, n)
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs`))
		require.EqualValues(t, 20, b.Number(`SELECT count(DISTINCT xmin::text) FROM ojs.events WHERE from_state = 'discarded'`), "a transaction per batch")
		b.RequireCounts()
	})

	t.Run("RetriesInBatches", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.InsertDeadLetters(2500)
		res, err := b.DeadLetters.Retry(t.Context(), deadletter.Filter{Queues: []string{"q1", "q2"}})
		require.NoError(t, err)
		require.Equal(t, deadletter.Retried{Matched: 1667, Succeeded: 1667}, res)
		require.EqualValues(t, 1667, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available' AND replay_count = 1`))
		require.EqualValues(t, 2, b.Number(`SELECT count(DISTINCT xmin::text) FROM ojs.jobs WHERE state = 'available'`))
		require.EqualValues(t, 1667, b.Number(`SELECT max(ready_seq) - min(ready_seq) + 1 FROM ojs.jobs WHERE state = 'available'`), "each row is made once")
		b.RequireCounts()
	})

	t.Run("ConcurrentPurgeAndRetryLoseNoJob", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.InsertDeadLetters(5000)
		var wg sync.WaitGroup
		var purged int64
		var retried deadletter.Retried
		var errs [2]error
		wg.Go(func() { purged, errs[0] = b.DeadLetters.Purge(t.Context(), deadletter.Filter{}) })
		wg.Go(func() { retried, errs[1] = b.node().DeadLetters.Retry(t.Context(), deadletter.Filter{}) })
		wg.Wait()
		require.NoError(t, errs[0])
		require.NoError(t, errs[1])
		require.EqualValues(t, retried.Succeeded, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available'`))
		require.EqualValues(t, 5000, purged+int64(b.Number(`SELECT count(*) FROM ojs.jobs`)))
		require.Equal(t, retried.Matched, retried.Succeeded+len(retried.Failed))
		b.RequireCounts()
	})

	t.Run("PlansUseTheIndexes", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.InsertDeadLetters(20_000)
		b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, created_at, ready_seq, args) SELECT gen_random_uuid(), 't', 'q', 'available', now(), g, '[]' FROM generate_series(1, 30000) g`)
		b.Exec(`VACUUM ANALYZE ojs.jobs`)
		const filters = `'{}', '{q1}', '{}', '{}', '{}', '{c1}'`
		for query, index := range map[string]string{
			`SELECT j.* FROM ojs.jobs j WHERE j.dead_lettered_at IS NOT NULL AND j.dead_lettered_at >= '-infinity' AND j.dead_lettered_at <= 'infinity'
				AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, ` + filters + `) AND (j.dead_lettered_at, j.id) < (now(), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
				ORDER BY j.dead_lettered_at DESC, j.id DESC OFFSET 0 LIMIT 51`: "Index Scan Backward using jobs_dead_letter",
			`SELECT j.* FROM ojs.jobs j WHERE j.finished_at IS NOT NULL AND j.state = 'discarded' AND (j.finished_at, j.id) < (now(), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
				ORDER BY j.finished_at DESC, j.id DESC LIMIT 51`: "Index Scan Backward using jobs_discarded",
			`SELECT j.id FROM ojs.jobs j WHERE j.dead_lettered_at IS NOT NULL AND (j.dead_lettered_at, j.id) > (now() - interval '1 hour', 'ffffffff-ffff-ffff-ffff-ffffffffffff')
				AND (j.dead_lettered_at, j.id) <= ('infinity', 'ffffffff-ffff-ffff-ffff-ffffffffffff') AND ojs.dead_letter_matches(j.id, j.queue, j.type, j.error, ` + filters + `)
				ORDER BY j.dead_lettered_at, j.id LIMIT 1000 FOR UPDATE SKIP LOCKED`: "Index Scan using jobs_dead_letter",
			`SELECT j.dead_lettered_at, j.id FROM ojs.jobs j WHERE j.dead_lettered_at IS NOT NULL ORDER BY j.dead_lettered_at DESC, j.id DESC OFFSET 10000 LIMIT 1`: "Index Only Scan Backward using jobs_dead_letter",
			`SELECT j.id FROM ojs.jobs j WHERE j.finished_at IS NOT NULL AND j.finished_at <= now() - interval '30 days' AND j.dead_lettered_at IS NULL AND j.state = 'discarded'
				ORDER BY j.finished_at, j.id LIMIT 1000 FOR UPDATE SKIP LOCKED`: "using jobs_discarded",
		} {
			require.Contains(t, b.Plan(query), index)
			require.NotContains(t, b.Plan(query), "Seq Scan on jobs")
			require.NotContains(t, b.Plan(query), "Function", "the filter is inlined")
		}
	})
}

// TestFilters: lists, totals, retries and purges choose the same dead letters by the same filter.
func TestFilters(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	const all = 12
	now := time.Now().Truncate(time.Second)
	at := func(g int) time.Time { return now.Add(time.Duration(g-all-60) * time.Second) }
	prepared := func(t *testing.T) *bundle {
		b := setup(t)
		b.InsertDeadLetters(all) // of type a.b<g%7>, queue q<g%3> and error code c<g%5>
		b.Exec(`WITH n AS (SELECT id, row_number() OVER (ORDER BY dead_lettered_at) AS g FROM ojs.jobs)
			UPDATE ojs.jobs SET priority = g, dead_lettered_at = at, finished_at = at, lane = (ARRAY['', 'acme', 'acme/key', 'acme.eu', 'key/acme'])[g % 5 + 1],
				error = CASE WHEN g = 12 THEN NULL WHEN g > 6 THEN replace(error::text, '"type":"t"', '"type":"u\u0001"')::json ELSE error END
			FROM n, LATERAL (SELECT $1::timestamptz + (g - 72) * interval '1 second' AS at) t WHERE jobs.id = n.id`, now)
		return b
	}
	b := prepared(t)
	set := func(at time.Time) job.When { return job.When{Set: true, At: at} }
	for name, test := range map[string]struct {
		filter deadletter.Filter
		wants  func(g int) bool
	}{
		"None":        {deadletter.Filter{}, func(int) bool { return true }},
		"Tenant":      {deadletter.Filter{Tenant: "acme"}, func(g int) bool { return g%5 == 1 || g%5 == 2 }},
		"OtherTenant": {deadletter.Filter{Tenant: "key"}, func(g int) bool { return g%5 == 4 }},
		"Queues":      {deadletter.Filter{Queues: []string{"q1", "q2"}}, func(g int) bool { return g%3 > 0 }},
		"Type":        {deadletter.Filter{Types: []string{"a.b1"}}, func(g int) bool { return g%7 == 1 }},
		"Types":       {deadletter.Filter{Types: []string{"a.b1", "a.b2", "a"}}, func(g int) bool { return g%7 == 1 || g%7 == 2 }},
		"TypePrefix":  {deadletter.Filter{Types: []string{"a.b3*", "x*", "a.b1"}}, func(g int) bool { return g%7 == 1 || g%7 == 3 }},
		"ErrorCodes":  {deadletter.Filter{ErrorCodes: []string{"c0", "c2"}}, func(g int) bool { return (g%5 == 0 || g%5 == 2) && g < 12 }},
		"ErrorTypes":  {deadletter.Filter{ErrorTypes: []string{"u\x01"}}, func(g int) bool { return g > 6 && g < 12 }},
		"Since":       {deadletter.Filter{Since: set(at(4))}, func(g int) bool { return g >= 4 }},
		"Until":       {deadletter.Filter{Until: set(at(4))}, func(g int) bool { return g <= 4 }},
		"Span":        {deadletter.Filter{Since: set(at(3)), Until: set(at(9)), OlderThan: set(at(5))}, func(g int) bool { return g >= 3 && g <= 5 }},
		"Together": {deadletter.Filter{Tenant: "acme", Queues: []string{"q1"}, Types: []string{"a.b*"}, ErrorCodes: []string{"c1", "c2"}, Until: set(at(7))},
			func(g int) bool { return g == 1 || g == 7 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want []int32 // newest first
			for g := all; g > 0; g-- {
				if test.wants(g) {
					want = append(want, int32(g))
				}
			}
			for _, everything := range []bool{false, true} {
				var got []int32
				page := deadletter.Page{Limit: 2, Everything: everything}
				for more := true; more; {
					found, err := b.DeadLetters.List(t.Context(), test.filter, page)
					require.NoError(t, err)
					require.EqualValues(t, len(want), found.Total)
					require.LessOrEqual(t, len(found.Jobs), 2)
					for _, j := range found.Jobs {
						got = append(got, int32(j.Priority))
					}
					page.Before, more = found.Next, found.Next != nil
				}
				require.Equal(t, want, got)
				found, err := b.DeadLetters.List(t.Context(), test.filter, deadletter.Page{Limit: 9, Offset: 1, Everything: everything})
				require.NoError(t, err)
				require.Len(t, found.Jobs, min(9, len(want)-1))
				require.EqualValues(t, want[1], found.Jobs[0].Priority)
			}
			stats, err := b.DeadLetters.Stats(t.Context(), test.filter.Tenant, test.filter.Queues)
			require.NoError(t, err)
			if name != "None" && name != "Tenant" && name != "OtherTenant" && name != "Queues" {
				require.GreaterOrEqual(t, stats.Total, int64(len(want)))
			} else {
				require.EqualValues(t, len(want), stats.Total)
				require.Equal(t, at(int(want[0])), stats.Newest.UTC().Local())
				require.Equal(t, at(int(want[len(want)-1])), stats.Oldest.UTC().Local())
			}

			retrying := prepared(t)
			retried, err := retrying.DeadLetters.Retry(t.Context(), test.filter)
			require.NoError(t, err)
			require.Equal(t, deadletter.Retried{Matched: len(want), Succeeded: len(want)}, retried)
			changed := func(b *bundle, where string) (list []int32) {
				rows := b.Texts(`SELECT priority::text FROM ojs.jobs WHERE ` + where + ` ORDER BY jobs.priority DESC`)
				for _, row := range rows {
					g, err := strconv.Atoi(row)
					require.NoError(t, err)
					list = append(list, int32(g))
				}
				return list
			}
			require.Equal(t, want, changed(retrying, `state = 'available'`))

			purging := prepared(t)
			n, err := purging.DeadLetters.Purge(t.Context(), test.filter)
			require.NoError(t, err)
			require.EqualValues(t, len(want), n)
			left := changed(purging, `true`)
			require.Len(t, left, all-len(want))
			for _, g := range left {
				require.NotContains(t, want, g)
			}
			purging.RequireCounts()
		})
	}

	t.Run("IDs", func(t *testing.T) {
		t.Parallel()
		b := prepared(t)
		var chosen [][16]byte
		for _, g := range []string{"3", "5"} {
			var id [16]byte
			require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT id FROM ojs.jobs WHERE priority = $1::text::int`, g).Scan(&id))
			chosen = append(chosen, id)
		}
		n, err := b.DeadLetters.Purge(t.Context(), deadletter.Filter{IDs: chosen[:1]})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		retried, err := b.DeadLetters.Retry(t.Context(), deadletter.Filter{IDs: chosen})
		require.NoError(t, err)
		require.Equal(t, 1, retried.Succeeded)
		require.Equal(t, []string{"5"}, b.Texts(`SELECT priority::text FROM ojs.jobs WHERE state = 'available'`))
		require.Equal(t, all-1, b.Number(`SELECT count(*) FROM ojs.jobs`))
	})
}

func TestPruneJobs(t *testing.T) {
	t.Parallel()

	t.Run("DeadLettersByAgeThenCount", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.InsertDeadLetters(100)
		n, err := b.DeadLetters.Prune(t.Context(), 2*time.Minute, 1000)
		require.NoError(t, err)
		require.EqualValues(t, 40, n)
		n, err = b.DeadLetters.Prune(t.Context(), 0, 25)
		require.NoError(t, err)
		require.EqualValues(t, 35, n)
		require.EqualValues(t, 25, b.Number(`SELECT count(*) FROM ojs.jobs WHERE dead_lettered_at > now() - interval '1 minute 30 seconds'`))
		for range 2 {
			n, err = b.DeadLetters.Prune(t.Context(), time.Hour, 25)
			require.NoError(t, err)
			require.Zero(t, n)
		}
		b.RequireCounts()
	})

	t.Run("CountSplitsDeadLettersOfOneInstant", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.InsertDeadLetters(20)
		b.Exec(`UPDATE ojs.jobs SET dead_lettered_at = now(), finished_at = now()`)
		n, err := b.DeadLetters.Prune(t.Context(), 0, 5)
		require.NoError(t, err)
		require.EqualValues(t, 15, n)
	})

	t.Run("ConcurrentPrunesDeleteEachJobOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.InsertDeadLetters(4000)
		var wg sync.WaitGroup
		removed, errs := make([]int64, 3), make([]error, 3)
		for i := range removed {
			wg.Go(func() { removed[i], errs[i] = b.node().DeadLetters.Prune(t.Context(), time.Microsecond, 0) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.EqualValues(t, 4000, removed[0]+removed[1]+removed[2]+int64(b.Number(`SELECT count(*) FROM ojs.jobs`)))
		b.RequireCounts()
	})
}
