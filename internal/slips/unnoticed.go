package slips

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The rules leave out the kinds of slips below, because no user can notice them and a test that did would only repeat the code. What a
// client can see is still drawn: documented numbers, edges of counters, attempts and sizes, values in log lines, and a wake-up beside a
// poll, whose absence is a latency. No rule changes a text or a level, so those of logs and metrics need none here.

const (
	// large is from where on one more is within a thousandth. The exact number can be noticed only where the reference states it.
	large = 1000
	// someUnits is from how many units of time on one more is within what a busy machine adds to any pause. A test that notices the wrong
	// unit is enough for these; two seconds instead of one can be noticed.
	someUnits = 5
)

// skipped says whether no slip of a node or below it can be noticed, because it is a number beside an error, or a hint how much memory will
// be needed. The room of a channel is none: it makes a channel a lock or a semaphore.
func (f *finder) skipped(n ast.Node) bool {
	if call, ok := n.(*ast.CallExpr); ok && f.calls(call, growing...) {
		return true
	}
	if len(f.stack) == 0 {
		return false
	}
	switch parent := f.stack[len(f.stack)-1].(type) {
	case *ast.CallExpr:
		if f.calls(parent, "bufio.NewReaderSize", "bufio.NewWriterSize") {
			return n == parent.Args[1]
		}
		fun, ok := parent.Fun.(*ast.Ident)
		if !ok || fun.Name != "make" || len(parent.Args) < 2 || n != parent.Args[len(parent.Args)-1] {
			return false
		}
		_, isMap := f.pkg.info.Types[parent].Type.Underlying().(*types.Map)
		return isMap || len(parent.Args) == 3
	case *ast.ReturnStmt:
		_, isLiteral := n.(*ast.BasicLit)
		return isLiteral && f.besideError(parent)
	case *ast.KeyValueExpr:
		key, ok := parent.Key.(*ast.Ident)
		return ok && n == parent.Value && (key.Name == "ReadBufferSize" || key.Name == "WriteBufferSize")
	}
	return false
}

// besideError says whether a return, on top of the stack, is that of an error which an if has found. Nobody reads a number beside it.
func (f *finder) besideError(n *ast.ReturnStmt) bool {
	last := n.Results[len(n.Results)-1]
	for _, parent := range slices.Backward(f.stack) {
		found, ok := parent.(*ast.IfStmt)
		if !ok {
			continue
		}
		cond, ok := found.Cond.(*ast.BinaryExpr)
		return ok && cond.Op == token.NEQ && isOf(f.pkg.info.Types[cond.X].Type, "error") && isOf(f.pkg.info.Types[last].Type, "error")
	}
	return false
}

var growing = []string{"slices.Grow", "(*strings.Builder).Grow", "(*bytes.Buffer).Grow"}

// calls says whether a call is one of these functions and methods.
func (f *finder) calls(n *ast.CallExpr, names ...string) bool {
	sel, ok := n.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	fun, ok := f.pkg.info.Uses[sel.Sel].(*types.Func)
	return ok && slices.Contains(names, fun.Origin().FullName())
}

// isLog says whether it is a call of a method of slog.Logger or makes an attribute for one. Its arguments are no places in an order that a
// program knows, and the line is for people.
func (f *finder) isLog(n *ast.CallExpr) bool {
	if isOf(f.pkg.info.Types[n].Type, "log/slog.Attr") {
		return true
	}
	sel, ok := n.Fun.(*ast.SelectorExpr)
	return ok && isOf(f.pkg.info.Types[sel.X].Type, "*log/slog.Logger")
}

// leftOutUnnoticed says whether nobody notices that a statement is left out: it writes a log line, or makes room in advance.
func (f *finder) leftOutUnnoticed(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return ok && (f.isLog(call) || f.calls(call, growing...))
	case *ast.AssignStmt:
		call, ok := s.Rhs[0].(*ast.CallExpr)
		return ok && f.calls(call, growing...)
	}
	return false
}

func isOf(t types.Type, name string) bool { return t != nil && t.String() == name }

