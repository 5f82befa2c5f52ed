package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.opentelemetry.io/otel/attribute"
	promexport "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// expose sets up the registry that Prometheus reads. It is not the default one, which other code of the process may use.
func (m *Metrics) expose() error {
	registry := prometheus.NewRegistry()
	exporter, err := promexport.New(promexport.WithRegisterer(registry), promexport.WithProducer(m),
		promexport.WithoutUnits(), //nolint:staticcheck // the strategies that replace it add both _total and units, or neither
		promexport.WithoutScopeInfo(), promexport.WithoutTargetInfo())
	if err != nil {
		return fmt.Errorf("prometheus exporter: %w", err)
	}
	m.readers = append(m.readers, sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter)))
	// The collectors of Go and of the process have a registry of their own, because OTLP reads them by another way (Push).
	m.gatherer = prometheus.Gatherers{registry, m.process}
	return nil
}

// WriteText writes all series in the text format of Prometheus, or as OpenMetrics 1.0. An error may come after the first bytes
// were written.
func (m *Metrics) WriteText(ctx context.Context, w io.Writer, openMetrics bool) error {
	families, err := m.gatherer.Gather()
	if err != nil { // families has those without an error
		m.deps.Logger.WarnContext(ctx, "some metrics are left out of the answer", slog.Any("error", err))
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	if openMetrics {
		format = expfmt.NewFormat(expfmt.TypeOpenMetrics) // version 1.0.0
	}
	// OpenMetrics does not allow a counter whose name without _total is that of another family, such as go_memstats_alloc_bytes_total of
	// the Go runtime. A reader may refuse the whole answer because of it.
	if openMetrics {
		names := make(map[string]bool, len(families))
		for _, f := range families {
			names[f.GetName()] = true
		}
		families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool {
			short, counts := strings.CutSuffix(f.GetName(), "_total")
			return counts && names[short]
		})
	}
	encoder := expfmt.NewEncoder(w, format)
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return fmt.Errorf("write %s: %w", f.GetName(), err)
		}
	}
	// OpenMetrics ends with a line of its own, without which a reader discards the answer.
	if closer, ok := encoder.(expfmt.Closer); ok {
		return closer.Close()
	}
	return nil
}

