// Package service starts the loops of a node. It must know nothing of what a loop does.
package service

import (
	"context"

	"github.com/riverqueue/river/rivershared/startstop"
)

// Run is the Start of a service that embeds s: it returns at once, and loop runs until Stop, which cancels its context and waits until it
// has returned. It does nothing for a service that runs already.
func Run(ctx context.Context, s *startstop.BaseStartStop, loop func(ctx context.Context)) {
	ctx, shouldStart, started, stopped := s.StartInit(ctx)
	if !shouldStart {
		return
	}
	go func() {
		started()
		defer stopped()
		loop(ctx)
	}()
}
