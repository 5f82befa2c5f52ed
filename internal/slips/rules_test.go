package slips

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// module writes files into a module of their own, unless they have a go.mod, and loads it.
func module(t *testing.T, files map[string]string) *Tree {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	if files["go.mod"] == "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/m\n\ngo 1.26\n"), 0o644))
	}
	tree, err := Load(t.Context(), dir)
	require.NoError(t, err)
	return tree
}

// goKinds returns "old => new" of the slips of a kind in the only package of a module.
func goKinds(t *testing.T, kind Kind, src string) (found []string) {
	t.Helper()
	tree := module(t, map[string]string{"m.go": "package m\n\n" + src})
	tree.documented = numbers{4096: true, 6 * 3600: true}
	slips, err := tree.goSlips(tree.Packages[0])
	require.NoError(t, err)
	for _, s := range slips {
		if s.Kind == kind {
			found = append(found, s.Old+" => "+s.New)
		}
	}
	return found
}

func TestGoRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kind Kind
		src  string
		want []string
	}{
		{Edge, "func f(a, b int) bool { return a < b || a >= 2*b || a == b }", []string{"< => <=", ">= => >"}},
		{Direction, "func f(a, b int) bool { return a < b || a == b }", []string{"< => >", "== => !="}},
		{Conjunct, "func f(a, b bool) bool { return a && b }", []string{"a && b => a", "a && b => b", "b => !(b)", "a => !(a)"}},
		{Constant, "import \"time\"\n\nfunc f() ([]int, time.Duration) { return make([]int, 0, 8), 5 * time.Second }", []string{"0 => 1", "Second => Minute"}},
		{Constant, "const most = 10", []string{"10 => 11"}},
		{Swap, "func f(a, b int, c string) { f(b, a, c) }", []string{"b, a => a, b"}},
		{Swap, "type p struct{ x, y int; z string }\n\nfunc f(a, b int) p { return p{x: a, y: b, z: \"\"} }", []string{"a, y: b => b, y: a"}},
		{Statement, "import \"sync\"\n\nvar mu sync.Mutex\n\nfunc f(n *int) {\n\tmu.Lock()\n\tdefer mu.Unlock()\n\t*n++\n\tm := n\n\t_ = m\n}", []string{"mu.Lock() => {}", "defer mu.Unlock() => {}", "*n++ => {}"}},
		{Statement, "import \"log/slog\"\n\nfunc f(log *slog.Logger) { log.Info(\"\") }", nil},
		{Error, "func f(err error) (int, error) {\n\tif err != nil {\n\t\treturn 0, err\n\t}\n\treturn 1, nil\n}", []string{"err => nil"}},
		{MinMax, "func f(a, b int) int { return min(a, max(b, 2)) }", []string{"min => max", "max => min"}},
		{Loop, "func f(list []int, n int) {\n\tfor range list {\n\t}\n\tfor range n {\n\t}\n\tfor i := 0; i < n; i++ {\n\t}\n}", []string{"list => (list)[:max(len(list)-1, 0)]", "n => max(n-1, 0)", "n => n-1"}},
	} {
		t.Run(string(test.kind), func(t *testing.T) {
			t.Parallel()
			src := test.src
			require.Equal(t, test.want, goKinds(t, test.kind, src))
		})
	}
}

