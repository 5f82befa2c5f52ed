package workflow_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func numbered(t testing.TB, kind workflow.Type, n int) *workflow.Definition {
	t.Helper()
	var members []workflow.Member
	for i := range n {
		m := member(t, "m")
		m.ID = fmt.Sprint(i)
		members = append(members, m)
	}
	return define(kind, members...)
}

// TestConcurrentAcks has two nodes end the members of a workflow at the same time.
func TestConcurrentAcks(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := one.node()
	const members = 60
	w := one.created(withCallbacks(t, numbered(t, workflow.Batch, members), "on_complete", "on_success"))
	jobs := one.Fetched(members, "q")
	require.Len(t, jobs, members)
	var acks sync.WaitGroup
	for i, j := range jobs {
		b := []*bundle{one, two}[i%2]
		acks.Go(func() {
			_, err := b.Complete(context.Background(), job.Ack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt})
			if err != nil {
				t.Error(err)
			}
		})
	}
	acks.Wait()
	callbacks := two.Fetched(10, "q")
	require.Len(t, callbacks, 2, "each fires once, before the last ack is answered")
	for _, j := range callbacks {
		two.ack(j, "")
	}
	w = one.read(w)
	require.Equal(t, "completed", w.State)
	require.Equal(t, [6]int{members, members, 0, members, members, 0}, counts(w))
	require.Equal(t, members, one.Number(`SELECT count(DISTINCT data->>'steps_remaining') FROM ojs.events WHERE type = 'workflow.step_completed'`))
	require.Equal(t, 1, one.Number(`SELECT count(*) FROM ojs.events WHERE type = 'workflow.completed'`))
	require.Equal(t, 1, one.Number(`SELECT count(*) FROM ojs.events WHERE type = 'workflow.started'`))
	require.Zero(t, one.Number(`SELECT count(*) FROM ojs.workflow_pending`))
}

