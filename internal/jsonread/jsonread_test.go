package jsonread

import (
	"bytes"
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ojsd/ojsd/ojs"
)

func TestCheckAccepts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{}`, " \t\r\n{ } \n", `{"a":1,"a":2}`, `{"a":"\ud800"}`, `{"\ud800":1}`, `{"a":"\u0000"}`, `{"a":1e999999}`, `{"é":"😀"}`} {
		v, err := Check([]byte(text))
		require.Nil(t, err, text)
		require.Equal(t, strings.TrimSpace(text), string(v))
	}
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	for text, say := range map[string]string{
		"":                               "empty",
		" \n":                            "empty",
		"\xef\xbb\xbf{}":                 "byte order mark",
		"[]":                             "got an array",
		`"x"`:                            "got a string",
		"5":                              "got a number",
		"null":                           "got null",
		"true":                           "got a boolean",
		"{}{}":                           "after its JSON value",
		"{} x":                           "after its JSON value",
		"{\"a\":\"\xff\"}":               "UTF-8",
		"\xff":                           "UTF-8",
		"{\"a\":\"\xed\xa0\x80\"}":       "UTF-8", // a surrogate in raw bytes
		`{"a":1`:                         "ends too early",
		`{"a"`:                           "ends too early",
		`{"a":1,}`:                       "not valid JSON",
		`{a:1}`:                          "not valid JSON",
		`{"a":01}`:                       "not valid JSON",
		`{"a":NaN}`:                      "not valid JSON",
		`{"a":'x'}`:                      "not valid JSON",
		"{\"a\":\"x\ny\"}":               "not valid JSON",
		"{\"a\":\"\x00\"}":               "not valid JSON",
		`{"a":"\x"}`:                     "not valid JSON",
		`{"a":1}` + "\x00":               "after its JSON value",
		strings.Repeat(`{"a":`, 100_000): "not valid JSON",
	} {
		_, err := Check([]byte(text))
		require.NotNil(t, err, "%.40q", text)
		require.Equal(t, "invalid_payload", err.Code)
		require.Contains(t, err.Message, say, "%.40q", text)
	}
}

func TestInt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "5": 5, "5.0": 5, "-5.000": -5, "1e2": 100, "1E+2": 100, "50e-1": 5, "1.5e1": 15, "0e999999999999999999999": 0, "0.0": 0,
		"9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63, "9223372036854775807.0": 1<<63 - 1, "0.00001e5": 1, "1000000000000000000e0": 1e18, "-1e18": -1e18,
	} {
		n, kind := Int(jsontext.Value(text))
		require.Equal(t, IsInt, kind, text)
		require.Equal(t, want, n, text)
	}
	for text, want := range map[string]IntResult{
		"9223372036854775808": TooLarge, "-9223372036854775809": TooLarge, "1e19": TooLarge, "1e999999999": TooLarge, "1e99999999999999999999": TooLarge, "123e-2": NotInt,
		"1.5": NotInt, "1e-1": NotInt, "1e-99999999999999999999": NotInt, `"5"`: NotInt, "null": NotInt, "true": NotInt, "[]": NotInt, "{}": NotInt, "": NotInt,
	} {
		v := jsontext.Value(text)
		if text == "" {
			v = nil
		}
		_, kind := Int(v)
		require.Equal(t, want, kind, text)
	}
}

// Int agrees with exact arithmetic.
func TestIntIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "number")
		exact, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Skip()
		}
		n, kind := Int(jsontext.Value(text))
		switch {
		case !exact.IsInt():
			require.Equal(t, NotInt, kind)
		case !exact.Num().IsInt64():
			require.Equal(t, TooLarge, kind)
		default:
			require.Equal(t, IsInt, kind)
			require.Equal(t, exact.Num().Int64(), n)
		}
	})
}

func TestDepth(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{`1`: 0, `"[["`: 0, `[]`: 1, `{}`: 1, `[[],[[]]]`: 3, `{"a":{"b":[]}}`: 3, `["\"[",[]]`: 2} {
		require.Equal(t, want, Depth(jsontext.Value(text)), text)
	}
}

func TestStorableText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`"a\u0000b"`: `"ab"`, `"a\\u0000b"`: `"a\\u0000b"`, `"\\\u0000"`: `"\\"`, `"\u0000\u0000"`: `""`, `"\u0001"`: `"\u0001"`, `{"\u0000k":"\n"}`: `{"k":"\n"}`,
		`"a\ud800b"`: `"a�b"`, `"\udc00"`: `"�"`, `{"\uD83D":1}`: `{"�":1}`, `"\ud83d\ude00"`: `"\ud83d\ude00"`, `"\ud83d\ud83d\ude00"`: `"�\ud83d\ude00"`,
		`"\\ud800"`: `"\\ud800"`, `"\u00e9\ud800"`: `"\u00e9�"`,
	} {
		require.Equal(t, want, string(StorableText([]byte(in))))
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	require.Nil(t, Show(nil))
	require.Equal(t, json.RawMessage(`{"a":1}`), Show(jsontext.Value(`{ "a" : 1 }`)))
	long := Show(jsontext.Value(`"` + strings.Repeat("é", 300) + `"`)).(string)
	require.LessOrEqual(t, len(long), shownBytes+len("…"))
	require.True(t, strings.HasSuffix(long, "é…"))
	require.Equal(t, json.RawMessage(`"`+strings.Repeat("x", shownBytes-2)+`"`), Show(jsontext.Value(`"`+strings.Repeat("x", shownBytes-2)+`"`)))
	require.Equal(t, `"`+strings.Repeat("x", shownBytes-1)+"…", Show(jsontext.Value(`"`+strings.Repeat("x", shownBytes-1)+`"`)))
}

func TestName(t *testing.T) {
	t.Parallel()
	for literal, want := range map[string]string{`"abc"`: "abc", `"a\u0062c"`: "abc", `""`: "", `"\""`: `"`, `"\ud800"`: "\ufffd", `"\ud83d\ude00"`: "😀"} {
		require.Equal(t, want, string(Name(jsontext.Value(literal))))
	}
}

// FuzzWalk compares the walk with encoding/json on everything that Check lets pass.
func FuzzWalk(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,2,{"b":null}],"c":"x\"y\\"}`, ` { "a" : [ ] , "b" : { } } `, `{"a":-1.5e+10,"a":true}`, `{"\u0000":"\ud800"}`, `{"a":"}],{"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, refused := Check(body)
		if (refused == nil) && !json.Valid(body) {
			t.Fatalf("accepted invalid JSON %q", body)
		}
		if refused != nil {
			return
		}
		var members map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(body, &members))
		seen := map[string]jsontext.Value{}
		for literal, value := range Members(v) {
			var name string
			require.NoError(t, json.Unmarshal(literal, &name))
			require.Equal(t, name, string(Name(literal)))
			seen[name] = value
		}
		require.Len(t, seen, len(members))
		for name, want := range members {
			require.Equal(t, string(bytes.TrimSpace(want)), string(seen[name]))
			if want[0] == '[' {
				var list []json.RawMessage
				require.NoError(t, json.Unmarshal(want, &list))
				i := 0
				for e := range Elements(seen[name]) {
					require.Equal(t, string(bytes.TrimSpace(list[i])), string(e))
					i++
				}
				require.Len(t, list, i)
			}
		}
		var compact bytes.Buffer
		require.NoError(t, json.Compact(&compact, body))
		require.Equal(t, compact.String(), string(Compact(v)))
	})
}

// TestHint: the hint of the first problem, or else that of its kind.
func TestHint(t *testing.T) {
	t.Parallel()
	var problems Problems
	problems.Add(ojs.ErrValidation, "a", "$.a", "an integer", jsontext.Value(`"x"`))
	ofKind := problems.Err().Hint
	require.NotEmpty(t, ofKind)
	problems.Hint("Send one.")
	require.Equal(t, "Send one.", problems.Err().Hint)
	problems.Add(ojs.ErrValidation, "b", "$.b", "an integer", jsontext.Value(`"x"`))
	problems.Hint("Send two.")
	require.Equal(t, "Send one.", problems.Err().Hint)
}