// isClock says whether an operand of a comparison is what a clock has shown, which has the very value of the other one never. A value
// that was cut off by min or max may have it.
func (f *finder) isClock(e ast.Expr) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "min" || id.Name == "max") {
				return false
			}
			found = found || f.calls(n, "time.Now", "time.Since", "time.Until", "(time.Time).Sub")
		case *ast.Ident:
			found = found || f.clocks[f.pkg.info.Uses[n]]
		}
		return !found
	})
	return found
}

// noteClock remembers a variable that begins with the time since or until another. A difference of two times may be one of a client's.
func (f *finder) noteClock(n *ast.AssignStmt) {
	if n.Tok != token.DEFINE || len(n.Lhs) != 1 || len(n.Rhs) != 1 {
		return
	}
	id, isIdent := n.Lhs[0].(*ast.Ident)
	value := n.Rhs[0]
	if sum, ok := value.(*ast.BinaryExpr); ok && sum.Op == token.SUB {
		value = sum.Y
	}
	if call, ok := value.(*ast.CallExpr); ok && isIdent && f.calls(call, "time.Since", "time.Until") {
		f.clocks[f.pkg.info.Defs[id]] = true
	}
}

// isUnnoticedNumber says whether one more than a number, on top of the stack, cannot be noticed: it is large and not documented, it counts
// units of time, it is a nanosecond at the bound of a duration, or it is how much an internal pass takes, of which the next takes the rest.
// A number in another form than the decimal one is a pattern of bits.
func (f *finder) isUnnoticedNumber(n *ast.BasicLit, value int64) bool {
	isAmount := value >= large && value < math.MaxInt32 && n.Value[0] != '0'
	return isAmount && !f.isDocumented() && !f.isEqual() || value >= someUnits && f.countsUnits() || f.isNanosecond(n) || f.isPortion()
}

// isDocumented says whether the reference has the number on top of the stack, or one of the constants that are calculated with it.
func (f *finder) isDocumented() bool {
	for _, n := range slices.Backward(f.stack) {
		e, ok := n.(ast.Expr)
		if !ok {
			return false
		}
		value := f.pkg.info.Types[e].Value
		if value == nil {
			return false
		}
		if n, exact := constant.Int64Val(constant.ToInt(value)); exact && f.tree.documented.state(n) {
			return true
		}
	}
	return false
}

// isEqual says whether the number on top of the stack is compared for equality, as one that stands for something else.
func (f *finder) isEqual() bool {
	if len(f.stack) < 2 {
		return false
	}
	parent, ok := f.stack[len(f.stack)-2].(*ast.BinaryExpr)
	return ok && (parent.Op == token.EQL || parent.Op == token.NEQ)
}

// countsUnits says whether the number on top of the stack is a factor of a product with a unit of time. Pauses and timeouts are that short;
// minutes and hours are those of calendars, periods and retention, which users count.
func (f *finder) countsUnits() bool {
	for i := len(f.stack) - 2; i >= 0; i-- {
		switch parent := f.stack[i].(type) {
		case *ast.ParenExpr:
		case *ast.BinaryExpr:
			if parent.Op != token.MUL {
				return false
			}
			for _, factor := range []ast.Expr{parent.X, parent.Y} {
				if sel, ok := factor.(*ast.SelectorExpr); ok && isUnit(sel) && sel.Sel.Name != "Minute" && sel.Sel.Name != "Hour" {
					return true
				}
			}
		default:
			return false
		}
	}
	return false
}

// isErrorWithoutRows says whether an expression on top of the stack is "err != nil || len(rows) == 0" in the condition of an if right
// behind the query that has returned both. With an error there are no rows, so the second operand holds as well.
func (f *finder) isErrorWithoutRows(n *ast.BinaryExpr) bool {
	failed, isComparison := n.X.(*ast.BinaryExpr)
	none, isAnother := n.Y.(*ast.BinaryExpr)
	if n.Op != token.LOR || !isComparison || !isAnother || failed.Op != token.NEQ || none.Op != token.EQL ||
		f.text(failed.Y) != "nil" || f.text(none.Y) != "0" {
		return false
	}
	length, isCall := none.X.(*ast.CallExpr)
	query, isQuery := f.before().(*ast.AssignStmt)
	if !isCall || f.text(length.Fun) != "len" || !isQuery || len(query.Lhs) != 2 ||
		!f.isSame(query.Lhs[0], length.Args[0]) || !f.isSame(query.Lhs[1], failed.X) {
		return false
	}
	call, isCall := query.Rhs[0].(*ast.CallExpr)
	if !isCall {
		return false
	}
	sel, isMethod := call.Fun.(*ast.SelectorExpr)
	return isMethod && isOfQueries(f.pkg.info.Uses[sel.Sel])
}

