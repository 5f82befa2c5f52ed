package migrations_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/migrations"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// release returns the migrations of a made-up release that has n of them, in the manner of the real ones.
func release(n int) fstest.MapFS {
	fsys := fstest.MapFS{}
	for i := 1; i <= n; i++ {
		up := fmt.Sprintf("CREATE TABLE ojs.t%d (); ", i) + setVersion(i)
		down := fmt.Sprintf("DROP TABLE ojs.t%d; ", i) + setVersion(i-1)
		if i == 1 {
			up, down = "CREATE SCHEMA IF NOT EXISTS ojs; "+up, "DROP TABLE ojs.t1; DROP FUNCTION ojs.schema_version();"
		}
		add(fsys, i, up, down)
	}
	return fsys
}

func setVersion(n int) string {
	return fmt.Sprintf("CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS int LANGUAGE sql AS 'SELECT %d';", n)
}

func add(fsys fstest.MapFS, number int, up, down string) {
	fsys[fmt.Sprintf("%05d_m.sql", number)] = &fstest.MapFile{Data: []byte(
		"-- +goose Up\n-- +goose StatementBegin\n" + up + "\n-- +goose StatementEnd\n" +
			"-- +goose Down\n-- +goose StatementBegin\n" + down + "\n-- +goose StatementEnd\n")}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.Background())) })
	return conn
}

// book reads the applied versions from one of goose's tables.
func book(t *testing.T, conn *pgx.Conn, table string) []int {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT version_id FROM "+table+" WHERE is_applied ORDER BY id")
	require.NoError(t, err)
	versions, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	return versions
}

func exists(t *testing.T, conn *pgx.Conn, table string) bool {
	t.Helper()
	var found bool
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT to_regclass($1) IS NOT NULL", table).Scan(&found))
	return found
}

func up(t *testing.T, url string, fsys fstest.MapFS, applied int) {
	t.Helper()
	results, err := migrations.UpFS(t.Context(), url, fsys, nil)
	require.NoError(t, err)
	require.Len(t, results, applied)
}

// gooseCLI does what `goose -dir … postgres "$DATABASE_URL" up` does.
func gooseCLI(t *testing.T, url string, fsys fstest.MapFS) {
	t.Helper()
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	p, err := goose.NewProvider(goose.DialectPostgres, db, fsys)
	require.NoError(t, err)
	_, err = p.Up(t.Context())
	require.NoError(t, err)
}

