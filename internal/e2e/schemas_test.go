package e2e_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

const mailSchema = `{"type":"array","prefixItems":[{"type":"object","properties":{"to":{"type":"string"}},"required":["to"]}],"minItems":1}`

// enforced registers an enforced schema for a new job type.
func (a *node) enforced() (jobType string) {
	jobType = "schema." + strings.ReplaceAll(queue(), "-", "_")
	a.put("/ojs/v1/admin/schemas/"+jobType+"/1", `{"schema":`+mailSchema+`,"enforce":true}`).is(201)
	return jobType
}

func TestSchemaEndpoints(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("ByTypeAndVersion", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		path := "/ojs/v1/admin/schemas/mail.send"
		r := a.put(path+"/2", `{"schema":{"type": "array", "maximum": 1.50}}`).is(201)
		require.Equal(t, []string{"mail.send", "2", `{"type":"array","maximum":1.50}`, "false", "urn:ojs:schema:mail.send:2"},
			[]string{r.at("type"), r.at("version"), r.at("schema"), r.at("enforce"), r.at("uri")})
		require.Equal(t, r.at("created_at"), a.put(path+"/2", `{"schema":{"maximum":1.50,"type":"array"}}`).is(200).at("created_at"), "the same")
		require.Equal(t, "true", a.put(path+"/2", `{"schema":{"type":"array","maximum":1.50},"enforce":true}`).is(200).at("enforce"))
		require.Equal(t, "true", a.put(path+"/2", `{"schema":{"type":"array","maximum":1.50}}`).is(200).at("enforce"), "not sent: not changed")
		conflict := a.put(path+"/2", `{"schema":{"type":"array"}}`).is(409)
		require.Equal(t, "conflict", conflict.at("error.code"))
		require.Equal(t, "x_schema_exists", conflict.at("error.type"))
		a.put(path+"/10", `{"schema":{"minItems":1}}`).is(201)
		a.put(path+"/1.2.0", `{"schema":{"minItems":2}}`).is(201)

		newest := a.get(path).is(200)
		require.Equal(t, "10", newest.at("version"))
		require.Equal(t, `{"minItems":1}`, newest.at("schema"))
		require.Equal(t, `[10,2,"1.2.0"]`, newest.at("schemas.#.version"))
		require.Equal(t, `[10,2,"1.2.0"]`, a.get(path+"/versions").is(200).at("versions.#.version"))
		require.Equal(t, "1.2.0", a.get(path+"/1.2.0").is(200).at("version"))
		require.Equal(t, "true", a.del(path+"/10").is(200).at("deleted"))
		require.Equal(t, "2", a.get(path).is(200).at("version"))
		for _, missing := range []string{path + "/10", path + "/3", path + "/%00", "/ojs/v1/admin/schemas/none", "/ojs/v1/admin/schemas/none/1", "/ojs/v1/admin/schemas/none/versions", "/ojs/v1/admin/schemas/%00"} {
			require.Equal(t, "not_found", a.get(missing).is(404).at("error.code"), missing)
		}
		require.Equal(t, "schema", a.del(path+"/10").is(404).at("error.details.resource_type"))
	})

	t.Run("WithoutADraft", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		path := "/ojs/v1/admin/schemas/tuple.send"
		tuple := `"items":[{"type":"string"},{"type":"integer"}],"additionalItems":false`
		r := a.put(path+"/1", `{"schema":{`+tuple+`},"enforce":true}`).is(201)
		require.Equal(t, "http://json-schema.org/draft-07/schema#", r.at("read_as"))
		require.Equal(t, r.at("read_as"), a.post("/ojs/v1/schemas", `{"uri":"urn:x:tuple","type":"tuple.other","version":"1","schema":{`+tuple+`}}`).is(201).at("read_as"))
		a.post("/ojs/v1/jobs", `{"type":"tuple.send","args":["x",1]}`).is(201)
		a.post("/ojs/v1/jobs", `{"type":"tuple.send","args":["x","y"]}`).is(422)
		a.post("/ojs/v1/jobs", `{"type":"tuple.send","args":["x",1,2]}`).is(422)
		require.False(t, a.put(path+"/2", `{"schema":{"prefixItems":[{"type":"string"}]}}`).is(201).has("read_as"), "the newest draft")
		// A draft that is named counts, and what no draft understands is refused as the newest one says.
		a.put(path+"/3", `{"schema":{"$schema":"https://json-schema.org/draft/2020-12/schema",`+tuple+`}}`).is(400)
		require.Contains(t, a.put(path+"/4", `{"schema":{`+tuple+`,"type":"strin"}}`).is(400).at("error.message"), "$.schema.")
	})

	t.Run("ByURIAsSDKsDo", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		uri := "https://example.com/schemas/" + queue() + "?v=1"
		r := a.post("/ojs/v1/schemas", `{"uri":"`+uri+`","type":"sdk.job","version":"1","schema":`+mailSchema+`}`).is(201)
		require.Equal(t, []string{uri, "sdk.job", "1"}, []string{r.at("schema.uri"), r.at("schema.type"), r.at("schema.version")})
		require.Contains(t, r.body, `"version":"1"`)
		require.Equal(t, mailSchema, a.get(r.header.Get("Location")).is(200).at("schema.schema"))
		a.post("/ojs/v1/schemas", `{"uri":"`+uri+`","type":"sdk.job","version":"1","schema":`+mailSchema+`}`).is(200)
		a.post("/ojs/v1/schemas", `{"uri":"`+uri+`","type":"sdk.job","version":"2","schema":`+mailSchema+`}`).is(409)
		a.post("/ojs/v1/schemas", `{"uri":"`+uri+`x","type":"sdk.job","version":"1","schema":`+mailSchema+`}`).is(409)
		number := a.post("/ojs/v1/schemas", `{"uri":"`+uri+`3","type":"sdk.job","version":3,"schema":`+mailSchema+`}`).is(201)
		require.Contains(t, number.body, `"version":3`)
		list := a.get("/ojs/v1/schemas?limit=1").is(200)
		require.Equal(t, "1", list.at("schemas.#"))
		require.Equal(t, list.at("total"), list.at("pagination.total"))
		require.Equal(t, "true", list.at("pagination.has_more"))
		require.Equal(t, "0", a.get("/ojs/v1/admin/schemas?page=1000").is(200).at("items.#"))
		require.Equal(t, "true", a.del("/ojs/v1/schemas/"+url.PathEscape(uri)).is(200).at("deleted"))
		a.del("/ojs/v1/schemas/" + url.PathEscape(uri)).is(404)
		a.get("/ojs/v1/schemas/" + url.PathEscape(uri)).is(404)
		a.get("/ojs/v1/schemas/%00").is(404)
	})

	t.Run("Refuses", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		for _, body := range []string{
			``, `[]`, `{}`, `{"schema":null}`, `{"schema":true}`, `{"schema":"x"}`, `{"schema":{"type":"strin"}}`, `{"schema":{"pattern":"("}}`,
			`{"schema":{"$ref":"https://example.com/x.json"}}`, `{"schema":{"$schema":"https://example.com/meta"}}`, `{"schema":{},"enforce":1}`,
			`{"schema":{},"uri":"relative"}`, `{"schema":{},"uri":"urn:a\u0000"}`, `{"schema":{"maximum":1e999999999}}`, "{\"schema\":{\"title\":\"\xff\"}}",
			`{"schema":` + strings.Repeat(`{"not":`, 5000) + `{}` + strings.Repeat(`}`, 5000) + `}`,
		} {
			r := a.put("/ojs/v1/admin/schemas/refused/1", body).is(400)
			require.Equal(t, "invalid_payload", r.at("error.code"), body)
		}
		big := a.put("/ojs/v1/admin/schemas/refused/1", `{"schema":{"title":"`+strings.Repeat("x", 256<<10)+`"}}`).is(413)
		require.Equal(t, "262144", big.at("error.details.max_bytes"))
		for _, path := range []string{"Refused/1", "refused/-1", "refused/versions", "refused/a%2Fb", "refused/%00", "refused/" + strings.Repeat("1", 200)} {
			a.put("/ojs/v1/admin/schemas/"+path, `{"schema":{}}`).is(400)
		}
		for _, body := range []string{
			`{"type":"a","version":"1","schema":{}}`, `{"uri":"urn:a","version":"1","schema":{}}`, `{"uri":"urn:a","type":"a","schema":{}}`,
			`{"uri":"urn:a","type":"a","version":1.5,"schema":{}}`, `{"uri":"urn:a","type":"a","version":[1],"schema":{}}`, `{"uri":"urn:a","type":"a","version":"","schema":{}}`,
			`{"uri":"urn:a","type":"a","version":99999999999999999999,"schema":{}}`,
		} {
			a.post("/ojs/v1/schemas", body).is(400)
		}
		require.NotContains(t, a.get("/ojs/v1/admin/schemas?per_page=100").is(200).body, `"refused"`)
	})
}

