package ojs_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// record is middleware that writes down when it runs.
func record(order *[]string, name string) ojs.MiddlewareFunc {
	return func(ctx ojs.JobContext, next ojs.HandlerFunc) error {
		*order = append(*order, name+"-before")
		err := next(ctx)
		*order = append(*order, name+"-after")
		return err
	}
}

// TestExecutionMiddleware is the checklist's next() chain on the worker side.
func TestExecutionMiddleware(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	w := ojs.NewWorker(c, ojs.WorkerConfig{Concurrency: 1})
	var order []string
	w.Use(record(&order, "first"), record(&order, "second"))
	type key struct{}
	w.Use(func(ctx ojs.JobContext, next ojs.HandlerFunc) error {
		ctx.Context = context.WithValue(ctx, key{}, ctx.Job.Type)
		err := next(ctx)
		order = append(order, "result "+string(ctx.Result()))
		return err
	})
	w.Register("a", func(ctx ojs.JobContext) error {
		order = append(order, "handler "+ctx.Value(key{}).(string))
		return ctx.SetResult(7)
	})
	_, err := c.Enqueue(t.Context(), "a", nil)
	require.NoError(t, err)
	s.Drain(t, w)
	require.Equal(t, []string{"first-before", "second-before", "handler a", "result 7", "second-after", "first-after"}, order)

	_, err = c.Enqueue(t.Context(), "b", nil)
	require.NoError(t, err)
	w2 := ojs.NewWorker(c, ojs.WorkerConfig{})
	w2.Use(func(ojs.JobContext, ojs.HandlerFunc) error { return ojs.Discard(errors.New("not today")) })
	w2.Register("b", func(ojs.JobContext) error { panic("is never reached") })
	s.Drain(t, w2)
	require.Equal(t, "DISCARD", s.RequireEnqueued(t, "b", ojstest.InState(ojs.StateDiscarded)).Error.Code)
}

func TestMiddlewareChain(t *testing.T) {
	t.Parallel()
	_, c := setup(t)
	w := ojs.NewWorker(c, ojs.WorkerConfig{})
	none := func(ctx ojs.JobContext, next ojs.HandlerFunc) error { return next(ctx) }
	w.UseNamed("logging", none)
	w.UseNamed("metrics", none)
	chain := &w.Middleware
	chain.InsertBefore("metrics", "tracing", none)
	chain.InsertAfter("metrics", "last", none)
	chain.Use(none)
	require.Equal(t, []string{"logging", "tracing", "metrics", "last", ""}, chain.Names())
	require.True(t, chain.Remove("logging"))
	require.False(t, chain.Remove("logging"))
	require.False(t, chain.Remove(""))
	require.Equal(t, []string{"tracing", "metrics", "last", ""}, chain.Names())
	require.Panics(t, func() { chain.UseNamed("metrics", none) }, "the name is taken")
	require.Panics(t, func() { chain.InsertBefore("last", "metrics", none) }, "the name is taken")
	require.Panics(t, func() { chain.InsertBefore("gone", "x", none) }, "there is none of that name")
	require.Panics(t, func() { chain.InsertAfter("", "x", none) }, "those without a name cannot be found")
	require.Equal(t, []string{"tracing", "metrics", "last", ""}, chain.Names())
}

// TestEnqueueMiddleware is the checklist's next() chain on the client side.
func TestEnqueueMiddleware(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	var order []string
	c.UseNamed("trace", func(ctx context.Context, r *ojs.JobRequest, next ojs.EnqueueFunc) (*ojs.Job, error) {
		order = append(order, "trace-before")
		r.SetMeta("trace_id", "t1")
		job, err := next(ctx, r)
		order = append(order, "trace-after")
		return job, err
	})
	c.Middleware.InsertAfter("trace", "guard", func(ctx context.Context, r *ojs.JobRequest, next ojs.EnqueueFunc) (*ojs.Job, error) {
		order = append(order, "guard "+r.Type)
		switch r.Type {
		case "refused":
			return nil, errors.New("not allowed")
		case "answered":
			return &ojs.Job{ID: "cached"}, nil
		}
		return next(ctx, r)
	})
	meta := map[string]any{"mine": 1}
	job, err := c.Enqueue(t.Context(), "a", nil, func(r *ojs.JobRequest) { r.Meta = meta })
	require.NoError(t, err)
	require.Equal(t, "t1", job.Meta["trace_id"])
	require.Equal(t, map[string]any{"mine": 1}, meta, "the caller's map stays as it is")
	require.Equal(t, []string{"trace-before", "guard a", "trace-after"}, order)

	order = nil
	jobs, err := c.EnqueueBatch(t.Context(), []ojs.JobRequest{{Type: "b"}, {Type: "answered"}, {Type: "c"}})
	require.NoError(t, err)
	require.Equal(t, []string{"trace-before", "guard b", "trace-before", "guard answered", "trace-after", "trace-before", "guard c", "trace-after", "trace-after"}, order)
	require.Equal(t, "cached", jobs[1].ID)
	require.Equal(t, []string{"b", "c"}, []string{jobs[0].Type, jobs[2].Type})
	require.Equal(t, "t1", s.RequireEnqueued(t, "c").Meta["trace_id"])
	s.RequireNotEnqueued(t, "answered")

	_, err = c.EnqueueBatch(t.Context(), []ojs.JobRequest{{Type: "d"}, {Type: "refused"}})
	require.ErrorContains(t, err, "not allowed")
	s.RequireNotEnqueued(t, "d")
	for _, requests := range [][]ojs.JobRequest{{{Type: "refused"}}, {{Type: "refused"}, {Type: "f"}}, {{Type: "f"}, {Type: "refused"}}} {
		jobs, err = c.EnqueueBatch(t.Context(), requests)
		require.Equal(t, "not allowed", err.Error(), "it is the error of the middleware, not one of several")
		require.Nil(t, jobs)
	}
	s.RequireNotEnqueued(t, "f")
	results, err := c.EnqueueBatch(t.Context(), []ojs.JobRequest{{Type: "refused"}, {Type: "e"}}, ojs.Partial())
	require.ErrorContains(t, err, "not allowed")
	require.Equal(t, "e", results[1].Type)
}

// TestMiddlewareOfABatch: the context that middleware makes for one job is not that of the next one, so that spans are siblings.
func TestMiddlewareOfABatch(t *testing.T) {
	t.Parallel()
	type span struct{}
	s, _ := setup(t)
	var sentIn any
	c, err := ojs.NewClient(ojs.Config{Logger: silent, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		sentIn = r.Context().Value(span{})
		return s.RoundTrip(r)
	})})
	require.NoError(t, err)
	parents := map[string]any{}
	c.Use(func(ctx context.Context, r *ojs.JobRequest, next ojs.EnqueueFunc) (*ojs.Job, error) {
		parents[r.Type] = ctx.Value(span{})
		return next(context.WithValue(ctx, span{}, r.Type), r)
	})
	_, err = c.EnqueueBatch(context.WithValue(t.Context(), span{}, "request"), []ojs.JobRequest{{Type: "a"}, {Type: "b"}, {Type: "c"}})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"a": "request", "b": "request", "c": "request"}, parents)
	require.Equal(t, "c", sentIn.(string), "the call is made inside of the middleware of the last job")
}

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