// before is the statement that runs right before the condition of the if on the stack; nil: none.
func (f *finder) before() ast.Stmt {
	for i, n := range slices.Backward(f.stack) {
		found, ok := n.(*ast.IfStmt)
		if !ok {
			continue
		}
		if found.Init != nil || i == 0 {
			return found.Init
		}
		if block, ok := f.stack[i-1].(*ast.BlockStmt); ok {
			at := slices.Index(block.List, ast.Stmt(found)) - 1
			if at > 0 && f.text(block.List[at]) == "cancel()" {
				at--
			}
			if at >= 0 {
				return block.List[at]
			}
		}
		return nil
	}
	return nil
}

// isSame says whether two expressions are the same variable.
func (f *finder) isSame(a, b ast.Expr) bool {
	x, ok := a.(*ast.Ident)
	y, okToo := b.(*ast.Ident)
	return ok && okToo && f.pkg.info.ObjectOf(x) != nil && f.pkg.info.ObjectOf(x) == f.pkg.info.ObjectOf(y)
}

// isNanosecond says whether a number on top of the stack bounds a duration from below or above. One that is compared for equality stands
// for something else, such as 0 for a default.
func (f *finder) isNanosecond(n *ast.BasicLit) bool {
	if !isOf(f.pkg.info.Types[n].Type, "time.Duration") || len(f.stack) < 2 {
		return false
	}
	switch parent := f.stack[len(f.stack)-2].(type) {
	case *ast.BinaryExpr:
		return edges[parent.Op] != ""
	case *ast.CallExpr:
		fun, ok := parent.Fun.(*ast.Ident)
		return ok && (fun.Name == "min" || fun.Name == "max")
	}
	return false
}

// isPortion says whether the number on top of the stack is the value of a constant that bounds the rows of queries.
func (f *finder) isPortion() bool {
	if len(f.stack) < 2 {
		return false
	}
	spec, ok := f.stack[len(f.stack)-2].(*ast.ValueSpec)
	return ok && len(spec.Names) == 1 && f.portions[f.pkg.info.Defs[spec.Names[0]]]
}

// portions finds the constants that a package passes to queries and with which it otherwise only finds out whether a pass was full: the
// next pass takes the rest. Those of other packages may state a limit of theirs.
func portions(p *Package) map[types.Object]bool {
	passed, compared, otherwise := map[types.Object]bool{}, map[types.Object]bool{}, map[types.Object]bool{}
	for _, file := range p.files {
		var stack []ast.Node
		ast.Inspect(file.syntax, func(n ast.Node) bool {
			if n == nil {
				stack = stack[:len(stack)-1]
				return false
			}
			stack = append(stack, n)
			id, ok := n.(*ast.Ident)
			if !ok || p.info.Uses[id] == nil {
				return true
			}
			use := otherwise
			switch parent := stack[len(stack)-2].(type) {
			case *ast.CallExpr:
				if sel, ok := parent.Fun.(*ast.SelectorExpr); ok && isOfQueries(p.info.Uses[sel.Sel]) {
					use = passed
				}
			case *ast.KeyValueExpr:
				if field, ok := parent.Key.(*ast.Ident); ok && id == parent.Value && isOfQueries(p.info.Uses[field]) {
					use = passed
				}
			case *ast.AssignStmt:
				if sel, ok := parent.Lhs[0].(*ast.SelectorExpr); ok && len(parent.Lhs) == 1 && isOfQueries(p.info.Uses[sel.Sel]) {
					use = passed
				}
			case *ast.BinaryExpr:
				if _, ok := directions[parent.Op]; ok {
					use = compared
				}
			}
			use[p.info.Uses[id]] = true
			return true
		})
	}
	for object := range passed {
		_, isConstant := object.(*types.Const)
		if !isConstant || object.Exported() || !compared[object] || otherwise[object] {
			delete(passed, object)
		}
	}
	return passed
}