// TestSchemaValidation meets every way by which clients enqueue.
func TestSchemaValidation(t *testing.T) {
	t.Parallel()
	a := setup(t)

	t.Run("Single", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		kind := a.enforced()
		a.post("/ojs/v1/jobs", `{"type":"`+kind+`","args":[{"to":"x"}]}`).is(201)
		r := a.post("/ojs/v1/jobs", `{"type":"`+kind+`","args":[{"to":1}]}`).is(422)
		require.Equal(t, "schema_validation", r.at("error.code"))
		require.Equal(t, []string{"$.args[0].to", "/0/to", "got number, want string"}, []string{
			r.at("error.details.validation_errors.0.path"), r.at("error.details.validation_errors.0.pointer"), r.at("error.details.validation_errors.0.message"),
		})
		require.Equal(t, "args", r.at("error.details.field"))
		require.Contains(t, r.at("error.message"), "$.args[0].to")
		require.Equal(t, "1", a.get("/ojs/v1/jobs?type="+kind).at("total"), "nothing was stored")

		key := `{"type":"` + kind + `","args":[]}`
		a.post("/ojs/v1/jobs", key, "Idempotency-Key: "+kind).is(422)
	})

	t.Run("TheNamedSchemaCounts", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		kind := a.enforced()
		a.put("/ojs/v1/admin/schemas/"+kind+"/0", `{"schema":{"maxItems":0},"uri":"urn:named:`+kind+`"}`).is(201)
		enqueue := func(rest string) int {
			return a.post("/ojs/v1/jobs", `{"type":"`+kind+`"`+rest+`}`).status
		}
		require.Equal(t, 422, enqueue(`,"args":[]`))
		require.Equal(t, 201, enqueue(`,"args":[],"version":0`))
		require.Equal(t, 201, enqueue(`,"args":[],"version":"0"`))
		require.Equal(t, 422, enqueue(`,"args":[1],"version":0`))
		require.Equal(t, 201, enqueue(`,"args":[],"schema":"urn:named:`+kind+`"`))
		require.Equal(t, 422, enqueue(`,"args":[1],"options":{"schema":"urn:named:`+kind+`"}`))
		require.Equal(t, 422, enqueue(`,"args":[],"schema":"urn:unknown"`), "an unknown name is no way around")
		require.Equal(t, 422, enqueue(`,"args":[],"version":7`))
		require.Equal(t, 201, enqueue(`,"args":[{"to":"x"}],"version":{"a":1}`), "an attribute of the client")
		require.Equal(t, `{"a":1}`, a.get("/ojs/v1/jobs?type="+kind).at("jobs.0.version"))
		require.Equal(t, 201, a.post("/ojs/v1/jobs", `{"type":"other","args":[],"schema":"urn:unknown","version":9}`).status)
		require.Equal(t, 422, a.post("/ojs/v1/jobs", `{"type":"other","args":[1],"schema":"urn:named:`+kind+`"}`).status)
	})

	t.Run("BatchAndBulk", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		kind := a.enforced()
		good, bad := `{"type":"`+kind+`","args":[{"to":"x"}]}`, `{"type":"`+kind+`","args":[]}`
		list := `{"jobs":[` + good + `,` + bad + `,{"type":"other","args":[]}]`
		r := a.post("/ojs/v1/jobs/batch", list+`}`).is(422)
		require.Equal(t, "1", r.at("error.details.index"))
		require.Equal(t, "schema_validation", r.at("error.code"))
		require.Equal(t, "0", a.get("/ojs/v1/jobs?type="+kind).at("total"))
		a.post("/ojs/v1/jobs/batch", list+`}`, "Idempotency-Key: "+kind).is(422)

		r = a.post("/ojs/v1/jobs/bulk", list+`}`).is(207)
		require.Equal(t, "1", a.get("/ojs/v1/jobs?type="+kind).at("total"))
		require.Contains(t, r.body, "schema_validation")
		a.post("/ojs/v1/jobs/bulk", list+`}`, "Idempotency-Key: "+kind).is(207)
		require.Equal(t, "2", a.get("/ojs/v1/jobs?type="+kind).at("total"))
		require.NotEqual(t, 201, a.post("/ojs/v1/jobs/bulk", list+`,"atomicity":"atomic"}`).status)
		require.Equal(t, "2", a.get("/ojs/v1/jobs?type="+kind).at("total"))
	})

	t.Run("Workflow", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		kind := a.enforced()
		good, bad := `{"type":"`+kind+`","args":[{"to":"x"}]}`, `{"type":"`+kind+`","args":[]}`
		r := a.post("/ojs/v1/workflows", `{"type":"chain","steps":[`+good+`,`+bad+`]}`).is(422)
		require.Equal(t, "schema_validation", r.at("error.code"))
		require.Equal(t, "$.steps[1].args", r.at("error.details.validation_errors.0.path"))
		r = a.post("/ojs/v1/workflows", `{"type":"batch","jobs":[`+good+`],"callbacks":{"on_complete":`+bad+`}}`).is(422)
		require.Equal(t, "$.callbacks.on_complete.args", r.at("error.details.validation_errors.0.path"))
		a.post("/ojs/v1/workflows", `{"name":"n","steps":[{"id":"a","type":"`+kind+`","args":[]}]}`).is(422)
		a.post("/ojs/v1/workflows", `{"type":"chain","steps":[`+bad+`]}`, "Idempotency-Key: "+kind).is(422)
		require.Equal(t, "0", a.get("/ojs/v1/jobs?type="+kind).at("total"))
		a.post("/ojs/v1/workflows", `{"type":"chain","steps":[`+good+`,`+good+`]}`).is(201)
	})

	t.Run("Cron", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		kind, name := a.enforced(), queue()
		cron := func(args string) string {
			return `{"name":"` + name + `","expression":"@yearly","type":"` + kind + `","args":` + args + `}`
		}
		require.Equal(t, "schema_validation", a.post("/ojs/v1/cron", cron(`[]`)).is(422).at("error.code"))
		a.get("/ojs/v1/cron/" + name).is(404)
		a.post("/ojs/v1/cron", cron(`[{"to":"x"}]`)).is(201)
		a.post("/ojs/v1/cron", cron(`[]`)).is(422)
		a.patch("/ojs/v1/cron/"+name, `{"args":[]}`).is(422)
		a.post("/ojs/v1/cron/"+name+"/trigger", ``).is(201)
		a.put("/ojs/v1/admin/schemas/"+kind+"/2", `{"schema":{"maxItems":0},"enforce":true}`).is(201)
		a.post("/ojs/v1/cron/"+name+"/trigger", ``).is(422)
		a.post("/ojs/v1/cron/"+name+"/pause", ``).is(200)
		a.post("/ojs/v1/cron/"+name+"/resume", ``).is(422)
	})

	t.Run("AnObjectIsTheOnlyArgument", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		a.put("/ojs/v1/admin/schemas/object.job/1", `{"schema":{"type":"object","required":["to"]},"enforce":true}`).is(201)
		a.post("/ojs/v1/jobs", `{"type":"object.job","args":[{"to":1}]}`).is(201)
		a.post("/ojs/v1/jobs", `{"type":"object.job","args":[{}]}`).is(422)
		a.post("/ojs/v1/jobs", `{"type":"object.job","args":[{"to":1},2]}`).is(422)
	})

	t.Run("HostileArgs", func(t *testing.T) {
		t.Parallel()
		a := a.in(t)
		kind := a.enforced()
		for _, args := range []string{
			`[{"to":"\u0000"}]`, `[{"to":"\ud800"}]`, `[{"to":"x","n":1e999999999}]`, `[{"to":"x","n":` + strings.Repeat("9", 100_000) + `}]`,
			`[` + strings.Repeat(`[`, 30) + strings.Repeat(`]`, 30) + `]`, `[` + strings.Repeat(`1,`, 300_000) + `1]`,
		} {
			require.Contains(t, []int{201, 422}, a.post("/ojs/v1/jobs", fmt.Sprintf(`{"type":"%s","args":%s}`, kind, args)).status, "%.40s", args)
		}
	})
}

