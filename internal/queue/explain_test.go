package queue_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// explanation is what tests read of an explanation.
type explanation struct {
	State    string           `json:"state"`
	Running  bool             `json:"running"`
	Summary  string           `json:"summary"`
	Reasons  []map[string]any `json:"reasons"`
	Estimate *struct {
		WaitSeconds float64 `json:"wait_seconds"`
		StartsAt    string  `json:"starts_at"`
	} `json:"estimate"`
	Deadline string `json:"deadline"`
}

func (b *bundle) explain(id [16]byte) (e explanation) {
	b.T.Helper()
	text, err := b.Explain(b.T.Context(), id)
	require.NoError(b.T, err)
	require.NoError(b.T, json.Unmarshal(text, &e), "%s", text)
	require.Equal(b.T, e.Reasons[0]["message"], e.Summary)
	return e
}

func (e explanation) codes() string {
	var codes []string
	for _, r := range e.Reasons {
		codes = append(codes, r["code"].(string))
	}
	return strings.Join(codes, " ")
}

// served lets queue q have a living worker and five minutes in which it started a job each second.
func (b *bundle) served() {
	b.T.Helper()
	b.Exec(`INSERT INTO ojs.workers (id, state, started_at, last_beat_at, queues, concurrency) VALUES ('w', 'running', now(), now(), '["other","q"]', 10)`)
	b.Exec(`INSERT INTO ojs.stats_minute (queue, minute, started, completed, duration_ms) SELECT 'q', date_trunc('minute', now()) - i * interval '1 minute', 60, 60, 6000
		FROM generate_series(0, 4) i`)
}

