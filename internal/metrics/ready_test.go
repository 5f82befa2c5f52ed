package metrics

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/store"
)

func TestReadySurvey(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	st := store.New(pool, store.FromConfig(config.Default()))
	enqueue := func(queue string, priority int16, age time.Duration) {
		t.Helper()
		job, err := st.Enqueue(t.Context(), &envelope.Job{Type: "t", Queue: queue, Priority: priority, MaxAttempts: 3, Args: []byte(`[]`)})
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `UPDATE ojs.jobs SET enqueued_at = enqueued_at - $2::interval WHERE id = $1`, job.ID, age)
		require.NoError(t, err)
	}
	fetch := func(queue string) {
		t.Helper()
		jobs, err := st.Fetch(t.Context(), store.Fetch{Queues: []string{queue}, Count: 1})
		require.NoError(t, err)
		require.Len(t, jobs, 1)
	}
	var s readySurvey
	requireAge := func(queue string, want time.Duration) {
		t.Helper()
		ages, err := s.ages(t.Context(), st, []string{"a", "b"})
		require.NoError(t, err)
		require.InDelta(t, want.Seconds(), ages[queue].Seconds(), 60)
	}

	requireAge("a", 0)
	enqueue("a", 0, time.Hour)
	enqueue("a", 0, 2*time.Hour)
	enqueue("a", 5, 3*time.Hour)
	s.cost = 0
	requireAge("a", 3*time.Hour)

	s.cost, s.at = time.Hour, time.Now() // from now on it goes on where the heads were
	fetch("a")
	requireAge("a", time.Hour)
	fetch("a")
	requireAge("a", 2*time.Hour)
	fetch("a")
	requireAge("a", 0)
	enqueue("a", 5, 4*time.Hour)
	requireAge("a", 4*time.Hour)
	enqueue("b", 0, 5*time.Hour)
	requireAge("b", 0)

	s.at = time.Now().Add(-21 * time.Hour) // until it is time for a look from the start
	requireAge("b", 5*time.Hour)

	t.Run("SaysNothingRatherThanWalkAgain", func(t *testing.T) {
		s := readySurvey{cost: time.Hour, at: time.Now()}
		_, err := s.ages(t.Context(), st, []string{"a"})
		require.ErrorIs(t, err, errTooCostly)
	})
}
