package e2e_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestStreamEvents(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("Headers", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, path := range []string{"/ojs/v1/events/stream", "/ojs/v1/events", "/v1/events/stream", "/ojs/v1/queues/known/events"} {
			if strings.Contains(path, "known") {
				a.push(`"type":"t","args":[],"queue":"known"`)
			}
			s := a.open(path, "X-Request-Id: r1")
			require.Equal(t, []string{"text/event-stream"}, s.header["Content-Type"])
			require.Equal(t, []string{"no-cache, no-transform"}, s.header["Cache-Control"])
			require.Equal(t, "no", s.header.Get("X-Accel-Buffering"))
			require.Equal(t, "r1", s.header.Get("X-Request-Id"))
			require.Equal(t, "1.0", s.header.Get("OJS-Version"))
			head := a.do("HEAD", path, nil, "Accept: text/event-stream").is(200)
			require.Equal(t, "text/event-stream", head.header.Get("Content-Type"))
		}
	})

	t.Run("LiveFrames", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		s := a.open("/ojs/v1/events/stream?queue=" + q)
		id := a.push(`"type":"mail.send","args":[],"queue":"%s"`, q)
		require.Equal(t, id, a.fetch(q).at("jobs.0.id"))
		a.ack(id, "\"result\":{\"a\":\n\r\n1}").is(200)
		f := s.next()
		require.Equal(t, "job.enqueued", f.event)
		require.Equal(t, f.id, f.at(t, "id"))
		for path, want := range map[string]string{
			"specversion": "1.0", "type": "job.enqueued", "event": "job.enqueued", "subject": id, "job_id": id, "queue": q, "job_type": "mail.send",
			"to": "available", "data.queue": q, "source": "ojs://ojs/api",
		} {
			require.Equal(t, want, f.at(t, path), path)
		}
		require.Equal(t, "job.started", s.next().event)
		f = s.next()
		require.Equal(t, "job.completed", f.event)
		require.Equal(t, "completed", f.at(t, "to"))
		require.Equal(t, "1", f.at(t, "data.result.a"))
		require.Equal(t, f.data, a.get("/ojs/v1/events/"+f.id).is(200).body, "polling shows the same")
	})

	t.Run("Filters", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		completed := a.open("/ojs/v1/events/stream?types=job.completed,job.dead&queues=" + q)
		states := a.open("/ojs/v1/events/stream?event_types=job.state_changed&channel=queue:" + q)
		byType := a.open("/ojs/v1/events/stream?job_types=b&channel=queue%3A" + q)
		cloud := a.open("/ojs/v1/events/stream?format=cloudevents&sources=ojs://ojs/api&queue=" + q)
		first := a.push(`"type":"a","args":[],"queue":"%s"`, q)
		a.fetch(q)
		a.ack(first).is(200)
		second := a.push(`"type":"b","args":[],"queue":"%s"`, q)
		a.fetch(q)
		a.nack(second, `"error":{"message":"x","retryable":false}`).is(200)

		require.Equal(t, []string{"job.completed", "job.discarded"}, completed.events(2))
		require.Equal(t, []string{"to available", "to active", "to completed", "to available", "to active", "to discarded"}, states.events(6))
		require.Equal(t, []string{"job.enqueued", "job.started", "job.failed", "job.discarded"}, byType.events(4))
		f := cloud.next()
		require.Equal(t, "org.openjobspec.job.enqueued", f.at(t, "type"))
		require.Equal(t, "application/json", f.at(t, "datacontenttype"))
		require.Empty(t, f.at(t, "job_id"))
		require.Equal(t, "job.enqueued", cloud.next().event)

		job := a.open("/ojs/v1/events/stream?channel=job%3A" + second + "&since=2020-01-01T00:00:00Z")
		require.Equal(t, []string{"job.enqueued", "job.started", "job.failed", "job.discarded"}, job.events(4))
	})

	t.Run("Resume", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		path := "/ojs/v1/events/stream?queue=" + q
		s := a.open(path)
		for range 5 {
			a.push(`"type":"t","args":[],"queue":"%s"`, q)
		}
		var ids []string
		for range 5 {
			ids = append(ids, s.next().id)
		}
		for name, again := range map[string]*stream{
			"Header": a.open(path+"&after="+ids[3]+"&last_event_id="+ids[3], "Last-Event-ID: "+ids[1]),
			"Query":  a.open(path + "&after=" + ids[3] + "&last_event_id=" + ids[1]),
			"After":  a.open(path + "&after=" + ids[1]),
		} {
			for _, id := range ids[2:] {
				require.Equal(t, id, again.next().id, name)
			}
		}
		malformed := a.get(path, "Last-Event-ID: nonsense").fails(400, "invalid_request", "invalid_request")
		require.Equal(t, "Last-Event-ID", malformed.at("error.details.parameter"))
		// Of a log that has gone further, before a restored backup: the stream says so, and goes on at the present end.
		const future = "evt_ffffffff-ffff-7fff-bfff-ffffffffffff"
		ahead := a.open(path+"&types=job.enqueued", "Last-Event-ID: "+future)
		gap := ahead.next()
		require.Equal(t, []string{"system.gap", future}, []string{gap.event, gap.at(t, "gap_start")})
		end := a.get("/ojs/v1/events?after="+future).fails(410, "x_cursor_expired", "x_cursor_expired").at("error.details.oldest_id")
		a.get("/ojs/v1/events?queue=" + q + "&after=" + end).is(200)
		pushed := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		s.next()
		require.Equal(t, pushed, ahead.next().at(t, "job_id"))
	})

	t.Run("RefusesBeforeTheStreamBegins", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, query := range []string{"channel=x", "channel=job:1", "channel=queue:UPPER", "channel=job", "types=A", "types=a*b", "sources=*a", "since=x", "job_id=x", "format=x", "queues=%00"} {
			for _, path := range []string{"/ojs/v1/events/stream?", "/ojs/v1/queues/q/events?", "/ojs/v1/jobs/" + newID() + "/events?"} {
				r := a.get(path+query, "Accept: text/event-stream").fails(400, "invalid_request", "invalid_request")
				require.Equal(t, mediaOJS, r.header.Get("Content-Type"))
			}
		}
		for _, path := range []string{"/ojs/v1/jobs/" + newID() + "/events", "/ojs/v1/jobs/x/events", "/ojs/v1/queues/" + queue() + "/events", "/ojs/v1/jobs/" + newID() + "/progress/stream"} {
			a.get(path).fails(404, "not_found", "not_found")
		}
		require.Equal(t, "GET HEAD", allowed(a.post("/ojs/v1/events/stream", "").fails(405, "invalid_request", "method_not_allowed")))
	})
}

