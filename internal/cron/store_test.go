package cron_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// cron registers one. body is the object without its braces.
func (b *bundle) cron(name, body string, args ...any) *cron.Record {
	b.T.Helper()
	in, wire := cron.Decode([]byte("{"+fmt.Sprintf(body, args...)+"}"), name, job.Limits{})
	require.Nil(b.T, wire)
	row, _, err := b.Crons.Put(b.T.Context(), in)
	require.NoError(b.T, err)
	return row
}

// due makes the next run of a cron lie in the past.
func (b *bundle) due(name, ago string) {
	b.T.Helper()
	b.Exec(`UPDATE ojs.crons SET next_run_at = now() - $2::text::interval WHERE name = $1`, name, ago)
}

// tick makes the cron due and fires it.
func (b *bundle) tick(name string) {
	b.T.Helper()
	b.due(name, "1 second")
	n, err := b.Crons.Fire(b.T.Context())
	require.NoError(b.T, err)
	require.Equal(b.T, 1, n)
}

const every = `"expression":"@every 1h","type":"t.cron","options":{"queue":"q"},"overlap_policy":"%s"`

// TestCronTenants: a cron is reached by its own tenant and by operators, also if its name passes to another tenant during a call.
func TestCronTenants(t *testing.T) {
	t.Parallel()
	put := func(b *bundle, tenant string) {
		b.T.Helper()
		in, wire := cron.Decode([]byte(`{"expression":"@hourly","type":"t"}`), "c", job.Limits{Tenant: tenant})
		require.Nil(b.T, wire)
		row, _, err := b.Crons.Put(b.T.Context(), in)
		require.NoError(b.T, err)
		require.Equal(b.T, tenant, row.Tenant)
	}
	pause := func(row *cron.Record) (*cron.Definition, error) {
		in := cron.DefinitionOf(row)
		in.Enabled = false
		return &in, nil
	}
	mine := cron.Ref{Tenant: "mine", Name: "c"}
	calls := map[string]func(b *bundle, ref cron.Ref) error{
		"CronDelete": func(b *bundle, ref cron.Ref) error { _, err := b.Crons.Delete(t.Context(), ref); return err },
		"CronLock":   func(b *bundle, ref cron.Ref) error { _, err := b.Crons.Trigger(t.Context(), ref); return err },
		"CronNotify": func(b *bundle, ref cron.Ref) error { _, err := b.Crons.Change(t.Context(), ref, pause); return err },
		"CronGet":    func(b *bundle, ref cron.Ref) error { _, err := b.Crons.Get(t.Context(), ref); return err },
		"History":    func(b *bundle, ref cron.Ref) error { _, _, err := b.Crons.History(t.Context(), ref, 0, 9); return err },
	}

	t.Run("OthersDoNotReachIt", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		put(b, "mine")
		for name, call := range calls {
			domaintest.RequireCode(t, call(b, cron.Ref{Tenant: "others", Name: "c"}), ojs.ErrNotFound)
			require.Equal(t, "mine true", b.One(`SELECT tenant || ' ' || enabled FROM ojs.crons`), name)
		}
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs`))
	})

	t.Run("NotANameThatSomebodyElseTakesMeanwhile", func(t *testing.T) {
		t.Parallel()
		for _, statement := range []string{"CronDelete", "CronLock", "CronNotify"} {
			b := setup(t)
			put(b, "mine")
			late := &bundle{domaintest.On(t, domaintest.Before(t, b.Pool, statement, func() {
				b.Exec(`DELETE FROM ojs.crons`)
				put(b, "others")
			}))}
			domaintest.RequireCode(t, calls[statement](late, mine), ojs.ErrNotFound)
			require.Equal(t, "others true", b.One(`SELECT tenant || ' ' || enabled FROM ojs.crons`), statement)
		}
	})

	t.Run("AChangeKeepsTheTenant", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		put(b, "mine")
		put(b, "mine")
		row, err := b.Crons.Change(t.Context(), mine, pause)
		require.NoError(t, err)
		require.Equal(t, "mine", row.Tenant)
		rows, _, err := b.Crons.List(t.Context(), cron.Filter{Tenant: "mine", Limit: 9})
		require.NoError(t, err)
		require.Len(t, rows, 1)
	})
}

func TestCronFiring(t *testing.T) {
	t.Parallel()

	t.Run("WritesLogJobEventsAndRow", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", `"expression":"@every 1h","type":"t.cron","args":[1.0],"meta":{"cron_name":"x","trace_id":"tr","k":"\u0000"},"options":{"queue":"q"}`)
		b.tick("c")
		require.Equal(t, []string{"cron.triggered", "job.enqueued"}, b.Texts(`SELECT type FROM ojs.events ORDER BY seq`))
		require.Equal(t, []string{"cron c tr q t.cron", "cron  tr q t.cron"},
			b.Texts(`SELECT concat_ws(' ', source, COALESCE(subject, ''), trace_id, queue, job_type) FROM ojs.events ORDER BY seq`))
		require.Equal(t, "t", b.One(`SELECT (c.last_run_at = r.scheduled_at AND c.next_run_at = c.last_run_at + interval '1 hour' AND c.run_count = 1
			AND r.outcome = 'fired' AND r.job_id = j.id AND j.cron = 'c' AND NOT j.cron_serial AND j.visibility_ms = 600000)::text::char(1)
			FROM ojs.crons c JOIN ojs.cron_runs r ON r.cron_id = c.id JOIN ojs.jobs j ON true`))
		job := b.Fetched(1, "q")[0]
		require.Equal(t, `[1.0]`, string(job.Args))
		require.Regexp(t, `^\{"trace_id":"tr","k":"\\u0000","cron_name":"c","cron_triggered_at":"20..-[^"]+Z"\}$`, string(job.Meta))
		require.Equal(t, int64(600_000), job.LeaseMs.Int64)
	})

	t.Run("TemplateDecidesTheReservation", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", `"expression":"@hourly","type":"t","options":{"queue":"q","visibility_timeout_ms":5000,"scheduled_at":"PT1H"}`)
		b.tick("c")
		require.Equal(t, "scheduled 5000 01:00:00", b.One(`SELECT state || ' ' || visibility_ms || ' ' || (scheduled_at - created_at) FROM ojs.jobs`))
	})

	t.Run("MissedRunsFireOnceForTheLatest", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("m", `"expression":"* * * * *","type":"t"`)
		b.Exec(`UPDATE ojs.crons SET next_run_at = date_trunc('minute', now()) - interval '3 days'`)
		n, err := b.Crons.Fire(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, "1 true true", b.One(`SELECT run_count || ' ' || (last_run_at > now() - interval '1 minute') || ' ' || (next_run_at > now()) FROM ojs.crons`))
		n, err = b.Crons.Fire(t.Context())
		require.NoError(t, err)
		require.Zero(t, n)
	})

	t.Run("NothingForPausedTime", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("p", every, "skip")
		for _, enabled := range []bool{false, true} {
			_, err := b.Crons.Change(t.Context(), cron.Ref{Name: "p"}, func(row *cron.Record) (*cron.Definition, error) {
				in := cron.DefinitionOf(row)
				in.Enabled = enabled
				return &in, nil
			})
			require.NoError(t, err)
			n, err := b.Crons.Fire(t.Context())
			require.NoError(t, err)
			require.Zero(t, n)
		}
		require.Equal(t, "true", b.One(`SELECT (next_run_at > now() + interval '59 minutes')::text FROM ojs.crons`))
	})

	t.Run("ATickThatIsInTheLogOnlyAdvances", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "allow")
		b.due("c", "1 second")
		b.Exec(`INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome) SELECT id, next_run_at, 'tick', 'fired' FROM ojs.crons`)
		n, err := b.Crons.Fire(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, "0 true", b.One(`SELECT run_count || ' ' || (next_run_at > now()) FROM ojs.crons`))
		require.Empty(t, b.Texts(`SELECT type FROM ojs.events`))
		require.Empty(t, b.Fetched(1, "q"))
	})

	t.Run("SkippedLocalTimeHasOneEvent", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", `"expression":"30 2 * * *","timezone":"America/New_York","type":"t","meta":{"trace_id":"tr"},"options":{"queue":"q"}`)
		// The latest change of clocks there; how often it is stepped over does not matter.
		for range 2 {
			b.Exec(`UPDATE ojs.crons SET next_run_at = (make_date(extract(year FROM now())::integer - 1, 3, 1)::text || ' 07:30:00Z')::timestamptz`)
			_, err := b.Crons.Fire(t.Context())
			require.NoError(t, err)
		}
		n := len(b.Texts(`SELECT reason FROM ojs.cron_runs WHERE kind = 'gap' AND outcome = 'skipped' AND reason = 'dst_skip'`))
		require.Contains(t, []int{1, 2}, n, "one or two springs since")
		require.Len(t, b.Texts(`SELECT type FROM ojs.events WHERE type = 'cron.skipped' AND data::text LIKE '%"reason":"dst_skip"%'
			AND (source, subject, job_type, queue, trace_id, lane) = ('cron', 'c', 't', 'q', 'tr', '')`), n)
	})

	t.Run("DrainingQueueAndBadTemplateAreSkipped", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		b := setup(t, func(c *domaintest.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		})
		b.cron("drain", every, "allow")
		b.cron("bad", `"expression":"@hourly","type":"t"`)
		b.cron("zone", `"expression":"@hourly","type":"t"`)
		b.cron("good", `"expression":"@hourly","type":"t","options":{"queue":"g"}`)
		b.Exec(`INSERT INTO ojs.queues (name, status) VALUES ('q', 'draining')`)
		b.Exec(`UPDATE ojs.crons SET type = 'NOT A TYPE' WHERE name = 'bad'`)
		b.Exec(`UPDATE ojs.crons SET timezone = 'Europe/Nowhere' WHERE name = 'zone'`)
		b.Exec(`UPDATE ojs.crons SET next_run_at = now() - interval '1 second'`)
		n, err := b.Crons.Fire(t.Context())
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.Regexp(t, `template of a cron is not valid .* cron=bad `, log.String())
		require.Regexp(t, `cannot parse the schedule of a cron.* cron=zone `, log.String())
		require.Equal(t, []string{"bad skipped enqueue_failed", "drain skipped queue_paused", "good fired", "zone skipped enqueue_failed"},
			b.Texts(`SELECT concat_ws(' ', c.name, r.outcome, r.reason) FROM ojs.cron_runs r JOIN ojs.crons c ON c.id = r.cron_id ORDER BY 1`))
		require.Len(t, b.Fetched(9, "g", "q", "default"), 1)
		const runs = `SELECT name || ' ' || run_count FROM ojs.crons ORDER BY 1`
		require.Equal(t, []string{"bad 0", "drain 0", "good 1", "zone 0"}, b.Texts(runs))
		_, err = b.Crons.Trigger(t.Context(), cron.Ref{Name: "good"})
		require.NoError(t, err)
		require.Equal(t, []string{"bad 0", "drain 0", "good 2", "zone 0"}, b.Texts(runs), "runs by hand count")
		require.Equal(t, "0", b.One(`SELECT count(*)::text FROM ojs.crons WHERE next_run_at <= now()`))
	})

	// Two nodes: the timezone is one that the newer one knows.
	t.Run("AScheduleThatTheNodeCannotParseIsRecordedOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", `"expression":"0 0 1 1 *","type":"t","options":{"queue":"q"}`)
		zone := func(name string) { b.Exec(`UPDATE ojs.crons SET timezone = $1`, name) }
		try := func() {
			t.Helper()
			b.Exec(`UPDATE ojs.crons SET next_run_at = now()`)
			n, err := b.Crons.Fire(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}
		// recorded are the outcomes in the log, which are those of the events.
		recorded := func() (skipped, fired int) {
			t.Helper()
			skipped, fired = b.Number(`SELECT count(*) FROM ojs.cron_runs WHERE reason = 'enqueue_failed'`), b.Number(`SELECT count(*) FROM ojs.cron_runs WHERE outcome = 'fired'`)
			require.Equal(t, skipped, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'cron.skipped'`))
			require.Equal(t, fired, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'cron.triggered'`))
			return skipped, fired
		}
		zone("Europe/Nowhere")
		for range 3 {
			try()
			skipped, _ := recorded()
			require.Equal(t, 1, skipped)
			require.Equal(t, "t", b.One(`SELECT (next_run_at - now() BETWEEN '50 seconds' AND '60 seconds')::text::char(1) FROM ojs.crons`), "it is tried again")
		}
		// A change begins anew.
		b.Exec(`UPDATE ojs.crons SET updated_at = clock_timestamp()`)
		for range 2 {
			try()
			skipped, _ := recorded()
			require.Equal(t, 2, skipped)
		}
		zone("UTC")
		try()
		skipped, fired := recorded()
		require.Equal(t, []int{2, 1}, []int{skipped, fired}, "a node that can parse it fires it")
		require.Len(t, b.Fetched(9, "q"), 1)
		require.Equal(t, "t", b.One(`SELECT (next_run_at > now() AND date_part('doy', next_run_at AT TIME ZONE 'UTC') = 1)::text::char(1) FROM ojs.crons`))
		// It has fired since, so this is news.
		zone("Europe/Nowhere")
		for range 2 {
			try()
		}
		skipped, _ = recorded()
		require.Equal(t, 3, skipped)
	})

	t.Run("AJobThatTheDatabaseRefusesDelaysNoOther", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for _, name := range []string{"a", "b", "c"} {
			b.cron(name, `"expression":"@hourly","type":"t.%s"`, name)
		}
		b.Exec(`ALTER TABLE ojs.jobs ADD CONSTRAINT no_b CHECK (type <> 't.b')`)
		b.Exec(`UPDATE ojs.crons SET next_run_at = now() - interval '1 second'`)
		n, err := b.Crons.Fire(t.Context())
		require.NoError(t, err)
		require.Equal(t, 3, n)
		require.Equal(t, []string{"t.a", "t.c"}, b.Texts(`SELECT type FROM ojs.jobs ORDER BY 1`))
		require.Equal(t, []string{"a cron.triggered", "b cron.skipped", "c cron.triggered"}, b.Texts(`SELECT subject || ' ' || type FROM ojs.events WHERE subject IS NOT NULL ORDER BY 1`))
	})

	t.Run("AThousandAtOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var sent domaintest.Statements
		node := domaintest.On(t, domaintest.Traced(t, b.Pool, &sent))
		b.Exec(`INSERT INTO ojs.crons (name, id, expression, type, queue, args, overlap_policy, next_run_at)
			SELECT 'c' || n, gen_random_uuid(), '* * * * *', 't', 'q' || n % 10, '[]', (ARRAY['skip', 'allow', 'cancel_previous', 'enqueue'])[n % 4 + 1], date_trunc('minute', now())
			FROM generate_series(1, 1000) n`)
		for fired := 0; fired < 1000; {
			n, err := node.Crons.Fire(t.Context())
			require.NoError(t, err)
			fired += n
		}
		require.Equal(t, "1000", b.One(`SELECT count(*)::text FROM ojs.jobs WHERE ready_seq IS NOT NULL`))
		require.Equal(t, 5, sent.Sent("CronListDue"), "200 at a time")
		require.LessOrEqual(t, sent.Sent("JobInsert"), 10, "not one statement per cron")
		require.LessOrEqual(t, sent.Total(), 100, "not one statement per cron")
	})
}

