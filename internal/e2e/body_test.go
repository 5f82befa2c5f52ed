package e2e_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestBodies covers docs/reference/http.md, Bodies.
func TestBodies(t *testing.T) {
	t.Parallel()
	a := setup(t)
	routes := map[string]string{ // with a body that is good
		"/ojs/v1/jobs":               `{"type":"t","args":[]}`,
		"/ojs/v1/jobs/batch":         `{"jobs":[{"type":"t","args":[]}]}`,
		"/ojs/v1/jobs/bulk":          `{"jobs":[{"type":"t","args":[]}]}`,
		"/ojs/v1/jobs/bulk/cancel":   `{"job_ids":["x"]}`,
		"/ojs/v1/workers/fetch":      `{"queues":["none"]}`,
		"/ojs/v1/workers/ack":        `{"job_id":"x"}`,
		"/ojs/v1/workers/nack":       `{"job_id":"x","error":{}}`,
		"/ojs/v1/workers/ack/batch":  `{"acks":[{"job_id":"x"}]}`,
		"/ojs/v1/workers/nack/batch": `{"nacks":[{"job_id":"x","error":{}}]}`,
		"/ojs/v1/workers/heartbeat":  `{"worker_id":"w"}`,
	}

	t.Run("MustBeOneObject", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for path, good := range routes {
			for name, body := range map[string]string{
				"empty": "", "blank": " \r\n\t", "array": "[" + good + "]", "string": `"x"`, "number": "1", "null": "null", "true": "true",
				"trailing data": good + "{}", "trailing comma": good + ",", "trailing garbage": good + " x", "two": good + "\n" + good,
				"BOM": "\xef\xbb\xbf" + good, "UTF-16": "\xff\xfe{\x00}\x00", "cut": good[:len(good)-1], "single quotes": `{'a':1}`,
				"comment": good + "//", "invalid UTF-8": strings.Replace(good, `{"`, `{"x":"`+"\xff"+`","`, 1),
				"invalid UTF-8 in a name": strings.Replace(good, `{"`, `{"`+"\xc3"+`":1,"`, 1), "overlong UTF-8": strings.Replace(good, `{"`, `{"x":"`+"\xc0\x80"+`","`, 1),
				"bare control character": strings.Replace(good, `{"`, `{"x":"`+"\x01"+`","`, 1), "NaN": strings.Replace(good, `{"`, `{"x":NaN,"`, 1),
				"leading zero": strings.Replace(good, `{"`, `{"x":01,"`, 1), "bad escape": strings.Replace(good, `{"`, `{"x":"\x","`, 1),
				"a million brackets": repeated('[', 1_000_000), "deep": `{"x":` + repeated('[', 20_000) + repeated(']', 20_000) + "}",
			} {
				r := a.post(path, body)
				require.Equal(t, 400, r.status, "%s: %s: %.200s", path, name, r.body)
				require.Equal(t, "invalid_payload", r.at("error.code"), "%s: %s", path, name)
				require.Equal(t, "false", r.at("error.retryable"))
			}
			r := a.do("POST", path, nil).fails(400, "invalid_payload", "invalid_payload")
			require.Contains(t, r.at("error.message"), "empty")
		}
	})

	t.Run("WhiteSpaceAndOrderDoNotMatter", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).post("/ojs/v1/jobs", " \r\n\t{ \"args\" : [ 1 , { \"a\" : [ ] } ]\n, \"type\":\"t\" } \n", "OJS-Version: 1.0").is(201)
		require.Contains(t, r.body, `"args":[1,{"a":[]}]`)
		require.NotContains(t, r.body, " ")
	})

	t.Run("LastOfEqualNamesWins", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := a.post("/ojs/v1/jobs", `{"type":"a","args":[1],"type":"b","args":[2],"x":1,"x":2,"queue":"one","options":{"queue":"two"},"options":{"queue":"three"}}`, "OJS-Version: 1.0").is(201)
		require.Equal(t, "b", r.at("job.type"))
		require.Equal(t, "[2]", r.at("job.args"))
		require.Equal(t, "2", r.at("job.x"))
		require.Equal(t, "three", r.at("job.queue"))
		require.Equal(t, 1, strings.Count(r.body, `"x":`))
		// Escaped names are the same names.
		r = a.post("/ojs/v1/jobs", `{"type":"a","args":[],"t\u0079pe":"b"}`).is(201)
		require.Equal(t, "b", r.at("job.type"))
		a.post("/ojs/v1/workers/fetch", `{"queues":1,"queues":["none"]}`).is(200)
	})

	t.Run("NullIsAbsent", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"id":null,"queue":null,"meta":null,"priority":null,"schema":null,"timeout_ms":null,"timeout":null,
			"visibility_timeout_ms":null,"scheduled_at":null,"expires_at":null,"retry":null,"unique":null,"tags":null,"rate_limit":null,"max_attempts":null,
			"pending":null,"specversion":null,"options":null,"grace_period":null}`, "OJS-Version: 1.0").is(201)
		require.NotContains(t, r.body, "null")
		require.Equal(t, "default", r.at("job.queue"))
		a.post("/ojs/v1/jobs", `{"type":null,"args":[]}`).invalid("type")
		a.post("/ojs/v1/jobs", `{"type":"t","args":null}`).invalid("args")
		a.post("/ojs/v1/workers/fetch", `{"queues":["none"],"queue":null,"count":null,"worker_id":null,"visibility_timeout_ms":null,"wait_ms":null}`).is(200)
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w","active_jobs":null,"active_job_ids":null,"job_id":null,"visibility_timeout_ms":null,"state":null}`).is(200)
	})

	t.Run("NestingIsBounded", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		nested := func(levels int) string { return repeated('[', levels) + repeated(']', levels) }
		object := func(levels int) string { return strings.Repeat(`{"a":`, levels-1) + "{}" + repeated('}', levels-1) }
		for _, c := range []struct{ field, format string }{
			{"args", `{"type":"t","args":[%s]}`},
			{"meta", `{"type":"t","args":[],"meta":{"a":%s}}`},
			{"x", `{"type":"t","args":[],"x":[%s]}`},
			{"x", `{"type":"t","args":[],"options":{"x":[%s]}}`},
		} {
			for _, shape := range []func(int) string{nested, object} {
				a.post("/ojs/v1/jobs", fmt.Sprintf(c.format, shape(31))).is(201)
				a.post("/ojs/v1/jobs", fmt.Sprintf(c.format, shape(32))).invalid(c.field)
			}
		}
		id := a.jobIn("active")
		a.ack(id, `"result":`+nested(33)).invalid("result")
		require.Equal(t, "active", a.job(id).at("job.state"))
		a.ack(id, `"result":`+nested(32)).is(200)
		// Brackets inside strings are no nesting.
		a.post("/ojs/v1/jobs", `{"type":"t","args":["`+repeated('[', 100)+`"]}`).is(201)
	})

	t.Run("IntegersMayBeWrittenWithFraction", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, five := range []string{"5", "5.0", "5e0", "50e-1", "0.5e1", "5.000"} {
			require.Equal(t, "5", a.post("/ojs/v1/jobs", `{"type":"t","args":[],"priority":`+five+`}`).is(201).at("job.priority"))
		}
		for _, bad := range []string{`"5"`, "5.5", "true", "[5]", "1e-1", "1e400", "9223372036854775808", "1e999999999", "-1e999999999"} {
			a.post("/ojs/v1/jobs", `{"type":"t","args":[],"priority":`+bad+`}`).invalid("priority")
			a.post("/ojs/v1/workers/fetch", `{"queues":["none"],"count":`+bad+`}`).invalid("count")
		}
	})

	t.Run("RangesNeverOverflow", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, c := range []struct{ field, most string }{
			{"timeout_ms", "3153600000000"}, {"timeout", "3153600000"}, {"grace_period", "3153600000"}, {"enqueue_ttl", "3153600000"},
			{"visibility_timeout_ms", "604800000"}, {"visibility_timeout", "604800"},
		} {
			a.push(`"type":"t","args":[],"%s":%s`, c.field, c.most)
			for _, bad := range []string{c.most + "1", "-1", "1e30", "9223372036854775807", "9223372036854775808"} {
				a.post("/ojs/v1/jobs", fmt.Sprintf(`{"type":"t","args":[],"%s":%s}`, c.field, bad)).invalid(c.field)
			}
		}
		for _, bad := range []string{"P36501D", "P1000000000000000000Y", "PT99999999999999999999S", "36501d", "P9999999W"} {
			a.post("/ojs/v1/jobs", `{"type":"t","args":[],"scheduled_at":"`+bad+`"}`).invalid("scheduled_at")
		}
		a.push(`"type":"t","args":[],"scheduled_at":"P36500D"`)
		a.post("/ojs/v1/jobs", `{"type":"t","args":[],"retry":{"max_attempts":1e30}}`).fails(422, "validation_error", "validation_error")
		a.push(`"type":"t","args":[],"retry":{"max_attempts":9223372036854775807}`)
		a.post("/ojs/v1/workers/fetch", `{"queues":["none"],"visibility_timeout_ms":9223372036854775808}`).invalid("visibility_timeout_ms")
		a.post("/ojs/v1/workers/fetch", `{"queues":["none"],"count":9223372036854775807}`).is(200)
	})

	t.Run("NULStaysInJSONAndIsRefusedInPlainStrings", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		r := a.post("/ojs/v1/jobs", `{"type":"t","args":["a\u0000b",{"\u0000":1}],"meta":{"k\u0000":"\u0000"},"x\u0000y":"\u0000"}`, "OJS-Version: 1.0").is(201)
		for _, body := range []string{r.body, a.job(r.at("job.id")).body} {
			require.Contains(t, body, `"args":["a\u0000b",{"\u0000":1}]`)
			require.Contains(t, body, `"meta":{"k\u0000":"\u0000"}`)
			require.Contains(t, body, `"x\u0000y":"\u0000"`)
		}
		a.post("/ojs/v1/workers/fetch", `{"queues":["none"],"worker_id":"w\u0000"}`).invalid("worker_id")
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w\u0000"}`).invalid("worker_id")
		a.post("/ojs/v1/jobs", `{"type":"t","args":[],"tags":["a\u0000"]}`).invalid("tags")
		a.post("/ojs/v1/jobs", `{"type":"t","args":[],"schema":"urn:a\u0000"}`).invalid("schema")
		a.post("/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]}],"idempotency_key":"k\u0000"}`).invalid("idempotency_key")
		a.get("/ojs/v1/jobs?queue=%00").fails(400, "invalid_request", "invalid_request")
		a.get("/ojs/v1/jobs?type=%ff").fails(400, "invalid_request", "invalid_request")
		a.del("/ojs/v1/jobs/"+newID()+"?reason=%00").fails(400, "invalid_request", "invalid_request")
		a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"facts","hostname":"h\u0000","labels":["\u0000"],"version":"\u0000"}`).is(200)
	})
}

// TestCompression covers docs/reference/http.md, Request headers: Content-Encoding.
func TestCompression(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Jobs.MaxJobBytes = 100_000 })
	job := `{"type":"t","args":[]}`
	padded := func(n int) string { return job + repeated(' ', n-len(job)) }

	t.Run("AcceptsGzipAndIdentity", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.post("/ojs/v1/jobs", zipped(t, job), "Content-Encoding: gzip").is(201)
		a.post("/ojs/v1/jobs", zipped(t, job), "Content-Encoding:  GZip ").is(201)
		a.post("/ojs/v1/jobs", zipped(t, job[:5], job[5:]), "Content-Encoding: gzip").is(201) // several members are one stream
		a.post("/ojs/v1/jobs", job, "Content-Encoding: identity").is(201)
		a.post("/ojs/v1/jobs", job, "Content-Encoding: ").is(201)
		a.do("POST", "/ojs/v1/jobs/"+a.jobIn("pending")+"/activate", nil, "Content-Encoding: gzip").is(200)
		a.do("POST", "/ojs/v1/jobs", nil, "Content-Encoding: gzip").fails(400, "invalid_payload", "invalid_payload")
	})

	t.Run("RefusesOthers", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, encoding := range []string{"br", "deflate", "zstd", "gzip, gzip", "x"} {
			r := a.post("/ojs/v1/jobs", zipped(t, job), "Content-Encoding: "+encoding).fails(415, "unsupported_compression", "unsupported_compression")
			require.Equal(t, encoding, r.at("error.details.received"))
		}
	})

	t.Run("BrokenStreamIsInvalid", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		whole := zipped(t, job)
		flipped := []byte(whole)
		flipped[len(flipped)-5] ^= 1 // in the checksum
		for _, body := range []string{job, "x", whole[:5], whole[:len(whole)-1], whole[:len(whole)-9], string(flipped), whole + "x", whole[:12] + "\xff\xff\xff" + whole[15:]} {
			a.post("/ojs/v1/jobs", body, "Content-Encoding: gzip").fails(400, "invalid_payload", "invalid_payload")
		}
	})

	t.Run("LimitCountsDecompressedBytes", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.post("/ojs/v1/jobs", zipped(t, padded(100_000)), "Content-Encoding: gzip").is(201)
		a.post("/ojs/v1/jobs", zipped(t, padded(100_001)), "Content-Encoding: gzip").fails(413, "payload_too_large", "payload_too_large")
		a.post("/ojs/v1/jobs", padded(100_000)).is(201)
		a.post("/ojs/v1/jobs", padded(100_001)).fails(413, "payload_too_large", "payload_too_large")
		// Chunked: the length is not known before.
		a.do("POST", "/ojs/v1/jobs", io.MultiReader(strings.NewReader(padded(100_000)))).is(201)
		a.do("POST", "/ojs/v1/jobs", io.MultiReader(strings.NewReader(padded(100_001)))).fails(413, "payload_too_large", "payload_too_large")
	})

	t.Run("BombIsNotInflated", func(t *testing.T) {
		t.Parallel()
		bomb := zipped(t, repeated(' ', 16<<20)) // 16 KiB
		r := a.in(t).post("/ojs/v1/jobs", bomb, "Content-Encoding: gzip").fails(413, "payload_too_large", "payload_too_large")
		require.Equal(t, "100000", r.at("error.details.max_bytes"))
	})

	t.Run("EndlessBodyIsCutOff", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		var body *endless
		var r reply
		eventually(t, func() bool { // the rest of the body resets the connection, which a busy client may see before the answer
			body = &endless{}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url+"/ojs/v1/jobs", body)
			require.NoError(t, err)
			res, err := a.client.Do(req)
			if err == nil {
				var text []byte
				text, err = io.ReadAll(res.Body)
				_ = res.Body.Close()
				r = reply{t, res.StatusCode, res.Header, string(text), new(bool)}
			}
			require.True(t, err == nil || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE), "%v", err)
			return err == nil
		})
		r.fails(413, "payload_too_large", "payload_too_large")
		require.Equal(t, "envelope", r.at("error.details.field"))
		require.Less(t, body.read.Load(), int64(80<<20), "64 MiB are dropped, see discardBody")
	})
}

// endless is a body without end.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	e.read.Add(int64(len(p)))
	return len(p), nil
}

// zipped compresses the parts, each to a gzip member of its own.
func zipped(t *testing.T, parts ...string) string {
	t.Helper()
	var b bytes.Buffer
	for _, part := range parts {
		w := gzip.NewWriter(&b)
		_, err := w.Write([]byte(part))
		require.NoError(t, err)
		require.NoError(t, w.Close())
	}
	return b.String()
}
