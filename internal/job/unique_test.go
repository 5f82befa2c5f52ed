package job

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/ojs"
)

func uniqueJob(unique string) string {
	return `{"type":"a","args":[{"month":"m","user":1},5,{"late":true}],"options":{"unique":` + unique + `}}`
}

var defaultUniqueStates = []ojs.JobState{"available", "active", "scheduled", "retryable", "pending"}

func TestUnique(t *testing.T) {
	t.Parallel()
	base := func(change func(*Unique)) Unique {
		u := Unique{Keys: []string{"type"}, States: defaultUniqueStates, OnConflict: "reject"}
		change(&u)
		return u
	}
	for text, want := range map[string]Unique{
		`{}`:                          base(func(*Unique) {}),
		`{"keys":null,"period":null}`: base(func(*Unique) {}),
		`{"keys":[]}`:                 base(func(*Unique) {}),
		`{"keys":["queue","args"]}`:   base(func(u *Unique) { u.Keys = []string{"queue", "args"} }),
		`{"keys":["args"],"args_keys":["month","0","late","1"]}`: base(func(u *Unique) { u.Keys, u.ArgsKeys = []string{"args"}, []string{"month", "0", "late", "1"} }),
		`{"keys":["args"],"args_keys":["02"]}`:                   base(func(u *Unique) { u.Keys, u.ArgsKeys = []string{"args"}, []string{"02"} }),
		`{"keys":["queue"],"args_keys":["no such name"]}`:        base(func(u *Unique) { u.Keys, u.ArgsKeys = []string{"queue"}, []string{"no such name"} }),
		`{"keys":["meta"],"meta_keys":["region"]}`:               base(func(u *Unique) { u.Keys, u.MetaKeys = []string{"meta"}, []string{"region"} }),
		`{"period":"PT1H"}`:                                      base(func(u *Unique) { u.Period = time.Hour }),
		`{"period_ms":5}`:                                        base(func(u *Unique) { u.Period = 5 * time.Millisecond }),
		`{"period_ms":0}`:                                        base(func(*Unique) {}),
		`{"within":"30m"}`:                                       base(func(u *Unique) { u.Period = 30 * time.Minute }),
		`{"within":"PT30M","period":"PT1S"}`:                     base(func(u *Unique) { u.Period = time.Second }),
		`{"states":["completed"]}`:                               base(func(u *Unique) { u.States = []ojs.JobState{"completed"} }),
		`{"on_conflict":"use_existing"}`:                         base(func(u *Unique) { u.OnConflict = "ignore" }),
		`{"on_conflict":"replace_except_schedule"}`:              base(func(u *Unique) { u.OnConflict = "replace_except_schedule" }),
		`{"key":"invoice-81"}`:                                   base(func(u *Unique) { u.Text = "invoice-81" }),
		`{"key":[]}`:                                             base(func(*Unique) {}),
		`{"key":["type","queue","args"]}`:                        base(func(u *Unique) { u.Keys = []string{"type", "queue", "args"} }),
		`{"key":["month"]}`:                                      base(func(u *Unique) { u.Keys, u.ArgsKeys = []string{"type", "args"}, []string{"month"} }),
		`{"key":["queue","user","month"]}`:                       base(func(u *Unique) { u.Keys, u.ArgsKeys = []string{"type", "args", "queue"}, []string{"user", "month"} }),
		`{"keys":["queue"],"key":["nonsense",5]}`:                base(func(u *Unique) { u.Keys = []string{"queue"} }),
	} {
		require.Equal(t, want, *accept(t, uniqueJob(text)).Unique, text)
	}
	require.Nil(t, accept(t, job()).Unique)
	key := strings.Repeat("0", 64)
	require.Nil(t, accept(t, job(`"unique_key":"`+key+`"`)).Unique, "a key alone is no policy")
	require.Equal(t, key, accept(t, job(`"unique":{}`, options(`"unique_key":"`+key+`"`))).Unique.Key)
}

