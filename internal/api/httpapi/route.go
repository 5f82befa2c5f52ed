package httpapi

import (
	"cmp"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/riverqueue/river/rivershared/levenshtein"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/spec"
)

// route is all that this package knows about a route. The tables of routes stand in the files of their handlers.
type route struct {
	method string // GET stands for HEAD, too
	path   string // below basePath, unless it begins with "//", which stands for the root
	reach  api.Reach
	body   bodyKind
	query  string // names of the parameters that the handler reads, separated by spaces
	do     handler
}

type handler func(r *request) error

// about is a handler of what the path names. read also refuses a name that can be none.
func about[ID any](read func(c echo.Context) (ID, error), do func(r *request, id ID) error) handler {
	return func(r *request) error {
		id, err := read(r)
		if err != nil {
			return err
		}
		return do(r, id)
	}
}

// paging are the parameters of most lists.
const paging = "limit per_page offset page cursor "

// bodyKind says whether a route reads a body, and how large it may be.
type bodyKind int

const (
	noBody bodyKind = iota
	oneBody
	commandBody // {} or none
	manyBody    // also that of a nack, which must not be refused because of a long stack trace: its job would stay reserved
	resultBody
	jobResultBody // resultBody of the routes whose path names the job
	configBody
	reportBody // may hold progress and a checkpoint
	checkpointBody
)

const (
	// ackRoom is what an ack may have besides its result, and reportRoom what a report may have besides its data or checkpoint: 64 KiB.
	ackRoom    = 65_536
	reportRoom = 65_536
)

func (a *API) bodyLimit(kind bodyKind) bodyLimit {
	switch kind {
	case manyBody:
		return bodyLimit{int(a.config.Server.MaxBatchBytes), "batch"}
	case resultBody:
		return bodyLimit{a.JobLimits.MaxJobBytes + ackRoom, "result"}
	case jobResultBody:
		return bodyLimit{a.JobLimits.MaxJobBytes + ackRoom, "envelope"}
	case configBody:
		return bodyLimit{queueconfig.MaxBytes, "config"}
	case reportBody:
		return bodyLimit{job.MaxCheckpoint + job.MaxProgressData + reportRoom, "envelope"}
	case checkpointBody:
		return bodyLimit{job.MaxCheckpoint + reportRoom, "checkpoint"}
	default:
		return bodyLimit{a.JobLimits.MaxJobBytes, "envelope"}
	}
}

// request is a request in the handler of its route.
type request struct {
	echo.Context

	parameters []string // that the route reads
	body       []byte   // its buffer serves the next request: what a handler keeps beyond its return, it must copy
	err        error    // of the first parameter that was refused
}

// QueryParam panics if the route does not declare the parameter: what clients may send is what the table of routes says. Of several
// values none is the one that was meant.
func (r *request) QueryParam(name string) string {
	r.checkDeclared(name)
	values := r.QueryParams()[name]
	if slices.ContainsFunc(values, func(v string) bool { return v != values[0] }) {
		r.refuse(spec.InvalidRequest(name, "one value", slices.Compact(slices.Clone(values)), name+" is sent twice; send it once."))
	}
	return r.Context.QueryParam(name)
}

func (r *request) checkDeclared(parameter string) {
	if !slices.Contains(r.parameters, parameter) {
		panic("httpapi: the route " + r.Request().Method + " " + r.Path() + " does not declare the parameter " + parameter)
	}
}

// routes is the table of all routes.
func (a *API) routes() []route {
	all := slices.Concat([][]route{
		a.systemRoutes(), a.metricsRoutes(), a.jobRoutes(), a.workerRoutes(), a.progressRoutes(), a.historyRoutes(), a.deadLetterRoutes(),
		a.adminJobRoutes(), a.adminQueueRoutes(), a.adminStatsRoutes(), a.adminSystemRoutes(), a.tenantRoutes(), a.rateLimitRoutes(),
		a.cronRoutes(),
		a.poolRoutes(), a.workflowRoutes(), a.schemaRoutes(), a.queueRoutes(), a.eventRoutes(), a.webhookRoutes(),
	}...)
	for i := range all {
		r := &all[i]
		if strings.HasPrefix(r.path, "//") {
			r.path = r.path[1:]
		} else {
			r.path = basePath + r.path
		}
	}
	return all
}