// What no user can notice is left out by kind, and what a user can is drawn beside it.
func TestUnnoticedGo(t *testing.T) {
	t.Parallel()
	const timed = "import \"time\"\n\n"
	for _, test := range []struct {
		name string
		kind Kind
		src  string
		want []string
	}{
		{"Capacities", Constant, "func f() any { return []any{make([]int, 2, 8), make(map[int]int, 4), make([]int, 3), make(chan int, 5)} }", []string{"2 => 3", "3 => 4", "5 => 6"}},
		{"Capacities", MinMax, "func f(n int) any { return []any{make([]int, 0, min(n, 9)), make([]int, min(n, 9))} }", []string{"min => max"}},
		{"Buffers", Constant, "import \"bufio\"\n\ntype c struct{ ReadBufferSize, Size int }\n\nfunc f() any { return []any{bufio.NewReaderSize(nil, 512), c{ReadBufferSize: 512, Size: 64}} }", []string{"64 => 65"}},
		{"Growing", Statement, "import \"slices\"\n\nfunc f(a []int, b *int) {\n\ta = slices.Grow(a, 9)\n\t*b = a[1]\n}", []string{"*b = a[1] => {}"}},
		{"EdgesOfClocks", Edge, timed + "func f(at time.Time, d time.Duration, tries int) bool {\n\tleft := d - time.Since(at)\n\treturn time.Since(at) < d || left > 0 || at.Sub(at) >= d || tries < 3 || d > 0 || max(time.Until(at), 0) > 0\n}", []string{"< => <=", "> => >=", "> => >="}},
		{"EdgesOfClocks", Direction, timed + "func f(at time.Time) bool { return time.Since(at) < 0 }", []string{"< => >"}},
		{"Durations", Constant, timed + "var a, b, c, d = 15 * time.Second, 2 * time.Second, 5 * time.Minute, 4 * (30 * time.Millisecond)", []string{"Second => Minute", "2 => 3", "Second => Minute", "5 => 6", "Minute => Hour", "4 => 5", "Millisecond => Second"}},
		{"Nanoseconds", Constant, timed + "func f(d time.Duration, n int) bool { return max(d, 0) > 0 || n > 0 || d == 0 }", []string{"0 => 1", "0 => 1"}},
		{"LargeNumbers", Constant, "const a, b, c, d, e, f = 5000, 4096, 6 * 3600, 999, 0x7000, 9223372036854775807", []string{"4096 => 4097", "6 => 7", "3600 => 3601", "999 => 1000", "0x7000 => 28673", "9223372036854775807 => -9223372036854775808"}},
		{"LargeNumbers", Constant, "func f(n int) bool { return n > 5000 || n == 5000 }", []string{"5000 => 5001"}},
		{"Logs", Swap, "import \"log/slog\"\n\nfunc f(log *slog.Logger, a, b string) {\n\tlog.With(\"k\", a).Info(a, \"k\", b, slog.String(\"k\", b))\n\tg(a, b)\n}\n\nfunc g(a, b string) {}", []string{"a, b => b, a"}},
		{"BesideErrors", Constant, "func f(err error, n int) (int, error) {\n\tif err != nil {\n\t\treturn 2, err\n\t}\n\tif n != 3 {\n\t\treturn 4, err\n\t}\n\treturn 5, err\n}", []string{"3 => 4", "4 => 5", "5 => 6"}},
		{"Logs", Edge, "import \"log/slog\"\n\nfunc f(log *slog.Logger, n int) { log.Info(\"\", \"full\", n > 3) }", []string{"> => >="}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, goKinds(t, test.kind, test.src))
		})
	}
}

// The next pass takes what one leaves.
func TestUnnoticedPortions(t *testing.T) {
	t.Parallel()
	tree := module(t, map[string]string{
		"m.go": `package m

import "example.com/m/dbsqlc"

const (
	portion  = 100
	most     = 100
	Exported = 100
	batch    = 100
)

func f() {
	for dbsqlc.Prune(portion) == portion {
	}
	for dbsqlc.List(dbsqlc.Params{MaxRows: batch}) >= batch {
	}
	_ = dbsqlc.Prune(most)
	for dbsqlc.Prune(Exported) == Exported {
	}
}
`,
		"dbsqlc/q.go": "package dbsqlc\n\ntype Params struct{ MaxRows int }\n\nfunc List(p Params) int { return p.MaxRows }\n\nfunc Prune(n int) int { return n }\n",
	})
	slips, err := tree.goSlips(tree.Packages[0])
	require.NoError(t, err)
	var drawn []string
	for _, s := range slips {
		if s.Kind == Constant {
			drawn = append(drawn, s.Identity())
		}
	}
	require.Equal(t, []string{"m.go (package level): most     = [100 => 101]", "m.go (package level): Exported = [100 => 101]"}, drawn)
}

