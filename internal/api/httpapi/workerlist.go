package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/worker"
)

// getWorkerHealth answers 503 for a worker that takes no more work, so that a probe can be pointed at it.
// An operator's directive counts before what the worker has reported, because it is newer or still to be obeyed; see
// docs/reference/workers.md, Directives.
func (a *API) getWorkerHealth(r *request) error {
	ref, err := a.workerRef(r)
	if err != nil {
		return err
	}
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

// It reads in two statements; a job may end between them and is then not listed. Reported ids that are no ids, or whose job
// another worker has by now, are left out.
func (a *API) getWorker(r *request) error {
	ref, err := a.workerRef(r)
	if err != nil {
		return err
	}
	w, err := a.Workers.Get(r.Request().Context(), ref)
	if err != nil {
		return err
	}
	var ids [][16]byte
	// The worker may have reported any text.
	for _, text := range reportedIDs(w.ActiveJobIds) {
		if id, ok := spec.ParseID(text); ok {
			ids = append(ids, id)
		}
	}
	jobs, err := a.Workers.Reserved(r.Request().Context(), ref, ids)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(appendWorker(b, &w), `,"jobs":[`...)
		for i := range jobs {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendHeldJob(b, &jobs[i])
		}
		return append(b, ']', '}')
	})
}

// nil for a worker that reports only a number.
func reportedIDs(list []byte) (ids []string) {
	if list != nil {
		_ = json.Unmarshal(list, &ids) // the store has written it
	}
	return ids
}

// reserved_until is the end of the reservation as it is stored; a heartbeat moves it.
// It is the short form of docs/reference/workers.md, Registry, without what the client sent.
func appendHeldJob(b []byte, j *worker.ReservedJob) []byte {
	b = append(b, `{"id":"`...)
	b = append(spec.AppendID(b, j.ID), '"')
	b = appendText(b, "type", j.Type)
	b = appendText(b, "queue", j.Queue)
	b = strconv.AppendInt(append(b, `,"attempt":`...), int64(j.Attempt), 10)
	b = appendTime(b, "started_at", j.StartedAt)
	b = appendTime(b, "reserved_until", j.LeaseUntil)
	return append(b, '}')
}

// workerStates are what a list may ask for.
var workerStates = []string{"running", "quiet", "terminate", "stale"}

// workerList is what differs between the two lists.
type workerList struct {
	standard, largest int    // page sizes
	again             string // the items once more under this name, which the CLI reads (docs/reference/jobs.md, History)
}