// mount hands the routes to the router, and keeps those that the answer to an unknown route may name.
func (a *API) mount(e *echo.Echo, routes []route) {
	literals := map[string]map[string][]string{} // parent, last segment, methods
	for _, r := range routes {
		if parent, last := path.Split(r.path); !strings.HasPrefix(last, ":") {
			if literals[parent] == nil {
				literals[parent] = map[string][]string{}
			}
			literals[parent][last] = append(literals[parent][last], r.methods()...)
		}
	}
	a.table = slices.DeleteFunc(slices.Clone(routes), func(r route) bool { return strings.Contains(r.path, "*") })
	// In a fixed order, so that of two equally near routes the same one is always named.
	slices.SortFunc(a.table, func(a, b route) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	for _, r := range routes {
		h := a.handle(r)
		if parent, last := path.Split(r.path); last == ":id" && literals[parent] != nil {
			h = notLiteral(literals[parent], h)
		}
		e.Match(r.methods(), r.path, a.confine(r.reach, h))
	}
}

func (r *route) methods() []string {
	if r.method == http.MethodGet {
		return []string{http.MethodGet, http.MethodHead}
	}
	return []string{r.method}
}

// notLiteral answers 405 where the last segment is that of another route, which does not know the method: it is no id then, and the answer
// would be 404 for a job named batch. literals are the methods of such routes.
func notLiteral(literals map[string][]string, h echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if methods, literal := literals[c.Param("id")]; literal {
			c.Response().Header().Set(echo.HeaderAllow, strings.Join(methods, ", "))
			return echo.ErrMethodNotAllowed
		}
		return h(c)
	}
}

// Routes are all routes, such as "GET /ojs/v1/jobs/:id", with what they show to tenants, once Handler was called. HEAD goes with GET.
func (a *API) Routes() iter.Seq2[string, api.Reach] {
	return func(yield func(string, api.Reach) bool) {
		for _, r := range a.table {
			if !yield(r.method+" "+r.path, r.reach) {
				return
			}
		}
	}
}

func (a *API) handle(of route) echo.HandlerFunc {
	parameters := strings.Fields(of.query)
	do := func(c echo.Context) error { return of.do(&request{Context: c, parameters: parameters}) }
	if of.body != noBody {
		do = a.withBody(a.bodyLimit(of.body), func(c echo.Context, body []byte) error {
			if of.body == commandBody && !blank(body) {
				o, wire := jsonread.OpenBody(body)
				if o.RefuseOthers(); wire != nil || o.Err() != nil {
					return cmp.Or(wire, o.Err())
				}
			}
			return of.do(&request{Context: c, parameters: parameters, body: body})
		})
	}
	// Probes and scrapers may add parameters of their own.
	if !strings.HasPrefix(of.path, basePath) || of.reach == api.Everybody {
		return do
	}
	return func(c echo.Context) error {
		if c.Request().URL.RawQuery != "" {
			if err := checkQuery(c.Request(), parameters); err != nil {
				return err
			}
		}
		return do(c)
	}
}

// checkQuery refuses parameters that the route does not declare, the first by name, and a query that cannot be read whole: what is dropped
// may be the filter of a call that deletes. It is docs/reference/http.md, Unknown names.
func checkQuery(r *http.Request, known []string) error {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return spec.InvalidRequest("query", "name=value pairs, percent-encoded", nil,
			"The query of the URL cannot be read: "+err.Error()+".")
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		// A stream's key is no use where none is needed.
		if !slices.Contains(known, name) && !(name == "access_token" && streamRoute(r)) {
			expected, message := spec.UnknownName(name, known)
			err := spec.InvalidRequest(name, expected, nil, message)
			err.Hint = spec.UnknownHint
			return err
		}
	}
	return nil
}

// maxComparedPath bounds what a request for an unknown route costs: longer paths are compared with no route.
const maxComparedPath = 128

// maxMisspelt is the edit distance up to which a route resembles a path. A farther one is no help: for a route that this server does
// not have it names any other.
const maxMisspelt = 3

// basePath is where all routes but those of health, manifest and metrics are.
const basePath = "/ojs/v1"

// nearest is the route whose path has the smallest edit distance to the path, among those with the method if there are
// any. A parameter of the route stands for the segment of the path at its place. "" if none
// resembles it, or the path is too long to compare.
// It is called for each request without a route, so its cost matters: see maxComparedPath.
func nearest(routes []route, method, path string) string {
	if len(path) > maxComparedPath {
		return ""
	}
	segments := strings.Split(path, "/")
	sameMethod := slices.ContainsFunc(routes, func(r route) bool { return r.method == method })
	best, least := route{}, -1
	for _, r := range routes {
		if sameMethod && r.method != method {
			continue
		}
		d := levenshtein.ComputeDistance(path, filled(r.path, segments))
		if short, cut := strings.CutPrefix(r.path, basePath); cut { // the base path is what is forgotten most often
			d = min(d, 1+levenshtein.ComputeDistance(path, filled(short, segments)))
		}
		if least < 0 || d < least {
			best, least = r, d
		}
	}
	if least < 0 || least > min(maxMisspelt, len(path)-2) { // a short path is near to each short route
		return ""
	}
	// :id is written as {id}, like the documentation.
	parts := strings.Split(best.path, "/")
	for i, part := range parts {
		if name, isParameter := strings.CutPrefix(part, ":"); isParameter {
			parts[i] = "{" + name + "}"
		}
	}
	return best.method + " " + strings.Join(parts, "/")
}

// filled puts the segments of a path in the place of a route's parameters.
// Otherwise a long id in the path would be farther from :id than from another route.
func filled(path string, segments []string) string {
	parts := strings.Split(path, "/")
	for i, part := range parts {
		if strings.HasPrefix(part, ":") && i < len(segments) && segments[i] != "" {
			parts[i] = segments[i]
		}
	}
	return strings.Join(parts, "/")
}
