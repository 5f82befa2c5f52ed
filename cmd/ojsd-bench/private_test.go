package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// buildOJSD builds the server. It uses the race detector if this test does, because the packages are compiled so already.
func buildOJSD(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ojsd")
	args := []string{"build", "-buildvcs=false", "-o", path}
	info, ok := debug.ReadBuildInfo()
	require.True(t, ok)
	if slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	output, err := exec.CommandContext(t.Context(), "go", append(args, "../ojsd")...).CombinedOutput()
	require.NoError(t, err, string(output))
	return path
}

func TestPrivateServer(t *testing.T) {
	t.Parallel()
	ojsd := buildOJSD(t)

	// The scenarios here are those that need something of a real server: its SQL functions, or its settings for streams
	// and webhooks.
	t.Run("ServesScenarios", func(t *testing.T) {
		t.Parallel()
		cfg := tiny("", "drain", "streams", "webhooks", "schedule", "backlog", "workflow")
		cfg.Private, cfg.OJSD = true, ojsd
		cfg.Scheduled, cfg.Burst, cfg.Rate, cfg.StreamRate, cfg.HookRate = 200, 300, 100, 50, 20
		cfg.Duration, cfg.stallTimeout = time.Second, time.Minute
		r := measure(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, []string{
			"drain", "drain", "drain", "drain", "streams", "webhooks", "schedule.latency", "schedule.burst", "backlog", "backlog", "backlog.rest",
			"workflow.chain", "workflow.group", "workflow.batch",
		}, r.names())
		require.Equal(t, 300, r.figures[7].Jobs)
		require.Positive(t, r.figures[7].Metrics["last_available_ms"].Median)
		require.Contains(t, r.text, "fsync=on")
		require.Contains(t, r.text, "by ojs.enqueue()")
		require.Equal(t, 301, r.figures[13].Jobs) // the members and the callback
		require.Positive(t, r.figures[11].Metrics["step_p50_ms"].Median)
	})

	t.Run("MeasuresAQuietQueueBesideOthers", func(t *testing.T) {
		t.Parallel()
		cfg := tiny("", "crowd")
		cfg.Private, cfg.OJSD, cfg.Crowd, cfg.Rate, cfg.stallTimeout = true, ojsd, 400, 100, time.Minute
		r := measure(t, cfg)
		require.NoError(t, r.err)
		var states []any
		for _, f := range r.figures {
			states = append(states, f.Params["state"])
		}
		require.Equal(t, []any{"alone", "alone", "alone", "crowded", "crowded", "crowded", "emptied", "emptied", "emptied"}, states)
		require.Equal(t, []string{"crowd.drain", "crowd.drain", "crowd.latency.fetch"}, r.names()[:3])
		require.Contains(t, r.text, "400 jobs waiting in 20 other queues")
	})

	t.Run("MeasuresLimitsAndTheSDK", func(t *testing.T) {
		t.Parallel()
		cfg := tiny("", "control", "control.explain", "sdk")
		cfg.Private, cfg.OJSD, cfg.Crowd, cfg.stallTimeout = true, ojsd, 400, time.Minute
		r := measure(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, []string{
			"control.blocked", "control.key_limit", "control.bounded", "control.fair", "control.pause", "control.explain", "control.explain",
			"sdk", "sdk",
		}, r.names())
		require.Positive(t, r.figures[0].Metrics["fetch_p50_ms"].Median)
		require.Positive(t, r.figures[1].Metrics["most_running"].Median)
		require.LessOrEqual(t, r.figures[1].Metrics["most_running"].Median, float64(keyLimit))
		require.Equal(t, fewJobs, r.figures[3].Jobs)
		sdk := r.figures[7].Metrics
		require.InDelta(t, sdk["jobs_per_s"].Median/sdk["raw_jobs_per_s"].Median, sdk["sdk_to_raw_ratio"].Median, 1e-3)
	})

	t.Run("MeasuresTwoNodesByTheMinute", func(t *testing.T) {
		t.Parallel()
		cfg := tiny("", "steady")
		cfg.Private, cfg.OJSD, cfg.Duration, cfg.stallTimeout = true, ojsd, 6*time.Second, time.Minute
		r := measure(t, cfg)
		require.NoError(t, r.err)
		require.GreaterOrEqual(t, len(r.figures), 2)
		jobs := 0
		for i, f := range r.figures {
			require.Equal(t, "steady", f.Figure)
			require.InDelta(t, i+1, f.Params["step"], 0)
			jobs += f.Jobs
		}
		require.Positive(t, jobs)
		require.Positive(t, r.figures[0].Metrics["p50_ms"].Median)
	})

	t.Run("MeasuresTwoServersInTurn", func(t *testing.T) {
		t.Parallel()
		cfg := tiny("", "drain", "backlog")
		cfg.Private, cfg.OJSD, cfg.Against, cfg.Rounds = true, ojsd, ojsd, 2
		cfg.stallTimeout = time.Minute
		r := measure(t, cfg)
		require.NoError(t, r.err)
		require.Equal(t, []string{
			"drain", "drain", "drain.ratio", "drain", "drain", "drain.ratio", "drain", "drain", "drain.ratio", "drain", "drain", "drain.ratio",
			"backlog", "backlog", "backlog.ratio", "backlog", "backlog", "backlog.ratio", "backlog.rest", "backlog.rest",
		}, r.names())
		require.Equal(t, "this", r.figures[0].Params["server"])
		require.Equal(t, "against", r.figures[1].Params["server"])
		require.NotContains(t, r.figures[2].Params, "server")
		require.Positive(t, r.figures[2].Metrics["jobs_per_s_ratio"].Median)
		require.Contains(t, r.figures[0].Metrics, "postgres_cpu_us_per_job")
		require.Contains(t, r.text, "machine: a synchronous write")
	})

	t.Run("RemovesAllItStarted", func(t *testing.T) {
		t.Parallel()
		s, err := startPrivateServer(t.Context(), ojsd, "")
		require.NoError(t, err)
		db, err := openDatabase(t.Context(), s.databaseURL)
		require.NoError(t, err)
		closeConn(db.conn)
		s.stop()
		require.NoDirExists(t, s.dir)
		_, err = openDatabase(t.Context(), s.databaseURL)
		require.Error(t, err)
		require.False(t, ready(t.Context(), s.url()+"/readyz"))
	})

	t.Run("ShowsTheLogOfAServerThatDoesNotStart", func(t *testing.T) {
		t.Parallel()
		_, err := startPrivateServer(t.Context(), "/bin/ls", "")
		require.ErrorContains(t, err, "the server ended: exit status")
		require.ErrorContains(t, err, "--migrate")
	})
}

