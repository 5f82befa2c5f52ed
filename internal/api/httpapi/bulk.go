package httpapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// batch is a body of many items and what else it holds.
// items has at least one element. Both point into the body, so they live as long as the handler runs.
type batch struct {
	items []jsontext.Value
	rest  *jsonread.Object
}

// batchError shows the limit in a header, too, when there were too many items.
// Callers must use it for every error of a decoder that counts items. asError keeps a nil wire nil.
func (a *API) batchError(c echo.Context, wire *ojs.Error) error {
	if wire != nil && wire.Type == string(ojs.ErrBatchSize) {
		c.Response().Header().Set("X-OJS-Max-Batch-Size", strconv.Itoa(a.config.Server.MaxBatchSize))
	}
	return asError(wire)
}

// splitBatch reads {"<key>":[…], …}.
// The items are valid JSON of any kind, not checked further: a call with outcomes per item must not fail because of one of
// them.
func (a *API) splitBatch(c echo.Context, body []byte, key string, names ...string) (batch, error) {
	items, rest, wire := job.SplitBatch(body, a.config.Server.MaxBatchSize, key, names...)
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
	in, err := a.splitBatch(r, r.body, "acks", "fetch")
	if err != nil {
		return err
	}
	return eachItem(a, r, in, func(item jsontext.Value) (job.Ack, *ojs.Error) { return job.DecodeAckItem(item, a.JobLimits) },
		func(ack job.Ack) [16]byte { return ack.JobID }, a.Jobs.CompleteEach)
}

func (a *API) postNackBatch(r *request) error {
	in, err := a.splitBatch(r, r.body, "nacks", "fetch")
	if err != nil {
		return err
	}
	return eachItem(a, r, in, job.DecodeNackItem, func(nack job.Nack) [16]byte { return nack.JobID }, a.Jobs.FailEach)
}

// eachItem decodes, stores and shows the items. Refused items keep their place: at maps the request that the store gets to
// the item of the body. Every item is stored in the order of the body, in statements that acks of other calls share.
func eachItem[Req any](
	a *API, c echo.Context, in batch, decode func(jsontext.Value) (Req, *ojs.Error), id func(Req) [16]byte, do storeCall[Req],
) error {
	// The fetch that a worker may send with its acks, to save a round trip, is read before anything is changed: one that is refused after
	// the acks were stored would hide their outcomes behind its own 400. wait_ms above 0 is refused, because the outcomes of the acks would
	// wait with it.
	var next *job.Fetch
	if body := in.rest.Get("fetch"); body != nil {
		fetch, wire := job.DecodeNextFetch(body)
		if wire != nil {
			return wire
		}
		fetch.Tenant = a.tenant(c.Request())
		next = &fetch
	}
	jobs, errs := make([]*job.Record, len(in.items)), make([]error, len(in.items))
	reqs, at := make([]Req, 0, len(in.items)), make([]int, 0, len(in.items))
	for i, item := range in.items {
		// A bad item has its own error and does not refuse the others.
		req, wire := decode(item)
		if wire != nil {
			errs[i] = wire
			continue
		}
		reqs, at = append(reqs, req), append(at, i)
	}
	reqs, at, err := ownItems(a, c, reqs, at, errs, id)
	if err != nil {
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
		sent := "" // also for a value that is no text
		if item[0] == '{' {
			sent, _ = jsonread.Text(jsonread.Find(item, "job_id"))
		}
		b = appendQuoted(b, sent)
	}
	if err != nil {
		b = append(b, `,"status":"failed","error":`...)
		return append(a.appendError(b, c, err), '}')
	}
	b = append(b, `,"status":"ok","job":`...)
	b = appendJob(b, job, shape{})
	return append(b, '}')
}

