package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFetch covers docs/reference/http.md, Fetch.
func TestFetch(t *testing.T) {
	t.Parallel()
	a := setup(t)

	// fill enqueues jobs with these priorities and returns their ids.
	fill := func(a *node, queue string, priorities ...int) []string {
		a.t.Helper()
		var jobs []string
		for _, p := range priorities {
			jobs = append(jobs, fmt.Sprintf(`{"type":"t","args":[],"queue":"%s","priority":%d}`, queue, p))
		}
		return a.post("/ojs/v1/jobs/batch", `{"jobs":[`+strings.Join(jobs, ",")+`]}`).is(201).list("jobs", "id")
	}

	t.Run("ShowsTheWholeEnvelope", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		pushed := a.post("/ojs/v1/jobs", `{"type":"t","args":[1.0],"queue":"`+q+`","timeout_ms":5000,"meta":{"a":1},"x":"y","retry":{"max_attempts":4}}`, "OJS-Version: 1.0").is(201)
		r := a.fetch(q, `"worker_id":"w-7"`)
		for member, want := range map[string]string{
			"id": pushed.at("job.id"), "state": "active", "attempt": "1", "max_attempts": "4", "timeout_ms": "5000", "worker_id": "w-7", "args": "[1.0]", "meta": `{"a":1}`, "x": "y",
			"created_at": pushed.at("job.created_at"), "enqueued_at": pushed.at("job.enqueued_at"), "retry": `{"max_attempts":4}`,
		} {
			require.Equal(t, want, r.at("jobs.0."+member), member)
		}
		require.Regexp(t, serverTime, r.at("jobs.0.started_at"))
		lease := `"lease_token":"` + r.at("jobs.0.lease_token") + `",` // for this worker alone
		require.Equal(t, a.job(pushed.at("job.id")).at("job"), strings.Replace(r.at("jobs.0"), lease, "", 1))
	})

	t.Run("NeverShowsTimeoutInSeconds", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, more := range []string{`"timeout":5`, `"timeout":5,"x":{"timeout":6}`, `"x":"\"timeout\":7","timeout":5`} {
			q := queue()
			id := a.push(`"type":"t","args":[],"queue":"%s",%s`, q, more)
			r := a.fetch(q)
			require.False(t, r.has("jobs.0.timeout"))
			require.Equal(t, "5000", r.at("jobs.0.timeout_ms"))
			require.Equal(t, a.job(id).at("job.x"), r.at("jobs.0.x"))
			require.Equal(t, "5", a.job(id).at("job.timeout"))
		}
	})

	t.Run("OrdersByPriorityThenArrival", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		ids := fill(a, q, 0, 10, -10, 10, 0, 100, -100)
		require.Equal(t, []string{ids[5], ids[1], ids[3], ids[0], ids[4], ids[2], ids[6]}, a.fetch(q, `"count":10`).list("jobs", "id"))
	})

	t.Run("IgnoresTheOrderOfIDs", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		late, early := newID(), "00000000-0000-7000-8000-"+newID()[24:]
		a.push(`"type":"t","args":[],"queue":"%s","id":"%s"`, q, late)
		a.push(`"type":"t","args":[],"queue":"%s","id":"%s"`, q, early)
		require.Equal(t, []string{late, early}, a.fetch(q, `"count":10`).list("jobs", "id"))
	})

	t.Run("TakesQueuesLeftToRight", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q1, q2, q3 := queue(), queue(), queue()
		high := fill(a, q2, 50, 0)
		low := fill(a, q1, -50)
		r := a.post("/ojs/v1/workers/fetch", fmt.Sprintf(`{"queues":["%s","%s","%s","%s"],"count":10}`, q3, q1, q2, q1)).is(200)
		require.Equal(t, append(low, high...), r.list("jobs", "id"))
	})

	t.Run("RequeuedJobJoinsAtTheBack", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		ids := fill(a, q, 0, 0)
		require.Equal(t, ids[:1], a.fetch(q).list("jobs", "id"))
		a.nack(ids[0], `"requeue":true`).is(200)
		require.Equal(t, []string{ids[1], ids[0]}, a.fetch(q, `"count":2`).list("jobs", "id"))
	})

	t.Run("ClampsCount", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		fill(a, q, make([]int, 1010)...)
		for _, count := range []string{`"wait_ms":0`, `"count":0`, `"count":-5`, `"count":null`, `"max_jobs":0`, `"count":1,"max_jobs":5`} {
			require.Equal(t, 1, a.fetch(q, count).count("jobs"), count)
		}
		require.Equal(t, 2, a.fetch(q, `"max_jobs":2`).count("jobs"))
		require.Equal(t, 1000, a.fetch(q, `"count":5000`).count("jobs"))
		require.Equal(t, 2, a.fetch(q, `"count":9223372036854775807`).count("jobs"))
	})

	t.Run("AcceptsOneQueueByItsAlias", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		ids := fill(a, q, 0)
		require.Equal(t, ids, a.post("/ojs/v1/workers/fetch", `{"queue":"`+q+`"}`).is(200).list("jobs", "id"))
	})

	t.Run("RefusesBadFields", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for body, field := range map[string]string{
			`{}`: "queues", `{"queues":null}`: "queues", `{"queues":[]}`: "queues", `{"queues":"default"}`: "queues", `{"queues":[1]}`: "queues", `{"queues":["A"]}`: "queues",
			`{"queues":[""]}`: "queues", `{"queues":["ok","-"]}`: "queues", `{"queues":["` + repeated('q', 129) + `"]}`: "queues", `{"queue":7}`: "queue", `{"queue":"A b"}`: "queue",
			`{"queues":["q"],"count":"1"}`: "count", `{"queues":["q"],"count":1.5}`: "count", `{"queues":["q"],"max_jobs":[]}`: "max_jobs",
			`{"queues":["q"],"worker_id":7}`: "worker_id", `{"queues":["q"],"worker_id":"` + repeated('w', 256) + `"}`: "worker_id",
			`{"queues":["q"],"visibility_timeout_ms":-1}`: "visibility_timeout_ms", `{"queues":["q"],"visibility_timeout_ms":"5"}`: "visibility_timeout_ms",
			`{"queues":["q"],"visibility_timeout_ms":604800001}`: "visibility_timeout_ms",
			`{"queues":["q"],"wait_ms":-1}`:                      "wait_ms", `{"queues":["q"],"wait_ms":"5"}`: "wait_ms",
		} {
			a.post("/ojs/v1/workers/fetch", body).invalid(field)
		}
		a.post("/ojs/v1/workers/fetch", `{"queues":["q"],"worker_id":"`+repeated('w', 255)+`","visibility_timeout_ms":604800000,"wait_ms":0}`).is(200)
		a.post("/ojs/v1/workers/fetch", `{"queues":["`+repeated('q', 128)+`"]}`).is(200)
	})

	t.Run("FindsNothing", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		require.Equal(t, `{"jobs":[]}`, a.fetch(q).body)
		require.Equal(t, `{"jobs":[]}`, a.fetch(q, `"count":100`).body)
		require.Equal(t, "0", a.get("/ojs/v1/queues/"+q+"/stats").at("queue.total"))
	})

	t.Run("GivesEachJobToOneCaller", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		ids := fill(a, q, make([]int, 200)...)
		var mu sync.Mutex
		var got []string
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for {
					r := a.post("/ojs/v1/workers/fetch", fmt.Sprintf(`{"queues":["%s"],"count":%d}`, q, 1+i%5))
					mine := r.list("jobs", "id")
					if len(mine) == 0 {
						return
					}
					mu.Lock()
					got = append(got, mine...)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		slices.Sort(got)
		require.Equal(t, ids, got)
	})

	t.Run("ReservesForTheChosenTime", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		own, short := queue(), queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","visibility_timeout_ms":100`, own)
		a.fetch(own, `"visibility_timeout_ms":0`) // 0: the job's own
		other := a.push(`"type":"t","args":[],"queue":"%s","visibility_timeout_ms":60000`, short)
		a.fetch(short, `"visibility_timeout_ms":100`)
		for q, id := range map[string]string{own: id, short: other} {
			r := a.fetch(q, `"wait_ms":10000`)
			require.Equal(t, id, r.at("jobs.0.id"))
			require.Equal(t, "2", r.at("jobs.0.attempt"))
			require.Equal(t, "visibility_timeout", r.at("jobs.0.error.code"))
			require.Equal(t, "visibility_timeout", r.at("jobs.0.errors.0.type"))
		}
	})

	t.Run("LastAttemptIsDiscardedWhenItsReservationEnds", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","max_attempts":1`, q)
		a.fetch(q, `"visibility_timeout_ms":50`)
		eventually(t, func() bool { return a.job(id).at("job.state") == "discarded" })
		require.Equal(t, "visibility_timeout", a.job(id).at("job.error.code"))
		require.True(t, a.job(id).has("job.completed_at"))
	})

	t.Run("ExecutionTimeoutFailsTheRun", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := a.push(`"type":"t","args":[],"queue":"%s","timeout_ms":100,"retry":{"initial_interval":"PT1H"}`, q)
		a.fetch(q)
		eventually(t, func() bool { return a.job(id).at("job.state") == "retryable" })
		require.Equal(t, "timeout", a.job(id).at("job.error.code"))
	})
}

