package embedpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ojsd/ojsd/internal/testdir"
)

// helperDir makes the test binary run a server on that directory until it is killed.
const helperDir = "EMBEDPG_TEST_HELPER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDir); dir != "" {
		runHelper(dir)
	}
	goleak.VerifyTestMain(m)
}

func runHelper(dir string) {
	s, err := Start(context.Background(), Config{DataDir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("pid", s.proc.cmd.Process.Pid)
	select {}
}

// newDir returns a directory that the server's user can reach, unlike t.TempDir when we are root.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := testdir.Make("embedpg-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(context.Background())) })
	return s
}

// keep creates a table with one number, for a later look whether it is still there.
func keep(t *testing.T, url string, n int) {
	t.Helper()
	query[string](t, url, fmt.Sprintf("CREATE TABLE kept AS SELECT %d AS n", n))
}

func query[T any](t *testing.T, url, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	rows, err := conn.Query(t.Context(), sql)
	require.NoError(t, err)
	value, err := pgx.CollectOneRow(rows, pgx.RowTo[T])
	if !errors.Is(err, pgx.ErrNoRows) { // a statement that is no query
		require.NoError(t, err)
	}
	return value
}

func TestStart(t *testing.T) {
	t.Parallel()

	t.Run("FindsDataAndPortAgain", func(t *testing.T) {
		t.Parallel()
		dir := newDir(t)
		first := start(t, Config{DataDir: dir})
		url := first.URL("app")
		require.NoError(t, first.CreateDatabase(t.Context(), "app"))
		require.NoError(t, first.CreateDatabase(t.Context(), "app"))
		keep(t, url, 7)
		require.NoError(t, first.Stop(t.Context()))

		second := start(t, Config{DataDir: dir})
		require.Equal(t, url, second.URL("app"))
		require.Equal(t, 7, query[int](t, url, "SELECT n FROM kept"))
	})

	t.Run("SetsLocaleEncodingAndSettings", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{DataDir: newDir(t), Fsync: true, Settings: map[string]string{"work_mem": "7MB"}})
		url := s.URL("postgres")
		require.Equal(t, "UTF8", query[string](t, url, "SHOW server_encoding"))
		require.Equal(t, "7MB", query[string](t, url, "SHOW work_mem"))
		require.Equal(t, "on", query[string](t, url, "SHOW fsync"))
		require.Equal(t, "127.0.0.1", query[string](t, url, "SHOW listen_addresses"))
		require.Equal(t, `{Z,a,ä}`, query[string](t, url, "SELECT array_agg(x ORDER BY x)::text FROM unnest('{a,ä,Z}'::text[]) x"))
	})

	t.Run("ServesUnixSocket", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{DataDir: newDir(t)})
		require.Equal(t, filepath.Join(s.place.base, "socket"), s.SocketDir())
		require.FileExists(t, filepath.Join(s.SocketDir(), fmt.Sprintf(".s.PGSQL.%d.lock", s.port)))
	})

	t.Run("MovesSocketWhenPathIsLong", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(newDir(t), strings.Repeat("long", 30), `with "quotes', comma and space`)
		s := start(t, Config{DataDir: dir})
		socket := s.SocketDir()
		require.True(t, socketFits(socket))
		require.Equal(t, 1, query[int](t, s.URL("postgres"), "SELECT 1"))
		require.NoError(t, s.Stop(t.Context()))
		require.NoDirExists(t, socket)
	})

	t.Run("RejectsSecondServerOnSameDirectory", func(t *testing.T) {
		t.Parallel()
		dir := newDir(t)
		first := start(t, Config{DataDir: dir})
		_, err := Start(t.Context(), Config{DataDir: dir})
		require.ErrorIs(t, err, ErrInUse)
		require.ErrorContains(t, err, strconv.Itoa(os.Getpid()))
		require.Equal(t, 1, query[int](t, first.URL("postgres"), "SELECT 1"), "the first must live on")
	})

	t.Run("NamesTakenPort", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }()
		_, err = Start(t.Context(), Config{DataDir: newDir(t), Port: l.Addr().(*net.TCPAddr).Port})
		require.ErrorIs(t, err, errPortTaken)
	})

	t.Run("ShowsWhatPostgresSaid", func(t *testing.T) {
		t.Parallel()
		dir := newDir(t)
		failed := func(setting string) string {
			_, err := Start(t.Context(), Config{DataDir: dir, Settings: map[string]string{setting: "lots"}})
			require.ErrorContains(t, err, `invalid value for parameter "`+setting+`"`)
			return err.Error()
		}
		failed("shared_buffers")
		require.NotContains(t, failed("work_mem"), "shared_buffers", "which an earlier run has said")

		place, err := newPlace(dir)
		require.NoError(t, err)
		log := place.logFile()
		require.NoError(t, os.Truncate(log, maxLog))
		failed("work_mem")
		require.NoFileExists(t, log+".1")
		failed("work_mem")
		kept, err := os.Stat(log + ".1")
		require.NoError(t, err)
		require.Greater(t, kept.Size(), int64(maxLog))
		written, err := os.Stat(log)
		require.NoError(t, err)
		require.Less(t, written.Size(), int64(maxLog))
	})

	t.Run("ReplacesPidFileOfAnotherProgram", func(t *testing.T) {
		t.Parallel()
		dir := newDir(t)
		s := start(t, Config{DataDir: dir})
		require.NoError(t, s.Stop(t.Context()))
		// The parent is alive and no postgres, as after a restart of a container.
		pidFile := filepath.Join(s.PGData(), "postmaster.pid")
		require.NoError(t, os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getppid())+"\n"), 0o644))
		start(t, Config{DataDir: dir})
	})

	t.Run("StopsServerLeftRunning", func(t *testing.T) {
		t.Parallel()
		dir := newDir(t)
		left := start(t, Config{DataDir: dir})
		left.release() // what is left of a killed ojsd: no lock, but its Postgres
		next := start(t, Config{DataDir: dir})
		select {
		case <-left.proc.exited:
		default:
			t.Fatal("the server left running still runs")
		}
		require.Equal(t, 1, query[int](t, next.URL("postgres"), "SELECT 1"))
	})

	t.Run("StartsOverAfterUnfinishedInitdb", func(t *testing.T) {
		t.Parallel()
		dir := newDir(t)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "pgdata.new", "base"), 0o700))
		start(t, Config{DataDir: dir})
	})
}

