package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
)

// TestCheckOrder covers docs/reference/http.md, Check order: the first failing stage answers.
func TestCheckOrder(t *testing.T) {
	t.Parallel()
	a := setup(t, func(c *app.Config) { c.Server.APIKeys = []string{"k"} })
	taken := newID()
	const key = "Authorization: Bearer k"
	a.post("/ojs/v1/jobs", fmt.Sprintf(`{"type":"t","args":[],"id":"%s"}`, taken), key).is(201)
	bigMeta := `"meta":{"m":"` + repeated('x', 70_000) + `"}`

	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
	}{
		{"AuthenticationFirst", "POST", "/nowhere", "}", []string{"OJS-Version: 9", "Content-Encoding: br"}, 401},
		{"ThenVersion", "PUT", "/nowhere", "}", []string{key, "OJS-Version: 9", "Content-Encoding: br"}, 422},
		{"ThenRoute", "POST", "/nowhere", "}", []string{key, "Content-Encoding: br", "Content-Type: x/y"}, 404},
		{"ThenMethod", "PUT", "/ojs/v1/jobs", "}", []string{key, "Content-Encoding: br", "Content-Type: x/y"}, 405},
		{"ThenContentType", "POST", "/ojs/v1/jobs", repeated('}', 1_048_577), []string{key, "Content-Type: x/y"}, 400},
		{"ThenEncoding", "POST", "/ojs/v1/jobs", repeated('}', 1_048_577), []string{key, "Content-Encoding: br"}, 415},
		{"ThenSize", "POST", "/ojs/v1/jobs", repeated('}', 1_048_577), []string{key}, 413},
		{"ThenSyntax", "POST", "/ojs/v1/jobs", `{"type":1,`, []string{key}, 400},
		{"ThenFields", "POST", "/ojs/v1/jobs", `{"type":"t","specversion":"9","retry":{"max_attempts":-1},` + bigMeta + `,"id":"` + taken + `"}`, []string{key}, 400},
		{"ThenPolicies", "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"retry":{"max_attempts":-1},` + bigMeta + `,"id":"` + taken + `"}`, []string{key}, 422},
		{"ThenMeta", "POST", "/ojs/v1/jobs", `{"type":"t","args":[],` + bigMeta + `,"id":"` + taken + `"}`, []string{key}, 413},
		{"ThenUniqueness", "POST", "/ojs/v1/jobs", `{"type":"t","args":[],"id":"` + taken + `"}`, []string{key}, 409},
		{"FieldsBeforeExistence", "POST", "/ojs/v1/workers/ack", `{"job_id":"` + newID() + `","attempt":"x"}`, []string{key}, 400},
		{"ExistenceBeforeState", "POST", "/ojs/v1/workers/ack", `{"job_id":"` + newID() + `","attempt":7}`, []string{key}, 404},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := a.in(t).do(c.method, c.path, strings.NewReader(c.body), c.headers...).is(c.status)
			if c.name == "ThenContentType" {
				require.Equal(t, "invalid_request", r.at("error.code"))
			}
		})
	}
}
