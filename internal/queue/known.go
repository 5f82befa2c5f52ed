package queue

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// knownFor is how long a node takes a queue for stored since it has made sure. The row is kept for far longer, so that no
	// enqueue counts on one that was deleted; see ojs.queues_prune.
	// A longer time would save nothing: it is a statement per queue and hour.
	knownFor = time.Hour

	// maxKnown bounds the names, which clients choose. The first enqueue to a forgotten queue makes sure again.
	maxKnown = 100_000
)

// knownQueues are the queues that have a row.
// It is read for each job of each insert, by many goroutines, and hardly ever written, hence the sync.Map. The zero value is
// ready.
type knownQueues struct {
	since sync.Map // name → time.Time
	// About the number of names: a clear beside an add may leave it off by some, which moves the next clear.
	count atomic.Int64
}

// now is read before the statement that may make sure, here and in add, so that the hour begins before the row was seen.
func (k *knownQueues) has(name string, now time.Time) bool {
	since, ok := k.since.Load(name)
	return ok && now.Sub(since.(time.Time)) < knownFor
}

func (k *knownQueues) add(names []string, now time.Time) {
	for _, name := range names {
		if _, known := k.since.Swap(name, now); !known && k.count.Add(1) > maxKnown {
			k.clear()
		}
	}
}

// A queue was deleted or changed, perhaps by another node (QueueChanged).
func (k *knownQueues) remove(name string) {
	if _, known := k.since.LoadAndDelete(name); known {
		k.count.Add(-1)
	}
}

func (k *knownQueues) clear() {
	k.since.Clear()
	k.count.Store(0)
}
