package api

import (
	"sync/atomic"

	"github.com/ojsd/ojsd/internal/spec"
)

// maxMemory bounds the bytes of requests that a node works on: while the database is stalled, every producer's body waits in
// memory. The process takes up to six times as much (750 MiB, with 500 producers of 1 MiB in the same process): a body is decoded and
// sent on, and the garbage collector frees it only later.
const maxMemory = 128 << 20

// Memory counts the bytes of the requests in flight, of all interfaces of a node. The zero value is ready to use.
// It does not count answers, which are bounded by pages and by the time of writing.
type Memory struct{ used atomic.Int64 }

// Take reserves bytes, unless there is no room. The request is then refused, and its client sends it again.
// Concurrent calls may both be refused although one would have had room; neither exceeds the bound.
func (m *Memory) Take(bytes int) error {
	if m.used.Add(int64(bytes)) > maxMemory {
		m.used.Add(-int64(bytes))
		return spec.Overloaded()
	}
	return nil
}

// Free gives back what Take has reserved.
// It must be called with the same number, once.
func (m *Memory) Free(bytes int) { m.used.Add(-int64(bytes)) }
