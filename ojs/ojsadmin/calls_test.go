package ojsadmin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

// call is one call of a method, the request that it must send, and what it must make of the answer.
type call struct {
	name   string // of the method, and after a slash of the case
	run    func(ctx context.Context, c *ojsadmin.Client) (any, error)
	method string
	target string // path and query
	body   string // JSON; "": none
	answer string
	want   any
	once   bool // it is not repeated after a lost answer
}

// Times in requests are in another zone than UTC, which queries must not show.
var (
	zone  = time.FixedZone("", 3600)
	since = time.Date(2026, 3, 1, 10, 0, 0, 5e8, zone)
	until = time.Date(2026, 3, 1, 11, 0, 0, 0, zone)
	noon  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

const bounds = "since=2026-03-01T09%3A00%3A00.5Z"

// report is arguments that name their type.
type report struct {
	Month int `json:"month"`
}

func (report) JobType() string { return "report.run" }

var calls = []call{
	// jobs.go
	{
		name: "ListJobs",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListJobs(ctx, ojsadmin.JobFilter{
				States: []ojs.JobState{ojs.StateActive, ojs.StateDiscarded}, Queues: []string{"q", "r"}, Types: []string{"a"},
				PageOptions: ojsadmin.PageOptions{Limit: 2, Offset: 4, Cursor: "x"},
			})
		},
		method: "GET", target: "/jobs?cursor=x&limit=2&offset=4&queue=q%2Cr&state=active%2Cdiscarded&type=a",
		answer: `{"jobs":[{"id":"1","state":"active","args":[7]}],"pagination":{"total":5,"has_more":true,"next_cursor":"n"}}`,
		want: &ojsadmin.Page[ojs.Job]{
			Items: []ojs.Job{{ID: "1", State: ojs.StateActive, Args: []any{7.0}, RawArgs: json.RawMessage("[7]")}}, Total: 5, HasMore: true, NextCursor: "n",
		},
	},
	{
		name: "ListWorkflows",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListWorkflows(ctx, ojsadmin.WorkflowFilter{State: ojs.WorkflowRunning, Type: "chain", Name: "n m", PageOptions: ojsadmin.PageOptions{Limit: 1}})
		},
		method: "GET", target: "/workflows?limit=1&name=n+m&state=running&type=chain",
		answer: `{"workflows":[{"id":"w","state":"running"}],"pagination":{"total":1}}`,
		want:   &ojsadmin.Page[ojs.WorkflowInfo]{Items: []ojs.WorkflowInfo{{ID: "w", State: ojs.WorkflowRunning}}, Total: 1},
	},
	{
		name:   "SetPriority",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.SetPriority(ctx, "a/b", 0) },
		method: "PATCH", target: "/jobs/a%2Fb", body: `{"priority":0}`,
		answer: `{"job":{"id":"1","priority":0}}`, want: &ojs.Job{ID: "1"},
	},
	{
		name: "CancelJobs",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.CancelJobs(ctx, ojsadmin.Bulk{IDs: []string{"1", "2"}})
		},
		method: "POST", target: "/jobs/bulk/cancel", body: `{"job_ids":["1","2"]}`,
		answer: `{"total_matched":2,"succeeded":1,"skipped":1,"has_more":true,"items":[{"job_id":"1","status":"cancelled"},{"job_id":"2","status":"skipped","reason":"not found"}]}`,
		want: &ojsadmin.BulkChange{
			Matched: 2, Succeeded: 1, Skipped: 1, HasMore: true,
			Items: []ojsadmin.BulkChangeItem{{JobID: "1", Status: "cancelled"}, {JobID: "2", Status: "skipped", Reason: "not found"}},
		},
	},
	{
		name: "RetryJobs",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.RetryJobs(ctx, ojsadmin.Bulk{Filter: &ojsadmin.BulkFilter{
				Type: "a*", Queue: "q", States: []ojs.JobState{ojs.StateRetryable}, Priority: new(0), Meta: map[string]any{"k": "v"},
				EnqueuedBefore: noon, EnqueuedAfter: noon.Add(-time.Hour),
			}})
		},
		method: "POST", target: "/jobs/bulk/retry",
		body: `{"filter":{"type":"a*","queue":"q","state":["retryable"],"priority":0,"meta":{"k":"v"},
			"enqueued_before":"2026-03-01T12:00:00Z","enqueued_after":"2026-03-01T11:00:00Z"}}`,
		answer: `{"succeeded":3}`, want: &ojsadmin.BulkChange{Succeeded: 3},
	},
	{
		name: "DeleteJobs",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.DeleteJobs(ctx, ojsadmin.Bulk{Filter: &ojsadmin.BulkFilter{}, Atomic: true})
		},
		method: "POST", target: "/jobs/bulk/delete", body: `{"filter":{},"atomicity":"atomic"}`,
		answer: `{"skipped":3}`, want: &ojsadmin.BulkChange{Skipped: 3},
	},
	{
		name: "JobHistory",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.JobHistory(ctx, "1", ojsadmin.PageOptions{Limit: 2, Cursor: "x"})
		},
		method: "GET", target: "/jobs/1/history?cursor=x&limit=2",
		answer: `{"events":[{"id":"e","job_id":"1","event_type":"job.created","timestamp":"2026-03-01T12:00:00Z","data":{"a":1}}],"next_cursor":"n","total":5}`,
		want: &ojsadmin.Page[ojsadmin.HistoryRecord]{
			Items: []ojsadmin.HistoryRecord{{ID: "e", JobID: "1", Type: "job.created", Timestamp: noon, Data: json.RawMessage(`{"a":1}`)}},
			Total: 5, HasMore: true, NextCursor: "n",
		},
	},
	{
		name: "History",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.History(ctx, ojsadmin.HistoryFilter{
				Start: since, End: until, Types: []string{"t", "u"}, Queues: []string{"q"}, JobTypes: []string{"a"}, ActorTypes: []string{"worker"},
				PageOptions: ojsadmin.PageOptions{Limit: 3},
			})
		},
		method: "GET",
		target: "/history?actor_type=worker&end=2026-03-01T10%3A00%3A00Z&event_types=t%2Cu&job_types=a&limit=3&queues=q&start=2026-03-01T09%3A00%3A00.5Z",
		answer: `{"events":[],"next_cursor":null,"total_estimate":9}`,
		want:   &ojsadmin.Page[ojsadmin.HistoryRecord]{Items: []ojsadmin.HistoryRecord{}, Total: 9},
	},
	{
		name:   "Explain",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.Explain(ctx, "1") },
		method: "GET", target: "/jobs/1/explain",
		answer: `{"job_id":"1","state":"available","queue":"q","summary":"m","reasons":[{"code":"queue_paused","message":"m","since":1}],"deadline":"2026-03-01T12:00:00Z"}`,
		want: &ojsadmin.Explanation{
			JobID: "1", State: ojs.StateAvailable, Queue: "q", Summary: "m", Deadline: noon,
			Reasons: []ojsadmin.ExplainReason{{Code: "queue_paused", Message: "m", Raw: json.RawMessage(`{"code":"queue_paused","message":"m","since":1}`)}},
		},
	},

	// dead_letters.go
	{
		name: "ListDeadLetters",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListDeadLetters(ctx, ojsadmin.DeadLetterFilter{
				Queues: []string{"q", "r"}, Types: []string{"a*"}, ErrorTypes: []string{"e"}, ErrorCodes: []string{"x", "y"}, Since: since, Until: until,
				PageOptions: ojsadmin.PageOptions{Limit: 2},
			})
		},
		method: "GET",
		target: "/dead-letter?error_code=x%2Cy&error_type=e&limit=2&queue=q%2Cr&" + bounds + "&type=a%2A&until=2026-03-01T10%3A00%3A00Z",
		answer: `{"jobs":[{"id":"1"}]}`, want: &ojsadmin.Page[ojs.Job]{Items: []ojs.Job{{ID: "1"}}},
	},
	{
		name:   "GetDeadLetter",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.GetDeadLetter(ctx, "1") },
		method: "GET", target: "/dead-letter/1", answer: `{"job":{"id":"1"}}`, want: &ojs.Job{ID: "1"},
	},
	{
		name:   "RetryDeadLetter",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.RetryDeadLetter(ctx, "1") },
		method: "POST", target: "/dead-letter/1/retry", answer: `{"job":{"id":"1"}}`, want: &ojs.Job{ID: "1"}, once: true,
	},
	{
		name: "RetryDeadLetterWith",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.RetryDeadLetterWith(ctx, "1", ojsadmin.JobOverride{
				Queue: "q", Args: report{Month: 2}, Priority: new(0), Meta: map[string]any{"k": "v"}, Retry: &ojs.RetryPolicy{MaxAttempts: 9, MaxInterval: time.Minute},
			})
		},
		method: "POST", target: "/dead-letter/1/retry",
		body:   `{"override":{"queue":"q","args":[{"month":2}],"priority":0,"meta":{"k":"v"},"retry":{"max_attempts":9,"max_interval":"PT60S"}}}`,
		answer: `{"job":{"id":"1"}}`, want: &ojs.Job{ID: "1"}, once: true,
	},
	{
		name: "RetryDeadLetterWith/Nothing",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.RetryDeadLetterWith(ctx, "1", ojsadmin.JobOverride{})
		},
		method: "POST", target: "/dead-letter/1/retry", body: `{"override":{}}`, answer: `{"job":{"id":"1"}}`, want: &ojs.Job{ID: "1"}, once: true,
	},
	{
		name: "RetryDeadLetters",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.RetryDeadLetters(ctx, ojsadmin.DeadLetterFilter{Queues: []string{"q", "r"}, Since: since})
		},
		method: "POST", target: "/dead-letter/retry", body: `{"filter":{"queue":"q,r","since":"2026-03-01T09:00:00.5Z"},"confirm":true}`,
		answer: `{"succeeded":2}`, want: 2, once: true,
	},
	{
		name:   "DeleteDeadLetter",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return nil, c.DeleteDeadLetter(ctx, "1") },
		method: "DELETE", target: "/dead-letter/1", answer: `{}`, once: true,
	},
	{
		name: "PurgeDeadLetters",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.PurgeDeadLetters(ctx, ojsadmin.DeadLetterFilter{Queues: []string{"q"}, Since: since})
		},
		method: "POST", target: "/dead-letter/purge?queue=q&" + bounds, answer: `{"deleted":3}`, want: 3, once: true,
	},

	// crons.go
	{
		name: "PutCron",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.PutCron(ctx, ojsadmin.Cron{
				Name: "daily", Expression: "0 9 * * *", Timezone: "Europe/Berlin", Overlap: ojsadmin.OverlapCancelPrevious, Paused: true, Description: "d",
				Job: ojs.JobRequest{Type: "a", Args: 7, Meta: map[string]any{"k": "v"}, ID: "no", StepID: "no", Queue: "q", Delay: time.Minute},
			})
		},
		method: "POST", target: "/cron",
		body: `{"name":"daily","cron":"0 9 * * *","expression":"0 9 * * *","timezone":"Europe/Berlin","type":"a","args":[7],"meta":{"k":"v"},
			"options":{"queue":"q","delay_until":"PT60S"},"overlap_policy":"cancel_previous","enabled":false,"description":"d"}`,
		answer: `{"cron":"0 9 * * *","cron_job":{"name":"daily","overlap_policy":"skip","args":[7],"last_run_at":null,"next_run_at":"2026-03-01T12:00:00Z"}}`,
		want:   &ojsadmin.CronInfo{Name: "daily", Overlap: ojsadmin.OverlapSkip, RawArgs: json.RawMessage("[7]"), NextRunAt: noon},
	},
	{
		name: "PutCron/TypeOfArgs",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.PutCron(ctx, ojsadmin.Cron{Name: "x", Expression: "@daily", Job: ojs.JobRequest{Args: report{Month: 2}}})
		},
		method: "POST", target: "/cron", body: `{"name":"x","cron":"@daily","expression":"@daily","type":"report.run","args":[{"month":2}]}`,
		answer: `{"cron_job":{}}`, want: &ojsadmin.CronInfo{},
	},
	{
		name:   "GetCron",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.GetCron(ctx, "a/b") },
		method: "GET", target: "/cron/a%2Fb", answer: `{"cron_job":{"enabled":true,"run_count":4}}`, want: &ojsadmin.CronInfo{Enabled: true, RunCount: 4},
	},
	{
		name: "UpdateCron",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.UpdateCron(ctx, "x", ojsadmin.CronChange{
				Expression: "@daily", Timezone: "UTC", Overlap: ojsadmin.OverlapAllow, Description: new(""), Paused: new(false), Args: []int{7},
				Options: map[string]any{"priority": 5, "queue": nil},
			})
		},
		method: "PATCH", target: "/cron/x",
		body: `{"expression":"@daily","timezone":"UTC","overlap_policy":"allow","description":null,"enabled":true,"args":[7],
			"options":{"priority":5,"queue":null}}`,
		answer: `{"cron_job":{}}`, want: &ojsadmin.CronInfo{},
	},
	{
		name: "UpdateCron/Description",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.UpdateCron(ctx, "x", ojsadmin.CronChange{Description: new("d"), Paused: new(true)})
		},
		method: "PATCH", target: "/cron/x", body: `{"description":"d","enabled":false}`, answer: `{"cron_job":{}}`, want: &ojsadmin.CronInfo{},
	},
	{
		name: "UpdateCron/Nothing",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.UpdateCron(ctx, "x", ojsadmin.CronChange{})
		},
		method: "PATCH", target: "/cron/x", body: `{}`, answer: `{"cron_job":{}}`, want: &ojsadmin.CronInfo{},
	},
	{
		name:   "PauseCron",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.PauseCron(ctx, "x") },
		method: "POST", target: "/cron/x/pause", answer: `{"cron_job":{}}`, want: &ojsadmin.CronInfo{},
	},
	{
		name:   "ResumeCron",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.ResumeCron(ctx, "x") },
		method: "POST", target: "/cron/x/resume", answer: `{"cron_job":{}}`, want: &ojsadmin.CronInfo{},
	},
	{
		name:   "TriggerCron",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.TriggerCron(ctx, "x") },
		method: "POST", target: "/cron/x/trigger", answer: `{"job":{"id":"1"}}`, want: &ojs.Job{ID: "1"}, once: true,
	},
	{
		name:   "DeleteCron",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return nil, c.DeleteCron(ctx, "x") },
		method: "DELETE", target: "/cron/x", answer: `{}`, once: true,
	},
	{
		name: "ListCrons",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListCrons(ctx, ojsadmin.PageOptions{Limit: 2})
		},
		method: "GET", target: "/cron?limit=2", answer: `{"crons":[{"name":"y"}],"cron_jobs":[{"name":"x"}]}`,
		want: &ojsadmin.Page[ojsadmin.CronInfo]{Items: []ojsadmin.CronInfo{{Name: "x"}}},
	},
	{
		name: "ListCrons/OfOtherServers",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListCrons(ctx, ojsadmin.PageOptions{})
		},
		method: "GET", target: "/cron", answer: `{"crons":[{"name":"y"}]}`, want: &ojsadmin.Page[ojsadmin.CronInfo]{Items: []ojsadmin.CronInfo{{Name: "y"}}},
	},
	{
		name: "SyncCrons", // what it changes: TestSyncCrons
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.SyncCrons(ctx, ojsadmin.CronSet{Owner: "o"})
		},
		method: "GET", target: "/cron?limit=1000", answer: `{"cron_jobs":[{"name":"x","args":[],"meta":{}}]}`, want: &ojsadmin.CronSetResult{},
	},
	{
		name: "CronHistory",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.CronHistory(ctx, "x", ojsadmin.PageOptions{Offset: 2})
		},
		method: "GET", target: "/cron/x/history?offset=2",
		answer: `{"executions":[{"job_id":null,"outcome":"skipped","reason":"duplicate","scheduled_at":"2026-03-01T12:00:00Z"}]}`,
		want:   &ojsadmin.Page[ojsadmin.CronRun]{Items: []ojsadmin.CronRun{{Outcome: "skipped", Reason: "duplicate", ScheduledAt: noon}}},
	},

	// queues.go
	{
		name: "ListQueues",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListQueues(ctx, ojsadmin.PageOptions{Limit: 2})
		},
		method: "GET", target: "/queues?limit=2", answer: `{"queues":[{"name":"q","status":"paused","paused":true}]}`,
		want: &ojsadmin.Page[ojsadmin.QueueInfo]{Items: []ojsadmin.QueueInfo{{Name: "q", Status: "paused", Paused: true}}},
	},
	{
		name:   "GetQueue",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.GetQueue(ctx, "a/b") },
		method: "GET", target: "/queues/a%2Fb", answer: `{"name":"q","status":"active","depth":4,"running":1,"config":{"concurrency":3}}`,
		want: &ojsadmin.QueueDetails{
			QueueInfo: ojsadmin.QueueInfo{Name: "q", Status: "active"}, Depth: 4, Running: 1, Config: ojsadmin.QueueConfig{"concurrency": 3.0},
		},
	},
	{
		name: "CreateQueue",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return nil, c.CreateQueue(ctx, "q", ojsadmin.QueueConfig{"concurrency": 3})
		},
		method: "POST", target: "/queues", body: `{"name":"q","config":{"concurrency":3}}`, answer: `{}`, once: true,
	},
	{
		name:   "QueueConfig",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.QueueConfig(ctx, "_default") },
		method: "GET", target: "/queues/_default/config", answer: `{"config":{"concurrency":3}}`, want: ojsadmin.QueueConfig{"concurrency": 3.0},
	},
	{
		name: "ConfigureQueue",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ConfigureQueue(ctx, "q", ojsadmin.QueueConfig{"concurrency": nil, "default_timeout": 60})
		},
		method: "PUT", target: "/queues/q/config", body: `{"concurrency":null,"default_timeout":60}`,
		answer: `{"config":{"default_timeout":60}}`, want: ojsadmin.QueueConfig{"default_timeout": 60.0},
	},
	{
		name:   "PauseQueue",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return nil, c.PauseQueue(ctx, "q") },
		method: "POST", target: "/queues/q/pause", answer: `{}`,
	},
	{
		name:   "ResumeQueue",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return nil, c.ResumeQueue(ctx, "q") },
		method: "POST", target: "/queues/q/resume", answer: `{}`,
	},
	{
		name:   "DrainQueue",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.DrainQueue(ctx, "q") },
		method: "POST", target: "/queues/q/drain", answer: `{"remaining":5}`, want: 5,
	},
	{
		name: "PurgeQueue",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			deleted, more, err := c.PurgeQueue(ctx, "q", ojs.StateCompleted, ojs.StateDiscarded)
			return []any{deleted, more}, err
		},
		method: "POST", target: "/queues/q/purge", body: `{"states":["completed","discarded"],"confirm":true}`,
		answer: `{"deleted":12,"has_more":true}`, want: []any{12, true}, once: true,
	},
	{
		name: "DeleteQueue",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.DeleteQueue(ctx, "q", ojsadmin.DeleteMoves, "r")
		},
		method: "DELETE", target: "/queues/q?strategy=move&target_queue=r", answer: `{"state":"deleted"}`, want: true, once: true,
	},
	{
		name: "DeleteQueue/WithActiveJobs",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.DeleteQueue(ctx, "q", ojsadmin.DeleteDiscards, "")
		},
		method: "DELETE", target: "/queues/q?strategy=discard", answer: `{"state":"draining"}`, want: false, once: true,
	},

	// rate_limits.go
	{
		name: "ListRateLimits",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListRateLimits(ctx, ojsadmin.PageOptions{Cursor: "k"})
		},
		method: "GET", target: "/rate-limits?cursor=k", answer: `{"items":[{"key":"k","active":1}],"rate_limits":[{"key":"other"}]}`,
		want: &ojsadmin.Page[ojsadmin.RateLimitInfo]{Items: []ojsadmin.RateLimitInfo{{Key: "k", Active: 1}}},
	},
	{
		name:   "GetRateLimit",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.GetRateLimit(ctx, "tenant/k") },
		method: "GET", target: "/rate-limits/tenant%2Fk", answer: `{"key":"k","waiting":2,"override":{"limit":1}}`,
		want: &ojsadmin.RateLimitInfo{Key: "k", Waiting: 2, Override: map[string]any{"limit": 1.0}},
	},
	{
		name: "OverrideRateLimit",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.OverrideRateLimit(ctx, ojs.RateLimit{
				Key: "k", Concurrency: new(0), Rate: &ojs.Rate{Limit: 30, Period: 10 * time.Second}, Throttle: &ojs.Rate{Limit: 1, Period: time.Second}, OnLimit: ojs.OnLimitDrop,
			}, until)
		},
		method: "PUT", target: "/rate-limits/k/override",
		body:   `{"concurrency":0,"rate":{"limit":30,"period":"PT10S"},"throttle":{"limit":1,"period":"PT1S"},"expires_at":"2026-03-01T10:00:00Z"}`,
		answer: `{"key":"k"}`, want: &ojsadmin.RateLimitInfo{Key: "k"},
	},
	{
		name: "OverrideRateLimit/ForEver",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.OverrideRateLimit(ctx, ojs.RateLimit{Key: "k"}, time.Time{})
		},
		method: "PUT", target: "/rate-limits/k/override", body: `{}`, answer: `{"key":"k"}`, want: &ojsadmin.RateLimitInfo{Key: "k"},
	},
	{
		name: "EndRateLimitOverride",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return nil, c.EndRateLimitOverride(ctx, "k")
		},
		method: "DELETE", target: "/rate-limits/k/override", answer: `{}`, once: true,
	},

	// workers.go
	{
		name: "ListWorkers",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListWorkers(ctx, ojsadmin.PageOptions{Limit: 2})
		},
		method: "GET", target: "/workers?limit=2", answer: `{"items":[{"id":"w","state":"running","directive":"quiet","last_heartbeat_at":"2026-03-01T12:00:00Z"}]}`,
		want: &ojsadmin.Page[ojsadmin.WorkerInfo]{Items: []ojsadmin.WorkerInfo{{ID: "w", State: "running", Directive: ojs.DirectiveQuiet, LastHeartbeatAt: noon}}},
	},
	{
		name: "DirectWorker",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return nil, c.DirectWorker(ctx, "a/b", ojs.DirectiveTerminate)
		},
		method: "POST", target: "/admin/workers/a%2Fb/directive", body: `{"directive":"terminate"}`, answer: `{}`,
	},
	{
		name: "PutPool",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.PutPool(ctx, ojsadmin.Pool{
				Name: "p", Queues: []string{"q"}, Concurrency: 4, Strategy: "weighted", Weights: map[string]int{"q": 2}, Isolated: true,
				Starvation: &ojsadmin.Starvation{Enabled: true, RotationInterval: "PT5S", MinDispatchRatio: 0.5},
			})
		},
		method: "PUT", target: "/admin/pools/p",
		body: `{"queues":["q"],"concurrency":4,"strategy":"weighted","weights":{"q":2},"isolated":true,
			"starvation_prevention":{"enabled":true,"rotation_interval":"PT5S","min_dispatch_ratio":0.5}}`,
		answer: `{"pool":{"name":"p","concurrency":null,"workers":2,"active_jobs":3,"created_at":"2026-03-01T12:00:00Z"}}`,
		want:   &ojsadmin.PoolInfo{Pool: ojsadmin.Pool{Name: "p"}, Workers: 2, ActiveJobs: 3, CreatedAt: noon},
	},
	{
		name:   "GetPool",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.GetPool(ctx, "p") },
		method: "GET", target: "/admin/pools/p", answer: `{"pool":{"name":"p"}}`, want: &ojsadmin.PoolInfo{Pool: ojsadmin.Pool{Name: "p"}},
	},
	{
		name: "ListPools",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListPools(ctx, ojsadmin.PageOptions{Limit: 2})
		},
		method: "GET", target: "/admin/pools?limit=2", answer: `{"items":[{"name":"p"}]}`,
		want: &ojsadmin.Page[ojsadmin.PoolInfo]{Items: []ojsadmin.PoolInfo{{Pool: ojsadmin.Pool{Name: "p"}}}},
	},
	{
		name:   "DeletePool",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return nil, c.DeletePool(ctx, "p") },
		method: "DELETE", target: "/admin/pools/p", once: true,
	},

	// schemas.go
	{
		name: "RegisterSchema",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.RegisterSchema(ctx, ojsadmin.Schema{URI: "urn:a:1", Type: "a", Version: "1", Schema: json.RawMessage(`{"type":"array"}`), Enforce: new(false)})
		},
		method: "POST", target: "/schemas", body: `{"uri":"urn:a:1","type":"a","version":"1","schema":{"type":"array"},"enforce":false}`,
		answer: `{"schema":{"uri":"urn:a:1","version":"1","created_at":"2026-03-01T12:00:00Z"}}`,
		want:   &ojsadmin.Schema{URI: "urn:a:1", Version: "1", CreatedAt: noon},
	},
	{
		name:   "GetSchema/NumberedVersion",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.GetSchema(ctx, "http://x/a?b") },
		method: "GET", target: "/schemas/http:%2F%2Fx%2Fa%3Fb", answer: `{"schema":{"uri":"u","version":2,"schema":{"type":"array"}}}`,
		want: &ojsadmin.Schema{URI: "u", Version: "2", Schema: json.RawMessage(`{"type":"array"}`)},
	},
	{
		name:   "DeleteSchema",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return nil, c.DeleteSchema(ctx, "urn:a:1") },
		method: "DELETE", target: "/schemas/urn:a:1", answer: `{}`, once: true,
	},
	{
		name: "ListSchemas",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListSchemas(ctx, ojsadmin.PageOptions{Offset: 1})
		},
		method: "GET", target: "/schemas?offset=1", answer: `{"schemas":[{"uri":"u"}]}`, want: &ojsadmin.Page[ojsadmin.Schema]{Items: []ojsadmin.Schema{{URI: "u"}}},
	},

	// stats.go
	{
		name:   "Stats",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.Stats(ctx, "") },
		method: "GET", target: "/admin/stats", answer: `{"queues":5,"workers":2,"jobs":{"available":1},"uptime_seconds":60}`,
		want: &ojsadmin.Stats{Queues: 5, Workers: 2, Jobs: map[ojs.JobState]int{ojs.StateAvailable: 1}, UptimeSeconds: 60},
	},
	{
		name:   "Stats/OfAQueue",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.Stats(ctx, "q") },
		method: "GET", target: "/admin/stats?queue=q", answer: `{}`, want: &ojsadmin.Stats{},
	},
	{
		name: "StatsHistory",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.StatsHistory(ctx, ojsadmin.StatsFilter{Period: "1m", Since: since, Until: until, Queue: "q"})
		},
		method: "GET", target: "/admin/stats/history?period=1m&queue=q&" + bounds + "&until=2026-03-01T10%3A00%3A00Z",
		answer: `{"data":[{"timestamp":"2026-03-01T12:00:00Z","completed":9,"latency_p99_ms":20}]}`,
		want:   []ojsadmin.StatsPoint{{Timestamp: noon, Completed: 9, LatencyP99MS: 20}},
	},
	{
		name:   "QueueStats",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.QueueStats(ctx, "q") },
		method: "GET", target: "/queues/q/stats",
		answer: `{"status":"active","computed_at":"2026-03-01T12:00:00Z","stats":{"available":1,"active":2,"scheduled":3,"retryable":4,"discarded":5,
			"completed_last_hour":6,"failed_last_hour":7,"avg_duration_ms":8,"avg_wait_ms":9,"throughput_per_second":10}}`,
		want: &ojsadmin.QueueStats{
			Queue: "q", Status: "active", ComputedAt: noon, Available: 1, Active: 2, Scheduled: 3, Retryable: 4, Discarded: 5,
			CompletedLastHour: 6, FailedLastHour: 7, AvgDurationMS: 8, AvgWaitMS: 9, ThroughputPerSecond: 10,
		},
	},
	{
		name:   "QueuePriorities",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.QueuePriorities(ctx, "q") },
		method: "GET", target: "/queues/q/priority-stats", answer: `{"distribution":[{"priority":7,"count":1}]}`, want: []ojsadmin.PriorityCount{{Priority: 7, Count: 1}},
	},

	// webhooks.go
	{
		name: "CreateWebhook",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.CreateWebhook(ctx, ojsadmin.Webhook{
				URL: "https://x.test", Events: []string{"job.*"}, Secret: "12345678", Metadata: map[string]any{"k": "v"}, Active: new(false),
				Filter: &ojsadmin.WebhookFilter{Queues: []string{"q"}, JobTypes: []string{"a"}, Sources: []string{"s"}}, Ordering: ojsadmin.OrderingSubject,
			})
		},
		method: "POST", target: "/webhooks",
		body: `{"url":"https://x.test","events":["job.*"],"secret":"12345678","metadata":{"k":"v"},"active":false,
			"filter":{"queues":["q"],"job_types":["a"],"sources":["s"]},"ordering":"subject"}`,
		answer: `{"subscription":{"id":"h","ordering":"subject"},"secret":"12345678"}`,
		want:   &ojsadmin.WebhookInfo{ID: "h", Ordering: ojsadmin.OrderingSubject, Secret: "12345678"}, once: true,
	},
	{
		name:   "GetWebhook/AtTheTopLevel",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.GetWebhook(ctx, "h") },
		method: "GET", target: "/webhooks/h", answer: `{"id":"h","active":true}`, want: &ojsadmin.WebhookInfo{ID: "h", Active: true},
	},
	{
		name: "UpdateWebhook",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.UpdateWebhook(ctx, "h", ojsadmin.Webhook{Active: new(true)})
		},
		method: "PATCH", target: "/webhooks/h", body: `{"active":true}`, answer: `{"id":"h"}`, want: &ojsadmin.WebhookInfo{ID: "h"},
	},
	{
		name: "UpdateWebhook/Secret",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.UpdateWebhook(ctx, "h", ojsadmin.Webhook{Secret: "12345678"})
		},
		method: "PATCH", target: "/webhooks/h", body: `{"secret":"12345678"}`, answer: `{"id":"h"}`, want: &ojsadmin.WebhookInfo{ID: "h"}, once: true,
	},
	{
		name:   "DeleteWebhook",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return nil, c.DeleteWebhook(ctx, "h") },
		method: "DELETE", target: "/webhooks/h", once: true,
	},
	{
		name: "ListWebhooks",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListWebhooks(ctx, ojsadmin.PageOptions{Limit: 2})
		},
		method: "GET", target: "/webhooks?limit=2", answer: `{"subscriptions":[{"id":"h"}]}`,
		want: &ojsadmin.Page[ojsadmin.WebhookInfo]{Items: []ojsadmin.WebhookInfo{{ID: "h"}}},
	},
	{
		name:   "RotateWebhookSecret",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.RotateWebhookSecret(ctx, "h", "") },
		method: "POST", target: "/webhooks/h/rotate-secret", body: `{}`, answer: `{"id":"h","secret":"new"}`,
		want: &ojsadmin.WebhookInfo{ID: "h", Secret: "new"}, once: true,
	},
	{
		name: "RotateWebhookSecret/Given",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.RotateWebhookSecret(ctx, "h", "12345678")
		},
		method: "POST", target: "/webhooks/h/rotate-secret", body: `{"secret":"12345678"}`, answer: `{"id":"h"}`, want: &ojsadmin.WebhookInfo{ID: "h"}, once: true,
	},
	{
		name:   "TestWebhook",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.TestWebhook(ctx, "h") },
		method: "POST", target: "/webhooks/h/test", answer: `{"success":false,"status_code":404,"error":"e","delivery_id":"d"}`,
		want: &ojsadmin.WebhookTest{StatusCode: 404, Error: "e", DeliveryID: "d"}, once: true,
	},
	{
		name: "ReplayWebhook",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ReplayWebhook(ctx, "h", noon, noon.Add(time.Hour), true)
		},
		method: "POST", target: "/webhooks/h/replay", body: `{"since":"2026-03-01T12:00:00Z","until":"2026-03-01T13:00:00Z","only":"all"}`,
		answer: `{"enqueued":3}`, want: 3, once: true,
	},
	{
		name: "ReplayWebhook/OnlyFailed",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ReplayWebhook(ctx, "h", noon, time.Time{}, false)
		},
		method: "POST", target: "/webhooks/h/replay", body: `{"since":"2026-03-01T12:00:00Z"}`, answer: `{"enqueued":0}`, want: 0, once: true,
	},
	{
		name: "ListDeliveries",
		run: func(ctx context.Context, c *ojsadmin.Client) (any, error) {
			return c.ListDeliveries(ctx, ojsadmin.DeliveryFilter{
				SubscriptionID: "h", Status: "dead", EventType: "t", EventID: "e", Since: since, Until: until, PageOptions: ojsadmin.PageOptions{Limit: 2},
			})
		},
		method: "GET",
		target: "/webhooks/deliveries?event_id=e&event_type=t&limit=2&" + bounds + "&status=dead&subscription_id=h&until=2026-03-01T10%3A00%3A00Z",
		answer: `{"deliveries":[{"id":"d","last_status_code":404}]}`,
		want:   &ojsadmin.Page[ojsadmin.Delivery]{Items: []ojsadmin.Delivery{{ID: "d", LastStatusCode: 404}}},
	},
	{
		name:   "GetDelivery",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.GetDelivery(ctx, "d") },
		method: "GET", target: "/webhooks/deliveries/d", answer: `{"delivery":{"id":"d","attempts":[{"attempt":1,"status_code":404}]}}`,
		want: &ojsadmin.Delivery{ID: "d", Attempts: []ojsadmin.DeliveryAttempt{{Attempt: 1, StatusCode: 404}}},
	},
	{
		name:   "GetDelivery/AtTheTopLevel",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return c.GetDelivery(ctx, "d") },
		method: "GET", target: "/webhooks/deliveries/d", answer: `{"id":"d"}`, want: &ojsadmin.Delivery{ID: "d"},
	},
	{
		name:   "RetryDelivery",
		run:    func(ctx context.Context, c *ojsadmin.Client) (any, error) { return nil, c.RetryDelivery(ctx, "d") },
		method: "POST", target: "/webhooks/deliveries/d/retry", answer: `{}`, once: true,
	},
}

