package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"go/format"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/ojs"
)

// codeBlock is a fenced block of a page.
type codeBlock struct {
	language string
	text     string
}

// codeBlocks are the fenced blocks of a page, in order.
func codeBlocks(t testing.TB, page string) (blocks []codeBlock) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	parts := strings.Split("\n"+string(text), "\n```")
	require.Equal(t, 1, len(parts)%2, "%s: a fence is not closed", page)
	for i := 1; i < len(parts); i += 2 {
		language, body, _ := strings.Cut(parts[i], "\n")
		blocks = append(blocks, codeBlock{language, body})
	}
	return blocks
}

// TestLogCategoriesAreDocumented reads the sources: most of the lines need a fault to be written.
func TestLogCategoriesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/observability.md")
	require.NoError(t, err)
	_, row, found := strings.Cut(string(page), "\n| `category` |")
	require.True(t, found)
	row, _, _ = strings.Cut(row, "\n")
	set := regexp.MustCompile(`slog\.String\("category", ("[^"]*")\)`)
	lines := 0
	for _, root := range []string{"../../internal", "../../cmd"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			for _, m := range set.FindAllStringSubmatch(string(source), -1) {
				lines++
				require.Contains(t, row, "`"+strings.Trim(m[1], `"`)+"`", path)
			}
			return err
		}))
	}
	require.NotZero(t, lines)
}

// TestEventTypesAreDocumented covers docs/CONTRIBUTING.md, Add an event type.
func TestEventTypesAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/events.md")
	require.NoError(t, err)
	for _, kind := range slices.Concat(ojs.EventTypes, ojs.ExtensionEventTypes) {
		require.Contains(t, string(page), "`"+kind+"`", "docs/reference/events.md")
	}
}

// shellPrelude makes a failed request fail the script, and ends streams after a second.
const shellPrelude = `set -euo pipefail
curl() {
	case " $* " in
	*" -N "*) timeout 1 curl --fail-with-body -sS "$@" || [ $? = 124 ] ;;
	*) command curl --fail-with-body -S "$@" && echo ;;
	esac
}
`

// TestGuidesRun runs the blocks of each guide on a node and a database of its own.
func TestGuidesRun(t *testing.T) {
	t.Parallel()
	guides, err := filepath.Glob("../../docs/guides/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, guides)
	for _, page := range guides {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			setup(t).runPage(page)
		})
	}
}

// TestPagesRunOnOneServer runs README.md and the guides one after the other on a server with an API key, as a reader does who goes on: no
// page may use what another has taken, and each call shows the key.
func TestPagesRunOnOneServer(t *testing.T) {
	t.Parallel()
	guides, err := filepath.Glob("../../docs/guides/*.md")
	require.NoError(t, err)
	a := setup(t, func(c *app.Config) { c.Server.APIKeys = []string{"secret"} })
	for _, page := range append([]string{"../../README.md"}, guides...) {
		a.runPage(page, "OJS_API_KEY=secret")
	}
}

// TestFunctionsOfReference: the table of functions has every function that docs/reference/sql.md names.
func TestFunctionsOfReference(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/sql.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "\n## Functions\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n```")
	for _, call := range regexp.MustCompile(`\bojs\.\w+\(`).FindAllString(string(text), -1) {
		require.Contains(t, table, "| `"+call)
	}
}

// runPage runs the sh and sql blocks of a page in order, with variables of the environment. A shell variable holds for the rest of the page. json blocks must be JSON. Blocks that cannot run here are marked
// console and may hold neither requests nor SQL. output is that of the sh blocks.
func (a *node) runPage(page string, environment ...string) (output string) {
	a.t.Helper()
	needTools(a.t, "bash", "curl", "timeout")
	variables := ""
	for _, block := range codeBlocks(a.t, page) {
		switch block.language {
		case "sh":
			output += a.runShell(variables+block.text, environment)
			variables += strings.Join(regexp.MustCompile(`(?m)^[A-Z]+=.*\n`).FindAllString(block.text, -1), "")
		case "sql":
			a.exec(block.text)
		case "json":
			require.True(a.t, json.Valid([]byte(block.text)), block.text)
		case "go": // a part of a function; the examples of package ojs run
			_, err := format.Source([]byte(block.text))
			require.NoError(a.t, err, block.text)
		case "console":
			require.NotContains(a.t, block.text, "curl")
			require.NotContains(a.t, block.text, "SELECT")
		case "yaml":
			for documents := yaml.NewDecoder(strings.NewReader(block.text)); ; {
				var document any
				err := documents.Decode(&document)
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(a.t, err, block.text)
			}
		default:
			require.Contains(a.t, []string{"js", "mermaid", "nginx", "ini"}, block.language, block.text)
		}
	}
	return output
}

// runShell runs a block against this node instead of localhost:8080.
func (a *node) runShell(script string, environment []string) (output string) {
	a.t.Helper()
	require.Contains(a.t, script, "localhost:8080")
	c := exec.CommandContext(a.t.Context(), "bash", "-c", shellPrelude+strings.ReplaceAll(script, "localhost:8080", a.url))
	c.Env = append(os.Environ(), environment...)
	text, err := c.CombinedOutput()
	require.NoError(a.t, err, "%s\n%s", script, text)
	return string(text)
}

