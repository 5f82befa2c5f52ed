package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

// workerRoutes are the calls of workers and the worker registry (docs/reference/workers.md, Registry). A tenant may call those of
// operators, below /admin, for its own workers only.
func (a *API) workerRoutes() []route {
	return []route{
		{"POST", "/workers/fetch", api.Confined, oneBody, "", a.postFetch},
		{"POST", "/workers/ack", api.Confined, resultBody, "", a.postAck},
		{"POST", "/workers/nack", api.Confined, manyBody, "", a.postNack},
		{"POST", "/workers/ack/batch", api.Confined, manyBody, "", a.postAckBatch},
		{"POST", "/workers/nack/batch", api.Confined, manyBody, "", a.postNackBatch},
		{"POST", "/jobs/:id/ack", api.Confined, jobResultBody, "", a.postJobAck},
		{"POST", "/jobs/:id/nack", api.Confined, manyBody, "", a.postJobNack},
		{"POST", "/workers/heartbeat", api.Confined, oneBody, "", a.postHeartbeat},
		{"POST", "/workers/beat", api.Confined, oneBody, "", a.postHeartbeat},
		{"POST", "/workers/register", api.Confined, oneBody, "", a.postRegister},

		{"GET", "/workers", api.Confined, noBody, paging + "state queue",
			a.listWorkers(workerList{api.DefaultPage, api.MaxPage, "workers"})},
		{"GET", "/workers/:id", api.Confined, noBody, "", about(a.workerRef, a.getWorker)},
		{"DELETE", "/workers/:id", api.Confined, oneBody, "", about(a.workerRef, a.deregister)},
		{"POST", "/workers/:id/deregister", api.Confined, oneBody, "", about(a.workerRef, a.deregister)},
		{"GET", "/workers/:id/health", api.Confined, noBody, "", about(a.workerRef, a.getWorkerHealth)},

		{"GET", "/admin/workers", api.Confined, noBody, paging + "state queue",
			a.listWorkers(workerList{standard: defaultAdminPage, largest: maxAdminPage})},
		{"POST", "/admin/workers/directive", api.Operators, oneBody, "", a.directWorkers},
		{"GET", "/admin/workers/:id", api.Confined, noBody, "", about(a.workerRef, a.getWorker)},
		{"DELETE", "/admin/workers/:id", api.Confined, noBody, "", about(a.workerRef, a.deleteWorker)},
		{"POST", "/admin/workers/:id/directive", api.Confined, oneBody, "", a.directWorker},
		{"POST", "/admin/workers/:id/quiet", api.Confined, commandBody, "", a.directTo("quiet")},
		{"POST", "/admin/workers/:id/terminate", api.Confined, commandBody, "", a.directTo("terminate")},
		// resume is stored as running, which is a directive of its own: it is answered until the worker reports running.
		{"POST", "/admin/workers/:id/resume", api.Confined, commandBody, "", a.directTo("running")},
	}
}

func (a *API) directTo(directive string) handler {
	return func(r *request) error { return a.direct(r, directive) }
}

// What lists of the admin plane give.
// 20 and 100, for all lists below /admin and for those that admin tools read.
const (
	defaultAdminPage = 20
	maxAdminPage     = 100
)

// workerRef is the worker that the path names, by any text that a worker may have as its id.
// What no heartbeat may send (docs/reference/workers.md) is an unknown worker: 404, as for ids of jobs.
func (a *API) workerRef(c echo.Context) (worker.Ref, error) {
	id := param(c, "id")
	if id == "" || len(id) > 255 || !api.Storable(id) {
		return worker.Ref{}, spec.NotFound("worker", id)
	}
	return worker.Ref{Tenant: a.tenant(c.Request()), ID: id}, nil
}

// postRegister is a heartbeat that lists no jobs and ends a reported quiet or terminate. It is idempotent. Members that do
// not fit are dropped, because a refusal would keep the worker from working.
func (a *API) postRegister(r *request) error {
	in, wire := worker.DecodeRegistration(r.body)
	if wire != nil {
		return wire
	}
	// A worker that registers for a tenant is the tenant's.
	in.Tenant = a.tenant(r.Request())
	res, err := a.Workers.Heartbeat(r.Request().Context(), in)
	if err != nil {
		return err
	}
	dead := a.Workers.DeadAfter()
	// In s: a third of the time after which a worker is dead, at least 1 and at most 5, so that a worker may lose a
	// heartbeat.
	interval := max(1, min(5, int64(dead/(3*time.Second))))
	return r.answer(http.StatusOK, object{
		{"ok", true}, {"worker_id", in.WorkerID}, {"server_time", spec.FormatTime(res.Time)}, {"heartbeat_interval", interval},
		{"heartbeat_timeout", dead.Seconds()}, {"visibility_timeout_default", a.Jobs.DefaultVisibility().Seconds()},
	})
}

