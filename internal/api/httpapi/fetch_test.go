package httpapi_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/api/httpapi"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/eventlog"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// broken is a connection that breaks before the end of the answer.
type broken struct {
	http.ResponseWriter
	hangUp func()
}

func (b broken) Write([]byte) (int, error) {
	b.hangUp()
	return 0, syscall.EPIPE
}

func TestFetchOfAClientThatHangsUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		claimed, wrote bool // when the client hangs up
		want           string
	}{
		"WhileTheClaimRuns":  {claimed: true, want: "available"},
		"WhileTheAnswerGoes": {wrote: true, want: "available"},
		"Stays":              {want: "active"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			b := domaintest.New(t, func(node *domaintest.Config) {
				node.Changes = func(_ context.Context, changes []eventlog.Change) {
					if c.claimed && changes[0].Type == "job.started" {
						hangUp()
					}
				}
			})
			id := b.Enqueued(domaintest.NewJob("q"))[0].ID
			a := httpapi.New(config.Default(), httpapi.Deps{
				Domains: b.Domains, Logger: slog.New(slog.DiscardHandler), Streams: api.NewStreams(config.Default().Realtime),
				Health: api.NewHealth("1.2.3", func(context.Context) api.Look { return api.Look{Now: time.Now()} }, func() map[string]string { return nil }),
			})

			var w http.ResponseWriter = httptest.NewRecorder()
			if c.wrote {
				w = broken{w, hangUp}
			}
			body := strings.NewReader(`{"queues":["q"],"worker_id":"w"}`)
			a.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/ojs/v1/workers/fetch", body))

			require.Equal(t, c.want, string(b.State(id)))
			if c.want == "available" {
				jobs := b.Fetched(1, "q")
				require.Len(t, jobs, 1)
				require.EqualValues(t, 1, jobs[0].Attempt)
			}
		})
	}
}
