package job

import (
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

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

// ReadStrategy reads the name of a strategy, with - or _. The value that it returns after a refusal is never used.
func ReadStrategy(v jsontext.Value, ps *payload.Problems) string {
	text, _ := rawjson.Text(v)
	name := strings.ReplaceAll(text, "_", "-")
	if !slices.Contains(strategies, name) {
		ps.Add(ojs.ErrInvalidPayload, "strategy", "$.strategy", "strict, round-robin, weighted or least-loaded", v)
		return StrategyStrict
	}
	return name
}

// Weight reads the weight of a queue. Zero is not allowed: a queue that is never to be served is left out of the fetch.
func Weight(v jsontext.Value) (n int64, ok bool) {
	n, kind := rawjson.Int(v)
	return n, kind == rawjson.IsInt && n >= 1 && n <= MaxWeight
}

// ReadWeights reads an object of weights by queue. One wrong weight refuses the object. Whether the fetch names these queues is
// not checked.
func ReadWeights(v jsontext.Value, ps *payload.Problems) map[string]int64 {
	if v[0] != '{' {
		ps.Add(ojs.ErrInvalidPayload, "weights", "$.weights", "an object of weights by queue name", v)
		return nil
	}
	weights := make(map[string]int64)
	for literal, value := range rawjson.Members(v) {
		name := string(rawjson.Name(literal))
		n, ok := Weight(value)
		if !ok || !ValidQueue(name) || len(weights) == maxQueues {
			ps.Add(ojs.ErrInvalidPayload, "weights", "$.weights", "an object of "+WeightForm+" by queue name, for at most 100 queues", v)
			return nil
		}
		weights[name] = n
	}
	return weights
}