// A worker that gives a sign of life between two pages moves to the front, so a walk through the pages may miss or repeat it.
func (a *API) listWorkers(as workerList) handler {
	return func(r *request) error {
		p, err := readPageOf(r, as.standard, as.largest)
		if err != nil {
			return err
		}
		// An operator sees the workers of all tenants.
		l := worker.Filter{Tenant: a.tenant(r.Request()), States: list(r, "state"), Offset: p.offset, Limit: p.limit}
		for _, s := range l.States {
			if !slices.Contains(workerStates, s) {
				return spec.InvalidRequest("state", "running, quiet, terminate or stale", s, "state must be running, quiet, terminate or stale.")
			}
		}
		if l.Queues, err = plainList(r, "queue"); err != nil {
			return err
		}
		if p.cursor != "" {
			key, ok := worker.ParseKey(p.cursor)
			if !ok {
				return api.ErrCursor(p.cursor)
			}
			l.After = &key
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
		// Twice, because the items may be there twice; the estimate may be too large, never much too small.
		return respondEach(r, http.StatusOK, 2*workerBytes(page.Workers), func(b []byte, next flush) []byte {
			b = appendWorkers(append(b, `{"items":`...), page.Workers, next)
			if as.again != "" {
				b = append(append(append(b, `,"`...), as.again...), `":`...)
				b = appendWorkers(b, page.Workers, next)
			}
			b = appendTotals(append(b, `,"summary":`...), page.Totals)
			b = p.append(append(b, `,"pagination":`...), page.Matches, page.More, cursor)
			return append(b, '}')
		})
	}
}

func appendWorkers(b []byte, workers []worker.Record, next flush) []byte {
	b = append(b, '[')
	for i := range workers {
		if i > 0 {
			b = append(b, ',')
		}
		b = next(append(appendWorker(b, &workers[i]), '}'))
	}
	return append(b, ']')
}

// workerBytes estimates what appendWorkers appends.
func workerBytes(workers []worker.Record) (bytes int) {
	for i := range workers {
		w := &workers[i]
		bytes += 512 + len(w.ID) + len(w.Facts) + len(w.ActiveJobIds) + len(w.Queues) + len(w.FetchQueues)
	}
	return bytes
}

// They count all workers of the caller, whatever the filter.
func appendTotals(b []byte, sums worker.Totals) []byte {
	b = strconv.AppendInt(append(b, `{"total":`...), sums.Total, 10)
	b = strconv.AppendInt(append(b, `,"running":`...), sums.Running, 10)
	b = strconv.AppendInt(append(b, `,"quiet":`...), sums.Quiet, 10)
	b = strconv.AppendInt(append(b, `,"terminate":`...), sums.Terminate, 10)
	b = strconv.AppendInt(append(b, `,"stale":`...), sums.Stale, 10)
	return append(b, '}')
}

// appendWorker appends an item without its closing brace.
// queues and concurrency that the worker has not reported are those of its fetches, and without any fetch [] and 1.
// last_heartbeat repeats last_heartbeat_at.
func appendWorker(b []byte, w *worker.Record) []byte {
	b = appendQuoted(append(b, `{"id":`...), w.ID)
	b = appendText(b, "worker_id", w.ID)
	b = appendText(b, "state", w.State)
	b = appendText(b, "directive", w.Directive.String)
	b = appendJSON(append(b, `,"queues":`...), w.Queues, w.FetchQueues)
	b = append(b, `,"concurrency":`...)
	switch {
	case w.Concurrency.Valid:
		b = strconv.AppendInt(b, int64(w.Concurrency.Int32), 10)
	// The worker has not reported it: what its latest fetch asked for is the best guess.
	case w.FetchCount.Valid:
		b = strconv.AppendInt(b, int64(w.FetchCount.Int32), 10)
	default:
		b = append(b, '1')
	}
	b = strconv.AppendInt(append(b, `,"active_jobs":`...), int64(w.ActiveJobs), 10)
	b = appendJSON(append(b, `,"active_job_ids":`...), w.ActiveJobIds)
	if w.Hostname.Valid {
		b = appendText(b, "hostname", w.Hostname.String)
	}
	if w.Pid.Valid {
		b = strconv.AppendInt(append(b, `,"pid":`...), w.Pid.Int64, 10)
	}
	b, started := appendFacts(b, w.Facts, w.StartedAt)
	b = appendTime(b, "started_at", started)
	b = appendTime(b, "last_heartbeat_at", w.LastBeatAt)
	return appendTime(b, "last_heartbeat", w.LastBeatAt)
}

// appendJSON appends the first array that there is.
// nil is NULL.
func appendJSON(b []byte, arrays ...[]byte) []byte {
	for _, array := range arrays {
		if array != nil {
			return append(b, array...)
		}
	}
	return append(b, '[', ']')
}

// appendFacts appends what the worker reported besides, labels always, and returns when it says that it was started.
// facts are valid JSON, at most 64 KiB, whose names the decoder has chosen, so none can clash with a member of this object. A
// started_at that is no time is ignored.
func appendFacts(b, facts []byte, registered pgtype.Timestamptz) ([]byte, pgtype.Timestamptz) {
	labels, started := []byte(`[]`), registered
	if facts != nil {
		for literal, value := range rawjson.Members(facts) {
			switch string(rawjson.Name(literal)) {
			// labels are shown even if there are none.
			case "labels":
				labels = value
			// It is text that the worker has sent; it is shown in the form of all times.
			case "started_at":
				text, _ := rawjson.Text(value)
				if t, ok := job.ParseTime(text); ok {
					started = pgtype.Timestamptz{Time: t, Valid: true}
				}
			default:
				b = append(append(append(append(b, ','), literal...), ':'), value...)
			}
		}
	}
	return append(append(b, `,"labels":`...), labels...), started
}
