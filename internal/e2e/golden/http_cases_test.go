package golden_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

// route declares one route of the HTTP interface. Everything that is sent to it is made from this by rule.
type route struct {
	method, template string

	// path is a request that succeeds; its fixtures are replaced by unknown and malformed ids. query are the parameters of a good
	// request, if it needs any.
	path, query string

	// body are the members of the body, in the order in which a good request has those that are needed. takesBody without members
	// says that the body may be any object.
	body      []member
	takesBody bool
	// extra are good bodies that the rule does not make.
	extra []string

	// maxBody is the size of a body that is refused; 0: one byte more than any job may have.
	maxBody int

	// params are the parameters of the query.
	params []member

	// before is made before each case, for calls that change what a filter chooses.
	before string
	// seed is made before the first case, for lists, once for an operator and once for the tenant.
	seed []string
	// settle waits before each request until all is published.
	settle bool
	// alone has a server of its own: the answers show what it has done before.
	alone bool
	// frames is how many frames of a stream are read.
	frames int
	// numbers writes all numbers of the answers as <number>, for figures.
	numbers bool
	// late are members whose numbers the server counts at some time after the call; they are written as "<number>".
	late []string
	// aliases are routes with another method, template and path that get the same cases; what they answer differently is written.
	aliases []route
}

// kind is the JSON type of a member.
type kind int

const (
	text kind = iota
	number
	truth
	object
	list
	anything
)

// wrongTypes has a value of each type.
var wrongTypes = []struct {
	kind  kind
	name  string
	value string
}{
	{text, "a string", `"x"`},
	{number, "a number", `7`},
	{truth, "a boolean", `true`},
	{object, "an object", `{"x":1}`},
	{list, "an array", `[true]`},
}

// member is a member of a body, or with query parameters a parameter.
type member struct {
	path     string // a.b for b in a, a[].b for b in the only element of a
	kind     kind
	good     string // JSON; of a parameter its text
	needed   bool
	min, max int    // of a number; of a text the most bytes. 0, 0: none
	without  string // the needed member that this one replaces
}

func str(path, good string, most int) member {
	return member{path: path, kind: text, good: strconv.Quote(good), max: most}
}
func num(path string, good, least, most int) member {
	return member{path: path, kind: number, good: strconv.Itoa(good), min: least, max: most}
}
func boolean(path string) member         { return member{path: path, kind: truth, good: "true"} }
func obj(path, good string) member       { return member{path: path, kind: object, good: good} }
func arr(path, good string) member       { return member{path: path, kind: list, good: good} }
func whatever(path, good string) member  { return member{path: path, kind: anything, good: good} }
func need(m member) member               { m.needed = true; return m }
func instead(of string, m member) member { m.without = of; return m }

// pairs are members of a body in their order; equal names are sent as often as they are here.
type pair struct{ path, value string }

// render writes members as an object. Members of one inner object stand together, at the place of the first.
func render(pairs []pair) string {
	var b strings.Builder
	b.WriteString("{")
	done := map[string]bool{}
	for _, p := range pairs {
		head, _, nested := strings.Cut(p.path, ".")
		if nested && done[head] {
			continue
		}
		if b.Len() > 1 {
			b.WriteString(",")
		}
		name, isList := strings.CutSuffix(head, "[]")
		b.WriteString(strconv.Quote(name) + ":")
		if !nested {
			b.WriteString(p.value)
			continue
		}
		done[head] = true
		var inner []pair
		for _, q := range pairs {
			if rest, ok := strings.CutPrefix(q.path, head+"."); ok {
				inner = append(inner, pair{rest, q.value})
			}
		}
		if isList {
			b.WriteString("[" + render(inner) + "]")
		} else {
			b.WriteString(render(inner))
		}
	}
	b.WriteString("}")
	return b.String()
}

// request is one case.
type request struct {
	name    string
	method  string
	path    string // with the query
	body    string
	headers []string
	zip     bool   // the body is compressed
	tenant  string // of the fixtures
	caller  string // the tenant that calls
}

// inside reports whether a member is in another one.
func (m member) inside(outer string) bool {
	return strings.HasPrefix(m.path, outer+".") || strings.HasPrefix(m.path, outer+"[].")
}

// minimal are the members of a good body. A list whose elements have needed members is written by these.
func (r *route) minimal() (list []member) {
	for _, m := range r.body {
		if m.needed && !slices.ContainsFunc(r.body, func(n member) bool { return n.needed && n.inside(m.path) }) {
			list = append(list, m)
		}
	}
	return list
}

