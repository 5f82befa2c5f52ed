package slips

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Tree is the Go code of a repository: the packages of all its modules.
type Tree struct {
	Root     string
	Packages []*Package // in the order of their import paths

	fset       *token.FileSet
	exports    map[string]string // import path → file with the types of the package
	deps       map[string][]string
	documented numbers
}

// Package is a package of the repository. Its fields are those of `go list`.
type Package struct {
	ImportPath, Dir, Name, Export                  string
	DepOnly, Standard                              bool
	GoFiles, TestGoFiles, XTestGoFiles, EmbedFiles []string
	Deps, TestImports, XTestImports                []string
	Module                                         *struct{ Path, Dir string }

	files []*File
	info  *types.Info
}

// File is a file of the repository.
type File struct {
	path   string // in the repository
	abs    string
	src    []byte
	syntax *ast.File // nil: not Go
}

// Load reads the packages of every module below root.
func Load(ctx context.Context, root string) (*Tree, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	t := &Tree{Root: root, fset: token.NewFileSet(), exports: map[string]string{}, deps: map[string][]string{}}
	modules, err := findModules(root)
	if err != nil {
		return nil, err
	}
	for _, dir := range modules {
		if err := t.list(ctx, dir); err != nil {
			return nil, err
		}
	}
	if t.documented, err = readDocumented(root); err != nil {
		return nil, err
	}
	slices.SortFunc(t.Packages, func(a, b *Package) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	return t, nil
}

// findModules returns the directories with a go.mod.
func findModules(root string) (dirs []string, err error) {
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.Name() == "go.mod":
			dirs = append(dirs, filepath.Dir(name))
		}
		return nil
	})
	return dirs, err
}

func (t *Tree) list(ctx context.Context, dir string) error {
	const fields = "ImportPath,Dir,Name,Export,DepOnly,Standard,GoFiles,TestGoFiles,XTestGoFiles,Deps,TestImports,XTestImports,EmbedFiles,Module"
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-export", "-json="+fields, "./...", "os") // which activeFile imports
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list in %s: %w: %s", dir, err, stderr.String())
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &Package{}
		if err := dec.Decode(p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("go list in %s: %w", dir, err)
		}
		// The server's own module comes first. Another module may require older versions, with which the server does not compile.
		if t.exports[p.ImportPath] == "" {
			t.exports[p.ImportPath], t.deps[p.ImportPath] = p.Export, p.Deps
		}
		if !p.DepOnly && !p.Standard {
			t.Packages = append(t.Packages, p)
		}
	}
}

// hasTests says whether `go test` has something to do.
func (p *Package) hasTests() bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 }

// path is the directory of the package in the repository.
func (t *Tree) path(p *Package) string {
	rel, err := filepath.Rel(t.Root, p.Dir)
	if err != nil {
		return p.Dir
	}
	return filepath.ToSlash(rel)
}

// testDeps are the import paths that a test binary of the package links.
func (t *Tree) testDeps(p *Package) map[string]bool {
	all := map[string]bool{p.ImportPath: true}
	for _, dep := range p.Deps {
		all[dep] = true
	}
	for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
		all[imported] = true
		for _, dep := range t.deps[imported] {
			all[dep] = true
		}
	}
	return all
}

// parse reads the files of a package and type-checks it.
func (t *Tree) parse(p *Package) error {
	if p.info != nil {
		return nil
	}
	for _, name := range p.GoFiles {
		abs := filepath.Join(p.Dir, name)
		src, err := os.ReadFile(abs)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(t.fset, abs, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		p.files = append(p.files, &File{path: path.Join(t.path(p), name), abs: abs, src: src, syntax: f})
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
	syntax := make([]*ast.File, 0, len(p.files))
	for _, f := range p.files {
		syntax = append(syntax, f.syntax)
	}
	if errs := t.check(p, syntax, info); len(errs) > 0 {
		return fmt.Errorf("%s does not compile: %w", p.ImportPath, errs[0])
	}
	p.info = info
	return nil
}

// check type-checks files as the package.
func (t *Tree) check(p *Package, files []*ast.File, info *types.Info) (errs []types.Error) {
	lookup := func(path string) (io.ReadCloser, error) {
		if file := t.exports[path]; file != "" {
			return os.Open(file)
		}
		return nil, fmt.Errorf("no types of %s", path)
	}
	cfg := types.Config{
		Importer: importer.ForCompiler(t.fset, "gc", lookup),
		Error: func(err error) {
			if e, ok := errors.AsType[types.Error](err); ok {
				errs = append(errs, e)
			}
		},
	}
	_, _ = cfg.Check(p.ImportPath, t.fset, files, info) // Error has all of them
	return errs
}
