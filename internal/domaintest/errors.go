package domaintest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// RequireCode requires an error with that code for clients.
func RequireCode(t testing.TB, err error, kind ojs.ErrorKind) {
	t.Helper()
	var wire *ojs.Error
	require.ErrorAs(t, err, &wire)
	require.Equal(t, string(kind), wire.Type, wire.Message)
}

// DecodeError decodes the error object of a nack.
func DecodeError(t testing.TB, text string) job.WorkerError {
	t.Helper()
	n, err := job.DecodeNack([]byte(`{"job_id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f","error":`+text+`}`), job.Limits{})
	require.Nil(t, err)
	return n.Error
}

// Failure holds the members that tests read of an error object of the server.
type Failure struct {
	Code        string  `json:"code"`
	TimeoutKind string  `json:"timeout_kind"`
	Limit       float64 `json:"limit_seconds"`
	Elapsed     float64 `json:"elapsed_seconds"`
	Retryable   bool    `json:"retryable"`
}

// ErrorOf decodes the latest error of a job.
func ErrorOf(t testing.TB, j *job.Record) (f Failure) {
	t.Helper()
	require.NoError(t, json.Unmarshal(j.Error, &f), "%s", j.Error)
	return f
}
