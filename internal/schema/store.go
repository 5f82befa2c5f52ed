// Package schema owns the JSON Schemas of job arguments: the registry, and the check of new jobs against it. Domains that take new
// jobs from clients call Check before they store one. The package must never fetch what a schema refers to, and never take longer
// for a check than its budget permits (compile.go).
//
// A node knows two things of schemas. The index has the names of all, is read before the first check and again after a
// change (check.go). The compiled form of a schema is made when a job needs it first, and dropped for room
// (compiledSchemas). Both may be dropped at any time. The index may be old: a node then checks by old schemas, for up to a second.
//
// Documents and args are hostile input: compile.go bounds the time to compile and that of a check.
package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/baseservice"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
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

// fromRow copies nothing: the document is that of the row.
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

// compareDigits compares digits as texts, because a version may have more of them than an integer.
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

// Store registers schemas and checks jobs against them. Use New, and run its NewFollower. index may be older than the
// database by a second, and loop.Value decides who reads it. loading is held while a schema is compiled, never while a
// statement runs: a transaction that waits for it would keep its connection.
type Store struct {
	db     *pg.DB
	logger *slog.Logger

	index    *loop.Value[index]
	compiled compiledSchemas
	loading  sync.Mutex
}

// New returns a registry on the database. listening tells whether notifications arrive; nil: they do not.
func New(db *pg.DB, logger *slog.Logger, listening func() bool) *Store {
	return &Store{db: db, logger: logger, index: loop.NewValue(db, loop.ValueConfig[index]{Read: readIndex, Listening: listening})}
}

// Changed is called when schemas may have changed on any node. It does not block.
func (s *Store) Changed() { s.index.Changed() }

// Forget drops what this node knows, after a reset of the database. The next check reads the names again.
func (s *Store) Forget() {
	s.index.Forget()
	s.compiled.mu.Lock()
	defer s.compiled.mu.Unlock()
	s.compiled.byKey, s.compiled.bytes = nil, 0
}

// Registration is a request to register a schema. The document was compiled by the decoder, so Put does not look at it
// again.
type Registration struct {
	Schema
	Enforce *bool  // nil: not sent
	ReadAs  string // the draft, if the document names none and is not read as the newest
}

// Put registers a schema. A version never changes: the same schema again changes at most whether it is enforced, and another one under
// its version or URI is a conflict. When Put returns, this node checks jobs by it; the others do within a second. It is
// idempotent. Changes take turns at a row, so no two of them both find a version free, or room for one more.
func (s *Store) Put(ctx context.Context, in *Registration) (stored *Schema, created bool, err error) {
	err = s.change(ctx, func(q *dbsqlc.Queries) (err error) {
		// At the bound a repetition must still succeed.
		n, err := q.SchemaCount(ctx, MaxSchemas)
		if err != nil {
			return err
		}
		if n >= MaxSchemas {
			if stored, err = s.repeated(ctx, q, in); errors.Is(err, pgx.ErrNoRows) {
				err = ErrTooMany()
			}
			return err
		}
		// No row means that the version or the URI is taken; repeated tells which.
		rows, err := q.SchemaInsert(ctx, dbsqlc.SchemaInsertParams{
			Type: in.Type, Version: in.Version, VersionNumber: in.VersionNumber, Uri: in.URI, Schema: in.Document,
			Enforce: in.Enforce != nil && *in.Enforce,
		})
		if err != nil {
			return err
		}
		if created = len(rows) > 0; created {
			stored = fromRow(&rows[0])
			return nil
		}
		stored, err = s.repeated(ctx, q, in)
		return err
	})
	return stored, created, err
}

// repeated is the registered schema, if it is the same. The error of an unknown one is pgx.ErrNoRows. It runs under the
// lock of the change. in.Enforce nil keeps what is stored.
func (s *Store) repeated(ctx context.Context, q *dbsqlc.Queries, in *Registration) (*Schema, error) {
	row, err := q.SchemaGet(ctx, in.Type, in.Version)
	if errors.Is(err, pgx.ErrNoRows) {
		// Neither the version nor the URI is known only if the insert was not tried, at the bound of schemas.
		other, err := q.SchemaGetByURI(ctx, in.URI)
		if err != nil {
			return nil, err
		}
		return nil, errTaken("The URI "+in.URI+" names another schema.", fromRow(&other))
	}
	if err != nil {
		return nil, err
	}
	stored := fromRow(&row)
	if stored.URI != in.URI {
		return nil, errTaken(fmt.Sprintf("Version %s of the schema of %s is registered with another URI.", in.Version, in.Type), stored)
	}
	if !sameJSON(stored.Document, in.Document) {
		return nil, errTaken(fmt.Sprintf("Version %s of the schema of %s is registered with another schema.", in.Version, in.Type), stored)
	}
	if in.Enforce == nil || *in.Enforce == stored.Enforce {
		return stored, nil
	}
	row, err = q.SchemaEnforce(ctx, dbsqlc.SchemaEnforceParams{Type: in.Type, Version: in.Version, Enforce: *in.Enforce})
	return fromRow(&row), err
}

