package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/stats"
	"github.com/ojsd/ojsd/ojs"
)

// adminQueueRoutes are those of docs/reference/admin.md, Queues.
// No route is open to tenants, because figures and settings of a queue are about the jobs of all.
func (a *API) adminQueueRoutes() []route {
	return []route{
		{"GET", "/admin/queues", operators, noBody, paging, a.listAdminQueues},
		{"GET", "/admin/queues/:name", operators, noBody, "", a.getAdminQueue},
		{"DELETE", "/admin/queues/:name/jobs", operators, configBody, "cancelled_by", a.adminPurgeQueue},
		{"POST", "/admin/queues/:name/pause", operators, configBody, "paused_by", a.adminPauseQueue},
		{"POST", "/admin/queues/:name/resume", operators, configBody, "resumed_by", a.adminResumeQueue},
		{"PUT", "/admin/queues/:name/config", operators, configBody, "", a.adminPutQueueConfig},
		{"PUT", "/admin/queues/:name/rate-limit", operators, oneBody, "", a.putQueueRateLimit},
	}
}

// adminQueue is a queue as docs/reference/admin.md, Queues shows it, in the list and alone. Everything is read in one
// snapshot. Counts are exact, because events that are not published yet are added; rates and latency are as of the latest
// published event, normally within 100 ms.
type adminQueue struct {
	Name string `json:"name"`
	// State and Status are equal: active, paused or draining. The CLI reads one name, the admin UI the other.
	State  string `json:"state"`
	Status string `json:"status"`
	Paused bool   `json:"paused"`
	// PausedAt is absent unless the queue is paused.
	PausedAt string      `json:"paused_at,omitempty"`
	Counts   stateCounts `json:"counts"`
	// Throughput is of the last 60 s. Processed counts completed jobs, Failed counts failed attempts, of which a job may have
	// several.
	Throughput struct {
		Processed float64 `json:"processed_per_minute"`
		Failed    float64 `json:"failed_per_minute"`
	} `json:"throughput"`
	// Latency are run times in ms of the jobs that completed in the last 60 minutes, estimated from counts per range. 0: none
	// completed.
	Latency struct {
		P50 float64 `json:"p50"`
		P95 float64 `json:"p95"`
		P99 float64 `json:"p99"`
	} `json:"latency_ms"`
	CreatedAt string `json:"created_at"`
	UpdatedAt string `json:"updated_at"`

	// The two members of a queue that is shown alone. A list would have to look into the jobs of each queue for the first
	// one, and into the configuration of each for the second.
	OldestAvailableAt string          `json:"oldest_available_at,omitempty"`
	Configuration     json.RawMessage `json:"configuration,omitempty"`
}

func newAdminQueue(q stats.Queue) adminQueue {
	v := adminQueue{
		Name: q.Name, State: q.Status, Status: q.Status, Paused: q.Status == "paused", Counts: newStateCounts(q.Jobs),
		CreatedAt: spec.FormatTime(q.CreatedAt), UpdatedAt: spec.FormatTime(q.UpdatedAt),
	}
	if v.Paused && !q.PausedAt.IsZero() {
		v.PausedAt = spec.FormatTime(q.PausedAt)
	}
	if !q.OldestAt.IsZero() {
		v.OldestAvailableAt = spec.FormatTime(q.OldestAt)
	}
	v.Throughput.Processed, v.Throughput.Failed = round1(q.Rates.Completed), round1(q.Rates.Failed)
	v.Latency.P50, v.Latency.P95, v.Latency.P99 = round1(q.Latency.Percentile(0.5)), round1(q.Latency.Percentile(0.95)), round1(q.Latency.Percentile(0.99))
	return v
}

