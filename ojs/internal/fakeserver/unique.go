package fakeserver

import (
	"slices"

	"github.com/ojsd/ojsd/ojs"
)

// Periods, args_keys and meta_keys are ignored.
type uniquePolicy struct {
	Keys       []string       `json:"keys"`
	States     []ojs.JobState `json:"states"`
	OnConflict string         `json:"on_conflict"`
}

// twin is a job with the state that it has after the plans before it.
type twin struct {
	*record
	state ojs.JobState
}

// equivalent finds the jobs that the unique policy of j forbids beside it, oldest first. The type always counts, as on a real server.
// Args are compared as text.
func (s *Server) equivalent(j *record, before []plan) (twins []twin) {
	u := j.request.Options.Unique
	if u == nil {
		return nil
	}
	all, replaced := slices.Clone(s.order), map[*record]bool{}
	for _, p := range before {
		if p.job != nil {
			all = append(all, p.job)
		}
		for _, r := range p.replaced {
			replaced[r] = true
		}
	}
	for _, other := range all {
		state := other.State
		if replaced[other] {
			state = ojs.StateCancelled
		}
		live := !state.Terminal()
		if len(u.States) > 0 {
			live = slices.Contains(u.States, state)
		}
		if live && other.request.Options.Unique != nil && other.Type == j.Type &&
			(!slices.Contains(u.Keys, "queue") || other.Queue == j.Queue) && (!slices.Contains(u.Keys, "args") || string(other.RawArgs) == string(j.RawArgs)) {
			twins = append(twins, twin{other, state})
		}
	}
	return twins
}
