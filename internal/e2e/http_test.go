package e2e_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

const mediaOJS = "application/openjobspec+json"

var (
	serverTime = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$`)
	uuidV7     = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
)

// reply is the answer to a request.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   string
	isJSON *bool // once find has checked it
}

// do sends a request; headers are written "Name: value".
func (a *node) do(method, path string, body io.Reader, headers ...string) reply {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, body)
	require.NoError(a.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	return a.send(req)
}

func (a *node) send(req *http.Request) reply {
	a.t.Helper()
	res, err := a.client.Do(req)
	require.NoError(a.t, err)
	defer func() { require.NoError(a.t, res.Body.Close()) }()
	text, err := io.ReadAll(res.Body)
	require.NoError(a.t, err)
	return reply{a.t, res.StatusCode, res.Header, string(text), new(bool)}
}

func (a *node) get(path string, headers ...string) reply {
	a.t.Helper()
	return a.do(http.MethodGet, path, nil, headers...)
}

func (a *node) post(path, body string, headers ...string) reply {
	a.t.Helper()
	return a.do(http.MethodPost, path, strings.NewReader(body), headers...)
}

func (a *node) put(path, body string, headers ...string) reply {
	a.t.Helper()
	return a.do(http.MethodPut, path, strings.NewReader(body), headers...)
}

func (a *node) patch(path, body string) reply {
	a.t.Helper()
	return a.do("PATCH", path, strings.NewReader(body))
}

func (a *node) del(path string, headers ...string) reply {
	a.t.Helper()
	return a.do(http.MethodDelete, path, nil, headers...)
}

// is requires the status and returns the reply.
func (r reply) is(status int) reply {
	r.t.Helper()
	require.Equal(r.t, status, r.status, "%s", r.body)
	return r
}

// fails requires an error of the code and type.
func (r reply) fails(status int, code, kind string) reply {
	r.t.Helper()
	r.is(status)
	require.Equal(r.t, code, r.at("error.code"), r.body)
	require.Equal(r.t, kind, r.at("error.type"), r.body)
	return r
}

// invalid requires the 400 for a field of the body.
func (r reply) invalid(field string) reply {
	r.t.Helper()
	r.is(http.StatusBadRequest)
	require.Equal(r.t, "invalid_payload", r.at("error.code"), r.body)
	require.Equal(r.t, field, r.at("error.details.field"), r.body)
	return r
}

// unknown requires the 400 for a parameter or member that the call does not have.
func (r reply) unknown(field string) reply {
	r.t.Helper()
	r.fails(http.StatusBadRequest, "invalid_request", "invalid_request")
	require.Equal(r.t, field, r.at("error.details.field"), r.body)
	return r
}

// at finds the value at a path such as "jobs.0.state": the content of a string, the text of anything else, "" if absent.
func (r reply) at(path string) string {
	r.t.Helper()
	text, _ := r.find(path)
	return text
}

func (r reply) has(path string) bool {
	r.t.Helper()
	_, found := r.find(path)
	return found
}

func (r reply) find(path string) (text string, found bool) {
	r.t.Helper()
	if r.isJSON == nil || !*r.isJSON {
		require.True(r.t, json.Valid([]byte(r.body)), "%q", r.body)
		if r.isJSON != nil {
			*r.isJSON = true
		}
	}
	value := gjson.Get(r.body, path)
	if value.Type == gjson.String {
		return value.Str, true
	}
	return value.Raw, value.Exists()
}

// list gives one member of every element of an array.
func (r reply) list(array, member string) []string {
	r.t.Helper()
	texts := []string{}
	for _, element := range r.elements(array) {
		texts = append(texts, reply{t: r.t, body: string(element), isJSON: r.isJSON}.at(member))
	}
	return texts
}

func (r reply) count(array string) int {
	r.t.Helper()
	return len(r.elements(array))
}

func (r reply) elements(array string) (elements []json.RawMessage) {
	r.t.Helper()
	list := gjson.Parse(r.at(array))
	require.True(r.t, list.IsArray(), r.body)
	list.ForEach(func(_, element gjson.Result) bool {
		elements = append(elements, json.RawMessage(element.Raw))
		return true
	})
	return elements
}

// texts are the elements of an array of strings.
func (r reply) texts(array string) (texts []string) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal([]byte(r.at(array)), &texts), r.body)
	return texts
}

// requireErrorBody checks the shape of errors: docs/reference/errors.md, Body.
func requireErrorBody(t *testing.T, r reply) {
	t.Helper()
	for _, member := range []string{"code", "type", "message", "hint"} {
		require.NotEmpty(t, r.at("error."+member), member)
	}
	require.Contains(t, []string{"true", "false"}, r.at("error.retryable"))
	require.Regexp(t, `^https://openjobspec\.org/errors/[A-Z_]+$`, r.at("error.docs_url"))
	require.Equal(t, r.header.Get("X-Request-Id"), r.at("error.request_id"))
	if r.has("error.details") {
		require.Regexp(t, `^\{.+\}$`, r.at("error.details"))
	}
}

func requireRetryAfter(t *testing.T, r reply) {
	t.Helper()
	seconds, err := strconv.Atoi(r.header.Get("Retry-After"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, seconds, 1)
}

func allowed(r reply) string {
	methods := strings.Split(r.header.Get("Allow"), ", ")
	methods = slices.DeleteFunc(methods, func(m string) bool { return m == http.MethodOptions })
	slices.Sort(methods)
	return strings.Join(methods, " ")
}

// repeated is n times the same byte.
func repeated(c byte, n int) string { return string(bytes.Repeat([]byte{c}, n)) }
