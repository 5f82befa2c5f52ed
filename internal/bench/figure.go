package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Figure is the outcome of one round of one measurement.
type Figure struct {
	Name     string
	Params   []Param
	Metrics  []Metric // the first is the headline
	Jobs     int      // jobs or requests behind it
	Errors   int
	Problems []string // not empty: the figure must not be used
}

// Param is one setting of a measurement, such as conns=32.
type Param struct {
	Name  string
	Value any
}

// Metric is one number. Its name ends in its unit: _per_s, _ms, _per_job.
type Metric struct {
	Name  string
	Value float64
}

// Summary is a Figure over all its rounds: one line of output.
type Summary struct {
	Figure   string           `json:"figure"`
	Params   map[string]any   `json:"params,omitempty"`
	Rounds   int              `json:"rounds"`
	Metrics  map[string]Range `json:"metrics"`
	Jobs     int              `json:"jobs"`
	Errors   int              `json:"errors"`
	OK       bool             `json:"ok"`
	Problems []string         `json:"problems,omitempty"`

	params  []Param
	metrics []string
}

// Range is one metric over all rounds.
type Range struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// summarize merges rounds, which all have the same name, params and metrics.
func summarize(rounds []Figure) Summary {
	first := rounds[0]
	s := Summary{Figure: first.Name, Rounds: len(rounds), Metrics: map[string]Range{}, params: first.Params}
	if len(first.Params) > 0 {
		s.Params = map[string]any{}
	}
	for _, p := range first.Params {
		s.Params[p.Name] = p.Value
	}
	for i, m := range first.Metrics {
		var values []float64
		for _, f := range rounds {
			values = append(values, f.Metrics[i].Value)
		}
		s.metrics = append(s.metrics, m.Name)
		s.Metrics[m.Name] = rangeOf(values)
	}
	for _, f := range rounds {
		s.Jobs += f.Jobs
		s.Errors += f.Errors
		s.Problems = append(s.Problems, f.Problems...)
	}
	s.OK = len(s.Problems) == 0
	return s
}

func rangeOf(values []float64) Range {
	slices.Sort(values)
	n := len(values)
	median := (values[(n-1)/2] + values[n/2]) / 2
	return Range{Median: round(median), Min: round(values[0]), Max: round(values[n-1])}
}

// round keeps four digits after the point: more would be noise.
func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// percentile takes sorted values; 0 without any.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// latencies makes the metrics prefix+"p50_ms" and so on, and prefix+"max_ms" for 100; it sorts its argument.
func latencies(prefix string, samples []time.Duration, percentiles ...float64) []Metric {
	slices.Sort(samples)
	var metrics []Metric
	for _, p := range percentiles {
		name := fmt.Sprintf("p%g", p)
		if p == 100 {
			name = "max"
		}
		ms := float64(percentile(samples, p)) / float64(time.Millisecond)
		metrics = append(metrics, Metric{prefix + name + "_ms", ms})
	}
	return metrics
}

// reporter prints summaries and remembers whether one was bad.
type reporter struct {
	figures, human io.Writer
	invalid        bool
}

func newReporter(figures, human io.Writer) *reporter {
	return &reporter{figures: figures, human: human}
}

func (r *reporter) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.human, format+"\n", args...) // nobody is left to tell if this fails
}

func (r *reporter) report(s Summary) error {
	r.invalid = r.invalid || !s.OK
	line, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if _, err := r.figures.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	r.say("%s", s.human())
	for _, p := range s.Problems {
		r.say("  INVALID: %s", p)
	}
	return nil
}

// human is the readable form: medians, and the range of the headline.
func (s Summary) human() string {
	title := s.Figure
	for _, p := range s.params {
		title += fmt.Sprintf(" %s=%v", p.Name, p.Value)
	}
	var parts []string
	for i, name := range s.metrics {
		m := s.Metrics[name]
		text := humanMetric(name, m.Median)
		if i == 0 && s.Rounds > 1 {
			text += fmt.Sprintf(" [%s … %s]", humanNumber(m.Min), humanNumber(m.Max))
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("%-44s %s  (%s jobs, %d round(s), %d errors)",
		title, strings.Join(parts, "  "), humanNumber(float64(s.Jobs)), s.Rounds, s.Errors)
}

// humanMetric writes jobs_per_s as "12 345 jobs/s" and fetch_p50_ms as "fetch p50 1.23 ms".
func humanMetric(name string, value float64) string {
	number := humanNumber(value)
	if label, ok := strings.CutSuffix(name, "_per_s"); ok {
		return number + " " + strings.ReplaceAll(label, "_", " ") + "/s"
	}
	if label, ok := strings.CutSuffix(name, "_per_job"); ok {
		return number + " " + strings.ReplaceAll(label, "_", " ") + "/job"
	}
	if label, ok := strings.CutSuffix(name, "_ms"); ok {
		return strings.ReplaceAll(label, "_", " ") + " " + number + " ms"
	}
	return strings.ReplaceAll(name, "_", " ") + " " + number
}

// humanNumber groups thousands and keeps three digits of small numbers.
func humanNumber(v float64) string {
	switch {
	case v >= 1000:
		text := strconv.FormatFloat(v, 'f', 0, 64)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + " " + text[i:]
		}
		return text
	case v >= 100 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}
