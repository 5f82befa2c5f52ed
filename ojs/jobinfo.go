package ojs

import (
	"encoding/json"
	"time"
)

// JobInfo is what the server says of a job. Times that have not come are zero. It is a copy of the moment of the answer. Which
// members are there depends on the call: answers of lists may leave out what is large.
type JobInfo struct {
	ID    string   `json:"id"`
	Type  string   `json:"type"`
	Queue string   `json:"queue"`
	State JobState `json:"state"`
	// RawArgs keeps numbers and the order of members as they were sent; [JobInfo.DecodeArgs] reads it.
	RawArgs json.RawMessage `json:"args"` // as they were sent
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

// DecodeArgs reads the arguments; see Arguments in the package documentation.
func (j *JobInfo) DecodeArgs(into any) error { return decodeArgs(j.RawArgs, into) }

// DecodeResult reads the result of a completed job. It leaves into as it is if there is none.
func (j *JobInfo) DecodeResult(into any) error {
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
