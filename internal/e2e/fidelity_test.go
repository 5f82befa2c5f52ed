package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFidelity covers docs/reference/jobs.md, Unknown attributes.
func TestFidelity(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for name, value := range map[string]string{
		"Beyond53Bits":   `9007199254740993`,
		"OneAndOnePoint": `[1,1.0,1.00,1e0,1E+0,-0,-0.0,0.1e1]`,
		"HugeNumbers":    `[1e400,-1e-400,123456789012345678901234567890.123456789]`,
		"ManyDigits":     repeated('9', 5000),
		"KeyOrder":       `{"z":1,"a":2,"Z":3,"":4,"a ":5}`,
		"EqualKeys":      `{"a":1,"a":2}`,
		"NUL":            `["\u0000","a\u0000b"]`,
		"LoneSurrogates": `["\ud800","\udc00x","\udc00\ud800"]`,
		"Escapes":        `["\/","\u0041","\uD83D\uDE00","\n","\\u0000","\""]`,
		"RawText":        `["😀","é","é",""," "]`,
		"Reference":      `{"__ojs_ref":{"url":"s3://x"}}`,
		"HTML":           `"<script>&amp;</script>"`,
		"SQL":            `"'; DROP TABLE ojs.jobs; --"`,
		"Literals":       `[true,false,null,{},[]]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := a.in(t)
			q := queue()
			body := fmt.Sprintf(`{"type":"t","queue":"%s","args":[%s],"meta":{"m":%s},"x_value":%s,"options":{"x_option":%s}}`, q, value, value, value, value)
			pushed := a.post("/ojs/v1/jobs", body, "OJS-Version: 1.0").is(201)
			id := pushed.at("job.id")
			same := func(r reply) {
				t.Helper()
				require.Contains(t, r.body, `"args":[`+value+`]`)
				require.Contains(t, r.body, `"meta":{"m":`+value+`}`)
				require.Contains(t, r.body, `"x_value":`+value)
				require.Contains(t, r.body, `"x_option":`+value)
			}
			same(pushed)
			same(a.job(id))
			same(a.fetch(q))
			same(a.get("/ojs/v1/jobs?queue=" + q))
			same(a.nack(id, `"error":{"message":"m","details":{"d":`+value+`}},"requeue":false`).is(200))
			require.Contains(t, a.job(id).body, `"details":{"d":`+value+`}`)

			other := a.push(`"type":"t","args":[],"queue":"%s"`, q)
			require.Equal(t, other, a.fetch(q).at("jobs.0.id"))
			acked := a.ack(other, `"result":{"r":`+value+`}`).is(200)
			require.Contains(t, acked.body, `"result":{"r":`+value+`}`)
			require.Contains(t, a.job(other).body, `"result":{"r":`+value+`}`)

			batch := a.post("/ojs/v1/jobs/batch", `{"jobs":[`+body+`]}`).is(201)
			same(batch)
			same(a.post("/ojs/v1/jobs/bulk", `{"jobs":[`+body+`]}`).is(201))
			same(a.post("/ojs/v1/jobs/bulk", `{"atomicity":"atomic","jobs":[`+body+`]}`).is(201))
		})
	}

	t.Run("AnyResult", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, result := range []string{`null`, `0`, `""`, `false`, `[]`, `{}`, `1.0`, `"x"`} {
			id := a.jobIn("active")
			require.Equal(t, result, raw(a.ack(id, `"result":`+result).is(200), "result"))
			require.Equal(t, result, raw(a.job(id), "result"))
		}
		id := a.jobIn("active")
		require.False(t, a.ack(id).is(200).has("job.result"))
		require.False(t, a.job(id).has("job.result"))
	})
}

// raw is the text of a member of the job.
func raw(r reply, member string) string {
	text := r.at("job." + member)
	if strings.Contains(r.body, `"`+member+`":"`) {
		return `"` + text + `"`
	}
	return text
}
