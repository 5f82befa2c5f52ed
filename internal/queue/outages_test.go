package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
)

// age moves all that has happened so many milliseconds into the past.
func age(b *bundle, ms int) {
	b.Exec(`UPDATE ojs.jobs SET created_at = created_at - a.t, enqueued_at = enqueued_at - a.t, started_at = started_at - a.t,
		lease_until = lease_until - a.t, stall_due_at = stall_due_at - a.t, total_due_at = total_due_at - a.t, due_at = due_at - a.t
		FROM (SELECT $1 * interval '1 millisecond' AS t) a`, ms)
	b.Exec(`UPDATE ojs.outages SET began_at = began_at - $1 * interval '1 millisecond', ended_at = ended_at - $1 * interval '1 millisecond'`, ms)
	b.Exec(`UPDATE ojs.workers SET last_seen_at = last_seen_at - $1 * interval '1 millisecond'`, ms)
}

// outage leaves the database as after a time in which no node has reached it.
func outage(b *bundle, ms int) {
	age(b, ms)
	b.Exec(`SELECT setval('ojs.served_at', (date_part('epoch', now()) * 1000)::bigint - $1)`, ms)
}

func overdue(b *bundle) (failed int) {
	b.T.Helper()
	_, failed, err := b.FailOverdue(b.T.Context(), pg.Beginning)
	require.NoError(b.T, err)
	return failed
}

// left is how long the job has until it is overdue.
func left(b *bundle) int {
	return b.Number(`SELECT (date_part('epoch', due_at - clock_timestamp()) * 1000)::bigint FROM ojs.jobs`)
}

