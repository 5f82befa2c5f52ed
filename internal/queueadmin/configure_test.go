package queueadmin_test

import (
	"errors"
	"testing"
	"time"

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
	requireKind(t, ojs.ErrQueueExists, err)
	b.Enqueued(domaintest.NewJob("implicit"))
	_, err = b.Queues.Create(t.Context(), "implicit", queueconfig.Change{})
	requireKind(t, ojs.ErrQueueExists, err)
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

// The configuration shows how long the server keeps the jobs of a queue that says nothing of it.
func TestConfigShowsTheRetentionOfTheServer(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *domaintest.Config) { c.Retention.Completed, c.Retention.Discarded = 36*time.Hour, 48*time.Hour })
	for own, want := range map[string]string{
		`{}`:                               `{"retention":{"completed":"PT36H","discarded":"P2D","cancelled":"PT36H"}}`,
		`{"retention":{"completed":"1h"}}`: `{"retention":{"completed":"1h","discarded":"P2D","cancelled":"PT36H"}}`,
		`{"retention":{"cancelled":"2h"}}`: `{"retention":{"completed":"PT36H","discarded":"P2D","cancelled":"2h"}}`,
	} {
		shown, err := b.Queues.Config(t.Context(), []byte(own))
		require.NoError(t, err)
		require.JSONEq(t, want, string(shown), own)
	}
	off := b.Node(func(c *domaintest.Config) { c.Retention.Completed, c.Retention.Discarded = 0, 0 })
	shown, err := off.Queues.Config(t.Context(), nil)
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(shown))
}

// Strict queues are refused whatever queues inherit.
func TestStrictQueuesWithADefault(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *domaintest.Config) { c.Jobs.StrictQueues = true })
	b.configure("_default", `{"default_timeout":60}`)
	_, err := b.Enqueue(t.Context(), domaintest.NewJob("q"))
	requireKind(t, ojs.ErrNotFound, err)
	_, err = b.Queues.Create(t.Context(), "q", queueconfig.Change{})
	require.NoError(t, err)
	_, errs := b.EnqueueEach(t.Context(), []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("other"), domaintest.NewJob("q")})
	require.Equal(t, []bool{false, true, false}, []bool{errs[0] != nil, errs[1] != nil, errs[2] != nil})
	_, at, err := b.EnqueueAll(t.Context(), []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("other")})
	requireKind(t, ojs.ErrNotFound, err)
	require.Equal(t, 1, at)
	require.Equal(t, []string{"q 60000", "q 60000"}, b.Texts(`SELECT queue || ' ' || timeout_ms FROM ojs.jobs`))
}

// A queue takes no job that it refuses because what decides cannot be read: the request fails, whichever statements do.
func TestRefusalsHoldIfStatementsFail(t *testing.T) {
	t.Parallel()
	calls := map[string]func(b *domaintest.Bundle) error{
		"One": func(b *domaintest.Bundle) error {
			_, err := b.Enqueue(b.T.Context(), domaintest.NewJob("q"))
			return err
		},
		"Each": func(b *domaintest.Bundle) error {
			_, errs := b.EnqueueEach(b.T.Context(), []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("q")})
			return errors.Join(errs...)
		},
		"All": func(b *domaintest.Bundle) error {
			_, _, err := b.EnqueueAll(b.T.Context(), []*job.Job{domaintest.NewJob("q"), domaintest.NewJob("q")})
			return err
		},
	}
	for name, prepare := range map[string]func(b *bundle){
		"UnknownQueue": nil,
		"JobType":      func(b *bundle) { b.configure("q", `{"allowed_job_types":["other"]}`) },
		"Draining": func(b *bundle) {
			_, err := b.Queues.Create(b.T.Context(), "q", queueconfig.Change{})
			require.NoError(b.T, err)
			_, err = b.Queues.Drain(b.T.Context(), "q", "")
			require.NoError(b.T, err)
		},
		"Full": func(b *bundle) {
			b.configure("q", `{"max_size":1}`)
			b.Exec(`SELECT ojs.enqueue('stored', '[]', 'q')`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			if prepare != nil {
				prepare(b)
			}
			statements := &domaintest.Failing{}
			pool := domaintest.Traced(t, b.Pool, statements)
			for name, enqueue := range calls {
				for n := 1; n <= 2; n++ { // a read that has failed is tried again by whoever needs it next
					for i, failed := 0, "none yet"; failed != ""; i++ {
						node := domaintest.On(t, pool, func(c *domaintest.Config) { c.Jobs.StrictQueues, c.Unchecked = prepare == nil, true })
						statements.FailSome(i, n)
						err := enqueue(node)
						failed = statements.Heal()
						require.Error(t, err, "%s, %d failed, %s last", name, n, failed)
						require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE type <> 'stored'`), "%s, %d failed, %s last", name, n, failed)
					}
				}
			}
		})
	}
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
