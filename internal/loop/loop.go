// Package loop owns how the loops of a node run: how a service starts and stops one, the timer that wakes a node when something becomes due
// (timer.go), and the copies in memory of rows that seldom change, which a loop reads again (follow.go). It must never know what a loop
// does, nor what the rows mean.
package loop

import (
	"context"
	"time"

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

// Signal leaves a signal in a channel that has room for one, and never blocks: one that nobody has taken yet stands for both.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Every calls do after each interval, until ctx ends. It never runs twice at the same time: after a run that takes longer than the
// interval, the next one follows at once.
func Every(ctx context.Context, interval time.Duration, do func(ctx context.Context)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do(ctx)
		}
	}
}
