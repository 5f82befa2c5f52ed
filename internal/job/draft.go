package job

import (
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Draft is a new job whose attributes a transport has read, before any rule was applied. A zero field was not sent. What is
// stored as JSON is JSON already. gRPC makes drafts. A field that was sent with its zero value counts as not sent: max_attempts
// 0 means the default there, and one attempt in JSON.
type Draft struct {
	Type    string
	Args    []byte   // valid JSON
	Options *Options // nil: none were sent
}

// Options are the optional attributes of a Draft. Queue, Meta and the rest stand in options as in JSON; where both forms allow
// the top level, drafts do not use it.
type Options struct {
	Queue        string
	Priority     int64
	DelayUntil   *time.Time
	TimeoutMS    int64
	VisibilityMS int64
	Retry        *retry.Draft
	MaxAttempts  int64
	Unique       *UniqueDraft
	// It becomes expires_at, relative to the insert; what is below a millisecond is cut.
	TTL     time.Duration // from the insert on; whole ms
	Tags    []string
	Pending bool
	Meta    []byte // valid JSON; nil: not sent
}

// UniqueDraft is a unique policy before any rule was applied.
type UniqueDraft struct {
	Key        []string
	PeriodMS   int64
	OnConflict string
	States     []string
	ArgsKeys   []string
	MetaKeys   []string
}

// Job checks the draft by the rules of DecodeJob, and with the same messages. The draft and its slices may be used again
// afterwards: the job owns its bytes.
func (t *Draft) Job(lim Limits) (*Job, *ojs.Error) {
	if n := t.size(lim); n > lim.Envelope() {
		return nil, spec.TooLarge("envelope", lim.Envelope(), n)
	}
	d := decoders.Get().(*decoder)
	defer d.release()
	d.lim, d.deep = lim, true
	t.fill(d)
	return d.job(len(t.Args) + 64)
}

// size is the length of the JSON that DecodeJob would have got, which the limit of an envelope is about. Far below the limit it
// is not counted exactly. The limit is the same on all transports, however many bytes a message of gRPC needs.
func (t *Draft) size(lim Limits) int {
	// Room for all that is not counted: names, numbers, a queue and punctuation. Lists, whose length is not bounded, are asked
	// for by long.
	const rest = 32 << 10
	n := len(t.Type) + len(t.Args)
	if t.Options != nil {
		n += len(t.Options.Meta)
	}
	if n+rest < lim.Envelope() && !t.Options.long() {
		return n
	}
	return len(t.appendJSON(nil))
}

// long reports whether the options may be long without meta.
func (o *Options) long() bool {
	return o != nil && (o.Retry != nil || o.Unique != nil || len(o.Tags) > 0)
}

// fill puts the values where the rules look for them.
func (t *Draft) fill(d *decoder) {
	if t.Type != "" {
		d.set(&d.top, typeAttr, textValue(t.Type))
	}
	d.top.put(argsAttr, t.Args)
	if t.Options == nil {
		return
	}
	t.Options.each(func(a attr, v value) { d.set(&d.opt, a, v) })
}

// each yields the options that were sent, in the order in which they are stored with a cron.
func (o *Options) each(yield func(attr, value)) {
	text := func(a attr, s string) {
		if s != "" {
			yield(a, textValue(s))
		}
	}
	integer := func(a attr, n int64) {
		if n != 0 {
			yield(a, intValue(n))
		}
	}
	text(queueAttr, o.Queue)
	integer(priorityAttr, o.Priority)
	if o.DelayUntil != nil {
		yield(delayUntilAttr, whenValue(When{Set: true, At: *o.DelayUntil}))
	}
	integer(timeoutMSAttr, o.TimeoutMS)
	integer(visibilityMSAttr, o.VisibilityMS)
	if o.Retry != nil {
		yield(retryAttr, value{json: o.Retry.Encode()})
	}
	integer(maxAttemptsAttr, o.MaxAttempts)
	if o.Unique != nil {
		yield(uniqueAttr, value{json: o.Unique.encode()})
	}
	if o.TTL != 0 {
		yield(expiresAtAttr, whenValue(When{Set: true, Relative: true, In: o.TTL.Truncate(time.Millisecond)}))
	}
	if len(o.Tags) > 0 {
		yield(tagsAttr, value{json: appendTexts(nil, o.Tags)})
	}
	if o.Pending {
		yield(pendingAttr, boolValue(true))
	}
	if o.Meta != nil {
		yield(metaAttr, value{json: o.Meta})
	}
}

// Encode gives the options as they are stored with a cron. A cron stores this and reads it again at every firing, so it must be
// what a client could have sent.
func (o *Options) Encode() []byte {
	b := []byte{'{'}
	o.each(func(a attr, v value) { b = append(appendName(b, a), v.text()...) })
	return append(b, '}')
}

// Encode gives the draft as the enqueue object that a client would have sent. It serves where a job is stored before it is
// made: in the definition of a workflow.
func (t *Draft) Encode() []byte { return t.appendJSON(nil) }

// Members stand in the order of each, with canonical names, so equal drafts have equal texts.
func (t *Draft) appendJSON(b []byte) []byte {
	b = append(b, '{')
	if t.Type != "" {
		b = appendText(appendName(b, typeAttr), t.Type)
	}
	b = append(appendName(b, argsAttr), t.Args...)
	if t.Options != nil {
		b = append(appendName(b, optionsAttr), t.Options.Encode()...)
	}
	return append(b, '}')
}

// encode gives the policy as it is stored with the job, which shows it as it was sent. Zero fields are left out: the rules for
// absent members then apply to them.
func (u *UniqueDraft) encode() []byte {
	b := []byte{'{'}
	member := func(name string) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), '"', ':')
	}
	texts := func(name string, list []string) {
		if len(list) > 0 {
			member(name)
			b = appendTexts(b, list)
		}
	}
	texts("key", u.Key)
	if u.PeriodMS != 0 {
		member("period_ms")
		b = strconv.AppendInt(b, u.PeriodMS, 10)
	}
	if u.OnConflict != "" {
		member("on_conflict")
		b = appendText(b, u.OnConflict)
	}
	texts("states", u.States)
	texts("args_keys", u.ArgsKeys)
	texts("meta_keys", u.MetaKeys)
	return append(b, '}')
}

