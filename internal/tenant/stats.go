package tenant

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Counts are the jobs of a tenant per state, or those of one of its queues. A state that is missing in ByState has no jobs.
type Counts struct {
	Name    string // of the tenant, or of the queue
	Total   int64
	ByState map[ojs.JobState]int64
}

// ByState must not be nil.
func (c *Counts) add(state string, n int64) {
	c.Total += n
	c.ByState[ojs.JobState(state)] += n
}

// Stats are the figures of a tenant.
type Stats struct {
	Counts
	Queues []Counts // by name; those with jobs
}

// Page is a part of the list of tenants, by name. The list and the total come from two statements.
type Page struct {
	Tenants []Counts // as of the last published event
	Total   int64    // of all tenants; exact up to queue.CountLimit
	More    bool
}

// Filter selects a page of tenants, or of the queues of one. Of After and Offset at most one counts. Limit is at least 1.
type Filter struct {
	After         string // by name; "": from the first
	Offset, Limit int
}

// List lists the tenants that have had jobs. A tenant whose jobs were all removed stays in the list, with zeros.
func (s *Store) List(ctx context.Context, f Filter) (page Page, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	rows, err := s.db.Q.TenantList(ctx, dbsqlc.TenantListParams{After: f.After, SkipRows: int32(f.Offset), UptoRows: int32(f.Offset+f.Limit) + 1})
	if err != nil {
		return page, pg.ClientError(err)
	}
	// The statement returns a row per state, by tenant, and one without a state for a tenant without jobs.
	for _, r := range rows {
		if n := len(page.Tenants); n == 0 || page.Tenants[n-1].Name != r.Tenant {
			page.Tenants = append(page.Tenants, Counts{Name: r.Tenant, ByState: map[ojs.JobState]int64{}})
		}
		if r.State != "" {
			page.Tenants[len(page.Tenants)-1].add(r.State, r.Count)
		}
	}
	if page.More = len(page.Tenants) > f.Limit; page.More {
		page.Tenants = page.Tenants[:f.Limit]
	}
	page.Total, err = s.db.Q.TenantCount(ctx, queue.CountLimit)
	return page, pg.ClientError(err)
}

// Stats reads the figures of a tenant in one snapshot, so the counts are exact. The error of a tenant that has never had a job is
// spec.NotFound. Counts of published events plus those of the events behind the watermark make them exact.
func (s *Store) Stats(ctx context.Context, tenant string) (Stats, error) {
	stats := Stats{Counts: Counts{Name: tenant, ByState: map[ojs.JobState]int64{}}, Queues: []Counts{}}
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return stats, pg.ClientError(err)
	}
	defer done()
	rows, known, err := s.counts(ctx, tenant, "")
	if err != nil {
		return stats, pg.ClientError(err)
	}
	// A tenant without jobs now, but with jobs before, has zeros.
	if len(rows) == 0 && !known {
		return stats, spec.NotFound("tenant", tenant)
	}
	for _, r := range rows {
		if n := len(stats.Queues); n == 0 || stats.Queues[n-1].Name != r.Queue {
			stats.Queues = append(stats.Queues, Counts{Name: r.Queue, ByState: map[ojs.JobState]int64{}})
		}
		stats.Queues[len(stats.Queues)-1].add(r.State, r.Count)
		stats.add(r.State, r.Count)
	}
	return stats, nil
}

// counts reads the jobs per queue and state, and whether the tenant has ever had one. queue "" means all. The second
// statement runs only if there are no jobs.
func (s *Store) counts(ctx context.Context, tenant, queue string) (rows []dbsqlc.TenantCountListRow, known bool, err error) {
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if rows, err = q.TenantCountList(ctx, tenant, queue); err != nil || len(rows) > 0 {
			return err
		}
		known, err = q.TenantExists(ctx, tenant)
		return err
	})
	return rows, known, err
}

// OfQueue gives the figures of a queue with the counts of a tenant's jobs, and without rates: those are of the jobs of all.
// A queue in which the tenant has had no job is unknown to it: 404. stats is what queue.Store has read of all jobs before;
// what it says of the status of the queue stays.
func (s *Store) OfQueue(ctx context.Context, tenant string, stats queue.Stats) (queue.Stats, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, _, err := s.counts(ctx, tenant, stats.Name)
	if err == nil && len(rows) == 0 {
		var known bool
		if known, err = s.db.Q.TenantHasQueue(ctx, tenant, stats.Name); err == nil && !known {
			return stats, spec.NotFound("queue", stats.Name)
		}
	}
	// The map is replaced and not changed, because stats may be shared with other callers.
	stats.Counts, stats.Rates = make(map[ojs.JobState]int64, len(rows)), dbsqlc.QueueGetRatesRow{}
	for _, r := range rows {
		stats.Counts[ojs.JobState(r.State)] = r.Count
	}
	return stats, pg.ClientError(err)
}

// Queue is a queue in which a tenant has had jobs.
type Queue struct {
	Name      string
	Status    string
	CreatedAt pgtype.Timestamptz
	Available int64 // jobs of the tenant, as of the last published event
}

// QueuePage is a page of the queues in which a tenant has had jobs.
type QueuePage struct {
	Queues []Queue
	Total  int64 // exact up to queue.CountLimit
	More   bool
}

// QueuesPage lists the queues in which a tenant has had jobs, by name.
func (s *Store) QueuesPage(ctx context.Context, tenant string, f Filter) (page QueuePage, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	if page.Queues, page.More, err = s.queues(ctx, tenant, f); err != nil {
		return page, pg.ClientError(err)
	}
	page.Total, err = s.db.Q.TenantQueueCount(ctx, tenant, queue.CountLimit)
	return page, pg.ClientError(err)
}

// QueuesAfter returns the queues in which a tenant has had jobs, by name, behind one, and whether there are more. It is
// List for callers that go on by name without a total.
func (s *Store) QueuesAfter(ctx context.Context, tenant, name string, limit int) (queues []Queue, more bool, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	queues, more, err = s.queues(ctx, tenant, Filter{After: name, Limit: limit})
	return queues, more, pg.ClientError(err)
}

// One row more than the limit tells whether there are more.
func (s *Store) queues(ctx context.Context, tenant string, f Filter) (queues []Queue, more bool, err error) {
	rows, err := s.db.Q.TenantQueueList(ctx, dbsqlc.TenantQueueListParams{Tenant: tenant, After: f.After, SkipRows: int32(f.Offset), UptoRows: int32(f.Offset+f.Limit) + 1})
	if err != nil {
		return nil, false, err
	}
	for _, r := range rows[:min(len(rows), f.Limit)] {
		queues = append(queues, Queue(r))
	}
	return queues, len(rows) > f.Limit, nil
}

// Configure stores the mode for ojs.enqueue. Nearly always it is stored already: then nothing is written, which a hot
// standby would refuse. A node calls it at its start. With nodes of different modes the one that starts last decides for
// SQL; HTTP and gRPC calls keep the mode of their node.
func (s *Store) Configure(ctx context.Context, m Mode) error {
	enabled, err := s.db.Q.TenancyGet(ctx)
	if err != nil || enabled == (m != Off) {
		return err
	}
	return s.db.Q.TenancyConfigure(ctx, m != Off)
}
