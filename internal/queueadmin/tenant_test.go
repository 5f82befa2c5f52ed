package queueadmin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/riverqueue/river/rivershared/startstop"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/ojs"
)

// inLane is a job in a lane of a queue.
func inLane(queue, lane string) *job.Job {
	j := domaintest.NewJob(queue)
	j.Lane = lane
	return j
}

// stored counts the rows of a tenant, as Stats should.
func stored(b *domaintest.Bundle, name string) string {
	return b.One(`SELECT COALESCE(string_agg(queue || ' ' || state || ' ' || n, ', ' ORDER BY queue, state), '') FROM (
		SELECT queue, state, count(*) AS n FROM (SELECT queue, state, lane FROM ojs.jobs UNION ALL SELECT queue, state, lane FROM ojs.jobs_done) j
		WHERE split_part(lane, '/', 1) = $1 GROUP BY 1, 2) c`, name)
}

func counted(t *testing.T, b *domaintest.Bundle, name string) (text string) {
	t.Helper()
	stats, err := b.Tenants.Stats(t.Context(), name)
	require.NoError(t, err)
	total := int64(0)
	for _, q := range stats.Queues {
		total += q.Total
		for _, state := range []ojs.JobState{"active", "available", "cancelled", "completed", "discarded", "pending", "retryable", "scheduled"} {
			if n := q.ByState[state]; n != 0 {
				text += fmt.Sprintf(", %s %s %d", q.Name, state, n)
			}
		}
	}
	require.Equal(t, stats.Total, total)
	if text == "" {
		return ""
	}
	return text[2:]
}

