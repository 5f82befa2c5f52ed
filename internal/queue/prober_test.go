package queue_test

import (
	"testing"
	"time"

	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/queue"
)

func TestProber(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		startstoptest.Stress(t.Context(), t, queue.NewProber(b.Archetype, b.Store))
	})

	t.Run("FindsAJobWithoutANotification", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		silent := b.node()
		prober := queue.NewProber(b.Archetype, b.Store)
		require.NoError(t, prober.Start(t.Context()))
		t.Cleanup(prober.Stop)
		got := make(chan int, 1)
		go func() {
			jobs, _ := b.Fetch(t.Context(), queue.Fetch{Queues: []string{"q"}, Count: 1, Wait: domaintest.WaitFor})
			got <- len(jobs)
		}()
		require.Eventually(t, func() bool { return b.Parked() == 1 }, domaintest.WaitFor, time.Millisecond)
		silent.Enqueued(domaintest.NewJob("q"))
		require.Equal(t, 1, <-got)
	})
}
