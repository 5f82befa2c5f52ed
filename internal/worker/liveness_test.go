package worker_test

import (
	"testing"
	"time"

	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/worker"

	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestRoster(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t, dbtest.New(t))
		startstoptest.Stress(t.Context(), t, sweep.NewRoster(archetype(), b.store))
	})

	t.Run("LearnsWhoIsQuiet", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		here, there := setup(t, pool), setup(t, pool)
		roster := sweep.NewRoster(archetype(), here.store)
		require.NoError(t, roster.Start(t.Context()))
		t.Cleanup(roster.Stop)
		_, err := there.store.Heartbeat(t.Context(), worker.Beat{WorkerID: "w", State: "quiet"})
		require.NoError(t, err)
		roster.Learn()
		require.Eventually(t, func() bool {
			here.enqueue(0)
			jobs, err := here.store.Fetch(t.Context(), queue.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w"})
			require.NoError(t, err)
			return len(jobs) == 0
		}, 10*time.Second, 10*time.Millisecond)
	})

	t.Run("WritesSignsOfLife", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		c := store.FromConfig(config.Default())
		c.WorkerDeadAfter = 400 * time.Millisecond
		s := store.New(pool, c)
		roster := sweep.NewRoster(archetype(), s)
		require.NoError(t, roster.Start(t.Context()))
		t.Cleanup(roster.Stop)
		_, err := s.Workers.Heartbeat(t.Context(), worker.Beat{WorkerID: "w"})
		require.NoError(t, err)
		beaten, err := s.Workers.Get(t.Context(), "w")
		require.NoError(t, err)
		_, err = s.Fetch(t.Context(), queue.Fetch{Queues: []string{"q"}, Count: 1, WorkerID: "w"})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			w, err := s.Workers.Get(t.Context(), "w")
			require.NoError(t, err)
			return w.LastSeenAt.Time.After(beaten.LastSeenAt.Time) && w.LastBeatAt == beaten.LastBeatAt
		}, 10*time.Second, 5*time.Millisecond)
	})
}
