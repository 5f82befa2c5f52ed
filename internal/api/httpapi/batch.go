package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// maxItems is how many items a call may have, and also how many jobs one call with a filter takes. A larger one makes longer
// transactions.
func (a *API) maxItems() int {
	if n := a.config.MaxBatchSize; n > 0 {
		return n
	}
	return 10_000
}

// batch is a body of many items and what else it holds.
// items has at least one element. Both point into the body, so they live as long as the handler runs.
type batch struct {
	items []jsontext.Value
	rest  map[string]jsontext.Value
}

// batchError shows the limit in a header, too, when there were too many items.
// Callers must use it for every error of a decoder that counts items. asError keeps a nil wire nil.
func (a *API) batchError(c echo.Context, wire *ojs.Error) error {
	if wire != nil && wire.Type == string(ojs.ErrBatchSize) {
		c.Response().Header().Set("X-OJS-Max-Batch-Size", strconv.Itoa(a.maxItems()))
	}
	return asError(wire)
}

// splitBatch reads {"<key>":[…], …}.
// The items are valid JSON of any kind, not checked further: a call with outcomes per item must not fail because of one of
// them.
func (a *API) splitBatch(c echo.Context, body []byte, key string) (batch, error) {
	items, rest, wire := job.SplitBatch(body, key, a.maxItems())
	return batch{items, rest}, a.batchError(c, wire)
}

// postBatch is the atomic batch (docs/reference/http.md, Batch).
// All jobs are stored in one transaction or none is. They do not go through the group commit of single jobs, whose flush is
// independent of one item.
func (a *API) postBatch(r *request) error {
	in, err := a.splitBatch(r, r.body, "jobs")
	if err != nil {
		return err
	}
	// One bad job refuses the batch; validation_errors has the mistakes of all.
	jobs, wire := job.DecodeItems(in.items, a.limits(r))
	if wire != nil {
		return wire
	}
	// After decoding, because the jobs must exist, and before anything is stored.
	if err := blockFor(r, jobs...); err != nil {
		return err
	}
	key, err := a.idempotency(r, "batch", "", r.body)
	if err != nil {
		return err
	}
	// With a key the answer is part of the transaction, so it is built whole, in memory, before the commit. Without one it is
	// streamed.
	if key.Key != "" {
		answer, err := a.enqueueOnce(r, key, jobs, func(stored []*job.Record) []byte { return appendBatch(nil, jobs, stored, whole) })
		if err != nil {
			return err
		}
		return send(r, answer.Status, answer.Body)
	}
	// at is below 0 for an error that is about the whole call, such as an outage.
	stored, at, err := a.Jobs.EnqueueAll(r.Request().Context(), jobs)
	if err != nil {
		if at >= 0 {
			return api.Indexed(err, at)
		}
		return err
	}
	showPressure(r, jobs...)
	return respondEach(r, enqueuedStatus(jobs), shownBytes(stored), func(b []byte, next flush) []byte {
		return appendBatch(b, jobs, stored, next)
	})
}

// enqueuedStatus is that of jobs which were all accepted: 200 if nothing was stored.
// A batch of which only some were there before is 201.
func enqueuedStatus(jobs []*job.Job) int {
	if queue.Deduplicated(jobs) {
		return http.StatusOK
	}
	return http.StatusCreated
}

// appendBatch appends the answer of an atomic batch. count and enqueued are equal, and failed is 0, because anything else is
// an error of the whole call; SDKs read different ones of the three. Jobs that a unique policy has ignored count as enqueued.
func appendBatch(b []byte, jobs []*job.Job, stored []*job.Record, next flush) []byte {
	b = append(b, `{"jobs":[`...)
	for i, j := range stored {
		if i > 0 {
			b = append(b, ',')
		}
		b = next(appendJob(b, j, shape{existing: jobs[i].Outcome.Deduplicated}))
	}
	b = append(b, `],"count":`...)
	b = strconv.AppendInt(b, int64(len(stored)), 10)
	b = append(b, `,"enqueued":`...)
	b = strconv.AppendInt(b, int64(len(stored)), 10)
	return append(b, `,"failed":0}`...)
}

