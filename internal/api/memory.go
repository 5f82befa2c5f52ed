package api

import (
	"sync/atomic"

	"github.com/ojsd/ojsd/ojs"
)

// maxMemory bounds the bytes of requests that a node works on. While the database is stalled every producer's body waits in
// memory; a node needs about three times as much in the worst case, because a body is decoded and then sent to the database.
const maxMemory = 256 << 20

// Memory counts the bytes of the requests in flight, of all interfaces of a node. The zero value is ready to use.
type Memory struct{ used atomic.Int64 }

// Take reserves bytes, unless there is no room. The request is then refused, and its client sends it again.
func (m *Memory) Take(bytes int) error {
	if m.used.Add(int64(bytes)) > maxMemory {
		m.used.Add(-int64(bytes))
		return ojs.ErrOverloaded()
	}
	return nil
}

// Free gives back what Take has reserved.
func (m *Memory) Free(bytes int) { m.used.Add(-int64(bytes)) }

// Used is the number of reserved bytes.
func (m *Memory) Used() int64 { return m.used.Load() }
