package domaintest

import (
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/worker"
)

// Beat sends a heartbeat of the worker that extends the jobs.
func (b *Bundle) Beat(id string, jobs ...[16]byte) worker.BeatResult {
	b.T.Helper()
	res, err := b.Workers.Heartbeat(b.T.Context(), worker.Beat{WorkerID: id, JobIDs: jobs})
	require.NoError(b.T, err)
	return res
}

// Silent makes the workers look as if they had last called that long ago. Calls that the node has not written yet are
// dropped: written later, they would be fresh.
func (b *Bundle) Silent(seconds int, workers ...string) {
	b.T.Helper()
	b.Cache.TakeBeats()
	b.Exec(`UPDATE ojs.workers SET seen_at = seen_at - $1::int * interval '1 second', last_beat_at = last_beat_at - $1::int * interval '1 second' WHERE id = ANY($2)`, seconds, workers)
}
