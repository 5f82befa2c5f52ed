package queue

import (
	"context"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/ojs"
)

// Cancel is a request to stop jobs for good (docs/reference/http.md, Cancel).
type Cancel struct {
	By     string // shown as cancelled_by
	Reason string // "": none
}

type cancellation struct {
	id   [16]byte
	data []byte // payload of the event beyond its columns
}

// LiveStates are those a single cancel accepts, idleStates those a bulk cancel does.
var (
	LiveStates = []ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateActive, ojs.StateRetryable}
	idleStates = []ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateRetryable}
)

// Cancel moves a job from any non-terminal state to cancelled; PreviousState tells from which.
func (s *Store) Cancel(ctx context.Context, id [16]byte, c Cancel) (*job.Record, error) {
	return settle(ctx, s, s.cancel, cancellation{id, c.eventData()}, Holder{JobID: id, cancels: true})
}

func (c Cancel) eventData() []byte {
	data, _ := jsontext.AppendQuote([]byte(`{"cancelled_by":`), c.By) // texts were checked when decoded
	if c.Reason != "" {
		data, _ = jsontext.AppendQuote(append(data, `,"reason":`...), c.Reason)
	}
	return append(data, '}')
}

func (s *Store) flushCancel(ctx context.Context, cs []cancellation) ([]*job.Record, error) {
	rows, err := s.cancelFree(ctx, cs)
	if err != nil {
		return nil, err
	}
	eventlog.Emit(ctx, s.commits, rows, cancelChange)
	for i := range rows {
		s.endings.ended(rows[i].ID)
	}
	if len(rows) > 0 {
		s.commits.Committed()
	}
	s.releaseCrons(ctx, cronsOf(rows, cancelledCron))
	return InOrder(len(cs), func(i int) [16]byte { return cs[i].id }, rows, func(r *dbsqlc.JobCancelRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) }), nil
}

func cancelledCron(r *dbsqlc.JobCancelRow) pgtype.Text { return r.Cron }

// cancelFree cancels the jobs that no other transaction holds. Bulk calls, which have a transaction of their own, wait.
func (s *Store) cancelFree(ctx context.Context, cs []cancellation) ([]dbsqlc.JobCancelRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.JobCancelRow
	err := s.db.InPartitionedTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		ids := make([][16]byte, len(cs))
		for i, c := range cs {
			ids[i] = c.id
		}
		free, err := q.JobLockUnlocked(ctx, ids)
		if err != nil || len(free) == 0 {
			return err
		}
		mine := slices.DeleteFunc(slices.Clone(cs), func(c cancellation) bool { return !slices.Contains(free, c.id) })
		rows, err = s.cancelRows(ctx, q, mine, LiveStates)
		return err
	})
	return rows, err
}

func (s *Store) cancelRows(ctx context.Context, q *dbsqlc.Queries, cs []cancellation, states []ojs.JobState) ([]dbsqlc.JobCancelRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	p := dbsqlc.JobCancelParams{States: texts(states), Source: "api", Node: s.commits.Node, EventType: ojs.EventJobCancelled}
	for _, c := range cs {
		p.Ids = append(p.Ids, c.id)
		p.EventData = append(p.EventData, c.data)
	}
	return q.JobCancel(ctx, p)
}

// Activate moves a pending job to available.
func (s *Store) Activate(ctx context.Context, id [16]byte) (*job.Record, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	rows, err := s.db.Q.JobActivate(ctx, dbsqlc.JobActivateParams{Ids: [][16]byte{id}, Node: s.commits.Node, EventType: ojs.EventJobEnqueued})
	if err != nil {
		return nil, pg.ClientError(err)
	}
	if len(rows) == 1 {
		eventlog.Emit(ctx, s.commits, rows, activateChange)
		job := (*job.Record)(&rows[0])
		var m afterCommit
		m.add(job.Queue, job.Priority, job.ReadySeq, job.Cron)
		s.notify(ctx, m)
		s.commits.Committed()
		return job, nil
	}
	stored, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return nil, ojs.ErrConflict(ojs.FormatID(id), ojs.JobState(stored.State), ojs.StatePending)
}
