package queue_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// status sets the status of a queue as an administrator does. Nodes that are given hear of it.
func (b *bundle) status(name, status string, nodes ...*bundle) {
	b.T.Helper()
	b.Exec(`INSERT INTO ojs.queues (name, status, paused_at) VALUES ($1, $2, CASE $2 WHEN 'paused' THEN now() END) ON CONFLICT (name) DO UPDATE SET status = EXCLUDED.status, paused_at = EXCLUDED.paused_at`, name, status)
	hear(b.T, name, nodes...)
}

func hear(t testing.TB, name string, nodes ...*bundle) {
	t.Helper()
	for _, n := range nodes {
		require.NoError(t, n.Configured.Refresh(context.Background()))
		n.QueueChanged(name)
	}
}

// large is a job with arguments of so many bytes.
func large(queue, lane string, priority int16, bytes int) *job.Job {
	j := domaintest.NewJob(queue)
	j.Lane, j.Priority, j.Args = lane, priority, []byte(`["`+strings.Repeat("x", bytes)+`"]`)
	return j
}

func queuesOf(jobs []*job.Record) (names []string) {
	for _, j := range jobs {
		names = append(names, j.Queue)
	}
	return names
}

// Fair queues together with what else decides on a claim.
func TestLanesTogetherWith(t *testing.T) {
	t.Parallel()

	t.Run("ALimitOfTheQueue", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.configure("q", `{"concurrency":6}`)
		b.inLanes(10, "a", "b", "c")
		b.Enqueued(domaintest.NewJob("other"))
		first := b.Fetched(100, "q", "other")
		require.Equal(t, []string{"q", "q", "q", "q", "q", "q", "other"}, queuesOf(first))
		for _, lane := range []string{"a", "b", "c"} {
			require.Equal(t, 2, strings.Count(strings.Join(lanesOf(first), ""), lane), "what the limit permits is divided")
		}
		require.Empty(t, b.Fetched(100, "q", "other"))
		var next []string
		for _, j := range first[:6] { // room for one at a time
			_, err := b.Complete(t.Context(), job.Ack{JobID: j.ID, Attempt: -1})
			require.NoError(t, err)
			next = append(next, lanesOf(b.Fetched(100, "q"))...)
		}
		require.Len(t, next, 6)
		for _, lane := range []string{"a", "b", "c"} {
			require.Equal(t, 2, strings.Count(strings.Join(next, ""), lane), next)
		}
		b.configure("q", `{}`)
		require.Len(t, b.Fetched(100, "q"), 18)
	})

	t.Run("APausedQueueInTheList", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		unknowing := b.node()
		require.Empty(t, unknowing.Fetched(1, "a", "b", "c"))
		for _, queue := range []string{"a", "b", "c"} {
			for _, lane := range []string{"x", "y"} {
				b.Enqueued(large(queue, lane, 0, 1), large(queue, lane, 1, 1))
			}
		}
		b.status("b", "paused", b)
		require.Equal(t, []string{"a", "a", "a"}, queuesOf(b.Fetched(3, "a", "b", "c")))
		unknowing.NotifyAll()
		require.Equal(t, []string{"a", "c", "c"}, queuesOf(unknowing.Fetched(3, "a", "b", "c")))
		require.Equal(t, []string{"c", "c"}, queuesOf(b.Fetched(100, "b", "c")))
		require.Empty(t, unknowing.Fetched(100, "b", "c"))
		b.status("b", "active", b, unknowing)
		require.Len(t, unknowing.Fetched(3, "b", "c"), 3)
		require.Len(t, b.Fetched(3, "b", "c"), 1)
	})

	t.Run("AnEnqueueThatClaims", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.seen()
		b.inLanes(3, "x", "y") // in q, which is paused
		b.status("q", "paused", b)
		answer := make(chan []*job.Record, 1)
		go func() {
			jobs, _ := b.Fetch(context.Background(), job.Fetch{Queues: []string{"q", "z"}, Count: 1, Wait: domaintest.WaitFor})
			answer <- jobs
		}()
		require.Eventually(t, func() bool { return b.Waiting() == 1 }, domaintest.WaitFor, time.Millisecond)
		id := b.Enqueued(large("z", "k", 0, 1))[0].ID
		require.Equal(t, id, domaintest.Await(t, answer)[0].ID)
		require.Equal(t, 1, b.transactions(id), "enqueued and claimed at once, although lanes of the paused queue have jobs")
	})

	t.Run("TheBytesOfAClaim", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		fetch := func(queues ...string) int {
			jobs, err := b.Fetch(t.Context(), job.Fetch{Queues: queues, Count: 10, MaxBytes: 150_000})
			require.NoError(t, err)
			return len(jobs)
		}
		b.configure("limited", `{"concurrency":1}`)
		b.Enqueued(large("limited", "", 0, 100_000), large("limited", "", 0, 100_000))
		for range 3 {
			b.Enqueued(large("plain", "", 0, 100_000))
		}
		require.Equal(t, 2, fetch("limited", "plain"), "the parts of a claim share its bytes")
		require.Equal(t, 2, fetch("limited", "plain"))

		b.Enqueued(large("q", "x", 1, 60_000), large("q", "y", 1, 60_000)) // they are one statement, and those of the lower priority another one
		for range 4 {
			b.Enqueued(large("q", "", 0, 60_000))
		}
		require.Equal(t, 3, fetch("q"), "so do its statements")
		require.Equal(t, 3, fetch("q"))
		require.Zero(t, fetch("q"))
	})

	t.Run("AChangeOfTheConfiguration", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		of := func(customer string) *job.Job {
			j := domaintest.NewJob("q")
			j.Meta = fmt.Appendf(nil, `{"customer":%q}`, customer)
			return j
		}
		for range 4 {
			b.Enqueued(of("x"))
		}
		b.configure("q", `{"fairness":{"key":"meta.customer"}}`)
		b.Enqueued(of("x"), of("x"), of("y"), of("y"))
		node := b.node()
		require.ElementsMatch(t, []string{"", "/x", "/y"}, lanesOf(node.Fetched(3, "q")))
		b.configure("q", `{}`)
		b.Enqueued(of("y"))
		hear(t, "q", node)
		require.ElementsMatch(t, []string{"", "/x", "/y"}, lanesOf(node.Fetched(3, "q")), "old lanes are served in turn")
		require.Equal(t, []string{"", "", ""}, lanesOf(b.Fetched(10, "q")))
	})
}

