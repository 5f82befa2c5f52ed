package job

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// SplitBatch reads {"<key>":[…]}: 1 to maxItems elements of any kind, and the other members of the body (null ones left
// out). Everything it returns points into raw and is valid JSON, so elements go to DecodeItem, DecodeAckItem or
// DecodeNackItem, which do not parse again. The whole body is checked as JSON before an element is looked at, so a broken last
// element refuses the batch. What an element says is judged later, one by one, so that in a batch that is not atomic the good
// ones go through. Package httpapi calls it for batches of acks and nacks and for batches of jobs; what becomes of single
// elements differs there.
func SplitBatch(raw []byte, key string, maxItems int) ([]jsontext.Value, map[string]jsontext.Value, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return nil, nil, err
	}
	members := make(map[string]jsontext.Value)
	for name, value := range rawjson.Members(v) {
		// Of equal names the last one counts, as everywhere in this package.
		members[string(rawjson.Name(name))] = payload.Present(value)
	}
	list := members[key]
	delete(members, key)
	if list == nil || list[0] != '[' {
		return nil, nil, errNoItems(key, maxItems, list)
	}
	n := rawjson.Len(list)
	switch {
	case n == 0:
		return nil, nil, errNoItems(key, maxItems, list)
	// It is another error than a malformed body, 413: the client has to divide the request, not to correct it.
	case n > maxItems:
		return nil, nil, spec.BatchSize(maxItems, n)
	}
	items := make([]jsontext.Value, 0, n)
	for e := range rawjson.Elements(list) {
		items = append(items, e)
	}
	return items, members, nil
}

func errNoItems(key string, maxItems int, received jsontext.Value) *ojs.Error {
	var ps payload.Problems
	ps.Add(ojs.ErrInvalidPayload, key, "$."+key, fmt.Sprintf("an array of 1 to %d elements", maxItems), received)
	return ps.Err()
}

// DecodeItems decodes all elements of an atomic batch. If any is refused, the lowest index decides the error, and
// validation_errors tells of all of them. It stops when as many problems are known as an answer lists; later elements are then
// not looked at, which changes nothing: nothing of the batch is stored.
func DecodeItems(items []jsontext.Value, lim Limits) ([]*Job, *ojs.Error) {
	return eachItem(len(items), func(i int) (*Job, *ojs.Error) { return DecodeItem(items[i], lim) })
}

// A job whose decoding failed is nil in the list, so the list is returned only if all are there.
func eachItem(n int, read func(i int) (*Job, *ojs.Error)) ([]*Job, *ojs.Error) {
	jobs := make([]*Job, n)
	var first *ojs.Error
	var all []payload.Violation
	for i := range n {
		job, err := read(i)
		jobs[i] = job
		if err == nil {
			continue
		}
		if first == nil {
			first = spec.Indexed(err, i)
		}
		if all = append(all, at(i, err)...); len(all) >= payload.MaxProblems {
			break
		}
	}
	if first != nil {
		return nil, spec.With(first, "validation_errors", all)
	}
	return jobs, nil
}

// at moves the problems of one element to their place in the whole body.
func at(index int, err *ojs.Error) []payload.Violation {
	return moved(fmt.Sprintf("$.jobs[%d]", index), err)
}

// inMember is the error of an object that is a member of the body.
func inMember(name string, err *ojs.Error) *ojs.Error { return At("$."+name, err) }

// At is the error of an object that has a place in the body, given as a JSONPath. Paths of problems begin with $, which stands
// for the object itself; they are put behind the place of the object. An error without a list of problems becomes a list of
// one.
func At(path string, err *ojs.Error) *ojs.Error {
	if err == nil {
		return nil
	}
	return spec.With(err, "validation_errors", moved(path, err))
}

func moved(prefix string, err *ojs.Error) []payload.Violation {
	list, ok := err.Details["validation_errors"].([]payload.Violation)
	if !ok {
		return []payload.Violation{{Path: prefix, Message: err.Message}}
	}
	res := make([]payload.Violation, len(list))
	for i, v := range list {
		v.Path = prefix + strings.TrimPrefix(v.Path, "$")
		res[i] = v
	}
	return res
}

// BulkOptions are the members that all bulk calls share (docs/reference/http.md, Bulk enqueue). Atomic means all or nothing:
// one refused item undoes the others. The default, partial, answers for each item.
type BulkOptions struct {
	Atomic         bool
	IdempotencyKey string // of the body; the header wins
}

// DecodeBulkOptions reads them from the members that SplitBatch gave.
func DecodeBulkOptions(members map[string]jsontext.Value) (BulkOptions, *ojs.Error) {
	var ps payload.Problems
	o := bulkOptions(members["atomicity"], members["idempotency_key"], &ps)
	return o, ps.Err()
}

// Absent and partial are the same (docs/reference/http.md, Bulk enqueue).
func bulkOptions(atomicity, key jsontext.Value, ps *payload.Problems) BulkOptions {
	var o BulkOptions
	mode, _ := rawjson.Text(atomicity)
	if atomicity != nil && mode != "partial" && mode != "atomic" {
		ps.Add(ojs.ErrInvalidPayload, "atomicity", "$.atomicity", "partial or atomic", atomicity)
	}
	o.Atomic = mode == "atomic"
	if key == nil {
		return o
	}
	o.IdempotencyKey, _ = rawjson.Text(key)
	if !ValidIdempotencyKey(o.IdempotencyKey) {
		ps.Add(ojs.ErrInvalidPayload, "idempotency_key", "$.idempotency_key", "a non-empty string of at most 256 characters without U+0000", key)
	}
	return o
}

// ValidIdempotencyKey also serves the header. The bound counts characters, not bytes.
func ValidIdempotencyKey(s string) bool {
	return payload.IsName(s) && utf8.RuneCountInString(s) <= maxKeyChars
}