// sparing finds the parameters of queries whose LIMIT only spares rows, as "JobListPage.PageRows": all callers pass a portion of their
// passes, or one more than they return, or repeat the call until it does nothing.
func (t *Tree) sparing() (map[string]bool, error) {
	bounds := map[string]bool{}
	for _, p := range t.Packages {
		if p.Name == "dbsqlc" || !slices.ContainsFunc(p.Deps, func(dep string) bool { return strings.HasSuffix(dep, "/dbsqlc") }) {
			continue
		}
		if err := t.parse(p); err != nil {
			return nil, err
		}
		portions := portions(p)
		var repeated map[ast.Expr]bool
		note := func(parameter string, value ast.Expr) {
			before, known := bounds[parameter]
			bounds[parameter] = (before || !known) && (repeated[value] || p.isSparing(value, portions))
		}
		for _, file := range p.files {
			repeated = repeatedArgs(file.syntax)
			ast.Inspect(file.syntax, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					sel, ok := n.Fun.(*ast.SelectorExpr)
					if !ok || !isOfQueries(p.info.Uses[sel.Sel]) {
						break
					}
					if method, ok := p.info.Uses[sel.Sel].(*types.Func); ok {
						for i, value := range n.Args {
							note(method.Name()+"."+method.Signature().Params().At(i).Name(), value)
						}
					}
				case *ast.CompositeLit:
					for _, element := range n.Elts {
						if field, ok := element.(*ast.KeyValueExpr); ok {
							note(queryOf(p.info.Types[n].Type)+"."+types.ExprString(field.Key), field.Value)
						}
					}
				case *ast.AssignStmt:
					for i, left := range n.Lhs {
						if sel, ok := left.(*ast.SelectorExpr); ok && isOfQueries(p.info.Uses[sel.Sel]) {
							note(queryOf(p.info.Types[sel.X].Type)+"."+sel.Sel.Name, n.Rhs[min(i, len(n.Rhs)-1)])
						}
					}
				}
				return true
			})
		}
	}
	return bounds, nil
}

// repeatedArgs finds the arguments of the calls that a function named repeat makes until one of them does nothing.
func repeatedArgs(file *ast.File) map[ast.Expr]bool {
	found := map[ast.Expr]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || types.ExprString(call.Fun) != "repeat" {
			return true
		}
		ast.Inspect(call, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				for _, arg := range call.Args {
					found[arg] = true
				}
			}
			return true
		})
		return false
	})
	return found
}

// queryOf is the query whose parameters a struct of sqlc has.
func queryOf(t types.Type) string {
	if t == nil {
		return ""
	}
	name := t.String()
	return strings.TrimSuffix(name[strings.LastIndexByte(name, '.')+1:], "Params")
}

// isSparing says whether a value is a portion, or one more than something else.
func (p *Package) isSparing(value ast.Expr, portions map[types.Object]bool) bool {
	switch value := value.(type) {
	case *ast.Ident:
		return portions[p.info.Uses[value]]
	case *ast.CallExpr:
		return p.info.Types[value.Fun].IsType() && p.isSparing(value.Args[0], portions)
	case *ast.BinaryExpr:
		one, ok := value.Y.(*ast.BasicLit)
		return ok && value.Op == token.ADD && one.Value == "1"
	}
	return false
}

// isOfQueries says whether package dbsqlc declares an object.
func isOfQueries(object types.Object) bool {
	return object != nil && object.Pkg() != nil && object.Pkg().Name() == "dbsqlc"
}

// isUnnoticedNumber says whether one more than the number at i is too little to notice: see the numbers of Go. In "SELECT INTO … LIMIT 1"
// it is a row that is not read, and in "WITH x AS (DELETE … RETURNING 1)" the only value of rows that can only be counted.
func (f *sqlFinder) isUnnoticedNumber(i int, value int64) bool {
	before := f.tokens[max(i-1, 0)].text
	isAmount := value >= large && value < math.MaxInt32 && before != "=" && before != "<>"
	isMark := before == "RETURNING" && (i+1 == len(f.tokens) || f.tokens[i+1].text == ")")
	return isAmount && !f.documented.state(value) || isMark || before == "LIMIT" && (f.isFirstRow(i-1) || f.isCutAgain(i-1))
}

