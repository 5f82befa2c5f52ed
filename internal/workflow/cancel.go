package workflow

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// CancelCounts are the counts of jobs of a cancelled workflow.
type CancelCounts struct{ StepsCancelled, StepsAlreadyCompleted int }

// Cancel ends a running root as cancelled, with all that is nested in it. Active jobs run on, unless force is set. The tree ends in
// one transaction, so nothing begins after it; its jobs follow a portion at a time. If the node stops meanwhile, another one
// goes on. actor is logged.
func (s *Store) Cancel(ctx context.Context, id [16]byte, force bool, actor string) (*Workflow, CancelCounts, error) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	counts, err := s.cancelTree(bounded, id, force)
	if err != nil {
		return nil, counts, pg.ClientError(err)
	}
	jobs, _, err := s.cancelJobs(bounded, id, force)
	counts.StepsCancelled += jobs
	if err != nil {
		s.logger.WarnContext(ctx, "not all jobs of a cancelled workflow were cancelled; trying again within seconds", slog.String("category", "error"),
			slog.Group("ojs", "workflow_id", ojs.FormatID(id)), slog.Any("error", err))
		s.Wake()
	}
	w, err := s.Get(bounded, id)
	if err != nil {
		return nil, counts, pg.PartlyError(err)
	}
	s.logChange(ctx, "workflow cancelled", w, "cancelled_by", actor, "force", force, "steps_cancelled", counts.StepsCancelled)
	return w, counts, nil
}

// cancelTree ends the tree and its steps that have no job.
func (s *Store) cancelTree(ctx context.Context, id [16]byte, force bool) (counts CancelCounts, err error) {
	err = pg.Retry(func() error {
		return s.db.InTx(ctx, func(tx pgx.Tx) (err error) {
			p := newPass(s, tx)
			counts, err = p.cancelTree(ctx, id, force)
			return err
		})
	})
	return counts, err
}

func (p *pass) cancelTree(ctx context.Context, id [16]byte, force bool) (counts CancelCounts, err error) {
	found, err := p.lock(ctx, id)
	if err != nil {
		return counts, err
	}
	if !found {
		return counts, p.notRoot(ctx, id)
	}
	if !p.root.running() {
		return counts, errConflict(id, p.root.State, "has ended as "+p.root.State)
	}
	counts.StepsAlreadyCompleted = int(p.root.CompletedCount)
	if counts.StepsCancelled, err = p.cancelBelow(ctx, 0, p.root.LastFlow); err != nil {
		return counts, err
	}
	if p.root.LastFlow > 0 {
		if err := p.cancelNested(ctx); err != nil {
			return counts, err
		}
	}
	return counts, p.q.WorkflowCancel(ctx, dbsqlc.WorkflowCancelParams{EndedAt: p.now, Forced: force, ID: id})
}

// cancelNested ends all nested workflows that run. Those that have begun count as failed members.
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

// notRoot tells a nested workflow from none.
func (p *pass) notRoot(ctx context.Context, id [16]byte) error {
	rows, err := p.q.WorkflowGet(ctx, id)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return ojs.ErrNotFound("workflow", ojs.FormatID(id))
	}
	w := rows[0].Workflow
	return errConflict(id, w.State, "is nested in workflow "+ojs.FormatID(w.RootID)+", which has to be cancelled as a whole")
}

// cancelJobs cancels the jobs of a cancelled tree that have not ended, and counts those of members. Jobs that another transaction
// has locked stay, and done is false: they are tried again later.
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

func (s *Store) cancelPortion(ctx context.Context, root [16]byte, rows []dbsqlc.WorkflowStepListLiveRow, force bool) (members, skipped int, err error) {
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
	by := queue.Cancel{By: "workflow:" + ojs.FormatID(root)}
	err = pg.Retry(func() error {
		return s.db.InPartitionedTx(ctx, func(tx pgx.Tx) (err error) {
			res, skipped, err = s.jobs.CancelUnlockedTx(ctx, tx, "api", ids, force, by)
			return err
		})
	})
	if err != nil {
		return 0, 0, err
	}
	res.AfterCommit(ctx)
	for _, id := range res.IDs() {
		if ofMember[id] {
			members++
		}
	}
	return members, skipped, nil
}