// deregister removes the entry; an unknown worker is 404. Its jobs stay reserved until their reservations end, because the
// worker may still be finishing them.
func (a *API) deregister(r *request, ref worker.Ref) error {
	// A body that is JSON is never refused for its members.
	in, wire := worker.DecodeLeave(ref, r.body)
	if wire != nil {
		return wire
	}
	if err := a.Workers.Deregister(r.Request().Context(), in); err != nil {
		return err
	}
	return r.answer(http.StatusOK, object{{"ok", true}, {"worker_id", ref.ID}})
}

func (a *API) directWorker(r *request) error {
	directive, wire := worker.DecodeDirective(r.body)
	if wire != nil {
		return wire
	}
	return a.direct(r, directive)
}

// direct stores the directive, which the worker gets with its next heartbeat. Fetches are affected at once on this node and
// within 1 s on the others.
func (a *API) direct(r *request, directive string) error {
	ref, err := a.workerRef(r)
	if err != nil {
		return err
	}
	if err := a.Workers.Direct(r.Request().Context(), ref, directive); err != nil {
		return err
	}
	return r.answer(http.StatusOK, object{{"worker_id", ref.ID}, {"directive", directive}})
}

// directWorkers answers with the number of workers that are not stale. It is for operators: it reaches the workers of all tenants.
func (a *API) directWorkers(r *request) error {
	directive, wire := worker.DecodeDirective(r.body)
	if wire != nil {
		return wire
	}
	n, err := a.Workers.DirectAll(r.Request().Context(), directive)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"directive": directive, "workers": n})
}

// deleteWorker works for stale workers only, 409 for others. jobs_requeued counts the jobs that were still reserved for it
// and were failed now.
func (a *API) deleteWorker(r *request, ref worker.Ref) error {
	// The jobs fail, so their attempts count.
	requeued, err := a.Workers.Delete(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	return sendJSON(r, http.StatusOK, map[string]any{"deleted": true, "worker_id": ref.ID, "jobs_requeued": requeued})
}

// postFetch is not idempotent: each answer has other jobs. With wait_ms it parks in memory, without a connection. Jobs whose
// answer cannot be delivered are handed back without counting the attempt; if that fails, too, they return when their
// reservation ends.
func (a *API) postFetch(r *request) error {
	in, wire := job.DecodeFetch(r.body)
	if wire != nil {
		return wire
	}
	in.Tenant = a.tenant(r.Request())
	ctx := r.Request().Context()
	// Most fetches name neither pool nor strategy, and pass on to queue.Store.Fetch.
	jobs, err := a.Pools.Fetch(ctx, in)
	if err != nil {
		return err
	}
	if len(jobs) > 0 && ctx.Err() != nil { // nobody waits for them any more
		a.Jobs.HandBack(ctx, jobs)
		return ctx.Err()
	}
	err = fetched(r, jobs)
	if err != nil { // the connection broke or was too slow before the end of the answer, which is nothing without it
		a.Jobs.HandBack(ctx, jobs)
	}
	return err
}

// fetched returns the error of the write, which tells the caller to hand the jobs back. A write that succeeds proves only that the
// bytes have left this process.
func fetched(c echo.Context, jobs []*job.Record) error {
	return respondEach(c, http.StatusOK, shownBytes(jobs), func(b []byte, next flush) []byte {
		b = append(b, `{"jobs":`...)
		b = appendJobs(b, jobs, shape{fetched: true}, next)
		return append(b, '}')
	})
}

// postAck is final. A repetition is 409 with current_state completed, which tells a worker that lost the answer that its ack
// was carried out.
func (a *API) postAck(r *request) error {
	// These are the limits of the node and not of the tenant: an ack has no meta.
	in, wire := job.DecodeAck(r.body, a.JobLimits)
	return a.ack(r, in, wire)
}

// postJobAck takes the id from the path (docs/reference/http.md, Ack).
func (a *API) postJobAck(r *request) error {
	in, wire := job.DecodeAckFor(param(r, "id"), r.body, a.JobLimits)
	return a.ack(r, in, wire)
}

// ack takes the error of the decoder. When it returns the job is committed as completed, and its workflow has been advanced; if
// that failed, the Follower of some node does it.
func (a *API) ack(c echo.Context, in job.Ack, wire *ojs.Error) error {
	if wire != nil {
		return wire
	}
	if err := a.ownJob(c, in.JobID); err != nil {
		return err
	}
	// Acks of concurrent calls share a statement.
	job, err := a.Jobs.Complete(c.Request().Context(), in)
	if err != nil {
		return err
	}
	return acked(c, job)
}

// acked may get a cancelled job, which the ack has not changed.
func acked(c echo.Context, job *job.Record) error {
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendAcked(b, job) })
}

