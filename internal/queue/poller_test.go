package queue_test

import (
	"testing"
	"time"

	"github.com/ojsd/ojsd/internal/job"

	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/queue"
)

func TestPoller(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		startstoptest.Stress(t.Context(), t, queue.NewPoller(b.Archetype, b.Store))
	})

	t.Run("FindsAJobWithoutANotification", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		silent := b.node()
		poller := queue.NewPoller(b.Archetype, b.Store)
		require.NoError(t, poller.Start(t.Context()))
		t.Cleanup(poller.Stop)
		got := make(chan int, 1)
		go func() {
			jobs, _ := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1, Wait: domaintest.WaitFor})
			got <- len(jobs)
		}()
		require.Eventually(t, func() bool { return b.Parked() == 1 }, domaintest.WaitFor, time.Millisecond)
		silent.Enqueued(domaintest.NewJob("q"))
		require.Equal(t, 1, <-got)
	})
}
