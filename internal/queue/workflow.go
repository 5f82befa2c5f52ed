package queue

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// A statement that ends or revives a job of a workflow records the change in ojs.workflow_pending. After its commit the workflow
// follows, before the caller is answered, but never inside of a flush that callers share: the others would wait for it.

// OnWorkflowJobs sets what is called after a commit that ended or revived jobs of workflows, with their roots. It may run
// transactions; callers of the change are answered after it.
// If it fails, the rows in ojs.workflow_pending stay, and the follower of package workflow acts on them within seconds.
func (s *Store) OnWorkflowJobs(f func(ctx context.Context, roots [][16]byte)) { s.onWorkflowJobs = f }

// advance lets the workflows of ended jobs follow.
// It returns when the next steps are inserted: the client of an ack can fetch them with its next call.
func (s *Store) advance(ctx context.Context, roots [][16]byte) {
	if len(roots) > 0 {
		s.onWorkflowJobs(ctx, roots)
	}
}

// endedWorkflows are the roots of those of the jobs that have ended.
// A job that is retried does not move its workflow.
func endedWorkflows(jobs []*job.Record) [][16]byte {
	return workflowsOf(jobs, func(j **job.Record) (root pgtype.UUID) {
		if *j != nil && ojs.JobState((*j).State).Terminal() {
			root = (*j).WorkflowID
		}
		return root
	})
}
