package fakeserver_test

import (
	"context"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
	"github.com/ojsd/ojsd/ojs/internal/require"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

func setup(t *testing.T) (*fakeserver.Server, *ojs.Client) {
	t.Helper()
	s := fakeserver.New()
	c, err := ojs.NewClient(ojs.Config{Transport: s})
	require.NoError(t, err)
	return s, c
}

func requireState(t *testing.T, s *fakeserver.Server, id string, state ojs.JobState) {
	t.Helper()
	require.Equal(t, state, s.Job(id).State)
}

func unique(onConflict ojs.OnConflict) ojs.JobRequest {
	return ojs.JobRequest{Type: "u", Unique: &ojs.UniquePolicy{OnConflict: onConflict}}
}

func TestUniqueInBatches(t *testing.T) {
	t.Parallel()
	ctx := t.Context()

	t.Run("ARefusedBatchReplacesNothing", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{unique("")})
		require.NoError(t, err)
		_, err = c.EnqueueBatch(ctx, []ojs.JobRequest{unique("replace"), {Type: ""}})
		require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		taken := unique("replace")
		taken.ID = jobs[0].ID
		_, err = c.EnqueueBatch(ctx, []ojs.JobRequest{taken})
		require.Error(t, err, "a job whose id is taken replaces nothing")
		requireState(t, s, jobs[0].ID, ojs.StateAvailable)
	})

	t.Run("EarlierJobsCount", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		_, err := c.EnqueueBatch(ctx, []ojs.JobRequest{unique(""), unique("")})
		require.ErrorIs(t, err, ojs.ErrDuplicateJob)
		require.Empty(t, ojs.ErrorDetail(err, "existing_job_id"), "it is not stored")
		require.Empty(t, s.Jobs(nil))

		jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{unique(""), unique("ignore"), unique("replace")})
		require.NoError(t, err)
		require.Equal(t, jobs[0].ID, jobs[1].ID)
		require.Equal(t, []bool{false, true, false}, []bool{jobs[0].Deduplicated, jobs[1].Deduplicated, jobs[2].Deduplicated})
		requireState(t, s, jobs[0].ID, ojs.StateCancelled)
		requireState(t, s, jobs[2].ID, ojs.StateAvailable)
	})

	t.Run("ReplacesExceptSchedule", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		later := unique("")
		later.Delay = time.Hour
		old, err := c.EnqueueBatch(ctx, []ojs.JobRequest{later})
		require.NoError(t, err)
		jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{unique("replace_except_schedule")})
		require.NoError(t, err)
		require.True(t, old[0].ScheduledAt.Equal(jobs[0].ScheduledAt))
		requireState(t, s, old[0].ID, ojs.StateCancelled)
		requireState(t, s, jobs[0].ID, ojs.StateScheduled)
	})
}

// TestCountOfAFetch: a fetch gets as many jobs as it asks for and there are, at least one.
func TestCountOfAFetch(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]int{-1: 1, 0: 1, 1: 1, 2: 2, 3: 3, 4: 3} {
		_, c := setup(t)
		for range 3 {
			_, err := c.Enqueue(t.Context(), "a", nil)
			require.NoError(t, err)
		}
		var answer struct{ Jobs []ojs.Job }
		for _, rest := range []int{want, min(want, 3-want)} {
			require.NoError(t, c.Do(t.Context(), ojs.Call{Method: http.MethodPost, Path: "/workers/fetch", Body: map[string]any{"queues": []string{"default"}, "count": count}}, &answer))
			require.Len(t, answer.Jobs, rest)
		}
	}
}

