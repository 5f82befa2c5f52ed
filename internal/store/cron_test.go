package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/ojs"
)

// cron registers one. body is the object without its braces.
func (b *bundle) cron(name, body string, args ...any) *dbsqlc.Cron {
	b.t.Helper()
	in, wire := envelope.DecodeCron([]byte("{"+fmt.Sprintf(body, args...)+"}"), name, envelope.Limits{})
	require.Nil(b.t, wire)
	row, _, err := b.PutCron(b.t.Context(), in)
	require.NoError(b.t, err)
	return row
}

// due makes the next run of a cron lie in the past.
func (b *bundle) due(name, ago string) {
	b.t.Helper()
	b.exec(`UPDATE ojs.crons SET next_run_at = now() - $2::text::interval WHERE name = $1`, name, ago)
}

// tick makes the cron due and fires it.
func (b *bundle) tick(name string) {
	b.t.Helper()
	b.due(name, "1 second")
	n, err := b.FireCrons(b.t.Context())
	require.NoError(b.t, err)
	require.Equal(b.t, 1, n)
}

// texts are the rows of a query with one column.
func (b *bundle) texts(sql string, args ...any) (texts []string) {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
	for rows.Next() {
		var s string
		require.NoError(b.t, rows.Scan(&s))
		texts = append(texts, s)
	}
	require.NoError(b.t, rows.Err())
	return texts
}

func (b *bundle) one(sql string, args ...any) string {
	b.t.Helper()
	texts := b.texts(sql, args...)
	require.Len(b.t, texts, 1)
	return texts[0]
}

const every = `"expression":"@every 1h","type":"t.cron","options":{"queue":"q"},"overlap_policy":"%s"`

