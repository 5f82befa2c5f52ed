// Package pool owns worker pools and the strategies by which a fetch chooses between its queues: which queues its workers may fetch, how
// many jobs they may run together, and statistics of what was started. It claims through package queue, one queue after the other; a
// fetch that names no pool and no strategy, while no pool is isolated, is handed on as it is. It must never change a job itself.
//
// Three files: definition.go reads what clients send, store.go keeps what a node knows of pools and answers lists, fetch.go
// and strategy.go decide what a fetch claims. A limit of concurrency is kept in the database, over all nodes; strategies
// and starvation are counted per node, in memory, and begin anew with it.
//
// A claim knows nothing of pools, so a job is fetched through a pool only if its worker asks for that: isolation is kept by
// leaving queues out of the fetches of others.
package pool

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// Definition says what the workers of a pool may fetch (docs/reference/fairness.md, Pools). It is stored as JSON by these
// names, so a name must not change. Strategy is never empty after Decode. A weight that is absent counts as 1.
type Definition struct {
	Queues      []string         `json:"queues"`
	Concurrency int32            `json:"concurrency,omitempty"` // most active jobs; 0: no limit
	Strategy    string           `json:"strategy"`
	Weights     map[string]int64 `json:"weights,omitempty"`
	Isolated    bool             `json:"isolated"` // other fetches get nothing from its queues
	Starvation  Starvation       `json:"starvation_prevention"`
}

// Starvation says when a queue gets the next slot although the strategy would choose another one. The interval is kept as
// text for answers; interval is what it means, set by Decode and by stored.
type Starvation struct {
	Enabled  bool    `json:"enabled"`
	Interval string  `json:"rotation_interval"`  // as it was given
	Ratio    float64 `json:"min_dispatch_ratio"` // of the jobs started in an interval

	interval time.Duration
}

const (
	// A fetch that finds a pool full counts its holds one by one (ojs.pool_reserve), so the bound is a cost of each such
	// fetch.
	maxConcurrency   = 10_000
	maxNameBytes     = 128
	defaultInterval  = "PT30S"
	defaultRatio     = 0.05
	shortestInterval = time.Second
	longestInterval  = time.Hour
)

// ValidName reports whether s can be the name of a pool: letters, digits, ., _ and -, at most 128 bytes.
func ValidName(s string) bool {
	return s != "" && len(s) <= maxNameBytes && payload.AllIn(s, payload.IsNameByte)
}

var names = []string{"queues", "concurrency", "strategy", "weights", "isolated", "starvation_prevention"}

// Decode reads the body of a PUT. Unknown members are ignored. All problems of the body are reported at once.
func Decode(raw []byte) (*Definition, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return nil, err
	}
	b := payload.Body{}
	b.Fields, _ = payload.Read(v, names)
	d := &Definition{Strategy: job.StrategyRoundRobin, Isolated: b.Boolean("isolated")}
	readQueues(&b, d)
	if n, given := b.Integer("concurrency", 0, maxConcurrency, "an integer from 0, no limit, to 10000"); given {
		d.Concurrency = int32(n)
	}
	if s := b.Get("strategy"); s != nil {
		d.Strategy = job.ReadStrategy(s, &b.Problems)
	}
	if w := b.Get("weights"); w != nil {
		for name, weight := range job.ReadWeights(w, &b.Problems) {
			d.setWeight(name, weight)
		}
	}
	readStarvation(&b, d)
	return d, b.Problems.Err()
}

// A weight may be given for a queue that the pool does not have; it counts for nothing.
func (d *Definition) setWeight(queue string, weight int64) {
	if d.Weights == nil {
		d.Weights = map[string]int64{}
	}
	d.Weights[queue] = weight
}

