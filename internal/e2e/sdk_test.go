package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/ojs"
)

// sdk makes a client of the SDK for a URL.
func sdk(t testing.TB, url string) *ojs.Client {
	t.Helper()
	c, err := ojs.NewClient(ojs.Config{URL: url, Logger: silent})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// runWorker runs a worker of the SDK until stop is called, or the test ends.
func runWorker(t testing.TB, w *ojs.Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var stopped atomic.Bool
	stop = func() {
		if stopped.Swap(true) {
			return
		}
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(waitFor):
			require.Fail(t, "the worker does not stop")
		}
	}
	t.Cleanup(stop)
	return stop
}

// next waits for a value.
func next[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(waitFor):
		require.Fail(t, "nothing came")
		panic("unreachable")
	}
}

// front is a proxy between workers and nodes that can break what passes.
type front struct {
	*httptest.Server
	target atomic.Pointer[url.URL]
	// intercept answers in place of the node if it returns true; forward carries the request out.
	intercept atomic.Pointer[func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) bool]
	// withoutExtensions hides long polling and batches of acks, and refuses them.
	withoutExtensions bool
}

func newFront(t testing.TB, node *node) *front {
	t.Helper()
	f := &front{}
	f.to(t, node)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(f.target.Load()) },
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // a node that is gone cuts connections
		ModifyResponse: func(r *http.Response) error {
			if !f.withoutExtensions || r.Request.URL.Path != "/ojs/manifest" {
				return nil
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			body = bytes.ReplaceAll(body, []byte("urn:ojsd:ext:"), []byte("urn:hidden:"))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Del("Content-Length")
			return nil
		},
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.withoutExtensions && r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			if err != nil || strings.HasSuffix(r.URL.Path, "ack/batch") || bytes.Contains(body, []byte("wait_ms")) {
				http.Error(w, "an extension was used that the manifest does not have", http.StatusTeapot)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		if i := f.intercept.Load(); i != nil && (*i)(w, r, proxy.ServeHTTP) {
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
		transport.CloseIdleConnections()
	})
	return f
}

// to sends requests to another node from now on.
func (f *front) to(t testing.TB, node *node) {
	t.Helper()
	u, err := url.Parse(node.url)
	require.NoError(t, err)
	f.target.Store(u)
}

func (f *front) when(i func(w http.ResponseWriter, r *http.Request, forward http.HandlerFunc) bool) {
	f.intercept.Store(&i)
}

