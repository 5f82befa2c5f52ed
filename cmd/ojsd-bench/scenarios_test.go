package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// result is what a run printed.
type result struct {
	figures []summary
	text    string
	err     error
}

// tiny is a run that takes about a second.
func tiny(url string, scenarios ...string) config {
	return config{
		URL: url, Scenarios: scenarios, Rounds: 1, Conns: []int{3}, Workers: []int{4}, Mixed: []string{"2+3"}, Jobs: 300,
		Duration: 300 * time.Millisecond, Rate: 200, SteadyRate: 50, Streams: 5, StreamRate: 200, Hooks: 5, HookRate: 200, WaitMS: 50,
		PollInterval: 5 * time.Millisecond, Backlog: 150, Drain: 120, ArgsBytes: 100,
		stallTimeout: time.Second, pause: time.Millisecond, statsDelay: time.Millisecond, probe: 50 * time.Millisecond,
	}
}

func measure(t *testing.T, cfg config) result {
	t.Helper()
	var figures, text bytes.Buffer
	cfg.stdout, cfg.stderr = &figures, &text
	r := result{err: runScenarios(t.Context(), cfg)}
	r.text = text.String()
	t.Logf("%s", r.text)
	for line := range bytes.Lines(figures.Bytes()) {
		var s summary
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

func TestScenarios(t *testing.T) {
	t.Parallel()

	t.Run("MeasuresEverythingOverHTTP", func(t *testing.T) {
		t.Parallel()
		fake, url := startFake(t, faults{})
		r := measure(t, tiny(url))
		require.NoError(t, r.err)
		require.Equal(t, []string{
			"null", "null", "enqueue", "unique", "unique", "unique", "batch", "drain", "drain", "drain", "drain", "mixed", "latency.fetch", "latency.event_poll", "streams",
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
		r := measure(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, []string{"drain", "drain", "drain", "drain", "backlog", "backlog", "backlog.rest"}, r.names())
		require.Equal(t, 2*300, r.figures[0].Jobs)
		require.Equal(t, map[string]any{"workers": 4.0, "fetch": 10.0, "ack": "single"}, r.figures[0].Params)
		require.Equal(t, map[string]any{"workers": 4.0, "fetch": 100.0, "ack": "batch"}, r.figures[1].Params)
		require.Equal(t, 2*120, r.figures[4].Jobs)
		require.Equal(t, 150, r.figures[6].Jobs)
		require.Positive(t, r.figures[0].Metrics["jobs_per_s"].Min)
		require.Positive(t, r.figures[0].Metrics["last_quarter_jobs_per_s"].Min)
	})

	t.Run("EnqueuesRateTimesDuration", func(t *testing.T) {
		t.Parallel()
		fake, url := startFake(t, faults{})
		cfg := tiny(url, "latency")
		cfg.Duration = 600 * time.Millisecond
		r := measure(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, 120, r.figures[0].Jobs)
		require.Equal(t, 120, r.figures[1].Jobs)
		// A worker ends only after an empty fetch, and with wait_ms every empty fetch has waited.
		require.GreaterOrEqual(t, fake.parked, 2*latencyWorkers)
	})
}

func TestScenariosThatCannotRun(t *testing.T) {
	t.Parallel()

	t.Run("RejectsWrongSettings", func(t *testing.T) {
		t.Parallel()
		for want, change := range map[string]func(*config){
			"unknown scenario":    func(c *config) { c.Scenarios = []string{"nothing"} },
			"at least 1":          func(c *config) { c.Conns = []int{4, 0} },
			"needs --private":     func(c *config) { c.Against = "/bin/ls" },
			"must be positive":    func(c *config) { c.Duration = -1 },
			"producers+workers":   func(c *config) { c.Mixed = []string{"4"} },
			"http://":             func(c *config) { c.URL = "localhost:8080" },
			"give --database-url": func(c *config) { c.Scenarios = []string{"pinned"} },
		} {
			cfg := tiny("http://127.0.0.1:1")
			change(&cfg)
			require.ErrorContains(t, measure(t, cfg).err, want)
		}
	})

	t.Run("EndsWhenThereIsNoServer", func(t *testing.T) {
		t.Parallel()
		address, err := freeAddress()
		require.NoError(t, err)
		require.ErrorContains(t, measure(t, tiny("http://"+address)).err, "connection refused")
	})

	t.Run("EndsWhenInterrupted", func(t *testing.T) {
		t.Parallel()
		_, url := startFake(t, faults{})
		cfg := tiny(url, "mixed")
		cfg.Duration = time.Hour
		cfg.stdout, cfg.stderr = &bytes.Buffer{}, &bytes.Buffer{}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, runScenarios(ctx, cfg), context.DeadlineExceeded)
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
		{"RefusedAck/drain", faults{refuseAck: 5}, "drain", "1 jobs fetched whose ack did not succeed"},
		{"RefusedAck/drain", faults{refuseAck: 5}, "drain", `1 calls failed, the first: ack: HTTP 409: {"error":{"code":"conflict"}}`},
		{"RefusedAckInBatch/enqueue", faults{refuseAck: 5}, "enqueue", "1 jobs fetched whose ack did not succeed"},
		{"RepeatedID/enqueue", faults{repeatID: 5}, "enqueue", "got an id that another job has"},
		{"InventedJob/drain", faults{inventJob: 5}, "drain", "1 jobs fetched that were never enqueued"},
		{"LostEvent/latency", faults{loseEvent: 65}, "latency", "1 jobs whose event job.enqueued never arrived"},
		{"RepeatedEvent/latency", faults{repeatEvent: 65}, "latency", "1 events arrived twice"},
		{"LostEvent/streams", faults{loseEvent: 5}, "streams", "1 jobs whose event job.enqueued was never streamed"},
		{"RepeatedEvent/streams", faults{repeatEvent: 5}, "streams", "1 more events than enqueued jobs were streamed"},
		{"LostEvent/webhooks", faults{loseEvent: 5}, "webhooks", "5 jobs whose event job.enqueued was never delivered"},
		{"RepeatedEvent/webhooks", faults{repeatEvent: 5}, "webhooks", "5 events were delivered twice"},
		{"RefusedEnqueue/mixed", faults{refusePush: 5}, "mixed", "1 calls failed, the first: enqueue: HTTP 503"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, url := startFake(t, test.faults)
			r := measure(t, tiny(url, test.scenario))
			require.ErrorIs(t, r.err, errInvalid)
			require.Contains(t, r.text, "INVALID: ")
			require.Contains(t, r.text, test.want)
		})
	}

	// The job is stored, but its producer got no answer. It is not reported as a job that was never enqueued.
	t.Run("UnansweredEnqueue", func(t *testing.T) {
		t.Parallel()
		_, url := startFake(t, faults{hangUpOnPush: 5})
		r := measure(t, tiny(url, "enqueue"))
		require.ErrorIs(t, r.err, errInvalid)
		require.Equal(t, 1, r.figures[0].Errors)
		require.Len(t, r.figures[0].Problems, 1)
		require.Contains(t, r.text, "1 calls failed, the first: enqueue: EOF")
	})
}

func TestSidesTakeTurns(t *testing.T) {
	t.Parallel()
	alone := &runner{}
	require.Equal(t, []*runner{alone}, alone.sides(0))
	require.Equal(t, []*runner{alone}, alone.sides(1))

	this := &runner{other: alone}
	require.Equal(t, []*runner{this, alone}, this.sides(0))
	require.Equal(t, []*runner{alone, this}, this.sides(1))
	require.Equal(t, []*runner{this, alone}, this.sides(2))
}

func TestSyncTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	median, err := syncTime(dir, 20*time.Millisecond)
	require.NoError(t, err)
	require.Positive(t, median)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = syncTime(dir+"/absent", time.Millisecond)
	require.Error(t, err)
}
