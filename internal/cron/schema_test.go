package cron_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/ojs"
)

// TestLaterSchema registers a schema that the jobs of a cron violate after the cron: its ticks are skipped, and its next run moves on.
func TestLaterSchema(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cron("c", every, "allow")
	b.cron("d", `"expression":"@every 1h","type":"t.other","options":{"queue":"q"}`)
	b.tick("c")
	in, wire := schema.DecodePut(schema.Key{Type: "t.cron", Version: "1"}, []byte(`{"schema":{"minItems":1},"enforce":true}`))
	require.Nil(t, wire)
	_, _, err := b.Schemas.Put(t.Context(), in)
	require.NoError(t, err)
	b.due("d", "1 second")
	b.due("c", "1 second")
	n, err := b.Crons.Fire(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, []string{"fired ", "skipped enqueue_failed"}, b.Texts(`SELECT r.outcome || ' ' || COALESCE(r.reason, '') FROM ojs.cron_runs r
		JOIN ojs.crons c ON c.id = r.cron_id WHERE c.name = 'c' ORDER BY r.scheduled_at`))
	require.Equal(t, "1", b.One(`SELECT count(*)::text FROM ojs.jobs WHERE type = 't.other'`))
	require.Equal(t, "t", b.One(`SELECT (next_run_at > now())::text FROM ojs.crons WHERE name = 'c'`)[:1])
	_, err = b.Crons.Trigger(t.Context(), cron.Ref{Name: "c"})
	domaintest.RequireCode(t, err, ojs.ErrSchemaValidation)

	again, wire := cron.Decode([]byte(`{"expression":"@daily","type":"t.cron"}`), "c", job.Limits{})
	require.Nil(t, wire)
	_, _, err = b.Crons.Put(t.Context(), again)
	domaintest.RequireCode(t, err, ojs.ErrSchemaValidation)
}