func TestUniqueRefuses(t *testing.T) {
	t.Parallel()
	for text, field := range map[string]string{
		`{"keys":"type"}`: "unique.keys", `{"keys":["type","type"]}`: "unique.keys", `{"keys":["Type"]}`: "unique.keys", `{"keys":[1]}`: "unique.keys", `{"keys":["tags"]}`: "unique.keys",
		`{"args_keys":5}`: "unique.args_keys", `{"args_keys":[""]}`: "unique.args_keys", `{"args_keys":["a","a"]}`: "unique.args_keys",
		`{"keys":["args"],"args_keys":["nope"]}`: "unique.args_keys", `{"keys":["args"],"args_keys":["3"]}`: "unique.args_keys", `{"key":["nope"]}`: "unique.args_keys",
		`{"keys":["args"],"args_keys":["99999999999999999999"]}`: "unique.args_keys", `{"keys":["args"],"args_keys":["+1"]}`: "unique.args_keys",
		`{"keys":["meta"]}`: "unique.meta_keys", `{"keys":["meta"],"meta_keys":[]}`: "unique.meta_keys", `{"key":["type","meta"]}`: "unique.meta_keys", `{"meta_keys":[1]}`: "unique.meta_keys",
		`{"period":"1h"}`: "unique.period", `{"period":"PT0S"}`: "unique.period", `{"period":5}`: "unique.period", `{"period":"P36501D"}`: "unique.period",
		`{"period_ms":-1}`: "unique.period_ms", `{"period_ms":"5"}`: "unique.period_ms", `{"period_ms":99999999999999}`: "unique.period_ms", `{"within":"soon"}`: "unique.within", `{"within":"0s"}`: "unique.within",
		`{"states":[]}`: "unique.states", `{"states":["running"]}`: "unique.states", `{"states":"active"}`: "unique.states", `{"states":["active","active"]}`: "unique.states",
		`{"on_conflict":"merge"}`: "unique.on_conflict", `{"on_conflict":5}`: "unique.on_conflict",
		`{"key":""}`: "unique.key", `{"key":5}`: "unique.key", `{"key":["a\u0000"]}`: "unique.key", `{"key":["queue","queue"]}`: "unique.key", `{"key":{}}`: "unique.key", `{"key":"a\u0000"}`: "unique.key",
		`{"kees":["type"]}`: "unique.kees",
	} {
		e := refuse(t, uniqueJob(text))
		require.Equal(t, 400, stage(e), text)
		require.Equal(t, "invalid_payload", e.Type, text)
		require.Equal(t, field, e.Details["field"], text)
		require.Equal(t, "$.options."+field, e.Details["validation_errors"].([]jsonread.Violation)[0].Path, text)
	}
	require.Contains(t, refuse(t, uniqueJob(`{"keys":["meta"]}`)).Message, "the names of the meta members that count")
	require.Contains(t, refuse(t, uniqueJob(`{"keys":["meta"],"meta_keys":[]}`)).Message, "a non-empty array")
}

// Names are looked up in one pass, so that neither many names nor many arguments cost more than their size: looking
// each one up would take hours here, and the test would end by its time limit.
func TestUniqueResolvesInLinearTime(t *testing.T) {
	t.Parallel()
	names, args := make([]string, 100_000), make([]string, 100_000)
	for i := range names {
		names[i] = fmt.Sprintf(`"n%d"`, len(names)-i)
		args[i] = fmt.Sprintf(`{"n%d":1}`, i+1)
	}
	body := `{"type":"a","args":[` + strings.Join(args, ",") + `],"unique":{"keys":["args"],"args_keys":[` + strings.Join(names, ",") + `]}}`
	j, err := DecodeJob([]byte(body), Limits{MaxJobBytes: 10 << 20})
	require.Nil(t, err)
	require.Len(t, j.Unique.ArgsKeys, len(names))
}