// needed are the values of a good body without a member.
func (r *route) needed(but string) (pairs []pair) {
	for _, m := range r.minimal() {
		if m.path != but && !m.inside(but) {
			pairs = append(pairs, pair{m.path, m.good})
		}
	}
	return pairs
}

// with is a good body in which a member has these values, one after the other. In an object the other members of its good value stand
// beside it.
func (r *route) with(m member, values ...string) string {
	var pairs []pair
	minimal := r.minimal()
	for _, n := range r.body {
		needed := slices.ContainsFunc(minimal, func(o member) bool { return o.path == n.path })
		switch {
		case n.path == m.path:
			for _, v := range values {
				pairs = append(pairs, pair{m.path, v})
			}
		case n.kind == object && m.path[:max(0, strings.LastIndex(m.path, "."))] == n.path:
			gjson.Parse(n.good).ForEach(func(key, value gjson.Result) bool {
				path := n.path + "." + key.Str
				if path != m.path && !slices.ContainsFunc(minimal, func(o member) bool { return o.path == path }) {
					pairs = append(pairs, pair{path, value.Raw})
				}
				return true
			})
		case needed && n.path != m.without && !n.inside(m.path):
			pairs = append(pairs, pair{n.path, n.good})
		}
	}
	return render(pairs)
}

// wrong is a value of another type.
func (m member) wrong() string {
	switch m.kind {
	case object, list:
		return `7`
	default:
		return `{"x":1}`
	}
}

type bad struct{ name, value string }

// bads are the bad values of a member, by its kind.
func (m member) bads() (values []bad) {
	values = append(values, bad{"null", "null"})
	for _, w := range wrongTypes {
		if w.kind != m.kind && m.kind != anything {
			values = append(values, bad{w.name, w.value})
		}
	}
	switch m.kind {
	case text:
		long := m.max + 1
		if m.max == 0 {
			long = 3000
		}
		values = append(values, bad{"empty", `""`}, bad{"unknown text", `"no such thing ~"`}, bad{"U+0000", `"a\u0000"`},
			bad{"too long", `"` + strings.Repeat("a", long) + `"`})
	case number:
		if m.min != 0 || m.max != 0 {
			values = append(values, bad{"below", strconv.Itoa(m.min - 1)}, bad{"above", strconv.Itoa(m.max + 1)})
		} else {
			values = append(values, bad{"negative", "-1"})
		}
		values = append(values, bad{"a fraction", "1.5"}, bad{"too large for 64 bits", "9223372036854775808"}, bad{"too large for a double", "1e400"}, bad{"a number as text", `"1"`})
	case object:
		values = append(values, bad{"empty", "{}"}, bad{"with an unknown member", `{"unknown_member":1}`})
	case list:
		values = append(values, bad{"empty", "[]"}, bad{"of null", "[null]"}, bad{"of a number", "[7]"}, bad{"of an empty text", `[""]`}, bad{"of unknown text", `["no such thing ~"]`}, bad{"of an object", "[{}]"})
	}
	return values
}

// tooLarge is one byte more than the largest body of a single job.
const tooLarge = 1<<20 + 1<<17

// bodies are the cases about the body.
func (r *route) bodies() (cases []request) {
	add := func(name, body string, headers ...string) {
		cases = append(cases, request{name: name, body: body, headers: headers})
	}
	good := render(r.needed(""))
	for i, body := range r.extra {
		add("another good body, "+strconv.Itoa(i+1), body)
	}
	for _, m := range r.body {
		if m.needed {
			add(m.path+": missing", render(r.needed(m.path)))
		} else {
			add(m.path+": good", r.with(m, m.good))
		}
		for _, b := range m.bads() {
			add(m.path+": "+b.name, r.with(m, b.value))
		}
		add(m.path+": twice, first wrong", r.with(m, m.wrong(), m.good))
		add(m.path+": twice, last wrong", r.with(m, m.good, m.wrong()))
	}
	cases = append(cases, r.twoErrors()...)
	add("body: empty", "")
	add("body: no members", "{}")
	add("body: no JSON", "nonsense")
	add("body: an array", "["+good+"]")
	add("body: a string", `"x"`)
	add("body: null", "null")
	add("body: cut", good[:len(good)-1])
	add("body: text behind it", good+"x")
	add("body: byte order mark", "\ufeff"+good)
	if good == "{}" {
		good = `{"x":1}`
	}
	add("body: NUL byte", "{\"unknown_member\":\"\x00\","+good[1:])
	add("body: invalid UTF-8", "{\"unknown_member\":\"\xff\","+good[1:])
	add("body: lone surrogate", `{"unknown_member":"\ud800",`+good[1:])
	add("body: unknown member", `{"unknown_member":1,`+good[1:])
	add("body: unknown member twice", `{"unknown_member":1,"unknown_member":2,`+good[1:])
	add("body: deep", `{"unknown_member":`+strings.Repeat("[", 300)+strings.Repeat("]", 300)+`,`+good[1:])
	add("body: too large", `{"unknown_member":"$large",`+good[1:])
	add("body: Content-Type text/plain", good, "Content-Type: text/plain")
	add("body: Content-Type with charset", good, "Content-Type: Application/JSON; charset=latin1")
	add("body: Content-Encoding br", good, "Content-Encoding: br")
	cases = append(cases, request{name: "body: gzip", body: good, headers: []string{"Content-Encoding: gzip"}, zip: true})
	add("body: broken gzip", good, "Content-Encoding: gzip")
	add("order: Content-Type, Content-Encoding, JSON", "nonsense", "Content-Type: text/plain", "Content-Encoding: br")
	add("order: Content-Encoding, JSON", "nonsense", "Content-Encoding: br")
	return cases
}