// TestUniqueKeys: what makes two jobs equivalent, and for how long.
func TestUniqueKeys(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	enqueue := func(args, meta map[string]any, policy ojs.UniquePolicy) (id string, err error) {
		policy.OnConflict = ojs.ConflictIgnore
		job, err := c.Enqueue(t.Context(), "u", args, ojs.WithUnique(policy), func(r *ojs.JobRequest) { r.Meta = meta })
		if err != nil {
			return "", err
		}
		return job.ID, nil
	}
	byID := ojs.UniquePolicy{ArgsKeys: []string{"id"}, Period: time.Hour}
	first, err := enqueue(map[string]any{"id": 1, "width": 100}, nil, byID)
	require.NoError(t, err)
	for width, want := range map[int]bool{100: true, 200: true} {
		again, err := enqueue(map[string]any{"id": 1, "width": width}, nil, byID)
		require.NoError(t, err)
		require.Equal(t, want, again == first, width)
	}
	other, err := enqueue(map[string]any{"id": 2}, nil, byID)
	require.NoError(t, err)
	require.False(t, other == first)
	_, err = enqueue(map[string]any{"no": 2}, nil, byID)
	require.ErrorIs(t, err, ojs.ErrInvalidPayload)
	s.Advance(time.Hour + time.Minute)
	later, err := enqueue(map[string]any{"id": 1}, nil, byID)
	require.NoError(t, err)
	require.False(t, later == first, "the first one is too old")

	byMeta := ojs.UniquePolicy{MetaKeys: []string{"tenant"}}
	one, err := enqueue(nil, map[string]any{"tenant": "a", "x": 1}, byMeta)
	require.NoError(t, err)
	same, err := enqueue(nil, map[string]any{"tenant": "a", "x": 2}, byMeta)
	require.NoError(t, err)
	require.Equal(t, one, same)
	two, err := enqueue(nil, map[string]any{"tenant": "b"}, byMeta)
	require.NoError(t, err)
	require.False(t, one == two)
}

// TestRefusals: mistakes that a server would refuse are refused here, or tests of programs would pass wrongly.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	for name, r := range map[string]ojs.JobRequest{
		"Type": {Type: "Mail Send"}, "Queue": {Type: "a", Queue: "No Such Queue!"}, "Priority": {Type: "a", Priority: 1000},
		"Strategy": {Type: "a", Retry: &ojs.RetryPolicy{BackoffStrategy: "expo"}}, "Exhaustion": {Type: "a", Retry: &ojs.RetryPolicy{OnExhaustion: "drop"}},
		"Conflict": {Type: "a", Unique: &ojs.UniquePolicy{OnConflict: "skip"}}, "Keys": {Type: "a", Unique: &ojs.UniquePolicy{Keys: []string{"arg"}}},
	} {
		_, err := c.EnqueueBatch(t.Context(), []ojs.JobRequest{r})
		var refused *ojs.Error
		require.ErrorAs(t, err, &refused, name)
		require.Contains(t, refused.Message, "'", name)
	}
	require.Empty(t, s.Jobs(nil))
}

// TestCronsFire: a cron makes one job for the ticks that an Advance passes over, and none while the one before runs.
func TestCronsFire(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, c := setup(t)
	admin := ojsadmin.New(c)
	_, err := admin.PutCron(ctx, ojsadmin.Cron{Name: "n", Expression: "@every 1h", Job: ojs.JobRequest{Type: "a", Queue: "q"}})
	require.NoError(t, err)
	require.Empty(t, s.Jobs(nil))
	s.Advance(5 * time.Hour)
	jobs := s.Jobs(nil)
	require.Len(t, jobs, 1)
	require.Equal(t, "q", jobs[0].Queue)
	require.Equal(t, "n", jobs[0].Meta["cron_name"].(string))
	s.Advance(time.Hour)
	require.Len(t, s.Jobs(nil), 1, "the job has not ended")
	s.Complete(jobs[0].ID)
	_, err = admin.PutCron(ctx, ojsadmin.Cron{Name: "n", Expression: "@every 1h", Job: ojs.JobRequest{Type: "b"}})
	require.NoError(t, err)
	s.Advance(time.Hour)
	require.Len(t, s.Jobs(nil), 2)
	info, err := admin.PauseCron(ctx, "n")
	require.NoError(t, err)
	require.True(t, info.NextRunAt.IsZero())
	require.Equal(t, 2, info.RunCount)
	s.Advance(24 * time.Hour)
	require.Len(t, s.Jobs(nil), 2)
}

