package metrics

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// family is one metric with its current series. The Prometheus name is the OpenTelemetry name with _ for . and, for a counter,
// _total. Families are made for one read and thrown away after it, so they need no lock.
type family interface {
	// data is the metric in the form of OpenTelemetry; ok is false if there is no series.
	data(start, now time.Time) (m metricdata.Metrics, ok bool)
}

// unit is that of OpenTelemetry; the Prometheus name has no unit but what name says itself.
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

// start is that of the process, so that readers see a restart.
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

// A second value for the same labels would be a second series, which Prometheus refuses: callers set each once.
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

// addAll adds one series for the sum of several histograms.
func (f *histogramFamily) addAll(labels attribute.Set, hs []histogram, bounds []int64) {
	var r reading
	for i := range hs {
		r.add(&hs[i], bounds, f.bounds)
	}
	f.show(labels, r)
}

// A histogram without values has no series, so that a metric that nobody uses does not fill the answer.
func (f *histogramFamily) show(labels attribute.Set, r reading) {
	if r.count == 0 {
		return
	}
	f.points = append(f.points, metricdata.HistogramDataPoint[float64]{
		Attributes: labels, Count: r.count, BucketCounts: r.buckets, Sum: float64(r.sum) / f.scale,
	})
}

// Sums of integers are exact, so a rate over them never runs backwards.
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
