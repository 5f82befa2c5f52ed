package job

import (
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// PurgeRequest is the body of DELETE /admin/queues/{name}/jobs (docs/reference/admin.md, Purge). Active jobs cannot be purged:
// a worker has them, and its ack would find nothing.
type PurgeRequest struct {
	States []ojs.JobState
	// It is compared with the end of a job, or with its creation if it has not ended (docs/reference/admin.md, Purge).
	OlderThan When
	By        string // who cancels, as the client says
}

// DecodePurge reads the body. confirm is looked at last, so that a first try without it tells everything else that is wrong.
func DecodePurge(raw []byte) (PurgeRequest, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return PurgeRequest{}, err
	}
	b := payload.Body{}
	var others []payload.Member
	b.Fields, others = payload.Read(v, []string{"states", "older_than", "confirm", "cancelled_by"})
	for _, m := range others { // ignoring a condition would remove more than meant
		b.Problems.Add(ojs.ErrInvalidPayload, string(m.Name), "$."+string(m.Name), "absent: there is no such member", m.Value)
	}
	var r PurgeRequest
	list, ok := []string(nil), false
	if states := b.Get("states"); states != nil && states[0] == '[' {
		list, ok = payload.Texts(states)
	}
	// Repetitions are no mistake and would only make the statement look twice.
	for _, text := range payload.Distinct(list) {
		state := ojs.JobState(text)
		// A purge of active jobs is refused as a whole, not narrowed.
		ok = ok && state.Valid() && state != ojs.StateActive
		r.States = append(r.States, state)
	}
	if !ok || len(list) == 0 {
		b.Refuse("states", "a non-empty array of job states other than active")
	}
	if age := b.Get("older_than"); age != nil {
		text, _ := rawjson.Text(age)
		if r.OlderThan, ok = ParseAge(text); !ok {
			b.Refuse("older_than", "an RFC 3339 time with offset, or an age such as 7d or P7D")
		}
	}
	r.By, _ = rawjson.Text(b.Get("cancelled_by"))
	b.Boolean("confirm")
	if err := b.Problems.Err(); err != nil {
		return PurgeRequest{}, err
	}
	return r, payload.CheckConfirmed(b.Get("confirm"), "removes every job that matches")
}
