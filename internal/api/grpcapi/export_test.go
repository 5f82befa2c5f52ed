package grpcapi

import "google.golang.org/grpc/stats"

// Deliveries returns what the library calls about the answers of the API.
func Deliveries(a *API) stats.Handler { return deliveries{a} }
