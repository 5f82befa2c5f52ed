package worker_test

import (
	"testing"
	"time"

	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/worker"
)

// liveness is the service of a node, not started.
func (b *bundle) liveness() *worker.Liveness { return worker.NewLiveness(b.Archetype, b.Workers) }

func TestLiveness(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		startstoptest.Stress(t.Context(), t, b.liveness())
	})

	t.Run("ReadsQuietWorkers", func(t *testing.T) {
		t.Parallel()
		here := setup(t)
		there := here.node()
		liveness := here.liveness()
		require.NoError(t, liveness.Start(t.Context()))
		t.Cleanup(liveness.Stop)
		_, err := there.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w", State: "quiet"})
		require.NoError(t, err)
		liveness.ReadQuiet()
		require.Eventually(t, func() bool {
			here.many(1)
			return len(here.FetchedBy("w", 1)) == 0
		}, domaintest.WaitFor, 10*time.Millisecond)
	})

	// A change of many workers, as in a deployment, is read ten times in a second.
	t.Run("ReadsABurstOfChangesTogether", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		sent := &domaintest.Statements{}
		node := &bundle{domaintest.On(t, domaintest.Traced(t, b.Pool, sent))}
		liveness := node.liveness()
		require.NoError(t, liveness.Start(t.Context()))
		t.Cleanup(liveness.Stop)
		start := time.Now()
		require.Eventually(t, func() bool { liveness.ReadQuiet(); return sent.Sent("WorkerListQuiet") >= 4 }, domaintest.WaitFor, time.Millisecond)
		require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
	})

	t.Run("WritesBeats", func(t *testing.T) {
		t.Parallel()
		b := setup(t, func(c *domaintest.Config) { c.Workers.DeadAfter = 400 * time.Millisecond })
		liveness := b.liveness()
		require.NoError(t, liveness.Start(t.Context()))
		t.Cleanup(liveness.Stop)
		b.Beat("w")
		beaten, err := b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
		require.NoError(t, err)
		b.FetchedBy("w", 1)
		require.Eventually(t, func() bool {
			w, err := b.Workers.Get(t.Context(), worker.Ref{ID: "w"})
			require.NoError(t, err)
			return w.LastSeenAt.Time.After(beaten.LastSeenAt.Time) && w.LastBeatAt == beaten.LastBeatAt
		}, domaintest.WaitFor, 5*time.Millisecond)
	})
}
