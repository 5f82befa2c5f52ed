package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// failedRun is one failed attempt, as the CLI shows it (docs/reference/jobs.md, History).
// state is what followed (retryable, discarded or available). started is zero if the start is not in the log any more.
// nextRetry is "" without a retry.
type failedRun struct {
	attempt             int64
	state, message      string
	started             time.Time
	failedAt, nextRetry string
}

// It shows the failures among the newest 1 000 starts and failures, oldest first. A job may have more, and the events are kept for a
// shorter time than the job may live, so the list may begin later than the first attempt.
func (a *API) getRetries(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	ctx := r.Request().Context()
	// The job is read first, so that an unknown one is 404 and not an empty list.
	job, err := a.Jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	policy, _ := retry.Decode(job.Retry) // shows the policy that applies: of an invalid one, the default
	a.Events.WaitCaughtUp(ctx)
	events, err := a.Events.NewestOfJob(ctx, id, eventlog.Query{Types: []string{"job.started", "job.failed"}, Limit: maxHistory})
	if err != nil {
		return api.EventError(err)
	}
	runs := failedRuns(events)
	// A job that never failed has neither, and the list is empty.
	if len(runs) == 0 { // retention may have dropped the events
		runs = recordedRuns(job.Errors)
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"job_id":"`...)
		b = append(b, spec.FormatID(id)...)
		b = append(b, `","retries":[`...)
		for i, run := range runs {
			if i > 0 {
				b = append(b, ',')
			}
			b = run.append(b)
		}
		b = append(b, `],"policy":{"max_attempts":`...)
		b = strconv.AppendInt(b, job.MaxAttempts, 10)
		b = appendText(b, "initial_interval", duration.Format(policy.InitialInterval))
		b = appendText(b, "backoff_strategy", policy.Strategy)
		return append(b, `}}`...)
	})
}

// failedRuns finds the failures among a job's events, each with the start before it.
// events are in the order of the log, where a start precedes its failure.
func failedRuns(events []eventlog.Event) (runs []failedRun) {
	var started time.Time
	for _, e := range events {
		switch e.Type {
		// A start that was lost without a failure of its own is replaced by the next one.
		case "job.started":
			started = e.Time
		case "job.failed":
			data := membersOf(e.Data)
			run := failedRun{message: errorText(data["error"]), started: started, failedAt: spec.FormatTime(e.Time)}
			run.attempt, _ = rawjson.Int(data["attempt"])
			run.state, _ = rawjson.Text(data["next_state"])
			// It is absent for a failure after which the job is not tried again.
			run.nextRetry, _ = rawjson.Text(data["retry_at"])
			runs = append(runs, run)
		}
	}
	return runs
}

// recordedRuns reads the job's own list of failures, which knows less.
// It does not say what followed, so each is shown as retryable, and it has no starts.
func recordedRuns(errors [][]byte) (runs []failedRun) {
	for _, e := range errors {
		data := membersOf(string(e))
		run := failedRun{message: errorText(e), state: string(ojs.StateRetryable)}
		run.attempt, _ = rawjson.Int(data["attempt"])
		run.failedAt, _ = rawjson.Text(data["occurred_at"])
		runs = append(runs, run)
	}
	return runs
}

// The CLI shows a text; the message says more than the code.
func errorText(e jsontext.Value) string {
	members := membersOf(string(e))
	for _, name := range []string{"message", "code"} {
		if text, _ := rawjson.Text(members[name]); text != "" {
			return text
		}
	}
	return ""
}

func (r failedRun) append(b []byte) []byte {
	b = append(b, `{"attempt":`...)
	b = strconv.AppendInt(b, r.attempt, 10)
	b = appendText(b, "state", r.state)
	b = appendText(b, "error", r.message)
	if !r.started.IsZero() {
		b = appendText(b, "started_at", spec.FormatTime(r.started))
	}
	// failed_at is the time of the event, or that of the stored failure; both are by the clock of the database.
	b = appendText(b, "failed_at", r.failedAt)
	if r.nextRetry != "" {
		b = appendText(b, "next_retry_at", r.nextRetry)
	}
	return append(b, '}')
}

// getLineage shows where a job comes from: its workflow, if it has one. No job is the parent of another.
// The members are those of the lineage endpoint of other servers; parent_id is always null and children always empty.
func (a *API) getLineage(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	stored, err := a.Jobs.Get(r.Request().Context(), id)
	if err != nil {
		return err
	}
	text, workflow := spec.FormatID(id), `null`
	// It is what the job shows as workflow_id.
	if own := job.WorkflowOf(stored.Extra); own != "" {
		workflow = `"` + own + `"`
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"job_id":"`+text+`","parent_id":null,"workflow_id":`+workflow+`,"root_id":"`...)
		return append(b, text+`","children":[]}`...)
	})
}
