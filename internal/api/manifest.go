package api

// What every manifest says (docs/reference/http.md, Manifest).
// ConformanceLevel is the highest level of the specification; raise it only with the tests of that level.
const (
	Name             = "ojsd"
	Language         = "go"
	Backend          = "postgres"
	SpecVersion      = "1.0"
	ConformanceLevel = 4
)

// Extensions are the optional parts of the specification, and our own, that this node has.
// HTTP and gRPC announce the same list.
func Extensions(webhooks bool) []string {
	list := []string{
		"admin-api", "urn:ojs:ext:admin-api", "urn:ojs:ext:queue-config", "urn:ojs:ext:rate-limiting", "urn:ojs:ext:backpressure",
		"urn:ojs:ext:bulk-operations", "urn:ojs:ext:fair-scheduling", "urn:ojs:ext:payload-limits", "urn:ojs:ext:observability", "urn:ojs:ext:logging", "urn:ojs:ext:progress",
		"urn:ojs:ext:realtime", "urn:ojsd:ext:long-polling", "urn:ojsd:ext:batch-ack", "urn:ojsd:ext:requeue-delay",
	}
	if webhooks {
		list = append(list, "urn:ojs:ext:webhooks")
	}
	return list
}

// Protocols are the ways to talk to this node.
func Protocols(grpc bool) []string {
	if grpc {
		return []string{"http", "grpc"}
	}
	return []string{"http"}
}
