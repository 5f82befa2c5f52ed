package queueadmin_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
)

// ojs.enqueue gives a job what the server would give it.
func TestSQLEnqueueInherits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("_default", `{"default_timeout":"PT1M30S","default_retry":{"max_attempts":2}}`)
	b.configure("q", `{"visibility_timeout":"90s","allowed_job_types":["mail.*"],"default_retry":{"max_attempts":8,"initial_interval_ms":4000,"maxInterval":"PT9S","backoff":"linear"}}`)
	stored := func(queue, options string) (row string, policy job.RetryPolicy) {
		var text []byte
		require.NoError(t, b.Pool.QueryRow(t.Context(), fmt.Sprintf(`WITH e AS MATERIALIZED (SELECT ojs.enqueue('mail.send', '[]', '%s', %s) AS id) SELECT id::text FROM e`, queue, options)).Scan(&row))
		require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT COALESCE(timeout_ms::text, '-') || ' ' || COALESCE(visibility_ms::text, '-') || ' ' || max_attempts, retry FROM ojs.jobs WHERE id = $1`, row).Scan(&row, &text))
		policy, err := job.ParseStoredRetry(text)
		require.NoError(t, err)
		return row, policy
	}
	row, policy := stored("q", "NULL")
	require.Equal(t, "90000 90000 8", row)
	require.Equal(t, "4s 9slinear", fmt.Sprint(policy.InitialInterval, policy.MaxInterval, policy.Strategy))
	row, policy = stored("q", `'{"timeout_ms":5,"visibility_timeout_ms":6,"max_attempts":1,"retry":{"initial_interval":"PT2S"}}'`)
	require.Equal(t, "5 6 1", row)
	require.Equal(t, "2s 9slinear", fmt.Sprint(policy.InitialInterval, policy.MaxInterval, policy.Strategy))
	row, _ = stored("other", "NULL")
	require.Equal(t, "90000 - 2", row)
	_, err := b.Pool.Exec(t.Context(), `SELECT ojs.enqueue('other.job', '[]', 'q')`)
	require.ErrorContains(t, err, "allowed_job_types")
	require.Equal(t, "1", b.One(`SELECT count(*)::text FROM ojs.events WHERE queue = 'other' AND type = 'job.enqueued'`))
}

// The job says in one form whether it becomes a dead letter, however the configuration says it.
func TestSQLEnqueueInheritsExhaustion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, c := range []struct{ config, options, want string }{
		{`{"on_exhaustion":"dead_letter"}`, `{}`, "true"},
		{`{"onExhaustion":"dead_letter"}`, `{}`, "true"},
		{`{"onExhaustion":"dead\u005fletter","backoff":"linear"}`, `{"retry":{"jitter":false}}`, "true"},
		{`{"onExhaustion":"dead_letter","on_exhaustion":"discard"}`, `{}`, "false"},
		{`{"onExhaustion":"dead_letter"}`, `{"retry":{"on_exhaustion":"discard"}}`, "false"},
		{`{"onExhaustion":"dead_letter"}`, `{"retry":{"on_exhaustion":null,"jitter":false}}`, "true"},
		{`{"max_attempts":2}`, `{}`, "false"},
	} {
		queue := fmt.Sprint("q", i)
		b.configure(queue, `{"default_retry":`+c.config+`}`)
		var id, text string
		require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT ojs.enqueue('t', '[]', $1, $2::text::json)::text`, queue, c.options).Scan(&id))
		require.Equal(t, c.want, b.One(`SELECT ojs.makes_dead_letters(on_exhaustion, 'expired')::text FROM ojs.jobs WHERE id = $1`, id), c)
		text = b.One(`SELECT COALESCE(retry::text, '{}') FROM ojs.jobs WHERE id = $1`, id)
		policy, err := job.ParseStoredRetry([]byte(text))
		require.NoError(t, err)
		require.Equal(t, c.want, fmt.Sprint(policy.OnExhaustion == job.ExhaustDeadLetter), text)
	}
}

