package e2e_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

// BenchmarkSDKWorker is the throughput of one worker of the SDK whose handler does nothing.
func BenchmarkSDKWorker(b *testing.B) {
	for _, concurrency := range []int{100, 1000} {
		b.Run("concurrency="+strconv.Itoa(concurrency), func(b *testing.B) {
			node := setup(b)
			c := sdk(b, node.url)
			q := queue()
			for left := b.N; left > 0; left -= 1000 {
				requests := make([]ojs.JobRequest, min(left, 1000))
				for i := range requests {
					requests[i] = ojs.JobRequest{Type: "noop", Queue: q}
				}
				_, err := c.EnqueueBatch(b.Context(), requests)
				require.NoError(b, err)
			}
			done := make(chan struct{}, b.N)
			w := ojs.NewWorker(c, ojs.WorkerConfig{Queues: []string{q}, Concurrency: concurrency, Logger: silent})
			w.Register("noop", func(ojs.JobContext) error { done <- struct{}{}; return nil })
			b.ResetTimer()
			stop := runWorker(b, w)
			for range b.N {
				<-done
			}
			stop() // the last outcomes are reported
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}
