package queue

import (
	"bytes"
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

const (
	// maxDropped bounds the jobs of one statement that drops, and maxDropLevels the lanes and priorities that it looks at.
	maxDropped    = 1000
	maxDropLevels = 10_000
)

// makeRoom drops the oldest available jobs of the queue for n new ones with so many bytes, as far as there are any.
func (b *boundCheck) makeRoom(ctx context.Context, queue *boundedQueue, n, bytes int64) error {
	after := int64(0)
	for {
		jobs, size := queue.excess(n, bytes)
		if jobs <= 0 && size <= 0 {
			return nil
		}
		oldest, err := b.q.JobListOldest(ctx, dbsqlc.JobListOldestParams{Queue: queue.name, MaxLevels: maxDropLevels, AfterSeq: after, MaxRows: min(maxDropped, max(jobs, 100))})
		if err != nil || len(oldest) == 0 {
			return err
		}
		var ids [][16]byte
		byID := make(map[[16]byte]int64, len(oldest))
		for _, j := range oldest {
			if jobs <= 0 && size <= 0 {
				break
			}
			ids, byID[j.ID], after = append(ids, j.ID), j.Bytes, j.Seq
			jobs, size = jobs-1, size-j.Bytes
		}
		rows, err := b.discard(ctx, queue, ids) // some may have been fetched or locked meanwhile
		if err != nil {
			return err
		}
		for _, r := range rows {
			queue.depth, queue.bytes = queue.depth-1, max(0, queue.bytes-byID[r.ID])
			queue.freed += byID[r.ID]
		}
	}
}

// excess is by how much the queue would exceed its bounds with n more jobs of so many bytes.
func (queue *boundedQueue) excess(n, bytes int64) (jobs, size int64) {
	if p := queue.policy; p.MaxDepth > 0 {
		jobs = queue.depth + min(n, p.MaxDepth) - p.MaxDepth // more do not fit even into an empty queue
	}
	if p := queue.policy; p.MaxSizeBytes > 0 {
		size = queue.bytes + min(bytes, p.MaxSizeBytes) - p.MaxSizeBytes
	}
	return jobs, size
}

// discard ends available jobs of the queue.
func (b *boundCheck) discard(ctx context.Context, queue *boundedQueue, ids [][16]byte) (all []dbsqlc.JobDiscardWaitingRow, err error) {
	slices.SortFunc(ids, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	for part := range slices.Chunk(ids, maxDropped) {
		rows, err := b.q.JobDiscardWaiting(ctx, dbsqlc.JobDiscardWaitingParams{
			Ids: part, States: []string{string(ojs.StateAvailable)}, Code: job.Overflow, Message: job.ServerError(job.Overflow, 0, 0).Message,
			EventType: ojs.EventJobDiscarded, Source: "api", Node: b.store.commits.Node,
		})
		if err != nil {
			return nil, err
		}
		all, queue.dropped = append(all, rows...), append(queue.dropped, rows...)
	}
	return all, nil
}

func droppedWorkflow(r *dbsqlc.JobDiscardWaitingRow) pgtype.UUID { return r.WorkflowID }

func droppedLimit(r *dbsqlc.JobDiscardWaitingRow) pgtype.Text { return r.LimitKey }
