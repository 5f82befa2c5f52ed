package queueadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/batch"
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// What a server knows of tenants (docs/reference/tenants.md): the rule of the header that names one, to which tenant something stored
// belongs, and the statistics of tenants. Nothing here changes what belongs to a tenant.
//
// A tenant is a name in the meta of a job, nothing that has to be created. The transports ask before they act for a caller with a name:
// whose the job, workflow, cron, subscription or worker is. Lists and events are confined by filters of their own statements instead.
//
// The look and the change that follows it are two statements. That is safe because to which tenant something belongs is decided at its
// insert and never changes; only a cron may be replaced, and package cron compares the tenant under its lock, and a worker belongs to the
// tenant that its latest heartbeat with one has named.

// TenantMode says whether calls name their tenant. It comes from the settings of the node and does not change while the node
// runs.
type TenantMode string

// The modes. The zero value is Optional.
const (
	TenantsOff      TenantMode = "off"      // the header is ignored, and nothing belongs to a tenant
	TenantsOptional TenantMode = "optional" // a call without the header is that of an operator
	TenantsRequired TenantMode = "required" // so is this, but it must not enqueue
)

// Caller is the tenant that a call names by the values of its header; "": it names none. A header without a name is refused, because
// a client with an empty variable must not become an operator. Two headers are refused as well: two proxies could each have
// set one.
func (m TenantMode) Caller(values []string) (string, error) {
	// Off comes first: the header then has no meaning, also with a bad value.
	if m == TenantsOff || len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 || !job.ValidTenant(values[0]) {
		var received any = values[0]
		if len(values) > 1 {
			received = strconv.Itoa(len(values)) + " values"
		}
		const expected = "one name of 1 to 128 letters, digits, ., _ and -"
		return "", spec.InvalidRequest(job.TenantHeader, expected, received, job.TenantHeader+" must be "+expected+".")
	}
	return values[0], nil
}

// Limits are those for what a caller sends. The decoders of jobs apply them, so that HTTP, gRPC, crons and workflows keep
// one rule (docs/reference/tenants.md, Enqueue).
func (m TenantMode) Limits(l job.Limits, caller string) job.Limits {
	l.NoTenants, l.Tenant, l.TenantRequired = m == TenantsOff, caller, m == TenantsRequired
	return l
}

// ErrOperators refuses a call of a tenant that would show or change what is not the tenant's: 403. The transports decide
// which calls are meant (docs/reference/tenants.md, What a call reaches).
func ErrOperators() *ojs.Error {
	err := spec.NewError(ojs.ErrPermissionDenied, "This call is not for tenants: it is about the whole server.",
		map[string]any{"header": job.TenantHeader})
	err.Hint = "Leave out the header " + job.TenantHeader + " if you operate this server."
	return err
}

// Tenants tells what belongs to a tenant. Use NewTenants. It only reads, and keeps nothing between calls.
type Tenants struct {
	db     *pg.DB
	owners *batch.Batcher[[16]byte, owner] // of jobs; calls of tenants ask before each ack, so the questions share statements
}

// owner is the tenant of a job. exists is false for an unknown id; tenant "" is a job that belongs to none.
type owner struct {
	tenant string
	exists bool
}

// NewTenants returns a store on the database.
func NewTenants(db *pg.DB) *Tenants {
	s := &Tenants{db: db}
	s.owners = batch.New(batch.Config[[16]byte, owner]{Flush: s.flushOwners, Retry: pg.IsTransient})
	return s
}

