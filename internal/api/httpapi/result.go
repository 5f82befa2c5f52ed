package httpapi

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// In s. A larger timeout counts as the maximum.
const (
	defaultResultWait = 30 // s
	maxResultWait     = 60
)

// getResult is docs/reference/jobs.md, Results, with wait a long poll.
// While it waits it holds no connection of the pool. It also ends early, as if the time were over, when the node stops, so a
// client asks another node.
func (a *API) getResult(r *request) error {
	wait, err := readResultWait(r)
	if err != nil {
		return err
	}
	id, err := jobID(r)
	if err != nil {
		return err
	}
	// It reads before it waits, so a job that has ended costs one read.
	res, err := a.Jobs.AwaitResult(r.Request().Context(), id, wait)
	if err != nil {
		return err
	}
	switch {
	// 410 and not 404: the job exists, and its result will not come back.
	case res.Pruned:
		// result_ttl is set by the job, so the client can send a longer one with the next.
		return spec.NewError(ojs.ErrResultPruned, "The result of job "+spec.FormatID(id)+" is not kept any more; its result_ttl is over.",
			map[string]any{"job_id": spec.FormatID(id)})
	// Without wait a job that has not ended is an ordinary answer.
	case wait > 0 && !ojs.JobState(res.State).Terminal():
		return spec.NewError(ojs.ErrWaitTimeout, "Job "+spec.FormatID(id)+" is still in state "+res.State+"; ask again.",
			map[string]any{"job_id": spec.FormatID(id), "current_state": res.State})
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"job_id":"`...)
		b = append(b, spec.FormatID(id)...)
		b = appendText(append(b, '"'), "state", res.State)
		return append(appendResult(b, res), '}')
	})
}

// timeout without wait is checked and has no effect.
func readResultWait(c echo.Context) (time.Duration, error) {
	seconds, err := wholeNumber(c, []string{"timeout"}, defaultResultWait, 1)
	if err != nil {
		return 0, err
	}
	switch text := c.QueryParam("wait"); text {
	case "", "false", "0":
		return 0, nil
	case "true", "1":
		return time.Duration(min(seconds, maxResultWait)) * time.Second, nil
	default:
		return 0, spec.InvalidRequest("wait", "true or false", text, "wait must be true or false.")
	}
}

// appendResult appends the members of an outcome. A job in backoff has failed, but not for good: its error is not shown.
// result is always there, null without one. completed_at is left out for a job that was cancelled or expired.
func appendResult(b []byte, res *queue.Result) []byte {
	b = appendOrNull(append(b, `,"result":`...), res.Result)
	state := ojs.JobState(res.State)
	if state.Terminal() && res.Error != nil {
		b = append(append(b, `,"error":`...), res.Error...)
	}
	if state == ojs.StateCompleted || state == ojs.StateDiscarded && res.Failed {
		b = appendTime(b, "completed_at", res.FinishedAt)
	}
	return b
}

// Ids of other tenants and unknown ids are null alike. Results beyond 8 MiB are cut, not the list.
func (a *API) postResults(r *request) error {
	in, wire := job.DecodeResults(r.body)
	if wire != nil {
		return wire
	}
	// The look and the read are two statements; the tenant of a job never changes.
	own, err := a.ownJobs(r, in.IDs)
	if err != nil {
		return err
	}
	results, err := a.Jobs.Results(r.Request().Context(), onlyOwn(in.IDs, own))
	if err != nil {
		return err
	}
	// The store answers in the order of the ids that it got, which lack those of other tenants and malformed ones.
	byID := make(map[[16]byte]*queue.Result, len(results))
	for _, res := range results {
		if res != nil {
			byID[res.ID] = res
		}
	}
	return respondEach(r, http.StatusOK, resultBytes(in.Texts, byID), func(b []byte, next flush) []byte {
		b = append(b, `{"results":{`...)
		for i, text := range in.Texts {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendQuoted(b, text), ':')
			id, _ := spec.ParseID(text)
			res := byID[id]
			if res == nil {
				b = append(b, `null`...)
				continue
			}
			b = append(b, '{')
			b = append(b, appendText(nil, "state", res.State)[1:]...)
			b = appendResult(b, res)
			// The client should ask for this result alone.
			if res.Cut {
				b = append(b, `,"result_truncated":true`...)
			}
			b = next(append(b, '}'))
		}
		return append(b, `}}`...)
	})
}

// resultBytes estimates what the results of these ids have.
// It is an estimate for respondEach.
func resultBytes(texts []string, byID map[[16]byte]*queue.Result) (n int) {
	for _, text := range texts {
		n += 64
		if id, _ := spec.ParseID(text); byID[id] != nil {
			n += 128 + len(byID[id].Result) + len(byID[id].Error)
		}
	}
	return n
}

// after is a time so many seconds later; a client's number may be larger than a duration can be.
// A time.Duration ends at 292 years.
func after(t time.Time, seconds int64) time.Time {
	const day = 86_400
	return t.AddDate(0, 0, int(seconds/day)).Add(time.Duration(seconds%day) * time.Second)
}
