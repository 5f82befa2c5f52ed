package httpapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/store"
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

func TestFetchOfWhoIsGone(t *testing.T) {
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
			settings := store.FromConfig(config.Default())
			settings.OnChanges = func(_ context.Context, changes []store.Change) {
				if c.claimed && changes[0].Type == "job.started" {
					hangUp()
				}
			}
			st := store.New(dbtest.New(t), settings)
			job, err := st.Enqueue(t.Context(), &envelope.Job{Type: "t", Queue: "q", MaxAttempts: 3, Args: []byte(`[]`)})
			require.NoError(t, err)
			a := newAPI(io.Discard)
			a.store = st

			var w http.ResponseWriter = httptest.NewRecorder()
			if c.wrote {
				w = broken{w, hangUp}
			}
			body := strings.NewReader(`{"queues":["q"],"worker_id":"w"}`)
			a.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/ojs/v1/workers/fetch", body))

			job, err = st.Get(t.Context(), job.ID)
			require.NoError(t, err)
			require.Equal(t, c.want, job.State)
			if c.want == "available" {
				jobs, err := st.Fetch(t.Context(), store.Fetch{Queues: []string{"q"}, Count: 1})
				require.NoError(t, err)
				require.Len(t, jobs, 1)
				require.EqualValues(t, 1, jobs[0].Attempt)
			}
		})
	}
}
