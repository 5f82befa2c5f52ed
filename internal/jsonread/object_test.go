package jsonread

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

func TestObject(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T, text string, names ...string) Object {
		t.Helper()
		o, err := OpenBody([]byte(text), names...)
		require.Nil(t, err)
		return o
	}
	paths := func(err *ojs.Error) (list []string) {
		for _, v := range err.Details["validation_errors"].([]Violation) {
			list = append(list, v.Path)
		}
		return list
	}

	t.Run("TellsAbsentNullAndGivenApart", func(t *testing.T) {
		t.Parallel()
		o := open(t, `{"null":null,"twice":1,"twice":2,"\u0067iven":0,"other":5,"other":6}`, "absent", "null", "twice", "given")
		for name, want := range map[string]string{"absent": "", "null": "null", "twice": "2", "given": "0"} {
			v, sent := o.Sent(name)
			require.Equal(t, want, string(v), name)
			require.Equal(t, want != "", sent, name)
		}
		require.Nil(t, o.Get("null"))
		require.Len(t, o.Others, 2)
		require.Panics(t, func() { o.Get("other") })
		o = open(t, `{"a":null,"other":1}`, "a", "b")
		require.True(t, o.Empty())
		_, given := o.Integer("a", 0, 9, "an integer")
		require.False(t, given)
		require.False(t, o.Boolean("a"))
		require.Zero(t, o.Duration("b", "a duration", time.Second, time.Minute))
		require.Nil(t, o.Err())
	})

	t.Run("CollectsProblemsOfTheWholeBodyInOrder", func(t *testing.T) {
		t.Parallel()
		o := open(t, `{"n":10,"inner":{"d":"PT0.5S","deep":5,"x":1},"flag":"true","text":"a"}`, "n", "inner", "flag", "text")
		o.Integer("n", 0, 9, "an integer from 0 to 9")
		inner, ok := o.OpenMember("inner", "an object", "d", "deep")
		require.True(t, ok)
		inner.RefuseOthers("absent")
		inner.Duration("d", "a duration from PT1S to PT1M", time.Second, time.Minute)
		_, ok = inner.OpenMember("deep", "an object")
		require.False(t, ok)
		_, ok = o.OpenMember("text", "an object", "a")
		require.False(t, ok)
		o.Boolean("flag")
		err := o.Err()
		require.Equal(t, []string{"$.n", "$.inner.x", "$.inner.d", "$.inner.deep", "$.text", "$.flag"}, paths(err))
		require.Equal(t, "n", err.Details["field"])
		require.Equal(t, "'n' must be an integer from 0 to 9, got 10.", err.Message)
	})

	t.Run("TakesTheBoundsOfARange", func(t *testing.T) {
		t.Parallel()
		for value, want := range map[string]int64{`1`: 0, `2`: 2, `9`: 9, `10`: 0, `2.5`: 0, `9223372036854775808`: 0} {
			o := open(t, `{"n":`+value+`}`, "n")
			n, given := o.Integer("n", 2, 9, "an integer from 2 to 9")
			require.Equal(t, want, n, value)
			require.Equal(t, want != 0, given, value)
			require.Equal(t, want != 0, o.Err() == nil, value)
		}
		for value, taken := range map[string]bool{`"PT0.999S"`: false, `"PT1S"`: true, `"1m"`: true, `"PT60.001S"`: false, `"soon"`: false, `1`: false} {
			o := open(t, `{"d":`+value+`}`, "d")
			o.Duration("d", "a duration from PT1S to PT1M", time.Second, time.Minute)
			require.Equal(t, taken, o.Err() == nil, value)
		}
	})

	t.Run("NamesMembersByTheirPlace", func(t *testing.T) {
		t.Parallel()
		var ps Problems
		o := OpenAt(jsontext.Value(`{"a":1}`), "unique", "$.options.unique", &ps, "a")
		o.Text("a", "a string", nil)
		require.Equal(t, "unique.a", ps.Err().Details["field"])
		require.Equal(t, []string{"$.options.unique.a"}, paths(ps.Err()))
	})

	t.Run("RefusesFormBeforeWhatComesLater", func(t *testing.T) {
		t.Parallel()
		o := open(t, `{"confirm":false,"a":null}`, "confirm", "a")
		o.Confirm("changes all")
		o.Problems().Later(spec.Validation("a", nil, "second"))
		require.Equal(t, "'confirm' must be true: this changes all.", o.Err().Message)
		o.Need("a", "a number")
		_, sent := o.Sent("a")
		require.False(t, sent, "refused once")
		require.Equal(t, "'a' is required: send a number.", o.Err().Message)
		o = open(t, `{"confirm":1}`, "confirm")
		o.Confirm("changes all")
		require.Equal(t, []string{"$.confirm"}, paths(o.Err()))
		o = open(t, `{"confirm":true}`, "confirm")
		o.Confirm("changes all")
		require.Nil(t, o.Err())
	})
}