func appendTexts(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(b, s)
	}
	return append(b, ']')
}

// FromDrafts checks all jobs of an atomic batch, like DecodeItems. It is DecodeItems for a transport that has read the jobs; an
// empty list is refused like an empty array.
func FromDrafts(drafts []Draft, lim Limits, maxItems int) ([]*Job, *ojs.Error) {
	switch n := len(drafts); {
	case n == 0:
		return nil, errNoItems("jobs", maxItems, jsontext.Value(`[]`))
	case n > maxItems:
		return nil, spec.BatchSize(maxItems, n)
	}
	return eachItem(len(drafts), func(i int) (*Job, *ojs.Error) { return drafts[i].Job(lim) })
}

// Template is the job that a cron makes, as it is stored. A template is checked when the cron is registered and again whenever
// it fires: limits and the policies of queues may have changed since.
type Template struct {
	Type                string
	Args, Meta, Options []byte // valid JSON; Options nil: none
}

// Job checks a template by the rules of DecodeJob. The bounds of an envelope hold for what a client sends, not for this.
func (t Template) Job(lim Limits) (*Job, *ojs.Error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.lim, d.deep = lim, true
	if t.Type != "" {
		d.set(&d.top, typeAttr, textValue(t.Type))
	}
	d.top.put(argsAttr, t.Args)
	d.top.put(metaAttr, t.Meta)
	if t.Options != nil {
		d.top.put(optionsAttr, t.Options)
		d.sortOptions()
	}
	return d.job(len(t.Args) + len(t.Meta) + len(t.Options) + 64)
}

