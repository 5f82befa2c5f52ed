package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBulkEnqueue covers docs/reference/http.md, Bulk enqueue.
func TestBulkEnqueue(t *testing.T) {
	t.Parallel()
	a := setup(t)
	const path = "/ojs/v1/jobs/bulk"
	body := func(queue, more string) string {
		return `{"jobs":[{"type":"t","args":[1],"queue":"` + queue + `"},{"type":"t","args":[2],"queue":"` + queue + `"}]` + more + `}`
	}
	stored := func(a *node, queue string) string { return a.get("/ojs/v1/jobs?queue=" + queue).is(200).at("total") }

	for _, mode := range []string{"", `,"atomicity":"partial"`, `,"atomicity":"partial","idempotency_key":"all-created"`, `,"atomicity":"atomic"`} {
		t.Run("AllCreated"+mode, func(t *testing.T) {
			t.Parallel()
			a := a.in(t)
			q := queue()
			r := a.post(path, body(q, mode)).is(201)
			require.Equal(t, "2", r.at("total"))
			require.Equal(t, "2", r.at("succeeded"))
			require.Equal(t, "0", r.at("failed"))
			require.Equal(t, []string{"created", "created"}, r.list("items", "status"))
			require.Equal(t, []string{"0", "1"}, r.list("items", "index"))
			for i := range 2 {
				require.Equal(t, a.job(r.at(fmt.Sprintf("items.%d.job.id", i))).at("job"), r.at(fmt.Sprintf("items.%d.job", i)))
			}
			require.Equal(t, r.at("items.0.job.id"), a.fetch(q).at("jobs.0.id"))
		})
	}

	t.Run("MixedIs207", func(t *testing.T) {
		t.Parallel()
		for _, more := range []string{"", `,"idempotency_key":"` + newID() + `"`} {
			a := a.in(t)
			q, taken, twice := queue(), a.jobIn("completed"), newID()
			one := func(more string) string { return `{"type":"t","args":[],"queue":"` + q + `"` + more + `}` }
			r := a.post(path, `{"jobs":[`+strings.Join([]string{
				one(""), `7`, one(`,"id":"` + taken + `"`), one(`,"id":"` + twice + `"`), one(`,"id":"` + twice + `"`), `{"args":[]}`, one(`,"retry":{"max_attempts":-1}`), one(`,"meta":{"m":"` + repeated('m', 70_000) + `"}`),
			}, ",")+`]`+more+`}`).is(207)
			require.Equal(t, "8", r.at("total"))
			require.Equal(t, "2", r.at("succeeded"))
			require.Equal(t, "6", r.at("failed"))
			require.Equal(t, []string{"created", "failed", "failed", "created", "failed", "failed", "failed", "failed"}, r.list("items", "status"))
			require.Equal(t, []string{"", "invalid_payload", "duplicate", "", "duplicate", "invalid_payload", "validation_error", "metadata_too_large"}, errorCodes(r))
			require.Equal(t, taken, r.at("items.2.error.details.existing_job_id"))
			require.Equal(t, "5", r.at("items.5.error.details.index"))
			require.Contains(t, r.at("items.5.error.message"), "job at index 5")
			require.False(t, r.has("items.5.error.request_id"))
			require.Equal(t, "2", stored(a, q))
		}
	})

	t.Run("NoneIs422", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).post(path, `{"jobs":[7,{}]}`).is(422)
		require.Equal(t, "0", r.at("succeeded"))
		require.Equal(t, []string{"failed", "failed"}, r.list("items", "status"))
	})

	t.Run("AtomicRollsBack", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, taken, twice := queue(), a.jobIn("completed"), newID()
		for _, c := range []struct{ bad, code string }{
			{`{"args":[]}`, "invalid_payload"},
			{`{"type":"t","args":[],"id":"` + taken + `"}`, "duplicate"},
			{`{"type":"t","args":[],"id":"` + a.jobIn("active") + `"}`, "duplicate"},
			{`{"type":"t","args":[],"id":"` + twice + `"},{"type":"t","args":[],"id":"` + twice + `"}`, "duplicate"},
		} {
			r := a.post(path, `{"atomicity":"atomic","jobs":[{"type":"t","args":[],"queue":"`+q+`"},`+c.bad+`]}`).is(422)
			require.Equal(t, "0", r.at("succeeded"))
			require.Equal(t, "rolled_back", r.at("items.0.status"))
			last := r.count("items") - 1
			require.Equal(t, "failed", r.at(fmt.Sprintf("items.%d.status", last)))
			require.Equal(t, c.code, r.at(fmt.Sprintf("items.%d.error.code", last)))
			require.Equal(t, "0", stored(a, q))
			require.Equal(t, "0", a.get("/ojs/v1/queues/"+q+"/stats").at("queue.total"))
		}
		a.get("/ojs/v1/jobs/" + twice).is(404)
	})

	t.Run("KeyReplays", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, mode := range []string{"partial", "atomic"} {
			q, key := queue(), newID()
			text := body(q, `,"atomicity":"`+mode+`"`)
			first := a.post(path, text, "Idempotency-Key: "+key).is(201)
			require.Empty(t, first.header.Get("Idempotent-Replayed"))
			again := a.post(path, text, "Idempotency-Key: "+key).is(201)
			require.Equal(t, first.body, again.body)
			require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
			require.Equal(t, "2", again.header.Get("X-OJS-Batch-Size"))
			require.Equal(t, "2", stored(a, q))
			// Also when the jobs have moved on meanwhile.
			a.fetch(q, `"count":2`)
			require.Equal(t, first.body, a.post(path, text, "Idempotency-Key: "+key).is(201).body)
		}
	})

	t.Run("MixedAnswerReplays", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, key := queue(), newID()
		text := `{"jobs":[{"type":"t","args":["\u0000",1.0],"queue":"` + q + `"},7],"idempotency_key":"` + key + `"}`
		first := a.post(path, text).is(207)
		require.Equal(t, first.body, a.post(path, text).is(207).body)
		require.Equal(t, "1", stored(a, q))
	})

	t.Run("KeyOfTheHeaderWins", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, header, inBody := queue(), newID(), newID()
		text := body(q, `,"idempotency_key":"`+inBody+`"`)
		first := a.post(path, text, "Idempotency-Key: "+header).is(201)
		require.Equal(t, first.body, a.post(path, text, "Idempotency-Key: "+header).body)
		require.NotEqual(t, first.body, a.post(path, text).is(201).body)
		require.Equal(t, "4", stored(a, q))
	})

	t.Run("KeyWithOtherBodyConflicts", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, key := queue(), newID()
		a.post(path, body(q, ""), "Idempotency-Key: "+key).is(201)
		r := a.post(path, body(queue(), ""), "Idempotency-Key: "+key).fails(409, "conflict", "idempotency_key_conflict")
		require.Equal(t, key, r.at("error.details.idempotency_key"))
		require.Equal(t, "2", stored(a, q))
	})

	t.Run("KeysBelongToTheirOperation", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		key := "Idempotency-Key: " + newID()
		first := a.post(path, body(queue(), ""), key).is(201)
		ids := fmt.Sprintf(`{"job_ids":["%s"]}`, first.at("items.0.job.id"))
		cancelled := a.post(path+"/cancel", ids, key).is(200)
		require.Equal(t, cancelled.body, a.post(path+"/cancel", ids, key).is(200).body)
		a.post(path+"/delete", ids, key).is(200)
		require.Equal(t, "deleted", a.post(path+"/delete", ids, key).is(200).at("items.0.status"))
		a.post(path+"/delete", ids).is(422)
	})

	t.Run("CompressedBodyIsTheSameBody", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		key, text := "Idempotency-Key: "+newID(), body(queue(), "")
		first := a.post(path, text, key).is(201)
		require.Equal(t, first.body, a.post(path, zipped(t, text), key, "Content-Encoding: gzip").is(201).body)
	})

	t.Run("RefusedCallMayBeTriedAgainWithItsKey", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		key, id := "Idempotency-Key: "+newID(), a.jobIn("completed")
		text := `{"jobs":[{"type":"t","args":[],"id":"` + id + `"}]}`
		a.post(path, text, key).is(422)
		a.post(path+"/delete", `{"job_ids":["`+id+`"]}`).is(200)
		first := a.post(path, text, key).is(201)
		require.Equal(t, first.body, a.post(path, text, key).is(201).body)
	})

	t.Run("ConcurrentDuplicateWaits", func(t *testing.T) {
		t.Parallel()
		a := setup(t) // whose connections are all taken by those who wait
		for _, mode := range []string{"partial", "atomic"} {
			q, key := queue(), newID()
			jobs := strings.TrimSuffix(strings.Repeat(`{"type":"t","args":[],"queue":"`+q+`"},`, 200), ",")
			text := `{"atomicity":"` + mode + `","jobs":[` + jobs + `]}`
			replies := make([]reply, 12)
			var wg sync.WaitGroup
			for i := range replies {
				wg.Go(func() { replies[i] = a.post(path, text, "Idempotency-Key: "+key) })
			}
			wg.Wait()
			for _, r := range replies {
				require.Equal(t, replies[0].is(201).body, r.is(201).body)
			}
			require.Equal(t, "200", replies[0].at("succeeded"))
			require.Equal(t, "200", stored(a, q))
		}
	})

	t.Run("RefusesBadOptions", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for more, field := range map[string]string{
			`,"atomicity":"all"`: "atomicity", `,"atomicity":7`: "atomicity", `,"idempotency_key":""`: "idempotency_key", `,"idempotency_key":7`: "idempotency_key",
			`,"idempotency_key":"` + repeated('k', 257) + `"`: "idempotency_key",
		} {
			a.post(path, body("q", more)).invalid(field)
			a.post(path+"/cancel", `{"job_ids":["x"]`+more+`}`).invalid(field)
		}
		for _, bad := range []string{repeated('k', 257), "\xff", "a\x80b"} {
			r := a.post(path, body("q", ""), "Idempotency-Key: "+bad).fails(400, "invalid_request", "invalid_request")
			require.Equal(t, "Idempotency-Key", r.at("error.details.parameter"))
			a.post(path+"/cancel", `{"job_ids":["x"]}`, "Idempotency-Key: "+bad).fails(400, "invalid_request", "invalid_request")
		}
		a.post(path, body("q", ""), "Idempotency-Key: "+repeated('k', 256)).is(201)
		a.post(path, body("q", `,"idempotency_key":"`+strings.Repeat("ä", 256)+`"`)).is(201)
	})
}
