package main

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// rolesDatabase is an empty database with roles of its own, which have the names of the manual and a suffix.
type rolesDatabase struct {
	t       *testing.T
	address string // as the superuser
	admin   *pgx.Conn
	suffix  string
}

// manualRoles are the roles of docs/operations.md and docs/reference/sql.md.
var manualRoles = []string{"ojsd", "deploy", "producer", "reader", "administrator"}

func newRolesDatabase(t *testing.T) rolesDatabase {
	t.Helper()
	d := rolesDatabase{t: t, address: dbtest.EmptyURL(t), suffix: "_" + strings.ToLower(rand.Text()[:8])}
	var err error
	d.admin, err = pgx.Connect(t.Context(), d.address)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.Background()
		for _, drop := range []string{"DROP OWNED BY %s CASCADE", "DROP ROLE %s"} {
			for _, role := range manualRoles {
				name := role + d.suffix
				var exists bool
				require.NoError(t, d.admin.QueryRow(ctx, "SELECT to_regrole($1) IS NOT NULL", name).Scan(&exists))
				if exists {
					_, err := d.admin.Exec(ctx, strings.ReplaceAll(drop, "%s", name))
					require.NoError(t, err)
				}
			}
		}
		require.NoError(t, d.admin.Close(ctx))
	})
	return d
}

// as is the address for a role of the manual.
func (d rolesDatabase) as(role string) string {
	u, err := url.Parse(d.address)
	require.NoError(d.t, err)
	u.User = url.UserPassword(role+d.suffix, "x")
	return u.String()
}

// own writes the names of this database and its roles into statements of a page.
func (d rolesDatabase) own(sql string) string {
	pairs := []string{"DATABASE app", "DATABASE " + d.admin.Config().Database, "'…'", "'x'", "'ojsd'", "'ojsd" + d.suffix + "'"}
	for _, role := range manualRoles {
		for _, before := range []string{"ROLE ", "GRANT ", "TO "} {
			for _, after := range []string{" ", ";", "'"} {
				pairs = append(pairs, before+role+after, before+role+d.suffix+after)
			}
		}
	}
	return strings.NewReplacer(pairs...).Replace(sql)
}

// manual runs the sql blocks below a heading of docs/operations.md, or one of them.
func (d rolesDatabase) manual(conn *pgx.Conn, heading string, only ...int) {
	d.t.Helper()
	blocks := blocksBelow(d.t, "../../docs/operations.md", heading, "sql")
	for i, block := range blocks {
		if len(only) > 0 && only[0] != i {
			continue
		}
		_, err := conn.Exec(d.t.Context(), d.own(block))
		require.NoError(d.t, err, d.own(block))
	}
}

// blocksBelow returns the fenced blocks of a language between a heading of a page and the next one.
func blocksBelow(t *testing.T, page, heading, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "\n"+heading+"\n")
	require.True(t, found, "%s has no heading %q", page, heading)
	section, _, _ := strings.Cut(rest, "\n#")
	for _, part := range strings.Split(section, "\n```"+language+"\n")[1:] {
		block, _, closed := strings.Cut(part, "\n```")
		require.True(t, closed)
		blocks = append(blocks, block)
	}
	require.NotEmpty(t, blocks, "%s: %s has no %s block", page, heading, language)
	return blocks
}

// buildGoose makes the goose command of the version that go.mod requires. Its drivers for other databases are left out; the rest may have
// to be downloaded.
var buildGoose = sync.OnceValues(func() (path string, err error) {
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/pressly/goose/v3").Output()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "ojsd-test-goose")
	c := exec.Command("go", "install", "-tags", "no_clickhouse no_libsql no_mssql no_mysql no_sqlite3 no_vertica no_ydb",
		"github.com/pressly/goose/v3/cmd/goose@"+strings.TrimSpace(string(version)))
	c.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
	c.Stderr = os.Stderr
	return filepath.Join(dir, "goose"), c.Run()
})

// gooseOfManual runs the goose lines of the manual, or those with other text in place of some.
func (d rolesDatabase) gooseOfManual(address string, replace ...string) (output string, err error) {
	d.t.Helper()
	goose, err := buildGoose()
	if err != nil {
		d.t.Skip("the goose command cannot be built: ", err)
	}
	script := strings.NewReplacer(replace...).Replace(strings.Join(blocksBelow(d.t, "../../docs/operations.md", "## Installation", "sh"), "\n"))
	c := exec.CommandContext(d.t.Context(), "sh", "-ec", script)
	c.Dir = "../.."
	c.Env = append(os.Environ(), "PATH="+filepath.Dir(goose)+":"+os.Getenv("PATH"), "DATABASE_URL="+address)
	text, err := c.CombinedOutput()
	return string(text), err
}

