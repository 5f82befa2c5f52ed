package main

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestFrozenNode stops a node with SIGSTOP under load, several times, so that it stands still in whatever it was doing. Meanwhile the
// other node publishes, at the latest when PostgreSQL has ended the pass of the frozen one.
func TestFrozenNode(t *testing.T) {
	t.Parallel()
	const rounds, soon = 5, 20 * time.Second
	url := dbtest.URL(t)
	c := newCrashTest(t, 0)
	c.nodes = []*serverProcess{startNode(t, url), startNode(t, url)}

	producing, stop := context.WithCancel(t.Context())
	defer stop()
	var producers sync.WaitGroup
	for n := range 6 {
		producers.Go(func() { c.produce(producing, producing, n) })
	}
	frozen, other := c.nodes[0], c.nodes[1]
	var longest time.Duration
	for range rounds {
		sleepContext(t.Context(), 300*time.Millisecond)
		require.NoError(t, frozen.cmd.Process.Signal(syscall.SIGSTOP))
		took := c.awaitEvents(other, soon)
		require.NoError(t, frozen.cmd.Process.Signal(syscall.SIGCONT))
		require.Less(t, took, soon, "no event was published while the other node stood still")
		longest = max(longest, took)
	}
	stop()
	producers.Wait()
	require.Eventually(t, func() bool {
		res, err := c.client.Get(frozen.base + "/readyz")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	}, time.Minute, 20*time.Millisecond, "a node that was frozen does not get ready again")
	t.Logf("events flowed again after %s at most", longest)
}

// awaitEvents enqueues a job at the node, and returns how long its event took.
func (c *crashTest) awaitEvents(node *serverProcess, limit time.Duration) time.Duration {
	start := time.Now()
	_, answer := c.post(c.t.Context(), 1, "/ojs/v1/jobs", map[string]any{"type": "crash.test", "args": []int{1}, "options": map[string]any{"queue": "frozen"}})
	id := answer["job"].(map[string]any)["id"].(string)
	for time.Since(start) < limit {
		res, err := c.client.Get(node.base + "/ojs/v1/events?job_id=" + id)
		require.NoError(c.t, err)
		var list struct{ Events []any }
		require.NoError(c.t, json.NewDecoder(res.Body).Decode(&list))
		require.NoError(c.t, res.Body.Close())
		if len(list.Events) > 0 {
			return time.Since(start)
		}
		sleepContext(c.t.Context(), 10*time.Millisecond)
	}
	return limit
}
