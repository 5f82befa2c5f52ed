package ojs

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
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

func (c *Client) schemaCall(ctx context.Context, r call) (*Schema, error) {
	var answer struct {
		Schema *Schema `json:"schema"`
	}
	if err := c.do(ctx, r, &answer); err != nil {
		return nil, err
	}
	if answer.Schema == nil {
		return nil, noMember(r.method, r.path, "schema")
	}
	return answer.Schema, nil
}

// RegisterSchema registers a schema. The same one again changes nothing. Another document under the same version is
// [ErrSchemaExists]. Jobs that are stored already are not checked again.
func (c *Client) RegisterSchema(ctx context.Context, s Schema) (*Schema, error) {
	return c.schemaCall(ctx, post("/schemas", s).again())
}

// GetSchema reads a schema with its document.
func (c *Client) GetSchema(ctx context.Context, uri string) (*Schema, error) {
	return c.schemaCall(ctx, get("/schemas/"+url.PathEscape(uri), nil))
}

// DeleteSchema removes a schema.
func (c *Client) DeleteSchema(ctx context.Context, uri string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: "/schemas/" + url.PathEscape(uri)}, nil)
}

// ListSchemas lists schemas without their documents, by type, the newest version first.
func (c *Client) ListSchemas(ctx context.Context, page PageOptions) (*Page[Schema], error) {
	query := url.Values{}
	page.set(query)
	return list[Schema](ctx, c, "/schemas", query, "schemas")
}