func TestFindOJSD(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", filepath.Join(dir, "bin"))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	this := filepath.Join(dir, "ojsd-bench")

	_, err := findOJSD("", this)
	require.ErrorContains(t, err, "give --ojsd")
	for _, want := range []string{filepath.Join(dir, "bin", "ojsd"), filepath.Join(dir, "ojsd")} {
		require.NoError(t, os.WriteFile(want, nil, 0o755))
		got, err := findOJSD("", this)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	got, err := findOJSD("/other/ojsd", this)
	require.NoError(t, err)
	require.Equal(t, "/other/ojsd", got)
}

func TestCPUTime(t *testing.T) {
	t.Parallel()
	var none *privateServer
	require.Empty(t, none.cpuTime().perJob(10))
	require.Empty(t, readCPUTime([]int{-1}, -1).perJob(10))
	require.Len(t, cpuTime{known: true}.perJob(1), 2, "every round has the same metrics")
	require.Empty(t, cpuTime{server: time.Second, known: true}.perJob(0))
	require.Equal(t, []metric{{"server_cpu_us_per_job", 200}, {"postgres_cpu_us_per_job", 50}},
		cpuTime{2 * time.Millisecond, 500 * time.Microsecond, true}.perJob(10))

	// This process is a child of its parent, so the parent's family has used at least as much.
	self := func() cpuTime { return readCPUTime([]int{os.Getpid()}, os.Getppid()) }
	for start := time.Now(); time.Since(start) < 10*time.Second && self().server < 100*time.Millisecond; {
	}
	used := self()
	require.GreaterOrEqual(t, used.server, 100*time.Millisecond)
	require.GreaterOrEqual(t, used.postgres, used.server)
}
