package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestWorkerDirectives covers docs/reference/workers.md, Directives and Quiet workers.
func TestWorkerDirectives(t *testing.T) {
	t.Parallel()
	a := setup(t)
	state := func(a *node, worker string, more ...string) string { return a.beat(worker, more...).at("state") }

	t.Run("StayUntilReplaced", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.beat("stay")
		require.Equal(t, `{"worker_id":"stay","directive":"quiet"}`, a.direct("stay", "quiet").is(200).body)
		require.Equal(t, "quiet", state(a, "stay", `"state":"running"`))
		require.Equal(t, "quiet", state(a, "stay", `"state":"running"`))
		require.Equal(t, "quiet", a.beat("stay").at("directive"))
		require.Equal(t, "quiet", a.worker("stay").at("directive"))
		require.Equal(t, "running", a.worker("stay").at("state"), "as reported")
		require.Equal(t, `{"worker_id":"stay","directive":"terminate"}`, a.post("/ojs/v1/admin/workers/stay/directive", `{"directive":"terminate"}`).is(200).body)
		require.Equal(t, "terminate", state(a, "stay", `"state":"quiet"`))
	})

	t.Run("ResumeIsReturnedUntilTheWorkerRuns", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.beat("res", `"state":"quiet"`)
		require.Equal(t, `{"worker_id":"res","directive":"running"}`, a.direct("res", "resume").is(200).body)
		require.Equal(t, "running", state(a, "res", `"state":"quiet"`))
		require.Equal(t, "running", state(a, "res", `"state":"quiet"`))
		require.Equal(t, "running", a.worker("res").at("directive"))
		require.Equal(t, "running", state(a, "res", `"state":"running"`))
		require.Equal(t, "", a.worker("res").at("directive"))
		require.Equal(t, "quiet", state(a, "res", `"state":"quiet"`), "the state that it reports")
	})

	t.Run("ReportedTerminateHasNoWayBack", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.beat("gone", `"shutdown":true`)
		a.direct("gone", "resume").is(200)
		require.Equal(t, "terminate", state(a, "gone", `"state":"running"`))
		require.Equal(t, "terminate", state(a, "gone"))
		a.post("/ojs/v1/workers/register", `{"worker_id":"gone"}`).is(200)
		require.Equal(t, "running", state(a, "gone"), "a new start")
	})

	t.Run("ForAll", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		for i := range 3 {
			a.beat(fmt.Sprintf("w%d", i))
		}
		require.JSONEq(t, `{"directive":"quiet","workers":3}`, a.post("/ojs/v1/admin/workers/directive", `{"directive":"quiet"}`).is(200).body)
		require.Equal(t, "quiet", state(a, "w1"))
		a.post("/ojs/v1/admin/workers/directive", `{"directive":"resume"}`).is(200)
		require.Equal(t, "running", state(a, "w1"))
		for _, body := range []string{`{}`, `{"directive":"stop"}`, `{"directive":7}`} {
			a.post("/ojs/v1/admin/workers/directive", body).invalid("directive")
			a.post("/ojs/v1/admin/workers/w1/directive", body).invalid("directive")
		}
		a.post("/ojs/v1/admin/workers/directive", `[]`).is(400)
	})

	t.Run("QuietWorkersGetNoJobs", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		for name, quieten := range map[string]func(w string){
			"directed quiet":     func(w string) { a.beat(w); a.direct(w, "quiet").is(200) },
			"directed terminate": func(w string) { a.beat(w); a.direct(w, "terminate").is(200) },
			"reported quiet":     func(w string) { a.beat(w, `"state":"quiet"`) },
			"reported terminate": func(w string) { a.beat(w, `"state":"terminate"`) },
		} {
			w, q := newID(), queue()
			id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
			quieten(w)
			a.withoutParking(func() {
				require.Equal(t, `{"jobs":[]}`, a.fetch(q, `"worker_id":"`+w+`"`, `"wait_ms":20000`).body, name)
			})
			// An operator's resume holds at once, but not for a worker that said that it ends.
			a.direct(w, "resume").is(200)
			for _, report := range []string{"", `"state":"running"`} {
				if report != "" {
					a.beat(w, report)
					id = a.push(`"type":"t","args":[],"queue":"%s"`, q)
				}
				if got := a.fetch(q, `"worker_id":"`+w+`"`); name == "reported terminate" {
					require.Equal(t, `{"jobs":[]}`, got.body, name)
				} else {
					require.Equal(t, id, got.at("jobs.0.id"), name)
				}
			}
		}
	})

	t.Run("EndAParkedFetch", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.beat("parked")
		got := a.parked(queue(), `"worker_id":"parked"`, `"wait_ms":20000`)
		start := time.Now()
		a.direct("parked", "quiet").is(200)
		require.Equal(t, `{"jobs":[]}`, (<-got).body)
		require.Less(t, time.Since(start), beforeItsTime)
	})

	t.Run("ReachOtherNodes", func(t *testing.T) {
		t.Parallel()
		one, two := nodes(t)
		q := queue()
		one.beat("w")
		got := two.parked(q, `"worker_id":"w"`, `"wait_ms":20000`)
		start := time.Now()
		one.direct("w", "quiet").is(200)
		require.Equal(t, `{"jobs":[]}`, (<-got).body)
		require.Less(t, time.Since(start), beforeItsTime)
		id := two.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, `{"jobs":[]}`, two.fetch(q, `"worker_id":"w"`).body)
		one.direct("w", "resume").is(200)
		eventually(t, func() bool { return two.fetch(q, `"worker_id":"w"`).at("jobs.0.id") == id })
	})

	t.Run("ReachNodesThatCannotListen", func(t *testing.T) {
		t.Parallel()
		one := setup(t)
		two := one.another(func(c *app.Config) { c.Database.ListenURL = "postgres://nobody@127.0.0.1:1/none" })
		one.beat("w")
		got := two.parked(queue(), `"worker_id":"w"`, `"wait_ms":20000`)
		start := time.Now()
		one.direct("w", "quiet").is(200)
		require.Equal(t, `{"jobs":[]}`, (<-got).body)
		require.Less(t, time.Since(start), beforeItsTime)
	})

	t.Run("AreKnownAtStart", func(t *testing.T) {
		t.Parallel()
		one := setup(t)
		one.beat("w", `"state":"quiet"`)
		two, q := one.another(), queue()
		two.push(`"type":"t","args":[],"queue":"%s"`, q)
		require.Equal(t, `{"jobs":[]}`, two.fetch(q, `"worker_id":"w"`).body)
	})

	t.Run("TestDirectivesOnlyWithTheSwitch", func(t *testing.T) {
		t.Parallel()
		for on, want := range map[bool][]string{true: {"quiet", "terminate", "running"}, false: {"running", "running", "running"}} {
			a := setup(t, func(c *app.Config) { c.Tests.Directives = on })
			for i, wish := range []string{"quiet", "terminate", "sleep"} {
				q := queue()
				id := a.push(`"type":"t","args":[],"queue":"%s","meta":{"nul":"\u0000","test_directive":"%s"}`, q, wish)
				require.Equal(t, "running", state(a, "w", `"job_id":"`+id+`"`), "not active")
				a.fetch(q, `"worker_id":"w"`)
				require.Equal(t, "running", state(a, "v", `"job_id":"`+id+`"`), "not its own")
				require.Equal(t, want[i], state(a, "w", `"job_id":"`+id+`"`), "%t %s", on, wish)
				require.Equal(t, "running", state(a, "w"), "nothing is stored")
				a.ack(id).is(200)
			}
		}
	})
}
