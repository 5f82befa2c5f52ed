package httpapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// parameterOrders are the orders in which routes refuse their parameters; :id stands for a malformed id in the path.
// A client that sends several wrong ones gets the error of the first.
var parameterOrders = map[string][]string{
	":id reason": {"DELETE /jobs/:id"},
	":id force":  {"DELETE /workflows/:id", "POST /workflows/:id/cancel"},
	"limit per_page offset page cursor include queue type error_type error_code since until older_than": {"GET /admin/dead-letter", "GET /dead-letter"},
	"limit per_page offset page state queue type contains since until sort order cursor":                {"GET /admin/jobs"},
	"limit per_page offset page cursor":               {"GET /admin/pools", "GET /admin/queues", "GET /admin/schemas", "GET /admin/tenants", "GET /cron/:name/history", "GET /crons/:name/history", "GET /queues", "GET /rate-limits", "GET /schemas", "GET /unique-jobs"},
	"queue period since until":                        {"GET /admin/stats/history"},
	"limit per_page offset page state queue cursor":   {"GET /admin/workers", "GET /workers"},
	"limit per_page offset page cursor queue enabled": {"GET /cron", "GET /crons"},
	"types queues job_types sources job_id subject workflow_id since until after format limit per_page offset page": {"GET /events"},
	":id format": {"GET /events/:id"},
	"last_event_id after types queues job_types sources job_id subject workflow_id since until format channel":     {"GET /events/stream", "GET /queues/:name/events"},
	"limit cursor event_types actor_type queues job_types start end":                                               {"GET /history"},
	"limit per_page offset page state queue type cursor":                                                           {"GET /jobs"},
	":id last_event_id after types queues job_types sources job_id subject workflow_id since until format channel": {"GET /jobs/:id/events"},
	"limit cursor": {"GET /jobs/:id/history"},
	"timeout wait": {"GET /jobs/:id/result"},
	"limit per_page offset page cursor active url":                                             {"GET /webhooks", "GET /webhooks/subscriptions"},
	"limit per_page offset page cursor status event_type subscription_id event_id since until": {"GET /webhooks/:id/deliveries", "GET /webhooks/deliveries", "GET /webhooks/subscriptions/:id/deliveries"},
	"limit per_page offset page state type name cursor":                                        {"GET /workflows"},
	"queue type error_type error_code since until older_than dry_run":                          {"POST /dead-letter/purge"},
	"confirm dry_run":  {"DELETE /admin/dead-letter", "DELETE /dead-letter"},
	"dry_run strategy": {"DELETE /queues/:name"},
}

var filterAliases = map[string][]string{
	"types": {"type", "event_types"}, "queues": {"queue"}, "job_types": {"job_type"}, "sources": {"source"},
}

func TestOrderOfParameters(t *testing.T) {
	t.Parallel()
	a := newAPI(io.Discard)
	h := a.Handler()
	got := map[string][]string{}
	for _, r := range a.routes() {
		if r.query == "" || strings.HasSuffix(r.path, "/metrics") {
			continue
		}
		malformed := strings.NewReplacer(":id", "x", ":name", "mail").Replace(r.path)
		id := "019a3c10-0000-7000-8000-000000000001"
		if strings.Contains(r.path, "/webhooks") {
			id = "sub_" + id
		} else if strings.HasSuffix(r.path, "/events/:id") {
			id = "evt_" + id
		}
		path, left, order := malformed, strings.Fields(r.query), []string{}
		for len(left) > 0 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(r.method, path+"?"+strings.Join(left, "=%00&")+"=%00", http.NoBody))
			field := gjson.Get(w.Body.String(), "error.details.field").Str
			if slices.Contains(left, field) {
				// All aliases of a filter are refused under its first name.
				left = slices.DeleteFunc(left, func(name string) bool { return name == field || slices.Contains(filterAliases[field], name) })
				order = append(order, field)
			} else if w.Code == http.StatusNotFound && path == malformed {
				order, path = append(order, ":id"), strings.Replace(r.path, ":id", id, 1)
			} else {
				break // no value of the others is wrong
			}
		}
		if len(order) > 1 {
			got[strings.Join(order, " ")] = append(got[strings.Join(order, " ")], r.method+" "+strings.TrimPrefix(r.path, basePath))
		}
	}
	require.Len(t, got, len(parameterOrders))
	for order, routes := range parameterOrders {
		require.ElementsMatch(t, routes, got[order], order)
	}
}
