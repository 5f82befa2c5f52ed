package workflow_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/workflow"
)

// TestLarge creates, runs and cancels the largest workflow that is accepted. No statement has more than a portion of its rows.
func TestLarge(t *testing.T) {
	t.Parallel()
	sent := &domaintest.Statements{}
	b := setup(t, func(c *domaintest.Config) { c.Database.StatementTimeout = time.Minute })
	b = &bundle{domaintest.On(t, domaintest.Traced(t, b.Pool, sent), func(c *domaintest.Config) { c.Database.StatementTimeout = time.Minute })}
	const members = 10_000
	def := withCallbacks(t, numbered(t, workflow.Batch, members), "on_success")
	clock := time.Now()
	lap := func(name string) {
		t.Logf("%s: %s, %d statements", name, time.Since(clock).Round(time.Millisecond), sent.Total())
		clock = time.Now()
	}
	w := b.created(def)
	lap("create")
	require.Equal(t, 10, sent.Sent("JobInsert"))
	require.Equal(t, 11, sent.Sent("WorkflowStepInsert"))

	done := 0
	for range 2 { // a fifth is enough
		var acks []job.Ack
		for _, j := range b.Fetched(1000, "q") {
			acks = append(acks, job.Ack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt})
		}
		_, errs := b.CompleteEach(t.Context(), acks)
		require.Nil(t, errs)
		done += len(acks)
	}
	lap("run 2000")
	require.LessOrEqual(t, sent.Sent("WorkflowPendingApply"), 4, "acks that come together share a transaction")
	require.Equal(t, [6]int{members, done, 0, members, done, 0}, counts(b.read(w)))
	lap("read")

	w, n, err := b.Workflows.Cancel(t.Context(), w.ID, false, "me")
	require.NoError(t, err)
	lap("cancel")
	require.Equal(t, members-done, n.StepsCancelled)
	require.Equal(t, done, n.StepsAlreadyCompleted)
	require.Equal(t, [6]int{members, done, members - done, members, done, members - done}, counts(w))
	require.LessOrEqual(t, sent.Sent("JobCancel"), 10)
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.workflow_pending`))

	deleted, err := b.Workflows.Prune(t.Context(), 0)
	require.NoError(t, err)
	lap("prune")
	require.EqualValues(t, 1, deleted)
	require.Zero(t, b.Number(`SELECT (SELECT count(*) FROM ojs.workflows) + (SELECT count(*) FROM ojs.workflow_steps) + (SELECT count(*) FROM ojs.workflow_starts)`))
}

// TestCancelOfManyWaitingSteps cancels steps that have no job yet, a whole number of portions of them and not.
func TestCancelOfManyWaitingSteps(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1001, 2001, 2400} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			w, n, err := b.Workflows.Cancel(t.Context(), b.created(numbered(t, workflow.Chain, members)).ID, false, "me")
			require.NoError(t, err)
			require.Equal(t, members, n.StepsCancelled)
			require.Equal(t, "cancelled", w.State)
			require.Equal(t, members, b.Number(`SELECT count(*) FROM ojs.workflow_steps WHERE state = 'cancelled' AND template IS NULL AND ended_at IS NOT NULL`))
			b.nothing()
		})
	}
}

// TestLargeLater begins 3 000 members after the end of the step before them.
func TestLargeLater(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const members = 3000
	w := b.created(define(workflow.Chain, member(t, "a"), nested("n", numbered(t, workflow.Group, members)), member(t, "b")))
	b.done("a")
	jobs := b.Fetched(1000, "q")
	require.Len(t, jobs, 1000)
	for i, j := range jobs[:3] {
		require.Equal(t, fmt.Sprint(i), extra(j, "workflow_step"), "in the order of the definition")
	}
	require.Equal(t, members, b.Number(`SELECT count(*) FROM ojs.workflow_steps WHERE flow = 1 AND state = 'pending' AND template IS NULL`))
	require.Len(t, b.read(w).Steps[1].Workflow.Steps, members)
}

func TestResults(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a"), member(t, "b"), member(t, "c"), member(t, "d")), "on_complete"))
	const mega = 1 << 20
	for i, kind := range []string{"a", "b", "c", "d"} {
		b.ack(b.next(kind), `"`+strings.Repeat("x", []int{mega, 64 << 10, mega * 2, mega * 3 / 2}[i]-2)+`"`)
	}
	j := b.next("on_complete")
	got := extra(j, "parent_results")
	require.Less(t, len(got), 4<<20)
	require.Contains(t, got, `{"omitted":true,"bytes":2097152,"job_id":"`, "the largest is left out")
	require.Equal(t, 1, strings.Count(got, "omitted"))
	require.Equal(t, 1, strings.Count(extra(j, "parent_results_map"), "omitted"))
	w = b.read(w)
	require.Contains(t, string(w.Steps[2].Result), "omitted")
	require.Len(t, w.Steps[3].Result, mega*3/2)
}