// TestCalls runs each method against an answer, a refusal and a lost answer.
func TestCalls(t *testing.T) {
	t.Parallel()
	methods := map[string]bool{}
	for client, i := reflect.TypeFor[*ojsadmin.Client](), 0; i < client.NumMethod(); i++ {
		methods[client.Method(i).Name] = true
	}
	for _, call := range calls {
		method, _, _ := strings.Cut(call.name, "/")
		delete(methods, method)
		t.Run(call.name, func(t *testing.T) {
			t.Parallel()
			t.Run("Answered", func(t *testing.T) {
				t.Parallel()
				s, c := setup(t, ok(call.answer))
				got, err := call.run(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				sent := s.requests[0]
				equal(t, "request", sent.method+" "+sent.target, call.method+" "+call.target)
				equal(t, "body", decoded(t, sent.body), decoded(t, call.body))
				equal(t, "result", got, call.want)
			})
			t.Run("Refused", func(t *testing.T) {
				t.Parallel()
				s, c := setup(t, answer{http.StatusNotFound, `{"error":{"code":"not_found","message":"m"}}`})
				got, err := call.run(t.Context(), c)
				if !errors.Is(err, ojs.ErrNotFound) {
					t.Errorf("got %v", err)
				}
				if v := reflect.ValueOf(got); v.Kind() == reflect.Pointer && !v.IsNil() {
					t.Errorf("got %v beside the error", got)
				}
				equal(t, "requests", len(s.requests), 1)
			})
			t.Run("AnswerLost", func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { // the client waits before it repeats a request
					s, c := setup(t, answer{}, ok(call.answer))
					got, err := call.run(t.Context(), c)
					if call.once {
						if !ojs.OutcomeUnknown(err) {
							t.Errorf("got %v", err)
						}
						equal(t, "requests", len(s.requests), 1)
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					equal(t, "result", got, call.want)
					equal(t, "requests", len(s.requests), 2)
					equal(t, "repetition", s.requests[1], s.requests[0])
				})
			})
		})
	}
	equal(t, "methods without a case", methods, map[string]bool{})
}

