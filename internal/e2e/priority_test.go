package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPriority covers docs/reference/jobs.md, Priority.
func TestPriority(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("Changes", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		first := a.push(`"type":"t","args":[1],"queue":"%s"`, q)
		second := a.push(`"type":"t","args":[2],"queue":"%s"`, q)
		r := a.patch("/ojs/v1/jobs/"+second, `{"priority":"HIGH"}`).is(200)
		require.Equal(t, []string{second, "10", "0", second, "10", "[2]", "available"},
			[]string{r.at("id"), r.at("priority"), r.at("previous_priority"), r.at("job.id"), r.at("job.priority"), r.at("job.args"), r.at("job.state")})
		require.Equal(t, []string{second, first}, a.fetch(q, `"count":2`).list("jobs", "id"))
		require.Equal(t, "active", a.patch("/ojs/v1/jobs/"+second, `{"priority":1}`).fails(409, "conflict", "invalid_state_transition").at("error.details.current_state"))
	})

	t.Run("ByTheAdminRoute", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("scheduled")
		require.Equal(t, "-100", a.patch("/ojs/v1/admin/jobs/job_"+id, `{"priority":-100}`).is(200).at("job.priority"))
		a.patch("/ojs/v1/admin/jobs/"+id, `{"priority":-101}`).invalid("priority")
		a.patch("/ojs/v1/admin/jobs/"+id, `{"priority":1,"queue":"q"}`).unknown("queue")
		a.patch("/ojs/v1/admin/jobs/"+id, ``).is(400)
		a.patch("/ojs/v1/jobs/"+newID(), `{"priority":1}`).fails(404, "not_found", "not_found")
		a.patch("/ojs/v1/jobs/bulk", `{"priority":1}`).is(405)
	})

	t.Run("IsNoChangeOfState", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.push(`"type":"t","args":[],"queue":"%s"`, queue())
		a.patch("/ojs/v1/jobs/"+id, `{"priority":5}`).is(200)
		var history reply
		eventually(t, func() bool { // a read waits only so long for events that are not published
			history = a.get("/ojs/v1/jobs/" + id + "/history").is(200)
			return history.at("total") != "0"
		})
		require.Equal(t, []string{"job.created"}, history.list("events", "event_type"))
		require.Equal(t, "1", history.at("total"))
	})

	t.Run("Statistics", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		a.pushMany(t, q, 3)
		a.push(`"type":"t","args":[],"queue":"%s","priority":10`, q)
		eventually(t, func() bool { return a.get("/ojs/v1/queues/"+q+"/priority-stats").is(200).at("total") == "4" })
		r := a.get("/ojs/v1/queues/" + q + "/priority-stats").is(200)
		require.JSONEq(t, `{"queue":"`+q+`","counts_by_priority":{"10":1,"0":3},"distribution":[{"priority":10,"count":1},{"priority":0,"count":3}],"total":4}`, r.body)
		require.JSONEq(t, `{"queue":"never","counts_by_priority":{},"distribution":[],"total":0}`, a.get("/ojs/v1/queues/never/priority-stats").is(200).body)
		a.get("/ojs/v1/queues/NO/priority-stats").fails(400, "invalid_request", "invalid_request")
	})
}