// sameJSON does not look at white space and the order of members, but at the digits of numbers.
func sameJSON(a, b []byte) bool {
	if string(a) == string(b) {
		return true
	}
	x, errX := decodeJSON(a)
	y, errY := decodeJSON(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

// errTaken names the schema that is in the way, so that the client can compare.
func errTaken(message string, stored *Schema) *ojs.Error {
	return spec.NewError(ojs.ErrSchemaExists, message, map[string]any{"schema_type": stored.Type, "schema_version": stored.Version,
		"uri": stored.URI})
}

// ErrTooMany refuses one schema more than a database may have.
func ErrTooMany() *ojs.Error {
	return spec.NewError(ojs.ErrUnsupported, fmt.Sprintf("The server has %d schemas, and keeps no more; delete some.", MaxSchemas),
		map[string]any{"max_schemas": MaxSchemas})
}

// Delete removes a version. Jobs that name it are not checked any more; if it was the newest, the one before is. Jobs that
// are stored already are not touched.
func (s *Store) Delete(ctx context.Context, key Key) (deleted *Schema, err error) {
	err = s.change(ctx, func(q *dbsqlc.Queries) error {
		rows, err := q.SchemaDelete(ctx, key.Type, key.Version)
		if err == nil && len(rows) == 0 {
			err = errMissing(key)
		}
		if err == nil {
			deleted = fromRow(&rows[0])
		}
		return err
	})
	return deleted, err
}

func errMissing(key Key) error { return spec.NotFound("schema", key.Type+"/"+key.Version) }

// change runs do in a transaction that no other change overlaps. After its commit this node knows the change. The
// notification goes with the commit. If the outcome of the commit is unknown, the next look of the Follower finds it out.
func (s *Store) change(ctx context.Context, do func(q *dbsqlc.Queries) error) error {
	bounded, cancel := s.db.Bounded(context.WithoutCancel(ctx)) // this node reads the change even if the client hangs up
	defer cancel()
	err := pg.Retry(func() error {
		return s.db.InTx(bounded, func(tx pgx.Tx) error {
			q := dbsqlc.New(tx)
			// It locks the one row of schema_change to the commit, and raises the number that all nodes compare.
			if err := q.SchemaChange(bounded); err != nil {
				return err
			}
			return do(q)
		})
	})
	if err != nil {
		return pg.ClientError(err)
	}
	// The change holds all the same, so the error is not returned.
	if _, err := s.index.Read(bounded); err != nil {
		s.logger.WarnContext(ctx, "schemas not read after a change; they are read before the next check", slog.String("category", "error"),
			slog.Any("error", err))
		s.index.Forget()
	}
	return nil
}

// Get returns a version of the schema of a type. It reads the database and so shows a change at once.
func (s *Store) Get(ctx context.Context, key Key) (*Schema, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.SchemaGet(ctx, key.Type, key.Version)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errMissing(key)
	}
	return fromRow(&row), pg.ClientError(err)
}

// GetByURI returns a schema by its URI.
func (s *Store) GetByURI(ctx context.Context, uri string) (*Schema, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	row, err := s.db.Q.SchemaGetByURI(ctx, uri)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, spec.NotFound("schema", uri)
	}
	return fromRow(&row), pg.ClientError(err)
}

// Versions are those of a type, newest first. It takes the names from the index, which is compared with the database for it.
func (s *Store) Versions(ctx context.Context, jobType string) ([]*Info, error) {
	ix, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	if versions := ix.types[jobType]; len(versions) > 0 {
		return versions, nil
	}
	return nil, spec.NotFound("schema", jobType)
}

// List are all schemas by type, newest version first.
func (s *Store) List(ctx context.Context) ([]*Info, error) {
	ix, err := s.fresh(ctx)
	if err != nil {
		return nil, err
	}
	// The infos are shared and must not be changed.
	list := make([]*Info, 0, len(ix.uris))
	for _, name := range slices.Sorted(maps.Keys(ix.types)) {
		list = append(list, ix.types[name]...)
	}
	return list, nil
}

