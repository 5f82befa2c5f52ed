package workflow

import (
	"context"
	"log/slog"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// CancelCounts are the counts of jobs of a cancelled workflow. StepsCancelled counts leaves that this call has cancelled,
// with and without a job; those that the Follower cancels later are missing. Callbacks and nested workflows are in neither
// number.
type CancelCounts struct{ StepsCancelled, StepsAlreadyCompleted int }

// Cancel ends a running root as cancelled, with all that is nested in it. Active jobs run on, unless force is set. The tree ends in
// one transaction, so nothing begins after it; its jobs follow a portion at a time. If the node stops meanwhile, another one
// goes on. actor is logged. The end of the tree is committed before the first job is touched. A failure after that is
// logged and not returned: the tree is cancelled, and `cancelling` of its row makes the Follower go on. Only the read for
// the answer can still fail then, with an error that says that a part was done. A second call is refused with 409, as the
// root has ended.
//
// A cancel that took the jobs in the transaction of the tree would hold the lock of the root for all of them, and no ack of
// the tree could be answered meanwhile.
func (s *Store) Cancel(ctx context.Context, id [16]byte, force bool, actor string) (*Workflow, CancelCounts, error) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	// From here on nothing of the tree begins, whatever happens to the rest of this call.
	// A retry of the transaction reads the tree anew.
	var counts CancelCounts
	var p *pass
	err := pg.Retry(func() error {
		return s.db.InPartitionedTx(bounded, func(tx pgx.Tx) (err error) {
			p = newPass(s, tx)
			counts, err = p.cancelTree(bounded, id, force, actor)
			return err
		})
	})
	if err != nil {
		return nil, counts, pg.ClientError(err)
	}
	p.committed(ctx)
	jobs, _, err := s.cancelJobs(bounded, id, force)
	counts.StepsCancelled += jobs
	if err != nil {
		s.logger.WarnContext(ctx, "not all jobs of a cancelled workflow were cancelled; trying again within seconds",
			slog.String("category", "error"),
			slog.Group("ojs", "workflow_id", spec.FormatID(id)), slog.Any("error", err))
		s.Wake()
	}
	// The answer is read after the jobs, so that it shows their steps as cancelled where that was possible.
	w, err := s.Get(bounded, id)
	if err != nil {
		return nil, counts, pg.PartlyError(err)
	}
	s.logChange(ctx, "workflow cancelled", w, "cancelled_by", actor, "force", force, "steps_cancelled", counts.StepsCancelled)
	return w, counts, nil
}

// cancelTree ends the tree and its steps that have no job. An advance that waits for the lock finds the root ended and only
// counts. Changes that are pending at this moment count later, and StepsAlreadyCompleted lacks them. The event is that of an extension;
// without it the end of the tree shows in job.cancelled of its jobs.
func (p *pass) cancelTree(ctx context.Context, id [16]byte, force bool, actor string) (counts CancelCounts, err error) {
	found, err := p.lock(ctx, id)
	if err != nil {
		return counts, err
	}
	if !found {
		rows, err := p.q.WorkflowGet(ctx, id)
		if err != nil {
			return counts, err
		}
		if len(rows) == 0 {
			return counts, spec.NotFound("workflow", spec.FormatID(id))
		}
		// The text names the root, so that the client can cancel that.
		w := rows[0].Workflow
		return counts, errConflict(id, w.State, "is nested in workflow "+spec.FormatID(w.RootID)+", which has to be cancelled as a whole")
	}
	if !p.root.running() {
		return counts, errConflict(id, p.root.State, "has ended as "+p.root.State)
	}
	counts.StepsAlreadyCompleted = int(p.root.CompletedCount)
	// First the steps without a job, of the whole tree: then no row of a step is left that something could begin.
	if counts.StepsCancelled, err = p.cancelBelow(ctx, 0, p.root.LastFlow); err != nil {
		return counts, err
	}
	if p.root.LastFlow > 0 {
		if err := p.cancelNested(ctx); err != nil {
			return counts, err
		}
	}
	if p.s.config.Events.ExtensionTypes {
		b, _ := jsontext.AppendQuote(append(p.data(), `,"cancelled_by":`...), actor) // valid UTF-8, like all that clients send
		p.events = append(p.events, event{ojs.EventWorkflowCancelled, "api", append(b, '}')})
		if err := p.settle(ctx); err != nil {
			return counts, err
		}
	}
	return counts, p.q.WorkflowCancel(ctx, dbsqlc.WorkflowCancelParams{EndedAt: p.now, Forced: force, ID: id})
}

