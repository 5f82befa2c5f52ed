package ojs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// TestHTTPTransport is the checklist's transport layer: base path, content type, error parsing.
func TestHTTPTransport(t *testing.T) {
	t.Parallel()
	type seen struct {
		*http.Request
		body string
	}
	requests := make(chan seen, 10)
	reply := func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"job":{"id":"x","type":"t"}}`)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- seen{r, string(body)}
		reply(w, r)
	}))
	defer server.Close()
	c, err := ojs.NewClient(ojs.Config{URL: server.URL + "/", Token: "k1", MaxRetries: -1})
	require.NoError(t, err)
	defer c.Close()

	_, err = c.Enqueue(t.Context(), "email.send", email{"a@b"})
	require.NoError(t, err)
	r := receive(t, requests)
	require.Equal(t, "/ojs/v1/jobs", r.URL.Path)
	require.Equal(t, http.MethodPost, r.Method)
	for name, want := range map[string]string{
		"Content-Type": "application/openjobspec+json", "Accept": "application/openjobspec+json", "OJS-Version": "1.0", "Authorization": "Bearer k1",
	} {
		require.Equal(t, want, r.Header.Get(name), name)
	}

	_, err = c.GetJob(t.Context(), "a/b c")
	require.NoError(t, err)
	r = receive(t, requests)
	require.Equal(t, "/ojs/v1/jobs/a%2Fb%20c", r.URL.EscapedPath())
	require.Empty(t, r.Header.Get("Content-Type"), "a request without body has no type")

	reply = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"code":"rate_limited","type":"rate_limited","message":"slow down","retryable":true,"details":{"limit":5},"request_id":"req_1"}}`)
	}
	_, err = c.GetJob(t.Context(), "x")
	var e *ojs.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 429, e.Status)
	require.Equal(t, "req_1", e.RequestID)
	require.Equal(t, "rate_limited: slow down (GET /jobs/x, request req_1)", err.Error())
	require.Equal(t, 7*time.Second, ojs.RetryAfter(err))
	require.ErrorIs(t, err, ojs.ErrRateLimited)
	require.True(t, ojs.Retryable(err))
	require.False(t, ojs.OutcomeUnknown(err))

	reply = func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "<html>bad gateway", http.StatusBadGateway)
	}
	_, err = c.GetJob(t.Context(), "x")
	var te *ojs.TransportError
	require.ErrorAs(t, err, &te)
	require.False(t, errors.As(err, &e))
	require.Equal(t, 502, te.Status)
	require.True(t, ojs.OutcomeUnknown(err))

	reply = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	_, err = c.GetJob(t.Context(), "x")
	require.ErrorAs(t, err, &te)
	require.True(t, te.Sent)
	require.True(t, ojs.OutcomeUnknown(err))

	server.Close()
	_, err = c.GetJob(t.Context(), "x")
	require.ErrorAs(t, err, &te)
	require.False(t, te.Sent)
	require.False(t, ojs.OutcomeUnknown(err), "without a connection nothing can have happened")
	require.True(t, ojs.Retryable(err))

	for _, bad := range []string{"", "localhost:8080", "ftp://x", "http://", ":"} {
		_, err = ojs.NewClient(ojs.Config{URL: bad})
		require.ErrorContains(t, err, "http://localhost:8080", bad)
	}
}

func TestTransportTimeout(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	c, err := ojs.NewClient(ojs.Config{URL: server.URL, Timeout: 20 * time.Millisecond, MaxRetries: -1})
	require.NoError(t, err)
	defer c.Close()
	_, err = c.GetJob(t.Context(), "x")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, ojs.OutcomeUnknown(err))
}

// TestSent: whether a request that failed may have been carried out.
func TestSent(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	client := func(transport http.RoundTripper) *ojs.Client {
		c, err := ojs.NewClient(ojs.Config{URL: "http://127.0.0.1:1", Transport: transport, MaxRetries: -1})
		require.NoError(t, err)
		return c
	}
	sent := func(ctx context.Context, transport http.RoundTripper) bool {
		_, err := client(transport).GetJob(ctx, "x")
		var te *ojs.TransportError
		require.ErrorAs(t, err, &te)
		return te.Sent
	}
	require.True(t, sent(t.Context(), transportFunc(func(*http.Request) (int, string, error) { return 0, "", broken })), "such a transport tells nothing of its connections")
	require.False(t, sent(t.Context(), &http.Transport{}), "nobody listens there")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, sent(ended, transportFunc(func(*http.Request) (int, string, error) { panic("is never reached") })))
}

