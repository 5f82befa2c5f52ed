package app_test

import (
	"context"
	"math"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/webhook/egress"
)

func TestStart(t *testing.T) {
	t.Parallel()

	t.Run("NeedsASchema", func(t *testing.T) {
		t.Parallel()
		_, err := app.Start(t.Context(), app.Config{DatabaseURL: dbtest.EmptyURL(t), Listen: "127.0.0.1:0", GRPC: app.GRPC{Disabled: true}, Logger: silent})
		require.ErrorContains(t, err, "migrate")
	})

	t.Run("MakesItIfAsked", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		a := setup(t, func(c *app.Config) { c.DatabaseURL, c.Migrate = url, true })
		a.push(`"type":"t","args":[]`)
	})

	t.Run("FailsOnATakenAddress", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		_, err := app.Start(t.Context(), app.Config{DatabaseURL: dbtest.URL(t), Listen: a.server.Addr(), GRPC: app.GRPC{Disabled: true}, Logger: silent})
		require.ErrorContains(t, err, "address already in use")
	})

	t.Run("FailsWithoutDatabase", func(t *testing.T) {
		t.Parallel()
		_, err := app.Start(t.Context(), app.Config{DatabaseURL: "postgres://127.0.0.1:1/x"})
		require.ErrorContains(t, err, "connect")
		_, err = app.Start(t.Context(), app.Config{})
		require.ErrorContains(t, err, "DATABASE_URL")
	})

	t.Run("RefusesSettingsThatCannotWork", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			config app.Config
			want   string
		}{
			{app.Config{APIKeys: []string{"k", ""}}, "api key"},
			{app.Config{APIKeys: []string{"k"}, CORSOrigins: []string{"*"}}, "cors origin"},
			{app.Config{MaxBatchSize: 999}, "max batch size"},
			{app.Config{DatabaseMaxConns: 3}, "database max conns"},
			{app.Config{DefaultVisibility: -1}, "default visibility timeout"},
			{app.Config{Events: app.Events{ServiceName: "A B"}}, "service name"},
			{app.Config{Webhooks: app.Webhooks{RetryJitter: math.NaN()}}, "retry jitter"},
			{app.Config{Webhooks: app.Webhooks{RetrySchedule: []time.Duration{-time.Second}}}, "retry schedule"},
			{app.Config{Webhooks: app.Webhooks{Workers: -1}}, "workers"},
			{app.Config{Webhooks: app.Webhooks{MaxRedirects: 4}}, "max redirects"},
			{app.Config{Webhooks: app.Webhooks{ProxyURL: &url.URL{Scheme: "localhost", Opaque: "3128"}}}, "proxy url"},
			{app.Config{Webhooks: app.Webhooks{EncryptionKeys: [][]byte{[]byte("short")}}}, "encryption key"},
			{app.Config{Webhooks: app.Webhooks{CAFile: "testdata/receiver.js"}}, "ca file"},
			{app.Config{Webhooks: app.Webhooks{Rules: egress.Rules{AllowedPorts: []int{70000}}}}, "allowed ports"},
			{app.Config{Webhooks: app.Webhooks{Rules: egress.Rules{AllowHosts: []string{"https://foo/"}}}}, "allow hosts"},
			{app.Config{Webhooks: app.Webhooks{Rules: egress.Rules{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("::ffff:127.0.0.0/104")}}}}, "allow networks"},
		} {
			c.config.DatabaseURL = "postgres://127.0.0.1:1/x"
			_, err := app.Start(t.Context(), c.config)
			require.ErrorContains(t, err, c.want)
		}
	})

	t.Run("RunEndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		url := dbtest.URL(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- app.Run(ctx, app.Config{DatabaseURL: url, Listen: "127.0.0.1:0", GRPC: app.GRPC{Disabled: true}, Logger: silent})
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
		one := setup(t, func(c *app.Config) { c.DatabaseURL = url })
		two := setup(t, func(c *app.Config) { c.DatabaseURL = url })
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
