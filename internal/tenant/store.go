package tenant

import (
	"context"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// Store tells what belongs to a tenant. Use New. It only reads, apart from Configure, and keeps nothing between calls.
type Store struct {
	db     *pg.DB
	owners *batch.Batcher[[16]byte, owner] // of jobs; calls of tenants ask before each ack, so the questions share statements
}

// owner is the tenant of a job. exists is false for an unknown id; tenant "" is a job that belongs to none.
type owner struct {
	tenant string
	exists bool
}

// New returns a store on the database.
func New(db *pg.DB) *Store {
	s := &Store{db: db}
	s.owners = batch.New(batch.Config[[16]byte, owner]{Flush: s.flushOwners, Retry: pg.IsTransient})
	return s
}

// Jobs returns those of the ids that are jobs of a tenant. The tenant of a job never changes, so the answer holds for what the
// caller does next. An id that is unknown is missing, like one of somebody else: callers must answer both alike, or ids of
// others could be found out.
func (s *Store) Jobs(ctx context.Context, tenant string, ids [][16]byte) (map[[16]byte]bool, error) {
	own := make(map[[16]byte]bool, len(ids))
	if len(ids) == 0 {
		return own, nil
	}
	// errs is nil if all went well.
	owners, errs := s.owners.DoMany(ctx, ids)
	for i, o := range owners {
		if errs != nil && errs[i] != nil {
			return nil, pg.ClientError(errs[i])
		}
		if o.exists && o.tenant == tenant {
			own[ids[i]] = true
		}
	}
	return own, nil
}

// flushOwners looks for finished jobs in a second statement, because their table has a partition for each day. A job that ends in
// between is found by one of the two. The order is the point: a job moves from the live table to the other and never back,
// so looking there first and then here misses none.
func (s *Store) flushOwners(ctx context.Context, ids [][16]byte) ([]owner, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	found := make(map[[16]byte]owner, len(ids))
	live, err := s.db.Q.TenantListJobs(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, r := range live {
		found[r.ID] = owner{r.Tenant, true}
	}
	var rest [][16]byte
	for _, id := range ids {
		if !found[id].exists {
			rest = append(rest, id)
		}
	}
	if len(rest) > 0 {
		done, err := s.db.Q.TenantListDone(ctx, rest)
		if err != nil {
			return nil, err
		}
		for _, r := range done {
			found[r.ID] = owner{r.Tenant, true}
		}
	}
	owners := make([]owner, len(ids))
	for i, id := range ids {
		owners[i] = found[id]
	}
	return owners, nil
}

// HasJob reports whether a job is a tenant's. False for an unknown id.
func (s *Store) HasJob(ctx context.Context, tenant string, id [16]byte) (bool, error) {
	o, err := s.owners.Do(ctx, id)
	return o.exists && o.tenant == tenant, pg.ClientError(err)
}

// HasWorkflow reports whether a workflow, root or nested, is a tenant's.
func (s *Store) HasWorkflow(ctx context.Context, tenant string, id [16]byte) (bool, error) {
	return s.has(ctx, func(ctx context.Context, q *dbsqlc.Queries) (bool, error) {
		return q.TenantHasWorkflow(ctx, id, tenant)
	})
}

// HasWebhook reports whether a subscription is a tenant's.
func (s *Store) HasWebhook(ctx context.Context, tenant string, id [16]byte) (bool, error) {
	return s.has(ctx, func(ctx context.Context, q *dbsqlc.Queries) (bool, error) { return q.TenantHasWebhook(ctx, id, tenant) })
}

// HasDelivery reports whether a delivery is one of a tenant's subscription.
func (s *Store) HasDelivery(ctx context.Context, tenant string, id [16]byte) (bool, error) {
	return s.has(ctx, func(ctx context.Context, q *dbsqlc.Queries) (bool, error) {
		return q.TenantHasDelivery(ctx, id, tenant)
	})
}

// A look outside of the transaction of the change is enough: what belongs to a tenant is fixed at the insert.
func (s *Store) has(ctx context.Context, ask func(ctx context.Context, q *dbsqlc.Queries) (bool, error)) (bool, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	found, err := ask(ctx, s.db.Q)
	return found, pg.ClientError(err)
}
