package domaintest

import (
	"github.com/ojsd/ojsd/internal/job"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/worker"
)

// Beat sends a heartbeat of the worker that extends the jobs.
func (b *Bundle) Beat(id string, jobs ...[16]byte) worker.BeatResult {
	b.T.Helper()
	res, err := b.Workers.Heartbeat(b.T.Context(), worker.Beat{WorkerID: id, Jobs: job.IDList{IDs: jobs}})
	require.NoError(b.T, err)
	return res
}

// Silent moves the last calls of the workers that many seconds into the past. It drops the beats that the node has collected,
// because they would be written later as recent calls.
func (b *Bundle) Silent(seconds int, workers ...string) {
	b.T.Helper()
	b.Cache.TakeBeats()
	b.Exec(`UPDATE ojs.workers SET last_seen_at = last_seen_at - $1::int * interval '1 second', last_beat_at = last_beat_at - $1::int * interval '1 second' WHERE id = ANY($2)`, seconds, workers)
}