// TestLimitsThatDropJobs: what a limit does to a job ends a Drain, too, and expired jobs are discarded.
func TestLimitsThatDropJobs(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	one := 1
	var ids []string
	for range 2 {
		job, err := c.Enqueue(t.Context(), "a", nil, ojs.WithRateLimit(ojs.RateLimit{Key: "k", Concurrency: &one, OnLimit: ojs.OnLimitDrop}))
		require.NoError(t, err)
		ids = append(ids, job.ID)
	}
	late, err := c.Enqueue(t.Context(), "a", nil, ojs.WithDelay(2*time.Hour), func(r *ojs.JobRequest) { r.EnqueueTTL = time.Hour })
	require.NoError(t, err)
	fetch := ojs.Call{Method: http.MethodPost, Path: "/workers/fetch", Body: map[string]any{"queues": []string{"default"}, "count": 2}}
	require.NoError(t, c.Do(t.Context(), fetch, nil))
	requireState(t, s, ids[0], ojs.StateActive)
	requireState(t, s, ids[1], ojs.StateDiscarded)
	require.Equal(t, "rate_limited", s.Job(ids[1]).Error.Code)
	s.Complete(ids[0])
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s.AwaitIdle(ctx)
	require.NoError(t, ctx.Err())
	s.Advance(time.Hour + time.Second)
	requireState(t, s, late.ID, ojs.StateDiscarded)
	require.Equal(t, "enqueue_ttl_expired", s.Job(late.ID).Error.Code)
}

// TestStatsHistory: periods have what happened in them.
func TestStatsHistory(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	job, err := c.Enqueue(t.Context(), "a", nil)
	require.NoError(t, err)
	s.Advance(2 * time.Hour)
	s.Complete(job.ID)
	points, err := ojsadmin.New(c).StatsHistory(t.Context(), ojsadmin.StatsFilter{Period: "1h", Since: time.Now()})
	require.NoError(t, err)
	require.Len(t, points, 3)
	require.Equal(t, [4]int{1, 0, 0, 1}, [4]int{points[0].Enqueued, points[0].Completed, points[2].Enqueued, points[2].Completed})
}

// TestWait: a client that waits for a job asks once, and learns of its end at once.
func TestWait(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	job, err := c.Enqueue(t.Context(), "a", nil)
	require.NoError(t, err)
	ended := make(chan *ojs.JobResult, 1)
	go func() {
		result, err := c.Wait(t.Context(), job.ID)
		if err != nil {
			result = &ojs.JobResult{}
		}
		ended <- result
	}()
	for len(s.Requests()) < 2 { // the enqueue, and that of the wait
		runtime.Gosched()
	}
	s.Complete(job.ID)
	require.Equal(t, ojs.StateCompleted, (<-ended).State)
	require.Len(t, s.Requests(), 2)
}

// TestWebhooks: tests of programs that manage subscriptions see what they have made.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, c := setup(t)
	admin := ojsadmin.New(c)
	made, err := admin.CreateWebhook(ctx, ojsadmin.Webhook{URL: "https://a.example", Events: []string{"job.*"}})
	require.NoError(t, err)
	require.Equal(t, "https://a.example", made.URL)
	require.True(t, made.Active)
	other, err := admin.CreateWebhook(ctx, ojsadmin.Webhook{URL: "https://b.example", Events: []string{"job.failed"}})
	require.NoError(t, err)
	list, err := admin.ListWebhooks(ctx, ojsadmin.PageOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, list.Total)
	require.Len(t, list.Items, 2)

	inactive := false
	changed, err := admin.UpdateWebhook(ctx, made.ID, ojsadmin.Webhook{Active: &inactive})
	require.NoError(t, err)
	require.Equal(t, made.ID, changed.ID)
	require.Equal(t, "https://a.example", changed.URL)
	require.False(t, changed.Active)
	got, err := admin.GetWebhook(ctx, made.ID)
	require.NoError(t, err)
	require.Equal(t, changed, got)
	rotated, err := admin.RotateWebhookSecret(ctx, made.ID, "a new secret")
	require.NoError(t, err)
	require.Equal(t, "a new secret", rotated.Secret)
	tested, err := admin.TestWebhook(ctx, made.ID)
	require.NoError(t, err)
	require.True(t, tested.Success)

	require.NoError(t, admin.DeleteWebhook(ctx, made.ID))
	_, err = admin.GetWebhook(ctx, made.ID)
	require.ErrorIs(t, err, ojs.ErrNotFound)
	got, err = admin.GetWebhook(ctx, other.ID)
	require.NoError(t, err)
	require.True(t, got.Active)
}
