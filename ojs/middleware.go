package ojs

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// EnqueueFunc sends a job to the server.
type EnqueueFunc func(ctx context.Context, request *JobRequest) (*Job, error)

// EnqueueMiddleware wraps the enqueue of each job, by [Client.Enqueue] and [Client.EnqueueBatch]. It may change the request, and answer
// without calling next. For a batch it may call next once at most; it begins with the context of the caller for each job, and the context
// that it hands on for the last job is that of the request. An error of next that it hides makes the caller believe that the job was
// stored.
type EnqueueMiddleware func(ctx context.Context, request *JobRequest, next EnqueueFunc) (*Job, error)

// MiddlewareFunc wraps the execution of each job. What it returns is the outcome of the job. It runs on the goroutine of the job,
// inside of the recovery of panics, and its context ends with the job.
type MiddlewareFunc func(ctx JobContext, next HandlerFunc) error

// Middlewares is a chain of middleware, the outermost first. The zero value is empty. It may be changed while it is used: jobs that have
// begun keep the chain that they began with. A name that is taken, or that is missing where one is needed, is a mistake of the
// programmer and panics.
type Middlewares[M EnqueueMiddleware | MiddlewareFunc] struct {
	mu   sync.Mutex
	list []namedMiddleware[M] // replaced, never changed
}

type namedMiddleware[M any] struct {
	name string
	run  M
}

// Use adds middleware at the end, that is, innermost. Middleware without a name cannot be removed again.
func (c *Middlewares[M]) Use(middleware ...M) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range middleware {
		c.insert(len(c.list), "", m)
	}
}

// UseNamed adds middleware at the end under a new name. The name serves [Middlewares.InsertBefore], [Middlewares.InsertAfter] and
// [Middlewares.Remove].
func (c *Middlewares[M]) UseNamed(name string, middleware M) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.insert(len(c.list), name, middleware)
}

// InsertBefore adds middleware outside of the one that is named existing.
func (c *Middlewares[M]) InsertBefore(existing, name string, middleware M) {
	c.insertAt(existing, 0, name, middleware)
}

// InsertAfter adds middleware inside of the one that is named existing.
func (c *Middlewares[M]) InsertAfter(existing, name string, middleware M) {
	c.insertAt(existing, 1, name, middleware)
}

// Remove takes middleware out and reports whether it was there.
func (c *Middlewares[M]) Remove(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.index(name)
	if i < 0 {
		return false
	}
	c.list = slices.Concat(c.list[:i], c.list[i+1:])
	return true
}

// Names lists the chain, the outermost first; "" for those without a name.
func (c *Middlewares[M]) Names() []string {
	list := c.snapshot()
	names := make([]string, len(list))
	for i, m := range list {
		names[i] = m.name
	}
	return names
}

func (c *Middlewares[M]) insertAt(existing string, offset int, name string, middleware M) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.index(existing)
	if i < 0 {
		panic(fmt.Sprintf("ojs: there is no middleware named %q", existing))
	}
	c.insert(i+offset, name, middleware)
}

// insert makes a new list, because a chain that is running reads the old one without a lock.
func (c *Middlewares[M]) insert(i int, name string, middleware M) {
	if c.index(name) >= 0 {
		panic(fmt.Sprintf("ojs: there is a middleware named %q already", name))
	}
	notNil("middleware", middleware == nil)
	c.list = slices.Concat(c.list[:i], []namedMiddleware[M]{{name, middleware}}, c.list[i:])
}

func (c *Middlewares[M]) index(name string) int {
	return slices.IndexFunc(c.list, func(m namedMiddleware[M]) bool { return name != "" && m.name == name })
}

func (c *Middlewares[M]) snapshot() []namedMiddleware[M] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.list
}

// wrapHandler builds the chain from the inside out.
func wrapHandler(c *Middlewares[MiddlewareFunc], handler HandlerFunc) HandlerFunc {
	for _, m := range slices.Backward(c.snapshot()) {
		next := handler
		handler = func(ctx JobContext) error { return m.run(ctx, next) }
	}
	return handler
}

// wrapEnqueue builds the chain from the inside out.
func wrapEnqueue(c *Middlewares[EnqueueMiddleware], send EnqueueFunc) EnqueueFunc {
	for _, m := range slices.Backward(c.snapshot()) {
		next := send
		send = func(ctx context.Context, r *JobRequest) (*Job, error) { return m.run(ctx, r, next) }
	}
	return send
}