// Jobs that become available again wait in the lane that they were enqueued in, and a node that has fetched before finds them there.
func TestLanesAreKept(t *testing.T) {
	t.Parallel()
	for name, comeBack := range map[string]func(b *bundle, j *job.Job){
		"Promoted": func(b *bundle, j *job.Job) {
			j.ScheduledAt = job.When{Set: true, Relative: true, In: time.Millisecond}
			b.ApplyDueUntilLeft(b.Enqueued(j)[0].ID, ojs.StateScheduled)
		},
		"Activated": func(b *bundle, j *job.Job) {
			j.Pending = true
			_, err := b.Activate(b.T.Context(), b.Enqueued(j)[0].ID)
			require.NoError(b.T, err)
		},
		"Retried": func(b *bundle, j *job.Job) {
			j.Retry = []byte(`{"max_attempts":3,"initial_interval":"PT0.001S","jitter":false}`)
			id := b.Enqueued(j)[0].ID
			b.Fetched(1, "q")
			_, err := b.Fail(b.T.Context(), job.Nack{JobID: id, Attempt: -1, Error: domaintest.DecodeError(b.T, `{"message":"m"}`)})
			require.NoError(b.T, err)
			b.ApplyDueUntilLeft(id, ojs.StateRetryable)
		},
		"RetriedByHand": func(b *bundle, j *job.Job) {
			j.MaxAttempts = 1
			id := b.Enqueued(j)[0].ID
			b.Fetched(1, "q")
			_, err := b.Fail(b.T.Context(), job.Nack{JobID: id, Attempt: -1, Error: domaintest.DecodeError(b.T, `{"message":"m"}`)})
			require.NoError(b.T, err)
			_, err = b.Retry(b.T.Context(), id, nil)
			require.NoError(b.T, err)
		},
		"HandedBack": func(b *bundle, j *job.Job) {
			b.Enqueued(j)
			b.HandBack(b.T.Context(), b.Fetched(1, "q"))
		},
		"LostByItsWorker": func(b *bundle, j *job.Job) {
			id := b.Enqueued(j)[0].ID
			_, err := b.Fetch(b.T.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, VisibilityMS: 1})
			require.NoError(b.T, err)
			b.ApplyDueUntilLeft(id, ojs.StateActive)
		},
		"Prioritized": func(b *bundle, j *job.Job) {
			_, _, err := b.SetPriority(b.T.Context(), b.Enqueued(j)[0].ID, 7)
			require.NoError(b.T, err)
		},
		"AdmittedByItsLimit": func(b *bundle, j *job.Job) {
			for range 2 {
				other, wire := job.DecodeItem([]byte(`{"type":"test.job","args":[1],"meta":{"customer":"acme"},"options":{"queue":"q","rate_limit":{"key":"k","concurrency":1}}}`), job.Limits{})
				require.Nil(b.T, wire)
				b.Enqueued(other)
			}
			first := b.Fetched(10, "q")
			require.Len(b.T, first, 1)
			_, err := b.Complete(b.T.Context(), job.Ack{JobID: first[0].ID, Attempt: -1})
			require.NoError(b.T, err)
			require.NoError(b.T, b.Limits.Admit(b.T.Context(), []string{"k"}))
		},
		"Sent in SQL": func(b *bundle, j *job.Job) {
			b.Exec(`SELECT ojs.enqueue('test.job', '[1]', 'q', '{"meta":{"customer":"acme"}}')`)
			b.NotifyAll()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.configure("q", `{"fairness":{"key":"meta.customer"}}`)
			require.Empty(t, b.Fetched(1, "q"))
			j := domaintest.NewJob("q")
			j.Meta = []byte(`{"customer":"acme"}`)
			comeBack(b, j)
			require.Equal(t, []string{"/acme"}, lanesOf(b.Fetched(10, "q")))
			require.Empty(t, b.Texts(`SELECT type FROM ojs.events WHERE job_id IS NOT NULL AND lane <> '/acme'`))
		})
	}
}
