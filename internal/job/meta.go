package job

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// metaSources gives the objects to merge into meta, strongest first: top-level meta, then the order of docs/reference/jobs.md, Accepted names.
// The list is backed by the decoder and is valid until release.
func (d *decoder) metaSources() []jsontext.Value {
	list := d.metas[:0]
	for _, g := range [...]given{
		{d.top.values[metaAttr], metaAttr, false}, {d.opt.values[metadataAttr], metadataAttr, true},
		{d.opt.values[metaAttr], metaAttr, true}, {d.top.values[metadataAttr], metadataAttr, false},
	} {
		switch {
		case g.value == nil:
		case g.value[0] != '{':
			d.refuse(ojs.ErrInvalidMetadata, g, "an object")
		case d.tooDeep(g.value):
			d.refuse(ojs.ErrInvalidMetadata, g, shallow(d.lim))
			d.problems.Hint(flatten)
		default:
			list = append(list, g.value)
		}
	}
	return list
}

// appendMeta appends the merged meta, compact; nothing if it is empty. A lone source is kept as it is, repetitions of a
// name included. Order is that of the strongest source, then what the weaker ones add (docs/reference/jobs.md, JSON).
func appendMeta(dst []byte, sources []jsontext.Value) []byte {
	switch len(sources) {
	case 0:
		return dst
	// That is the usual case, and one pass over the bytes.
	case 1:
		return dropEmpty(rawjson.AppendCompact(dst, sources[0]), len(dst))
	}
	var merged unknowns
	for _, source := range sources {
		for literal, value := range rawjson.Members(source) {
			merged.put(rawjson.Name(literal), literal, value)
		}
		// What an earlier source has set is fixed for the later ones.
		merged.lift()
	}
	start := len(dst)
	dst = append(dst, '{')
	for _, m := range merged.list {
		dst = payload.AppendMember(dst, m.Literal, m.Value)
	}
	return dropEmpty(append(dst, '}'), start)
}

// An empty object is stored as NULL and shown as {}.
func dropEmpty(b []byte, start int) []byte {
	if string(b[start:]) == "{}" {
		return b[:start]
	}
	return b
}
