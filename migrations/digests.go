package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
)

// ErrMigrationEdited says that the schema was made by another text of a migration than that of this binary.
var ErrMigrationEdited = errors.New("the schema was made by another text of a migration than this ojsd has, so it may differ from what this ojsd needs")

// Of each applied migration, ojs.migration_digests has the digest of the text that `ojsd migrate up` has applied, or of its own text if it found
// the migration applied, by an older release or by goose. A migration without a row is not compared. No migration makes the table: it is
// there before the first one, and says something of all.
const (
	createDigests = `CREATE TABLE IF NOT EXISTS ojs.migration_digests (version bigint PRIMARY KEY, digest text NOT NULL, recorded_at timestamptz NOT NULL DEFAULT now())`
	readDigests   = `SELECT COALESCE(json_object_agg(d.version, d.digest), '{}')::text FROM ojs.migration_digests d`
	storeDigest   = `INSERT INTO ojs.migration_digests (version, digest) VALUES ($1, $2) ON CONFLICT (version) DO UPDATE SET digest = EXCLUDED.digest, recorded_at = now()`
	dropDigests   = `DELETE FROM ojs.migration_digests WHERE version > $1`
)

// digests are the digests of the migrations in fsys, by number.
func digests(fsys fs.FS) (map[int64]string, error) {
	numbers, err := versions(fsys)
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(fsys, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	sums := map[int64]string{}
	for i, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("read migration: %w", err)
		}
		sums[numbers[i]] = digest(string(text))
	}
	return sums, nil
}

// digest is the digest of what a migration does to a schema: of its part Up, without lines of comments, empty lines, and the space around
// lines.
func digest(text string) string {
	sum := sha256.New()
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "-- +goose Down") {
			break
		}
		if line == "" || strings.HasPrefix(line, "--") && !strings.HasPrefix(line, "-- +goose") {
			continue
		}
		sum.Write([]byte(line + "\n"))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// checkDigests compares the migrations in fsys that a schema at version has with what has been stored of them. scan reads the answer to
// readDigests.
func checkDigests(scan func(dest ...any) error, fsys fs.FS, version int64) error {
	stored, err := storedDigests(scan)
	if err != nil {
		return err
	}
	own, err := digests(fsys)
	if err != nil {
		return err
	}
	var edited []string
	for _, number := range slices.Sorted(maps.Keys(own)) {
		if was, known := stored[number]; known && number <= version && was != own[number] {
			edited = append(edited, fmt.Sprint(number))
		}
	}
	if len(edited) == 0 {
		return nil
	}
	list := strings.Join(edited, ", ")
	return fmt.Errorf("%w: migration %s. Run the ojsd that has migrated, or restore the file. If you know that the schema is right: "+
		"DELETE FROM ojs.migration_digests WHERE version IN (%s), then `ojsd migrate up`", ErrMigrationEdited, list, list)
}

// storedDigests returns none if there is no table: the schema was made by goose, or by a release that stored none.
func storedDigests(scan func(dest ...any) error) (stored map[int64]string, err error) {
	var text string
	err = scan(&text)
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if ok && (pgErr.Code == "42P01" || pgErr.Code == "3F000") { // undefined_table, invalid_schema_name
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ojs.migration_digests: %w", err)
	}
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, fmt.Errorf("read ojs.migration_digests: %w", err)
	}
	return stored, nil
}

// recordDigests stores the digests of the migrations that were applied just now, and of those of which nothing is known. It removes those
// of migrations that are not applied any more.
func (m *migrator) recordDigests(ctx context.Context, db *sql.DB, applied []*goose.MigrationResult) error {
	version, err := schemaVersion(db.QueryRowContext(ctx, versionQuery).Scan)
	if err != nil && !errors.Is(err, ErrSchemaMissing) {
		return err
	}
	stored, err := storedDigests(db.QueryRowContext(ctx, readDigests).Scan)
	if err != nil || stored == nil && version == 0 {
		return err
	}
	own, err := digests(m.fsys)
	if err != nil {
		return err
	}
	known := stored != nil
	stale := slices.ContainsFunc(slices.Collect(maps.Keys(stored)), func(number int64) bool { return number > version })
	for _, result := range applied {
		delete(stored, result.Source.Version)
	}
	maps.DeleteFunc(own, func(number int64, _ string) bool { return number > version || stored[number] != "" })
	// A node with --migrate starts on a standby, too, if there is nothing to migrate.
	if known && !stale && len(own) == 0 {
		return nil
	}
	err = storeDigests(ctx, db, digestChange{create: !known, store: own, version: version})
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "25006" && len(applied) == 0 { // read_only_sql_transaction
		return nil
	}
	return err
}

// digestChange is what has to be written: the table, digests, and that none are kept beyond the version.
type digestChange struct {
	create  bool
	store   map[int64]string
	version int64
}

func storeDigests(ctx context.Context, db *sql.DB, c digestChange) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("record migrations: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	if c.create {
		if _, err := tx.ExecContext(ctx, createDigests); err != nil {
			return fmt.Errorf("create ojs.migration_digests: %w", err)
		}
	}
	for number, digest := range c.store {
		if _, err := tx.ExecContext(ctx, storeDigest, number, digest); err != nil {
			return fmt.Errorf("record migrations: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, dropDigests, c.version); err != nil {
		return fmt.Errorf("record migrations: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("record migrations: %w", err)
	}
	return nil
}
