//nolint:modernize // the lines of the pages stay as they are
package userguide_test

import (
	"context"
	stdlog "log"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// The page's lines of a user of the SDK. What they name without saying where it comes from is a parameter.

func registerEmailSend(worker *ojs.Worker, sendEmail func(to string) error) {
	// Go: method call
	worker.Register("email.send", func(ctx ojs.JobContext) error {
		to := ctx.Job.Args[0].(string)
		return sendEmail(to)
	})
}

func nameMiddleware(w *ojs.Worker, loggingMiddleware, metricsMiddleware, tracingMiddleware ojs.MiddlewareFunc) {
	chain := &w.Middleware

	// Add named middleware
	w.UseNamed("logging", loggingMiddleware)
	w.UseNamed("metrics", metricsMiddleware)

	// Insert before another
	chain.InsertBefore("metrics", "tracing", tracingMiddleware)

	// Remove by name
	chain.Remove("logging")
}

func logCompleted(worker *ojs.Worker, log *stdlog.Logger) {
	// Go SDK
	worker.OnEvent("job.completed", func(e ojs.Event) {
		log.Printf("Job %s completed", e.JobID)
	})
}

// The page's lines of the inside of an SDK. They stand between types of package ojs and just enough of a client, a chain and a worker. A
// signature that differs from that of package ojs does not compile.

type (
	Job         = ojs.Job
	JobRequest  = ojs.JobRequest
	JobContext  = ojs.JobContext
	HandlerFunc = ojs.HandlerFunc
)

var (
	_ func(*ojs.Client, context.Context, []JobRequest, ...ojs.BatchOption) ([]Job, error) = (*ojs.Client).EnqueueBatch
	_ func(*ojs.Worker, context.Context) error                                            = (*ojs.Worker).Start
	_ func(ctx JobContext, next HandlerFunc) error                                        = ojs.MiddlewareFunc(nil)
	_ func(ctx JobContext) error                                                          = HandlerFunc(nil)
)

type Client struct{ transport *poster }

type poster struct{ client *ojs.Client }

func (p *poster) post(ctx context.Context, path string, body, out any) error {
	return p.client.Do(ctx, ojs.Call{Method: http.MethodPost, Path: path, Body: body}, out)
}

func (c *Client) EnqueueBatch(ctx context.Context, requests []JobRequest) ([]Job, error) {
	wireJobs := make([]map[string]any, len(requests))
	for i, r := range requests {
		wireJobs[i] = map[string]any{
			"type": r.Type,
			"args": r.Args,
		}
	}
	var resp struct {
		Jobs []Job `json:"jobs"`
	}
	err := c.transport.post(ctx, "/jobs/batch", map[string]any{"jobs": wireJobs}, &resp)
	return resp.Jobs, err
}

type middlewareChain struct {
	middleware []struct{ fn MiddlewareFunc }
}

// Go middleware signature
type MiddlewareFunc func(ctx JobContext, next HandlerFunc) error

// Building the chain: wrap from inside out
func (c *middlewareChain) then(handler HandlerFunc) HandlerFunc {
	h := handler
	for i := len(c.middleware) - 1; i >= 0; i-- {
		mw := c.middleware[i].fn
		next := h
		h = func(ctx JobContext) error {
			return mw(ctx, next)
		}
	}
	return h
}

const WorkerStateTerminate = ojs.DirectiveTerminate

type Worker struct {
	state      atomic.Value
	config     struct{ gracePeriod time.Duration }
	activeJobs sync.WaitGroup
}

func (w *Worker) waitForActiveJobs() { w.activeJobs.Wait() }

// Go example: graceful shutdown
func (w *Worker) Start(ctx context.Context) error {
	// ... start heartbeat and fetch loops ...

	<-ctx.Done() // Wait for cancellation

	w.state.Store(WorkerStateTerminate)

	// Wait for active jobs or grace period
	graceDone := make(chan struct{})
	go func() {
		w.waitForActiveJobs()
		close(graceDone)
	}()

	select {
	case <-graceDone:
		// All jobs finished cleanly
	case <-time.After(w.config.gracePeriod):
		// Grace period expired
	}

	return nil
}