// twoErrors are each pair of the first members wrong, all of them, and all in reverse.
func (r *route) twoErrors() (cases []request) {
	first := slices.Clone(r.body)
	slices.SortStableFunc(first, func(a, b member) int {
		switch {
		case a.needed == b.needed:
			return 0
		case a.needed:
			return -1
		default:
			return 1
		}
	})
	// Of a member and one inside it only the first counts.
	var chosen []member
	for _, m := range first {
		related := func(n member) bool { return m.inside(n.path) || n.inside(m.path) }
		if len(chosen) < 4 && !slices.ContainsFunc(chosen, related) {
			chosen = append(chosen, m)
		}
	}
	first = chosen
	wrongs := func(ms ...member) string {
		var pairs []pair
		for _, m := range ms {
			pairs = append(pairs, pair{m.path, m.wrong()})
		}
		for _, n := range r.minimal() {
			if !slices.ContainsFunc(ms, func(m member) bool { return m.path == n.path || n.inside(m.path) || m.inside(n.path) }) {
				pairs = append(pairs, pair{n.path, n.good})
			}
		}
		return render(pairs)
	}
	for i, a := range first {
		for _, b := range first[i+1:] {
			cases = append(cases, request{name: "two errors: " + a.path + ", " + b.path, body: wrongs(a, b)})
		}
	}
	if len(first) > 1 {
		back := slices.Clone(first)
		slices.Reverse(back)
		cases = append(cases, request{name: "many errors", body: wrongs(first...)}, request{name: "many errors, in reverse", body: wrongs(back...)})
	}
	return cases
}

func zipped(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(s))
	_ = w.Close()
	return b.String()
}

// queries are the cases about parameters.
func (r *route) queries() (cases []request) {
	add := func(name, query string) {
		if r.query != "" {
			query = r.query + "&" + query
		}
		cases = append(cases, request{name: name, path: r.path + "?" + query})
	}
	wrong := func(m member) string {
		if m.kind == number {
			return "x"
		}
		return "%00"
	}
	for _, p := range r.params {
		at := "?" + p.path
		add(at+": good", p.path+"="+p.good)
		add(at+": empty", p.path+"=")
		add(at+": unknown text", p.path+"=no%20such%20thing~")
		add(at+": U+0000", p.path+"=%00")
		add(at+": invalid UTF-8", p.path+"=%ff")
		if p.kind == number {
			add(at+": below", p.path+"="+strconv.Itoa(p.min-1))
			add(at+": above", p.path+"="+strconv.Itoa(p.max+1))
			add(at+": a fraction", p.path+"=1.5")
			add(at+": too large for 64 bits", p.path+"=9223372036854775808")
		} else {
			add(at+": too long", p.path+"="+strings.Repeat("a", 3000))
			add(at+": empty items", p.path+"=,,")
		}
		add(at+": twice", p.path+"="+p.good+"&"+p.path+"=no%20such%20thing~")
	}
	for i, a := range r.params[:min(4, len(r.params))] {
		for _, b := range r.params[i+1 : min(4, len(r.params))] {
			add(fmt.Sprintf("two errors: ?%s, ?%s", b.path, a.path), b.path+"="+wrong(b)+"&"+a.path+"="+wrong(a))
		}
	}
	return cases
}

