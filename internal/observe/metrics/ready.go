package metrics

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

// readySurvey caches the positions of the heads of the queues. Under a pinned xmin a full read, from the start of the index,
// reads all dead entries there (0.6 µs each); a read from an earlier head reads few. Only a full read finds jobs that became
// visible late, and lanes and priorities that had no jobs before. Full reads take a twentieth of the time at most.
// It belongs to the reader of the gauge that has passed cached.begin, so it needs no lock.
type readySurvey struct {
	heads map[readyLevel]ReadyHead
	at    time.Time     // of the last full read
	took  time.Duration // by it
}

type readyLevel struct {
	queue    string
	lane     string
	priority int16
}

// Heads of lanes that have become empty stay in the map until the next full read, and give no age.
func (s *readySurvey) ages(ctx context.Context, st *Database, queues []string) (map[string]time.Duration, error) {
	if len(queues) == 0 {
		return nil, nil
	}
	heads, err := s.read(ctx, st, queues)
	if err != nil {
		return nil, err
	}
	ages := make(map[string]time.Duration, len(queues))
	for _, h := range heads {
		s.heads[readyLevel{h.Queue, h.Lane, h.Priority}] = h
		ages[h.Queue] = max(ages[h.Queue], h.Age)
	}
	return ages, nil
}

// errTooSlow says that the next full read has to wait, and that no earlier one has succeeded.
var errTooSlow = errors.New("the index of ready jobs has too many dead entries")

// The failed full read counts too, or a read that always times out would be tried at every scrape.
func (s *readySurvey) read(ctx context.Context, st *Database, queues []string) ([]ReadyHead, error) {
	err := errTooSlow
	if time.Since(s.at) >= share*s.took {
		var heads []ReadyHead
		start := time.Now()
		heads, err = st.ReadyHeads(ctx, queues)
		s.at = time.Now()
		s.took = s.at.Sub(start)
		if err == nil {
			s.heads = map[readyLevel]ReadyHead{}
			return heads, nil
		}
	}
	if s.heads == nil {
		return nil, err
	}
	return st.ReadyHeadsFrom(ctx, slices.Collect(maps.Values(s.heads)))
}
