package grpcapi

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/config"
)

// TestEachRPCIsDeclared: one without a row cannot be registered, nor is there a row for none.
func TestEachRPCIsDeclared(t *testing.T) {
	t.Parallel()
	a, err := New(config.Default(), Deps{})
	require.NoError(t, err)
	services := a.server.GetServiceInfo()
	require.NotPanics(t, func() { checkDeclared(services) })
	require.Len(t, rpcByName, len(rpcs), "two rows have one name")
	services["ojs.v1.New"] = grpc.ServiceInfo{Methods: []grpc.MethodInfo{{Name: "Guess"}}}
	require.PanicsWithValue(t, "grpcapi: rpcs has no row for /ojs.v1.New/Guess", func() { checkDeclared(services) })
	delete(services, "ojs.v1.New")
	delete(services, "ojs.events.v1.OJSEvents")
	require.PanicsWithValue(t, "grpcapi: no service has the RPC /ojs.events.v1.OJSEvents/StreamEvents", func() { checkDeclared(services) })
}

// TestPublicRPCs: what callers without a key may call shows nothing of jobs, and nothing that they send is kept.
func TestPublicRPCs(t *testing.T) {
	t.Parallel()
	var names []string
	for _, r := range rpcs {
		if r.is&public != 0 {
			names = append(names, r.name)
			require.Equal(t, api.Everybody, r.reach)
			require.Zero(t, r.is&(batch|claims|waits))
		}
	}
	require.Equal(t, []string{
		"/ojs.v1.OJSService/Manifest", "/ojs.v1.OJSService/Health", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List", "/grpc.health.v1.Health/Watch",
	}, names)
}
