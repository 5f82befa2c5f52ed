package ojs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Job is what the server says of a job. Times that have not come are zero. It is a copy of the moment of the answer. Which
// members are there depends on the call: answers of lists may leave out what is large.
type Job struct {
	ID    string   `json:"id"`
	Type  string   `json:"type"`
	Queue string   `json:"queue"`
	State JobState `json:"state"`
	// Args are the arguments as encoding/json decodes them, so numbers are float64. RawArgs are the same as they were sent;
	// [Job.DecodeArgs] reads those into a type of your own.
	Args    []any           `json:"-"`
	RawArgs json.RawMessage `json:"args"`
	Meta    map[string]any  `json:"meta"`
	// Priority is from −100 to 100; higher is fetched first.
	Priority int      `json:"priority"`
	Tags     []string `json:"tags,omitempty"`
	Schema   string   `json:"schema,omitempty"`

	// Attempt counts fetches: 0 before the first, and after a retry by hand. A job that was handed back does not count its
	// attempt.
	Attempt     int `json:"attempt"` // 1 for the first run
	MaxAttempts int `json:"max_attempts"`
	// TimeoutMS bounds one attempt. VisibilityTimeoutMS is the length of its reservation without a heartbeat. 0: the default of
	// the server, which the worker does not know.
	TimeoutMS           int64  `json:"timeout_ms,omitempty"`
	VisibilityTimeoutMS int64  `json:"visibility_timeout_ms,omitempty"`
	RetryDelayMS        int64  `json:"retry_delay_ms,omitempty"`
	WorkerID            string `json:"worker_id,omitempty"` // while active
	// LeaseToken names this run in acks, nacks and heartbeats. A job that was handed back and fetched again has the same attempt.
	LeaseToken string `json:"lease_token,omitempty"` // in a job that was fetched from ojsd

	// Times are of the database of the server, cut to milliseconds. EnqueuedAt is the latest entry into available, StartedAt
	// the latest fetch, and NextAttemptAt the end of the backoff while the job is retryable.
	CreatedAt     time.Time `json:"created_at,omitzero"`
	EnqueuedAt    time.Time `json:"enqueued_at,omitzero"`
	ScheduledAt   time.Time `json:"scheduled_at,omitzero"`
	StartedAt     time.Time `json:"started_at,omitzero"`
	CompletedAt   time.Time `json:"completed_at,omitzero"`
	CancelledAt   time.Time `json:"cancelled_at,omitzero"`
	DiscardedAt   time.Time `json:"discarded_at,omitzero"`
	ExpiresAt     time.Time `json:"expires_at,omitzero"`
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`

	// Result is JSON null if the job has completed with that; it is absent when it is not kept any more. Error is the latest
	// failure, and Errors are all that are kept, the oldest first.
	Result       json.RawMessage `json:"result,omitempty"`
	Error        *JobError       `json:"error,omitempty"`
	Errors       []JobError      `json:"errors,omitempty"`
	Progress     float64         `json:"progress,omitempty"` // 0 to 1
	ProgressData json.RawMessage `json:"progress_data,omitempty"`
	// LastCheckpoint is the state that was saved last, in a job that was fetched; see [JobContext.LoadCheckpoint].
	LastCheckpoint json.RawMessage `json:"last_checkpoint,omitempty"`

	// These are set in jobs of workflows. RootWorkflowID is the outermost of nested workflows. ParentResults has null for a
	// step without a result.
	WorkflowID       string                     `json:"workflow_id,omitempty"`
	RootWorkflowID   string                     `json:"root_workflow_id,omitempty"`
	WorkflowStepID   string                     `json:"workflow_step_id,omitempty"`
	WorkflowCallback string                     `json:"workflow_callback,omitempty"`
	ParentResults    []json.RawMessage          `json:"parent_results,omitempty"`     // results of the steps before
	ParentResultsMap map[string]json.RawMessage `json:"parent_results_map,omitempty"` // the same by step id

	PreviousState JobState `json:"previous_state,omitempty"` // in the answer to a cancel or activation
	Deduplicated  bool     `json:"deduplicated,omitempty"`   // an equivalent job was there, and this is it
}

// UnmarshalJSON reads a job as a server shows it. Members that Job does not have are passed over, also if their names differ from those
// that it has in case only.
func (j *Job) UnmarshalJSON(data []byte) error {
	r, err := newJSONReader(data)
	if err == nil {
		err = r.job(j)
	}
	if err != nil {
		return err
	}
	return j.decodeAny()
}

func (j *Job) decodeAny() error {
	j.Args = nil
	if len(j.RawArgs) == 0 {
		return nil
	}
	return json.Unmarshal(j.RawArgs, &j.Args)
}

// DecodeArgs reads the arguments; see Arguments in the package documentation.
func (j *Job) DecodeArgs(into any) error {
	if len(j.RawArgs) > 0 {
		return decodeArgs(j.RawArgs, into)
	}
	data, err := encodeArgs(j.Args) // of a job that a test has made
	if err != nil {
		return err
	}
	return decodeArgs(data, into)
}

// DecodeResult reads the result of a completed job. It leaves into as it is if there is none.
func (j *Job) DecodeResult(into any) error {
	if len(j.Result) == 0 {
		return nil
	}
	return json.Unmarshal(j.Result, into)
}

// JobError is a failure of an attempt as the server keeps it. It has the form of docs/reference/jobs.md, Job error.
type JobError struct {
	Attempt    int            `json:"attempt,omitempty"`
	Code       string         `json:"code"`
	Type       string         `json:"type,omitempty"`
	Message    string         `json:"message"`
	Retryable  bool           `json:"retryable"`
	Details    map[string]any `json:"details,omitempty"`
	Backtrace  []string       `json:"backtrace,omitempty"`
	WorkerID   string         `json:"worker_id,omitempty"`
	OccurredAt time.Time      `json:"occurred_at,omitzero"`
}

// Error gives "code: message".
func (e *JobError) Error() string { return e.Code + ": " + e.Message }

// jobAnswer is the answer of calls that show one job.
type jobAnswer struct {
	Job *Job `json:"job"`
}

func (c *Client) jobCall(ctx context.Context, r Call) (*Job, error) {
	var answer jobAnswer
	if err := c.Do(ctx, r, &answer); err != nil {
		return nil, err
	}
	if answer.Job == nil {
		return nil, noMember(r.Method, r.Path, "job")
	}
	return answer.Job, nil
}

func jobPath(id string, more ...string) string {
	return strings.Join(append([]string{"/jobs/" + url.PathEscape(id)}, more...), "/")
}

// GetJob reads a job. A job that does not exist, or was removed by retention, is [ErrNotFound].
func (c *Client) GetJob(ctx context.Context, id string) (*Job, error) {
	return c.jobCall(ctx, get(jobPath(id), nil))
}

// CancelJob cancels a job that has not ended, also one that runs: its worker is told to stop it. reason may be empty.
// A job that has ended is [ErrInvalidStateTransition]. The worker of a running job learns of it with its next heartbeat; the
// job is cancelled at once, whatever its handler does after that.
func (c *Client) CancelJob(ctx context.Context, id, reason string) (*Job, error) {
	query := url.Values{}
	if reason != "" {
		query.Set("reason", reason)
	}
	r := Call{Method: http.MethodDelete, Path: jobPath(id), Query: query, Idempotent: true}
	var answer jobAnswer
	unknown, err := c.repeat(ctx, r, &answer)
	if unknown && errors.Is(err, ErrInvalidStateTransition) && ErrorDetail(err, "current_state") == string(StateCancelled) {
		answer.Job, err = c.GetJob(ctx, id) // a try before this one has cancelled it
	}
	if err != nil {
		return nil, err
	}
	if answer.Job == nil {
		return nil, noMember(r.Method, r.Path, "job")
	}
	c.listeners.emit(EventJobCancelled, answer.Job, nil)
	return answer.Job, nil
}

// Activate releases a pending job. A job that is not pending is [ErrInvalidStateTransition]. The request is not repeated after
// a lost answer: read the job to find out.
func (c *Client) Activate(ctx context.Context, id string) (*Job, error) {
	return c.jobCall(ctx, post(jobPath(id, "activate"), nil))
}

// JobResult is how a job has ended, or its state if it has not.
type JobResult struct {
	State       JobState        `json:"state"`
	Result      json.RawMessage `json:"result"`
	Error       *JobError       `json:"error"`
	CompletedAt time.Time       `json:"completed_at"`
}

// Wait waits until a job has ended, or ctx is done. It asks the server to wait 30 s at a time and repeats that; where a server
// does not wait, it asks about once a second. A job that was discarded or cancelled is no error of the call: look at State.
// [ErrNotFound] says that the job does not exist, [ErrResultPruned] that its result is not kept any more.
func (c *Client) Wait(ctx context.Context, id string) (*JobResult, error) {
	const turn = 30 * time.Second
	for {
		result := &JobResult{}
		r := get(jobPath(id, "result"), url.Values{"wait": {"true"}, "timeout": {strconv.Itoa(int(turn / time.Second))}})
		r.wait = turn
		start := time.Now()
		err := c.Do(ctx, r, result)
		switch {
		// The server has waited as long as it was asked to, and the job goes on.
		case errors.Is(err, ErrWaitTimeout):
		case err != nil:
			return nil, err
		case result.State.Terminal():
			return result, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if time.Since(start) < time.Second { // a server that does not wait
			if err := sleep(ctx, jitter(time.Second, 0.5, 1)); err != nil {
				return nil, err
			}
		}
	}
}

// WaitResult waits for a job as [Client.Wait] does, and decodes its result. A job that was discarded is an error, its [*JobError]; one that
// was cancelled is [ErrJobCancelled]. A job without a result gives the zero value.
func WaitResult[Result any](ctx context.Context, c *Client, id string) (Result, error) {
	notNil("the client of a wait", c == nil)
	var result, zero Result
	ended, err := c.Wait(ctx, id)
	switch {
	case err != nil:
		return zero, err
	case ended.State == StateCancelled:
		return zero, ErrJobCancelled
	case ended.State != StateCompleted && ended.Error != nil:
		return zero, ended.Error
	case ended.State != StateCompleted:
		return zero, fmt.Errorf("ojs: job %s is %s, and has no result", id, ended.State)
	case len(ended.Result) == 0:
		return zero, nil
	}
	if err := json.Unmarshal(ended.Result, &result); err != nil {
		return zero, fmt.Errorf("ojs: decode the result of job %s: %w", id, err)
	}
	return result, nil
}

// Progress is what a run of a job has reported last.
type Progress struct {
	State     JobState        `json:"state"`
	Progress  float64         `json:"progress"` // 0 to 1
	Message   string          `json:"message"`
	Data      json.RawMessage `json:"data"`
	UpdatedAt time.Time       `json:"updated_at"`
}

// Progress reads what a job has reported.
func (c *Client) Progress(ctx context.Context, id string) (*Progress, error) {
	p := &Progress{}
	if err := c.Do(ctx, get(jobPath(id, "progress"), nil), p); err != nil {
		return nil, err
	}
	return p, nil
}
