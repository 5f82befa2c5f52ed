package metrics

import (
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
)

// Bounds of requests and flushes in ns, of batches in requests.
var (
	requestBounds = []int64{1e6, 5e6, 10e6, 25e6, 50e6, 100e6, 250e6, 500e6, 1e9, 2.5e9, 5e9}
	batchBounds   = []int64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}
)

// requestKey has for route a template and status a number of the server's choice, so clients cannot make series.
type requestKey struct {
	method, route string
	status        int
}

type rpcKey struct{ method, code string }

// batchCounters count the statements that callers of one operation share. size counts the calls of one statement and took its
// time; both have one value per statement.
type batchCounters struct{ size, took histogram }

// bulkCounters count the bulk calls of one operation.
type bulkCounters struct{ requests, items atomic.Int64 }

// Request counts an HTTP request that has ended. route is a template. Long polls and streams count when they end, with their
// whole length.
func (m *Metrics) Request(method, route string, status int, took time.Duration) {
	m.requests.at(requestKey{method, route, status}).observe(requestBounds, took.Nanoseconds())
}

// RPC counts a gRPC call that has ended. code is the name of its status, OK or NOT_FOUND.
func (m *Metrics) RPC(method, code string, took time.Duration) {
	m.rpcs.at(rpcKey{method, code}).observe(requestBounds, took.Nanoseconds())
}

// Flush counts a statement that callers have shared. One flush may be tried again in parts (package batch); each statement
// counts.
func (m *Metrics) Flush(operation string, requests int, took time.Duration) {
	b := m.batches.at(operation)
	b.size.observe(batchBounds, int64(requests))
	b.took.observe(requestBounds, took.Nanoseconds())
}

// Bulk counts a bulk call that was answered with an outcome per item.
func (m *Metrics) Bulk(operation string, items int) {
	b := m.bulks.at(operation)
	b.requests.Add(1)
	b.items.Add(int64(items))
}

// trafficFamilies has counters of requests that are the counts of their histograms, so the two can never differ.
func (m *Metrics) trafficFamilies() []family {
	requests := counter("ojs.http.requests", "{request}", "HTTP requests; 499: nobody waited for the answer.")
	took := histogramOf("ojs.http.request_duration_seconds", "s", "How long HTTP requests took, long polls and streams until their end.",
		requestBounds, 1e9)
	m.requests.each(func(_ requestKey, labels attribute.Set, h *histogram) {
		var r reading
		r.add(h, requestBounds, requestBounds)
		requests.add(labels, int64(r.count))
		took.show(labels, r)
	})
	rpcs := counter("ojs.grpc.requests", "{request}", "gRPC calls.")
	rpcTook := histogramOf("ojs.grpc.request_duration_seconds", "s", "How long gRPC calls took.", requestBounds, 1e9)
	m.rpcs.each(func(_ rpcKey, labels attribute.Set, h *histogram) {
		var r reading
		r.add(h, requestBounds, requestBounds)
		rpcs.add(labels, int64(r.count))
		rpcTook.show(labels, r)
	})
	size := histogramOf("ojs.batch.requests", "{request}", "How many requests shared one statement (group commit).", batchBounds, 1)
	flushed := histogramOf("ojs.batch.duration_seconds", "s", "How long the statements took that requests share.", requestBounds, 1e9)
	m.batches.each(func(_ string, labels attribute.Set, b *batchCounters) {
		size.add(labels, &b.size, batchBounds)
		flushed.add(labels, &b.took, requestBounds)
	})
	bulks := counter("ojs.bulk.requests", "{request}", "Bulk calls that were answered with an outcome per item.")
	items := counter("ojs.bulk.items", "{job}", "Items of these calls, whatever became of them.")
	m.bulks.each(func(_ string, labels attribute.Set, b *bulkCounters) {
		bulks.add(labels, b.requests.Load())
		items.add(labels, b.items.Load())
	})
	return []family{requests, took, rpcs, rpcTook, size, flushed, bulks, items}
}
