package tracing

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProviderOfWhatIsNoURL(t *testing.T) { // not parallel: the environment is everybody's
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ":::bad")
	_, err := NewProvider(t.Context(), Service{})
	require.ErrorContains(t, err, "OTEL_EXPORTER_OTLP_ENDPOINT must be a URL")
}
