package workflow_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
)

func TestJobTransitions(t *testing.T) {
	t.Parallel()

	t.Run("RetryIsNoFailure", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		m := member(t, "a")
		m.Job.MaxAttempts, m.Job.Retry = 3, nil
		w := b.created(define(workflow.Chain, m, member(t, "b")))
		b.fail("a")
		w = b.read(w)
		require.Equal(t, "running a:pending b:waiting", states(w))
		require.Equal(t, "retryable", w.Steps[0].JobState)
	})

	t.Run("RequeueAndLostLease", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Group, member(t, "a")))
		j := b.next("a")
		_, err := b.Fail(t.Context(), job.Nack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt, Requeue: true})
		require.NoError(t, err)
		require.Equal(t, "running a:pending", states(b.read(w)))
		b.done("a")
		require.Equal(t, "completed a:completed", states(b.read(w)))
	})

	t.Run("ExpiryFails", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		m := member(t, "a")
		m.Job.ExpiresAt = job.When{Set: true, Relative: true, In: time.Millisecond}
		w := b.created(define(workflow.Chain, m, member(t, "b")))
		b.ApplyDueUntilLeft(*w.Steps[0].JobID, ojs.StateAvailable)
		w = b.read(w)
		require.Equal(t, "failed a:failed b:cancelled", states(w))
		require.Contains(t, string(w.Steps[0].Error), `"code":"expired"`)
	})

	t.Run("TimeoutFails", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		m := member(t, "a")
		m.Job.TimeoutMS = 1
		w := b.created(define(workflow.Chain, m, member(t, "b")))
		j := b.next("a")
		b.ApplyDueUntilLeft(j.ID, ojs.StateActive)
		w = b.read(w)
		require.Equal(t, "failed a:failed b:cancelled", states(w))
		require.Contains(t, string(w.Steps[0].Error), `"code":"timeout"`)
	})

	t.Run("LostWorkerFails", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Group, member(t, "a")))
		j := b.next("a")
		_, err := b.FailLost(t.Context(), []queue.Lost{{JobID: j.ID, WorkerID: "w1", Attempt: j.Attempt, StartedAt: j.StartedAt, Reason: job.WorkerDeath, Error: job.WorkerError{Code: "worker_death", Type: "worker_death"}}})
		require.NoError(t, err)
		require.Equal(t, "failed a:failed", states(b.read(w)))
	})

	t.Run("CancelOfMemberFails", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a"), member(t, "b"), member(t, "c"), member(t, "d")), "on_failure"))
		_, err := b.Cancel(t.Context(), *w.Steps[0].JobID, queue.Cancel{By: "api"})
		require.NoError(t, err)
		require.NoError(t, b.InTx(t.Context(), func(tx *queue.Tx) error {
			_, err := tx.Bulk(t.Context(), queue.BulkChange{Op: job.BulkCancel, IDs: [][16]byte{*w.Steps[1].JobID}, States: []ojs.JobState{ojs.StateAvailable}, Cancel: queue.Cancel{By: "api"}})
			return err
		}))
		b.Exec(`SELECT ojs.cancel($1)`, *w.Steps[2].JobID)
		_, err = b.Workflows.FollowLeft(t.Context(), 0)
		require.NoError(t, err)
		w = b.read(w)
		require.Equal(t, "running a:cancelled b:cancelled c:cancelled d:pending on_failure:waiting", states(w))
		require.Equal(t, [6]int{4, 0, 3, 4, 0, 3}, counts(w))
		b.done("d")
		require.Equal(t, `[{"error":{"code":"cancelled","message":"The job was cancelled."}},{"error":{"code":"cancelled","message":"The job was cancelled."}},{"error":{"code":"cancelled","message":"The job was cancelled."}},"d"]`,
			extra(b.done("on_failure"), "parent_results"))
	})

	t.Run("BatchOfAcks", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		one, two := b.created(define(workflow.Group, member(t, "a"), member(t, "b"))), b.created(define(workflow.Chain, member(t, "c"), member(t, "d")))
		var acks []job.Ack
		for _, j := range b.Fetched(3, "q") {
			acks = append(acks, job.Ack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt})
		}
		_, errs := b.CompleteEach(t.Context(), acks)
		require.Nil(t, errs)
		require.Equal(t, "completed a:completed b:completed", states(b.read(one)))
		require.Equal(t, "running c:completed d:pending", states(b.read(two)))
	})

	t.Run("RepeatedAckChangesNothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Chain, member(t, "a"), member(t, "b"), member(t, "c")))
		j := b.done("a")
		_, err := b.Complete(t.Context(), job.Ack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt})
		require.Error(t, err)
		b.next("b")
		b.nothing()
		require.Equal(t, "running a:completed b:active c:waiting", states(b.read(w)))
	})

	t.Run("ResultWithoutTTLIsKeptOnStep", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		m, none := member(t, "a"), int64(0)
		m.Job.ResultTTL = &none
		b.created(define(workflow.Chain, m, member(t, "b")))
		b.done("a")
		require.Equal(t, `["a"]`, extra(b.next("b"), "parent_results"))
	})

	t.Run("DelayBeginsWithStep", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		second := member(t, "b")
		second.Template = []byte(`{"type":"t.b","args":[],"queue":"q","scheduled_at":"PT1H"}`)
		w := b.created(define(workflow.Chain, member(t, "a"), second))
		b.done("a")
		w = b.read(w)
		require.Equal(t, "scheduled", w.Steps[1].JobState)
		require.Equal(t, "running a:completed b:pending", states(w))
		j := b.jobOf(w.Steps[1])
		require.InDelta(t, 3600, j.ScheduledAt.Time.Sub(j.CreatedAt.Time).Seconds(), 1)
	})
}

