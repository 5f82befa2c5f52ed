package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestStalledDatabase lets 500 producers send 1 MiB each while no job can be stored, and for two seconds more. The node keeps what fits
// its memory and refuses the others, who send again; every job that it has accepted is stored once. It prints what the processes take.
func TestStalledDatabase(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("the memory of processes is read from /proc")
	}
	const (
		producers   = 500
		maxServer   = 1 << 30
		maxBackends = 1 << 30
	)
	url := dbtest.URL(t)
	server := startNode(t, url)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	lock, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), "LOCK TABLE ojs.jobs")
	require.NoError(t, err)

	body := `{"type":"t","queue":"stalled","args":["` + strings.Repeat("x", 1<<20-100) + `"]}`
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: producers}}
	defer client.CloseIdleConnections()
	var refused, accepted, unknown atomic.Int64
	sending, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	for range producers {
		all.Go(func() {
			for sending.Err() == nil {
				switch send(t, client, server.base, body) {
				case http.StatusCreated:
					accepted.Add(1)
					return
				case http.StatusGatewayTimeout: // on a slow machine a statement ends by its timeout, and nobody can tell whether it did anything
					unknown.Add(1)
					return
				}
				refused.Add(1)
				sleepContext(sending, time.Second)
			}
		})
	}
	backends := watchBackends(t, url)
	require.Eventually(t, func() bool { return refused.Load() > 100 }, time.Minute, 10*time.Millisecond)
	time.Sleep(2 * time.Second) // the stall
	require.NoError(t, lock.Rollback(t.Context()))
	time.Sleep(2 * time.Second) // the rush after it
	stop()
	all.Wait()
	most := backends()

	var jobs int64
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM ojs.jobs WHERE queue = 'stalled'").Scan(&jobs))
	require.GreaterOrEqual(t, jobs, accepted.Load())
	require.LessOrEqual(t, jobs, accepted.Load()+unknown.Load())
	require.Positive(t, jobs)
	peak := memoryOf(server.cmd.Process.Pid, "VmHWM")
	t.Logf("%d jobs, %d refusals; at most %d MiB resident in the server, %d MiB in all its backends, without shared buffers", jobs, refused.Load(), peak>>20, most>>20)
	require.Positive(t, most)
	if !raceDetector() { // it takes a multiple
		require.Less(t, peak, maxServer)
	}
	require.Less(t, most, maxBackends)
}

func raceDetector() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// send sends a job and returns the status of the answer: 503 for each one which says that nothing was stored, and if the node closes
// the connection of a body that it does not read.
func send(t *testing.T, client *http.Client, base, body string) int {
	res, err := client.Post(base+"/ojs/v1/jobs", "application/json", strings.NewReader(body))
	if err != nil {
		return http.StatusServiceUnavailable
	}
	answer, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	switch res.StatusCode {
	case http.StatusCreated:
	case http.StatusServiceUnavailable:
		if res.Header.Get("Retry-After") != "1" {
			t.Errorf("503 with Retry-After %q", res.Header.Get("Retry-After"))
		}
	case http.StatusGatewayTimeout:
		if !strings.Contains(string(answer), `"outcome":"unknown"`) {
			return http.StatusServiceUnavailable // the statement was ended by its timeout, so the job must not exist
		}
	default:
		t.Errorf("status %d: %.300s", res.StatusCode, answer)
	}
	return res.StatusCode
}

// watchBackends looks at the memory of the node's database sessions until the returned function is called, which returns the most
// that they took together.
func watchBackends(t *testing.T, url string) func() int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	stop, ended := make(chan struct{}), make(chan int)
	go func() {
		defer func() { _ = conn.Close(context.Background()) }()
		most := 0
		for {
			select {
			case <-stop:
				ended <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
			rows, _ := conn.Query(context.Background(), "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ojsd'")
			pids, _ := pgx.CollectRows(rows, pgx.RowTo[int])
			sum := 0
			for _, pid := range pids {
				sum += memoryOf(pid, "RssAnon")
			}
			most = max(most, sum)
		}
	}()
	return func() int { close(stop); return <-ended }
}

// memoryOf reads bytes from the status of a process; 0 if it has ended.
func memoryOf(pid int, name string) int {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name+":"); ok {
			kilobytes, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			return kilobytes << 10
		}
	}
	return 0
}