// appendError appends the error of an item, without request_id, and logs it if it is the fault of the server: the request as a whole may
// be 200, so the access log says nothing of it. The text must not be built twice, or it is logged twice.
func (a *API) appendError(b []byte, c echo.Context, err error) []byte {
	shown, mErr := marshal(api.LogItem(c.Request().Context(), a.logger, c.Response().Header().Get("X-Request-Id"), c.Path(), err))
	if mErr != nil {
		shown = []byte(`{"code":"internal_error"}`)
	}
	return append(b, shown...)
}

// idempotency makes the key of a call: the header wins over the body, and the answer is remembered for one body.
// The hash is of the compact body, so white space does not matter, and the order of members does. The holder is the API key
// and the tenant of the caller: two customers may use the same key. Without a key the result has only the operation, and
// queue.Store.Once then runs without a row.
func (a *API) idempotency(c echo.Context, operation, inBody string, body []byte) (queue.IdempotencyKey, error) {
	key := c.Request().Header.Get("Idempotency-Key")
	if key == "" {
		key = inBody
	} else if err := api.CheckIdempotencyKey("Idempotency-Key", "The Idempotency-Key", key); err != nil {
		return queue.IdempotencyKey{}, err
	}
	if key == "" {
		return queue.IdempotencyKey{Operation: operation}, nil
	}
	hash := sha256.Sum256(jsonread.Compact(body))
	return queue.IdempotencyKey{Holder: a.caller(c.Request()).Holder(), Operation: operation, Key: key, Hash: hash[:]}, nil
}

// enqueueOnce stores all jobs or none and answers with what show makes of them, from memory if the key was used before.
// The jobs, the row of the key and the answer are committed together. After a crash either all of them exist or none, so a
// client that repeats the call gets the answer, or stores the jobs now. show runs inside the transaction, before the commit,
// and may run again; it must only encode.
func (a *API) enqueueOnce(c echo.Context, k queue.IdempotencyKey, jobs []*job.Job,
	show func(stored []*job.Record) []byte) (answer queue.Answer, err error) {
	ctx := c.Request().Context()
	// A full queue ends the transaction. RetryFull waits outside of it, without connection and without the lock of the key;
	// jobs has at least one element.
	err = a.Jobs.RetryFull(ctx, jobs[0].BlockFor, func() error {
		// An error of one job rolls back all and forgets the key, so the client may correct the call and use the key again.
		answer, err = a.Jobs.Once(ctx, k, func(tx *queue.Tx) (queue.Answer, bool, error) {
			stored, errs, err := tx.Enqueue(ctx, jobs, true)
			if err != nil {
				return queue.Answer{}, false, err
			}
			// The error of a single enqueue has no index; that of a batch names its job.
			for i, err := range errs {
				if err != nil && len(jobs) > 1 {
					return queue.Answer{}, false, api.Indexed(err, i)
				} else if err != nil {
					return queue.Answer{}, false, err
				}
			}
			return queue.Answer{Status: enqueuedStatus(jobs), Body: show(stored)}, true, nil
		})
		return err
	})
	// The pressure of a replayed call was that of another time.
	if err == nil && !answer.Replayed {
		showPressure(c, jobs...)
	}
	if answer.Replayed {
		c.Response().Header().Set("Idempotent-Replayed", "true")
	}
	return answer, err
}

// once answers a bulk call, from memory if its key was used before.
// do runs in the transaction of the key, and again from the beginning after a deadlock: it must not keep state between two
// runs. If do keeps its answer, it is stored as it is, so a replay is byte for byte the first answer, whatever has become of
// the jobs since.
func (a *API) once(c echo.Context, k queue.IdempotencyKey, items int, do func(ctx context.Context, tx *queue.Tx) (queue.Answer, bool,
	error)) error {
	answer, err := a.Jobs.Once(c.Request().Context(), k, func(tx *queue.Tx) (queue.Answer, bool, error) {
		return do(c.Request().Context(), tx)
	})
	if err != nil {
		return err
	}
	// A replay is counted and shows its size, too.
	a.bulkDone(c, k.Operation, items)
	if answer.Replayed {
		c.Response().Header().Set("Idempotent-Replayed", "true")
	}
	return send(c, answer.Status, answer.Body)
}