func TestUp(t *testing.T) {
	t.Parallel()

	t.Run("MigratesEmptyDatabase", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		conn := connect(t, url)
		up(t, url, release(2), 2)
		require.NoError(t, migrations.CheckFS(t.Context(), conn, release(2)))
		require.Equal(t, []int{0, 1, 2}, book(t, conn, "ojs.goose_db_version"))
		require.False(t, exists(t, conn, "public.goose_db_version"))
		up(t, url, release(2), 0)
		up(t, url, release(4), 2)
		require.Equal(t, []int{0, 1, 2, 3, 4}, book(t, conn, "ojs.goose_db_version"))
	})

	t.Run("ContinuesBookOfGooseCommand", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		conn := connect(t, url)
		gooseCLI(t, url, release(2))
		up(t, url, release(3), 1)
		require.Equal(t, []int{0, 1, 2, 3}, book(t, conn, "public.goose_db_version"))
		require.False(t, exists(t, conn, "ojs.goose_db_version"))
		gooseCLI(t, url, release(4))
		require.NoError(t, migrations.CheckFS(t.Context(), conn, release(4)))
	})

	t.Run("LeavesBookOfUsersOwnMigrationsAlone", func(t *testing.T) {
		t.Parallel()
		for name, rows := range map[string]string{
			"Ahead":       "(0, true), (1, true), (2, true), (3, true)",
			"SameMaximum": "(0, true), (2, true)",
			"Empty":       "",
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				url := dbtest.EmptyURL(t)
				conn := connect(t, url)
				gooseCLI(t, url, release(2))
				_, err := conn.Exec(t.Context(), "TRUNCATE goose_db_version")
				require.NoError(t, err)
				if rows != "" {
					_, err = conn.Exec(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES "+rows)
					require.NoError(t, err)
				}
				before := book(t, conn, "public.goose_db_version")
				up(t, url, release(3), 1)
				require.Equal(t, []int{0, 1, 2, 3}, book(t, conn, "ojs.goose_db_version"))
				require.Equal(t, before, book(t, conn, "public.goose_db_version"))
			})
		}
	})

	t.Run("CorrectsItsBookAfterTheOtherOne", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		conn := connect(t, url)
		gooseCLI(t, url, release(2))
		// What the command makes with -table ojs.goose_db_version before its first migration fails.
		_, err := conn.Exec(t.Context(), `CREATE TABLE ojs.goose_db_version (LIKE public.goose_db_version INCLUDING ALL); INSERT INTO ojs.goose_db_version (version_id, is_applied) VALUES (0, true)`)
		require.NoError(t, err)
		up(t, url, release(3), 1)
		require.Equal(t, []int{0, 1, 2, 3}, book(t, conn, "ojs.goose_db_version"))
		gooseCLI(t, url, release(2)) // it has nothing to do
		_, err = conn.Exec(t.Context(), `DROP TABLE ojs.t3; CREATE OR REPLACE FUNCTION ojs.schema_version() RETURNS int LANGUAGE sql AS 'SELECT 2'`)
		require.NoError(t, err)
		up(t, url, release(4), 2)
		require.Equal(t, []int{0, 1, 2, 3, 4}, book(t, conn, "ojs.goose_db_version"))
	})

	t.Run("RefusesNewerSchema", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		up(t, url, release(3), 3)
		_, err := migrations.UpFS(t.Context(), url, release(2), nil)
		require.ErrorIs(t, err, migrations.ErrSchemaNewer)
		_, err = migrations.DownFS(t.Context(), url, release(2))
		require.ErrorIs(t, err, migrations.ErrSchemaNewer)
	})

	t.Run("ReportsWhatWasAppliedBeforeAnError", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		fsys := release(2)
		add(fsys, 3, "SELECT 1/0;", "")
		results, err := migrations.UpFS(t.Context(), url, fsys, nil)
		require.ErrorContains(t, err, "division by zero")
		require.Len(t, results, 2)
		require.NoError(t, migrations.CheckFS(t.Context(), connect(t, url), release(2)))
	})

	t.Run("RunsOnceForConcurrentNodes", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		fsys := release(5)
		add(fsys, 1, "CREATE SCHEMA IF NOT EXISTS ojs; SELECT pg_sleep(0.3); CREATE TABLE ojs.t1 ();"+setVersion(1), "")
		var mu sync.Mutex
		var applied []int64
		nodes, ctx := errgroup.WithContext(t.Context())
		for range 5 {
			nodes.Go(func() error {
				results, err := migrations.UpFS(ctx, url, fsys, nil)
				mu.Lock()
				defer mu.Unlock()
				for _, result := range results {
					applied = append(applied, result.Source.Version)
				}
				return err
			})
		}
		require.NoError(t, nodes.Wait())
		require.Equal(t, []int64{1, 2, 3, 4, 5}, applied)
		require.Equal(t, []int{0, 1, 2, 3, 4, 5}, book(t, connect(t, url), "ojs.goose_db_version"))
	})

	t.Run("RetriesWhenATableIsLocked", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		up(t, url, release(1), 1)
		fsys := release(1)
		add(fsys, 2, "ALTER TABLE ojs.t1 ADD COLUMN n int; "+setVersion(2), "")
		holder := connect(t, url)
		_, err := holder.Exec(t.Context(), "BEGIN; SELECT FROM ojs.t1")
		require.NoError(t, err)

		log := &signalWriter{written: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := migrations.UpFS(t.Context(), url, fsys, slog.New(slog.NewTextHandler(log, nil)))
			done <- err
		}()
		<-log.written
		require.Contains(t, log.String(), "waits for a lock")
		_, err = holder.Exec(t.Context(), "COMMIT")
		require.NoError(t, err)
		require.NoError(t, <-done)
		require.NoError(t, migrations.CheckFS(t.Context(), holder, fsys))
	})

	t.Run("StopsRetryingWhenContextEnds", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		up(t, url, release(1), 1)
		fsys := release(1)
		add(fsys, 2, "DROP TABLE ojs.t1", "")
		_, err := connect(t, url).Exec(t.Context(), "BEGIN; SELECT FROM ojs.t1")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		log := &signalWriter{written: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := migrations.UpFS(ctx, url, fsys, slog.New(slog.NewTextHandler(log, nil)))
			done <- err
		}()
		<-log.written
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})

	t.Run("BuildsIndexConcurrently", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		fsys := release(1)
		fsys["00002_m.sql"] = &fstest.MapFile{Data: []byte("-- +goose NO TRANSACTION\n-- +goose Up\n" +
			"CREATE TABLE ojs.big (n int);\nCREATE INDEX CONCURRENTLY ON ojs.big (n);\n")}
		up(t, url, fsys, 2)
	})

	t.Run("IgnoresTimeoutsOfTheRole", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		conn := connect(t, url)
		_, err := conn.Exec(t.Context(), `DO $$ BEGIN
			EXECUTE format('ALTER DATABASE %I SET statement_timeout = ''300ms''', current_database());
			EXECUTE format('ALTER DATABASE %I SET idle_in_transaction_session_timeout = ''300ms''', current_database()); END $$`)
		require.NoError(t, err)
		fsys := release(1)
		add(fsys, 2, "SELECT pg_sleep(0.8)", "")
		up(t, url, fsys, 2)
	})
}

