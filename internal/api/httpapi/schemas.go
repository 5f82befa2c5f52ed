package httpapi

import (
	"net/http"
	"net/url"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/internal/spec"
)

// schemaRoutes are those of docs/reference/schemas.md: by URI, as SDKs call them, and by type and version, for operators.
// The route with /versions is literal, so no version may have that name (schema.ValidVersion). All are for operators, because
// schemas hold for the jobs of all tenants.
func (a *API) schemaRoutes() []route {
	return []route{
		{"POST", "/schemas", api.Operators, oneBody, "", a.postSchema},
		{"GET", "/schemas", api.Operators, noBody, paging, a.listSchemas(api.DefaultPage, api.MaxPage)},
		{"GET", "/schemas/:uri", api.Operators, noBody, "", a.getSchema},
		{"DELETE", "/schemas/:uri", api.Operators, noBody, "", a.deleteSchema},

		{"GET", "/admin/schemas", api.Operators, noBody, paging, a.listSchemas(defaultAdminPage, maxAdminPage)},
		{"GET", "/admin/schemas/:type", api.Operators, noBody, "", a.getNewestSchema},
		{"GET", "/admin/schemas/:type/versions", api.Operators, noBody, "", a.listSchemaVersions},
		{"GET", "/admin/schemas/:type/:version", api.Operators, noBody, "", a.getSchemaVersion},
		{"PUT", "/admin/schemas/:type/:version", api.Operators, oneBody, "", a.putSchema},
		{"DELETE", "/admin/schemas/:type/:version", api.Operators, noBody, "", a.deleteSchemaVersion},
	}
}

// postSchema registers under the URI in the body. A version never changes: the same document again is 200, another one 409.
func (a *API) postSchema(r *request) error {
	in, wire := schema.DecodeRegistration(r.body)
	if wire != nil {
		return wire
	}
	// The URI has slashes, so it is escaped to be one segment of the path.
	return a.registerSchema(r, in, "/ojs/v1/schemas/"+url.PathEscape(in.URI), func(b []byte, s *schema.Schema) []byte {
		return append(appendSchema(append(b, `{"schema":`...), s), '}')
	})
}

// It answers with the object itself; the route of SDKs wraps it in schema.
func (a *API) putSchema(r *request) error {
	in, wire := schema.DecodePut(schemaKey(r), r.body)
	if wire != nil {
		return wire
	}
	return a.registerSchema(r, in, "/ojs/v1/admin/schemas/"+in.Type+"/"+in.Version, appendSchema)
}

// When it answers, this node checks new jobs by the schema; other nodes follow within a second. Jobs that are stored are not
// checked again.
func (a *API) registerSchema(c echo.Context, in *schema.Registration, location string, show func(b []byte, s *schema.Schema) []byte) error {
	// The store decides atomically whether the version is new; two nodes may register it at once.
	stored, created, err := a.Schemas.Put(c.Request().Context(), in)
	if err != nil {
		return err
	}
	status := http.StatusOK
	// A repetition has no Location, as nothing was made.
	if created {
		status = http.StatusCreated
		c.Response().Header().Set("Location", location)
	}
	return respond(c, status, func(b []byte) []byte { return show(b, stored) })
}

// schemaKey reads the type and the version in the path.
// It checks nothing: a registration refuses a malformed key with 400.
func schemaKey(c echo.Context) schema.Key {
	return schema.Key{Type: param(c, "type"), Version: param(c, "version")}
}

// knownKey is schemaKey for calls that register nothing: what cannot be registered does not exist.
// The type is only checked for what a statement can compare.
func knownKey(c echo.Context) (schema.Key, error) {
	key := schemaKey(c)
	if !api.Storable(key.Type) || !schema.ValidVersion(key.Version) {
		return key, spec.NotFound("schema", key.Type+"/"+key.Version)
	}
	return key, nil
}

// Any other text may be asked for; one that nobody registered is 404.
func schemaURI(c echo.Context) (string, error) {
	uri := param(c, "uri")
	if !api.Storable(uri) {
		return "", spec.NotFound("schema", uri)
	}
	return uri, nil
}

func (a *API) getSchema(r *request) error {
	uri, err := schemaURI(r)
	if err != nil {
		return err
	}
	s, err := a.Schemas.GetByURI(r.Request().Context(), uri)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte { return append(appendSchema(append(b, `{"schema":`...), s), '}') })
}