// A query that fails returns no rows.
func TestUnnoticedErrors(t *testing.T) {
	t.Parallel()
	tree := module(t, map[string]string{
		"m.go": `package m

import "example.com/m/dbsqlc"

func own() ([]int, error) { return nil, nil }

func cancel() {}

func f(deep bool) error {
	rows, err := dbsqlc.List()
	cancel()
	if err != nil || len(rows) == 0 || deep {
		return err
	}
	if more, err := dbsqlc.List(); err != nil || len(more) == 0 {
		return err
	}
	others, err := own()
	if err != nil || len(others) == 0 {
		return err
	}
	if others, err = dbsqlc.List(); len(others) == 0 || err != nil {
		return err
	}
	if err != nil || len(rows) == 0 {
		return err
	}
	return nil
}
`,
		"dbsqlc/q.go": "package dbsqlc\n\nfunc List() ([]int, error) { return nil, nil }\n",
	})
	slips, err := tree.goSlips(tree.Packages[0])
	require.NoError(t, err)
	var drawn []string
	for _, s := range slips {
		if s.Kind == Conjunct && len(s.New) < len(s.Old) {
			drawn = append(drawn, s.Old+" => "+s.New)
		}
	}
	require.Equal(t, []string{
		"err != nil || len(rows) == 0 || deep => err != nil || len(rows) == 0", "err != nil || len(rows) == 0 || deep => deep", "err != nil || len(rows) == 0 => err != nil",
		"err != nil || len(more) == 0 => err != nil",
		"err != nil || len(others) == 0 => err != nil", "err != nil || len(others) == 0 => len(others) == 0",
		"len(others) == 0 || err != nil => len(others) == 0", "len(others) == 0 || err != nil => err != nil",
		"err != nil || len(rows) == 0 => err != nil", "err != nil || len(rows) == 0 => len(rows) == 0",
	}, drawn)
}

// The LIMIT of a query is drawn unless every caller passes a portion, or one more than it returns, or repeats the call.
func TestUnnoticedLimits(t *testing.T) {
	t.Parallel()
	const query = "\n\nconst %[2]s = `-- name: %[1]s :execrows\nDELETE FROM t WHERE a = $1 LIMIT $2\n`\n\n" +
		"func (q *Queries) %[1]s(ctx context.Context, a int, maxRows int) int { return q.db.Exec(ctx, %[2]s, a, maxRows) }"
	const structQuery = "\n\nconst list = `-- name: List :many\nSELECT FROM t WHERE a = $1 LIMIT $2::bigint\n`\n\ntype ListParams struct{ A, MaxRows int }\n\n" +
		"func (q *Queries) List(ctx context.Context, arg ListParams) int { return q.db.Exec(ctx, list, arg.A, arg.MaxRows) }\n"
	tree := module(t, map[string]string{
		"m.go": `package m

import "example.com/m/dbsqlc"

const portion = 100

func f(q *dbsqlc.Queries, limit int) {
	for q.Prune(nil, 1, portion) == portion {
	}
	q.Purge(nil, 1, limit)
	q.Purge(nil, 1, portion)
	repeat(func() int { return q.Sweep(nil, 1, 1000) })
	arg := dbsqlc.ListParams{A: 1, MaxRows: int(limit) + 1}
	q.List(nil, arg)
	arg.MaxRows = portion
}

func repeat(one func() int) {
	for one() > 0 {
	}
}
`,
		"dbsqlc/q.go": "package dbsqlc\n\nimport \"context\"\n\ntype db interface{ Exec(context.Context, string, ...any) int }\n\ntype Queries struct{ db db }" +
			fmt.Sprintf(query, "Prune", "prune") + fmt.Sprintf(query, "Purge", "purge") + fmt.Sprintf(query, "Sweep", "sweep") + structQuery,
	})
	slips, err := tree.querySlips(tree.Packages[1])
	require.NoError(t, err)
	var drawn []string
	for _, s := range slips {
		if s.Kind == SQLBound {
			drawn = append(drawn, s.Func)
		}
	}
	require.Equal(t, []string{"Purge"}, drawn)
}

