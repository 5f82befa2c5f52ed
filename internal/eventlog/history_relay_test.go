package eventlog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Every statement about the log begins with the row of event_relay. Without it each reader fails, and none panics.
func TestReadersWithoutTheRelaysRow(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.exec(t, "DELETE FROM ojs.event_relay")
	_, err := b.reader.HistoryNewest(t.Context(), HistoryQuery{Limit: 10})
	require.ErrorIs(t, err, errNoRelay)
	after := Position{Seq: 1}
	_, err = b.reader.ListAfter(t.Context(), Query{After: &after})
	require.ErrorIs(t, err, errNoRelay)
}