// TestHeaders: those of the configuration go with every request.
func TestHeaders(t *testing.T) {
	t.Parallel()
	c, err := ojs.NewClient(ojs.Config{
		Token: "k1", Header: http.Header{"X-Tenant": {"acme"}, "user-agent": {"shop/7"}},
		Transport: transportFunc(func(r *http.Request) (int, string, error) {
			require.Equal(t, "acme shop/7 Bearer k1 a", strings.Join([]string{r.Header.Get("X-Tenant"), r.UserAgent(), r.Header.Get("Authorization"), r.Header.Get("X-Call")}, " "))
			return 200, `{"a":1}`, nil
		}),
	})
	require.NoError(t, err)
	var out struct{ A int }
	require.NoError(t, c.Do(t.Context(), ojs.Call{Method: http.MethodPut, Path: "/x", Header: http.Header{"X-Call": {"a"}}, Body: 7}, &out))
	require.Equal(t, 1, out.A)
}

func TestErrorKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  *ojs.Error
		is   []ojs.ErrorKind
		isnt []ojs.ErrorKind
	}{
		{&ojs.Error{Code: "not_found", Type: "not_found"}, []ojs.ErrorKind{ojs.ErrNotFound}, []ojs.ErrorKind{ojs.ErrDuplicateJob}},
		{&ojs.Error{Code: "duplicate", Type: "duplicate_job"}, []ojs.ErrorKind{ojs.ErrDuplicateJob}, []ojs.ErrorKind{ojs.ErrInvalidStateTransition}},
		{&ojs.Error{Code: "invalid_payload", Type: "invalid_queue"}, []ojs.ErrorKind{ojs.ErrInvalidQueue, ojs.ErrInvalidPayload}, []ojs.ErrorKind{ojs.ErrInvalidArgs}},
		{&ojs.Error{Code: "conflict", Type: "not_owner"}, []ojs.ErrorKind{ojs.ErrNotOwner}, []ojs.ErrorKind{ojs.ErrInvalidStateTransition, ojs.ErrStaleAttempt}},
		{&ojs.Error{Code: "duplicate"}, []ojs.ErrorKind{ojs.ErrDuplicateJob}, []ojs.ErrorKind{ojs.ErrNotFound}},
		{&ojs.Error{Code: "conflict", Type: "conflict"}, []ojs.ErrorKind{ojs.ErrInvalidStateTransition}, []ojs.ErrorKind{ojs.ErrNotOwner}},
	} {
		for _, kind := range c.is {
			require.ErrorIs(t, c.err, kind)
		}
		for _, kind := range c.isnt {
			require.NotErrorIs(t, c.err, kind)
		}
	}
}

// TestInjectedTransport is the example of the guide for SDKs: a client with a transport that is a function of the test.
func TestInjectedTransport(t *testing.T) {
	t.Parallel()
	c, err := ojs.NewClient(ojs.Config{URL: "http://unused", Transport: transportFunc(func(r *http.Request) (int, string, error) {
		require.Equal(t, "POST http://unused/ojs/v1/jobs", r.Method+" "+r.URL.String())
		return 201, `{"job":{"id":"test-id","type":"email.send","state":"available","args":["test"]}}`, nil
	})})
	require.NoError(t, err)
	job, err := c.Enqueue(t.Context(), "email.send", []string{"test"})
	require.NoError(t, err)
	require.Equal(t, "test-id", job.ID)
	require.Equal(t, ojs.StateAvailable, job.State)
	require.Equal(t, "test", job.Args[0].(string))
}

// TestEmptyAnswers: an answer without what was asked for is an error that names the request.
func TestEmptyAnswers(t *testing.T) {
	t.Parallel()
	c, err := ojs.NewClient(ojs.Config{URL: "http://unused", Transport: transportFunc(func(*http.Request) (int, string, error) { return 200, `{}`, nil })})
	require.NoError(t, err)
	ctx := t.Context()
	for want, call := range map[string]func() error{
		`POST /jobs: the answer has no member "job"`:        func() error { _, err := c.Enqueue(ctx, "a", nil); return err },
		`POST /jobs/batch: the answer has no member "jobs"`: func() error { _, err := c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "a"}}); return err },
		`POST /jobs/bulk: the answer has no member "items"`: func() error {
			_, err := c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "a"}}, ojs.Partial())
			return err
		},
		`GET /jobs/x: the answer has no member "job"`:    func() error { _, err := c.GetJob(ctx, "x"); return err },
		`DELETE /jobs/x: the answer has no member "job"`: func() error { _, err := c.CancelJob(ctx, "x", ""); return err },
	} {
		require.ErrorContains(t, call(), want)
	}
}