// paths are the cases about what the path names.
func (r *route) paths() (cases []request) {
	names := fixtureName.FindAllString(r.path, -1)
	for _, name := range names {
		kind := strings.TrimRight(name[1:], "0123456789")
		add := func(what, value string) {
			cases = append(cases, request{name: name[1:] + " in the path: " + what, path: strings.Replace(r.path, name, value, 1)})
		}
		add("unknown", unknownOf(kind))
		add("another unknown id", "01890000-0000-7000-8000-000000000001")
		add("malformed", "no%20such%20thing~")
		add("a UUID of version 4", "f81d4fae-7dec-41d0-a765-00a0c91e6bf6")
		add("U+0000", "%00")
		add("invalid UTF-8", "%ff")
		add("with a slash", "a%2Fb")
		add("too long", strings.Repeat("a", 3000))
		if len(r.body) > 0 {
			c := request{name: "two errors: unknown " + name[1:] + ", " + r.body[0].path, path: strings.Replace(r.path, name, unknownOf(kind), 1), body: r.with(r.body[0], r.body[0].wrong())}
			cases = append(cases, c)
			c.name, c.body = "two errors: unknown "+name[1:]+", no JSON", "nonsense"
			cases = append(cases, c)
		}
		if len(r.params) > 0 {
			cases = append(cases, request{name: "two errors: unknown " + name[1:] + ", ?" + r.params[0].path, path: strings.Replace(r.path, name, unknownOf(kind), 1) + "?" + r.params[0].path + "=%00"})
		}
	}
	return cases
}

// callers are the cases about tenants and versions.
func (r *route) callers() (cases []request) {
	add := func(name, tenant, caller string, headers ...string) {
		cases = append(cases, request{name: name, tenant: tenant, caller: caller, headers: headers})
	}
	add("tenant: its own", "acme", "acme")
	add("tenant: another one's", "acme", "other")
	add("tenant: one's, for an operator", "acme", "")
	add("tenant: an operator's", "", "acme")
	add("tenant: malformed", "", "a b")
	add("tenant: empty", "", "", "X-OJS-Tenant:")
	add("tenant: twice", "acme", "acme", "X-OJS-Tenant: acme")
	add("version: none", "", "", "OJS-Version:")
	add("version: unknown", "", "", "OJS-Version: 2.0")
	add("version: a prefix", "", "", "OJS-Version: 1.0.3-rc.1")
	add("accept: application/json", "", "", "Accept: application/json")
	add("request id: sent", "", "", "X-Request-Id: golden-1")
	add("order: version, tenant", "", "a b", "OJS-Version: 2.0")
	if r.method == http.MethodGet {
		cases = append(cases, request{name: "HEAD", method: http.MethodHead})
	}
	return cases
}

// cases are all requests of a route, in the order of its file.
func (r *route) cases() []request {
	cases := []request{{name: "good"}}
	cases = append(cases, r.callers()...)
	cases = append(cases, r.paths()...)
	cases = append(cases, r.queries()...)
	separator := "?"
	if r.query != "" {
		cases = append(cases, request{name: "without parameters", path: r.path + "?"})
		separator = "?" + r.query + "&"
	}
	if len(r.params) > 0 && r.query != "" {
		// What a client gets that has misspelt the only filter, or has sent one without a value.
		cases = append(cases, request{name: "misspelt name", path: r.path + "?" + strings.Replace(r.query, "queue=", "queu=", 1)})
		for _, p := range r.params {
			if p.path != "confirm" {
				cases = append(cases, request{name: "only an empty " + p.path, path: r.path + "?confirm=true&" + p.path + "=,,"})
			}
		}
	}
	cases = append(cases, request{name: "unknown parameter", path: r.path + separator + "unknown_parameter=1"},
		request{name: "malformed escape in the query", path: r.path + separator + "unknown_parameter=%zz"})
	bodies := []request{{name: "with a body", body: `{"unknown_member":1}`}}
	if len(r.body) > 0 || r.takesBody {
		bodies = r.bodies()
	}
	for i := range bodies {
		bodies[i].method = r.method
	}
	cases = append(cases, bodies...)
	good := ""
	if len(r.minimal()) > 0 {
		good = render(r.needed(""))
	}
	for i := range cases {
		c := &cases[i]
		if c.method == "" {
			c.method = r.method
			if c.body == "" {
				c.body = good
			}
		}
		if c.path == "" {
			c.path = r.path
			if r.query != "" {
				c.path += "?" + r.query
			}
		}
	}
	return cases
}
