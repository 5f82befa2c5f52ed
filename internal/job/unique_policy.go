package job

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/ojs"
)

// Unique is a normalised unique policy. It says what counts as the same job. Whether there is one is found out under a lock of
// the key, in the transaction of the insert (queue/unique.go).
type Unique struct {
	// The order does not matter for the key (docs/reference/unique.md, Key).
	Keys     []string // subset of type, queue, args, meta; type counts even if it is missing here
	ArgsKeys []string // nil: all of args
	MetaKeys []string // non-empty if Keys has meta
	Text     string   // key given as one text: the fingerprint is the type and this
	Key      string   // computed by the client: 64 hex digits, used instead of a fingerprint
	// It counts from created_at of the older job, which never moves (docs/reference/unique.md, Duplicates).
	Period time.Duration // 0: no limit in time
	// The policy of the new job decides, not that of the older one.
	States     []ojs.JobState // in which an older job blocks this one
	OnConflict string         // reject, replace, replace_except_schedule or ignore
}

// uniqueness checks unique and unique_key. unique_key without a policy is checked and echoed, but makes nothing unique.
func (d *decoder) uniqueness(j *Job) {
	key := d.pick(uniqueKeyAttr)
	text, ok := jsonread.Text(key.value)
	if key.value != nil && (!ok || len(text) != 64 || !jsonread.AllIn(text, isHex)) {
		d.refuse(ojs.ErrInvalidPayload, key, "64 lower-case hex digits")
	}
	g, there := d.pickObject(uniqueAttr)
	if !there {
		return
	}
	j.Unique = readUnique(g.value, d.top.values[argsAttr], g.path(), &d.problems)
	j.Unique.Key = text
}

// readUnique reads a policy, at path, for a job with these args.
func readUnique(v, args jsontext.Value, path string, ps *jsonread.Problems) *Unique {
	r := uniqueReader{&Unique{OnConflict: "reject"}, jsonread.OpenAt(v, "unique", path, ps, uniqueNames...)}
	// An unknown property is refused, unlike elsewhere: a policy that is not understood could let a job run twice.
	r.RefuseOthersAs(ojs.ErrInvalidPayload)
	r.Keys = r.names("keys", isDimension, "an array of type, queue, args or meta, each once")
	r.ArgsKeys = r.names("args_keys", jsonread.IsName, "an array of non-empty strings, each once")
	r.MetaKeys = r.names("meta_keys", jsonread.IsName, "an array of non-empty strings, each once")
	// With keys, a key beside it is not read at all.
	if key := r.Get("key"); key != nil && r.Get("keys") == nil {
		r.sdkKey(key)
	}
	if len(r.Keys) == 0 {
		r.Keys = []string{"type"}
	}
	if slices.Contains(r.Keys, "meta") && len(r.MetaKeys) == 0 {
		expected := "a non-empty array, because keys has meta"
		if r.Get("meta_keys") == nil {
			expected = "the names of the meta members that count, because keys has meta"
		}
		r.Refuse("meta_keys", expected)
	}
	// The first of the three names counts; 0 in period_ms means no limit, as if it were absent.
	switch {
	case r.Get("period") != nil:
		text, _ := jsonread.Text(r.Get("period"))
		var err error
		if r.Period, err = jsonread.ParseISODuration(text); err != nil || r.Period <= 0 {
			r.Refuse("period", "an ISO 8601 duration above zero such as PT1H")
		}
	case r.Get("period_ms") != nil:
		n, _ := r.Integer("period_ms", 0, maxMS, "an integer >= 0 of milliseconds")
		r.Period = time.Duration(n) * time.Millisecond
	default:
		r.Period = r.Duration("within", "a duration above zero such as 30m or PT30M", 1, jsonread.MaxDuration)
	}
	// By default every state in which the job may still run: a finished one does not block a new one.
	r.States = []ojs.JobState{ojs.StateAvailable, ojs.StateActive, ojs.StateScheduled, ojs.StateRetryable, ojs.StatePending}
	if r.Get("states") != nil {
		r.States = jsonread.Optional(&r.Object, "states", "a non-empty array of job states, each once",
			func(v jsontext.Value) (states []ojs.JobState, ok bool) {
				list, ok := DistinctStrings(v, func(s string) bool { return ojs.JobState(s).Valid() })
				for _, s := range list {
					states = append(states, ojs.JobState(s))
				}
				return states, ok && len(states) > 0
			})
	}
	// What each word does: docs/reference/unique.md, Conflicts.
	if r.Get("on_conflict") != nil {
		r.OnConflict = jsonread.OptionalText(&r.Object, "on_conflict", "one of reject, replace, replace_except_schedule, ignore",
			conflictWord)
	}
	r.resolve(args)
	return r.Unique
}

