package e2e_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

var madeRequestID = regexp.MustCompile(`^req_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// TestResponseHeaders covers docs/reference/http.md, Response headers. Recovered panics are tested in package httpapi.
func TestResponseHeaders(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Server.CORSOrigins = []string{"https://ui.example"} })
	keyed := setup(t, func(c *app.Config) { c.Server.APIKeys = []string{"secret"} })
	id := a.push(`"type":"t","args":[]`)
	many := `{"jobs":[` + strings.TrimSuffix(strings.Repeat("1,", 10_001), ",") + `]}`

	for name, answer := range map[string]func(a *node) reply{
		"OK":            func(a *node) reply { return a.get("/ojs/v1/jobs/" + id).is(200) },
		"Created":       func(a *node) reply { return a.post("/ojs/v1/jobs", `{"type":"t","args":[]}`).is(201) },
		"NoContent":     func(a *node) reply { return a.do("OPTIONS", "/ojs/v1/jobs", nil).is(204) },
		"MultiStatus":   func(a *node) reply { return a.post("/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]},1]}`).is(207) },
		"BadRequest":    func(a *node) reply { return a.post("/ojs/v1/jobs", `{`).is(400) },
		"UnknownJob":    func(a *node) reply { return a.get("/ojs/v1/jobs/x").is(404) },
		"UnknownRoute":  func(a *node) reply { return a.get("/nowhere").is(404) },
		"OtherMethod":   func(a *node) reply { return a.do("PUT", "/ojs/v1/jobs", nil).is(405) },
		"OddMethod":     func(a *node) reply { return a.do("ASSERT", "/", nil).is(404) },
		"Head":          func(a *node) reply { return a.do("HEAD", "/ojs/v1/jobs/"+id, nil).is(200) },
		"Conflict":      func(a *node) reply { return a.ack(id).is(409) },
		"TooLarge":      func(a *node) reply { return a.post("/ojs/v1/jobs", repeated(' ', 1_048_577)).is(413) },
		"TooMany":       func(a *node) reply { return a.post("/ojs/v1/jobs/batch", many).is(413) },
		"Compression":   func(a *node) reply { return a.post("/ojs/v1/jobs", `x`, "Content-Encoding: br").is(415) },
		"Unprocessable": func(a *node) reply { return a.get("/ojs/v1/jobs", "OJS-Version: 2.0").is(422) },
		"Health":        func(a *node) reply { return a.get("/ojs/v1/health").is(200) },
		"Manifest":      func(a *node) reply { return a.get("/ojs/manifest").is(200) },
		"Preflight": func(a *node) reply {
			return a.do("OPTIONS", "/ojs/v1/jobs", nil, "Origin: https://ui.example", "Access-Control-Request-Method: POST").is(204)
		},
		"Unauthenticated": func(*node) reply { return keyed.get("/ojs/v1/jobs").is(401) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := answer(a.in(t))
			require.Equal(t, []string{"1.0"}, r.header.Values("OJS-Version"))
			require.Equal(t, []string{"1.0"}, r.header.Values("X-OJS-Version"))
			require.Equal(t, []string{"nosniff"}, r.header.Values("X-Content-Type-Options"))
			require.Equal(t, []string{"no-store"}, r.header.Values("Cache-Control"))
			require.Equal(t, []string{mediaOJS}, r.header.Values("Content-Type"))
			require.Len(t, r.header.Values("X-Request-Id"), 1)
			require.Regexp(t, madeRequestID, r.header.Get("X-Request-Id"))
			if r.status >= 400 {
				requireErrorBody(t, r)
			}
		})
	}

	t.Run("LocationOfNewJob", func(t *testing.T) {
		t.Parallel()
		for _, header := range []string{"X-Request-Id: r", "Idempotency-Key: location"} {
			// Unknown attributes whose names differ by their case alone are not those of the server.
			r := a.in(t).post("/ojs/v1/jobs", `{"type":"t","args":[],"ID":5,"Job":{"id":"x"}}`, header).is(201)
			require.Equal(t, "/ojs/v1/jobs/"+r.at("job.id"), r.header.Get("Location"))
		}
	})

	t.Run("BulkSize", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		require.Equal(t, "2", a.post("/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]},1]}`).header.Get("X-OJS-Batch-Size"))
		require.Equal(t, "1", a.post("/ojs/v1/jobs/bulk/cancel", `{"job_ids":["x"]}`).header.Get("X-OJS-Batch-Size"))
		for _, path := range []string{"batch", "bulk"} {
			require.Equal(t, "10000", a.post("/ojs/v1/jobs/"+path, many).is(413).header.Get("X-OJS-Max-Batch-Size"))
		}
		ids := `{"job_ids":[` + strings.TrimSuffix(strings.Repeat(`"x",`, 10_001), ",") + `]}`
		require.Equal(t, "10000", a.post("/ojs/v1/jobs/bulk/delete", ids).is(413).header.Get("X-OJS-Max-Batch-Size"))
	})

	t.Run("ErrorsNameTheirRequest", func(t *testing.T) {
		t.Parallel()
		r := a.in(t).get("/nowhere", "X-Request-Id: mine").is(404)
		require.Equal(t, "mine", r.header.Get("X-Request-Id"))
		require.Equal(t, "mine", r.at("error.request_id"))
	})
}

