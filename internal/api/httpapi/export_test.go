package httpapi

// RoutesOf are all routes of an API, as "GET /ojs/v1/jobs/:id".
func RoutesOf(a *API) (routes []string) {
	a.Handler()
	for _, r := range a.templates {
		routes = append(routes, r.method+" "+r.path)
	}
	return routes
}
