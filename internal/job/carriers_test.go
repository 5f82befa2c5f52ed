package job

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
)

// TestCarriersHaveEveryAttribute covers the rows of docs/CONTRIBUTING.md, Add an attribute of jobs, that nothing else notices. An
// exception says why a carrier does without the attribute. The messages of gRPC are those of OJS, so they have none of ours.
func TestCarriersHaveEveryAttribute(t *testing.T) {
	t.Parallel()
	const alias = "an alias of another attribute"
	carriers := map[string]struct {
		has        func(name string) bool
		exceptions map[string]string
	}{
		"docs/reference/jobs.md": {has: pageHas(t, "jobs.md")},
		"docs/reference/sql.md": {has: pageHas(t, "sql.md"), exceptions: map[string]string{
			"specversion": "there is one version", "metadata": alias, "delay_until": alias, "retry_policy": alias,
			"timeout": alias, "visibility_timeout": alias,
		}},
		"ojs.JobRequest": {has: requestHas(t), exceptions: map[string]string{
			"specversion": "the header names the version", "metadata": alias, "scheduled_at": alias, "retry_policy": alias, "timeout": alias,
			"visibility_timeout": alias, "max_attempts": "it is a member of retry", "grace_period": "it has no field: Extra carries it",
		}},
	}
	for carrier, c := range carriers {
		for _, name := range attrNames {
			_, excepted := c.exceptions[name]
			switch {
			case name == "":
			case excepted && c.has(name):
				t.Errorf("%s has %s: it is no exception", carrier, name)
			case !excepted && !c.has(name):
				t.Errorf("%s does not have %s", carrier, name)
			}
		}
	}
}

func pageHas(t *testing.T, name string) func(attribute string) bool {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/" + name)
	require.NoError(t, err)
	return func(attribute string) bool { return strings.Contains(string(page), "`"+attribute+"`") }
}

// requestHas looks into the body that the SDK sends for a job with all of its attributes.
func requestHas(t *testing.T) func(attribute string) bool {
	t.Helper()
	body, err := json.Marshal(ojs.JobRequest{
		Type: "t", Args: []any{1}, Meta: map[string]any{"k": 1}, ID: "01890000-0000-7000-8000-000000000000", Schema: "urn:s", Queue: "q", Priority: 1,
		Tags: []string{"a"}, RunAt: time.Now(), ExpiresAt: time.Now(), Retry: &ojs.RetryPolicy{MaxAttempts: 3}, Timeout: time.Second,
		VisibilityTimeout: time.Second, EnqueueTTL: time.Second, TotalTimeout: time.Second, HeartbeatTimeout: time.Second, ResultTTL: time.Second,
		Unique: &ojs.UniquePolicy{}, RateLimit: &ojs.RateLimit{Key: "k"}, UniqueKey: strings.Repeat("0", 64), Pending: true,
	})
	require.NoError(t, err)
	var sent, options map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(body, &sent))
	require.NoError(t, json.Unmarshal(sent["options"], &options))
	return func(attribute string) bool { return sent[attribute] != nil || options[attribute] != nil }
}