// storeCall performs many requests, each as if sent alone; errs is nil if none failed.
// jobs has an element for each request, in their order, nil for those that failed.
type storeCall[Req any] func(ctx context.Context, reqs []Req) (jobs []*job.Record, errs []error)

// postAckBatch and postNackBatch (docs/reference/http.md, Ack and nack batches) treat each element as if it came alone.
// An unknown outcome of one item does not hide those of the others, unless none succeeded; see outage.
func (a *API) postAckBatch(r *request) error {
	in, err := a.splitBatch(r, r.body, "acks")
	if err != nil {
		return err
	}
	return eachItem(a, r, in, job.DecodeAckItem, func(ack job.Ack) [16]byte { return ack.JobID }, a.Jobs.CompleteEach)
}

func (a *API) postNackBatch(r *request) error {
	in, err := a.splitBatch(r, r.body, "nacks")
	if err != nil {
		return err
	}
	return eachItem(a, r, in, job.DecodeNackItem, func(nack job.Nack) [16]byte { return nack.JobID }, a.Jobs.FailEach)
}

// eachItem decodes, stores and shows the items. Refused items keep their place: at maps the request that the store gets to
// the item of the body. Every item is stored in the order of the body, in statements that acks of other calls share.
func eachItem[Req any](
	a *API, c echo.Context, in batch, decode func(jsontext.Value, job.Limits) (Req, *ojs.Error), id func(Req) [16]byte, do storeCall[Req],
) error {
	// A fetch that is refused after the acks were stored would hide their outcomes behind its own 400.
	next, err := nextFetch(in) // before anything is changed
	if err != nil {
		return err
	}
	if next != nil {
		// The decoder knows only the body.
		next.Tenant = a.tenant(c.Request())
	}
	jobs, errs := make([]*job.Record, len(in.items)), make([]error, len(in.items))
	reqs, at := make([]Req, 0, len(in.items)), make([]int, 0, len(in.items))
	for i, item := range in.items {
		// A bad item has its own error and does not refuse the others.
		req, wire := decode(item, a.config.Limits)
		if wire != nil {
			errs[i] = wire
			continue
		}
		reqs, at = append(reqs, req), append(at, i)
	}
	if reqs, at, err = ownItems(a, c, reqs, at, errs, id); err != nil {
		return err
	}
	done, failed := do(c.Request().Context(), reqs)
	for n, i := range at {
		jobs[i] = done[n]
		if failed != nil {
			errs[i] = failed[n]
		}
	}
	// Before the fetch: with the database away, the worker should repeat the whole call and not get jobs for half of it.
	if err := outage(jobs, errs); err != nil {
		return err
	}
	appendItems := func(b []byte, next flush) []byte {
		b = append(b, `{"items":[`...)
		for i := range in.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = next(a.appendItem(b, c, in.items[i], jobs[i], errs[i]))
		}
		return append(b, ']')
	}
	if next != nil {
		return a.itemsAndJobs(c, *next, shownBytes(jobs), appendItems)
	}
	return respondEach(c, http.StatusOK, shownBytes(jobs), func(b []byte, next flush) []byte { return append(appendItems(b, next), '}') })
}

// ownItems leaves out the requests about jobs that are not the caller's, and gives their items the error of an unknown job.
// It filters reqs and at in place, keeping their order. Without a tenant it reads nothing. The look and the change are two
// statements; nothing is lost between them, because the tenant of a job never changes.
func ownItems[Req any](a *API, c echo.Context, reqs []Req, at []int, errs []error, id func(Req) [16]byte) ([]Req, []int, error) {
	ids := make([][16]byte, len(reqs))
	for i, req := range reqs {
		ids[i] = id(req)
	}
	own, err := a.ownJobs(c, ids)
	if err != nil || own == nil {
		return reqs, at, err
	}
	kept := 0
	for i, req := range reqs {
		if !own[ids[i]] {
			errs[at[i]] = spec.NotFound("job", spec.FormatID(ids[i]))
			continue
		}
		reqs[kept], at[kept] = req, at[i]
		kept++
	}
	return reqs[:kept], at[:kept], nil
}