// value is an attribute as it was sent: JSON, or of a type that a transport has read. Typed values spare a transport that has
// read a number the way through its text and back.
type value struct {
	json jsontext.Value
	typed
}

type typed struct {
	kind kind
	str  string
	n    int64 // of isBool: 1 for true
	when When
}

type kind uint8

const (
	notTyped kind = iota
	isText
	isInt
	isBool
	isWhen
)

func textValue(s string) value { return value{typed: typed{kind: isText, str: s}} }
func intValue(n int64) value   { return value{typed: typed{kind: isInt, n: n}} }
func whenValue(w When) value   { return value{typed: typed{kind: isWhen, when: w}} }

func boolValue(b bool) value {
	v := value{typed: typed{kind: isBool}}
	if b {
		v.n = 1
	}
	return v
}

// text is the JSON of a value, for errors and for what is shown as it was sent. It makes the text only when it is needed: for
// an error, or to be shown.
func (v value) text() jsontext.Value {
	if v.kind == notTyped {
		return v.json
	}
	return v.typed.json()
}

func (t *typed) json() jsontext.Value {
	switch t.kind {
	case isText:
		return jsonread.Quote(t.str)
	case isInt:
		return strconv.AppendInt(nil, t.n, 10)
	case isBool:
		return strconv.AppendBool(nil, t.n == 1)
	// A relative time gets its plus sign, so that it reads as what it means.
	case isWhen:
		if t.when.Relative {
			return jsonread.Quote("+" + jsonread.FormatDuration(t.when.In))
		}
		return jsonread.Quote(t.when.At.Format(time.RFC3339Nano))
	}
	return nil
}

// typedMark stands in a place for a value that is typed. It is not nil, so that pick finds the attribute, and empty, so that
// typedOf knows it.
var typedMark = jsontext.Value{}

// set is put for a value that a transport has read. Such a value has one place, so its attribute is enough to find it.
// A later put of the same attribute in the same place replaces the mark; one place for each attribute is what callers
// guarantee.
func (d *decoder) set(p *place, a attr, v value) {
	if v.kind == notTyped {
		p.put(a, v.json)
		return
	}
	if d.typed == nil {
		d.typed = make(map[attr]*typed, 4)
	}
	d.typed[a] = &v.typed
	p.values[a], p.have = typedMark, p.have|a.bit()
}

// typedOf is nil for a value that was sent as JSON, and for one that was not sent.
func (d *decoder) typedOf(g given) *typed {
	if len(g.value) > 0 || d.typed == nil {
		return nil
	}
	return d.typed[g.attr]
}

func (d *decoder) text(g given) (string, bool) {
	if t := d.typedOf(g); t != nil {
		return t.str, t.kind == isText
	}
	return jsonread.Text(g.value)
}

// A typed value of another kind falls through to the JSON, which is empty, and so is no integer.
func (d *decoder) integer(g given) (int64, jsonread.IntResult) {
	if t := d.typedOf(g); t != nil && t.kind == isInt {
		return t.n, jsonread.IsInt
	}
	return jsonread.Int(g.value)
}

func (d *decoder) boolean(g given) (value, ok bool) {
	if t := d.typedOf(g); t != nil {
		return t.n == 1, t.kind == isBool
	}
	return jsonread.Bool(g.value)
}

// A time that was typed is cut to what the database stores, like one that was sent as text.
func (d *decoder) time(g given) (When, bool) {
	if t := d.typedOf(g); t != nil && t.kind == isWhen {
		w := t.when
		if !w.Relative {
			w.At = storable(w.At)
		}
		return w, true
	}
	text, _ := jsonread.Text(g.value)
	return parseWhen(text)
}

// json is the value as it was sent, or as JSON would have had it.
func (d *decoder) json(g given) jsontext.Value {
	if t := d.typedOf(g); t != nil {
		return t.json()
	}
	return g.value
}
