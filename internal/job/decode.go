package job

import (
	"bytes"
	"math/bits"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// DecodeJob reads the body of a PUSH. The first stage that fails answers: size, JSON, fields (400), policies (422), size
// of meta (docs/reference/http.md, Check order).
func DecodeJob(raw []byte, lim Limits) (*Job, *ojs.Error) {
	if len(raw) > lim.Envelope() {
		return nil, ojs.ErrTooLarge("envelope", lim.Envelope(), len(raw))
	}
	v, err := rawjson.Check(raw)
	if err != nil {
		return nil, err
	}
	return decodeValid(v, lim)
}

// DecodeItem is DecodeJob for an element that SplitBatch gave.
func DecodeItem(item jsontext.Value, lim Limits) (*Job, *ojs.Error) {
	if len(item) > lim.Envelope() {
		return nil, ojs.ErrTooLarge("envelope", lim.Envelope(), len(item))
	}
	v, err := payload.Object(item, "job")
	if err != nil {
		return nil, err
	}
	return decodeValid(v, lim)
}

// decoder holds one job while its attributes are sorted and checked. Pooled: it is 2 KiB that every request needs.
type decoder struct {
	lim      Limits
	top, opt place // known attributes
	unknown  unknowns
	typed    map[attr]*typed   // values that a transport has read; nil: everything was sent as JSON
	metas    [4]jsontext.Value // backs the list of metaSources
	deep     bool              // nesting has to be looked at
	problems payload.Problems
	policy   *ojs.Error // the first 422
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

func decodeValid(v jsontext.Value, lim Limits) (*Job, *ojs.Error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.lim = lim
	// Fewer brackets than levels allowed: nearly every job is cleared by these two counts.
	d.deep = bytes.Count(v, []byte("{"))+bytes.Count(v, []byte("[")) > lim.Depth()
	d.sort(v)
	return d.job(len(v) + 64)
}

// release empties the decoder, so that the pool keeps no request body alive.
func (d *decoder) release() {
	list := d.unknown.list
	clear(list)
	if cap(list) > 4*indexFrom {
		list = nil
	}
	d.unknown = unknowns{list: list[:0]}
	d.top.clear()
	d.opt.clear()
	clear(d.metas[:])
	d.lim, d.problems, d.policy, d.typed = Limits{}, nil, nil, nil
	decoders.Put(d)
}

// place holds the attributes found at the top level or in options. The bits spare a look at thirty absent ones.
type place struct {
	values [attrCount]jsontext.Value // nil: absent or null
	have   attrSet
}

// put keeps the last of equal names; null takes the attribute back.
func (p *place) put(a attr, v jsontext.Value) {
	if rawjson.IsNull(v) {
		p.values[a], p.have = nil, p.have&^a.bit()
		return
	}
	p.values[a], p.have = v, p.have|a.bit()
}

func (p *place) clear() {
	for set := p.have; set != 0; set &= set - 1 {
		p.values[bits.TrailingZeros64(uint64(set))] = nil
	}
	p.have = 0
}

// sort puts every member in its place.
func (d *decoder) sort(v jsontext.Value) {
	for literal, value := range rawjson.Members(v) {
		name := rawjson.Name(literal)
		switch a := attrsByName[string(name)]; a {
		case unknownAttr:
			d.unknown.put(name, literal, value)
		case serverAttr:
		default:
			d.top.put(a, value)
		}
	}
	d.sortOptions()
}

// sortOptions puts the members of options in their place.
func (d *decoder) sortOptions() {
	options := d.top.values[optionsAttr]
	if options == nil {
		return
	}
	if options[0] != '{' {
		d.problems.Add(ojs.KindInvalidPayload, "options", "$.options", "an object", options)
		return
	}
	d.unknown.lift()
	for literal, value := range rawjson.Members(options) {
		name := rawjson.Name(literal)
		switch a := attrsByName[string(name)]; {
		case a == unknownAttr:
			d.unknown.put(name, literal, value)
		case a != serverAttr && !a.onlyTop():
			d.opt.put(a, value)
		}
	}
}

// job checks the attributes in their documented order (docs/reference/jobs.md, Attributes) and builds the result. size is about
// what the kept parts have in all.
func (d *decoder) job(size int) (*Job, *ojs.Error) {
	j := &Job{Queue: "default"}
	d.identity(j)
	d.placement(j)
	meta := d.metaSources()
	if d.has(timeAttrs) {
		d.times(j)
	}
	if d.has(durationAttrs) {
		d.durations(j)
	}
	if d.has(labelAttrs) {
		d.labels(j)
		d.uniqueness(j)
		d.rateLimit(j)
	}
	d.unknownDepth()
	if err := d.problems.Err(); err != nil {
		return nil, err
	}
	d.policies(j)
	if d.policy != nil {
		return nil, d.policy
	}
	return d.assemble(j, size, meta)
}

// given is the value that won among the names of a setting.
type given struct {
	value     jsontext.Value // nil: not sent; typedMark: typed
	attr      attr
	inOptions bool
}

func (g given) path() string {
	if g.inOptions {
		return "$.options." + attrNames[g.attr]
	}
	return "$." + attrNames[g.attr]
}

// pick finds the first of the attributes that is present, in options first, then at the top level. Losers are forgotten.
func (d *decoder) pick(attrs ...attr) given {
	for _, a := range attrs {
		if d.opt.have&a.bit() != 0 {
			return given{d.opt.values[a], a, true}
		}
	}
	for _, a := range attrs {
		if d.top.have&a.bit() != 0 {
			return given{d.top.values[a], a, false}
		}
	}
	return given{attr: attrs[0]}
}

// has reports whether any of the attributes is present.
func (d *decoder) has(set attrSet) bool { return (d.top.have|d.opt.have)&set != 0 }

// refuse notes a problem with a setting, under the name that the client used.
func (d *decoder) refuse(kind ojs.ErrorKind, g given, expected string) {
	d.problems.Add(kind, attrNames[g.attr], g.path(), expected, d.json(g))
}

func (d *decoder) tooDeep(v jsontext.Value) bool {
	return d.deep && rawjson.Depth(v) > d.lim.Depth()
}
