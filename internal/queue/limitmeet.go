package queue

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// parkedQueues are the queues in which jobs wait for limits, as far as this node knows. A fetch from one of them that had slots left
// meets such jobs: see LimitMeet.
//
// It is a hint: a queue that is missing is found by a survey (surveyLimits), one that is there in vain costs a statement and is
// dropped by met.
type parkedQueues struct {
	// The follower of package limit sets it from the database (SetLimitsWaiting), and park sets it at once. While it is false no
	// fetch takes mu.
	any atomic.Bool // jobs wait for limits somewhere; if not, surveys and fetches do nothing about it

	mu     sync.Mutex
	queues map[string]*parkedQueue
}

// parkedQueue is when fetches from the queue may meet jobs again: what they do about them takes at most a twentieth of the time.
type parkedQueue struct{ next time.Time }

// A meeting of 5 ms is repeated after 100 ms at the earliest.
const meetCost = 20

// SetLimitsWaiting sets whether jobs wait for limits at all.
// The load comes first, because a store would make the cache line of a value that all fetches read travel between the cores.
func (s *Store) SetLimitsWaiting(waiting bool) {
	if s.parked.any.Load() != waiting {
		s.parked.any.Store(waiting)
	}
}

// park notes queues in which jobs may wait for a limit.
// The same bound as that of the cursors, because clients choose the names.
func (p *parkedQueues) park(queues ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.any.Store(true)
	if len(p.queues) >= maxCursors {
		clear(p.queues)
	}
	for _, name := range queues {
		if p.queues[name] == nil {
			p.queues[name] = &parkedQueue{}
		}
	}
}

// due returns those of the queues in which jobs wait, if it is time to meet them.
// Of several fetches that come at the same time one gets the queue. After an error its turn comes again in a second.
func (p *parkedQueues) due(queues []string) (due []string) {
	if !p.any.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, name := range queues {
		if q := p.queues[name]; q != nil && !now.Before(q.next) {
			q.next = now.Add(time.Second) // unless ended sets it earlier
			due = append(due, name)
		}
	}
	return due
}

// waiting returns those of the queues in which jobs wait.
func (p *parkedQueues) waiting(queues []string) (waiting []string) {
	if !p.any.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range queues {
		if p.queues[name] != nil {
			waiting = append(waiting, name)
		}
	}
	return waiting
}

// met ends what due began. Queues of which no job was met have none that waits.
// A job that was parked while the statement ran is forgotten with its queue. The next survey, a second later, finds it.
func (p *parkedQueues) met(queues []string, met map[string]bool, cost time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range queues {
		if q := p.queues[name]; q != nil && met[name] {
			q.next = time.Now().Add(meetCost * cost)
		} else {
			delete(p.queues, name)
		}
	}
}

// surveyLimits looks in which of the queues jobs wait for limits.
func (s *Store) surveyLimits(ctx context.Context, queues []string) error {
	if !s.parked.any.Load() {
		return nil
	}
	names, err := s.db.Q.LimitListParked(ctx, queues)
	if err == nil && len(names) > 0 {
		s.parked.park(names...)
	}
	return err
}

// meet does what is to be done about jobs that wait for limits when a fetch had slots left: those of its tenant, if it takes no
// others. It reports whether jobs may be fetched now that could not before.
//
// It sends one statement, which is a transaction, on a context that the client cannot cancel: jobs that it drops or schedules
// have events that this node must emit. ojs.limit_meet says what is done (docs/reference/limits.md, When a limit blocks a job).
func (s *Store) meet(ctx context.Context, queues []string, tenant string) (admitted bool, err error) {
	due := s.parked.due(queues)
	if len(due) == 0 {
		return false, nil
	}
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx))
	defer cancel()
	began := time.Now()
	rows, err := s.db.Q.LimitMeet(bounded, dbsqlc.LimitMeetParams{Queues: due, Tenant: tenant, Node: s.commits.Node})
	if err != nil {
		return false, pg.ClientError(err)
	}
	met := map[string]bool{}
	for i := range rows {
		met[rows[i].Queue] = true
		if rows[i].Outcome == "admitted" {
			admitted = true
		} else {
			s.limited(rows[i].LimitKey)
		}
	}
	// The queues stay remembered. The jobs of another tenant may be the only ones that wait.
	if tenant != "" {
		for _, name := range due { // it has not met the jobs of others
			met[name] = true
		}
	}
	s.parked.met(due, met, time.Since(began))
	s.advance(ctx, s.afterMeet(ctx, rows))
	return admitted, nil
}

// afterMeet does what follows from jobs that were admitted, dropped or scheduled, and returns the workflows that have to follow: the
// caller advances them, outside of a flush.
// LimitMeet and LimitQueueMeet have the same columns; the rows of the latter have no place, because nothing of a limited queue is
// admitted.
func (s *Store) afterMeet(ctx context.Context, rows []dbsqlc.LimitMeetRow) (workflows [][16]byte) {
	if !slices.ContainsFunc(rows, func(r dbsqlc.LimitMeetRow) bool { return r.Outcome != "met" }) {
		return nil
	}
	var a afterCommit
	for i := range rows {
		r := &rows[i]
		switch r.Outcome {
		case "admitted":
			a.add(r.Queue, r.Lane, r.Priority, pgtype.Int8{Int64: r.ReadySeq, Valid: true}, pgtype.Text{})
		case "dropped":
			a.add(r.Queue, r.Lane, r.Priority, pgtype.Int8{}, pg.Text(r.Cron))
			s.awaiting.ended(r.ID)
		case "rescheduled":
			s.timer.Schedule(time.Duration(r.DueUs) * time.Microsecond)
		}
	}
	eventlog.Emit(ctx, s.commits, rows, meetChange)
	s.notify(ctx, a)
	s.commits.Committed()
	return workflowsOf(rows, func(r *dbsqlc.LimitMeetRow) (root pgtype.UUID) {
		if r.Outcome == "dropped" {
			root = pgtype.UUID{Bytes: r.WorkflowID, Valid: r.WorkflowID != [16]byte{}}
		}
		return root
	})
}

// limited counts that a limit kept a fetch from a job.
// Package app passes it to the metrics.
func (s *Store) limited(key string) {
	if s.config.OnLimited != nil {
		s.config.OnLimited(key, 1)
	}
}

// A job that was admitted, or only met, has no event of this kind: its state stays available.
func meetChange(changes []eventlog.Change, r *dbsqlc.LimitMeetRow) []eventlog.Change {
	c := eventlog.Change{JobID: r.ID, JobType: r.Type, Queue: r.Queue, Attempt: r.Attempt, From: string(ojs.StateAvailable), At: r.Now.Time}
	switch r.Outcome {
	case "dropped":
		c.Type, c.To, c.Reason = ojs.EventJobDiscarded, string(ojs.StateDiscarded), job.RateLimited
	case "rescheduled":
		c.Type, c.To, c.Reason = eventlog.StateChanged, string(ojs.StateScheduled), reasonRateLimit
	default:
		return changes
	}
	return append(changes, c)
}
