package job

import (
	"net/url"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// labels checks what is stored and echoed: schema, tags, and the nesting of retry. The retry policy is read later, by policies.
// Its nesting is looked at here, because it is a 400 like that of all attributes.
func (d *decoder) labels(j *Job) {
	if g := d.pick(schemaAttr); g.value != nil {
		text, ok := d.text(g)
		j.Schema = text
		if !ok || !AbsoluteURI(text) {
			d.refuse(ojs.ErrInvalidPayload, g, "an absolute URI such as urn:example:invoice:v1")
		}
	}
	if g := d.pick(tagsAttr); g.value != nil && !validTags(g.value) {
		d.refuse(ojs.ErrInvalidPayload, g, "an array of non-empty strings without U+0000")
	}
	if g := d.pick(retryAttr, retryPolicyAttr); d.tooDeep(g.value) {
		d.refuse(ojs.ErrInvalidPayload, g, shallow(d.lim))
	}
}

// unknownDepth checks the nesting of attributes that nobody knows. Paths name the place where the member was sent, although it
// will be shown at the top level.
func (d *decoder) unknownDepth() {
	if !d.deep {
		return
	}
	for i, m := range d.unknown.list {
		if d.tooDeep(m.Value) {
			path := "$."
			if i >= d.unknown.fixed {
				path = "$.options."
			}
			d.problems.Add(ojs.ErrInvalidPayload, string(m.Name), path+string(m.Name), shallow(d.lim), m.Value)
		}
	}
}

// schemaVersion is the attribute version, by which a job names a version of the schema of its type. Anything else that clients
// send under this name is theirs. It is no known attribute: a job without a schema may use the name version for anything.
func (d *decoder) schemaVersion() string {
	i, sent := d.unknown.find([]byte("version"))
	if !sent {
		return ""
	}
	v := d.unknown.list[i].Value
	if text, ok := rawjson.Text(v); ok {
		return text
	}
	if _, kind := rawjson.Int(v); kind == rawjson.IsInt {
		return string(v)
	}
	return ""
}

// AbsoluteURI reports whether s is one, without spaces and control characters. Package schema uses it for the URI under which a
// schema is registered, so both are held to one rule.
func AbsoluteURI(s string) bool {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return false
	}
	u, err := url.Parse(s)
	return err == nil && u.IsAbs() && (u.Opaque != "" || u.Host != "" || u.Path != "")
}

// Only the limit of the envelope bounds their number and length.
func validTags(v jsontext.Value) bool {
	if v[0] != '[' {
		return false
	}
	for e := range rawjson.Elements(v) {
		if text, _ := rawjson.Text(e); text == "" || strings.Contains(text, "\x00") {
			return false
		}
	}
	return true
}

// appendTags appends the tags without repetitions, in order of first appearance, as the client wrote them.
// Repetitions are compared as the tags read, so "a" and "\u0061" are one tag.
func appendTags(dst []byte, v jsontext.Value) []byte {
	seen := make(map[string]bool)
	dst = append(dst, '[')
	for e := range rawjson.Elements(v) {
		text := string(rawjson.Name(e))
		if seen[text] {
			continue
		}
		if len(seen) > 0 {
			dst = append(dst, ',')
		}
		seen[text] = true
		dst = append(dst, e...)
	}
	return append(dst, ']')
}
