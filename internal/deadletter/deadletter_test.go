package deadletter_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/job"
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
		b := setup(t)
		b.InsertDeadLetters(1000)
		b.Exec(`UPDATE ojs.jobs SET queue = 'rare' WHERE id IN (SELECT id FROM ojs.jobs ORDER BY finished_at OFFSET 20 LIMIT 3)`)
		b.DeadLetters.LookAt(100)
		for _, everything := range []bool{false, true} {
			var jobs []*job.Record
			page, pages := deadletter.Page{Limit: 50, Everything: everything}, 0
			for more := true; more; pages++ {
				found, err := b.DeadLetters.List(t.Context(), deadletter.Filter{Queues: []string{"rare"}}, page)
				require.NoError(t, err)
				require.Zero(t, found.Total, "of the newest 100")
				jobs, page.Before, more = append(jobs, found.Jobs...), found.Next, found.Next != nil
			}
			require.Len(t, jobs, 3)
			require.Equal(t, 11, pages, "the tenth has looked at the last of them and cannot know it")
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
		b := setup(t)
		b.InsertDeadLetters(2500)
		res, err := b.DeadLetters.Retry(t.Context(), deadletter.Filter{Queues: []string{"q1", "q2"}})
		require.NoError(t, err)
		require.Equal(t, deadletter.Retried{Matched: 1667, Succeeded: 1667}, res)
		require.EqualValues(t, 1667, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available' AND replay_count = 1`))
		require.EqualValues(t, 2, b.Number(`SELECT count(DISTINCT xmin::text) FROM ojs.jobs WHERE state = 'available'`))
		b.RequireCounts()
	})

	t.Run("ConcurrentPurgeAndRetryLoseNoJob", func(t *testing.T) {
		t.Parallel()
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

func TestPruneJobs(t *testing.T) {
	t.Parallel()

	t.Run("DeadLettersByAgeThenCount", func(t *testing.T) {
		t.Parallel()
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
