package queue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// A job is stored the same whatever the others of its flush are: alike, plain, or such that need the full statement.
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
	same := func(got, want string) {
		t.Helper()
		require.NotEmpty(t, want)
		require.JSONEq(t, want, got)
	}
	row := `SELECT (to_jsonb(j) - '{id,ready_seq,created_at,enqueued_at}'::text[])::text FROM ojs.jobs j WHERE id = $1 AND enqueued_at = created_at AND ready_seq > 0`
	event := `SELECT (to_jsonb(e) - '{seq,time,job_id,ready_seq}'::text[])::text FROM ojs.events e JOIN ojs.jobs j ON j.id = e.job_id
		WHERE job_id = $1 AND e.time = j.created_at AND e.ready_seq = j.ready_seq`

	plain := b.Enqueued(newJob())[0]
	large := newJob()
	large.Args = []byte(`["` + strings.Repeat("x", 10_000) + `"]`)
	alike := b.Enqueued(newJob(), newJob())[1]
	for name, change := range map[string]func(*job.Job){
		"Type": func(j *job.Job) { j.Type = "other" }, "Queue": func(j *job.Job) { j.Queue = "q2" }, "Priority": func(j *job.Job) { j.Priority++ },
		"MaxAttempts": func(j *job.Job) { j.MaxAttempts++ }, "Timeout": func(j *job.Job) { j.TimeoutMS++ }, "Visibility": func(j *job.Job) { j.VisibilityMS++ },
		"TraceID": func(j *job.Job) { j.TraceID = "" }, "Retry": func(j *job.Job) { j.Retry = nil }, "Meta": func(j *job.Job) { j.Meta = nil },
		"Extra": func(j *job.Job) { j.Extra = nil }, "Size": func(j *job.Job) { j.Args = large.Args },
	} {
		other := newJob()
		change(other)
		alone := newJob()
		change(alone)
		both, single := b.Enqueued(newJob(), other), b.Enqueued(alone)[0]
		same(b.One(row, both[0].ID), b.One(row, plain.ID))
		same(b.One(row, both[1].ID), b.One(row, single.ID))
		same(b.One(event, both[1].ID), b.One(event, single.ID))
		require.NotEqual(t, b.One(row, plain.ID), b.One(row, single.ID), name)
	}
	scheduled := domaintest.With(func(j *job.Job) { j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Hour} })
	full := b.Enqueued(newJob(), scheduled)[0]

	same(b.One(row, alike.ID), b.One(row, plain.ID))
	same(b.One(row, plain.ID), b.One(row, full.ID))
	same(b.One(event, plain.ID), b.One(event, full.ID))

	full.ID, full.ReadySeq, full.CreatedAt, full.EnqueuedAt = plain.ID, plain.ReadySeq, plain.CreatedAt, plain.EnqueuedAt
	require.Equal(t, full, plain)
	require.EqualValues(t, ojs.StateAvailable, plain.State)
	b.RequireEmitted()
}
