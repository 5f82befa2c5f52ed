package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMetricsProtocol(t *testing.T) {
	t.Parallel()
	const endpoint, protocol = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{nil, ""},
		{map[string]string{protocol: "grpc"}, ""},
		{map[string]string{endpoint: "http://c:4318"}, "http/protobuf"},
		{map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, "http/protobuf"},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, ""},
		{map[string]string{endpoint: "http://c:4317", protocol: "grpc"}, "grpc"},
		{map[string]string{endpoint: "http://c:4317", protocol: "grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"}, "http/protobuf"},
		{map[string]string{endpoint: "http://c:4318", "OTEL_METRICS_EXPORTER": "none"}, ""},
		{map[string]string{endpoint: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, ""},
	} {
		require.Equal(t, c.want, metricsProtocol(func(name string) string { return c.env[name] }), "%v", c.env)
	}
}
