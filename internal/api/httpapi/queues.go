package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"
	"github.com/riverqueue/river/rivershared/util/sliceutil"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// queueRoutes are those of docs/reference/queues.md.
// Tenants may list and read queues in which they have had jobs; everything that changes a queue is for operators.
func (a *API) queueRoutes() []route {
	return []route{
		{"GET", "/queues", api.Confined, noBody, paging, a.listQueues},
		{"POST", "/queues", api.Operators, configBody, "", a.postQueue},
		{"GET", "/queues/:name", api.Confined, noBody, "", about(queueName, a.getQueue)},
		{"DELETE", "/queues/:name", api.Operators, configBody, "strategy target_queue dry_run", about(queueName, a.deleteQueue)},
		{"GET", "/queues/:name/stats", api.Confined, noBody, "", about(queueName, a.getQueueStats)},
		{"GET", "/queues/:name/priority-stats", api.Operators, noBody, "", about(queueName, a.getPriorityStats)},
		{"POST", "/queues/:name/pause", api.Operators, configBody, "paused_by", about(queueName, a.pauseQueue)},
		{"POST", "/queues/:name/resume", api.Operators, configBody, "resumed_by", about(queueName, a.resumeQueue)},
		{"POST", "/queues/:name/drain", api.Operators, configBody, "drained_by", about(queueName, a.drainQueue)},
		{"POST", "/queues/:name/purge", api.Operators, configBody, "cancelled_by", about(queueName, a.purgeQueue)},
		{"GET", "/queues/:name/config", api.Operators, noBody, "", about(configName, a.getQueueConfig)},
		{"PUT", "/queues/:name/config", api.Operators, configBody, "", about(configName, a.putQueueConfig)},
	}
}

// queueName reads the name in the path.
// A malformed name is 400 here, because most of these calls would create the queue.
func queueName(c echo.Context) (string, error) {
	name := param(c, "name")
	return name, api.CheckQueue("name", name)
}

// configName also takes the name of the standard configuration.
func configName(c echo.Context) (string, error) {
	if name := param(c, "name"); name == queueconfig.Default {
		return name, nil
	}
	return queueName(c)
}

// knownQueue answers 404 for what cannot be the name of a queue: such a queue does not exist.
func knownQueue(c echo.Context) (string, error) {
	name, err := queueName(c)
	if err != nil {
		return "", spec.NotFound("queue", name)
	}
	return name, nil
}

// listQueues has for its cursor the last name shown.
func (a *API) listQueues(r *request) error {
	page := r.page(api.DefaultPage, api.MaxPage)
	// Any name is a position, whether a queue has it or not.
	r.checkCursor(page, job.ValidQueue)
	if r.err != nil {
		return r.err
	}
	list, next := []object{}, ""
	add := func(name, status string, createdAt pgtype.Timestamptz) {
		list = append(list, append(showQueueStatus(name, status), member{"created_at", spec.FormatTime(createdAt.Time)}))
		next = name
	}
	var total int64
	var more bool
	if caller := a.tenant(r.Request()); caller == "" {
		found, err := a.Queues.List(r.Request().Context(), page.cursor, page.offset, page.limit)
		if err != nil {
			return err
		}
		for _, q := range found.Queues {
			add(q.Name, q.Status, q.CreatedAt)
		}
		total, more = found.Total, found.More
	} else {
		// A tenant is shown the queues in which it has had jobs, and no queue of others, not even its name.
		if err := checkTenantOffset(page); err != nil {
			return err
		}
		own, err := a.Tenants.QueuesPage(r.Request().Context(), caller,
			queueadmin.TenantFilter{After: page.cursor, Offset: page.offset, Limit: page.limit})
		if err != nil {
			return err
		}
		for _, q := range own.Queues {
			add(q.Name, q.Status, q.CreatedAt)
		}
		total, more = own.Total, own.More
	}
	return r.answer(http.StatusOK, object{{"queues", list}, {"total", total}, {"pagination", page.shown(total, more, next)}})
}

// showQueueStatus is the short form of a queue.
// paused is the status as a boolean, which SDKs read.
func showQueueStatus(name, status string) object {
	return object{{"name", name}, {"status", status}, {"paused", status == queueconfig.Paused}}
}

