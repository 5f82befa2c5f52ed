package golden_test

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// pattern is an expression, and texts of which one is wherever it matches. To look for these first takes a fraction of the time: the
// race detector makes expressions slow.
type pattern struct {
	*regexp.Regexp
	has []string
}

func expression(text string, has ...string) pattern { return pattern{regexp.MustCompile(text), has} }

func (p pattern) replace(s string, f func(match string) string) string {
	if !slices.ContainsFunc(p.has, func(part string) bool { return strings.Contains(s, part) }) {
		return s
	}
	return p.ReplaceAllStringFunc(s, f)
}

var (
	anUUID    = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	aTime     = expression(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})`, yearsAround(time.Now())...)
	aHost     = expression(`127\.0\.0\.1:\d+`, "127.0.0.1:")
	aSecret   = expression(`whsec_[A-Za-z0-9+/]{43}=`, "whsec_")
	aHintOf   = expression(`"…[A-Za-z0-9+/]{3}="`, `"…`)
	aCursor   = expression(`"next_cursor":"[A-Za-z0-9_-]{20,}"`, `"next_cursor"`)
	aToken    = expression(`"lease_token":"[0-9a-z]{8,}"`, `"lease_token"`)
	aDate     = expression(`[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT`, " GMT")
	aTrace    = expression(`\b[0-9a-f]{32}\b`, "trace")
	aName     = expression(`\b(`+strings.Join(namedKinds, "|")+`)-[0-9]+\b`, suffixed(namedKinds, "-")...)
	aMeasure  = expression(`"(`+strings.Join(measured, "|")+`)":-?[0-9.e+-]+`, suffixed(measured, `":`)...)
	aLongRun  = expression(`(a{200,}|b{200,}| {200,}|\[{200,}|\]{200,})`, repeated(200, "a", "b", " ", "[", "]")...)
	aRepeated = expression(`((\[\]){50,}|(\{"a":){50,}|(1,){50,}|("q",){50,})`, repeated(50, "[]", `{"a":`, "1,", `"q",`)...)
)

// namedKinds are the kinds of maker.name.
var namedKinds = []string{"active", "key", "limit", "cron", "worker", "owner", "queue", "idle", "pool", "schema", "uri", "typed", "new"}

// yearsAround are those of all times that are replaced.
func yearsAround(now time.Time) (texts []string) {
	for year := now.Year() - 3; year <= now.Year()+3; year++ {
		texts = append(texts, fmt.Sprintf("%d-", year))
	}
	return texts
}

func suffixed(names []string, suffix string) (texts []string) {
	for _, name := range names {
		texts = append(texts, name+suffix)
	}
	return texts
}

func repeated(times int, parts ...string) (texts []string) {
	for _, part := range parts {
		texts = append(texts, strings.Repeat(part, times))
	}
	return texts
}

// measured are the members whose values depend on time and speed.
var measured = []string{
	"uptime_seconds", "latency_ms", "avg_duration_ms", "avg_wait_ms", "throughput_per_second", "query_time_ms", "duration_ms", "response_time_ms",
	"processed_per_minute", "failed_per_minute", "enqueued_per_min", "completed_per_min", "failed_per_min", "avg_latency_ms",
	"p50", "p95", "p99", "latency_p50_ms", "latency_p99_ms", "age_ms", "age_seconds", "oldest_age_seconds", "elapsed_ms", "wait_time_ms", "timestamp_ms",
	"next_prune_seconds", "prune_in_seconds", "total_duration_ms", "queue_time_ms", "run_time_ms",
}

// normalizer replaces what differs from run to run, the same value by the same placeholder within a case.
type normalizer struct {
	known *strings.Replacer // the fixtures, the longest value first
	ids   map[string]string
	// figures writes all numbers of JSON as a placeholder.
	figures bool
}

