package eventlog

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestEventText checks what SQL makes of each type of the catalogue.
func TestEventText(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	pool := dbtest.New(t)
	makeRows(t, pool)
	const (
		job     = `job_id := '019c0a11-1c02-7b11-9c22-0a1b2c3d4e5f', job_type := 'a.b', queue := 'q'`
		head    = `{"specversion":"1.0","id":"evt_019df0ef-95a4-7000-8000-000000070000","type":"%s","source":"ojs://svc/%s","time":"2026-05-04T03:02:06.500Z","subject":"%s"`
		compat  = `,"event":"%s","timestamp":"2026-05-04T03:02:06.500Z"`
		jobID   = "019c0a11-1c02-7b11-9c22-0a1b2c3d4e5f"
		jobFlat = `,"job_id":"019c0a11-1c02-7b11-9c22-0a1b2c3d4e5f","job_type":"a.b","queue":"q"`
	)
	for _, c := range []struct {
		typ, columns, flat, data string
	}{
		{"job.enqueued", `to_state := 'available', priority := 3::smallint`, `,"to":"available"`, `"priority":3,"state":"available"`},
		{"job.enqueued", `from_state := 'scheduled', to_state := 'available', data := '{"scheduled_at":"x"}'`,
			`,"from":"scheduled","to":"available"`, `"priority":0,"state":"available","previous_state":"scheduled","scheduled_at":"x"`},
		{"job.started", `from_state := 'available', to_state := 'active', attempt := 2, worker_id := 'w"\7', duration_ms := 5`,
			`,"from":"available","to":"active","worker_id":"w\"\\7"`, `"worker_id":"w\"\\7","attempt":2`},
		{"job.started", `attempt := 1`, `,"worker_id":"anonymous"`, `"worker_id":"anonymous","attempt":1`},
		{"job.completed", `from_state := 'active', to_state := 'completed', attempt := 1, worker_id := 'w', duration_ms := 1499, data := '{"result":{"pages":3}}'`,
			`,"from":"active","to":"completed"`, `"attempt":1,"duration_ms":1499,"result":{"pages":3}`},
		{"job.completed", `attempt := 1, duration_ms := 0`, ``, `"attempt":1,"duration_ms":0,"result":null`},
		{"job.completed", `attempt := 1, duration_ms := 0, data := '{"result_truncated":true}'`, ``, `"attempt":1,"duration_ms":0,"result_truncated":true`},
		{"job.failed", `attempt := 1, duration_ms := 7, data := '{"error":{"code":"e"},"next_state":"retryable"}'`, ``,
			`"attempt":1,"duration_ms":7,"error":{"code":"e"},"next_state":"retryable"`},
		{"job.failed", `attempt := 1, data := '{"error":{}}'`, ``, `"attempt":1,"error":{}`},
		{"job.discarded", `from_state := 'active', to_state := 'discarded', attempt := 3, data := '{"last_error":{},"error":{}}'`,
			`,"from":"active","to":"discarded"`, `"total_attempts":3,"attempt":3,"last_error":{},"error":{}`},
		{"job.discarded", `data := '{"last_error":{}}'`, ``, `"total_attempts":0,"last_error":{}`},
		{"job.retrying", `from_state := 'active', to_state := 'retryable', attempt := 1, data := '{"max_attempts":4}'`,
			`,"from":"active","to":"retryable"`, `"attempt":1,"max_attempts":4`},
		{"job.cancelled", `from_state := 'pending', to_state := 'cancelled', data := '{"cancelled_by":"api"}'`,
			`,"from":"pending","to":"cancelled"`, `"previous_state":"pending","cancelled_by":"api"`},
		{"job.heartbeat", `attempt := 1, worker_id := 'w', data := '{"visible_until":"x"}'`, `,"worker_id":"w"`,
			`"worker_id":"w","attempt":1,"visible_until":"x"`},
		{"job.progress", `attempt := 1, worker_id := 'w', data := '{"progress_percent":12.5}'`, `,"worker_id":"w"`,
			`"worker_id":"w","attempt":1,"progress_percent":12.5`},
		{"job.scheduled", `to_state := 'scheduled', priority := -1::smallint, data := '{"scheduled_at":"x"}'`, `,"to":"scheduled"`,
			`"priority":-1,"scheduled_at":"x"`},
		{"job.expired", `from_state := 'scheduled', to_state := 'discarded', data := '{"ttl_ms":1}'`,
			`,"from":"scheduled","to":"discarded"`, `"state":"discarded","ttl_ms":1`},
		{"job.state_changed", `from_state := 'retryable', to_state := 'available', attempt := 1, data := '{"reason":"retry"}'`,
			`,"from":"retryable","to":"available"`, `"attempt":1,"reason":"retry"`},
		{"job.state_changed", `from_state := 'completed', data := '{}'`, `,"from":"completed"`, ``},
		{"job.enqueued", `trace_id := 't"1', workflow_id := '019c0a11-1c02-7b11-9c22-0a1b2c3d4e60'`,
			`,"workflow_id":"019c0a11-1c02-7b11-9c22-0a1b2c3d4e60"`, `"priority":0,"state":"available","trace_id":"t\"1"`},
	} {
		want := fmt.Sprintf(head, c.typ, "api", jobID) + fmt.Sprintf(compat, c.typ) + jobFlat + c.flat +
			`,"data":{"job_type":"a.b","queue":"q"` + comma(c.data) + `}}`
		require.Equal(t, want, render(t, pool, c.typ, job+", "+c.columns, true))
	}

	for _, c := range []struct {
		typ, columns, subject, flat, data string
	}{
		{"worker.started", `subject := 'w"7', worker_id := 'w"7', data := '{"worker_id":"w\"7","queues":[]}'`, `w\"7`, `,"worker_id":"w\"7"`,
			`{"worker_id":"w\"7","queues":[]}`},
		{"queue.paused", `subject := 'q', queue := 'q', data := '{"queue":"q"}'`, "q", `,"queue":"q"`, `{"queue":"q"}`},
		{"workflow.completed", `subject := 'wf', workflow_id := '019c0a11-1c02-7b11-9c22-0a1b2c3d4e60', trace_id := 't', data := '{"workflow_id":"wf"}'`, "wf",
			`,"workflow_id":"019c0a11-1c02-7b11-9c22-0a1b2c3d4e60"`, `{"trace_id":"t","workflow_id":"wf"}`},
		{"cron.skipped", `subject := 'c', job_type := 'a.b', queue := 'q'`, "c", `,"job_type":"a.b","queue":"q"`, `{}`},
	} {
		want := fmt.Sprintf(head, c.typ, "api", c.subject) + fmt.Sprintf(compat, c.typ) + c.flat + `,"data":` + c.data + `}`
		require.Equal(t, want, render(t, pool, c.typ, c.columns, true))
	}

	t.Run("LeavesCompatMembersOut", func(t *testing.T) {
		want := fmt.Sprintf(head, "job.completed", "api", jobID) + `,"data":{"job_type":"a.b","queue":"q","attempt":1,"duration_ms":0,"result":null}}`
		require.Equal(t, want, render(t, pool, "job.completed", job+`, attempt := 1`, false))
	})

	// Without inlining every text would cost a function call per piece, ten times as much.
	t.Run("IsInlined", func(t *testing.T) {
		rows, err := pool.Query(t.Context(), "EXPLAIN VERBOSE SELECT ojs.event_text(e, 'ojs', true) FROM ojs.events e")
		require.NoError(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.NotContains(t, strings.Join(plan, "\n"), "ojs.event_")
		require.NotContains(t, strings.Join(plan, "\n"), "ojs.time_")
	})
}

func comma(s string) string {
	if s == "" {
		return ""
	}
	return "," + s
}

// render makes the text of a row that exists only in the statement. columns are arguments in named notation.
func render(t *testing.T, pool *pgxpool.Pool, typ, columns string, compat bool) string {
	t.Helper()
	var text string
	err := pool.QueryRow(t.Context(), `SELECT ojs.event_text(e, 'svc', $1) FROM event_row(type := $2, `+columns+`) e`,
		pgx.QueryExecModeExec, compat, typ).Scan(&text)
	require.NoError(t, err)
	require.True(t, json.Valid([]byte(text)), text)
	return text
}

// makeRows: row constructors take no named arguments, functions do.
func makeRows(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `
		CREATE FUNCTION event_row(type text, subject text DEFAULT NULL, job_id uuid DEFAULT NULL, job_type text DEFAULT NULL,
			queue text DEFAULT NULL, attempt integer DEFAULT NULL, worker_id text DEFAULT NULL, workflow_id uuid DEFAULT NULL,
			trace_id text DEFAULT NULL, from_state text DEFAULT NULL, to_state text DEFAULT NULL, priority smallint DEFAULT NULL,
			duration_ms bigint DEFAULT NULL, data json DEFAULT NULL) RETURNS ojs.events LANGUAGE sql AS $$
			SELECT ROW(7, 0, type, 'api', timestamptz '2026-05-04T03:02:06.5Z', subject, job_id, job_type, queue, attempt, worker_id,
				workflow_id, trace_id, from_state, to_state, false, priority, NULL, NULL, NULL, duration_ms, data)::ojs.events
		$$`)
	require.NoError(t, err)
}
