package ojs_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// data decodes the data of an event.
func data(t testing.TB, e ojs.Event) map[string]any {
	t.Helper()
	var m map[string]any
	require.NoError(t, e.DecodeData(&m))
	return m
}

// TestWorkerEvents: "all SDKs provide an event emitter for subscribing to events on the client and worker".
func TestWorkerEvents(t *testing.T) {
	t.Parallel()

	t.Run("OutcomesThatTheServerHasTaken", func(t *testing.T) {
		t.Parallel()
		bothServers(t, func(t *testing.T, s server, c *ojs.Client) {
			w := ojs.NewWorker(c, fast(ojs.WorkerConfig{ID: "w1"}))
			started, completed, failed, cancelled := events(w, ojs.EventJobStarted), events(w, ojs.EventJobCompleted), events(w, ojs.EventJobFailed), events(w, ojs.EventJobCancelled)
			w.Register("good", func(ctx ojs.JobContext) error { return ctx.SetResult("sent") })
			w.Register("bad", func(ojs.JobContext) error { return &ojs.Failure{Code: "smtp_down", Message: "no answer"} })
			w.Register("cancel", func(ojs.JobContext) error { return ojs.Cancel() })
			ids := map[string]string{}
			for _, name := range []string{"good", "bad", "cancel"} {
				job, err := c.Enqueue(t.Context(), name, nil, ojs.WithQueue("default"))
				require.NoError(t, err)
				ids[name] = job.ID
			}
			s.Drain(t, w)
			for range 3 {
				of := data(t, receive(t, started))
				require.Equal(t, "w1", of["worker_id"].(string))
				require.Equal(t, 1.0, of["attempt"].(float64))
			}
			e := receive(t, completed)
			require.Equal(t, []string{ids["good"], ids["good"], "good", "default", "job.completed"}, []string{e.JobID, e.Subject, e.JobType, e.Queue, e.Type})
			require.Equal(t, "sent", data(t, e)["result"].(string))
			require.GreaterOrEqual(t, data(t, e)["duration_ms"].(float64), 0)
			require.Contains(t, e.Source, "w1")
			e = receive(t, failed)
			require.Equal(t, ids["bad"], e.JobID)
			require.Equal(t, "no answer", data(t, e)["error"].(map[string]any)["message"].(string))
			require.Equal(t, ids["cancel"], receive(t, cancelled).JobID)
			require.Empty(t, completed)
		})
	})

	t.Run("NotBeforeTheServerHasTakenThem", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		s.FailNext(1000, http.MethodPost, "/workers/ack*", 503, nil)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(ojs.JobContext) error { return nil })
		completed := events(w, "job.completed")
		id := enqueue(t, c)
		start(t, w)
		eventually(t, func() bool { return requested(s, "/workers/ack") > 0 })
		require.Empty(t, completed)
		s.Heal()
		require.Equal(t, id, receive(t, completed).JobID)
	})

	t.Run("OfTheWorker", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(ojs.JobContext) error { return nil })
		all := events(w, "worker.*")
		quiet, stopped := events(w, ojs.EventWorkerQuiet), events(w, ojs.EventWorkerStopped)
		stop := start(t, w)
		require.Equal(t, ojs.EventWorkerStarted, receive(t, all).Type)
		require.Equal(t, ojs.EventWorkerHeartbeat, receive(t, all).Type)
		s.Direct(ojs.DirectiveQuiet)
		receive(t, quiet)
		require.Empty(t, stopped)
		require.NoError(t, stop())
		receive(t, stopped)
	})

	t.Run("UntilTheyAreStopped", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(ojs.JobContext) error { return nil })
		first := make(chan ojs.Event, 10)
		stop := w.OnEvent("job.*", func(e ojs.Event) { first <- e })
		second := events(w, "job.completed")
		stop()
		stop()
		enqueue(t, c)
		s.Drain(t, w)
		receive(t, second)
		require.Empty(t, first)
	})

	t.Run("APanicOfAListenerHarmsNobody", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t)
		w := ojs.NewWorker(c, fast(ojs.WorkerConfig{}))
		w.Register("a", func(ojs.JobContext) error { return nil })
		w.OnEvent("*", func(ojs.Event) { panic("ouch") })
		completed := events(w, "job.completed")
		id := enqueue(t, c)
		s.Drain(t, w)
		require.Equal(t, id, receive(t, completed).JobID)
	})

	t.Run("AMisspeltTypePanics", func(t *testing.T) {
		t.Parallel()
		_, c := setup(t)
		w := ojs.NewWorker(c, ojs.WorkerConfig{})
		for _, eventType := range []string{"", "job:completed", "job.complete", "jobs.*", "cron.triggered"} {
			require.Panics(t, func() { w.OnEvent(eventType, func(ojs.Event) {}) }, eventType)
		}
		require.Panics(t, func() { c.OnEvent("job.completed", func(ojs.Event) {}) }, "a client completes no jobs")
	})
}