// TestSchemasHoldOnAllNodes has another node refuse a job by a schema that it did not register.
func TestSchemasHoldOnAllNodes(t *testing.T) {
	t.Parallel()
	one, two := nodes(t)
	two.post("/ojs/v1/jobs", `{"type":"early","args":[]}`).is(201) // it knows now that there are no schemas
	kind := one.enforced()
	eventually(t, func() bool { return two.post("/ojs/v1/jobs", `{"type":"`+kind+`","args":[]}`).status == 422 })
	one.del("/ojs/v1/admin/schemas/" + kind + "/1").is(200)
	one.post("/ojs/v1/jobs", `{"type":"`+kind+`","args":[]}`).is(201)
	eventually(t, func() bool { return two.post("/ojs/v1/jobs", `{"type":"`+kind+`","args":[]}`).status == 201 })
}

func TestGRPCSchemas(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)
	kind := r.in(t).enforced()
	_, err := r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: kind})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = r.EnqueueBatch(r.ctx(), &ojsv1.EnqueueBatchRequest{Jobs: []*ojsv1.BatchJobEntry{{Type: "other"}, {Type: kind}}})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	_, err = r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: kind, Args: []*structpb.Value{value(t, map[string]any{"to": "x"})}})
	require.NoError(t, err)
	manifest, err := r.Manifest(r.ctx(), &ojsv1.ManifestRequest{})
	require.NoError(t, err)
	require.True(t, manifest.GetSchemaValidation())
}