func TestManualRetry(t *testing.T) {
	t.Parallel()

	t.Run("TakesFailureBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a"), member(t, "b")), "on_success", "on_failure"))
		j := b.fail("a")
		require.Equal(t, 1, b.read(w).Failed)
		_, err := b.Retry(t.Context(), j.ID, nil)
		require.NoError(t, err)
		w = b.read(w)
		require.Equal(t, "running a:pending b:pending on_success:waiting on_failure:waiting", states(w))
		require.Equal(t, [6]int{2, 0, 0, 2, 0, 0}, counts(w))
		b.done("b")
		b.done("a")
		b.done("on_success")
		require.Equal(t, "completed a:completed b:completed on_success:completed on_failure:cancelled", states(b.read(w)))
	})

	t.Run("ChangesNothingOnceCallbacksHaveFired", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a")), "on_success", "on_failure"))
		j := b.fail("a")
		_, err := b.Retry(t.Context(), j.ID, nil)
		require.NoError(t, err)
		b.done("on_failure")
		b.done("a")
		b.nothing()
		w = b.read(w)
		require.Equal(t, "completed a:completed on_success:cancelled on_failure:completed", states(w))
	})

	t.Run("KeepsTheFailureThatFiredCallbacks", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a"), member(t, "b")), "on_complete"))
		j := b.fail("a")
		b.done("b")
		_, err := b.Retry(t.Context(), j.ID, nil)
		require.NoError(t, err)
		require.Equal(t, "running a:failed b:completed on_complete:pending", states(b.read(w)))
		b.done("on_complete")
		require.Equal(t, [6]int{2, 1, 1, 2, 1, 1}, counts(b.read(w)))
		require.Contains(t, b.eventData(w, "workflow.failed"), `"failed_step_id":"a","failed_step_type":"t.a"`)
	})

	t.Run("KeepsTheFailureThatEndedANestedWorkflow", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Group, nested("n", define(workflow.Group, member(t, "a"))), member(t, "b")))
		j, other := b.fail("a"), b.next("b")
		_, err := b.Retry(t.Context(), j.ID, nil)
		require.NoError(t, err)
		b.done("a")
		require.Equal(t, "running n:failed[failed a:failed] b:active", states(b.read(w)))
		b.ack(other, "")
		require.Contains(t, b.eventData(w, "workflow.failed"), `"failed_step_id":"n.a","failed_step_type":"t.a"`)
	})

	t.Run("FollowsEachChangeOfAJob", func(t *testing.T) {
		t.Parallel()
		dbtest.WritesTables(t)
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a")), "on_failure"))
		j := b.next("a")
		b.Exec(`INSERT INTO ojs.workflow_pending (root_id, job_id, state, at, error)
			SELECT workflow_id, id, s.state, now(), '{"code":"handler_error","message":"m"}' FROM ojs.jobs j, unnest(ARRAY['discarded', 'available']) s (state)
			WHERE id = $1`, j.ID)
		require.NoError(t, b.Workflows.Advance(t.Context(), w.ID))
		require.Equal(t, "running a:failed on_failure:pending", states(b.read(w)), "the retry came after the callback")
	})

	t.Run("ShowsTheLastChangeOfAJobBeforeItIsFollowed", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Group, member(t, "a")))
		away := b.node(stopped)
		j := away.fail("a")
		_, err := away.Retry(t.Context(), j.ID, nil)
		require.NoError(t, err)
		away.done("a")
		require.Equal(t, "running a:completed", states(b.read(w)))
		require.NoError(t, b.Workflows.Advance(t.Context(), w.ID))
		require.Equal(t, "completed", b.read(w).Steps[0].State)
	})

	t.Run("AfterTheEndNothingFollows", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Chain, member(t, "a"), member(t, "b")))
		j := b.fail("a")
		before := b.events(w)
		_, err := b.Retry(t.Context(), j.ID, nil)
		require.NoError(t, err)
		require.Equal(t, "failed a:pending b:cancelled", states(b.read(w)))
		b.done("a")
		b.nothing()
		w = b.read(w)
		require.Equal(t, "failed a:completed b:cancelled", states(w))
		require.Equal(t, [6]int{2, 1, 0, 2, 1, 0}, counts(w))
		require.Equal(t, append(before, "job.enqueued t.a", "job.started t.a", "job.completed t.a", "workflow.step_completed a"), b.events(w))
	})
}

