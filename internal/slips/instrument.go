package slips

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// activeVariable names the slip that is in force in a test process and in those that it starts.
const activeVariable = "SLIP_ACTIVE"

// activeFile is added to every package with slips. Package variables that call functions are initialised after it.
const activeFile = "package %s\n\nimport \"os\"\n\nvar slipActive = os.Getenv(\"" + activeVariable + "\")\n"

// instrumented is a file with slips. A function keeps its code and gets a copy for each slip, which it calls instead while that one is in
// force. A query becomes a variable. A slip outside of functions replaces its text for good.
func (t *Tree) instrumented(file *File, list []*Slip) string {
	var edits []edit
	var copies strings.Builder
	queries := map[*query][]*Slip{}
	for _, s := range list {
		switch {
		case s.query != nil:
			queries[s.query] = append(queries[s.query], s)
		case s.decl != nil:
			edits = append(edits, t.dispatch(s)...)
			copies.WriteString("\n" + t.copied(s) + "\n")
		default:
			edits = append(edits, edit{s.start, s.end, s.New})
		}
	}
	for q, list := range queries {
		edits = append(edits, edit{q.decl, q.decl + len("const"), "var"}, edit{q.start, q.end, chosenText(q, list)})
	}
	return apply(file.src, edits) + copies.String()
}

type edit struct {
	start, end int
	text       string
}

// apply makes edits of distinct places; an edit that occurs twice is made once, and insertions at one place follow one another.
func apply(src []byte, edits []edit) string {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.start - b.start })
	edits = slices.Compact(edits)
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.Write(src[at:e.start])
		b.WriteString(e.text)
		at = e.end
	}
	b.Write(src[at:])
	return b.String()
}

func chosenText(q *query, list []*Slip) string {
	var b strings.Builder
	b.WriteString("func() string {\n\tswitch slipActive {\n")
	for _, s := range list {
		fmt.Fprintf(&b, "\tcase \"%d\":\n\t\treturn `%s`\n", s.ID, s.changedQuery())
	}
	fmt.Fprintf(&b, "\t}\n\treturn `%s`\n}()", q.text)
	return b.String()
}

// changedQuery is the text of the query with the slip in it.
func (s *Slip) changedQuery() string {
	from := s.query.start + 1
	return s.query.text[:s.start-from] + s.New + s.query.text[s.end-from:]
}

// dispatch lets a function call its copy. Parameters without a name get one.
func (t *Tree) dispatch(s *Slip) (edits []edit) {
	decl := s.decl.syntax
	offset := func(p token.Pos) int { return t.fset.Position(p).Offset }
	named := func(list *ast.FieldList, prefix string) (names []string) {
		if list == nil {
			return nil
		}
		for n, field := range list.List {
			variadic := ""
			if _, ok := field.Type.(*ast.Ellipsis); ok {
				variadic = "..."
			}
			if len(field.Names) == 0 {
				name := fmt.Sprintf("%s%d", prefix, n)
				edits = append(edits, edit{offset(field.Pos()), offset(field.Pos()), name + " "})
				names = append(names, name+variadic)
			}
			for m, id := range field.Names {
				name := id.Name
				if name == "_" {
					name = fmt.Sprintf("%s%d_%d", prefix, n, m)
					edits = append(edits, edit{offset(id.Pos()), offset(id.End()), name})
				}
				names = append(names, name+variadic)
			}
		}
		return names
	}
	call := copyName(s)
	if receiver := named(decl.Recv, "slipReceiver"); len(receiver) > 0 {
		call = receiver[0] + "." + call
	}
	args := named(decl.Type.Params, "slipArg")
	if types := named(decl.Type.TypeParams, ""); len(types) > 0 {
		call += "[" + strings.Join(types, ", ") + "]"
	}
	call += "(" + strings.Join(args, ", ") + ")"
	if decl.Type.Results.NumFields() > 0 {
		call = "return " + call
	} else {
		call += "; return"
	}
	at := offset(decl.Body.Lbrace) + 1
	return append(edits, edit{at, at, fmt.Sprintf(" if slipActive == \"%d\" { %s };", s.ID, call)})
}