func TestExplainAvailable(t *testing.T) {
	t.Parallel()

	t.Run("Next", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.served()
		b.Exec(`INSERT INTO ojs.stats_minute (queue, minute, started) VALUES ('q', date_trunc('minute', now()) - interval '10 minutes', 60000), ('other', date_trunc('minute', now()), 60000)`)
		e := b.explain(b.Enqueued(domaintest.NewJob("q"))[0].ID)
		require.Equal(t, "next", e.codes())
		require.False(t, e.Running)
		require.InDelta(t, 1, e.Estimate.WaitSeconds, 0.5, "at the rate of the queue in the last five minutes")
	})

	t.Run("Ahead", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.served()
		b.Enqueued(domaintest.With(func(j *job.Job) { j.Priority = 5 }), domaintest.With(func(j *job.Job) { j.Priority = -5 }), domaintest.NewJob("other"))
		b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
		id := b.Enqueued(domaintest.NewJob("q"))[0].ID
		b.Enqueued(domaintest.NewJob("q"))
		e := b.explain(id)
		require.Equal(t, "jobs_ahead", e.codes())
		require.Equal(t, "3 jobs of queue q are fetched before it.", e.Summary)
		require.Equal(t, []any{3.0, false}, []any{e.Reasons[0]["ahead"], e.Reasons[0]["more"]})
		require.InDelta(t, 4, e.Estimate.WaitSeconds, 1)
		starts, err := time.Parse(time.RFC3339, e.Estimate.StartsAt)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(4*time.Second), starts, time.Minute)
		require.Len(t, b.Fetched(3, "q"), 3)
		require.Equal(t, "next", b.explain(id).codes())
	})

	t.Run("ManyAhead", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t, unchecked)
		b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, ready_seq, created_at, args) SELECT ojs.new_id(now()), 't', 'q', 'available', -i, now(), '[]' FROM generate_series(1, 10001) i`)
		b.Exec(`INSERT INTO ojs.queue_counts (queue, state, count) VALUES ('q', 'available', 10100)`)
		b.served()
		id := b.Enqueued(domaintest.NewJob("q"))[0].ID
		e := b.explain(id)
		require.Equal(t, "More than 10000 jobs of queue q are fetched before it.", e.Summary)
		require.Equal(t, []any{10000.0, true}, []any{e.Reasons[0]["ahead"], e.Reasons[0]["more"]})
		require.InDelta(t, 10100, e.Estimate.WaitSeconds, 3000)
		b.Exec(`DELETE FROM ojs.jobs WHERE ready_seq = -1`)
		e = b.explain(id)
		require.Equal(t, "10000 jobs of queue q are fetched before it.", e.Summary)
		require.Equal(t, []any{10000.0, false}, []any{e.Reasons[0]["ahead"], e.Reasons[0]["more"]})
	})

	t.Run("PausedWithoutWorkers", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		id := b.Enqueued(domaintest.NewJob("q"))[0].ID
		require.Equal(t, "no_workers", b.explain(id).codes())
		b.Exec(`UPDATE ojs.queues SET status = 'paused', paused_at = now() WHERE name = 'q'`)
		e := b.explain(id)
		require.Equal(t, "queue_paused no_workers", e.codes())
		require.Contains(t, e.Summary, "Queue q is paused since 20")
		require.Nil(t, e.Estimate)
		b.served()
		e = b.explain(id)
		require.Equal(t, "queue_paused", e.codes())
		require.Nil(t, e.Estimate)
		b.Exec(`INSERT INTO ojs.maintenance (started_at, ends_at, reason, started_by) VALUES (now() - interval '2 hours', now() - interval '1 hour', 'r', 'a')`)
		require.Equal(t, "queue_paused", b.explain(id).codes(), "the maintenance is over")
		b.Exec(`UPDATE ojs.maintenance SET ends_at = now() + interval '1 hour'`)
		require.Equal(t, "maintenance queue_paused", b.explain(id).codes())
		b.Exec(`DELETE FROM ojs.maintenance`)
		b.Exec(`UPDATE ojs.queues SET status = 'active', paused_at = NULL`)
		b.Exec(`UPDATE ojs.workers SET directive = 'quiet'`)
		require.Equal(t, "workers_quiet", b.explain(id).codes())
		b.Exec(`UPDATE ojs.workers SET directive = NULL, active_jobs = 10`)
		require.Equal(t, "workers_busy", b.explain(id).codes())
		b.Exec(`UPDATE ojs.workers SET stale_at = now()`)
		require.Equal(t, "next", b.explain(id).codes(), "its workers may send no heartbeats")
	})

	t.Run("QueueConcurrency", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.served()
		id := b.Enqueued(domaintest.NewJob("q"))[0].ID
		b.Exec(`INSERT INTO ojs.queue_counts (queue, state, count) VALUES ('q', 'active', 3) ON CONFLICT (queue, state) DO UPDATE SET count = 3`)
		b.ConfigureQueue("_default", `{"concurrency":3}`)
		e := b.explain(id)
		require.Equal(t, "queue_limited", e.codes())
		require.Equal(t, "Queue q runs 3 jobs at once at most, and runs 3.", e.Summary)
		require.Equal(t, []any{3.0, 3.0}, []any{e.Reasons[0]["concurrency"], e.Reasons[0]["active"]})
		require.NotNil(t, e.Estimate)
		b.ConfigureQueue("q", `{"concurrency":4}`)
		require.Equal(t, "next", b.explain(id).codes())
	})

	t.Run("SerialCron", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.served()
		jobs := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
		b.Fetched(1, "q")
		b.Exec(`UPDATE ojs.jobs SET cron = 'c', cron_serial = true`)
		b.Exec(`UPDATE ojs.jobs SET ready_seq = NULL WHERE id = $1`, jobs[1].ID)
		e := b.explain(jobs[1].ID)
		require.Equal(t, "cron_serial", e.codes())
		require.Equal(t, spec.FormatID(jobs[0].ID), e.Reasons[0]["running_job_id"])
	})

	t.Run("ItsLane", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		b.served()
		jobs := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"))
		b.Exec(`UPDATE ojs.jobs SET lane = 'acme' WHERE id = ANY($1)`, [][16]byte{jobs[1].ID, jobs[2].ID})
		b.Exec(`UPDATE ojs.jobs SET lane = 'zeta' WHERE id = $1`, jobs[3].ID)
		e := b.explain(jobs[2].ID)
		require.Equal(t, "jobs_ahead turns", e.codes())
		require.Equal(t, "1 job of its lane in queue q is fetched before it.", e.Summary)
		require.Equal(t, 1.0, e.Reasons[0]["ahead"])
		require.Equal(t, []any{"acme", 2.0, 2.0, false}, []any{e.Reasons[1]["lane"], e.Reasons[1]["position"], e.Reasons[1]["other_lanes"], e.Reasons[1]["more"]})
		require.Equal(t, "The lanes of queue q take turns: the job is number 2 of lane acme, and 2 other lanes have jobs.", e.Reasons[1]["message"])
		b.Exec(`INSERT INTO ojs.queue_counts (queue, state, count) VALUES ('a', 'available', 1), ('q', 'available', 4), ('z', 'available', 99)`)
		require.InDelta(t, 5, b.explain(jobs[2].ID).Estimate.WaitSeconds, 1, "all others may come first")
		require.Equal(t, "turns", b.explain(jobs[0].ID).codes())
		b.Exec(`UPDATE ojs.jobs SET queue = 'other' WHERE lane <> 'acme'`)
		require.Equal(t, "jobs_ahead", b.explain(jobs[2].ID).codes(), "no other lane has jobs")
		b.Exec(`UPDATE ojs.jobs SET queue = 'q', lane = 'l' || ready_seq % 3 || id WHERE id <> $1`, jobs[2].ID)
		require.Equal(t, 3.0, b.explain(jobs[2].ID).Reasons[0]["other_lanes"])
		b.Exec(`INSERT INTO ojs.jobs (id, type, queue, state, lane, ready_seq, created_at, enqueued_at, args)
			SELECT ojs.new_id(now()), 't', 'q', 'available', CASE WHEN i <= 50 THEN 'a' ELSE 'z' END || i, i, now(), now(), '[]' FROM generate_series(1, 98) i`)
		e = b.explain(jobs[2].ID)
		require.Contains(t, e.Summary, "and more than 100 other lanes have jobs.")
		require.Equal(t, []any{100.0, true}, []any{e.Reasons[0]["other_lanes"], e.Reasons[0]["more"]})
		b.Exec(`DELETE FROM ojs.jobs WHERE lane = 'a1'`)
		e = b.explain(jobs[2].ID)
		require.Contains(t, e.Summary, "and 100 other lanes have jobs.")
		require.Equal(t, []any{100.0, false}, []any{e.Reasons[0]["other_lanes"], e.Reasons[0]["more"]})
	})

	t.Run("Pools", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.served()
		jobs := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
		id := jobs[1].ID
		b.Exec(`INSERT INTO ojs.pools (name, definition, concurrency) VALUES ('open', '{"queues":["q"],"isolated":false}', 1), ('elsewhere', '{"queues":["other"],"isolated":true}', 1)`)
		require.Equal(t, "jobs_ahead", b.explain(id).codes())
		b.Exec(`INSERT INTO ojs.pools (name, definition, concurrency) VALUES ('p', '{"queues":["other","q"],"concurrency":1,"strategy":"strict","isolated":true,"starvation_prevention":{"rotation_interval":"PT30S"}}', 1)`)
		require.Equal(t, "jobs_ahead", b.explain(id).codes(), "it starts jobs")
		b.Exec(`DELETE FROM ojs.stats_minute`)
		e := b.explain(id)
		require.Equal(t, "jobs_ahead pool_no_workers", e.codes())
		require.Equal(t, []any{"p"}, e.Reasons[1]["pools"])
		require.Nil(t, e.Estimate)
		b.Exec(`UPDATE ojs.workers SET facts = '{"pool":"p"}'`)
		require.Equal(t, "jobs_ahead", b.explain(id).codes())
		running, err := b.Pools.Fetch(t.Context(), job.Fetch{Pool: "p", Count: 1})
		require.NoError(t, err)
		e = b.explain(id)
		require.Equal(t, "pool_limited", e.codes())
		require.Equal(t, []any{1.0, 1.0}, []any{e.Reasons[0]["active"], e.Reasons[0]["concurrency"]})
		b.Exec(`INSERT INTO ojs.pools (name, definition) VALUES ('unlimited', '{"queues":["q"],"isolated":true}')`)
		require.Equal(t, "next", b.explain(id).codes(), "workers of another pool may fetch it")
		b.Exec(`DELETE FROM ojs.pools WHERE name = 'unlimited'`)
		b.Exec(`INSERT INTO ojs.pool_holds (pool, id, jobs, expires_at) SELECT 'p', lpad(i::text, 32, '0')::uuid, 1, now() FROM generate_series(1, 1000) i`)
		require.Equal(t, "pool_limited", b.explain(id).codes(), "reservations do not run")
		_, err = b.Complete(t.Context(), job.Ack{JobID: running[0].ID, Attempt: -1})
		require.NoError(t, err)
		require.Equal(t, "next", b.explain(id).codes())
	})
}

func TestExplainOtherStates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.Explain(t.Context(), job.NewID())
	domaintest.RequireCode(t, err, ojs.ErrNotFound)

	scheduled := b.Enqueued(domaintest.With(func(j *job.Job) {
		j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour}
		j.ExpiresAt = job.When{Set: true, Relative: true, In: 2 * time.Hour}
	}))[0].ID
	e := b.explain(scheduled)
	require.Equal(t, "scheduled", e.codes())
	require.InDelta(t, 3600, e.Estimate.WaitSeconds, 120)
	require.NotEmpty(t, e.Deadline)
	b.Exec(`UPDATE ojs.queues SET status = 'paused', paused_at = now()`)
	e = b.explain(scheduled)
	require.Equal(t, "scheduled queue_paused", e.codes())
	require.Nil(t, e.Estimate)
	b.Exec(`UPDATE ojs.queues SET status = 'active', paused_at = NULL`)

	pending := b.Enqueued(domaintest.With(func(j *job.Job) { j.Pending = true }))[0].ID
	e = b.explain(pending)
	require.Equal(t, "pending", e.codes())
	require.Nil(t, e.Estimate, "nobody knows when it will be activated")

	large := `["` + strings.Repeat("x\\u0000", 100_000) + `"]`
	id := b.Enqueued(domaintest.With(func(j *job.Job) {
		j.Args, j.Meta, j.Extra = []byte(large), []byte(`{"\u0000":1}`), []byte(`{"\u0000":1}`)
	}))[0].ID
	b.Fetched(1, "q")
	e = b.explain(id)
	require.Equal(t, "running", e.codes())
	require.True(t, e.Running)
	_, err = b.Fail(t.Context(), nackOf(t, id, `{"code":"boom\u0000","message":"\u0000"}`))
	require.NoError(t, err)
	e = b.explain(id)
	require.Equal(t, "retry", e.codes())
	require.Contains(t, e.Summary, "Attempt 1 of 3 failed")
	require.NotNil(t, e.Estimate)
	b.Exec(`UPDATE ojs.jobs SET error = '{"attempt":1,"code":"boom","type":"boom","message":"m"}' WHERE id = $1`, id)
	require.Equal(t, "boom", b.explain(id).Reasons[0]["error_code"])
	require.NotEmpty(t, b.One(`SELECT ojs.explain($1) ->> 'summary'`, id), "in SQL")

	done := b.Enqueued(domaintest.NewJob("q"))[0].ID
	b.Fetched(1, "q")
	_, err = b.Complete(t.Context(), job.Ack{JobID: done, Attempt: job.AnyAttempt})
	require.NoError(t, err)
	e = b.explain(done)
	require.Equal(t, "ended", e.codes())
	require.Contains(t, e.Summary, "It is completed since")
}

// The first of the times at which a job ends unless it has been run is its deadline.
func TestExplainDeadline(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	deadline := func(id [16]byte) time.Time {
		t.Helper()
		at, err := time.Parse(time.RFC3339, b.explain(id).Deadline)
		require.NoError(t, err)
		return at
	}
	for _, first := range []string{"expires_at", "total_due_at", "ttl_due_at"} {
		for _, pending := range []bool{false, true} {
			id := b.Enqueued(domaintest.With(func(j *job.Job) { j.Pending = pending }))[0].ID
			require.Empty(t, b.explain(id).Deadline)
			b.Exec(`UPDATE ojs.jobs SET expires_at = '2040-01-02 00:00Z', total_due_at = '2040-01-03 00:00Z', ttl_due_at = '2040-01-04 00:00Z' WHERE id = $1`, id)
			b.Exec(`UPDATE ojs.jobs SET `+first+` = '2040-01-01 00:00Z' WHERE id = $1`, id)
			require.Equal(t, time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC), deadline(id), first)
			b.Exec(`UPDATE ojs.jobs SET total_due_at = NULL, ttl_due_at = NULL WHERE id = $1`, id)
			require.False(t, deadline(id).IsZero(), "one time is enough")
		}
	}
}

func nackOf(t *testing.T, id [16]byte, text string) job.Nack {
	t.Helper()
	n, err := job.DecodeNack([]byte(`{"job_id":"` + spec.FormatID(id) + `","error":` + text + `}`))
	require.Nil(t, err)
	return n
}
