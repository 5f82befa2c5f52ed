package config

import (
	"fmt"
	"io"
	"strings"
)

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

// A choice lists its words, a number its range.
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
