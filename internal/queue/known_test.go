package queue_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/queue"
)

// The row of a queue that is not used is deleted (ojs.queues_prune), so nodes do not count on it for ever.
func TestKnownQueues(t *testing.T) {
	t.Parallel()

	t.Run("ForAnHour", func(t *testing.T) {
		t.Parallel()
		has := queue.KnownQueuesForTest("a")
		require.True(t, has("a", 59*time.Minute))
		require.False(t, has("a", time.Hour))
		require.False(t, has("b", 0))
	})

	t.Run("Bounded", func(t *testing.T) {
		t.Parallel()
		names := make([]string, 100_001)
		for i := range names {
			names[i] = strconv.Itoa(i)
		}
		has := queue.KnownQueuesForTest(names...)
		require.False(t, has(names[0], 0))
	})

	for name, enqueue := range map[string]func(b *bundle){
		"AnEnqueueMovesUsedAt":      func(b *bundle) { b.Enqueued(domaintest.NewJob("q")) },
		"AnEnqueueFromSQLDoesSoToo": func(b *bundle) { b.Exec(`SELECT ojs.enqueue('t', '[]', 'q')`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			used := func() string {
				return b.One(`SELECT (used_at > now() - interval '1 minute')::text FROM ojs.queues WHERE name = 'q'`)
			}
			b.Exec(`INSERT INTO ojs.queues (name, used_at) VALUES ('q', now() - interval '23 hours')`)
			enqueue(b.node())
			require.Equal(t, "false", used(), "at most once a day")
			b.Exec(`UPDATE ojs.queues SET used_at = now() - interval '25 hours'`)
			enqueue(b)
			require.Equal(t, "true", used())
		})
	}
}
