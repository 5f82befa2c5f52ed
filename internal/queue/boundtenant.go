package queue

import (
	"context"
	"slices"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/ojs"
)

// tenantShare is the part of a bounded queue that a tenant has, while the row of the queue is locked. nil: the tenant has no bound.
//
// The zero bound never makes one: measureTenants returns early then, and all methods accept nil.
type tenantShare struct {
	tenant  string
	depth   int64 // with the jobs that were accepted so far
	entered int64 // these
	dropped int64 // jobs that made room
}

// share is the part of the queue that the tenant of a job has.
func (queue *boundedQueue) share(j *job.Job) *tenantShare { return queue.tenants[job.TenantOf(j.Lane)] }

// fits reports whether there is room for one more job of the tenant.
func (t *tenantShare) fits(p *queueconfig.Backpressure) bool {
	return t == nil || t.depth < p.MaxTenantDepth
}

// It is called for a job that was accepted, beside boundedQueue.take, which counts it for the queue.
func (t *tenantShare) enter() {
	if t != nil {
		t.depth, t.entered = t.depth+1, t.entered+1
	}
}

// leave gives back the room of a job of this insert.
func (t *tenantShare) leave() {
	if t != nil {
		t.depth, t.entered = t.depth-1, t.entered-1
	}
}

// full is the share of its bound that the tenant uses.
// More than 1 is possible: jobs that come back pass the bound.
func (t *tenantShare) full(p *queueconfig.Backpressure) float64 {
	if t == nil {
		return 0
	}
	return float64(t.depth) / float64(p.MaxTenantDepth)
}

// measureTenants reads how many jobs wait of the tenants whose jobs want to enter and, if the policy is to drop, makes room for these. It
// comes before the queue is measured, which then has what was dropped here.
// It sends a statement per tenant of the call, which is one unless several tenants share a flush.
func (b *boundCheck) measureTenants(ctx context.Context, queue *boundedQueue, jobs []*job.Job, todo []int) error {
	if queue.policy.MaxTenantDepth <= 0 {
		return nil
	}
	more := map[string]int64{}
	for _, i := range todo {
		if tenant := job.TenantOf(jobs[i].Lane); tenant != "" && jobs[i].Queue == queue.name && !jobs[i].Unbounded {
			room := int64(1)
			if queue.isTooLarge(jobs[i]) {
				room = 0 // no drop would help the job
			}
			more[tenant] += room
		}
	}
	queue.tenants = make(map[string]*tenantShare, len(more))
	for tenant, n := range more {
		own := &tenantShare{tenant: tenant}
		queue.tenants[tenant] = own
		// As exact as the counts of queues: the lock of the queue covers its tenants.
		counts, err := b.q.TenantCountList(ctx, tenant, queue.name)
		if err != nil {
			return err
		}
		for _, c := range counts {
			if slices.Contains(waitingStates, ojs.JobState(c.State)) {
				own.depth += c.Count
			}
		}
		if queue.policy.Strategy == queueconfig.DropOldest && n > 0 {
			if err := b.makeTenantRoom(ctx, queue, own, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeTenantRoom drops the oldest available jobs of a tenant in the queue for n new ones, as far as there are any.
// Unlike makeRoom it leaves the bytes of the queue alone: measure reads them afterwards.
func (b *boundCheck) makeTenantRoom(ctx context.Context, queue *boundedQueue, own *tenantShare, n int64) error {
	bound, after := queue.policy.MaxTenantDepth, int64(0)
	for {
		excess := own.depth + min(n, bound) - bound
		if excess <= 0 {
			return nil
		}
		oldest, err := b.q.JobListOldestByTenant(ctx, dbsqlc.JobListOldestByTenantParams{
			Queue: queue.name, Tenant: own.tenant, MaxLevels: maxDropLevels, AfterSeq: after, MaxRows: min(maxDropped, excess),
		})
		if err != nil || len(oldest) == 0 {
			return err
		}
		ids := make([][16]byte, len(oldest))
		for i, j := range oldest {
			ids[i], after = j.ID, j.Seq
		}
		rows, err := b.discard(ctx, queue, ids) // some may have been fetched or locked meanwhile
		if err != nil {
			return err
		}
		own.depth, own.dropped = own.depth-int64(len(rows)), own.dropped+int64(len(rows))
	}
}
