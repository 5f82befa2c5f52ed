package queueconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// MaxBytes bounds the stored configuration of a queue. All nodes keep the configuration of up to MaxConfigured queues in
// memory.
const MaxBytes = 64 << 10

// values are the fields of a configuration object; nil: absent. In a change, null takes a value away. An array and not a
// map: the stored object then always has the order of the fields, and equal configurations equal bytes.
type values [fieldCount]jsontext.Value

// Change is what a client wants to be different. It holds copies of the bytes of the request. Its values are valid one by
// one; that they are valid together needs no check, as no field depends on another.
type Change struct{ values }

// And adds another change, which wins where both set a field.
func (c *Change) And(other Change) {
	for f, v := range other.values {
		if v != nil {
			c.values[f] = v
		}
	}
}

// Sets reports whether the change gives any field a value. A change that only takes values away needs no room in the memory
// of nodes.
func (c *Change) Sets() bool {
	for _, v := range c.values {
		if !jsonread.IsNull(v) {
			return true
		}
	}
	return false
}

// ParseChange reads a configuration object, which jsonread.Check has accepted; where is its JSONPath, such as $ or $.config. others are
// members that it may have beside settings. All mistakes are reported at once. It needs no database and changes nothing. The values
// are read into a Config that is thrown away: set checks and stores in one step.
func ParseChange(object jsontext.Value, where string, others ...string) (Change, *ojs.Error) {
	var change Change
	var problems jsonread.Problems
	refuseUnknown(object, &problems, where, others)
	change.collect(object, &problems, where)
	var config Config
	for f, v := range change.values {
		if jsonread.IsNull(v) {
			continue
		}
		path := field(f).path()
		expected := "text without U+0000 and without halves of surrogate pairs, nested at most 32 levels"
		if storable(v) {
			expected = config.set(field(f), v)
		}
		if expected != "" && !addInPolicy(&problems, field(f), v, where) {
			problems.Add(ojs.ErrInvalidPayload, path, where+"."+path, expected, v)
		}
	}
	if err := problems.Err(); err != nil {
		return Change{}, err
	}
	for f, v := range change.values {
		if v != nil {
			change.values[f] = bytes.Clone(v)
		}
	}
	return change, nil
}

// refuseUnknown refuses members of the object and of its groups that are no settings.
func refuseUnknown(object jsontext.Value, problems *jsonread.Problems, where string, others []string) {
	known := map[string][]string{} // by group; "": those of the object
	for _, s := range specs {
		if s.group != "" && known[s.group] == nil {
			known[""] = append(known[""], s.group)
		}
		known[s.group] = append(known[s.group], s.name)
	}
	known[""] = append(slices.AppendSeq(known[""], maps.Keys(aliases)), others...)
	slices.Sort(known[""])
	for literal, value := range jsonread.Members(object) {
		name := string(jsonread.Name(literal))
		if !slices.Contains(known[""], name) {
			problems.AddUnknown(ojs.ErrInvalidRequest, name, where+"."+name, known[""], value)
		}
		if known[name] == nil || value[0] != '{' {
			continue
		}
		for literal, value := range jsonread.Members(value) {
			if inner := string(jsonread.Name(literal)); !slices.Contains(known[name], inner) {
				problems.AddUnknown(ojs.ErrInvalidRequest, name+"."+inner, where+"."+name+"."+inner, known[name], value)
			}
		}
	}
}

// addInPolicy names the member of a policy that was refused. It reports whether there is one. The general sentence is left
// out then.
func addInPolicy(ps *jsonread.Problems, f field, v jsontext.Value, where string) bool {
	before := ps.Len()
	switch {
	case !storable(v):
	case f == rateLimit:
		job.ParseQueueLimit(v, "rate_limit", where+".rate_limit", ps)
	case f == defaultRetry && v[0] == '{':
		if _, wire := job.ParseRetry(v, job.DefaultRetry()); wire != nil {
			name := fmt.Sprint("default_", wire.Details["field"])
			ps.Note(jsonread.Problem{Kind: ojs.ErrInvalidPayload, Field: name, Path: where + "." + name,
				Message: "default_" + wire.Message})
		}
	}
	return ps.Len() > before
}