// isFixed says whether WHERE gives a term of the ORDER BY at i one value in all rows. The term chooses an index, and the plans are tested.
func (f *sqlFinder) isFixed(term [2]int, i int) bool {
	depth, where := f.tokens[i].depth, 0
	for n := i - 1; n > 0 && f.tokens[n].depth >= depth; n-- {
		if f.tokens[n].depth > depth {
			continue
		}
		switch f.tokens[n].text {
		case "WHERE":
			where = n
		case "JOIN", ",":
			if where > 0 {
				return false // the value may be that of another table
			}
		case "FROM":
			from, to := f.clause(where + 1)
			return where > 0 && len(f.split(from, to, "OR")) == 1 && f.isOneValue(term, f.split(from, to, "AND"))
		}
	}
	return false
}

// isOneValue says whether conditions give a term of an ORDER BY one value: it is equal to one, or bounded by the same one from below and
// from above, perhaps as the first of several columns, as in "a <= $1 AND (a, b) > ($1, $2)".
func (f *sqlFinder) isOneValue(term [2]int, conditions [][2]int) bool {
	name := f.text(term[0], term[1])
	if f.tokens[term[1]-1].text == "DESC" {
		name = f.text(term[0], term[1]-1)
	}
	var low, high []string
	for _, p := range conditions {
		at := p[0] + 1
		for at < p[1] && (f.tokens[at].depth > f.tokens[p[0]].depth || !slices.Contains(comparisons, f.tokens[at].text)) {
			at++
		}
		if at+1 >= p[1] || f.is(at+1, "ANY") || f.first(p[0], at) != name {
			continue
		}
		right := f.first(at+1, p[1])
		switch f.tokens[at].text {
		case "=":
			return true
		case ">", ">=":
			low = append(low, right)
		case "<", "<=":
			high = append(high, right)
		}
	}
	return slices.ContainsFunc(low, func(value string) bool { return slices.Contains(high, value) })
}

var comparisons = []string{"=", "<", "<=", ">", ">="}

// first is the first column of a row value, or the text if it is none.
func (f *sqlFinder) first(from, to int) string {
	inside, end, ok := f.brackets(from)
	if !ok || end != to-1 {
		return f.text(from, to)
	}
	column := f.split(inside, end, ",")[0]
	return f.text(column[0], column[1])
}

// sparesRows says whether the LIMIT at i, whose operand begins behind it, only spares rows that nobody misses.
func (f *sqlFinder) sparesRows(i int) bool {
	return f.sparing[f.tokens[i+1].text] || f.isFirstRow(i) || f.isCutAgain(i)
}

// isTurn says whether the ORDER BY before the LIMIT at i only says which rows a DELETE … IN (SELECT …) takes first, if its callers repeat
// it until none is left.
func (f *sqlFinder) isTurn(i int) bool {
	if !f.is(i, "LIMIT") || i+1 >= len(f.tokens) || !f.sparing[f.tokens[i+1].text] || !f.is(0, "DELETE") || f.tokens[i].depth != 1 {
		return false
	}
	return f.is(f.bracket(i)-1, "IN")
}

// isCutAgain says whether the LIMIT at i is that of a branch of UNION ALL whose whole has the same LIMIT, without OFFSET: what the branch
// lets through beyond it is cut there. If the whole has an order, the branch has it too.
func (f *sqlFinder) isCutAgain(i int) bool {
	open := f.bracket(i)
	_, end, ok := f.brackets(max(open, 0))
	if open < 0 || !ok || !f.is(max(open-2, 0), "UNION", "ALL") && !f.is(end+1, "UNION", "ALL") {
		return false
	}
	depth := f.tokens[open].depth
	branch, whole := f.tail(open+1, depth+1), f.tail(end+1, depth)
	// In brackets, such as FROM (… UNION ALL …) p ORDER BY p.a LIMIT $1.
	if from := f.bracket(end); whole.limit == "" && from > 0 && f.is(from-1, "FROM") && f.is(whole.end+2, "ORDER", "BY") {
		whole = f.tail(whole.end+1, depth-1)
	}
	return !whole.skips && whole.limit == branch.limit && (whole.order == "" || whole.order == branch.order)
}

