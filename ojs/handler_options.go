package ojs

import (
	"context"
	"errors"
	"slices"
	"time"
)

// HandlerOption changes how a worker runs the jobs of one type, for [Worker.Register] and [Register].
type HandlerOption func(*handlerOptions)

type handlerOptions struct {
	timeout    time.Duration
	backoff    func(attempt int, err error) time.Duration
	middleware []MiddlewareFunc
}

// HandlerTimeout bounds an attempt. When it is over, the context of the handler is cancelled with [ErrJobTimeout] as its cause, and a
// handler that returns then fails with the code timeout. The timeout of a job counts as well: the shorter one ends the attempt, but only
// that of the job is known to the server, which ends it even if the handler does not return ([WithTimeout]).
func HandlerTimeout(d time.Duration) HandlerOption { return func(o *handlerOptions) { o.timeout = d } }

// HandlerBackoff says how long a job waits after an attempt that has failed: attempt is 1 for the first one. The wait of its retry policy
// counts if it is longer, and so does a RetryAfter that the handler has set; a panic has the wait of the policy. See [Failure] for servers
// that do not take a delay.
func HandlerBackoff(wait func(attempt int, err error) time.Duration) HandlerOption {
	notNil("the function of a backoff", wait == nil)
	return func(o *handlerOptions) { o.backoff = wait }
}

// HandlerMiddleware wraps the execution of the jobs of this type, inside of the middleware of the worker. The first is the outermost.
func HandlerMiddleware(middleware ...MiddlewareFunc) HandlerOption {
	notNil("middleware", slices.ContainsFunc(middleware, func(m MiddlewareFunc) bool { return m == nil }))
	return func(o *handlerOptions) { o.middleware = append(o.middleware, middleware...) }
}

// withOptions is the handler of a type with what its options ask for around it: middleware inside of the timeout, which is inside of the
// backoff.
func withOptions(jobType string, handler HandlerFunc, options []HandlerOption) HandlerFunc {
	var o handlerOptions
	for _, option := range options {
		notNil("an option of the handler of "+jobType, option == nil)
		option(&o)
	}
	for _, m := range slices.Backward(o.middleware) {
		next := handler
		handler = func(ctx JobContext) error { return m(ctx, next) }
	}
	if o.timeout > 0 {
		next := handler
		handler = func(ctx JobContext) error {
			limited, cancel := context.WithTimeoutCause(ctx, o.timeout, ErrJobTimeout)
			defer cancel()
			ctx.Context = limited
			err := next(ctx)
			if _, own := errors.AsType[*Failure](err); !own && isTimeout(limited, err) {
				return &Failure{Code: codeTimeout, Err: err}
			}
			return err
		}
	}
	if o.backoff != nil {
		next := handler
		handler = func(ctx JobContext) error {
			err := next(ctx)
			if _, decided := errors.AsType[*disposition](err); err == nil || decided {
				return err
			}
			f := *failureOf(ctx, err)
			f.Message, f.Err = f.message(), err
			f.RetryAfter = max(f.RetryAfter, o.backoff(ctx.Job.Attempt, err))
			return &f
		}
	}
	return handler
}
