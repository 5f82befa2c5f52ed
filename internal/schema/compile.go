package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ojsd/ojsd/internal/job"
)

const (
	// maxDepth and the others are told to clients in docs/reference/schemas.md, Documents. All bounds are checked before the library sees
	// the document, as it has none of its own.
	maxDepth   = 64
	maxObjects = 5000 // the time to compile grows with the square
	maxRefs    = 1000 // the search for cycles takes time in proportion to the references on the way

	// maxNumberBytes is needed because numbers are compared as fractions: 1e999999 has a million digits. These bounds admit every number
	// that a float64 can hold.
	maxNumberBytes = 400
	maxExponent    = 400
)

// documentURL is where the compiler finds the document.
const documentURL = "ojsd:///schema"

// drafts are the values of $schema that are understood. They are compared without http or https and without a final #, as
// all spellings are in use.
var drafts = []string{
	"://json-schema.org/draft/2020-12/schema", "://json-schema.org/draft/2019-09/schema", "://json-schema.org/draft-07/schema",
	"://json-schema.org/draft-06/schema", "://json-schema.org/draft-04/schema",
}

// compiled is a schema that checks args. The checks of one schema take turns, because they share its meter. It is kept for
// all jobs of the schema. mu guards meter and what it counts; a check holds it for a fraction of a second at most. All
// other fields do not change.
type compiled struct {
	info Info

	mu     sync.Mutex
	meter  *meter
	schema *jsonschema.Schema
	object bool // it describes an object, the only element of args
	older  bool // it names no draft, and only draft-07 understands it
	bytes  int  // of the document
}

// compile reads a document that is valid JSON. The errors say what a client can change. It runs at a registration, for its
// errors, and at the first check on each node. It reads nothing but its arguments.
func compile(info Info, document []byte) (c *compiled, err error) {
	defer func() {
		if r := recover(); r != nil { // hostile documents must not end a node
			err = fmt.Errorf("it cannot be compiled: %v", r)
		}
	}()
	// The document is valid JSON, so an error means that it is nested deeper than the decoder reads.
	value, err := decodeJSON(document)
	if err != nil {
		return nil, err
	}
	var b bounds
	// Before the compiler, whose time these bounds limit.
	if err := b.check(value, 1); err != nil {
		return nil, err
	}
	c, err = compileAs(jsonschema.Draft2020, info, value)
	if root, _ := value.(map[string]any); err != nil && root != nil && root["$schema"] == nil {
		if older, olderErr := compileAs(jsonschema.Draft7, info, value); olderErr == nil {
			older.older, c, err = true, older, nil
		}
	}
	if err != nil {
		return nil, err
	}
	c.bytes = len(document)
	return c, nil
}

// compileAs reads a document that names no draft as one of that draft.
func compileAs(draft *jsonschema.Draft, info Info, value any) (c *compiled, err error) {
	// The meter bounds the patterns while the document is compiled, and the checks later: left is set anew for each.
	c = &compiled{info: info, meter: &meter{left: maxPatterns}, object: describesObject(value)}
	var objects []*jsonschema.Schema
	var weights []int
	unit := 0
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(draft)
	// The standard loader reads files and URLs.
	compiler.UseLoader(noLoader{})
	compiler.UseRegexpEngine(c.meter.compilePattern)
	// In drafts from 2019-09 on the compiler would ignore the vocabulary of the meter without this.
	compiler.AssertVocabs()
	// The library tells a vocabulary of each schema object; this one adds no keyword, and is there to learn of the objects.
	compiler.RegisterVocabulary(&jsonschema.Vocabulary{
		URL: "ojsd:///meter",
		Compile: func(ctx *jsonschema.CompilerContext, object map[string]any) (jsonschema.SchemaExt, error) {
			weight, own := weigh(object)
			unit = max(unit, own)
			objects, weights = append(objects, ctx.Enqueue(nil)), append(weights, weight) // the object itself
			return nil, nil
		},
	})
	if err := compiler.AddResource(documentURL, value); err != nil {
		return nil, explain(err)
	}
	if c.schema, err = compiler.Compile(documentURL); err != nil {
		return nil, explain(err)
	}
	// Only now: the weights are complete, and the compiler has filled in the formats, which instrument wraps.
	for i, s := range objects {
		c.meter.instrument(s, weights[i], 1+unit)
	}
	return c, nil
}

// decodeJSON keeps the digits of numbers. A float64 would round large integers, and const and enum would then accept
// neighbours.
func decodeJSON(document []byte) (any, error) {
	return jsonschema.UnmarshalJSON(bytes.NewReader(document))
}

// describesObject reports whether a schema can be meant only for an object, although args is an array. SDKs wrap a single
// object in an array (docs/reference/schemas.md, Documents).
func describesObject(value any) bool {
	root, _ := value.(map[string]any)
	kind, typed := root["type"]
	_, hasProperties := root["properties"]
	return kind == "object" || !typed && hasProperties
}