func newNormalizer(m *maker) *normalizer {
	names := make([]string, 0, len(m.values))
	for name := range m.values {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := len(m.values[b]) - len(m.values[a]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var pairs []string
	for _, name := range names {
		if name == "$large" {
			continue // it is in no answer
		}
		pairs = append(pairs, m.values[name], "<"+name[1:]+">", url.PathEscape(m.values[name]), "<"+name[1:]+">")
	}
	return &normalizer{known: strings.NewReplacer(pairs...), ids: map[string]string{}}
}

func (n *normalizer) text(s string) string {
	s = n.known.Replace(s)
	// protobuf writes a no-break space behind "proto:" or not, by a hash of the program.
	s = strings.ReplaceAll(s, "proto:\u00a0", "proto: ")
	s = aHost.replace(s, always("<host>"))
	s = aSecret.replace(s, always("<secret>"))
	s = n.withoutIDs(s)
	s = aTime.replace(s, func(text string) string {
		at, err := time.Parse(time.RFC3339Nano, text)
		// Times that a request has sent are far away.
		if away := time.Since(at).Abs(); err != nil || away > 800*24*time.Hour {
			return text
		}
		return "<time>"
	})
	s = aMeasure.replace(s, func(text string) string { return text[:strings.LastIndex(text, ":")] + `:"<number>"` })
	s = aHintOf.replace(s, always(`"…<secret>"`))
	s = aCursor.replace(s, always(`"next_cursor":"<cursor>"`))
	s = aToken.replace(s, always(`"lease_token":"<lease-token>"`))
	s = aDate.replace(s, always("<time>"))
	s = aName.replace(s, func(name string) string { return "<" + name[:strings.LastIndex(name, "-")] + "-name>" })
	s = aTrace.replace(s, always("<trace>"))
	return shorten(s)
}

func always(text string) func(string) string { return func(string) string { return text } }

// withoutIDs replaces UUIDs.
func (n *normalizer) withoutIDs(s string) string {
	const before, size = 8, 36 // bytes before the first hyphen, and in all
	var b strings.Builder
	done := 0
	for i := 0; ; i++ {
		at := strings.IndexByte(s[i:], '-')
		if at < 0 {
			break
		}
		i += at
		start, end := i-before, i-before+size
		if start < done || end > len(s) || !anUUID.MatchString(s[start:end]) {
			continue
		}
		id := s[start:end]
		b.WriteString(s[done:start])
		if _, seen := n.ids[id]; !seen && id != unknownID {
			n.ids[id] = fmt.Sprintf("<id-%d>", len(n.ids)+1)
		}
		b.WriteString(cmp.Or(n.ids[id], "<unknown-id>"))
		done, i = end, end-1
	}
	return b.String() + s[done:]
}

// shorten writes long runs by their length.
func shorten(s string) string {
	s = aLongRun.replace(s, func(run string) string { return fmt.Sprintf("<%d x %q>", len(run), run[:1]) })
	return aRepeated.replace(s, func(run string) string { return fmt.Sprintf("<%d bytes of %s>", len(run), run[:min(4, len(run))]) })
}

// pretty breaks JSON into lines where it is long. It keeps the order and the text of all values.
func pretty(s string) string {
	s = once(s)
	if len(s) <= lineLength || !gjson.Valid(s) {
		return s
	}
	var b strings.Builder
	breakJSON(&b, gjson.Parse(s), "")
	return b.String()
}

// once writes the message of an error once, which details repeat.
func once(s string) string {
	m := aMessage.FindStringSubmatchIndex(s)
	if m == nil {
		return s
	}
	return s[:m[1]] + strings.ReplaceAll(s[m[1]:], s[m[2]:m[3]], `"message":"<the same>"`)
}

var aMessage = regexp.MustCompile(`("message":"(?:\\.|[^"\\])*")`)

const lineLength = 160

func breakJSON(b *strings.Builder, v gjson.Result, indent string) {
	if !v.IsObject() && !v.IsArray() || len(v.Raw)+len(indent) <= lineLength {
		b.WriteString(v.Raw)
		return
	}
	open, closed := "{", "}"
	if v.IsArray() {
		open, closed = "[", "]"
	}
	b.WriteString(open)
	first := true
	inner := indent + " "
	width := 0
	v.ForEach(func(key, value gjson.Result) bool {
		if !first {
			b.WriteString(",")
		}
		size := len(key.Raw) + len(value.Raw) + 2
		if first || width+size > lineLength {
			b.WriteString("\n" + inner)
			width = len(inner)
		}
		width += size
		first = false
		if v.IsObject() {
			b.WriteString(key.Raw + ":")
		}
		breakJSON(b, value, inner)
		return true
	})
	b.WriteString("\n" + indent + closed)
}

var (
	aNumber = regexp.MustCompile(`([:\[,]\s*)-?[0-9][0-9.e+-]*`)
	// a sample of the text format of Prometheus, without the values of its labels
	aSample = regexp.MustCompile(`(?m)^([a-z_]+)(\{.*\})? .*$`)
	aLabel  = regexp.MustCompile(`="[^"]*"`)
)

// figures writes the numbers of JSON as "<number>", and one element for equal ones of an array that follow each other: how many periods
// there are depends on the time.
func figures(s string) string {
	s = aNumber.ReplaceAllString(s, `$1"<number>"`)
	if !gjson.Valid(s) {
		return s
	}
	return merged(gjson.Parse(s))
}

func merged(v gjson.Result) string {
	if !v.IsObject() && !v.IsArray() {
		return v.Raw
	}
	var parts []string
	v.ForEach(func(key, value gjson.Result) bool {
		text := merged(value)
		if v.IsObject() {
			text = key.Raw + ":" + text
		}
		parts = append(parts, text)
		return true
	})
	if v.IsObject() {
		return "{" + strings.Join(parts, ",") + "}"
	}
	return "[" + strings.Join(slices.Compact(parts), ",") + "]"
}

// samples keeps the families of the text format, and of the samples the name and the names of the labels.
func samples(s string) string {
	s = aSample.ReplaceAllStringFunc(s, func(line string) string {
		return aLabel.ReplaceAllString(line[:strings.LastIndex(line, " ")], "")
	})
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(slices.Compact(lines), "\n")
}