func (d rolesDatabase) migrate(address, want string) {
	d.t.Helper()
	code, stdout, stderr := call(d.t, "migrate", "up", "--database-url", address)
	require.Zero(d.t, code, stderr)
	require.Contains(d.t, stdout, want)
}

// works runs a node as a role, and uses what needs rights: jobs, partitions, the end of a session, metrics and doctor.
// It returns the metrics and what doctor says.
func (d rolesDatabase) works(address string) (series, findings string) {
	t := d.t
	t.Helper()
	n := newNode(t, address)
	n.args = []string{"serve", "--database-url", address, "--listen", strings.TrimPrefix(n.base, "http://"), "--logging-level", "warn"}
	n.start()
	id := n.is(http.StatusCreated, "POST", "/ojs/v1/jobs", `{"type":"t","args":[]}`).Get("job.id").String()
	require.Equal(t, id, n.is(http.StatusOK, "POST", "/ojs/v1/workers/fetch", `{"queues":["default"],"worker_id":"w"}`).Get("jobs.0.id").String())
	n.is(http.StatusOK, "POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","worker_id":"w","attempt":1}`)
	require.Eventually(t, func() bool { // the relay has published the events
		res, err := http.Get(n.base + "/metrics")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		text, _ := io.ReadAll(res.Body)
		series = string(text)
		return strings.Contains(series, `ojs_events_published_total{type="job.completed"}`)
	}, time.Minute, 20*time.Millisecond)
	for _, name := range []string{"ojs_database_up 1", `ojs_db_table_bytes{table="events"}`, `ojs_retention_behind_seconds{data="events"} 0`, "ojs_queue_depth{"} {
		require.Contains(t, series, "\n"+name, "metrics")
	}

	conn, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	_, err = conn.Exec(t.Context(), "SELECT ojs.jobs_done_partitions_ensure(6)")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT ojs.event_partitions_prune(), ojs.jobs_done_partitions_prune('7 days')")
	require.NoError(t, err)
	other, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT ojs.session_end($1, 0, 5000)", int32(other.PgConn().PID()))
	require.NoError(t, err)
	require.Error(t, other.Ping(t.Context()), "the session has ended")
	_ = other.Close(context.Background())

	code, findings, stderr := call(t, "doctor", "--database-url", address)
	require.Zero(t, code, "%s\n%s", findings, stderr)
	require.NotContains(t, findings, "BAD")
	require.Contains(t, findings, "1 nodes with OJS_DATABASE_MAX_CONNS=16 may open", "the setting of the node")
	n.kill()
	for line := range strings.Lines(n.log.String()) {
		if !strings.Contains(line, "lasted_ms") { // the machine stood still
			require.Contains(t, line, `"category":"lifecycle"`, "the other warnings are of what has failed")
		}
	}
	return series, findings
}

// seesAll says that metrics and doctor have seen everything.
func (d rolesDatabase) seesAll(series, findings string) {
	d.t.Helper()
	require.Contains(d.t, series, "\nojs_db_sessions_visible 1\n")
	require.Contains(d.t, series, "\nojs_db_xmin_age_seconds ")
	require.NotContains(d.t, findings, "cannot see")
}

// TestRolesOfManual runs the statements of docs/operations.md, Roles and rights, as they stand there, and what each situation is for.
func TestRolesOfManual(t *testing.T) {
	t.Parallel()
	const owner, otherLogin, foreign = "### Owner", "### Migrations by another login", "### A schema of another role"

	t.Run("FreshDatabase", func(t *testing.T) {
		t.Parallel()
		d := newRolesDatabase(t)
		d.manual(d.admin, owner)
		d.migrate(d.as("ojsd"), "up 00001")
		_, err := d.admin.Exec(t.Context(), d.own("REVOKE CREATE ON DATABASE app FROM ojsd"+d.suffix))
		require.NoError(t, err)
		d.migrate(d.as("ojsd"), "nothing to do")
		series, findings := d.works(d.as("ojsd"))
		d.seesAll(series, findings)
		all := newRolesDatabase(t)
		all.migrate(all.address, "up 00001")
		ofSuperuser, _ := all.works(all.address)
		types := regexp.MustCompile(`(?m)^# TYPE ojs_.*$`)
		require.Equal(t, types.FindAllString(ofSuperuser, -1), types.FindAllString(series, -1), "no series needs another right")

		// Without the second right both say what they cannot see.
		_, err = d.admin.Exec(t.Context(), "REVOKE pg_read_all_stats FROM ojsd"+d.suffix)
		require.NoError(t, err)
		series, findings = d.works(d.as("ojsd"))
		require.Contains(t, series, "\nojs_db_sessions_visible 0\n")
		require.NotContains(t, series, "\nojs_db_xmin_age_seconds ")
		require.Contains(t, findings, "?    cannot see whether transactions of other roles")
		require.Contains(t, findings, `GRANT pg_read_all_stats TO "ojsd`+d.suffix+`"`)

		_, err = d.admin.Exec(t.Context(), "GRANT pg_monitor TO ojsd"+d.suffix)
		require.NoError(t, err)
		d.seesAll(d.works(d.as("ojsd")))
	})

	t.Run("NoRightToCreateTheSchema", func(t *testing.T) {
		t.Parallel()
		d := newRolesDatabase(t)
		_, err := d.admin.Exec(t.Context(), "CREATE ROLE ojsd"+d.suffix+" LOGIN PASSWORD 'x'")
		require.NoError(t, err)
		code, _, stderr := call(t, "migrate", "up", "--database-url", d.as("ojsd"))
		require.Equal(t, 1, code)
		require.Contains(t, stderr, `GRANT CREATE ON DATABASE "`+d.admin.Config().Database+`" TO "ojsd`+d.suffix+`"`)
	})

	t.Run("AnotherLoginMigrates", func(t *testing.T) {
		t.Parallel()
		d := newRolesDatabase(t)
		d.manual(d.admin, owner)
		d.manual(d.admin, otherLogin)
		d.migrate(d.as("deploy"), "up 00001")
		d.seesAll(d.works(d.as("ojsd")))
		code, _, stderr := call(t, "serve", "--listen=127.0.0.1:0", "--grpc-listen=off", "--database-url", d.as("deploy"))
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "let the server log in as ojsd"+d.suffix)
		// What the server has made is changed by the other login, too.
		code, _, stderr = call(t, "migrate", "down", "--database-url", d.as("deploy"))
		require.Zero(t, code, stderr)
		d.migrate(d.as("deploy"), "up 000")
		d.works(d.as("ojsd"))
	})

	t.Run("AnotherRoleHasMigrated", func(t *testing.T) {
		t.Parallel()
		d := newRolesDatabase(t)
		d.manual(d.admin, owner)
		_, err := d.admin.Exec(t.Context(), d.own("CREATE ROLE deploy LOGIN PASSWORD 'x'; GRANT CREATE ON DATABASE app TO deploy;"))
		require.NoError(t, err)
		d.migrate(d.as("deploy"), "up 00001")
		// Every command says which role lacks what.
		for _, command := range [][]string{{"serve", "--listen=127.0.0.1:0", "--grpc-listen=off"}, {"serve", "--listen=127.0.0.1:0", "--grpc-listen=off", "--migrate"},
			{"doctor"}, {"migrate", "up"}, {"migrate", "status"}} {
			code, _, stderr := call(t, append(command, "--database-url", d.as("ojsd"))...)
			require.Equal(t, 1, code, command)
			for _, words := range []string{"ojsd works as the owner of schema ojs", "ojsd" + d.suffix, "GRANT", "deploy" + d.suffix, "migrate as"} {
				require.Contains(t, stderr, words, command)
			}
			require.NotContains(t, stderr, "permission denied", command)
		}
		_, _, stderr := call(t, "doctor", "--database-url", d.as("ojsd"))
		require.Contains(t, stderr, d.own(`GRANT "deploy`+d.suffix+`" TO "ojsd`+d.suffix+`", and migrate as "ojsd`+d.suffix+`" from then on`))

		d.manual(d.admin, foreign, 0)
		d.seesAll(d.works(d.as("ojsd")))
		code, _, stderr := call(t, "migrate", "down", "--database-url", d.as("deploy"))
		require.Equal(t, 1, code)
		require.Contains(t, stderr, `connect as "ojsd`+d.suffix+`", which has the rights of "deploy`+d.suffix+`"`, "the server has made partitions")
		code, _, stderr = call(t, "migrate", "down", "--database-url", d.as("ojsd"))
		require.Zero(t, code, stderr)
		d.migrate(d.as("ojsd"), "up 000")
	})

	t.Run("ASuperuserHasMigrated", func(t *testing.T) {
		t.Parallel()
		d := newRolesDatabase(t)
		d.manual(d.admin, owner)
		d.migrate(d.address, "up 00001")
		_, _, stderr := call(t, "serve", "--listen=127.0.0.1:0", "--grpc-listen=off", "--database-url", d.as("ojsd"))
		require.Contains(t, stderr, "docs/operations.md, Roles and rights")
		require.NotContains(t, stderr, "GRANT", "that would make it all but a superuser")
		d.manual(d.admin, foreign, 1)
		d.seesAll(d.works(d.as("ojsd")))
		for range 2 {
			code, _, stderr := call(t, "migrate", "down", "--database-url", d.as("ojsd"))
			require.Zero(t, code, stderr)
		}
		d.migrate(d.as("ojsd"), "up 000")
	})

	t.Run("Managed", func(t *testing.T) {
		t.Parallel()
		d := newRolesDatabase(t)
		name := d.admin.Config().Database
		_, err := d.admin.Exec(t.Context(), "CREATE ROLE administrator"+d.suffix+" LOGIN CREATEROLE CREATEDB PASSWORD 'x'; GRANT pg_read_all_stats TO administrator"+d.suffix+
			" WITH ADMIN OPTION; ALTER DATABASE "+name+" OWNER TO administrator"+d.suffix)
		require.NoError(t, err)
		t.Cleanup(func() {
			_, err := d.admin.Exec(context.Background(), "ALTER DATABASE "+name+" OWNER TO CURRENT_USER")
			require.NoError(t, err)
		})
		administrator, err := pgx.Connect(t.Context(), d.as("administrator"))
		require.NoError(t, err)
		d.manual(administrator, owner)
		d.manual(administrator, otherLogin)
		require.NoError(t, administrator.Close(t.Context()))
		d.migrate(d.as("deploy"), "up 00001")
		d.seesAll(d.works(d.as("ojsd")))
	})

	t.Run("Goose", func(t *testing.T) {
		t.Parallel()
		for _, login := range []string{"ojsd", "deploy"} {
			t.Run(login, func(t *testing.T) {
				t.Parallel()
				d := newRolesDatabase(t)
				d.manual(d.admin, owner)
				d.manual(d.admin, otherLogin)
				output, err := d.gooseOfManual(d.as(login))
				require.NoError(t, err, output)
				require.Contains(t, output, "successfully migrated database")
				d.seesAll(d.works(d.as("ojsd")))
				d.migrate(d.as(login), "nothing to do")
				output, err = d.gooseOfManual(d.as(login))
				require.NoError(t, err, output)
				require.Contains(t, output, "no migrations to run")

				// Either goes on where the other has stopped.
				code, _, stderr := call(t, "migrate", "down", "--database-url", d.as(login))
				require.Zero(t, code, stderr)
				output, err = d.gooseOfManual(d.as(login))
				require.NoError(t, err, output)
				require.Contains(t, output, "successfully migrated database")
				output, err = d.gooseOfManual(d.as(login), " up", " down")
				require.NoError(t, err, output)
				d.migrate(d.as(login), "up 000")

				// The roles of sql.md.
				_, err = d.admin.Exec(t.Context(), "CREATE ROLE producer"+d.suffix+" LOGIN PASSWORD 'x'; CREATE ROLE reader"+d.suffix+" LOGIN PASSWORD 'x'")
				require.NoError(t, err)
				conn, err := pgx.Connect(t.Context(), d.as("ojsd"))
				require.NoError(t, err)
				for _, block := range blocksBelow(t, "../../docs/reference/sql.md", "## Roles", "sql") {
					_, err = conn.Exec(t.Context(), d.own(block))
					require.NoError(t, err)
				}
				require.NoError(t, conn.Close(t.Context()))
				for role, sql := range map[string]string{"producer": "SELECT ojs.cancel(ojs.enqueue('t', '[]'))", "reader": "SELECT id FROM ojs.job; SELECT * FROM ojs.events_after()"} {
					conn, err := pgx.Connect(t.Context(), d.as(role))
					require.NoError(t, err)
					_, err = conn.Exec(t.Context(), sql)
					require.NoError(t, err, role)
					require.NoError(t, conn.Close(t.Context()))
				}
			})
		}
	})

	// An installation of the time when the manual named no table.
	t.Run("GooseWithItsTableInPublic", func(t *testing.T) {
		t.Parallel()
		d := newRolesDatabase(t)
		d.manual(d.admin, owner)
		table := []string{"-table ojs.goose_db_version ", ""}
		_, err := d.admin.Exec(t.Context(), "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
		require.NoError(t, err)
		_, err = d.gooseOfManual(d.as("ojsd"), table...)
		require.Error(t, err, "the default from PostgreSQL 15 on")
		_, err = d.admin.Exec(t.Context(), "GRANT CREATE ON SCHEMA public TO ojsd"+d.suffix)
		require.NoError(t, err)
		output, err := d.gooseOfManual(d.as("ojsd"), table...)
		require.NoError(t, err, output)
		d.migrate(d.as("ojsd"), "nothing to do")
		conn, err := pgx.Connect(t.Context(), d.as("ojsd"))
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(context.Background())) }()
		d.manual(conn, "## Installation")
		output, err = d.gooseOfManual(d.as("ojsd"))
		require.NoError(t, err, output)
		require.Contains(t, output, "no migrations to run")
		d.migrate(d.as("ojsd"), "nothing to do")
		code, _, stderr := call(t, "migrate", "down", "--database-url", d.as("ojsd"))
		require.Zero(t, code, stderr)
		output, err = d.gooseOfManual(d.as("ojsd"))
		require.NoError(t, err, output)
		require.Contains(t, output, "successfully migrated database")
	})
}
