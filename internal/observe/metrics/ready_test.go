package metrics_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/observe/metrics"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestReadySurvey(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t)
	enqueue := func(queue string, priority int16, age time.Duration) {
		t.Helper()
		j := domaintest.NewJob(queue)
		j.Priority = priority
		b.Exec(`UPDATE ojs.jobs SET enqueued_at = enqueued_at - $2::interval WHERE id = $1`, b.Enqueued(j)[0].ID, age)
	}
	fetch := func(queue string) {
		t.Helper()
		require.Len(t, b.Fetched(1, queue), 1)
	}
	var s metrics.ReadySurvey
	requireAge := func(queue string, want time.Duration) {
		t.Helper()
		ages, err := s.Ages(t.Context(), b.database, []string{"a", "b"})
		require.NoError(t, err)
		require.InDelta(t, want.Seconds(), ages[queue].Seconds(), 60)
	}

	requireAge("a", 0)
	enqueue("a", 0, time.Hour)
	enqueue("a", 0, 2*time.Hour)
	enqueue("a", 5, 3*time.Hour)
	s.SetLast(time.Time{}, 0)
	requireAge("a", 3*time.Hour)

	s.SetLast(time.Now(), time.Hour) // from now on it reads from the previous heads
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

	s.SetLast(time.Now().Add(-21*time.Hour), time.Hour) // the next full read is due
	requireAge("b", 5*time.Hour)

	t.Run("SaysNothingRatherThanWalkAgain", func(t *testing.T) {
		var s metrics.ReadySurvey
		s.SetLast(time.Now(), time.Hour)
		_, err := s.Ages(t.Context(), b.database, []string{"a"})
		require.ErrorIs(t, err, metrics.ErrTooCostly)
	})
}
