package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestMain also is the child process that scenario null starts from its own binary.
func TestMain(m *testing.M) {
	if slices.Equal(os.Args[1:], []string{"--null-server"}) {
		main()
	}
	dbtest.Main(m)
}

func parse(t *testing.T, args ...string) config {
	t.Helper()
	var cfg config
	parser, err := kong.New(&cfg, helpVars())
	require.NoError(t, err)
	_, err = parser.Parse(args)
	require.NoError(t, err)
	return cfg
}

func TestFlags(t *testing.T) {
	t.Parallel()

	t.Run("SetTheConfig", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, config{
			URL: "http://host:1", DatabaseURL: "postgres://db", Private: true, OJSD: "/bin/ojsd",
			Scenarios: []string{"drain", "pinned"}, Rounds: 3, Short: true,
			Conns: []int{1, 2}, Workers: []int{3}, Mixed: []string{"4+8", "16+32"}, Jobs: 5, Duration: 6 * time.Second,
			Rate: 7, SteadyRate: 19, Streams: 15, StreamRate: 16, Hooks: 17, HookRate: 18, WaitMS: 8, PollInterval: 9 * time.Millisecond,
			Backlog: 1_000_000, Crowd: 20, Drain: 11, Scheduled: 13, Burst: 14, ArgsBytes: 12,
		}, parse(t,
			"--url=http://host:1", "--database-url=postgres://db", "--private", "--ojsd=/bin/ojsd",
			"--scenario=drain,pinned", "--rounds=3", "--short",
			"--conns=1,2", "--workers=3", "--mixed=4+8,16+32", "--jobs=5", "--duration=6s",
			"--rate=7", "--steady-rate=19", "--crowd=20", "--streams=15", "--stream-rate=16", "--hooks=17", "--hook-rate=18", "--wait-ms=8", "--poll=9ms",
			"--backlog=1000000", "--drain=11", "--scheduled=13", "--burst=14", "--args=12"))
	})

	t.Run("HaveDefaults", func(t *testing.T) {
		t.Parallel()
		full, err := parse(t).withDefaults()
		require.NoError(t, err)
		require.Equal(t, []int{1, 32, 128}, full.Conns)
		require.Equal(t, []any{50_000, 10 * time.Second, 1}, []any{full.Jobs, full.Duration, full.Rounds})
		short, err := parse(t, "--short", "--jobs=7").withDefaults()
		require.NoError(t, err)
		require.Equal(t, []any{7, 3 * time.Second, 1}, []any{short.Jobs, short.Duration, short.Rounds})
	})
}

func TestRun(t *testing.T) {
	t.Parallel()
	call := func(t *testing.T, args ...string) (code int, stdout, stderr string) {
		var out, errOut bytes.Buffer
		code = run(t.Context(), args, strings.NewReader(""), &out, &errOut)
		return code, out.String(), errOut.String()
	}

	t.Run("HelpNamesAllScenarios", func(t *testing.T) {
		t.Parallel()
		code, stdout, _ := call(t, "--help")
		require.Zero(t, code)
		for _, name := range scenarioNames() {
			require.Contains(t, stdout, name)
		}
		require.NotContains(t, stdout, "null-server")
	})

	t.Run("RejectsWrongFlags", func(t *testing.T) {
		t.Parallel()
		code, _, stderr := call(t, "--nonsense")
		require.Equal(t, 2, code)
		require.Contains(t, stderr, "ojsd-bench: ")
	})

	t.Run("FailsWhenFiguresAreInvalid", func(t *testing.T) {
		t.Parallel()
		_, url := startFake(t, faults{refuseAck: 5})
		code, stdout, stderr := call(t, "--url", url, "--scenario=drain", "--short", "--jobs=20", "--workers=2")
		require.Equal(t, 1, code)
		require.Contains(t, stdout, `"ok":false`)
		require.Contains(t, stderr, errInvalid.Error())
	})

	t.Run("SucceedsWhenFiguresAreValid", func(t *testing.T) {
		t.Parallel()
		_, url := startFake(t, faults{})
		code, stdout, stderr := call(t, "--url", url, "--scenario=drain", "--short", "--jobs=20", "--workers=2")
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, `"ok":true`)
	})
}