func TestUnnoticedSQL(t *testing.T) {
	t.Parallel()
	for src, want := range map[string][]string{
		"SELECT a INTO b FROM t ORDER BY c LIMIT 1;":            {"c DESC"},
		"SELECT a INTO b FROM t LIMIT 1 FOR UPDATE;":            {"(1) + 1000000", "2", ""},
		"SELECT a INTO b FROM (SELECT c FROM t LIMIT 1) u;":     {"(1) + 1000000", "2"},
		"INSERT INTO t SELECT a FROM u LIMIT 1;":                {"(1) + 1000000", "2"},
		"WITH d AS (DELETE FROM t RETURNING 1) SELECT 3":        {"4"},
		"DELETE FROM t RETURNING 1, a":                          {"2"},
		"SELECT f(5000), g(4096), h(999)":                       {"4097", "1000"},
		"SELECT FROM t WHERE a = x AND b > 1 ORDER BY a, b":     {"(true OR a = x)", "(true OR b > 1)", ">=", "2", "", "b DESC"},
		"SELECT FROM t, u WHERE t.a = u.a ORDER BY t.a DESC":    {"(true OR t.a = u.a)", "t.a"},
		"SELECT FROM t WHERE a = ANY(x) ORDER BY a":             {"(true OR a = ANY(x))", "a DESC"},
		"SELECT FROM t WHERE a = x OR b ORDER BY a":             {"a DESC"},
		"SELECT a FROM t WHERE a <= 2 AND a >= 2 ORDER BY a, b": {"(true OR a <= 2)", "<", "3", "(true OR a >= 2)", ">", "3", "", "b DESC"},
		"SELECT a FROM t WHERE a <= 2 AND a <= 2 ORDER BY a":    {"(true OR a <= 2)", "<", "3", "(true OR a <= 2)", "<", "3", "a DESC"},
		"SELECT a FROM t WHERE a <= 2 AND a >= 3 ORDER BY a":    {"(true OR a <= 2)", "<", "3", "(true OR a >= 3)", ">", "4", "a DESC"},
		"SELECT a FROM t WHERE a >= x AND b <= x ORDER BY a":    {"(true OR a >= x)", ">", "(true OR b <= x)", "<", "a DESC"},
		"SELECT a FROM t WHERE f(a, '/') >= x AND (f(a, '/'), b) < (x, y) ORDER BY f(a, '/') DESC, b": {
			"(true OR f(a, '/') >= x)", ">", "(true OR (f(a, '/'), b) < (x, y))", "<=", "", "b DESC",
		},
		"SELECT a FROM t WHERE f(a) >= x AND (b, f(a)) < (x, y) ORDER BY f(a)": {"(true OR f(a) >= x)", ">", "(true OR (b, f(a)) < (x, y))", "<=", "f(a) DESC"},
		"SELECT FROM t WHERE a = 5000":                                         {"(true OR a = 5000)", "5001"},
		"SELECT FROM t WHERE due_at < now() AND attempts < max":                {"(true OR due_at < now())", "(true OR attempts < max)", "<="},

		"DELETE FROM t USING (SELECT b FROM u WHERE c IN (SELECT d FROM v ORDER BY e LIMIT $1)) w": {"(true OR c IN (SELECT d FROM v ORDER BY e LIMIT $1))", "e DESC"},
		"DELETE FROM t WHERE a IN (SELECT b FROM u ORDER BY c LIMIT $1)":                           {"(true OR a IN (SELECT b FROM u ORDER BY c LIMIT $1))"},
		"DELETE FROM t WHERE a IN (SELECT b FROM u ORDER BY c LIMIT $2)":                           {"(true OR a IN (SELECT b FROM u ORDER BY c LIMIT $2))", "c DESC", "($2) + 1000000"},
		"UPDATE t SET d = e WHERE a IN (SELECT b FROM u ORDER BY c LIMIT $1)":                      {"(true OR a IN (SELECT b FROM u ORDER BY c LIMIT $1))", "c DESC"},

		"(SELECT a FROM t LIMIT 1) UNION ALL (SELECT a FROM u LIMIT 1) LIMIT 1":                  {"(1) + 1000000", "2"},
		"(SELECT a FROM t LIMIT 1) UNION ALL (SELECT a FROM u LIMIT 1)":                          {"(1) + 1000000", "2", "(1) + 1000000", "2"},
		"(SELECT a FROM t LIMIT 1) UNION ALL (SELECT a FROM u LIMIT 2) LIMIT 2":                  {"(1) + 1000000", "2", "(2) + 1000000", "3"},
		"(SELECT a FROM t LIMIT $2) UNION ALL (SELECT a FROM u LIMIT $2) LIMIT $2 OFFSET $3":     {"($2) + 1000000", "($2) + 1000000", "($2) + 1000000"},
		"SELECT min(p.a) FROM ((SELECT a FROM t LIMIT 1) UNION ALL (SELECT a FROM u)) p LIMIT 1": {"(1) + 1000000", "2", "(1) + 1000000", "2"},
		"SELECT p.a FROM ((SELECT t.a FROM t ORDER BY t.b, t.a DESC LIMIT $2) UNION ALL (SELECT u.a FROM u ORDER BY u.a LIMIT $2)) p ORDER BY p.a DESC LIMIT $2": {
			"t.b DESC", "", "", "t.a", "u.a DESC", "($2) + 1000000", "p.a", "($2) + 1000000",
		},
	} {
		var got []string
		for _, e := range sqlEdits(src, numbers{4096: true}, map[string]bool{"$1": true}) {
			got = append(got, e.text)
		}
		require.Equal(t, want, got, src)
	}
}

