package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// seriesElsewhere are shown in docs/ and not by the server of TestMetrics.
var seriesElsewhere = []struct{ name, kind, labels string }{
	{"ojs_db_xmin_holder", "GAUGE", "kind,application,pid"}, // only while a transaction keeps dead rows
	{"ojs_events_relay_holder", "GAUGE", "application,pid"}, // only while a session keeps events from being published
	// The node of TestMetrics serves no gRPC; TestGRPCMetrics covers these.
	{"ojs_grpc_requests_total", "COUNTER", "method,code"},
	{"ojs_grpc_request_duration_seconds", "HISTOGRAM", "method,code"},
}

// shownSeries are all names that an expression may use, with their labels: TestMetrics proves that a node shows them.
func shownSeries() map[string][]string {
	shown := map[string][]string{}
	add := func(name, kind, labels string) {
		names := []string{name}
		if kind == "HISTOGRAM" {
			names = []string{name + "_bucket", name + "_sum", name + "_count"}
		}
		for _, n := range names {
			shown[n] = strings.Split(labels, ",")
		}
	}
	for _, s := range documentedSeries {
		add(s.name, s.kind, s.labels)
	}
	for _, s := range seriesElsewhere {
		add(s.name, s.kind, s.labels)
	}
	return shown
}

var (
	seriesInText = regexp.MustCompile(`\bojs_[a-z_]+\b(\{[^{}]*\})?`)
	labelMatcher = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"`)
	quoted       = regexp.MustCompile(`"[^"]*"`)
	targetLabels = []string{"job", "instance", "le"} // of the scrape, and of every bucket
)

// checkExpression finds names and labels that no node has. It does not parse PromQL, only counts its brackets.
func checkExpression(t *testing.T, shown map[string][]string, where, text string) {
	t.Helper()
	bare := quoted.ReplaceAllString(text, "")
	for _, pair := range []string{"()", "{}", "[]"} {
		require.Equal(t, strings.Count(bare, pair[:1]), strings.Count(bare, pair[1:]), "%s: %s in %s", where, pair, text)
	}
	for _, series := range seriesInText.FindAllString(text, -1) {
		name, selector, _ := strings.Cut(series, "{")
		require.Contains(t, shown, name, "%s: %s", where, text)
		for _, m := range labelMatcher.FindAllStringSubmatch(selector, -1) {
			require.True(t, slices.Contains(shown[name], m[1]) || slices.Contains(targetLabels, m[1]), "%s: %s has no label %s", where, name, m[1])
		}
	}
}

func readDoc(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	require.NoError(t, err)
	return text
}

type dashboard struct {
	UID           string `json:"uid"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct{ Name, Type, Definition string } `json:"list"`
	} `json:"templating"`
	Panels []struct {
		ID          int
		Type, Title string
		Targets     []struct{ Expr string }
		Datasource  struct{ UID string }
		FieldConfig struct {
			Defaults struct{ Unit string }
		}
	} `json:"panels"`
}

func TestGrafanaDashboard(t *testing.T) {
	t.Parallel()
	var d dashboard
	require.NoError(t, json.Unmarshal(readDoc(t, "grafana.json"), &d))
	require.NotEmpty(t, d.UID)
	require.GreaterOrEqual(t, d.SchemaVersion, 38) // Grafana 10
	shown := shownSeries()
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		checkExpression(t, shown, v.Name, v.Definition)
	}
	require.Equal(t, []string{"datasource", "job", "queue", "job_type"}, variables)
	ids := map[int]bool{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			checkExpression(t, shown, p.Title, target.Expr)
		}
	}
}

type alertRules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

func TestAlertRules(t *testing.T) {
	t.Parallel()
	var rules alertRules
	decoder := yaml.NewDecoder(strings.NewReader(string(readDoc(t, "alerts.yml"))))
	decoder.KnownFields(true)
	require.NoError(t, decoder.Decode(&rules))
	require.Len(t, rules.Groups, 1)
	shown := shownSeries()
	manual := string(readDoc(t, "operations.md"))
	for _, r := range rules.Groups[0].Rules {
		require.NotEmpty(t, r.For, r.Alert)
		require.Contains(t, []string{"critical", "warning"}, r.Labels["severity"], r.Alert)
		checkExpression(t, shown, r.Alert, r.Expr)
		for _, text := range r.Annotations {
			checkExpression(t, shown, r.Alert, text)
		}
		row := "| `" + r.Alert + "`, " + r.For + " | "
		require.Contains(t, manual, row, "operations.md says nothing of the alert, or another time")
		_, rest, _ := strings.Cut(manual, row)
		expr, _, _ := strings.Cut(rest, "` | ")
		require.Equal(t, strings.Join(strings.Fields(r.Expr), " "), strings.TrimPrefix(strings.ReplaceAll(expr, `\|`, "|"), "`"), "operations.md has another expression")
	}
}
