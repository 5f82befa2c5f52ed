package slips

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// function is a function or method of a file, which a slip copies.
type function struct {
	syntax *ast.FuncDecl
	name   string
}

// goSlips finds the slips that the rules permit in the code of a package, in the order of the files. Generated code has none.
func (t *Tree) goSlips(p *Package) ([]*Slip, error) {
	if err := t.parse(p); err != nil {
		return nil, err
	}
	var found []*Slip
	bounding := portions(p)
	for _, file := range p.files {
		if ast.IsGenerated(file.syntax) {
			continue
		}
		for _, d := range file.syntax.Decls {
			f := finder{tree: t, pkg: p, file: file, name: "(package level)", clocks: map[types.Object]bool{}, portions: bounding}
			if decl, ok := d.(*ast.FuncDecl); ok {
				if decl.Body == nil {
					continue
				}
				f.name = funcName(decl)
				if decl.Name.Name != "init" || decl.Recv != nil {
					f.decl = &function{decl, f.name}
				}
			}
			if f.name == "(package level)" {
				f.find(d)
			} else {
				f.find(d.(*ast.FuncDecl).Body)
			}
			found = append(found, f.found...)
		}
	}
	return found, nil
}

func funcName(decl *ast.FuncDecl) string {
	if decl.Recv == nil {
		return decl.Name.Name
	}
	return types.ExprString(decl.Recv.List[0].Type) + "." + decl.Name.Name
}

// finder looks for slips in one declaration.
type finder struct {
	tree  *Tree
	pkg   *Package
	file  *File
	name  string
	decl  *function
	stack []ast.Node
	found []*Slip

	clocks   map[types.Object]bool // variables of the declaration that have the reading of a clock
	portions map[types.Object]bool // of the package
}

func (f *finder) find(root ast.Node) {
	ast.Inspect(root, func(n ast.Node) bool {
		if n == nil {
			f.stack = f.stack[:len(f.stack)-1]
			return false
		}
		if _, ok := n.(*ast.ImportSpec); ok || f.skipped(n) {
			return false
		}
		f.stack = append(f.stack, n)
		f.visit(n)
		return true
	})
}

func (f *finder) visit(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		f.comparison(n)
		f.conjunct(n)
	case *ast.BasicLit:
		f.literal(n)
	case *ast.SelectorExpr:
		f.unit(n)
	case *ast.CallExpr:
		f.arguments(n)
		f.minMax(n)
	case *ast.CompositeLit:
		f.fields(n)
	case *ast.AssignStmt:
		f.noteClock(n)
		if n.Tok == token.ASSIGN || n.Tok == token.DEFINE {
			f.neighbours(n.Rhs)
		}
	case *ast.BlockStmt:
		f.statements(n.List)
	case *ast.CaseClause:
		f.statements(n.Body)
	case *ast.CommClause:
		f.statements(n.Body)
	case *ast.ReturnStmt:
		f.errorResult(n)
	case *ast.ForStmt:
		f.forLoop(n)
	case *ast.RangeStmt:
		f.rangeLoop(n)
	}
}

func (f *finder) offset(p token.Pos) int { return f.tree.fset.Position(p).Offset }

func (f *finder) text(n ast.Node) string {
	return string(f.file.src[f.offset(n.Pos()):f.offset(n.End())])
}

// add notes that the source from a to b may become text.
func (f *finder) add(kind Kind, a, b token.Pos, text string) {
	start, end := f.offset(a), f.offset(b)
	line := f.tree.fset.Position(a).Line
	f.found = append(f.found, &Slip{
		File: f.file.path, Line: line, Func: f.name, Kind: kind, Old: string(f.file.src[start:end]), New: text,
		start: start, end: end, pkg: f.pkg, file: f.file, decl: f.decl, reach: f.reached(line), key: functionName{f.file.path, f.name},
	})
}

