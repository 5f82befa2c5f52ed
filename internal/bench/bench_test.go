package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// result is what a run printed.
type result struct {
	figures []Summary
	human   string
	err     error
}

// tiny is a run that takes about a second.
func tiny(url string, scenarios ...string) Config {
	return Config{
		URL: url, Scenarios: scenarios, Conns: []int{3}, Workers: []int{4}, Mixed: []string{"2+3"}, Jobs: 300,
		Duration: 300 * time.Millisecond, Rate: 200, Streams: 5, StreamRate: 200, WaitMS: 50, Backlog: 150, Drain: 120,
		Stall: time.Second, Settle: time.Millisecond, statsDelay: time.Millisecond,
	}
}

func run(t *testing.T, cfg Config) result {
	t.Helper()
	var figures, human bytes.Buffer
	cfg.Figures, cfg.Human = &figures, &human
	r := result{err: Run(t.Context(), cfg)}
	r.human = human.String()
	t.Logf("%s", r.human)
	for line := range bytes.Lines(figures.Bytes()) {
		var s Summary
		require.NoError(t, json.Unmarshal(line, &s))
		r.figures = append(r.figures, s)
	}
	return r
}

func (r result) names() []string {
	var names []string
	for _, f := range r.figures {
		names = append(names, f.Figure)
	}
	return names
}

func TestRun(t *testing.T) {
	t.Parallel()

	t.Run("MeasuresEverythingOverHTTP", func(t *testing.T) {
		t.Parallel()
		fake, url := startFake(t, faults{})
		r := run(t, tiny(url))
		require.NoError(t, r.err)
		require.Equal(t, []string{
			"null", "null", "enqueue", "batch", "drain", "drain", "mixed", "latency.fetch", "latency.event_poll", "streams",
			"webhooks", "backlog", "backlog", "backlog.rest",
		}, r.names())
		for _, f := range r.figures {
			require.True(t, f.OK, f.Figure)
			require.Positive(t, f.Jobs, f.Figure)
			for name, m := range f.Metrics {
				require.GreaterOrEqual(t, m.Median, 0.0, "%s %s", f.Figure, name)
			}
		}
		for _, queue := range fake.queues {
			require.Empty(t, queue)
		}
		require.Empty(t, fake.active)
		require.Empty(t, fake.hooks, "subscriptions are removed")
	})

	t.Run("CountsJobs", func(t *testing.T) {
		t.Parallel()
		_, url := startFake(t, faults{})
		cfg := tiny(url, "drain", "backlog")
		cfg.Rounds = 2
		r := run(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, []string{"drain", "drain", "backlog", "backlog", "backlog.rest"}, r.names())
		require.Equal(t, 2*300, r.figures[0].Jobs)
		require.Equal(t, map[string]any{"workers": 4.0, "fetch": 10.0, "ack": "single"}, r.figures[0].Params)
		require.Equal(t, map[string]any{"workers": 4.0, "fetch": 100.0, "ack": "batch"}, r.figures[1].Params)
		require.Equal(t, 2*120, r.figures[2].Jobs)
		require.Equal(t, 150, r.figures[4].Jobs)
		require.Positive(t, r.figures[0].Metrics["jobs_per_s"].Min)
		require.Positive(t, r.figures[0].Metrics["last_quarter_jobs_per_s"].Min)
	})

	t.Run("KeepsTheRate", func(t *testing.T) {
		t.Parallel()
		fake, url := startFake(t, faults{})
		cfg := tiny(url, "latency")
		cfg.Duration = 600 * time.Millisecond
		r := run(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, 120, r.figures[0].Jobs)
		require.Positive(t, fake.waits) // workers were parked
		require.Positive(t, r.figures[1].Metrics["p99_ms"].Median)
	})

	t.Run("RejectsWrongSettings", func(t *testing.T) {
		t.Parallel()
		for want, cfg := range map[string]Config{
			"unknown scenario":        {Scenarios: []string{"nothing"}},
			"at least 1":              {Conns: []int{4, 0}},
			"producers+workers":       {Mixed: []string{"4"}},
			"http://":                 {URL: "localhost:8080"},
			"needs a connection":      {Scenarios: []string{"pinned"}},
			"path of the ojsd binary": {Private: true},
		} {
			require.ErrorContains(t, run(t, cfg).err, want)
		}
	})

	t.Run("EndsWhenThereIsNoServer", func(t *testing.T) {
		t.Parallel()
		address, err := freeAddress()
		require.NoError(t, err)
		require.ErrorContains(t, run(t, tiny("http://"+address)).err, "connection refused")
	})

	t.Run("EndsWhenInterrupted", func(t *testing.T) {
		t.Parallel()
		_, url := startFake(t, faults{})
		cfg := tiny(url, "mixed")
		cfg.Duration = time.Hour
		cfg.Figures, cfg.Human = &bytes.Buffer{}, &bytes.Buffer{}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, Run(ctx, cfg), context.DeadlineExceeded)
	})
}

