// Package api owns what both transports do: who may call, whose doing a failure is and what a client is told about it, the
// line in the log and the span of each request, checks of parameters that both have, limits of streams, health and the
// manifest's facts. httpapi and grpcapi speak the protocols and call the same operations of the domains.
//
// It must never speak a protocol, hold a rule about jobs, or read the database other than through a domain.
package api