type transportFunc func(*http.Request) (int, string, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body, err := f(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// TestEnqueueBody: args are always an array, and options go into options.
func TestEnqueueBody(t *testing.T) {
	t.Parallel()
	type point struct {
		ojs.Tuple
		X, Y int
	}
	for name, c := range map[string]struct {
		args any
		want string
	}{
		"None":         {nil, `[]`},
		"Struct":       {email{"a@b"}, `[{"to":"a@b"}]`},
		"Pointer":      {&email{"a@b"}, `[{"to":"a@b"}]`},
		"Map":          {map[string]any{"a": 1}, `[{"a":1}]`},
		"Text":         {"a", `["a"]`},
		"Number":       {7, `[7]`},
		"Bytes":        {[]byte("a"), `["YQ=="]`},
		"Slice":        {[]any{"a", 1}, `["a",1]`},
		"NilSlice":     {[]string(nil), `[]`},
		"Tuple":        {point{X: 1, Y: 2}, `[1,2]`},
		"TuplePointer": {&point{X: 1, Y: 2}, `[1,2]`},
		"RawArray":     {json.RawMessage(`[12345678901234567890]`), `[12345678901234567890]`},
		"RawObject":    {json.RawMessage(` {"a":1}`), `[{"a":1}]`},
	} {
		var body struct {
			Args    json.RawMessage `json:"args"`
			Options map[string]any  `json:"options"`
		}
		data, err := json.Marshal(ojs.JobRequest{Type: "t", Args: c.args})
		require.NoError(t, err, name)
		require.NoError(t, json.Unmarshal(data, &body))
		require.Equal(t, c.want, string(body.Args), name)
		require.Nil(t, body.Options, "without settings there are no options")
	}

	at := time.Date(2026, 5, 4, 3, 2, 1, 5e8, time.UTC)
	r := ojs.JobRequest{
		ID: "x", Type: "t", Schema: "urn:s", Queue: "q", Priority: -5, RunAt: at, ExpiresAt: at, Tags: []string{"a", "b"}, Meta: map[string]any{"k": "v"},
		Timeout: 1500 * time.Millisecond, VisibilityTimeout: time.Minute, EnqueueTTL: 1, TotalTimeout: time.Hour, HeartbeatTimeout: time.Minute, ResultTTL: -1, Pending: true,
		Unique: &ojs.UniquePolicy{Keys: []string{"args"}, Period: time.Hour, OnConflict: ojs.ConflictIgnore, States: []ojs.JobState{ojs.StateActive}},
		Retry: &ojs.RetryPolicy{
			MaxAttempts: 4, InitialInterval: 1500 * time.Millisecond, MaxInterval: time.Minute, BackoffCoefficient: 3, BackoffStrategy: ojs.BackoffLinear,
			NoJitter: true, NonRetryableErrors: []string{"a.*"}, OnExhaustion: ojs.ExhaustToDiscard,
		},
		RateLimit: &ojs.RateLimit{Key: "k", Concurrency: new(2), Rate: &ojs.Rate{Limit: 3, Period: time.Second}, Throttle: &ojs.Rate{Limit: 1, Period: time.Minute}, OnLimit: ojs.OnLimitDrop},
		Extra:     map[string]any{"x_region": "eu", "queue": "is not taken"},
	}
	data, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"id":"x","type":"t","args":[],"meta":{"k":"v"},"schema":"urn:s","options":{"queue":"q","priority":-5,"delay_until":"2026-05-04T03:02:01.5Z",
		"expires_at":"2026-05-04T03:02:01.5Z","tags":["a","b"],"timeout_ms":1500,"visibility_timeout_ms":60000,"enqueue_ttl":1,"total_timeout":3600,"heartbeat_timeout":60,
		"result_ttl":-1,"pending":true,"x_region":"eu","unique":{"keys":["args"],"period":"PT3600S","on_conflict":"ignore","states":["active"]},
		"retry":{"max_attempts":4,"initial_interval":"PT1.5S","max_interval":"PT60S","backoff_coefficient":3,"backoff_strategy":"linear","jitter":false,
		"non_retryable_errors":["a.*"],"on_exhaustion":"discard"},
		"rate_limit":{"key":"k","concurrency":2,"rate":{"limit":3,"period":"PT1S"},"throttle":{"limit":1,"period":"PT60S"},"on_limit":"drop"}}}`, string(data))

	data, err = json.Marshal(ojs.JobRequest{Type: "t", Timeout: time.Nanosecond, VisibilityTimeout: 1500 * time.Microsecond})
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"t","args":[],"options":{"timeout_ms":1,"visibility_timeout_ms":2}}`, string(data), "0 would be the default")

	data, err = json.Marshal(ojs.JobRequest{Type: "t", Delay: 5 * time.Second, RunAt: at})
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"t","args":[],"options":{"delay_until":"PT5S"}}`, string(data), "the clock of the server counts")

	data, err = json.Marshal(ojs.JobRequest{Args: email{"a@b"}})
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"email.send","args":[{"to":"a@b"}]}`, string(data), "these arguments know their type")

	data, err = json.Marshal(ojs.JobRequest{Type: "t", Unique: &ojs.UniquePolicy{Keys: []string{"queue"}, ArgsKeys: []string{"id"}, MetaKeys: []string{"m"}}})
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"t","args":[],"options":{"unique":{"keys":["queue","args","meta"],"args_keys":["id"],"meta_keys":["m"]}}}`, string(data))

	_, err = json.Marshal(ojs.JobRequest{Type: "t", Args: func() {}})
	require.ErrorContains(t, err, "encode args")
}

// TestEnqueueOptions: each sets its field, in the order in which they are given.
func TestEnqueueOptions(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	var got ojs.JobRequest
	c, err := ojs.NewClient(ojs.Config{Transport: transportFunc(func(*http.Request) (int, string, error) { return 201, `{"job":{"id":"x"}}`, nil })})
	require.NoError(t, err)
	c.Use(func(ctx context.Context, r *ojs.JobRequest, next ojs.EnqueueFunc) (*ojs.Job, error) {
		got = *r
		return next(ctx, r)
	})
	limit, unique := ojs.RateLimit{Key: "k"}, ojs.UniquePolicy{Period: time.Hour}
	_, err = c.Enqueue(t.Context(), "t", 1, ojs.WithMaxAttempts(9), ojs.WithRetry(ojs.RetryPolicy{MaxInterval: time.Minute}), ojs.WithMaxAttempts(4),
		ojs.WithQueue("q"), ojs.WithPriority(-5), ojs.WithDelay(time.Second), ojs.WithRunAt(at), ojs.WithExpiresAt(at), ojs.WithTags("a"), ojs.WithTags("b"),
		ojs.WithMeta("k", "v"), ojs.WithMeta("l", 1), ojs.WithTimeout(time.Minute), ojs.WithID("x"), ojs.WithUnique(unique), ojs.WithRateLimit(limit),
		func(r *ojs.JobRequest) { r.Schema = "urn:s" })
	require.NoError(t, err)
	require.Equal(t, ojs.JobRequest{
		ID: "x", Type: "t", Args: 1, Queue: "q", Priority: -5, Delay: time.Second, RunAt: at, ExpiresAt: at, Tags: []string{"a", "b"}, Meta: map[string]any{"k": "v", "l": 1},
		Timeout: time.Minute, Unique: &unique, RateLimit: &limit, Retry: &ojs.RetryPolicy{MaxAttempts: 4, MaxInterval: time.Minute}, Schema: "urn:s",
	}, got)
}

// TestClient is the checklist's client: enqueue, enqueueBatch, getJob, cancelJob, and the rest of what it can do.
func TestClient(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("EnqueueGetCancel", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		job, err := ojs.Enqueue(ctx, c, email{"a@b"}, ojs.WithQueue("mail"))
		require.NoError(t, err)
		s.RequireEnqueued(t, "email.send", ojstest.InQueue("mail"), ojstest.WithArgs(email{"a@b"}))
		s.RequireNotEnqueued(t, "email.send", ojstest.WithArgs(email{"b@b"}))
		got, err := c.GetJob(ctx, job.ID)
		require.NoError(t, err)
		var args []email
		require.NoError(t, got.DecodeArgs(&args))
		require.Equal(t, []email{{"a@b"}}, args)
		cancelled, err := c.CancelJob(ctx, job.ID, "why not")
		require.NoError(t, err)
		require.Equal(t, ojs.StateCancelled, cancelled.State)
		require.Equal(t, ojs.StateAvailable, cancelled.PreviousState)
		_, err = c.CancelJob(ctx, job.ID, "")
		require.ErrorIs(t, err, ojs.ErrInvalidStateTransition)
		_, err = c.GetJob(ctx, ojs.NewID())
		require.ErrorIs(t, err, ojs.ErrNotFound)
	})

	t.Run("Batch", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "a", Args: 1}, {Type: "b", Args: 2}})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, []string{jobs[0].Type, jobs[1].Type})
		_, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "c", Args: 1}, {Type: "", Args: 2}})
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		s.RequireNotEnqueued(t, "c")

		jobs, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "", Args: 1}, {Type: "d", Args: 2}}, ojs.Partial())
		var refused *ojs.BatchError
		require.ErrorAs(t, err, &refused)
		require.Len(t, refused.Errors, 1)
		require.ErrorIs(t, refused.Errors[0], ojs.ErrInvalidPayload)
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		require.ErrorContains(t, err, "1 jobs of the batch were refused; job 0")
		require.Equal(t, []string{"", "d"}, []string{jobs[0].Type, jobs[1].Type})
		_, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "", Args: 1}}, ojs.Partial())
		require.ErrorAs(t, err, &refused)
		jobs, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Args: email{"a@b"}}}, ojs.Partial())
		require.NoError(t, err)
		require.Equal(t, "email.send", jobs[0].Type)
		bad := []ojs.JobRequest{{Type: "f"}, {Type: "g", Args: func() {}}, {Type: "h", Meta: map[string]any{"x": func() {}}}}
		_, err = c.EnqueueBatch(ctx, bad)
		require.ErrorContains(t, err, `encode job 1 of the batch, of type "g"`)
		s.RequireNotEnqueued(t, "f")
		_, err = c.EnqueueBatch(ctx, bad, ojs.Partial())
		require.ErrorAs(t, err, &refused)
		require.Len(t, refused.Errors, 2)
		require.ErrorContains(t, refused.Errors[2], "encode job 2")
		first := s.RequireEnqueued(t, "f")
		_, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "i", ID: first.ID}, {Type: "k"}}, ojs.Partial())
		require.ErrorAs(t, err, &refused)
		require.ErrorIs(t, refused.Errors[0], ojs.ErrDuplicateJob, "another job has the id")
		s.RequireEnqueued(t, "k")
		jobs, err = c.EnqueueBatch(ctx, nil)
		require.NoError(t, err)
		require.Empty(t, jobs)
	})

	t.Run("Unique", func(t *testing.T) {
		t.Parallel()
		_, c := setup(t)
		// Without keys: type, queue and arguments.
		for _, other := range []func() (*ojs.Job, error){
			func() (*ojs.Job, error) { return c.Enqueue(ctx, "u", 1, ojs.WithUnique(ojs.UniquePolicy{})) },
			func() (*ojs.Job, error) { return c.Enqueue(ctx, "u", 2, ojs.WithUnique(ojs.UniquePolicy{})) },
			func() (*ojs.Job, error) {
				return c.Enqueue(ctx, "u", 1, ojs.WithQueue("q2"), ojs.WithUnique(ojs.UniquePolicy{}))
			},
		} {
			_, err := other()
			require.NoError(t, err)
			_, err = other()
			require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		}
		_, err := c.Enqueue(ctx, "u", 3, ojs.WithUnique(ojs.UniquePolicy{Keys: []string{"type"}}))
		require.NoError(t, err)
		_, err = c.Enqueue(ctx, "u", 4, ojs.WithUnique(ojs.UniquePolicy{Keys: []string{"type"}}))
		require.ErrorIs(t, err, ojs.ErrDuplicateJob, "the type alone")
		first, err := c.Enqueue(ctx, "a", nil, ojs.WithUnique(ojs.UniquePolicy{}))
		require.NoError(t, err)
		require.False(t, first.Deduplicated)
		_, err = c.Enqueue(ctx, "a", nil, ojs.WithUnique(ojs.UniquePolicy{}))
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		require.Equal(t, first.ID, ojs.ErrorDetail(err, "existing_job_id"))
		same, err := c.Enqueue(ctx, "a", nil, ojs.WithUnique(ojs.UniquePolicy{OnConflict: ojs.ConflictIgnore}))
		require.NoError(t, err)
		require.Equal(t, first.ID, same.ID)
		require.True(t, same.Deduplicated)
	})

	t.Run("Activate", func(t *testing.T) {
		t.Parallel()
		_, c := setup(t)
		job, err := c.Enqueue(ctx, "a", nil, func(r *ojs.JobRequest) { r.Pending = true })
		require.NoError(t, err)
		require.Equal(t, ojs.StatePending, job.State)
		job, err = c.Activate(ctx, job.ID)
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, job.State)
		_, err = c.Activate(ctx, job.ID)
		require.ErrorIs(t, err, ojs.ErrInvalidStateTransition)
	})

	t.Run("WaitAndProgress", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(ctx ojs.JobContext) error {
			if err := ctx.ReportProgress(0.5, "half", map[string]int{"rows": 5}); err != nil {
				return err
			}
			return ctx.SetResult("done")
		})
		id := enqueue(t, c)
		start(t, w)
		result, err := c.Wait(ctx, id)
		require.NoError(t, err)
		require.Equal(t, `completed "done"`, string(result.State)+" "+string(result.Result))
		p, err := c.Progress(ctx, id)
		require.NoError(t, err)
		require.Equal(t, 0.5, p.Progress)
		require.Equal(t, `{"rows":5}`, string(p.Data))
		_, err = c.Wait(ctx, ojs.NewID())
		require.ErrorIs(t, err, ojs.ErrNotFound)
		s.RequireState(t, id, ojs.StateCompleted)
	})

	t.Run("ManifestAndHealth", func(t *testing.T) {
		t.Parallel()
		_, c := setup(t)
		m, err := c.Manifest(ctx)
		require.NoError(t, err)
		require.True(t, m.Has(ojs.ExtensionLongPolling))
		h, err := c.Health(ctx)
		require.NoError(t, err)
		require.Equal(t, "ok", h.Status)
		require.NoError(t, json.Unmarshal([]byte(`{"specversion":"1.0","extensions":[{"name":"a"},"b",7],"capabilities":{"c":true,"d":{"e":1}},"implementation":"x"}`), m))
		require.Equal(t, []string{"a", "b"}, m.Extensions)
		require.True(t, m.Capabilities["c"])
		require.NoError(t, json.Unmarshal([]byte(`{"ojs_version":"1.0","extensions":{"official":[]}}`), m))
		require.Empty(t, m.Extensions)
	})
}

// TestNothingBesideAnError: what a call returns beside an error is zero, so that nobody takes it for an answer.
func TestNothingBesideAnError(t *testing.T) {
	t.Parallel()
	// The answer begins well, and then has a member of another type than the call needs.
	const broken = `{"status":"ok","specversion":"1.0","progress":1,"state":"completed","cursor":"c","uptime_seconds":"x","conformance_level":"x",
		"updated_at":7,"completed_at":7,"has_more":7}`
	for _, answer := range []func(*http.Request) (int, string, error){
		func(*http.Request) (int, string, error) { return 200, broken, nil },
		func(*http.Request) (int, string, error) { return 404, `{"error":{"code":"not_found"}}`, nil },
	} {
		c, err := ojs.NewClient(ojs.Config{Transport: transportFunc(answer), MaxRetries: -1, Logger: silent})
		require.NoError(t, err)
		ctx := t.Context()
		progress, err := c.Progress(ctx, "x")
		require.Error(t, err)
		require.Nil(t, progress)
		manifest, err := c.Manifest(ctx)
		require.Error(t, err)
		require.Nil(t, manifest)
		health, err := c.Health(ctx)
		require.Error(t, err)
		require.Nil(t, health)
		page, err := c.ListEvents(ctx, ojs.EventFilter{}, 1)
		require.Error(t, err)
		require.Nil(t, page)
		result, err := c.Wait(ctx, "x")
		require.Error(t, err)
		require.Nil(t, result)
	}
	var into struct{ Row int }
	found, err := ojs.JobContext{Context: t.Context(), Job: &ojs.Job{LastCheckpoint: json.RawMessage(`[]`)}}.LoadCheckpoint(&into)
	require.Error(t, err)
	require.False(t, found)
}

// TestHTTPClient: a client of the program sends the requests, but its timeout does not end long polls.
func TestHTTPClient(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	sent := 0
	own := &http.Client{Timeout: time.Nanosecond, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		sent++
		return s.RoundTrip(r)
	})}
	c, err := ojs.NewClient(ojs.Config{URL: "http://ojs.test", HTTPClient: own, Logger: silent})
	require.NoError(t, err)
	_, err = c.Enqueue(t.Context(), "a", nil)
	require.NoError(t, err)
	require.Equal(t, 1, sent)
	require.Equal(t, time.Nanosecond, own.Timeout, "it stays as it is")
	_, err = ojs.NewClient(ojs.Config{URL: "http://ojs.test", HTTPClient: own, Transport: s})
	require.ErrorContains(t, err, "both a Transport and an HTTPClient")
}

// report has options for all of its jobs.
type report struct {
	Month int `json:"month"`
}

func (report) JobType() string { return "report.build" }
func (report) JobOptions() []ojs.EnqueueOption {
	return []ojs.EnqueueOption{ojs.WithQueue("reports"), ojs.WithDelay(time.Minute),
		ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 5, InitialInterval: time.Minute})}
}

// TestJobOptions: what arguments say of their jobs holds wherever they are enqueued, until the enqueue says something else.
func TestJobOptions(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	job, err := ojs.Enqueue(t.Context(), c, report{1})
	require.NoError(t, err)
	require.Equal(t, "report.build reports scheduled 5", fmt.Sprint(job.Type, " ", job.Queue, " ", job.State, " ", job.MaxAttempts))
	job, err = ojs.Enqueue(t.Context(), c, report{2}, ojs.WithQueue("urgent"), ojs.WithDelay(0), ojs.WithMaxAttempts(2))
	require.NoError(t, err)
	require.Equal(t, "urgent available 2", fmt.Sprint(job.Queue, " ", job.State, " ", job.MaxAttempts))
	for _, r := range s.Requests() {
		require.Contains(t, string(r.Body), `"initial_interval":"PT60S"`, "the rest of the policy stays")
	}
	jobs, err := c.EnqueueBatch(t.Context(), []ojs.JobRequest{{Args: report{3}}, {Args: report{4}, Queue: "urgent"}})
	require.NoError(t, err)
	require.Equal(t, "reports urgent", jobs[0].Queue+" "+jobs[1].Queue)
	body, err := json.Marshal(ojs.Chain(ojs.JobRequest{Args: report{5}, Retry: &ojs.RetryPolicy{MaxAttempts: 1}}))
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"chain","steps":[{"type":"report.build","args":[{"month":5}],
		"options":{"queue":"reports","delay_until":"PT60S","retry":{"max_attempts":1}}}]}`, string(body))
}