func TestResultsThatJustFit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for more, omitted := range []int{0, 1} {
		w := b.created(withCallbacks(t, define(workflow.Batch, member(t, "a"), member(t, "b")), "on_complete"))
		for _, kind := range []string{"a", "b"} {
			b.ack(b.next(kind), `"`+strings.Repeat("x", 2<<20-2+more)+`"`)
			more = 0
		}
		j := b.next("on_complete")
		w = b.read(w)
		require.Len(t, w.Steps[1].Result, 2<<20)
		for _, got := range []string{extra(j, "parent_results"), extra(j, "parent_results_map"), string(w.Steps[0].Result) + string(w.Steps[1].Result)} {
			require.Equal(t, omitted, strings.Count(got, "omitted"))
			require.GreaterOrEqual(t, len(got), (2-omitted)<<21)
		}
	}
}

// The value of a nested workflow counts in its longer form, which has the ids of the steps.
func TestResultsOfANestedWorkflowThatJustFit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const forms = len(`{"a":,"b":}`)
	for more, omitted := range []int{0, 1} {
		b.created(define(workflow.Chain, nested("n", define(workflow.Group, member(t, "a"), member(t, "b"))), member(t, "z")))
		b.ack(b.next("a"), `"`+strings.Repeat("x", 2<<20-2)+`"`)
		b.ack(b.next("b"), `"`+strings.Repeat("x", 2<<20-2-forms+more)+`"`)
		j := b.done("z")
		for _, name := range []string{"parent_results", "parent_results_map"} {
			got := extra(j, name)
			require.Equal(t, omitted, strings.Count(got, "omitted"), name)
			require.GreaterOrEqual(t, len(got), (1-omitted)*(4<<20-forms), name)
		}
	}
}

// TestLargeFanOut has a step on which a thousand others depend, and one that depends on all of them.
func TestLargeFanOut(t *testing.T) {
	t.Parallel()
	sent := &domaintest.Statements{}
	b := setup(t)
	b = &bundle{domaintest.On(t, domaintest.Traced(t, b.Pool, sent))}
	const width = 1200
	members := []workflow.Member{member(t, "a")}
	var all []int
	for i := range width {
		m := member(t, "m", 0)
		m.ID = fmt.Sprint(i)
		members, all = append(members, m), append(all, i+1)
	}
	w := b.created(define(workflow.DAG, append(members, member(t, "z", all...))...))
	before := sent.Total()
	b.done("a")
	require.Less(t, sent.Total()-before, 40, "steps that begin together share statements")
	for fetched := 0; fetched < width; {
		var acks []job.Ack
		for _, j := range b.Fetched(1000, "q") {
			require.Equal(t, `["a"]`, extra(j, "parent_results"))
			acks = append(acks, job.Ack{JobID: j.ID, WorkerID: "w1", Attempt: job.AnyAttempt, Result: []byte(`7`)})
		}
		_, errs := b.CompleteEach(t.Context(), acks)
		require.Nil(t, errs)
		fetched += len(acks)
	}
	require.Equal(t, "["+strings.TrimSuffix(strings.Repeat("7,", width), ",")+"]", extra(b.done("z"), "parent_results"))
	require.Equal(t, "completed", b.read(w).State)
}