// bounds counts what makes a schema expensive to compile. It counts every object of the document, also those that are no
// schema: a few too many are refused, none too few.
type bounds struct{ objects, refs int }

// check stops at the first bound that is exceeded, so a huge document costs no more than one at the bound.
func (b *bounds) check(value any, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("it is nested more than %d levels deep", maxDepth)
	}
	switch v := value.(type) {
	case json.Number:
		if !numberFits(v) {
			return fmt.Errorf("the number %.60s has too many digits", v)
		}
	case []any:
		for _, e := range v {
			if err := b.check(e, depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		return b.checkObject(v, depth)
	}
	return nil
}

// checkObject counts a name such as $ref wherever it stands, also as the name of a property: too many are refused, never too few.
func (b *bounds) checkObject(object map[string]any, depth int) error {
	if b.objects++; b.objects > maxObjects {
		return fmt.Errorf("it has more than %d objects", maxObjects)
	}
	for name, value := range object {
		text, isText := value.(string)
		switch {
		case name == "$schema" && isText && !knownDraft(text):
			return fmt.Errorf("$schema is %.100q; send https://json-schema.org/draft/2020-12/schema or http://json-schema.org/draft-07/schema#", text)
		case isText && (name == "$ref" || name == "$dynamicRef" || name == "$recursiveRef"):
			if b.refs++; b.refs > maxRefs {
				return fmt.Errorf("it has more than %d references", maxRefs)
			}
		}
		if err := b.check(value, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// knownDraft has the drafts that are known; any other would be loaded like a document, and be refused without a word of $schema.
func knownDraft(text string) bool {
	text = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(text, "#"), "https"), "http")
	return slices.Contains(drafts, text)
}

// numberFits reports whether a number can be computed with in little time. The length bounds the digits, the exponent what
// the digits stand for.
func numberFits(n json.Number) bool {
	text := string(n)
	if len(text) > maxNumberBytes {
		return false
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		// An exponent that does not fit into an integer is an error, too, and refused.
		exponent, err := strconv.Atoi(strings.TrimPrefix(text[i+1:], "+"))
		return err == nil && exponent <= maxExponent && exponent >= -maxExponent
	}
	return true
}

// noLoader refuses references to other documents. The URL comes from a client: to fetch it would let clients call any
// address from inside the server's network.
type noLoader struct{}

// Load shows the URL to the client who sent it.
func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%w: %.200q", errRemote, url)
}

var errRemote = errors.New("it refers to another document, which is never fetched; put what it needs into $defs")

// explain says what is wrong with a schema. Errors of the library name URLs and files of its own, which mean nothing to
// clients.
func explain(err error) error {
	if errors.Is(err, errRemote) {
		if load, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
			return load.Err
		}
		return errRemote
	}
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if list, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
			// One place is enough for an author to go on.
			first := flatten(list, "$.schema", nil, 1)[0]
			return fmt.Errorf("at %s: %s", first.Path, first.Message)
		}
	}
	return errors.New(job.Shorten(strings.ReplaceAll(err.Error(), documentURL+"#", "#"), maxMessage))
}

// maxPattern bounds the instructions of a pattern, maxPatterns those of all patterns of a schema, which are compiled twice.
// Repetitions multiply: (a{100}){10} has a thousand.
const (
	// maxPattern is for one pattern. Of maxPatterns docs/reference/schemas.md, Documents tells the half: 200 000 steps.
	maxPattern  = 10_000
	maxPatterns = 400_000
)

var errPattern = errors.New("patterns repeat too much")

// pattern is a regular expression that charges a meter for each match: RE2 takes time in proportion to the text and to the
// instructions. It belongs to one compiled schema, whose lock guards the meter.
type pattern struct {
	*regexp.Regexp
	meter        *meter
	instructions int
}

// MatchString implements jsonschema.Regexp.
func (p *pattern) MatchString(s string) bool {
	p.meter.charge(1 + len(s)*p.instructions/bytesPerStep)
	return p.Regexp.MatchString(s)
}

// compilePattern is the engine for one schema. The bound is checked before the program is built, which would take the
// memory already.
func (m *meter) compilePattern(text string) (jsonschema.Regexp, error) {
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	n := instructions(parsed)
	if m.left -= n; n > maxPattern || m.left < 0 {
		return nil, errPattern
	}
	// It is compiled a second time when the schema is used on another node, or again on this one.
	compiled, err := regexp.Compile(text)
	if err != nil {
		return nil, err
	}
	return &pattern{compiled, m, n}, nil
}

// instructions is about the length of the program of a pattern, found without compiling it. The result is capped, as nested
// repetitions would overflow the integer.
func instructions(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/2
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(1, re.Min, re.Max)
	}
	return min(n, 100*maxPattern)
}

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

// charge panics with errBudget, so it must be called inside of run or compile only.
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