// reached is the code that a test has to run to see the slip. A declaration of the package has no coverage of its own: it is where
// its names are used, or else the whole package.
func (f *finder) reached(line int) (spans []span) {
	if f.decl != nil {
		line = f.measured(line)
		return []span{{f.file.path, line, line}}
	}
	names := map[types.Object]bool{}
	for _, n := range f.stack {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for _, id := range spec.Names {
				names[f.pkg.info.Defs[id]] = true
			}
		}
	}
	for id, object := range f.pkg.info.Uses {
		if names[object] {
			at := f.tree.fset.Position(id.Pos())
			spans = append(spans, span{path.Join(f.tree.path(f.pkg), filepath.Base(at.Filename)), at.Line, at.Line})
		}
	}
	if len(spans) == 0 {
		for _, file := range f.pkg.files {
			spans = append(spans, span{file.path, 1, 1 << 30})
		}
	}
	return spans
}

// measured is the line that stands for one in the measurement of coverage. Conditions of cases have no counter of their own: the line of
// the switch stands for them.
func (f *finder) measured(line int) int {
	for i := len(f.stack) - 1; i > 1; i-- {
		n := f.stack[len(f.stack)-1]
		switch clause := f.stack[i].(type) {
		case *ast.CaseClause:
			if n.Pos() < clause.Colon {
				line = f.tree.fset.Position(f.stack[i-2].Pos()).Line
			}
		case *ast.CommClause:
			if n.Pos() < clause.Colon {
				line = f.tree.fset.Position(f.stack[i-2].Pos()).Line
			}
		}
	}
	return line
}

var edges = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}

var directions = map[token.Token]string{
	token.LSS: ">", token.LEQ: ">=", token.GTR: "<", token.GEQ: "<=", token.EQL: "!=", token.NEQ: "==",
}

func (f *finder) comparison(n *ast.BinaryExpr) {
	end := n.OpPos + token.Pos(len(n.Op.String()))
	if text, ok := edges[n.Op]; ok && !f.isClock(n.X) && !f.isClock(n.Y) {
		f.add(Edge, n.OpPos, end, text)
	}
	if text, ok := directions[n.Op]; ok {
		f.add(Direction, n.OpPos, end, text)
	}
}

func (f *finder) conjunct(n *ast.BinaryExpr) {
	if n.Op != token.LAND && n.Op != token.LOR {
		return
	}
	x, y := f.text(n.X), f.text(n.Y)
	f.add(Conjunct, n.Pos(), n.End(), x)
	if !f.isErrorWithoutRows(n) {
		f.add(Conjunct, n.Pos(), n.End(), y)
	}
	f.add(Conjunct, n.Y.Pos(), n.Y.End(), "!("+y+")")
	if inner, ok := n.X.(*ast.BinaryExpr); !ok || inner.Op != n.Op {
		f.add(Conjunct, n.X.Pos(), n.X.End(), "!("+x+")")
	}
}

// literal makes a number greater by one. Modes of files are no numbers.
func (f *finder) literal(n *ast.BasicLit) {
	if n.Kind != token.INT || strings.HasPrefix(n.Value, "0o") || len(n.Value) > 1 && n.Value[0] == '0' && n.Value[1] != 'x' {
		return
	}
	value, err := strconv.ParseInt(n.Value, 0, 64)
	if err != nil || f.isUnnoticedNumber(n, value) {
		return
	}
	f.add(Constant, n.Pos(), n.End(), strconv.FormatInt(value+1, 10))
}

var units = map[string]string{
	"Nanosecond": "Microsecond", "Microsecond": "Millisecond", "Millisecond": "Second", "Second": "Minute",
	"Minute": "Hour", "Hour": "Minute",
}

func (f *finder) unit(n *ast.SelectorExpr) {
	if isUnit(n) {
		f.add(Constant, n.Sel.Pos(), n.Sel.End(), units[n.Sel.Name])
	}
}

func isUnit(n *ast.SelectorExpr) bool {
	pkg, ok := n.X.(*ast.Ident)
	return ok && pkg.Name == "time" && units[n.Sel.Name] != ""
}

func (f *finder) arguments(n *ast.CallExpr) {
	if n.Ellipsis.IsValid() || f.isLog(n) {
		return
	}
	if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "make" || id.Name == "min" || id.Name == "max") {
		return // a capacity, or no order
	}
	f.neighbours(n.Args)
}

