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
//
// A job that has ended is 409, also if it is cancelled already. The worker of an active job is not interrupted: it learns of the
// cancellation from its next heartbeat, and its ack is answered with the cancelled job (docs/reference/retries.md, Late acks).
func (s *Store) Cancel(ctx context.Context, id [16]byte, c Cancel) (*job.Record, error) {
	return s.cancel.do(ctx, cancellation{id, c.eventData()})
}

func cancelledRun(c cancellation) Run { return Run{JobID: c.id, cancels: true} }

// It is the data of the event as JSON, made once per request: the statement only stores it.
func (c Cancel) eventData() []byte {
	data, _ := jsontext.AppendQuote([]byte(`{"cancelled_by":`), c.By) // fails only for invalid UTF-8, which decoding refuses
	if c.Reason != "" {
		data, _ = jsontext.AppendQuote(append(data, `,"reason":`...), c.Reason)
	}
	return append(data, '}')
}

// It returns the jobs in the order of the requests; nil for one that is locked, unknown or not live. The caller finds out which
// (Run.Refused).
func (s *Store) flushCancel(ctx context.Context, cs []cancellation) ([]*job.Record, error) {
	rows, err := s.cancelUnlocked(ctx, cs)
	if err != nil {
		return nil, err
	}
	s.afterCancel(ctx, rows)
	return InOrder(len(cs), func(i int) [16]byte { return cs[i].id }, rows, func(r *dbsqlc.JobCancelRow) ([16]byte, *job.Record) { return r.ID, (*job.Record)(r) }), nil
}

// What follows in workflows and limits is not done here but by operation.do, outside of the flush.
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
// Both statements are one transaction: what JobLockUnlocked has locked stays locked until JobCancel has moved it.
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

// cancelRows waits for rows that other transactions have locked, unless its caller has locked all of them.
func (s *Store) cancelRows(ctx context.Context, q *dbsqlc.Queries, cs []cancellation, states []ojs.JobState) ([]dbsqlc.JobCancelRow, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	return q.JobCancel(ctx, s.cancelParams(cs, states, "api"))
}

// cancelParams sorts the cancellations by job, because JobCancel finds the data of a row by a binary search in the ids. Unsorted, a job
// would get the data of another one.
func (s *Store) cancelParams(cs []cancellation, states []ojs.JobState, source string) dbsqlc.JobCancelParams {
	cs = slices.SortedFunc(slices.Values(cs), func(a, b cancellation) int { return bytes.Compare(a.id[:], b.id[:]) })
	p := dbsqlc.JobCancelParams{States: texts(states), Source: source, Node: s.commits.Node, EventType: ojs.EventJobCancelled, MaxSize: job.SizeOfEach(len(cs))}
	for _, c := range cs {
		p.Ids = append(p.Ids, c.id)
		p.EventData = append(p.EventData, c.data)
	}
	return p
}