func TestStreamJob(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t) // it deletes events
	a := setup(t)

	t.Run("EndsWithTheJob", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","pending":true`, q)
		a.settled(id)
		s := a.open("/ojs/v1/jobs/" + id + "/events")
		ofQueue := a.open("/ojs/v1/queues/" + q + "/events")
		a.post("/ojs/v1/jobs/"+id+"/activate", "").is(200)
		a.fetch(q, `"worker_id":"w"`)
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w","active_jobs":["`+id+`"]}`).is(200)
		a.nack(id, `"requeue":true`, `"error":{"message":"x"}`).is(200)
		a.fetch(q)
		a.ack(id).is(200)
		f := s.next()
		require.Equal(t, "job.state_changed", f.event)
		require.Equal(t, []string{id, q, "t", "pending", "available"}, []string{f.at(t, "job_id"), f.at(t, "queue"), f.at(t, "type"), f.at(t, "from"), f.at(t, "to")})
		require.Regexp(t, serverTime, f.at(t, "timestamp"))
		require.Equal(t, []string{"to active", "job.heartbeat"}, s.events(2))
		f = s.next()
		require.Equal(t, []string{"requeue", "0", "active"}, []string{f.at(t, "reason"), f.at(t, "attempt"), f.at(t, "from")})
		require.Equal(t, []string{"to active", "to completed"}, s.events(2))
		s.ends()
		require.Equal(t, []string{"to available", "to active", "job.heartbeat", "to available", "to active", "to completed"}, ofQueue.events(6))
	})

	t.Run("ShowsTheLatestTransitionOfAnEndedJob", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, state := range []string{"completed", "discarded", "cancelled"} {
			id := a.jobIn(state)
			a.settled(id)
			s := a.open("/ojs/v1/jobs/" + id + "/events")
			require.Equal(t, "to "+state, s.next().name(t))
			s.ends()
			first := a.get("/ojs/v1/events?job_id=" + id).at("events.0.id")
			s = a.open("/ojs/v1/jobs/"+id+"/events", "Last-Event-ID: "+first)
			if state != "cancelled" {
				require.Equal(t, "to active", s.next().name(t))
			}
			last := s.next()
			require.Equal(t, "to "+state, last.name(t))
			s.ends()
			s = a.open("/ojs/v1/jobs/"+id+"/events", "Last-Event-ID: "+last.id)
			require.Equal(t, last, s.next())
			s.ends()
		}
	})

	t.Run("ShowsTheStateOfAnEndedJobWithoutEvents", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("discarded")
		a.settled(id)
		a.exec(`DELETE FROM ojs.events WHERE job_id = $1`, id)
		job := a.job(id)
		s := a.open("/ojs/v1/jobs/" + id + "/events")
		f := s.next()
		require.Empty(t, f.id)
		require.Equal(t, `{"job_id":"`+id+`","queue":"`+job.at("job.queue")+`","type":"`+job.at("job.type")+`","to":"discarded","timestamp":"`+
			job.at("job.discarded_at")+`"}`, f.data)
		s.ends()
		a.open("/ojs/v1/jobs/" + id + "/events?types=job.started").ends()
	})

	t.Run("EndsWhateverTheFilter", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.settled(id)
		none := a.open("/ojs/v1/jobs/" + id + "/events?sources=ojs://ojs/cron")
		typed := a.open("/ojs/v1/jobs/" + id + "/events?types=job.started")
		a.fetch(q)
		a.ack(id).is(200)
		none.ends()
		require.Equal(t, "job.started", typed.next().event)
		typed.ends()
		a.settled(id)
		a.open("/ojs/v1/jobs/" + id + "/events?types=job.started").ends()
	})

	t.Run("GoesOnAfterAnOldEnd", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("discarded")
		a.settled(id)
		first := a.get("/ojs/v1/events?job_id=" + id).at("events.0.id")
		a.post("/ojs/v1/jobs/bulk/retry", `{"job_ids":["`+id+`"]}`).is(200)
		a.settled(id)
		s := a.open("/ojs/v1/jobs/"+id+"/events", "Last-Event-ID: "+first)
		require.Equal(t, []string{"to active", "to discarded", "to available"}, s.events(3))
		a.del("/ojs/v1/jobs/" + id).is(200)
		require.Equal(t, "to cancelled", s.next().name(t))
		s.ends()
	})

	t.Run("ProgressReports", func(t *testing.T) {
		t.Parallel()
		url := dbtest.URL(t)
		a := setup(t, func(c *app.Config) { c.Database.URL = url })
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q)
		a.settled(id)
		ofJob := a.open("/ojs/v1/jobs/" + id + "/events")
		s := a.open("/ojs/v1/jobs/" + id + "/progress/stream")
		s.events(2)
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(context.Background())) }()
		_, err = conn.Exec(t.Context(), `
			WITH job AS (
				UPDATE ojs.jobs SET progress = 0.425, progress_message = 'on "it"', progress_data = E'{"rows":\n7}', progress_at = date_trunc('milliseconds', now()) WHERE id = $1 RETURNING *
			)
			INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, attempt, worker_id, data)
			SELECT 'job.progress', 'workers/w', now(), id, type, queue, attempt, 'w', '{"progress_percent":42.5,"progress_message":"on \"it\""}' FROM job`, id)
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "SELECT pg_notify('ojs_wake', '')")
		require.NoError(t, err)
		named, unnamed := s.next(), s.next()
		require.Equal(t, []string{"progress", ""}, []string{named.event, unnamed.event})
		require.Equal(t, named.id, unnamed.id)
		require.Equal(t, named.data, unnamed.data)
		require.Equal(t, []string{id, "active", "0.425", `on "it"`, "7"},
			[]string{named.at(t, "job_id"), named.at(t, "state"), named.at(t, "progress"), named.at(t, "message"), named.at(t, "data.rows")})
		f := ofJob.next()
		require.Equal(t, []string{"job.progress", "42", `on "it"`}, []string{f.event, f.at(t, "progress"), f.at(t, "message")})
		a.nack(id, `"error":{"message":"x","retryable":false}`).is(200)
		f = s.next()
		require.Equal(t, []string{"failed", "discarded", "0.425"}, []string{f.event, f.at(t, "state"), f.at(t, "progress")})
		s.ends()
	})

	// The read of the object fails once the event is there; no other event follows.
	t.Run("ProgressIsReadAgain", func(t *testing.T) {
		t.Parallel()
		url, log := dbtest.URL(t), &lockedBuffer{}
		a := setup(t, func(c *app.Config) { c.Database.URL, c.Logger = url, slog.New(slog.NewTextHandler(log, nil)) })
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		a.fetch(q, `"visibility_timeout_ms":600000`) // else the lost reservation would be another event
		a.settled(id)
		s := a.open("/ojs/v1/jobs/" + id + "/progress/stream")
		s.events(2)
		conn, err := pgx.Connect(t.Context(), url)
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(context.Background())) }()
		_, err = conn.Exec(t.Context(), `DO $$ BEGIN
			UPDATE ojs.jobs SET progress = 0.425, progress_at = now() WHERE id = '`+id+`';
			INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, attempt, worker_id, data)
			SELECT 'job.progress', 'workers/w', now(), id, type, queue, attempt, 'w', '{"progress_percent":42.5}' FROM ojs.jobs WHERE id = '`+id+`';
			ALTER TABLE ojs.jobs RENAME COLUMN checkpoint_at TO away;
			PERFORM pg_notify('ojs_wake', '');
		END $$`)
		require.NoError(t, err)
		eventually(t, func() bool { return strings.Contains(log.String(), "stream cannot read events; trying again") })
		_, err = conn.Exec(t.Context(), `ALTER TABLE ojs.jobs RENAME COLUMN away TO checkpoint_at`)
		require.NoError(t, err)
		require.Equal(t, "0.425", s.next().at(t, "progress"))
	})

	t.Run("Progress", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("active")
		a.settled(id)
		s := a.open("/ojs/v1/jobs/" + id + "/progress/stream")
		named, unnamed := s.next(), s.next()
		require.Equal(t, "progress", named.event)
		require.Empty(t, unnamed.event)
		require.Equal(t, named.id, unnamed.id)
		require.Equal(t, named.data, unnamed.data)
		require.Equal(t, []string{"active", "null", "null"}, []string{named.at(t, "state"), named.at(t, "progress"), named.at(t, "data")})
		a.ack(id).is(200)
		f := s.next()
		require.Equal(t, []string{"completed", "completed"}, []string{f.event, f.at(t, "state")})
		require.Regexp(t, serverTime, f.at(t, "updated_at"))
		s.ends()
	})
}