// listAdminQueues pages by name. The cursor is the last name shown, so a queue that is created or deleted between two pages
// moves no other one, which an offset does not guarantee.
func (a *API) listAdminQueues(r *request) error {
	page, err := readPageOf(r, defaultAdminPage, maxAdminPage)
	if err != nil {
		return err
	}
	// The name in a cursor is checked like any other: a text with U+0000 would otherwise fail in the database, as a 500.
	if page.cursor != "" && api.CheckQueue("cursor", page.cursor) != nil {
		return api.ErrCursor(page.cursor)
	}
	found, err := a.Stats.Queues(r.Request().Context(), stats.Page{After: page.cursor, Offset: page.offset, Limit: page.limit})
	if err != nil {
		return err
	}
	items, cursor := make([]adminQueue, len(found.Queues)), ""
	for i, q := range found.Queues {
		items[i] = newAdminQueue(q)
	}
	if found.More {
		cursor = items[len(items)-1].Name
	}
	text, err := marshal(items)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(append(b, `{"items":`...), text...)
		b = page.append(append(b, `,"pagination":`...), found.Total, found.More, cursor)
		return append(b, '}')
	})
}

// getAdminQueue answers 404 for what cannot be the name of a queue: such a queue does not exist. Routes that would create the
// queue answer 400 instead.
func (a *API) getAdminQueue(r *request) error {
	name := param(r, "name")
	if api.CheckQueue("name", name) != nil {
		return spec.NotFound("queue", name)
	}
	detail, err := a.queueDetail(r.Request().Context(), name)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, detail)
}

// queueDetail is everything about one queue.
// PUT of a configuration answers with it, too, read after the change in a transaction of its own: another change may lie
// between them.
func (a *API) queueDetail(ctx context.Context, name string) (adminQueue, error) {
	q, err := a.Stats.Queue(ctx, name)
	if err != nil {
		return adminQueue{}, err
	}
	detail := newAdminQueue(q)
	detail.Configuration = a.shownConfig(q)
	return detail, nil
}

// shownConfig is the effective configuration. Retention shows what holds if the queue sets none, and a bound how full the queue is.
// The two members are taken out of the configuration and appended in their longer form; all others are copied as they are
// stored, so a member that this release does not know is shown as well.
func (a *API) shownConfig(q stats.Queue) json.RawMessage {
	b := []byte{'{'}
	for literal, value := range rawjson.Members(q.Config.JSON()) {
		if name := string(rawjson.Name(literal)); name != "retention" && name != "backpressure" {
			b = payload.AppendMember(b, literal, value)
		}
	}
	// In order: what the queue sets, as the client wrote it; null if the server keeps such jobs for ever; the setting of this
	// node. Other nodes may have another one while a change of settings is rolled out.
	kept := func(own *queueconfig.Duration, standard time.Duration) any {
		switch {
		case own != nil:
			return own.Text
		case standard <= 0:
			return nil
		}
		return days(standard)
	}
	r := q.Config.Retention
	retention, _ := json.Marshal(map[string]any{
		"completed": kept(r.Completed, a.config.RetentionCompleted), "cancelled": kept(r.Cancelled, a.config.RetentionCompleted),
		"discarded": kept(r.Discarded, a.config.RetentionDiscarded),
	})
	b = payload.AppendMember(b, payload.Quote("retention"), retention)
	if bound := newBound(q); bound != nil {
		text, _ := json.Marshal(bound)
		b = payload.AppendMember(b, payload.Quote("backpressure"), text)
	}
	return append(b, '}')
}

// boundView shows a bound. Threshold repeats max_depth under the name that the admin UI reads.
// CurrentDepth counts the states that the bound counts (docs/reference/backpressure.md), so active jobs are not in it. It may
// exceed the bound: retries and jobs that are handed back were accepted before.
type boundView struct {
	// Enabled is always true: a queue without a bound has no such object.
	Enabled          bool    `json:"enabled"`
	Strategy         string  `json:"strategy"`
	Threshold        int64   `json:"threshold,omitempty"`
	MaxDepth         int64   `json:"max_depth,omitempty"`
	MaxSizeBytes     int64   `json:"max_size_bytes,omitempty"`
	MaxTenantDepth   int64   `json:"max_depth_per_tenant,omitempty"`
	WarningThreshold float64 `json:"warning_threshold"`
	CurrentDepth     int64   `json:"current_depth"`
	// State is normal, warning or critical; "" without max_depth, because the bytes of a queue are measured only by an
	// enqueue.
	State string `json:"state,omitempty"`
}

