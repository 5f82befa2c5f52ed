package httpapi

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnknownRouteNamesTheNearest(t *testing.T) {
	t.Parallel()
	h := newAPI(io.Discard).Handler()
	for request, want := range map[string]string{
		"GET /ojs/v1/job":                          "GET /ojs/v1/jobs",
		"HEAD /ojs/v1/job":                         "",
		"POST /ojs/v1/job":                         "POST /ojs/v1/jobs",
		"GET /jobs":                                "GET /ojs/v1/jobs",
		"GET /ojs/v1/jobs/019a3c10/resultt":        "GET /ojs/v1/jobs/{id}/result",
		"GET /ojs/v1/queue/mail/stats":             "GET /ojs/v1/queues/{name}/stats",
		"GET /ojs/v2/dead-letter":                  "GET /ojs/v1/dead-letter",
		"GET /ojs/v1/" + strings.Repeat("x", 200):  "",
		"PATCH /ojs/v1/webhook/sub_1":              "PATCH /ojs/v1/webhooks/{id}",
		"GET /foo":                                 "",
		"GET /":                                    "",
		"GET /x":                                   "",
		"POST /ojs/v1/workflow":                    "POST /ojs/v1/workflows",
		"POST /ojs/v1/greetings/mail/hello":        "",
		"GET /healthx":                             "GET /health",
		"POST /ojs/v1/dead-letters/019a3c10/retry": "POST /ojs/v1/dead-letter/{id}/retry",
	} {
		method, path, _ := strings.Cut(request, " ")
		w := call(h, method, path, "")
		require.Equal(t, http.StatusNotFound, w.Code, request)
		if method == http.MethodHead {
			continue
		}
		var body struct {
			Error struct {
				Type, Message, Hint string
				Details             map[string]string
			}
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
		require.Equal(t, map[string]string{"resource_type": "route", "resource_id": path}, body.Error.Details)
		require.Equal(t, "not_found", body.Error.Type)
		require.Contains(t, body.Error.Message, "There is no route "+request+".")
		require.NotContains(t, body.Error.Message+body.Error.Hint, "the id")
		if want == "" {
			require.NotContains(t, body.Error.Message, "nearest")
			continue
		}
		require.Contains(t, body.Error.Message, "The nearest one is "+want+".", request)
	}
}
