package worker_test

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/worker"
)

func TestDecodeHeartbeat(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]worker.Beat{
		`{"worker_id":"w"}`:                                                                               {WorkerID: "w"},
		`{"worker_id":"w","active_jobs":["a","b","a"]}`:                                                   {WorkerID: "w", ActiveJobs: 2, Jobs: job.NewIDList([]string{"a", "b"})},
		`{"worker_id":"w","active_jobs":3,"active_job_ids":["a"]}`:                                        {WorkerID: "w", ActiveJobs: 3, Jobs: job.NewIDList([]string{"a"})},
		`{"worker_id":"w","active_jobs":["a"],"active_job_ids":["b"],"job_id":"c"}`:                       {WorkerID: "w", ActiveJobs: 3, Jobs: job.NewIDList([]string{"a", "b", "c"})},
		`{"worker_id":"w","active_jobs":0,"active_job_ids":null}`:                                         {WorkerID: "w"},
		`{"worker_id":"w","active_jobs":-1}`:                                                              {WorkerID: "w"},
		`{"worker_id":"w","state":"quiet","visibility_timeout_ms":5}`:                                     {WorkerID: "w", State: "quiet", VisibilityMS: 5},
		`{"worker_id":"w","state":"drain"}`:                                                               {WorkerID: "w", State: "quiet"},
		`{"worker_id":"w","state":"draining"}`:                                                            {WorkerID: "w", State: "quiet"},
		`{"worker_id":"w","state":"running","shutdown":true}`:                                             {WorkerID: "w", State: "terminate"},
		`{"worker_id":"w","state":"terminate","shutdown":false}`:                                          {WorkerID: "w", State: "terminate"},
		`{"worker_id":"w","state":"dancing"}`:                                                             {WorkerID: "w"},
		`{"worker_id":"w","state":5,"shutdown":"x","hostname":5,"pid":"x","queues":5,"concurrency":-1}`:   {WorkerID: "w"},
		`{"worker_id":"w","hostname":"h\u0000ost","pid":7,"queues":["a","_","b",5,"a"],"concurrency":10}`: {WorkerID: "w", Hostname: "host", PID: 7, Queues: []string{"a", "b"}, Concurrency: 10},
		`{"worker_id":"w","concurrency":0,"pid":-1}`:                                                      {WorkerID: "w", PID: -1},
		`{"worker_id":"w","concurrency":1,"pid":1}`:                                                       {WorkerID: "w", PID: 1, Concurrency: 1},
		`{"worker_id":"w","concurrency":2147483647,"pid":0}`:                                              {WorkerID: "w", Concurrency: math.MaxInt32},
		`{"worker_id":"w","concurrency":2147483648}`:                                                      {WorkerID: "w"},
		`{"worker_id":"w","concurrency":1.5,"hostname":null}`:                                             {WorkerID: "w"},
		`{"worker_id":"w","queues":[]}`:                                                                   {WorkerID: "w", Queues: []string{}},
		`{"worker_id":"w","labels":{"a":"x\u0000y","n":1.0},"memory_mb":5,"cpu_percent":0.5,"version":null,"unknown":1,"labels":["z"]}`: {WorkerID: "w", Facts: []byte(`{"labels":["z"],"memory_mb":5,"cpu_percent":0.5}`), Load: `,"memory_mb":5,"cpu_percent":0.5`},
		`{"worker_id":"w","memory_mb":"5","cpu_percent":` + strings.Repeat("1", 40) + `}`:                                               {WorkerID: "w", Facts: []byte(`{"memory_mb":"5","cpu_percent":` + strings.Repeat("1", 40) + `}`)},
		`{"worker_id":"w","metadata":{"k":"\u0000"}}`:                                                                                   {WorkerID: "w", Facts: []byte(`{"metadata":{"k":""}}`)},
		`{"worker_id":"w","metadata":{"k":"\ud800"}}`:                                                                                   {WorkerID: "w", Facts: []byte(`{"metadata":{"k":"�"}}`)},
		`{"worker_id":"w","metadata":"` + strings.Repeat("x", 70_000) + `"}`:                                                            {WorkerID: "w"},
		`{"worker_id":"w","metadata":` + strings.Repeat("[", 33) + strings.Repeat("]", 33) + `}`:                                        {WorkerID: "w"},
		`{"worker_id":"w","hostname":"` + strings.Repeat("é", 200) + `"}`:                                                               {WorkerID: "w", Hostname: strings.Repeat("é", 127)},
	} {
		got, err := worker.DecodeHeartbeat([]byte(text))
		require.Nil(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, field := range map[string]string{
		`{}`: "worker_id", `{"worker_id":""}`: "worker_id", `{"worker_id":5}`: "worker_id", `{"worker_id":null}`: "worker_id", `{"worker_id":"\u0000"}`: "worker_id",
		`{"worker_id":"w","active_jobs":"3"}`: "active_jobs", `{"worker_id":"w","active_jobs":[1]}`: "active_jobs", `{"worker_id":"w","active_jobs":1.5}`: "active_jobs",
		`{"worker_id":"w","active_job_ids":"a"}`: "active_job_ids", `{"worker_id":"w","job_id":5}`: "job_id", `{"worker_id":"w","visibility_timeout_ms":-1}`: "visibility_timeout_ms",
		`{"worker_id":"w","active_jobs":{}}`: "active_jobs", ``: "body",
	} {
		_, err := worker.DecodeHeartbeat([]byte(text))
		require.NotNil(t, err, text)
		require.Equal(t, "invalid_payload", err.Code)
		require.Equal(t, field, err.Details["field"], text)
	}
}

func TestDecodeLeave(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]worker.Leave{
		`{}`: {Ref: worker.Ref{ID: "w"}, Reason: "shutdown", JobsCompleted: -1},
		`{"reason":"signal","jobs_completed":12}`:              {Ref: worker.Ref{ID: "w"}, Reason: "signal", JobsCompleted: 12},
		`{"reason":"error","jobs_completed":0}`:                {Ref: worker.Ref{ID: "w"}, Reason: "error", JobsCompleted: 0},
		`{"reason":"lunch","jobs_completed":-1}`:               {Ref: worker.Ref{ID: "w"}, Reason: "shutdown", JobsCompleted: -1},
		`{"reason":7,"jobs_completed":"x"}`:                    {Ref: worker.Ref{ID: "w"}, Reason: "shutdown", JobsCompleted: -1},
		`{"reason":null,"jobs_completed":1e30,"unknown":true}`: {Ref: worker.Ref{ID: "w"}, Reason: "shutdown", JobsCompleted: -1},
	} {
		got, err := worker.DecodeLeave(worker.Ref{ID: "w"}, []byte(text))
		require.Nil(t, err, text)
		require.Equal(t, want, got, text)
	}
	_, err := worker.DecodeLeave(worker.Ref{ID: "w"}, []byte(`[]`))
	require.Equal(t, "invalid_payload", err.Code)
}

