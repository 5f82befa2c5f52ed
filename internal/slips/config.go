package slips

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Config says what a run does.
type Config struct {
	Root    string        // of the repository
	Seed    uint64        // the same seed makes the same slips
	N       int           // how many slips
	IDs     []int         // numbers of the slips to run; empty: all of them
	Only    string        // prefixes of their files, with spaces between them; "": all. queries/jobs.sql stands for what sqlc makes of it
	Kinds   []Kind        // of slips; nil: all
	Tests   []string      // prefixes of the packages whose tests run; nil: all that link the slips
	Workers int           // test processes at a time, each with a PostgreSQL
	Budget  time.Duration // most time for the tests of one slip: what a process takes, or what its tests took by themselves if that is less
	Cache   string        // directory of what is known about the tests; "": ojsd-slips in the user's cache
	DryRun  bool          // only draw
	Log     io.Writer
}

// notSlipped are packages without slips: tools and helpers of tests.
var notSlipped = strings.Fields("cmd/ojsd-bench docs/ migrations internal/dbtest internal/domaintest internal/e2e internal/slips internal/testdir")

// Run makes slips and finds out which of them no test notices.
func Run(ctx context.Context, cfg Config) (report *Report, err error) {
	start := time.Now()
	tree, err := Load(ctx, cfg.Root)
	if err != nil {
		return nil, err
	}
	schema, err := readSchema(tree.Root)
	if err != nil {
		return nil, err
	}
	servers := newServers(cfg.Workers)
	defer func() { err = errors.Join(err, servers.close()) }()

	cfg.N = max(cfg.N, slices.Max(append(slices.Clone(cfg.IDs), 0)))
	drawn, err := tree.drawFrom(ctx, schema, cfg, servers)
	if err != nil {
		return nil, err
	}
	report = &Report{Seed: cfg.Seed}
	if len(cfg.IDs) > 0 {
		drawn = slices.DeleteFunc(drawn, func(s *Slip) bool { return !slices.Contains(cfg.IDs, s.ID) })
	}
	if cfg.DryRun {
		for _, s := range drawn {
			report.Results = append(report.Results, &Result{Slip: s, Change: s.Diff()})
		}
		return report, nil
	}
	_, _ = fmt.Fprintf(cfg.Log, "slips: %d drawn in %s\n", len(drawn), time.Since(start).Round(time.Second))
	packages := slices.DeleteFunc(tree.seeing(drawn), func(p *Package) bool {
		return cfg.Tests != nil && !slices.ContainsFunc(cfg.Tests, func(prefix string) bool { return within(tree.path(p), prefix) })
	})
	coverage, err := tree.cover(ctx, cfg, packages, servers)
	if err != nil {
		return nil, err
	}
	r := &runner{
		tree: tree, servers: servers, budget: cfg.Budget, log: cfg.Log, unseen: readUnseen(unseenText), binaries: map[string]*binary{},
		chooser: &chooser{coverage: coverage, schema: schema, queryOf: map[string][]*query{}, packages: tree.Packages},
	}
	if r.dir, err = os.MkdirTemp("", "ojsd-slips-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	if err := r.prepare(drawn); err != nil {
		return nil, err
	}
	report.Results, err = r.run(ctx, drawn)
	report.Seconds = time.Since(start).Seconds()
	if ctx.Err() != nil { // interrupted: the report has what is known by then
		report.Results = slices.DeleteFunc(report.Results, func(r *Result) bool { return r == nil })
		err = nil
	}
	return report, err
}

// drawFrom draws from all slips of the files that cfg names.
func (t *Tree) drawFrom(ctx context.Context, schema *Schema, cfg Config, servers *servers) ([]*Slip, error) {
	all := schema.slips(t.documented)
	for _, p := range t.Packages {
		path := t.path(p)
		if slices.ContainsFunc(notSlipped, func(prefix string) bool { return within(path, prefix) }) {
			continue
		}
		if !mayMatch(path, cfg.Only) {
			continue
		}
		find := t.goSlips
		if p.Name == "dbsqlc" {
			find = t.querySlips
		}
		found, err := find(p)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	all = slices.DeleteFunc(all, func(s *Slip) bool {
		return !matches(s, cfg.Only) || cfg.Kinds != nil && !slices.Contains(cfg.Kinds, s.Kind)
	})
	check := func(ctx context.Context, s *Slip) (bool, error) {
		server := servers.take()
		defer servers.give(server)
		return server.check(ctx, s)
	}
	return t.Draw(ctx, all, cfg.Seed, cfg.N, check)
}

// within reports whether a path is a directory or is below it.
func within(path, dir string) bool {
	return strings.HasPrefix(path+"/", strings.TrimSuffix(dir, "/")+"/")
}

// mayMatch reports whether a package may have slips in files that begin with one of the prefixes.
func mayMatch(path, only string) bool {
	prefixes := strings.Fields(only)
	return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(prefix string) bool {
		return strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")) || strings.HasPrefix(prefix, path) ||
			strings.HasPrefix(prefix, "queries")
	})
}

func matches(s *Slip, only string) bool {
	generated := strings.NewReplacer("internal/dbsqlc/", "queries/", ".sql.go", ".sql").Replace(s.File)
	prefixes := strings.Fields(only)
	return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(prefix string) bool {
		return strings.HasPrefix(s.File, prefix) || s.query != nil && strings.HasPrefix(generated, prefix)
	})
}

// seeing are the packages whose tests link code with slips. A slip in the database may be seen by any that uses one.
func (t *Tree) seeing(drawn []*Slip) []*Package {
	return slices.DeleteFunc(slices.Clone(t.Packages), func(p *Package) bool {
		deps := t.testDeps(p)
		if strings.HasSuffix(p.ImportPath, "/internal/slips") {
			return true // it links dbtest, and runs no code of the server
		}
		return !slices.ContainsFunc(drawn, func(s *Slip) bool {
			if s.pkg == nil {
				return t.usesDatabase(p)
			}
			return deps[s.pkg.ImportPath]
		})
	})
}

// prepare writes the overlay and reads which query names which object of the schema.
func (r *runner) prepare(drawn []*Slip) (err error) {
	switchable := slices.DeleteFunc(slices.Clone(drawn), (*Slip).needsOwnBuild)
	if r.overlay, err = r.tree.writeOverlay(r.dir, switchable); err != nil {
		return err
	}
	for _, p := range r.tree.Packages {
		if p.Name != "dbsqlc" {
			continue
		}
		byFile, err := r.tree.queries(p)
		if err != nil {
			return err
		}
		for _, queries := range byFile {
			for _, q := range queries {
				for _, name := range schemaName.FindAllString(q.text, -1) {
					r.chooser.queryOf[name] = append(r.chooser.queryOf[name], q)
				}
			}
		}
	}
	return nil
}