// appendAcked shows a job that was cancelled during the run as 200 with acknowledged false: it is no mistake of the worker
// (docs/reference/retries.md, Late acks).
func appendAcked(b []byte, job *job.Record) []byte {
	// false only for a job that was cancelled during this run.
	completed := job.State == string(ojs.StateCompleted)
	b = append(b, `{"acknowledged":`...)
	b = strconv.AppendBool(b, completed)
	b = appendBothIDs(b, job)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendInt(b, int64(job.Attempt), 10)
	if completed {
		b = appendTime(b, "completed_at", job.FinishedAt)
	}
	b = append(b, `,"job":`...)
	b = appendJob(b, job, shape{})
	return append(b, '}')
}

// appendBothIDs also appends state. All three have a leading comma.
func appendBothIDs(b []byte, job *job.Record) []byte {
	b = append(b, `,"id":"`...)
	b = spec.AppendID(b, job.ID)
	b = append(b, `","job_id":"`...)
	b = spec.AppendID(b, job.ID)
	b = append(b, '"')
	return appendText(b, "state", job.State)
}

// postNack answers with the state that the retry policy has chosen.
func (a *API) postNack(r *request) error {
	in, wire := job.DecodeNack(r.body)
	return a.nack(r, in, wire)
}

// postJobNack takes the id from the path, and a text as error (docs/reference/http.md, Nack).
func (a *API) postJobNack(r *request) error {
	in, wire := job.DecodeNackFor(param(r, "id"), r.body)
	return a.nack(r, in, wire)
}

// nack answers a repetition with 409, or fails a later run if worker_id and attempt were not sent and the job was fetched again by then.
func (a *API) nack(c echo.Context, in job.Nack, wire *ojs.Error) error {
	if wire != nil {
		return wire
	}
	if err := a.ownJob(c, in.JobID); err != nil {
		return err
	}
	// The retry policy decides what follows; see queue/ack.go.
	job, err := a.Jobs.Fail(c.Request().Context(), in)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendNacked(b, job) })
}

// appendNacked has members that depend on the new state (docs/reference/http.md, Nack).
func appendNacked(b []byte, job *job.Record) []byte {
	if job.State == string(ojs.StateCancelled) {
		return appendAcked(b, job) // cancelled while this worker had it: a late nack is answered like a late ack
	}
	b = append(b, '{')
	b = append(b, appendBothIDs(nil, job)[1:]...)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendInt(b, int64(job.Attempt), 10)
	b = append(b, `,"max_attempts":`...)
	b = strconv.AppendInt(b, job.MaxAttempts, 10)
	switch ojs.JobState(job.State) {
	case ojs.StateRetryable:
		b = append(b, `,"retry_delay_ms":`...)
		b = strconv.AppendInt(b, job.RetryDelayMs.Int64, 10)
		b = appendTime(b, "next_attempt_at", job.NextAttemptAt)
	case ojs.StateDiscarded:
		b = appendTime(b, "discarded_at", job.FinishedAt)
		b = appendTime(b, "completed_at", job.FinishedAt)
	case ojs.StateAvailable:
		b = appendTime(b, "enqueued_at", job.EnqueuedAt)
	// Only a requeue with delay_ms leads here.
	case ojs.StateScheduled:
		b = appendTime(b, "scheduled_at", job.ScheduledAt)
	}
	b = append(b, `,"job":`...)
	b = appendJob(b, job, shape{})
	return append(b, '}')
}

