package fakeserver

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// uniquePolicy is that of docs/reference/unique.md, Policy, in the form that package ojs writes.
type uniquePolicy struct {
	Keys       []string       `json:"keys"`
	ArgsKeys   []string       `json:"args_keys"`
	MetaKeys   []string       `json:"meta_keys"`
	Period     string         `json:"period"`
	States     []ojs.JobState `json:"states"`
	OnConflict string         `json:"on_conflict"`
}

// key is what makes jobs equivalent. The type always counts. ok is false if args_keys address nothing.
func (u *uniquePolicy) key(j *record) (key string, ok bool) {
	parts := map[string]any{"type": j.Type}
	if slices.Contains(u.Keys, "queue") {
		parts["queue"] = j.Queue
	}
	var args []any
	if slices.Contains(u.Keys, "args") {
		if json.Unmarshal(j.RawArgs, &args) != nil {
			return "", false
		}
		if parts["args"] = args; len(u.ArgsKeys) > 0 {
			chosen := object{}
			for _, name := range u.ArgsKeys {
				if chosen[name], ok = argument(args, name); !ok {
					return "", false
				}
			}
			parts["args"] = chosen
		}
	}
	if slices.Contains(u.Keys, "meta") {
		chosen := object{}
		for _, name := range u.MetaKeys {
			chosen[name] = j.Meta[name]
		}
		parts["meta"] = chosen
	}
	text, err := json.Marshal(parts)
	return string(text), err == nil
}

// argument finds an element by its index, or a member of the first object that has it.
func argument(args []any, name string) (value any, ok bool) {
	if i, err := strconv.Atoi(name); err == nil {
		if i >= len(args) {
			return nil, false
		}
		return args[i], true
	}
	for _, a := range args {
		if members, isObject := a.(map[string]any); isObject {
			if value, ok := members[name]; ok {
				return value, true
			}
		}
	}
	return nil, false
}

// twin is a job with the state that it has after the plans before it.
type twin struct {
	*record
	state ojs.JobState
}

// equivalent finds the jobs that the unique policy of j forbids beside it, oldest first. The type always counts, as on a real server.
// key is that of j.
func (s *Server) equivalent(j *record, key string, before []plan) (twins []twin) {
	u := j.request.Options.Unique
	if u == nil {
		return nil
	}
	var since time.Time
	if d, err := readDuration(u.Period); err == nil {
		since = s.now().Add(-d)
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
		if live && key == other.uniqueKey && !other.CreatedAt.Before(since) {
			twins = append(twins, twin{other, state})
		}
	}
	return twins
}