// A lone interval pulls the inherited one along, as over HTTP.
func TestSQLEnqueueInheritsIntervals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("q", `{"default_retry":{"max_interval":"PT9S","backoff_strategy":"linear"}}`)
	b.Exec(`SELECT ojs.enqueue('t', '[]', 'q', '{"retry": {"initial_interval":"PT10M"}}')`)
	policy, err := job.ParseStoredRetry([]byte(b.One(`SELECT retry FROM ojs.jobs`)))
	require.NoError(t, err)
	require.Equal(t, "10m0s 10m0s linear", fmt.Sprintf("%v %v %v", policy.InitialInterval, policy.MaxInterval, policy.Strategy))
}

// What the configuration of all queues changes holds for a queue at once, setting by setting.
func TestSQLEnqueueInheritsSettingBySetting(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.configure("_default", `{"default_timeout":30,"max_size":1,"allowed_job_types":["a"]}`)
	b.configure("q", `{"visibility_timeout":"PT9S","backpressure":{"max_depth":0},"allowed_job_types":["t"]}`)
	enqueue := `SELECT ojs.enqueue('t', '[]', 'q')`
	b.Exec(enqueue)
	b.configure("_default", `{"default_timeout":"1m"}`)
	b.Exec(enqueue)
	require.Equal(t, []string{"30000 9000", "60000 9000"}, b.Texts(`SELECT timeout_ms || ' ' || visibility_ms FROM ojs.jobs ORDER BY timeout_ms`))
	b.configure("q", `{"max_size":null,"visibility_timeout":null}`)
	_, err := b.Pool.Exec(t.Context(), enqueue)
	require.ErrorContains(t, err, "reached its bound of 1 jobs")
}

func TestSQLEnqueueGoesByTheSettingsOfTheServer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	enqueue := func(bytes int) error {
		_, err := b.Pool.Exec(t.Context(), `SELECT ojs.enqueue('t', json_build_array(repeat('x', $1 - 4)))`, bytes)
		return err
	}
	size := int(config.Default().Jobs.MaxJobBytes)
	require.NoError(t, enqueue(size), "the migration stores the default")
	require.ErrorContains(t, enqueue(size+1), fmt.Sprintf("'args' must have at most %d bytes", size))
	other := b.Node(func(c *domaintest.Config) { c.Server.Tenancy, c.Jobs.MaxJobBytes = "off", 100 })
	require.NoError(t, other.Queues.StoreServerSettings(t.Context()))
	require.NoError(t, enqueue(100))
	require.ErrorContains(t, enqueue(101), "'args' must have at most 100 bytes")
	b.Exec(`SELECT ojs.enqueue('t', '[]', options => '{"meta":{"tenant_id":"acme"}}')`)
	require.Equal(t, 0, b.Number(`SELECT count(*) FROM ojs.jobs WHERE lane <> ''`))

	// Each of the two is stored if it alone has changed, and nothing is written if none has.
	statements := &domaintest.Statements{}
	traced := domaintest.Traced(t, b.Pool, statements)
	for i, change := range []func(*domaintest.Config){
		func(c *domaintest.Config) { c.Server.Tenancy, c.Jobs.MaxJobBytes = "off", 200 },
		func(c *domaintest.Config) { c.Server.Tenancy, c.Jobs.MaxJobBytes = "optional", 200 },
		func(c *domaintest.Config) { c.Server.Tenancy, c.Jobs.MaxJobBytes = "off", 200 },
	} {
		node := domaintest.On(t, traced, change)
		for range 2 {
			require.NoError(t, node.Queues.StoreServerSettings(t.Context()))
			require.Equal(t, i+1, statements.Sent("ServerSettingStore"))
		}
		require.ErrorContains(t, enqueue(201), "'args' must have at most 200 bytes")
	}
}
