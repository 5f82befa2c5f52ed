package ojs

import (
	"context"
	"encoding/json"
	"slices"
)

// Names of extensions of ojsd that the SDK uses where a server has them.
const (
	ExtensionLongPolling  = "urn:ojsd:ext:long-polling"  // wait_ms of a fetch
	ExtensionBatchAck     = "urn:ojsd:ext:batch-ack"     // many acks or nacks in one request, with the next fetch in it
	ExtensionRequeueDelay = "urn:ojsd:ext:requeue-delay" // delay_ms of a nack with requeue
	ExtensionRetryDelay   = "urn:ojsd:ext:retry-delay"   // delay_ms of a nack with an error
	extensionRealtime     = "urn:ojs:ext:realtime"       // server-sent events
)

// Manifest says what a server offers.
type Manifest struct {
	SpecVersion    string
	Implementation struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	ConformanceLevel int
	Capabilities     map[string]bool
	Extensions       []string
}

// Has reports whether the server has an extension.
func (m *Manifest) Has(extension string) bool { return slices.Contains(m.Extensions, extension) }

// UnmarshalJSON reads what it knows and passes by the rest, because servers differ: extensions are texts, or objects with a name.
// A capability that is no boolean counts as absent.
func (m *Manifest) UnmarshalJSON(data []byte) error {
	var wire struct {
		SpecVersion      string          `json:"specversion"`
		OJSVersion       string          `json:"ojs_version"`
		Implementation   json.RawMessage `json:"implementation"`
		ConformanceLevel int             `json:"conformance_level"`
		Capabilities     map[string]any  `json:"capabilities"`
		Extensions       json.RawMessage `json:"extensions"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	*m = Manifest{SpecVersion: wire.SpecVersion, ConformanceLevel: wire.ConformanceLevel, Capabilities: map[string]bool{}}
	if m.SpecVersion == "" {
		m.SpecVersion = wire.OJSVersion
	}
	_ = json.Unmarshal(wire.Implementation, &m.Implementation)
	for name, value := range wire.Capabilities {
		on, _ := value.(bool)
		m.Capabilities[name] = on
	}
	var list []any
	_ = json.Unmarshal(wire.Extensions, &list)
	for _, e := range list {
		switch e := e.(type) {
		case string:
			m.Extensions = append(m.Extensions, e)
		case map[string]any:
			for _, key := range []string{"urn", "uri", "id", "name"} {
				if name, ok := e[key].(string); ok {
					m.Extensions = append(m.Extensions, name)
					break
				}
			}
		}
	}
	return nil
}

// Manifest reads what the server offers. The client does not keep it; a worker asks once for its own use.
func (c *Client) Manifest(ctx context.Context) (*Manifest, error) {
	m := &Manifest{}
	if err := c.Do(ctx, get("/ojs/manifest", nil), m); err != nil {
		return nil, err
	}
	return m, nil
}

// Health is the report of a server about itself.
type Health struct {
	Status        string `json:"status"` // ok, degraded, unhealthy
	Version       string `json:"version"`
	UptimeSeconds int64  `json:"uptime_seconds"`
}

// Health asks the server how it is, once. A server that is not well is an error or a Status other than ok.
// It is not repeated, so that it tells how the server is now.
func (c *Client) Health(ctx context.Context) (*Health, error) {
	h := &Health{}
	r := get("/health", nil)
	r.once = true
	if err := c.Do(ctx, r, h); err != nil {
		return nil, err
	}
	return h, nil
}
