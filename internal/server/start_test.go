package server_test

import (
	"context"
	"math"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/egress"
	"github.com/ojsd/ojsd/internal/server"
)

func TestStart(t *testing.T) {
	t.Parallel()

	t.Run("NeedsASchema", func(t *testing.T) {
		t.Parallel()
		_, err := server.Start(t.Context(), server.Config{DatabaseURL: dbtest.EmptyURL(t), Listen: "127.0.0.1:0", GRPC: server.GRPC{Disabled: true}, Logger: silent})
		require.ErrorContains(t, err, "migrate")
	})

	t.Run("MakesItIfAsked", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		a := setup(t, func(c *server.Config) { c.DatabaseURL, c.Migrate = url, true })
		a.push(`"type":"t","args":[]`)
	})

	t.Run("FailsOnATakenAddress", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		_, err := server.Start(t.Context(), server.Config{DatabaseURL: dbtest.URL(t), Listen: a.server.Addr(), GRPC: server.GRPC{Disabled: true}, Logger: silent})
		require.ErrorContains(t, err, "address already in use")
	})

	t.Run("FailsWithoutDatabase", func(t *testing.T) {
		t.Parallel()
		_, err := server.Start(t.Context(), server.Config{DatabaseURL: "postgres://127.0.0.1:1/x"})
		require.ErrorContains(t, err, "connect")
		_, err = server.Start(t.Context(), server.Config{})
		require.ErrorContains(t, err, "DATABASE_URL")
	})

	t.Run("RefusesSettingsThatCannotWork", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			config server.Config
			want   string
		}{
			{server.Config{APIKeys: []string{"k", ""}}, "api key"},
			{server.Config{APIKeys: []string{"k"}, CORSOrigins: []string{"*"}}, "cors origin"},
			{server.Config{MaxBatchSize: 999}, "max batch size"},
			{server.Config{DatabaseMaxConns: 3}, "database max conns"},
			{server.Config{DefaultVisibility: -1}, "default visibility timeout"},
			{server.Config{Events: server.Events{ServiceName: "A B"}}, "service name"},
			{server.Config{Webhooks: server.Webhooks{RetryJitter: math.NaN()}}, "retry jitter"},
			{server.Config{Webhooks: server.Webhooks{RetrySchedule: []time.Duration{-time.Second}}}, "retry schedule"},
			{server.Config{Webhooks: server.Webhooks{Workers: -1}}, "workers"},
			{server.Config{Webhooks: server.Webhooks{MaxRedirects: 4}}, "max redirects"},
			{server.Config{Webhooks: server.Webhooks{ProxyURL: &url.URL{Scheme: "localhost", Opaque: "3128"}}}, "proxy url"},
			{server.Config{Webhooks: server.Webhooks{EncryptionKeys: [][]byte{[]byte("short")}}}, "encryption key"},
			{server.Config{Webhooks: server.Webhooks{CAFile: "testdata/receiver.js"}}, "ca file"},
			{server.Config{Webhooks: server.Webhooks{Rules: egress.Rules{AllowedPorts: []int{70000}}}}, "allowed ports"},
			{server.Config{Webhooks: server.Webhooks{Rules: egress.Rules{AllowHosts: []string{"https://foo/"}}}}, "allow hosts"},
			{server.Config{Webhooks: server.Webhooks{Rules: egress.Rules{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("::ffff:127.0.0.0/104")}}}}, "allow networks"},
		} {
			c.config.DatabaseURL = "postgres://127.0.0.1:1/x"
			_, err := server.Start(t.Context(), c.config)
			require.ErrorContains(t, err, c.want)
		}
	})

	t.Run("RunEndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		url := dbtest.URL(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- server.Run(ctx, server.Config{DatabaseURL: url, Listen: "127.0.0.1:0", GRPC: server.GRPC{Disabled: true}, Logger: silent})
		}()
		cancel()
		select { // whether it had started or not
		case err := <-done:
			if err != nil {
				require.ErrorIs(t, err, context.Canceled)
			}
		case <-time.After(10 * time.Second):
			require.Fail(t, "Run did not end")
		}
	})

	t.Run("OfTwoNodesEachServesTheOthersJobs", func(t *testing.T) {
		t.Parallel()
		url := dbtest.URL(t)
		one := setup(t, func(c *server.Config) { c.DatabaseURL = url })
		two := setup(t, func(c *server.Config) { c.DatabaseURL = url })
		id := one.push(`"type":"t","args":[],"queue":"q"`)
		require.Equal(t, id, two.fetch("q", `"worker_id":"w"`).at("jobs.0.id"))
		one.ack(id, `"worker_id":"w"`).is(200)
		got := two.parked("q", `"wait_ms":15000`)
		id = one.push(`"type":"t","args":[],"queue":"q"`)
		require.Equal(t, id, (<-got).at("jobs.0.id"))
		two.del("/ojs/v1/jobs/" + id).is(200)
		require.Equal(t, "false", one.ack(id).is(200).at("acknowledged"))
	})
}
