package queue

import (
	"bytes"
	"context"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// Cancel is a request to stop jobs for good (docs/reference/http.md, Cancel).
type Cancel struct {
	By     string // shown as cancelled_by
	Reason string // "": none
}

// cancellation is a Cancel of one job.
type cancellation struct {
	id   [16]byte
	data []byte // payload of the event beyond its columns
}

// LiveStates are the states in which a single cancel takes a job; idleStates are those of a bulk cancel.
var (
	LiveStates = []ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateActive, ojs.StateRetryable}
	idleStates = []ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateRetryable}
)

// Cancel moves a job from any live state to cancelled; PreviousState of the result is the state that it left.
func (s *Store) Cancel(ctx context.Context, id [16]byte, c Cancel) (*job.Record, error) {
	return s.cancel.do(ctx, cancellation{id, c.eventData()})
}

func cancelledRun(c cancellation) Run { return Run{JobID: c.id, cancels: true} }

func (c Cancel) eventData() []byte {
	data, _ := jsontext.AppendQuote([]byte(`{"cancelled_by":`), c.By) // fails only for invalid UTF-8, which decoding refuses
	if c.Reason != "" {
		data, _ = jsontext.AppendQuote(append(data, `,"reason":`...), c.Reason)
	}
	return append(data, '}')
}

func (s *Store) flushCancel(ctx context.Context, cs []cancellation) ([]*job.Record, error) {
	rows, err := s.cancelUnlocked(ctx, cs)
	if err != nil {
		return nil, err
	}
	s.afterCancel(ctx, rows)
	return InOrder(len(cs), func(i int) [16]byte { return cs[i].id }, rows, func(r *dbsqlc.JobCancelRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) }), nil
}

func (s *Store) afterCancel(ctx context.Context, rows []dbsqlc.JobCancelRow) {
	eventlog.Emit(ctx, s.commits, rows, cancelChange)
	for i := range rows {
		s.awaiting.ended(rows[i].ID)
	}
	leftActive(s, rows, func(r *dbsqlc.JobCancelRow) string { return r.Queue })
	if len(rows) > 0 {
		s.commits.Committed()
	}
	s.releaseCrons(ctx, namesOf(rows, cancelledCron))
}

func cancelledCron(r *dbsqlc.JobCancelRow) pgtype.Text { return r.Cron }

func cancelledLimit(r *dbsqlc.JobCancelRow) pgtype.Text { return r.LimitKey }

func cancelledWorkflow(r *dbsqlc.JobCancelRow) pgtype.UUID { return r.WorkflowID }

// cancelUnlocked cancels the jobs that no other transaction has locked. A bulk cancel, which shares its statement with no
// other caller, waits for locks instead.
func (s *Store) cancelUnlocked(ctx context.Context, cs []cancellation) ([]dbsqlc.JobCancelRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	var rows []dbsqlc.JobCancelRow
	err := s.db.InPartitionedTx(ctx, func(tx pgx.Tx) error {
		q := dbsqlc.New(tx)
		ids := make([][16]byte, len(cs))
		for i, c := range cs {
			ids[i] = c.id
		}
		unlocked, err := q.JobLockUnlocked(ctx, ids)
		if err != nil || len(unlocked) == 0 {
			return err
		}
		part := slices.DeleteFunc(slices.Clone(cs), func(c cancellation) bool { return !slices.Contains(unlocked, c.id) })
		rows, err = s.cancelRows(ctx, q, part, LiveStates)
		return err
	})
	return rows, err
}

func (s *Store) cancelRows(ctx context.Context, q *dbsqlc.Queries, cs []cancellation, states []ojs.JobState) ([]dbsqlc.JobCancelRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	cs = slices.SortedFunc(slices.Values(cs), func(a, b cancellation) int { return bytes.Compare(a.id[:], b.id[:]) })
	p := dbsqlc.JobCancelParams{States: texts(states), Source: "api", Node: s.commits.Node, EventType: ojs.EventJobCancelled, MaxSize: job.SizeOfEach(len(cs))}
	for _, c := range cs {
		p.Ids = append(p.Ids, c.id)
		p.EventData = append(p.EventData, c.data)
	}
	return q.JobCancel(ctx, p)
}