// postHeartbeat registers an unknown worker. A repetition does no harm. Ids that the caller may not
// reach are shown as jobs_lost and are not sent to the store.
func (a *API) postHeartbeat(r *request) error {
	in, wire := worker.DecodeHeartbeat(r.body)
	if wire != nil {
		return wire
	}
	// A tenant must not extend the reservations of others by guessing ids.
	own, err := a.ownJobs(r, in.Jobs.IDs)
	if err != nil {
		return err
	}
	lost := in.Jobs.Invalid // texts that are no ids are lost, too: no job can have them
	if own != nil {
		foreign := func(text string) bool { id, ok := spec.ParseID(text); return ok && !own[id] }
		for _, text := range in.Jobs.Texts {
			if foreign(text) {
				lost = append(lost, text)
			}
		}
		in.Jobs.IDs, in.Jobs.Texts = onlyOwn(in.Jobs.IDs, own), slices.DeleteFunc(in.Jobs.Texts, foreign)
	}
	in.Tenant = a.tenant(r.Request())
	// It registers, extends and reads the directive in one call of the store.
	res, err := a.Workers.Heartbeat(r.Request().Context(), in)
	if err != nil {
		return err
	}
	directive := res.State
	if directive == "running" { // the specification has it empty then; state always says what to do
		directive = ""
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = appendText(append(b, `{"acknowledged":true`...), "state", res.State)
		b = appendText(b, "directive", directive)
		b = appendIDs(append(b, `,"jobs_extended":`...), res.Extended, nil)
		b = appendIDs(append(b, `,"jobs_cancelled":`...), res.Cancelled, nil)
		b = appendIDs(append(b, `,"jobs_lost":`...), res.Lost, lost)
		return append(appendText(b, "server_time", spec.FormatTime(res.Time)), '}')
	})
}

// appendIDs makes one array of ids and texts; texts are shown as they were sent.
func appendIDs(b []byte, ids [][16]byte, texts []string) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = spec.AppendID(b, id)
		b = append(b, '"')
	}
	for i, text := range texts {
		if i > 0 || len(ids) > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, text)
	}
	return append(b, ']')
}

