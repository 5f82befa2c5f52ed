package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// oddSettings are defaults that the owner of a database may have chosen for other applications.
var oddSettings = map[string]string{
	"default_transaction_deferrable":      "on",
	"datestyle":                           "SQL, DMY",
	"intervalstyle":                       "sql_standard",
	"timezone":                            "Asia/Kathmandu",
	"client_encoding":                     "LATIN1",
	"search_path":                         "''",
	"bytea_output":                        "escape",
	"extra_float_digits":                  "-15",
	"standard_conforming_strings":         "off",
	"transform_null_equals":               "on",
	"lock_timeout":                        "1ms",
	"statement_timeout":                   "300ms",
	"idle_in_transaction_session_timeout": "1ms",
	"idle_session_timeout":                "2s",
	"work_mem":                            "64kB",
	"plan_cache_mode":                     "force_custom_plan",
	"enable_indexscan":                    "off",
	"enable_nestloop":                     "off",
	"enable_sort":                         "off",
	"join_collapse_limit":                 "1",
	"max_parallel_workers_per_gather":     "8",
	"jit":                                 "on",
}

// withSettings makes a database whose owner has chosen settings, as ALTER DATABASE does.
func withSettings(t *testing.T, isolation string, settings map[string]string) (url string) {
	t.Helper()
	url = dbtest.EmptyURL(t)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	name := conn.Config().Database
	set := func(setting, value string) {
		if value != "''" {
			value = "'" + value + "'"
		}
		_, err := conn.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s SET %s = %s", name, setting, value))
		require.NoError(t, err)
	}
	set("default_transaction_isolation", isolation)
	for setting, value := range settings {
		set(setting, value)
	}
	return url
}

// TestSettingsOfTheDatabase: whatever the defaults of a database are, a node migrates it and serves.
func TestSettingsOfTheDatabase(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"serializable", "repeatable read"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t)
			a := setup(t, e.quick, on(withSettings(t, isolation, oddSettings)), func(c *app.Config) { c.Database.Migrate = true })
			a.subscribe(e, "/all", `"*"`)
			a.exercise(t, e)
			a.serves()
			require.Empty(t, a.findings())
		})
	}
}

// findings are the lines of `ojsd doctor` about what is wrong.
func (a *node) findings() string {
	a.t.Helper()
	doctor := exec.CommandContext(a.t.Context(), "go", "run", "../../cmd/ojsd", "doctor")
	doctor.Env = append(os.Environ(), "DATABASE_URL="+a.database)
	output, err := doctor.Output()
	require.Contains(a.t, string(output), "events wait to be published", "%v", err)
	var wrong []string
	for line := range strings.Lines(string(output)) {
		if strings.HasPrefix(line, "BAD ") {
			wrong = append(wrong, line)
		}
	}
	return strings.Join(wrong, "")
}

// serves goes through what the statements of every domain do.
func (a *node) serves() {
	t := a.t
	t.Helper()
	// Core: text of every kind, result, progress, checkpoint, history.
	id := a.push(`"type":"t","args":["häß \u65e5 \\ ' \u0000", 1.5, 1e300],"meta":{"k":"ü"},"queue":"q"`)
	require.Equal(t, id, a.fetch("q", `"worker_id":"w1"`).at("jobs.0.id"))
	a.post("/ojs/v1/workers/heartbeat", `{"worker_id":"w1","job_id":"`+id+`"}`).is(200)
	a.put("/ojs/v1/jobs/"+id+"/progress", `{"progress":0.5,"worker_id":"w1"}`).is(200)
	a.ack(id, `"worker_id":"w1","result":{"ok":"é"}`).is(200)
	require.Equal(t, "completed", a.get("/ojs/v1/jobs/"+id).is(200).at("job.state"))
	a.get("/ojs/v1/jobs/" + id + "/history").is(200)
	a.get("/ojs/v1/jobs").is(200)

	// Time: scheduled and retried jobs, a cron, the lost lease of a reservation.
	due := a.push(`"type":"t","args":[],"queue":"later","scheduled_at":"PT0.2S"`)
	require.Equal(t, due, a.fetch("later", `"wait_ms":15000,"worker_id":"w1"`).at("jobs.0.id"))
	a.nack(due, `"worker_id":"w1","error":{"code":"x","message":"y"}`).is(200)
	require.Equal(t, due, a.fetch("later", `"wait_ms":20000,"worker_id":"w1","visibility_timeout_ms":1000`).at("jobs.0.id"))
	require.Equal(t, due, a.fetch("later", `"wait_ms":20000,"worker_id":"w1"`).at("jobs.0.id"))
	a.post("/ojs/v1/cron", `{"name":"c","expression":"@every 1s","type":"tick","options":{"queue":"cron"}}`).is(201)
	require.NotEmpty(t, a.fetch("cron", `"wait_ms":15000`).at("jobs.0.id"))
	a.get("/ojs/v1/cron/c").is(200)

	// Many: bulk, idempotency, cancel, chosen ids, contention of many producers on one queue.
	a.post("/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]},{"type":"t","args":[]}],"idempotency_key":"k"}`).is(201)
	a.post("/ojs/v1/jobs/bulk", `{"jobs":[{"type":"t","args":[]},{"type":"t","args":[]}],"idempotency_key":"k"}`).is(201)
	own := newID()
	a.push(`"type":"t","args":[],"id":"%s"`, own)
	a.del("/ojs/v1/jobs/" + own).is(200)
	a.together(8, 40)
	var made string
	eventually(t, func() bool { // a serializable transaction may have to be tried again, on a connection that was idle for too long
		conn := a.connect()
		defer func() { _ = conn.Close(context.Background()) }()
		// What a new session compiles alone may take longer than 300 ms on a busy machine.
		_, err := conn.Exec(t.Context(), `SET statement_timeout = '1min'`)
		return err == nil && conn.QueryRow(t.Context(), `SELECT ojs.enqueue('t', '["ü"]', 'sql', '{"scheduled_at":"2030-03-04T05:06:07.089Z"}')::text`).Scan(&made) == nil
	})
	require.Equal(t, "2030-03-04T05:06:07.089Z", a.job(made).at("job.scheduled_at"))

	// Lists, counts, events.
	eventually(t, func() bool { return a.get("/ojs/v1/events?limit=1000").is(200).at("events.0.type") != "" })
	for _, path := range []string{"/ojs/v1/queues/q/stats", "/ojs/v1/dead-letter", "/ojs/v1/dead-letter/stats", "/ojs/v1/workers", "/ojs/v1/metrics", "/metrics", "/ojs/v1/health", "/readyz"} {
		a.get(path).is(200)
	}
}

// together enqueues, fetches and acks in n goroutines.
func (a *node) together(n, each int) {
	a.t.Helper()
	failed := make(chan string, n)
	for range n {
		go func() {
			for range each {
				if r := a.post("/ojs/v1/jobs", `{"type":"t","args":[],"queue":"busy"}`); r.status != 201 {
					failed <- r.body
					return
				}
				r := a.post("/ojs/v1/workers/fetch", `{"queues":["busy"],"worker_id":"w2"}`)
				if r.status != 200 {
					failed <- r.body
					return
				}
				if id := r.at("jobs.0.id"); id != "" {
					if r := a.ack(id, `"worker_id":"w2"`); r.status != 200 {
						failed <- r.body
						return
					}
				}
			}
			failed <- ""
		}()
	}
	for range n {
		require.Empty(a.t, <-failed)
	}
}
