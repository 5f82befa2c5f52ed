package queue

import (
	"context"
	"log/slog"
	"time"

	"github.com/riverqueue/river/rivershared/baseservice"
	"github.com/riverqueue/river/rivershared/startstop"

	"github.com/ojsd/ojsd/internal/service"
)

// pollInterval is how long a parked call can wait for a job or a result whose notification was lost.
// Surveys that take long are left out of some passes: they have a twentieth of the time (surveyDue).
const pollInterval = time.Second

// Poller reads jobs and results for parked calls, in case a notification was lost.
// Every node has one. It needs no leader: each node polls for the calls that are parked on it.
type Poller struct {
	baseservice.BaseService
	startstop.BaseStartStop

	store *Store
}

// NewPoller returns a poller. It sends no query while no call is parked.
func NewPoller(archetype *baseservice.Archetype, s *Store) *Poller {
	return baseservice.Init(archetype, &Poller{store: s})
}

// Start runs the loop until stopped.
func (p *Poller) Start(ctx context.Context) error {
	service.Run(ctx, &p.BaseStartStop, func(ctx context.Context) { service.Every(ctx, pollInterval, p.poll) })
	return nil
}

func (p *Poller) poll(ctx context.Context) {
	if err := p.store.poll(ctx); err != nil && ctx.Err() == nil {
		p.Logger.WarnContext(ctx, "poll for parked fetches failed; it is repeated every second", slog.Any("error", err))
	}
}
