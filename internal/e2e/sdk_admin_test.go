package e2e_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

// TestSDKAdmin runs the calls of the client for operators against a node, each on a queue of its own.
func TestSDKAdmin(t *testing.T) {
	t.Parallel()
	node := setup(t, func(c *app.Config) {
		c.Webhooks.AllowHTTP, c.Webhooks.AllowNetworks.Networks = true, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	client := sdk(t, node.url)
	c := ojsadmin.New(client)

	// enqueue makes jobs of type a with the arguments 0, 1, …
	enqueue := func(t *testing.T, q string, n int, options ...ojs.EnqueueOption) []string {
		requests := make([]ojs.JobRequest, n)
		for i := range requests {
			requests[i] = ojs.JobRequest{Type: "a", Args: i, Queue: q}
			for _, option := range options {
				option(&requests[i])
			}
		}
		jobs, err := client.EnqueueBatch(t.Context(), requests)
		require.NoError(t, err)
		ids := make([]string, n)
		for i, j := range jobs {
			ids[i] = j.ID
		}
		return ids
	}

	for name, run := range map[string]func(t *testing.T, q string){
		"BulkChanges": func(t *testing.T, q string) {
			ids := enqueue(t, q, 3)
			change, err := c.CancelJobs(t.Context(), ojsadmin.Bulk{IDs: []string{ids[0], newID()}})
			require.NoError(t, err)
			require.Equal(t, []int{1, 1}, []int{change.Succeeded, change.Skipped})
			require.Equal(t, ojsadmin.BulkChangeItem{JobID: ids[0], Status: "cancelled"}, change.Items[0])
			require.Equal(t, "not found", change.Items[1].Reason)
			change, err = c.CancelJobs(t.Context(), ojsadmin.Bulk{Filter: &ojsadmin.BulkFilter{Queue: q, Type: "a*", EnqueuedAfter: time.Now().Add(-time.Hour), EnqueuedBefore: time.Now().Add(time.Hour)}})
			require.NoError(t, err)
			require.Equal(t, 2, change.Matched)
			change, err = c.DeleteJobs(t.Context(), ojsadmin.Bulk{Filter: &ojsadmin.BulkFilter{Queue: q, States: []ojs.JobState{ojs.StateCancelled}}, Atomic: true})
			require.NoError(t, err)
			require.Equal(t, 3, change.Succeeded)
			dead := node.in(t).deadLetter(q, "a", `{"code":"x"}`)
			change, err = c.RetryJobs(t.Context(), ojsadmin.Bulk{IDs: []string{dead}})
			require.NoError(t, err)
			require.Equal(t, "retried", change.Items[0].Status)
			change, err = c.RetryJobs(t.Context(), ojsadmin.Bulk{IDs: []string{dead}})
			require.NoError(t, err, "no job was changed, which is an answer like the others")
			require.Equal(t, 1, change.Skipped)
			_, err = c.DeleteJobs(t.Context(), ojsadmin.Bulk{})
			require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		},
		"Lists": func(t *testing.T, q string) {
			ids := enqueue(t, q, 5)
			var read []string
			for job, err := range ojsadmin.All(func(page ojsadmin.PageOptions) (*ojsadmin.Page[ojs.Job], error) {
				page.Limit = 2
				return c.ListJobs(t.Context(), ojsadmin.JobFilter{Queues: []string{q}, PageOptions: page})
			}) {
				require.NoError(t, err)
				read = append(read, job.ID)
			}
			require.ElementsMatch(t, ids, read)
		},
		"History": func(t *testing.T, q string) {
			id := node.in(t).busy(q, "")
			node.in(t).ack(id).is(200)
			node.in(t).settled(id)
			var types []string
			for record, err := range ojsadmin.All(func(page ojsadmin.PageOptions) (*ojsadmin.Page[ojsadmin.HistoryRecord], error) {
				page.Limit = 2
				return c.JobHistory(t.Context(), id, page)
			}) {
				require.NoError(t, err)
				require.Equal(t, id, record.JobID)
				types = append(types, record.Type)
			}
			require.Contains(t, types, "job.attempt_started")
			require.Contains(t, types, "job.attempt_completed")
			page, err := c.History(t.Context(), ojsadmin.HistoryFilter{Queues: []string{q}, Types: []string{"job.attempt_completed"}, Start: time.Now().Add(-time.Hour), End: time.Now().Add(time.Hour)})
			require.NoError(t, err)
			require.Equal(t, id, page.Items[0].JobID)
			require.NotEmpty(t, page.Items[0].Actor.Type)
		},
		"ExplainAndPriority": func(t *testing.T, q string) {
			id := enqueue(t, q, 1)[0]
			require.NoError(t, c.PauseQueue(t.Context(), q))
			e, err := c.Explain(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, []any{"queue_paused", e.Summary, false, ojs.StateAvailable}, []any{e.Reasons[0].Code, e.Reasons[0].Message, e.Running, e.State})
			require.Contains(t, string(e.Reasons[0].Raw), "since")
			_, err = c.Explain(t.Context(), newID())
			require.ErrorIs(t, err, ojs.ErrNotFound)
			job, err := c.SetPriority(t.Context(), id, 7)
			require.NoError(t, err)
			require.Equal(t, 7, job.Priority)
			counts, err := c.QueuePriorities(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, []ojsadmin.PriorityCount{{Priority: 7, Count: 1}}, counts)
		},
		"Schemas": func(t *testing.T, q string) {
			uri := "urn:schemas/" + q + ":1"
			made, err := c.RegisterSchema(t.Context(), ojsadmin.Schema{URI: uri, Type: "schema." + q, Version: "1", Schema: []byte(`{"type":"array"}`)})
			require.NoError(t, err)
			require.False(t, made.CreatedAt.IsZero())
			got, err := c.GetSchema(t.Context(), uri)
			require.NoError(t, err)
			require.JSONEq(t, `{"type":"array"}`, string(got.Schema))
			page, err := c.ListSchemas(t.Context(), ojsadmin.PageOptions{})
			require.NoError(t, err)
			require.NotEmpty(t, page.Items)
			// Of another client, which has sent the version as a number.
			require.NoError(t, client.Do(t.Context(), ojs.Call{Method: http.MethodPost, Path: "/schemas", Body: map[string]any{"uri": uri + "2", "type": "schema." + q, "version": 2, "schema": map[string]any{}}}, nil))
			got, err = c.GetSchema(t.Context(), uri+"2")
			require.NoError(t, err)
			require.Equal(t, "2", got.Version)
			require.NoError(t, c.DeleteSchema(t.Context(), uri))
			_, err = c.GetSchema(t.Context(), uri)
			require.ErrorIs(t, err, ojs.ErrNotFound)
		},
		"RateLimits": func(t *testing.T, q string) {
			one, five := 1, 5
			limit := ojs.RateLimit{Key: q, Concurrency: &one, Rate: &ojs.Rate{Limit: 30, Period: 10 * time.Second}, Throttle: &ojs.Rate{Limit: 1000, Period: time.Second}, OnLimit: ojs.OnLimitWait}
			enqueue(t, q, 2, ojs.WithRateLimit(limit))
			info, err := c.GetRateLimit(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, []any{q, 1, 30, "PT10S", 1000, 2}, []any{info.Key, info.Concurrency.Limit, info.Rate.Limit, info.Rate.Period, info.Throttle.Limit, info.Waiting})
			info, err = c.OverrideRateLimit(t.Context(), ojs.RateLimit{Key: q, Concurrency: &five}, time.Now().Add(time.Hour))
			require.NoError(t, err)
			require.Equal(t, 5, info.Concurrency.Limit)
			require.NotEmpty(t, info.Override["expires_at"])
			require.NoError(t, c.EndRateLimitOverride(t.Context(), q))
			found := false
			for l, err := range ojsadmin.All(func(page ojsadmin.PageOptions) (*ojsadmin.Page[ojsadmin.RateLimitInfo], error) {
				return c.ListRateLimits(t.Context(), page)
			}) {
				require.NoError(t, err)
				found = found || l.Key == q && l.Concurrency.Limit == 1
			}
			require.True(t, found)
		},
		"CronUpdate": func(t *testing.T, q string) {
			_, err := c.PutCron(t.Context(), ojsadmin.Cron{Name: q, Expression: "0 9 * * *", Description: "d", Job: ojs.JobRequest{Type: "a", Args: 1, Queue: q, Priority: 3}})
			require.NoError(t, err)
			none, paused := "", true
			cron, err := c.UpdateCron(t.Context(), q, ojsadmin.CronChange{Expression: "0 10 * * *", Timezone: "Europe/Berlin", Overlap: ojsadmin.OverlapAllow, Description: &none, Paused: &paused, Args: []int{7}, Options: map[string]any{"priority": 5}})
			require.NoError(t, err)
			require.Equal(t, []any{"0 10 * * *", "Europe/Berlin", ojsadmin.OverlapAllow, "", false, "[7]", q}, []any{cron.Expression, cron.Timezone, cron.Overlap, cron.Description, cron.Enabled, string(cron.RawArgs), cron.Options["queue"]})
			require.InDelta(t, 5, cron.Options["priority"], 0)
			cron, err = c.UpdateCron(t.Context(), q, ojsadmin.CronChange{})
			require.NoError(t, err)
			require.Equal(t, "0 10 * * *", cron.Expression)
		},
		"SyncCrons": func(t *testing.T, q string) {
			sync := func(crons ...ojsadmin.Cron) *ojsadmin.CronSetResult {
				result, err := c.SyncCrons(t.Context(), ojsadmin.CronSet{Owner: q, Crons: crons})
				require.NoError(t, err)
				return result
			}
			plain := ojsadmin.Cron{Name: q + ".plain", Expression: "@every 1h", Job: ojs.JobRequest{Type: "a"}}
			full := ojsadmin.Cron{
				Name: q + ".full", Expression: "0 9 * * *", Timezone: "Europe/Berlin", Overlap: ojsadmin.OverlapAllow, Paused: true, Description: "d",
				Job: ojs.JobRequest{
					Type: "a", Args: []any{int64(9007199254740993), "x<y", 1.5, map[string]any{"k": nil}}, Meta: map[string]any{"n": 1, "big": int64(1) << 60},
					Queue: q, Priority: 5, Tags: []string{"t"}, Delay: time.Minute, Timeout: time.Minute, ResultTTL: time.Hour,
					Retry:  &ojs.RetryPolicy{MaxAttempts: 2, InitialInterval: time.Second, BackoffCoefficient: 1.5},
					Unique: &ojs.UniquePolicy{Keys: []string{"args"}, Period: time.Hour, OnConflict: ojs.ConflictIgnore},
				},
			}
			require.Equal(t, &ojsadmin.CronSetResult{Created: []string{full.Name, plain.Name}}, sync(plain, full))
			require.Equal(t, &ojsadmin.CronSetResult{}, sync(plain, full))
			_, err := c.TriggerCron(t.Context(), plain.Name)
			require.NoError(t, err)
			before, err := c.GetCron(t.Context(), plain.Name)
			require.NoError(t, err)

			plain.Job.Meta = map[string]any{"k": "v"}
			require.Equal(t, &ojsadmin.CronSetResult{Updated: []string{plain.Name}, Deleted: []string{full.Name}}, sync(plain))
			after, err := c.GetCron(t.Context(), plain.Name)
			require.NoError(t, err)
			require.Equal(t, map[string]any{"k": "v", ojsadmin.MetaCronOwner: q}, after.Meta)
			require.Equal(t, []any{1, before.NextRunAt}, []any{after.RunCount, after.NextRunAt})
			history, err := c.CronHistory(t.Context(), plain.Name, ojsadmin.PageOptions{})
			require.NoError(t, err)
			require.Len(t, history.Items, 1)
			_, err = c.GetCron(t.Context(), full.Name)
			require.ErrorIs(t, err, ojs.ErrNotFound)
			_, err = c.SyncCrons(t.Context(), ojsadmin.CronSet{Owner: q + "x", Crons: []ojsadmin.Cron{plain}})
			require.ErrorContains(t, err, plain.Name)
		},
		"DeadLetterOverride": func(t *testing.T, q string) {
			high := 9
			job, err := c.RetryDeadLetterWith(t.Context(), node.in(t).deadLetter(q, "a", `{"code":"x"}`),
				ojsadmin.JobOverride{Queue: q + "x", Args: map[string]int{"n": 2}, Priority: &high, Meta: map[string]any{"k": "v"}, Retry: &ojs.RetryPolicy{MaxAttempts: 9}})
			require.NoError(t, err)
			require.Equal(t, []any{ojs.StateAvailable, q + "x", `[{"n":2}]`, 9, "v", 9}, []any{job.State, job.Queue, string(job.RawArgs), job.Priority, job.Meta["k"], job.MaxAttempts})
		},
		"Deliveries": func(t *testing.T, q string) {
			receiver := httptest.NewServer(http.NotFoundHandler())
			t.Cleanup(receiver.Close)
			hook, err := c.CreateWebhook(t.Context(), ojsadmin.Webhook{URL: receiver.URL, Events: []string{"job.enqueued"}, Secret: "12345678", Filter: &ojsadmin.WebhookFilter{Queues: []string{q}}})
			require.NoError(t, err)
			id := enqueue(t, q, 1)[0]
			filter := ojsadmin.DeliveryFilter{SubscriptionID: hook.ID, EventType: "job.enqueued", Since: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour)}
			var d *ojsadmin.Delivery
			eventually(t, func() bool {
				page, err := c.ListDeliveries(t.Context(), filter)
				require.NoError(t, err)
				if len(page.Items) == 0 || page.Items[0].AttemptCount == 0 {
					return false
				}
				d, err = c.GetDelivery(t.Context(), page.Items[0].ID)
				require.NoError(t, err)
				return true
			})
			require.Equal(t, []any{id, 404}, []any{d.Subject, d.Attempts[0].StatusCode})
			require.NotEmpty(t, d.RequestBody)
			require.NoError(t, c.RetryDelivery(t.Context(), d.ID))
			_, err = c.ReplayWebhook(t.Context(), hook.ID, time.Now().Add(-time.Hour), time.Time{}, false)
			require.NoError(t, err)
		},
		"Queues": func(t *testing.T, q string) {
			require.NoError(t, c.CreateQueue(t.Context(), q, ojsadmin.QueueConfig{"concurrency": 3}))
			require.ErrorIs(t, c.CreateQueue(t.Context(), q, nil), ojs.ErrQueueExists)
			config, err := c.ConfigureQueue(t.Context(), q, ojsadmin.QueueConfig{"concurrency": nil, "default_timeout": 60})
			require.NoError(t, err)
			require.NotContains(t, config, "concurrency")
			config, err = c.QueueConfig(t.Context(), q)
			require.NoError(t, err)
			require.Contains(t, config, "default_timeout")
			enqueue(t, q, 2)
			remaining, err := c.DrainQueue(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, 2, remaining)
			details, err := c.GetQueue(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, []any{q, "draining", 2}, []any{details.Name, details.Status, details.Depth})
			require.NoError(t, c.ResumeQueue(t.Context(), q))
			deleted, more, err := c.PurgeQueue(t.Context(), q, ojs.StateAvailable)
			require.NoError(t, err)
			require.Equal(t, []any{2, false}, []any{deleted, more})
			id := enqueue(t, q, 1)[0]
			_, err = c.DeleteQueue(t.Context(), q, ojsadmin.DeleteIfEmpty, "")
			require.ErrorIs(t, err, ojs.ErrInvalidStateTransition)
			done, err := c.DeleteQueue(t.Context(), q, ojsadmin.DeleteMoves, q+"x")
			require.NoError(t, err)
			require.True(t, done)
			require.Equal(t, q+"x", mustGet(t, client, id).Queue)
		},
		"Pools": func(t *testing.T, q string) {
			made, err := c.PutPool(t.Context(), ojsadmin.Pool{Name: q, Queues: []string{q}, Concurrency: 4, Strategy: "weighted", Weights: map[string]int{q: 2}, Starvation: &ojsadmin.Starvation{Enabled: true, RotationInterval: "PT5S"}})
			require.NoError(t, err)
			got, err := c.GetPool(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, made, got)
			require.Equal(t, []any{q, 4, 2, true}, []any{got.Name, got.Concurrency, got.Weights[q], got.Starvation.Enabled})
			page, err := c.ListPools(t.Context(), ojsadmin.PageOptions{})
			require.NoError(t, err)
			require.NotEmpty(t, page.Items)
			require.NoError(t, c.DeletePool(t.Context(), q))
			_, err = c.GetPool(t.Context(), q)
			require.ErrorIs(t, err, ojs.ErrNotFound)
		},
		"Stats": func(t *testing.T, q string) {
			enqueue(t, q, 2)
			stats, err := c.Stats(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, 2, stats.Jobs[ojs.StateAvailable])
			points, err := c.StatsHistory(t.Context(), ojsadmin.StatsFilter{Period: "1m", Since: time.Now().Add(-10 * time.Minute), Queue: q})
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(points), 10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, queue())
		})
	}
}
