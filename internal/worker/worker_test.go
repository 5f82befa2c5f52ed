package worker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

func (b *bundle) reap() int {
	b.T.Helper()
	n, err := b.Workers.Reap(b.T.Context())
	require.NoError(b.T, err)
	return n
}

// nextDue returns the due times that the timer of this node reads.
func (b *bundle) nextDue() loop.Due {
	b.T.Helper()
	due, err := loop.NewTimer(b.Archetype, b.DB, api.TimerSources(&b.Domains)).NextDue(b.T.Context(), pg.Beginning)
	require.NoError(b.T, err)
	return due
}

func (b *bundle) workerState(id string) string {
	b.T.Helper()
	w, err := b.Workers.Get(b.T.Context(), worker.Ref{ID: id})
	require.NoError(b.T, err)
	return w.State
}

func (b *bundle) many(n int) {
	b.T.Helper()
	jobs := make([]*job.Job, n)
	for i := range jobs {
		jobs[i] = domaintest.NewJob("q")
	}
	b.Enqueued(jobs...)
}

func TestReap(t *testing.T) {
	t.Parallel()

	t.Run("OnlySilentWorkers", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(2)
		dead, alive := b.FetchedBy("dead", 1), b.FetchedBy("alive", 1)
		b.Beat("dead")
		b.Beat("alive")
		require.NoError(t, worker.WriteBeats(t.Context(), b.Workers))
		require.Zero(t, b.reap())
		b.Silent(61, "dead")
		b.Silent(55, "alive")
		require.Equal(t, 1, b.reap())
		require.Equal(t, "stale", b.workerState("dead"))
		require.Equal(t, "running", b.workerState("alive"))
		require.Equal(t, ojs.StateAvailable, b.State(dead[0]))
		require.Equal(t, ojs.StateActive, b.State(alive[0]))
		require.Equal(t, []string{"job.enqueued>available", "job.started:available>active", "job.failed", "job.state_changed:active>available"}, b.EventTypes(dead[0]))
		require.Zero(t, b.reap())
		lost, err := b.Get(t.Context(), dead[0])
		require.NoError(t, err)
		silence := gjson.GetBytes(lost.Error, "elapsed_seconds").Num
		require.GreaterOrEqual(t, silence, 61.0, "%s", lost.Error)
		require.Less(t, silence, 300.0)
	})

	t.Run("AnOutageIsNotSilence", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Beat("silent")
		b.Beat("alive")
		// No node has reached the database in the last 100 s. One worker had been silent for 41 s before.
		b.Silent(141, "silent")
		b.Silent(110, "alive")
		b.Exec(`SELECT setval('ojs.served_at', (date_part('epoch', now()) * 1000)::bigint - 100000)`)
		require.Zero(t, b.reap(), "nobody is declared dead before the outage was found")
		require.NoError(t, b.Jobs.CheckOutage(t.Context()))
		require.Zero(t, b.reap())
		b.Silent(20, "silent")
		b.Silent(20, "alive")
		require.Equal(t, 1, b.reap(), "61 s without the outage")
		require.Equal(t, "stale", b.workerState("silent"))
		require.Equal(t, "running", b.workerState("alive"))
		b.Beat("silent")
		b.Beat("alive")
		b.Silent(61, "silent")
		b.Exec(`UPDATE ojs.outages SET began_at = began_at - interval '62 s', ended_at = ended_at - interval '62 s'`)
		require.Equal(t, 1, b.reap(), "the outage was before its last beat")
	})

	t.Run("MoreJobsThanABatch", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(2500)
		for range 3 {
			b.FetchedBy("w", 1000)
		}
		b.Beat("w")
		b.Silent(61, "w")
		require.Equal(t, 1, b.reap())
		require.Equal(t, 2500, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available' AND attempt = 1 AND cardinality(errors) = 1`))
	})

	t.Run("AnotherNodeFinishesTheWork", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(1)
		id := b.FetchedBy("w", 1)[0]
		b.Beat("w")
		// The state after a node was killed right after it had declared the worker dead.
		b.Exec(`UPDATE ojs.workers SET state = 'stale', stale_at = now(), dead_at = now(), reap_at = now() + interval '1 minute'`)
		left, err := b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		due := b.nextDue()
		require.Equal(t, left.ReapAt.Time, due.Workers.Time)
		require.Zero(t, b.node().reap())
		require.Equal(t, ojs.StateActive, b.State(id))
		b.Exec(`UPDATE ojs.workers SET reap_at = now()`)
		require.Equal(t, 1, b.node().reap())
		require.Equal(t, ojs.StateAvailable, b.State(id))
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.workers WHERE reap_at IS NOT NULL`))
	})

	t.Run("ARevivedWorkerHasLostItsJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(2)
		old := b.FetchedBy("w", 1)[0]
		b.Beat("w")
		b.Exec(`UPDATE ojs.workers SET state = 'stale', stale_at = now(), dead_at = now(), reap_at = now()`)
		answered := make(chan worker.BeatResult)
		go func() {
			res, _ := b.Workers.Heartbeat(context.Background(), worker.Beat{WorkerID: "w", Jobs: job.IDList{IDs: [][16]byte{old}}})
			answered <- res
		}()
		require.Eventually(t, func() bool { return b.workerState("w") == "running" }, domaintest.WaitFor, time.Millisecond)
		newer := b.FetchedBy("w", 1)[0]
		require.Equal(t, 1, b.reap())
		res := <-answered
		require.Equal(t, [][16]byte{old}, res.Lost)
		require.Empty(t, res.Extended)
		require.Equal(t, ojs.StateAvailable, b.State(old))
		require.Equal(t, ojs.StateActive, b.State(newer), "reserved after the worker came back")
		require.Equal(t, [][16]byte{newer}, b.Beat("w", newer).Extended)
	})

	// A worker comes back and is declared dead again while a node ends the first reaping. The second one is still to be done.
	t.Run("DoesNotEndALaterOne", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(1)
		b.Beat("w")
		b.Silent(61, "w")
		var id [16]byte
		late := domaintest.On(t, domaintest.Before(t, b.Pool, "WorkerReapDone", func() {
			b.Beat("w")
			id = b.FetchedBy("w", 1)[0]
			// A node declares the worker dead and is killed.
			b.Exec(`UPDATE ojs.workers SET state = 'stale', stale_at = now(), dead_at = now(), reap_at = now()`)
		}))
		_, err := late.Workers.Reap(t.Context())
		require.NoError(t, err)
		require.Equal(t, ojs.StateActive, b.State(id))
		require.Equal(t, 1, b.reap())
		require.Equal(t, ojs.StateAvailable, b.State(id))
	})

	t.Run("LockedJobsAreFailedByTheNextRun", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(2)
		ids := b.FetchedBy("w", 2)
		b.Beat("w")
		b.Silent(61, "w")
		tx := b.Lock(ids[0])
		require.Equal(t, 1, b.reap())
		require.Equal(t, ojs.StateAvailable, b.State(ids[1]))
		require.Equal(t, ojs.StateActive, b.State(ids[0]))
		require.NoError(t, tx.Rollback(t.Context()))
		b.Exec(`UPDATE ojs.workers SET reap_at = now()`)
		require.Equal(t, 1, b.reap())
		require.Equal(t, ojs.StateAvailable, b.State(ids[0]))
	})

	t.Run("MoreLockedJobsThanABatch", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(1500)
		for range 2 {
			b.FetchedBy("w", 1000)
		}
		b.Beat("w")
		b.Silent(61, "w")
		tx, err := b.Pool.Begin(t.Context())
		require.NoError(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		_, err = tx.Exec(t.Context(), `SELECT FROM ojs.jobs ORDER BY due_at LIMIT 1100 FOR UPDATE`)
		require.NoError(t, err)
		require.Equal(t, 1, b.reap())
		require.Equal(t, 400, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available'`))
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.workers WHERE reap_at IS NOT NULL`), "the rest is tried again")
	})

	t.Run("FailsEachJobOnceOnManyNodes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(200)
		var workers []string
		for i := range 20 {
			w := fmt.Sprintf("w%d", i)
			require.Len(t, b.FetchedBy(w, 10), 10)
			b.Beat(w)
			workers = append(workers, w)
		}
		b.Silent(61, workers...)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _, _ = b.node().Workers.Reap(context.Background()) })
		}
		wg.Wait()
		require.Equal(t, 200, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available' AND attempt = 1 AND cardinality(errors) = 1`))
		require.Equal(t, 20, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.stopped'`))
		require.Equal(t, 200, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'job.failed'`))
	})

	// Either the worker is alive and keeps its jobs, or it is dead and they are lost.
	t.Run("DuringAHeartbeat", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := b.node()
		kept, lost := 0, 0
		for round := range 60 {
			w := fmt.Sprintf("w%d", round)
			b.many(1)
			id := b.FetchedBy(w, 1)[0]
			b.Beat(w)
			b.Silent(61, w)
			start := make(chan struct{})
			var wg sync.WaitGroup
			var res worker.BeatResult
			wg.Go(func() {
				<-start
				time.Sleep(time.Duration(round%6) * 300 * time.Microsecond)
				res, _ = b.Workers.Heartbeat(context.Background(), worker.Beat{WorkerID: w, Jobs: job.IDList{IDs: [][16]byte{id}}})
			})
			wg.Go(func() { <-start; _, _ = other.Workers.Reap(context.Background()) })
			close(start)
			wg.Wait()
			starts := b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.started' AND worker_id = $1`, w)
			switch b.State(id) {
			case ojs.StateActive:
				kept++
				require.Equal(t, [][16]byte{id}, res.Extended)
				require.Equal(t, 1, starts)
				b.Exec(`DELETE FROM ojs.jobs`)
			case ojs.StateAvailable:
				lost++
				require.Equal(t, [][16]byte{id}, res.Lost)
				require.Equal(t, 2, starts, "registered again")
				b.Exec(`DELETE FROM ojs.jobs`)
			default:
				require.Fail(t, "neither")
			}
			require.Equal(t, "running", b.workerState(w))
		}
		t.Logf("kept %d, lost %d", kept, lost)
	})

	t.Run("RemovesStaleEntriesAfterAnHour", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Beat("w")
		b.Silent(61, "w")
		require.Equal(t, 1, b.reap())
		b.Exec(`UPDATE ojs.workers SET stale_at = now() - interval '59 minutes'`)
		stale, err := b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		require.Zero(t, b.reap())
		require.Equal(t, stale.StaleAt.Time.Add(time.Hour), b.nextDue().Workers.Time)
		b.Exec(`UPDATE ojs.workers SET stale_at = now() - interval '61 minutes'`)
		require.Equal(t, 1, b.reap())
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.workers`))
	})

	t.Run("NoSecondStoppedEvent", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w", State: "terminate"})
		require.NoError(t, err)
		b.Silent(61, "w")
		require.Equal(t, 1, b.reap())
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.stopped'`))
	})
}