// bulkDone sets the header of bulk calls and counts the call for metrics. It must come before the status is written.
func (a *API) bulkDone(c echo.Context, operation string, items int) {
	c.Response().Header().Set("X-OJS-Batch-Size", strconv.Itoa(items))
	if a.countBulk != nil {
		a.countBulk(operation, items)
	}
}

// postBulk enqueues with an outcome per item (docs/reference/http.md, Bulk enqueue).
// There are two ways. Without key and without atomicity every item goes through the group commit and is independent, also of
// a crash between two statements. Otherwise one transaction stores the items, or what of them can be stored, and the answer
// for the key.
func (a *API) postBulk(r *request) error {
	in, err := a.splitBatch(r, r.body, "jobs", "atomicity", "idempotency_key")
	if err != nil {
		return err
	}
	options, wire := job.DecodeBulkOptions(in.rest)
	if wire != nil {
		return wire
	}
	key, err := a.idempotency(r, "enqueue", options.IdempotencyKey, r.body)
	if err != nil {
		return err
	}
	// jobs[i] stays nil for a refused item; errs[i] keeps its error until the answer. valid are the others, and at their places among all.
	jobs, errs, lim := make([]*job.Job, len(in.items)), make([]error, len(in.items)), a.limits(r)
	var valid []*job.Job
	var at []int
	for i, item := range in.items {
		job, wire := job.DecodeItem(item, lim)
		if wire != nil {
			errs[i] = spec.Indexed(wire, i)
			continue
		}
		jobs[i], valid, at = job, append(valid, job), append(at, i)
	}
	if err := blockFor(r, valid...); err != nil {
		return err
	}
	if key.Key == "" && !options.Atomic {
		done, failed := a.Jobs.EnqueueEach(r.Request().Context(), valid)
		stored := scatter(len(jobs), at, done, failed, errs)
		if err := outage(stored, errs); err != nil {
			return err
		}
		// Only now, because an outage is the error of the call and shows no size.
		a.bulkDone(r, key.Operation, len(jobs))
		status, succeeded := bulkOutcome(stored, errs)
		return respondEach(r, status, shownBytes(stored), func(b []byte, next flush) []byte {
			return a.appendBulk(b, r, bulkItems{jobs, stored, errs}, succeeded, next)
		})
	}
	return a.once(r, key, len(jobs), func(ctx context.Context, tx *queue.Tx) (queue.Answer, bool, error) {
		errs := slices.Clone(errs) // a transaction may be tried again
		stored := make([]*job.Record, len(jobs))
		// With atomic, one refused item means that nothing is tried; the others are then rolled_back in the answer, which has neither a
		// record nor an error for them.
		if !options.Atomic || len(valid) == len(jobs) {
			done, failed, err := tx.Enqueue(ctx, valid, options.Atomic)
			if err != nil {
				return queue.Answer{}, false, err
			}
			stored = scatter(len(jobs), at, done, failed, errs)
		}
		status, succeeded := bulkOutcome(stored, errs)
		answer := queue.Answer{Status: status, Body: a.appendBulk(nil, r, bulkItems{jobs, stored, errs}, succeeded, whole)}
		// A failed call changed nothing and may be tried again with its key.
		// A call with partial success is kept: its key would otherwise store the good items twice.
		return answer, status < 300, nil
	})
}

// scatter puts outcomes back to where their items were.
// at are these places; done and failed are in their order. It changes errs. failed is nil if nothing failed.
func scatter(n int, at []int, done []*job.Record, failed, errs []error) []*job.Record {
	stored := make([]*job.Record, n)
	for from, to := range at {
		stored[to] = done[from]
		if failed != nil && failed[from] != nil {
			errs[to] = api.Indexed(failed[from], to)
		}
	}
	return stored
}