// TestChecks lets a server make every mistake that must not go unnoticed.
func TestChecks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		faults   faults
		scenario string
		want     string
	}{
		{"LostJob/enqueue", faults{loseJob: 5}, "enqueue", "1 jobs lost"},
		{"LostJob/batch", faults{loseJob: 5}, "batch", "1 jobs lost"},
		{"LostJob/drain", faults{loseJob: 299}, "drain", "1 jobs lost"},
		{"LostJob/mixed", faults{loseJob: 5}, "mixed", "1 jobs lost"},
		{"LostJob/latency", faults{loseJob: 5}, "latency", "1 jobs lost"},
		{"LostJob/backlog", faults{loseJob: 5}, "backlog", "1 jobs lost"},
		{"RepeatedJob/enqueue", faults{repeatJob: 5}, "enqueue", "1 jobs delivered twice"},
		{"RepeatedJob/drain", faults{repeatJob: 5}, "drain", "1 jobs delivered twice"},
		{"RepeatedJobAtTheEnd/drain", faults{repeatJob: 300}, "drain", "1 jobs delivered twice"},
		{"RepeatedJob/mixed", faults{repeatJob: 5}, "mixed", "1 jobs delivered twice"},
		{"RepeatedJob/backlog", faults{repeatJob: 5}, "backlog", "1 jobs delivered twice"},
		{"RefusedAck/drain", faults{refuseAck: 5}, "drain", "1 jobs fetched but their ack did not succeed"},
		{"RefusedAck/drain", faults{refuseAck: 5}, "drain", `1 calls failed, the first: ack: HTTP 409: {"error":{"code":"conflict"}}`},
		{"RefusedAckInBatch/enqueue", faults{refuseAck: 5}, "enqueue", "1 jobs fetched but their ack did not succeed"},
		{"RepeatedID/enqueue", faults{repeatID: 5}, "enqueue", "enqueued under an id that was given before"},
		{"InventedJob/drain", faults{inventJob: 5}, "drain", "1 jobs fetched though nobody enqueued them"},
		{"LostEvent/latency", faults{loseEvent: 65}, "latency", "1 jobs whose event job.enqueued was never seen"},
		{"RepeatedEvent/latency", faults{repeatEvent: 65}, "latency", "1 events were seen twice"},
		{"LostEvent/streams", faults{loseEvent: 5}, "streams", "1 jobs whose event job.enqueued was never streamed"},
		{"RepeatedEvent/streams", faults{repeatEvent: 5}, "streams", "1 events more than enqueues were streamed"},
		{"LostEvent/webhooks", faults{loseEvent: 5}, "webhooks", "5 jobs whose event job.enqueued was never delivered"},
		{"RepeatedEvent/webhooks", faults{repeatEvent: 5}, "webhooks", "5 deliveries came twice"},
		{"RefusedEnqueue/mixed", faults{refusePush: 5}, "mixed", "1 calls failed, the first: enqueue: HTTP 503"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, url := startFake(t, test.faults)
			r := run(t, tiny(url, test.scenario))
			require.ErrorIs(t, r.err, ErrFailed)
			require.Contains(t, r.human, "INVALID: ")
			require.Contains(t, r.human, test.want)
		})
	}

	// The job is stored but its producer cannot know: it may turn up, and is not taken for an invented one.
	t.Run("UnansweredEnqueue", func(t *testing.T) {
		t.Parallel()
		_, url := startFake(t, faults{hangUpOnPush: 5})
		r := run(t, tiny(url, "enqueue"))
		require.ErrorIs(t, r.err, ErrFailed)
		require.Equal(t, 1, r.figures[0].Errors)
		require.Len(t, r.figures[0].Problems, 1)
		require.Contains(t, r.human, "1 calls failed, the first: enqueue: EOF")
	})
}