func TestReadDocumented(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "docs", "reference"), 0o755))
	text := "At most 10 000 jobs of 64 KiB, for 7 days or 30 s, of 1,048,576 bytes in 2 lists.\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docs", "reference", "limits.md"), []byte(text), 0o644))
	documented, err := readDocumented(dir)
	require.NoError(t, err)
	for _, n := range []int64{10_000, 10_001, 65_536, 7 * 86_400, 30_000, 1_048_576} {
		require.True(t, documented.state(n), n)
	}
	require.False(t, documented.state(5000))
}

func TestGeneratedCode(t *testing.T) {
	t.Parallel()
	tree := module(t, map[string]string{"m.go": "// Code generated by hand. DO NOT EDIT.\n\npackage m\n\nfunc f(a, b int) bool { return a < b }\n"})
	slips, err := tree.goSlips(tree.Packages[0])
	require.NoError(t, err)
	require.Empty(t, slips)
}

func TestSQLRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		kind Kind
		src  string
		want []string
	}{
		{SQLConjunct, "SELECT 1 FROM t JOIN u ON t.a = u.a WHERE b BETWEEN 1 AND 2 AND (c OR d)", []string{"(true OR t.a = u.a)", "(true OR b BETWEEN 1 AND 2)", "(true OR (c OR d))"}},
		{SQLConjunct, "IF a AND NOT b THEN x := 1; END IF; y := CASE z WHEN 1 THEN 2 END;", []string{"(true OR a)", "(true OR NOT b)"}},
		{SQLEdge, "SELECT a < b, c >= '<' FROM t WHERE due_at <= now()", []string{"<=", ">"}},
		{SQLOrder, "SELECT a FROM t ORDER BY b DESC, c LIMIT 1", []string{"b", "", "", "c DESC"}},
		{SQLDefault, "SELECT COALESCE(a, ''), COALESCE(f(b), false)", []string{"NULLIF(a, a)", "'x'", "NULLIF(f(b), f(b))", "true"}},
		{SQLLock, "SELECT 1 FROM t FOR NO KEY UPDATE OF t SKIP LOCKED", []string{"", ""}},
		{SQLColumn, "UPDATE t SET a = 1, b = c + 1 WHERE d", []string{"", "c + 1, b = 1", ""}},
		{SQLColumn, "INSERT INTO t (a, b) SELECT x, f(y, z) FROM u", []string{"b) SELECT ", ") SELECT x", "f(y, z), x"}},
		{SQLColumn, "INSERT INTO t (a, b) VALUES ($1, $2) ON CONFLICT DO NOTHING", []string{"b) VALUES (", ") VALUES ($1", "$2, $1"}},
		{SQLBound, "SELECT LEAST(a, 3) FROM t LIMIT $1::bigint", []string{"GREATEST", "($1::bigint) + 1000000"}},
		{SQLConstant, "SELECT 7, interval '1 second' FROM t -- 8\nORDER BY 1, 2", []string{"8", "'1 minute'"}},
		{SQLCall, "BEGIN PERFORM f(a, 1); RETURN; END", []string{"NULL"}},
	} {
		t.Run(string(test.kind), func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, e := range sqlEdits(test.src, nil, nil) {
				if e.kind == test.kind {
					got = append(got, e.text)
				}
			}
			require.Equal(t, test.want, got)
		})
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	tree := module(t, map[string]string{"m.go": `package m

const most = 10

func f(a, b int, list []int) (n int, err error) {
	x := a
	if a < b && b < most {
		n++
	}
	for _, v := range list {
		n += min(v, x)
	}
	return n, err
}

func g(a, b int) bool { return a < b || a > 2*b || f != nil }
`})
	require.NoError(t, tree.parse(tree.Packages[0]))
	draw := func(seed uint64, n int) (drawn []string) {
		all, err := tree.goSlips(tree.Packages[0])
		require.NoError(t, err)
		slips, err := tree.Draw(t.Context(), all, seed, n, nil)
		require.NoError(t, err)
		for _, s := range slips {
			drawn = append(drawn, string(s.Kind)+" "+s.Identity())
		}
		return drawn
	}

	t.Run("IsTheSameForTheSameSeed", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, draw(1, 8), draw(1, 8))
		require.Equal(t, draw(1, 8)[:4], draw(1, 4))
		require.NotEqual(t, draw(1, 8), draw(2, 8))
	})

	t.Run("TakesWhatCompiles", func(t *testing.T) {
		t.Parallel()
		all := draw(1, 1000)
		require.Contains(t, all, "statement m.go f: [n++ => {}]")
		require.Contains(t, all, "constant m.go (package level): const most = [10 => 11]")
		require.NotContains(t, all, "statement m.go g: func g(a, b int) bool { [return a < b || a > 2*b || f != nil => {}] }")
		distinct := slices.Compact(slices.Sorted(slices.Values(all)))
		require.Len(t, distinct, len(all))
	})

	t.Run("FollowsThePathFilter", func(t *testing.T) {
		t.Parallel()
		require.True(t, matches(&Slip{File: "internal/queue/a.go"}, "internal/queue/"))
		require.False(t, matches(&Slip{File: "internal/pg/a.go"}, "internal/queue/"))
		require.True(t, matches(&Slip{File: "internal/dbsqlc/jobs.sql.go", query: &query{}}, "queries/jobs.sql"))
	})
}