// TestFetchWaits covers docs/reference/http.md, Fetch: waiting. Its subtests are not parallel because they count the fetches that wait.
func TestFetchWaits(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("AnswersAtOnceWithoutWait", func(t *testing.T) {
		a := a.in(t)
		for _, wait := range []string{`"count":1`, `"wait_ms":0`, `"wait_ms":null`} {
			a.withoutParking(func() { require.Equal(t, `{"jobs":[]}`, a.fetch(queue(), wait).body) })
		}
	})

	t.Run("UntilAJobComes", func(t *testing.T) {
		a := a.in(t)
		q1, q2 := queue(), queue()
		got := a.parked(q1+`","`+q2, `"wait_ms":15000`, `"count":5`)
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q2)
		require.Equal(t, []string{id}, (<-got).list("jobs", "id"))
	})

	t.Run("UntilAPendingJobIsActivated", func(t *testing.T) {
		a := a.in(t)
		id := a.jobIn("pending")
		got := a.parked(a.job(id).at("job.queue"), `"wait_ms":15000`)
		a.post("/ojs/v1/jobs/"+id+"/activate", "").is(200)
		require.Equal(t, []string{id}, (<-got).list("jobs", "id"))
	})

	t.Run("UntilAJobIsHandedBack", func(t *testing.T) {
		a := a.in(t)
		id := a.jobIn("active")
		got := a.parked(a.job(id).at("job.queue"), `"wait_ms":15000`)
		a.nack(id, `"requeue":true`).is(200)
		require.Equal(t, []string{id}, (<-got).list("jobs", "id"))
	})

	t.Run("UntilABulkCallBringsJobs", func(t *testing.T) {
		a := a.in(t)
		id := a.jobIn("discarded")
		got := a.parked(a.job(id).at("job.queue"), `"wait_ms":15000`)
		a.post("/ojs/v1/jobs/bulk/retry", `{"job_ids":["`+id+`"]}`).is(200)
		require.Equal(t, []string{id}, (<-got).list("jobs", "id"))
		q := queue()
		got = a.parked(q, `"wait_ms":15000`)
		made := a.post("/ojs/v1/jobs/bulk", `{"atomicity":"atomic","jobs":[{"type":"t","args":[],"queue":"`+q+`"}]}`).is(201)
		require.Equal(t, made.list("items", "job"), []string{made.at("items.0.job")})
		require.Equal(t, made.at("items.0.job.id"), (<-got).at("jobs.0.id"))
	})

	t.Run("UntilTheTimeIsOver", func(t *testing.T) {
		a := a.in(t)
		start := time.Now()
		require.Equal(t, `{"jobs":[]}`, a.fetch(queue(), `"wait_ms":200`).body)
		require.GreaterOrEqual(t, time.Since(start), 200*time.Millisecond)
	})

	t.Run("EachJobWakesAsManyAsItCanServe", func(t *testing.T) {
		a := a.in(t)
		q := queue()
		var waiting []<-chan reply
		for range 5 {
			waiting = append(waiting, a.parked(q, `"wait_ms":15000`, `"count":3`))
		}
		var want, got []string
		for range 5 {
			want = append(want, a.push(`"type":"t","args":[],"queue":"%s"`, q))
			eventually(t, func() bool { return a.app.Domains().Jobs.Parked() == 5-len(want) })
		}
		for _, w := range waiting {
			r := <-w
			require.Equal(t, 1, r.count("jobs"))
			got = append(got, r.at("jobs.0.id"))
		}
		require.ElementsMatch(t, want, got)
	})

	t.Run("ClientThatHangsUpClaimsNothing", func(t *testing.T) {
		a := a.in(t)
		q := queue()
		ctx, hangUp := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/ojs/v1/workers/fetch", strings.NewReader(`{"queues":["`+q+`"],"wait_ms":20000}`))
			if err == nil {
				_, err = a.client.Do(req)
			}
			done <- err
		}()
		eventually(t, func() bool { return a.app.Domains().Jobs.Parked() == 1 })
		hangUp()
		require.ErrorIs(t, <-done, context.Canceled)
		eventually(t, func() bool { return a.app.Domains().Jobs.Parked() == 0 })
		id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, "0", a.job(id).at("job.attempt"))
		require.Equal(t, id, a.fetch(q).at("jobs.0.id"))
	})
}

// TestLimitedQueueWakesOtherNodes: a fetch that waits on one node for a queue at its concurrency gets its job when a run ends on another.
func TestLimitedQueueWakesOtherNodes(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]string{"Concurrency": `{"concurrency":1}`, "RateLimit": `{"rate_limit":{"concurrency":1}}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := setup(t)
			b := a.another()
			q := queue()
			a.put("/ojs/v1/queues/"+q+"/config", config).is(200)
			a.pushMany(t, q, 2)
			first := a.fetch(q).at("jobs.0.id")
			answer := a.parked(q, `"wait_ms":15000`)
			began := time.Now()
			b.ack(first).is(200)
			require.Equal(t, 1, (<-answer).count("jobs"))
			require.Less(t, time.Since(began), 5*time.Second, "it was woken, and did not end by its wait")
		})
	}
}
