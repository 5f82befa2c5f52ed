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
	"github.com/ojsd/ojsd/ojs/ojsadmin"
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
	go func() { done <- w.Start(ctx) }()
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
	admin := ojsadmin.New(c)
	ctx := t.Context()

	// What another client sends is shown as it is, and must not keep a worker from its jobs.
	t.Run("JobsOfOtherClients", func(t *testing.T) {
		t.Parallel()
		a := node.in(t)
		q := queue()
		var want []string
		for _, attributes := range []string{
			`"ID":"x","State":"y","Args":{},"ſtate":5,"wor\u212aer_id":[]`, `"ID":5,"Priority":"high","\u0041ttempt":"7","job":1,"Job":2,"DEDUPLICATED":3`,
			`"expires_at":"2199-05-04T05:02+0200"`, `"expires_at":"21990504T050201.5+02","scheduled_at":"20200504T0502Z"`,
			`"scheduled_at":"2020-05-04T05:02:01+02"`, `"timeout_ms":60000.0`,
		} {
			id := a.push(`"type":"other","args":[1],"queue":"%s",`+attributes, q)
			job, err := c.GetJob(ctx, id)
			require.NoError(t, err, attributes)
			require.Equal(t, []any{id, "other", q, ojs.StateAvailable, 0, 0, "[1]"},
				[]any{job.ID, job.Type, job.Queue, job.State, job.Priority, job.Attempt, string(job.RawArgs)}, attributes)
			want = append(want, id)
		}
		w := ojs.NewWorker(c, ojs.WorkerConfig{Queues: []string{q}, Logger: silent})
		ran := make(chan string, 100)
		w.Register("other", func(j ojs.JobContext) error { ran <- j.Job.ID; return nil })
		stop := runWorker(t, w)
		var got []string
		for range want {
			got = append(got, next(t, ran))
		}
		stop()
		require.ElementsMatch(t, want, got)
		for _, id := range want {
			job, err := c.GetJob(ctx, id)
			require.NoError(t, err)
			require.Equal(t, ojs.StateCompleted, job.State)
		}
	})

	t.Run("Enqueue", func(t *testing.T) {
		t.Parallel()
		q := queue()
		job, err := c.Enqueue(ctx, "a", map[string]int{"n": 1}, ojs.WithQueue(q), ojs.WithPriority(7), ojs.WithTags("x"), ojs.WithMeta("k", "v"), ojs.WithTimeout(time.Minute),
			ojs.WithDelay(time.Hour), ojs.WithExpiresAt(time.Now().Add(2*time.Hour)), ojs.WithRetry(ojs.RetryPolicy{
				MaxAttempts: 4, InitialInterval: 1500 * time.Millisecond, MaxInterval: time.Minute, BackoffCoefficient: 3, BackoffStrategy: ojs.BackoffLinear, NoJitter: true,
				NonRetryableErrors: []string{"auth.*"}, OnExhaustion: ojs.ExhaustToDiscard,
			}))
		require.NoError(t, err)
		require.Equal(t, ojs.StateScheduled, job.State)
		require.Equal(t, 4, job.MaxAttempts)
		require.Equal(t, int64(60_000), job.TimeoutMS)
		require.Equal(t, "v", job.Meta["k"])
		got, err := c.GetJob(ctx, job.ID)
		require.NoError(t, err)
		require.Equal(t, job, got)
		require.Equal(t, `[{"n":1}]`, string(got.RawArgs))
		require.InDelta(t, time.Hour, got.ScheduledAt.Sub(got.CreatedAt), float64(10*time.Second))

		job, err = c.Enqueue(ctx, "a", nil, ojs.WithQueue(q), func(r *ojs.JobRequest) {
			r.VisibilityTimeout, r.EnqueueTTL, r.TotalTimeout, r.HeartbeatTimeout, r.ResultTTL, r.Pending = time.Minute, time.Minute, time.Hour, time.Minute, -1, true
		})
		require.NoError(t, err)
		require.Equal(t, ojs.StatePending, job.State)
		job, err = c.Activate(ctx, job.ID)
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, job.State)
		job, err = c.CancelJob(ctx, job.ID, "why not")
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, job.PreviousState)
		require.Equal(t, "why not", node.one(`SELECT COALESCE(data->>'reason', '') FROM ojs.events WHERE job_id = $1::text::uuid AND type = 'job.cancelled'`, job.ID))
		_, err = c.CancelJob(ctx, job.ID, "")
		require.ErrorIs(t, err, ojs.ErrInvalidStateTransition)
		require.Equal(t, "cancelled", ojs.ErrorDetail(err, "current_state"))

		_, err = c.Enqueue(ctx, "Not A Type", nil)
		require.ErrorIs(t, err, ojs.ErrInvalidJobType)
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		_, err = c.Enqueue(ctx, "a", nil, ojs.WithID(got.ID))
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		page, err := admin.ListJobs(ctx, ojsadmin.JobFilter{Queues: []string{q}, States: []ojs.JobState{ojs.StateScheduled, ojs.StateCancelled}, PageOptions: ojsadmin.PageOptions{Limit: 1}})
		require.NoError(t, err)
		require.True(t, page.HasMore)
		require.Equal(t, 2, page.Total)
		page, err = admin.ListJobs(ctx, ojsadmin.JobFilter{Queues: []string{q}, PageOptions: ojsadmin.PageOptions{Limit: 1, Cursor: page.NextCursor}})
		require.NoError(t, err)
		require.Equal(t, got.ID, page.Items[0].ID)
		stats, err := admin.QueueStats(ctx, q)
		require.NoError(t, err)
		require.Equal(t, 1, stats.Scheduled)
		require.Equal(t, "active", stats.Status)
		require.NoError(t, admin.PauseQueue(ctx, q))
		stats, err = admin.QueueStats(ctx, q)
		require.NoError(t, err)
		require.Equal(t, "paused", stats.Status)
		require.NoError(t, admin.ResumeQueue(ctx, q))
		queues, err := admin.ListQueues(ctx, ojsadmin.PageOptions{Limit: 1})
		require.NoError(t, err)
		require.NotEmpty(t, queues.Items[0].Name)
	})

	t.Run("BatchBulkAndUnique", func(t *testing.T) {
		t.Parallel()
		q := queue()
		jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "a", Args: 1, Queue: q}, {Type: "b", Args: 2, Queue: q}})
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b"}, []string{jobs[0].Type, jobs[1].Type})
		_, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "a", Args: 1, Queue: q}, {Type: "B", Args: 2, Queue: q}})
		require.ErrorIs(t, err, ojs.ErrInvalidJobType)
		jobs, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "B", Args: 1, Queue: q}, {Type: "c", Args: 2, Queue: q}}, ojs.Partial())
		var refused *ojs.BatchError
		require.ErrorAs(t, err, &refused)
		require.ErrorIs(t, refused.Errors[0], ojs.ErrInvalidJobType)
		require.Equal(t, "c", jobs[1].Type)
		_, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "B", Args: 1, Queue: q}}, ojs.Partial())
		require.ErrorIs(t, err, ojs.ErrInvalidJobType)

		unique := ojs.UniquePolicy{Keys: []string{"queue", "args"}, ArgsKeys: []string{"month"}, Period: time.Hour, OnConflict: ojs.ConflictIgnore, States: []ojs.JobState{ojs.StateAvailable}}
		first, err := c.Enqueue(ctx, "u", map[string]string{"month": "1", "x": "1"}, ojs.WithQueue(q), ojs.WithUnique(unique))
		require.NoError(t, err)
		same, err := c.Enqueue(ctx, "u", map[string]string{"month": "1", "x": "2"}, ojs.WithQueue(q), ojs.WithUnique(unique))
		require.NoError(t, err)
		require.Equal(t, first.ID, same.ID)
		require.True(t, same.Deduplicated)
		jobs, err = c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "u", Args: map[string]string{"month": "1"}, Queue: q, Unique: &unique}}, ojs.Partial())
		require.NoError(t, err)
		require.True(t, jobs[0].Deduplicated)
		_, err = c.Enqueue(ctx, "u", map[string]string{"month": "1"}, ojs.WithQueue(q), ojs.WithUnique(ojs.UniquePolicy{Keys: []string{"queue", "args"}, ArgsKeys: []string{"month"}}))
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		require.Equal(t, first.ID, ojs.ErrorDetail(err, "existing_job_id"))
	})

	t.Run("Crons", func(t *testing.T) {
		t.Parallel()
		name := "cron-" + newID()
		cron, err := admin.PutCron(ctx, ojsadmin.Cron{Name: name, Expression: "0 9 * * *", Timezone: "Europe/Berlin", Overlap: ojsadmin.OverlapAllow, Description: "d", Job: ojs.JobRequest{Type: "a", Args: 1, Queue: name, Meta: map[string]any{"k": "v"}, Delay: time.Minute}})
		require.NoError(t, err)
		require.Equal(t, "0 9 * * * Europe/Berlin allow d a", strings.Join([]string{cron.Expression, cron.Timezone, string(cron.Overlap), cron.Description, cron.Type}, " "))
		require.False(t, cron.NextRunAt.IsZero())
		cron, err = admin.PauseCron(ctx, name)
		require.NoError(t, err)
		require.False(t, cron.Enabled)
		require.True(t, cron.NextRunAt.IsZero())
		_, err = admin.ResumeCron(ctx, name)
		require.NoError(t, err)
		job, err := admin.TriggerCron(ctx, name)
		require.NoError(t, err)
		require.Equal(t, ojs.StateScheduled, job.State)
		runs, err := admin.CronHistory(ctx, name, ojsadmin.PageOptions{Limit: 5})
		require.NoError(t, err)
		require.Equal(t, "manual", runs.Items[0].Outcome)
		crons, err := admin.ListCrons(ctx, ojsadmin.PageOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, crons.Items)
		got, err := admin.GetCron(ctx, name)
		require.NoError(t, err)
		require.Equal(t, 1, got.RunCount)
		require.NoError(t, admin.DeleteCron(ctx, name))
		_, err = admin.GetCron(ctx, name)
		require.ErrorIs(t, err, ojs.ErrNotFound)
	})

	t.Run("DeadLetters", func(t *testing.T) {
		t.Parallel()
		q := queue()
		one, two := node.in(t).deadLetter(q, "a", `{"code":"x"}`), node.in(t).deadLetter(q, "b", `{"code":"y"}`)
		page, err := admin.ListDeadLetters(ctx, ojsadmin.DeadLetterFilter{Queues: []string{q}, Types: []string{"a*"}, Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)})
		require.NoError(t, err)
		require.Len(t, page.Items, 1)
		require.Equal(t, one, page.Items[0].ID)
		require.NotEmpty(t, page.Items[0].Error.Code)
		job, err := admin.GetDeadLetter(ctx, two)
		require.NoError(t, err)
		require.Equal(t, two, job.ID)
		job, err = admin.RetryDeadLetter(ctx, two)
		require.NoError(t, err)
		require.Equal(t, ojs.StateAvailable, job.State)
		n, err := admin.RetryDeadLetters(ctx, ojsadmin.DeadLetterFilter{Queues: []string{q}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		three, four := node.in(t).deadLetter(q+"x", "a", `{"code":"x"}`), node.in(t).deadLetter(q+"x", "b", `{"code":"y"}`)
		require.NoError(t, admin.DeleteDeadLetter(ctx, three))
		n, err = admin.PurgeDeadLetters(ctx, ojsadmin.DeadLetterFilter{Queues: []string{q + "x"}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = admin.GetDeadLetter(ctx, four)
		require.ErrorIs(t, err, ojs.ErrNotFound)
	})

	t.Run("Webhooks", func(t *testing.T) {
		t.Parallel()
		hook, err := admin.CreateWebhook(ctx, ojsadmin.Webhook{URL: "https://hooks.acme.test/x", Events: []string{"job.completed"}, Secret: "12345678", Filter: &ojsadmin.WebhookFilter{Queues: []string{"none"}}, Ordering: ojsadmin.OrderingSubject})
		require.NoError(t, err)
		require.Equal(t, "12345678", hook.Secret)
		require.Equal(t, []string{"none"}, hook.Filter.Queues)
		off := false
		hook, err = admin.UpdateWebhook(ctx, hook.ID, ojsadmin.Webhook{Active: &off})
		require.NoError(t, err)
		require.False(t, hook.Active)
		require.Equal(t, []string{"job.completed"}, hook.Events)
		hook, err = admin.RotateWebhookSecret(ctx, hook.ID, "")
		require.NoError(t, err)
		require.NotEmpty(t, hook.Secret)
		tested, err := admin.TestWebhook(ctx, hook.ID)
		require.NoError(t, err)
		require.False(t, tested.Success)
		hooks, err := admin.ListWebhooks(ctx, ojsadmin.PageOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, hooks.Items)
		require.NoError(t, admin.DeleteWebhook(ctx, hook.ID))
		_, err = admin.GetWebhook(ctx, hook.ID)
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
		workers, err := admin.ListWorkers(ctx, ojsadmin.PageOptions{})
		require.NoError(t, err)
		require.NotEmpty(t, workers.Items)
		require.NoError(t, admin.DirectWorker(ctx, "w-list", ojs.DirectiveQuiet))
	})

	t.Run("Workflows", func(t *testing.T) {
		t.Parallel()
		q := queue()
		inner := ojs.Group(ojs.JobRequest{Type: "b", Args: 1}, ojs.JobRequest{Type: "b", Args: 2})
		inner.Name = "inner"
		chain := ojs.Chain(ojs.JobRequest{Type: "a", Args: 1}, inner, ojs.JobRequest{Type: "c", Args: 1, Delay: time.Minute})
		chain.Name, chain.Defaults = "n", &ojs.JobRequest{Queue: q}
		w, err := c.CreateWorkflow(ctx, chain)
		require.NoError(t, err)
		require.Equal(t, ojs.WorkflowRunning, w.State)
		require.Equal(t, "n", w.Name)
		got, err := c.GetWorkflow(ctx, w.ID)
		require.NoError(t, err)
		require.Equal(t, q, mustGet(t, c, got.Steps[0].JobID).Queue)
		require.Len(t, got.Steps[1].Workflow.Steps, 2)
		graph, err := c.CreateWorkflow(ctx, ojs.Graph(ojs.JobRequest{Type: "a", Args: 1, StepID: "one"}, ojs.JobRequest{Type: "a", Args: 1, StepID: "two"},
			ojs.JobRequest{Type: "b", Args: 1, StepID: "three", DependsOn: []string{"one", "two"}}))
		require.NoError(t, err)
		require.Equal(t, "dag", graph.Type)
		require.Equal(t, []string{"one", "two"}, graph.Steps[2].DependsOn)
		cancelled, err := c.CancelWorkflow(ctx, graph.ID, true)
		require.NoError(t, err)
		require.Equal(t, ojs.WorkflowCancelled, cancelled.State)
		require.Equal(t, 3, cancelled.StepsCancelled)
		list, err := admin.ListWorkflows(ctx, ojsadmin.WorkflowFilter{State: ojs.WorkflowRunning, Name: "n"})
		require.NoError(t, err)
		require.Equal(t, w.ID, list.Items[0].ID)
	})
}

func mustGet(t testing.TB, c *ojs.Client, id string) *ojs.Job {
	t.Helper()
	job, err := c.GetJob(t.Context(), id)
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
					require.Equal(t, []string{id, id, "a", q}, []string{e.Subject, e.JobID, e.JobType, e.Queue})
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
		c.Webhooks.AllowHTTP, c.Webhooks.AllowNetworks.Networks = true, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	c := sdk(t, node.url)
	admin := ojsadmin.New(c)
	hook, err := admin.CreateWebhook(t.Context(), ojsadmin.Webhook{URL: receiver.URL, Events: []string{"job.*"}, Secret: "12345678"})
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
		_, err = admin.RotateWebhookSecret(t.Context(), hook.ID, "87654321")
		require.NoError(t, err)
	}
	data, err := json.Marshal(map[string]string{"type": "job.completed"})
	require.NoError(t, err)
	res, err := http.Post(receiver.URL, "application/json", bytes.NewReader(data))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusUnauthorized, res.StatusCode)
}
