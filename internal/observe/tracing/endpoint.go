package tracing

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
)

// CheckEndpoint fails for an invalid endpoint of a signal, TRACES or METRICS: the exporter would use its default without an
// error. It is called before the exporter is made, so that the server does not start with traces that go nowhere.
func CheckEndpoint(signal string) error {
	const common = "OTEL_EXPORTER_OTLP_ENDPOINT"
	own := "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"
	// The variable of the signal wins over the common one, as OpenTelemetry has it.
	name := own
	if os.Getenv(own) == "" {
		name = common
	}
	endpoint := cmp.Or(os.Getenv(own), os.Getenv(common))
	if endpoint == "" {
		return nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" { // the value is left out of the error: it may contain a password
		return fmt.Errorf("%s must be a URL such as http://localhost:4318", name)
	}
	return nil
}
