package golden_test

import (
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHTTP sends every route its cases. A route that is registered and not declared fails.
func TestHTTP(t *testing.T) {
	t.Parallel()
	names, shared := map[string]bool{}, &servers{t: t}
	for i := range routes {
		r := &routes[i]
		require.False(t, names[r.name()], "%s is declared twice", r.name())
		names[r.name()] = true
		for _, a := range r.aliases {
			names[a.name()] = true
		}
		t.Run(r.name(), func(t *testing.T) {
			t.Parallel()
			r.run(t, shared)
		})
	}
	t.Run("EveryRouteIsDeclared", func(t *testing.T) {
		t.Parallel()
		declared := map[string]bool{}
		for _, r := range routes {
			for _, a := range append([]route{r}, r.aliases...) {
				declared[a.method+" "+a.template] = true
			}
		}
		for registered := range shared.take(t, false).node.API().Routes() {
			require.True(t, declared[registered], "%s has no golden: declare it in http_routes_test.go and run make goldens", registered)
			delete(declared, registered)
		}
		require.Empty(t, declared, "declared and not registered")
	})
	if !*update {
		require.Empty(t, orphans(t, "http", names), "goldens without a route: remove them")
	}
}

// name is that of the file and of the subtest.
func (r *route) name() string {
	return r.method + strings.NewReplacer("/", "_", ":", "").Replace(r.template)
}

// run writes the file of a route, and one for each alias with the cases that it answers differently.
func (r *route) run(t *testing.T, shared *servers) {
	s := shared.take(t, r.alone)
	g := newGolden(r.method + " " + r.template)
	replies := map[string]string{}
	r.each(s, func(c request, sent, got string) {
		require.NotContains(t, replies, c.name, "two cases have this name")
		replies[c.name] = got
		g.add(c.name, sent, got)
	})
	g.compare(t, "http/"+r.name())
	for _, a := range r.aliases {
		as := *r
		as.method, as.template, as.path = a.method, a.template, a.path
		g := newGolden(fmt.Sprintf("%s %s\nanswers %d cases like %s %s, but for these:", as.method, as.template, len(replies), r.method, r.template))
		s.reset()
		as.each(s, func(c request, sent, got string) {
			if got != replies[c.name] {
				g.add(c.name, sent, got)
			}
		})
		g.compare(t, "http/"+as.name())
	}
}

// each sends the cases to a server that has only the seed.
func (r *route) each(s *server, do func(c request, sent, got string)) {
	for _, tenant := range []string{"", "acme"} {
		m := s.newMaker(tenant)
		for _, name := range r.seed {
			m.fill(name)
		}
	}
	if len(r.seed) > 0 {
		s.settle()
	}
	for _, c := range r.cases() {
		sent, got := r.exchange(s, c)
		do(c, sent, got)
	}
}

// exchange sends a case and writes it down.
func (r *route) exchange(s *server, c request) (sent, got string) {
	m := s.newMaker(c.tenant)
	m.large = max(r.maxBody, tooLarge)
	m.fill(r.before)
	path, body := m.fill(c.path), m.fill(c.body)
	if c.zip {
		body = zipped(body)
	}
	headers := []string{}
	if !slices.ContainsFunc(c.headers, func(h string) bool { return strings.HasPrefix(h, "OJS-Version:") }) {
		headers = append(headers, "OJS-Version: 1.0")
	}
	shown := c.headers
	if c.caller != "" {
		shown = append([]string{"X-OJS-Tenant: " + c.caller}, shown...)
	}
	if body != "" && !slices.ContainsFunc(c.headers, func(h string) bool { return strings.HasPrefix(h, "Content-Type:") }) {
		headers = append(headers, "Content-Type: application/json")
	}
	for _, h := range shown {
		// An empty header of the tenant is sent, one of the version means none.
		if h != "OJS-Version:" {
			headers = append(headers, h)
		}
	}
	if r.settle {
		s.settle()
	}
	a := s.do(c.method, path, body, r.frames, headers...)
	n := newNormalizer(m)
	lines := append([]string{c.method + " " + shorten(written(c.path, m))}, shown...)
	if body != "" {
		lines = append(lines, shorten(written(c.body, m)))
	}
	n.figures = r.numbers
	return strings.Join(lines, "\n"), a.written(r, n)
}

// usual are the headers of every answer; they are written only where they differ. Those of dropped say nothing.
var (
	usual = map[string]string{
		"Content-Type": "application/openjobspec+json", "Ojs-Version": "1.0", "X-Ojs-Version": "1.0", "Cache-Control": "no-store",
		"X-Content-Type-Options": "nosniff",
	}
	dropped = []string{"Date", "Content-Length"}
)

func (a *answer) written(r *route, n *normalizer) string {
	lines := []string{fmt.Sprint(a.status)}
	for name, value := range usual {
		switch got := strings.Join(a.header[name], ", "); got {
		case value:
			delete(a.header, name)
		case "":
			a.header[name] = []string{"(none)"}
		}
	}
	id := a.header.Get("X-Request-Id")
	if uuid, ok := strings.CutPrefix(id, "req_"); ok && anUUID.MatchString(uuid) {
		delete(a.header, "X-Request-Id")
		a.body = strings.ReplaceAll(a.body, id, "<request>")
	}
	names := make([]string, 0, len(a.header))
	for name := range a.header {
		if !slices.Contains(dropped, name) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		lines = append(lines, name+": "+n.text(strings.Join(a.header[name], ", ")))
	}
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
		a.body = samples(a.body)
	}
	if a.body != "" {
		body := n.text(a.body)
		for _, name := range r.late {
			body = regexp.MustCompile(`"`+name+`":[0-9]+`).ReplaceAllString(body, `"`+name+`":"<number>"`)
		}
		if n.figures {
			body = figures(body)
		}
		lines = append(lines, pretty(body))
	}
	return strings.Join(lines, "\n")
}