func TestReplacedFunctions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "migrations"), 0o755))
	for name, body := range map[string]string{"1": "a integer) RETURNS boolean LANGUAGE sql AS $$ SELECT a > b; $$", "2": "a integer) RETURNS boolean LANGUAGE sql AS $$ SELECT a < b; $$",
		"3": "a text, b varchar(1))\nRETURNS boolean LANGUAGE sql AS $$ SELECT a >= b; $$"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "migrations", name+".sql"), []byte("-- +goose Up\n-- +goose StatementBegin\nCREATE OR REPLACE FUNCTION ojs.f("+body+";\n-- +goose StatementEnd\n"), 0o644))
	}
	schema, err := readSchema(dir)
	require.NoError(t, err)
	var found []string
	for _, s := range schema.slips(nil) {
		found = append(found, s.File+" "+s.Old)
	}
	require.Equal(t, []string{"migrations/2.sql <", "migrations/3.sql >="}, found)
}

func TestSchema(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "migrations"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "migrations", "1.sql"), []byte(`-- +goose Up
CREATE TABLE ojs.t (a integer);
-- +goose StatementBegin
CREATE FUNCTION ojs.f(a integer) RETURNS boolean LANGUAGE sql AS $$ SELECT a > 0; $$;
-- +goose StatementEnd
CREATE VIEW ojs.v AS SELECT ojs.f(1);
CREATE TRIGGER x AFTER INSERT ON ojs.t FOR EACH ROW EXECUTE FUNCTION ojs.f();
-- +goose Down
DROP FUNCTION ojs.f;
`), 0o644))
	schema, err := readSchema(dir)
	require.NoError(t, err)
	slips := schema.slips(nil)
	require.Len(t, slips, 2)
	require.Equal(t, "migrations/1.sql ojs.f: n LANGUAGE sql AS $$ SELECT a [> => >=] 0; $$;", slips[0].Identity())
	require.Contains(t, slips[0].routine.statement(slips[0]), "CREATE OR REPLACE FUNCTION ojs.f(a integer) RETURNS boolean LANGUAGE sql AS $$ SELECT a >= 0; $$;")
	require.Equal(t, map[string]int{"ojs.f": 0, "ojs.v": 1, "ojs.t": 1}, schema.callers("ojs.f"))
}
