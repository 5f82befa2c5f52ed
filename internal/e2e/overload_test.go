package e2e_test

import (
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStalledDatabase lets many producers send 1 MiB each while no job can be stored. The node keeps what fits its memory and
// refuses the others, who send again; every job is stored once.
func TestStalledDatabase(t *testing.T) {
	a := setup(t)
	const producers = 200 // more than the 128 MiB of bodies that a node takes
	body := `{"type":"t","queue":"stalled","args":["` + repeated('x', 1<<20-100) + `"]}`
	release := a.lockJobs()
	var (
		mu      sync.Mutex
		refused int
		peak    uint64
		all     sync.WaitGroup
	)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				mu.Lock()
				peak = max(peak, m.HeapInuse+m.StackInuse)
				mu.Unlock()
			}
		}
	}()
	for range producers {
		all.Go(func() {
			for {
				res, err := a.client.Post(a.url+"/ojs/v1/jobs", "application/json", strings.NewReader(body))
				if err != nil { // the node closes the connection of a body that it does not read
					time.Sleep(100 * time.Millisecond)
					continue
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if res.StatusCode == http.StatusCreated {
					return
				}
				mu.Lock()
				refused++
				mu.Unlock()
				if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") != "1" {
					t.Errorf("status %d, Retry-After %q", res.StatusCode, res.Header.Get("Retry-After"))
					return
				}
				time.Sleep(time.Second)
			}
		})
	}
	eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return refused > 50 })
	time.Sleep(2 * time.Second) // the stall
	release()
	all.Wait()
	close(done)
	require.Equal(t, strconv.Itoa(producers), a.one(`SELECT count(*)::text FROM ojs.jobs WHERE queue = 'stalled'`))
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d refusals, at most %d MiB in use by the node and its clients", refused, peak>>20)
	require.Less(t, peak, uint64(1<<30))
}

// TestHealthHasAConnectionOfItsOwn keeps all other connections waiting.
func TestHealthHasAConnectionOfItsOwn(t *testing.T) {
	t.Parallel()
	a := setup(t)
	id := a.push(`"type":"t","args":[]`)
	release := a.lockJobs()
	var reads sync.WaitGroup
	for range 8 {
		reads.Go(func() { a.job(id) })
	}
	eventually(t, func() bool {
		return a.one(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ojsd' AND wait_event_type = 'Lock'`) == "8"
	})
	a.get("/readyz").is(200)
	time.Sleep(1100 * time.Millisecond) // a look is shared for a second
	a.get("/readyz").is(200)
	release()
	reads.Wait()
}

// TestFetchOfManyLargeJobs asks for all jobs at once, as often as there are some, and counts each.
func TestFetchOfManyLargeJobs(t *testing.T) {
	t.Parallel()
	a := setup(t)
	const jobs = 300 // of 1 MiB: 40 answers
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
