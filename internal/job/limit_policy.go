package job

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/ojs"
)

// LimitPolicy is what may start of a partition: the jobs with one key, or all jobs of a queue. The three limits hold together:
// a job starts when all of those that are set permit it (docs/reference/limits.md, Policies).
type LimitPolicy struct {
	Concurrency *int64  // most active jobs; nil: no limit, 0: none may start
	Rate        *Window // most starts within any period; nil: no limit
	Throttle    *Window // starts are at least Period/Limit apart; nil: no limit
	// wait, the default, is stored as "", so that most jobs store nothing.
	OnLimit string // LimitReschedule or LimitDrop: what a fetch does with a job that may not start; "": it waits
	Scope   string // LimitGlobal: one partition for all tenants; "": one for each
}

// Window is a number of starts in a period.
type Window struct {
	Limit      int64
	Period     time.Duration
	PeriodText string // as the client wrote it, shown again
}

// What a fetch does with a job that may not start, and the scope of a key that tenants share.
const (
	LimitReschedule = "reschedule"
	LimitDrop       = "drop"
	LimitGlobal     = "global"
)

const (
	// QueueLimitPrefix begins the key of the partition of a whole queue. No client may choose such a key.
	QueueLimitPrefix = "queue:"

	maxLimit    = 1_000_000_000
	maxLimitKey = 255
)

// Equal reports whether two policies permit the same and show the same. Periods must be written the same way too: PT60S and
// PT1M show differently, so they are not equal.
func (p *LimitPolicy) Equal(o *LimitPolicy) bool {
	if p == nil || o == nil {
		return p == o
	}
	return equalPointers(p.Concurrency, o.Concurrency) && equalPointers(p.Rate, o.Rate) && equalPointers(p.Throttle, o.Throttle) &&
		p.OnLimit == o.OnLimit && p.Scope == o.Scope
}

func equalPointers[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// Encode gives the policy as it is shown, in its normal form: concurrency, rate, throttle, on_limit and scope.
// The reader of a policy accepts what it gives.
func (p *LimitPolicy) Encode() []byte { return p.encode(false) }

// Stored gives the policy as it is stored with its partition: Encode without on_limit, which is that of a job, and with the lengths of
// the periods in microseconds. SQL reads the microseconds (us); the text of the period is kept to be shown.
func (p *LimitPolicy) Stored() []byte { return p.encode(true) }

func (p *LimitPolicy) encode(stored bool) []byte {
	// The order of the members is fixed, so that equal policies have equal texts.
	b := []byte{'{'}
	member := func(name string) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), `":`...)
	}
	if p.Concurrency != nil {
		member("concurrency")
		b = strconv.AppendInt(b, *p.Concurrency, 10)
	}
	if p.Rate != nil {
		member("rate")
		b = p.Rate.append(b, stored)
	}
	if p.Throttle != nil {
		member("throttle")
		b = p.Throttle.append(b, stored)
	}
	if p.OnLimit != "" && !stored {
		member("on_limit")
		b = appendText(b, p.OnLimit)
	}
	if p.Scope != "" {
		member("scope")
		b = appendText(b, p.Scope)
	}
	return append(b, '}')
}

func (w *Window) append(b []byte, stored bool) []byte {
	b = strconv.AppendInt(append(b, `{"limit":`...), w.Limit, 10)
	b = appendText(append(b, `,"period":`...), w.PeriodText)
	if stored {
		b = strconv.AppendInt(append(b, `,"us":`...), w.Period.Microseconds(), 10)
	}
	return append(b, '}')
}

// LimitKeyForm is what a key must be.
const LimitKeyForm = "1 to 255 letters, digits, '.', '_', ':' or '-', the first a letter or a digit"

// ValidLimitKey reports whether clients may name a partition so. It does not look for QueueLimitPrefix; a new job with such a
// key is refused with a sentence of its own (decoder.rateLimit).
func ValidLimitKey(key string) bool {
	return key != "" && len(key) <= maxLimitKey && isAlphanumeric(key[0]) && jsonread.AllIn(key, isLimitKeyByte)
}

