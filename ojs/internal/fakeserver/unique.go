package fakeserver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// uniquePolicy is that of docs/reference/unique.md, Policy.
type uniquePolicy struct {
	Keys, ArgsKeys, MetaKeys []string
	Text                     string // a key of one text
	Period                   time.Duration
	States                   []ojs.JobState
	OnConflict               string
}

var dimensions = []string{"type", "queue", "args", "meta"}

// readUnique reads the policy of a job; nil: it has none.
func readUnique(r reader, args json.RawMessage) *uniquePolicy {
	in, there := r.inner(r.pick("unique"))
	if !there {
		return nil
	}
	in.others(ojs.ErrInvalidPayload, "keys", "key", "args_keys", "meta_keys", "period", "period_ms", "within", "states", "on_conflict")
	u := &uniquePolicy{OnConflict: "reject"}
	u.Keys = in.texts(in.pick("keys"), true, "an array of type, queue, args or meta, each once", among(dimensions...))
	u.ArgsKeys = in.texts(in.pick("args_keys"), true, "an array of non-empty strings, each once", isName)
	u.MetaKeys = in.texts(in.pick("meta_keys"), true, "an array of non-empty strings, each once", isName)
	if key := in.pick("key"); key.value != nil && in.pick("keys").value == nil {
		u.readKey(in, key)
	}
	if slices.Contains(u.Keys, "meta") && len(u.MetaKeys) == 0 {
		in.refuse(in.pick("meta_keys"), "the names of the meta members that count, because keys has meta")
	}
	switch period := in.pick("period", "period_ms", "within"); period.name {
	case "period":
		u.Period = in.duration(period, readISO)
	case "period_ms":
		n, _ := in.integer(period, 0, maxDuration.Milliseconds())
		u.Period = time.Duration(n) * time.Millisecond
	default:
		u.Period = in.duration(period, readDuration)
	}
	states := in.pick("states")
	for _, state := range in.texts(states, true, "a non-empty array of job states, each once",
		func(s string) bool { return ojs.JobState(s).Valid() }) {
		u.States = append(u.States, ojs.JobState(state))
	}
	if string(states.value) == "[]" {
		in.refuse(states, "a non-empty array of job states, each once")
	}
	if text := in.text(in.pick("on_conflict"), "one of reject, replace, replace_except_schedule, ignore",
		among("reject", "replace", "replace_except_schedule", "ignore", "use_existing")); text != "" {
		u.OnConflict = strings.Replace(text, "use_existing", "ignore", 1)
	}
	var list []any
	if json.Unmarshal(args, &list) == nil && slices.Contains(u.Keys, "args") {
		for _, name := range u.ArgsKeys {
			if _, found := argument(list, name); !found {
				in.refuse(in.pick("args_keys", "key"), "names that resolve in 'args'")
			}
		}
	}
	return u
}

// readKey reads the form of other SDKs: a text, or keys and args_keys in one array.
func (u *uniquePolicy) readKey(in reader, key member) {
	if key.value[0] == '"' {
		u.Text = in.text(key, "a non-empty text without U+0000", isName)
		return
	}
	var args []string
	for _, name := range in.texts(key, true, "a text, or an array of non-empty strings, each once", isName) {
		if slices.Contains(dimensions, name) {
			u.Keys = append(u.Keys, name)
		} else {
			args = append(args, name)
		}
	}
	if args != nil {
		u.ArgsKeys = args
		if !slices.Contains(u.Keys, "args") {
			u.Keys = append(u.Keys, "args")
		}
	}
}

// key is what makes jobs equivalent. The type always counts.
func (u *uniquePolicy) key(j *record) string {
	parts := map[string]any{"type": j.Type}
	if u.Text != "" {
		parts["key"] = u.Text
	}
	if slices.Contains(u.Keys, "queue") {
		parts["queue"] = j.Queue
	}
	if slices.Contains(u.Keys, "args") {
		var args []any
		_ = json.Unmarshal(j.RawArgs, &args) // it is an array
		if parts["args"] = args; len(u.ArgsKeys) > 0 {
			chosen := object{}
			for _, name := range u.ArgsKeys {
				chosen[name], _ = argument(args, name)
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
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// argument finds an element by its index, or a member of the first object that has it.
func argument(args []any, name string) (value any, ok bool) {
	if strings.Trim(name, "0123456789") == "" {
		i, err := strconv.Atoi(name)
		if err != nil || i >= len(args) {
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
	u := j.request.Unique
	if u == nil {
		return nil
	}
	var since time.Time
	if u.Period > 0 {
		since = s.now().Add(-u.Period)
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
