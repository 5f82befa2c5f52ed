package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNull(t *testing.T) {
	t.Parallel()

	t.Run("MeasuresAChildProcess", func(t *testing.T) {
		t.Parallel()
		r := measure(t, tiny("http://127.0.0.1:1", "null"))
		require.NoError(t, r.err)
		require.Equal(t, []string{"null", "null"}, r.names())
		require.Positive(t, r.figures[0].Metrics["requests_per_s"].Median)
		require.Positive(t, r.figures[0].Jobs)
	})

	t.Run("ReportsAServerThatDoesNotStart", func(t *testing.T) {
		t.Parallel()
		cfg := tiny("http://127.0.0.1:1", "null")
		cfg.executable = "/bin/false"
		require.ErrorContains(t, measure(t, cfg).err, "no address: exit status 1")
	})
}

func TestDrainRates(t *testing.T) {
	t.Parallel()
	start := time.Now()
	var marks []ackMark
	for i := range 40 { // 20 jobs a second at first, then 10
		at := time.Duration(i+1) * 500 * time.Millisecond
		if i >= 20 {
			at = 10*time.Second + time.Duration(i-19)*time.Second
		}
		marks = append(marks, ackMark{start.Add(at), 10})
	}
	rates := drainRates(start, marks)
	require.InDelta(t, 400.0/30, rates[0].Value, 0.01)
	require.InDelta(t, 20, rates[1].Value, 0.01)
	require.InDelta(t, 10, rates[2].Value, 0.01)
	require.Zero(t, drainRates(start, nil)[0].Value)
}

func TestSpanPerJob(t *testing.T) {
	t.Parallel()
	start := time.Now()
	s := span{start: start, end: start.Add(2 * time.Second), cpu: cpuTime{server: time.Millisecond, postgres: 2 * time.Millisecond, known: true}}
	require.Equal(t, []metric{{"calls_per_s", 5}, {"p50_ms", 7}, {"server_cpu_us_per_job", 100}, {"postgres_cpu_us_per_job", 200}},
		s.perJob("calls_per_s", 10, metric{"p50_ms", 7}))
}

func TestMixedMetrics(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	acks := []ackMark{{at(1), 3}, {at(2), 4}, {at(2.5), 5}}

	t.Run("CountsWhileTheProducersRun", func(t *testing.T) {
		t.Parallel()
		s := span{start: start, end: at(3), cpu: cpuTime{server: time.Millisecond, known: true}}
		require.Equal(t, []metric{
			{"jobs_per_s", 3.5}, {"enqueued_per_s", 10}, {"left", 13}, {"enqueue_p50_ms", 6}, {"enqueue_p99_ms", 6},
			{"server_cpu_us_per_job", 50}, {"postgres_cpu_us_per_job", 0},
		}, mixedMetrics(s, 2*time.Second, acks, 20, []time.Duration{6 * time.Millisecond}))
	})

	t.Run("EndsWithTheLastJob", func(t *testing.T) {
		t.Parallel()
		metrics := mixedMetrics(span{start: start, end: at(2.5)}, time.Hour, acks, 12, nil)
		require.Equal(t, []metric{{"jobs_per_s", 4.8}, {"enqueued_per_s", 4.8}, {"left", 0}}, metrics[:3])
	})
}