// postQueue creates a queue, 409 if it exists: clients use it to find out whether a name is free. Settings may stand beside
// name, as the CLI sends them, and in config; the latter win.
func (a *API) postQueue(r *request) error {
	body, wire := jsonread.Check(r.body)
	if wire != nil {
		return wire
	}
	o := jsonread.Open(body, "name", "config")
	sent, _ := o.Sent("name")
	name, isText := jsonread.Text(sent)
	if !isText {
		return spec.InvalidPayload("name", "the name of the queue", jsonread.Show(sent), "'name' is required: send the name of the queue.")
	}
	// The name in a body is refused with the type of the field, invalid_queue, and not with invalid_request, which is for
	// parameters.
	if _, kind, expected := job.QueueProblem(jsonread.Quote(name)); kind != "" {
		return spec.InvalidField(kind, "name", expected, name, "'name' must be "+expected+".")
	}
	change, wire := queueconfig.ParseChange(body, "$", "name", "config") // as the CLI sends it
	if wire != nil {
		return wire
	}
	if config := o.Get("config"); config != nil {
		if config[0] != '{' {
			return spec.InvalidPayload("config", "an object", jsonread.Show(config),
				"'config' must be an object, got "+jsonread.Describe(config)+".")
		}
		nested, wire := queueconfig.ParseChange(config, "$.config")
		if wire != nil {
			return wire
		}
		// What config sets wins over the same setting beside name.
		change.And(nested)
	}
	// Two calls at once: one creates, the other is 409.
	q, err := a.Queues.Create(r.Request().Context(), name, change)
	if err != nil {
		return err
	}
	r.Response().Header().Set(echo.HeaderLocation, "/ojs/v1/queues/"+name)
	return r.answer(http.StatusCreated, append(showQueueHead(q), object{
		{"config", jsontext.Value(q.Own())}, {"created_at", spec.FormatTime(q.CreatedAt)}, {"queue", showQueueStatus(q.Name, q.Status)},
	}...))
}

// showQueueHead has the same in state and status.
func showQueueHead(q *queueadmin.Detail) object {
	return object{{"name", q.Name}, {"state", q.Status}, {"status", q.Status}}
}

// getQueue reads the queue and its figures in two transactions; the counts are of one instant, that of the second. For a
// tenant they are those of its own jobs, and what is kept for all jobs together is 0.
func (a *API) getQueue(r *request, name string) error {
	q, err := a.Queues.Get(r.Request().Context(), name)
	if err != nil {
		return err
	}
	f, err := a.Queues.Figures(r.Request().Context(), name)
	if err != nil {
		return err
	}
	caller := a.tenant(r.Request())
	if caller != "" {
		// A tenant must not learn from figures how much others work.
		f.CompletedToday, f.FailedToday = 0, 0 // those of the jobs of all
		if f.Stats, err = a.Tenants.OfQueue(r.Request().Context(), caller, f.Stats); err != nil {
			return err
		}
	}
	depth, active := f.Counts[ojs.StateAvailable], f.Counts[ojs.StateActive]
	config := any(omitted{}) // it may name producers and weights of others
	if caller == "" {
		config = jsontext.Value(q.Own())
	}
	return r.answer(http.StatusOK, append(showQueueHead(q), object{
		{"paused", q.Status == queueconfig.Paused}, {"depth", depth}, {"running", active}, {"config", config},
		{"stats", object{{"depth", depth}, {"available", depth}, {"active", active}, {"completed_today", f.CompletedToday},
			{"failed_today", f.FailedToday}}},
		{"queue", showQueueStatus(q.Name, q.Status)}, {"created_at", spec.FormatTime(q.CreatedAt)},
		{"updated_at", spec.FormatTime(q.UpdatedAt)},
		{"deleting", given(q.Deleting)}, // until the last active job has ended, a resume takes the deletion back
	}...))
}