// bulkItems are the items of a bulk enqueue with their outcomes.
// The three have the same length. An item has an error, or a record, or neither if the call was rolled back because of
// others.
type bulkItems struct {
	jobs   []*job.Job
	stored []*job.Record
	errs   []error
}

// bulkOutcome counts a duplicate as a success: the client has its job. 422 is also the status of a call whose single item failed.
func bulkOutcome(stored []*job.Record, errs []error) (status, succeeded int) {
	for i, job := range stored {
		if errs[i] == nil && job != nil {
			succeeded++
		}
	}
	switch succeeded {
	case len(stored):
		return http.StatusCreated, succeeded
	case 0:
		return http.StatusUnprocessableEntity, succeeded
	}
	return http.StatusMultiStatus, succeeded
}

// appendBulk appends the answer of docs/reference/http.md, Bulk enqueue. It logs the errors of items that are the server's
// fault, so it must run once for each answer; a replay shows the stored text and runs it not at all.
func (a *API) appendBulk(b []byte, c echo.Context, items bulkItems, succeeded int, next flush) []byte {
	stored, errs := items.stored, items.errs
	b = append(append(b, `{"total":`...), strconv.Itoa(len(stored))...)
	b = append(append(b, `,"succeeded":`...), strconv.Itoa(succeeded)...)
	b = append(append(b, `,"failed":`...), strconv.Itoa(len(stored)-succeeded)...)
	b = append(b, `,"items":[`...)
	for i, job := range stored {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		switch {
		case errs[i] != nil:
			b = append(b, `,"status":"failed","error":`...)
			b = append(a.appendError(b, c, errs[i]), '}')
		case job != nil && items.jobs[i].Outcome.Deduplicated:
			b = append(b, `,"status":"duplicate","job":`...)
			b = append(appendJob(b, job, shape{existing: true}), '}')
		case job != nil:
			b = append(b, `,"status":"created","job":`...)
			b = append(appendJob(b, job, shape{}), '}')
		default: // an atomic call that others made fail
			b = append(b, `,"status":"rolled_back"}`...)
		}
		b = next(b)
	}
	return append(b, `]}`...)
}

// bulkHandler serves /jobs/bulk/{cancel,retry,delete} (docs/reference/http.md, Bulk change).
// The ids, or the matches of the filter, are found before the transaction. The change compares the state of each job again,
// under its lock, so a job that another call has changed meanwhile is skipped with its new state and never changed twice.
func (a *API) bulkHandler(op job.BulkOp) func(r *request) error {
	return func(r *request) error {
		in, wire := job.DecodeBulkSelect(op, r.body, a.config.Server.MaxBatchSize)
		if wire != nil {
			return a.batchError(r, wire)
		}
		key, err := a.idempotency(r, string(op), in.IdempotencyKey, r.body)
		if err != nil {
			return err
		}
		sel, err := a.selectJobs(r, in)
		if err != nil {
			return err
		}
		return a.once(r, key, len(sel.texts), func(ctx context.Context, tx *queue.Tx) (queue.Answer, bool, error) {
			// The store knows distinct ids only, so it cannot see that one of the texts is unusable. The transaction
			// therefore runs without the check of the store, to learn which jobs are eligible, and is rolled back because
			// keep is false.
			irregular := len(sel.ids) < len(sel.texts) // some text is no id, or comes twice
			res, err := tx.Bulk(ctx, queue.BulkChange{
				Op: op, IDs: sel.ids, States: queue.Eligible(op), Atomic: in.Atomic && !irregular,
				Cancel: queue.Cancel{By: a.actor(r, "cancelled_by")},
			})
			if in.Atomic && irregular { // an unknown id among them: nothing may change
				res.Eligible, res.Changed = res.Changed, nil
			}
			return sel.answer(in, res), len(res.Changed) > 0 && !in.DryRun, err
		})
	}
}