func TestClientEvents(t *testing.T) {
	t.Parallel()
	_, c := setup(t)
	var got []ojs.Event
	c.OnEvent("job.*", func(e ojs.Event) { got = append(got, e) })
	ctx := t.Context()
	now, err := c.Enqueue(ctx, "a", nil, ojs.WithUnique(ojs.UniquePolicy{OnConflict: ojs.ConflictIgnore}))
	require.NoError(t, err)
	_, err = c.Enqueue(ctx, "a", nil, ojs.WithUnique(ojs.UniquePolicy{OnConflict: ojs.ConflictIgnore}))
	require.NoError(t, err)
	_, err = c.Enqueue(ctx, "", nil)
	require.Error(t, err)
	jobs, err := c.EnqueueBatch(ctx, []ojs.JobRequest{{Type: "b", Queue: "q"}, {Type: "c", Delay: time.Hour}})
	require.NoError(t, err)
	_, err = c.CancelJob(ctx, now.ID, "")
	require.NoError(t, err)
	_, err = c.CancelJob(ctx, now.ID, "")
	require.True(t, errors.Is(err, ojs.ErrInvalidStateTransition))
	require.Len(t, got, 4, "nothing was made of a duplicate, or of a refusal")
	for i, want := range [][4]string{
		{"job.enqueued", now.ID, "a", "default"}, {"job.enqueued", jobs[0].ID, "b", "q"}, {"job.scheduled", jobs[1].ID, "c", "default"}, {"job.cancelled", now.ID, "a", "default"},
	} {
		require.Equal(t, want, [4]string{got[i].Type, got[i].JobID, got[i].JobType, got[i].Queue})
	}
}

// TestEventOfAServer: the job of an event is named whether its data says it or only its subject.
func TestEventOfAServer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ojs.Event{
		`{"type":"job.completed","subject":"j1","data":{"job_type":"a","queue":"q"}}`:                                                        {JobID: "j1", JobType: "a", Queue: "q"},
		`{"type":"cron.triggered","subject":"c1","data":{"job_id":"j2","queue":"q"}}`:                                                        {JobID: "j2", Queue: "q"},
		`{"type":"queue.paused","subject":"q","data":{"queue":"q"}}`:                                                                         {Queue: "q"},
		`{"type":"job.completed","subject":"j1","data":"text"}`:                                                                              {JobID: "j1"},
		`{"event":"job.completed","timestamp":"2026-02-12T10:00:00.000Z","job_id":"j3","job_type":"a","queue":"q","data":{"duration_ms":5}}`: {JobID: "j3", JobType: "a", Queue: "q"},
		`{"type":"job.completed","subject":"j1"}`:                                                                                            {JobID: "j1"},
	} {
		var e ojs.Event
		require.NoError(t, json.Unmarshal([]byte(text), &e))
		require.Equal(t, want, ojs.Event{JobID: e.JobID, JobType: e.JobType, Queue: e.Queue}, text)
	}
	var e ojs.Event
	require.NoError(t, json.Unmarshal([]byte(`{"event":"job.completed","timestamp":"2026-02-12T10:00:00.000Z","job_id":"j3","data":{}}`), &e))
	require.Equal(t, "job.completed 2026-02-12", e.Type+" "+e.Time.Format(time.DateOnly))
}
