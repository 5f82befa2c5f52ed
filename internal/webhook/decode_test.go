package webhook_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/webhook"
)

func TestDecodeBounds(t *testing.T) {
	t.Parallel()
	metadata := func(size int) string { return `{"k": "` + strings.Repeat("x", size-len(`{"k":""}`)) + `"}` }
	for members, refused := range map[string]string{
		`"secret":" ~~~~~~~"`: "", `"secret":"~~~~~~~\u007f"`: "secret", `"secret":"~~~~~~~\u001f"`: "secret", `"secret":"1234567"`: "secret",
		`"secret":"12345678","metadata":` + metadata(4096): "", `"secret":"12345678","metadata":` + metadata(4097): "metadata",
		`"secret":"12345678","metadata":5`: "metadata", `"secret":"12345678","metadata":null`: "",
	} {
		_, err := webhook.Decode([]byte(`{"url":"https://example.com","events":["job.*"],` + members + `}`))
		if refused == "" {
			require.Nil(t, err, members)
			continue
		}
		require.NotNil(t, err, members)
		require.Equal(t, refused, err.Details["field"], members)
	}
}

func TestDecodeFilters(t *testing.T) {
	t.Parallel()
	w, err := webhook.Decode([]byte(`{"url":"https://example.com","events":["job.*"],"secret":"12345678",
		"filter":{"queues":["","a"],"job_types":["x"],"job_types":null,"sources":["api",""]}}`))
	require.Nil(t, err)
	require.Equal(t, []string{"a"}, w.Queues)
	require.Empty(t, w.JobTypes)
	require.Equal(t, []string{"api"}, w.Sources)
}
