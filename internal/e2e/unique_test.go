package e2e_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

// TestUnique covers docs/reference/unique.md over HTTP and gRPC.
func TestUnique(t *testing.T) {
	t.Parallel()
	a := setup(t)
	item := func(q, policy string) string {
		return `{"type":"t","args":[],"options":{"queue":"` + q + `","unique":{"keys":["queue"],` + policy + `}}}`
	}
	enqueue := func(a *node, q, policy string) reply { return a.post("/ojs/v1/jobs", item(q, policy)) }
	const reject, ignore = `"on_conflict":"reject"`, `"on_conflict":"ignore"`

	t.Run("AnswersWithTheOtherJob", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		first := enqueue(a, q, reject).is(201)
		id := first.at("job.id")
		refused := enqueue(a, q, reject).fails(409, "duplicate", "duplicate_job")
		require.Equal(t, id, refused.at("error.details.existing_job_id"))
		require.Equal(t, "available", refused.at("error.details.existing_job_state"))
		require.Len(t, refused.at("error.details.unique_key"), 64)
		require.Equal(t, refused.at("error.details.unique_key"), refused.at("error.details.uniqueness_key"))

		ignored := enqueue(a, q, ignore).is(200)
		require.Equal(t, first.at("job"), ignored.at("job"))
		require.Equal(t, "true", ignored.at("deduplicated"))
		require.Equal(t, id, ignored.at("id"), "fields beside the wrapper")
		require.Equal(t, "/ojs/v1/jobs/"+id, ignored.header.Get("Location"))

		replaced := enqueue(a, q, `"on_conflict":"replace"`).is(201)
		require.Empty(t, replaced.at("deduplicated"))
		require.Equal(t, "cancelled", a.job(id).at("job.state"))
	})

	t.Run("Batch", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, other := queue(), queue()
		batch := func(items ...string) reply {
			return a.post("/ojs/v1/jobs/batch", `{"jobs":[`+strings.Join(items, ",")+`]}`)
		}
		id := enqueue(a, q, reject).at("job.id")
		r := batch(item(other, reject), item(q, ignore)).is(201)
		require.Equal(t, id, r.at("jobs.1.id"))
		require.Equal(t, "true", r.at("jobs.1.deduplicated"))
		require.Empty(t, r.at("jobs.0.deduplicated"))
		batch(item(q, ignore), item(other, ignore)).is(200)
		third := queue()
		refused := batch(item(third, reject), item(q, reject)).fails(409, "duplicate", "duplicate_job")
		require.Equal(t, "1", refused.at("error.details.index"))
		require.Equal(t, id, refused.at("error.details.existing_job_id"))
		refused = batch(item(third, reject), item(third, reject)).fails(409, "duplicate", "duplicate_job")
		require.Equal(t, "1", refused.at("error.details.index"))
		require.False(t, refused.has("error.details.existing_job_id"), "the first was not stored either")
		enqueue(a, third, reject).is(201)
	})

	t.Run("Bulk", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q, other := queue(), queue()
		enqueue(a, q, reject).is(201)
		body := `{"jobs":[` + item(q, ignore) + `,` + item(other, reject) + `,` + item(q, reject) + `]`
		r := a.post("/ojs/v1/jobs/bulk", body+`}`).is(207)
		require.Equal(t, []string{"duplicate", "created", "failed"}, r.list("items", "status"))
		require.Equal(t, "duplicate", r.at("items.2.error.code"))
		require.Equal(t, "2", r.at("succeeded"))
		r = a.post("/ojs/v1/jobs/bulk", body+`,"atomicity":"atomic"}`).is(422)
		require.Equal(t, "rolled_back", r.at("items.0.status"))
		a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+item(q, ignore)+`]}`).is(201)
	})

	t.Run("ARepeatedCallGetsTheSameAnswer", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		q := queue()
		id := enqueue(a, q, reject).at("job.id")
		once := func() reply { return a.post("/ojs/v1/jobs", item(q, ignore), "Idempotency-Key: k-"+q) }
		require.Equal(t, id, once().is(200).at("job.id"))
		a.del("/ojs/v1/jobs/" + id).is(200)
		again := once().is(200)
		require.Equal(t, id, again.at("job.id"))
		require.Equal(t, "true", again.at("deduplicated"))
		require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
		require.Equal(t, "/ojs/v1/jobs/"+id, again.header.Get("Location"))
	})

	t.Run("GRPC", func(t *testing.T) {
		t.Parallel()
		a := setupGRPC(t)
		q := queue()
		send := func(action ojsv1.UniqueConflictAction) (*ojsv1.EnqueueResponse, error) {
			return a.Enqueue(t.Context(), &ojsv1.EnqueueRequest{Type: "t", Options: &ojsv1.EnqueueOptions{
				Queue: q, Unique: &ojsv1.UniquePolicy{Key: []string{"queue"}, OnConflict: action},
			}})
		}
		id := enqueue(a.node, q, reject).at("job.id")
		_, err := send(ojsv1.UniqueConflictAction_UNIQUE_CONFLICT_ACTION_REJECT)
		require.ErrorContains(t, err, "AlreadyExists")
		got, err := send(ojsv1.UniqueConflictAction_UNIQUE_CONFLICT_ACTION_IGNORE)
		require.NoError(t, err)
		require.Equal(t, id, got.GetJob().GetId())
		got, err = send(ojsv1.UniqueConflictAction_UNIQUE_CONFLICT_ACTION_REPLACE)
		require.NoError(t, err)
		require.NotEqual(t, id, got.GetJob().GetId())
		require.Equal(t, "cancelled", a.job(id).at("job.state"))
	})

	t.Run("List", func(t *testing.T) {
		t.Parallel()
		a := setup(t)
		ids := make([]string, 5)
		for i := range ids {
			ids[i] = enqueue(a, queue(), `"period":"PT1H"`).at("job.id")
		}
		a.push(`"type":"t","args":[],"queue":"%s"`, queue())
		a.del("/ojs/v1/jobs/" + ids[0]).is(200)
		r := a.get("/ojs/v1/unique-jobs?per_page=2").is(200)
		require.Equal(t, []string{ids[4], ids[3]}, r.list("items", "job_id"))
		require.Equal(t, "4", r.at("pagination.total"))
		require.Len(t, r.at("items.0.key"), 64)
		require.NotEmpty(t, r.at("items.0.locked_until"))
		require.Equal(t, "available", r.at("items.0.state"))
		for _, query := range []string{"per_page=2&page=2", "limit=2&offset=2", "limit=2&cursor=" + r.at("pagination.next_cursor")} {
			next := a.get("/ojs/v1/unique-jobs?" + query).is(200)
			require.Equal(t, []string{ids[2], ids[1]}, next.list("items", "job_id"), query)
			require.Equal(t, "false", next.at("pagination.has_more"), query)
		}
		a.get("/ojs/v1/unique-jobs?cursor=x").is(400)
		require.Equal(t, "[]", setup(t).get("/ojs/v1/unique-jobs").at("items"))
	})
}

// Equal enqueues that reach two nodes at once store one job.
func TestUniqueOverTwoNodes(t *testing.T) {
	t.Parallel()
	a, b := nodes(t)
	q := queue()
	var mu sync.Mutex
	statuses := map[int]int{}
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			n := a
			if i%2 == 0 {
				n = b
			}
			r := n.post("/ojs/v1/jobs", fmt.Sprintf(`{"type":"t","args":[%d],"queue":"%s","unique":{"keys":["queue"]}}`, i, q))
			mu.Lock()
			defer mu.Unlock()
			statuses[r.status]++
		})
	}
	wg.Wait()
	require.Equal(t, map[int]int{201: 1, 409: 31}, statuses)
}