// TestChainOverNodes has two nodes fetch and complete the steps of many chains at the same time.
func TestChainOverNodes(t *testing.T) {
	t.Parallel()
	one := setup(t)
	two := one.node()
	const chains, steps = 10, 4
	for range chains {
		one.created(numbered(t, workflow.Chain, steps))
	}
	var workers sync.WaitGroup
	for i := range 4 {
		b := []*bundle{one, two}[i%2]
		workers.Go(func() {
			for empty := 0; empty < 5; {
				jobs, err := b.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 3, WorkerID: "w1", Wait: 50 * time.Millisecond})
				if err != nil {
					t.Error(err)
				}
				if empty++; len(jobs) > 0 {
					empty = 0
				}
				for _, j := range jobs {
					if _, err := b.Complete(context.Background(), job.Ack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	workers.Wait()
	require.Equal(t, chains, one.Number(`SELECT count(*) FROM ojs.workflows WHERE state = 'completed' AND completed = total`))
	require.Equal(t, chains*steps, one.Number(`SELECT count(*) FROM ojs.jobs_done`))
	require.Equal(t, chains*steps, one.Number(`SELECT count(*) FROM ojs.events WHERE type = 'workflow.step_completed'`))
}

// stopped makes a node stop between the commit of an ack and what follows from it.
func stopped(c *domaintest.Config) {
	c.Hooks = func(h *queue.Hooks) { h.WorkflowJobs = func(context.Context, [][16]byte) {} }
}

func TestFollower(t *testing.T) {
	t.Parallel()

	t.Run("OneTreeThatCannotFollowDoesNotStopTheOthers", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		dead := b.node(stopped)
		broken := b.created(define(workflow.Chain, member(t, "a"), member(t, "b")))
		b.created(define(workflow.Chain, member(t, "c"), member(t, "d")))
		dead.done("a")
		dead.done("c")
		b.Exec(`UPDATE ojs.workflows SET ancestors = '{7}' WHERE id = $1`, broken.ID) // there is no workflow 7
		again, err := b.Workflows.FollowLeft(t.Context(), 0)
		require.ErrorContains(t, err, spec.FormatID(broken.ID))
		require.True(t, again)
		b.done("d")
		b.Exec(`UPDATE ojs.workflows SET ancestors = '{}' WHERE id = $1`, broken.ID)
		_, err = b.Workflows.FollowLeft(t.Context(), 0)
		require.NoError(t, err)
		b.done("b")
		require.Equal(t, 2, b.Number(`SELECT count(*) FROM ojs.workflows WHERE state = 'completed'`))
	})

	t.Run("AFetchThatDropsAJobKeepsNoOtherFetchWaiting", func(t *testing.T) {
		t.Parallel()
		var b *bundle
		var followed [][16]byte
		b = setup(t, func(c *domaintest.Config) {
			c.Hooks = func(h *queue.Hooks) {
				h.WorkflowJobs = func(ctx context.Context, roots [][16]byte) {
					followed = append(followed, roots...)
					fetched := make(chan error, 1)
					go func() {
						_, err := b.Fetch(ctx, job.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w2"})
						fetched <- err
					}()
					select {
					case err := <-fetched:
						if err != nil {
							t.Error(err)
						}
					case <-time.After(domaintest.WaitFor):
						t.Error("a fetch waits for the workflow")
					}
				}
			}
		})
		b.Exec(`INSERT INTO ojs.queues (name, config) VALUES ('q', '{"rate_limit":{"concurrency":0,"on_limit":"drop"}}')`)
		require.NoError(t, b.Configured.Refresh(t.Context()))
		w := b.created(define(workflow.Group, member(t, "a")))
		b.nothing()
		require.Equal(t, [][16]byte{w.ID}, followed)
		_, err := b.Workflows.FollowLeft(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, "failed", b.read(w).State)
	})

	t.Run("ATreeThatCannotBeRepairedDoesNotStopTheCheck", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		broken := b.created(define(workflow.Chain, member(t, "a"), member(t, "b")))
		w := b.created(define(workflow.Chain, member(t, "c"), member(t, "d")))
		b.Exec(`DELETE FROM ojs.jobs`)
		b.Exec(`UPDATE ojs.workflows SET ancestors = '{7}' WHERE id = $1`, broken.ID) // there is no workflow 7
		c, err := b.Workflows.Check(t.Context(), [16]byte{})
		require.ErrorContains(t, err, spec.FormatID(broken.ID))
		require.Equal(t, 2, c.Stuck)
		require.Equal(t, "failed", b.read(w).State)
	})

	t.Run("RepairsStepsWithWhatTheirJobsHave", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Group, member(t, "a"), member(t, "b")))
		b.Exec(`UPDATE ojs.jobs SET attempt = 2, max_attempts = 3`)
		b.Exec(`CREATE RULE lost AS ON INSERT TO ojs.workflow_pending DO INSTEAD NOTHING`)
		b.done("a")
		b.fail("b")
		b.Exec(`DROP RULE lost ON ojs.workflow_pending`)
		_, err := b.Workflows.Check(t.Context(), [16]byte{})
		require.NoError(t, err)
		read := b.read(w)
		require.Equal(t, "failed a:completed b:failed", states(read))
		for _, s := range read.Steps {
			j := b.jobOf(s)
			require.Equal(t, 3, s.Attempt)
			require.WithinDuration(t, j.StartedAt.Time, *s.StartedAt, 0)
			require.WithinDuration(t, j.FinishedAt.Time, *s.CompletedAt, 0)
		}
		require.Equal(t, `"a"`, string(read.Steps[0].Result))
		require.Contains(t, string(read.Steps[1].Error), `"code":"broken"`)
	})

	t.Run("FollowsForStoppedNode", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		dead := b.node(stopped)
		w := b.created(define(workflow.Chain, member(t, "a"), member(t, "b"), member(t, "c")))
		dead.done("a")
		b.nothing()
		require.Equal(t, "running a:completed b:waiting c:waiting", states(b.read(w)))

		follower := workflow.NewFollower(b.Archetype, b.Workflows)
		require.NoError(t, follower.Start(t.Context()))
		t.Cleanup(follower.Stop)
		require.Eventually(t, func() bool { return len(b.read(w).Steps) > 1 && b.read(w).Steps[1].JobID != nil }, domaintest.WaitFor, 5*time.Millisecond)
		dead.done("b")
		follower.Notify() // the relay has published the event of the ack
		require.Eventually(t, func() bool { return b.read(w).Steps[2].JobID != nil }, 30*time.Second, 5*time.Millisecond)
		b.done("c")
		require.Equal(t, "completed", b.read(w).State)
		require.Equal(t, 3, b.Number(`SELECT count(*) FROM ojs.events WHERE type = 'workflow.step_completed'`))
	})

	t.Run("ReadsNothingWhileNothingMoves", func(t *testing.T) {
		t.Parallel()
		sent := &domaintest.Statements{}
		b := setup(t)
		idle := &bundle{domaintest.On(t, domaintest.Traced(t, b.Pool, sent))}
		follower := workflow.NewFollower(b.Archetype, idle.Workflows)
		require.NoError(t, follower.Start(t.Context()))
		t.Cleanup(follower.Stop)
		require.Eventually(t, func() bool { return sent.Total() == 1 }, domaintest.WaitFor, time.Millisecond)
		time.Sleep(1100 * time.Millisecond)
		require.Equal(t, 1, sent.Total())
	})

	t.Run("StartStop", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		startstoptest.Stress(t.Context(), t, workflow.NewFollower(b.Archetype, b.Workflows))
	})

	t.Run("CheckFindsNothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.created(define(workflow.Chain, member(t, "a"), nested("n", define(workflow.Group, member(t, "b")))))
		b.done("a")
		c, err := b.Workflows.Check(t.Context(), [16]byte{})
		require.NoError(t, err)
		require.Equal(t, 1, c.Running)
		require.Zero(t, c.Stuck)
		require.False(t, c.More)
	})

	t.Run("CheckGoesOnBehindTheLastOne", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var ids [][16]byte
		for range 3 {
			ids = append(ids, b.created(define(workflow.Group, member(t, "a"))).ID)
		}
		slices.SortFunc(ids, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
		for running, after := range [][16]byte{ids[2], ids[1], ids[0], {}} {
			c, err := b.Workflows.Check(t.Context(), after)
			require.NoError(t, err)
			require.Equal(t, running, c.Running)
			if running > 0 {
				require.Equal(t, ids[2], c.Last)
			}
		}
	})

	t.Run("AFailureWithoutAnErrorIsOneOfTheWorkflow", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		w := b.created(define(workflow.Group, member(t, "a")))
		b.Exec(`INSERT INTO ojs.workflow_pending (root_id, job_id, state, at) VALUES ($1, $2, 'discarded', now())`, w.ID, *w.Steps[0].JobID)
		require.NoError(t, b.Workflows.Advance(t.Context(), w.ID))
		require.Equal(t, "failed a:failed", states(b.read(w)))
		require.Contains(t, b.eventData(w, "workflow.failed"), `"failed_step_id":"","failed_step_type":"","error":{"code":"workflow_failed"`)
	})

	t.Run("CheckTellsOneThatWillMoveFromOneThatWillNot", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		moves, stuck := b.created(define(workflow.Group, member(t, "a"))), b.created(define(workflow.Group, member(t, "b")))
		b.node(stopped).done("a")
		b.Exec(`DELETE FROM ojs.jobs`)
		c, err := b.Workflows.Check(t.Context(), [16]byte{})
		require.NoError(t, err)
		require.Equal(t, []int{2, 1}, []int{c.Running, c.Stuck})
		require.Equal(t, "failed", b.read(stuck).State)
		require.NoError(t, b.Workflows.Advance(t.Context(), moves.ID))
		require.Equal(t, "completed", b.read(moves).State)
	})

	t.Run("ChecksWhileAWorkflowRuns", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		follower := workflow.NewFollower(b.Archetype, b.Workflows)
		require.False(t, follower.CheckNow(t.Context()))
		b.created(define(workflow.Chain, member(t, "a")))
		require.True(t, follower.CheckNow(t.Context()))
		b.done("a")
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		require.True(t, follower.CheckNow(cancelled), "it does not know")
		require.False(t, follower.CheckNow(t.Context()))
	})

	// The oldest change of each root counts, however many roots there are.
	t.Run("FollowsWhatIsOldEnough", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		dead := b.node(stopped)
		var roots []*workflow.Workflow
		for range 4 {
			roots = append(roots, b.created(numbered(t, workflow.Group, 2)))
			dead.done("m")
			dead.done("m")
		}
		b.Exec(`UPDATE ojs.workflow_pending SET at = at - interval '1 hour' WHERE root_id <> $1 AND id IN (SELECT min(id) FROM ojs.workflow_pending GROUP BY root_id)`, roots[3].ID)
		again, err := b.Workflows.FollowLeft(t.Context(), 30*time.Minute)
		require.NoError(t, err)
		require.True(t, again, "a younger one is left")
		for i, w := range roots {
			require.Equal(t, map[bool]int{true: 0, false: 2}[i < 3], b.Number(`SELECT count(*) FROM ojs.workflow_pending WHERE root_id = $1`, w.ID), i)
		}
	})

	t.Run("CheckReadsWhatBecameOfJobs", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		for _, lose := range []string{`DELETE FROM ojs.jobs_done`, `DELETE FROM ojs.jobs WHERE id = $1`, `UPDATE ojs.jobs SET state = 'discarded', error = NULL WHERE id = $1`} {
			w := b.created(define(workflow.Group, member(t, "a")))
			if lose == `DELETE FROM ojs.jobs_done` {
				b.node(stopped).done("a")
				b.Exec(`DELETE FROM ojs.workflow_pending`)
			} else {
				b.Exec(lose, *w.Steps[0].JobID)
			}
			c, err := b.Workflows.Check(t.Context(), [16]byte{})
			require.NoError(t, err)
			require.Equal(t, 1, c.Stuck)
			require.NotEqual(t, "running", b.read(w).State, lose)
		}
	})
}

