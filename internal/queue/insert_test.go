package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// A job is stored the same whether or not the others of its flush need the full statement.
func TestPlainInsertStoresTheSame(t *testing.T) {
	t.Parallel()
	b := setup(t)
	newJob := func() *job.Job {
		j := domaintest.NewJob("q")
		j.Priority, j.MaxAttempts, j.TimeoutMS, j.VisibilityMS = 3, 7, 1500, 2500
		j.TraceID = "0af7651916cd43dd8448eb211c80319c"
		j.Retry, j.Meta, j.Extra = []byte(`{"max_attempts":7}`), []byte(`{"tenant":"a"}`), []byte(`{"tags":["x"]}`)
		return j
	}
	plain := b.Enqueued(newJob())[0]
	scheduled := domaintest.With(func(j *job.Job) { j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour} })
	full := b.Enqueued(newJob(), scheduled)[0]

	same := func(got, want string) {
		t.Helper()
		require.NotEmpty(t, want)
		require.JSONEq(t, want, got)
	}
	row := `SELECT (to_jsonb(j) - '{id,ready_seq,created_at,enqueued_at}'::text[])::text FROM ojs.jobs j WHERE id = $1 AND enqueued_at = created_at AND ready_seq > 0`
	same(b.One(row, plain.ID), b.One(row, full.ID))
	event := `SELECT (to_jsonb(e) - '{seq,time,job_id,ready_seq}'::text[])::text FROM ojs.events e JOIN ojs.jobs j ON j.id = e.job_id
		WHERE job_id = $1 AND e.time = j.created_at AND e.ready_seq = j.ready_seq`
	same(b.One(event, plain.ID), b.One(event, full.ID))

	full.ID, full.ReadySeq, full.CreatedAt, full.EnqueuedAt = plain.ID, plain.ReadySeq, plain.CreatedAt, plain.EnqueuedAt
	require.Equal(t, full, plain)
	require.EqualValues(t, ojs.StateAvailable, plain.State)
	b.RequireEmitted()
}
