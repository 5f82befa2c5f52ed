package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIDs covers docs/reference/jobs.md, Identifiers.
func TestIDs(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("ServerMadeOnesIncrease", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := a.post("/ojs/v1/jobs/batch", `{"jobs":[`+strings.TrimSuffix(strings.Repeat(`{"type":"t","args":[]},`, 500), ",")+`]}`).is(201)
		ids := r.list("jobs", "id")
		require.True(t, slices.IsSorted(ids))
		require.Len(t, slices.Compact(ids), 500)
		require.Greater(t, a.push(`"type":"t","args":[]`), ids[499])
	})

	t.Run("ClientChoosesOne", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := newID()
		require.Equal(t, id, a.push(`"type":"t","args":[],"id":"%s"`, id))
		// Any version 7, also of another time.
		a.push(`"type":"t","args":[],"id":"00000000-0000-7000-8000-000000000000"`)
		a.push(`"type":"t","args":[],"id":"ffffffff-ffff-7fff-bfff-ffffffffffff"`)
	})

	t.Run("RefusesOtherForms", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := newID()
		for _, bad := range []string{
			`""`, `"x"`, `7`, `{}`, `true`, `"` + strings.ToUpper(id) + `"`, `"job_` + id + `"`, `" ` + id + `"`, `"{` + id + `}"`, `"` + strings.ReplaceAll(id, "-", "") + `"`,
			`"f81d4fae-7dec-41d0-a765-00a0c91e6bf6"`, `"f81d4fae-7dec-71d0-c765-00a0c91e6bf6"`, `"f81d4fae-7dec-11d0-a765-00a0c91e6bf6"`, `"` + id + `0"`,
		} {
			a.post("/ojs/v1/jobs", `{"type":"t","args":[],"id":`+bad+`}`).invalid("id")
		}
	})

	t.Run("TakenInWhateverState", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, state := range []string{"scheduled", "pending", "available", "active", "retryable", "completed", "cancelled", "discarded"} {
			id := a.jobIn(state)
			before := a.job(id).body
			body := `{"type":"other","args":[],"queue":"elsewhere","id":"` + id + `"}`
			for _, r := range []reply{
				a.post("/ojs/v1/jobs", body).fails(409, "duplicate", "duplicate_job"),
				a.post("/ojs/v1/jobs/batch", `{"jobs":[`+body+`]}`).fails(409, "duplicate", "duplicate_job"),
			} {
				require.Equal(t, id, r.at("error.details.existing_job_id"), state)
				require.Equal(t, "id", r.at("error.details.field"))
			}
			require.Equal(t, before, a.job(id).body)
		}
	})

	t.Run("OneOfManyWins", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for range 5 {
			id := newID()
			statuses := make([]int, 16)
			var wg sync.WaitGroup
			for i := range statuses {
				wg.Go(func() {
					body := fmt.Sprintf(`{"type":"t","args":[%d],"queue":"q%d","id":"%s"}`, i, i%3, id)
					if i%4 == 3 {
						statuses[i] = a.post("/ojs/v1/jobs/batch", `{"jobs":[`+body+`]}`).status
					} else {
						statuses[i] = a.post("/ojs/v1/jobs", body).status
					}
				})
			}
			wg.Wait()
			slices.Sort(statuses)
			require.Equal(t, append([]int{201}, slices.Repeat([]int{409}, 15)...), statuses)
		}
	})

	t.Run("FreeAgainAfterDelete", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.jobIn("completed")
		a.post("/ojs/v1/jobs/bulk/delete", `{"job_ids":["`+id+`"]}`).is(200)
		a.push(`"type":"t","args":[],"id":"%s"`, id)
	})
}
