package job

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// ids makes UUIDv7 that increase within this process: monotonic ULID entropy with the version and variant bits set.
type ids struct {
	mu      sync.Mutex
	entropy *ulid.MonotonicEntropy
}

var processIDs = ids{entropy: ulid.Monotonic(rand.Reader, 0)}

// NewID returns a new UUIDv7.
func NewID() [16]byte {
	processIDs.mu.Lock()
	defer processIDs.mu.Unlock()
	for {
		id, err := ulid.New(ulid.Timestamp(time.Now()), processIDs.entropy)
		if err != nil { // the millisecond's entropy is used up: the next one has new
			continue
		}
		id[6] = id[6]&0x0f | 0x70
		id[8] = id[8]&0x3f | 0x80
		return id
	}
}