func TestDown(t *testing.T) {
	t.Parallel()

	t.Run("RollsBackOneByOneAndUpAgain", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		conn := connect(t, url)
		up(t, url, release(2), 2)
		for _, want := range []int64{2, 1} {
			result, err := migrations.DownFS(t.Context(), url, release(2))
			require.NoError(t, err)
			require.Equal(t, want, result.Source.Version)
		}
		require.ErrorIs(t, migrations.CheckFS(t.Context(), conn, release(2)), migrations.ErrSchemaMissing)
		_, err := migrations.DownFS(t.Context(), url, release(2))
		require.ErrorIs(t, err, migrations.ErrSchemaMissing)
		up(t, url, release(2), 2)
	})

	t.Run("RollsBackWhatGooseCommandApplied", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		conn := connect(t, url)
		gooseCLI(t, url, release(2))
		for range 2 {
			_, err := migrations.DownFS(t.Context(), url, release(2))
			require.NoError(t, err)
		}
		require.Equal(t, []int{0}, book(t, conn, "public.goose_db_version"))
		gooseCLI(t, url, release(2))
		require.NoError(t, migrations.CheckFS(t.Context(), conn, release(2)))
	})
}

// A migration whose text differs from the one that was applied is refused, whoever looks: the schema is not what the binary expects.
func TestEditedMigration(t *testing.T) {
	t.Parallel()
	edited := func(n int, from, to string) fstest.MapFS {
		fsys := release(n)
		fsys["00002_m.sql"] = &fstest.MapFile{Data: []byte(strings.Replace(string(fsys["00002_m.sql"].Data), from, to, 1))}
		return fsys
	}
	column := func(n int) fstest.MapFS { return edited(n, "ojs.t2 ()", "ojs.t2 (a int)") }
	const names = "migration 2. Run the ojsd that has migrated, or restore the file. If you know that the schema is right: DELETE FROM ojs.migration_digests WHERE version IN (2)"

	t.Run("IsRefused", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		conn := connect(t, url)
		up(t, url, release(2), 2)
		for _, fsys := range []fstest.MapFS{column(2), column(3)} {
			_, err := migrations.UpFS(t.Context(), url, fsys, nil)
			require.ErrorIs(t, err, migrations.ErrMigrationEdited)
			require.ErrorContains(t, err, names)
		}
		require.False(t, exists(t, conn, "ojs.t3"))
		err := migrations.CheckFS(t.Context(), conn, column(2))
		require.ErrorIs(t, err, migrations.ErrMigrationEdited)
		require.ErrorContains(t, err, names)

		// An older node on a newer schema compares what it knows, and a newer binary what there is.
		up(t, url, release(3), 1)
		_, err = conn.Exec(t.Context(), "CREATE FUNCTION ojs.schema_compatible_from() RETURNS int LANGUAGE sql AS 'SELECT 1'")
		require.NoError(t, err)
		require.NoError(t, migrations.CheckFS(t.Context(), conn, release(2)))
		require.ErrorIs(t, migrations.CheckFS(t.Context(), conn, column(2)), migrations.ErrMigrationEdited)

		// The operator knows better.
		_, err = conn.Exec(t.Context(), "DELETE FROM ojs.migration_digests WHERE version IN (2)")
		require.NoError(t, err)
		require.NoError(t, migrations.CheckFS(t.Context(), conn, column(3)))
		up(t, url, column(3), 0)
		require.ErrorIs(t, migrations.CheckFS(t.Context(), conn, release(3)), migrations.ErrMigrationEdited)
	})

	t.Run("MayBeRolledBackAndAppliedAgain", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		up(t, url, release(2), 2)
		_, err := migrations.DownFS(t.Context(), url, column(2))
		require.NoError(t, err)
		up(t, url, column(2), 1)
		require.NoError(t, migrations.CheckFS(t.Context(), connect(t, url), column(2)))
	})

	t.Run("MayDifferInCommentsAndDown", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		up(t, url, release(2), 2)
		for _, fsys := range []fstest.MapFS{
			edited(2, "CREATE TABLE", "\n\t-- a comment\r\n  \n\tCREATE TABLE"), edited(2, "DROP TABLE", "DROP TABLE IF EXISTS"),
		} {
			require.NoError(t, migrations.CheckFS(t.Context(), connect(t, url), fsys))
			up(t, url, fsys, 0)
		}
	})

	t.Run("IsNotKnownOfTheGooseCommand", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		conn := connect(t, url)
		gooseCLI(t, url, release(2))
		require.NoError(t, migrations.CheckFS(t.Context(), conn, column(2)))
		up(t, url, release(2), 0)
		require.ErrorIs(t, migrations.CheckFS(t.Context(), conn, column(2)), migrations.ErrMigrationEdited, "known since migrate up")
	})

	t.Run("IsNotRecordedOnAStandby", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		conn := connect(t, url)
		gooseCLI(t, url, release(2))
		_, err := conn.Exec(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
		require.NoError(t, err)
		up(t, url, release(2), 0)
		require.False(t, exists(t, conn, "ojs.migration_digests"))
		_, err = migrations.UpFS(t.Context(), url, release(3), nil)
		require.ErrorContains(t, err, "the database is read-only")
	})

	t.Run("IsKnownOfWhatWasAppliedBeforeAnError", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		fsys := release(2)
		add(fsys, 3, "SELECT 1/0;", "")
		_, err := migrations.UpFS(t.Context(), url, fsys, nil)
		require.ErrorContains(t, err, "division by zero")
		require.ErrorIs(t, migrations.CheckFS(t.Context(), connect(t, url), column(2)), migrations.ErrMigrationEdited)
	})
}

