package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// lazyPercent is GOGC while the heap is small: that of a server is some ten MB, which Go's default would collect many times a second.
	lazyPercent = 400

	// smallHeap is how much may be live for that. Beyond, Go's default holds: while the database is stalled 300 MB are live, and the
	// garbage of large jobs took 1.4 GB more before it was collected.
	smallHeap = 64 << 20
)

// collectGarbageLater trades memory for processor time while that is cheap. GOGC overrides it.
// It is called by commands that serve, once per process.
func collectGarbageLater() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(lazyPercent)
		adjustAfterCollections(&collections{percent: lazyPercent})
	}
}

// collections is an object that nothing refers to, so that its finalizer runs after each collection.
// Each run of the finalizer makes the next one. Only the goroutine of finalizers uses it.
type collections struct{ percent int }

func adjustAfterCollections(c *collections) {
	runtime.SetFinalizer(c, func(c *collections) {
		c.adjust()
		adjustAfterCollections(c)
	})
}

// adjust sets GOGC for what the collection has left. It stops the program for a moment, so it does that only if something changes.
func (c *collections) adjust() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	percent := 100
	if live[0].Value.Uint64() < smallHeap {
		percent = lazyPercent
	}
	if percent != c.percent {
		c.percent = percent
		debug.SetGCPercent(percent)
	}
}
