package ojstest

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// counts are numbers of cases. An error is a case that could not be judged; what is skipped no server can pass.
type counts struct{ Passed, Failed, Errored, Skipped int }

// conforming has the cases of each level. The package documentation repeats the numbers.
var conforming = map[string]counts{
	"0": {Passed: 65}, "1": {Passed: 22, Failed: 2, Skipped: 1}, "2": {Passed: 13}, "3": {Passed: 14}, "4": {Passed: 16},
}

// TestConformance runs the conformance suites of levels 0 to 4 against the server in memory, if OJS_CONFORMANCE_DIR names the folder of their
// runner. It takes some minutes, because cases of crons wait. A case that passes now, or does not any more, changes the numbers.
func TestConformance(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("OJS_CONFORMANCE_DIR")
	if dir == "" {
		t.Skip("OJS_CONFORMANCE_DIR names no runner")
	}
	var fake atomic.Pointer[fakeserver.Server]
	fake.Store(fakeserver.New())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ojs/v1/admin/reset" {
			fake.Store(fakeserver.New())
			return
		}
		answer, err := fake.Load().RoundTrip(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		maps.Copy(w.Header(), answer.Header)
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body) // the runner sees what is missing
		_ = answer.Body.Close()
	}))
	t.Cleanup(server.Close)

	runner, results := filepath.Join(t.TempDir(), "runner"), filepath.Join(t.TempDir(), "results.json")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", runner, ".")
	build.Dir = dir
	text, err := build.CombinedOutput()
	require.NoError(t, err, string(text))
	run := exec.CommandContext(t.Context(), runner, "-url", server.URL, "-suites", filepath.Join(dir, "suites"), "-levels", "0,1,2,3,4", "-parallel", "8",
		"-reset-url", server.URL+"/ojs/v1/admin/reset", "-json", results)
	text, err = run.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		t.Fatalf("run the suites: %v: %s", err, text)
	}
	data, err := os.ReadFile(results)
	require.NoError(t, err)
	var report struct {
		Levels map[string]counts `json:"levels"`
	}
	require.NoError(t, json.Unmarshal(data, &report))
	require.Equal(t, conforming, report.Levels, string(text))
}
