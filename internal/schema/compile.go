package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ojsd/ojsd/internal/job"
)

const (
	maxDepth   = 64
	maxObjects = 5000 // the time to compile grows with the square
	maxRefs    = 1000 // the search for cycles takes time in proportion to the references on the way

	// Numbers are compared as fractions: 1e999999 has a million digits. These bounds admit every number that a float64 can hold.
	maxNumberBytes = 400
	maxExponent    = 400
)

// documentURL is where the compiler finds the document.
const documentURL = "ojsd:///schema"

// drafts are the values of $schema that are understood.
var drafts = []string{
	"://json-schema.org/draft/2020-12/schema", "://json-schema.org/draft/2019-09/schema", "://json-schema.org/draft-07/schema",
	"://json-schema.org/draft-06/schema", "://json-schema.org/draft-04/schema",
}

// compiled is a schema that checks args. The checks of one schema take turns, because they share its meter.
type compiled struct {
	info Info

	mu     sync.Mutex
	meter  *meter
	schema *jsonschema.Schema
	object bool // it describes an object, the only element of args
	bytes  int  // of the document
}

// compile reads a document that is valid JSON. The errors say what a client can change.
func compile(info Info, document []byte) (c *compiled, err error) {
	defer func() {
		if r := recover(); r != nil { // hostile documents must not end a node
			err = fmt.Errorf("it cannot be compiled: %v", r)
		}
	}()
	value, err := decodeJSON(document)
	if err != nil {
		return nil, err
	}
	var b bounds
	if err := b.check(value, 1); err != nil {
		return nil, err
	}
	c = &compiled{info: info, bytes: len(document), meter: &meter{left: maxPatterns}, object: describesObject(value)}
	var objects []*jsonschema.Schema
	var weights []int
	unit := 0
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(noLoader{})
	compiler.UseRegexpEngine(c.meter.compilePattern)
	compiler.AssertVocabs()
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
	for i, s := range objects {
		c.meter.instrument(s, weights[i], 1+unit)
	}
	return c, nil
}

// decodeJSON keeps the digits of numbers.
func decodeJSON(document []byte) (any, error) {
	return jsonschema.UnmarshalJSON(bytes.NewReader(document))
}

// describesObject reports whether a schema can be meant only for an object, although args is an array.
func describesObject(value any) bool {
	root, _ := value.(map[string]any)
	kind, typed := root["type"]
	_, hasProperties := root["properties"]
	return kind == "object" || !typed && hasProperties
}

// bounds counts what makes a schema expensive to compile.
type bounds struct{ objects, refs int }

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

func knownDraft(text string) bool {
	text = strings.TrimPrefix(strings.TrimPrefix(strings.TrimSuffix(text, "#"), "https"), "http")
	for _, d := range drafts {
		if text == d {
			return true
		}
	}
	return false
}

// numberFits reports whether a number can be computed with in little time.
func numberFits(n json.Number) bool {
	text := string(n)
	if len(text) > maxNumberBytes {
		return false
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		exponent, err := strconv.Atoi(strings.TrimPrefix(text[i+1:], "+"))
		return err == nil && exponent <= maxExponent && exponent >= -maxExponent
	}
	return true
}

// noLoader refuses references to other documents.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("%w: %.200q", errRemote, url)
}

var errRemote = errors.New("it refers to another document, which is never fetched; put what it needs into $defs")

// explain says what is wrong with a schema.
func explain(err error) error {
	if errors.Is(err, errRemote) {
		if load, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
			return load.Err
		}
		return errRemote
	}
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if list, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
			first := flatten(list, "$.schema", nil, 1)[0]
			return fmt.Errorf("at %s: %s", first.Path, first.Message)
		}
	}
	return errors.New(job.Shorten(strings.ReplaceAll(err.Error(), documentURL+"#", "#"), maxMessage))
}