// neighbours exchanges two expressions of one type that stand side by side.
func (f *finder) neighbours(list []ast.Expr) {
	for i := 0; i+1 < len(list); i++ {
		if a, b := list[i], list[i+1]; f.exchangeable(a, b) {
			between := string(f.file.src[f.offset(a.End()):f.offset(b.Pos())])
			f.add(Swap, a.Pos(), b.End(), f.text(b)+between+f.text(a))
		}
	}
}

func (f *finder) fields(n *ast.CompositeLit) {
	for i := 0; i+1 < len(n.Elts); i++ {
		a, ok := n.Elts[i].(*ast.KeyValueExpr)
		b, okToo := n.Elts[i+1].(*ast.KeyValueExpr)
		if !ok || !okToo || !f.exchangeable(a.Value, b.Value) {
			continue
		}
		between := string(f.file.src[f.offset(a.Value.End()):f.offset(b.Value.Pos())])
		f.add(Swap, a.Value.Pos(), b.Value.End(), f.text(b.Value)+between+f.text(a.Value))
	}
}

func (f *finder) exchangeable(a, b ast.Expr) bool {
	x, y := f.pkg.info.Types[a], f.pkg.info.Types[b]
	if x.Type != nil && (strings.HasSuffix(x.Type.String(), "attribute.KeyValue") || strings.HasSuffix(x.Type.String(), "slog.Attr")) {
		return false // attributes have no order
	}
	return x.IsValue() && y.IsValue() && !x.IsNil() && !y.IsNil() && types.Identical(x.Type, y.Type) && f.text(a) != f.text(b)
}

// statements leaves one out.
func (f *finder) statements(list []ast.Stmt) {
	for _, s := range list {
		if f.leftOutUnnoticed(s) {
			continue
		}
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || isBlank(s.Lhs) {
				continue
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt, *ast.ReturnStmt, *ast.BranchStmt:
		default:
			continue
		}
		f.add(Statement, s.Pos(), s.End(), "{}")
	}
}

