package unique

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
)

// Key is the unique key of a job with a policy: the one that its client computed, or 64 hex digits of a SHA-256 over the parts
// of the job that its policy names, as canonical JSON (docs/reference/unique.md, Key). Tenants have keys of their own: that of a tenant's
// job is a SHA-256 over the tenant and this key, as in ojs.tenant_key of SQL.
//
// ojs.enqueue computes no key: it takes one that its caller has made. The key is fixed when the job is stored: changes of its
// meta later do not move it.
func Key(j *job.Job) string {
	key := j.Unique.Key
	if key == "" {
		sum := sha256.Sum256(appendCanonical(nil, identity(j)))
		key = hex.EncodeToString(sum[:])
	}
	// The lock of a key is made of its first 64 bits, so tenants do not wait for each other either.
	if tenant := job.TenantOf(j.Lane); tenant != "" {
		sum := sha256.Sum256([]byte(tenant + "/" + key))
		key = hex.EncodeToString(sum[:])
	}
	return key
}

// Assign gives the jobs that have a policy their keys.
// It may run several times: the key of the first time stays.
func Assign(jobs ...*job.Job) {
	for _, j := range jobs {
		if j.Unique != nil && j.UniqueKey == "" {
			j.UniqueKey = Key(j)
		}
	}
}

// identity is the JSON object that identifies a job, before it is made canonical.
// The type always counts, also if the policy does not name it.
func identity(j *job.Job) []byte {
	u := j.Unique
	b := append([]byte(`{"type":`), payload.Quote(j.Type)...)
	if u.Text != "" {
		return append(append(append(b, `,"key":`...), payload.Quote(u.Text)...), '}')
	}
	for _, key := range u.Keys {
		switch key {
		case "queue":
			b = append(append(b, `,"queue":`...), payload.Quote(j.Queue)...)
		case "args":
			b = appendArgs(append(b, `,"args":`...), u, j.Args)
		case "meta":
			b = appendSelected(append(b, `,"meta":`...), u.MetaKeys, membersOf(j.Meta))
		}
	}
	return append(b, '}')
}

// appendArgs appends all of args, or an object with the named ones: digits are an index, and any other name is a member of the
// first object among args that has it. One pass over args, however many names there are.
// A name that addresses nothing is null here. Decoding has refused it for jobs of clients.
func appendArgs(b []byte, u *job.Unique, args jsontext.Value) []byte {
	if len(u.ArgsKeys) == 0 {
		return append(b, args...)
	}
	wanted := make(map[string]bool, len(u.ArgsKeys))
	for _, name := range u.ArgsKeys {
		wanted[name] = !isIndex(name)
	}
	// A name that was found is not wanted any more, so the first object that has it counts.
	found := make(map[string]jsontext.Value, len(u.ArgsKeys))
	var elements []jsontext.Value
	for e := range rawjson.Elements(args) {
		elements = append(elements, e)
		if e[0] != '{' {
			continue
		}
		own := make(map[string]jsontext.Value)
		for literal, value := range rawjson.Members(e) {
			if name := rawjson.Name(literal); wanted[string(name)] {
				own[string(name)] = value // the last of equal names
			}
		}
		for name, value := range own {
			found[name], wanted[name] = value, false
		}
	}
	for _, name := range u.ArgsKeys {
		if i, err := strconv.Atoi(name); err == nil && isIndex(name) && i < len(elements) {
			found[name] = elements[i]
		}
	}
	return appendSelected(b, u.ArgsKeys, found)
}

// appendSelected appends an object with the named members; one that is missing is null.
func appendSelected(b []byte, names []string, values map[string]jsontext.Value) []byte {
	b = append(b, '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, payload.Quote(name)...), ':')
		if v := values[name]; v != nil {
			b = append(b, v...)
		} else {
			b = append(b, `null`...)
		}
	}
	return append(b, '}')
}

// nil for a job without meta: all selected members are null then.
func membersOf(object jsontext.Value) map[string]jsontext.Value {
	if object == nil {
		return nil
	}
	values := make(map[string]jsontext.Value)
	for literal, value := range rawjson.Members(object) {
		values[string(rawjson.Name(literal))] = value
	}
	return values
}

// "" counts as one, but is no number, and so addresses nothing.
func isIndex(name string) bool { return strings.Trim(name, "0123456789") == "" }

// lockOf is the advisory lock of a key. Keys that share their first 64 bits wait for each other, and nothing else.
// UniqueLockDiscarded and ojs.enqueue compute the same number in SQL.
func lockOf(key string) int64 {
	n, err := strconv.ParseUint(key[:16], 16, 64)
	if err != nil {
		panic("unique: a key has to be 64 hex digits: " + err.Error()) // decoding refuses any other
	}
	return int64(n) //nolint:gosec // the same 64 bits
}