// newBound returns nil for a queue that nothing bounds.
func newBound(q stats.Queue) *boundView {
	bound := q.Config.Backpressure
	if bound == nil || !bound.Bounds() {
		return nil
	}
	v := &boundView{
		Enabled: true, Strategy: bound.Strategy, Threshold: bound.MaxDepth, MaxDepth: bound.MaxDepth, MaxSizeBytes: bound.MaxSizeBytes, MaxTenantDepth: bound.MaxTenantDepth,
		WarningThreshold: bound.WarningThreshold,
		CurrentDepth:     q.Jobs[ojs.StateAvailable] + q.Jobs[ojs.StateScheduled] + q.Jobs[ojs.StateRetryable] + q.Jobs[ojs.StatePending],
	}
	switch depth := float64(v.CurrentDepth); {
	case bound.MaxDepth <= 0: // nothing is known of the bytes
	case v.CurrentDepth >= bound.MaxDepth:
		v.State = "critical"
	case depth >= bound.WarningThreshold*float64(bound.MaxDepth):
		v.State = "warning"
	default:
		v.State = "normal"
	}
	return v
}

// adminPurgeQueue removes jobs for good.
// It may run for 20 s and answer has_more. Each portion of 1 000 jobs commits alone, so a call that is cut off has removed
// the portions before, and the same call goes on. Active jobs are never among them, because the decoder refuses that state.
//
// The answer repeats the states as the decoder understood them, each once; POST /queues/{name}/purge repeats the text of the
// client.
func (a *API) adminPurgeQueue(r *request) error {
	name := param(r, "name")
	if api.CheckQueue("name", name) != nil {
		return spec.NotFound("queue", name)
	}
	in, wire := job.DecodePurge(r.body)
	if wire != nil {
		return wire
	}
	removed, more, err := a.Queues.Purge(r.Request().Context(), queueadmin.Purge{
		Queue: name, States: in.States, OlderThan: in.OlderThan, By: a.actor(r, "cancelled_by", in.By),
	})
	if err != nil {
		return err
	}
	answer := map[string]any{"purged_count": removed, "states": in.States}
	if more {
		answer["has_more"] = true
	}
	return sendJSON(r, http.StatusOK, answer)
}

// adminPauseQueue and adminResumeQueue answer with the bare status, whatever OJS-Version is.
// Both are idempotent, and hold for every fetch that begins after the answer, on all nodes: the claim itself reads the
// status.
func (a *API) adminPauseQueue(r *request) error {
	name, by, err := a.queueCommand(r, r.body, "paused_by")
	if err != nil {
		return err
	}
	s, err := a.Queues.Pause(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"name": s.Name, "paused": true, "status": s.Status, "paused_at": spec.FormatTime(s.PausedAt)})
}

func (a *API) adminResumeQueue(r *request) error {
	name, by, err := a.queueCommand(r, r.body, "resumed_by")
	if err != nil {
		return err
	}
	s, err := a.Queues.Resume(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"name": s.Name, "paused": false, "status": s.Status, "resumed_at": spec.FormatTime(s.Since)})
}

// queueCommand reads the name of the queue, and who gives the command.
// A body that is no JSON object is 400 even though it is optional. parameter and member have the same name, so member serves
// for both.
func (a *API) queueCommand(c echo.Context, body []byte, member string) (name, by string, err error) {
	if name, err = queueName(c, false); err != nil {
		return "", "", err
	}
	by, err = a.queueActor(c, body, member)
	return name, by, err
}

// adminPutQueueConfig is putQueueConfig, but it answers with the whole queue. The standard configuration belongs to no queue,
// so it is answered as by PUT /queues/_default/config.
//
// The change is merged into the stored configuration in the store. What is refused has changed nothing.
func (a *API) adminPutQueueConfig(r *request) error {
	name := param(r, "name")
	if name == queueconfig.Default {
		return a.putQueueConfig(r)
	}
	if err := api.CheckQueue("name", name); err != nil {
		return err
	}
	change, err := configChange(r.body)
	if err != nil {
		return err
	}
	// A change that sets nothing new writes no event.
	if _, err := a.Queues.Configure(r.Request().Context(), name, change); err != nil {
		return err
	}
	detail, err := a.queueDetail(r.Request().Context(), name)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, detail)
}