// getQueueStats shows zeros of an unknown queue to an operator; it is 404 for a tenant; a malformed name is 400 for both. Reading creates
// no queue.
//
// The answer serves every client at once: queue is an object without OJS-Version and the name with it, the rest is flat for the JS SDK and
// in stats for Go and Python. Counts are exact at computed_at; depth equals available, dead equals discarded, and total is the sum of all
// states. The averages and rates are of the last hour, as of the published events; for a tenant they are 0, because they are kept for the
// jobs of all together. failed_last_hour counts attempts, avg_duration_ms is of completed jobs, avg_wait_ms of started ones.
func (a *API) getQueueStats(r *request, name string) error {
	stats, err := a.Jobs.QueueStats(r.Request().Context(), name)
	if err != nil {
		return err
	}
	// For a tenant, counts are replaced by those of its jobs, and rates are removed.
	if caller := a.tenant(r.Request()); caller != "" {
		if stats, err = a.Tenants.OfQueue(r.Request().Context(), caller, stats); err != nil {
			return err
		}
	}
	total := int64(0)
	for _, n := range stats.Counts {
		total += n
	}
	counts := append(showStates(stats.Counts), object{{"total", total}, {"depth", stats.Counts[ojs.StateAvailable]}}...)
	flatForm := append(showQueueStatus(stats.Name, stats.Status), counts...)
	shown := any(name)
	if flat(r) {
		shown = flatForm
	}
	// A cache must not give one form to a client of the other.
	r.Response().Header().Add("Vary", "OJS-Version")
	return sendJSON(r, http.StatusOK, slices.Concat(object{{"queue", shown}}, flatForm, object{
		{"stats", slices.Concat(object{{"queue", stats.Name}}, counts, object{
			{"dead", stats.Counts[ojs.StateDiscarded]}, {"max_depth", given(stats.MaxDepth)}, // absent without a bound
			{"completed_last_hour", stats.Rates.Completed}, {"failed_last_hour", stats.Rates.Failed},
			{"avg_duration_ms", api.Average(stats.Rates.DurationMs, stats.Rates.Completed)},
			{"avg_wait_ms", api.Average(stats.Rates.WaitMs, stats.Rates.Started)},
			{"throughput_per_second", api.Average(stats.Rates.Completed, 3600)},
		})},
		{"computed_at", spec.FormatTime(stats.ComputedAt)},
	}))
}

// getQueueConfig always knows the standard configuration: until it is set it is empty.
func (a *API) getQueueConfig(r *request, name string) error {
	q, err := a.Queues.Get(r.Request().Context(), name)
	if err != nil {
		// Any other error, such as an outage, must not look like an empty configuration.
		wire, isWire := errors.AsType[*ojs.Error](err)
		if name != queueconfig.Default || !isWire || ojs.ErrorKind(wire.Type) != ojs.ErrNotFound {
			return err
		}
		q = &queueadmin.Detail{Name: name, Status: queueconfig.Active}
	}
	return a.respondConfig(r, q)
}

// putQueueConfig merges and is idempotent. Nothing is stored if any field is refused. Other nodes follow within a second.
func (a *API) putQueueConfig(r *request, name string) error {
	change, err := configChange(r.body)
	if err != nil {
		return err
	}
	q, err := a.Queues.Configure(r.Request().Context(), name, change)
	if err != nil {
		return err
	}
	return a.respondConfig(r, q)
}

// configChange reads the body of a call that changes a configuration.
func configChange(body []byte) (queueconfig.Change, error) {
	value, wire := jsonread.Check(body)
	if wire != nil {
		return queueconfig.Change{}, wire
	}
	change, wire := queueconfig.ParseChange(value, "$")
	return change, asError(wire)
}

// respondConfig has the same in config and configuration; clients read different names. The retention that is shown is the one that holds.
func (a *API) respondConfig(r *request, q *queueadmin.Detail) error {
	// It adds the retention that holds, and the aliases.
	config, err := a.Queues.Config(r.Request().Context(), q.Config)
	if err != nil {
		return err
	}
	shown := jsontext.Value(config)
	return r.answer(http.StatusOK, append(showQueueHead(q), object{{"config", shown}, {"configuration", shown},
		{"updated_at", q.UpdatedAt}}...))
}

// queueActor names who changes the status of a queue, with the member of the body that clients may send.
// The member is optional, but a wrong type is a mistake that is better told.
func (a *API) queueActor(r *request, member string) (string, error) {
	if blank(r.body) {
		return a.actor(r, member), nil
	}
	o, err := jsonread.OpenBody(r.body, member)
	if err != nil {
		return "", err
	}
	o.RefuseOthers()
	claimed := o.Text(member, "a string", nil)
	if err := o.Err(); err != nil {
		return "", err
	}
	return a.actor(r, member, claimed), nil
}