// The unique policy of a template is checked after the overlap policy, at every tick.
func TestCronUnique(t *testing.T) {
	t.Parallel()
	const unique = `"expression":"@every 1h","type":"t.cron","options":{"queue":"q","unique":{"on_conflict":"%s"}},"overlap_policy":"%s"`
	held := func(b *bundle) *job.Record {
		b.T.Helper()
		return b.Enqueued(domaintest.With(func(j *job.Job) {
			j.Type, j.Unique = "t.cron", &job.Unique{Keys: []string{"type"}, States: []ojs.JobState{ojs.StateAvailable}, OnConflict: "reject"}
		}))[0]
	}
	for _, conflict := range []string{"reject", "ignore"} {
		t.Run("SkipsATick/"+conflict, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			other := held(b)
			b.cron("u", unique, conflict, "allow")
			b.cron("plain", every, "allow")
			b.due("plain", "1 second")
			b.due("u", "1 second")
			n, err := b.Crons.Fire(t.Context())
			require.NoError(t, err)
			require.Equal(t, 2, n)
			require.Equal(t, "skipped duplicate", b.One(`SELECT r.outcome || ' ' || r.reason FROM ojs.cron_runs r JOIN ojs.crons c ON c.id = r.cron_id WHERE c.name = 'u'`))
			require.Contains(t, b.One(`SELECT data::text FROM ojs.events WHERE type = 'cron.skipped'`), `"reason":"duplicate","existing_job_id":"`+spec.FormatID(other.ID)+`"`)
			require.Equal(t, "1", b.One(`SELECT count(*)::text FROM ojs.jobs WHERE cron = 'plain'`))
			require.Equal(t, "true", b.One(`SELECT bool_and(next_run_at > now())::text FROM ojs.crons`))

			got, err := b.Crons.Trigger(t.Context(), cron.Ref{Name: "u"})
			if conflict == "ignore" {
				require.NoError(t, err)
				require.Equal(t, other.ID, got.ID)
			} else {
				domaintest.RequireCode(t, err, ojs.ErrDuplicateJob)
			}
			require.Equal(t, "1", b.One(`SELECT count(*)::text FROM ojs.jobs WHERE unique_key IS NOT NULL`))
			require.Empty(t, b.Texts(`SELECT name FROM ojs.crons WHERE name = 'u' AND run_count > 0`))

			_, err = b.Store.Cancel(t.Context(), other.ID, queue.Cancel{By: "t"})
			require.NoError(t, err)
			b.tick("u")
			require.Equal(t, "1", b.One(`SELECT count(*)::text FROM ojs.jobs WHERE unique_key IS NOT NULL`))
		})
	}

	t.Run("Replaces", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := held(b)
		b.cron("u", unique, "replace", "allow")
		b.tick("u")
		require.Equal(t, ojs.StateCancelled, b.State(other.ID))
	})

	t.Run("SkipNeverReachesTheCheck", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("u", unique, "replace", "skip")
		b.tick("u")
		first := b.One(`SELECT id::text FROM ojs.jobs`)
		b.tick("u")
		require.Equal(t, first, b.One(`SELECT id::text FROM ojs.jobs`))
		require.Equal(t, "overlap_prevention", b.One(`SELECT reason FROM ojs.cron_runs WHERE outcome = 'skipped'`))
	})

	t.Run("CancelBypassesTheCheck", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := held(b)
		b.cron("u", unique, "reject", "cancel")
		b.tick("u")
		b.tick("u")
		require.Equal(t, ojs.StateAvailable, b.State(other.ID))
		require.Equal(t, "2", b.One(`SELECT count(*)::text FROM ojs.jobs WHERE unique_key = $1`, other.UniqueKey.String))
	})

	t.Run("WaitsForALockedKey", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := held(b)
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(('x' || left($1, 16))::bit(64)::bigint)`, other.UniqueKey.String)
		require.NoError(t, err)
		b.cron("u", unique, "replace", "allow")
		b.due("u", "1 second")
		n, err := b.Crons.Fire(t.Context())
		require.NoError(t, err)
		require.Zero(t, n, "the tick stays due")
		require.NoError(t, tx.Rollback(t.Context()))
		n, err = b.Crons.Fire(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, ojs.StateCancelled, b.State(other.ID))
	})
}

func TestCronHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cron("c", every, "allow")
	b.cron("old", every, "allow")
	b.Exec(`INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome) SELECT id, now() - n * interval '1 second', 'tick', 'fired'
		FROM ojs.crons CROSS JOIN generate_series(1, 1500) n WHERE name = 'c'`)
	b.Exec(`INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome) SELECT id, now() - n * interval '1 day' + interval '1 hour', 'tick', 'fired'
		FROM ojs.crons CROSS JOIN generate_series(1, 60) n WHERE name = 'old'`)
	for _, want := range []int64{300, 230, 0} { // in bounded batches
		n, err := dbsqlc.New(b.Pool).CronRunPrune(t.Context(), 300)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	_, total, err := b.Crons.History(t.Context(), cron.Ref{Name: "c"}, 0, 20)
	require.NoError(t, err)
	require.Equal(t, int64(1000), total)
	runs, total, err := b.Crons.History(t.Context(), cron.Ref{Name: "old"}, 0, 200)
	require.NoError(t, err)
	require.Equal(t, int64(30), total)
	require.Len(t, runs, 30)
	page, total, err := b.Crons.History(t.Context(), cron.Ref{Name: "old"}, 10, 5)
	require.NoError(t, err)
	require.Equal(t, int64(30), total)
	require.Equal(t, runs[10:15], page)

	_, err = b.Crons.Delete(t.Context(), cron.Ref{Name: "c"})
	require.NoError(t, err)
	b.cron("c", every, "allow")
	_, total, err = b.Crons.History(t.Context(), cron.Ref{Name: "c"}, 0, 20)
	require.NoError(t, err)
	require.Zero(t, total, "another cron")
	require.Equal(t, "30", b.One(`SELECT count(*)::text FROM ojs.cron_runs`))
}

// A list shows all that the client has sent of a cron or, behind so many bytes, nothing of it.
func TestCronListIsCutBehindBytes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range []string{"a", "b", "c"} {
		b.cron(name, `"expression":"@every 1h","type":"t","args":[%q],"meta":{"k":1},"options":{"queue":"q"}`, name)
	}
	bytes := int64(b.Number(`SELECT octet_length(args::text) + octet_length(meta::text) + octet_length(options::text) FROM ojs.crons WHERE name = 'a'`))
	for _, most := range []int64{0, 1, bytes - 1, bytes, bytes + 1, 2*bytes - 1, 2 * bytes} {
		rows, err := dbsqlc.New(b.Pool).CronList(t.Context(), dbsqlc.CronListParams{MaxBytes: most, Queues: []string{}, MaxRows: 10})
		require.NoError(t, err)
		require.Len(t, rows, 3)
		for i, row := range rows {
			whole := int64(i)*bytes <= most
			require.Equal(t, []bool{whole, whole, whole}, []bool{row.Args != nil, row.Meta != nil, row.Options != nil}, "%d bytes: %s", most, row.Name)
		}
	}
}

func TestCronHistoryShowsItsJobs(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	b.cron("c", every, "allow")
	for range 5 {
		b.tick("c")
	}
	jobs := b.Fetched(3, "q")
	require.Len(t, jobs, 3)
	_, err := b.Complete(t.Context(), job.Ack{JobID: jobs[0].ID, Attempt: -1})
	require.NoError(t, err)
	_, err = b.Cancel(t.Context(), jobs[1].ID, queue.Cancel{})
	require.NoError(t, err)
	b.Exec(`DELETE FROM ojs.jobs WHERE id = (SELECT job_id FROM ojs.cron_runs ORDER BY scheduled_at DESC LIMIT 1)`)
	b.Exec(`INSERT INTO ojs.cron_runs (cron_id, scheduled_at, kind, outcome, reason) SELECT id, now() + interval '1 day', 'tick', 'skipped', 'overlap' FROM ojs.crons`)
	runs, _, err := b.Crons.History(t.Context(), cron.Ref{Name: "c"}, 0, 10)
	require.NoError(t, err)
	var shown []string
	for _, r := range runs {
		shown = append(shown, fmt.Sprintf("%s %s %t %t", r.Outcome, r.State, r.StartedAt.Valid, r.FinishedAt.Valid))
	}
	require.Equal(t, []string{"skipped  false false", "fired  false false", "fired available false false", "fired active true false", "fired cancelled true true", "fired completed true true"}, shown)
}

// Three nodes fire the same crons, and the calls of one of them are cancelled at any moment.
func TestCronNodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 20 {
		b.cron(fmt.Sprint("c", i), `"expression":"@every 1s","type":"t","overlap_policy":"allow"`)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i := range 3 {
		// A call that ends early may have committed without saying so.
		node := domaintest.On(t, b.Pool, unchecked)
		wg.Go(func() {
			for life := 1; ctx.Err() == nil; life = life%40 + 1 {
				end := time.Hour
				if i == 0 { // pgx closes the connection of a statement whose context ends
					end = time.Duration(life) * time.Millisecond
				}
				dying, die := context.WithTimeout(ctx, end)
				_, err := node.Crons.Fire(dying)
				if err != nil && i > 0 && ctx.Err() == nil {
					t.Error(err)
				}
				die()
				time.Sleep(time.Millisecond)
			}
		})
	}
	require.Eventually(t, func() bool { return b.Number(`SELECT count(*) FROM ojs.crons WHERE run_count < 3`) == 0 }, domaintest.WaitFor, 50*time.Millisecond)
	cancel()
	wg.Wait()
	final := b.One(`SELECT count(*)::text FROM ojs.cron_runs WHERE outcome = 'fired'`)
	require.NotEqual(t, "0", final)
	require.Equal(t, final, b.One(`SELECT count(*)::text FROM ojs.jobs`))
	require.Equal(t, final, b.One(`SELECT count(*)::text FROM ojs.jobs j JOIN ojs.cron_runs r ON r.job_id = j.id`))
	require.Equal(t, final, b.One(`SELECT sum(run_count)::text FROM ojs.crons`))
	require.Equal(t, final, b.One(`SELECT count(*)::text FROM ojs.events WHERE type = 'cron.triggered'`))
	require.Equal(t, final, b.One(`SELECT count(DISTINCT (cron_id, scheduled_at))::text FROM ojs.cron_runs WHERE outcome = 'fired'`), "no tick twice")
}

func TestCronOverlap(t *testing.T) {
	t.Parallel()

	t.Run("SkipWhileAnyIsUnfinished", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "skip")
		b.tick("c")
		first := b.One(`SELECT id::text FROM ojs.jobs`)
		b.tick("c") // available
		id := b.Fetched(1, "q")[0].ID
		b.tick("c") // active
		_, err := b.Fail(t.Context(), job.Nack{JobID: id, Attempt: -1, Error: domaintest.DecodeError(t, `{"message":"no"}`)})
		require.NoError(t, err)
		b.tick("c") // retryable
		require.Equal(t, "1 3", b.One(`SELECT count(*) FILTER (WHERE outcome = 'fired') || ' ' || count(*) FILTER (WHERE reason = 'overlap_prevention') FROM ojs.cron_runs`))
		require.Len(t, b.Texts(`SELECT type FROM ojs.events WHERE type = 'cron.skipped' AND data::text LIKE '%"reason":"overlap_prevention","existing_job_id":"' || $1 || '"%'`, first), 3)
		_, err = b.Cancel(t.Context(), id, queue.Cancel{By: "t"})
		require.NoError(t, err)
		b.tick("c")
		require.Equal(t, "2", b.One(`SELECT run_count::text FROM ojs.crons`))
	})

	t.Run("CancelPrevious", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "cancel")
		b.tick("c")
		active := b.Fetched(1, "q")[0].ID
		trigger, err := b.Crons.Trigger(t.Context(), cron.Ref{Name: "c"})
		require.NoError(t, err)
		b.tick("c")
		require.Equal(t, ojs.StateCancelled, b.State(active))
		require.Equal(t, ojs.StateCancelled, b.State(trigger.ID))
		require.Equal(t, "1", b.One(`SELECT count(*)::text FROM ojs.jobs`))
		require.Equal(t, []string{"job.enqueued", "job.cancelled", "job.cancelled", "cron.triggered"}, b.Texts(`SELECT type FROM ojs.events ORDER BY seq DESC LIMIT 4`))
		require.Equal(t, []string{"cron", "cron"}, b.Texts(`SELECT source FROM ojs.events WHERE type = 'job.cancelled' AND data::text = '{"cancelled_by":"cron:c"}'`))
	})

	t.Run("CancelPreviousDoesNotWaitForLockedRows", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "cancel_previous")
		b.tick("c")
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
		_, err = tx.Exec(t.Context(), `SELECT FROM ojs.jobs FOR UPDATE`)
		require.NoError(t, err)
		b.due("c", "10 milliseconds")
		n, err := b.Crons.Fire(t.Context())
		require.NoError(t, err)
		require.Zero(t, n, "again in a moment")
		b.due("c", "2 seconds")
		n, err = b.Crons.Fire(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})

	t.Run("Allow", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "allow")
		b.tick("c")
		b.tick("c")
		require.Len(t, b.Fetched(5, "q"), 2)
	})
}

// serial is a cron of which three jobs wait; none of them may ever run beside another.
func serial(t *testing.T) *bundle {
	b := setup(t)
	b.cron("c", every, "enqueue")
	for range 3 {
		b.tick("c")
	}
	rows, err := dbsqlc.New(b.Pool).DoctorRows(t.Context())
	require.NoError(t, err)
	require.Zero(t, rows.Unordered)
	require.Equal(t, "3 1", b.One(`SELECT count(*) FILTER (WHERE state = 'available') || ' ' || count(ready_seq) FROM ojs.jobs`))
	return b
}

// next fetches the only job that may run.
func (b *bundle) next() [16]byte {
	b.T.Helper()
	got := b.Fetched(5, "q")
	require.Len(b.T, got, 1)
	require.Empty(b.T, b.Fetched(5, "q"))
	return got[0].ID
}

func TestCronEnqueue(t *testing.T) {
	t.Parallel()

	t.Run("OneAfterTheOtherInOrder", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		b.tick("c") // now three of them wait for the first
		order := b.Texts(`SELECT id::text FROM ojs.jobs ORDER BY enqueued_at`)
		for _, want := range order {
			id := b.next()
			require.Equal(t, want, spec.FormatID(id))
			_, err := b.Complete(t.Context(), job.Ack{JobID: id, Attempt: -1})
			require.NoError(t, err)
		}
	})

	t.Run("RetriesAndReleasesWaitTheirTurn", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		first := b.next()
		_, err := b.Fail(t.Context(), job.Nack{JobID: first, Attempt: -1, Error: domaintest.DecodeError(t, `{"message":"no"}`)})
		require.NoError(t, err)
		second := b.next()
		b.Exec(`UPDATE ojs.jobs SET due_at = now(), next_attempt_at = now() WHERE id = $1`, first)
		_, err = b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, b.State(first))
		require.Empty(t, b.Fetched(5, "q"), "the second one runs")
		_, err = b.Fail(t.Context(), job.Nack{JobID: second, Attempt: -1, Requeue: true})
		require.NoError(t, err)
		for range 3 {
			_, err := b.Complete(t.Context(), job.Ack{JobID: b.next(), Attempt: -1})
			require.NoError(t, err)
		}
		require.Empty(t, b.Fetched(5, "q"))
	})

	t.Run("CancelledAndLostJobsLetTheNextGo", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		_, err := b.Cancel(t.Context(), b.next(), queue.Cancel{By: "t"})
		require.NoError(t, err)
		lost := b.next()
		b.Exec(`UPDATE ojs.jobs SET due_at = now(), lease_until = now() WHERE id = $1`, lost)
		_, _, err = b.FailOverdue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		require.NotEqual(t, lost, b.next())
	})

	t.Run("ALostReleaseIsMadeUpFor", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		b.Exec(`SELECT ojs.cancel($1)`, b.next()) // as if the node had died after its commit
		require.Empty(t, b.Fetched(5, "q"))
		require.Eventually(t, func() bool {
			_, err := b.PromoteDue(t.Context(), pg.Beginning)
			require.NoError(t, err)
			return len(b.Fetched(1, "q")) == 1
		}, domaintest.WaitFor, 50*time.Millisecond)
		require.Empty(t, b.Texts(`SELECT type FROM ojs.events WHERE type = 'job.state_changed'`), "looking is no transition")
	})

	// While a job runs, the next one is looked at every two seconds, in case that the release by its end is lost.
	t.Run("TheNextIsLookedAtSoon", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		running := b.next()
		b.Exec(`UPDATE ojs.jobs SET due_at = now() WHERE ready_seq IS NULL AND id <> $1`, running)
		_, err := b.PromoteDue(t.Context(), pg.Beginning)
		require.NoError(t, err)
		due := b.Texts(`SELECT CASE WHEN due_at <= now() THEN 'now' WHEN due_at < now() + interval '10 seconds' THEN 'soon' ELSE 'later' END FROM ojs.jobs WHERE id <> $1 ORDER BY enqueued_at`, running)
		require.Equal(t, []string{"soon", "later"}, due)
	})

	t.Run("ARunByHandGoesFirst", func(t *testing.T) {
		t.Parallel()
		b := serial(t)
		first, err := b.Crons.Trigger(t.Context(), cron.Ref{Name: "c"})
		require.NoError(t, err)
		require.Equal(t, first.ID, b.next())
		another, err := b.Crons.Trigger(t.Context(), cron.Ref{Name: "c"})
		require.NoError(t, err)
		require.Equal(t, another.ID, b.next(), "it ignores overlap")
		_, err = b.Complete(t.Context(), job.Ack{JobID: first.ID, Attempt: -1})
		require.NoError(t, err)
		require.Empty(t, b.Fetched(5, "q"))
		_, err = b.Complete(t.Context(), job.Ack{JobID: another.ID, Attempt: -1})
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
		_, err := b.Complete(t.Context(), job.Ack{JobID: b.next(), Attempt: -1})
		require.NoError(t, err)
		b.next()
	})

	// Two may wait for a moment if a run takes a little longer than the interval.
	t.Run("LogsThatJobsPileUp", func(t *testing.T) {
		t.Parallel()
		var log bytes.Buffer
		b := setup(t, func(c *domaintest.Config) {
			c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		})
		b.cron("c", every, "enqueue")
		for range 3 { // one can be fetched
			b.tick("c")
		}
		require.Empty(t, log.String())
		b.tick("c")
		require.Regexp(t, `pile up.* cron=c queued=3\n`, log.String())
	})

	t.Run("ManyNodesNeverRunTwo", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.cron("c", every, "enqueue")
		for range 30 {
			b.tick("c")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*domaintest.WaitFor)
		defer cancel()
		var wg sync.WaitGroup
		for range 3 {
			node := b.node()
			wg.Go(func() {
				for ctx.Err() == nil {
					jobs, err := node.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 2, Wait: 100 * time.Millisecond})
					if err != nil || len(jobs) == 0 {
						if b.One(`SELECT count(*)::text FROM ojs.jobs`) == "0" {
							return
						}
						continue
					}
					if n := b.One(`SELECT count(*)::text FROM ojs.jobs WHERE state = 'active'`); n != "1" {
						t.Errorf("%s run at once", n)
					}
					if _, err := node.Complete(t.Context(), job.Ack{JobID: jobs[0].ID, Attempt: -1}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, "0", b.One(`SELECT count(*)::text FROM ojs.jobs`))
	})
}

// A list leaves out the templates of large crons behind the first MiB; a cron alone is whole.
func TestListIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		b.cron(name, every+`,"args":["%s"],"meta":{"k":1}`, "skip", strings.Repeat("x", 600_000))
	}
	rows, total, err := b.Crons.List(t.Context(), cron.Filter{Limit: 1000})
	require.NoError(t, err)
	require.EqualValues(t, 4, total)
	var cut []string
	for _, row := range rows {
		if row.Cut() {
			cut = append(cut, row.Name)
			require.Nil(t, row.Meta)
			require.Nil(t, row.Options)
		}
	}
	require.Equal(t, []string{"c", "d"}, cut)
	row, err := b.Crons.Get(t.Context(), cron.Ref{Name: "d"})
	require.NoError(t, err)
	require.Len(t, row.Args, 600_004)
}

// A run by hand is refused while the queue of its job is draining, whatever other queues do.
func TestTriggerIntoADrainingQueue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cron("c", every, "allow") // in queue q
	b.Exec(`INSERT INTO ojs.queues (name, status) VALUES ('other', 'draining')`)
	_, err := b.Crons.Trigger(t.Context(), cron.Ref{Name: "c"})
	require.NoError(t, err)
	b.Exec(`INSERT INTO ojs.queues (name, status) VALUES ('q', 'draining') ON CONFLICT (name) DO UPDATE SET status = 'draining'`)
	_, err = b.Crons.Trigger(t.Context(), cron.Ref{Name: "c"})
	domaintest.RequireCode(t, err, ojs.ErrQueuePaused)
	b.Exec(`UPDATE ojs.queues SET status = 'paused', paused_at = now() WHERE name = 'q'`)
	_, err = b.Crons.Trigger(t.Context(), cron.Ref{Name: "c"})
	require.NoError(t, err, "a paused queue takes jobs")
	require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.jobs WHERE cron = 'c'`))
}
