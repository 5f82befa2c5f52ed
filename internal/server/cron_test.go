package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCronSmoke(t *testing.T) {
	t.Parallel()
	a := setup(t)
	r := a.post("/ojs/v1/cron", `{"name":"tick","expression":"@every 1s","overlap_policy":"allow","job_template":{"type":"a.b","options":{"queue":"cq"}}}`).is(201)
	t.Log(r.body)
	eventually(t, func() bool { return a.fetch("cq").count("jobs") > 0 })
	t.Log(a.get("/ojs/v1/cron/tick/history").is(200).body)
	t.Log(a.get("/ojs/v1/cron/tick").is(200).body)
	t.Log(a.get("/ojs/v1/crons").is(200).body)
	t.Log(a.get("/ojs/v1/events").is(200).body)
	a.post("/ojs/v1/cron/tick/trigger", "").is(201)
	a.do("PATCH", "/ojs/v1/cron/tick", nil).fails(400, "invalid_payload", "invalid_payload")
	require.Equal(t, "paused", a.post("/ojs/v1/cron/tick/pause", "").is(200).at("cron.status"))
	a.post("/ojs/v1/cron/tick/resume", "").is(200)
	a.del("/ojs/v1/cron/tick").is(200)
}
