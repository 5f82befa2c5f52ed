// Package slips makes small mistakes in the code of this repository, one at a time, and reports those that no test notices
// (`make slips`). It owns the rules by which mistakes are made, the choice of tests, and the report. It never changes the tree:
// mistakes are compiled in through `go test -overlay`, and mistakes in functions of the database are made in a database of the run.
//
// In the order of a run:
//   - tree.go reads the modules of the repository and type-checks their packages.
//   - goslips.go and sqlslips.go find every slip that the rules permit. unnoticed.go leaves out the kinds that no user can notice.
//   - choose.go takes N of them, by SEED. A slip that does not compile is skipped.
//   - instrument.go writes the overlay. All drawn slips are compiled into the same test binaries, each in a copy of its function;
//     a variable of the environment chooses the one that is in force. So a slip costs no compilation.
//   - coverage.go knows which test runs which code. It runs every test by itself once and keeps the result for a package
//     until the code changes that its tests link. A test that is new or changed is measured alone.
//   - choose.go also puts the tests that reach a slip into an order, the likely and cheap ones first.
//   - run.go runs them until one fails.
//   - report.go writes the table and the JSON. unseen.txt has the slips that change nothing that anybody can see.
package slips

import (
	"bytes"
	"fmt"
	"strings"
)

// Kind is what a slip does.
type Kind string

// The kinds of slips. A draw takes about as many of each.
const (
	Edge        Kind = "edge"        // < for <=
	Direction   Kind = "direction"   // < for >, == for !=
	Conjunct    Kind = "conjunct"    // an operand of && or || is left out or negated
	Constant    Kind = "constant"    // one off, or in another unit
	Swap        Kind = "swap"        // two arguments or fields of one type are exchanged
	Statement   Kind = "statement"   // a statement is left out
	Error       Kind = "error"       // nil is returned for an error
	MinMax      Kind = "minmax"      // min for max
	Loop        Kind = "loop"        // a loop ends one early
	SQLEdge     Kind = "sql-edge"    // < for <=
	SQLConjunct Kind = "sql-where"   // a conjunct of WHERE, ON, IF or WHEN holds always
	SQLOrder    Kind = "sql-order"   // a term of ORDER BY is left out or turned
	SQLDefault  Kind = "sql-default" // COALESCE has another default or none
	SQLLock     Kind = "sql-lock"    // without FOR UPDATE or SKIP LOCKED
	SQLColumn   Kind = "sql-column"  // a column of INSERT or SET is left out or gets the value of its neighbour
	SQLBound    Kind = "sql-bound"   // LIMIT, LEAST and GREATEST do not bound
	SQLConstant Kind = "sql-const"   // one off, or in another unit
	SQLCall     Kind = "sql-call"    // PERFORM is left out
)

// Slip is one mistake: the bytes from start to end of a file are replaced by New.
type Slip struct {
	ID   int    `json:"id"`   // its number in the draw, from 1
	File string `json:"file"` // in the repository
	Line int    `json:"line"`
	Func string `json:"func"` // function, method, query or function of the database
	Kind Kind   `json:"kind"`
	Old  string `json:"old"`
	New  string `json:"new"`

	start, end int
	pkg        *Package // nil: a function of the database
	file       *File
	decl       *function    // the function that is copied; nil: the whole file is replaced
	query      *query       // a constant of sqlc
	routine    *routine     // a function of the database
	reach      []span       // a test that runs none of it cannot see the slip
	key        functionName // for the draw
}

// span is a range of lines of a file of the repository.
type span struct {
	path     string
	from, to int
}

type functionName struct{ file, name string }

// Identity names the slip in unseen.txt. It has no line, so that it holds when code moves.
func (s *Slip) Identity() string {
	src := s.file.src
	left, right := string(src[max(0, s.start-besides):s.start]), string(src[s.end:min(len(src), s.end+besides)])
	left = strings.TrimLeft(left[strings.LastIndexByte(left, '\n')+1:], "\t ")
	right, _, _ = strings.Cut(right, "\n")
	before, after := s.difference()
	return fmt.Sprintf("%s %s: %s[%s => %s]%s", s.File, s.Func, left, before, after, strings.TrimRight(right, "\t "))
}

// besides is how much of the line stands on each side of the change in Identity.
const besides = 30

// Diff shows the lines of the slip, without and with it.
func (s *Slip) Diff() string {
	src := s.file.src
	from := bytes.LastIndexByte(src[:s.start], '\n') + 1
	to := len(src)
	if n := bytes.IndexByte(src[s.end:], '\n'); n >= 0 {
		to = s.end + n
	}
	before := string(src[from:to])
	after := string(src[from:s.start]) + s.New + string(src[s.end:to])
	var b strings.Builder
	oldLines, newLines := strings.Split(before, "\n"), strings.Split(after, "\n")
	for len(oldLines) > 1 && len(newLines) > 1 && oldLines[0] == newLines[0] {
		oldLines, newLines = oldLines[1:], newLines[1:]
	}
	for len(oldLines) > 1 && len(newLines) > 1 && oldLines[len(oldLines)-1] == newLines[len(newLines)-1] {
		oldLines, newLines = oldLines[:len(oldLines)-1], newLines[:len(newLines)-1]
	}
	for _, line := range oldLines {
		b.WriteString("- " + line + "\n")
	}
	for _, line := range newLines {
		b.WriteString("+ " + line + "\n")
	}
	return b.String()
}

// difference is what the slip replaces and by what. From a long list only what differs.
func (s *Slip) difference() (before, after string) {
	a, b := strings.Fields(s.Old), strings.Fields(s.New)
	if len(s.Old) > 4*besides {
		for len(a) > 1 && len(b) > 1 && a[0] == b[0] {
			a, b = a[1:], b[1:]
		}
		for len(a) > 1 && len(b) > 1 && a[len(a)-1] == b[len(b)-1] {
			a, b = a[:len(a)-1], b[:len(b)-1]
		}
	}
	return strings.Join(a, " "), strings.Join(b, " ")
}
