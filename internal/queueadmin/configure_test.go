package queueadmin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestCreate(t *testing.T) {
	t.Parallel()
	b := setup(t, extended)
	q, err := b.Queues.Create(t.Context(), "q", change(t, `{"max_size":100}`))
	require.NoError(t, err)
	require.Equal(t, "active", q.Status)
	require.JSONEq(t, `{"backpressure":{"max_depth":100},"max_size":100}`, string(q.Own()))
	_, err = b.Queues.Create(t.Context(), "q", queueconfig.Change{})
	requireKind(t, ojs.ErrInvalidStateTransition, err)
	b.Enqueued(domaintest.NewJob("implicit"))
	_, err = b.Queues.Create(t.Context(), "implicit", queueconfig.Change{})
	requireKind(t, ojs.ErrInvalidStateTransition, err)
	require.Equal(t, []string{`queue.created {"queue":"q"}`}, b.events("q"))
}

func TestConfigure(t *testing.T) {
	t.Parallel()

	t.Run("MergesAndHoldsOnOtherNodes", func(t *testing.T) {
		t.Parallel()
		b := setup(t, extended)
		other := b.Node()
		b.configure("q", `{"allowed_job_types":["mail.*"],"concurrency":3}`)
		b.configure("q", `{"concurrency":null}`)
		b.configure("q", `{"concurrency":null}`) // changes nothing
		require.Equal(t, `{"allowed_job_types":["mail.*"]}`, b.One(`SELECT config FROM ojs.queues WHERE name = 'q'`))
		require.Len(t, b.events("q"), 3)
		_, err := other.Enqueue(t.Context(), domaintest.NewJob("q"))
		wire := wireError(t, ojs.ErrJobTypeNotAllowed, err)
		require.Equal(t, "test.job", wire.Details["job_type"])
		_, err = other.Enqueue(t.Context(), domaintest.With(func(j *job.Job) { j.Type = "mail.send" }))
		require.NoError(t, err)
	})

	t.Run("JobsInheritTimeouts", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.configure("_default", `{"visibility_timeout":7,"default_timeout":"PT8S"}`)
		b.configure("q", `{"default_timeout":9}`)
		b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("other"), domaintest.With(func(j *job.Job) { j.TimeoutMS, j.VisibilityMS = 1, 2 }))
		require.Equal(t, []string{"9000 7000", "8000 7000", "1 2"}, b.Texts(`SELECT timeout_ms || ' ' || visibility_ms FROM ojs.jobs ORDER BY id`))
		require.Equal(t, "7000", b.One(`SELECT DISTINCT lease_ms::text FROM ojs.jobs WHERE id = $1`, b.Fetched(1, "other")[0].ID))
	})

	t.Run("DecodersInheritTheRetryPolicy", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.configure("q", `{"default_retry":{"max_attempts":9,"backoff_strategy":"constant"}}`)
		lim := job.Limits{QueueRetry: b.Configured.Retry}
		j, wire := job.DecodeJob([]byte(`{"type":"test.job","queue":"q","args":[]}`), lim)
		require.Nil(t, wire)
		require.EqualValues(t, 9, j.MaxAttempts)
		require.Contains(t, string(j.Retry), `"backoff_strategy":"constant"`)
		j, wire = job.DecodeJob([]byte(`{"type":"test.job","queue":"other","args":[]}`), lim)
		require.Nil(t, wire)
		require.EqualValues(t, 3, j.MaxAttempts)
	})

	t.Run("RefusesProducers", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.configure("q", `{"producers":["key:aaaaaaaa"]}`)
		_, err := b.Enqueue(queue.WithProducer(t.Context(), "key:bbbbbbbb"), domaintest.NewJob("q"))
		requireKind(t, ojs.ErrPermissionDenied, err)
		_, err = b.Enqueue(queue.WithProducer(t.Context(), "key:aaaaaaaa"), domaintest.NewJob("q"))
		require.NoError(t, err)
		_, err = b.Enqueue(t.Context(), domaintest.NewJob("q"))
		require.NoError(t, err, "nobody has authenticated")
	})
}

func TestStrictQueues(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, func(c *domaintest.Config) { c.Jobs.StrictQueues = true })
	_, err := b.Enqueue(t.Context(), domaintest.NewJob("q"))
	wire := wireError(t, ojs.ErrNotFound, err)
	require.Equal(t, "queue", wire.Details["resource_type"])
	require.Empty(t, b.status("q"))
	_, err = b.Queues.Create(t.Context(), "q", queueconfig.Change{})
	require.NoError(t, err)
	b.Enqueued(domaintest.NewJob("q"), domaintest.NewJob("q"))
	_, err = b.Queues.Delete(t.Context(), queueadmin.Deletion{Queue: "q", Strategy: queueadmin.Discard})
	require.NoError(t, err)
	_, err = b.Enqueue(t.Context(), domaintest.NewJob("q"))
	requireKind(t, ojs.ErrNotFound, err)
}

func TestList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range []string{"b", "a", "c"} {
		b.Enqueued(domaintest.NewJob(name))
	}
	b.configure("_default", `{"concurrency":1}`)
	list, err := b.Queues.List(t.Context(), "", 0, 2)
	require.NoError(t, err)
	require.Len(t, list.Queues, 2)
	require.True(t, list.More)
	require.EqualValues(t, 3, list.Total)
	list, err = b.Queues.List(t.Context(), "b", 0, 2)
	require.NoError(t, err)
	require.Equal(t, "c", list.Queues[0].Name)
	require.False(t, list.More)
	list, err = b.Queues.List(t.Context(), "", 9, 2)
	require.NoError(t, err)
	require.Empty(t, list.Queues)
	require.EqualValues(t, 3, list.Total)
}