// PartitionKey is the key of the partition that a tenant's job has named: tenants share none, unless the policy says so. No name of a
// tenant and no key that clients may send has a slash. Two tenants that use the same key get a partition each, so neither can use up the
// other's limit.
func PartitionKey(tenant, key string, policy *LimitPolicy) string {
	if tenant == "" || policy != nil && policy.Scope == LimitGlobal {
		return key
	}
	return tenant + "/" + key
}

// ValidPartitionKey reports whether an operator may name a partition so: as clients may, or with its tenant.
func ValidPartitionKey(key string) bool {
	if tenant, own, ok := strings.Cut(key, "/"); ok {
		return ValidTenant(tenant) && ValidLimitKey(own)
	}
	return ValidLimitKey(key)
}

func isAlphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func isLimitKeyByte(c byte) bool {
	return c == ':' || jsonread.IsNameByte(c)
}

// rateLimit reads rate_limit. A policy without key is that of the whole queue. Without a key only the short forms of a rate are
// allowed (docs/reference/limits.md, Policies).
func (d *decoder) rateLimit(j *Job) {
	g, there := d.pickObject(rateLimitAttr)
	if !there {
		return
	}
	r := limitReader{jsonread.OpenAt(g.value, "rate_limit", g.path(), &d.problems, limitNames...)}
	j.Limit = r.policy()
	r.words(j.Limit)
	j.OnLimit = j.Limit.OnLimit
	j.LimitKey = r.Text("key", LimitKeyForm, ValidLimitKey)
	if ValidLimitKey(j.LimitKey) && strings.HasPrefix(j.LimitKey, QueueLimitPrefix) {
		r.Refuse("key", "a name that does not begin with 'queue:', which is for the limits of whole queues")
	}
	if r.Get("key") != nil {
		return
	}
	// Each of these would limit a partition without a name. The long form of a rate needs a key too; the short forms do not.
	// The problems name the members that would need a key, so that a client sees which one it has to give a name.
	const expected = "absent, or together with a key"
	r.absent(expected, "concurrency", "throttle")
	if rate := r.Get("rate"); rate != nil && rate[0] == '{' {
		r.absent(expected, "rate")
	}
	if j.Limit.Rate == nil && r.Get("concurrency") == nil && r.Get("throttle") == nil {
		r.Refuse("key", "the name of the partition, or max_per_second or limit and period for the whole queue")
	}
}

// ParseQueueLimit reads the policy of a whole queue, as its configuration has it; nil if it is refused.
// Problems that were there before are none of this policy: it is refused only for its own.
func ParseQueueLimit(v jsontext.Value, field, path string, problems *jsonread.Problems) *LimitPolicy {
	if v[0] != '{' {
		problems.Add(ojs.ErrInvalidPayload, field, path, "an object such as {\"limit\":100,\"period\":\"PT1M\"}, or null", v)
		return nil
	}
	before := problems.Len()
	r := limitReader{jsonread.OpenAt(v, field, path, problems, limitNames...)}
	p := r.policy()
	r.words(p)
	r.absent("absent: the policy holds for all jobs of the queue", "key", "scope")
	if problems.Len() == before && p.unlimited() {
		problems.Add(ojs.ErrInvalidPayload, field, path, "an object with a limit: concurrency, rate, throttle, max_per_second, or limit and period", v)
	}
	if problems.Len() > before {
		return nil
	}
	return p
}

// DecodeQueueLimit reads the body of a call that sets the policy of a whole queue. The body is the policy itself.
func DecodeQueueLimit(body []byte) (*LimitPolicy, *ojs.Error) {
	v, err := jsonread.Check(body)
	if err != nil {
		return nil, err
	}
	var problems jsonread.Problems
	return ParseQueueLimit(v, "rate_limit", "$", &problems), problems.Err()
}

// ParseStoredLimit reads what Stored gives; nil and what is broken have no limits. It serves to show a partition; what may
// start is decided in SQL from the same text.
func ParseStoredLimit(stored []byte) (p LimitPolicy) {
	type window struct {
		Limit  int64
		Period string
		US     int64
	}
	var s struct {
		Concurrency    *int64
		Rate, Throttle *window
		Scope          string
	}
	if stored == nil || json.Unmarshal(stored, &s) != nil {
		return p
	}
	read := func(w *window) *Window {
		if w == nil {
			return nil
		}
		return &Window{w.Limit, time.Duration(w.US) * time.Microsecond, w.Period}
	}
	return LimitPolicy{Concurrency: s.Concurrency, Rate: read(s.Rate), Throttle: read(s.Throttle), Scope: s.Scope}
}

