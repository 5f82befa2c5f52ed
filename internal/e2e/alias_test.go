package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPushAliases covers docs/reference/jobs.md, Accepted names: which key wins, and under which name it comes out.
func TestPushAliases(t *testing.T) {
	t.Parallel()
	a := setup(t)
	for _, c := range []struct{ name, in, member, out string }{
		{"OptionsBeatTopLevel", `"queue":"top","options":{"queue":"opt"}`, "queue", "opt"},
		{"NullInOptionsLoses", `"queue":"top","options":{"queue":null}`, "queue", "top"},
		{"Priority", `"priority":1,"options":{"priority":2}`, "priority", "2"},
		{"PriorityNameHigh", `"priority":"high"`, "priority", "10"},
		{"PriorityNameNormal", `"options":{"priority":"Normal"}`, "priority", "0"},
		{"PriorityNameLow", `"priority":"LOW"`, "priority", "-10"},
		{"MetaMerges", `"meta":{"a":1,"b":1},"metadata":{"b":2,"e":2},"options":{"meta":{"b":3,"c":3},"metadata":{"b":4,"d":4,"c":4}}`, "meta", `{"a":1,"b":1,"d":4,"c":4,"e":2}`},
		{"MetadataAlone", `"metadata":{"z":1.0}`, "meta", `{"z":1.0}`},
		{"EmptyMeta", `"meta":{},"options":{"metadata":{}}`, "meta", `{}`},
		{"DelayUntil", `"options":{"delay_until":"2099-01-01T00:00:00Z"}`, "scheduled_at", "2099-01-01T00:00:00Z"},
		{"DelayUntilOnTop", `"delay_until":"2099-01-01T00:00:00Z"`, "scheduled_at", "2099-01-01T00:00:00Z"},
		{"ScheduledAtBeatsDelayUntil", `"options":{"delay_until":"2099-01-01T00:00:00Z","scheduled_at":"2098-01-01T00:00:00Z"}`, "scheduled_at", "2098-01-01T00:00:00Z"},
		{"OptionsDelayBeatsTopSchedule", `"scheduled_at":"2097-01-01T00:00:00Z","options":{"delay_until":"2099-01-01T00:00:00Z"}`, "scheduled_at", "2099-01-01T00:00:00Z"},
		{"ExpiresAt", `"options":{"expires_at":"2099-01-01T00:00:00Z"}`, "expires_at", "2099-01-01T00:00:00Z"},
		{"TimeoutSeconds", `"timeout":5`, "timeout_ms", "5000"},
		{"TimeoutIsEchoed", `"timeout":5`, "timeout", "5"},
		{"TimeoutMS", `"options":{"timeout_ms":1500}`, "timeout_ms", "1500"},
		{"TimeoutMSBeatsTimeout", `"timeout_ms":1500,"timeout":9`, "timeout_ms", "1500"},
		{"LosingTimeoutIsForgotten", `"timeout_ms":1500,"timeout":9`, "timeout", ""},
		{"OptionsTimeoutBeatsTopMS", `"timeout_ms":1500,"options":{"timeout":9}`, "timeout_ms", "9000"},
		{"ZeroTimeoutIsShown", `"timeout_ms":0`, "timeout_ms", "0"},
		{"VisibilityMS", `"options":{"visibility_timeout_ms":1500}`, "visibility_timeout_ms", "1500"},
		{"VisibilitySeconds", `"visibility_timeout":5`, "visibility_timeout_ms", "5000"},
		{"VisibilityISO", `"visibility_timeout":"PT1M"`, "visibility_timeout_ms", "60000"},
		{"VisibilityShort", `"options":{"visibility_timeout":"90s"}`, "visibility_timeout_ms", "90000"},
		{"RetryPolicy", `"options":{"retry_policy":{"max_attempts":4}}`, "retry", `{"max_attempts":4}`},
		{"RetryBeatsRetryPolicy", `"retry_policy":{"max_attempts":4},"retry":{"max_attempts":5}`, "retry", `{"max_attempts":5}`},
		{"RetryIsVerbatim", `"retry":{"multiplier":2.0,"x":[1],"max_attempts":3}`, "retry", `{"multiplier":2.0,"x":[1],"max_attempts":3}`},
		{"Tags", `"options":{"tags":["a","a","b"]}`, "tags", `["a","b"]`},
		{"EmptyTagsAreAbsent", `"tags":[]`, "tags", ""},
		{"Schema", `"options":{"schema":"urn:x"}`, "schema", "urn:x"},
		{"RateLimit", `"options":{"rate_limit":{"key":"k"}}`, "rate_limit", `{"key":"k"}`},
		{"Pending", `"options":{"pending":true}`, "state", "pending"},
		{"GracePeriod", `"options":{"grace_period":3}`, "grace_period", "3"},
		{"TotalTimeout", `"total_timeout":7200`, "total_timeout", "7200"},
		{"EnqueueTTL", `"enqueue_ttl":60`, "enqueue_ttl", "60"},
		{"HeartbeatTimeout", `"options":{"heartbeat_timeout":60}`, "heartbeat_timeout", "60"},
		{"ResultTTL", `"result_ttl":-1`, "result_ttl", "-1"},
		{"UnknownInOptionsIsLifted", `"options":{"x_a":{"b":1}}`, "x_a", `{"b":1}`},
		{"TopLevelBeatsLifted", `"x_a":1,"options":{"x_a":2}`, "x_a", "1"},
		{"OptionsDisappear", `"options":{"queue":"q"}`, "options", ""},
		{"EmptyOptions", `"options":{}`, "queue", "default"},
		{"TypeOnlyOnTop", `"options":{"type":"other"}`, "type", "t"},
		{"IDOnlyOnTop", `"options":{"id":"other"}`, "type", "t"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := a.in(t)
			r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],`+c.in+`}`, "OJS-Version: 1.0").is(201)
			require.Equal(t, c.out, r.at("job."+c.member))
			require.Equal(t, c.out != "", r.has("job."+c.member))
			for _, alias := range []string{"delay_until", "metadata", "retry_policy", "visibility_timeout"} {
				require.False(t, r.has("job."+alias))
			}
			require.Equal(t, r.body, a.job(r.at("job.id")).body)
		})
	}
}
