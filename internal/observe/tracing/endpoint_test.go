package tracing

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckEndpoint(t *testing.T) { // not parallel: the environment is everybody's
	const common, own = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
	for _, c := range []struct{ common, own, refused string }{
		{"", "", ""},
		{"http://collector:4318", "", ""},
		{"https://u:p@[::1]:4318/x", "", ""},
		{":::bad", "http://collector:4318/v1/metrics", ""},
		{":::bad", "", common},
		{"collector:4317", "", common},
		{"10.0.0.1:4317", "", common},
		{"http://collector:4318", "http://", own},
		{"", "http://joe:secret@c\x7f", own},
	} {
		t.Setenv(common, c.common)
		t.Setenv(own, c.own)
		err := CheckEndpoint("METRICS")
		if c.refused == "" {
			require.NoError(t, err, c)
			continue
		}
		require.ErrorContains(t, err, c.refused+" must be a URL")
		require.NotContains(t, err.Error(), "secret")
	}
}
