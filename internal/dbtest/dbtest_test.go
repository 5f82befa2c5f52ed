package dbtest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/migrations"
)

func TestMain(m *testing.M) { Main(m) }

func TestNew(t *testing.T) {
	t.Parallel()

	t.Run("IsMigrated", func(t *testing.T) {
		t.Parallel()
		require.NoError(t, migrations.Check(t.Context(), New(t)))
	})

	t.Run("GivesEachTestItsOwn", func(t *testing.T) {
		t.Parallel()
		one, other := New(t), New(t)
		_, err := one.Exec(t.Context(), "CREATE TABLE mine ()")
		require.NoError(t, err)
		_, err = other.Exec(t.Context(), "CREATE TABLE mine ()")
		require.NoError(t, err)
	})

	t.Run("DropsDatabaseInUse", func(t *testing.T) {
		t.Parallel()
		var conn *pgx.Conn
		var err error
		t.Run("test", func(t *testing.T) {
			conn, err = pgx.Connect(t.Context(), URL(t))
			require.NoError(t, err)
		})
		require.Error(t, conn.Ping(t.Context()))
	})
}

func TestEmptyURL(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), EmptyURL(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	require.ErrorIs(t, migrations.Check(t.Context(), conn), migrations.ErrSchemaMissing)
}

func TestCluster(t *testing.T) {
	t.Parallel()
	s := Cluster(t)
	url := s.URL(ClusterDatabase)
	require.NoError(t, s.Kill())
	require.NoError(t, s.Restart(t.Context()))
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	require.NoError(t, migrations.Check(t.Context(), conn))
}

func TestTemplateVariable(t *testing.T) {
	cluster := Cluster(t)
	t.Setenv(ServerVariable, cluster.URL("postgres"))
	t.Setenv(TemplateVariable, ClusterDatabase)
	s := server{mainRuns: true}
	require.NoError(t, s.prepareTemplate(t.Context()))
	name := s.nextName()
	require.NoError(t, s.clone(t.Context(), name, s.template))
	require.NoError(t, s.stop(), "it is another's template")
	for _, database := range []string{name, ClusterDatabase} {
		conn, err := pgx.Connect(t.Context(), cluster.URL(database))
		require.NoError(t, err)
		require.NoError(t, migrations.Check(t.Context(), conn))
		require.NoError(t, conn.Close(t.Context()))
	}
}

func TestRemoveAbandoned(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	old := filepath.Join(os.TempDir(), dirPrefix+"old")
	young := filepath.Join(os.TempDir(), dirPrefix+"young")
	for _, dir := range []string{old, young} {
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "lock"), nil, 0o644))
	}
	past := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(old, past, past))
	removeAbandoned()
	require.NoDirExists(t, old)
	require.DirExists(t, young)
}

func BenchmarkURL(b *testing.B) {
	for b.Loop() {
		URL(b)
	}
}
