package job

import (
	"crypto/rand"
	"sync"

	"github.com/oklog/ulid/v2"

	"github.com/ojsd/ojsd/internal/clock"
)

// ids makes UUIDv7 that increase within this process: monotonic ULID entropy with the version and variant bits set. Their time
// is that of the database, because lists are sorted by ids that several nodes have made. mu guards both other fields: entropy
// is not safe for concurrent use, and latest must never decrease.
type ids struct {
	mu      sync.Mutex
	entropy *ulid.MonotonicEntropy
	latest  uint64 // ms
}

var processIDs = ids{entropy: ulid.Monotonic(rand.Reader, 0)}

// NewID returns a new UUIDv7. Ids of one process ascend, also within a millisecond and when the clock goes back. Those of two
// nodes are in the order of their clocks, which are that of the database as each node knows it.
func NewID() [16]byte {
	processIDs.mu.Lock()
	defer processIDs.mu.Unlock()
	for {
		// The database may have been replaced by one whose clock is behind.
		processIDs.latest = max(processIDs.latest, ulid.Timestamp(clock.Now()))
		id, err := ulid.New(processIDs.latest, processIDs.entropy)
		if err != nil { // the millisecond's entropy is used up: the next one has new
			processIDs.latest++
			continue
		}
		// Version 7 and the variant take six bits of the entropy; 74 are left.
		id[6] = id[6]&0x0f | 0x70
		id[8] = id[8]&0x3f | 0x80
		return id
	}
}
