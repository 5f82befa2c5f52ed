package queue

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// countedByPriority is about how many entries of the fetch index one reading of the priorities of a queue counts: 8 ms in memory.
	countedByPriority = 100_000

	// maxPriorityLevels bounds the places that one reading looks at.
	// A queue has at most 201 priorities, but each of its lanes has its own.
	maxPriorityLevels = 1000

	// quickPriorityStats is what a reading may take; one that took longer is shown again, up to priorityStatsAge: readings take a twentieth
	// of the time at most. At 8 ms for 100 000 entries most queues are read for each request.
	quickPriorityStats = 5 * time.Millisecond
	priorityStatsAge   = 5 * time.Second

	// maxPriorityStats bounds the queues whose readings are kept.
	maxPriorityStats = 1000
)

// PriorityStats are the available jobs of a queue by priority (docs/reference/jobs.md, Jobs by priority).
type PriorityStats struct {
	Counts    []PriorityCount // highest priority first, without those that have no jobs
	Total     int64           // exact
	Estimated bool            // there are more jobs than were counted; the counts are not exact, but their sum is
}

// PriorityCount is the number of jobs of one priority.
type PriorityCount struct {
	Priority int16
	Count    int64
}

// priorityStats keeps the latest readings by queue.
// The zero value is ready.
type priorityStats struct {
	mu      sync.Mutex
	byQueue map[string]*priorityReading
}

type priorityReading struct {
	mu sync.Mutex // held while it is read anew
	// stats may be shown until then.
	until time.Time
	stats PriorityStats
}

// of is the reading of a queue. One that is dropped from the map stays in use by its callers; two may then be made at once.
func (p *priorityStats) of(queue string) *priorityReading {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.byQueue[queue]
	if r == nil {
		if p.byQueue == nil || len(p.byQueue) >= maxPriorityStats {
			p.byQueue = map[string]*priorityReading{}
		}
		r = &priorityReading{}
		p.byQueue[queue] = r
	}
	return r
}

// PriorityStats counts the available jobs of a queue by priority. The answer is at most 5 s old.
// Callers that come while it is read wait, and read it themselves if it took less than quickPriorityStats.
func (s *Store) PriorityStats(ctx context.Context, queue string) (PriorityStats, error) {
	r := s.priorities.of(queue)
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().Before(r.until) {
		return r.stats, nil
	}
	start := time.Now()
	stats, err := s.readPriorities(ctx, queue)
	if err != nil {
		return stats, pg.ClientError(err)
	}
	r.stats, r.until = stats, start
	if took := time.Since(start); took > quickPriorityStats {
		r.until = start.Add(min(priorityStatsAge, 20*took))
	}
	return stats, nil
}

// readPriorities reads kept counts and entries of the index in one snapshot, or their difference would mean nothing.
func (s *Store) readPriorities(ctx context.Context, queue string) (PriorityStats, error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return PriorityStats{}, err
	}
	defer done()
	var p priorityCounter
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		counts, err := q.QueueCountListByQueue(ctx, queue)
		if err != nil {
			return err
		}
		total := int64(0)
		for _, c := range counts {
			if c.State == string(ojs.StateAvailable) {
				total = c.Count
			}
		}
		levels, err := q.JobPriorityList(ctx, dbsqlc.JobPriorityListParams{Queue: queue, MaxLevels: maxPriorityLevels,
			MaxCounted: countedByPriority})
		if err != nil {
			return err
		}
		p.addLevels(levels)
		// The levels have all jobs. Otherwise the rest is beyond what was counted, or waits for a limit outside of the fetch
		// index.
		if p.rest = total - p.counted; p.rest <= 0 {
			return nil
		}
		waiting, err := q.JobPriorityListWaiting(ctx, queue, countedByPriority/10)
		p.addWaiting(waiting)
		return err
	})
	return p.stats(), err
}

// priorityCounter adds up what was read.
type priorityCounter struct {
	found   map[int16]*priorityCount
	counted int64
	rest    int64 // jobs beyond those that were counted
}

type priorityCount struct {
	counted int64
	beyond  float64 // an estimate of the jobs that follow those that were counted
}

func (p *priorityCounter) at(priority int16) *priorityCount {
	c := p.found[priority]
	if c == nil {
		if p.found == nil {
			p.found = map[int16]*priorityCount{}
		}
		c = &priorityCount{}
		p.found[priority] = c
	}
	return c
}

// addLevels estimates what lies beyond the counted jobs of a level by how dense their numbers are.
func (p *priorityCounter) addLevels(levels []dbsqlc.JobPriorityListRow) {
	for _, l := range levels {
		c := p.at(l.Priority)
		c.counted += l.Counted
		c.beyond += float64(l.LastSeq-l.CountedSeq) * float64(l.Counted) / float64(l.CountedSeq-l.FirstSeq+1)
		p.counted += l.Counted
	}
}

// addWaiting adds the jobs that a rate limit keeps out of the levels.
// They have no place in the fetch index, so JobPriorityList does not count them. It stops when the total is reached, because the
// rows may hold more than the kept counts show.
func (p *priorityCounter) addWaiting(rows []dbsqlc.JobPriorityListWaitingRow) {
	for _, r := range rows {
		if n := min(r.Counted, p.rest); n > 0 {
			p.at(r.Priority).counted += n
			p.counted, p.rest = p.counted+n, p.rest-n
		}
	}
}

// stats divides the rest among the priorities: by the estimates or, if there are none, in proportion to what was counted.
func (p *priorityCounter) stats() PriorityStats {
	stats := PriorityStats{Counts: make([]PriorityCount, 0, len(p.found)), Total: p.counted + max(0, p.rest), Estimated: p.rest > 0}
	sum, weights := 0.0, map[int16]float64{}
	for priority, c := range p.found {
		weights[priority] = c.beyond
		sum += c.beyond
	}
	for priority, c := range p.found {
		if sum == 0 {
			weights[priority] = float64(c.counted) / float64(p.counted)
		} else {
			weights[priority] /= sum
		}
		stats.Counts = append(stats.Counts, PriorityCount{priority, c.counted})
	}
	slices.SortFunc(stats.Counts, func(a, b PriorityCount) int { return cmp.Compare(b.Priority, a.Priority) })
	if p.rest <= 0 || len(stats.Counts) == 0 {
		return stats
	}
	largest, left := 0, p.rest
	for i := range stats.Counts {
		c := &stats.Counts[i]
		n := int64(float64(p.rest) * weights[c.Priority])
		c.Count, left = c.Count+n, left-n
		if weights[c.Priority] > weights[stats.Counts[largest].Priority] {
			largest = i
		}
	}
	// The sum of the counts is exact although each part was rounded down.
	stats.Counts[largest].Count += left
	return stats
}