// Override is the policy with the parts of another in the place of its own. OnLimit and Scope stay those of the policy.
func (p LimitPolicy) Override(o LimitPolicy) LimitPolicy {
	if o.Concurrency != nil {
		p.Concurrency = o.Concurrency
	}
	if o.Rate != nil {
		p.Rate = o.Rate
	}
	if o.Throttle != nil {
		p.Throttle = o.Throttle
	}
	return p
}

// unlimited is false for a concurrency of 0, which permits nothing.
func (p *LimitPolicy) unlimited() bool {
	return p.Concurrency == nil && p.Rate == nil && p.Throttle == nil
}

// LimitOverride replaces parts of a policy.
type LimitOverride struct {
	LimitPolicy
	ExpiresAt time.Time // zero: until it is deleted
}

// DecodeLimitOverride reads the body of an override. An override of nothing is refused: it would look as if it did something.
// The time of expiry must be absolute.
func DecodeLimitOverride(body []byte) (*LimitOverride, *ojs.Error) {
	object, err := jsonread.OpenBody(body, "concurrency", "rate", "throttle", "limit", "period", "max_per_second", "expires_at")
	if err != nil {
		return nil, err
	}
	r := limitReader{object}
	o := &LimitOverride{LimitPolicy: *r.policy()}
	o.ExpiresAt = jsonread.OptionalText(&r.Object, "expires_at", "an RFC 3339 time", ParseTime)
	if r.Problems().Len() == 0 && o.unlimited() {
		r.Refuse("limit", "one or more of concurrency, rate, throttle, or limit and period")
	}
	return o, r.Err()
}

var (
	limitNames  = []string{"key", "concurrency", "rate", "throttle", "limit", "period", "max_per_second", "on_limit", "scope"}
	windowNames = []string{"limit", "period"}
)

// limitReader reads a policy in any of its forms.
type limitReader struct{ jsonread.Object }

// policy reads the amounts. It always returns a policy, with what could be read; callers look at the problems.
func (r *limitReader) policy() *LimitPolicy {
	r.RefuseOthersAs(ojs.ErrInvalidPayload)
	p := &LimitPolicy{}
	// Zero is allowed here only, where it stops the partition.
	if n, given := r.Integer("concurrency", 0, maxLimit, "an integer from 0 to 1000000000"); given {
		p.Concurrency = &n
	}
	p.Rate = r.rate()
	p.Throttle = r.window("throttle")
	return p
}

// words reads what happens to a job and for whom the limit holds, which an override cannot change: they are no amounts. Any other word
// is refused, because the default would surprise whoever has misspelt it.
func (r *limitReader) words(p *LimitPolicy) {
	p.OnLimit = jsonread.OptionalText(&r.Object, "on_limit", "one of wait, reschedule, drop", func(text string) (string, bool) {
		if text == "wait" {
			return "", true
		}
		return text, text == LimitReschedule || text == LimitDrop
	})
	p.Scope = jsonread.OptionalText(&r.Object, "scope", "tenant or global", func(text string) (string, bool) {
		if text == "tenant" {
			return "", true
		}
		return text, text == LimitGlobal
	})
}

// rate reads the forms of a rate: an object, or a number beside a period. A second form beside the first is refused, not
// ignored.
func (r *limitReader) rate() *Window {
	rate := r.Get("rate")
	switch {
	// The object is the long form and has its own period.
	case rate != nil && rate[0] == '{':
		r.absent("absent, because a rate was given", "limit", "period", "max_per_second")
		return r.window("rate")
	case rate != nil:
		r.absent("absent, because a rate was given", "limit", "max_per_second")
		return readWindow(&r.Object, "rate")
	case r.Get("limit") != nil || r.Get("period") != nil:
		r.absent("absent, because a limit was given", "max_per_second")
		return readWindow(&r.Object, "limit")
	}
	// It is the shortest form: the period is a second.
	if n, given := r.Integer("max_per_second", 1, maxLimit, "an integer from 1 to 1000000000"); given {
		return &Window{Limit: n, Period: time.Second, PeriodText: "PT1S"}
	}
	return nil
}

