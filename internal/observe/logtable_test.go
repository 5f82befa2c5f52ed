package observe

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

func TestLineOf(t *testing.T) {
	t.Parallel()

	t.Run("EveryTypeOfADomainIsLogged", func(t *testing.T) {
		t.Parallel()
		for _, eventType := range ojs.EventTypes {
			_, logged := lineOf(&eventlog.Change{Type: eventType})
			// SQL writes workflow.started; the event that follows job.failed is logged instead of it.
			notWritten := eventType == ojs.EventWorkflowStarted
			require.Equal(t, !notWritten && eventType != ojs.EventJobFailed, logged, eventType)
		}
	})

	t.Run("ReasonSelectsTheRow", func(t *testing.T) {
		t.Parallel()
		for _, x := range []struct {
			change  eventlog.Change
			level   slog.Level
			message string
		}{
			{eventlog.Change{Type: ojs.EventJobRetrying}, slog.LevelWarn, "job failed, will retry"},
			{eventlog.Change{Type: ojs.EventJobRetrying, Reason: job.Timeout}, slog.LevelError, "job timed out, will retry"},
			{eventlog.Change{Type: ojs.EventWorkerStopped, Reason: job.WorkerDeath}, slog.LevelError, "worker lost"},
			{eventlog.Change{Type: ojs.EventWorkerStopped, Reason: "shutdown"}, slog.LevelInfo, "worker stopped"},
			{eventlog.Change{Type: eventlog.StateChanged}, slog.LevelInfo, "job pending"},
			{eventlog.Change{Type: eventlog.StateChanged, Reason: "purged"}, slog.LevelDebug, "job removed"},
			{eventlog.Change{Type: eventlog.StateChanged, Reason: "moved", To: "available"}, slog.LevelDebug, "job moved"},
		} {
			line, logged := lineOf(&x.change)
			require.True(t, logged)
			require.Equal(t, x.message, line.message)
			require.Equal(t, x.level, line.level)
		}
	})

	t.Run("MoveIsLoggedOnce", func(t *testing.T) {
		t.Parallel()
		_, logged := lineOf(&eventlog.Change{Type: eventlog.StateChanged, Reason: "moved"})
		require.False(t, logged)
	})
}
