package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
)

// inLanes stores n jobs in each lane, with the lane and a number as arguments.
func (b *bundle) inLanes(n int, lanes ...string) (stored []*job.Record) {
	b.T.Helper()
	var jobs []*job.Job
	for _, lane := range lanes {
		for i := range n {
			j := domaintest.NewJob("q")
			j.Lane, j.Args = lane, fmt.Appendf(nil, `[%q,%d]`, lane, i)
			jobs = append(jobs, j)
		}
	}
	stored, errs := b.EnqueueEach(b.T.Context(), jobs)
	require.Nil(b.T, errs)
	return stored
}

func lanesOf(jobs []*job.Record) (lanes []string) {
	for _, j := range jobs {
		lanes = append(lanes, j.Lane)
	}
	return lanes
}

// configure stores a configuration as PUT does, and makes the node read it.
func (b *bundle) configure(name, config string) {
	b.T.Helper()
	b.ConfigureQueue(name, config)
	require.NoError(b.T, b.Configured.Refresh(b.T.Context()))
}

func TestFairFetch(t *testing.T) {
	t.Parallel()

	t.Run("AFewJobsDoNotWaitForMany", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.inLanes(300, "big")
		b.inLanes(5, "small")
		node := b.node() // it has heard of no lane
		var got []string
		for range 10 {
			got = append(got, lanesOf(node.Fetched(1, "q"))...)
		}
		require.Equal(t, 5, strings.Count(strings.Join(got, " "), "small"), got)
	})

	t.Run("AFetchOfManyIsDividedAndFilled", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.inLanes(100, "a")
		b.inLanes(3, "b", "c")
		got := strings.Join(lanesOf(b.Fetched(30, "q")), "")
		require.Len(t, got, 30)
		require.Equal(t, 3, strings.Count(got, "b"))
		require.Equal(t, 3, strings.Count(got, "c"))
	})

	t.Run("TheLaneIsThatOfTheFairnessKey", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.configure("q", `{"fairness":{"key":"meta.customer"}}`)
		longest := strings.Repeat("x", 128)
		long := longest + "x"
		for meta, lane := range map[string]string{
			`{"customer":"acme"}`:                "/acme",
			`{"customer":12}`:                    "/12",
			`{"customer":true}`:                  "/true",
			`{"customer":""}`:                    "",
			`{"customer":null}`:                  "",
			`{"customer":["acme"]}`:              "",
			`{"other":"acme"}`:                   "",
			`{"customer":"a/b"}`:                 "/a/b",
			`{"customer":"` + longest + `"}`:     "/" + longest,
			`{"customer":"` + long + `"}`:        "/sha256:" + b.One(`SELECT encode(sha256($1::text::bytea), 'hex')`, long),
			`{"customer":"a\u0000b"}`:            "/sha256:" + b.One(`SELECT encode(sha256('\x610062'), 'hex')`),
			`{"customer":"\ud83d\ude00 müller"}`: "/😀 müller",
		} {
			j := domaintest.NewJob("q")
			j.Meta = []byte(meta)
			require.Equal(t, lane, b.Enqueued(j)[0].Lane, meta)
			if !strings.Contains(meta, `\u0000`) {
				id := b.One(`SELECT ojs.enqueue('test.job', '[1]', 'q', $1)`, `{"meta":`+meta+`}`)
				require.Equal(t, lane, b.One(`SELECT lane FROM ojs.jobs WHERE id = $1::text::uuid`, id), meta)
			}
			require.Equal(t, lane, b.One(`SELECT lane FROM ojs.events WHERE job_id = $1`, j.ID))
		}
		other := domaintest.NewJob("q")
		other.Lane, other.Meta = "tenant", []byte(`{"customer":"c"}`)
		require.Equal(t, "tenant/c", b.Enqueued(other)[0].Lane)
	})

	t.Run("WeightsHold", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.configure("q", `{"fairness":{"key":"meta.customer","weights":{"gold":3}}}`)
		for range 40 {
			for _, customer := range []string{"gold", "basic"} {
				j := domaintest.NewJob("q")
				j.Meta = fmt.Appendf(nil, `{"customer":%q}`, customer)
				b.Enqueued(j)
			}
		}
		var got []string
		for range 20 {
			got = append(got, lanesOf(b.Fetched(1, "q"))...)
		}
		require.Equal(t, 15, strings.Count(strings.Join(got, " "), "gold"), got)
	})

	t.Run("LanesWithFewerJobsThanTheirWeightFillAFetch", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		var weights []string
		var jobs []*job.Job
		for n := range 100 {
			weights = append(weights, fmt.Sprintf(`"c%d":1000`, n))
			j := domaintest.NewJob("q")
			j.Meta = fmt.Appendf(nil, `{"customer":"c%d"}`, n)
			jobs = append(jobs, j)
		}
		b.configure("q", `{"fairness":{"key":"meta.customer","weights":{`+strings.Join(weights, ",")+`}}}`)
		_, errs := b.EnqueueEach(t.Context(), jobs)
		require.Nil(t, errs)
		require.Len(t, b.Fetched(90, "q"), 90)
	})

	t.Run("ATenantFetchesItsJobsOnly", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.inLanes(2, "a", "a/x", "a-b", "b", "", "/k")
		got, err := b.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 100, Tenant: "a"})
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"a", "a", "a/x", "a/x"}, lanesOf(got))
		require.Len(t, b.Fetched(100, "q"), 8)
	})

	t.Run("JobsThatComeBackWaitInTheirLane", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.inLanes(1, "a")
		got := b.Fetched(1, "q")
		_, err := b.Fail(t.Context(), job.Nack{JobID: got[0].ID, Attempt: -1, Requeue: true})
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, lanesOf(b.Fetched(1, "q")))
	})
}