// TestSDKClient runs each call of the client against a node.
func TestSDKClient(t *testing.T) {
	t.Parallel()
	node := setup(t)
	c := sdk(t, node.url)
	ctx := t.Context()

	t.Run("Enqueue", func(t *testing.T) {
		t.Parallel()
		q := queue()
		job, err := c.Enqueue(ctx, "a", map[string]int{"n": 1}, ojs.WithQueue(q), ojs.WithPriority(7), ojs.WithTags("x"), ojs.WithMeta("k", "v"), ojs.WithTimeout(time.Minute),
			ojs.WithDelay(time.Hour), ojs.WithExpiresAt(time.Now().Add(2*time.Hour)), ojs.WithRetry(ojs.RetryPolicy{
				MaxAttempts: 4, InitialInterval: 1500 * time.Millisecond, MaxInterval: time.Minute, BackoffCoefficient: 3, BackoffStrategy: "linear", NoJitter: true,
				NonRetryableErrors: []string{"auth.*"}, OnExhaustion: "discard",
			}))
		require.NoError(t, err)
		require.Equal(t, ojs.StateScheduled, job.State)
		require.Equal(t, 4, job.MaxAttempts)
		require.Equal(t, int64(60_000), job.TimeoutMS)
		require.Equal(t, "v", job.Meta["k"])
		got, err := c.Get(ctx, job.ID)
		require.NoError(t, err)
		require.Equal(t, job, got)
		require.Equal(t, `[{"n":1}]`, string(got.RawArgs))
		require.InDelta(t, time.Hour, got.ScheduledAt.Sub(got.CreatedAt), float64(10*time.Second))

		r := ojs.NewRequest("a", nil, ojs.WithQueue(q))
		r.VisibilityTimeout, r.EnqueueTTL, r.TotalTimeout, r.HeartbeatTimeout, r.ResultTTL, r.Pending = time.Minute, time.Minute, time.Hour, time.Minute, -1, true
		job, err = c.EnqueueRequest(ctx, r)
		require.NoError(t, err)
		require.Equal(t, ojs.StatePending, job.State)
		job, err = c.Activate(ctx, job.ID)
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, job.State)
		job, err = c.Cancel(ctx, job.ID, "why not")
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, job.PreviousState)
		_, err = c.Cancel(ctx, job.ID, "")
		require.ErrorIs(t, err, ojs.ErrInvalidStateTransition)
		require.Equal(t, "cancelled", ojs.ErrorDetail(err, "current_state"))

		_, err = c.Enqueue(ctx, "Not A Type", nil)
		require.ErrorIs(t, err, ojs.ErrInvalidJobType)
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		_, err = c.Enqueue(ctx, "a", nil, ojs.WithID(got.ID))
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		page, err := c.List(ctx, ojs.JobFilter{Queues: []string{q}, States: []ojs.JobState{ojs.StateScheduled, ojs.StateCancelled}, PageOptions: ojs.PageOptions{Limit: 1}})
		require.NoError(t, err)
		require.True(t, page.HasMore)
		require.Equal(t, 2, page.Total)
		page, err = c.List(ctx, ojs.JobFilter{Queues: []string{q}, PageOptions: ojs.PageOptions{Limit: 1, Cursor: page.NextCursor}})
		require.NoError(t, err)
		require.Equal(t, got.ID, page.Items[0].ID)
		stats, err := c.QueueStats(ctx, q)
		require.NoError(t, err)
		require.Equal(t, 1, stats.Scheduled)
		require.Equal(t, "active", stats.Status)
		require.NoError(t, c.PauseQueue(ctx, q))
		stats, err = c.QueueStats(ctx, q)
		require.NoError(t, err)
		require.Equal(t, "paused", stats.Status)
		require.NoError(t, c.ResumeQueue(ctx, q))
		queues, err := c.ListQueues(ctx, ojs.PageOptions{Limit: 1})
		require.NoError(t, err)
		require.NotEmpty(t, queues.Items[0].Name)
	})

	t.Run("BatchBulkAndUnique", func(t *testing.T) {
		t.Parallel()
		q := ojs.WithQueue(queue())
		jobs, err := c.EnqueueBatch(ctx, ojs.NewRequest("a", 1, q), ojs.NewRequest("b", 2, q))
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, []string{jobs[0].Type, jobs[1].Type})
		_, err = c.EnqueueBatch(ctx, ojs.NewRequest("a", 1, q), ojs.NewRequest("B", 2, q))
		require.ErrorIs(t, err, ojs.ErrInvalidJobType)
		results, err := c.EnqueueBulk(ctx, ojs.NewRequest("B", 1, q), ojs.NewRequest("c", 2, q))
		require.NoError(t, err)
		require.ErrorIs(t, results[0].Err, ojs.ErrInvalidJobType)
		require.Equal(t, "c", results[1].Job.Type)
		results, err = c.EnqueueBulk(ctx, ojs.NewRequest("B", 1, q))
		require.NoError(t, err)
		require.ErrorIs(t, results[0].Err, ojs.ErrInvalidJobType)

		unique := ojs.WithUnique(ojs.UniquePolicy{Keys: []string{"queue", "args"}, ArgsKeys: []string{"month"}, Period: time.Hour, OnConflict: "ignore", States: []ojs.JobState{ojs.StateAvailable}})
		first, err := c.Enqueue(ctx, "u", map[string]string{"month": "1", "x": "1"}, q, unique)
		require.NoError(t, err)
		same, err := c.Enqueue(ctx, "u", map[string]string{"month": "1", "x": "2"}, q, unique)
		require.NoError(t, err)
		require.Equal(t, first.ID, same.ID)
		require.True(t, same.Deduplicated)
		results, err = c.EnqueueBulk(ctx, ojs.NewRequest("u", map[string]string{"month": "1"}, q, unique))
		require.NoError(t, err)
		require.True(t, results[0].Job.Deduplicated)
		_, err = c.Enqueue(ctx, "u", map[string]string{"month": "1"}, q, ojs.WithUnique(ojs.UniquePolicy{Keys: []string{"queue", "args"}, ArgsKeys: []string{"month"}}))
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		require.Equal(t, first.ID, ojs.ErrorDetail(err, "existing_job_id"))
	})

	t.Run("Crons", func(t *testing.T) {
		t.Parallel()
		name := "cron-" + newID()
		cron, err := c.PutCron(ctx, ojs.Cron{Name: name, Expression: "0 9 * * *", Timezone: "Europe/Berlin", Overlap: "allow", Description: "d", Job: ojs.NewRequest("a", 1, ojs.WithQueue(name), ojs.WithMeta("k", "v"), ojs.WithDelay(time.Minute))})
		require.NoError(t, err)
		require.Equal(t, "0 9 * * * Europe/Berlin allow d a", strings.Join([]string{cron.Expression, cron.Timezone, cron.Overlap, cron.Description, cron.Type}, " "))
		require.False(t, cron.NextRunAt.IsZero())
		cron, err = c.PauseCron(ctx, name)
		require.NoError(t, err)
		require.False(t, cron.Enabled)
		require.True(t, cron.NextRunAt.IsZero())
		_, err = c.ResumeCron(ctx, name)
		require.NoError(t, err)
		job, err := c.TriggerCron(ctx, name)
		require.NoError(t, err)
		require.Equal(t, ojs.StateScheduled, job.State)
		runs, err := c.CronHistory(ctx, name, ojs.PageOptions{Limit: 5})
		require.NoError(t, err)
		require.Equal(t, "manual", runs.Items[0].Outcome)
		crons, err := c.ListCrons(ctx, ojs.PageOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, crons.Items)
		got, err := c.GetCron(ctx, name)
		require.NoError(t, err)
		require.Equal(t, 1, got.RunCount)
		require.NoError(t, c.DeleteCron(ctx, name))
		_, err = c.GetCron(ctx, name)
		require.ErrorIs(t, err, ojs.ErrNotFound)
	})

	t.Run("DeadLetters", func(t *testing.T) {
		t.Parallel()
		q := queue()
		one, two := node.in(t).deadLetter(q, "a", `{"code":"x"}`), node.in(t).deadLetter(q, "b", `{"code":"y"}`)
		page, err := c.ListDeadLetters(ctx, ojs.DeadLetterFilter{Queues: []string{q}, Types: []string{"a*"}, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)})
		require.NoError(t, err)
		require.Len(t, page.Items, 1)
		require.Equal(t, one, page.Items[0].ID)
		require.NotEmpty(t, page.Items[0].Error.Code)
		job, err := c.GetDeadLetter(ctx, two)
		require.NoError(t, err)
		require.Equal(t, two, job.ID)
		job, err = c.RetryDeadLetter(ctx, two)
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, job.State)
		n, err := c.RetryDeadLetters(ctx, ojs.DeadLetterFilter{Queues: []string{q}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		three, four := node.in(t).deadLetter(q+"x", "a", `{"code":"x"}`), node.in(t).deadLetter(q+"x", "b", `{"code":"y"}`)
		require.NoError(t, c.DeleteDeadLetter(ctx, three))
		n, err = c.PurgeDeadLetters(ctx, ojs.DeadLetterFilter{Queues: []string{q + "x"}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = c.GetDeadLetter(ctx, four)
		require.ErrorIs(t, err, ojs.ErrNotFound)
	})

	t.Run("Webhooks", func(t *testing.T) {
		t.Parallel()
		hook, err := c.CreateWebhook(ctx, ojs.Webhook{URL: "https://hooks.acme.test/x", Events: []string{"job.completed"}, Secret: "12345678", Filter: &ojs.WebhookFilter{Queues: []string{"none"}}, Ordering: "subject"})
		require.NoError(t, err)
		require.Equal(t, "12345678", hook.Secret)
		require.Equal(t, []string{"none"}, hook.Filter.Queues)
		off := false
		hook, err = c.UpdateWebhook(ctx, hook.ID, ojs.Webhook{Active: &off})
		require.NoError(t, err)
		require.False(t, hook.Active)
		require.Equal(t, []string{"job.completed"}, hook.Events)
		hook, err = c.RotateWebhookSecret(ctx, hook.ID, "")
		require.NoError(t, err)
		require.NotEmpty(t, hook.Secret)
		tested, err := c.TestWebhook(ctx, hook.ID)
		require.NoError(t, err)
		require.False(t, tested.Success)
		hooks, err := c.ListWebhooks(ctx, ojs.PageOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, hooks.Items)
		require.NoError(t, c.DeleteWebhook(ctx, hook.ID))
		_, err = c.GetWebhook(ctx, hook.ID)
		require.ErrorIs(t, err, ojs.ErrNotFound)
	})

	t.Run("ManifestHealthWorkers", func(t *testing.T) {
		t.Parallel()
		m, err := c.Manifest(ctx)
		require.NoError(t, err)
		require.Equal(t, "ojsd", m.Implementation.Name)
		require.True(t, m.Has(ojs.ExtensionLongPolling) && m.Has(ojs.ExtensionBatchAck))
		require.True(t, m.Capabilities["workflows"])
		h, err := c.Health(ctx)
		require.NoError(t, err)
		require.Contains(t, []string{"ok", "degraded"}, h.Status) // a busy machine
		node.in(t).beat("w-list").is(200)
		workers, err := c.ListWorkers(ctx, ojs.PageOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, workers.Items)
		require.NoError(t, c.DirectWorker(ctx, "w-list", ojs.DirectiveQuiet))
	})

	t.Run("Workflows", func(t *testing.T) {
		t.Parallel()
		q := queue()
		w, err := c.CreateWorkflow(ctx, ojs.Chain(ojs.NewRequest("a", 1), ojs.Group(ojs.NewRequest("b", 1), ojs.NewRequest("b", 2)).Named("inner"), ojs.NewRequest("c", 1, ojs.WithDelay(time.Minute))).
			Named("n").WithDefaults(ojs.WithQueue(q)))
		require.NoError(t, err)
		require.Equal(t, ojs.WorkflowRunning, w.State)
		require.Equal(t, "n", w.Name)
		got, err := c.GetWorkflow(ctx, w.ID)
		require.NoError(t, err)
		require.Equal(t, q, mustGet(t, c, got.Steps[0].JobID).Queue)
		require.Len(t, got.Steps[1].Workflow.Steps, 2)
		graph, err := c.CreateWorkflow(ctx, ojs.Graph(ojs.NewRequest("a", 1, ojs.WithStep("one")), ojs.NewRequest("a", 1, ojs.WithStep("two")), ojs.NewRequest("b", 1, ojs.WithStep("three", "one", "two"))))
		require.NoError(t, err)
		require.Equal(t, "dag", graph.Type)
		require.Equal(t, []string{"one", "two"}, graph.Steps[2].DependsOn)
		cancelled, err := c.CancelWorkflow(ctx, graph.ID, true)
		require.NoError(t, err)
		require.Equal(t, ojs.WorkflowCancelled, cancelled.State)
		require.Equal(t, 3, cancelled.StepsCancelled)
		list, err := c.ListWorkflows(ctx, ojs.WorkflowFilter{State: ojs.WorkflowRunning, Name: "n"})
		require.NoError(t, err)
		require.Equal(t, w.ID, list.Items[0].ID)
	})
}

func mustGet(t testing.TB, c *ojs.Client, id string) *ojs.JobInfo {
	t.Helper()
	job, err := c.Get(t.Context(), id)
	require.NoError(t, err)
	return job
}

// TestSDKEvents: a subscription sees each event once, whatever happens to its connection.
func TestSDKEvents(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"Stream", "Polling"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			node := setup(t)
			f := newFront(t, node)
			if form == "Polling" {
				f.when(func(w http.ResponseWriter, r *http.Request, _ http.HandlerFunc) bool {
					if r.URL.Path != "/ojs/manifest" {
						return false
					}
					_, _ = io.WriteString(w, `{"specversion":"1.0"}`)
					return true
				})
			}
			c := sdk(t, f.URL)
			q := queue()
			ctx, cancel := context.WithTimeout(t.Context(), waitFor)
			defer cancel()
			before, err := c.Enqueue(ctx, "a", nil, ojs.WithQueue(q))
			require.NoError(t, err)
			got := make(chan *ojs.Event, 100)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for e, err := range c.Events(ctx, ojs.EventFilter{Types: []string{"job.*"}, Queues: []string{q}, Since: before.CreatedAt.Add(-time.Minute)}) {
					if err != nil {
						return
					}
					got <- e
				}
			}()
			want := []string{before.ID}
			for range 5 {
				for range 3 {
					job, err := c.Enqueue(ctx, "a", nil, ojs.WithQueue(q))
					require.NoError(t, err)
					want = append(want, job.ID)
				}
				f.CloseClientConnections()
			}
			for _, id := range want {
				select {
				case e := <-got:
					require.Equal(t, id, e.Subject)
					require.Equal(t, ojs.EventJobEnqueued, e.Type)
					var data struct{ Queue string }
					require.NoError(t, e.DecodeData(&data))
					require.Equal(t, q, data.Queue)
				case <-ctx.Done():
					require.Fail(t, "an event is missing")
				}
			}
			cancel()
			<-done
			require.Empty(t, got)
		})
	}

	t.Run("LiveFromNowOn", func(t *testing.T) {
		t.Parallel()
		node := setup(t)
		c := sdk(t, node.url)
		_, err := c.Enqueue(t.Context(), "old", nil)
		require.NoError(t, err)
		// In an empty log the subscription begins at a time in whole seconds.
		eventually(t, func() bool { return node.get("/ojs/v1/events").at("events.0.type") != "" })
		ctx, cancel := context.WithTimeout(t.Context(), waitFor)
		defer cancel()
		var jobs atomic.Int64
		go func() { // until one is seen
			for ctx.Err() == nil {
				_, _ = c.Enqueue(ctx, "new", nil)
				jobs.Add(1)
				time.Sleep(10 * time.Millisecond)
			}
		}()
		for e, err := range c.Events(ctx, ojs.EventFilter{}) {
			require.NoError(t, err)
			var data struct {
				JobType string `json:"job_type"`
			}
			require.NoError(t, e.DecodeData(&data))
			require.Equal(t, "new", data.JobType)
			break
		}
	})

	t.Run("ErrorsEndIt", func(t *testing.T) {
		t.Parallel()
		c := sdk(t, setup(t).url)
		n := 0
		for _, err := range c.Events(t.Context(), ojs.EventFilter{Types: []string{"NO TYPE"}}) {
			require.ErrorIs(t, err, ojs.ErrInvalidRequest)
			n++
		}
		require.Equal(t, 1, n)
	})
}

