package queue

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
)

// decoded is a job as a client sends it.
func decoded(t *testing.T, body string) *job.Job {
	t.Helper()
	j, err := job.DecodeJob([]byte(body), job.Limits{MaxJobBytes: 10 << 20})
	require.Nil(t, err, body)
	return j
}

// The vectors of the specification.
func TestKey(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]struct{ text, key string }{
		`{"type":"report.build","queue":"reports","args":[{"fmt":"pdf","month":"2026-02"}],"options":{"unique":{"keys":["queue","args"],"args_keys":["month"]}}}`: {
			`{"args":{"month":"2026-02"},"queue":"reports","type":"report.build"}`,
			"25ff5fcbd5f0436a2ed461f767b9ace63b0d48d305d7f7cb3785c77516d15723",
		},
		`{"type":"demo.unique","args":[{"b":[true,null,"cafe\u0301"],"a":1.0}],"unique":{"keys":["type","args"]}}`: {
			`{"args":[{"a":1,"b":[true,null,"café"]}],"type":"demo.unique"}`,
			"1432de367a46476d4323b00ec89793c96460f2691b670e799dc4a71694c6a1cf",
		},
		`{"type":"index.refresh","args":[],"meta":{"region":"eu-1","other":2},"unique":{"keys":["meta"],"meta_keys":["region"]}}`: {
			`{"meta":{"region":"eu-1"},"type":"index.refresh"}`,
			"ebb6573adb3ef4d5ae375ac2b73fb2e9d7b1903ca2eb9fbb226f900c8533dd88",
		},
	} {
		j := decoded(t, body)
		require.Equal(t, want.text, string(appendCanonical(nil, identity(j))))
		require.Equal(t, want.key, uniqueKey(j))
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	const args = `[{"month":"m","user":1,"user":2},5,{"late":true,"user":3,"7":"member"}]`
	for policy, want := range map[string]string{
		`{}`:                                         `{"type":"a"}`,
		`{"keys":["queue"]}`:                         `{"queue":"default","type":"a"}`,
		`{"keys":["type","queue"]}`:                  `{"queue":"default","type":"a"}`,
		`{"key":"invoice-81"}`:                       `{"key":"invoice-81","type":"a"}`,
		`{"keys":["args"]}`:                          `{"args":[{"month":"m","user":2},5,{"7":"member","late":true,"user":3}],"type":"a"}`,
		`{"key":["user","late"]}`:                    `{"args":{"late":true,"user":2},"type":"a"}`,
		`{"key":["1","02"]}`:                         `{"args":{"02":{"7":"member","late":true,"user":3},"1":5},"type":"a"}`,
		`{"key":["type","queue"]}`:                   `{"queue":"default","type":"a"}`,
		`{"key":["meta","0"],"meta_keys":["x","y"]}`: `{"args":{"0":{"month":"m","user":2}},"meta":{"x":"1","y":null},"type":"a"}`,
	} {
		j := decoded(t, `{"type":"a","args":`+args+`,"meta":{"x":"1","z":"2"},"unique":`+policy+`}`)
		require.Equal(t, want, string(appendCanonical(nil, identity(j))), policy)
	}

	key := strings.Repeat("0f", 32)
	require.Equal(t, key, uniqueKey(decoded(t, `{"type":"a","args":[],"unique_key":"`+key+`","unique":{"keys":["args"]}}`)))
	require.Equal(t, int64(0x0f0f0f0f0f0f0f0f), lockOf(key))
	require.Equal(t, int64(-1), lockOf(strings.Repeat("f", 64)))
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`[1.0, 1e2, -0, -0.0, 0e5, 1E-7, 4.50, 2e-3, 0.000001, 1e21, 333333333.33333329, 1e23]`:            `[1,100,0,0,0,1e-7,4.5,0.002,0.000001,1e+21,333333333.3333333,1e+23]`,
		`[9007199254740993, -9007199254740993, 9007199254740993.0, 123456789012345678901234567890, 1e400]`: `[9007199254740993,-9007199254740993,9007199254740993,123456789012345678901234567890,1e400]`,
		`"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/"`:                                                  `"€$\u000f\nA'B\"\\\\\"/"`,
		`"\b\f\n\r\t\u007f\u0000"`: "\"\\b\\f\\n\\r\\t\u007f\\u0000\"",
		// The order of the RFC is that of UTF-16, in which an emoji comes before a full-width letter.
		`{"\u20ac":1,"\r":2,"\uff21":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}`: "{\"\\r\":2,\"1\":4,\"\u0080\":6,\"ö\":7,\"€\":1,\"😀\":5,\"Ａ\":3}",
		`{"a":{"c":1,"b":[]},"a":2}`:                         `{"a":2}`,
		`{"e\u0301":1,"é":2}`:                                `{"é":2}`,
		`["\u1e9b\u0323","\u212b"]`:                          `["ẛ̣","Å"]`,
		`["\ud800","\uDFFFx","\ud83d\ud83d\ude00","\ud7ff"]`: "[\"\\ud800\",\"\\udfffx\",\"\\ud83d😀\",\"\ud7ff\"]",
		` { "z" : [ true , false , null ] } `:                `{"z":[true,false,null]}`,
	} {
		got := string(appendCanonical(nil, []byte(strings.TrimSpace(in))))
		require.Equal(t, want, got, in)
		require.Equal(t, got, string(appendCanonical(nil, []byte(got))), "the form of a canonical text is itself")
	}
}

// Names are looked up in one pass: looking each one up would take hours here.
func TestArgsKeysInLinearTime(t *testing.T) {
	t.Parallel()
	names, args := make([]string, 50_000), make([]string, 50_000)
	for i := range names {
		names[i] = fmt.Sprintf(`"n%d"`, len(names)-i)
		args[i] = fmt.Sprintf(`{"n%d":1}`, i+1)
	}
	j := decoded(t, `{"type":"a","args":[`+strings.Join(args, ",")+`],"unique":{"keys":["args"],"args_keys":[`+strings.Join(names, ",")+`]}}`)
	require.Len(t, uniqueKey(j), 64)
}