// TestStats: the counts of a tenant are those of its rows whatever happens to its jobs, published or not.
func TestStats(t *testing.T) {
	t.Parallel()
	var relay *eventlog.Relay
	b := domaintest.New(t, func(c *domaintest.Config) { c.Committed = func() { relay.Wake() } })
	relay = eventlog.NewRelay(b.Archetype, b.Pool, eventlog.RelayConfig{Events: config.Default().Events})
	_, err := b.Tenants.Stats(t.Context(), "acme")
	require.True(t, errors.Is(err, &ojs.Error{Code: "not_found"}), "%v", err)
	var jobs []*job.Job
	for i := range 30 {
		jobs = append(jobs, inLane(fmt.Sprint("q", i%2), []string{"acme", "acme/key", "other", "", "/key"}[i%5]))
	}
	all := b.Enqueued(jobs...)
	check := func() {
		t.Helper()
		for _, name := range []string{"acme", "other"} {
			require.Equal(t, stored(b, name), counted(t, b, name), name)
		}
	}
	check()
	require.NoError(t, startstop.StartAll(context.WithoutCancel(t.Context()), relay))
	t.Cleanup(relay.Stop)
	fetched := b.Fetched(12, "q0", "q1")
	for i, j := range fetched {
		if i%3 == 0 {
			_, err = b.Complete(t.Context(), job.Ack{JobID: j.ID, Attempt: job.AnyAttempt})
		} else if i%3 == 1 {
			_, err = b.Fail(t.Context(), job.Nack{JobID: j.ID, Attempt: job.AnyAttempt, Requeue: true})
		}
		require.NoError(t, err)
	}
	check()
	_, err = b.Cancel(t.Context(), all[25].ID, queue.Cancel{By: "t"})
	require.NoError(t, err)
	check()
	require.Eventually(t, func() bool {
		return b.Number(`SELECT count(*) FROM ojs.events WHERE seq > (SELECT watermark FROM ojs.event_relay)`) == 0
	}, domaintest.WaitFor, 10_000_000)
	check()
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.tenant_counts WHERE tenant NOT IN ('acme', 'other')`), "jobs without a tenant are in no row")

	page, err := b.Tenants.List(t.Context(), queueadmin.TenantFilter{Limit: 1})
	require.NoError(t, err)
	require.True(t, page.More)
	require.EqualValues(t, 2, page.Total)
	require.Equal(t, "acme", page.Tenants[0].Name)
	require.EqualValues(t, 12, page.Tenants[0].Total)
	for _, f := range []queueadmin.TenantFilter{{After: "acme", Limit: 1}, {Offset: 1, Limit: 1}} {
		page, err = b.Tenants.List(t.Context(), f)
		require.NoError(t, err)
		require.False(t, page.More)
		require.Equal(t, "other", page.Tenants[0].Name)
	}
	queues, more, err := b.Tenants.QueuesAfter(t.Context(), "other", "", 1)
	require.NoError(t, err)
	require.True(t, more)
	require.Equal(t, "q0", queues[0].Name)
	queues, more, err = b.Tenants.QueuesAfter(t.Context(), "other", "q0", 1)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, "q1", queues[0].Name)
}

// TestQueuesOfATenant: they are listed by name, page by page, with their number and their available jobs.
func TestQueuesOfATenant(t *testing.T) {
	t.Parallel()
	b := domaintest.New(t)
	b.Exec(`INSERT INTO ojs.queues (name) SELECT 'q' || n FROM generate_series(1, 9) n`)
	b.Exec(`INSERT INTO ojs.tenant_counts (tenant, queue, state, count) SELECT 'acme', 'q' || n, s.state, n FROM generate_series(1, 7) n, (VALUES ('available'), ('active')) s (state)`)
	b.Exec(`INSERT INTO ojs.tenant_counts (tenant, queue, state, count) SELECT 'bcme', 'q' || n, 'available', 100 FROM generate_series(5, 9) n`)
	for _, f := range []queueadmin.TenantFilter{{Limit: 3}, {Limit: 3, Offset: 3}, {Limit: 3, Offset: 6}, {Limit: 7}, {Limit: 3, After: "q4"}} {
		page, err := b.Tenants.QueuesPage(t.Context(), "acme", f)
		require.NoError(t, err)
		first := f.Offset + 1
		if f.After != "" {
			first = 5
		}
		last := min(7, first+f.Limit-1)
		require.EqualValues(t, 7, page.Total)
		require.Equal(t, last < 7, page.More)
		require.Len(t, page.Queues, last-first+1)
		for i, q := range page.Queues {
			require.Equal(t, fmt.Sprint("q", first+i), q.Name)
			require.EqualValues(t, first+i, q.Available)
		}
	}
	page, err := b.Tenants.QueuesPage(t.Context(), "none", queueadmin.TenantFilter{Limit: 3})
	require.NoError(t, err)
	require.Zero(t, page.Total)
	require.Empty(t, page.Queues)
}

// TestListsOfATenant: a tenant with few jobs finds them on the first page, behind any number of jobs of another one.
func TestListsOfATenant(t *testing.T) {
	t.Parallel()
	b := domaintest.New(t)
	own := b.Enqueued(inLane("q", "small"), inLane("q", "small/key"), inLane("q", "small.er"))
	for range 5 {
		var many []*job.Job
		for range 100 {
			many = append(many, inLane("q", "large"))
		}
		b.Enqueued(many...)
	}
	_, err := b.Cancel(t.Context(), own[0].ID, queue.Cancel{By: "t"})
	require.NoError(t, err)
	page, err := b.List(t.Context(), queue.List{Tenant: "small", Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Jobs, 2)
	require.EqualValues(t, 2, page.Total)
	require.Nil(t, page.Next)
	require.Equal(t, own[1].ID, page.Jobs[0].ID)
	page, err = b.List(t.Context(), queue.List{Tenant: "small", States: []string{"cancelled"}, Limit: 1})
	require.NoError(t, err)
	require.Len(t, page.Jobs, 1)
	page, err = b.List(t.Context(), queue.List{Tenant: "small", Limit: 1})
	require.NoError(t, err)
	page, err = b.List(t.Context(), queue.List{Tenant: "small", Before: page.Next, Limit: 1})
	require.NoError(t, err)
	require.Equal(t, own[0].ID, page.Jobs[0].ID)
	ids, more, err := b.Candidates(t.Context(), job.BulkFilter{Tenant: "small", States: []ojs.JobState{"available", "cancelled"}}, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Equal(t, [][16]byte{own[0].ID, own[1].ID}, ids)
	owned, err := b.Tenants.Jobs(t.Context(), "small", [][16]byte{own[0].ID, own[1].ID, own[2].ID, {1}})
	require.NoError(t, err)
	require.Equal(t, map[[16]byte]bool{own[0].ID: true, own[1].ID: true}, owned)
}

// A tenant whose jobs are all gone is listed, without jobs.
func TestListOfATenantWithoutJobs(t *testing.T) {
	t.Parallel()
	b := domaintest.New(t)
	b.Exec(`INSERT INTO ojs.tenant_counts (tenant, queue, state, count) VALUES ('acme', 'q', 'available', 0), ('other', 'q', 'active', 2), ('other', 'p', 'active', -2), ('third', 'q', 'active', 3)`)
	page, err := b.Tenants.List(t.Context(), queueadmin.TenantFilter{Limit: 10})
	require.NoError(t, err)
	require.EqualValues(t, 3, page.Total)
	require.Equal(t, []string{"acme", "other", "third"}, []string{page.Tenants[0].Name, page.Tenants[1].Name, page.Tenants[2].Name})
	require.Equal(t, []int64{0, 0, 3}, []int64{page.Tenants[0].Total, page.Tenants[1].Total, page.Tenants[2].Total})
	require.Empty(t, page.Tenants[0].ByState)
	require.Empty(t, page.Tenants[1].ByState)
}
