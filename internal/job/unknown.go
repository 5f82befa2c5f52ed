package job

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
)

// unknowns are the attributes nobody knows, in order of appearance, top level before options. Of equal names at one
// level the last value counts; a name of the top level beats the same one in options. The zero value is ready. It is used
// wherever members of several objects are merged, because it keeps their order.
type unknowns struct {
	list  []payload.Member
	fixed int            // members below it came from the top level
	index map[string]int // made when the list is long: looking through it for each of 100 000 names would be quadratic
}

// Most jobs have fewer unknown members and make no map.
const indexFrom = 16

// A name that is fixed is not replaced: what comes later is weaker. name, literal and value point into the body.
func (u *unknowns) put(name []byte, literal, value jsontext.Value) {
	if i, ok := u.find(name); ok {
		if i >= u.fixed {
			u.list[i].Value = value
		}
		return
	}
	u.list = append(u.list, payload.Member{Name: name, Literal: literal, Value: value})
	if u.index != nil {
		u.index[string(name)] = len(u.list) - 1
	} else if len(u.list) == indexFrom {
		u.index = make(map[string]int, 2*indexFrom)
		for i, m := range u.list {
			u.index[string(m.Name)] = i
		}
	}
}

// lift protects what has been put so far: what follows comes from options.
func (u *unknowns) lift() { u.fixed = len(u.list) }

func (u *unknowns) find(name []byte) (int, bool) {
	if u.index != nil {
		i, ok := u.index[string(name)]
		return i, ok
	}
	for i, m := range u.list {
		if string(m.Name) == string(name) {
			return i, true
		}
	}
	return 0, false
}

// MergeObjects puts the members of change over those of base; null takes one away. Members of base keep their place; new ones
// follow. A null in base goes too.
func MergeObjects(base, change jsontext.Value) []byte {
	var merged unknowns
	for _, object := range []jsontext.Value{base, change} {
		if object == nil {
			continue
		}
		for literal, value := range rawjson.Members(object) {
			merged.put(rawjson.Name(literal), literal, value)
		}
	}
	out := []byte{'{'}
	for _, m := range merged.list {
		if !rawjson.IsNull(m.Value) {
			out = payload.AppendMember(out, m.Literal, m.Value)
		}
	}
	return append(out, '}')
}