// selection is what a bulk call works on.
// texts and ids differ in length if a text is no id or comes twice, and for a tenant also if a job is not the tenant's. The
// answer has an item per text.
type selection struct {
	texts []string // as sent, or of the ids that the filter has found
	ids   [][16]byte
	more  bool // the filter matches more than one call changes
}

// selectJobs reads nothing for ids of an operator. A filter looks at bounded portions until there are enough matches, which
// may take long; the read has a share of the connections like a list, and no lock.
func (a *API) selectJobs(c echo.Context, in job.BulkSelect) (sel selection, err error) {
	if in.Filter == nil {
		own, err := a.ownJobs(c, in.IDs.IDs)
		return selection{texts: in.IDs.Texts, ids: onlyOwn(in.IDs.IDs, own)}, err
	}
	in.Filter.Tenant = a.tenant(c.Request())
	if sel.ids, sel.more, err = a.Jobs.Candidates(c.Request().Context(), *in.Filter, a.config.Server.MaxBatchSize); err != nil {
		return sel, err
	}
	for _, id := range sel.ids {
		sel.texts = append(sel.texts, spec.FormatID(id))
	}
	return sel, nil
}

// onlyOwn leaves out the ids of jobs that are not the caller's; own is what ownJobs has returned.
// It does not change ids, whose array the caller may still show.
func onlyOwn(ids [][16]byte, own map[[16]byte]bool) [][16]byte {
	if own == nil {
		return ids
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id [16]byte) bool { return !own[id] })
}

// bulkWords are the counters and statuses of the answers (docs/reference/http.md, Bulk change).
var bulkWords = map[job.BulkOp]string{
	job.BulkCancel: "cancelled", job.BulkRetry: "retried", job.BulkDelete: "deleted",
}

// answer builds the answer of a bulk change. total and total_matched, and failed and skipped, are equal: suites and tools
// read different ones. Each text gets the first case that applies; a text that repeats an id is "listed twice", whatever
// became of the job.
func (s selection) answer(in job.BulkSelect, res queue.BulkResult) queue.Answer {
	word, used := bulkWords[in.Op], map[[16]byte]bool{}
	total, changed, skipped, items := len(s.texts), 0, 0, make([]object, len(s.texts))
	for i, text := range s.texts {
		status, reason := "", ""
		id, ok := spec.ParseID(text)
		switch {
		case ok && res.Changed[id] && !used[id]:
			used[id] = true
			changed++
			status = word
		case ok && used[id]:
			reason = "listed twice"
		// It is neither changed nor skipped: an atomic call was rolled back.
		case res.Eligible[id]:
			status = "rolled_back"
		case ok:
			reason = skipReason(id, res)
		default:
			reason = "not found"
		}
		if reason != "" {
			skipped++
			status = "skipped"
		}
		items[i] = object{{"index", i}, {"job_id", text}, {"status", status}, {"reason", given(reason)}}
	}
	body := object{
		{"total", total}, {"total_matched", total}, {word, changed}, {"succeeded", changed}, {"skipped", skipped}, {"failed", skipped},
		{"has_more", given(s.more)}, {"dry_run", given(in.DryRun)}, {"items", items},
	}
	// A filter that matches nothing is 200. 422 is also for an atomic call that was rolled back, of which nothing may be skipped.
	code := http.StatusMultiStatus
	switch changed {
	case total:
		code = http.StatusOK
	case 0:
		code = http.StatusUnprocessableEntity
	}
	return queue.Answer{Status: code, Body: body.append(nil)}
}

// skipReason says why a bulk operation did not change a job.
// The state is that under which the transaction found the job. A job that was deleted between selection and change is "not
// found".
func skipReason(id [16]byte, res queue.BulkResult) string {
	if other, duplicate := res.Duplicates[id]; duplicate {
		return "job " + spec.FormatID(other) + " has its unique key"
	}
	if state, stored := res.Skipped[id]; stored {
		return "job is " + string(state)
	}
	return "not found"
}
