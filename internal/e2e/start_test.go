package e2e_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestStart(t *testing.T) {
	t.Parallel()

	t.Run("NeedsASchema", func(t *testing.T) {
		t.Parallel()
		_, err := app.Start(t.Context(), settings(dbtest.EmptyURL(t)))
		require.ErrorContains(t, err, "migrate")
	})

	t.Run("MakesItIfAsked", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		a := setup(t, func(c *app.Config) { c.Database.URL, c.Database.Migrate = url, true })
		a.push(`"type":"t","args":[]`)
	})

	t.Run("FailsOnATakenAddress", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		config := settings(dbtest.URL(t))
		config.Server.Listen = a.app.Addr()
		_, err := app.Start(t.Context(), config)
		require.ErrorContains(t, err, "address already in use")
	})

	t.Run("FailsAtOnceOnATakenAddressOfGRPC", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		config := settings(dbtest.URL(t))
		config.GRPC.Listen, config.Server.ShutdownDelay = a.app.Addr(), time.Hour
		failed := make(chan error, 1)
		go func() {
			_, err := app.Start(context.Background(), config)
			failed <- err
		}()
		select {
		case err := <-failed:
			require.ErrorContains(t, err, "OJS_GRPC_LISTEN")
		case <-time.After(waitFor):
			require.Fail(t, "it waits for load balancers that do not know it")
		}
	})

	t.Run("FailsWithoutDatabase", func(t *testing.T) {
		t.Parallel()
		_, err := app.Start(t.Context(), settings("postgres://127.0.0.1:1/x"))
		require.ErrorContains(t, err, "connect")
		_, err = app.Start(t.Context(), settings(""))
		require.ErrorContains(t, err, "DATABASE_URL")
	})

	t.Run("RefusesACertificateFileThatHoldsNone", func(t *testing.T) {
		t.Parallel()
		config := settings(dbtest.URL(t))
		config.Webhooks.CAFile = "testdata/receiver.js"
		_, err := app.Start(t.Context(), config)
		require.ErrorContains(t, err, "ca file")
	})

	t.Run("RunEndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		url := dbtest.URL(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- app.Run(ctx, settings(url))
		}()
		cancel()
		select { // whether it had started or not
		case err := <-done:
			if err != nil {
				require.ErrorIs(t, err, context.Canceled)
			}
		case <-time.After(waitFor):
			require.Fail(t, "Run did not end")
		}
	})

	t.Run("OfTwoNodesEachServesTheOthersJobs", func(t *testing.T) {
		t.Parallel()
		one, two := nodes(t)
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

// TestFailedStartFlushesTraces: the exporter of traces ends with a start that fails, and sends what it has.
func TestFailedStartFlushesTraces(t *testing.T) { // not parallel: the environment is everybody's
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	exporting := func() bool {
		stacks := make([]byte, 4<<20)
		return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "batchSpanProcessor")
	}
	eventually(t, func() bool { return !exporting() })
	for name, fail := range map[string]func(*app.Config){
		"WhileItIsBuilt": func(c *app.Config) { c.Webhooks.CAFile = "testdata/receiver.js" },
		"WhileItListens": func(c *app.Config) { c.Server.Listen = "127.0.0.1:no" },
	} {
		t.Run(name, func(t *testing.T) {
			config := settings(dbtest.URL(t))
			fail(&config)
			_, err := app.Start(t.Context(), config)
			require.Error(t, err)
			eventually(t, func() bool { return !exporting() }) // goroutines end a moment after they have said that they are done
		})
	}
}