// deleteSchema finds the version by its URI first. If it is deleted in between, the delete is 404.
func (a *API) deleteSchema(r *request) error {
	uri, err := schemaURI(r)
	if err != nil {
		return err
	}
	s, err := a.Schemas.GetByURI(r.Request().Context(), uri)
	if err != nil {
		return err
	}
	return a.removeSchema(r, s.Key)
}

func (a *API) deleteSchemaVersion(r *request) error {
	key, err := knownKey(r)
	if err != nil {
		return err
	}
	return a.removeSchema(r, key)
}

// The answer has no document.
func (a *API) removeSchema(c echo.Context, key schema.Key) error {
	s, err := a.Schemas.Delete(c.Request().Context(), key)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		return append(appendSchemaInfo(append(b, `{"deleted":true,`...), &s.Info), '}')
	})
}

func (a *API) getSchemaVersion(r *request) error {
	key, err := knownKey(r)
	if err != nil {
		return err
	}
	return a.showSchema(r, key, nil)
}

// getNewestSchema shows the newest version and names all of them.
// It reads twice. A version that is deleted in between is 404, although older ones exist; the next call finds them.
func (a *API) getNewestSchema(r *request) error {
	versions, err := a.Schemas.Versions(r.Request().Context(), param(r, "type"))
	if err != nil {
		return err
	}
	return a.showSchema(r, versions[0].Key, versions)
}

// versions is nil where one version was asked for.
func (a *API) showSchema(c echo.Context, key schema.Key, versions []*schema.Info) error {
	s, err := a.Schemas.Get(c.Request().Context(), key)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = appendSchema(b, s)
		if versions != nil {
			b = append(appendSchemas(append(b[:len(b)-1], `,"schemas":`...), versions), '}')
		}
		return b
	})
}

func (a *API) listSchemaVersions(r *request) error {
	jobType := param(r, "type")
	versions, err := a.Schemas.Versions(r.Request().Context(), jobType)
	if err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = appendQuoted(append(b, `{"type":`...), jobType)
		b = appendSchemas(append(b, `,"versions":`...), versions)
		b = strconv.AppendInt(append(b, `,"total":`...), int64(len(versions)), 10)
		return append(b, '}')
	})
}

// The infos of all schemas are read, whose number is bounded (schema.ErrTooMany), and cut here; documents are not read.
// schemas and items are the same list.
func (a *API) listSchemas(standard, largest int) handler {
	return func(r *request) error {
		page, err := readNumberedPage(r, standard, largest)
		if err != nil {
			return err
		}
		all, err := a.Schemas.List(r.Request().Context())
		if err != nil {
			return err
		}
		from := min(page.offset, len(all))
		shown := all[from:min(from+page.limit, len(all))]
		return respond(r, http.StatusOK, func(b []byte) []byte {
			// total counts all of them, not only the page.
			b = appendSchemas(append(b, `{"schemas":`...), shown)
			b = appendSchemas(append(b, `,"items":`...), shown)
			b = strconv.AppendInt(append(b, `,"total":`...), int64(len(all)), 10)
			b = page.appendNumbered(append(b, `,"pagination":`...), int64(len(all)), len(shown))
			return append(b, '}')
		})
	}
}

func appendSchemas(b []byte, list []*schema.Info) []byte {
	b = append(b, '[')
	for i, info := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendSchemaInfo(append(b, '{'), info), '}')
	}
	return append(b, ']')
}

// The document is valid JSON without white space, as it was checked at its registration.
func appendSchema(b []byte, s *schema.Schema) []byte {
	b = append(appendSchemaInfo(append(b, '{'), &s.Info), `,"schema":`...)
	return append(append(b, s.Document...), '}')
}

// appendSchemaInfo appends members, without a leading comma. The version has the JSON type with which it was registered.
func appendSchemaInfo(b []byte, info *schema.Info) []byte {
	b = appendQuoted(append(b, `"uri":`...), info.URI)
	b = appendText(b, "type", info.Type)
	// 1 and "1" are the same version, but a client gets back what it has sent.
	if info.VersionNumber {
		b = append(append(b, `,"version":`...), info.Version...)
	} else {
		b = appendText(b, "version", info.Version)
	}
	b = strconv.AppendBool(append(b, `,"enforce":`...), info.Enforce)
	return appendText(b, "created_at", spec.FormatTime(info.CreatedAt))
}