// storable reports whether SQL functions can read the value, too: PostgreSQL has no U+0000 in text.
func storable(v jsontext.Value) bool {
	return !bytes.Contains(v, []byte(`\u0000`)) && v.IsValid(jsontext.AllowDuplicateNames(true)) && jsonread.Depth(v) <= maxLevels
}

// collect sorts the members into fields. The name of a field wins over an alias of it. Hence two passes over the members:
// aliases first, names second.
func (vs *values) collect(object jsontext.Value, problems *jsonread.Problems, where string) {
	for literal, value := range jsonread.Members(object) {
		// Aliases stand at the top level only.
		if f, ok := aliases[string(jsonread.Name(literal))]; ok {
			vs[f] = value
		}
	}
	for literal, value := range jsonread.Members(object) {
		name := string(jsonread.Name(literal))
		switch name {
		// The members of the object are fields of their own, so a change may send some of them.
		case "backpressure":
			// The fields of a group are neighbours in the order of field.
			vs.collectGroup(maxDepth, warningThreshold, value, problems, where)
		case "retention":
			if value[0] == '"' { // one for all three
				vs[keepCompleted], vs[keepDiscarded], vs[keepCancelled] = value, value, value
				continue
			}
			vs.collectGroup(keepCompleted, keepCancelled, value, problems, where)
		default:
			for f := range fieldCount {
				if specs[f].group == "" && specs[f].name == name {
					vs[f] = value
				}
			}
		}
	}
}

// collectGroup is collect for the object of the fields from first to last.
func (vs *values) collectGroup(first, last field, object jsontext.Value, problems *jsonread.Problems, where string) {
	switch {
	case jsonread.IsNull(object):
		for f := first; f <= last; f++ {
			vs[f] = object
		}
	case object[0] != '{':
		group := specs[first].group
		expected := "an object"
		if first == keepCompleted {
			expected = "an object, or one duration for all states"
		}
		problems.Add(ojs.ErrInvalidPayload, group, where+"."+group, expected, object)
	default:
		for f := first; f <= last; f++ {
			if v := jsonread.Find(object, specs[f].name); v != nil {
				vs[f] = v
			}
		}
	}
}

// Stored is the configuration of a queue as its row has it.
type Stored struct {
	Config   []byte // as clients sent it, merged; nil: nothing is configured
	Settings []byte // what SQL reads of it; nil: nothing
}

// Apply gives what is stored after the change of a stored configuration, which stays as it is. The caller holds the lock of the row
// from the read of stored to the write of the result.
func (c *Change) Apply(stored []byte) (Stored, *ojs.Error) {
	merged := overlay(stored, c.values)
	if len(merged) > MaxBytes {
		return Stored{}, spec.TooLarge("config", MaxBytes, len(merged))
	}
	return Stored{Config: merged, Settings: settings(merged)}, nil
}

// settings is the part of a configuration by which SQL functions go (ojs.queue_settings): effective values, each under one name and
// in one unit, so that SQL need not know durations, aliases and defaults. What a queue inherits as a whole is one member. A field
// that is not set is absent.
func settings(config []byte) []byte {
	c, _ := Decode(config) // what this release cannot read holds for nobody
	bounds := c.Backpressure
	if bounds == nil {
		bounds = &Backpressure{}
	}
	s := struct {
		Concurrency         *int64          `json:"concurrency,omitempty"`
		RateLimit           bool            `json:"rate_limit,omitempty"` // that there is one
		MaxDepth            *int64          `json:"max_depth,omitempty"`
		MaxSizeBytes        *int64          `json:"max_size_bytes,omitempty"`
		MaxTenantDepth      *int64          `json:"max_depth_per_tenant,omitempty"`
		VisibilityTimeoutMS *int64          `json:"visibility_ms,omitempty"`
		DefaultTimeoutMS    *int64          `json:"timeout_ms,omitempty"`
		DefaultRetry        json.RawMessage `json:"retry,omitempty"` // as job.RetryPolicy.Encode writes it
		AllowedJobTypes     []string        `json:"allowed_job_types,omitempty"`
		FairKey             string          `json:"fair_key,omitempty"`
	}{
		Concurrency: c.Concurrency, RateLimit: c.RateLimit != nil, VisibilityTimeoutMS: c.VisibilityTimeoutMS,
		DefaultTimeoutMS: c.DefaultTimeoutMS, DefaultRetry: c.DefaultRetry, AllowedJobTypes: c.AllowedJobTypes,
	}
	for f, v := range read(config) {
		if jsonread.IsNull(v) {
			continue
		}
		// Bounds are inherited one by one, and 0 takes an inherited one away.
		switch field(f) {
		case maxDepth:
			s.MaxDepth = &bounds.MaxDepth
		case maxSizeBytes:
			s.MaxSizeBytes = &bounds.MaxSizeBytes
		case maxTenantDepth:
			s.MaxTenantDepth = &bounds.MaxTenantDepth
		}
	}
	if c.Fairness != nil {
		s.FairKey = c.Fairness.FairKey
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // the values are numbers, texts, and JSON that Encode has written
	}
	if len(b) == len("{}") {
		return nil
	}
	return b
}

