package store

import (
	"context"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// Cancel is a request to stop jobs for good (contract 10 §11).
type Cancel struct {
	By     string // shown as cancelled_by
	Reason string // "": none
}

type cancellation struct {
	id   [16]byte
	data []byte // payload of the event beyond its columns
}

// liveStates are those a single cancel accepts, idleStates those a bulk cancel does.
var (
	liveStates = []ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateActive, ojs.StateRetryable}
	idleStates = []ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateRetryable}
)

// Cancel moves a job from any non-terminal state to cancelled; PreviousState tells from which.
func (s *Store) Cancel(ctx context.Context, id [16]byte, c Cancel) (*dbsqlc.Job, error) {
	return settle(ctx, s, s.cancel, cancellation{id, c.eventData()}, holder{jobID: id, cancels: true})
}

func (c Cancel) eventData() []byte {
	data, _ := jsontext.AppendQuote([]byte(`{"cancelled_by":`), c.By) // texts were checked when decoded
	if c.Reason != "" {
		data, _ = jsontext.AppendQuote(append(data, `,"reason":`...), c.Reason)
	}
	return append(data, '}')
}

func (s *Store) flushCancel(ctx context.Context, cs []cancellation) ([]*dbsqlc.Job, error) {
	rows, err := s.cancelFree(ctx, cs)
	if err != nil {
		return nil, err
	}
	tell(ctx, s, rows, cancelChange)
	for i := range rows {
		s.endings.ended(rows[i].ID)
	}
	if len(rows) > 0 {
		s.committedEvents()
	}
	s.settleCrons(ctx, cronsOf(rows, cancelledCron))
	return inOrder(len(cs), func(i int) [16]byte { return cs[i].id }, rows, func(r *dbsqlc.JobCancelRow) ([16]byte, *dbsqlc.Job) { return r.ID, (*dbsqlc.Job)(r) }), nil
}

func cancelledCron(r *dbsqlc.JobCancelRow) pgtype.Text { return r.Cron }

// cancelFree cancels the jobs that no other transaction holds. Bulk calls, which have a transaction of their own, wait.
func (s *Store) cancelFree(ctx context.Context, cs []cancellation) ([]dbsqlc.JobCancelRow, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var rows []dbsqlc.JobCancelRow
	err := s.inPartitionedTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		ids := make([][16]byte, len(cs))
		for i, c := range cs {
			ids[i] = c.id
		}
		free, err := q.JobLockFree(ctx, ids)
		if err != nil || len(free) == 0 {
			return err
		}
		mine := slices.DeleteFunc(slices.Clone(cs), func(c cancellation) bool { return !slices.Contains(free, c.id) })
		rows, err = s.cancelRows(ctx, q, mine, liveStates)
		return err
	})
	return rows, err
}

func (s *Store) cancelRows(ctx context.Context, q *dbsqlc.Queries, cs []cancellation, states []ojs.JobState) ([]dbsqlc.JobCancelRow, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	p := dbsqlc.JobCancelParams{States: texts(states), Source: s.origin("api"), Node: s.node}
	for _, c := range cs {
		p.Ids = append(p.Ids, c.id)
		p.EventData = append(p.EventData, c.data)
	}
	return q.JobCancel(ctx, p)
}

// Activate moves a pending job to available.
func (s *Store) Activate(ctx context.Context, id [16]byte) (*dbsqlc.Job, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	rows, err := s.q.JobActivate(ctx, dbsqlc.JobActivateParams{Ids: [][16]byte{id}, Node: s.node, Instance: s.instance})
	if err != nil {
		return nil, WireError(err)
	}
	if len(rows) == 1 {
		tell(ctx, s, rows, activateChange)
		job := (*dbsqlc.Job)(&rows[0])
		var m aftermath
		m.add(job.Queue, job.Priority, job.ReadySeq, job.Cron)
		s.announce(ctx, m)
		s.committedEvents()
		return job, nil
	}
	stored, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return nil, ojs.ErrConflict(ojs.FormatID(id), ojs.JobState(stored.State), ojs.StatePending)
}