func conflictWord(text string) (word string, ok bool) {
	switch text {
	case "reject", "replace", "replace_except_schedule", "ignore":
		return text, true
	case "use_existing":
		return "ignore", true
	}
	return "", false
}

// uniqueReader fills a Unique from its object.
type uniqueReader struct {
	*Unique
	jsonread.Object
}

var uniqueNames = []string{"keys", "key", "args_keys", "meta_keys", "period", "period_ms", "within", "states", "on_conflict"}

// sdkKey reads what the SDKs send as key: a text, or the older form of keys and args_keys in one array, where names of dimensions
// stand for themselves, others for members of args. The names of arguments imply type and args: without them the policy would
// compare nothing of the job.
func (r *uniqueReader) sdkKey(key jsontext.Value) {
	if text, ok := jsonread.Text(key); ok {
		if !jsonread.IsName(text) {
			r.Refuse("key", "a non-empty text without U+0000")
		}
		r.Unique.Text = text
		return
	}
	var args []string
	for _, name := range r.names("key", jsonread.IsName, "a text, or an array of non-empty strings, each once") {
		if isDimension(name) {
			r.Keys = append(r.Keys, name)
		} else {
			args = append(args, name)
		}
	}
	// Only names of dimensions were given: the list is what keys would be.
	if args == nil {
		return
	}
	for _, implied := range []string{"args", "type"} {
		if !slices.Contains(r.Keys, implied) {
			r.Keys = append([]string{implied}, r.Keys...)
		}
	}
	r.ArgsKeys = args
}

// names reads an array of strings without repetitions; nil if it is absent, empty or refused. An empty list counts as absent,
// except for meta_keys, which readUnique looks at once more.
func (r *uniqueReader) names(name string, valid func(string) bool, expected string) []string {
	return jsonread.Optional(&r.Object, name, expected, func(v jsontext.Value) ([]string, bool) { return DistinctStrings(v, valid) })
}

// DistinctStrings reads an array of different strings that satisfy valid.
func DistinctStrings(v jsontext.Value, valid func(string) bool) ([]string, bool) {
	if v[0] != '[' {
		return nil, false
	}
	var list []string
	seen := make(map[string]bool)
	for e := range jsonread.Elements(v) {
		text, ok := jsonread.Text(e)
		if !ok || !valid(text) || seen[text] {
			return nil, false
		}
		seen[text] = true
		list = append(list, text)
	}
	return list, true
}

func isDimension(s string) bool { return s == "type" || s == "queue" || s == "args" || s == "meta" }

// ParseUnique reads a policy that was accepted with a job, by the rules of enqueue, to show it; nil if it is none.
// If the rules have become stricter since, there is nothing to show; the stored key of the job goes on to hold.
func ParseUnique(policy, args jsontext.Value) *Unique {
	if policy == nil || policy[0] != '{' {
		return nil
	}
	var problems jsonread.Problems
	u := readUnique(policy, args, "$.unique", &problems)
	if problems.Len() > 0 {
		return nil
	}
	return u
}

// resolve refuses argument names that address nothing: digits are an index into args, any other name
// is a member of one of its objects. One pass over args, however many names there are. A misspelt name would otherwise make all
// jobs of the type equal to each other, and all but the first would be refused or dropped.
func (r *uniqueReader) resolve(args jsontext.Value) {
	// Args that are no array are refused elsewhere.
	if !slices.Contains(r.Keys, "args") || len(r.ArgsKeys) == 0 || args == nil || args[0] != '[' {
		return
	}
	missing := make(map[string]bool, len(r.ArgsKeys))
	for _, name := range r.ArgsKeys {
		missing[name] = true
	}
	index := 0
	for e := range jsonread.Elements(args) {
		delete(missing, strconv.Itoa(index))
		index++
		if e[0] != '{' {
			continue
		}
		for name := range jsonread.Members(e) {
			if n := jsonread.Name(name); missing[string(n)] && !isIndex(string(n)) {
				delete(missing, string(n))
			}
		}
	}
	for _, name := range r.ArgsKeys { // in order, so that the answer is the same every time
		if !missing[name] {
			continue
		}
		// Leading zeros are taken here, unlike in the text that Itoa gives.
		if i, err := strconv.Atoi(name); !isIndex(name) || err != nil || i >= index {
			r.RefuseValue(ojs.ErrInvalidPayload, "args_keys", "names that resolve in 'args'", jsonread.Quote(name))
			return
		}
	}
}

// isIndex is for arrays: an object of args may have a member whose name is digits; it cannot be addressed.
func isIndex(s string) bool { return strings.Trim(s, "0123456789") == "" }
