package metrics

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
)

// other is the label of all values beyond the limit.
const other = "__other__"

// limiter lets so many values of one label through, first come first served: raw values would make series without number.
type limiter struct {
	max  int
	mu   sync.Mutex
	seen map[string]struct{}
}

func newLimiter(most int) *limiter { return &limiter{max: most, seen: map[string]struct{}{}} }

func (l *limiter) label(value string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.seen[value]; known {
		return value
	}
	if len(l.seen) >= l.max {
		return other
	}
	l.seen[value] = struct{}{}
	return value
}

// vec has a cell per combination of labels.
type vec[K comparable, C any] struct {
	// limit replaces values beyond the limit of their label.
	limit func(K) K
	// labels are how a key is shown.
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

// at returns the cell of a key. The caller may keep it.
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

// each passes every key and cell.
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
