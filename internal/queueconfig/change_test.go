package queueconfig_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/queueconfig"
)

// apply gives the stored configuration after changes, one after another.
func apply(t *testing.T, changes ...string) []byte { return store(t, changes...).Config }

func store(t *testing.T, changes ...string) (stored queueconfig.Stored) {
	t.Helper()
	for _, text := range changes {
		object, invalid := jsonread.Check([]byte(text))
		require.Nil(t, invalid)
		change, refused := queueconfig.ParseChange(object, "$")
		require.Nil(t, refused, text)
		applied, refused := change.Apply(stored.Config)
		require.Nil(t, refused)
		stored = applied
	}
	return stored
}

func TestChangeApply(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		changes []string
		stored  string // "": nothing
	}{
		"StoresInOneOrder":      {[]string{`{"retention":{"completed":"P3D"},"concurrency":5}`}, `{"concurrency":5,"retention":{"completed":"P3D"}}`},
		"KeepsOtherFields":      {[]string{`{"concurrency":5}`, `{"visibility_timeout":30}`}, `{"concurrency":5,"visibility_timeout":30}`},
		"NullRemoves":           {[]string{`{"concurrency":5,"max_size":3}`, `{"concurrency":null}`}, `{"backpressure":{"max_depth":3}}`},
		"NullOfGroupRemovesAll": {[]string{`{"retention":"24h","max_size":3}`, `{"retention":null}`}, `{"backpressure":{"max_depth":3}}`},
		"NothingIsLeft":         {[]string{`{"concurrency":5}`, `{"concurrency":null}`}, ``},
		"AliasesOfBackpressure": {[]string{`{"max_size":100,"max_size_bytes":7,"overflow_policy":"block"}`}, `{"backpressure":{"max_depth":100,"max_size_bytes":7,"strategy":"block"}}`},
		"FieldWinsOverAlias":    {[]string{`{"max_size":100,"backpressure":{"max_depth":2}}`}, `{"backpressure":{"max_depth":2}}`},
		"GroupsMerge":           {[]string{`{"backpressure":{"max_depth":2}}`, `{"backpressure":{"strategy":"drop_oldest"}}`}, `{"backpressure":{"max_depth":2,"strategy":"drop_oldest"}}`},
		"OneRetentionForAll":    {[]string{`{"retention":"24h"}`}, `{"retention":{"completed":"24h","discarded":"24h","cancelled":"24h"}}`},
		"DeadLetterTTL":         {[]string{`{"dead_letter_ttl":"P1D"}`}, `{"retention":{"discarded":"P1D"}}`},
		"PoliciesStayAsSent":    {[]string{`{"default_retry":{"max_attempts": 5,"initial_interval":"PT2S"}}`}, `{"default_retry":{"max_attempts":5,"initial_interval":"PT2S"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.stored, string(apply(t, test.changes...)))
		})
	}
}

// SQL reads values of one name and one unit, whatever was sent.
func TestChangeApplyStoresSettingsForSQL(t *testing.T) {
	t.Parallel()
	for config, settings := range map[string]string{
		`{"retention":"24h","overflow_policy":"block","producers":["a"]}`:            ``,
		`{"concurrency":5.0,"max_size":100,"max_size_bytes":7e0}`:                    `{"concurrency":5,"max_depth":100,"max_size_bytes":7}`,
		`{"backpressure":{"max_depth":0,"max_depth_per_tenant":4}}`:                  `{"max_depth":0,"max_depth_per_tenant":4}`,
		`{"concurrency":0,"visibility_timeout":90,"default_timeout":"P1DT2H3M4.5S"}`: `{"concurrency":0,"visibility_ms":90000,"timeout_ms":93784500}`,
		`{"visibility_timeout":"1.5h","default_timeout":"P1M"}`:                      `{"visibility_ms":5400000,"timeout_ms":2592000000}`,
		`{"default_retry":{"maxAttempts":8,"initial_delay_ms":4000,"backoff":"none","onExhaustion":"dead\u005fletter"}}`: `{"retry":{"max_attempts":8,"initial_interval_ms":4000,` +
			`"max_interval_ms":300000,"backoff_coefficient":2,"jitter":true,"on_exhaustion":"dead_letter","backoff_strategy":"constant"}}`,
		`{"rate_limit":{"rate":{"limit":1,"period":"1m"}},"allowed_job_types":["a.*"],"fairness":{"key":"meta.<é>"}}`: `{"rate_limit":true,"allowed_job_types":["a.*"],"fair_key":"meta.<é>"}`,
	} {
		got := string(store(t, config).Settings)
		if settings == "" {
			require.Empty(t, got, config)
			continue
		}
		require.JSONEq(t, settings, got, config)
	}
}

// member is a configuration with one field, whose path may have a group.
func member(path, value string) string {
	if group, name, nested := strings.Cut(path, "."); nested {
		return `{"` + group + `":{"` + name + `":` + value + `}}`
	}
	return `{"` + path + `":` + value + `}`
}

// weights are so many, each of 1.
func weights(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(`"k%d":1`, i)
	}
	return strings.Join(list, ",")
}

// quoted is a text of so many bytes.
func quoted(bytes int) string { return `"` + strings.Repeat("x", bytes) + `"` }

// The bounds that the reference states can be reached, and what is stored can be read again.
func TestParseChangeTakesTheBounds(t *testing.T) {
	t.Parallel()
	for field, values := range map[string][]string{
		"concurrency":                       {`0`, `1000000000`},
		"backpressure.max_depth":            {`0`, `1000000000`},
		"backpressure.max_size_bytes":       {`0`, `1125899906842624`},
		"backpressure.max_depth_per_tenant": {`0`, `1000000000`},
		"backpressure.warning_threshold":    {`1`, `0.000001`},
		"visibility_timeout":                {`1`, `604800`, `"PT0.001S"`, `"P7D"`},
		"default_timeout":                   {`1`, `3153600000`, `"P36500D"`},
		"retention.completed":               {`"1ms"`, `"P36500D"`},
		"dead_letter_queue":                 {quoted(1), quoted(255)},
		"dead_letter_max_size":              {`0`, `1000000000`},
		"allowed_job_types":                 {`[` + quoted(255) + `]`, `["*"]`, `["` + strings.Repeat(`a","`, 999) + `a"]`},
		"producers":                         {`["a*"]`},
		"fairness":                          {`{"key":"meta.` + quoted(250)[1:] + `}`, `{"key":"tenant","weights":{"a":1,"b":1000}}`, `{"key":"tenant","weights":{` + weights(1000) + `}}`},
	} {
		for _, value := range values {
			_, err := queueconfig.Decode(apply(t, member(field, value)))
			require.NoError(t, err, "%s %s", field, value[:min(len(value), 40)])
		}
	}
}

func TestParseChangeRefuses(t *testing.T) {
	t.Parallel()
	many := `["` + strings.Repeat(`a","`, 1000) + `a"]`
	for field, values := range map[string][]string{
		"concurrency":                       {`-1`, `1.5`, `"5"`, `1e400`, `[]`, `1000000001`},
		"backpressure":                      {`5`, `[]`, `"x"`},
		"backpressure.max_depth":            {`-1`, `"a"`, `1e99`, `1000000001`},
		"backpressure.max_size_bytes":       {`-1`, `1e30`, `1125899906842625`},
		"backpressure.max_depth_per_tenant": {`-1`, `"5"`, `1000000001`},
		"backpressure.strategy":             {`"drop"`, `1`},
		"backpressure.warning_threshold":    {`0`, `1.1`, `"0.5"`, `1e999`},
		"visibility_timeout":                {`0`, `-1`, `"P"`, `"P8D"`, `604801`, `"PT0.0004S"`, `"P7DT0.001S"`, `1e40`, `9223372036854775807`},
		"default_timeout":                   {`0`, `true`, `"PT"`, `3153600001`, `"P36501D"`, `9223372036854775807`},
		"default_retry":                     {`5`, `{"max_attempts":1,"x":"\u0000"}`},
		"default_retry.max_attempts":        {`-1`},
		"default_retry.backoff_strategy":    {`"x"`},
		"retention.completed":               {`5`, `"P"`, `"PT0S"`, `"7 days"`, `"P36501D"`},
		"retention":                         {`5`, `[]`},
		"dead_letter_queue":                 {`5`, `""`, `"a\u0000"`, `"\ud800"`, quoted(256)},
		"dead_letter_max_size":              {`-1`, `1000000001`},
		"allowed_job_types":                 {`"a"`, `[]`, `[5]`, `[""]`, `["a*b"]`, `[` + quoted(256) + `]`, many},
		"producers":                         {`{}`, `["*a"]`},
		"fairness": {`5`, `{}`, `{"key":"meta."}`, `{"key":"args"}`, `{"key":"tenant","weights":{"a":0}}`, `{"key":"tenant","weights":[]}`, `{"key":"tenant","weights":{"a":1001}}`,
			`{"key":"tenant","weights":{` + weights(1001) + `}}`, `{"key":"tenant","weights":{"":1}}`, `{"key":"meta.` + quoted(251)[1:] + `}`},
		"rate_limit":       {`5`, `[]`, `"1/s"`, `{}`},
		"rate_limit.limit": {`0,"period":"PT1S"`},
		"rate_limit.key":   {`"a","limit":1,"period":"PT1S"`},
	} {
		for _, value := range values {
			t.Run(field+value[:min(len(value), 20)], func(t *testing.T) {
				t.Parallel()
				object, invalid := jsonread.Check([]byte(member(field, value)))
				require.Nil(t, invalid)
				_, refused := queueconfig.ParseChange(object, "$.config")
				require.NotNil(t, refused)
				require.Equal(t, "invalid_payload", refused.Code)
				require.Equal(t, field, refused.Details["field"])
				require.LessOrEqual(t, strings.Count(refused.Message, ", got "), 1, refused.Message)
			})
		}
	}
}

func TestChangeTooLarge(t *testing.T) {
	t.Parallel()
	object, invalid := jsonread.Check([]byte(`{"default_retry":{"x":"` + strings.Repeat("y", queueconfig.MaxBytes) + `"}}`))
	require.Nil(t, invalid)
	change, refused := queueconfig.ParseChange(object, "$")
	require.Nil(t, refused)
	_, refused = change.Apply(nil)
	require.NotNil(t, refused)
	require.Equal(t, "payload_too_large", refused.Code)
}

func TestEffective(t *testing.T) {
	t.Parallel()
	own := apply(t, `{"concurrency":0,"retention":{"completed":"PT1H"},"backpressure":{"strategy":"block"},"allowed_job_types":["mail.*","a.b"]}`)
	inherited := apply(t, `{"concurrency":9,"retention":{"completed":"P1D","discarded":"P2D"},"max_size":7,"visibility_timeout":"PT2M","default_timeout":90,
		"default_retry":{"max_attempts":8},"fairness":{"key":"meta.customer","weights":{"acme":3}}}`)
	c, err := queueconfig.Effective(own, inherited)
	require.NoError(t, err)
	require.Zero(t, *c.Concurrency)
	require.Equal(t, time.Hour, c.Retention.Completed.Duration)
	require.Equal(t, "PT1H", c.Retention.Completed.Text)
	require.Equal(t, 48*time.Hour, c.Retention.Discarded.Duration)
	require.Nil(t, c.Retention.Cancelled)
	require.Equal(t, queueconfig.Backpressure{MaxDepth: 7, Strategy: queueconfig.Block, WarningThreshold: 0.8}, *c.Backpressure)
	require.EqualValues(t, 120_000, *c.VisibilityTimeoutMS)
	require.EqualValues(t, 90_000, *c.DefaultTimeoutMS)
	require.EqualValues(t, 3, c.Fairness.Weights["acme"])
	policy, ok := c.Retry()
	require.True(t, ok)
	require.EqualValues(t, 8, policy.MaxAttempts)
	for jobType, allowed := range map[string]bool{"mail.send": true, "mail.": true, "mail": false, "a.b": true, "a.bc": false} {
		require.Equal(t, allowed, c.AllowsType(jobType), jobType)
	}
	require.True(t, c.AllowsProducer("key:12345678"))
}

func TestDecodeKeepsWhatItCanRead(t *testing.T) {
	t.Parallel()
	c, err := queueconfig.Decode([]byte(`{"concurrency":5,"retention":{"completed":"soon"}}`))
	require.ErrorContains(t, err, "retention.completed")
	require.EqualValues(t, 5, *c.Concurrency)
	_, err = queueconfig.Decode([]byte(`[]`))
	require.Error(t, err)
}
