// Package unique owns what makes a job equivalent to another one (docs/reference/unique.md): the key of a job, the lock of that
// key, the search for jobs that hold it, and the decision what to do about them. It stores and cancels nothing: package queue
// does that, in the transaction that holds the lock.
package unique

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"

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

// appendCanonical appends v in the form of RFC 8785, with all strings in Unicode NFC. It differs from the RFC where that has no
// form: integers beyond 2^53 keep their digits instead of being rounded, numbers beyond a double keep their literal, and half of
// a surrogate pair, which JavaScript clients can send, stays an escape. Of equal names the last one counts.
//
// v is valid JSON that rawjson.Check has accepted. A change of the output changes the keys of all jobs that are enqueued later,
// so that they do not find those that are stored: the vectors in docs/reference/unique.md, Key are tests. Clients that encrypt
// args compute the same key.
func appendCanonical(b []byte, v jsontext.Value) []byte {
	switch v[0] {
	case '{':
		return appendObject(b, v)
	case '[':
		b = append(b, '[')
		first := true
		for e := range rawjson.Elements(v) {
			if !first {
				b = append(b, ',')
			}
			first, b = false, appendCanonical(b, e)
		}
		return append(b, ']')
	case '"':
		return appendString(b, normalized(v))
	case 't', 'f', 'n':
		return append(b, v...)
	}
	return appendNumber(b, v)
}

type member struct {
	name  []byte
	units []uint16 // the order of the RFC is that of UTF-16
	value jsontext.Value
	// The place in the object, so that the last of equal names can be found after the sort.
	place int
}

// Names are equal if they are equal in NFC, however they were escaped.
func appendObject(b []byte, v jsontext.Value) []byte {
	var members []member
	for literal, value := range rawjson.Members(v) {
		name := normalized(literal)
		members = append(members, member{name, unitsOf(name), value, len(members)})
	}
	slices.SortFunc(members, func(x, y member) int { // of equal names the last one comes first
		return cmp.Or(slices.Compare(x.units, y.units), y.place-x.place)
	})
	members = slices.CompactFunc(members, func(x, y member) bool { return bytes.Equal(x.name, y.name) })
	b = append(b, '{')
	for i, m := range members {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, m.name), ':')
		b = appendCanonical(b, m.value)
	}
	return append(b, '}')
}

// appendNumber appends a number as JavaScript does.
//
// 5, 5.0 and 50e-1 are one number, as for JavaScript. The order of the tests matters: an integer beyond a double must not be
// parsed as one.
func appendNumber(b []byte, v jsontext.Value) []byte {
	if n, kind := rawjson.Int(v); kind == rawjson.IsInt {
		return strconv.AppendInt(b, n, 10)
	}
	// An integer beyond int64 keeps its digits.
	if !bytes.ContainsAny(v, ".eE") {
		return append(b, v...)
	}
	f, err := strconv.ParseFloat(string(v), 64)
	// A number beyond a double keeps its literal.
	if err != nil {
		return append(b, v...)
	}
	if f == 0 {
		return append(b, '0') // what a double cannot tell from 0 is 0 for JavaScript, and -0 is 0
	}
	return append(b, jsontext.Float(f).String()...)
}

// normalized is the content of a string literal in NFC. A lone surrogate is the three bytes that UTF-8 would have for it, which no
// valid text contains.
// Most literals have no escapes, and are not copied for them.
func normalized(literal jsontext.Value) []byte {
	if text := literal[1 : len(literal)-1]; !bytes.ContainsRune(text, '\\') {
		return norm.NFC.Bytes(text)
	}
	return norm.NFC.Bytes(unescaped(literal[1 : len(literal)-1]))
}

// jsontext.AppendUnquote would replace lone surrogates by U+FFFD, and so make different texts equal.
func unescaped(text []byte) []byte {
	b := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		if text[i] != '\\' {
			b = append(b, text[i])
			i++
			continue
		}
		if text[i+1] != 'u' {
			b = append(b, escapes[text[i+1]])
			i += 2
			continue
		}
		r := unit(text[i+2:])
		i += 6
		// Two escapes that form a pair are one character. A high surrogate without a low one stays by itself.
		if utf16.IsSurrogate(r) && i+6 <= len(text) && text[i] == '\\' && text[i+1] == 'u' {
			if pair := utf16.DecodeRune(r, unit(text[i+2:])); pair != utf8.RuneError {
				r = pair
				i += 6
			}
		}
		if utf16.IsSurrogate(r) {
			b = append(b, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0x3F, 0x80|byte(r)&0x3F)
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

// By the character behind the backslash. \u is not among them.
var escapes = ['u']byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// digits are the four behind \u.
func unit(digits []byte) rune {
	n, _ := strconv.ParseUint(string(digits[:4]), 16, 16) // valid JSON
	return rune(n)
}

// surrogate reads a lone surrogate as unescaped writes it.
// UTF-8 never has these bytes: 0xED is followed by less than 0xA0 in valid text.
func surrogate(b []byte) (rune, bool) {
	if len(b) < 3 || b[0] != 0xED || b[1] < 0xA0 {
		return 0, false
	}
	return 0xD000 | rune(b[1]&0x3F)<<6 | rune(b[2]&0x3F), true
}

// Code points above U+FFFF sort by their surrogates, before U+E000 to U+FFFF; a comparison of bytes would sort them behind.
func unitsOf(text []byte) []uint16 {
	units := make([]uint16, 0, len(text))
	for i := 0; i < len(text); {
		if r, ok := surrogate(text[i:]); ok {
			units = append(units, uint16(r))
			i += 3
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		units = utf16.AppendRune(units, r)
		i += n
	}
	return units
}

// Only what JSON requires is escaped, with the short form where there is one, as RFC 8785 says.
func appendString(b, text []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= ' ' && c != 0xED:
			b = append(b, c)
		case c == 0xED:
			if r, ok := surrogate(text[i:]); ok {
				b = append(b, '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
				i += 2
			} else {
				b = append(b, c)
			}
		case short[c] != 0:
			b = append(b, '\\', short[c])
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(b, '"')
}

// The reverse of escapes, for control characters; 0: there is no short form.
var short = [' ']byte{'\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't'}
