package main

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

// figure is the outcome of one round of one measurement.
type figure struct {
	Name     string
	Params   []param
	Metrics  []metric // the first is the most important one
	Jobs     int      // how many jobs or requests were measured
	Errors   int
	Problems []string // with any, the figure must not be used
}

// param is one setting of a measurement, such as conns=32. Params tell figures of one name apart; together with the name they
// identify a figure between two runs.
type param struct {
	Name  string
	Value any
}

// metric is one number. Its name ends in its unit: _per_s, _ms, _per_job, _us_per_job (microseconds), _ratio.
type metric struct {
	Name  string
	Value float64
}

// summary is a figure over all its rounds: one line of output. The JSON is what scripts read.
type summary struct {
	Figure   string            `json:"figure"`
	Params   map[string]any    `json:"params,omitempty"`
	Rounds   int               `json:"rounds"`
	Metrics  map[string]spread `json:"metrics"`
	Jobs     int               `json:"jobs"`
	Errors   int               `json:"errors"`
	OK       bool              `json:"ok"`
	Problems []string          `json:"problems,omitempty"`

	params  []param
	metrics []string
}

// spread is one metric over all rounds.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// summarize merges rounds, which all have the same name, params and metrics. Problems of all rounds are listed; one of them
// makes the whole figure invalid.
func summarize(rounds []figure) summary {
	first := rounds[0]
	s := summary{Figure: first.Name, Params: map[string]any{}, Rounds: len(rounds), Metrics: map[string]spread{}, params: first.Params}
	for _, p := range first.Params {
		s.Params[p.Name] = p.Value
	}
	for i, m := range first.Metrics {
		var values []float64
		for _, f := range rounds {
			values = append(values, f.Metrics[i].Value)
		}
		s.metrics = append(s.metrics, m.Name)
		s.Metrics[m.Name] = spreadOf(values)
	}
	for _, f := range rounds {
		s.Jobs += f.Jobs
		s.Errors += f.Errors
		s.Problems = append(s.Problems, f.Problems...)
	}
	s.OK = len(s.Problems) == 0
	return s
}

// spreadOf sorts values in place.
func spreadOf(values []float64) spread {
	slices.Sort(values)
	n := len(values)
	median := (values[(n-1)/2] + values[n/2]) / 2
	return spread{Median: round(median), Min: round(values[0]), Max: round(values[n-1])}
}

// round keeps four digits after the point: more would be noise.
func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// ratios divides the metrics of this side by those of the other one, round by round: both ran within seconds, so that a
// machine that others use disturbs the ratio less than the metrics. A metric that is 0 on the other side is left out.
func ratios(these, others []figure) []figure {
	var result []figure
	for i, f := range these {
		ratio := figure{Name: f.Name + ".ratio", Params: f.Params[1:], Jobs: f.Jobs + others[i].Jobs}
		for j, m := range f.Metrics {
			if !slices.ContainsFunc(others, func(f figure) bool { return f.Metrics[j].Value == 0 }) {
				ratio.Metrics = append(ratio.Metrics, metric{m.Name + "_ratio", m.Value / others[i].Metrics[j].Value})
			}
		}
		result = append(result, ratio)
	}
	return result
}

// percentile takes sorted values; 0 without any. It is the nearest rank, a value that was measured, and no interpolation.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// latencies makes the metrics prefix+"p50_ms" and so on, and prefix+"max_ms" for 100; it sorts its argument.
func latencies(prefix string, samples []time.Duration, percentiles ...float64) []metric {
	slices.Sort(samples)
	var metrics []metric
	for _, p := range percentiles {
		name := fmt.Sprintf("p%g", p)
		if p == 100 {
			name = "max"
		}
		ms := float64(percentile(samples, p)) / float64(time.Millisecond)
		metrics = append(metrics, metric{prefix + name + "_ms", ms})
	}
	return metrics
}

// reporter prints summaries and remembers whether one of them had problems. Both sides of --against share one.
type reporter struct {
	figures, text io.Writer // JSON lines; lines for people
	invalid       bool
}

func (r *reporter) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(r.text, format+"\n", args...) // a closed stderr must not end the run
}

// report sends the line when the figure is done, so an interrupted run leaves what it has measured.
func (r *reporter) report(s summary) error {
	r.invalid = r.invalid || !s.OK
	line, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	if _, err := r.figures.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write figure: %w", err)
	}
	r.printf("%s", s.text())
	for _, p := range s.Problems {
		r.printf("  INVALID: %s", p)
	}
	return nil
}

// text is the form for people: medians, and the range of the first metric.
func (s summary) text() string {
	var title strings.Builder
	title.WriteString(s.Figure)
	for _, p := range s.params {
		title.WriteString(fmt.Sprintf(" %s=%v", p.Name, p.Value))
	}
	var parts []string
	for i, name := range s.metrics {
		m := s.Metrics[name]
		text := metricText(name, m.Median)
		if i == 0 && s.Rounds > 1 {
			text += fmt.Sprintf(" [%s … %s]", numberText(m.Min), numberText(m.Max))
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("%-44s %s  (%s jobs, %d round(s), %d errors)",
		title.String(), strings.Join(parts, "  "), numberText(float64(s.Jobs)), s.Rounds, s.Errors)
}

// metricText writes jobs_per_s as "12 345 jobs/s" and fetch_p50_ms as "fetch p50 1.23 ms".
func metricText(name string, value float64) string {
	name, number := strings.ReplaceAll(name, "_", " "), numberText(value)
	for _, unit := range []struct{ suffix, format string }{
		{" per s", "%[2]s %[1]s/s"}, {" us per job", "%s %s µs/job"}, {" per job", "%[2]s %[1]s/job"}, {" ms", "%s %s ms"},
	} {
		if label, ok := strings.CutSuffix(name, unit.suffix); ok {
			return fmt.Sprintf(unit.format, label, number)
		}
	}
	if label, ok := strings.CutSuffix(name, " ratio"); ok {
		return fmt.Sprintf("%s ×%.2f", label, value)
	}
	return name + " " + number
}

// numberText groups thousands and keeps three digits of small numbers.
func numberText(v float64) string {
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
