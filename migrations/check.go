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

// Check compares the schema with the newest migration of this binary. A server must not start on an older schema, nor on a newer one that
// is not compatible with it.
func Check(ctx context.Context, db Querier) error { return check(ctx, db, FS) }

func check(ctx context.Context, db Querier, fsys fs.FS) error {
	want, err := latest(fsys)
	if err != nil {
		return err
	}
	have, err := schemaVersion(db.QueryRow(ctx, versionQuery).Scan)
	switch {
	case err != nil:
		return err
	case have < want:
		return fmt.Errorf("%w (it is at version %d, this ojsd needs %d)", ErrSchemaOlder, have, want)
	case have > want:
		return checkNewer(db.QueryRow(ctx, compatibleQuery).Scan, have, want)
	}
	return nil
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
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pgErr.Code {
		case "3F000", "42883": // invalid_schema_name, undefined_function
			return 0, ErrSchemaMissing
		case "42501": // insufficient_privilege
			return 0, fmt.Errorf("read schema version: %w: GRANT USAGE ON SCHEMA ojs to the role of the server", err)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("read schema version: %w", err)
	}
	return version, nil
}