// TestSDKWebhookHandler: deliveries of a node are accepted, before and after a rotation of the secret, and others are not.
func TestSDKWebhookHandler(t *testing.T) {
	t.Parallel()
	events := make(chan *ojs.Event, 10)
	receiver := httptest.NewServer(ojs.WebhookHandler("12345678", func(_ context.Context, e *ojs.Event) error {
		events <- e
		return nil
	}, "87654321"))
	t.Cleanup(receiver.Close)
	node := setup(t, func(c *app.Config) {
		c.Webhooks.Rules.AllowHTTP, c.Webhooks.Rules.AllowNetworks = true, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	c := sdk(t, node.url)
	hook, err := c.CreateWebhook(t.Context(), ojs.Webhook{URL: receiver.URL, Events: []string{"job.*"}, Secret: "12345678"})
	require.NoError(t, err)
	for range 2 {
		job, err := c.Enqueue(t.Context(), "a", nil)
		require.NoError(t, err)
		select {
		case e := <-events:
			require.Equal(t, job.ID, e.Subject)
		case <-time.After(waitFor):
			require.Fail(t, "no delivery")
		}
		_, err = c.RotateWebhookSecret(t.Context(), hook.ID, "87654321")
		require.NoError(t, err)
	}
	data, err := json.Marshal(map[string]string{"type": "job.completed"})
	require.NoError(t, err)
	res, err := http.Post(receiver.URL, "application/json", bytes.NewReader(data))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusUnauthorized, res.StatusCode)
}