func isBlank(list []ast.Expr) bool {
	for _, e := range list {
		if id, ok := e.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

func (f *finder) errorResult(n *ast.ReturnStmt) {
	if len(n.Results) == 0 {
		return
	}
	last := n.Results[len(n.Results)-1]
	value := f.pkg.info.Types[last]
	if !value.IsValue() || value.IsNil() || !types.Implements(value.Type, errorType) {
		return
	}
	if _, ok := last.(*ast.CallExpr); ok && len(n.Results) == 1 && !f.makesError(last.(*ast.CallExpr)) {
		return // a call that goes on; leaving it out is another slip
	}
	f.add(Error, last.Pos(), last.End(), "nil")
}

var errorType = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)

func (f *finder) makesError(n *ast.CallExpr) bool {
	text := f.text(n.Fun)
	return strings.HasPrefix(text, "fmt.") || strings.HasPrefix(text, "errors.")
}

func (f *finder) minMax(n *ast.CallExpr) {
	id, ok := n.Fun.(*ast.Ident)
	if !ok {
		return
	}
	if _, ok := f.pkg.info.Uses[id].(*types.Builtin); !ok {
		return
	}
	switch id.Name {
	case "min":
		f.add(MinMax, id.Pos(), id.End(), "max")
	case "max":
		f.add(MinMax, id.Pos(), id.End(), "min")
	}
}

// forLoop lets `i < n` end one early.
func (f *finder) forLoop(n *ast.ForStmt) {
	if cond, ok := n.Cond.(*ast.BinaryExpr); ok && (cond.Op == token.LSS || cond.Op == token.LEQ) && n.Post != nil {
		f.add(Loop, cond.Y.Pos(), cond.Y.End(), f.text(cond.Y)+"-1")
	}
}

func (f *finder) rangeLoop(n *ast.RangeStmt) {
	value := f.pkg.info.Types[n.X]
	if value.Type == nil {
		return
	}
	x := f.text(n.X)
	switch u := value.Type.Underlying().(type) {
	case *types.Basic:
		if u.Info()&types.IsInteger != 0 {
			f.add(Loop, n.X.Pos(), n.X.End(), "max("+x+"-1, 0)")
		}
	case *types.Slice:
		f.add(Loop, n.X.Pos(), n.X.End(), "("+x+")[:max(len("+x+")-1, 0)]")
	}
}

// query is a statement of queries/, as a constant of the code that sqlc generates.
type query struct {
	name       string // as sqlc names its method
	constant   string
	decl       int // where the declaration begins
	start, end int // of the literal
	text       string
	reach      span     // the body of the method
	parameters []string // of the method or of its struct, in the order of $1, $2 …
}

// routine is a function of the database, from a migration.
type routine struct {
	name       string // ojs.limit_admit
	signature  string // with its arguments
	file       *File
	start, end int // of the statement that creates it
}

// object is something of the schema that may call functions: a function, a view, a table with its defaults and triggers.
type object struct {
	name string
	text string
}

// queries finds the constants of sqlc in a generated package.
func (t *Tree) queries(p *Package) (found map[*File][]*query, err error) {
	if err := t.parse(p); err != nil {
		return nil, err
	}
	found = map[*File][]*query{}
	for _, file := range p.files {
		methods, parameters := map[string]span{}, map[string][]string{}
		for _, d := range file.syntax.Decls {
			if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil {
				methods[m.Name.Name] = span{file.path, t.fset.Position(m.Body.Pos()).Line, t.fset.Position(m.End()).Line}
				parameters[m.Name.Name] = parametersOf(m)
			}
		}
		for _, d := range file.syntax.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok || decl.Tok != token.CONST || len(decl.Specs) != 1 {
				continue
			}
			spec := decl.Specs[0].(*ast.ValueSpec)
			value, ok := spec.Values[0].(*ast.BasicLit)
			if !ok || !strings.HasPrefix(value.Value, "`-- name: ") {
				continue
			}
			name := strings.Fields(value.Value)[2]
			found[file] = append(found[file], &query{
				name: name, constant: spec.Names[0].Name, text: strings.Trim(value.Value, "`"), reach: methods[name], parameters: parameters[name], decl: t.fset.Position(decl.Pos()).Offset,
				start: t.fset.Position(value.Pos()).Offset, end: t.fset.Position(value.End()).Offset,
			})
		}
	}
	return found, nil
}

// parametersOf returns the names of what a method of sqlc passes to the database behind the context and the text.
func parametersOf(method *ast.FuncDecl) (names []string) {
	ast.Inspect(method.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || names != nil || len(call.Args) < 3 {
			return true
		}
		for _, arg := range call.Args[2:] {
			name := types.ExprString(arg)
			names = append(names, name[strings.LastIndexByte(name, '.')+1:])
		}
		return false
	})
	return names
}

// querySlips finds the slips of the queries of a package. They are reported at the generated constant.
func (t *Tree) querySlips(p *Package) (all []*Slip, err error) {
	found, err := t.queries(p)
	if err != nil {
		return nil, err
	}
	bounds, err := t.sparing()
	if err != nil {
		return nil, err
	}
	for _, file := range p.files {
		for _, q := range found[file] {
			sparing := map[string]bool{}
			for n, parameter := range q.parameters {
				sparing[fmt.Sprintf("$%d", n+1)] = bounds[q.name+"."+parameter]
			}
			for _, e := range sqlEdits(q.text, t.documented, sparing) {
				start, end := q.start+1+e.start, q.start+1+e.end
				all = append(all, &Slip{
					File: file.path, Line: lineOf(file, start), Func: q.name, Kind: e.kind, Old: string(file.src[start:end]), New: e.text,
					start: start, end: end, pkg: p, file: file, query: q, reach: []span{q.reach}, key: functionName{file.path, q.name},
				})
			}
		}
	}
	return all, nil
}

func lineOf(f *File, offset int) int { return 1 + strings.Count(string(f.src[:offset]), "\n") }

