package ojs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
)

// Job is a job in the hands of a handler, with its arguments decoded.
type Job[Args any] struct {
	*JobContext
	Args Args
}

// JobContext is a job that runs: what the server says of it, and ways to report. Handlers and middleware without typed arguments get
// it. One without a worker, as in a test of a handler, keeps its result and reports nothing.
type JobContext struct {
	*JobInfo

	worker *Worker
	mu     sync.Mutex
	result json.RawMessage
}

// SetResult sets what the job has as its result when the handler returns nil. The last call counts.
func (j *JobContext) SetResult(result any) error {
	data, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.result = data
	return nil
}

// RunResult is what SetResult has set; nil: nothing.
func (j *JobContext) RunResult() json.RawMessage {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.result
}

// ReportProgress says how far the job is, from 0 to 1. message and data may be empty. Like a heartbeat, it renews the reservation.
func (j *JobContext) ReportProgress(ctx context.Context, share float64, message string, data any) error {
	body := map[string]any{"job_id": j.ID, "percentage": share * 100}
	if message != "" {
		body["message"] = message
	}
	if data != nil {
		body["data"] = data
	}
	return j.call(ctx, post("/workers/progress", body))
}

// SaveCheckpoint stores a state that the next attempt continues from, if this one fails.
func (j *JobContext) SaveCheckpoint(ctx context.Context, state any) error {
	return j.call(ctx, call{method: http.MethodPut, path: jobPath(j.ID, "checkpoint"), body: map[string]any{"state": state}})
}

func (j *JobContext) call(ctx context.Context, r call) error {
	if j.worker == nil {
		return nil
	}
	body := r.body.(map[string]any)
	body["worker_id"], body["attempt"] = j.worker.id, j.Attempt
	return j.worker.client.do(ctx, r.again(), nil)
}

// LoadCheckpoint reads the state that an earlier attempt has saved, and reports whether there is one.
func (j *JobContext) LoadCheckpoint(into any) (bool, error) {
	if len(j.LastCheckpoint) == 0 || string(j.LastCheckpoint) == "null" {
		return false, nil
	}
	return true, json.Unmarshal(j.LastCheckpoint, into)
}
