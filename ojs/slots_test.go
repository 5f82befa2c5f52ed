package ojs_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// TestSlotsWhileFetchedJobsAreTaken has a report leave at the moment at which a fetch has been answered and its job does not run yet. The
// listener of a lost job, which the same answer causes, is where the worker can be stopped there.
func TestSlotsWhileFetchedJobsAreTaken(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	lost, resume, endKept, endShort := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	began := map[string]chan struct{}{"kept": make(chan struct{}, 4), "short": make(chan struct{}, 4), "more": make(chan struct{}, 4)}
	w := ojs.NewWorker(c, ojs.WorkerConfig{Concurrency: 3})
	w.OnEvent(ojs.EventJobLost, func(ojs.Event) {
		lost <- struct{}{}
		<-resume
	})
	end := sync.OnceFunc(func() { close(endKept) })
	var running, most atomic.Int64
	register := func(jobType string, end <-chan struct{}) {
		w.Register(jobType, func(ojs.JobContext) error {
			now := running.Add(1)
			defer running.Add(-1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			began[jobType] <- struct{}{}
			<-end
			return nil
		})
	}
	register("kept", endKept)
	register("short", endShort)
	register("more", endKept)
	add := func(jobType string) string {
		job, err := c.Enqueue(t.Context(), jobType, nil)
		require.NoError(t, err)
		return job.ID
	}
	kept, short := add("kept"), add("short")
	stop := start(t, w)
	t.Cleanup(end)
	receive(t, began["kept"])
	receive(t, began["short"])
	s.LoseLease(kept) // the waiting fetch gets it again
	receive(t, lost)
	add("more")
	add("more")
	close(endShort)
	eventually(t, func() bool { return s.Job(short).State == ojs.StateCompleted })
	close(resume)
	receive(t, began["kept"])
	receive(t, began["more"])
	require.LessOrEqual(t, most.Load(), int64(3), "both runs of the job and one more")
	end()
	eventually(t, func() bool { return s.Job(kept).State == ojs.StateCompleted })
	require.NoError(t, stop())
}
