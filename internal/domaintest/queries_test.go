package domaintest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// sqlc has a parser of its own, which accepts queries that Postgres refuses, for example with ambiguous columns.
func TestEveryQueryCanBePrepared(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../dbsqlc/*.sql.go")
	require.NoError(t, err)
	conn, err := dbtest.New(t).Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("(?s)const (\\w+) = `(.*?)`").FindAllSubmatch(text, -1) {
			found++
			_, err := conn.Conn().Prepare(t.Context(), string(m[1]), string(m[2]))
			if err != nil {
				t.Errorf("%s: %v", m[1], err)
			}
		}
	}
	require.Greater(t, found, 100)
}
