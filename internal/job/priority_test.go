package job

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDecodePriority(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]int16{
		`{"priority":10}`: 10, `{"priority":-100}`: -100, `{"priority":100}`: 100, `{"priority":5.0}`: 5, `{"priority":"high"}`: 10, `{"priority":"LOW"}`: -10,
	} {
		got, err := DecodePriority([]byte(body))
		require.Nil(t, err, body)
		require.Equal(t, want, got, body)
	}
	for body, field := range map[string]string{
		`{}`: "priority", `{"priority":null}`: "priority", `{"priority":101}`: "priority", `{"priority":-101}`: "priority", `{"priority":1.5}`: "priority",
		`{"priority":1e99}`: "priority", `{"priority":"5"}`: "priority", `{"priority":"\u0000"}`: "priority", `{"priority":[]}`: "priority",
		`[]`: "body", ``: "body", `{`: "body", "{\"priority\":\"\xff\"}": "body",
	} {
		_, err := DecodePriority([]byte(body))
		require.NotNil(t, err, body)
		require.Equal(t, "invalid_payload", err.Code, body)
		require.Equal(t, field, err.Details["field"], body)
	}
	_, err := DecodePriority([]byte(`{"priority":1,"queue":"q"}`))
	require.Equal(t, "invalid_request", err.Code)
	require.Equal(t, "queue", err.Details["field"])
}