// readQueues reads an array of names, or an object of {"weight":n} by name. Names are checked as those of a fetch, and
// repetitions are left out.
func readQueues(b *payload.Body, d *Definition) {
	v := b.Get("queues")
	switch {
	case v == nil:
		b.Refuse("queues", "a non-empty array of queue names, or an object such as {\"mail\":{\"weight\":70}}")
	case v[0] == '{':
		for literal, value := range rawjson.Members(v) {
			name := string(rawjson.Name(literal))
			d.Queues = append(d.Queues, name)
			weight := payload.Present(value)
			if weight != nil && weight[0] == '{' {
				weight = payload.Present(payload.Find(weight, "weight"))
			}
			if weight == nil {
				continue
			}
			n, ok := job.Weight(weight)
			if !ok {
				b.Refuse("queues", "an object with weights that are "+job.WeightForm)
			}
			d.setWeight(name, n)
		}
		d.Queues = job.CheckQueues(d.Queues, &b.Problems)
	case v[0] == '[':
		texts, ok := payload.Texts(v)
		if !ok {
			b.Refuse("queues", "an array of queue names")
			return
		}
		d.Queues = job.CheckQueues(texts, &b.Problems)
	default:
		b.Refuse("queues", "an array or an object")
	}
}

// The values are stored even if it is not enabled, so that answers show the defaults.
func readStarvation(b *payload.Body, d *Definition) {
	s := &d.Starvation
	s.Interval, s.Ratio = defaultInterval, defaultRatio
	// It runs at the end, when Interval is the default or a text that was parsed.
	defer func() { s.interval, _ = duration.Parse(s.Interval) }()
	v := b.Get("starvation_prevention")
	if v == nil {
		return
	}
	add := func(member, expected string, v jsontext.Value) {
		b.Problems.Add(ojs.ErrInvalidPayload, "starvation_prevention"+member, "$.starvation_prevention"+member, expected, v)
	}
	if v[0] != '{' {
		add("", "an object", v)
		return
	}
	if e := payload.Present(payload.Find(v, "enabled")); e != nil {
		enabled, ok := rawjson.Bool(e)
		if s.Enabled = enabled; !ok {
			add(".enabled", "true or false", e)
		}
	}
	if e := payload.Present(payload.Find(v, "rotation_interval")); e != nil {
		text, _ := rawjson.Text(e)
		if d, err := duration.Parse(text); err != nil || d < shortestInterval || d > longestInterval {
			add(".rotation_interval", "a duration from PT1S to PT1H", e)
		} else {
			s.Interval = text
		}
	}
	if e := payload.Present(payload.Find(v, "min_dispatch_ratio")); e != nil {
		if err := json.Unmarshal(e, &s.Ratio); err != nil || s.Ratio < 0 || s.Ratio > 1 {
			add(".min_dispatch_ratio", "a number from 0 to 1", e)
		}
	}
}

// stored reads what Encode has written. An error makes the pool unknown to this node (see Store.list), so a later release
// must be able to read what an earlier one has stored.
func stored(definition []byte) (*Definition, error) {
	d := &Definition{}
	if err := json.Unmarshal(definition, d); err != nil {
		return nil, err
	}
	var err error
	d.Starvation.interval, err = duration.Parse(d.Starvation.Interval)
	return d, err
}

// The result is compared with nothing, so its form may change as long as stored reads it.
func (d *Definition) encode() []byte {
	b, err := json.Marshal(d)
	if err != nil {
		panic("pool: " + err.Error()) // names and numbers, which always have a text
	}
	return b
}

// WeightsOfQueues are the weights of the queues, 1 where none is set.
func (d *Definition) WeightsOfQueues() map[string]int64 {
	all := make(map[string]int64, len(d.Queues))
	for _, q := range d.Queues {
		all[q] = max(1, d.Weights[q])
	}
	return all
}

// restrict gives the queues of a fetch that the pool has, in the order of the pool; all of the pool if the fetch names
// none. The result may be the list of the pool itself and must not be changed. Order and duplicates of the fetch have no
// effect.
func (d *Definition) restrict(queues []string) []string {
	if len(queues) == 0 {
		return d.Queues
	}
	return slices.DeleteFunc(slices.Clone(d.Queues), func(q string) bool { return !slices.Contains(queues, q) })
}