// tail is the end of a query.
type tail struct {
	order string // the column of the last term of ORDER BY, and its direction
	limit string
	skips bool // by OFFSET
	end   int  // the token behind it
}

// tail reads the end of the query of a depth that goes on at i.
func (f *sqlFinder) tail(i, depth int) (t tail) {
	for t.end = i; t.end < len(f.tokens) && f.tokens[t.end].depth >= depth && f.tokens[t.end].text != ";"; t.end++ {
		if f.tokens[t.end].depth > depth {
			continue
		}
		switch f.tokens[t.end].text {
		case "ORDER":
			from, to := f.clause(t.end + 2)
			terms := f.split(from, to, ",")
			last := f.text(terms[len(terms)-1][0], to)
			t.order = last[strings.LastIndexByte(last, '.')+1:]
		case "LIMIT":
			t.limit = f.text(f.clause(t.end + 1))
		case "OFFSET":
			t.skips = true
		}
	}
	return t
}

// bracket is the bracket that is open at i; -1: none.
func (f *sqlFinder) bracket(i int) int {
	for n := i - 1; n >= 0; n-- {
		if f.tokens[n].depth < f.tokens[i].depth {
			return n
		}
	}
	return -1
}

// isFirstRow says whether the LIMIT at i only spares rows that nobody reads, because SELECT INTO takes the first one. FOR UPDATE would lock
// the others.
func (f *sqlFinder) isFirstRow(i int) bool {
	depth := f.tokens[i].depth
	for n := i + 1; n < len(f.tokens) && f.tokens[n].depth >= depth && f.tokens[n].text != ";"; n++ {
		if f.tokens[n].depth == depth && f.tokens[n].text == "FOR" {
			return false
		}
	}
	for n := i - 1; n > 0 && f.tokens[n].depth >= depth && f.tokens[n].text != ";"; n-- {
		if f.tokens[n].depth == depth && f.tokens[n].text == "INTO" {
			return f.tokens[n-1].text != "INSERT"
		}
	}
	return false
}

// numbers are those of the reference.
type numbers map[int64]bool

// state says whether the reference has a number, or one beside it: code counts up to one more to say that there are more.
func (d numbers) state(n int64) bool { return d[n] || d[n-1] || d[n+1] }

// numberOfDocs is a number in prose, with spaces between its thousands, and the unit behind it.
var numberOfDocs = regexp.MustCompile(`\b(\d{1,3}(?:[ ,\x{a0}\x{202f}]\d{3})+|\d+)(?:[ \x{a0}\x{202f}]?(KiB|MiB|GiB|s|seconds?|min|minutes?|h|hours?|days?)\b)?`)

// inCode is what code may write for one of a unit.
var inCode = map[string][]int64{
	"KiB": {1 << 10}, "MiB": {1 << 20}, "GiB": {1 << 30}, "s": {1000}, "second": {1000}, "min": {60, 60_000}, "minute": {60, 60_000},
	"h": {3600, 3_600_000}, "hour": {3600, 3_600_000}, "day": {86_400, 86_400_000},
}

// readDocumented reads the numbers of the reference.
func readDocumented(root string) (numbers, error) {
	paths, err := filepath.Glob(filepath.Join(root, "docs", "reference", "*.md"))
	if err != nil {
		return nil, err
	}
	documented := numbers{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, match := range numberOfDocs.FindAllStringSubmatch(string(text), -1) {
			n, err := strconv.ParseInt(strings.NewReplacer(" ", "", ",", "", "\u00a0", "", "\u202f", "").Replace(match[1]), 10, 64)
			if err != nil {
				continue // no number of code
			}
			documented[n] = true
			unit := match[2]
			if len(unit) > 1 {
				unit = strings.TrimSuffix(unit, "s")
			}
			for _, factor := range inCode[unit] {
				documented[n*factor] = true
			}
		}
	}
	return documented, nil
}