func TestParkedFetchesOfTenants(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.seen()
	other := b.node()
	answers := map[string]chan []*job.Record{}
	for i, tenant := range []string{"a", "b"} {
		answers[tenant] = make(chan []*job.Record, 1)
		go func() {
			jobs, _ := b.Fetch(context.Background(), job.Fetch{Queues: []string{"q"}, Count: 1, Tenant: tenant, Wait: domaintest.WaitFor})
			answers[tenant] <- jobs
		}()
		require.Eventually(t, func() bool { return b.Waiting() == i+1 }, domaintest.WaitFor, time.Millisecond)
	}
	own := b.inLanes(1, "b")[0] // the enqueue claims for the fetch
	require.Equal(t, own.ID, domaintest.Await(t, answers["b"])[0].ID)
	require.Equal(t, 1, b.transactions(own.ID))

	foreign := other.inLanes(1, "c", "a/x")[1] // the notification of another node wakes it
	b.NotifyReady(queue.Place{Queue: "q", Lane: "c", Seq: foreign.ReadySeq.Int64 - 1})
	require.Equal(t, 1, b.Parked())
	b.NotifyReady(queue.Place{Queue: "q", Lane: "a/x", Seq: foreign.ReadySeq.Int64})
	require.Equal(t, foreign.ID, domaintest.Await(t, answers["a"])[0].ID)
}

// Two nodes, many lanes, jobs that are added and come back meanwhile: each run is one claim, the order inside of a lane is kept, and
// nothing is left.
func TestFairFetchOnTwoNodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nodes := []*bundle{b, b.node()}
	const lanes, perLane, fetchers = 40, 12, 3
	var names []string
	for i := range lanes {
		names = append(names, job.Lane([]string{"", "t1", "t2", "t3"}[i%4], []string{"", fmt.Sprint("k", i)}[min(i/4, 1)]))
	}
	var mu sync.Mutex
	claimed := map[[16]byte]int{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for range perLane {
			nodes[rand.IntN(2)].inLanes(1, names...)
		}
	})
	for n := range 2 * fetchers {
		wg.Go(func() {
			r, latest, node := rand.New(rand.NewPCG(uint64(n), 7)), map[string]int64{}, nodes[n%2]
			for done := false; !done; {
				jobs, err := node.Fetch(t.Context(), job.Fetch{Queues: []string{"q"}, Count: 1 + r.IntN(20)})
				if err != nil {
					t.Errorf("fetch: %v", err)
					return
				}
				mu.Lock()
				for _, j := range jobs {
					claimed[j.ID]++
				}
				done = len(claimed) == lanes*perLane
				mu.Unlock()
				inClaim := map[string]int64{}
				for _, j := range jobs {
					if j.ReadySeq.Int64 <= inClaim[j.Lane] {
						t.Errorf("lane %q: %d after %d in one claim", j.Lane, j.ReadySeq.Int64, inClaim[j.Lane])
					}
					inClaim[j.Lane] = j.ReadySeq.Int64
					latest[j.Lane] = max(latest[j.Lane], j.ReadySeq.Int64)
				}
				if t.Failed() || t.Context().Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	require.Len(t, claimed, lanes*perLane)
	for id, times := range claimed {
		require.Equal(t, 1, times, "%x", id)
	}
	require.Zero(t, b.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available'`))
}

// ojs.enqueue puts a job of a fair queue into the lane into which an enqueue over HTTP puts it.
func TestFairKeyInSQL(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"fairness":{"key":"meta.customer"}}`)
	for _, value := range []string{
		``, `null`, `""`, `"c"`, `"C/d"`, `" c "`, `7`, `7.0`, `1e2`, `-0`, `true`, `false`, `{"a":1}`, `[]`, `"\u0063"`, `"é"`, `"\""`, `"a","customer":"b"`, `"a","Customer":"b"`,
		`"` + strings.Repeat("x", 128) + `"`, `"` + strings.Repeat("x", 129) + `"`, `"` + strings.Repeat("é", 64) + `"`, `"` + strings.Repeat("é", 64) + `x"`,
	} {
		for _, tenant := range []string{``, `"tenant_id":"t1"`} {
			members := tenant
			if value != "" {
				members = strings.TrimSuffix(`"customer":`+value+`,`+tenant, ",")
			}
			options := `{"queue":"q","meta":{` + members + `}}`
			var id [16]byte
			require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT ojs.enqueue('t', '[]', 'q', $1::text::json)`, `{"meta":{`+members+`}}`).Scan(&id), members)
			j, wire := job.DecodeJob([]byte(`{"type":"t","args":[],"options":`+options+`}`), job.Limits{})
			require.Nil(t, wire, members)
			stored, err := b.Enqueue(t.Context(), j)
			require.NoError(t, err)
			inSQL, err := b.Get(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, stored.Lane, inSQL.Lane, members)
		}
	}
}
