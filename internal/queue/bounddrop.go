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
	// A queue with more levels than that keeps jobs that are older than those that are dropped: the levels at the end of the
	// order are not read.
	maxDropped    = 1000
	maxDropLevels = 10_000
)

// makeRoom drops the oldest available jobs of the queue for n new ones with so many bytes, as far as there are any.
//
// It runs under the lock of the queue, in the transaction of the insert, so a rollback brings the jobs back. It may drop more
// than the insert needs in the end: judge may refuse a job for another reason.
func (b *boundCheck) makeRoom(ctx context.Context, queue *boundedQueue, n, bytes int64) error {
	// Each page begins behind the last one, and so the loop ends even if none of its jobs can be discarded, because workers claim
	// them.
	after := int64(0)
	for {
		jobs, size := queue.excess(n, bytes)
		if jobs <= 0 && size <= 0 {
			return nil
		}
		// At least 100 are read, although fewer may be needed: some are locked or are claimed meanwhile.
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
			if own := queue.tenants[job.TenantOf(r.Lane)]; own != nil {
				own.depth, own.dropped = own.depth-1, own.dropped+1
			}
		}
	}
}

// excess is by how much the queue would exceed its bounds with n more jobs of so many bytes.
// A result of 0 or less means that there is room.
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
// The ids are sorted, the order in which all statements lock jobs. What is locked is skipped, not waited for: this transaction
// has the row of the queue, and every producer of it waits behind.
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
