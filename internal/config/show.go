package config

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
)

// masked is shown instead of a secret.
// It says that there is one, which is what people ask.
const masked = "(set)"

// Shown is the value without secrets.
// It must be used for every output of a value.
func (v Value) Shown() string {
	switch {
	case v.Text == "":
		return ""
	case v.Secret:
		// People would take (set) for a key.
		if list, err := v.parse(v.Text); err == nil && reflect.ValueOf(list).Len() == 0 {
			return "" // a text without a key, such as a lone comma
		}
		return masked
	case v.Kind == kindPostgres:
		return withoutPassword(v.Text)
	case v.Kind == kindURL:
		u, err := url.Parse(v.Text)
		if err != nil {
			return masked
		}
		return u.Scheme + "://" + u.Host + u.Path // user and query may contain a password
	}
	return v.Text
}

// withoutPassword shows hosts, user and database of a URL or of a text such as "host=db user=ojsd".
// It shows nothing of a text that cannot be parsed.
func withoutPassword(text string) string {
	// PGHOST and the like, which pgx also reads, are part of what is shown, as of what is used.
	c, err := pgx.ParseConfig(text)
	if err != nil {
		return masked
	}
	hosts := []string{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	for _, f := range c.Fallbacks { // has each host twice, with and without TLS
		if host := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return "postgres://" + c.User + "@" + strings.Join(hosts, ",") + "/" + c.Database
}

// WriteText writes one line per setting, for people.
// A dash stands for empty, so that the columns stay aligned.
func (l *Loaded) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range l.Values {
		shown := v.Shown()
		if shown == "" {
			shown = "-"
		}
		if _, err := fmt.Fprintf(t, "%s\t%s\t%s\n", v.Env, shown, v.Source); err != nil {
			return err
		}
	}
	return t.Flush()
}

// WriteJSON writes all settings, for programs.
// The names of members are stable; scripts read them.
func (l *Loaded) WriteJSON(w io.Writer) error {
	type row struct {
		Name   string `json:"name"`
		Flag   string `json:"flag"`
		Value  string `json:"value"`
		Source string `json:"source"`
	}
	rows := []row{}
	for _, v := range l.Values {
		rows = append(rows, row{v.Env, "--" + v.Flag, v.Shown(), v.Source})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(rows)
}

const pageHead = `# Configuration

` + "`ojsd config --format markdown`" + ` makes this page from the table in ` + "`internal/config/config.go`" + `.

Each setting is an environment variable and a flag of ` + "`ojsd serve` and `ojsd dev`" + `: the flag has the words of the variable without
` + "`OJS_`" + `, in lower case, e.g. ` + "`OJS_JOBS_TIMEOUT` and `--jobs-timeout`" + `. A flag wins over the variable, the variable over the default. A
variable with an empty value counts as unset. ` + "`ojsd config`" + ` prints every setting, its value and where it came from, without secrets.

| Kind | Written as |
|---|---|
| duration | ` + "`30s`, `15m`, `168h`, `7d`, `1d12h`" + ` |
| size | bytes, or with a unit: ` + "`65536`, `64KiB`, `1MiB`" + ` |
| bool | ` + "`true` or `false`; as a flag `--x` or `--no-x`" + ` |
| list | entries separated by commas |

The server refuses to start (exit code 2) if a value is wrong, and names every wrong one. It warns of variables that begin with ` + "`OJS_`" + `
and are no setting.
`

// WriteMarkdown makes docs/reference/configuration.md: a table for each area.
// A test compares the page with what this writes.
func WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString(pageHead)
	area := ""
	for _, s := range Table() {
		// Settings of an area follow each other in the table.
		if s.Area != area {
			area = s.Area
			fmt.Fprintf(&b, "\n## %s\n\n| Variable | Flag | Kind | Default | Meaning |\n|---|---|---|---|---|\n", area)
		}
		fmt.Fprintf(&b, "| `%s` | `--%s` | %s | %s | %s |\n", s.Env, s.Flag, s.describeKind(), s.describeDefault(), strings.ReplaceAll(s.Help, "|", `\|`))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// describeKind lists for a choice its words, a number its range.
func (s Setting) describeKind() string {
	switch {
	case s.Kind == kindChoice:
		return "`" + strings.Join(s.values, "`, `") + "`"
	case s.low != "":
		return s.Kind + ", " + s.low + " to " + s.high
	}
	return s.Kind
}

func (s Setting) describeDefault() string {
	text := "empty"
	if s.Default != "" {
		text = "`" + s.Default + "`"
	}
	if s.Dev != s.Default {
		text += "; `ojsd dev`: `" + s.Dev + "`"
	}
	return text
}