func TestDelete(t *testing.T) {
	t.Parallel()

	t.Run("WaitsForLockedJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Beat("w")
		b.Silent(61, "w")
		require.Equal(t, 1, b.reap())
		b.many(2)
		ids := b.FetchedBy("w", 2)
		tx := b.Lock(ids[0])
		sent := &domaintest.Statements{}
		node := domaintest.On(t, domaintest.Traced(t, b.Pool, sent))
		requeued := make(chan int, 1)
		go func() {
			n, err := node.Workers.Delete(t.Context(), worker.Ref{ID: "w"})
			if err != nil {
				t.Error(err)
			}
			requeued <- n
		}()
		require.Eventually(t, func() bool { return sent.Sent("JobFail") > 1 || len(requeued) > 0 }, domaintest.WaitFor, time.Millisecond)
		require.NoError(t, tx.Rollback(t.Context()))
		require.Equal(t, 2, domaintest.Await(t, requeued))
		for _, id := range ids {
			require.Equal(t, ojs.StateAvailable, b.State(id))
		}
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.workers`))
	})

	t.Run("NotAWorkerThatComesBackMeanwhile", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Beat("w")
		b.Silent(61, "w")
		require.Equal(t, 1, b.reap())
		late := domaintest.On(t, domaintest.Before(t, b.Pool, "WorkerDeleteStale", func() { b.Beat("w") }))
		_, err := late.Workers.Delete(t.Context(), worker.Ref{ID: "w"})
		domaintest.RequireCode(t, err, ojs.ErrInvalidStateTransition)
		require.Equal(t, "running", b.workerState("w"))
	})
}

// A list has a page of the workers that match, and counts those on all pages.
func TestList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, w := range []worker.Beat{
		{WorkerID: "1", Tenant: "a", Queues: []string{"x", "y"}},
		{WorkerID: "2", Tenant: "a", State: "quiet", Queues: []string{"y"}},
		{WorkerID: "3", Queues: []string{"y", "z"}},
		{WorkerID: "4", State: "quiet"},
	} {
		_, err := b.Workers.Heartbeat(t.Context(), w)
		require.NoError(t, err)
	}
	for _, test := range []struct {
		filter worker.Filter
		ids    string // the latest to call first
		of     int64
	}{
		{worker.Filter{Limit: 4}, "4 3 2 1", 4},
		{worker.Filter{Limit: 2}, "4 3 …", 4},
		{worker.Filter{Limit: 2, Offset: 2}, "2 1", 4},
		{worker.Filter{Limit: 1, States: []string{"running"}}, "3 …", 2},
		{worker.Filter{Limit: 1, States: []string{"quiet"}}, "4 …", 2},
		{worker.Filter{Limit: 4, States: []string{"quiet", "running"}}, "4 3 2 1", 4},
		{worker.Filter{Limit: 4, States: []string{"stale"}}, "", 0},
		{worker.Filter{Limit: 2, Queues: []string{"x", "z"}}, "3 1", 2},
		{worker.Filter{Limit: 2, Queues: []string{"y"}}, "3 2 …", 3},
		{worker.Filter{Limit: 4, Tenant: "a"}, "2 1", 2},
		{worker.Filter{Limit: 4, Tenant: "a", States: []string{"running"}, Queues: []string{"y"}}, "1", 1},
	} {
		page, err := b.Workers.List(t.Context(), test.filter)
		require.NoError(t, err)
		var ids []string
		for _, w := range page.Workers {
			ids = append(ids, w.ID)
		}
		if page.More {
			ids = append(ids, "…")
		}
		require.Equal(t, test.ids, strings.Join(ids, " "), "%+v", test.filter)
		require.Equal(t, test.of, page.Matches, "%+v", test.filter)
	}

	// Pages are cut between workers that called at one time, too, alive or dead.
	b.Silent(0, "1", "2", "3", "4")
	b.Exec(`UPDATE ojs.workers SET last_seen_at = now()`)
	for range 2 {
		var ids []string
		f := worker.Filter{Limit: 1}
		for more := true; more; {
			page, err := b.Workers.List(t.Context(), f)
			require.NoError(t, err)
			w := page.Workers[0]
			ids, more = append(ids, w.ID), page.More
			f.After = &worker.Key{Dead: w.StaleAt.Valid, Seen: w.LastSeenAt.Time, ID: w.ID}
		}
		require.Equal(t, []string{"4", "3", "2", "1"}, ids)
		b.Silent(61, "1", "2", "3", "4")
		b.reap()
	}
}

// TestTenants: a worker is reached by its own tenant and by operators, also if its id passes to another tenant during a call.
func TestTenants(t *testing.T) {
	t.Parallel()
	beat := func(b *bundle, tenant string) error {
		_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w", Tenant: tenant})
		return err
	}
	owner := func(b *bundle) string {
		return b.One(`SELECT COALESCE(string_agg(tenant || ' ' || state || COALESCE(' ' || directive, ''), ','), '') FROM ojs.workers`)
	}
	mine, others := worker.Ref{Tenant: "mine", ID: "w"}, worker.Ref{Tenant: "others", ID: "w"}

	t.Run("OthersDoNotReachIt", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, beat(b, "mine"))
		_, err := b.Workers.Get(t.Context(), others)
		domaintest.RequireCode(t, err, ojs.ErrNotFound)
		domaintest.RequireCode(t, b.Workers.Direct(t.Context(), others, "quiet"), ojs.ErrNotFound)
		domaintest.RequireCode(t, b.Workers.Deregister(t.Context(), worker.Leave{Ref: others, Reason: "shutdown"}), ojs.ErrNotFound)
		domaintest.RequireCode(t, beat(b, "others"), ojs.ErrNotOwner)
		require.NoError(t, beat(b, ""))
		require.Equal(t, "mine running", owner(b))
		require.NoError(t, b.Workers.Direct(t.Context(), mine, "quiet"))
		require.Equal(t, "mine running quiet", owner(b))

		b.Silent(61, "w")
		require.Equal(t, 1, b.reap())
		_, err = b.Workers.Delete(t.Context(), others)
		domaintest.RequireCode(t, err, ojs.ErrNotFound)
		require.Equal(t, "mine stale", owner(b))
		require.NoError(t, beat(b, "others"), "nobody has it any more")
		require.Equal(t, "others running", owner(b))
		require.NoError(t, b.Workers.Deregister(t.Context(), worker.Leave{Ref: others, Reason: "shutdown"}))
	})

	t.Run("NorItsJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var jobs []*job.Job
		for _, lane := range []string{"mine", "mine/key", "others", "others/mine", ""} {
			jobs = append(jobs, domaintest.With(func(j *job.Job) { j.Lane = lane }))
		}
		b.Enqueued(jobs...)
		ids := b.FetchedBy("w", 5)
		reserved := func(of worker.Ref) (lanes []string) {
			found, err := b.Workers.Reserved(t.Context(), of, ids)
			require.NoError(t, err)
			for _, r := range found {
				lanes = append(lanes, b.One(`SELECT lane FROM ojs.jobs WHERE id = $1`, r.ID))
			}
			return lanes
		}
		require.ElementsMatch(t, []string{"mine", "mine/key"}, reserved(mine))
		require.ElementsMatch(t, []string{"others", "others/mine"}, reserved(others))
		require.Len(t, reserved(worker.Ref{ID: "w"}), 5)
		require.Empty(t, reserved(worker.Ref{ID: "another"}))
		_, err := b.Fail(t.Context(), job.Nack{JobID: jobs[0].ID, Attempt: -1, Error: domaintest.DecodeError(t, `{"code":"x","message":"no","retryable":false}`)})
		require.NoError(t, err)
		require.Equal(t, []string{"mine/key"}, reserved(mine), "a discarded job names its last worker")
	})

	t.Run("NotAnIDThatSomebodyElseTakesMeanwhile", func(t *testing.T) {
		t.Parallel()
		for statement, call := range map[string]func(late *bundle) error{
			"WorkerHeartbeat":       func(late *bundle) error { return beat(late, "mine") },
			"WorkerUpdateDirective": func(late *bundle) error { return late.Workers.Direct(t.Context(), mine, "quiet") },
			"WorkerDeregister": func(late *bundle) error {
				return late.Workers.Deregister(t.Context(), worker.Leave{Ref: mine, Reason: "shutdown"})
			},
		} {
			b := setup(t)
			if statement != "WorkerHeartbeat" {
				require.NoError(t, beat(b, "mine"))
			}
			late := &bundle{domaintest.On(t, domaintest.Before(t, b.Pool, statement, func() {
				b.Exec(`DELETE FROM ojs.workers`)
				require.NoError(t, beat(b, "others"))
			}))}
			err := call(late)
			if statement == "WorkerHeartbeat" {
				domaintest.RequireCode(t, err, ojs.ErrNotOwner)
			} else {
				domaintest.RequireCode(t, err, ojs.ErrNotFound)
			}
			require.Equal(t, "others running", owner(b), statement)
		}
	})

	t.Run("ARefusedBeatExtendsNoJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(1)
		id := b.FetchedBy("w", 1)[0]
		require.NoError(t, beat(b, "others"))
		until := b.One(`SELECT lease_until::text FROM ojs.jobs`)
		_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w", Tenant: "mine", VisibilityMS: 3_600_000, Jobs: job.IDList{IDs: [][16]byte{id}}})
		domaintest.RequireCode(t, err, ojs.ErrNotOwner)
		require.Equal(t, until, b.One(`SELECT lease_until::text FROM ojs.jobs`))
	})
}

func TestBeats(t *testing.T) {
	t.Parallel()

	t.Run("AreWrittenInBulkForKnownWorkers", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.many(1)
		b.Beat("w")
		b.Silent(50, "w")
		for len(b.Cache.Beaten()) > 0 {
			<-b.Cache.Beaten()
		}
		id := b.FetchedBy("w", 1)[0]
		domaintest.Await(t, b.Cache.Beaten())
		b.FetchedBy("unknown", 1)
		require.Empty(t, b.Cache.Beaten(), "one signal for all beats that are to be written")
		before, err := b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		require.NoError(t, worker.WriteBeats(t.Context(), b.Workers))
		after, err := b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		require.Greater(t, after.LastSeenAt.Time.Sub(before.LastSeenAt.Time), 45*time.Second)
		require.Equal(t, before.LastBeatAt, after.LastBeatAt)
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.workers`))

		b.Silent(50, "w")
		before, err = b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		_, err = b.Complete(t.Context(), job.Ack{JobID: id, Attempt: -1}) // the id stored at fetch
		require.NoError(t, err)
		require.Len(t, b.Cache.Beaten(), 1)
		require.NoError(t, worker.WriteBeats(t.Context(), b.Workers))
		after, err = b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		require.Greater(t, after.LastSeenAt.Time.Sub(before.LastSeenAt.Time), 45*time.Second)
	})

	// Another node has taken a later call.
	t.Run("DoNotMoveTheLatestCallBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Beat("w")
		b.Cache.TakeBeats()
		b.Cache.ReturnBeats(map[string]time.Time{"w": time.Now().Add(-time.Minute)})
		before, err := b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		require.NoError(t, worker.WriteBeats(t.Context(), b.Workers))
		after, err := b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		require.Equal(t, before.LastSeenAt, after.LastSeenAt)
	})

	t.Run("DoNotReviveADeadWorker", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Beat("w")
		b.Silent(61, "w")
		require.Equal(t, 1, b.reap())
		b.FetchedBy("w", 1)
		require.NoError(t, worker.WriteBeats(t.Context(), b.Workers))
		require.Equal(t, "stale", b.workerState("w"))
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.workers WHERE stale_at IS NOT NULL AND last_seen_at < now() - interval '60 seconds'`))
	})
}

// Each node keeps the quiet workers in memory.
func TestQuietWorkers(t *testing.T) {
	t.Parallel()

	t.Run("OfOtherNodesAreRead", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := b.node()
		b.many(1)
		b.Beat("w")
		require.NoError(t, b.Workers.Direct(t.Context(), worker.Ref{ID: "w"}, "quiet"))
		require.NoError(t, worker.ReadQuiet(t.Context(), other.Workers))
		require.Empty(t, b.FetchedBy("w", 1))
		require.Empty(t, other.FetchedBy("w", 1))
		require.NoError(t, other.Workers.Direct(t.Context(), worker.Ref{ID: "w"}, "running"))
		require.Len(t, other.FetchedBy("w", 1), 1)
		require.NoError(t, worker.ReadQuiet(t.Context(), b.Workers))
		b.many(1)
		require.Len(t, b.FetchedBy("w", 1), 1)
	})

	t.Run("AreReadWhenTheyChange", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		conn, err := pgx.Connect(t.Context(), b.Pool.Config().ConnString())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		_, err = conn.Exec(t.Context(), "LISTEN ojs_workers")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), domaintest.WaitFor)
		defer cancel()
		told := func() (times int) { // since the last call
			b.Exec(`SELECT pg_notify('ojs_workers', 'so far')`)
			for ; ; times++ {
				n, err := conn.WaitForNotification(ctx)
				require.NoError(t, err)
				if n.Payload == "so far" {
					return times
				}
			}
		}
		for i, step := range []struct {
			reports, directive string
			told               int
		}{
			{reports: "running"},
			{reports: "quiet", told: 1},
			{reports: "quiet"},
			{reports: ""},
			{reports: "running", told: 1},
			{directive: "quiet", told: 1},
			{reports: "running"},
			{reports: "quiet"},
			{directive: "running", told: 1},
			{reports: "quiet"},
			{reports: "running"},
			{reports: "running"},
			{reports: "terminate", told: 1},
			{reports: ""},
		} {
			if step.directive != "" {
				require.NoError(t, b.Workers.Direct(t.Context(), worker.Ref{ID: "w"}, step.directive))
			} else {
				_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w", State: step.reports})
				require.NoError(t, err)
			}
			require.Equal(t, step.told, told(), "step %d", i)
		}
	})

	t.Run("GetNoJobsOfASharedFetch", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Beat("w")
		for range 20 {
			b.many(20)
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					w := "w"
					if i%2 == 0 {
						w = "v"
					}
					_, _ = b.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: w})
				})
			}
			require.NoError(t, b.Workers.Direct(t.Context(), worker.Ref{ID: "w"}, "quiet"))
			after := b.Number(`SELECT count(*) FROM ojs.jobs WHERE worker_id = 'w'`)
			wg.Wait()
			// A fetch that was running when the directive was stored may still end.
			require.LessOrEqual(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE worker_id = 'w'`)-after, 10)
			require.Empty(t, b.FetchedBy("w", 1))
			require.NoError(t, b.Workers.Direct(t.Context(), worker.Ref{ID: "w"}, "running"))
		}
	})

	t.Run("FirstBeatsOnTwoNodes", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		one, two := b.node(), b.node()
		for i := range 30 {
			var wg sync.WaitGroup
			for _, n := range []*bundle{one, two} {
				wg.Go(func() {
					_, err := n.Workers.Heartbeat(context.Background(), worker.Beat{WorkerID: fmt.Sprint("w", i)})
					require.NoError(t, err)
				})
			}
			wg.Wait()
		}
		require.Equal(t, 30, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.started'`))
		require.Equal(t, 60, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'worker.heartbeat'`))
	})
}

// A locked row delays the calls for its own job only.
func TestLockedJobs(t *testing.T) {
	t.Parallel()
	domaintest.TestLocked(t, map[string]domaintest.LockedCall{
		"Heartbeat": {Do: func(ctx context.Context, b *domaintest.Bundle, id [16]byte) error {
			res, err := b.Workers.Heartbeat(ctx, worker.Beat{WorkerID: "w1", Jobs: job.IDList{IDs: [][16]byte{id}}})
			if err == nil {
				require.Equal(b.T, [][16]byte{id}, res.Extended)
				require.Empty(b.T, res.Lost)
			}
			return err
		}, Then: ojs.StateActive},
	})
}

func TestLockedJobsAreExtendedLater(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.many(2)
	ids := b.FetchedBy("w1", 2)
	sent := &domaintest.Statements{}
	node := domaintest.On(t, domaintest.Traced(t, b.Pool, sent))
	tx := b.Lock(ids[0])
	answer := make(chan worker.BeatResult)
	go func() {
		res, err := node.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w1", Jobs: job.IDList{IDs: ids}})
		if err != nil {
			t.Error(err)
		}
		answer <- res
	}()
	require.Eventually(t, func() bool { return sent.Sent("JobHeartbeat") > 1 || len(answer) > 0 }, domaintest.WaitFor, time.Millisecond)
	require.NoError(t, tx.Rollback(t.Context()))
	res := <-answer
	require.ElementsMatch(t, ids, res.Extended)
	require.Empty(t, res.Lost)
	require.Empty(t, res.Cancelled)
}

// A job that was handed back and fetched again is in another run with the same attempt.
func TestLateForTheRun(t *testing.T) {
	t.Parallel()

	t.Run("ReapDoesNotFailTheSecondRun", func(t *testing.T) {
		t.Parallel()
		b, late, id := domaintest.Rerun(t, "JobListForFail", "w1")
		b.Beat("w1")
		b.Silent(61, "w1")
		_, err := late.Workers.Reap(t.Context())
		require.NoError(t, err)
		require.Equal(t, ojs.StateActive, b.State(id))
	})

	t.Run("HeartbeatOfTheFirstWorkerExtendsNothing", func(t *testing.T) {
		t.Parallel()
		_, late, id := domaintest.Rerun(t, "JobHeartbeat", "w2")
		res := late.Beat("w1", id)
		require.Empty(t, res.Extended)
		require.Equal(t, [][16]byte{id}, res.Lost)
	})
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()

	t.Run("AnswersWithItsTime", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		res := b.Beat("w")
		stored, err := b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		require.Equal(t, stored.LastBeatAt.Time, res.Time)
	})

	// What the worker reports and what an operator wants, with a job that asks for quiet.
	t.Run("ATestDirectiveComesAfterTerminateAndTheOperator", func(t *testing.T) {
		t.Parallel()
		b := setup(t, func(c *domaintest.Config) { c.Tests.Directives = true })
		for i, test := range []struct{ reports, directive, want string }{
			{"running", "", "quiet"},
			{"quiet", "running", "running"},
			{"running", "terminate", "terminate"},
			{"terminate", "", "terminate"},
		} {
			w := fmt.Sprint("w", i)
			b.Enqueued(domaintest.With(func(j *job.Job) { j.Meta = []byte(`{"test_directive":"quiet"}`) }))
			ids := b.FetchedBy(w, 1)
			beat := worker.Beat{WorkerID: w, State: test.reports}
			_, err := b.Workers.Heartbeat(t.Context(), beat)
			require.NoError(t, err)
			if test.directive != "" {
				require.NoError(t, b.Workers.Direct(t.Context(), worker.Ref{ID: w}, test.directive))
			}
			beat.Jobs = job.IDList{IDs: ids}
			res, err := b.Workers.Heartbeat(t.Context(), beat)
			require.NoError(t, err)
			require.Equal(t, test.want, res.State, "%+v", test)
			require.Equal(t, ids, res.Extended)
		}
	})

	t.Run("NeverShortensAReservation", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.Enqueued(domaintest.NewJob("q"))
		jobs, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w1", VisibilityMS: 10_000})
		require.NoError(t, err)
		beat := func(ms int64) (seconds int) { // from the first heartbeat on
			_, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w1", VisibilityMS: ms, Jobs: job.IDList{IDs: [][16]byte{jobs[0].ID}}})
			require.NoError(t, err)
			return b.Number(`SELECT CASE WHEN due_at = lease_until THEN date_part('epoch', lease_until - (SELECT min(time) FROM ojs.events WHERE type = 'job.heartbeat')) ELSE -1 END::integer FROM ojs.jobs`)
		}
		require.Equal(t, 20, beat(20_000))
		require.Equal(t, 20, beat(0))
		require.Equal(t, 20, beat(5_000))
	})

	t.Run("ExtendsWhatTheWorkerHasReserved", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		jobs := b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"), domaintest.NewJob("q"))
		b.Fetched(2, "q")
		_, err := b.Cancel(t.Context(), jobs[1].ID, queue.Cancel{By: "x"})
		require.NoError(t, err)
		unknown := job.NewID()
		res, err := b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w1", Jobs: job.IDList{IDs: [][16]byte{jobs[0].ID, jobs[1].ID, jobs[2].ID, unknown}}})
		require.NoError(t, err)
		require.Equal(t, "running", res.State)
		require.Equal(t, [][16]byte{jobs[0].ID}, res.Extended)
		require.Equal(t, [][16]byte{jobs[1].ID}, res.Cancelled)
		require.Equal(t, [][16]byte{jobs[2].ID, unknown}, res.Lost)
		res, err = b.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w2", State: "quiet", Jobs: job.IDList{IDs: [][16]byte{jobs[0].ID}}})
		require.NoError(t, err)
		require.Equal(t, "quiet", res.State)
		require.Empty(t, res.Extended)
	})
}