// getWorkerHealth answers 503 for a worker that takes no more work, so that a probe can be pointed at it.
// An operator's directive counts before what the worker has reported, because it is newer or still to be obeyed; see
// docs/reference/workers.md, Directives.
func (a *API) getWorkerHealth(r *request, ref worker.Ref) error {
	w, err := a.Workers.Get(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	var word string
	status := http.StatusServiceUnavailable
	// "" means that no operator has given one.
	switch directive := w.Directive.String; {
	case w.State == "stale":
		word = "stale"
	case w.State == "terminate", directive == "terminate":
		word = "shutting_down"
	case directive == "quiet", directive == "" && w.State == "quiet":
		word = "draining"
	// A directive running counts here as well: the operator has resumed the worker.
	default:
		status, word = http.StatusOK, "running"
	}
	if status != http.StatusOK {
		// 5 s is the recommended interval of heartbeats, with which the state may change.
		r.Response().Header().Set("Retry-After", "5")
	}
	return sendJSON(r, status, map[string]any{"worker_id": ref.ID, "state": word})
}

// getWorker reads in two statements; a job may end between them and is then not listed. Reported ids that are no ids, or whose job
// another worker has by now, are left out.
func (a *API) getWorker(r *request, ref worker.Ref) error {
	w, err := a.Workers.Get(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	var ids [][16]byte
	if w.ActiveJobIds != nil { // NULL for a worker that reports only a number
		var reported []string
		_ = json.Unmarshal(w.ActiveJobIds, &reported) // the store has written it
		for _, text := range reported {
			// The worker may have reported any text.
			if id, ok := spec.ParseID(text); ok {
				ids = append(ids, id)
			}
		}
	}
	jobs, err := a.Workers.Reserved(r.Request().Context(), ref, ids)
	if err != nil {
		return err
	}
	// The short form of docs/reference/workers.md, Registry, without what the client sent. reserved_until is the end of the reservation as
	// it is stored; a heartbeat moves it.
	held := each(jobs, func(j *worker.ReservedJob) object {
		return object{
			{"id", j.ID}, {"type", j.Type}, {"queue", j.Queue}, {"attempt", j.Attempt}, {"started_at", given(j.StartedAt)},
			{"reserved_until", given(j.LeaseUntil)},
		}
	})
	return r.answer(http.StatusOK, append(showWorker(&w), member{"jobs", held}))
}

// workerStates are what a list may ask for.
var workerStates = []string{"running", "quiet", "terminate", "stale"}

// workerList is what differs between the two lists.
type workerList struct {
	standard, largest int    // page sizes
	again             string // the items once more under this name, which the CLI reads (docs/reference/jobs.md, History)
}

// listWorkers is in the order of signs of life: a worker that gives one between two pages moves to the front, so a walk through the pages
// may miss or repeat it.
func (a *API) listWorkers(as workerList) handler {
	return func(r *request) error {
		p := r.page(as.standard, as.largest)
		// An operator sees the workers of all tenants.
		l := worker.Filter{Tenant: a.tenant(r.Request()), States: r.list("state"), Offset: p.offset, Limit: p.limit}
		for _, s := range l.States {
			if !slices.Contains(workerStates, s) {
				r.refuse(spec.InvalidRequest("state", "running, quiet, terminate or stale", s,
					"state must be running, quiet, terminate or stale."))
			}
		}
		l.Queues = r.texts("queue")
		l.After = behind(r, p, worker.ParseKey)
		if r.err != nil {
			return r.err
		}
		page, err := a.Workers.List(r.Request().Context(), l)
		if err != nil {
			return err
		}
		cursor := ""
		// The key says whether the worker is dead, and has its time and its id, because the order has all three.
		if page.More {
			cursor = worker.KeyOf(&page.Workers[len(page.Workers)-1]).String()
		}
		bytes := 0 // an estimate, which may be too large, never much too small
		for i := range page.Workers {
			w := &page.Workers[i]
			bytes += 512 + len(w.ID) + len(w.Facts) + len(w.ActiveJobIds) + len(w.Queues) + len(w.FetchQueues)
		}
		// Twice, because the items may be there twice.
		return respondEach(r, http.StatusOK, 2*bytes, func(b []byte, next flush) []byte {
			show := func(b []byte, w *worker.Record) []byte { return showWorker(w).append(b) }
			b = appendEach(append(b, `{"items":`...), page.Workers, next, show)
			if as.again != "" {
				b = appendEach(append(append(append(b, `,"`...), as.again...), `":`...), page.Workers, next, show)
			}
			// summary counts all workers of the caller, whatever the filter.
			sums := page.Totals
			return append(object{
				{"summary", object{{"total", sums.Total}, {"running", sums.Running}, {"quiet", sums.Quiet}, {"terminate", sums.Terminate},
					{"stale", sums.Stale}}},
				{"pagination", p.shown(page.Matches, page.More, cursor)},
			}.appendMembers(b), '}')
		})
	}
}

// showWorker shows queues and concurrency that the worker has not reported as those of its fetches, and without any fetch as [] and 1.
// last_heartbeat repeats last_heartbeat_at. labels are shown even if there are none.
func showWorker(w *worker.Record) object {
	queues, concurrency := w.Queues, int32(1)
	if queues == nil {
		queues = w.FetchQueues
	}
	if w.Concurrency.Valid {
		concurrency = w.Concurrency.Int32
	} else if w.FetchCount.Valid { // what its latest fetch asked for is the best guess
		concurrency = w.FetchCount.Int32
	}
	shown := object{
		{"id", w.ID}, {"worker_id", w.ID}, {"state", w.State}, {"directive", w.Directive.String}, {"queues", orNone(queues)},
		{"concurrency", concurrency},
		{"active_jobs", w.ActiveJobs}, {"active_job_ids", orNone(w.ActiveJobIds)}, {"hostname", given(w.Hostname)},
	}
	if w.Pid.Valid {
		shown = append(shown, member{"pid", w.Pid.Int64})
	}
	// What the worker reported besides is valid JSON, at most 64 KiB, whose names the decoder has chosen, so none can clash with a member
	// of this object.
	labels, started := jsontext.Value(`[]`), w.StartedAt
	if w.Facts != nil {
		for literal, value := range jsonread.Members(w.Facts) {
			switch name := string(jsonread.Name(literal)); name {
			case "labels":
				labels = value
			// It is text that the worker has sent; it is shown in the form of all times, and ignored if it is none.
			case "started_at":
				text, _ := jsonread.Text(value)
				if t, ok := job.ParseTime(text); ok {
					started = pgtype.Timestamptz{Time: t, Valid: true}
				}
			default:
				shown = append(shown, member{name, value})
			}
		}
	}
	return append(shown, object{{"labels", labels}, {"started_at", given(started)}, {"last_heartbeat_at", given(w.LastBeatAt)},
		{"last_heartbeat", given(w.LastBeatAt)}}...)
}

// orNone is [] for an array that is NULL.
func orNone(array []byte) []byte {
	if array == nil {
		return []byte(`[]`)
	}
	return array
}