// pauseQueue is idempotent: a second call keeps the time of the first and writes no event. Jobs that run go on. A queue that is
// being deleted is 409.
func (a *API) pauseQueue(r *request, name string) error {
	by, err := a.queueActor(r, "paused_by")
	if err != nil {
		return err
	}
	status, err := a.Queues.Pause(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return respondStatus(r, status, member{"paused_at", status.PausedAt})
}

// resumeQueue also ends a drain, and takes back a deletion that waits for active jobs.
func (a *API) resumeQueue(r *request, name string) error {
	by, err := a.queueActor(r, "resumed_by")
	if err != nil {
		return err
	}
	status, err := a.Queues.Resume(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return respondStatus(r, status, member{"resumed_at", status.Since})
}

// drainQueue takes 1 to 4 s (docs/reference/queues.md, Status): when it answers, no node takes jobs for the queue any more. A
// client that hangs up before has drained it all the same. A queue that is being deleted is 409.
func (a *API) drainQueue(r *request, name string) error {
	by, err := a.queueActor(r, "drained_by")
	if err != nil {
		return err
	}
	status, err := a.Queues.Drain(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return respondStatus(r, status, member{"remaining", status.Remaining})
}

// respondStatus answers with queue as an object or, to clients that send OJS-Version, as the name.
// Vary tells caches that the same URL has two forms.
func respondStatus(r *request, s queueadmin.Status, rest member) error {
	r.Response().Header().Add("Vary", "OJS-Version")
	named := any(s.Name)
	if flat(r) {
		named = showQueueStatus(s.Name, s.Status)
	}
	return r.answer(http.StatusOK, append(append(object{{"queue", named}}, showQueueStatus(s.Name, s.Status)...), rest))
}

var deletionStrategies = []string{queueadmin.Reject, queueadmin.Discard, queueadmin.Move}

// deleteQueue is 202 while active jobs remain; any node finishes the deletion then. It refuses new jobs first and so takes as
// long as a drain. If it is refused because jobs wait, the store has taken the refusal of new jobs back.
func (a *API) deleteQueue(r *request, name string) error {
	d, err := readDeletion(r)
	if err != nil {
		return err
	}
	d.Queue = name
	done, err := a.Queues.Delete(r.Request().Context(), d)
	if err != nil {
		return err
	}
	// 202 says that the deletion goes on without the client.
	status, state := http.StatusOK, "deleted"
	if done.Draining {
		status, state = http.StatusAccepted, queueconfig.Draining
	}
	return r.answer(status, object{
		{"queue", name}, {"strategy", d.Strategy}, {"target_queue", given(d.Target)}, {"jobs_affected", done.Affected}, {"state", state},
		{"dry_run", given(d.DryRun)},
	})
}

// readDeletion reads body or query: not every client can send a body with DELETE.
func readDeletion(r *request) (d queueadmin.Deletion, err error) {
	if blank(r.body) {
		d.Strategy, d.Target = r.QueryParam("strategy"), r.QueryParam("target_queue")
		d.DryRun = r.flag("dry_run")
		err = r.err
	} else {
		err = asError(decodeDeletion(r.body, &d))
	}
	if err != nil {
		return d, err
	}
	switch {
	case d.Strategy == "":
		d.Strategy = queueadmin.Reject
	case !slices.Contains(deletionStrategies, d.Strategy):
		return d, spec.InvalidPayload("strategy", "reject, discard or move", d.Strategy, "'strategy' must be reject, discard or move.")
	}
	if d.Strategy != queueadmin.Move {
		// The answer must not name a target that nothing moved to.
		d.Target = ""
		return d, nil
	}
	if !job.ValidQueue(d.Target) {
		return d, spec.InvalidPayload("target_queue", "the name of a queue", d.Target,
			"'target_queue' must be the name of the queue to which jobs move.")
	}
	return d, nil
}

func decodeDeletion(body []byte, d *queueadmin.Deletion) *ojs.Error {
	o, err := jsonread.OpenBody(body, "strategy", "target_queue", "dry_run")
	if err != nil {
		return err
	}
	o.RefuseOthers()
	d.Strategy, d.Target = o.Text("strategy", "a string", nil), o.Text("target_queue", "a string", nil)
	d.DryRun = o.Boolean("dry_run")
	return o.Err()
}

// purgeQueue differs from adminPurgeQueue in the form of body and answer.
func (a *API) purgeQueue(r *request, name string) error {
	in, wire := job.DecodeQueuePurge(r.body)
	if wire != nil {
		return wire
	}
	done, err := a.purgeOf(r, name, in)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, append(object{
		{"deleted", done.Jobs}, {"purged_count", done.Jobs}, {"states", in.Shown}, {"has_more", given(done.More)},
	}, dryRun(in.DryRun, done.Sample)...))
}

func (a *API) purgeOf(r *request, name string, in job.PurgeRequest) (queueadmin.Purged, error) {
	return a.Queues.Purge(r.Request().Context(), queueadmin.Purge{
		Queue: name, States: in.States, OlderThan: in.OlderThan, DryRun: in.DryRun, By: a.actor(r, "cancelled_by", in.By),
	})
}

// dryRun are the members that the answer to a dry run has beside the numbers; none for any other call.
func dryRun(dry bool, sample [][16]byte) object {
	if !dry {
		return nil
	}
	return object{{"dry_run", true}, {"sample", append([]string{}, sliceutil.Map(sample, spec.FormatID)...)}}
}

// adminQueueRoutes are those of docs/reference/admin.md, Queues.
// No route is open to tenants, because figures and settings of a queue are about the jobs of all.
func (a *API) adminQueueRoutes() []route {
	return []route{
		{"GET", "/admin/queues", api.Operators, noBody, paging, a.listAdminQueues},
		{"GET", "/admin/queues/:name", api.Operators, noBody, "", about(knownQueue, a.getAdminQueue)},
		{"DELETE", "/admin/queues/:name/jobs", api.Operators, configBody, "cancelled_by", about(knownQueue, a.adminPurgeQueue)},
		{"POST", "/admin/queues/:name/pause", api.Operators, configBody, "paused_by", about(queueName, a.adminPauseQueue)},
		{"POST", "/admin/queues/:name/resume", api.Operators, configBody, "resumed_by", about(queueName, a.adminResumeQueue)},
		{"PUT", "/admin/queues/:name/config", api.Operators, configBody, "", about(configName, a.adminPutQueueConfig)},
		{"PUT", "/admin/queues/:name/rate-limit", api.Operators, oneBody, "", about(queueName, a.putQueueRateLimit)},
	}
}

// showAdminQueue is a queue as docs/reference/admin.md, Queues shows it, in the list and alone. Everything is read in one snapshot. Counts
// are exact, because events that are not published yet are added; rates and latency are as of the latest published event, normally within
// 100 ms. state and status are equal: the CLI reads one name, the admin UI the other.
//
// throughput is of the last 60 s: completed jobs, and failed attempts, of which a job may have several. latency_ms are run times of the
// jobs that completed in the last 60 minutes, estimated from counts per range; 0: none completed.
func showAdminQueue(q *queueadmin.QueueStatistics) object {
	paused, pausedAt := q.Status == "paused", time.Time{}
	if paused {
		pausedAt = q.PausedAt
	}
	return object{
		{"name", q.Name}, {"state", q.Status}, {"status", q.Status}, {"paused", paused}, {"paused_at", pausedAt},
		{"counts", showStates(q.Jobs)},
		{"throughput", object{{"processed_per_minute", round1(q.Rates.Completed)}, {"failed_per_minute", round1(q.Rates.Failed)}}},
		{"latency_ms", object{{"p50", round1(q.Latency.Percentile(0.5))}, {"p95", round1(q.Latency.Percentile(0.95))},
			{"p99", round1(q.Latency.Percentile(0.99))}}},
		{"created_at", spec.FormatTime(q.CreatedAt)}, {"updated_at", spec.FormatTime(q.UpdatedAt)},
		{"oldest_available_at", q.OldestAt}, // a list would have to look into the jobs of each queue for it
	}
}

// listAdminQueues pages by name. The cursor is the last name shown, so a queue that is created or deleted between two pages
// moves no other one, which an offset does not guarantee.
func (a *API) listAdminQueues(r *request) error {
	page := r.page(defaultAdminPage, maxAdminPage)
	// The name in a cursor is checked like any other: a text with U+0000 would otherwise fail in the database, as a 500.
	r.checkCursor(page, job.ValidQueue)
	if r.err != nil {
		return r.err
	}
	found, err := a.Stats.Queues(r.Request().Context(), queueadmin.StatisticsPage{After: page.cursor, Offset: page.offset,
		Limit: page.limit})
	if err != nil {
		return err
	}
	cursor := ""
	if found.More {
		cursor = found.Queues[len(found.Queues)-1].Name
	}
	return r.answer(http.StatusOK, object{{"items", each(found.Queues, showAdminQueue)},
		{"pagination", page.shown(found.Total, found.More, cursor)}})
}

func (a *API) getAdminQueue(r *request, name string) error {
	detail, err := a.queueDetail(r.Request().Context(), name)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, detail)
}

// queueDetail is everything about one queue, with the effective configuration.
// PUT of a configuration answers with it, too, read after the change in a transaction of its own: another change may lie
// between them.
func (a *API) queueDetail(ctx context.Context, name string) (object, error) {
	q, err := a.Stats.Queue(ctx, name)
	if err != nil {
		return nil, err
	}
	// Retention shows what holds if the queue sets none, and a bound how full the queue is. The two members are taken out of the
	// configuration and appended in their longer form; all others are copied as they are stored, so a member that this release does not
	// know is shown as well.
	b := []byte{'{'}
	for literal, value := range jsonread.Members(q.Config.JSON()) {
		if name := string(jsonread.Name(literal)); name != "retention" && name != "backpressure" {
			b = jsonread.AppendMember(b, literal, value)
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
	shown := object{{"retention", object{
		{"cancelled", kept(r.Cancelled, a.config.Retention.Completed)}, {"completed", kept(r.Completed, a.config.Retention.Completed)},
		{"discarded", kept(r.Discarded, a.config.Retention.Discarded)},
	}}}
	if bound := showBound(q); bound != nil {
		shown = append(shown, member{"backpressure", bound})
	}
	return append(showAdminQueue(&q), member{"configuration", json.RawMessage(append(shown.appendMembers(b), '}'))}), nil
}

// showBound returns nil for a queue that nothing bounds. threshold repeats max_depth under the name that the admin UI reads.
// current_depth counts the states that the bound counts (docs/reference/backpressure.md), so active jobs are not in it. It may
// exceed the bound: retries and jobs that are handed back were accepted before.
func showBound(q queueadmin.QueueStatistics) object {
	bound := q.Config.Backpressure
	if bound == nil || !bound.Bounds() {
		return nil
	}
	depth := job.CountWaiting(q.Jobs)
	state := "normal"
	switch {
	case bound.MaxDepth <= 0: // the bytes of a queue are measured only by an enqueue
		state = ""
	case depth >= bound.MaxDepth:
		state = "critical"
	case float64(depth) >= bound.WarningThreshold*float64(bound.MaxDepth):
		state = "warning"
	}
	return object{
		{"enabled", true}, {"strategy", bound.Strategy}, {"threshold", given(bound.MaxDepth)}, {"max_depth", given(bound.MaxDepth)},
		{"max_size_bytes", given(bound.MaxSizeBytes)}, {"max_depth_per_tenant", given(bound.MaxTenantDepth)},
		{"warning_threshold", bound.WarningThreshold}, {"current_depth", depth}, {"state", given(state)},
	}
}

// adminPurgeQueue removes jobs for good.
// It may run for 20 s and answer has_more. Each portion of 1 000 jobs commits alone, so a call that is cut off has removed
// the portions before, and the same call goes on. Active jobs are never among them, because the decoder refuses that state.
//
// The answer repeats the states as the decoder understood them, each once; POST /queues/{name}/purge repeats the text of the
// client.
func (a *API) adminPurgeQueue(r *request, name string) error {
	in, wire := job.DecodePurge(r.body)
	if wire != nil {
		return wire
	}
	done, err := a.purgeOf(r, name, in)
	if err != nil {
		return err
	}
	states := append([]string{}, sliceutil.Map(in.States, func(s ojs.JobState) string { return string(s) })...)
	return r.answer(http.StatusOK, append(object{
		{"has_more", given(done.More)}, {"purged_count", done.Jobs}, {"states", states},
	}, dryRun(in.DryRun, done.Sample)...))
}

// adminPauseQueue and adminResumeQueue answer with the bare status, whatever OJS-Version is.
// Both are idempotent, and hold for every fetch that begins after the answer, on all nodes: the claim itself reads the
// status.
func (a *API) adminPauseQueue(r *request, name string) error {
	by, err := a.queueActor(r, "paused_by")
	if err != nil {
		return err
	}
	s, err := a.Queues.Pause(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"name": s.Name, "paused": true, "status": s.Status,
		"paused_at": spec.FormatTime(s.PausedAt)})
}

func (a *API) adminResumeQueue(r *request, name string) error {
	by, err := a.queueActor(r, "resumed_by")
	if err != nil {
		return err
	}
	s, err := a.Queues.Resume(r.Request().Context(), name, by)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"name": s.Name, "paused": false, "status": s.Status,
		"resumed_at": spec.FormatTime(s.Since)})
}

// adminPutQueueConfig is putQueueConfig, but it answers with the whole queue. The standard configuration belongs to no queue,
// so it is answered as by PUT /queues/_default/config.
//
// The change is merged into the stored configuration in the store. What is refused has changed nothing.
func (a *API) adminPutQueueConfig(r *request, name string) error {
	if name == queueconfig.Default {
		return a.putQueueConfig(r, name)
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
