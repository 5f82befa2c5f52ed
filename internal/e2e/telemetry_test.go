package e2e_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/observe"
)

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// lineBuffer is a log in JSON.
type lineBuffer struct{ lockedBuffer }

// lines are those with the message that contain all the texts.
func (b *lineBuffer) lines(t *testing.T, message string, holds ...string) (found []reply) {
	t.Helper()
	for line := range strings.SplitSeq(strings.TrimSpace(b.String()), "\n") {
		r := reply{t: t, body: line}
		if r.at("message") == message && !slices.ContainsFunc(holds, func(s string) bool { return !strings.Contains(line, s) }) {
			found = append(found, r)
		}
	}
	return found
}

// line waits for the only one.
func (b *lineBuffer) line(t *testing.T, message string, holds ...string) reply {
	t.Helper()
	eventually(t, func() bool { return len(b.lines(t, message, holds...)) > 0 })
	found := b.lines(t, message, holds...)
	require.Len(t, found, 1, message)
	return found[0]
}

func setupLogged(t *testing.T, level slog.Level, change ...func(*app.Config)) (*node, *lineBuffer) {
	t.Helper()
	log := &lineBuffer{}
	a := setup(t, append([]func(*app.Config){func(c *app.Config) { c.Logger = observe.NewLogger(log, "json", level) }}, change...)...)
	return a, log
}

// scrape is all series of a node by name.
type scrape map[string]*dto.MetricFamily

func (a *node) scrape() scrape {
	a.t.Helper()
	return parseMetrics(a.t, a.get("/metrics").is(200).body)
}

func parseMetrics(t testing.TB, text string) scrape {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	return families
}

// labels are those of a series as name=value,…, in order.
func labels(m *dto.Metric) string {
	var pairs []string
	for _, l := range m.GetLabel() {
		pairs = append(pairs, l.GetName()+"="+l.GetValue())
	}
	slices.Sort(pairs)
	return strings.Join(pairs, ",")
}

// values are those of a counter or gauge by labels; of a histogram what it has counted.
func (s scrape) values(name string) map[string]float64 {
	values := map[string]float64{}
	for _, m := range s[name].GetMetric() {
		switch {
		case m.Counter != nil:
			values[labels(m)] = m.Counter.GetValue()
		case m.Gauge != nil:
			values[labels(m)] = m.Gauge.GetValue()
		case m.Histogram != nil:
			values[labels(m)] = float64(m.Histogram.GetSampleCount())
		}
	}
	return values
}

// has reports whether there are series of all these names. A scrape leaves out the gauges that a busy machine does not read in three seconds.
func (s scrape) has(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return len(s[name].GetMetric()) == 0 })
}

// sums are those of a histogram by labels.
func (s scrape) sums(name string) map[string]float64 {
	values := map[string]float64{}
	for _, m := range s[name].GetMetric() {
		values[labels(m)] = m.Histogram.GetSampleSum()
	}
	return values
}

// tracedNode is a node whose spans are kept in memory.
type tracedNode struct {
	*node
	exporter *tracetest.InMemoryExporter
}

func setupTraced(t testing.TB, change ...func(*app.Config)) tracedNode {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	a := setup(t, append(change, func(c *app.Config) { c.TracerProvider = provider })...)
	return tracedNode{a, exporter}
}

func (a tracedNode) in(t testing.TB) tracedNode { return tracedNode{a.node.in(t), a.exporter} }

// spans are those of a name for which an attribute has the value.
func (a tracedNode) spans(name, key, value string) (found []tracetest.SpanStub) {
	for _, s := range a.exporter.GetSpans() {
		if s.Name == name && attr(s, key) == value {
			found = append(found, s)
		}
	}
	return found
}

// span waits for the only one.
func (a tracedNode) span(name, key, value string) tracetest.SpanStub {
	a.t.Helper()
	var found []tracetest.SpanStub
	eventually(a.t, func() bool { found = a.spans(name, key, value); return len(found) > 0 })
	require.Len(a.t, found, 1, name)
	return found[0]
}

func attr(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

func parentOf(s tracetest.SpanStub) string {
	return s.Parent.TraceID().String() + "-" + s.Parent.SpanID().String()
}

func idOf(sc trace.SpanContext) string { return sc.TraceID().String() + "-" + sc.SpanID().String() }
