package httpapi

import (
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/ojs"
)

func (a *API) postFetch(c echo.Context, body []byte) error {
	in, wire := job.DecodeFetch(body)
	if wire != nil {
		return wire
	}
	ctx := c.Request().Context()
	jobs, err := a.Pools.Fetch(ctx, in)
	if err != nil {
		return err
	}
	if len(jobs) > 0 && ctx.Err() != nil { // nobody waits for them any more
		a.Jobs.HandBack(ctx, jobs)
		return ctx.Err()
	}
	err = fetched(c, jobs)
	if err != nil { // the connection broke or was too slow before the end of the answer, which is nothing without it
		a.Jobs.HandBack(ctx, jobs)
	}
	return err
}

func fetched(c echo.Context, jobs []*job.Record) error {
	return respondEach(c, http.StatusOK, shownBytes(jobs), func(b []byte, next flush) []byte {
		b = append(b, `{"jobs":`...)
		b = appendJobs(b, jobs, shape{fetched: true}, next)
		return append(b, '}')
	})
}

// ackRoom is what an ack may have besides its result.
const ackRoom = 65_536

func (a *API) postAck(c echo.Context, body []byte) error {
	in, wire := job.DecodeAck(body, a.config.Limits)
	return a.ack(c, in, wire)
}

// postJobAck takes the id from the path (docs/reference/http.md, Ack).
func (a *API) postJobAck(c echo.Context, body []byte) error {
	in, wire := job.DecodeAckFor(param(c, "id"), body, a.config.Limits)
	return a.ack(c, in, wire)
}

func (a *API) ack(c echo.Context, in job.Ack, wire *ojs.Error) error {
	if wire != nil {
		return wire
	}
	job, err := a.Jobs.Complete(c.Request().Context(), in)
	if err != nil {
		return err
	}
	return acked(c, job)
}

func acked(c echo.Context, job *job.Record) error {
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendAcked(b, job) })
}

func appendAcked(b []byte, job *job.Record) []byte {
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

func appendBothIDs(b []byte, job *job.Record) []byte {
	b = append(b, `,"id":"`...)
	b = ojs.AppendID(b, job.ID)
	b = append(b, `","job_id":"`...)
	b = ojs.AppendID(b, job.ID)
	b = append(b, '"')
	return appendText(b, "state", job.State)
}

func (a *API) postNack(c echo.Context, body []byte) error {
	in, wire := job.DecodeNack(body, a.config.Limits)
	return a.nack(c, in, wire)
}

// postJobNack takes the id from the path, and a text as error (docs/reference/http.md, Nack).
func (a *API) postJobNack(c echo.Context, body []byte) error {
	in, wire := job.DecodeNackFor(param(c, "id"), body, a.config.Limits)
	return a.nack(c, in, wire)
}

func (a *API) nack(c echo.Context, in job.Nack, wire *ojs.Error) error {
	if wire != nil {
		return wire
	}
	job, err := a.Jobs.Fail(c.Request().Context(), in)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendNacked(b, job) })
}

func appendNacked(b []byte, job *job.Record) []byte {
	if job.State == string(ojs.StateCancelled) {
		return appendAcked(b, job) // cancelled while this worker held it: A10 is the same for both
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
	case ojs.StateScheduled:
		b = appendTime(b, "scheduled_at", job.ScheduledAt)
	}
	b = append(b, `,"job":`...)
	b = appendJob(b, job, shape{})
	return append(b, '}')
}

func (a *API) postHeartbeat(c echo.Context, body []byte) error {
	in, wire := worker.DecodeHeartbeat(body)
	if wire != nil {
		return wire
	}
	res, err := a.Workers.Heartbeat(c.Request().Context(), in)
	if err != nil {
		return err
	}
	// Texts that are no ids are lost, too: no job can have them.
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendBeat(b, res, in.Jobs.Invalid) })
}

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
	b = appendText(b, "server_time", ojs.FormatTime(res.Time))
	return append(b, '}')
}

func appendIDs(b []byte, ids [][16]byte, texts []string) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = ojs.AppendID(b, id)
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
