package migrations

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrNotOwner says that the role of a session may not do in schema ojs what servers and migrations do there: they create, change and drop
// tables, which PostgreSQL lets only their owner do, whatever else is granted.
var ErrNotOwner = errors.New("ojsd works as the owner of schema ojs")

// ownersQuery lists the roles that own the schema, or a table that a server alters, and whose rights the role of the session does not have.
// With $1 it looks at partitions, too, which migrations change with their parents; a server that may not drop one still serves. It needs
// no right itself.
const ownersQuery = `
	SELECT current_user::text, current_database()::text, has_database_privilege(current_database(), 'CREATE'),
		(SELECT COALESCE(json_agg(json_build_object('name', r.rolname, 'super', r.rolsuper, 'member', pg_has_role(r.oid, 'MEMBER'),
			'above', pg_has_role(r.oid, current_user, 'MEMBER')) ORDER BY r.rolname), '[]')::text
		FROM pg_roles r
		WHERE NOT pg_has_role(r.oid, 'USAGE') AND r.oid IN (
			SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'ojs'
			UNION ALL SELECT c.relowner FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
				WHERE n.nspname = 'ojs' AND (c.relname IN ('jobs', 'jobs_done', 'events') OR c.relispartition AND c.relkind = 'r' AND $1)
			UNION ALL SELECT p.proowner FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'ojs' AND p.proname = 'schema_version'))`

// rights are what the role of a session may do.
type rights struct {
	role, database string
	creates        bool // schemas
	owners         []struct {
		Name          string
		Super, Member bool
		Above         bool // it is a member of the role
	}
}

// readRights reads the answer to ownersQuery, from a row of pgx or of database/sql.
func readRights(scan func(dest ...any) error) (r rights, err error) {
	var owners string
	if err := scan(&r.role, &r.database, &r.creates, &owners); err != nil {
		return r, fmt.Errorf("read the owners of schema ojs: %w", err)
	}
	if err := json.Unmarshal([]byte(owners), &r.owners); err != nil {
		return r, fmt.Errorf("read the owners of schema ojs: %w", err)
	}
	return r, nil
}

// checkOwner names the owners and what gives their rights to the role. Membership in a superuser would give far more than the schema.
func (r rights) checkOwner() error {
	if len(r.owners) == 0 {
		return nil
	}
	role := pgx.Identifier{r.role}.Sanitize()
	var names, advice []string
	for _, o := range r.owners {
		owner := pgx.Identifier{o.Name}.Sanitize()
		names = append(names, owner)
		switch {
		case o.Super:
			advice = append(advice, "hand the schema over to "+role+" with the statements of docs/operations.md, Roles and rights")
		case o.Above:
			advice = append(advice, "connect as "+owner+", which has the rights of "+role)
		case o.Member:
			advice = append(advice, fmt.Sprintf("ALTER ROLE %s INHERIT, or from PostgreSQL 16 on GRANT %s TO %s WITH INHERIT TRUE", role, owner, role))
		default:
			advice = append(advice, fmt.Sprintf("GRANT %s TO %s, and migrate as %s from then on, because what a server makes belongs to its role", owner, role, role))
		}
	}
	return fmt.Errorf("%w, and role %s does not have the rights of %s, which owns it or tables in it: %s", ErrNotOwner, role,
		strings.Join(names, " and "), strings.Join(advice, "; "))
}

// checkMigrate is checkOwner for migrations, of which the first one makes the schema. PostgreSQL asks for that right even if the schema is
// there.
func (r rights) checkMigrate(version int64) error {
	if err := r.checkOwner(); err != nil {
		return err
	}
	if version == 0 && !r.creates {
		role, database := pgx.Identifier{r.role}.Sanitize(), pgx.Identifier{r.database}.Sanitize()
		return fmt.Errorf("role %s may not create schema ojs: as the owner of the database or a superuser: GRANT CREATE ON DATABASE %s TO %s", role, database, role)
	}
	return nil
}
