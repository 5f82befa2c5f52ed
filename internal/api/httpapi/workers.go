package httpapi

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

// A fetch is not idempotent: each answer has other jobs. With wait_ms it parks in memory, without a connection. Jobs whose
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

// It returns the error of the write, which tells the caller to hand the jobs back. A write that succeeds proves only that the
// bytes have left this process.
func fetched(c echo.Context, jobs []*job.Record) error {
	return respondEach(c, http.StatusOK, shownBytes(jobs), func(b []byte, next flush) []byte {
		b = append(b, `{"jobs":`...)
		b = appendJobs(b, jobs, shape{fetched: true}, next)
		return append(b, '}')
	})
}

// An ack is final. A repetition is 409 with current_state completed, which tells a worker that lost the answer that its ack
// was carried out.
func (a *API) postAck(r *request) error {
	// These are the limits of the node and not of the tenant: an ack has no meta.
	in, wire := job.DecodeAck(r.body, a.config.Limits)
	return a.ack(r, in, wire)
}

// postJobAck takes the id from the path (docs/reference/http.md, Ack).
func (a *API) postJobAck(r *request) error {
	in, wire := job.DecodeAckFor(param(r, "id"), r.body, a.config.Limits)
	return a.ack(r, in, wire)
}

// wire is the error of the decoder. When it returns the job is committed as completed, and its workflow has been advanced; if
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

// job may be a cancelled one, which the ack has not changed.
func acked(c echo.Context, job *job.Record) error {
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendAcked(b, job) })
}

// A job that was cancelled during the run is 200 with acknowledged false: it is no mistake of the worker
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

// It also appends state. All three have a leading comma.
func appendBothIDs(b []byte, job *job.Record) []byte {
	b = append(b, `,"id":"`...)
	b = spec.AppendID(b, job.ID)
	b = append(b, `","job_id":"`...)
	b = spec.AppendID(b, job.ID)
	b = append(b, '"')
	return appendText(b, "state", job.State)
}

// A nack is answered with the state that the retry policy has chosen.
func (a *API) postNack(r *request) error {
	in, wire := job.DecodeNack(r.body, a.config.Limits)
	return a.nack(r, in, wire)
}

// postJobNack takes the id from the path, and a text as error (docs/reference/http.md, Nack).
func (a *API) postJobNack(r *request) error {
	in, wire := job.DecodeNackFor(param(r, "id"), r.body, a.config.Limits)
	return a.nack(r, in, wire)
}

// A repetition is 409, or fails a later run if worker_id and attempt were not sent and the job was fetched again by then.
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

// The members depend on the new state (docs/reference/http.md, Nack).
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

// It registers an unknown worker. A repetition does no harm. Ids that the caller may not
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
	return respond(r, http.StatusOK, func(b []byte) []byte { return appendBeat(b, res, lost) })
}

// directive is empty for running, as the specification has it; state always says what to do.
func appendBeat(b []byte, res worker.BeatResult, invalid []string) []byte {
	directive := res.State
	if directive == "running" {
		directive = ""
	}
	b = append(b, `{"acknowledged":true`...)
	b = appendText(b, "state", res.State)
	b = appendText(b, "directive", directive)
	b = appendIDs(append(b, `,"jobs_extended":`...), res.Extended, nil)
	b = appendIDs(append(b, `,"jobs_cancelled":`...), res.Cancelled, nil)
	b = appendIDs(append(b, `,"jobs_lost":`...), res.Lost, invalid)
	b = appendText(b, "server_time", spec.FormatTime(res.Time))
	return append(b, '}')
}

// ids and texts make one array; texts are shown as they were sent.
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
