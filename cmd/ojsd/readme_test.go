package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

// settingsTable is README's table, made from what kong knows of `serve` and the logging flags.
func settingsTable(t *testing.T) string {
	t.Helper()
	var c cli
	parser, err := kong.New(&c)
	require.NoError(t, err)
	var flags []*kong.Flag
	for _, command := range parser.Model.Children {
		if command.Name == "serve" {
			flags = append(flags, command.Flags...)
		}
	}
	for _, flag := range parser.Model.Flags {
		if len(flag.Envs) > 0 {
			flags = append(flags, flag)
		}
	}
	var b strings.Builder
	b.WriteString("| Variable | Flag | Default | Meaning |\n|---|---|---|---|\n")
	for _, flag := range flags {
		variable := ""
		if len(flag.Envs) > 0 {
			variable = "`" + flag.Envs[0] + "`"
		}
		value := flag.Default
		switch {
		case value != "":
			value = "`" + value + "`"
		case flag.IsBool():
			value = "`false`"
		}
		fmt.Fprintf(&b, "| %s | `--%s` | %s | %s |\n", variable, flag.Name, value, strings.ReplaceAll(flag.Help, "|", `\|`))
	}
	return b.String()
}

// TestReadmeListsAllSettings keeps the table true. OJSD_WRITE_README=1 writes it.
func TestReadmeListsAllSettings(t *testing.T) {
	t.Parallel()
	const path, begin, end = "../../README.md", "<!-- settings:begin -->\n", "<!-- settings:end -->"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	head, rest, found := strings.Cut(string(text), begin)
	require.True(t, found)
	table, tail, found := strings.Cut(rest, end)
	require.True(t, found)
	want := settingsTable(t)
	if os.Getenv("OJSD_WRITE_README") != "" {
		require.NoError(t, os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644))
		return
	}
	require.Equal(t, want, table, "run OJSD_WRITE_README=1 go test ./cmd/ojsd")
}
