package schema

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/jsonread"
)

func compiledFrom(t *testing.T, document string) *compiled {
	t.Helper()
	c, err := compile(Info{Key: Key{"a.b", "1"}, URI: "urn:a"}, []byte(document))
	require.NoError(t, err)
	return c
}

func violations(t *testing.T, c *compiled, args string) (lines []string) {
	t.Helper()
	err := c.check([]byte(args))
	if err == nil {
		return nil
	}
	require.Equal(t, "schema_validation", err.Code)
	for _, v := range err.Details["validation_errors"].([]jsonread.Violation) {
		lines = append(lines, v.Path+" "+v.Pointer+" "+v.Message)
	}
	return lines
}

func TestValidate(t *testing.T) {
	t.Parallel()
	array := compiledFrom(t, `{"type":"array","prefixItems":[{"type":"object","properties":{"to":{"type":"string"},"n":{"type":"integer","maximum":5}},"required":["to"]}],"minItems":1}`)
	require.Empty(t, violations(t, array, `[{"to":"x","n":5.0}]`))
	require.Equal(t, []string{"$.args  minItems: got 0, want 1"}, violations(t, array, `[]`))
	require.Equal(t, []string{"$.args[0].n /0/n maximum: got 6, want 5", "$.args[0].to /0/to got number, want string"}, violations(t, array, `[{"to":1,"n":6}]`))

	object := compiledFrom(t, `{"type":"object","properties":{"a b/~":{"type":"string"}},"required":["a b/~"],"additionalProperties":false}`)
	require.Empty(t, violations(t, object, `[{"a b/~":"x"}]`))
	require.Equal(t, []string{`$.args[0]["a b/~"] /0/a b~1~0 got number, want string`}, violations(t, object, `[{"a b/~":1}]`))
	require.Equal(t, []string{`$.args[0] /0 missing property 'a b/~'`}, violations(t, object, `[{}]`))
	require.Len(t, violations(t, object, `[]`), 1)
	require.Len(t, violations(t, object, `[{"a b/~":"x"},2]`), 1)

	seven := compiledFrom(t, `{"$schema":"http://json-schema.org/draft-07/schema#","items":[{"type":"string","format":"email"}],"additionalItems":false}`)
	require.Empty(t, violations(t, seven, `["a@example.com"]`))
	require.Len(t, violations(t, seven, `["a"]`), 1)
	require.Len(t, violations(t, seven, `["a@example.com",2]`), 1)
	require.Empty(t, violations(t, compiledFrom(t, `{"items":{"format":"email"}}`), `["a"]`), "2020-12: an annotation")

	recursive := compiledFrom(t, `{"$defs":{"n":{"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#/$defs/n"}}},"unevaluatedProperties":false}},"items":{"$ref":"#/$defs/n"}}`)
	require.Empty(t, violations(t, recursive, `[{"c":[{},{"c":[]}]}]`))
	require.Len(t, violations(t, recursive, `[{"c":[{},{"d":[]}]}]`), 1)
}

func TestViolationsAreBounded(t *testing.T) {
	t.Parallel()
	c := compiledFrom(t, `{"items":{"enum":["`+strings.Repeat(`x","`, 1000)+`"]}}`)
	lines := violations(t, c, `[`+strings.Repeat(`1,`, 100)+`1]`)
	require.Len(t, lines, jsonread.MaxProblems)
	require.Less(t, len(lines[0]), 400)
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for document, want := range map[string]string{
		`{"type":"strin"}`:                                               "at $.schema.type: ",
		`{"properties":[]}`:                                              "at $.schema.properties: ",
		`{"$ref":"https://example.com/s.json"}`:                          "never fetched",
		`{"$ref":"other.json"}`:                                          "never fetched",
		`{"$ref":"#/$defs/missing"}`:                                     "#/$defs/missing",
		`{"$schema":"https://example.com/meta"}`:                         "$schema",
		`{"pattern":"("}`:                                                "",
		`{"pattern":"(?=x)"}`:                                            "",
		`{"pattern":"(((a{30}){30}){1,20}){5}"}`:                         "",
		`{"maximum":1e999999}`:                                           "too many digits",
		`{"const":` + strings.Repeat("9", 500) + `}`:                     "too many digits",
		strings.Repeat(`{"not":`, 100) + `{}` + strings.Repeat(`}`, 100): "levels deep",
		`{"anyOf":[` + strings.Repeat(`{},`, 6000) + `{}]}`:              "objects",
		`{"anyOf":[` + strings.Repeat(`{"$ref":"#/$defs/a"},`, 1001) + `{}],"$defs":{"a":{}}}`: "references",
	} {
		_, err := compile(Info{}, []byte(document))
		require.ErrorContains(t, err, want, "%.60s", document)
		require.Less(t, len(err.Error()), 600, "%.60s", document)
	}
}

