package eventlog_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/ojs"
)

// statements are the SQL statements of this repository without comments.
func statements(t *testing.T) (list []string) {
	t.Helper()
	comments, ends := regexp.MustCompile(`--.*`), regexp.MustCompile(`(?m)^-- (name:.*|\+goose Statement.*)$|;$`)
	for _, pattern := range []string{"../../queries/*.sql", "../../migrations/*.sql"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, statement := range ends.Split(string(text), -1) {
				list = append(list, comments.ReplaceAllString(statement, ""))
			}
		}
	}
	return list
}

// literals are the texts of a statement that look like the type of an event, or like the beginning of types.
func literals(statement string) (list []string) {
	for _, m := range regexp.MustCompile(`'([a-z_]+\.[a-z_]*)'`).FindAllStringSubmatch(statement, -1) {
		// Names of this schema, and the beginning of a fairness key.
		if !strings.HasPrefix(m[1], "ojs.") && m[1] != "meta." {
			list = append(list, m[1])
		}
	}
	return list
}

// SQL has the types of events as literals. Each is one that Go declares.
func TestSQLKnowsNoOtherEventTypes(t *testing.T) {
	t.Parallel()
	declared := slices.Concat(ojs.EventTypes, ojs.ExtensionEventTypes, eventlog.InternalTypes, eventlog.HistoryTypes)
	found := 0
	for _, statement := range statements(t) {
		for _, literal := range literals(statement) {
			found++
			require.True(t, slices.ContainsFunc(declared, func(known string) bool {
				return known == literal || strings.HasSuffix(literal, ".") && strings.HasPrefix(known, literal)
			}), "%s is the type of no event; statement: %s", literal, statement)
		}
	}
	require.Greater(t, found, 80, "the expression does not find the literals any more")
}

// Each type is written by a statement, as a literal or as a parameter that one of the packages with statements gives it.
func TestEveryEventTypeIsWritten(t *testing.T) {
	t.Parallel()
	var written []string
	for _, statement := range statements(t) {
		if strings.Contains(statement, "INSERT INTO ojs.events") {
			written = append(written, literals(statement)...)
		}
	}
	var code strings.Builder
	for _, pkg := range []string{"cron", "limit", "queue", "queueadmin", "worker", "workflow"} {
		files, err := filepath.Glob("../" + pkg + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files, pkg)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			code.Write(text)
		}
	}
	declaration, err := os.ReadFile("../../ojs/events.go")
	require.NoError(t, err)
	constants := regexp.MustCompile(`(?m)^\t(Event\w+) += "(.+?)"`).FindAllStringSubmatch(string(declaration), -1)
	require.Len(t, constants, len(ojs.EventTypes)+len(ojs.ExtensionEventTypes), "each constant stands in one of the lists")
	for _, c := range constants {
		name, value := c[1], c[2]
		require.True(t, slices.Contains(ojs.EventTypes, value) || slices.Contains(ojs.ExtensionEventTypes, value), "%s is in no list", name)
		parameter := regexp.MustCompile(`\bojs\.` + name + `\b`).MatchString(code.String())
		require.True(t, parameter || slices.Contains(written, value), "nothing writes an event of type %s", value)
	}
	for _, internal := range eventlog.InternalTypes {
		parameter := internal == eventlog.StateChanged && strings.Contains(code.String(), "eventlog.StateChanged") ||
			internal == eventlog.PriorityChanged && strings.Contains(code.String(), "eventlog.PriorityChanged")
		require.True(t, parameter || slices.Contains(written, internal), "nothing writes an event of type %s", internal)
	}
}

// The filter of the history is SQL, and what it shows is Go: both give an event the same name.
func TestHistoryTypeIsThatOfSQL(t *testing.T) {
	t.Parallel()
	types := slices.DeleteFunc(slices.Concat(ojs.EventTypes, ojs.ExtensionEventTypes, eventlog.InternalTypes), func(name string) bool {
		return !strings.HasPrefix(name, "job.")
	})
	states := []ojs.JobState{
		"", ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateActive, ojs.StateRetryable, ojs.StateCompleted, ojs.StateCancelled,
		ojs.StateDiscarded,
	}
	rows, err := dbtest.New(t).Query(t.Context(), `
		SELECT t, i, f, o, ojs.history_type(t, i, NULLIF(f, ''), NULLIF(o, ''))
		FROM unnest($1::text[]) t, unnest(ARRAY[false, true]) i, unnest($2::text[]) f, unnest($2::text[]) o`, types, states)
	require.NoError(t, err)
	var e eventlog.Event
	var inSQL string
	done, err := pgx.ForEachRow(rows, []any{&e.Type, &e.Internal, &e.From, &e.To, &inSQL}, func() error {
		require.Equal(t, inSQL, e.HistoryType(), "%+v", e)
		return nil
	})
	require.NoError(t, err)
	require.EqualValues(t, len(types)*2*len(states)*len(states), done.RowsAffected())
}