// A cluster that was not made is not started.
func TestReportsThatItCannotMakeACluster(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"initdb", "pg_basebackup"} {
		dir, data := t.TempDir(), t.TempDir()
		for _, name := range []string{program, "postgres"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho no space left >&2\nexit 1\n"), 0o755))
		}
		c := Config{}
		if program == "pg_basebackup" {
			c.primary = "host=127.0.0.1 port=1"
		}
		p := &place{base: data, data: data}
		err := p.initCluster(t.Context(), binaries{dir: dir, major: 18}, &c)
		require.ErrorContains(t, err, program)
		require.ErrorContains(t, err, "no space left")
		require.Zero(t, p.clusterMajor())
	}
}

func TestStop(t *testing.T) {
	t.Parallel()

	t.Run("EndsOpenTransactions", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{DataDir: newDir(t)})
		conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
		require.NoError(t, err)
		_, err = conn.Exec(t.Context(), "BEGIN")
		require.NoError(t, err)
		require.NoError(t, s.Stop(t.Context()))
		require.Error(t, conn.Ping(t.Context()))
		require.NoError(t, s.Stop(t.Context()), "a second Stop does nothing")
	})

	t.Run("TurnsRudeWhenContextEnds", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{DataDir: newDir(t)})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p := s.proc
		if err := s.Stop(ctx); err != nil { // it may also be quick enough
			require.ErrorIs(t, err, context.Canceled)
		}
		<-p.exited
	})

	t.Run("RemoveLeavesNothing", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(newDir(t), "data")
		s := start(t, Config{DataDir: dir})
		require.NoError(t, s.Remove(t.Context()))
		require.NoDirExists(t, dir)
	})
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s := start(t, Config{DataDir: newDir(t)})
	url := s.URL("postgres")
	keep(t, url, 1)
	for range 3 {
		require.NoError(t, s.Kill())
		_, err := pgx.Connect(t.Context(), url)
		require.Error(t, err)
		require.NoError(t, s.Restart(t.Context()))
		require.Equal(t, url, s.URL("postgres"))
		require.Equal(t, 1, query[int](t, url, "SELECT n FROM kept"))
	}
	require.NoError(t, s.Restart(t.Context()), "of a running server")
	require.Equal(t, 1, query[int](t, url, "SELECT n FROM kept"))
}