func TestDecodeDirective(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"quiet": "quiet", "terminate": "terminate", "running": "running", "resume": "running"} {
		got, err := worker.DecodeDirective([]byte(`{"directive":"` + text + `"}`))
		require.Nil(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{`{}`, `{"directive":null}`, `{"directive":"drain"}`, `{"directive":["quiet"]}`} {
		_, err := worker.DecodeDirective([]byte(text))
		require.Equal(t, "directive", err.Details["field"], text)
	}
}

func FuzzDecodeHeartbeat(f *testing.F) {
	for _, seed := range []string{
		`{"worker_id":"w","active_jobs":["a"],"labels":["\u0000","\\u0000"],"queues":["q",1]}`,
		`{"worker_id":"w","memory_mb":1e999,"metadata":{"x":[]},"version":"\ud800","cpu_percent":-0}`, "", "{}", "[]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if r, err := worker.DecodeHeartbeat(body); err == nil && r.Facts != nil {
			require.True(t, json.Valid(r.Facts))
			require.NotContains(t, strings.ReplaceAll(string(r.Facts), `\\`, ""), `\u0000`)
		}
		_, _ = worker.DecodeLeave(worker.Ref{ID: "w"}, body)
		_, _ = worker.DecodeDirective(body)
	})
}

// A cursor has the place of a worker. What no place can have made is refused, as PostgreSQL would refuse it.
func TestParseKey(t *testing.T) {
	t.Parallel()
	newYear := func(year int) time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }
	for _, key := range []worker.Key{
		{Dead: true, Seen: newYear(1), ID: "w"}, {Seen: newYear(10_000).Add(-time.Microsecond), ID: "w"},
		{Seen: time.UnixMicro(-1), ID: "\x01é 1"}, {Dead: true, Seen: time.UnixMicro(1_764_000_000_123_456), ID: strings.Repeat("x", 255)},
	} {
		got, ok := worker.ParseKey(key.String())
		require.True(t, ok, key)
		require.True(t, key.Seen.Equal(got.Seen), key)
		require.Equal(t, []any{key.Dead, key.ID}, []any{got.Dead, got.ID})
	}
	good := worker.Key{Seen: newYear(2026), ID: "w"}.String()
	for name, text := range map[string]string{
		"TooLate": worker.Key{Seen: newYear(10_000), ID: "w"}.String(), "TooEarly": worker.Key{Seen: newYear(1).Add(-time.Microsecond), ID: "w"}.String(),
		"NoID": worker.Key{Seen: newYear(2026)}.String(), "NUL": worker.Key{Seen: newYear(2026), ID: "a\x00"}.String(), "NoUTF8": worker.Key{Seen: newYear(2026), ID: "\xff"}.String(),
		"Empty": "", "Short": good[:8], "Padded": good + "=", "NoBase64": good[:4] + "!" + good[5:],
		"NeitherDeadNorAlive": base64.RawURLEncoding.EncodeToString([]byte("\x02\x00\x06\x00\x00\x00\x00\x00\x00w")),
		"BitsBehindTheEnd":    base64.RawURLEncoding.EncodeToString([]byte("\x00\x00\x06\x00\x00\x00\x00\x00\x00w"))[:13] + "x",
	} {
		_, ok := worker.ParseKey(text)
		require.False(t, ok, name)
	}
}