// overlay gives the object with the values over those of an object that is stored, or nil. A null among the values takes
// the field away, as encode leaves it out.
func overlay(stored []byte, over values) []byte {
	vs := read(stored)
	for f, v := range over {
		if v != nil {
			vs[f] = v
		}
	}
	return vs.encode()
}

// Show gives a stored configuration as answers have it: with the aliases that clients know, and with the retention that holds where it
// sets none ("": for ever, which is not shown). Aliases stand at the end, beside the names.
func Show(stored []byte, completed, discarded, cancelled string) []byte {
	vs := read(stored)
	for f, text := range map[field]string{keepCompleted: completed, keepDiscarded: discarded, keepCancelled: cancelled} {
		if vs[f] == nil && text != "" {
			vs[f] = jsonread.Quote(text)
		}
	}
	b := vs.encode()
	if b == nil {
		return []byte(`{}`)
	}
	b = b[:len(b)-1]
	for _, name := range []string{"max_size", "max_size_bytes", "overflow_policy"} {
		if v := vs[aliases[name]]; v != nil {
			b = jsonread.AppendMember(b, jsonread.Quote(name), v)
		}
	}
	return append(b, '}')
}

// read gives the fields of a stored object; what is no object has none. Mistakes are ignored: what is stored was checked,
// perhaps by another release.
func read(stored []byte) (vs values) {
	if object, invalid := jsonread.Check(stored); invalid == nil {
		vs.collect(object, new(jsonread.Problems), "$")
	}
	return vs
}

// encode gives the object of the fields, nil if there are none. Fields of a group follow each other in specs, so one pass
// opens and closes each group once.
func (vs *values) encode() []byte {
	b, group := []byte{'{'}, ""
	end := func() {
		if group != "" {
			b, group = append(b, '}'), ""
		}
	}
	for f, v := range vs {
		if jsonread.IsNull(v) {
			continue
		}
		s := &specs[f]
		if s.group != group {
			end()
			if group = s.group; group != "" {
				b = jsonread.AppendMember(b, jsonread.Quote(group), nil)
				b = append(b, '{')
			}
		}
		b = jsonread.AppendMember(b, jsonread.Quote(s.name), v)
	}
	if end(); len(b) == 1 {
		return nil
	}
	return append(b, '}')
}

// Decode reads a stored configuration; nil has no field set. A field that this release cannot read is left out of the result, and
// named by the error. The error names one of the fields; the result is right for all others.
func Decode(stored []byte) (Config, error) {
	config := Config{raw: stored}
	if stored == nil {
		return config, nil
	}
	if _, invalid := jsonread.Check(stored); invalid != nil {
		return Config{}, errors.New("decode queue configuration: not a JSON object")
	}
	var err error
	for f, v := range read(stored) {
		if jsonread.IsNull(v) {
			continue
		}
		if expected := config.set(field(f), v); expected != "" {
			err = fmt.Errorf("decode queue configuration: %s is not %s", field(f).path(), expected)
		}
	}
	return config, err
}

// Effective is the configuration of a queue by its own stored values over those of Default. Objects such as backpressure
// are merged by their members, policies are replaced as a whole.
func Effective(own, inherited []byte) (Config, error) {
	if own == nil || inherited == nil {
		if own == nil {
			own = inherited
		}
		return Decode(own)
	}
	return Decode(overlay(inherited, read(own)))
}
