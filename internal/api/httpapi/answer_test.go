package httpapi

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestObject(t *testing.T) {
	t.Parallel()

	t.Run("KeepsTheOrderAndLeavesOut", func(t *testing.T) {
		t.Parallel()
		id := [16]byte{1, 0x9a}
		at := time.Date(2026, 1, 2, 3, 4, 5, 6_999_999, time.FixedZone("", 3600))
		require.Equal(t, `{"z":"<&>`+"\u2028"+`","a":[{"n":1},{}],"raw":{"b": 1},"none":null,"text":null,"id":"019a0000-0000-0000-0000-000000000000","no_id":null,`+
			`"at":"2026-01-02T02:04:05.006Z","never":null,"f":0.1,"list":["x"]}`,
			string(object{
				{"z", "<&>\u2028"}, {"left_out", given("")}, {"a", []object{{{"n", 1}}, nil}}, {"raw", []byte(`{"b": 1}`)}, {"none", orNull(0)},
				{"text", pgtype.Text{}}, {"id", id}, {"no_id", (*[16]byte)(nil)}, {"at", at}, {"zero", time.Time{}}, {"never", pgtype.Timestamptz{}}, {"f", 0.1},
				{"list", []string{"x"}},
			}.append(nil)))
	})

	// Answers that the library encodes escape what it does, whether they hold structs, maps or objects.
	t.Run("IsEncodedLikeAStruct", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			var of struct {
				Text  string  `json:"text"`
				Float float64 `json:"float"`
				Int   int64   `json:"int"`
			}
			of.Text, of.Float, of.Int = rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.RuneFrom([]rune("<>&\u2028\u2029\"\\\x00\b\f\n\x1f\x7f")))).Draw(t, "text"), rapid.Float64().Draw(t, "float"), rapid.Int64().Draw(t, "int")
			want, err := json.Marshal(of)
			if err != nil {
				t.Skip(err)
			}
			got, err := json.Marshal(object{{"text", of.Text}, {"float", of.Float}, {"int", of.Int}})
			if err != nil || string(got) != string(want) {
				t.Fatalf("%s, want %s", got, want)
			}
		})
	})
}
