package job

import (
	"bytes"
	"math/bits"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// DecodeJob reads the body of a PUSH. The first stage that fails answers: size, JSON, fields (400), policies (422), size
// of meta (docs/reference/http.md, Check order).
func DecodeJob(raw []byte, lim Limits) (*Job, *ojs.Error) {
	if len(raw) > lim.Envelope() {
		return nil, spec.TooLarge("envelope", lim.Envelope(), len(raw))
	}
	v, err := rawjson.Check(raw)
	if err != nil {
		return nil, err
	}
	return decodeValid(v, lim)
}

// DecodeItem is DecodeJob for an element that SplitBatch gave. The limit holds for each element; the whole body has a limit of
// its own, which the transport checks.
func DecodeItem(item jsontext.Value, lim Limits) (*Job, *ojs.Error) {
	if len(item) > lim.Envelope() {
		return nil, spec.TooLarge("envelope", lim.Envelope(), len(item))
	}
	v, err := payload.Object(item, "job")
	if err != nil {
		return nil, err
	}
	return decodeValid(v, lim)
}

// decoder holds one job while its attributes are sorted and checked. Pooled: it is 2 KiB that every request needs.
// Each field is set by every use or emptied by release: one that is forgotten would carry values from one client's job into
// another's.
type decoder struct {
	lim      Limits
	top, opt place // known attributes
	unknown  unknowns
	typed    map[attr]*typed   // values that a transport has read; nil: everything was sent as JSON
	metas    [4]jsontext.Value // backs the list of metaSources
	// deep is false if the body has too few brackets for any value to be nested too deeply; then no attribute is measured. A
	// transport that does not send JSON sets it.
	deep     bool // nesting has to be looked at
	problems payload.Problems
	policy   *ojs.Error // the first 422
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

// v has been checked as JSON; everything below relies on that and reads without looking for errors.
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
	// A list that one job made long would otherwise stay in the pool for ever.
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
// have is the truth: clear resets only the values whose bit is set.
type place struct {
	values [attrCount]jsontext.Value // nil: absent or null
	have   attrSet
}

// put keeps the last of equal names; null takes the attribute back. That is the rule for repeated names everywhere
// (docs/reference/jobs.md, JSON).
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

// sort puts every member in its place. The members of options come after all others, wherever options stands in the object:
// they win over the top level, except for names that are unknown (docs/reference/jobs.md, Accepted names).
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

// sortOptions puts the members of options in their place. A null or absent options is not there at all. What is no object is a
// problem like any other, and the top-level members count.
func (d *decoder) sortOptions() {
	options := d.top.values[optionsAttr]
	if options == nil {
		return
	}
	if options[0] != '{' {
		d.problems.Add(ojs.ErrInvalidPayload, "options", "$.options", "an object", options)
		return
	}
	// From here on a name that the top level has is not replaced.
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
// what the kept parts have in all. A problem of one attribute does not end the checks; the first problem found is that of the
// answer's message, so the order of these calls can be seen by clients.
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
	// From here on the attributes are known to be of the right kind, and what follows does not check them again.
	if err := d.problems.Err(); err != nil {
		return nil, err
	}
	// Only now, because a policy that cannot be used is reported by itself and not among the problems of fields.
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
// The weaker names are not checked either: a wrong value that nobody uses is no error (docs/reference/jobs.md, Accepted names).
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

// pickObject is pick for an attribute that must be an object; false: there is none, or it was refused.
func (d *decoder) pickObject(a attr) (g given, there bool) {
	g = d.pick(a)
	switch {
	case g.value == nil:
	case g.value[0] != '{':
		d.refuse(ojs.ErrInvalidPayload, g, "an object")
	case d.tooDeep(g.value):
		d.refuse(ojs.ErrInvalidPayload, g, shallow(d.lim))
	default:
		there = true
	}
	return g, there
}

// has reports whether any of the attributes is present.
func (d *decoder) has(set attrSet) bool { return (d.top.have|d.opt.have)&set != 0 }

// refuse notes a problem with a setting, under the name that the client used.
func (d *decoder) refuse(kind ojs.ErrorKind, g given, expected string) {
	d.problems.Add(kind, attrNames[g.attr], g.path(), expected, d.json(g))
}

// A nil value, of an attribute that was not sent, is not too deep.
func (d *decoder) tooDeep(v jsontext.Value) bool {
	return d.deep && rawjson.Depth(v) > d.lim.Depth()
}