// cancelNested ends all nested workflows that run. Those that have begun count as failed members. Their end goes past
// moved, which would fire callbacks and begin steps.
func (p *pass) cancelNested(ctx context.Context) error {
	a := dbsqlc.WorkflowStepListLiveParams{RootID: p.root.ID, AfterFlow: 0, AfterIndex: -1, MaxRows: portion}
	for n := portion; n == portion; {
		rows, err := p.q.WorkflowStepListLive(ctx, a)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.Kind != kindWorkflow {
				continue
			}
			f, err := p.flow(ctx, r.Flow)
			if err != nil {
				return err
			}
			f.Failed, f.Open, f.changed = f.Failed+1, f.Open-1, true
		}
		if n = len(rows); n > 0 {
			a.AfterFlow, a.AfterIndex = rows[n-1].Flow, rows[n-1].Index
		}
	}
	return p.endBelow(ctx, 1, p.root.LastFlow)
}

// cancelJobs cancels the jobs of a cancelled tree that have not ended, and counts those of members. Jobs that another transaction
// has locked stay, and done is false: they are tried again later. It may run on two nodes at once, and again after a crash:
// a job that has ended is not cancelled again. The rows are listed without a lock; what changes meanwhile only ends jobs,
// because nothing begins in a cancelled tree. A portion that was committed stays if a later one fails.
//
// It goes past locked jobs instead of waiting, because it holds the locks of other jobs of the portion: their acks would wait with it.
// A job that ended since the list was read counts as skipped, too; the Follower then finds nothing more to do.
func (s *Store) cancelJobs(ctx context.Context, root [16]byte, force bool) (members int, done bool, err error) {
	a := dbsqlc.WorkflowStepListLiveParams{RootID: root, AfterFlow: 0, AfterIndex: -1, MaxRows: portion}
	skipped := 0
	for {
		rows, err := s.db.Q.WorkflowStepListLive(ctx, a)
		if err != nil {
			return members, false, err
		}
		n, left, err := s.cancelPortion(ctx, root, rows, force)
		if err != nil {
			return members, false, err
		}
		members += n
		skipped += left
		if len(rows) < portion {
			break
		}
		a.AfterFlow, a.AfterIndex = rows[len(rows)-1].Flow, rows[len(rows)-1].Index
	}
	if skipped > 0 {
		return members, false, nil
	}
	return members, true, s.db.Q.WorkflowCancelDone(ctx, root)
}

// cancelPortion cancels callbacks with the members, but does not count them as such.
func (s *Store) cancelPortion(ctx context.Context, root [16]byte, rows []dbsqlc.WorkflowStepListLiveRow, force bool) (members, skipped int,
	err error) {
	var ids [][16]byte
	ofMember := make(map[[16]byte]bool, len(rows))
	for _, r := range rows {
		if r.JobID.Valid {
			ids = append(ids, r.JobID.Bytes)
			ofMember[r.JobID.Bytes] = r.Kind == kindJob
		}
	}
	if len(ids) == 0 {
		return 0, 0, nil
	}
	var res queue.Cancelled
	// It is shown as cancelled_by (docs/reference/workflows.md, Cancel).
	by := queue.Cancel{By: "workflow:" + spec.FormatID(root)}
	err = pg.Retry(func() error {
		return s.db.InPartitionedTx(ctx, func(tx pgx.Tx) (err error) {
			res, skipped, err = s.jobs.CancelUnlockedTx(ctx, tx, "api", ids, force, by)
			return err
		})
	})
	if err != nil {
		return 0, 0, err
	}
	// It calls Advance for the tree, which stores the cancelled steps before the answer is read.
	res.AfterCommit(ctx)
	for _, id := range res.IDs() {
		if ofMember[id] {
			members++
		}
	}
	return members, skipped, nil
}
