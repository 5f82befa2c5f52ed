package queue_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// JobFetch and JobComplete return some of the columns, and the others are set here. So a job that has everything that a job can have
// has to come back as it is stored, and a column that is new has to be named below or to be returned.
func TestRecordsAreAsStored(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	j := domaintest.NewJob("q")
	j.Priority = 5
	j.Retry, j.Meta, j.Extra = []byte(`{"max_attempts":5}`), []byte(`{"trace_id":"abc"}`), []byte(`{"x":1}`)
	id := b.Enqueued(j)[0].ID
	b.Exec(`UPDATE ojs.jobs SET scheduled_at = now(), expires_at = now() + interval '1 day', total_due_at = now() + interval '1 day',
		ttl_due_at = now() + interval '1 day', visibility_ms = 60000, timeout_ms = 61000, grace_ms = 1, stall_ms = 50000, retry_delay_ms = 5, result_ttl_s = 99,
		attempt = 2, re_enqueued_at = now(), replay_count = 3, trace_id = 'abc', cron = 'c', cron_serial = true, unique_key = repeat('a', 64),
		on_limit = 'drop', error = '{"code":"e"}', errors = ARRAY['{"code":"e"}']::json[], previous_errors = ARRAY['{"code":"f"}']::json[], checkpoint = '{"at":1}',
		checkpoint_seq = 4, checkpoint_at = now(), size = 9000`)

	fetched := b.Fetched(1, "q")[0]
	stored, err := b.Get(t.Context(), id)
	require.NoError(t, err)
	place := fetched.ReadySeq
	require.Positive(t, place.Int64, "its place, not the number of the claim")
	fetched.ReadySeq = stored.ReadySeq
	require.Equal(t, stored, fetched)
	requireSet(t, fetched, "FinishedAt", "NextAttemptAt", "TtlDueAt", "PreviousState", "Failed", "DeadLetteredAt", "WorkflowID", "Lane", "LimitKey", "LimitSeq", "OnExhaustion",
		"Progress", "ProgressMessage", "ProgressData", "ProgressAt", "ProgressSentAt", "Result")

	b.Exec(`UPDATE ojs.jobs SET progress = 0.5, progress_message = 'half', progress_data = '{}', progress_at = date_trunc('second', now())`)
	done, err := b.Complete(t.Context(), job.Ack{JobID: id, WorkerID: "w1", Attempt: -1, Result: []byte(`{"r":1}`)})
	require.NoError(t, err)
	stored, err = b.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, stored, done)
	require.Equal(t, pgtype.Int4{Int32: 9007, Valid: true}, done.Size)
	requireSet(t, done, "ReadySeq", "DueAt", "NextAttemptAt", "TotalDueAt", "TtlDueAt", "LeaseUntil", "LeaseMs", "StallDueAt", "StallMs", "Failed", "DeadLetteredAt",
		"CronSerial", "WorkflowID", "Lane", "LimitKey", "LimitSeq", "OnLimit", "OnExhaustion", "Error", "ProgressSentAt")
}

// A list leaves out what the client has sent of jobs that are too large for it, all of that or nothing.
func TestRecordsAreCutAboveASize(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	for _, done := range []bool{false, true} {
		ids := [][16]byte{b.Enqueued(domaintest.NewJob("q"))[0].ID, b.Enqueued(domaintest.NewJob("q"))[0].ID}
		b.Exec(`UPDATE ojs.jobs SET meta = '{}', extra = '{"x":1}', errors = ARRAY['{"code":"e"}']::json[], previous_errors = ARRAY['{"code":"f"}']::json[],
			checkpoint = '{"at":1}', checkpoint_seq = 4, checkpoint_at = now(), size = $1`, job.MaxWholeSize(2))
		if done {
			for _, j := range b.Fetched(2, "q") {
				_, err := b.Complete(t.Context(), job.Ack{JobID: j.ID, Attempt: -1, Result: []byte(`1`)})
				require.NoError(t, err)
			}
			b.Exec(`UPDATE ojs.jobs_done SET size = $1`, job.MaxWholeSize(2))
		}
		whole, err := b.Get(t.Context(), ids[1])
		require.NoError(t, err)
		found, err := b.Jobs.Search(t.Context(), queue.Search{Sort: queue.SortCreated, Limit: 2})
		require.NoError(t, err)
		require.Len(t, found.Jobs, 2)
		require.Equal(t, whole, found.Jobs[0], "exactly as large as it may be")
		b.Exec(`UPDATE ojs.`+map[bool]string{true: "jobs_done", false: "jobs"}[done]+` SET size = size + 1 WHERE id = $1`, ids[1])
		found, err = b.Jobs.Search(t.Context(), queue.Search{Sort: queue.SortCreated, Limit: 2})
		require.NoError(t, err)
		cut := *whole
		cut.Args, cut.Meta, cut.Extra, cut.Errors, cut.PreviousErrors, cut.Checkpoint, cut.Result = nil, nil, nil, nil, nil, nil, nil
		cut.Size.Int32++
		require.Equal(t, &cut, found.Jobs[0])
		b.Exec(`DELETE FROM ojs.jobs`)
	}
}

