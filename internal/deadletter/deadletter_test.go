package deadletter_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

func TestRetry(t *testing.T) {
	t.Parallel()

	t.Run("StartsTheTotalTimeoutAnew", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter(func(j *job.Job) { j.TotalTimeoutMS, j.TimeoutMS = 3_600_000, 60_000 })
		b.Exec(`UPDATE ojs.jobs SET created_at = created_at - interval '3 days', total_due_at = total_due_at - interval '3 days'`)
		for range 2 {
			got, err := b.Retry(t.Context(), stored.ID, nil)
			require.NoError(t, err)
			require.InDelta(t, time.Hour, got.TotalDueAt.Time.Sub(got.ReEnqueuedAt.Time), 1e6)
			require.Equal(t, got.TotalDueAt, got.DueAt)
			require.Len(t, b.Fetched(1, "q"), 1)
			b.Exec(`UPDATE ojs.jobs SET total_due_at = re_enqueued_at + interval '1 hour', due_at = now()`)
			b.Exec(`UPDATE ojs.jobs SET re_enqueued_at = re_enqueued_at - interval '1 hour', total_due_at = total_due_at - interval '1 hour'`)
			failed := b.ApplyDueUntilLeft(stored.ID, ojs.StateActive)
			require.Equal(t, "discarded", failed.State)
			require.InDelta(t, 3600, domaintest.ErrorOf(t, failed).Limit, 0.01, "counted from the retry, not from the creation")
			require.InDelta(t, 3600, domaintest.ErrorOf(t, failed).Elapsed, 10)
		}
	})

	t.Run("AWaitingJobOfARetryTimesOut", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter(func(j *job.Job) { j.TotalTimeoutMS, j.TimeoutMS = 3_600_000, 60_000 })
		_, err := b.Retry(t.Context(), stored.ID, nil)
		require.NoError(t, err)
		b.Exec(`UPDATE ojs.jobs SET created_at = created_at - interval '3 days', re_enqueued_at = now() - interval '1 hour', total_due_at = now(), due_at = now()`)
		dead := b.ApplyDueUntilLeft(stored.ID, ojs.StateAvailable)
		require.Equal(t, "total_timeout", domaintest.ErrorOf(t, dead).Code)
		require.InDelta(t, 3600, domaintest.ErrorOf(t, dead).Limit, 0.01)
	})

	t.Run("ClearsWhatBelongsToTheOldRun", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter()
		b.Exec(`UPDATE ojs.jobs SET progress = 0.5, progress_message = 'm', progress_data = '{}', progress_at = now(), checkpoint = '{}', checkpoint_seq = 1, checkpoint_at = now(), ttl_due_at = now()`)
		got, err := b.Retry(t.Context(), stored.ID, nil)
		require.NoError(t, err)
		require.Nil(t, got.ProgressData)
		require.Nil(t, got.Checkpoint)
		require.False(t, got.Progress.Valid || got.ProgressMessage.Valid || got.ProgressAt.Valid || got.CheckpointSeq.Valid || got.CheckpointAt.Valid || got.TtlDueAt.Valid)
		require.False(t, got.DeadLetteredAt.Valid || got.FinishedAt.Valid || got.PreviousState.Valid || got.WorkerID.Valid || got.Failed)
		require.Equal(t, "job.enqueued:discarded>available", b.EventTypes(stored.ID)[4])
	})

	t.Run("KeepsTheNewestFiftyErrors", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter()
		b.Exec(`UPDATE ojs.jobs SET errors = ARRAY(SELECT to_json(g) FROM generate_series(31, 60) g), previous_errors = ARRAY(SELECT to_json(g) FROM generate_series(1, 30) g)`)
		got, err := b.Retry(t.Context(), stored.ID, nil)
		require.NoError(t, err)
		require.Len(t, got.PreviousErrors, 50)
		require.Equal(t, "11", string(got.PreviousErrors[0]))
		require.Equal(t, "60", string(got.PreviousErrors[49]))
		require.Empty(t, got.Errors)
	})

	t.Run("MovesQueuesWithExactCounts", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.DeadLetter()
		override, wire := job.DecodeRetry([]byte(`{"override":{"queue":"other","meta":{"trace_id":"abc"}}}`), job.Limits{})
		require.Nil(t, wire)
		require.Empty(t, b.Fetched(1, "other"), "the cursor of this node knows the queue")
		got, err := b.Retry(t.Context(), stored.ID, override)
		require.NoError(t, err)
		require.Equal(t, "abc", got.TraceID.String)
		require.Equal(t, []string{"job.state_changed:discarded", "job.state_changed>discarded", "job.enqueued:discarded>available"}, b.EventTypes(stored.ID)[4:])
		require.EqualValues(t, 1, b.Number(`SELECT count(*) FROM ojs.queues WHERE name = 'other'`))
		require.Len(t, b.Fetched(1, "other"), 1)
		b.RequireCounts()
	})

	t.Run("BackoffKeepsItsDeadlines", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.Enqueued(domaintest.With(func(j *job.Job) { j.TotalTimeoutMS, j.TimeoutMS = 7_200_000, 1000 }))[0]
		b.Fetched(1, "q")
		_, err := b.Fail(t.Context(), job.Nack{JobID: stored.ID, Attempt: -1, Error: domaintest.DecodeError(t, `{}`)})
		require.NoError(t, err)
		require.NoError(t, b.InTx(t.Context(), func(tx *queue.Tx) error {
			res, err := tx.Bulk(t.Context(), queue.BulkChange{Op: job.BulkRetry, IDs: [][16]byte{stored.ID}, States: queue.Eligible(job.BulkRetry)})
			require.Len(t, res.Changed, 1)
			return err
		}))
		got, err := b.Get(t.Context(), stored.ID)
		require.NoError(t, err)
		require.Equal(t, got.TotalDueAt, got.DueAt)
		require.Equal(t, int32(1), got.Attempt)
		require.Zero(t, got.ReplayCount)
		require.Len(t, got.Errors, 1)
	})

	t.Run("RefusesOtherStates", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := b.Enqueued(domaintest.NewJob("q"))[0]
		_, err := b.Retry(t.Context(), stored.ID, nil)
		domaintest.RequireCode(t, err, ojs.KindInvalidStateTransition)
		_, err = b.Retry(t.Context(), job.NewID(), nil)
		domaintest.RequireCode(t, err, ojs.KindNotFound)
	})
}

