package queue

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// countedByPriority is about how many entries of the fetch index one reading of the priorities of a queue counts: 30 ms.
	countedByPriority = 100_000

	// maxPriorityLevels bounds the places that one reading looks at.
	maxPriorityLevels = 1000

	// A reading that took long is shown again, up to priorityStatsAge: readings take a twentieth of the time at most.
	quickPriorityStats = 5 * time.Millisecond
	priorityStatsAge   = 5 * time.Second

	// maxPriorityStats bounds the queues whose readings are kept.
	maxPriorityStats = 1000
)

// PriorityStats are the available jobs of a queue by priority (docs/reference/jobs.md, Jobs by priority).
type PriorityStats struct {
	Counts    []PriorityCount // highest priority first, without those that have no jobs
	Total     int64           // exact
	Estimated bool            // the counts are not exact, but their sum is
}

// PriorityCount is the number of jobs of one priority.
type PriorityCount struct {
	Priority int16
	Count    int64
}

// priorityStats keeps the latest readings by queue.
type priorityStats struct {
	mu      sync.Mutex
	byQueue map[string]*priorityReading
}

type priorityReading struct {
	mu    sync.Mutex // held while it is read anew
	until time.Time
	stats PriorityStats
}

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

func (s *Store) readPriorities(ctx context.Context, queue string) (PriorityStats, error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return PriorityStats{}, err
	}
	defer done()
	var levels []dbsqlc.JobPriorityListRow
	total := int64(0)
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		counts, err := q.QueueCountListByQueue(ctx, queue)
		if err != nil {
			return err
		}
		for _, c := range counts {
			if c.State == string(ojs.StateAvailable) {
				total = c.Count
			}
		}
		levels, err = q.JobPriorityList(ctx, dbsqlc.JobPriorityListParams{Queue: queue, MaxLevels: maxPriorityLevels, MaxCounted: countedByPriority})
		return err
	})
	return newPriorityStats(levels, total), err
}

// newPriorityStats adds to what was counted the jobs beyond, of which only the sum is known. They are divided among the priorities by
// how dense the numbers of the counted jobs are. Jobs that no fetch can find at the moment, because of a limit or of their cron, are divided like the others.
func newPriorityStats(levels []dbsqlc.JobPriorityListRow, total int64) PriorityStats {
	stats := PriorityStats{Counts: []PriorityCount{}, Total: total}
	var weights []float64
	counted := int64(0)
	for _, l := range levels {
		n := len(stats.Counts)
		if n == 0 || stats.Counts[n-1].Priority != l.Priority {
			stats.Counts, weights, n = append(stats.Counts, PriorityCount{Priority: l.Priority}), append(weights, 0), n+1
		}
		stats.Counts[n-1].Count += l.Counted
		weights[n-1] += float64(l.LastSeq-l.CountedSeq) * float64(l.Counted) / float64(l.CountedSeq-l.FirstSeq+1)
		counted += l.Counted
	}
	rest := total - counted
	if rest <= 0 {
		stats.Total = counted
		return stats
	}
	exact := 0
	for _, w := range weights {
		if w > 0 {
			exact++
		}
	}
	stats.Estimated = exact != 1
	divide(stats.Counts, weights, rest)
	return stats
}

// divide adds rest to the counts in proportion to the weights.
func divide(counts []PriorityCount, weights []float64, rest int64) {
	sum := 0.0
	for _, w := range weights {
		sum += w
	}
	if sum == 0 {
		for i := range counts {
			weights[i] = float64(counts[i].Count)
			sum += weights[i]
		}
	}
	largest, left := 0, rest
	for i, w := range weights {
		share := int64(float64(rest) * w / sum)
		counts[i].Count, left = counts[i].Count+share, left-share
		if w > weights[largest] {
			largest = i
		}
	}
	if len(counts) > 0 {
		counts[largest].Count += left
	}
}