// Nor do statements that change several jobs return what the client has sent of large ones.
func TestRecordsOfChangesAreCutAboveASize(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(b *bundle, ids [][16]byte) []*job.Record{
		"Complete": func(b *bundle, ids [][16]byte) []*job.Record {
			done, errs := b.CompleteEach(t.Context(), []job.Ack{{JobID: ids[0], Attempt: -1}, {JobID: ids[1], Attempt: -1}})
			require.Nil(t, errs)
			return done
		},
		"Fail": func(b *bundle, ids [][16]byte) []*job.Record {
			failed, errs := b.FailEach(t.Context(), []job.Nack{{JobID: ids[0], Attempt: -1, Requeue: true}, {JobID: ids[1], Attempt: -1, Requeue: true}})
			require.Nil(t, errs)
			return failed
		},
		"Cancel": func(b *bundle, ids [][16]byte) (cancelled []*job.Record) {
			rows, err := dbsqlc.New(b.Pool).JobCancel(t.Context(), dbsqlc.JobCancelParams{
				MaxWholeSize: job.MaxWholeSize(2), Ids: ids, States: []string{"active"}, EventData: [][]byte{[]byte("{}"), []byte("{}")}, EventType: ojs.EventJobCancelled, Source: "api",
			})
			require.NoError(t, err)
			for _, id := range ids {
				at := slices.IndexFunc(rows, func(r dbsqlc.JobCancelRow) bool { return r.ID == id })
				cancelled = append(cancelled, (*job.Record)(&rows[at]))
			}
			return cancelled
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dbtest.WritesTables(t)
			b := setup(t, func(c *domaintest.Config) { c.Unchecked = name == "Cancel" })
			most := job.MaxWholeSize(2)
			for _, size := range []*int32{nil, &most} {
				ids := [][16]byte{b.Enqueued(domaintest.NewJob("q"))[0].ID, b.Enqueued(domaintest.NewJob("q"))[0].ID}
				require.Len(t, b.Fetched(2, "q"), 2)
				b.Exec(`UPDATE ojs.jobs SET meta = '{}', extra = '{"x":1}', errors = ARRAY['{"code":"e"}']::json[], previous_errors = ARRAY['{"code":"f"}']::json[], size = $1`, size)
				b.Exec(`UPDATE ojs.jobs SET size = size + 1 WHERE id = $1`, ids[1])
				for i, got := range change(b, ids) {
					want, err := b.Get(t.Context(), ids[i])
					require.NoError(t, err)
					if size != nil && i == 1 {
						want.Args, want.Meta, want.Extra, want.Errors, want.PreviousErrors = nil, nil, nil, nil, nil
					}
					require.Equal(t, []any{want.Args, want.Meta, want.Extra, want.Errors, want.PreviousErrors}, []any{got.Args, got.Meta, got.Extra, got.Errors, got.PreviousErrors}, "job %d", i)
				}
				b.Exec(`DELETE FROM ojs.jobs`)
			}
		})
	}
}

// JobCancel and ojs.cancel name the columns that they move to jobs_done, so a column that is new has to be among them or below.
func TestCancelMovesEveryColumn(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, unchecked)
	// What a cancelled job does not have: times at which something is due, and what other ends of a job decide.
	const gone = `'{state,ready_seq,due_at,finished_at,next_attempt_at,total_due_at,ttl_due_at,lease_until,lease_ms,stall_due_at,stall_ms,
		previous_state,failed,dead_lettered_at,cron_serial,limit_seq,on_limit,on_exhaustion,result}'::text[]`
	for name, cancel := range map[string]func(id [16]byte){
		"HTTP": func(id [16]byte) {
			_, err := b.Cancel(t.Context(), id, queue.Cancel{})
			require.NoError(t, err)
		},
		"SQL": func(id [16]byte) { b.Exec("SELECT ojs.cancel($1)", id) },
	} {
		id := b.Enqueued(domaintest.NewJob("q"))[0].ID
		// Every column gets a value of its type.
		for _, set := range b.Texts(`
			SELECT format('UPDATE ojs.jobs SET %I = %L', a.attname, CASE format_type(a.atttypid, NULL)
				WHEN 'json' THEN '{"x":1}' WHEN 'json[]' THEN '{"{}"}' WHEN 'boolean' THEN 'true' WHEN 'text' THEN repeat('a', 64)
				WHEN 'uuid' THEN '019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f' WHEN 'timestamp with time zone' THEN now()::text ELSE '1' END)
			FROM pg_attribute a WHERE a.attrelid = 'ojs.jobs'::regclass AND a.attnum > 0 AND NOT a.attisdropped
				AND a.attname <> ALL ('{id,type,queue,args}') AND a.attname <> ALL (` + gone + `)`) {
			b.Exec(set+" WHERE id = $1", id)
		}
		row := `SELECT (to_jsonb(j) - ` + gone + `)::text FROM %s j WHERE id = $1`
		before := b.One(fmt.Sprintf(row, "ojs.jobs"), id)
		require.NotContains(t, before, "null")
		cancel(id)
		require.JSONEq(t, before, b.One(fmt.Sprintf(row, "ojs.jobs_done"), id), name)
	}
}

// requireSet checks that every field but those named has a value.
func requireSet(t *testing.T, r *job.Record, unset ...string) {
	t.Helper()
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() {
			require.Contains(t, unset, name)
		}
	}
}