func TestRestartAfterPostmasterWasKilled(t *testing.T) {
	t.Parallel()
	s := start(t, Config{DataDir: newDir(t)})
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	s.proc.signal(syscall.SIGKILL)
	require.NoError(t, s.Restart(t.Context()), "orphaned backends must be waited for")
	require.Equal(t, 1, query[int](t, s.URL("postgres"), "SELECT 1"))
}

func TestOwnProcessGroup(t *testing.T) {
	t.Parallel()
	s := start(t, Config{DataDir: newDir(t)})
	group, err := syscall.Getpgid(s.proc.cmd.Process.Pid)
	require.NoError(t, err)
	require.NotEqual(t, syscall.Getpgrp(), group, "Ctrl-C in the terminal would stop Postgres before its users")
}

func TestParentKilled(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	helper := exec.Command(os.Args[0])
	helper.Env = append(os.Environ(), helperDir+"="+dir)
	stdout, err := helper.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, helper.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "pid ")))
	require.NoError(t, err, line)
	require.Contains(t, commandLine(pid), dir)

	require.NoError(t, helper.Process.Kill())
	require.Error(t, helper.Wait())
	require.True(t, Abandoned(dir))
	if runtime.GOOS == "linux" {
		require.Eventually(t, func() bool { return commandLine(pid) == "" }, time.Minute, 10*time.Millisecond)
	}
	s := start(t, Config{DataDir: dir})
	require.False(t, Abandoned(dir))
	require.Equal(t, 1, query[int](t, s.URL("postgres"), "SELECT 1"))
}

func TestUnreachableDataDirectory(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root runs Postgres as another user")
	}
	dir := filepath.Join(t.TempDir(), "repo", ".ojsd") // below a directory of mode 0700, like /root
	s := start(t, Config{DataDir: dir})
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(filepath.Dir(s.PGData()))) })
	require.True(t, strings.HasPrefix(s.PGData(), elsewhere), s.PGData())
	keep(t, s.URL("postgres"), 5)
	require.NoError(t, s.Stop(t.Context()))

	again := start(t, Config{DataDir: dir})
	require.Equal(t, s.PGData(), again.PGData())
	require.Equal(t, 5, query[int](t, again.URL("postgres"), "SELECT n FROM kept"))
	require.NoError(t, again.Remove(t.Context()))
	require.NoDirExists(t, filepath.Dir(again.PGData()))
}

func TestRunsAsOwnerOfTheData(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root runs Postgres as another user")
	}
	dir := newDir(t)
	s := start(t, Config{DataDir: dir})
	require.NoError(t, s.Stop(t.Context()))
	const owner = 65533 // whoever made it, before root came
	require.NoError(t, filepath.WalkDir(s.PGData(), func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, owner, owner))
	}))
	start(t, Config{DataDir: dir})
	info, err := os.Stat(filepath.Join(s.PGData(), "postmaster.pid"))
	require.NoError(t, err)
	require.EqualValues(t, owner, info.Sys().(*syscall.Stat_t).Uid)
}