func TestCronFiring(t *testing.T) {
	t.Parallel()

	t.Run("WritesLogJobEventsAndRow", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", `"expression":"@every 1h","type":"t.cron","args":[1.0],"meta":{"cron_name":"x","trace_id":"tr","k":"\u0000"},"options":{"queue":"q"}`)
		b.tick("c")
		require.Equal(t, []string{"cron.triggered", "job.enqueued"}, b.texts(`SELECT type FROM ojs.events ORDER BY seq`))
		require.Equal(t, []string{"cron c tr q t.cron", "cron  tr q t.cron"},
			b.texts(`SELECT concat_ws(' ', source, COALESCE(subject, ''), trace_id, queue, job_type) FROM ojs.events ORDER BY seq`))
		require.Equal(t, "t", b.one(`SELECT (c.last_run_at = r.scheduled_at AND c.next_run_at = c.last_run_at + interval '1 hour' AND c.run_count = 1
			AND r.outcome = 'fired' AND r.job_id = j.id AND j.cron = 'c' AND NOT j.cron_serial AND j.visibility_ms = 600000)::text::char(1)
			FROM ojs.crons c JOIN ojs.cron_runs r ON r.cron_id = c.id JOIN ojs.jobs j ON true`))
		job := b.fetched(1, "q")[0]
		require.Equal(t, `[1.0]`, string(job.Args))
		require.Regexp(t, `^\{"trace_id":"tr","k":"\\u0000","cron_name":"c","cron_triggered_at":"20..-[^"]+Z"\}$`, string(job.Meta))
		require.Equal(t, int64(600_000), job.LeaseMs.Int64)
	})

	t.Run("TemplateDecidesTheReservation", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", `"expression":"@hourly","type":"t","options":{"queue":"q","visibility_timeout_ms":5000,"scheduled_at":"PT1H"}`)
		b.tick("c")
		require.Equal(t, "scheduled 5000 01:00:00", b.one(`SELECT state || ' ' || visibility_ms || ' ' || (scheduled_at - created_at) FROM ojs.jobs`))
	})

	t.Run("MissedRunsFireOnceForTheLatest", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("m", `"expression":"* * * * *","type":"t"`)
		b.exec(`UPDATE ojs.crons SET next_run_at = date_trunc('minute', now()) - interval '3 days'`)
		n, err := b.FireCrons(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, "1 true true", b.one(`SELECT run_count || ' ' || (last_run_at > now() - interval '1 minute') || ' ' || (next_run_at > now()) FROM ojs.crons`))
		n, err = b.FireCrons(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
	})

	t.Run("NothingForPausedTime", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("p", every, "skip")
		for _, enabled := range []bool{false, true} {
			_, err := b.ChangeCron(t.Context(), "p", func(row *dbsqlc.Cron) (*envelope.Cron, error) {
				in := store.CronOf(row)
				in.Enabled = enabled
				return &in, nil
			})
			require.NoError(t, err)
			n, err := b.FireCrons(t.Context())
			require.NoError(t, err)
			require.Zero(t, n)
		}
		require.Equal(t, "true", b.one(`SELECT (next_run_at > now() + interval '59 minutes')::text FROM ojs.crons`))
	})

	t.Run("ATickThatIsInTheLogOnlyAdvances", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "allow")
		b.due("c", "1 second")
		b.exec(`INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome) SELECT id, next_run_at, 'tick', 'fired' FROM ojs.crons`)
		n, err := b.FireCrons(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, "0 true", b.one(`SELECT run_count || ' ' || (next_run_at > now()) FROM ojs.crons`))
		require.Empty(t, b.texts(`SELECT type FROM ojs.events`))
		require.Empty(t, b.fetched(1, "q"))
	})

	t.Run("SkippedLocalTimeIsToldOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", `"expression":"30 2 * * *","timezone":"America/New_York","type":"t"`)
		// The latest change of clocks there; how often it is stepped over does not matter.
		for range 2 {
			b.exec(`UPDATE ojs.crons SET next_run_at = (make_date(extract(year FROM now())::integer - 1, 3, 1)::text || ' 07:30:00Z')::timestamptz`)
			_, err := b.FireCrons(t.Context())
			require.NoError(t, err)
		}
		n := len(b.texts(`SELECT reason FROM ojs.cron_runs WHERE kind = 'gap' AND outcome = 'skipped' AND reason = 'dst_skip'`))
		require.Contains(t, []int{1, 2}, n, "one or two springs since")
		require.Len(t, b.texts(`SELECT type FROM ojs.events WHERE type = 'cron.skipped' AND data::text LIKE '%"reason":"dst_skip"%'`), n)
	})

	t.Run("DrainingQueueAndBadTemplateAreSkipped", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("drain", every, "allow")
		b.cron("bad", `"expression":"@hourly","type":"t"`)
		b.cron("zone", `"expression":"@hourly","type":"t"`)
		b.cron("good", `"expression":"@hourly","type":"t","options":{"queue":"g"}`)
		b.exec(`INSERT INTO ojs.queues (name, status) VALUES ('q', 'draining')`)
		b.exec(`UPDATE ojs.crons SET type = 'NOT A TYPE' WHERE name = 'bad'`)
		b.exec(`UPDATE ojs.crons SET timezone = 'Europe/Nowhere' WHERE name = 'zone'`)
		b.exec(`UPDATE ojs.crons SET next_run_at = now() - interval '1 second'`)
		n, err := b.FireCrons(t.Context())
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.Equal(t, []string{"bad skipped enqueue_failed", "drain skipped queue_paused", "good fired", "zone skipped enqueue_failed"},
			b.texts(`SELECT concat_ws(' ', c.name, r.outcome, r.reason) FROM ojs.cron_runs r JOIN ojs.crons c ON c.id = r.cron_id ORDER BY 1`))
		require.Len(t, b.fetched(9, "g", "q", "default"), 1)
		require.Equal(t, "0", b.one(`SELECT count(*)::text FROM ojs.crons WHERE next_run_at <= now()`))
	})

	t.Run("AJobThatTheDatabaseRefusesHoldsNobodyUp", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for _, name := range []string{"a", "b", "c"} {
			b.cron(name, `"expression":"@hourly","type":"t.%s"`, name)
		}
		b.exec(`ALTER TABLE ojs.jobs ADD CONSTRAINT no_b CHECK (type <> 't.b')`)
		b.exec(`UPDATE ojs.crons SET next_run_at = now() - interval '1 second'`)
		n, err := b.FireCrons(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.Equal(t, []string{"t.a", "t.c"}, b.texts(`SELECT type FROM ojs.jobs ORDER BY 1`))
		require.Equal(t, []string{"a cron.triggered", "b cron.skipped", "c cron.triggered"}, b.texts(`SELECT subject || ' ' || type FROM ojs.events WHERE subject IS NOT NULL ORDER BY 1`))
	})

	t.Run("AThousandAtOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.exec(`INSERT INTO ojs.crons (name, id, expression, type, queue, args, overlap_policy, next_run_at)
			SELECT 'c' || n, gen_random_uuid(), '* * * * *', 't', 'q' || n % 10, '[]', (ARRAY['skip', 'allow', 'cancel_previous', 'enqueue'])[n % 4 + 1], date_trunc('minute', now())
			FROM generate_series(1, 1000) n`)
		start := time.Now()
		for fired := 0; fired < 1000; {
			n, err := b.FireCrons(t.Context())
			require.NoError(t, err)
			fired += n
		}
		t.Logf("fired in %s", time.Since(start))
		require.Equal(t, "1000", b.one(`SELECT count(*)::text FROM ojs.jobs WHERE ready_seq IS NOT NULL`))
		require.Less(t, time.Since(start), 10*time.Second) // 2 s alone on the machine
	})
}

func TestCronHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cron("c", every, "allow")
	b.cron("old", every, "allow")
	b.exec(`INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome) SELECT id, now() - n * interval '1 second', 'tick', 'fired'
		FROM ojs.crons CROSS JOIN generate_series(1, 1500) n WHERE name = 'c'`)
	b.exec(`INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome) SELECT id, now() - n * interval '1 day' + interval '1 hour', 'tick', 'fired'
		FROM ojs.crons CROSS JOIN generate_series(1, 60) n WHERE name = 'old'`)
	for _, want := range []int64{300, 230, 0} { // in bounded batches
		n, err := dbsqlc.New(b.pool).CronRunPrune(t.Context(), 300)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	_, total, err := b.CronHistory(t.Context(), "c", 0, 20)
	require.NoError(t, err)
	require.Equal(t, int64(1000), total)
	runs, total, err := b.CronHistory(t.Context(), "old", 0, 200)
	require.NoError(t, err)
	require.Equal(t, int64(30), total)
	require.Len(t, runs, 30)

	_, err = b.DeleteCron(t.Context(), "c")
	require.NoError(t, err)
	b.cron("c", every, "allow")
	_, total, err = b.CronHistory(t.Context(), "c", 0, 20)
	require.NoError(t, err)
	require.Zero(t, total, "another cron")
	require.Equal(t, "30", b.one(`SELECT count(*)::text FROM ojs.cron_runs`))
}

// Three nodes fire the same crons, and one of them dies in the middle of it, again and again.
func TestCronNodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 20 {
		b.cron(fmt.Sprint("c", i), `"expression":"@every 1s","type":"t","overlap_policy":"allow"`)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 3 {
		node := store.New(b.pool, settings())
		wg.Go(func() {
			for life := 1; ctx.Err() == nil; life = life%40 + 1 {
				end := time.Hour
				if i == 0 { // pgx closes the connection of a statement whose context ends
					end = time.Duration(life) * time.Millisecond
				}
				dying, die := context.WithTimeout(ctx, end)
				_, err := node.FireCrons(dying)
				if err != nil && i > 0 && ctx.Err() == nil {
					t.Error(err)
				}
				die()
				time.Sleep(time.Millisecond)
			}
		})
	}
	wg.Wait()
	final := b.one(`SELECT count(*)::text FROM ojs.cron_runs WHERE outcome = 'fired'`)
	require.NotEqual(t, "0", final)
	require.Equal(t, final, b.one(`SELECT count(*)::text FROM ojs.jobs`))
	require.Equal(t, final, b.one(`SELECT count(*)::text FROM ojs.jobs j JOIN ojs.cron_runs r ON r.job_id = j.id`))
	require.Equal(t, final, b.one(`SELECT sum(run_count)::text FROM ojs.crons`))
	require.Equal(t, final, b.one(`SELECT count(*)::text FROM ojs.events WHERE type = 'cron.triggered'`))
	require.Empty(t, b.texts(`SELECT name FROM ojs.crons WHERE run_count < 2`))
	require.Empty(t, b.texts(`SELECT c.name FROM ojs.crons c JOIN ojs.cron_runs r ON r.cron_id = c.id GROUP BY c.name
		HAVING max(r.scheduled_at) - min(r.scheduled_at) > count(*) * interval '1 second'`), "none is missing, but for a second in which the machine slept")
}

func TestCronOverlap(t *testing.T) {
	t.Parallel()

	t.Run("SkipWhileAnyIsUnfinished", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "skip")
		b.tick("c")
		first := b.one(`SELECT id::text FROM ojs.jobs`)
		b.tick("c") // available
		id := b.fetched(1, "q")[0].ID
		b.tick("c") // active
		_, err := b.Fail(t.Context(), store.Nack{JobID: id, Attempt: -1, Error: decodeError(t, `{"message":"no"}`)})
		require.NoError(t, err)
		b.tick("c") // retryable
		require.Equal(t, "1 3", b.one(`SELECT count(*) FILTER (WHERE outcome = 'fired') || ' ' || count(*) FILTER (WHERE reason = 'overlap_prevention') FROM ojs.cron_runs`))
		require.Len(t, b.texts(`SELECT type FROM ojs.events WHERE type = 'cron.skipped' AND data::text LIKE '%"reason":"overlap_prevention","existing_job_id":"' || $1 || '"%'`, first), 3)
		_, err = b.Cancel(t.Context(), id, store.Cancel{By: "t"})
		require.NoError(t, err)
		b.tick("c")
		require.Equal(t, "2", b.one(`SELECT run_count::text FROM ojs.crons`))
	})

	t.Run("CancelPrevious", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "cancel")
		b.tick("c")
		active := b.fetched(1, "q")[0].ID
		trigger, err := b.TriggerCron(t.Context(), "c")
		require.NoError(t, err)
		b.tick("c")
		require.Equal(t, ojs.StateCancelled, b.state(active))
		require.Equal(t, ojs.StateCancelled, b.state(trigger.ID))
		require.Equal(t, "1", b.one(`SELECT count(*)::text FROM ojs.jobs`))
		require.Equal(t, []string{"job.enqueued", "job.cancelled", "job.cancelled", "cron.triggered"}, b.texts(`SELECT type FROM ojs.events ORDER BY seq DESC LIMIT 4`))
		require.Equal(t, []string{"cron", "cron"}, b.texts(`SELECT source FROM ojs.events WHERE type = 'job.cancelled' AND data::text = '{"cancelled_by":"cron:c"}'`))
	})

	t.Run("CancelPreviousDoesNotWaitForHeldRows", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "cancel_previous")
		b.tick("c")
		tx, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
		_, err = tx.Exec(t.Context(), `SELECT FROM ojs.jobs FOR UPDATE`)
		require.NoError(t, err)
		b.due("c", "10 milliseconds")
		n, err := b.FireCrons(t.Context())
		require.NoError(t, err)
		require.Zero(t, n, "again in a moment")
		b.due("c", "2 seconds")
		n, err = b.FireCrons(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})

	t.Run("Allow", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "allow")
		b.tick("c")
		b.tick("c")
		require.Len(t, b.fetched(5, "q"), 2)
	})
}

// serial is a cron of which three jobs wait; none of them may ever run beside another.
func serial(t *testing.T) *bundle {
	b := setup(t)
	b.cron("c", every, "enqueue")
	for range 3 {
		b.tick("c")
	}
	rows, err := dbsqlc.New(b.pool).DoctorRows(t.Context())
	require.NoError(t, err)
	require.Zero(t, rows.Unordered)
	require.Equal(t, "3 1", b.one(`SELECT count(*) FILTER (WHERE state = 'available') || ' ' || count(ready_seq) FROM ojs.jobs`))
	return b
}

// next fetches the only job that may run.
func (b *bundle) next() [16]byte {
	b.t.Helper()
	got := b.fetched(5, "q")
	require.Len(b.t, got, 1)
	require.Empty(b.t, b.fetched(5, "q"))
	return got[0].ID
}

func TestCronEnqueue(t *testing.T) {
	t.Parallel()

	t.Run("OneAfterTheOtherInOrder", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		order := b.texts(`SELECT id::text FROM ojs.jobs ORDER BY enqueued_at`)
		for _, want := range order {
			id := b.next()
			require.Equal(t, want, ojs.FormatID(id))
			_, err := b.Complete(t.Context(), store.Ack{JobID: id, Attempt: -1})
			require.NoError(t, err)
		}
	})

	t.Run("RetriesAndReleasesWaitTheirTurn", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		first := b.next()
		_, err := b.Fail(t.Context(), store.Nack{JobID: first, Attempt: -1, Error: decodeError(t, `{"message":"no"}`)})
		require.NoError(t, err)
		second := b.next()
		b.exec(`UPDATE ojs.jobs SET due_at = now(), next_attempt_at = now() WHERE id = $1`, first)
		_, err = b.PromoteDue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, b.state(first))
		require.Empty(t, b.fetched(5, "q"), "the second one runs")
		_, err = b.Fail(t.Context(), store.Nack{JobID: second, Attempt: -1, Requeue: true})
		require.NoError(t, err)
		for range 3 {
			_, err := b.Complete(t.Context(), store.Ack{JobID: b.next(), Attempt: -1})
			require.NoError(t, err)
		}
		require.Empty(t, b.fetched(5, "q"))
	})

	t.Run("CancelledAndLostJobsLetTheNextGo", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		_, err := b.Cancel(t.Context(), b.next(), store.Cancel{By: "t"})
		require.NoError(t, err)
		lost := b.next()
		b.exec(`UPDATE ojs.jobs SET due_at = now(), lease_until = now() WHERE id = $1`, lost)
		_, _, err = b.FailOverdue(t.Context(), store.FromTheStart)
		require.NoError(t, err)
		require.NotEqual(t, lost, b.next())
	})

	t.Run("ALostReleaseIsMadeUpFor", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		b.exec(`SELECT ojs.cancel($1)`, b.next()) // as if the node had died after its commit
		require.Empty(t, b.fetched(5, "q"))
		require.Eventually(t, func() bool {
			_, err := b.PromoteDue(t.Context(), store.FromTheStart)
			require.NoError(t, err)
			return len(b.fetched(1, "q")) == 1
		}, 10*time.Second, 50*time.Millisecond)
		require.Empty(t, b.texts(`SELECT type FROM ojs.events WHERE type = 'job.state_changed'`), "looking is no transition")
	})

	t.Run("ARunByHandGoesFirst", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		job, err := b.TriggerCron(t.Context(), "c")
		require.NoError(t, err)
		require.Equal(t, job.ID, b.next())
		another, err := b.TriggerCron(t.Context(), "c")
		require.NoError(t, err)
		require.Equal(t, another.ID, b.next(), "it ignores overlap")
		_, err = b.Complete(t.Context(), store.Ack{JobID: job.ID, Attempt: -1})
		require.NoError(t, err)
		require.Empty(t, b.fetched(5, "q"))
		_, err = b.Complete(t.Context(), store.Ack{JobID: another.ID, Attempt: -1})
		require.NoError(t, err)
		b.next()
	})

	t.Run("ChangedPolicySerializesWhatIsThere", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "allow")
		b.tick("c")
		b.tick("c")
		b.cron("c", every, "enqueue")
		_, err := b.Complete(t.Context(), store.Ack{JobID: b.next(), Attempt: -1})
		require.NoError(t, err)
		b.next()
	})

	t.Run("ManyNodesNeverRunTwo", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "enqueue")
		for range 30 {
			b.tick("c")
		}
		var wg sync.WaitGroup
		for range 3 {
			node := newBundle(t, b.pool)
			wg.Go(func() {
				for start := time.Now(); time.Since(start) < 20*time.Second; {
					jobs, err := node.Fetch(t.Context(), store.Fetch{Queues: []string{"q"}, Count: 2, Wait: 100 * time.Millisecond})
					if err != nil || len(jobs) == 0 {
						if b.one(`SELECT count(*)::text FROM ojs.jobs`) == "0" {
							return
						}
						continue
					}
					if n := b.one(`SELECT count(*)::text FROM ojs.jobs WHERE state = 'active'`); n != "1" {
						t.Errorf("%s run at once", n)
					}
					if _, err := node.Complete(t.Context(), store.Ack{JobID: jobs[0].ID, Attempt: -1}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, "0", b.one(`SELECT count(*)::text FROM ojs.jobs`))
	})
}