// TestRequestHeaders covers docs/reference/http.md, Request headers.
func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	a := setup(t)
	job := `{"type":"t","args":[]}`

	t.Run("ContentType", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, ok := range []string{
			"application/json", "application/openjobspec+json", "Application/JSON", "application/json; charset=utf-8", "application/json;charset=latin1",
			"application/openjobspec+json; alias=\"application/json\"", " application/json ", "application/json; =", "application/json;",
		} {
			a.post("/ojs/v1/jobs", job, "Content-Type: "+ok).is(201)
		}
		a.post("/ojs/v1/jobs", job).is(201)
		for _, bad := range []string{"text/plain", "application/x-www-form-urlencoded", "application/json5", "json", "multipart/form-data; boundary=x", "application/json, text/plain", "application/xml; charset=application/json"} {
			r := a.post("/ojs/v1/jobs", job, "Content-Type: "+bad).fails(400, "invalid_request", "invalid_request")
			require.Equal(t, bad, r.at("error.details.received"))
		}
		// It has no effect without a body.
		a.get("/ojs/v1/jobs", "Content-Type: text/plain").is(200)
		a.do("POST", "/ojs/v1/jobs/"+a.jobIn("pending")+"/activate", nil, "Content-Type: text/plain").is(200)
		a.del("/ojs/v1/jobs/"+a.jobIn("pending"), "Content-Type: text/plain").is(200)
		a.do("POST", "/ojs/v1/jobs", nil, "Content-Type: text/plain").fails(400, "invalid_payload", "invalid_payload")
	})

	t.Run("BodiesOfGetAndDeleteAreIgnored", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		id := a.push(`"type":"t","args":[]`)
		a.do("GET", "/ojs/v1/jobs/"+id, strings.NewReader(`}{`), "Content-Type: text/plain").is(200)
		a.do("DELETE", "/ojs/v1/jobs/"+id, strings.NewReader(`}{`), "Content-Type: text/plain").is(200)
	})

	t.Run("AcceptChoosesBetweenTwoNames", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, c := range []struct{ accept, want string }{
			{"*/*", mediaOJS},
			{"application/*", mediaOJS},
			{"text/html", mediaOJS},
			{mediaOJS, mediaOJS},
			{"application/json", "application/json"},
			{"Application/JSON; q=0.9, text/html", "application/json"},
			{"text/html, application/json", "application/json"},
			{"application/json, application/openjobspec+json", mediaOJS},
			{"application/json, Application/OpenJobSpec+JSON;q=0.1", mediaOJS},
			{"application/json-seq", mediaOJS},
			{"text/event-stream", mediaOJS},
			{";;,,=", mediaOJS},
		} {
			require.Equal(t, c.want, a.get("/ojs/manifest", "Accept: "+c.accept).is(200).header.Get("Content-Type"), c.accept)
			require.Equal(t, c.want, a.get("/nowhere", "Accept: "+c.accept).is(404).header.Get("Content-Type"), c.accept)
		}
		require.Equal(t, "application/json", a.get("/ojs/manifest", "Accept: text/html", "Accept: application/json").header.Get("Content-Type"))
	})

	t.Run("PythonSDKGetsItsParameter", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		python := "User-Agent: python-httpx/0.27.0"
		require.Equal(t, mediaOJS+`; alias="application/json"`, a.post("/ojs/v1/jobs", job, python).is(201).header.Get("Content-Type"))
		require.Equal(t, "application/json", a.get("/ojs/v1/jobs", python, "Accept: application/json").is(200).header.Get("Content-Type"))
	})

	t.Run("Version", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, ok := range []string{"1", "1.0", "1.0.0", "1.0.0-rc.1", "1.0.12-A.b-c"} {
			require.Equal(t, "1.0", a.get("/ojs/v1/jobs", "OJS-Version: "+ok).is(200).header.Get("OJS-Version"))
		}
		for _, bad := range []string{"2.0", "1.1", "0.9", "v1", "1.0.0-", "1.0.x", "1.0.0-rc_1", "latest", "1.0,1.0"} {
			r := a.get("/ojs/v1/jobs", "OJS-Version: "+bad).fails(422, "unsupported", "unsupported")
			require.Equal(t, bad, r.at("error.details.requested"))
			require.Equal(t, `["1.0"]`, r.at("error.details.supported"))
			a.get("/nowhere", "OJS-Version: "+bad).is(422)
			for _, path := range []string{"/ojs/manifest", "/ojs/v1/health", "/health", "/healthz", "/livez", "/ready", "/readyz"} {
				a.get(path, "OJS-Version: "+bad).is(200)
			}
		}
		a.get("/ojs/v1/jobs", "OJS-Version: ").fails(422, "unsupported", "unsupported")
	})

	t.Run("RequestID", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, ok := range []string{"x", "!~", repeated('a', 200), "6f1f2a5e-0000-4000-8000-000000000000"} {
			require.Equal(t, ok, a.get("/healthz", "X-Request-ID: "+ok).header.Get("X-Request-Id"))
		}
		seen := map[string]bool{}
		for _, bad := range []string{"", "a b", repeated('a', 201), "é", "a\tb", "\x80"} {
			made := a.get("/healthz", "X-Request-ID: "+bad).header.Get("X-Request-Id")
			require.Regexp(t, madeRequestID, made)
			require.False(t, seen[made])
			seen[made] = true
		}
	})

	t.Run("IdempotencyKeyOfEnqueues", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for path, c := range map[string]struct{ body, other, id string }{
			"/ojs/v1/jobs":       {job, `{"type":"other","args":[]}`, "job.id"},
			"/ojs/v1/jobs/batch": {`{"jobs":[` + job + `,` + job + `]}`, `{"jobs":[` + job + `]}`, "jobs.1.id"},
		} {
			first := a.post(path, c.body, "Idempotency-Key: k").is(201)
			again := a.post(path, c.body, "Idempotency-Key: k").is(201)
			require.Equal(t, first.body, again.body)
			require.Equal(t, first.header.Get("Location"), again.header.Get("Location"))
			require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
			require.Empty(t, first.header.Get("Idempotent-Replayed"))
			require.NotEqual(t, first.at(c.id), a.post(path, c.body, "Idempotency-Key: k2").is(201).at(c.id))
			require.NotEqual(t, first.at(c.id), a.post(path, c.body).is(201).at(c.id))
			a.post(path, c.other, "Idempotency-Key: k").fails(409, "conflict", "idempotency_key_conflict")
			a.post(path, c.body, "Idempotency-Key: "+repeated('k', 257)).fails(400, "invalid_request", "invalid_request")
		}
	})
}