func TestDatabase(t *testing.T) {
	t.Parallel()

	t.Run("ListensPinsAndCounts", func(t *testing.T) {
		t.Parallel()
		fake, url := startFake(t, faults{})
		cfg := tiny(url, "latency", "cost", "pinned")
		cfg.DatabaseURL = dbtest.EmptyURL(t)
		fake.notify = notifier(t, cfg.DatabaseURL)
		r := run(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, []string{
			"latency.fetch", "latency.event_poll", "latency.event_listen", "cost", "pinned", "pinned", "pinned.rest",
		}, r.names())
		require.Contains(t, r.human, "synchronous_commit=on")
		require.Contains(t, r.human, "by batch enqueue")
		// One NOTIFY, so one commit, for each job.
		require.InDelta(t, 1, r.figures[3].Metrics["write_transactions_per_job"].Median, 0.3)
	})

	t.Run("MissesAnEventThatWasNotNotified", func(t *testing.T) {
		t.Parallel()
		fake, url := startFake(t, faults{loseEvent: 125}) // the third measurement has jobs 121 to 180
		cfg := tiny(url, "latency")
		cfg.DatabaseURL = dbtest.EmptyURL(t)
		fake.notify = notifier(t, cfg.DatabaseURL)
		r := run(t, cfg)
		require.ErrorIs(t, r.err, ErrFailed)
		require.True(t, r.figures[1].OK)
		require.Equal(t, "latency.event_listen", r.figures[2].Figure)
		require.Contains(t, r.figures[2].Problems[0], "never seen")
	})

	t.Run("FillsByFunction", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		db, err := openDatabase(t.Context(), url)
		require.NoError(t, err)
		defer db.close()
		_, err = db.enqueue(t.Context(), "q", jobArgs(50), 1)
		require.True(t, isUndefinedFunction(err), err)
		_, err = db.conn.Exec(t.Context(), `
			CREATE SCHEMA ojs;
			CREATE TABLE ojs.got (id uuid DEFAULT gen_random_uuid(), type text, args json, queue text);
			CREATE FUNCTION ojs.enqueue(type text, args json, queue text DEFAULT 'default', options json DEFAULT NULL) RETURNS uuid
			LANGUAGE sql AS 'INSERT INTO ojs.got (type, args, queue) VALUES ($1, $2, $3) RETURNING id';`)
		require.NoError(t, err)
		ids, err := db.enqueue(t.Context(), "q", jobArgs(50), enqueueChunk+5)
		require.NoError(t, err)
		require.Len(t, ids, enqueueChunk+5)
		var n int
		require.NoError(t, db.conn.QueryRow(t.Context(),
			`SELECT count(*) FROM ojs.got WHERE queue = 'q' AND type = $1 AND json_array_length(args) = 1`, jobType).Scan(&n))
		require.Equal(t, enqueueChunk+5, n)
		require.Empty(t, (&ledger{enqueued: ids, fetched: ids, acked: ids}).violations(0))
	})

	t.Run("PinHoldsXmin", func(t *testing.T) {
		t.Parallel()
		db, err := openDatabase(t.Context(), dbtest.EmptyURL(t))
		require.NoError(t, err)
		defer db.close()
		p, err := db.pin(t.Context())
		require.NoError(t, err)
		defer p.close()
		var state string
		require.NoError(t, db.conn.QueryRow(t.Context(), `SELECT state FROM pg_stat_activity
			WHERE pid = $1 AND backend_xid IS NOT NULL AND backend_xmin IS NOT NULL`, p.conn.PgConn().PID()).Scan(&state))
		require.Equal(t, "idle in transaction", state)
		_, err = db.conn.Exec(t.Context(), "SELECT pg_terminate_backend($1)", p.conn.PgConn().PID())
		require.NoError(t, err)
		require.ErrorContains(t, p.release(t.Context()), "was lost")
	})
}

// notifier sends what a relay would.
func notifier(t *testing.T, url string) func(string) {
	pool, err := pgxpool.New(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return func(payload string) {
		_, err := pool.Exec(context.Background(), "SELECT pg_notify('ojs_events', $1)", payload)
		if err != nil {
			t.Error(err)
		}
	}
}

func TestChildren(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)

	t.Run("NullServer", func(t *testing.T) {
		t.Parallel()
		cfg := tiny("http://127.0.0.1:1", "null")
		cfg.Executable = executable
		r := run(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, []string{"null", "null"}, r.names())
		require.Greater(t, r.figures[0].Metrics["requests_per_s"].Median, 100.0)
	})

	t.Run("NullServerThatDoesNotStart", func(t *testing.T) {
		t.Parallel()
		cfg := tiny("http://127.0.0.1:1", "null")
		cfg.Executable = "/bin/false"
		require.ErrorContains(t, run(t, cfg).err, "no address: exit status 1")
	})

	t.Run("PrivateStack", func(t *testing.T) {
		t.Parallel()
		s, err := startStack(t.Context(), executable)
		require.NoError(t, err)
		stopped := false
		defer func() {
			if !stopped {
				s.stop()
			}
		}()
		require.Contains(t, s.databaseURL, "/ojsd?")
		db, err := openDatabase(t.Context(), s.databaseURL)
		require.NoError(t, err)
		db.close()
		s.stop()
		stopped = true
		require.NoDirExists(t, s.dir)
		_, err = openDatabase(t.Context(), s.databaseURL)
		require.Error(t, err)
	})

	t.Run("PrivateStackThatDoesNotStart", func(t *testing.T) {
		t.Parallel()
		_, err := startStack(t.Context(), "/bin/ls")
		require.ErrorContains(t, err, "the server ended: exit status")
		require.ErrorContains(t, err, "--data-dir")
	})
}