var (
	createFunction    = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?FUNCTION (ojs\.\w+)`)
	functionSignature = regexp.MustCompile(`(?s)^CREATE (?:OR REPLACE )?FUNCTION (ojs\.\w+\(.*?\))\s+(?:RETURNS|LANGUAGE)\b`)
	createObject      = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?(?:FUNCTION|VIEW|TABLE|UNLOGGED TABLE|CONSTRAINT TRIGGER|TRIGGER) `)
	objectName        = regexp.MustCompile(`^CREATE (?:OR REPLACE )?(?:(?:FUNCTION|VIEW|TABLE|UNLOGGED TABLE) (ojs\.\w+)|(?:CONSTRAINT )?TRIGGER \w+ [^;]*? ON (ojs\.\w+))`)
	schemaName        = regexp.MustCompile(`\bojs\.\w+`)
)

// Schema is what the migrations create.
type Schema struct {
	files    []*File
	routines []*routine
	objects  []object
}

// readSchema reads the part "Up" of each migration. Of a function that a later one replaces it keeps the last, as a database does.
func readSchema(root string) (*Schema, error) {
	paths, err := filepath.Glob(filepath.Join(root, "migrations", "*.sql"))
	if err != nil {
		return nil, err
	}
	s := &Schema{}
	for _, path := range paths {
		src, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		file := &File{path: "migrations/" + filepath.Base(path), abs: path, src: src}
		s.files = append(s.files, file)
		s.read(file)
	}
	return s, nil
}

func (s *Schema) read(file *File) {
	up, _, _ := strings.Cut(string(file.src), "-- +goose Down")
	for _, at := range createObject.FindAllStringIndex(up, -1) {
		end := len(up)
		mark := ";\n"
		if isFunction(up[at[0]:]) {
			mark = "-- +goose StatementEnd"
		}
		if n := strings.Index(up[at[0]:], mark); n >= 0 {
			end = at[0] + n
		}
		text := up[at[0]:end]
		name := objectName.FindStringSubmatch(text)
		if name == nil {
			continue
		}
		s.objects = append(s.objects, object{name[1] + name[2], text})
		if isFunction(text) && name[1] != "ojs.schema_version" {
			signature := functionSignature.FindStringSubmatch(text)[1]
			s.routines = slices.DeleteFunc(s.routines, func(earlier *routine) bool { return earlier.signature == signature })
			s.routines = append(s.routines, &routine{name[1], signature, file, at[0], end})
		}
	}
}

func isFunction(text string) bool {
	at := createFunction.FindStringIndex(text)
	return at != nil && at[0] == 0
}

// slips finds the slips in the functions of the database.
func (s *Schema) slips(documented numbers) (all []*Slip) {
	for _, r := range s.routines {
		text := string(r.file.src[r.start:r.end])
		body := max(strings.Index(text, "$$"), 0)
		for _, e := range sqlEdits(text[body:], documented, nil) {
			start, end := r.start+body+e.start, r.start+body+e.end
			all = append(all, &Slip{
				File: r.file.path, Line: lineOf(r.file, start), Func: r.name, Kind: e.kind, Old: string(r.file.src[start:end]), New: e.text,
				start: start, end: end, file: r.file, routine: r, key: functionName{r.file.path, r.name},
			})
		}
	}
	return all
}

// statement creates the function with the slip in it.
func (r *routine) statement(s *Slip) string {
	src := r.file.src
	text := string(src[r.start:s.start]) + s.New + string(src[s.end:r.end])
	return createFunction.ReplaceAllString(text, "CREATE OR REPLACE FUNCTION $1")
}

// callers says how many steps lie between a function of the database and each object of the schema that leads to it: 1 for one whose
// text names it. A table leads to the functions of its defaults and triggers.
func (s *Schema) callers(name string) map[string]int {
	steps := map[string]int{name: 0}
	for next := []string{name}; len(next) > 0; {
		var found []string
		for _, called := range next {
			for _, o := range s.objects {
				if _, known := steps[o.name]; !known && names(o.text, called) {
					steps[o.name] = steps[called] + 1
					found = append(found, o.name)
				}
			}
		}
		next = found
	}
	return steps
}

// names says whether a text names an object of the schema.
func names(text, name string) bool { return slices.Contains(schemaName.FindAllString(text, -1), name) }
