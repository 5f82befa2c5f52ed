package loop_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"

	"github.com/ojsd/ojsd/internal/loop"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// counted is a service of which one loop may run at a time.
type counted struct {
	startstop.BaseStartStop

	running, most atomic.Int64
}

func (c *counted) Start(ctx context.Context) error {
	loop.Run(ctx, &c.BaseStartStop, func(ctx context.Context) {
		c.most.Store(max(c.most.Load(), c.running.Add(1)))
		<-ctx.Done()
		c.running.Add(-1)
	})
	return nil
}

func TestRun(t *testing.T) {
	t.Parallel()
	c := &counted{}
	startstoptest.Stress(t.Context(), t, c)
	require.EqualValues(t, 1, c.most.Load())
	require.NoError(t, c.Start(t.Context()))
	require.NoError(t, c.Start(t.Context()))
	c.Stop()
	require.Zero(t, c.running.Load(), "Stop waits for the loop")
	require.EqualValues(t, 1, c.most.Load())
}

func TestEvery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		start := time.Now()
		var at []time.Duration
		loop.Every(ctx, time.Second, func(context.Context) {
			at = append(at, time.Since(start))
			switch len(at) {
			case 2:
				time.Sleep(1500 * time.Millisecond)
			case 4:
				cancel()
			}
		})
		require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 3500 * time.Millisecond, 4 * time.Second}, at)
	})
}
