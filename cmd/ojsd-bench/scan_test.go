package main

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestJobID(t *testing.T) {
	t.Parallel()
	const text = "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"

	t.Run("ReadsAndWrites", func(t *testing.T) {
		t.Parallel()
		id, err := parseID([]byte(text))
		require.NoError(t, err)
		require.Equal(t, text, id.String())
		require.Equal(t, byte(0x01), id[0])
		require.Equal(t, byte(0x5f), id[15])
	})

	t.Run("RejectsWhatIsNoUUID", func(t *testing.T) {
		t.Parallel()
		for _, bad := range []string{"", "x", text[:35], text + "0", "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5g", "019a3c1005a00-7b11-9c22-0a1b2c3d4e5f"} {
			_, err := parseID([]byte(bad))
			require.ErrorIs(t, err, errScan, bad)
		}
	})
}

func TestMember(t *testing.T) {
	t.Parallel()
	object := []byte(` { "args" : [ {"id":"no"}, "}", "\"id\":" ], "n":-1.5e3, "id":"yes\\", "none":null,"job" :{"id":"in\"ner"} , "t":true }`)
	for name, want := range map[string]string{
		"args": `[ {"id":"no"}, "}", "\"id\":" ]`, "n": `-1.5e3`, "id": `"yes\\"`, "none": "null",
		"job": `{"id":"in\"ner"}`, "t": "true", "absent": "",
	} {
		got, err := member(object, name)
		require.NoError(t, err, name)
		require.Equal(t, want, string(got), name)
	}
}

func TestAppendIDs(t *testing.T) {
	t.Parallel()
	const id = "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f"

	t.Run("ReadsEmptyList", func(t *testing.T) {
		t.Parallel()
		ids, err := appendIDs(nil, []byte(`{"jobs":[]}`), "jobs")
		require.NoError(t, err)
		require.Empty(t, ids)
	})

	t.Run("SkipsIDsInsideArgs", func(t *testing.T) {
		t.Parallel()
		ids, err := appendIDs(nil, []byte(`{"jobs":[{"args":[{"id":"x"}],"id":"`+id+`"}, {"meta":{"id":1},"id":"`+id+`"}]}`), "jobs")
		require.NoError(t, err)
		require.Len(t, ids, 2)
	})

	t.Run("RejectsWhatItCannotRead", func(t *testing.T) {
		t.Parallel()
		for _, bad := range []string{
			``, `null`, `{}`, `{"jobs":null}`, `{"jobs":{}}`, `{"jobs":[{}]}`, `{"jobs":[{"id":5}]}`, `{"jobs":[{"id":null}]}`,
			`{"jobs":[{"id":"` + id + `"}`, `{"jobs":[{"id":"` + id, `{"jobs":[7]}`, `{"jobs":["`, `{"jobs":[,]}`, `{"jobs"`, `{"jobs" 1}`,
		} {
			_, err := appendIDs(nil, []byte(bad), "jobs")
			require.ErrorIs(t, err, errScan, bad)
		}
	})
}

// TestMemberAgreesWithEncodingJSON compares every member of random objects.
func TestMemberAgreesWithEncodingJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		object := rapid.MapOf(rapid.StringMatching(`[a-z_]{0,8}`), jsonValue(3)).Draw(t, "object")
		var text []byte
		var err error
		if rapid.Bool().Draw(t, "indented") {
			text, err = json.MarshalIndent(object, " ", "\t")
		} else {
			text, err = json.Marshal(object)
		}
		require.NoError(t, err)
		for name, want := range object {
			raw, err := member(text, name)
			require.NoError(t, err)
			wantText, err := json.Marshal(want)
			require.NoError(t, err)
			require.JSONEq(t, string(wantText), string(raw))
		}
		if list, ok := object["a"].([]any); ok {
			raw, err := member(text, "a")
			require.NoError(t, err)
			n := 0
			require.NoError(t, elements(raw, func([]byte) error { n++; return nil }))
			require.Equal(t, len(list), n)
		}
	})
}

func jsonValue(depth int) *rapid.Generator[any] {
	scalars := rapid.OneOf(
		rapid.Just(any(nil)), rapid.Bool().AsAny(), rapid.Float64Range(-1e9, 1e9).AsAny(), rapid.Int().AsAny(),
		rapid.String().AsAny(), rapid.StringMatching(`["\\{}\[\],: ]{0,9}`).AsAny(),
	)
	if depth == 0 {
		return scalars
	}
	return rapid.OneOf(scalars,
		rapid.SliceOfN(jsonValue(depth-1), 0, 4).AsAny(),
		rapid.MapOfN(rapid.String(), jsonValue(depth-1), 0, 4).AsAny())
}

// FuzzScan: whatever a server sends, the scanner ends and stays inside it.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{`{"jobs":[{"id":"a\\\""}]}`, `{"jobs"`, `{"a":"\\`, `{"jobs":[[[`, `{"jobs":[1 2]}`, `{,}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, err := appendIDs(nil, text, "jobs")
		require.True(t, err == nil || errors.Is(err, errScan))
		_, _, _ = readEvents(text, func(jobID) {})
	})
}
