package httpapi

import (
	"net/http"
	"net/url"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/labstack/echo/v4"
	"github.com/riverqueue/river/rivershared/util/sliceutil"

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
		{"GET", "/schemas/:uri", api.Operators, noBody, "", about(schemaURI, a.getSchema)},
		{"DELETE", "/schemas/:uri", api.Operators, noBody, "", about(schemaURI, a.deleteSchema)},

		{"GET", "/admin/schemas", api.Operators, noBody, paging, a.listSchemas(defaultAdminPage, maxAdminPage)},
		{"GET", "/admin/schemas/:type", api.Operators, noBody, "", a.getNewestSchema},
		{"GET", "/admin/schemas/:type/versions", api.Operators, noBody, "", a.listSchemaVersions},
		{"GET", "/admin/schemas/:type/:version", api.Operators, noBody, "", about(knownKey, a.getSchemaVersion)},
		{"PUT", "/admin/schemas/:type/:version", api.Operators, oneBody, "", a.putSchema},
		{"DELETE", "/admin/schemas/:type/:version", api.Operators, noBody, "", about(knownKey, a.removeSchema)},
	}
}

// postSchema registers under the URI in the body. A version never changes: the same document again is 200, another one 409.
func (a *API) postSchema(r *request) error {
	in, wire := schema.DecodeRegistration(r.body)
	if wire != nil {
		return wire
	}
	// The URI has slashes, so it is escaped to be one segment of the path.
	return a.registerSchema(r, in, "/ojs/v1/schemas/"+url.PathEscape(in.URI),
		func(s *schema.Schema) object { return object{{"schema", showSchema(s)}} })
}

// putSchema answers with the object itself; the route of SDKs wraps it in schema.
func (a *API) putSchema(r *request) error {
	in, wire := schema.DecodePut(schemaKey(r), r.body)
	if wire != nil {
		return wire
	}
	return a.registerSchema(r, in, "/ojs/v1/admin/schemas/"+in.Type+"/"+in.Version, showSchema)
}

// registerSchema answers when this node checks new jobs by the schema; other nodes follow within a second. Jobs that are stored are not
// checked again.
func (a *API) registerSchema(r *request, in *schema.Registration, location string, show func(s *schema.Schema) object) error {
	// The store decides atomically whether the version is new; two nodes may register it at once.
	stored, created, err := a.Schemas.Put(r.Request().Context(), in)
	if err != nil {
		return err
	}
	status := http.StatusOK
	// A repetition has no Location, as nothing was made.
	if created {
		status = http.StatusCreated
		r.Response().Header().Set("Location", location)
	}
	return r.answer(status, append(show(stored), member{"read_as", given(in.ReadAs)}))
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

// schemaURI takes any text; one that nobody registered is 404.
func schemaURI(c echo.Context) (string, error) {
	uri := param(c, "uri")
	if !api.Storable(uri) {
		return "", spec.NotFound("schema", uri)
	}
	return uri, nil
}

func (a *API) getSchema(r *request, uri string) error {
	s, err := a.Schemas.GetByURI(r.Request().Context(), uri)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, object{{"schema", showSchema(s)}})
}

// deleteSchema finds the version by its URI first. If it is deleted in between, the delete is 404.
func (a *API) deleteSchema(r *request, uri string) error {
	s, err := a.Schemas.GetByURI(r.Request().Context(), uri)
	if err != nil {
		return err
	}
	return a.removeSchema(r, s.Key)
}

// removeSchema answers without the document.
func (a *API) removeSchema(r *request, key schema.Key) error {
	s, err := a.Schemas.Delete(r.Request().Context(), key)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, append(object{{"deleted", true}}, showSchemaInfo(&s.Info)...))
}

func (a *API) getSchemaVersion(r *request, key schema.Key) error {
	s, err := a.Schemas.Get(r.Request().Context(), key)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, showSchema(s))
}

// getNewestSchema shows the newest version and names all of them.
// It reads twice. A version that is deleted in between is 404, although older ones exist; the next call finds them.
func (a *API) getNewestSchema(r *request) error {
	versions, err := a.Schemas.Versions(r.Request().Context(), param(r, "type"))
	if err != nil {
		return err
	}
	s, err := a.Schemas.Get(r.Request().Context(), versions[0].Key)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, append(showSchema(s), member{"schemas", showSchemas(versions)}))
}

func (a *API) listSchemaVersions(r *request) error {
	jobType := param(r, "type")
	versions, err := a.Schemas.Versions(r.Request().Context(), jobType)
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, object{{"type", jobType}, {"versions", showSchemas(versions)}, {"total", len(versions)}})
}

// listSchemas reads the infos of all schemas, whose number is bounded (schema.ErrTooMany), and cut here; documents are not read.
// schemas and items are the same list. total counts all of them, not only the page.
func (a *API) listSchemas(standard, largest int) handler {
	return func(r *request) error {
		page := r.numberedPage(standard, largest)
		if r.err != nil {
			return r.err
		}
		all, err := a.Schemas.List(r.Request().Context())
		if err != nil {
			return err
		}
		from := min(page.offset, len(all))
		list := showSchemas(all[from:min(from+page.limit, len(all))])
		total := int64(len(all))
		return r.answer(http.StatusOK, object{{"schemas", list}, {"items", list}, {"total", total},
			{"pagination", page.shownNumbered(total, len(list))}})
	}
}

func showSchemas(list []*schema.Info) []object { return sliceutil.Map(list, showSchemaInfo) }

// showSchema has the document, valid JSON without white space, as it was checked at its registration.
func showSchema(s *schema.Schema) object {
	return append(showSchemaInfo(&s.Info), member{"schema", s.Document})
}

// showSchemaInfo shows a version with the JSON type with which it was registered: 1 and "1" are the same version, but a client gets back
// what it has sent.
func showSchemaInfo(info *schema.Info) object {
	version := any(info.Version)
	if info.VersionNumber {
		version = jsontext.Value(info.Version)
	}
	return object{{"uri", info.URI}, {"type", info.Type}, {"version", version}, {"enforce", info.Enforce},
		{"created_at", spec.FormatTime(info.CreatedAt)}}
}
