package e2e_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

// newModule makes an empty module that takes the modules of the SDK from this checkout, as `go get` takes them from a release.
func newModule(t *testing.T, name string) (dir string, goTool func(args ...string) string) {
	t.Helper()
	dir = t.TempDir()
	goTool = func(args ...string) string {
		command := exec.CommandContext(t.Context(), "go", args...)
		command.Dir = dir
		command.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
		command.Stderr = &strings.Builder{}
		output, err := command.Output()
		require.NoError(t, err, "go %s: %s%s", strings.Join(args, " "), output, command.Stderr)
		return string(output)
	}
	goTool("mod", "init", name)
	sdk, err := filepath.Abs("../../ojs")
	require.NoError(t, err)
	for module, folder := range map[string]string{"": "", "/ojspgx": "/ojspgx", "/ojsotel": "/ojsotel"} {
		goTool("mod", "edit", "-replace", "github.com/ojsd/ojsd/ojs"+module+"="+sdk+folder)
	}
	return dir, goTool
}

// guideProgram writes the files of docs/guides/go.md: each is a block whose first line names it.
func guideProgram(t *testing.T, dir string) {
	t.Helper()
	guide, err := os.ReadFile("../../docs/guides/go.md")
	require.NoError(t, err)
	files := regexp.MustCompile("(?s)```go\n// ([a-z_]+\\.go)\n(.*?)```").FindAllStringSubmatch(string(guide), -1)
	require.Len(t, files, 2, "a program and its test")
	for _, f := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, f[1]), []byte(f[2]), 0o600))
	}
}

// TestSDKGuide follows docs/guides/go.md from an empty directory: the program is built, tested and run, and Ctrl-C ends it.
func TestSDKGuide(t *testing.T) {
	t.Parallel()
	node := setup(t)
	dir, goTool := newModule(t, "mailer")
	guideProgram(t, dir)
	goTool("mod", "tidy")
	goTool("vet", "./...")
	require.Contains(t, goTool("test", "./..."), "ok")
	goTool("build", "-o", "mailer", ".")

	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	t.Cleanup(cancel)
	program := exec.CommandContext(ctx, filepath.Join(dir, "mailer"))
	program.Env = append(os.Environ(), "OJS_URL="+node.url)
	pipe, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	lines := bufio.NewScanner(pipe)
	require.True(t, lines.Scan())
	require.Equal(t, "mail to ada@example.com", lines.Text())
	require.NoError(t, program.Process.Signal(syscall.SIGINT))
	require.False(t, lines.Scan(), "the output has ended")
	require.NoError(t, program.Wait())
	jobs, err := ojsadmin.New(sdk(t, node.url)).ListJobs(t.Context(), ojsadmin.JobFilter{Queues: []string{"mail"}})
	require.NoError(t, err)
	require.Len(t, jobs.Items, 1)
	require.Equal(t, ojs.StateCompleted, jobs.Items[0].State)
}

// TestSDKModules: a program gets no module with the SDK that it does not need.
func TestSDKModules(t *testing.T) {
	t.Parallel()
	for imported, want := range map[string][]string{
		"ojs":                   nil,
		"ojs/ojstest":           nil,
		"ojs/ojsadmin":          nil,
		"ojs/ojssql":            nil,
		"ojs/ojspgx":            {"github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/pgx/v5", "golang.org/x/crypto", "golang.org/x/text"},
		"ojs/ojspgx/ojspgxtest": {"github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/pgx/v5", "golang.org/x/crypto", "golang.org/x/text"},
		"ojs/ojsotel":           {"github.com/go-logr/logr", "github.com/go-logr/stdr", "go.opentelemetry.io/auto/sdk", "go.opentelemetry.io/otel", "go.opentelemetry.io/otel/metric", "go.opentelemetry.io/otel/trace"},
	} {
		t.Run(imported, func(t *testing.T) {
			t.Parallel()
			dir, goTool := newModule(t, "shop")
			require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nimport _ \"github.com/ojsd/ojsd/"+imported+"\"\n\nfunc main() {}\n"), 0o600))
			goTool("mod", "tidy")
			goTool("build", "-o", "shop", ".")
			linked := map[string]bool{}
			for path := range strings.FieldsSeq(goTool("list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")) {
				linked[path] = true
			}
			ours := []string{"shop", "github.com/ojsd/ojsd/ojs"}
			if module := strings.TrimSuffix(imported, "/ojspgxtest"); strings.HasSuffix(module, "pgx") || strings.HasSuffix(module, "otel") {
				ours = append(ours, "github.com/ojsd/ojsd/"+module)
			}
			var others []string
			for path := range linked {
				others = append(others, path)
			}
			require.ElementsMatch(t, append(ours, want...), others)
			all := goTool("list", "-m", "all")
			for _, server := range []string{"google.golang.org/grpc", "labstack/echo", "toxiproxy", "goose", "fasthttp", "github.com/ojsd/ojsd "} {
				require.NotContains(t, all, server)
			}
			if want == nil {
				require.Len(t, strings.Split(strings.TrimSpace(all), "\n"), 2, "this program and the SDK: %s", all)
			}
			t.Logf("%d modules", strings.Count(all, "\n"))
		})
	}
}
