package payload

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Object returns item if it is a JSON object, for the elements of a batch.
func Object(item jsontext.Value, what string) (jsontext.Value, *ojs.Error) {
	if item[0] != '{' {
		return nil, spec.InvalidPayload(what, "a JSON object", rawjson.Show(item), "'"+what+"' must be a JSON object, got "+rawjson.Describe(item)+".")
	}
	return item, nil
}

// Present turns null into nil.
func Present(v jsontext.Value) jsontext.Value {
	if rawjson.IsNull(v) {
		return nil
	}
	return v
}

// Find finds a member that may be null; nil: it is absent. Of equal names the last counts.
// It is linear; whoever needs several members reads the object once.
func Find(object jsontext.Value, name string) (found jsontext.Value) {
	for literal, value := range rawjson.Members(object) {
		if string(rawjson.Name(literal)) == name {
			found = value
		}
	}
	return found
}

// AppendMember appends a member to an object that has been opened.
// The literal is copied as it is, so a name keeps the escapes of the client.
func AppendMember(dst []byte, literal, value jsontext.Value) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(append(dst, literal...), ':')
	return rawjson.AppendCompact(dst, value)
}

// Texts reads an array of strings.
func Texts(array jsontext.Value) ([]string, bool) {
	list := []string{}
	for e := range rawjson.Elements(array) {
		text, ok := rawjson.Text(e)
		if !ok {
			return nil, false
		}
		list = append(list, text)
	}
	return list, true
}

// Distinct keeps the first of equal names, in place.
func Distinct(names []string) []string {
	if len(names) < 2 {
		return names
	}
	seen := make(map[string]bool, len(names))
	kept := names[:0]
	for _, n := range names {
		if !seen[n] {
			seen[n] = true
			kept = append(kept, n)
		}
	}
	return kept
}

// IsName reports whether s can be stored as a name.
// PostgreSQL cannot store U+0000 in a text.
func IsName(s string) bool { return s != "" && !strings.Contains(s, "\x00") }

// AllIn reports whether all bytes of s are of the class.
func AllIn(s string, class func(byte) bool) bool {
	for i := range len(s) {
		if !class(s[i]) {
			return false
		}
	}
	return true
}

// IsNameByte is the class of bytes in the names of tenants and pools: letters, digits, ., _ and -.
func IsNameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
}

// Quote gives a text as JSON.
func Quote(s string) jsontext.Value {
	v, _ := jsontext.AppendQuote(nil, s) // invalid UTF-8 is replaced
	return v
}
