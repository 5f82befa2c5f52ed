package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ojsd/ojsd/internal/job"
)

const (
	// docs/reference/schemas.md, Documents tells them to clients. All bounds are checked before the library sees the
	// document, as it has none of its own.
	maxDepth   = 64
	maxObjects = 5000 // the time to compile grows with the square
	maxRefs    = 1000 // the search for cycles takes time in proportion to the references on the way

	// Numbers are compared as fractions: 1e999999 has a million digits. These bounds admit every number that a float64 can hold.
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
	// The meter bounds the patterns while the document is compiled, and the checks later: left is set anew for each.
	c = &compiled{info: info, bytes: len(document), meter: &meter{left: maxPatterns}, object: describesObject(value)}
	var objects []*jsonschema.Schema
	var weights []int
	unit := 0
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
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

// It stops at the first bound that is exceeded, so a huge document costs no more than one at the bound.
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

// A name such as $ref counts wherever it stands, also as the name of a property: too many are refused, never too few.
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

// Any other would be loaded like a document, and be refused without a word of $schema.
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

// The URL is shown to the client who sent it.
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