func TestCancelWorkflow(t *testing.T) {
	t.Parallel()
	cancel := func(b *bundle, w *workflow.Workflow, force bool) (*workflow.Workflow, workflow.CancelCounts) {
		t.Helper()
		w, counts, err := b.Workflows.Cancel(t.Context(), w.ID, force, "me")
		require.NoError(t, err)
		return w, counts
	}

	t.Run("LeavesActiveJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a"), member(t, "b"), nested("n", define(workflow.Chain, member(t, "c"), member(t, "d")))), "on_complete"))
		b.done("a")
		running := b.next("b")
		w, n := cancel(b, w, false)
		require.Equal(t, "cancelled a:completed b:active n:cancelled[cancelled c:cancelled d:cancelled] on_complete:cancelled", states(w))
		require.Equal(t, workflow.CancelCounts{StepsCancelled: 2, StepsAlreadyCompleted: 1}, n)
		require.Equal(t, [6]int{3, 1, 1, 4, 1, 1}, counts(w), "the nested workflow had begun")
		require.Equal(t, [6]int{2, 0, 1, 2, 0, 1}, counts(w.Steps[2].Workflow))
		require.Equal(t, `{"cancelled_by":"workflow:`+spec.FormatID(w.ID)+`"}`, b.One(`SELECT data::text FROM ojs.events WHERE type = 'job.cancelled'`))
		b.ack(running, "")
		b.nothing()
		require.Equal(t, "cancelled a:completed b:completed n:cancelled[cancelled c:cancelled d:cancelled] on_complete:cancelled", states(b.read(w)))
		events := b.events(w)
		require.Equal(t, []string{"job.completed t.b", "workflow.step_completed b"}, events[len(events)-2:])
		require.Equal(t, []string{"a 3", "b 2"}, b.Texts(`SELECT concat_ws(' ', data->>'step_id', data->>'steps_remaining') FROM ojs.events
			WHERE workflow_id = $1 AND type = 'workflow.step_completed' ORDER BY seq, sub`, w.ID))
		require.NotContains(t, events, "workflow.failed")
		require.NotContains(t, events, "workflow.completed")
		_, _, err := b.Workflows.Cancel(t.Context(), w.ID, false, "me")
		wire := domainError(t, err)
		require.Equal(t, "invalid_state_transition", wire.Type)
		require.Equal(t, "cancelled", wire.Details["current_state"])
	})

	t.Run("HasAnEventWithExtensionTypes", func(t *testing.T) {
		t.Parallel()
		b := setup(t, func(c *domaintest.Config) { c.Events.ExtensionTypes = true })
		w := b.created(define(workflow.Chain, member(t, "a"), nested("n", define(workflow.Group, member(t, "b")))))
		cancel(b, w, false)
		require.Equal(t, []string{"job.enqueued t.a", "workflow.cancelled", "job.cancelled t.a"}, b.events(w))
		require.Equal(t, `{"workflow_id":"`+spec.FormatID(w.ID)+`","workflow_name":"test","cancelled_by":"me"}`, b.eventData(w, "workflow.cancelled"))
	})

	t.Run("ForceCancelsActiveJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Chain, member(t, "a"), member(t, "b")))
		j := b.next("a")
		w, n := cancel(b, w, true)
		require.Equal(t, "cancelled a:cancelled b:cancelled", states(w))
		require.Equal(t, 2, n.StepsCancelled)
		stored, err := b.Complete(t.Context(), job.Ack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt})
		require.NoError(t, err)
		require.Equal(t, "cancelled", stored.State)
		b.nothing()
	})

	t.Run("CancelsFiredCallbacks", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a")), "on_complete", "on_success"))
		b.done("a")
		w, n := cancel(b, w, false)
		require.Equal(t, "cancelled a:completed on_complete:cancelled on_success:cancelled", states(w))
		require.Zero(t, n.StepsCancelled, "callbacks are no members")
		b.nothing()
	})

	t.Run("OnlyRoots", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Chain, nested("n", define(workflow.Group, member(t, "a")))))
		_, _, err := b.Workflows.Cancel(t.Context(), w.Steps[0].Workflow.ID, false, "me")
		require.Equal(t, "invalid_state_transition", domainError(t, err).Type)
		_, _, err = b.Workflows.Cancel(t.Context(), job.NewID(), false, "me")
		require.Equal(t, "not_found", domainError(t, err).Code)
		_, err = b.Workflows.Get(t.Context(), job.NewID())
		require.Equal(t, "not_found", domainError(t, err).Code)
	})

	t.Run("DoesNotWaitForLockedJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Group, member(t, "a"), member(t, "b")))
		tx := b.Lock(*w.Steps[0].JobID)
		w, n := cancel(b, w, false)
		require.Equal(t, "cancelled a:pending b:cancelled", states(w))
		require.Equal(t, 1, n.StepsCancelled)
		require.NoError(t, tx.Rollback(context.Background()))
		again, err := b.Workflows.FollowLeft(t.Context(), 0)
		require.NoError(t, err)
		require.False(t, again)
		require.Equal(t, "cancelled a:cancelled b:cancelled", states(b.read(w)))
		require.Equal(t, 0, b.Number(`SELECT count(*) FROM ojs.workflows WHERE cancelling IS NOT NULL`))
	})
}
