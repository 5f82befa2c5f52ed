package queue_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// refusals counts what OnFull is told, by queue.
type refusals struct {
	mu      sync.Mutex
	byQueue map[string]int
}

func (r *refusals) config(c *domaintest.Config) {
	c.Observer.Full = func(queue string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.byQueue == nil {
			r.byQueue = map[string]int{}
		}
		r.byQueue[queue]++
	}
}

// take returns the counts and starts anew.
func (r *refusals) take() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := r.byQueue
	r.byQueue = nil
	return counts
}

// failOnce makes the next insert of a job of the type fail as after a deadlock. A sequence is not rolled back, so the next try succeeds.
func (b *bundle) failOnce(jobType string) {
	b.T.Helper()
	b.Exec(`
		CREATE SEQUENCE IF NOT EXISTS tries;
		SELECT setval('tries', 1, false);
		CREATE OR REPLACE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('tries') = 1 THEN
				RAISE EXCEPTION 'deadlock of the test' USING ERRCODE = 'deadlock_detected';
			END IF;
			RETURN NEW;
		END $$;
		DROP TRIGGER IF EXISTS fail_once ON ojs.jobs;
		CREATE TRIGGER fail_once BEFORE INSERT ON ojs.jobs FOR EACH ROW WHEN (NEW.type = '` + jobType + `') EXECUTE FUNCTION fail_once()`)
}

// A refused job is counted when its call has ended, whatever the tries before have come to.
func TestRefusedJobsAreCountedOncePerCall(t *testing.T) {
	t.Parallel()
	jobs := func(n int, change ...func(j *job.Job)) (jobs []*job.Job) {
		for range n {
			j := domaintest.NewJob("q")
			for _, c := range change {
				c(j)
			}
			jobs = append(jobs, j)
		}
		return jobs
	}

	t.Run("AfterADeadlock", func(t *testing.T) {
		t.Parallel()
		var refused refusals
		b := setup(t, refused.config)
		b.bound("q", `{"max_depth":1}`)
		b.failOnce("test.job")
		stored, errs := b.EnqueueEach(t.Context(), jobs(3))
		require.NotNil(t, stored[0])
		full(t, errs[1], 1, 1)
		full(t, errs[2], 1, 1)
		require.Equal(t, 3, b.Number(`SELECT last_value + 1 FROM tries`), "there were two tries")
		require.Equal(t, map[string]int{"q": 2}, refused.take())
	})

	t.Run("InATransaction", func(t *testing.T) {
		t.Parallel()
		var refused refusals
		b := setup(t, refused.config)
		b.bound("q", `{"max_depth":1}`)
		b.failOnce("test.job")
		enqueue := func(keep, atomic bool) {
			_, err := b.Once(t.Context(), queue.IdempotencyKey{}, func(tx *queue.Tx) (queue.Answer, bool, error) {
				_, _, err := tx.Enqueue(t.Context(), jobs(3), atomic)
				return queue.Answer{}, keep, err
			})
			require.NoError(t, err)
		}
		enqueue(true, false)
		require.Equal(t, map[string]int{"q": 2}, refused.take())
		enqueue(false, false)
		require.Equal(t, map[string]int{"q": 3}, refused.take(), "the answer tells of the refusals, although nothing is kept")
		enqueue(false, true)
		require.Equal(t, map[string]int{"q": 1}, refused.take())

		err := b.InTx(t.Context(), func(tx *queue.Tx) error {
			_, _, err := tx.Enqueue(t.Context(), jobs(1), false)
			require.NoError(t, err)
			return errors.New("something else")
		})
		require.Error(t, err)
		require.Empty(t, refused.take(), "the caller is told something else")
	})

	t.Run("WhileTheCallWaitsForRoom", func(t *testing.T) {
		t.Parallel()
		var refused refusals
		b := setup(t, refused.config)
		b.bound("q", `{"max_depth":1,"strategy":"block"}`)
		stored, errs := b.EnqueueEach(t.Context(), jobs(3, func(j *job.Job) { j.BlockFor = 20 * time.Millisecond }))
		require.NotNil(t, stored[0])
		domaintest.RequireCode(t, errs[1], ojs.ErrQueueFull)
		domaintest.RequireCode(t, errs[2], ojs.ErrQueueFull)
		require.Equal(t, map[string]int{"q": 2}, refused.take())

		done := make(chan error, 1)
		go func() {
			_, err := b.Enqueue(context.Background(), jobs(1, func(j *job.Job) { j.BlockFor = time.Minute })[0])
			done <- err
		}()
		require.Eventually(t, func() bool { return b.WaitingForRoom() == 1 }, domaintest.WaitFor, time.Millisecond)
		require.Len(t, b.Fetched(1, "q"), 1)
		require.NoError(t, domaintest.Await(t, done))
		require.Empty(t, refused.take(), "it had to wait, and was not refused")
	})

	t.Run("OfAllOrNone", func(t *testing.T) {
		t.Parallel()
		var refused refusals
		b := setup(t, refused.config)
		b.bound("q", `{"max_depth":1}`)
		_, _, err := b.EnqueueAll(t.Context(), jobs(3))
		full(t, err, 0, 1)
		require.Equal(t, map[string]int{"q": 1}, refused.take())
		err = b.RetryFull(t.Context(), 0, func() error {
			_, err := b.Once(t.Context(), queue.IdempotencyKey{}, func(tx *queue.Tx) (queue.Answer, bool, error) {
				_, errs, err := tx.Enqueue(t.Context(), jobs(3), true)
				require.NoError(t, err)
				return queue.Answer{}, false, errs[1]
			})
			return err
		})
		full(t, err, 0, 1)
		require.Equal(t, map[string]int{"q": 1}, refused.take())
	})
}
