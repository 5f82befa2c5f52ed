package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/bench"
	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestBenchCmd(t *testing.T) {
	t.Parallel()
	var cli struct {
		Bench benchCmd `cmd:""`
	}
	var help bytes.Buffer
	parser, err := kong.New(&cli, kong.Writers(&help, &help), kong.Exit(func(int) {}))
	require.NoError(t, err)

	_, err = parser.Parse([]string{
		"bench", "--url=http://host:1", "--database-url=postgres://db", "--private", "--scenario=drain,pinned", "--rounds=3", "--short",
		"--conns=1,2", "--workers=3", "--mixed=4+8,16+32", "--jobs=5", "--duration=6s", "--rate=7", "--wait-ms=8", "--poll=9ms",
		"--backlog=1000000", "--drain=11", "--scheduled=13", "--burst=14", "--args=12",
	})
	require.NoError(t, err)
	cfg := cli.Bench.config("/bin/ojsd")
	require.NotNil(t, cfg.Figures)
	require.NotNil(t, cfg.Human)
	cfg.Figures, cfg.Human = nil, nil
	require.Equal(t, bench.Config{
		URL: "http://host:1", DatabaseURL: "postgres://db", Private: true, Executable: "/bin/ojsd",
		Scenarios: []string{"drain", "pinned"}, Rounds: 3, Short: true,
		Conns: []int{1, 2}, Workers: []int{3}, Mixed: []string{"4+8", "16+32"}, Jobs: 5, Duration: 6 * time.Second,
		Rate: 7, WaitMS: 8, PollInterval: 9 * time.Millisecond, Backlog: 1_000_000, Drain: 11, Scheduled: 13, Burst: 14, ArgsBytes: 12,
	}, cfg)

	_, _ = parser.Parse([]string{"bench", "--help"})
	text := string(bytes.Join(bytes.Fields(help.Bytes()), []byte(" ")))
	for _, name := range bench.ScenarioNames() {
		require.Contains(t, text, name)
	}
	require.NotContains(t, text, "null-server")
}

// TestBenchSchedule runs the one scenario that only a real server can serve.
func TestBenchSchedule(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	n := startNode(t, url)
	var figures, human bytes.Buffer
	err := bench.Run(t.Context(), bench.Config{
		URL: n.base, DatabaseURL: url, Scenarios: []string{"schedule"}, Short: true, Scheduled: 200, Burst: 300, Rate: 100, Duration: 3 * time.Second,
		Figures: &figures, Human: &human,
	})
	require.NoError(t, err, human.String())
	require.Contains(t, figures.String(), `"figure":"schedule.latency"`)
	require.Contains(t, figures.String(), `"figure":"schedule.burst"`)

	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	var left int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM ojs.jobs`).Scan(&left))
	require.Zero(t, left, "nothing is left to become due after the run")
}
