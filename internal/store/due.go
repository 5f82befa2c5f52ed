package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/ojs"
)

// dueBatch bounds a sweep's statement.
const dueBatch = 1000

// PromoteDue applies up to 1 000 due transitions of jobs that are not active: scheduled and retryable ones become
// available, expired ones are discarded. Any node may call it at any time.
func (s *Store) PromoteDue(ctx context.Context) (moved int, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobPromoteDue(ctx, dueBatch, s.node)
	if err != nil {
		return 0, err
	}
	var places []place
	for _, r := range rows {
		if r.State == string(ojs.StateAvailable) {
			places = append(places, place{r.Queue, r.Priority, r.ReadySeq.Int64})
		}
	}
	s.becameAvailable(places)
	if len(rows) > 0 {
		s.committedEvents()
	}
	return len(rows), nil
}

// FailOverdue fails up to 1 000 active jobs whose lease or execution time is over. It looks first and changes after,
// guarded by attempt and due_at, so a heartbeat or an ack in between wins.
func (s *Store) FailOverdue(ctx context.Context) (found, failed int, err error) {
	bounded, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobListOverdue(bounded, dueBatch)
	if err != nil || len(rows) == 0 {
		return 0, 0, err
	}
	nacks := make([]nack, len(rows))
	for i, r := range rows {
		nacks[i] = s.overdue(r)
	}
	jobs, err := s.flushFail(ctx, nacks)
	for _, job := range jobs {
		if job != nil {
			failed++
		}
	}
	return len(rows), failed, err
}

// overdue decides what ran out. When both did, the execution timeout wins (contract 20 §4).
func (s *Store) overdue(r dbsqlc.JobListOverdueRow) nack {
	limit := s.config.DefaultTimeout
	if r.TimeoutMs.Valid {
		limit = time.Duration(r.TimeoutMs.Int64) * time.Millisecond
	}
	elapsed := r.Now.Time.Sub(r.StartedAt.Time)
	n := nack{
		Nack:    Nack{JobID: r.ID, Attempt: r.Attempt},
		dueOnly: true, reason: envelope.VisibilityTimeout, source: "scheduler",
	}
	if elapsed >= limit+time.Duration(r.GraceMs.Int64)*time.Millisecond {
		n.reason = envelope.Timeout
		n.Error = envelope.ServerError(envelope.Timeout, limit, elapsed)
		return n
	}
	n.Error = envelope.ServerError(envelope.VisibilityTimeout, r.LeaseUntil.Time.Sub(r.StartedAt.Time), elapsed)
	return n
}

// NextDue is the time until the earliest due transition, by the database's clock; ok is false if there is none.
func (s *Store) NextDue(ctx context.Context) (in time.Duration, ok bool, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	seconds, err := s.q.JobNextDue(ctx)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	// Years ahead would overflow a Duration; an hour is far enough to look again.
	return time.Duration(min(seconds, 3600) * float64(time.Second)), err == nil, err
}
