package queue_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// ojs.enqueue takes a policy with a key that its caller has computed, and knows the jobs of other producers.
func TestUniqueInSQL(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	number := 0
	key := func() string {
		number++
		return fmt.Sprintf("%064x", number)
	}
	enqueue := func(key, policy, more string) (id [16]byte, err error) {
		err = b.Pool.QueryRow(ctx, `SELECT ojs.enqueue('test.job', '[1]', 'q', $1)`,
			`{"unique_key":"`+key+`","unique":`+policy+more+`}`).Scan(&id)
		return id, err
	}
	enqueued := func(key, policy, more string) *job.Record {
		t.Helper()
		id, err := enqueue(key, policy, more)
		require.NoError(t, err)
		stored, err := b.Get(ctx, id)
		require.NoError(t, err)
		return stored
	}
	overHTTP := func(key, onConflict string, change ...func(j *job.Job)) *job.Job {
		return uniqueJob("", onConflict, append(change, func(j *job.Job) { j.Unique.Key = key })...)
	}

	t.Run("Reject", func(t *testing.T) {
		k := key()
		first := enqueued(k, `{}`, "")
		require.Equal(t, k, first.UniqueKey.String)
		require.Equal(t, `{"unique":{},"unique_key":"`+k+`"}`, string(first.Extra))
		require.Equal(t, `{"unique_key":"`+k+`"}`, b.One(`SELECT data::text FROM ojs.events WHERE job_id = $1`, first.ID))
		_, err := enqueue(k, `{"on_conflict":"reject"}`, "")
		require.ErrorContains(t, err, "An equivalent job, "+spec.FormatID(first.ID)+", already exists in state available. (SQLSTATE 23505)")
		_, err = b.Enqueue(ctx, overHTTP(k, "reject"))
		requireDuplicate(t, err, first)
	})

	t.Run("Ignore", func(t *testing.T) {
		k := key()
		first := b.Enqueued(overHTTP(k, "reject"))[0]
		got := enqueued(k, `{"on_conflict":"ignore"}`, "")
		require.Equal(t, first.ID, got.ID)
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.jobs WHERE unique_key = $1`, k))
	})

	t.Run("Replace", func(t *testing.T) {
		k := key()
		old := b.Enqueued(overHTTP(k, "reject", states(ojs.StateCompleted)), overHTTP(k, "reject", states(ojs.StateCompleted), pending))
		got := enqueued(k, `{"on_conflict":"replace"}`, "")
		require.Equal(t, "available", got.State)
		for _, o := range old {
			require.Equal(t, ojs.StateCancelled, b.State(o.ID))
			require.JSONEq(t, `{"cancelled_by":"system:unique","reason":"replaced by `+spec.FormatID(got.ID)+`"}`,
				b.One(`SELECT data::text FROM ojs.events WHERE job_id = $1 AND type = 'job.cancelled'`, o.ID))
		}
		_, err := b.Enqueue(ctx, overHTTP(k, "reject", states(ojs.StateCancelled)))
		require.ErrorContains(t, err, spec.FormatID(old[0].ID), "a job cancelled in SQL keeps its key")
	})

	t.Run("ReplaceExceptSchedule", func(t *testing.T) {
		k := key()
		old := b.Enqueued(overHTTP(k, "reject", scheduledIn(time.Hour)))[0]
		got := enqueued(k, `{"on_conflict":"replace_except_schedule"}`, `,"pending":true`)
		require.Equal(t, "scheduled", got.State)
		require.Equal(t, old.ScheduledAt.Time.Truncate(time.Millisecond), got.ScheduledAt.Time)
		require.Equal(t, ojs.StateCancelled, b.State(old.ID))
	})

	t.Run("StatesAndPeriod", func(t *testing.T) {
		k := key()
		first := b.Enqueued(overHTTP(k, "reject"))[0]
		b.Exec(`UPDATE ojs.jobs SET created_at = created_at - interval '1 hour' WHERE id = $1`, first.ID)
		_, err := enqueue(k, `{"period":"PT61M"}`, "")
		require.ErrorContains(t, err, spec.FormatID(first.ID))
		enqueued(k, `{"period":"PT59M"}`, "")
		enqueued(k, `{"states":["completed","active"]}`, "")
		_, err = b.Cancel(ctx, first.ID, queue.Cancel{By: "x"})
		require.NoError(t, err)
		_, err = enqueue(k, `{"states":["cancelled"]}`, "")
		require.ErrorContains(t, err, spec.FormatID(first.ID)+", already exists in state cancelled")
	})

	t.Run("RefusesWhatItCannotHonour", func(t *testing.T) {
		k := key()
		for options, message := range map[string]string{
			`{"unique":{}}`:                                                         `'unique_key' must be 64 lower-case hex digits`,
			`{"unique":{},"unique_key":"abc"}`:                                      `'unique_key' must be 64 lower-case hex digits`,
			`{"unique_key":"` + k + `"}`:                                            `'unique_key' must come with unique`,
			`{"unique":5,"unique_key":"` + k + `"}`:                                 `'unique' must be of type object`,
			`{"unique":{"keys":["type"]},"unique_key":"` + k + `"}`:                 `'unique' must have no members but period, states, on_conflict`,
			`{"unique":{"on_conflict":"use"},"unique_key":"` + k + `"}`:             `'on_conflict' must be one of reject`,
			`{"unique":{"states":[]},"unique_key":"` + k + `"}`:                     `'states' must be a non-empty array`,
			`{"unique":{"states":["x"]},"unique_key":"` + k + `"}`:                  `'states' must be a non-empty array`,
			`{"unique":{"states":["active","active"]},"unique_key":"` + k + `"}`:    `'states' must be a non-empty array`,
			`{"unique":{"period":"PT0S"},"unique_key":"` + k + `"}`:                 `'period' must be an ISO 8601 duration`,
			`{"unique":{"period":"2030-01-01T00:00:00Z"},"unique_key":"` + k + `"}`: `'period' must be an ISO 8601 duration`,
		} {
			_, err := b.Pool.Exec(ctx, `SELECT ojs.enqueue('test.job', '[]', 'q', $1)`, options)
			require.ErrorContains(t, err, message, options)
			require.ErrorContains(t, err, "22023", options)
		}
		err := pgx.BeginTxFunc(ctx, b.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT ojs.enqueue('test.job', '[]', 'q', $1)`, `{"unique":{},"unique_key":"`+k+`"}`)
			return err
		})
		require.ErrorContains(t, err, "READ COMMITTED")
	})
}

