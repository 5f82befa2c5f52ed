// Package enqueued has what the assertions about enqueued jobs share: those of package ojstest on its server and in transactions of
// database/sql, and those of package ojspgxtest in transactions of pgx. It must not know a driver.
package enqueued

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// Query gives one text, for Read: the jobs that were stored since the transaction began, as a JSON array in the order of their enqueues. It
// reads the view that docs/reference/sql.md, Jobs documents. Jobs of other transactions that were committed meanwhile are among them: the
// view does not show which transaction has stored a row.
const Query = `SELECT COALESCE(json_agg(row_to_json(j) ORDER BY j.created_at, j.id), '[]')::text FROM ojs.job j WHERE j.created_at >= transaction_timestamp()`

// Read reads the answer to Query from a row of a driver.
func Read(scan func(dest ...any) error) ([]*ojs.Job, error) {
	var text string
	if err := scan(&text); err != nil {
		return nil, err
	}
	var rows []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		return nil, err
	}
	jobs := make([]*ojs.Job, len(rows))
	for i, row := range rows {
		// tags, timeout_ms and the like are in attributes. scheduled_at is there as it was sent, and in a column as a time.
		var attributes map[string]json.RawMessage
		if err := json.Unmarshal(row["attributes"], &attributes); err != nil {
			return nil, err
		}
		for name, value := range attributes {
			if old, found := row[name]; !found || string(old) == "null" {
				row[name] = value
			}
		}
		data, err := json.Marshal(row)
		if err != nil {
			return nil, err
		}
		jobs[i] = &ojs.Job{}
		if err := json.Unmarshal(data, jobs[i]); err != nil {
			return nil, err
		}
	}
	return jobs, nil
}

// Jobs are those that match, in their order.
func Jobs[M ~func(*ojs.Job) bool](all []*ojs.Job, matches []M) []*ojs.Job {
	list := []*ojs.Job{}
	for _, j := range all {
		if !slices.ContainsFunc(matches, func(m M) bool { return !m(j) }) {
			list = append(list, j)
		}
	}
	return list
}

// RequireOne fails the test unless exactly one job of the type matches, and returns it. where says which jobs all are.
func RequireOne[M ~func(*ojs.Job) bool](t testing.TB, all []*ojs.Job, where, jobType string, matches []M) *ojs.Job {
	t.Helper()
	list := ofType(all, jobType, matches)
	if len(list) != 1 {
		t.Fatalf("%d jobs of type %s match, not one; all jobs%s: %s", len(list), jobType, where, Describe(all))
		return nil // a test in disguise may go on
	}
	return list[0]
}

// RequireNone fails the test if a job of the type matches.
func RequireNone[M ~func(*ojs.Job) bool](t testing.TB, all []*ojs.Job, where, jobType string, matches []M) {
	t.Helper()
	if list := ofType(all, jobType, matches); len(list) > 0 {
		t.Fatalf("%d jobs of type %s match, not none; all jobs%s: %s", len(list), jobType, where, Describe(all))
	}
}

func ofType[M ~func(*ojs.Job) bool](all []*ojs.Job, jobType string, matches []M) []*ojs.Job {
	return Jobs(all, append([]M{func(j *ojs.Job) bool { return j.Type == jobType }}, matches...))
}

// Describe lists jobs, one a line, with what assertions can ask for.
func Describe(jobs []*ojs.Job) string {
	if len(jobs) == 0 {
		return "none"
	}
	var text strings.Builder
	for _, j := range jobs {
		fmt.Fprintf(&text, "\n\t%s %s in %s: %s, args %s", j.ID, j.Type, j.Queue, j.State, j.RawArgs)
		if j.Priority != 0 {
			fmt.Fprintf(&text, ", priority %d", j.Priority)
		}
		if len(j.Tags) > 0 {
			fmt.Fprintf(&text, ", tags %s", strings.Join(j.Tags, " "))
		}
		if len(j.Meta) > 0 {
			meta, err := json.Marshal(j.Meta)
			if err != nil {
				meta = []byte(err.Error())
			}
			fmt.Fprintf(&text, ", meta %s", meta)
		}
		if !j.ScheduledAt.IsZero() {
			fmt.Fprintf(&text, ", scheduled at %s", j.ScheduledAt.Format(time.RFC3339))
		}
	}
	return text.String()
}