// TestRefusedBodyIsRead: clients such as those of Python send the whole body before they read the answer.
func TestRefusedBodyIsRead(t *testing.T) {
	t.Parallel()
	a := setup(t)
	const bytes = 16 << 20 // more than the buffers of a connection take
	for name, c := range map[string]struct {
		headers string
		status  int
	}{
		"TooLarge":    {"Content-Length: 16777216", 413},
		"Chunked":     {"Transfer-Encoding: chunked", 413},
		"Compression": {"Content-Encoding: br\r\nContent-Length: 16777216", 415},
		"MediaType":   {"Content-Type: text/csv\r\nContent-Length: 16777216", 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", a.app.Addr())
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			require.NoError(t, conn.SetDeadline(time.Now().Add(waitFor)))
			body := strings.Repeat(" ", bytes)
			if name == "Chunked" {
				body = "1000000\r\n" + body + "\r\n0\r\n\r\n"
			}
			_, err = io.WriteString(conn, "POST /ojs/v1/jobs HTTP/1.1\r\nHost: localhost\r\n"+c.headers+"\r\n\r\n"+body)
			require.NoError(t, err)
			_, err = io.WriteString(conn, "GET /ojs/v1/jobs/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
			require.NoError(t, err)
			in := bufio.NewReader(conn)
			for _, status := range []int{c.status, 404} { // the connection goes on
				r, err := http.ReadResponse(in, nil)
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, r.Body)
				require.NoError(t, err)
				require.NoError(t, r.Body.Close())
				require.Equal(t, status, r.StatusCode)
			}
		})
	}
}
