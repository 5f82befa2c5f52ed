package main

import (
	"cmp"
	"strings"
)

// metricsProtocol is how metrics are pushed, by the standard variables of OpenTelemetry (docs/reference/observability.md,
// Metrics); "": they are not. The exporter reads the other variables itself.
// It takes the environment as a function, because only main may read it.
func metricsProtocol(getenv func(string) string) string {
	endpoint := cmp.Or(getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"), getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	if endpoint == "" || getenv("OTEL_METRICS_EXPORTER") == "none" || strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return ""
	}
	return cmp.Or(getenv("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"), getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), "http/protobuf")
}
