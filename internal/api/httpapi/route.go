package httpapi

import (
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

// route is all that this package knows about a route. The tables of routes stand in the files of their handlers.
type route struct {
	method string // GET stands for HEAD, too
	path   string // below basePath, unless it begins with "//", which stands for the root
	reach  reach  // what a tenant may see
	body   bodyKind
	query  string // names of the parameters that the handler reads, separated by spaces
	do     handler
}

type handler func(r *request) error

// paging are the parameters of most lists.
const paging = "limit per_page offset page cursor "

// bodyKind says whether a route reads a body, and how large it may be.
type bodyKind int

const (
	noBody bodyKind = iota
	oneBody
	manyBody // also that of a nack, which must not be refused because of a long stack trace: its job would stay reserved
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
		return bodyLimit{a.config.MaxBatchBytes, "batch"}
	case resultBody:
		return bodyLimit{a.config.Limits.Result() + ackRoom, "result"}
	case jobResultBody:
		return bodyLimit{a.config.Limits.Result() + ackRoom, "envelope"}
	case configBody:
		return bodyLimit{queueconfig.MaxBytes, "config"}
	case reportBody:
		return bodyLimit{job.MaxCheckpoint + job.MaxProgressData + reportRoom, "envelope"}
	case checkpointBody:
		return bodyLimit{job.MaxCheckpoint + reportRoom, "checkpoint"}
	default:
		return bodyLimit{a.config.Limits.Envelope(), "envelope"}
	}
}

// request is a request in the handler of its route.
type request struct {
	echo.Context

	parameters []string // that the route reads
	body       []byte   // its buffer serves the next request: what a handler keeps beyond its return, it must copy
}

// QueryParam panics if the route does not declare the parameter: what clients may send is what the table of routes says.
func (r *request) QueryParam(name string) string {
	if !slices.Contains(r.parameters, name) {
		panic("httpapi: the route " + r.Request().Method + " " + r.Path() + " does not declare the parameter " + name)
	}
	return r.Context.QueryParam(name)
}

// QueryParams has the parameters that the route declares.
func (r *request) QueryParams() url.Values {
	all := r.Context.QueryParams()
	declared := make(url.Values, len(all))
	for _, name := range r.parameters {
		if values, sent := all[name]; sent {
			declared[name] = values
		}
	}
	return declared
}

// routes is the table of all routes.
func (a *API) routes() []route {
	all := slices.Concat(
		a.systemRoutes(), a.metricsRoutes(), a.jobRoutes(), a.workerRoutes(), a.progressRoutes(), a.historyRoutes(), a.deadLetterRoutes(),
		a.adminJobRoutes(), a.adminQueueRoutes(), a.adminStatsRoutes(), a.adminSystemRoutes(), a.tenantRoutes(), a.rateLimitRoutes(), a.cronRoutes(),
		a.poolRoutes(), a.workflowRoutes(), a.schemaRoutes(), a.queueRoutes(), a.eventRoutes(), a.webhookRoutes(),
	)
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

// mount hands the routes to the router, and keeps what confine and the answers to unknown routes need of them.
func (a *API) mount(e *echo.Echo, routes []route) {
	a.reach = make(map[string]reach, len(routes))
	methods, patterns := map[string][]string{}, map[string]bool{} // by path
	for _, r := range routes {
		a.reach[r.method+" "+r.path] = r.reach
		methods[r.path] = append(methods[r.path], r.method)
		if r.method == http.MethodGet {
			methods[r.path] = append(methods[r.path], http.MethodHead)
		}
		if parent, last := path.Split(r.path); strings.HasPrefix(last, ":") {
			patterns[parent] = true
		}
		if !strings.Contains(r.path, "*") {
			a.templates = append(a.templates, template{r.method, r.path})
		}
	}
	// In a fixed order, so that of two equally near routes the same one is always named.
	slices.SortFunc(a.templates, func(a, b template) int { return strings.Compare(a.path+a.method, b.path+b.method) })
	for _, r := range routes {
		e.Add(r.method, r.path, a.handle(r))
		if r.method == http.MethodGet {
			e.Add(http.MethodHead, r.path, a.handle(r))
		}
	}
	// Where a path and a path with an id differ in their last segments only, the router would take the first one for an id of the second, and
	// answer 404 for a job named batch.
	for of, known := range methods {
		if parent, last := path.Split(of); !patterns[parent] || strings.HasPrefix(last, ":") {
			continue
		}
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if !slices.Contains(known, method) {
				e.Add(method, of, func(c echo.Context) error {
					c.Response().Header().Set(echo.HeaderAllow, strings.Join(known, ", "))
					return echo.ErrMethodNotAllowed
				})
			}
		}
	}
}

// Routes are all routes, such as "GET /ojs/v1/jobs/:id", once Handler was called. HEAD goes with GET.
func (a *API) Routes() []string {
	list := make([]string, len(a.templates))
	for i, t := range a.templates {
		list[i] = t.method + " " + t.path
	}
	return list
}

func (a *API) handle(of route) echo.HandlerFunc {
	parameters := strings.Fields(of.query)
	if of.body == noBody {
		return func(c echo.Context) error { return of.do(&request{Context: c, parameters: parameters}) }
	}
	return a.withBody(a.bodyLimit(of.body), func(c echo.Context, body []byte) error {
		return of.do(&request{Context: c, parameters: parameters, body: body})
	})
}
