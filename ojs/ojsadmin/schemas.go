package ojsadmin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// Schema is a JSON Schema of the args of a type of jobs. Which schema applies to a job: docs/reference/schemas.md, Which schema
// applies.
type Schema struct {
	URI     string          `json:"uri"`
	Type    string          `json:"type"` // of the jobs
	Version string          `json:"version"`
	Schema  json.RawMessage `json:"schema,omitempty"`  // lists leave it out
	Enforce *bool           `json:"enforce,omitempty"` // nil: as the server does

	CreatedAt time.Time `json:"created_at,omitzero"` // set by the server
}

// UnmarshalJSON reads a schema as a server shows it. A version that was registered as a number is shown as one.
func (s *Schema) UnmarshalJSON(data []byte) error {
	type plain Schema
	wire := struct {
		*plain
		Version json.RawMessage `json:"version"`
	}{plain: (*plain)(s)}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	var text string
	if len(wire.Version) == 0 || json.Unmarshal(wire.Version, &text) == nil {
		s.Version = text
	} else {
		s.Version = string(wire.Version)
	}
	return nil
}

// RegisterSchema registers a schema. The same one again changes nothing. Another document under the same version is
// [ojs.ErrSchemaExists]. Jobs that are stored already are not checked again.
func (c *Client) RegisterSchema(ctx context.Context, s Schema) (*Schema, error) {
	return member[Schema](ctx, c, ojs.Call{Method: http.MethodPost, Path: "/schemas", Body: s, Idempotent: true}, "schema")
}

// GetSchema reads a schema with its document.
func (c *Client) GetSchema(ctx context.Context, uri string) (*Schema, error) {
	return member[Schema](ctx, c, get(schemaPath(uri), nil), "schema")
}

// DeleteSchema removes a schema.
func (c *Client) DeleteSchema(ctx context.Context, uri string) error {
	return c.client.Do(ctx, ojs.Call{Method: http.MethodDelete, Path: schemaPath(uri)}, nil)
}

// ListSchemas lists schemas without their documents, by type, the newest version first.
func (c *Client) ListSchemas(ctx context.Context, page PageOptions) (*Page[Schema], error) {
	return list[Schema](ctx, c, get("/schemas", page.query()), "schemas")
}

func schemaPath(uri string) string { return "/schemas/" + url.PathEscape(uri) }
