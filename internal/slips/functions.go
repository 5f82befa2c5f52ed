package slips

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// query is a statement of queries/, as a constant of the code that sqlc generates.
type query struct {
	name       string // as sqlc names its method
	constant   string
	decl       int // where the declaration begins
	start, end int // of the literal
	text       string
	reach      span // the body of the method
}

// routine is a function of the database, from a migration.
type routine struct {
	name       string // ojs.limit_admit
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
		methods := map[string]span{}
		for _, d := range file.syntax.Decls {
			if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil {
				methods[m.Name.Name] = span{file.path, t.fset.Position(m.Body.Pos()).Line, t.fset.Position(m.End()).Line}
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
				name: name, constant: spec.Names[0].Name, text: strings.Trim(value.Value, "`"), reach: methods[name], decl: t.fset.Position(decl.Pos()).Offset,
				start: t.fset.Position(value.Pos()).Offset, end: t.fset.Position(value.End()).Offset,
			})
		}
	}
	return found, nil
}

// querySlips finds the slips of the queries of a package. They are reported at the generated constant.
func (t *Tree) querySlips(p *Package) (all []*Slip, err error) {
	found, err := t.queries(p)
	if err != nil {
		return nil, err
	}
	for _, file := range p.files {
		for _, q := range found[file] {
			for _, e := range sqlEdits(q.text) {
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
	createFunction = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?FUNCTION (ojs\.\w+)`)
	createObject   = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?(?:FUNCTION|VIEW|TABLE|UNLOGGED TABLE|CONSTRAINT TRIGGER|TRIGGER) `)
	objectName     = regexp.MustCompile(`^CREATE (?:OR REPLACE )?(?:(?:FUNCTION|VIEW|TABLE|UNLOGGED TABLE) (ojs\.\w+)|(?:CONSTRAINT )?TRIGGER \w+ [^;]*? ON (ojs\.\w+))`)
	schemaName     = regexp.MustCompile(`\bojs\.\w+`)
)

// Schema is what the migrations create.
type Schema struct {
	files    []*File
	routines []*routine
	objects  []object
}

// readSchema reads the part "Up" of each migration.
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
			s.routines = append(s.routines, &routine{name[1], file, at[0], end})
		}
	}
}

func isFunction(text string) bool {
	at := createFunction.FindStringIndex(text)
	return at != nil && at[0] == 0
}

// slips finds the slips in the functions of the database.
func (s *Schema) slips() (all []*Slip) {
	for _, r := range s.routines {
		text := string(r.file.src[r.start:r.end])
		body := max(strings.Index(text, "$$"), 0)
		for _, e := range sqlEdits(text[body:]) {
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
