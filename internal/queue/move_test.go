package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestLaneOfMovedJobs is about jobs that change their queue: they wait in the lane that their fairness key has there.
func TestLaneOfMovedJobs(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	b.configure("fair", `{"fairness":{"key":"meta.customer"}}`)
	withMeta := func(queue, meta string) *job.Job {
		j := domaintest.NewJob(queue)
		j.Lane, j.Meta = "tenant", []byte(meta)
		return j
	}
	stored := b.Enqueued(withMeta("plain", `{"customer":"acme"}`), withMeta("plain", `{"customer":"a\u0000b"}`), withMeta("plain", `{}`), domaintest.NewJob("plain"))
	ids := make([][16]byte, len(stored))
	for i, j := range stored {
		ids[i] = j.ID
	}
	lanes := func() []string {
		return b.Texts(`SELECT lane FROM ojs.jobs ORDER BY array_position($1::uuid[], id)`, ids)
	}
	n, err := b.MoveWaiting(t.Context(), ids, "plain", "fair")
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, []string{"tenant/acme", "tenant/sha256:" + b.One(`SELECT encode(sha256('\x610062'), 'hex')`), "tenant", ""}, lanes())
	n, err = b.MoveWaiting(t.Context(), ids, "fair", "plain")
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, []string{"tenant", "tenant", "tenant", ""}, lanes())
	require.Len(t, b.Fetched(10, "plain"), 4)

	discarded := b.DeadLetter(func(j *job.Job) { j.Queue, j.Lane, j.Meta = "plain", "tenant", []byte(`{"customer":"acme"}`) })
	retried, err := b.Retry(t.Context(), discarded.ID, &job.Override{Queue: "fair"})
	require.NoError(t, err)
	require.Equal(t, "tenant/acme", retried.Lane)
}
