package job

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// fields holds the members of a flat object by name. The bodies of workers have a dozen names at most, so looking
// through them beats a map.
type fields struct {
	names  []string
	values [16]jsontext.Value // nil: absent or null
}

// readFields sorts the members of object v into names, at most 16; others are returned, with equal names repeated.
func readFields(v jsontext.Value, names []string) (f fields, others []member) {
	f.names = names
members:
	for literal, value := range rawjson.Members(v) {
		name := rawjson.Name(literal)
		for i, known := range names {
			if string(name) == known {
				f.values[i] = present(value)
				continue members
			}
		}
		others = append(others, member{name, literal, value})
	}
	return f, others
}

func (f *fields) get(name string) jsontext.Value {
	for i, known := range f.names {
		if name == known {
			return f.values[i]
		}
	}
	panic("envelope: field was not read: " + name)
}

func (f *fields) empty() bool {
	for _, v := range f.values {
		if v != nil {
			return false
		}
	}
	return true
}

// body reads the flat object of a worker's call and collects what is wrong with it.
type body struct {
	fields
	problems problems
}

func (b *body) refuse(field, expected string) {
	b.problems.add(ojs.KindInvalidPayload, field, "$."+field, expected, b.get(field))
}

// jobID reads the required job_id.
func (b *body) jobID() string {
	text, _ := rawjson.Text(b.get("job_id"))
	if text == "" {
		b.refuse("job_id", "the id of a job")
	}
	return text
}

// workerID reads the optional worker_id.
func (b *body) workerID() string {
	v := b.get("worker_id")
	text, ok := rawjson.Text(v)
	if v != nil && (!ok || len(text) > maxWorkerIDBytes || strings.Contains(text, "\x00")) {
		b.refuse("worker_id", "a string of at most 255 bytes without U+0000")
		return ""
	}
	return text
}

// integer reads an optional integer from low to high.
func (b *body) integer(field string, low, high int64, expected string) (n int64, given bool) {
	v := b.get(field)
	if v == nil {
		return 0, false
	}
	n, kind := rawjson.Int(v)
	if kind != rawjson.IsInt || n < low || n > high {
		b.refuse(field, expected)
		return 0, false
	}
	return n, true
}

func (b *body) visibility() int64 {
	n, _ := b.integer("visibility_timeout_ms", 0, maxVisibilityMS, "an integer >= 0 of milliseconds, at most 7 days")
	return n
}

func (b *body) boolean(field string) bool {
	value, ok := rawjson.Bool(b.get(field))
	if b.get(field) != nil && !ok {
		b.refuse(field, "a boolean")
	}
	return value
}

// attempt reads the optional fence of ack and nack.
func (b *body) attempt() *int64 {
	v := b.get("attempt")
	if v == nil {
		return nil
	}
	n, kind := rawjson.Int(v)
	if kind != rawjson.IsInt {
		b.refuse("attempt", "an integer")
		return nil
	}
	return &n
}
