package golden_test

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

var (
	anUUID  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	aTime   = regexp.MustCompile(`\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})`)
	aHost   = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	aSecret = regexp.MustCompile(`whsec_[A-Za-z0-9+/]{43}=`)
	aHintOf = regexp.MustCompile(`"…[A-Za-z0-9+/]{3}="`)
	aCursor = regexp.MustCompile(`"next_cursor":"[A-Za-z0-9_-]{20,}"`)
	aDate   = regexp.MustCompile(`[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT`)
	aTrace  = regexp.MustCompile(`\b[0-9a-f]{32}\b`)
	aName   = regexp.MustCompile(`\b(active|key|limit|cron|worker|owner|queue|idle|pool|schema|uri|typed|new)-[0-9]+\b`)
	// A run that is shortened has shortest bytes at least.
	aLongRun  = regexp.MustCompile(`(a{200,}|b{200,}| {200,}|\[{200,}|\]{200,})`)
	aRepeated = regexp.MustCompile(`(\[\]|\{"a":|1,|"q",){50,}`)
)

const shortest = 100

// measured are the members whose values depend on time and speed.
var measured = []string{
	"uptime_seconds", "latency_ms", "avg_duration_ms", "avg_wait_ms", "throughput_per_second", "query_time_ms", "duration_ms", "response_time_ms",
	"processed_per_minute", "failed_per_minute", "enqueued_per_min", "completed_per_min", "failed_per_min", "avg_latency_ms",
	"p50", "p95", "p99", "latency_p50_ms", "latency_p99_ms", "age_ms", "age_seconds", "oldest_age_seconds", "elapsed_ms", "wait_time_ms", "timestamp_ms",
	"next_prune_seconds", "prune_in_seconds", "total_duration_ms", "queue_time_ms", "run_time_ms",
}

var aMeasure = regexp.MustCompile(`"(` + strings.Join(measured, "|") + `)":-?[0-9.e+-]+`)

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
	s = aHost.ReplaceAllString(s, "<host>")
	s = aSecret.ReplaceAllString(s, "<secret>")
	s = anUUID.ReplaceAllStringFunc(s, func(id string) string {
		if id == unknownID {
			return "<unknown-id>"
		}
		if _, seen := n.ids[id]; !seen {
			n.ids[id] = fmt.Sprintf("<id-%d>", len(n.ids)+1)
		}
		return n.ids[id]
	})
	s = aTime.ReplaceAllStringFunc(s, func(text string) string {
		at, err := time.Parse(time.RFC3339Nano, text)
		// Times that a request has sent are far away.
		if away := time.Since(at).Abs(); err != nil || away > 800*24*time.Hour {
			return text
		}
		return "<time>"
	})
	s = aMeasure.ReplaceAllString(s, `"$1":"<number>"`)
	s = aHintOf.ReplaceAllString(s, `"…<secret>"`)
	s = aCursor.ReplaceAllString(s, `"next_cursor":"<cursor>"`)
	s = aDate.ReplaceAllString(s, "<time>")
	s = aName.ReplaceAllString(s, "<$1-name>")
	s = aTrace.ReplaceAllString(s, "<trace>")
	return shorten(s)
}

// shorten writes long runs by their length.
func shorten(s string) string {
	if len(s) < shortest {
		return s // most are, and expressions are slow with the race detector
	}
	s = aLongRun.ReplaceAllStringFunc(s, func(run string) string { return fmt.Sprintf("<%d x %q>", len(run), run[:1]) })
	return aRepeated.ReplaceAllStringFunc(s, func(run string) string { return fmt.Sprintf("<%d bytes of %s>", len(run), run[:min(4, len(run))]) })
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