// TestLockedRoot holds the lock of a root, as a long transaction about a large tree does.
func TestLockedRoot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	locked, free := b.created(define(workflow.Chain, member(t, "a"), member(t, "b"))), b.created(define(workflow.Chain, member(t, "c"), member(t, "d")))
	first, second := b.next("a"), b.next("c")
	b.Enqueued(domaintest.NewJob("plain"))
	plain := b.Fetched(1, "plain")[0]

	tx, err := b.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM ojs.workflows WHERE id = $1 FOR UPDATE`, locked.ID)
	require.NoError(t, err)
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_, err := b.Complete(context.Background(), job.Ack{JobID: first.ID, WorkerID: "w1", Attempt: job.AnyAttempt})
		if err != nil {
			t.Error(err)
		}
	}()
	require.Eventually(t, func() bool { return b.State(first.ID) == ojs.StateCompleted }, domaintest.WaitFor, time.Millisecond)
	b.ack(second, "")
	b.ack(plain, "")
	b.done("d")
	require.Equal(t, "completed", b.read(free).State)
	select {
	case <-waiting:
		require.Fail(t, "the ack was answered before its workflow had followed")
	default:
	}
	require.NoError(t, tx.Rollback(t.Context()))
	<-waiting
	b.done("b")
	require.Equal(t, "completed", b.read(locked).State)
}
