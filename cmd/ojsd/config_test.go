package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
)

func TestConfig(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://joe:pa55word@db:5433/app?password=pa55word")
	t.Setenv("OJS_API_KEY", "pa55word")
	t.Setenv("OJS_JOBS_TIMEOUT", "1h")

	t.Run("ShowsValuesAndSources", func(t *testing.T) {
		code, stdout, stderr := call(t, "config", "--jobs-timeout=2h", "--no-webhooks-enabled", "--metrics-require-auth")
		require.Zero(t, code, stderr)
		require.NotContains(t, stdout, "pa55word")
		for _, line := range []string{
			`DATABASE_URL +postgres://joe@db:5433/app +environment`, `OJS_API_KEY +\(set\) +environment`, `OJS_JOBS_TIMEOUT +2h +flag`,
			`OJS_WEBHOOKS_ENABLED +false +flag`, `OJS_METRICS_REQUIRE_AUTH +true +flag`, `OJS_LISTEN +:8080 +default`, `OJS_CORS_ORIGINS +- +default`,
		} {
			require.Regexp(t, "(?m)^"+line+"$", stdout)
		}
	})

	t.Run("EmptyFlagWins", func(t *testing.T) {
		_, stdout, _ := call(t, "config", "--api-key=")
		require.Regexp(t, `(?m)^OJS_API_KEY +- +flag$`, stdout)
	})

	t.Run("JSON", func(t *testing.T) {
		_, stdout, _ := call(t, "config", "--format=json", "--jobs-timeout=2h")
		var rows []struct{ Name, Flag, Value, Source string }
		require.NoError(t, json.Unmarshal([]byte(stdout), &rows))
		require.Len(t, rows, len(config.Table()))
		require.NotContains(t, stdout, "pa55word")
		for _, row := range rows {
			if row.Name == "OJS_JOBS_TIMEOUT" {
				require.Equal(t, []string{"--jobs-timeout", "2h", "flag"}, []string{row.Flag, row.Value, row.Source})
			}
		}
	})

	t.Run("MarkdownIsThePageOfTheDocumentation", func(t *testing.T) {
		_, stdout, _ := call(t, "config", "--format=markdown")
		page, err := os.ReadFile("../../docs/reference/configuration.md")
		require.NoError(t, err)
		const remedy = "run: go run ./cmd/ojsd config --format markdown > docs/reference/configuration.md"
		want, got := strings.Split(string(page), "\n"), strings.Split(stdout, "\n")
		for i := range min(len(want), len(got)) { // line by line: the message for two whole pages would be unreadable
			require.Equal(t, want[i], got[i], remedy)
		}
		require.Len(t, got, len(want), remedy)
	})
}

// TestEverySettingHasAFlag: each setting can be given as a flag to serve and dev.
func TestEverySettingHasAFlag(t *testing.T) {
	t.Parallel()
	for _, s := range config.Table() {
		for _, command := range []string{"serve", "dev"} {
			c := newCLI()
			parser, err := kong.New(c)
			require.NoError(t, err)
			_, err = parser.Parse([]string{command, "--" + s.Flag + "=x"})
			require.NoError(t, err, s.Flag)
			given := c.Serve.given()
			if command == "dev" {
				given = c.Dev.given()
			}
			require.Equal(t, map[string]string{s.Flag: "x"}, given)
		}
	}
}

// TestPooler: poolers cannot carry LISTEN, so a URL for LISTEN means that there is one, and nothing else has to say so.
func TestPooler(t *testing.T) {
	t.Parallel()
	for url, pooler := range map[string]bool{"": false, "postgres://direct/jobs": true} {
		require.Equal(t, pooler, config.Database{URL: "postgres://pooler/jobs", ListenURL: url}.Pooler(), url)
	}
}