// TestReadmeRuns runs README.md and looks at what it leaves behind.
func TestReadmeRuns(t *testing.T) {
	t.Parallel()
	const page = "../../README.md"
	a := setup(t)
	listener := a.connect()
	t.Cleanup(func() { _ = listener.Close(context.Background()) })
	_, err := listener.Exec(t.Context(), "LISTEN ojs_events")
	require.NoError(t, err)

	output := a.runPage(page)
	job := a.job("019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f")
	require.Equal(t, "completed", job.at("job.state"))
	require.Equal(t, "true", job.at("job.result.sent"))
	require.Contains(t, output, `"state":"active"`, "the fetch got the job")
	require.Contains(t, output, `"acknowledged":true`)
	require.Equal(t, "4", a.one("SELECT max_attempts::text FROM ojs.job WHERE queue = 'billing' AND priority = 5"))

	blocks := codeBlocks(t, page)
	example := blocks[slices.IndexFunc(blocks, func(b codeBlock) bool { return b.language == "json" })]
	for {
		n, err := listener.WaitForNotification(t.Context())
		require.NoError(t, err)
		event, shown := reply{t: t, body: n.Payload}, reply{t: t, body: example.text}
		if event.at("job_type") != shown.at("job_type") {
			continue
		}
		for _, member := range []string{"specversion", "type", "source", "event", "queue", "to", "data"} {
			require.Equal(t, shown.at(member), event.at(member), member)
		}
		require.Len(t, membersOf(t, n.Payload), len(membersOf(t, example.text)))
		return
	}
}

func membersOf(t *testing.T, text string) (members map[string]json.RawMessage) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &members))
	return members
}

// TestSQLRolesOfReference gives roles the rights that docs/reference/sql.md lists. They are enough for everything the page
// promises, and without any of the grants of the reader something fails. The reader's events include one that is too
// long for a notification, whose short form is made in another way.
func TestSQLRolesOfReference(t *testing.T) {
	t.Parallel()
	a := setup(t)
	q := queue()
	id := a.push(`"type":"t","args":[],"queue":"%s"`, q)
	a.fetch(q).is(200)
	a.ack(id, `"result":"`+strings.Repeat("x", 9000)+`"`).is(200)
	eventually(t, func() bool { return strings.Contains(a.get("/ojs/v1/events?job_id="+id).body, "job.completed") })

	// Roles belong to the cluster, which other tests use: the names are this test's own, and they go at its end.
	producer, reader := "ojsd_docs_producer_"+strings.ReplaceAll(newID(), "-", ""), "ojsd_docs_reader_"+strings.ReplaceAll(newID(), "-", "")
	admin := a.connect()
	t.Cleanup(func() {
		_, err := admin.Exec(context.Background(), "RESET ROLE; DROP OWNED BY "+producer+", "+reader+"; DROP ROLE "+producer+", "+reader)
		require.NoError(t, err)
		require.NoError(t, admin.Close(context.Background()))
	})
	as := func(role, sql string) error {
		_, err := admin.Exec(t.Context(), "RESET ROLE; SET ROLE "+role)
		require.NoError(t, err)
		_, err = admin.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		_, resetErr := admin.Exec(t.Context(), "RESET ROLE")
		require.NoError(t, resetErr)
		return err
	}
	a.exec("CREATE ROLE " + producer + "; CREATE ROLE " + reader)
	var grants []string
	for _, block := range codeBlocks(t, "../../docs/reference/sql.md") {
		if block.language == "sql" && strings.Contains(block.text, "GRANT") {
			text := strings.NewReplacer("TO producer", "TO "+producer, "TO reader", "TO "+reader).Replace(block.text)
			a.exec(text)
			grants = append(grants, text)
		}
	}
	require.Len(t, grants, 2)

	require.NoError(t, as(producer, "SELECT ojs.cancel(ojs.enqueue('a', '[1]', 'q', '{\"id\":\""+newID()+"\",\"meta\":{\"a\":1}}'))"))
	require.Error(t, as(producer, "SELECT FROM ojs.job"))
	reads := []string{"SELECT FROM ojs.job", "SELECT * FROM ojs.events_after()", "SELECT ojs.event(id) FROM ojs.events_after()", "LISTEN ojs_events"}
	for _, sql := range reads {
		require.NoError(t, as(reader, sql), sql)
	}
	require.Error(t, as(reader, "SELECT ojs.enqueue('a', '[]')"))
	for _, relation := range []string{"ojs.job", "ojs.event_published", "ojs.event_relay", "ojs.events"} {
		a.exec("REVOKE SELECT ON " + relation + " FROM " + reader)
		var failed bool
		for _, sql := range reads {
			failed = failed || as(reader, sql) != nil
		}
		require.True(t, failed, "nothing needs a right on %s", relation)
		a.exec("GRANT SELECT ON " + relation + " TO " + reader)
	}
}
