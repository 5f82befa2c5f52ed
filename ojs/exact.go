package ojs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A job is shown with the attributes that the server does not know beside its own (docs/reference/jobs.md, Unknown attributes).
// encoding/json takes a member for a field whose name differs in case only, so that such an attribute would replace a member of the
// job, or make an answer unreadable. This file reads jobs, and the answers that bring them to workers, by the exact names of their members.

// jobsAnswer is an answer with the jobs of a fetch. Args of its jobs are not decoded yet.
type jobsAnswer struct {
	Items []struct {
		Error *Error `json:"error"`
	} // of a batch of reports
	Jobs       []*Job // nil: the server does not know of fetches in batches
	FetchError *Error // of a batch of reports
}

// decode is called in place of encoding/json, which scans a value of a type with a method of its own for decoding once more.
// That takes as long as the rest.
func (a *jobsAnswer) decode(body []byte) error {
	r, err := newJSONReader(body)
	if err != nil {
		return err
	}
	if !r.takes('{') {
		return json.Unmarshal(body, new(struct{})) // null, or an error
	}
	for !r.takes('}') {
		switch string(r.name()) {
		case "jobs":
			err = r.jobs(&a.Jobs)
		case "items":
			err = json.Unmarshal(r.value(), &a.Items)
		case "fetch_error":
			err = json.Unmarshal(r.value(), &a.FetchError)
		default:
			r.value()
		}
		if err != nil {
			return err
		}
		r.takes(',')
	}
	return nil
}

// jobs reads a list of jobs.
func (r *jsonReader) jobs(list *[]*Job) error {
	if !r.takes('[') {
		return json.Unmarshal(r.value(), list) // null, or an error
	}
	*list = []*Job{}
	for !r.takes(']') {
		var j *Job
		if r.takes('n') { // null
			r.value()
		} else {
			j = &Job{}
			if err := r.job(j); err != nil {
				return err
			}
		}
		*list = append(*list, j)
		r.takes(',')
	}
	return nil
}

// jobFields are the indexes of the fields of Job by the names of their members.
var jobFields = sync.OnceValue(func() map[string]int {
	fields := map[string]int{}
	for t, i := reflect.TypeFor[Job](), 0; i < t.NumField(); i++ {
		if name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ","); name != "-" {
			fields[name] = i
		}
	}
	return fields
})

// job reads a job, Args apart.
func (r *jsonReader) job(j *Job) error {
	if !r.takes('{') {
		type plain Job
		return json.Unmarshal(r.value(), (*plain)(j)) // null, or an error
	}
	fields, of := jobFields(), reflect.ValueOf(j).Elem()
	for !r.takes('}') {
		name := r.name()
		value := r.value()
		r.takes(',')
		if i, known := fields[string(name)]; known {
			if err := decodeMember(value, of.Field(i).Addr().Interface()); err != nil {
				return fmt.Errorf("member %s of a job: %w", name, err)
			}
		}
	}
	return nil
}

// decodeMember is json.Unmarshal with short ways for what most members are.
func decodeMember(value []byte, into any) error {
	switch into := into.(type) {
	case *string:
		if text, ok := plainText(value); ok {
			*into = text
			return nil
		}
	case *JobState:
		if text, ok := plainText(value); ok {
			*into = JobState(text)
			return nil
		}
	case *int:
		if n, err := strconv.Atoi(string(value)); err == nil {
			*into = n
			return nil
		}
	case *json.RawMessage:
		*into = append((*into)[:0], value...)
		return nil
	case *time.Time:
		return decodeTime(value, into)
	case *map[string]any:
		if string(value) == `{}` && *into == nil {
			*into = map[string]any{}
			return nil
		}
	}
	return json.Unmarshal(value, into)
}

// plainText reads a string of ASCII without escapes.
func plainText(literal []byte) (text string, ok bool) {
	if literal[0] != '"' {
		return "", false
	}
	literal = literal[1 : len(literal)-1]
	for _, b := range literal {
		if b == '\\' || b >= 0x80 {
			return "", false
		}
	}
	return string(literal), true
}

// decodeTime reads a time in any form in which a client may have sent it, because scheduled_at and expires_at are shown as they were sent
// (docs/reference/jobs.md, Times and durations). Nearly every time has the form of encoding/json.
func decodeTime(literal []byte, into *time.Time) error {
	err := into.UnmarshalJSON(literal)
	if err == nil {
		return nil
	}
	for _, clock := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "20060102T150405", "20060102T1504"} {
		for _, zone := range []string{"Z07:00", "Z0700", "Z07"} {
			if at, other := time.Parse(`"`+clock+zone+`"`, string(literal)); other == nil {
				*into = at
				return nil
			}
		}
	}
	return err
}

// jsonReader splits valid JSON into its parts.
type jsonReader struct {
	data []byte
	at   int
}

func newJSONReader(data []byte) (*jsonReader, error) {
	if !json.Valid(data) {
		return nil, json.Unmarshal(data, new(any)) // says where it is not valid
	}
	return &jsonReader{data: data}, nil
}

// name passes over the name of a member and the colon.
func (r *jsonReader) name() []byte {
	literal := r.value()
	r.takes(':')
	if bytes.IndexByte(literal, '\\') < 0 {
		return literal[1 : len(literal)-1]
	}
	var name string
	_ = json.Unmarshal(literal, &name) // it is a string
	return []byte(name)
}

// takes passes over a byte, and white space before it, if that is what comes next.
func (r *jsonReader) takes(b byte) bool {
	for {
		switch next := r.data[r.at]; next {
		case b:
			r.at++
			return true
		case ' ', '\t', '\r', '\n':
			r.at++
		default:
			return false
		}
	}
}

// value passes over a value, and white space before it.
func (r *jsonReader) value() []byte {
	for r.takes(' ') { // and other white space
	}
	data, start := r.data, r.at
	switch data[start] {
	case '"':
		r.at = textEnd(data, start)
	case '{', '[':
		i := start + 1
		for depth := 1; depth > 0; {
			switch data[i] {
			case '"':
				i = textEnd(data, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			i++
		}
		r.at = i
	default: // a number, true, false or null
		i := start
		for i < len(data) && data[i] > ' ' && data[i] != ',' && data[i] != '}' && data[i] != ']' {
			i++
		}
		r.at = i
	}
	return data[start:r.at]
}

// textEnd is the end of the string that begins at i.
func textEnd(data []byte, i int) int {
	for i++; data[i] != '"'; i++ {
		if data[i] == '\\' {
			i++
		}
	}
	return i + 1
}
