package deadletter

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDecode(t *testing.T) {
	t.Parallel()

	t.Run("Filter", func(t *testing.T) {
		t.Parallel()
		f, err := DecodeRetry([]byte(`{"filter":{"queue":["a","b"],"type":"x.*","ids":[],"state":"discarded","older_than":"7d"},"confirm":true}`), 10)
		require.Nil(t, err)
		require.Equal(t, []string{"a", "b"}, f.Filter.Queues)
		require.Equal(t, []string{"x.*"}, f.Filter.Types)
		require.Equal(t, [][16]byte{{}}, f.Filter.IDs, "an empty list chooses nothing")
		require.True(t, f.Filter.OlderThan.Relative)
	})

	t.Run("FlatBodyIsTheFilter", func(t *testing.T) {
		t.Parallel()
		f, err := DecodePurge([]byte(`{"queue":"a","confirm":true}`), 10)
		require.Nil(t, err)
		require.Equal(t, []string{"a"}, f.Filter.Queues)
		require.Nil(t, f.Filter.IDs)
	})

	t.Run("ChecksConfirmationBeforeTheNumberOfIDs", func(t *testing.T) {
		t.Parallel()
		_, err := DecodePurge([]byte(`{"ids":["a","b"],"confirm":false}`), 1)
		require.Equal(t, "confirm", err.Details["field"])
		require.Equal(t, json.RawMessage("false"), err.Details["received"])
		_, err = DecodePurge([]byte(`{"ids":["a"]}`), 1)
		require.NotContains(t, err.Details, "received", "nothing was sent")
		require.Contains(t, err.Message, "deletes")
		_, err = DecodeRetry([]byte(`{"ids":["a","b"],"confirm":true}`), 1)
		require.Equal(t, "batch_size_exceeded", err.Code)
	})
}
