package workflow_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one := b.created(define(workflow.Chain, member(t, "a"), nested("n", define(workflow.Group, member(t, "x")))))
	two := b.created(define(workflow.Group, member(t, "b")))
	b.done("a")
	other := define(workflow.Group, member(t, "c"))
	other.Name = "other"
	three := b.created(other)
	_, _, err := b.Workflows.Cancel(t.Context(), two.ID, false, "me")
	require.NoError(t, err)

	list := func(f workflow.Filter) (names []string, page workflow.Page) {
		t.Helper()
		if f.Limit == 0 {
			f.Limit = 10
		}
		page, err := b.Workflows.List(t.Context(), f)
		require.NoError(t, err)
		for _, w := range page.Workflows {
			names = append(names, map[[16]byte]string{one.ID: "one", two.ID: "two", three.ID: "three"}[w.ID])
		}
		return names, page
	}
	names, page := list(workflow.Filter{})
	require.Equal(t, []string{"three", "two", "one"}, names, "roots, newest first")
	require.Equal(t, 3, page.Total)
	require.Equal(t, []int{1, 1, 2}, page.StepCounts)
	require.Nil(t, page.Next)
	require.NotNil(t, page.Workflows[2].StartedAt)
	require.Nil(t, page.Workflows[1].StartedAt)

	names, page = list(workflow.Filter{State: "running"})
	require.Equal(t, []string{"three", "one"}, names)
	require.Equal(t, 2, page.Total)
	names, _ = list(workflow.Filter{Type: "group", State: "cancelled"})
	require.Equal(t, []string{"two"}, names)
	names, page = list(workflow.Filter{Name: "other"})
	require.Equal(t, []string{"three"}, names)
	require.Equal(t, 1, page.Total)

	names, page = list(workflow.Filter{Limit: 2})
	require.Equal(t, []string{"three", "two"}, names)
	require.NotNil(t, page.Next)
	names, page = list(workflow.Filter{Limit: 2, Cursor: page.Next})
	require.Equal(t, []string{"one"}, names)
	require.Nil(t, page.Next)
	names, _ = list(workflow.Filter{Limit: 1, Offset: 1})
	require.Equal(t, []string{"two"}, names)
}

// TestBoundedList: a filter that matches few roots looks at a part of them at a time, and the pages together are complete.
func TestBoundedList(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, func(c *domaintest.Config) { c.Unchecked = true })
	// Each 90th root is rare, and of tenant small; each other one of tenant big; each third one has failed.
	b.Exec(`INSERT INTO ojs.workflows (id, root_id, tenant, flow, last_flow, ancestors, path, type, name, state, steps_form, total, open, job_count, callbacks, created_at, ended_at)
		SELECT i.id, i.id, CASE WHEN i.n % 90 = 0 THEN 'small' ELSE 'big' END, 0, 0, '{}', '', CASE WHEN i.n % 90 = 0 THEN 'batch' ELSE 'chain' END,
			CASE WHEN i.n % 90 = 0 THEN 'rare' ELSE 'crowd' END, CASE WHEN i.n % 3 = 0 THEN 'failed' ELSE 'completed' END, false, 3, 0, 3, '{}', now(), now()
		FROM (SELECT n, ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id FROM generate_series(1, 750) n) i`)
	var totals []int // of all pages since they were cleared
	pages := func(f workflow.Filter) (ids [][16]byte, n int) {
		t.Helper()
		for {
			page, err := b.Workflows.List(t.Context(), f)
			require.NoError(t, err)
			totals = append(totals, page.Total)
			n++
			for _, w := range page.Workflows {
				ids = append(ids, w.ID)
			}
			if f.Cursor = page.Next; f.Cursor == nil {
				return ids, n
			}
		}
	}
	filters := []struct {
		workflow.Filter
		name           string
		matches, pages int // pages of 100 roots that are looked at
	}{
		{workflow.Filter{Name: "rare"}, "Name", 8, 8},
		{workflow.Filter{Type: "batch"}, "Type", 8, 8},
		{workflow.Filter{Type: "none"}, "Nothing", 0, 8},
		{workflow.Filter{State: "failed", Name: "rare"}, "OfState", 8, 3},
		{workflow.Filter{State: "completed", Name: "rare"}, "NothingOfState", 0, 6},
		{workflow.Filter{Tenant: "small", Name: "rare"}, "OfTenant", 8, 1},
		{workflow.Filter{Tenant: "big", Name: "rare"}, "NothingOfTenant", 0, 8},
		{workflow.Filter{Tenant: "big", State: "failed", Name: "crowd"}, "OfTenantAndState", 242, 8},
		{workflow.Filter{Tenant: "big", State: "failed"}, "StateOfTenant", 242, 8},
		// The rest need no filter: an index has what matches.
		{workflow.Filter{}, "All", 750, 2},
		{workflow.Filter{State: "completed"}, "State", 500, 2},
		{workflow.Filter{Tenant: "small"}, "Tenant", 8, 1},
	}
	var want [][][16]byte
	for _, f := range filters {
		f.Limit = 1000
		ids, n := pages(f.Filter)
		require.Len(t, ids, f.matches, f.name)
		require.Equal(t, 1, n, f.name)
		require.Equal(t, []int{f.matches}, totals, f.name)
		want, totals = append(want, ids), nil
	}
	b.Workflows.LookAt(100)
	for i, f := range filters {
		f.Limit = 400
		ids, n := pages(f.Filter)
		require.Equal(t, want[i], ids, f.name)
		require.Equal(t, f.pages, n, f.name)
		first := 0 // matches among those that the first page looks at; each page has this total
		page, err := b.Workflows.List(t.Context(), workflow.Filter{Tenant: f.Tenant, State: f.State, Limit: 100})
		require.NoError(t, err)
		if f.Tenant != "" && f.State != "" {
			page, err = b.Workflows.List(t.Context(), workflow.Filter{Tenant: f.Tenant, Limit: 100})
			require.NoError(t, err)
		}
		for _, w := range page.Workflows {
			if slices.Contains(want[i], w.ID) {
				first++
			}
		}
		if f.Type == "" && f.Name == "" && (f.Tenant == "" || f.State == "") {
			first = min(f.matches, 100) // each root counts
		}
		for _, total := range totals {
			require.Equal(t, first, total, f.name)
		}
		f.Limit = 7
		ids, _ = pages(f.Filter)
		totals = nil
		require.Equal(t, want[i], ids, f.name)
	}
	// An empty page has a cursor, too.
	page, err := b.Workflows.List(t.Context(), workflow.Filter{Type: "none", Limit: 10})
	require.NoError(t, err)
	require.Empty(t, page.Workflows)
	require.NotNil(t, page.Next)
}

func TestTotalOfManyIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Exec(`INSERT INTO ojs.workflows (id, root_id, tenant, flow, last_flow, ancestors, path, type, name, state, steps_form, total, open, job_count, callbacks, created_at, ended_at)
		SELECT i.id, i.id, 'big', 0, 0, '{}', '', 'chain', 'crowd', 'completed', false, 3, 0, 3, '{}', now(), now()
		FROM (SELECT ojs.new_id(now()) AS id FROM generate_series(1, 10010)) i`)
	for _, f := range []workflow.Filter{{}, {State: "completed"}, {Tenant: "big"}, {Name: "crowd"}} {
		f.Limit = 1
		page, err := b.Workflows.List(t.Context(), f)
		require.NoError(t, err)
		require.Equal(t, 10_000, page.Total, "%+v", f)
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()

	t.Run("RefusesTakenID", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		def := define(workflow.Group, member(t, "a"))
		def.ID, def.ClientID = job.NewID(), true
		w := b.created(def)
		require.Equal(t, def.ID, w.ID)
		_, err := b.Workflows.Create(t.Context(), def)
		require.Equal(t, "duplicate", domainError(t, err).Code)
		require.Equal(t, map[string]any{"field": "id", "existing_workflow_id": spec.FormatID(def.ID)}, domainError(t, err).Details)
		require.Equal(t, 1, b.Number(`SELECT count(*) FROM ojs.jobs`), "nothing else was stored")
	})

	t.Run("PassesMeta", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		def := define(workflow.Chain, member(t, "a"), member(t, "b"))
		def.Meta = []byte(`{"tenant_id":"t1","x":1,"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`)
		w := b.created(def)
		require.JSONEq(t, string(def.Meta), string(w.Meta))
		for _, kind := range []string{"a", "b"} {
			j := b.done(kind)
			require.JSONEq(t, `{"tenant_id":"t1","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`, string(j.Meta))
			require.Equal(t, "0af7651916cd43dd8448eb211c80319c", j.TraceID.String)
		}
		require.Equal(t, 4, b.Number(`SELECT count(*) FROM ojs.events WHERE subject IS NOT NULL AND trace_id = '0af7651916cd43dd8448eb211c80319c'`))
	})
}

// TestMetaOfMembers: a job keeps its own meta, and gets from the workflow what it lacks of it, whether it begins first or later.
func TestMetaOfMembers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	own := func(id string) workflow.Member {
		text := []byte(`{"type":"t.` + id + `","args":[1],"meta":{"x":"own","trace_id":"mine"},"options":{"queue":"q","retry":{"max_attempts":1}}}`)
		j, wire := job.DecodeItem(text, job.Limits{})
		require.Nil(t, wire)
		return workflow.Member{ID: id, Job: j, Template: text}
	}
	def := define(workflow.Chain, own("a"), own("b"))
	def.Meta = []byte(`{"x":"workflow","tenant_id":"t1","trace_id":"theirs"}`)
	b.created(def)
	for _, kind := range []string{"a", "b"} {
		require.JSONEq(t, `{"x":"own","trace_id":"mine","tenant_id":"t1"}`, string(b.done(kind).Meta), kind)
	}
}

func TestPrune(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old, young, running := b.created(define(workflow.Chain, member(t, "a"))), b.created(define(workflow.Chain, member(t, "b"))), b.created(define(workflow.Chain, member(t, "c")))
	late := b.next("a")
	b.done("b")
	_, _, err := b.Workflows.Cancel(t.Context(), old.ID, false, "me")
	require.NoError(t, err)
	b.Exec(`UPDATE ojs.workflows SET ended_at = ended_at - interval '2 days' WHERE id = $1`, old.ID)
	deleted, err := b.Workflows.Prune(t.Context(), 24*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 1, deleted)
	_, err = b.Workflows.Get(t.Context(), old.ID)
	require.Equal(t, "not_found", domainError(t, err).Code)
	require.Equal(t, "completed", b.read(young).State)
	require.Equal(t, "running", b.read(running).State)
	b.ack(late, "")
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.workflow_pending`))
}