// nextFetch is the fetch that a worker sends with its acks, to save a round trip; nil if there is none.
// DecodeNextFetch refuses wait_ms above 0, because the outcomes of the acks would wait with it. The caller sets the tenant.
func nextFetch(in batch) (*job.Fetch, error) {
	body := in.rest["fetch"]
	if body == nil {
		return nil, nil
	}
	fetch, wire := job.DecodeNextFetch(body)
	return &fetch, asError(wire)
}

// itemsAndJobs answers with the outcomes of a batch and then with the jobs that its worker gets next. The outcomes stand even if
// the fetch fails.
// If the client is gone or the answer breaks, the jobs are handed back without counting the attempt; the acks are committed
// and stay.
func (a *API) itemsAndJobs(c echo.Context, fetch job.Fetch, itemBytes int, appendItems func(b []byte, next flush) []byte) error {
	ctx := c.Request().Context()
	jobs, failed := a.Pools.Fetch(ctx, fetch)
	err := respondEach(c, http.StatusOK, itemBytes+shownBytes(jobs), func(b []byte, next flush) []byte {
		b = append(appendItems(b, next), `,"jobs":`...)
		b = appendJobs(b, jobs, shape{fetched: true}, next)
		if failed != nil {
			b = a.appendError(append(b, `,"fetch_error":`...), c, failed)
		}
		return append(b, '}')
	})
	// ctx ends when the client closes its connection. A write may succeed all the same, into the buffer of a connection that
	// nobody reads.
	if len(jobs) > 0 && (err != nil || ctx.Err() != nil) {
		a.Jobs.HandBack(ctx, jobs)
	}
	return err
}

// outage finds the error of a database that could not be reached if no item succeeded: the call as a whole should be
// sent again then. An unknown outcome of one item is that of the call, because another error would say that nothing was done.
// One item that succeeded makes it 200: a repetition of the call would then report conflicts for what was done. Items that
// neither succeeded nor failed (rolled back) decide nothing.
func outage(jobs []*job.Record, errs []error) error {
	var first error
	for i, err := range errs {
		if err == nil && jobs[i] != nil {
			return nil
		}
		var wire *ojs.Error
		if errors.As(err, &wire) && wire.Code == "backend_error" && (first == nil || wire.Details["outcome"] == "unknown") {
			first = err
		}
	}
	return first
}

// appendItem is one outcome; job_id is the one that was sent, as it was sent, if it is a text.
// A refused item repeats the text of the client, which may be no id, so that the client can find its item without counting.
func (a *API) appendItem(b []byte, c echo.Context, item jsontext.Value, job *job.Record, err error) []byte {
	b = append(b, `{"job_id":`...)
	if job != nil {
		b = append(b, '"')
		b = spec.AppendID(b, job.ID)
		b = append(b, '"')
	} else {
		b = appendQuoted(b, sentJobID(item))
	}
	if err != nil {
		b = append(b, `,"status":"failed","error":`...)
		return append(a.appendError(b, c, err), '}')
	}
	b = append(b, `,"status":"ok","job":`...)
	b = appendJob(b, job, shape{})
	return append(b, '}')
}

// sentJobID finds the job_id of an item that was refused.
// The last member of that name counts, as in all bodies. A value that is no text is shown as "".
func sentJobID(item jsontext.Value) (id string) {
	if item[0] != '{' {
		return ""
	}
	for literal, value := range rawjson.Members(item) {
		if string(rawjson.Name(literal)) == "job_id" {
			id, _ = rawjson.Text(value)
		}
	}
	return id
}

// appendError appends the error of an item and logs it if it is the fault of the server: the request as a whole may be 200,
// so the access log says nothing of it. The text must not be built twice, or it is logged twice.
func (a *API) appendError(b []byte, c echo.Context, err error) []byte {
	shown, mErr := marshal(a.itemError(c, err))
	if mErr != nil {
		shown = []byte(`{"code":"internal_error"}`)
	}
	return append(b, shown...)
}