// TestWaitResult: the result of a job comes in its type.
func TestWaitResult(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
	w.Register("double", ojs.TypedResult(func(_ ojs.JobContext, n int) (int, error) {
		if n < 0 {
			return 7, ojs.Discard(errors.New("too small"))
		}
		return 2 * n, nil
	}))
	w.Register("cancel", func(ojs.JobContext) error { return ojs.Cancel() })
	w.Register("none", func(ojs.JobContext) error { return nil })
	ids := map[string]string{}
	for name, r := range map[string]ojs.JobRequest{
		"good": {Type: "double", Args: 21}, "bad": {Type: "double", Args: -1}, "cancelled": {Type: "cancel"}, "none": {Type: "none"},
	} {
		job, err := c.Enqueue(t.Context(), r.Type, r.Args)
		require.NoError(t, err)
		ids[name] = job.ID
	}
	s.Drain(t, w)
	n, err := ojs.WaitResult[int](t.Context(), c, ids["good"])
	require.NoError(t, err)
	require.Equal(t, 42, n)
	n, err = ojs.WaitResult[int](t.Context(), c, ids["bad"])
	var failure *ojs.JobError
	require.ErrorAs(t, err, &failure)
	require.Equal(t, "too small 0", fmt.Sprint(failure.Message, " ", n))
	_, err = ojs.WaitResult[int](t.Context(), c, ids["cancelled"])
	require.ErrorIs(t, err, ojs.ErrJobCancelled)
	n, err = ojs.WaitResult[int](t.Context(), c, ids["none"])
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = ojs.WaitResult[string](t.Context(), c, ids["good"])
	require.ErrorContains(t, err, "decode the result")
}