func TestStreamStats(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Realtime.StatsInterval = 50 * time.Millisecond })
	q := queue()
	s := a.open("/ojs/v1/admin/stats/stream")
	require.Equal(t, "metrics", s.next().event)
	id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	a.fetch(q, `"worker_id":"w"`)
	a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w"}`).is(200)
	a.nack(id).is(200)
	var live []string
	for len(live) < 2 {
		if f := s.next(); f.event != "metrics" {
			live = append(live, f.event+" "+f.at(t, "job_id")+" "+f.at(t, "error")+f.at(t, "type")+f.at(t, "job_type"))
		}
	}
	require.Equal(t, []string{"job.enqueued " + id + " tt", "job.failed " + id + " boomtt"}, live)
	eventually(t, func() bool {
		f := s.next()
		return f.event == "metrics" && f.at(t, "queues.0.retryable") == "1" && f.at(t, "queues.0.queue") == q && f.at(t, "workers.total") == "1" &&
			f.at(t, "workers.active.0.id") == "w" && f.at(t, "workers.active.0.state") == "running" && f.at(t, "error_rate") == "100"
	})
}

// TestStreamStatsIsShared: however many watch, the overview is read once per interval.
func TestStreamStatsIsShared(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Realtime.StatsInterval = time.Hour })
	first := a.open("/ojs/v1/admin/stats/stream").next()
	require.Equal(t, "[]", first.at(t, "queues"))
	id := a.push(`"type":"t","args":[]`)
	eventually(t, func() bool { return a.get("/ojs/v1/events?job_id="+id).count("events") == 1 })
	require.Equal(t, first.data, a.open("/ojs/v1/admin/stats/stream").next().data)
}