// Of the failures of a stored the newest 50 are kept.
func TestErrorHistory(t *testing.T) {
	t.Parallel()
	const failures, kept = 53, 50
	b := setup(t)
	stored := b.Enqueued(domaintest.With(func(j *job.Job) { j.MaxAttempts = 100 }))[0]
	for range failures {
		require.Len(t, b.Fetched(1, "q"), 1)
		_, err := b.Fail(t.Context(), job.Nack{JobID: stored.ID, Attempt: -1, Error: domaintest.DecodeError(t, `{}`)})
		require.NoError(t, err)
		b.Exec(`UPDATE ojs.jobs SET due_at = now()`)
		_, err = b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
	}
	got, err := b.Get(t.Context(), stored.ID)
	require.NoError(t, err)
	require.Len(t, got.Errors, kept)
	require.Contains(t, string(got.Errors[0]), fmt.Sprintf(`{"attempt":%d,`, failures-kept+1))
	require.Contains(t, string(got.Errors[kept-1]), fmt.Sprintf(`{"attempt":%d,`, failures))
}

// What SQL cuts out of stored errors is what was quoted into them.
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

// docs/reference/retries.md, Dead-letter endpoints, at size.
func TestDeadLettersAtSize(t *testing.T) {
	t.Parallel()

	t.Run("TotalsStopAtTenThousand", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.InsertDeadLetters(10_050)
		jobs, more, total, err := b.DeadLetters.List(t.Context(), deadletter.Filter{}, deadletter.Page{Limit: 3})
		require.NoError(t, err)
		require.Len(t, jobs, 3)
		require.True(t, more)
		require.EqualValues(t, 10_000, total)
		_, _, total, err = b.DeadLetters.List(t.Context(), deadletter.Filter{ErrorCodes: []string{"c1"}}, deadletter.Page{Limit: 3, Everything: true})
		require.NoError(t, err)
		require.EqualValues(t, 2010, total)
		stats, err := b.DeadLetters.Stats(t.Context(), nil)
		require.NoError(t, err)
		require.EqualValues(t, 10_050, stats.Total)
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

	t.Run("PurgeAndRetryShareWithoutLoss", func(t *testing.T) {
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

	t.Run("CountKeepsSomeOfOneInstant", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.InsertDeadLetters(20)
		b.Exec(`UPDATE ojs.jobs SET dead_lettered_at = now(), finished_at = now()`)
		n, err := b.DeadLetters.Prune(t.Context(), 0, 5)
		require.NoError(t, err)
		require.EqualValues(t, 15, n)
	})

	t.Run("NodesDoNotCountTwice", func(t *testing.T) {
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