// Jobs returns those of the ids that are jobs of a tenant. The tenant of a job never changes, so the answer holds for what the
// caller does next. An id that is unknown is missing, like one of somebody else: callers must answer both alike, or ids of
// others could be found out.
func (s *Tenants) Jobs(ctx context.Context, tenant string, ids [][16]byte) (map[[16]byte]bool, error) {
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
func (s *Tenants) flushOwners(ctx context.Context, ids [][16]byte) ([]owner, error) {
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
func (s *Tenants) HasJob(ctx context.Context, tenant string, id [16]byte) (bool, error) {
	o, err := s.owners.Do(ctx, id)
	return o.exists && o.tenant == tenant, pg.ClientError(err)
}

// HasWorkflow reports whether a workflow, root or nested, is a tenant's.
func (s *Tenants) HasWorkflow(ctx context.Context, tenant string, id [16]byte) (bool, error) {
	return s.has(ctx, func(ctx context.Context, q *dbsqlc.Queries) (bool, error) {
		return q.TenantHasWorkflow(ctx, id, tenant)
	})
}

// HasWebhook reports whether a subscription is a tenant's.
func (s *Tenants) HasWebhook(ctx context.Context, tenant string, id [16]byte) (bool, error) {
	return s.has(ctx, func(ctx context.Context, q *dbsqlc.Queries) (bool, error) { return q.TenantHasWebhook(ctx, id, tenant) })
}

// HasDelivery reports whether a delivery is one of a tenant's subscription.
func (s *Tenants) HasDelivery(ctx context.Context, tenant string, id [16]byte) (bool, error) {
	return s.has(ctx, func(ctx context.Context, q *dbsqlc.Queries) (bool, error) {
		return q.TenantHasDelivery(ctx, id, tenant)
	})
}

// has looks outside of the transaction of the change, which is enough: what belongs to a tenant is fixed at the insert.
func (s *Tenants) has(ctx context.Context, ask func(ctx context.Context, q *dbsqlc.Queries) (bool, error)) (bool, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	found, err := ask(ctx, s.db.Q)
	return found, pg.ClientError(err)
}

// TenantCounts are the jobs of a tenant per state, or those of one of its queues. A state that is missing in ByState has no jobs.
type TenantCounts struct {
	Name    string // of the tenant, or of the queue
	Total   int64
	ByState map[ojs.JobState]int64
}

// add needs a ByState that is not nil.
func (c *TenantCounts) add(state string, n int64) {
	c.Total += n
	c.ByState[ojs.JobState(state)] += n
}

// TenantStats are the figures of a tenant.
type TenantStats struct {
	TenantCounts
	Queues []TenantCounts // by name; those with jobs
}

// TenantPage is a part of the list of tenants, by name. The list and the total come from two statements.
type TenantPage struct {
	Tenants []TenantCounts // as of the last published event
	Total   int64          // of all tenants; exact up to queue.CountLimit
	More    bool
}

// TenantFilter selects a page of tenants, or of the queues of one. Of After and Offset at most one counts. Limit is at least 1.
type TenantFilter struct {
	After         string // by name; "": from the first
	Offset, Limit int
}

// List lists the tenants that have had jobs. A tenant whose jobs were all removed stays in the list, with zeros.
func (s *Tenants) List(ctx context.Context, f TenantFilter) (page TenantPage, err error) {
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return page, pg.ClientError(err)
	}
	defer done()
	rows, err := s.db.Q.TenantList(ctx, dbsqlc.TenantListParams{After: f.After, SkipRows: int32(f.Offset),
		UptoRows: int32(f.Offset+f.Limit) + 1})
	if err != nil {
		return page, pg.ClientError(err)
	}
	// The statement returns a row per state, by tenant, and one without a state for a tenant without jobs.
	for _, r := range rows {
		if n := len(page.Tenants); n == 0 || page.Tenants[n-1].Name != r.Tenant {
			page.Tenants = append(page.Tenants, TenantCounts{Name: r.Tenant, ByState: map[ojs.JobState]int64{}})
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
func (s *Tenants) Stats(ctx context.Context, tenant string) (TenantStats, error) {
	stats := TenantStats{TenantCounts: TenantCounts{Name: tenant, ByState: map[ojs.JobState]int64{}}, Queues: []TenantCounts{}}
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
			stats.Queues = append(stats.Queues, TenantCounts{Name: r.Queue, ByState: map[ojs.JobState]int64{}})
		}
		stats.Queues[len(stats.Queues)-1].add(r.State, r.Count)
		stats.add(r.State, r.Count)
	}
	return stats, nil
}

// counts reads the jobs per queue and state, and whether the tenant has ever had one. An empty name means all queues. The second
// statement runs only if there are no jobs.
func (s *Tenants) counts(ctx context.Context, tenant, name string) (rows []dbsqlc.TenantCountListRow, known bool, err error) {
	err = pg.InSnapshot(ctx, s.db.Pool, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		if rows, err = q.TenantCountList(ctx, tenant, name); err != nil || len(rows) > 0 {
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
func (s *Tenants) OfQueue(ctx context.Context, tenant string, stats queue.Stats) (queue.Stats, error) {
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

// TenantQueue is a queue in which a tenant has had jobs.
type TenantQueue struct {
	Name      string
	Status    string
	CreatedAt pgtype.Timestamptz
	Available int64 // jobs of the tenant, as of the last published event
}

// TenantQueuePage is a page of the queues in which a tenant has had jobs.
type TenantQueuePage struct {
	Queues []TenantQueue
	Total  int64 // exact up to queue.CountLimit
	More   bool
}

// QueuesPage lists the queues in which a tenant has had jobs, by name.
func (s *Tenants) QueuesPage(ctx context.Context, tenant string, f TenantFilter) (page TenantQueuePage, err error) {
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
func (s *Tenants) QueuesAfter(ctx context.Context, tenant, name string, limit int) (queues []TenantQueue, more bool, err error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	queues, more, err = s.queues(ctx, tenant, TenantFilter{After: name, Limit: limit})
	return queues, more, pg.ClientError(err)
}

// queues reads one row more than the limit, which tells whether there are more.
func (s *Tenants) queues(ctx context.Context, tenant string, f TenantFilter) (queues []TenantQueue, more bool, err error) {
	rows, err := s.db.Q.TenantQueueList(ctx, dbsqlc.TenantQueueListParams{Tenant: tenant, After: f.After, SkipRows: int32(f.Offset),
		UptoRows: int32(f.Offset+f.Limit) + 1})
	if err != nil {
		return nil, false, err
	}
	for _, r := range rows[:min(len(rows), f.Limit)] {
		queues = append(queues, TenantQueue(r))
	}
	return queues, len(rows) > f.Limit, nil
}

// shared are the reasons for which a job waits that are not its tenant's alone, with what tenants are told of them. The members of these
// reasons count the jobs and workers of others. A reason that is added to ojs.explain and tells of others must be added
// here, or tenants see it whole.
var shared = map[string]string{
	"queue_limited": "A limit of queue %s lets no job start now.",
	"no_workers":    "No living worker fetches queue %s. Workers that send no heartbeats are not known.",
	"workers_quiet": "The workers of queue %s are quiet or terminate.",
	"workers_busy":  "The workers of queue %s run as many jobs as they can.",
}

// TenantExplanation is why a job of a tenant is not running, as the tenant may see it: without counts of the jobs and workers of others,
// and with its limit key as the job has it. The order of members is kept. whole is the object of ojs.explain; members that are not named
// here are left out, so a new one stays hidden until somebody has decided about it. It has no access to the database and may be called by
// any caller that has checked whose the job is.
func TenantExplanation(whole []byte, tenant string) ([]byte, error) {
	var e struct {
		JobID      json.RawMessage              `json:"job_id"`
		Type       json.RawMessage              `json:"type"`
		Queue      string                       `json:"queue"`
		State      json.RawMessage              `json:"state"`
		Priority   json.RawMessage              `json:"priority"`
		Running    json.RawMessage              `json:"running"`
		Summary    string                       `json:"summary"`
		Reasons    []map[string]json.RawMessage `json:"reasons"`
		Estimate   json.RawMessage              `json:"estimate"`
		Deadline   json.RawMessage              `json:"deadline"`
		WorkflowID json.RawMessage              `json:"workflow_id"`
		ComputedAt json.RawMessage              `json:"computed_at"`
	}
	if err := json.Unmarshal(whole, &e); err != nil {
		return nil, fmt.Errorf("read explanation: %w", err)
	}
	for i, r := range e.Reasons {
		var code, message, key string
		// A member that is missing leaves its text empty.
		_, _, _ = json.Unmarshal(r["code"], &code), json.Unmarshal(r["message"], &message), json.Unmarshal(r["key"], &key)
		switch told, isShared := shared[code]; {
		case isShared:
			message = fmt.Sprintf(told, e.Queue)
			// All other members of the reason are left out: they count what others have.
			e.Reasons[i] = map[string]json.RawMessage{"code": r["code"], "message": quoted(message)}
		// The stored key has the tenant in front of the one that the job has sent.
		case code == "limited":
			own := strings.TrimPrefix(key, job.PartitionKey(tenant, "", nil))
			message = strings.Replace(message, key, own, 1)
			r["key"], r["message"] = quoted(own), quoted(message)
		}
		// The summary is the sentence of the first reason (docs/reference/jobs.md, Explain).
		if i == 0 {
			e.Summary = message
		}
	}
	out, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("show explanation: %w", err)
	}
	return out, nil
}

// quoted escapes characters such as <, which JSON permits.
func quoted(text string) json.RawMessage {
	b, _ := json.Marshal(text) // a string always encodes
	return b
}
