package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Errors of Check. The messages tell the operator what to do.
var (
	ErrSchemaMissing = errors.New("the database has no ojs schema: " +
		"run `ojsd migrate up`, or start the server with --migrate")
	ErrSchemaOlder = errors.New("the ojs schema is older than this ojsd: " +
		"run `ojsd migrate up`, or start the server with --migrate")
	ErrSchemaNewer = errors.New("the ojs schema is newer than this ojsd, and not compatible with it: " +
		"upgrade ojsd to the release that migrated the database")
)

// Querier is a connection or a pool.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Check compares the schema with the migrations of this binary. A server must not start on an older schema, nor on a newer one that
// is not compatible with it, nor on one that other texts of its migrations have made, nor as a role that does not own the schema.
func Check(ctx context.Context, db Querier) error { return check(ctx, db, FS) }

func check(ctx context.Context, db Querier, fsys fs.FS) error {
	want, err := latest(fsys)
	if err != nil {
		return err
	}
	r, err := readRights(db.QueryRow(ctx, ownersQuery, false).Scan)
	if err != nil {
		return err
	}
	if err := r.checkOwner(); err != nil {
		return err
	}
	have, err := schemaVersion(db.QueryRow(ctx, versionQuery).Scan)
	switch {
	case err != nil:
		return err
	case have < want:
		return fmt.Errorf("%w (it is at version %d, this ojsd needs %d)", ErrSchemaOlder, have, want)
	case have > want:
		if err := checkNewer(db.QueryRow(ctx, compatibleQuery).Scan, have, want); err != nil {
			return err
		}
	}
	return checkDigests(db.QueryRow(ctx, readDigests).Scan, fsys, have)
}

// checkNewer says whether a binary whose newest migration is want works on a schema that is newer.
func checkNewer(scan func(dest ...any) error, have, want int64) error {
	var from int64
	err := scan(&from)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "42883" { // undefined_function
		return newerError{have, want}
	}
	if err != nil {
		return fmt.Errorf("read which releases the schema is compatible with: %w", err)
	}
	if from > want {
		return fmt.Errorf("%w (it is at version %d and compatible from %d on, this ojsd knows %d)", ErrSchemaNewer, have, from, want)
	}
	return nil
}

// versionQuery calls the function that every migration replaces. goose's table, which may be in one of two schemas, can differ
// from the state of the schema; this function cannot.
const versionQuery = "SELECT ojs.schema_version()"

// compatibleQuery calls a function that there is since version 11.
const compatibleQuery = "SELECT ojs.schema_compatible_from()"

// schemaVersion reads the answer to versionQuery from a row of pgx or of database/sql.
func schemaVersion(scan func(dest ...any) error) (int64, error) {
	var version int64
	err := scan(&version)
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if ok && (pgErr.Code == "3F000" || pgErr.Code == "42883") { // invalid_schema_name, undefined_function
		return 0, ErrSchemaMissing
	}
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return version, nil
}
