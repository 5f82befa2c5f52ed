package schema

import (
	"encoding/json"
	"errors"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The library that validates has no time limit, and a small schema can make it run for years: two references to itself for each
// level of nesting double the work with every level. So each schema object charges a meter before it looks at a value, in proportion
// to what it is going to do, and the check is given up when the meter is empty.

const (
	// budget is what one check may cost. A step takes up to 300 ns, and about 200 bytes for an error that it finds. So a
	// check takes 0.12 s at most, and its errors about 80 MB. Less would refuse args of ordinary size
	// (docs/reference/schemas.md, Documents).
	budget = 400_000

	// visitsPerElement is how often one schema object looks at an element of an array or object: items, contains,
	// propertyNames, … It is charged before the library looks, so it must not be too low; too high refuses args that could
	// be checked.
	visitsPerElement = 4

	// bytesPerStep is how much of a text is read in the time of a step, enumPerStep how many values of an enum are compared.
	bytesPerStep = 64
	enumPerStep  = 64
)

// errBudget is the panic that ends a check. The library has no way to end early, so run recovers it.
var errBudget = errors.New("the check takes too long")

// meter counts what a check costs. Not for concurrent use. left is what remains of the budget of the check at hand, or of
// the patterns while a schema is compiled.
type meter struct{ left int }

// It panics with errBudget, so it must be called inside of run or compile only.
func (m *meter) charge(n int) {
	if m.left -= n; m.left < 0 {
		panic(errBudget)
	}
}

// instrument lets a compiled schema object charge the meter. Its format is looked at before everything that refers to other
// schema objects; what comes earlier, type, const and enum, is part of unit, and is charged with the object around it.
// weight is how many other schema objects are applied to the same value, unit the price of a look.
func (m *meter) instrument(s *jsonschema.Schema, weight, unit int) {
	format := jsonschema.Format{Name: "none", Validate: func(any) error { return nil }}
	if s.Format != nil {
		format = *s.Format
	}
	validate := format.Validate
	format.Validate = func(v any) error {
		// Charged before the work, so no single look goes far beyond the budget.
		m.charge((1 + weight + visitsPerElement*size(v)) * unit)
		return validate(v)
	}
	s.Format = &format
}

// size is the number of elements of a value; for a text, the steps that its bytes are worth. It does not look into the
// elements: each is charged when it is looked at itself.
func size(v any) int {
	switch v := v.(type) {
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	case string:
		return len(v) / bytesPerStep
	}
	return 0
}

// weigh finds how many schemas a schema object applies to the same value, and what its own keywords cost for a value.
// Keywords that apply schemas to elements are counted by visitsPerElement instead; properties among them, as size of the
// value bounds it.
func weigh(object map[string]any) (weight, own int) {
	for keyword, value := range object {
		switch keyword {
		case "enum", "const", "required", "dependentRequired":
			own += cost(value)
		// The first applies one schema per member of the value; the others apply none.
		case "properties", "$defs", "definitions", "default", "examples":
		default:
			weight += size(value)
		}
	}
	return weight, own / enumPerStep
}

// cost is what a comparison with a value costs. Numbers are compared as fractions. It walks the document once, when it is
// compiled.
func cost(v any) int {
	n := 1
	switch v := v.(type) {
	case json.Number:
		n = 8
	case string:
		n += len(v) / bytesPerStep
	case []any:
		for _, e := range v {
			n += cost(e)
		}
	case map[string]any:
		for _, e := range v {
			n += 1 + cost(e)
		}
	}
	return n
}
