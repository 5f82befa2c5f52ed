package metrics

import "sync/atomic"

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
