package e2e_test

import (
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestHealthHasAConnectionOfItsOwn keeps all other connections waiting.
func TestHealthHasAConnectionOfItsOwn(t *testing.T) {
	t.Parallel()
	a := setup(t, connections(8))
	id := a.push(`"type":"t","args":[]`)
	release := a.lockJobs()
	var reads sync.WaitGroup
	for range 8 {
		reads.Go(func() { a.job(id) })
	}
	all := func() bool {
		return a.one(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ojsd' AND wait_event_type = 'Lock'`) == "8"
	}
	eventually(t, all)
	a.ready()
	time.Sleep(1100 * time.Millisecond) // a look is shared for a second
	a.ready()
	require.True(t, all(), "they wait until the health was read")
	release()
	reads.Wait()
}

// What clients hold open is bounded: docs/reference/http.md, Bodies and Fetch.
func TestHeldOpen(t *testing.T) {
	t.Parallel()

	t.Run("WaitingFetches", func(t *testing.T) {
		t.Parallel()
		for _, most := range []int{0, 2} {
			a := setup(t, func(c *app.Config) { c.Server.MaxWaitingFetches = most })
			answers := make(chan reply, most+1)
			start := time.Now()
			for range most + 1 {
				go func() { answers <- a.fetch("q", `"wait_ms":20000`) }()
			}
			require.Equal(t, `{"jobs":[]}`, (<-answers).body, "one too many")
			id := a.push(`"type":"t","args":[],"queue":"other"`)
			require.Equal(t, id, a.fetch("other", `"wait_ms":20000`).at("jobs.0.id"), "what is there")
			for range most {
				a.push(`"type":"t","args":[],"queue":"q"`)
			}
			for range most {
				require.Equal(t, 1, (<-answers).count("jobs"))
			}
			require.Less(t, time.Since(start), beforeItsTime)
		}
	})

	t.Run("Connections", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.Server.MaxConnections = 10 })
		a.client.CloseIdleConnections()
		address := strings.TrimPrefix(a.url, "http://")
		var open []net.Conn
		ask := func() (net.Conn, error) {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			_, err = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
			require.NoError(t, err)
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
			_, err = conn.Read(make([]byte, 1))
			return conn, err
		}
		for {
			conn, err := ask()
			if err != nil {
				require.NoError(t, open[0].Close())
				require.NoError(t, conn.SetReadDeadline(time.Now().Add(waitFor)))
				_, err = conn.Read(make([]byte, 1))
				require.NoError(t, err, "when another has ended")
				break
			}
			open = append(open, conn)
			require.LessOrEqual(t, len(open), 10)
		}
	})
}

// TestFetchOfManyLargeJobs asks for all jobs at once, as often as there are some, and counts each.
func TestFetchOfManyLargeJobs(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	a := setup(t)
	const jobs = 80 // of 1 MiB: 10 answers
	a.exec(`INSERT INTO ojs.jobs (id, type, queue, state, ready_seq, created_at, enqueued_at, args, size)
		SELECT overlay(gen_random_uuid()::text placing '7' from 15)::uuid, 't', 'large', 'available', nextval('ojs.ready_seq'), now(), now(), to_json(ARRAY[repeat('x', 1048576)]), 1048580 FROM generate_series(1, $1)`, jobs)
	var acks []string
	for claimed := 0; claimed < jobs; {
		r := a.fetch("large", `"count":1000,"worker_id":"w","visibility_timeout_ms":600000`)
		require.Less(t, len(r.body), 10<<20)
		n := strings.Count(r.body, `"attempt":1,`)
		require.Positive(t, n)
		if claimed += n; len(acks) < 20 {
			for _, id := range r.list("jobs", "id") {
				acks = append(acks, `{"worker_id":"w","job_id":"`+id+`"}`)
			}
		}
	}
	require.Equal(t, strconv.Itoa(jobs), a.one(`SELECT count(*)::text FROM ojs.jobs WHERE state = 'active' AND attempt = 1`))
	require.Less(t, len(a.get("/ojs/v1/jobs?limit=200").is(200).body), 10<<20)
	answer := a.post("/ojs/v1/workers/ack/batch", `{"acks":[`+strings.Join(acks, ",")+`]}`).is(200)
	require.Equal(t, len(acks), strings.Count(answer.body, `"status":"ok"`))
	require.Less(t, len(answer.body), 10<<20)
}

// TestAnswersOfBatchesAreBounded: an answer has what the request carried, and 1 KiB a job.
func TestAnswersOfBatchesAreBounded(t *testing.T) {
	t.Parallel()
	a := setup(t)
	large := `{"type":"t","queue":"echo","args":["` + repeated('x', 1<<20-100) + `"]}`
	small := `{"type":"t","queue":"echo","args":[]}`
	for name, c := range map[string]struct {
		item string
		n    int
	}{"Large": {large, 8}, "Small": {small, 1000}} {
		body := `{"jobs":[` + strings.TrimSuffix(strings.Repeat(c.item+",", c.n), ",") + `]}`
		for _, path := range []string{"/ojs/v1/jobs/batch", "/ojs/v1/jobs/bulk"} {
			answer := a.post(path, body).is(201).body
			require.Equal(t, c.n, strings.Count(answer, `"queue":"echo"`), name)
			require.Less(t, len(answer), len(body)+1024*c.n, name)
		}
	}
}

// TestSlowReadersLeaveConnections: reads that do not come to an end do not keep claims waiting.
func TestSlowReadersLeaveConnections(t *testing.T) {
	t.Parallel()
	a := setup(t, connections(8))
	conn := a.connect()
	defer func() { _ = conn.Close(context.Background()) }()
	_, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE ojs.event_relay") // what is read of events begins there; changes of jobs do not need it
	require.NoError(t, err)
	var reads sync.WaitGroup
	for i := range 20 { // those that wait too long are answered 503
		reads.Go(func() { a.get([]string{"/ojs/v1/events", "/ojs/v1/history", "/ojs/v1/events?page=1"}[i%3]) })
	}
	waiting := func() string {
		return a.one(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ojsd' AND wait_event_type = 'Lock' AND query ~ 'name: (History|EventList|EventFloor :)'`)
	}
	eventually(t, func() bool { return waiting() == "4" }) // of 8 connections
	start := time.Now()
	for range 5 {
		id := a.push(`"type":"t","args":[],"queue":"free"`)
		require.Equal(t, id, a.fetch("free").at("jobs.0.id"))
		a.ack(id).is(200)
	}
	require.Less(t, time.Since(start), beforeItsTime)
	_, err = conn.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	reads.Wait()
}
