package e2e_test

import (
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBulkChanges covers docs/reference/http.md, Bulk change.
func TestBulkChanges(t *testing.T) {
	t.Parallel()
	a := setup(t, slowStatements)
	words := map[string]string{"cancel": "cancelled", "retry": "retried", "delete": "deleted"}
	eligible := map[string][]string{
		"cancel": {"scheduled", "pending", "available", "retryable"},
		"retry":  {"discarded", "retryable"},
		"delete": {"completed", "cancelled", "discarded"},
	}
	send := func(a *node, op, body string, headers ...string) reply {
		return a.post("/ojs/v1/jobs/bulk/"+op, body, headers...)
	}
	quoted := func(ids ...string) string { return `["` + strings.Join(ids, `","`) + `"]` }

	for op, word := range words {
		for _, state := range states {
			t.Run(op+"/"+state, func(t *testing.T) {
				t.Parallel()
				a := a.in(t)
				id := a.jobIn(state)
				before := a.job(id)
				may := false
				for _, s := range eligible[op] {
					may = may || s == state
				}
				if !may {
					r := send(a, op, `{"job_ids":`+quoted(id)+`}`).is(422)
					require.Equal(t, `{"index":0,"job_id":"`+id+`","status":"skipped","reason":"job is `+state+`"}`, r.at("items.0"))
					require.Equal(t, "0", r.at(word))
					require.Equal(t, "1", r.at("skipped"))
					require.Equal(t, before.body, a.job(id).body)
					return
				}
				r := send(a, op, `{"job_ids":`+quoted(id)+`}`).is(200)
				require.Equal(t, `{"index":0,"job_id":"`+id+`","status":"`+word+`"}`, r.at("items.0"))
				require.Equal(t, "1", r.at("total_matched"))
				require.Equal(t, "1", r.at(word))
				require.Equal(t, "0", r.at("skipped"))
				switch op {
				case "cancel":
					require.Equal(t, "cancelled", a.job(id).at("job.state"))
					require.True(t, a.job(id).has("job.cancelled_at"))
				case "delete":
					a.get("/ojs/v1/jobs/" + id).is(404)
				case "retry":
					job := a.job(id)
					require.Equal(t, "available", job.at("job.state"))
					require.False(t, job.has("job.next_attempt_at"))
					if state == "discarded" { // T14
						require.Equal(t, "0", job.at("job.attempt"))
						for _, absent := range []string{"error", "errors", "started_at", "completed_at", "discarded_at", "retry_delay_ms"} {
							require.False(t, job.has("job."+absent), absent)
						}
					} else { // T15
						require.Equal(t, "1", job.at("job.attempt"))
						require.True(t, job.has("job.errors"))
					}
					require.Equal(t, id, a.fetch(job.at("job.queue")).at("jobs.0.id"))
				}
			})
		}
	}

	t.Run("MixedIs207", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		free, reserved, unknown := a.jobIn("available"), a.jobIn("active"), newID()
		r := send(a, "cancel", `{"job_ids":`+quoted(free, reserved, unknown, "strange", "job_"+free)+`}`).is(207)
		require.Equal(t, "5", r.at("total_matched"))
		require.Equal(t, "1", r.at("cancelled"))
		require.Equal(t, "4", r.at("skipped"))
		require.Equal(t, []string{free, reserved, unknown, "strange", "job_" + free}, r.list("items", "job_id"))
		require.Equal(t, []string{"cancelled", "skipped", "skipped", "skipped", "skipped"}, r.list("items", "status"))
		require.Equal(t, []string{"job is active", "not found", "not found"}, r.list("items", "reason")[1:4])
		require.Equal(t, "active", a.job(reserved).at("job.state"))
	})

	t.Run("AtomicChangesAllOrNothing", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for op, state := range map[string]string{"cancel": "available", "retry": "discarded", "delete": "completed"} {
			one, two := a.jobIn(state), a.jobIn(state)
			for _, bad := range []string{a.jobIn("active"), newID(), "strange"} {
				r := send(a, op, `{"atomicity":"atomic","job_ids":`+quoted(one, bad, two)+`}`).is(422)
				require.Equal(t, "0", r.at(words[op]))
				require.Equal(t, []string{"rolled_back", "skipped", "rolled_back"}, r.list("items", "status"))
				require.Equal(t, state, a.job(one).at("job.state"))
				require.Equal(t, state, a.job(two).at("job.state"))
			}
			require.Equal(t, "2", send(a, op, `{"atomicity":"atomic","job_ids":`+quoted(one, two)+`}`).is(200).at(words[op]))
		}
	})

	t.Run("RefusesBadSelections", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, body := range []string{
			`{}`, `{"job_ids":null,"filter":null}`, `{"job_ids":["x"],"filter":{"queue":"q"}}`, `{"job_ids":[]}`, `{"job_ids":"x"}`, `{"job_ids":[7]}`,
			`{"filter":{}}`, `{"filter":[]}`, `{"filter":{"state":"flying"}}`, `{"filter":{"state":[]}}`, `{"filter":{"queue":7,"state":"cancelled"}}`,
			`{"filter":{"enqueued_before":"yesterday","state":"cancelled"}}`, `{"filter":{"enqueued_after":"PT1H","state":"cancelled"}}`, `{"filter":{"priority":"x","state":"cancelled"}}`,
			`{"filter":{"meta":[],"state":"cancelled"}}`, `{"job_ids":["x"],"dry_run":"yes"}`,
		} {
			for op := range words {
				require.Equal(t, "invalid_payload", send(a, op, body).is(400).at("error.code"), body)
			}
		}
		send(a, "delete", `{"filter":{"queue":"q"}}`).invalid("filter.state")
		tooMany := `{"job_ids":[` + strings.TrimSuffix(strings.Repeat(`"x",`, 10_001), ",") + `]}`
		require.Equal(t, "10000", send(a, "cancel", tooMany).fails(413, "batch_size_exceeded", "batch_size_exceeded").at("error.max_batch_size"))
	})

	t.Run("FilterMatchingNothingIs200", func(t *testing.T) {
		t.Parallel()
		r := send(a.in(t), "cancel", `{"filter":{"queue":"`+queue()+`"}}`).is(200)
		require.Equal(t, "0", r.at("total_matched"))
		require.Equal(t, `[]`, r.at("items"))
		require.False(t, r.has("has_more"))
	})

	t.Run("FiltersSelect", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		plain := a.push(`"type":"mail.send","args":[],"queue":"%s"`, q)
		other := a.push(`"type":"mail.read","args":[],"queue":"%s","priority":7`, q)
		tagged := a.push(`"type":"sms.send","args":[],"queue":"%s","meta":{"tenant":"a","n":1.0,"nul":"\u0000"}`, q)
		later := a.push(`"type":"mail.send","args":[],"queue":"%s","scheduled_at":"PT1H"`, q)
		parked := a.push(`"type":"mail.send","args":[],"queue":"%s","pending":true`, q)
		// No job is in the states given, so that a delete shows how the filter is read and changes nothing.
		for _, c := range []struct {
			filter string
			want   []string
		}{
			{`"state":["available","scheduled","pending"]`, []string{plain, other, tagged, later, parked}},
			{`"state":"scheduled"`, []string{later}},
			{`"state":["pending"]`, []string{parked}},
			{`"type":"mail.send","state":["available","scheduled"]`, []string{plain, later}},
			{`"type":"mail.*","state":"available"`, []string{plain, other}},
			{`"type":"*","state":"available"`, []string{plain, other, tagged}},
			{`"priority":7,"state":"available"`, []string{other}},
			{`"priority":0,"state":"available"`, []string{plain, tagged}},
			{`"meta":{"tenant":"a"},"state":"available"`, []string{tagged}},
			{`"meta":{"tenant":"a","n":1.0,"nul":"\u0000"},"state":"available"`, []string{tagged}},
			{`"meta":{"tenant":"b"},"state":"available"`, nil},
			{`"meta":{"none":null},"state":"available"`, nil},
			{`"enqueued_before":"2099-01-01T00:00:00Z","state":"available"`, []string{plain, other, tagged}},
			{`"enqueued_after":"2099-01-01T00:00:00Z","state":"available"`, nil},
			{`"enqueued_before":"2001-01-01T00:00:00Z","state":"available"`, nil},
			{`"enqueued_after":"2001-01-01T00:00:00Z","state":"available"`, []string{plain, other, tagged}},
			{`"since":"1h","state":"available"`, []string{plain, other, tagged}},
			{`"older_than":"1h","state":"available"`, nil},
			{`"older_than":"PT0S","state":"available"`, []string{plain, other, tagged}},
			{`"until":"2001-01-01T00:00:00Z","state":"available"`, nil},
		} {
			r := send(a, "delete", `{"filter":{"queue":"`+q+`",`+c.filter+`}}`)
			require.ElementsMatch(t, c.want, r.list("items", "job_id"), c.filter)
			require.Equal(t, "0", r.at("deleted"))
		}
		// Defaults: cancel takes available and scheduled ones, oldest first.
		r := send(a, "cancel", `{"filter":{"queue":"`+q+`"}}`).is(200)
		require.Equal(t, []string{plain, other, tagged, later}, r.list("items", "job_id"))
		require.Equal(t, "pending", a.job(parked).at("job.state"))
		// A job that was never available counts from its creation.
		require.Equal(t, "0", send(a, "delete", `{"filter":{"queue":"`+q+`","state":"cancelled","type":"mail.send","enqueued_before":"2001-01-01T00:00:00Z"}}`).is(200).at("deleted"))
		require.Equal(t, "4", send(a, "delete", `{"filter":{"queue":"`+q+`","state":"cancelled","enqueued_before":"2099-01-01T00:00:00Z"}}`).is(200).at("deleted"))
		const tenant = "X-OJS-Tenant: acme"
		id := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"queue":"`+q+`","scheduled_at":"PT1H"}`, tenant).is(201).at("job.id")
		a.del("/ojs/v1/jobs/"+id, tenant).is(200)
		require.Equal(t, "1", a.post("/ojs/v1/jobs/bulk/delete", `{"filter":{"queue":"`+q+`","state":"cancelled","enqueued_before":"2099-01-01T00:00:00Z"}}`, tenant).
			is(200).at("deleted"))
	})

	t.Run("RetryTakesDiscardedByDefault", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		dead, waiting := a.jobIn("discarded"), a.jobIn("retryable")
		require.Equal(t, "1", send(a, "retry", `{"filter":{"queue":"`+a.job(dead).at("job.queue")+`"}}`).is(200).at("retried"))
		require.Equal(t, "0", send(a, "retry", `{"filter":{"queue":"`+a.job(waiting).at("job.queue")+`"}}`).is(200).at("retried"))
		require.Equal(t, "1", send(a, "retry", `{"filter":{"queue":"`+a.job(waiting).at("job.queue")+`","state":"retryable"}}`).is(200).at("retried"))
	})

	t.Run("KeyReplays", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		body, key := `{"job_ids":`+quoted(a.jobIn("available"), newID())+`}`, "Idempotency-Key: "+newID()
		first := send(a, "cancel", body, key).is(207)
		again := send(a, "cancel", body, key).is(207)
		require.Equal(t, first.body, again.body)
		require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
		require.Equal(t, "0", send(a, "cancel", body).is(422).at("cancelled"))
		send(a, "cancel", `{"job_ids":["x"]}`, key).fails(409, "conflict", "idempotency_key_conflict")
	})

	t.Run("StopsAtTenThousand", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		jobs := strings.TrimSuffix(strings.Repeat(`{"type":"t","args":[],"queue":"`+q+`"},`, 5_010), ",")
		ids := a.post("/ojs/v1/jobs/batch", `{"jobs":[`+jobs+`]}`).is(201).list("jobs", "id")
		a.post("/ojs/v1/jobs/batch", `{"jobs":[`+jobs+`]}`).is(201)
		r := send(a, "cancel", `{"filter":{"queue":"`+q+`"}}`).is(200)
		require.Equal(t, "10000", r.at("total_matched"))
		require.Equal(t, "10000", r.at("cancelled"))
		require.Equal(t, "true", r.at("has_more"))
		require.Equal(t, ids, r.list("items", "job_id")[:5_010])
		r = send(a, "cancel", `{"filter":{"queue":"`+q+`"}}`).is(200)
		require.Equal(t, "20", r.at("cancelled"))
		require.False(t, r.has("has_more"))
	})

	t.Run("WorksWhileOthersDoTheSame", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		jobs := strings.TrimSuffix(strings.Repeat(`{"type":"t","args":[],"queue":"`+q+`"},`, 300), ",")
		ids := a.post("/ojs/v1/jobs/batch", `{"jobs":[`+jobs+`]}`).is(201).list("jobs", "id")
		reversed := make([]string, len(ids))
		for i, id := range ids {
			reversed[len(ids)-1-i] = id
		}
		replies := make([]reply, 6)
		var wg sync.WaitGroup
		for i := range replies {
			list := [][]string{ids, reversed}[i%2]
			wg.Go(func() { replies[i] = send(a, "cancel", `{"job_ids":`+quoted(list...)+`}`) })
		}
		wg.Wait()
		total := 0
		for _, r := range replies {
			require.Contains(t, []int{200, 207, 422}, r.status, r.body)
			n, err := strconv.Atoi(r.at("cancelled"))
			require.NoError(t, err)
			total += n
		}
		require.Equal(t, 300, total)
		require.Equal(t, "300", a.get("/ojs/v1/queues/"+q+"/stats").at("queue.cancelled"))
	})

	t.Run("ReadsNothingOfAnEmptyBody", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for op := range words {
			a.do("POST", "/ojs/v1/jobs/bulk/"+op, io.Reader(nil)).fails(400, "invalid_payload", "invalid_payload")
		}
	})
}