func (r *limitReader) absent(expected string, names ...string) {
	for _, name := range names {
		if r.Get(name) != nil {
			r.Refuse(name, expected)
		}
	}
}

// window refuses a member that is not known: it may be a period under another name.
func (r *limitReader) window(name string) *Window {
	o, ok := r.OpenMember(name, `an object such as {"limit":30,"period":"PT1M"}`, windowNames...)
	if !ok {
		return nil
	}
	o.RefuseOthersAs(ojs.ErrInvalidPayload)
	return readWindow(&o, "limit")
}

// readWindow reads a number of starts and the period beside it. Both problems are reported if both are wrong.
func readWindow(o *jsonread.Object, limit string) *Window {
	n, ok := o.Integer(limit, 1, maxLimit, "an integer from 1 to 1000000000")
	if o.Get(limit) == nil {
		o.Refuse(limit, "an integer >= 1")
	}
	text, _ := jsonread.Text(o.Get("period"))
	d, valid := parsePeriod(text)
	if !valid {
		o.Refuse("period", "a duration above zero such as PT1M, 30s or minute")
	}
	if !ok || !valid {
		return nil
	}
	return &Window{Limit: n, Period: d, PeriodText: text}
}

// parsePeriod reads a duration, or the name of a unit, which stands for one of it. A length of less than a millisecond is
// rounded, and refused if nothing is left.
func parsePeriod(text string) (time.Duration, bool) {
	switch text {
	case "second":
		return time.Second, true
	case "minute":
		return time.Minute, true
	case "hour":
		return time.Hour, true
	case "day":
		return 24 * time.Hour, true
	}
	d, err := jsonread.ParseDuration(text)
	return d, err == nil && d > 0
}

// How a fetch chooses between its queues (docs/reference/fairness.md, Strategies). The names are stored with pools and shown in
// statistics, with a hyphen, however they were sent.
const (
	StrategyStrict      = "strict"
	StrategyRoundRobin  = "round-robin"
	StrategyWeighted    = "weighted"
	StrategyLeastLoaded = "least-loaded"
)

var strategies = []string{StrategyStrict, StrategyRoundRobin, StrategyWeighted, StrategyLeastLoaded}

// MaxWeight is the largest weight of a queue.
const MaxWeight = 1000

// WeightForm is what a weight must be.
const WeightForm = "an integer from 1 to 1000"

// ReadStrategy reads the name of a strategy, with - or _; "": not sent.
func ReadStrategy(o *jsonread.Object) string {
	return jsonread.OptionalText(o, "strategy", "strict, round-robin, weighted or least-loaded", func(text string) (string, bool) {
		name := strings.ReplaceAll(text, "_", "-")
		return name, slices.Contains(strategies, name)
	})
}

// Weight reads the weight of a queue. Zero is not allowed: a queue that is never to be served is left out of the fetch.
func Weight(v jsontext.Value) (n int64, ok bool) {
	n, kind := jsonread.Int(v)
	return n, kind == jsonread.IsInt && n >= 1 && n <= MaxWeight
}

// ReadWeights reads an object of weights by queue; nil: not sent. One wrong weight refuses the object. Whether the fetch names these
// queues is not checked.
func ReadWeights(o *jsonread.Object) map[string]int64 {
	v := o.Get("weights")
	if v == nil {
		return nil
	}
	if v[0] != '{' {
		o.Refuse("weights", "an object of weights by queue name")
		return nil
	}
	weights := make(map[string]int64)
	for literal, value := range jsonread.Members(v) {
		name := string(jsonread.Name(literal))
		n, ok := Weight(value)
		if !ok || !ValidQueue(name) || len(weights) == maxQueues {
			o.Refuse("weights", "an object of "+WeightForm+" by queue name, for at most 100 queues")
			return nil
		}
		weights[name] = n
	}
	return weights
}
