package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSummarize(t *testing.T) {
	t.Parallel()
	var rounds []figure
	for _, rate := range []float64{300, 100, 200} {
		rounds = append(rounds, figure{
			Name: "enqueue", Params: []param{{"conns", 32}}, Jobs: 10,
			Metrics: []metric{{"jobs_per_s", rate}, {"p50_ms", rate / 1e3}},
		})
	}
	var figures, text bytes.Buffer
	out := &reporter{figures: &figures, text: &text}
	require.NoError(t, out.report(summarize(rounds)))
	require.JSONEq(t, `{"figure":"enqueue","params":{"conns":32},"rounds":3,"jobs":30,"errors":0,"ok":true,"metrics":{
		"jobs_per_s":{"median":200,"min":100,"max":300},"p50_ms":{"median":0.2,"min":0.1,"max":0.3}}}`, figures.String())
	require.Equal(t, 1, bytes.Count(figures.Bytes(), []byte("\n")))
	require.Regexp(t, `^enqueue conns=32 +200 jobs/s \[100 … 300\]  p50 0.20 ms  \(30 jobs, 3 round\(s\), 0 errors\)\n$`, text.String())
	require.False(t, out.invalid)

	rounds[1].Problems = []string{"1 jobs lost"}
	require.NoError(t, out.report(summarize(rounds)))
	require.Contains(t, figures.String(), `"ok":false,"problems":["1 jobs lost"]`)
	require.Contains(t, text.String(), "INVALID: 1 jobs lost")
	require.True(t, out.invalid)
}

func TestSpreadOf(t *testing.T) {
	t.Parallel()
	require.Equal(t, spread{Median: 5, Min: 5, Max: 5}, spreadOf([]float64{5}))
	require.Equal(t, spread{Median: 2.5, Min: 1, Max: 4}, spreadOf([]float64{4, 1, 3, 2}))
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var samples []time.Duration
	for i := 100; i >= 1; i-- {
		samples = append(samples, time.Duration(i)*time.Millisecond)
	}
	require.Equal(t, []metric{{"p50_ms", 50}, {"p99_ms", 99}, {"max_ms", 100}}, latencies("", samples, 50, 99, 100))
	require.Equal(t, []metric{{"p50_ms", 0}}, latencies("", nil, 50))
	require.Equal(t, time.Duration(7), percentile([]time.Duration{7}, 1))
}

func TestHumanNumber(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]float64{"0": 0, "0.12": 0.123, "12.3": 12.34, "7": 7, "999": 999, "1 000": 1000, "12 345": 12345.4, "1 234 567": 1234567} {
		require.Equal(t, want, numberText(v))
	}
}

func TestRatios(t *testing.T) {
	t.Parallel()
	side := func(name string, rates, left [2]float64) (rounds []figure) {
		for i := range rates {
			rounds = append(rounds, figure{
				Name: "mixed", Params: []param{{"server", name}, {"workers", 8}}, Jobs: 10,
				Metrics: []metric{{"jobs_per_s", rates[i]}, {"left", left[i]}},
			})
		}
		return rounds
	}
	s := summarize(ratios(side("this", [2]float64{300, 500}, [2]float64{1, 1}), side("against", [2]float64{200, 250}, [2]float64{1, 0})))
	require.Equal(t, "mixed.ratio", s.Figure)
	require.Equal(t, map[string]any{"workers": 8}, s.Params)
	require.Equal(t, map[string]spread{"jobs_per_s_ratio": {Median: 1.75, Min: 1.5, Max: 2}}, s.Metrics, "nothing is divided by 0")
	require.Equal(t, 40, s.Jobs)
	require.Contains(t, s.text(), "jobs per s ×1.75 [1.50 … 2] ")
}
