package workflow_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"
	"github.com/ojsd/ojsd/ojs"
)

// uniqueMember is a member of type t.same, of which there may be one.
func uniqueMember(t testing.TB, id, onConflict string) workflow.Member {
	t.Helper()
	m := workflow.Member{ID: id, Template: fmt.Appendf(nil, `{"type":"t.same","args":[],"queue":"q","unique":{"keys":["type"],"on_conflict":"%s"}}`, onConflict)}
	j, wire := job.DecodeItem(m.Template, job.Limits{})
	require.Nil(t, wire)
	m.Job = j
	return m
}

func TestUnique(t *testing.T) {
	t.Parallel()
	holder := func(b *bundle) *job.Record {
		j := uniqueMember(t, "", "reject").Job
		j.Queue = "other"
		return b.Enqueued(j)[0]
	}

	t.Run("RejectFailsCreation", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		stored := holder(b)
		_, err := b.Workflows.Create(t.Context(), define(workflow.Group, member(t, "a"), uniqueMember(t, "b", "reject")))
		wire := domainError(t, err)
		require.Equal(t, "duplicate", wire.Code)
		require.Equal(t, "b", wire.Details["step_id"])
		require.Equal(t, spec.FormatID(stored.ID), wire.Details["existing_job_id"])
		require.Equal(t, stored.UniqueKey.String, wire.Details["unique_key"])
		b.nothing()
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.workflows`))

		_, err = b.Workflows.Create(t.Context(), define(workflow.Group, uniqueMember(t, "b", "reject"), uniqueMember(t, "c", "reject")))
		require.Equal(t, "duplicate", domainError(t, err).Code, "members count, too")

		many := numbered(t, workflow.Group, 1001) // more than are inserted at once
		many.Members[0] = uniqueMember(t, "b", "reject")
		_, err = b.Workflows.Create(t.Context(), many)
		require.Equal(t, "b", domainError(t, err).Details["step_id"])
		require.Zero(t, b.Number(`SELECT count(*) FROM ojs.workflows`))

		rolledBack := uniqueMember(t, "b", "reject")
		rolledBack.Job.Type = "t.other"
		other := uniqueMember(t, "c", "reject")
		other.Job.Type = "t.other"
		_, err = b.Workflows.Create(t.Context(), define(workflow.Group, rolledBack, other))
		require.NotContains(t, domainError(t, err).Details, "existing_job_id", "it was not stored")
	})

	t.Run("RejectFailsLaterStep", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Chain, member(t, "a"), uniqueMember(t, "b", "reject"), member(t, "c")))
		holder(b)
		b.done("a")
		b.nothing()
		w = b.read(w)
		require.Equal(t, "failed a:completed b:failed c:cancelled", states(w))
		require.Contains(t, string(w.Steps[1].Error), `"code":"duplicate"`)
		require.Empty(t, w.Steps[1].JobState)
		require.Contains(t, b.eventData(w, "workflow.failed"), `"failed_step_id":"b","failed_step_type":"t.same","error":{"code":"duplicate"`)
	})

	t.Run("IgnoreCompletesStep", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		existing := holder(b)
		w := b.created(define(workflow.Chain, uniqueMember(t, "a", "ignore"), uniqueMember(t, "b", "ignore"), member(t, "c"), uniqueMember(t, "d", "ignore")))
		require.Equal(t, "running a:completed b:completed c:pending d:waiting", states(w))
		require.True(t, w.Steps[0].Deduplicated)
		require.Equal(t, existing.ID, *w.Steps[1].JobID)
		j := b.next("c")
		require.Equal(t, `[null,null]`, extra(j, "parent_results"))
		b.ack(j, "")
		w = b.read(w)
		require.Equal(t, "completed a:completed b:completed c:completed d:completed", states(w))
		require.Equal(t, [6]int{4, 4, 0, 4, 4, 0}, counts(w))
		require.Equal(t, ojs.StateAvailable, b.State(existing.ID))
	})

	t.Run("ReplaceFailsMember", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		w := b.created(define(workflow.Chain, uniqueMember(t, "a", "reject"), member(t, "b")))
		b.Enqueued(uniqueMember(t, "", "replace").Job)
		require.Equal(t, "failed a:cancelled b:cancelled", states(b.read(w)))

		one, two := uniqueMember(t, "a", "replace"), uniqueMember(t, "b", "replace")
		w = b.created(define(workflow.Group, one, two))
		require.Equal(t, "running a:cancelled b:pending", states(b.read(w)), "a member replaces another one")
		b.next("same")
		b.nothing()
	})
}