// Producers in SQL and over the network exclude each other.
func TestUniqueInSQLConcurrently(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for round := range 5 {
		k := strings.Repeat(fmt.Sprint(round), 64)
		var stored atomic.Int32
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				var err error
				if i%2 == 0 {
					_, err = b.Pool.Exec(context.Background(), `SELECT ojs.enqueue('test.job', '[]', 'q', $1)`, `{"unique":{},"unique_key":"`+k+`"}`)
				} else {
					_, err = b.Enqueue(context.Background(), uniqueJob("", "reject", func(j *job.Job) { j.Unique.Key = k }))
				}
				if err == nil {
					stored.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, stored.Load())
	}
}

// An application may keep its transaction open. Nobody else sees its job yet, so others wait for its end before they look for one with their key.
func TestUniqueInSQLWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	unique := func(key string) push {
		return options(`"unique":{},"unique_key":"` + strings.Repeat(key, 16) + `"`)
	}
	tx := b.begin(pgx.ReadCommitted)
	b.sqlEnqueue(tx, unique("abcd"))
	b.sqlEnqueue(b.Pool, unique("0000"))
	answer := make(chan error, 1)
	go func() {
		_, err := unique("abcd").sql(t.Context(), b.Pool)
		answer <- err
	}()
	require.Eventually(t, func() bool {
		return len(answer) > 0 || b.Number(`SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
			WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted`) == 1
	}, domaintest.WaitFor, time.Millisecond)
	require.Empty(t, answer, "it waits")
	require.NoError(t, tx.Commit(t.Context()))
	require.ErrorContains(t, <-answer, "An equivalent job")
}

// What a transaction in SQL has replaced is as before if it is rolled back.
func TestUniqueInSQLRollsBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := strings.Repeat("e", 64)
	old := b.Enqueued(uniqueJob("", "reject", func(j *job.Job) { j.Unique.Key = k }))[0]
	err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT ojs.enqueue('test.job', '[]', 'q', $1)`, `{"unique":{"on_conflict":"replace"},"unique_key":"`+k+`"}`); err != nil {
			return err
		}
		return &pgconn.PgError{Message: "the application gives up"}
	})
	require.ErrorContains(t, err, "gives up")
	require.Equal(t, ojs.StateAvailable, b.State(old.ID))
	_, err = b.Enqueue(t.Context(), uniqueJob("", "reject", func(j *job.Job) { j.Unique.Key = k }))
	requireDuplicate(t, err, old)
}
