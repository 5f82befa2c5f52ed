package job

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// identity checks type, args, id and the form of specversion. That the id is not taken is found out when the job is inserted. A
// version that is not supported is a 422, so its text is looked at by policies.
func (d *decoder) identity(j *Job) {
	d.jobType(j)
	d.args()
	// Upper case, a prefix and other versions of UUIDs are refused and not translated: the id is what clients compare
	// (docs/reference/jobs.md, Identifiers).
	if g := d.pick(idAttr); g.value != nil {
		text, _ := d.text(g)
		if j.ID, j.ClientID = spec.ParseUUIDv7(text); !j.ClientID {
			d.refuse(ojs.ErrInvalidPayload, g, "a UUIDv7 in lower case")
		}
	}
	if g := d.pick(specversionAttr); g.value != nil && g.value[0] != '"' {
		d.refuse(ojs.ErrInvalidPayload, g, "a string such as 1.0")
	}
}

func (d *decoder) jobType(j *Job) {
	g := d.pick(typeAttr)
	text, ok := d.text(g)
	switch {
	// It comes first, because a type that is too long has a kind of error of its own.
	case len(text) > maxTypeBytes:
		d.refuse(ojs.ErrJobTypeTooLong, g, "at most 255 bytes long")
	case !ok || !ValidType(text):
		d.refuse(ojs.ErrInvalidJobType, g, "a job type of lower-case letters, digits, _ and -, in words joined by dots, such as invoice.render")
	}
	j.Type = text
}

// Args are required: a job without arguments sends [], so that a member that was forgotten or misspelt is noticed.
func (d *decoder) args() {
	switch g := d.pick(argsAttr); {
	case g.value == nil || g.value[0] != '[':
		d.refuse(ojs.ErrInvalidArgs, g, "an array")
	case d.tooDeep(g.value):
		d.refuse(ojs.ErrInvalidArgs, g, shallow(d.lim))
		d.problems.Hint(flatten)
	}
}

// ValidType reports whether s is ^[a-z][a-z0-9_\-]*(\.[a-z][a-z0-9_\-]*)*$. A loop and not a regular expression: it runs for
// every job.
func ValidType(s string) bool {
	if len(s) > maxTypeBytes {
		return false
	}
	start := true // of a word
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z':
			start = false
		case start:
			return false
		case c == '.':
			start = true
		case !(c >= '0' && c <= '9' || c == '_' || c == '-'):
			return false
		}
	}
	return !start
}

// ValidQueue reports whether s is ^[a-z0-9][a-z0-9\-\.]*$ of at most 128 bytes. Letters are lower-case only, so two names
// cannot differ in case alone.
func ValidQueue(s string) bool {
	if s == "" || len(s) > maxQueueBytes || s[0] == '-' || s[0] == '.' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.') {
			return false
		}
	}
	return true
}

// ValidVersion reports whether s is ^1(\.0(\.[0-9]+(-[0-9A-Za-z.\-]+)?)?)?$. Every patch of 1.0 is accepted.
func ValidVersion(s string) bool {
	if s == "1" || s == "1.0" {
		return true
	}
	rest, ok := strings.CutPrefix(s, "1.0.")
	if !ok {
		return false
	}
	patch, pre, hasPre := strings.Cut(rest, "-")
	return patch != "" && strings.Trim(patch, "0123456789") == "" && (!hasPre || pre != "" && payload.AllIn(pre, isPreRelease))
}

func isPreRelease(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '.' || c == '-'
}

// QueueProblem checks the text of a queue name. It serves wherever a queue is named in JSON, so that the messages are the same.
func QueueProblem(v jsontext.Value) (text string, kind ojs.ErrorKind, expected string) {
	text, isText := rawjson.Text(v)
	kind, expected = queueProblem(text, isText)
	return text, kind, expected
}

// An empty kind means that there is no problem.
func queueProblem(text string, isText bool) (kind ojs.ErrorKind, expected string) {
	switch {
	case len(text) > maxQueueBytes:
		return ojs.ErrQueueNameTooLong, "at most 128 bytes long"
	case !isText || !ValidQueue(text):
		return ojs.ErrInvalidQueue, "a queue name of lower-case letters, digits, - and ., starting with a letter or digit"
	}
	return "", ""
}