// fresh is the index as it is now, for answers that list schemas. It costs one row while nothing has changed.
func (s *Store) fresh(ctx context.Context) (*index, error) {
	ix, err := s.index.Read(ctx)
	return ix, pg.ClientError(err)
}

// index is what a node knows of all schemas: their names, not their documents. It is replaced as a whole. It is read-only
// once it is stored, so checks need no lock. 10 000 schemas at most keep it small.
type index struct {
	version int64              // of ojs.schema_change
	types   map[string][]*Info // newest version first
	uris    map[string]*Info
}

// applies is the schema that the args of a job must satisfy: the one that the job names, or the newest of its type if that is
// enforced; nil: none. A name that is not registered is no way around the enforced one. docs/reference/schemas.md, Which
// schema applies has the rule. If a job names a URI and a version, the URI counts.
func (ix *index) applies(j *job.Job) *Info {
	// A registered URI counts whatever the type of the job.
	if j.Schema != "" {
		if info := ix.uris[j.Schema]; info != nil {
			return info
		}
	}
	versions := ix.types[j.Type]
	if len(versions) == 0 {
		return nil
	}
	if j.SchemaVersion != "" {
		for _, info := range versions {
			if info.Version == j.SchemaVersion {
				return info
			}
		}
	}
	// Only the newest version counts: an enforced one that a newer, not enforced one follows is not applied.
	if versions[0].Enforce {
		return versions[0]
	}
	return nil
}

// maxCompiled bounds the documents, in bytes, whose compiled form a node keeps. A compiled schema has about thirty times the bytes of its
// document. One document of the largest size always fits.
const maxCompiled = 4 << 20

// compiledSchemas are the schemas that jobs were checked against. mu guards both fields; it is not held while a schema is
// compiled or checked.
type compiledSchemas struct {
	mu    sync.Mutex
	byKey map[compiledKey]*compiled
	bytes int
}

// compiledKey differs for a schema that was deleted and registered again. createdAt is in microseconds, the precision of
// the database.
type compiledKey struct {
	Key
	createdAt int64
}

func keyOf(info *Info) compiledKey { return compiledKey{info.Key, info.CreatedAt.UnixMicro()} }

// get returns what may be used after it was dropped here.
func (s *compiledSchemas) get(info *Info) *compiled {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[keyOf(info)]
}

// put drops others, in no order, while there are too many. A schema that is in use may be dropped: its users keep it, and
// the next check compiles it again.
func (s *compiledSchemas) put(c *compiled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, other := range s.byKey {
		if s.bytes+c.bytes <= maxCompiled {
			break
		}
		s.bytes -= other.bytes
		delete(s.byKey, key)
	}
	if s.byKey == nil {
		s.byKey = map[compiledKey]*compiled{}
	}
	// Two loads of a schema must not count its bytes twice.
	if s.byKey[keyOf(&c.info)] == nil {
		s.bytes += c.bytes
	}
	s.byKey[keyOf(&c.info)] = c
}

// NewFollower returns the service that reads the changes of schemas that other nodes make. It bounds how long a node checks
// by old schemas (docs/reference/schemas.md, Which schema applies).
func NewFollower(archetype *baseservice.Archetype, s *Store) *loop.Follower[index] {
	return loop.NewFollower(archetype, s.index, "schemas")
}

// readIndex reads the names of all schemas if they have changed. Documents are not read: most are never needed on this
// node. The bound of the list holds a table that was filled by hand. If the number has not moved the names are not read.
func readIndex(ctx context.Context, q *dbsqlc.Queries, known *index) (*index, error) {
	version, err := q.SchemaChangeVersion(ctx) // before the names: a change between the two is read again
	if err != nil || known != nil && known.version == version {
		return known, err
	}
	rows, err := q.SchemaListAll(ctx, MaxSchemas)
	if err != nil {
		return nil, err
	}
	ix := &index{version: version, types: map[string][]*Info{}, uris: make(map[string]*Info, len(rows))}
	for _, r := range rows {
		info := &Info{Key{r.Type, r.Version}, r.VersionNumber, r.Uri, r.Enforce, r.CreatedAt.Time}
		ix.types[info.Type], ix.uris[info.URI] = append(ix.types[info.Type], info), info
	}
	for _, versions := range ix.types {
		slices.SortStableFunc(versions, func(a, b *Info) int { return compareVersions(b.Version, a.Version) })
	}
	return ix, nil
}
