package metrics

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
)

// other is the label of all values beyond the limit.
const other = "__other__"

// limiter limits the values of one label to the first max: clients could create any number of series otherwise.
// Values are never forgotten: a series that moved to __other__ and back would look like a restart.
type limiter struct {
	max    int
	mu     sync.Mutex
	values map[string]struct{}
}

func newLimiter(limit int) *limiter { return &limiter{max: limit, values: map[string]struct{}{}} }

// Which values are the first depends on what this node has seen, so nodes may show different ones.
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