// Shutdown pushes the last values, until ctx ends. It must run before the pool is closed: the last push reads gauges.
func (m *Metrics) Shutdown(ctx context.Context) error {
	var errs []error
	for _, r := range m.readers {
		errs = append(errs, r.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

// family is one metric with its current series. The Prometheus name is the OpenTelemetry name with _ for . and, for a counter,
// _total. Families are made for one read and thrown away after it, so they need no lock.
type family interface {
	// data is the metric in the form of OpenTelemetry; ok is false if there is no series.
	data(start, now time.Time) (m metricdata.Metrics, ok bool)
}

// head takes the unit of OpenTelemetry; the Prometheus name has no unit but what name says itself.
type head struct{ name, unit, help string }

func (h head) metric(data metricdata.Aggregation) metricdata.Metrics {
	return metricdata.Metrics{Name: h.name, Unit: h.unit, Description: h.help, Data: data}
}

type counterFamily struct {
	head
	points []metricdata.DataPoint[int64]
}

func counter(name, unit, help string) *counterFamily {
	return &counterFamily{head: head{name, unit, help}}
}

func (f *counterFamily) add(labels attribute.Set, n int64) {
	f.points = append(f.points, metricdata.DataPoint[int64]{Attributes: labels, Value: n})
}

// data has for start that of the process, so that readers see a restart.
func (f *counterFamily) data(start, now time.Time) (metricdata.Metrics, bool) {
	for i := range f.points {
		f.points[i].StartTime, f.points[i].Time = start, now
	}
	sum := metricdata.Sum[int64]{DataPoints: f.points, Temporality: metricdata.CumulativeTemporality, IsMonotonic: true}
	return f.metric(sum), len(f.points) > 0
}

type gaugeFamily struct {
	head
	points []metricdata.DataPoint[float64]
}

func gauge(name, unit, help string) *gaugeFamily { return &gaugeFamily{head: head{name, unit, help}} }

// set is called once for the same labels: a second value would be a second series, which Prometheus refuses: callers set each once.
func (f *gaugeFamily) set(labels attribute.Set, value float64) {
	f.points = append(f.points, metricdata.DataPoint[float64]{Attributes: labels, Value: value})
}

func (f *gaugeFamily) data(_, now time.Time) (metricdata.Metrics, bool) {
	for i := range f.points {
		f.points[i].Time = now
	}
	return f.metric(metricdata.Gauge[float64]{DataPoints: f.points}), len(f.points) > 0
}

// histogramFamily shows histograms of whole numbers in a unit of which scale make one. Values are counted as integers and
// divided by scale when they are shown: 1e3 turns ms into seconds.
type histogramFamily struct {
	head
	bounds []int64
	scale  float64
	points []metricdata.HistogramDataPoint[float64]
}

func histogramOf(name, unit, help string, bounds []int64, scale float64) *histogramFamily {
	return &histogramFamily{head: head{name, unit, help}, bounds: bounds, scale: scale}
}

// add adds a series for a histogram with values. Its bounds must contain those of the family.
func (f *histogramFamily) add(labels attribute.Set, h *histogram, bounds []int64) {
	var r reading
	r.add(h, bounds, f.bounds)
	f.show(labels, r)
}

// show makes no series for a histogram without values, so that a metric that nobody uses does not fill the answer.
func (f *histogramFamily) show(labels attribute.Set, r reading) {
	if r.count == 0 {
		return
	}
	f.points = append(f.points, metricdata.HistogramDataPoint[float64]{
		Attributes: labels, Count: r.count, BucketCounts: r.buckets, Sum: float64(r.sum) / f.scale,
	})
}

// data has sums of integers, which are exact, so a rate over them never runs backwards.
func (f *histogramFamily) data(start, now time.Time) (metricdata.Metrics, bool) {
	bounds := make([]float64, len(f.bounds))
	for i, b := range f.bounds {
		bounds[i] = float64(b) / f.scale
	}
	for i := range f.points {
		f.points[i].StartTime, f.points[i].Time, f.points[i].Bounds = start, now, bounds
	}
	h := metricdata.Histogram[float64]{DataPoints: f.points, Temporality: metricdata.CumulativeTemporality}
	return f.metric(h), len(f.points) > 0
}

// with is a set and one more label. It allocates, so it is for reading, never for counting.
func with(labels attribute.Set, more attribute.KeyValue) attribute.Set {
	return attribute.NewSet(append(labels.ToSlice(), more)...)
}

func label(name, value string) attribute.Set { return attribute.NewSet(attribute.String(name, value)) }

var noLabels = *attribute.EmptySet()

// other is the label of all values beyond the limit.
const other = "__other__"

// limiter limits the values of one label to the first max: clients could create any number of series otherwise.
// Values are never forgotten: a series that moved to __other__ and back would look like a restart.
type limiter struct {
	max    int
	mu     sync.Mutex
	values map[string]struct{}
}

// label takes the values that this node has seen first, so nodes may show different ones.
func (l *limiter) label(value string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.values[value]; known {
		return value
	}
	if len(l.values) >= l.max {
		return other
	}
	l.values[value] = struct{}{}
	return value
}

// vec has a cell per combination of labels. Cells are only added, never removed, so a pointer to one stays valid and its
// counter never goes back.
type vec[K comparable, C any] struct {
	// limit replaces values beyond the limit of their label.
	limit func(K) K
	// labels are the labels of a key.
	labels func(K) attribute.Set

	mu    sync.RWMutex
	cells map[K]*cell[C]
}

type cell[C any] struct {
	labels attribute.Set
	value  C
}

func newVec[K comparable, C any](limit func(K) K, labels func(K) attribute.Set) *vec[K, C] {
	return &vec[K, C]{limit: limit, labels: labels, cells: map[K]*cell[C]{}}
}

// at returns the cell of a key. The caller may keep it. A known key costs a read lock and no allocation. A key beyond the limit
// is looked up by its own name in vain each time, and then found under the other one.
func (v *vec[K, C]) at(key K) *C {
	v.mu.RLock()
	c := v.cells[key]
	v.mu.RUnlock()
	if c != nil {
		return &c.value
	}
	key = v.limit(key)
	v.mu.Lock()
	defer v.mu.Unlock()
	if c = v.cells[key]; c == nil {
		c = &cell[C]{labels: v.labels(key)}
		v.cells[key] = c
	}
	return &c.value
}

// each calls f for every key and cell. f must not call at for a new key, which would wait for this lock.
func (v *vec[K, C]) each(f func(key K, labels attribute.Set, value *C)) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	for key, c := range v.cells {
		f(key, c.labels, &c.value)
	}
}

func (v *vec[K, C]) len() int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return len(v.cells)
}

// maxBuckets is enough for the longest list of bounds. It must exceed the number of bounds by one, for the values above the
// last.
const maxBuckets = 17

// histogram counts whole numbers between bounds, which the caller passes. Its sum is exact, unlike one of floats.
// The zero value is ready. Count and sum of one read may differ by values that are being added: no lock joins them.
type histogram struct {
	buckets [maxBuckets]atomic.Uint64
	sum     atomic.Int64
}

// observe counts a value in the first bucket whose bound it does not exceed. It looks through the bounds one by one; there are
// at most 16.
func (h *histogram) observe(bounds []int64, value int64) {
	i := 0
	for i < len(bounds) && value > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(value)
}

// reading is a copy of a histogram. The zero value is empty.
type reading struct {
	buckets []uint64 // one more than bounds
	count   uint64
	sum     int64
}

// add adds a histogram to a reading with the bounds wanted, which must be a subset of bounds. Buckets between two wanted bounds
// are joined, so one histogram serves two series with different bounds.
func (r *reading) add(h *histogram, bounds, wanted []int64) {
	if r.buckets == nil {
		r.buckets = make([]uint64, len(wanted)+1)
	}
	r.sum += h.sum.Load()
	at := 0
	for i := range len(bounds) + 1 {
		n := h.buckets[i].Load()
		for at < len(wanted) && (i == len(bounds) || bounds[i] > wanted[at]) {
			at++
		}
		r.buckets[at] += n
		r.count += n
	}
}