// TestBulkKeys: the key of a bulk change has the server answer a repetition as it did the first time; another call has another one.
func TestBulkKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := setup(t, answer{}, answer{http.StatusUnprocessableEntity, `{"skipped":1}`})
		for range 2 {
			change, err := c.RetryJobs(t.Context(), ojsadmin.Bulk{IDs: []string{"1"}})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "change", change, &ojsadmin.BulkChange{Skipped: 1})
		}
		var keys []string
		for _, r := range s.requests {
			keys = append(keys, r.header.Get("Idempotency-Key"))
		}
		if len(keys) != 3 || keys[0] == "" || keys[0] != keys[1] || keys[1] == keys[2] {
			t.Errorf("got %q", keys)
		}
	})
}

// TestAnswerMembers: each type reads all members of an object of docs/reference under the names that are there. Encoding it again
// gives the same object, so a member with another name, or a field that is not listed here, is a difference.
func TestAnswerMembers(t *testing.T) {
	t.Parallel()
	for text, into := range map[string]any{
		`{"name":"n","expression":"@daily","timezone":"UTC","type":"a","args":[1],"meta":{"k":1},"options":{"queue":"q"},"overlap_policy":"allow",
			"enabled":true,"description":"d","last_run_at":"2026-03-01T12:00:00Z","next_run_at":"2026-03-01T12:00:01Z","run_count":2,
			"created_at":"2026-03-01T12:00:02Z"}`: &ojsadmin.CronInfo{},
		`{"job_id":"1","state":"active","outcome":"fired","reason":"r","scheduled_at":"2026-03-01T12:00:00Z"}`:                              &ojsadmin.CronRun{},
		`{"id":"e","job_id":"1","event_type":"t","timestamp":"2026-03-01T12:00:00Z","actor":{"type":"worker","id":"w"},"data":{"a":1}}`:     &ojsadmin.HistoryRecord{},
		`{"name":"q","status":"paused","paused":true,"depth":1,"running":2,"config":{"concurrency":3},"created_at":"2026-03-01T12:00:00Z"}`: &ojsadmin.QueueDetails{},
		`{"uri":"u","type":"t","version":"1","schema":{"type":"array"},"enforce":true,"created_at":"2026-03-01T12:00:00Z"}`:                 &ojsadmin.Schema{},
		`{"success":true,"status_code":200,"error":"e","delivery_id":"d"}`:                                                                  &ojsadmin.WebhookTest{},
		`{"attempt":1,"started_at":"2026-03-01T12:00:00Z","duration_ms":2,"status_code":404,"error":"e","response_snippet":"s"}`:            &ojsadmin.DeliveryAttempt{},
		`{"total_matched":1,"succeeded":2,"skipped":3,"has_more":true,"items":[{"job_id":"1","status":"skipped","reason":"r"}]}`:            &ojsadmin.BulkChange{},
		`{"job_id":"1","state":"active","queue":"q","running":true,"summary":"s","reasons":null,"estimate":{"wait_seconds":1.5,"starts_at":"2026-03-01T12:00:00Z"},
			"deadline":"2026-03-01T12:00:01Z"}`: &ojsadmin.Explanation{},
		`{"key":"k","concurrency":{"limit":1,"active":2,"available":3},
			"rate":{"limit":4,"period":"PT5S","current_count":6,"window_resets_at":"2026-03-01T12:00:00Z"},
			"throttle":{"limit":7,"period":"PT8S","next_allowed_at":"2026-03-01T12:00:01Z"},
			"active":9,"waiting":10,"blocked_until":"2026-03-01T12:00:02Z","override":{"limit":11}}`: &ojsadmin.RateLimitInfo{},
		`{"id":"w","state":"running","directive":"quiet","queues":["q"],"concurrency":1,"active_jobs":2,"hostname":"h","pid":3,
			"last_heartbeat_at":"2026-03-01T12:00:00Z"}`: &ojsadmin.WorkerInfo{},
		`{"name":"p","queues":["q"],"concurrency":1,"strategy":"weighted","weights":{"q":2},"isolated":true,
			"starvation_prevention":{"enabled":true,"rotation_interval":"PT5S","min_dispatch_ratio":0.5},
			"workers":3,"active_jobs":4,"created_at":"2026-03-01T12:00:00Z","updated_at":"2026-03-01T12:00:01Z"}`: &ojsadmin.PoolInfo{},
		`{"queues":1,"workers":2,"jobs":{"active":3},"throughput":{"processed_per_minute":4,"failed_per_minute":5,"avg_latency_ms":6},"uptime_seconds":7}`: &ojsadmin.Stats{},
		`{"timestamp":"2026-03-01T12:00:00Z","enqueued":1,"completed":2,"failed":3,"discarded":4,"cancelled":5,"latency_p50_ms":6,"latency_p99_ms":7}`:     &ojsadmin.StatsPoint{},
		`{"id":"h","url":"u","events":["job.*"],"filter":{"queues":["q"],"job_types":["a"],"sources":["s"]},"metadata":{"k":1},"active":true,
			"ordering":"subject","secret":"s","success_count":1,"failure_count":2,"disabled_reason":"r","created_at":"2026-03-01T12:00:00Z",
			"last_delivery_at":"2026-03-01T12:00:01Z"}`: &ojsadmin.WebhookInfo{},
		`{"id":"d","subscription_id":"h","event_id":"e","event_type":"t","subject":"1","status":"dead","attempt_count":1,"last_status_code":404,
			"last_error":"e","next_attempt_at":"2026-03-01T12:00:00Z","created_at":"2026-03-01T12:00:01Z","completed_at":"2026-03-01T12:00:02Z",
			"request_body":{"a":1},"attempts":null}`: &ojsadmin.Delivery{},
	} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Errorf("%T: %v", into, err)
			continue
		}
		again, err := json.Marshal(into)
		if err != nil {
			t.Errorf("%T: %v", into, err)
			continue
		}
		equal(t, reflect.TypeOf(into).String(), decoded(t, string(again)), decoded(t, text))
	}
}
