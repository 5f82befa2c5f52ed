package e2e_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

// TestWorkflowEvents has every carrier deliver the events of a workflow, by its filters for types and for a workflow.
func TestWorkflowEvents(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	r := setupGRPC(t, e.quick)
	a, q := r.node, queue()
	listener := a.connect()
	t.Cleanup(func() { _ = listener.Close(t.Context()) })
	_, err := listener.Exec(t.Context(), "LISTEN ojs_events")
	require.NoError(t, err)
	a.subscribe(e, "/flows", `"workflow.*"`)
	sse := a.open("/ojs/v1/events/stream?types=workflow.*")
	socket := a.socket()
	socket.send(`{"action":"subscribe","channel":"events","filter":{"event_types":["workflow.*"]}}`)
	require.Equal(t, "subscribed", socket.receive().at("type"))

	w := a.workflow(fmt.Sprintf(`{"type":"chain","name":"etl","options":{"queue":"%s"},"steps":[{"type":"one","args":[]},{"type":"two","args":[],"id":"last"}]}`, q))
	id := w.at("id")
	stream := r.listenEvents(&ojsv1.StreamEventsRequest{WorkflowId: id, EventTypes: []string{"workflow.*"}})
	a.ack(a.fetch(q).at("jobs.0.id"), `"worker_id":"w 1"`).is(200)
	a.nack(a.fetch(q).at("jobs.0.id"), `"error":{"code":"broken","message":"It broke.","retryable":false}`).is(200)
	want := []string{"workflow.started", "workflow.step_completed", "workflow.failed"}

	var page reply
	eventually(t, func() bool { // a poll waits for the relay, but not for long
		page = a.get("/ojs/v1/events?types=workflow.*&workflow_id=" + id).is(200)
		return page.count("events") >= len(want)
	})
	require.Equal(t, want, page.list("events", "type"))
	for i := range want {
		require.Equal(t, id, page.at(fmt.Sprintf("events.%d.subject", i)))
		require.Equal(t, id, page.at(fmt.Sprintf("events.%d.data.workflow_id", i)))
		require.Equal(t, "etl", page.at(fmt.Sprintf("events.%d.data.workflow_name", i)))
	}
	require.Equal(t, "ojs://ojs/api", page.at("events.0.source"))
	require.Equal(t, "ojs://ojs/workers/w%201", page.at("events.1.source"))
	require.Equal(t, "2", page.at("events.0.data.total_steps"))
	require.Equal(t, []string{"0", "one", "1"}, []string{page.at("events.1.data.step_id"), page.at("events.1.data.step_type"), page.at("events.1.data.steps_remaining")})
	require.Equal(t, []string{"last", "two", "broken", "It broke."}, []string{
		page.at("events.2.data.failed_step_id"), page.at("events.2.data.failed_step_type"), page.at("events.2.data.error.code"), page.at("events.2.data.error.message"),
	})
	require.Equal(t, []string{
		"job.enqueued", "workflow.started", "job.started", "job.completed", "workflow.step_completed", "job.enqueued", "job.started", "job.failed", "job.discarded", "workflow.failed",
	}, a.get("/ojs/v1/events?workflow_id="+id).is(200).list("events", "type"), "those of its jobs, too")

	require.Equal(t, want, sse.events(len(want)))
	for i, kind := range want {
		require.Equal(t, kind, socket.receive().at("event"))
		got := stream.next()
		require.Equal(t, []string{kind, id, id}, []string{got.GetType(), got.GetSubject(), got.GetWorkflowId()})
		require.Contains(t, e.await(t, "/flows", len(want))[i].body, `"type":"workflow.`)
	}
	var noticed []string
	for len(noticed) < len(want) {
		n, err := listener.WaitForNotification(t.Context())
		require.NoError(t, err)
		if event := (reply{t: t, body: n.Payload}); event.at("subject") == id {
			require.Equal(t, id, event.at("workflow_id"))
			noticed = append(noticed, event.at("type"))
		}
	}
	require.Equal(t, want, noticed)
}

// An application cancels the job of a workflow in SQL; the server lets the workflow follow.
func TestWorkflowFollowsSQL(t *testing.T) {
	t.Parallel()
	a, q := setup(t), queue()
	w := a.workflow(fmt.Sprintf(`{"type":"chain","options":{"queue":"%s"},"steps":[{"type":"one","args":[]},{"type":"two","args":[]}]}`, q))
	a.exec(`SELECT ojs.cancel('` + w.at("steps.0.job_id") + `')`)
	eventually(t, func() bool { return a.get("/ojs/v1/workflows/"+w.at("id")).at("state") == "failed" })
}
