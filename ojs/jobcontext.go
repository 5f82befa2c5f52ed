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
// it. One without a worker, as in a test of a handler, keeps its result and reports nothing. Its methods may be called by
// several goroutines of the handler.
type JobContext struct {
	*JobInfo

	worker *Worker
	mu     sync.Mutex
	result json.RawMessage
}

// SetResult sets what the job has as its result when the handler returns nil. The last call counts. The server bounds the size
// of results; one that is too large fails the job for good (docs/reference/jobs.md, Limits).
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
// A share outside of the range counts as its nearer end. The server keeps the latest report, and writes an event for it at most
// once a second (docs/reference/jobs.md, Progress). An error concerns the report only: the handler may ignore it, and the job
// goes on.
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

// SaveCheckpoint stores a state that the next attempt continues from, if this one fails. Each call replaces the state that was
// saved before; it is encoded as JSON, of at most 1 MiB. [JobContext.LoadCheckpoint] reads it (docs/reference/jobs.md,
// Checkpoints).
func (j *JobContext) SaveCheckpoint(ctx context.Context, state any) error {
	return j.call(ctx, call{method: http.MethodPut, path: jobPath(j.ID, "checkpoint"), body: map[string]any{"state": state}})
}

// It may be repeated: the worker and the attempt in the body keep a late repetition from reaching another run.
func (j *JobContext) call(ctx context.Context, r call) error {
	if j.worker == nil {
		return nil
	}
	body := r.body.(map[string]any)
	body["worker_id"], body["attempt"] = j.worker.id, j.Attempt
	return j.worker.client.do(ctx, r.again(), nil)
}

// LoadCheckpoint reads the state that an earlier attempt has saved, and reports whether there is one. It reads what came with
// the job when it was fetched; what this attempt has saved itself is not seen.
func (j *JobContext) LoadCheckpoint(into any) (bool, error) {
	if len(j.LastCheckpoint) == 0 || string(j.LastCheckpoint) == "null" {
		return false, nil
	}
	return true, json.Unmarshal(j.LastCheckpoint, into)
}
