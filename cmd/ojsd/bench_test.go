package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/bench"
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
		"--backlog=1000000", "--drain=11", "--args=12",
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
		Rate: 7, WaitMS: 8, PollInterval: 9 * time.Millisecond, Backlog: 1_000_000, Drain: 11, ArgsBytes: 12,
	}, cfg)

	_, _ = parser.Parse([]string{"bench", "--help"})
	text := string(bytes.Join(bytes.Fields(help.Bytes()), []byte(" ")))
	for _, name := range bench.ScenarioNames() {
		require.Contains(t, text, name)
	}
	require.NotContains(t, text, "null-server")
}
