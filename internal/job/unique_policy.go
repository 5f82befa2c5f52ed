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
	r := uniqueReader{problems: &d.problems, path: g.path(), Unique: &Unique{Key: text}}
	r.read(g.value)
	r.resolve(d.top.values[argsAttr])
	j.Unique = r.Unique
}

// uniqueReader fills a Unique from its object.
type uniqueReader struct {
	*Unique
	problems *jsonread.Problems
	path     string
	fields   jsonread.Fields
}

var uniqueNames = []string{"keys", "key", "args_keys", "meta_keys", "period", "period_ms", "within", "states", "on_conflict"}

func (r *uniqueReader) refuse(field, expected string, v jsontext.Value) {
	r.problems.Add(ojs.ErrInvalidPayload, "unique."+field, r.path+"."+field, expected, v)
}

func (r *uniqueReader) read(v jsontext.Value) {
	var unknown []jsonread.Member
	r.fields, unknown = jsonread.Read(v, uniqueNames)
	// An unknown property is refused, unlike elsewhere: a policy that is not understood could let a job run twice.
	for _, m := range unknown {
		r.refuse(string(m.Name), "absent: a unique policy has no such property", m.Value)
	}
	r.keys()
	r.period()
	r.states()
	r.conflict()
}

// keys reads keys, and what the SDKs send as key. An array key is the older form of keys and args_keys in one: names of
// dimensions stand for themselves, others for members of args. With keys, a key beside it is not read at all.
func (r *uniqueReader) keys() {
	r.Keys = r.names("keys", isDimension, "an array of type, queue, args or meta, each once")
	r.ArgsKeys = r.names("args_keys", jsonread.IsName, "an array of non-empty strings, each once")
	r.MetaKeys = r.names("meta_keys", jsonread.IsName, "an array of non-empty strings, each once")
	if key := r.fields.Get("key"); key != nil && r.fields.Get("keys") == nil {
		r.sdkKey(key)
	}
	if len(r.Keys) == 0 {
		r.Keys = []string{"type"}
	}
	if has(r.Keys, "meta") && len(r.MetaKeys) == 0 && r.fields.Get("meta_keys") == nil {
		r.refuse("meta_keys", "the names of the meta members that count, because keys has meta", nil)
	} else if has(r.Keys, "meta") && len(r.MetaKeys) == 0 {
		r.refuse("meta_keys", "a non-empty array, because keys has meta", r.fields.Get("meta_keys"))
	}
}

// type and args are implied by the names of arguments: without them the policy would compare nothing of the job.
func (r *uniqueReader) sdkKey(key jsontext.Value) {
	if text, ok := jsonread.Text(key); ok {
		if !jsonread.IsName(text) {
			r.refuse("key", "a non-empty text without U+0000", key)
		}
		r.Text = text
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
		if !has(r.Keys, implied) {
			r.Keys = append([]string{implied}, r.Keys...)
		}
	}
	r.ArgsKeys = args
}

// names reads an array of strings without repetitions; nil if it is absent, empty or refused. An empty list counts as absent,
// except for meta_keys, which keys looks at once more.
func (r *uniqueReader) names(field string, valid func(string) bool, expected string) []string {
	v := r.fields.Get(field)
	if v == nil {
		return nil
	}
	list, ok := DistinctStrings(v, valid)
	if !ok {
		r.refuse(field, expected, v)
		return nil
	}
	return list
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

// The first of the three names wins; 0 in period_ms means no limit, as if it were absent.
func (r *uniqueReader) period() {
	if v := r.fields.Get("period"); v != nil {
		text, _ := jsonread.Text(v)
		d, err := jsonread.ParseISODuration(text)
		if err != nil || d <= 0 {
			r.refuse("period", "an ISO 8601 duration above zero such as PT1H", v)
		}
		r.Period = d
		return
	}
	if v := r.fields.Get("period_ms"); v != nil {
		n, kind := jsonread.Int(v)
		if kind != jsonread.IsInt || n < 0 || n > maxMS {
			r.refuse("period_ms", "an integer >= 0 of milliseconds", v)
			return
		}
		r.Period = time.Duration(n) * time.Millisecond
		return
	}
	if v := r.fields.Get("within"); v != nil {
		text, _ := jsonread.Text(v)
		d, err := jsonread.ParseDuration(text)
		if err != nil || d <= 0 {
			r.refuse("within", "a duration above zero such as 30m or PT30M", v)
		}
		r.Period = d
	}
}

// By default every state in which the job may still run: a finished one does not block a new one.
func (r *uniqueReader) states() {
	v := r.fields.Get("states")
	if v == nil {
		r.States = []ojs.JobState{ojs.StateAvailable, ojs.StateActive, ojs.StateScheduled, ojs.StateRetryable, ojs.StatePending}
		return
	}
	list, ok := DistinctStrings(v, func(s string) bool { return ojs.JobState(s).Valid() })
	if !ok || len(list) == 0 {
		r.refuse("states", "a non-empty array of job states, each once", v)
		return
	}
	for _, s := range list {
		r.States = append(r.States, ojs.JobState(s))
	}
}

// What each word does: docs/reference/unique.md, Conflicts.
func (r *uniqueReader) conflict() {
	r.OnConflict = "reject"
	v := r.fields.Get("on_conflict")
	if v == nil {
		return
	}
	switch text, _ := jsonread.Text(v); text {
	case "reject", "replace", "replace_except_schedule", "ignore":
		r.OnConflict = text
	case "use_existing":
		r.OnConflict = "ignore"
	default:
		r.refuse("on_conflict", "one of reject, replace, replace_except_schedule, ignore", v)
	}
}

func isDimension(s string) bool { return s == "type" || s == "queue" || s == "args" || s == "meta" }

func has(list []string, s string) bool {
	return slices.Contains(list, s)
}

// ParseUnique reads a policy that was accepted with a job, by the rules of enqueue, to show it; nil if it is none.
// If the rules have become stricter since, there is nothing to show; the stored key of the job goes on to hold.
func ParseUnique(policy, args jsontext.Value) *Unique {
	if policy == nil || policy[0] != '{' {
		return nil
	}
	var problems jsonread.Problems
	r := uniqueReader{problems: &problems, Unique: &Unique{}}
	r.read(policy)
	r.resolve(args)
	if len(problems) > 0 {
		return nil
	}
	return r.Unique
}

// resolve refuses argument names that address nothing: digits are an index into args, any other name
// is a member of one of its objects. One pass over args, however many names there are. A misspelt name would otherwise make all
// jobs of the type equal to each other, and all but the first would be refused or dropped.
func (r *uniqueReader) resolve(args jsontext.Value) {
	// Args that are no array are refused elsewhere.
	if !has(r.Keys, "args") || len(r.ArgsKeys) == 0 || args == nil || args[0] != '[' {
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
		if missing[name] && !(isIndex(name) && indexBelow(name, index)) {
			r.refuse("args_keys", "names that resolve in 'args'", jsonread.Quote(name))
			return
		}
	}
}

// An object of args may have a member whose name is digits; it cannot be addressed.
func isIndex(s string) bool { return strings.Trim(s, "0123456789") == "" }

// indexBelow takes leading zeros, unlike the text that strconv.Itoa gives.
func indexBelow(s string, n int) bool {
	i, err := strconv.Atoi(s)
	return err == nil && i < n
}