func TestOutages(t *testing.T) {
	t.Parallel()
	// Each job is over within the 40 s of the outage by one of its limits, and was not when it began.
	limits := map[string]struct {
		change func(j *job.Job)
		lease  int64 // ms
		reason string
		left   string // seconds from the end of the outage to the end of the job's time
	}{
		"Reservation":      {func(*job.Job) {}, 30_000, job.VisibilityTimeout, "30"},
		"LongReservation":  {func(*job.Job) {}, 70_000, job.VisibilityTimeout, "70"}, // not over, but nobody could renew it
		"RunTime":          {func(j *job.Job) { j.TimeoutMS, j.GraceMS = 20_000, 5000 }, 600_000, job.Timeout, "25"},
		"HeartbeatTimeout": {func(j *job.Job) { j.HeartbeatTimeoutMS = 15_000 }, 600_000, job.Stalled, "15"},
		"TotalTimeout":     {func(j *job.Job) { j.TotalTimeoutMS = 35_000 }, 600_000, job.TotalTimeout, "10"}, // a deadline: reports only
	}
	for name, c := range limits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dbtest.WritesTables(t)
			b := setup(t)
			b.Enqueued(domaintest.With(c.change))
			f := job.Fetch{Queues: []string{"q"}, Count: 1, VisibilityMS: c.lease, WorkerID: "w"}
			jobs, err := b.Fetch(t.Context(), f)
			require.NoError(t, err)
			require.Len(t, jobs, 1)
			outage(b, 40_000)
			require.Zero(t, overdue(b), "no node may fail a job before its time was extended")
			require.NoError(t, b.CheckOutage(t.Context()))
			require.Equal(t, c.left, b.One(`SELECT round(date_part('epoch', j.due_at - o.ended_at))::text FROM ojs.jobs j, ojs.outages o`))
			age(b, left(b)-1000)
			require.Zero(t, overdue(b))
			age(b, left(b)+1)
			require.Equal(t, 1, overdue(b))
			require.Equal(t, c.reason, b.One(`SELECT COALESCE(error, errors[1])->>'code' FROM ojs.jobs`))
		})
	}

	t.Run("AreExtendedOnceByTheFirstOfTheNodes", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		b.Fetched(1, "q")
		outage(b, 40_000)
		errs := make(chan error, 8)
		for range cap(errs) {
			n := b.node()
			go func() { errs <- n.CheckOutage(t.Context()) }()
		}
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.outages WHERE jobs = 1 AND ended_at - began_at BETWEEN interval '40 s' AND interval '60 s'`))
		require.LessOrEqual(t, left(b), 30_000)
		require.Zero(t, overdue(b))
		age(b, left(b)+1)
		require.Equal(t, 1, overdue(b), "sweeps go on")
	})

	t.Run("ARenewalKeepsTheExtendedRunTime", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		id := b.Enqueued(domaintest.With(func(j *job.Job) { j.TimeoutMS = 50_000 }))[0].ID
		b.FetchedBy("w", 1)
		outage(b, 40_000)
		require.NoError(t, b.CheckOutage(t.Context()))
		for name, renew := range map[string]func(){
			"heartbeat": func() { b.Beat("w", id) },
			"progress": func() {
				_, err := b.Progress.Report(t.Context(), job.ProgressReport{JobID: id, WorkerID: "w", Attempt: -1})
				require.NoError(t, err)
			},
			"checkpoint": func() {
				_, err := b.Progress.SaveCheckpoint(t.Context(), job.CheckpointSave{JobID: id, WorkerID: "w", Attempt: -1, Sequence: -1, Stored: []byte(`{"state":{}}`)})
				require.NoError(t, err)
			},
		} {
			age(b, 7000)
			renew()
			require.InDelta(t, 30_000, left(b), 2000, name)
		}
		age(b, 10_000)
		b.Beat("w", id)
		require.Less(t, left(b), 20_000, "50 s from its start, and 40 s of the outage")
	})

	t.Run("LeaveOtherJobs", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		long := func(j *job.Job) { j.TimeoutMS = (3 * time.Hour).Milliseconds() }
		b.Enqueued(domaintest.With(long), domaintest.NewJob("q"), domaintest.With(func(j *job.Job) {
			j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Minute}
		}))
		f := job.Fetch{Queues: []string{"q"}, Count: 1, VisibilityMS: (2 * time.Hour).Milliseconds()}
		_, err := b.Fetch(t.Context(), f)
		require.NoError(t, err)
		f.VisibilityMS = 1000
		_, err = b.Fetch(t.Context(), f)
		require.NoError(t, err)
		age(b, 2000) // its reservation had ended before the outage
		outage(b, 40_000)
		before := b.Texts(`SELECT due_at::text FROM ojs.jobs ORDER BY id`)
		require.NoError(t, b.CheckOutage(t.Context()))
		require.Equal(t, before, b.Texts(`SELECT due_at::text FROM ojs.jobs ORDER BY id`))
		require.Equal(t, 1, overdue(b))
	})

	t.Run("ANodeThatWasCutOffAloneExtendsNothing", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		require.NoError(t, b.CheckOutage(t.Context()), "the first note ever")
		b.Enqueued(domaintest.NewJob("q"))
		b.Fetched(1, "q")
		age(b, 40_000)
		b.Exec(`SELECT setval('ojs.served_at', (date_part('epoch', now()) * 1000)::bigint - 1000)`) // of another node
		require.NoError(t, b.CheckOutage(t.Context()))
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.outages`))
		require.Equal(t, 1, overdue(b))
	})

	t.Run("NobodyNotesAnythingWhileNothingRuns", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		noted := func() bool { return b.One(`SELECT is_called::text FROM ojs.served_at`) == "true" }
		ask := func() {
			b.Exec(`SELECT ojs.outage_check(true)`)
		}
		require.NoError(t, b.CheckOutage(t.Context()))
		require.True(t, noted())
		id := b.Enqueued(domaintest.NewJob("q"), domaintest.With(func(j *job.Job) { j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour} }))[0].ID
		ask()
		require.False(t, noted(), "scheduled and waiting jobs have time")
		b.Fetched(1, "q")
		ask()
		require.True(t, noted(), "one is active")
		_, err := b.Complete(t.Context(), job.Ack{JobID: id, Attempt: -1})
		require.NoError(t, err)
		ask()
		require.False(t, noted())
		age(b, 60_000)
		require.NoError(t, b.CheckOutage(t.Context()), "a rest is no outage")
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.outages`))
		require.True(t, noted())
		outage(b, 4000)
		ask()
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.outages`), "an outage is found first")
		require.True(t, noted())
	})

	t.Run("AreForgottenAfterAMonth", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.Exec(`INSERT INTO ojs.outages SELECT now() - d * interval '1 day', now() - d * interval '1 day', 0 FROM unnest(ARRAY[29, 31]) d`)
		outage(b, 4000)
		require.NoError(t, b.CheckOutage(t.Context()))
		require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.outages`))
	})
}
