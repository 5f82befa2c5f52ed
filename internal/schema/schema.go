// Package schema owns the JSON Schemas of job arguments: the registry, and the check of new jobs against it. Domains that take new
// jobs from clients call Check before they store one. The package must never fetch what a schema refers to, and never take longer
// for a check than its budget permits (meter.go).
//
// A node knows two things of schemas. The index has the names of all, is read before the first check and again after a
// change (check.go, follower.go). The compiled form of a schema is made when a job needs it first, and dropped for room
// (index.go). Both may be dropped at any time. The index may be old: a node then checks by old schemas, for up to a second.
//
// Documents and args are hostile input: compile.go bounds the time to compile, meter.go and pattern.go that of a check.
package schema

import (
	"strconv"
	"time"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

const (
	// MaxBytes is the largest schema. Documents are not kept in memory but compiled, within maxCompiled.
	MaxBytes = 256 << 10

	// MaxSchemas is how many schemas a database has at most. Every node keeps their names in memory.
	MaxSchemas = 10_000

	maxURIBytes     = 1024
	maxVersionBytes = 128
)

// Key names a version of the schema of a job type.
type Key struct {
	Type    string
	Version string // its text, whether it was sent as a number or as a string
}

// Info is a schema without its document. CreatedAt is by the clock of the database. Only Enforce ever changes; a schema
// that is deleted and registered again is another one, with a later CreatedAt.
type Info struct {
	Key
	VersionNumber bool // the version was sent as a number, and answers show a number
	URI           string
	Enforce       bool // if this is the newest version, jobs of the type that name no schema are checked, too
	CreatedAt     time.Time
}

// Schema is a registered schema.
type Schema struct {
	Info
	Document []byte // compact JSON
}

// It copies nothing: the document is that of the row.
func fromRow(r *dbsqlc.Schema) *Schema {
	return &Schema{
		Info: Info{
			Key: Key{r.Type, r.Version}, VersionNumber: r.VersionNumber, URI: r.Uri, Enforce: r.Enforce, CreatedAt: r.CreatedAt.Time,
		},
		Document: r.Schema,
	}
}

// ValidVersion reports whether s is ^[A-Za-z0-9][A-Za-z0-9._+\-]*$ of at most 128 bytes, and not the last segment of
// another route. docs/reference/schemas.md, Registration object. "versions" is the path of the list.
func ValidVersion(s string) bool {
	if s == "" || len(s) > maxVersionBytes || !alphanumeric(s[0]) || s == "versions" {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && c != '.' && c != '_' && c != '+' && c != '-' {
			return false
		}
	}
	return true
}

func alphanumeric(c byte) bool { return digit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func digit(c byte) bool { return c >= '0' && c <= '9' }

// IsNumber reports whether the text of a version is that of an integer.
func IsNumber(version string) bool {
	n, err := strconv.ParseInt(version, 10, 64)
	return err == nil && strconv.FormatInt(n, 10) == version
}

// compareVersions orders versions as readers expect: 2 before 10, 1.9.0 before 1.10.0. Runs of digits compare by value, everything
// else by bytes. It is no semantic versioning: 1.0.0-rc is newer than 1.0.0.
func compareVersions(a, b string) int {
	for a != "" && b != "" {
		x, y := run(a), run(b)
		if digit(a[0]) && digit(b[0]) {
			if c := compareDigits(a[:x], b[:y]); c != 0 {
				return c
			}
			a, b = a[x:], b[y:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

// run is the number of digits at the start of s.
func run(s string) (n int) {
	for n < len(s) && digit(s[n]) {
		n++
	}
	return n
}

// It compares digits as texts, because a version may have more of them than an integer.
func compareDigits(a, b string) int {
	for len(a) > 1 && a[0] == '0' {
		a = a[1:]
	}
	for len(b) > 1 && b[0] == '0' {
		b = b[1:]
	}
	switch {
	case len(a) != len(b):
		return len(a) - len(b)
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