func TestStatus(t *testing.T) {
	t.Parallel()
	state := func(t *testing.T, url string) (states []goose.State, timed int) {
		list, err := migrations.StatusFS(t.Context(), url, release(3))
		require.NoError(t, err)
		for _, migration := range list {
			states = append(states, migration.State)
			if !migration.AppliedAt.IsZero() {
				timed++
			}
		}
		return states, timed
	}

	t.Run("ChangesNothingInEmptyDatabase", func(t *testing.T) {
		t.Parallel()
		url := dbtest.EmptyURL(t)
		states, timed := state(t, url)
		require.Equal(t, []goose.State{goose.StatePending, goose.StatePending, goose.StatePending}, states)
		require.Zero(t, timed)
		require.False(t, exists(t, connect(t, url), "ojs.goose_db_version"))
		require.False(t, exists(t, connect(t, url), "public.goose_db_version"))
	})

	t.Run("ShowsAppliedWhoeverAppliedThem", func(t *testing.T) {
		t.Parallel()
		want := []goose.State{goose.StateApplied, goose.StateApplied, goose.StatePending}
		own, cli := dbtest.EmptyURL(t), dbtest.EmptyURL(t)
		up(t, own, release(2), 2)
		gooseCLI(t, cli, release(2))
		for _, url := range []string{own, cli} {
			states, timed := state(t, url)
			require.Equal(t, want, states)
			require.Equal(t, 2, timed)
		}
		_, err := connect(t, cli).Exec(t.Context(), "DROP TABLE public.goose_db_version")
		require.NoError(t, err)
		states, timed := state(t, cli)
		require.Equal(t, want, states)
		require.Zero(t, timed)
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	url := dbtest.EmptyURL(t)
	conn := connect(t, url)
	require.ErrorIs(t, migrations.CheckFS(t.Context(), conn, release(2)), migrations.ErrSchemaMissing)
	_, err := conn.Exec(t.Context(), "CREATE SCHEMA ojs")
	require.NoError(t, err)
	require.ErrorIs(t, migrations.CheckFS(t.Context(), conn, release(2)), migrations.ErrSchemaMissing)
	up(t, url, release(2), 2)
	require.NoError(t, migrations.CheckFS(t.Context(), conn, release(2)))
	require.ErrorIs(t, migrations.CheckFS(t.Context(), conn, release(3)), migrations.ErrSchemaOlder)
	require.ErrorIs(t, migrations.CheckFS(t.Context(), conn, release(1)), migrations.ErrSchemaNewer)
	require.EqualError(t, migrations.CheckFS(t.Context(), conn, release(1)), "the ojs schema is newer than this ojsd, and not compatible with it: "+
		"upgrade ojsd to the release that migrated the database (it is at version 2, this ojsd knows 1)")

	// A schema that says from which release on it works.
	up(t, url, release(4), 2)
	for from, works := range map[int][]bool{1: {true, true, true}, 3: {false, false, true}, 4: {false, false, false}} {
		_, err := conn.Exec(t.Context(), fmt.Sprintf("CREATE OR REPLACE FUNCTION ojs.schema_compatible_from() RETURNS int LANGUAGE sql AS 'SELECT %d'", from))
		require.NoError(t, err)
		for i, works := range works {
			known := release(i + 1)
			_, upErr := migrations.UpFS(t.Context(), url, known, nil)
			_, downErr := migrations.DownFS(t.Context(), url, known)
			require.ErrorIs(t, downErr, migrations.ErrSchemaNewer, "only a binary that knows a migration can take it back")
			for _, err := range []error{migrations.CheckFS(t.Context(), conn, known), upErr} {
				if works {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, migrations.ErrSchemaNewer)
				require.ErrorContains(t, err, fmt.Sprintf("(it is at version 4 and compatible from %d on, this ojsd knows %d)", from, i+1))
			}
		}
		require.NoError(t, migrations.CheckFS(t.Context(), conn, release(4)))
	}
	require.ErrorIs(t, migrations.CheckFS(t.Context(), conn, release(5)), migrations.ErrSchemaOlder)
	_, err = conn.Exec(t.Context(), "DROP FUNCTION ojs.schema_compatible_from")
	require.NoError(t, err)

	role := "ojsd_test_" + strings.ToLower(rand.Text()[:8])
	_, err = conn.Exec(t.Context(), "CREATE ROLE "+role)
	require.NoError(t, err)
	defer func() {
		_, err := conn.Exec(context.Background(), "DROP ROLE "+role)
		require.NoError(t, err)
	}()
	other := connect(t, url)
	_, err = other.Exec(t.Context(), "SET ROLE "+role)
	require.NoError(t, err)
	err = migrations.CheckFS(t.Context(), other, release(2))
	require.ErrorIs(t, err, migrations.ErrNotOwner)
	require.ErrorContains(t, err, `hand the schema over to "`+role+`"`, "a superuser owns it")
}

// TestOwnMigrations keeps the rules that the rest of this package relies on, for the real files.
func TestOwnMigrations(t *testing.T) {
	t.Parallel()
	url := dbtest.EmptyURL(t)
	conn := connect(t, url)
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	count := 0
	for _, file := range files {
		if strings.HasSuffix(file.Name(), ".sql") {
			count++
			require.Regexp(t, fmt.Sprintf(`^%05d_[a-z0-9_]+\.sql$`, count), file.Name(), "numbers leave no gap")
		}
	}

	var first []string
	for range 2 {
		results, err := migrations.Up(t.Context(), url, nil)
		require.NoError(t, err)
		require.Len(t, results, count)
		require.NoError(t, migrations.Check(t.Context(), conn))
		catalogue := describe(t, conn)
		require.Greater(t, len(catalogue), 400)
		if first == nil {
			first = catalogue
		}
		require.Equal(t, first, catalogue, "up after down makes the same objects")

		for version := count - 1; version > 0; version-- {
			_, err := migrations.Down(t.Context(), url, nil)
			require.NoError(t, err)
			var have int
			require.NoError(t, conn.QueryRow(t.Context(), "SELECT ojs.schema_version()").Scan(&have))
			require.Equal(t, version, have, "down restores the number of the migration before")
		}
		_, err = migrations.Down(t.Context(), url, nil)
		require.NoError(t, err)
		require.ErrorIs(t, migrations.Check(t.Context(), conn), migrations.ErrSchemaMissing)
		require.Empty(t, describe(t, conn), "down leaves only the tables about migrations")
	}
}

// describe lists every object of schema ojs with its definition and rights, except the tables about migrations.
func describe(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		SELECT o.text FROM (
			SELECT concat_ws(' ', 'relation', c.relkind, c.relname, c.reloptions, c.relacl, pg_get_viewdef(c.oid), obj_description(c.oid)) AS text
			FROM pg_class c WHERE c.relnamespace = 'ojs'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S')
			UNION ALL
			SELECT concat_ws(' ', 'column', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
				pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum))
			FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
			WHERE c.relnamespace = 'ojs'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND a.attnum > 0
			UNION ALL
			SELECT 'index ' || i.indexdef FROM pg_indexes i WHERE i.schemaname = 'ojs'
			UNION ALL
			SELECT concat_ws(' ', 'constraint', n.conrelid::regclass, n.conname, pg_get_constraintdef(n.oid))
			FROM pg_constraint n WHERE n.connamespace = 'ojs'::regnamespace
			UNION ALL
			SELECT 'trigger ' || pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
			WHERE c.relnamespace = 'ojs'::regnamespace AND NOT t.tgisinternal
			UNION ALL
			SELECT concat_ws(' ', 'function', pg_get_functiondef(p.oid), p.proacl, obj_description(p.oid))
			FROM pg_proc p WHERE p.pronamespace = 'ojs'::regnamespace
			UNION ALL
			SELECT concat_ws(' ', 'type', y.typname, y.typtype) FROM pg_type y WHERE y.typnamespace = 'ojs'::regnamespace AND y.typcategory <> 'A'
		) o
		WHERE o.text NOT LIKE '%goose_db_version%' AND o.text NOT LIKE '%migration_digests%'
		ORDER BY o.text`)
	require.NoError(t, err)
	objects, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return objects
}

// signalWriter tells when something was logged.
type signalWriter struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	once    sync.Once
	written chan struct{}
}

func (w *signalWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.buf.Write(p)
	w.once.Do(func() { close(w.written) })
	return n, err
}

func (w *signalWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
