package ojs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// log records the order in which middleware runs.
func record(order *[]string, name string) ojs.Middleware {
	return func(ctx context.Context, job *ojs.JobContext, next ojs.HandlerFunc) error {
		*order = append(*order, name+"-before")
		err := next(ctx, job)
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
	w.Middleware.Use(record(&order, "first"), record(&order, "second"))
	type key struct{}
	w.Middleware.Use(func(ctx context.Context, job *ojs.JobContext, next ojs.HandlerFunc) error {
		return next(context.WithValue(ctx, key{}, job.Type), job)
	})
	w.Register("a", func(ctx context.Context, _ *ojs.JobContext) error {
		order = append(order, "handler "+ctx.Value(key{}).(string))
		return nil
	})
	w.Register("b", func(context.Context, *ojs.JobContext) error { panic("is never reached") })
	w.Middleware.Use(func(ctx context.Context, job *ojs.JobContext, next ojs.HandlerFunc) error {
		if job.Type == "b" {
			return ojs.Discard(errors.New("not today"))
		}
		return next(ctx, job)
	})
	_, err := c.Enqueue(t.Context(), "a", nil)
	require.NoError(t, err)
	s.Drain(t, w, waitFor)
	require.Equal(t, []string{"first-before", "second-before", "handler a", "second-after", "first-after"}, order)

	_, err = c.Enqueue(t.Context(), "b", nil)
	require.NoError(t, err)
	w2 := ojs.NewWorker(c, ojs.WorkerConfig{})
	w2.Middleware.Use(func(context.Context, *ojs.JobContext, ojs.HandlerFunc) error {
		return ojs.Discard(errors.New("not today"))
	})
	w2.Register("b", func(context.Context, *ojs.JobContext) error { panic("is never reached") })
	s.Drain(t, w2, waitFor)
	require.Equal(t, "DISCARD", s.RequireEnqueued(t, "b", ojstest.InState(ojs.StateDiscarded)).Error.Code)
}

func TestMiddlewareChain(t *testing.T) {
	t.Parallel()
	var chain ojs.Middlewares[ojs.Middleware]
	none := func(ctx context.Context, job *ojs.JobContext, next ojs.HandlerFunc) error { return next(ctx, job) }
	require.NoError(t, chain.UseNamed("logging", none))
	require.NoError(t, chain.UseNamed("metrics", none))
	require.NoError(t, chain.InsertBefore("metrics", "tracing", none))
	require.NoError(t, chain.InsertAfter("metrics", "last", none))
	chain.Use(none)
	require.Equal(t, []string{"logging", "tracing", "metrics", "last", ""}, chain.Names())
	require.True(t, chain.Remove("logging"))
	require.False(t, chain.Remove("logging"))
	require.False(t, chain.Remove(""))
	require.Equal(t, []string{"tracing", "metrics", "last", ""}, chain.Names())
	require.ErrorContains(t, chain.UseNamed("metrics", none), "already")
	require.ErrorContains(t, chain.InsertBefore("last", "metrics", none), "already")
	require.ErrorContains(t, chain.InsertBefore("gone", "x", none), `"gone"`)
	require.ErrorContains(t, chain.InsertAfter("", "x", none), "no middleware")
}

// TestEnqueueMiddleware is the checklist's next() chain on the client side.
func TestEnqueueMiddleware(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	var order []string
	require.NoError(t, c.Middleware.UseNamed("trace", func(ctx context.Context, r *ojs.JobRequest, next ojs.EnqueueFunc) (*ojs.JobInfo, error) {
		order = append(order, "trace-before")
		r.SetMeta("trace_id", "t1")
		job, err := next(ctx, r)
		order = append(order, "trace-after")
		return job, err
	}))
	require.NoError(t, c.Middleware.InsertAfter("trace", "guard", func(ctx context.Context, r *ojs.JobRequest, next ojs.EnqueueFunc) (*ojs.JobInfo, error) {
		order = append(order, "guard "+r.Type)
		switch r.Type {
		case "refused":
			return nil, errors.New("not allowed")
		case "answered":
			return &ojs.JobInfo{ID: "cached"}, nil
		}
		return next(ctx, r)
	}))
	meta := map[string]any{"mine": 1}
	r := ojs.NewRequest("a", nil)
	r.Meta = meta
	job, err := c.EnqueueRequest(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, "t1", job.Meta["trace_id"])
	require.Equal(t, map[string]any{"mine": 1}, meta, "the caller's map stays as it is")
	require.Equal(t, []string{"trace-before", "guard a", "trace-after"}, order)

	order = nil
	jobs, err := c.EnqueueBatch(t.Context(), ojs.NewRequest("b", nil), ojs.NewRequest("answered", nil), ojs.NewRequest("c", nil))
	require.NoError(t, err)
	require.Equal(t, []string{"trace-before", "guard b", "trace-before", "guard answered", "trace-after", "trace-before", "guard c", "trace-after", "trace-after"}, order)
	require.Equal(t, "cached", jobs[1].ID)
	require.Equal(t, []string{"b", "c"}, []string{jobs[0].Type, jobs[2].Type})
	require.Equal(t, "t1", s.RequireEnqueued(t, "c").Meta["trace_id"])
	s.RequireNotEnqueued(t, "answered")

	_, err = c.EnqueueBatch(t.Context(), ojs.NewRequest("d", nil), ojs.NewRequest("refused", nil))
	require.ErrorContains(t, err, "not allowed")
	s.RequireNotEnqueued(t, "d")
	results, err := c.EnqueueBulk(t.Context(), ojs.NewRequest("refused", nil), ojs.NewRequest("e", nil))
	require.NoError(t, err)
	require.ErrorContains(t, results[0].Err, "not allowed")
	require.Equal(t, "e", results[1].Job.Type)
}