// docs/reference/schemas.md, Documents: 10 000 steps for a pattern, and 200 000 for all patterns of a schema.
func TestPatternsHaveSoManySteps(t *testing.T) {
	t.Parallel()
	const most = `{"pattern":"a{1000}a{1000}a{1000}a{1000}a{999}b"}` // 1 for the sequence, 2 for each repetition of a letter, 1 for a letter
	for document, ok := range map[string]bool{
		most: true,
		`{"pattern":"a{1000}a{1000}a{1000}a{1000}a{1000}"}`:                                     false,
		`{"allOf":[` + strings.Repeat(most+",", 19) + most + `]}`:                               true,
		`{"allOf":[` + strings.Repeat(most+",", 19) + most + `,{"pattern":"a"}]}`:               false,
		`{"allOf":[` + strings.Repeat(`{"pattern":"a{500}"},`, 199) + `{"pattern":"a{499}b"}]}`: true,
	} {
		_, err := compile(Info{}, []byte(document))
		if ok {
			require.NoError(t, err, "%.60s", document)
		} else {
			require.ErrorContains(t, err, "patterns repeat too much", "%.60s", document)
		}
	}
}

func TestCompileIsBounded(t *testing.T) {
	t.Parallel()
	for name, document := range map[string]string{
		"objects":  `{"allOf":[` + strings.Repeat(`{"items":{"not":{"type":"null","minLength":1}}},`, 1600) + `{}]}`,
		"patterns": `{"allOf":[` + strings.Repeat(`{"pattern":"((a{30}){30})b"},`, 4900) + `{}]}`,
		"chain":    `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`,
		"numbers":  `{"enum":[` + strings.Repeat(`1e400,`, 30_000) + `1]}`,
		"meta":     `{"$ref":"https://json-schema.org/draft/2020-12/schema"}`,
	} {
		began := time.Now()
		c, err := compile(Info{URI: "urn:a"}, []byte(document))
		t.Logf("%s: %v %.100v", name, time.Since(began), err)
		require.Less(t, time.Since(began), 2*time.Minute, name) // without the budget: minutes to years
		if err == nil {
			t.Log(c.check([]byte(`[1e400,{"type":1}]`)))
		}
	}
}

// TestCheckIsBounded checks hostile schemas, each of which would take from minutes to years.
func TestCheckIsBounded(t *testing.T) {
	t.Parallel()
	var chain strings.Builder
	for i := range 60 {
		fmt.Fprintf(&chain, `"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]},`, i, i+1, i+1)
	}
	deep := strings.Repeat(`[`, 60) + strings.Repeat(`]`, 60)
	many := `[` + strings.Repeat(`7,`, 400_000) + `7]`
	words := `["` + strings.Repeat(`x","`, 20_000) + `"]`
	double := `{"$ref":"#/$defs/a"`
	for name, c := range map[string]struct{ schema, args string }{
		"chain":          {`{"$defs":{` + chain.String() + `"a60":{"type":"array"}},"$ref":"#/$defs/a0"}`, `[]`},
		"chain fails":    {`{"$defs":{` + chain.String() + `"a60":{"type":"string"}},"$ref":"#/$defs/a0"}`, `[]`},
		"doubled":        {`{"$defs":{"a":{"contains":{"$ref":"#/$defs/a"},"items":{"$ref":"#/$defs/a"}}},` + double[1:] + `}`, deep},
		"doubled in not": {`{"$defs":{"a":{"minItems":1,"contains":{"$ref":"#/$defs/a"},"items":{"$ref":"#/$defs/a"}}},"not":` + double + `}}`, deep},
		"draft 7":        {`{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"a":{"contains":{"$ref":"#/definitions/a"},"items":{"$ref":"#/definitions/a"}}},"allOf":[{"$ref":"#/definitions/a"}]}`, deep},
		"failing items":  {`{"items":{"anyOf":[` + strings.Repeat(`{"type":"string"},`, 2000) + `{"type":"null"}]}}`, many},
		"enum":           {`{"items":{"enum":[` + strings.Repeat(`1000001,`, 30_000) + `2]}}`, many},
		"pattern":        {`{"items":{"pattern":"(x+x+)+y{1,900}"}}`, `["` + strings.Repeat("x", 1_000_000) + `"]`},
		"patterns":       {`{"items":{"patternProperties":{` + strings.Repeat(`"a":{},`, 1) + `"b":{}}}}`, words},
		"dynamic":        {`{"$dynamicAnchor":"n","contains":{"$dynamicRef":"#n"},"items":{"$dynamicRef":"#n"}}`, deep},
		"unevaluated":    {`{"$defs":{"a":{"unevaluatedItems":{"$ref":"#/$defs/a"},"contains":{"$ref":"#/$defs/a"}}},` + double[1:] + `}`, deep},
	} {
		began := time.Now()
		compiled := compiledFrom(t, c.schema)
		compileTook := time.Since(began)
		began = time.Now()
		err := compiled.check([]byte(c.args))
		took := time.Since(began)
		t.Logf("%s: compile %v, check %v, left %d, %.80v", name, compileTook, took, compiled.meter.left, err)
		require.Less(t, took, 2*time.Minute, name) // without the budget: minutes to years
		if name != "patterns" {
			require.ErrorContains(t, err, "too long", name)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	t.Parallel()
	sorted := []string{"0", "1", "1.0", "1.0.9", "1.0.10", "2", "10", "010a", "v1", "v2", "v10", "v10-a"}
	for i, a := range sorted {
		for j, b := range sorted {
			require.Equal(t, i < j, compareVersions(a, b) < 0, "%s %s", a, b)
			require.Equal(t, i > j, compareVersions(a, b) > 0, "%s %s", a, b)
		}
	}
}
