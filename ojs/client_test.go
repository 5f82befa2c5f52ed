package ojs_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
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

	_, err = c.Get(t.Context(), "a/b c")
	require.NoError(t, err)
	r = receive(t, requests)
	require.Equal(t, "/ojs/v1/jobs/a%2Fb%20c", r.URL.EscapedPath())
	require.Empty(t, r.Header.Get("Content-Type"), "a request without body has no type")

	reply = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"code":"rate_limited","type":"rate_limited","message":"slow down","retryable":true,"details":{"limit":5},"request_id":"req_1"}}`)
	}
	_, err = c.Get(t.Context(), "x")
	var e *ojs.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 429, e.Status)
	require.Equal(t, "req_1", e.RequestID)
	require.Equal(t, 7*time.Second, ojs.RetryAfter(err))
	require.ErrorIs(t, err, ojs.ErrRateLimited)
	require.True(t, ojs.Retryable(err))
	require.False(t, ojs.OutcomeUnknown(err))

	reply = func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "<html>bad gateway", http.StatusBadGateway)
	}
	_, err = c.Get(t.Context(), "x")
	var te *ojs.TransportError
	require.ErrorAs(t, err, &te)
	require.False(t, errors.As(err, &e))
	require.Equal(t, 502, te.Status)
	require.True(t, ojs.OutcomeUnknown(err))

	reply = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	_, err = c.Get(t.Context(), "x")
	require.ErrorAs(t, err, &te)
	require.True(t, te.Sent)
	require.True(t, ojs.OutcomeUnknown(err))

	server.Close()
	_, err = c.Get(t.Context(), "x")
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
	transport, err := ojs.NewHTTPTransport(server.URL, "")
	require.NoError(t, err)
	transport.Timeout = 20 * time.Millisecond
	defer transport.CloseIdleConnections()
	c, err := ojs.NewClient(ojs.Config{Transport: transport, MaxRetries: -1})
	require.NoError(t, err)
	_, err = c.Get(t.Context(), "x")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, ojs.OutcomeUnknown(err))
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
	c, err := ojs.NewClient(ojs.Config{Transport: transportFunc(func(r *ojs.Request) (int, string, error) {
		require.Equal(t, "POST /jobs", r.Method+" "+r.Path)
		return 201, `{"job":{"id":"test-id","type":"email.send","state":"available","args":["test"]}}`, nil
	})})
	require.NoError(t, err)
	job, err := c.Enqueue(t.Context(), "email.send", []string{"test"})
	require.NoError(t, err)
	require.Equal(t, "test-id", job.ID)
	require.Equal(t, ojs.StateAvailable, job.State)
}

type transportFunc func(*ojs.Request) (int, string, error)

func (f transportFunc) Do(_ context.Context, r *ojs.Request) (*ojs.Response, error) {
	status, body, err := f(r)
	if err != nil {
		return nil, err
	}
	return &ojs.Response{Status: status, Body: io.NopCloser(strings.NewReader(body))}, nil
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
		data, err := json.Marshal(ojs.NewRequest("t", c.args))
		require.NoError(t, err, name)
		require.NoError(t, json.Unmarshal(data, &body))
		require.Equal(t, c.want, string(body.Args), name)
		require.Nil(t, body.Options, "without settings there are no options")
	}

	at := time.Date(2026, 5, 4, 3, 2, 1, 5e8, time.UTC)
	r := ojs.NewRequest("t", nil, ojs.WithQueue("q"), ojs.WithPriority(-5), ojs.WithRunAt(at), ojs.WithExpiresAt(at), ojs.WithTags("a"), ojs.WithTags("b"),
		ojs.WithMeta("k", "v"), ojs.WithTimeout(1500*time.Millisecond), ojs.WithMaxAttempts(4), ojs.WithID("x"),
		ojs.WithUnique(ojs.UniquePolicy{Keys: []string{"args"}, Period: time.Hour, OnConflict: "ignore", States: []ojs.JobState{ojs.StateActive}}))
	r.VisibilityTimeout, r.EnqueueTTL, r.TotalTimeout, r.HeartbeatTimeout, r.ResultTTL, r.Pending = time.Minute, 1, time.Hour, time.Minute, -1, true
	r.Retry.InitialInterval, r.Retry.MaxInterval, r.Retry.BackoffCoefficient, r.Retry.BackoffStrategy = 1500*time.Millisecond, time.Minute, 3, "linear"
	r.Retry.NoJitter, r.Retry.NonRetryableErrors, r.Retry.OnExhaustion = true, []string{"a.*"}, "discard"
	r.Extra, r.Schema = map[string]any{"x_region": "eu"}, "urn:s"
	data, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"id":"x","type":"t","args":[],"meta":{"k":"v"},"schema":"urn:s","options":{"queue":"q","priority":-5,"delay_until":"2026-05-04T03:02:01.5Z",
		"expires_at":"2026-05-04T03:02:01.5Z","tags":["a","b"],"timeout_ms":1500,"visibility_timeout_ms":60000,"enqueue_ttl":1,"total_timeout":3600,"heartbeat_timeout":60,
		"result_ttl":-1,"pending":true,"x_region":"eu","unique":{"keys":["args"],"period":"PT3600S","on_conflict":"ignore","states":["active"]},
		"retry":{"max_attempts":4,"initial_interval":"PT1.5S","max_interval":"PT60S","backoff_coefficient":3,"backoff_strategy":"linear","jitter":false,
		"non_retryable_errors":["a.*"],"on_exhaustion":"discard"}}}`, string(data))

	short := ojs.NewRequest("t", nil, ojs.WithTimeout(time.Nanosecond))
	short.VisibilityTimeout = 1500 * time.Microsecond
	data, err = json.Marshal(short)
	require.NoError(t, err)
	require.JSONEq(t, `{"type":"t","args":[],"options":{"timeout_ms":1,"visibility_timeout_ms":2}}`, string(data), "0 would be the default")

	_, err = json.Marshal(ojs.NewRequest("t", func() {}))
	require.ErrorContains(t, err, "encode args")
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
		got, err := c.Get(ctx, job.ID)
		require.NoError(t, err)
		var args []email
		require.NoError(t, got.DecodeArgs(&args))
		require.Equal(t, []email{{"a@b"}}, args)
		cancelled, err := c.Cancel(ctx, job.ID, "why not")
		require.NoError(t, err)
		require.Equal(t, ojs.StateCancelled, cancelled.State)
		require.Equal(t, ojs.StateAvailable, cancelled.PreviousState)
		_, err = c.Cancel(ctx, job.ID, "")
		require.ErrorIs(t, err, ojs.ErrInvalidStateTransition)
		_, err = c.Get(ctx, ojs.NewID())
		require.ErrorIs(t, err, ojs.ErrNotFound)
	})

	t.Run("Batch", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		jobs, err := c.EnqueueBatch(ctx, ojs.NewRequest("a", 1), ojs.NewRequest("b", 2))
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, []string{jobs[0].Type, jobs[1].Type})
		_, err = c.EnqueueBatch(ctx, ojs.NewRequest("c", 1), ojs.NewRequest("", 2))
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		s.RequireNotEnqueued(t, "c")

		results, err := c.EnqueueBulk(ctx, ojs.NewRequest("", 1), ojs.NewRequest("d", 2))
		require.NoError(t, err)
		require.ErrorIs(t, results[0].Err, ojs.ErrInvalidPayload)
		require.Equal(t, "d", results[1].Job.Type)
		results, err = c.EnqueueBulk(ctx, ojs.NewRequest("", 1))
		require.NoError(t, err)
		require.ErrorIs(t, results[0].Err, ojs.ErrInvalidPayload)
	})

	t.Run("Unique", func(t *testing.T) {
		t.Parallel()
		_, c := setup(t)
		first, err := c.Enqueue(ctx, "a", nil, ojs.WithUnique(ojs.UniquePolicy{}))
		require.NoError(t, err)
		require.False(t, first.Deduplicated)
		_, err = c.Enqueue(ctx, "a", nil, ojs.WithUnique(ojs.UniquePolicy{}))
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		require.Equal(t, first.ID, ojs.ErrorDetail(err, "existing_job_id"))
		same, err := c.Enqueue(ctx, "a", nil, ojs.WithUnique(ojs.UniquePolicy{OnConflict: "ignore"}))
		require.NoError(t, err)
		require.Equal(t, first.ID, same.ID)
		require.True(t, same.Deduplicated)
	})

	t.Run("PendingAndLists", func(t *testing.T) {
		t.Parallel()
		_, c := setup(t)
		r := ojs.NewRequest("a", nil)
		r.Pending = true
		job, err := c.EnqueueRequest(ctx, r)
		require.NoError(t, err)
		require.Equal(t, ojs.StatePending, job.State)
		job, err = c.Activate(ctx, job.ID)
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, job.State)
		_, err = c.Enqueue(ctx, "b", nil)
		require.NoError(t, err)
		page, err := c.List(ctx, ojs.JobFilter{PageOptions: ojs.PageOptions{Limit: 1}})
		require.NoError(t, err)
		require.Equal(t, "b", page.Items[0].Type)
		require.True(t, page.HasMore)
		page, err = c.List(ctx, ojs.JobFilter{PageOptions: ojs.PageOptions{Limit: 1, Cursor: page.NextCursor}})
		require.NoError(t, err)
		require.Equal(t, "a", page.Items[0].Type)
		require.False(t, page.HasMore)
		page, err = c.List(ctx, ojs.JobFilter{Types: []string{"b"}, States: []ojs.JobState{ojs.StateAvailable}, Queues: []string{"default"}})
		require.NoError(t, err)
		require.Len(t, page.Items, 1)
		stats, err := c.QueueStats(ctx, "default")
		require.NoError(t, err)
		require.Equal(t, 2, stats.Available)
		queues, err := c.ListQueues(ctx, ojs.PageOptions{})
		require.NoError(t, err)
		require.Equal(t, "default", queues.Items[0].Name)
	})

	t.Run("Crons", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		cron, err := c.PutCron(ctx, ojs.Cron{Name: "daily/x", Expression: "0 9 * * *", Timezone: "Europe/Berlin", Job: ojs.NewRequest("report", 1, ojs.WithDelay(time.Minute))})
		require.NoError(t, err)
		require.Equal(t, "0 9 * * *", cron.Expression)
		require.Equal(t, "PT60S", cron.Options["delay_until"])
		body := string(s.Requests()[0].Body)
		require.Contains(t, body, `"cron":"0 9 * * *"`)
	})

	t.Run("CronCalls", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		_, err := c.PutCron(ctx, ojs.Cron{Name: "daily", Expression: "@daily", Job: ojs.NewRequest("report", 1)})
		require.NoError(t, err)
		cron, err := c.PauseCron(ctx, "daily")
		require.NoError(t, err)
		require.False(t, cron.Enabled)
		cron, err = c.ResumeCron(ctx, "daily")
		require.NoError(t, err)
		require.True(t, cron.Enabled)
		_, err = c.TriggerCron(ctx, "daily")
		require.NoError(t, err)
		s.RequireEnqueued(t, "report")
		crons, err := c.ListCrons(ctx, ojs.PageOptions{})
		require.NoError(t, err)
		require.Len(t, crons.Items, 1)
		runs, err := c.CronHistory(ctx, "daily", ojs.PageOptions{})
		require.NoError(t, err)
		require.Empty(t, runs.Items)
		require.NoError(t, c.DeleteCron(ctx, "daily"))
		_, err = c.GetCron(ctx, "daily")
		require.ErrorIs(t, err, ojs.ErrNotFound)
	})

	t.Run("Webhooks", func(t *testing.T) {
		t.Parallel()
		_, c := setup(t)
		hook, err := c.CreateWebhook(ctx, ojs.Webhook{URL: "https://x.test", Events: []string{"job.*"}, Secret: "12345678"})
		require.NoError(t, err)
		off := false
		hook, err = c.UpdateWebhook(ctx, hook.ID, ojs.Webhook{Active: &off})
		require.NoError(t, err)
		require.False(t, hook.Active)
		require.Equal(t, []string{"job.*"}, hook.Events)
		hook, err = c.RotateWebhookSecret(ctx, hook.ID, "abcdefgh")
		require.NoError(t, err)
		require.Equal(t, "abcdefgh", hook.Secret)
		tested, err := c.TestWebhook(ctx, hook.ID)
		require.NoError(t, err)
		require.True(t, tested.Success)
		hooks, err := c.ListWebhooks(ctx, ojs.PageOptions{})
		require.NoError(t, err)
		require.Len(t, hooks.Items, 1)
		require.NoError(t, c.DeleteWebhook(ctx, hook.ID))
		_, err = c.GetWebhook(ctx, hook.ID)
		require.ErrorIs(t, err, ojs.ErrNotFound)
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