func copyName(s *Slip) string { return fmt.Sprintf("slip%d_%s", s.ID, s.decl.syntax.Name.Name) }

// copied is the function with the slip in it.
func (t *Tree) copied(s *Slip) string {
	decl := s.decl.syntax
	start, end := t.fset.Position(decl.Pos()).Offset, t.fset.Position(decl.End()).Offset
	name := t.fset.Position(decl.Name.Pos()).Offset
	edits := []edit{{name - start, name - start + len(decl.Name.Name), copyName(s)}, {s.start - start, s.end - start, s.New}}
	return apply(s.file.src[start:end], edits)
}

// notCompiled finds the slips of a package that do not compile. Those in functions are checked together, the others one by one.
func (t *Tree) notCompiled(p *Package, list []*Slip) (bad []*Slip) {
	var inFunctions []*Slip
	for _, s := range list {
		switch {
		case s.decl == nil:
			if len(t.typeErrors(p, []*Slip{s})) > 0 {
				bad = append(bad, s)
			}
		case !parses(t.copied(s)):
			bad = append(bad, s)
		default:
			inFunctions = append(inFunctions, s)
		}
	}
	for len(inFunctions) > 0 {
		broken := t.typeErrors(p, inFunctions)
		if len(broken) == 0 {
			break
		}
		bad = append(bad, broken...)
		inFunctions = slices.DeleteFunc(inFunctions, func(s *Slip) bool { return slices.Contains(broken, s) })
	}
	return bad
}

func parses(decl string) bool {
	_, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+decl, parser.SkipObjectResolution)
	return err == nil
}

// typeErrors compiles a package with slips and returns those in whose copies the errors are; for any other error, all.
func (t *Tree) typeErrors(p *Package, list []*Slip) (broken []*Slip) {
	var files []*ast.File
	owners := map[*ast.FuncDecl]*Slip{}
	add := func(name, src string, own []*Slip) bool {
		f, err := parser.ParseFile(t.fset, name, src, parser.SkipObjectResolution)
		if err != nil {
			return false
		}
		files = append(files, f)
		for _, d := range f.Decls {
			for _, s := range own {
				if decl, ok := d.(*ast.FuncDecl); ok && s.decl != nil && decl.Name.Name == copyName(s) {
					owners[decl] = s
				}
			}
		}
		return true
	}
	ok := add("slips.go", fmt.Sprintf(activeFile, p.Name), nil)
	for _, file := range p.files {
		own := slices.DeleteFunc(slices.Clone(list), func(s *Slip) bool { return s.file != file })
		ok = ok && add(file.abs, t.instrumented(file, own), own)
	}
	if !ok {
		return list
	}
	for _, e := range t.check(p, files, nil) {
		owner := list
		for decl, s := range owners {
			if decl.Pos() <= e.Pos && e.Pos < decl.End() {
				owner = []*Slip{s}
			}
		}
		broken = append(broken, owner...)
	}
	return broken
}

// writeOverlay writes the instrumented files and the file for `go -overlay` into a directory.
func (t *Tree) writeOverlay(dir string, list []*Slip) (path string, err error) {
	replace := map[string]string{}
	write := func(abs, src string) error {
		file := filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		replace[abs] = file
		return os.WriteFile(file, []byte(src), 0o600)
	}
	byFile := map[*File][]*Slip{}
	for _, s := range list {
		if s.pkg == nil {
			continue
		}
		byFile[s.file] = append(byFile[s.file], s)
		if active := filepath.Join(s.pkg.Dir, "zz_slip_active.go"); replace[active] == "" {
			if err := write(active, fmt.Sprintf(activeFile, s.pkg.Name)); err != nil {
				return "", err
			}
		}
	}
	for file, own := range byFile {
		if err := write(file.abs, t.instrumented(file, own)); err != nil {
			return "", err
		}
	}
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(map[string]any{"Replace": replace}); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, b.Bytes(), 0o600)
}
