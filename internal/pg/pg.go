// Package pg owns the access to Postgres that all domains share: the pool, the time limit of statements, transactions that
// are tried again, missing partitions, and the meaning of SQLSTATEs. It must never use a table of a domain.
package pg

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbsqlc"
)

// DB is the database of a node. Use New.
type DB struct {
	Pool *pgxpool.Pool
	// It takes a connection of the pool for each statement. A caller in a transaction must use dbsqlc.New(tx): all connections
	// could be in transactions that wait for a second one.
	Q *dbsqlc.Queries

	// StatementTimeout bounds every statement, including the wait for a connection.
	StatementTimeout time.Duration

	// Pooler says that the pool leads to a transaction-mode pooler.
	Pooler bool

	reads chan struct{} // an element for each read of Reading
}

// MaxLooked bounds the rows that a statement looks at for a list with filters, which takes 40 to 100 ms. Without a bound, a filter
// that matches nothing reads the whole table. A client gets what was found and a cursor behind what was looked at. A client that goes
// on from the last event that it got, and not from the cursor, stands still behind so many events that it does not want: hence the
// large number.
const MaxLooked = 100_000

// New returns the database of the pool.
func New(pool *pgxpool.Pool, statementTimeout time.Duration) *DB {
	pooler := pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheDescribe // see Connect
	return &DB{
		Pool: pool, Q: dbsqlc.New(pool), StatementTimeout: statementTimeout, Pooler: pooler,
		reads: make(chan struct{}, max(1, pool.Config().MaxConns/2)),
	}
}

// Conn is a pool or a transaction. Begin of a transaction makes a savepoint.
type Conn interface {
	dbsqlc.DBTX
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Bounded returns the context for one statement.
func (d *DB) Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.StatementTimeout)
}

// Reading is Bounded for what clients read of lists, logs and results, which may take long. Such reads have half of the pool: slow
// ones must not keep claims and acks waiting for a connection. The time limit includes the wait for a place.
func (d *DB) Reading(ctx context.Context) (context.Context, context.CancelFunc, error) {
	ctx, cancel := d.Bounded(ctx)
	select {
	case d.reads <- struct{}{}:
		return ctx, func() { cancel(); <-d.reads }, nil
	case <-ctx.Done():
		cancel()
		return nil, nil, ctx.Err()
	}
}

// Now reads the clock of the database.
func (d *DB) Now(ctx context.Context) (time.Time, error) {
	now, err := d.Q.SystemPing(ctx)
	return now.Time, err
}

// Probe reads the clock of the database, and whether it is read-only. If it is, the connections of the pool are made anew: another
// host of the URL may have become the primary.
func (d *DB) Probe(ctx context.Context) (now time.Time, readOnly bool, err error) {
	asked := time.Now()
	row, err := d.Q.SystemProbe(ctx)
	if err == nil {
		clock.Set(row.Now.Time, asked)
	}
	if row.ReadOnly {
		d.Pool.Reset()
	}
	return row.Now.Time, row.ReadOnly, err
}

// EnsurePartitions creates the partitions that today and tomorrow need.
func (d *DB) EnsurePartitions(ctx context.Context) error {
	asked := time.Now()
	row, err := d.Q.PartitionEnsure(ctx)
	if err == nil {
		clock.Set(row.Now.Time, asked)
	}
	return err
}

// WithPartitions runs do. If a partition was missing it creates partitions and runs do once more.
// do must have changed nothing if it returns that error, so it is one statement or one transaction.
func (d *DB) WithPartitions(ctx context.Context, do func() error) error {
	err := do()
	if !IsNoPartition(err) {
		return err
	}
	if err := d.EnsurePartitions(ctx); err != nil {
		return err
	}
	return do()
}

// InPartitionedTx is WithPartitions for a transaction. It repeats all of it, because no statement can follow an error inside
// a transaction.
func (d *DB) InPartitionedTx(ctx context.Context, do func(tx pgx.Tx) error) error {
	return d.WithPartitions(ctx, func() error { return d.InTx(ctx, do) })
}

// Retry runs a transaction, and up to three times again while the error IsTransient.
// run must reset what it sets: a try that fails leaves nothing in the database but its variables in memory.
func Retry(run func() error) error {
	err := run()
	for tries := 0; IsTransient(err) && tries < 3; tries++ {
		err = run()
	}
	return err
}

// Beginning is -infinity, before every time.
var Beginning = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}

// End is infinity, after every time.
var End = pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}

// Timestamp is NULL for the zero time.
func Timestamp(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// Text is NULL for "".
func Text(text string) pgtype.Text { return pgtype.Text{String: text, Valid: text != ""} }

// Interval is the duration as a Postgres interval.
func Interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}

// Strings replaces nil by an empty array, because a comparison with NULL matches no row.
func Strings(values []string) []string {
	if values == nil {
		return []string{}
	}
	return values
}

// Reset empties all tables. For tests only.
func (d *DB) Reset(ctx context.Context) error {
	ctx, cancel := d.Bounded(ctx)
	defer cancel()
	err := d.Q.SystemReset(ctx)
	for tries := 0; IsTransient(err) && tries < 10; tries++ { // TRUNCATE deadlocks with statements that read several tables
		err = d.Q.SystemReset(ctx)
	}
	return WriteError(err)
}

// Connect returns a pool of c.MaxConns connections, of which half serve slow reads at most (DB.Reading). It connects when it is used.
// An error means that the configuration is wrong; a database that cannot be reached shows at the first use.
// change is what tests change, last.
func Connect(ctx context.Context, c config.Database, change ...func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	pc.MaxConns = int32(c.MaxConns)
	pc.MinIdleConns = min(2, pc.MaxConns)
	// Idle connections above MinIdleConns cost the server a process each.
	pc.MaxConnIdleTime = 5 * time.Minute
	Prepare(pc.ConnConfig, "ojsd")
	if c.Pooler() {
		// The sessions of a pooler belong to nobody, so nothing is set in them, and statements are not prepared by name: each is planned
		// for its parameters and for the tables as they are. Unnamed statements with remembered parameter types: one round trip, no state
		// left in the session.
		pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	} else {
		maps.Copy(pc.ConnConfig.RuntimeParams, planSettings)
		maps.Copy(pc.ConnConfig.RuntimeParams, sessionSettings)
		maps.Copy(pc.ConnConfig.RuntimeParams, sharedSettings)
	}
	for _, f := range change {
		f(pc)
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return pool, nil
}

// planSettings leave one plan for each statement, whatever the planner knows of the tables. Statements run as generic plans:
// PostgreSQL estimates small batches to be cheaper with a custom plan, and would plan most acks anew (0.45 ms, three times
// their execution). What a generic plan guesses is often wrong: made with fresh statistics of a table in which 155 000 jobs
// of another queue waited, the claim's plan became a hash join over a sequential scan, and a fetch took 130 ms instead of 3.
// Every statement finds its rows by an index, so no other way to read a table is offered. The planner still uses one if it
// must, and would compile it: hence jit.
var planSettings = map[string]string{
	"plan_cache_mode":          "force_generic_plan",
	"enable_seqscan":           "off",
	"enable_bitmapscan":        "off",
	"enable_hashjoin":          "off",
	"enable_mergejoin":         "off",
	"jit":                      "off",
	"enable_indexscan":         "on",
	"enable_indexonlyscan":     "on",
	"enable_nestloop":          "on",
	"enable_sort":              "on",
	"enable_partition_pruning": "on",
}

// sessionSettings are what statements and functions rely on, and what ends the session of a node that is gone. The owner of a
// database or a role can set other defaults with ALTER DATABASE and ALTER ROLE.
var sessionSettings = map[string]string{
	"default_transaction_isolation":  "read committed", // statements wait for rows and then read their newest version
	"default_transaction_deferrable": "off",
	"search_path":                    "pg_catalog", // every name is qualified
	"datestyle":                      "ISO, MDY",
	"intervalstyle":                  "postgres",
	"timezone":                       "UTC",
	"bytea_output":                   "hex",
	"extra_float_digits":             "1",
	"transform_null_equals":          "off",
	"lock_timeout":                   "0",
	"idle_session_timeout":           "0", // connections are kept on purpose

	// Migrations, partitions and the counts of ojsd doctor take as long as they take. InTx and sharedSettings set limits.
	"statement_timeout":                   "0",
	"idle_in_transaction_session_timeout": "0",

	// The server's side of keepAlive: without it the locks of a node that lost its power or network last for two hours.
	"tcp_keepalives_idle":     "10",
	"tcp_keepalives_interval": "3",
	"tcp_keepalives_count":    "3",
	"tcp_user_timeout":        "15000",
}

// sharedSettings are those of the sessions of the pool. InTx has shorter limits; maintenance of partitions takes longest.
var sharedSettings = map[string]string{
	"statement_timeout":                   "60s",
	"idle_in_transaction_session_timeout": idleInTransaction,
}

// poolerSettings are the start-up parameters that poolers know as well. pgx needs them for the simple protocol.
var poolerSettings = map[string]string{
	"client_encoding":             "UTF8",
	"standard_conforming_strings": "on",
}

// keepAlive are limits of the connection to the server: one that is dead is given up after 19 s without traffic, 15 s with.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 3 * time.Second, Count: 3}

const (
	oldestServer   = 14
	userTimeout    = 15 * time.Second
	connectTimeout = 5 * time.Second
)

// Prepare sets how a connection is made. It sets nothing that a pooler refuses.
func Prepare(c *pgx.ConnConfig, application string) {
	c.RuntimeParams["application_name"] = application
	maps.Copy(c.RuntimeParams, poolerSettings)
	c.ConnectTimeout = connectTimeout
	refused := c.OnPgError
	c.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		return err.Code != readOnly && refused(conn, err) // false closes the connection: the next one may find the primary
	}
	c.DialFunc = (&net.Dialer{KeepAliveConfig: keepAlive, Control: limitUnacknowledged}).DialContext
}

// ConnectSession opens a connection of its own, which may lead to a pooler. It sets sessionSettings, but not behind a
// pooler: there another client would get the session. pooled tells which.
func ConnectSession(ctx context.Context, c *pgx.ConnConfig) (conn *pgx.Conn, pooled bool, err error) {
	conn, err = pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, false, fmt.Errorf("connect to the database: %w", err)
	}
	err = checkServer(conn.PgConn())
	if err == nil {
		pooled, err = pinned(ctx, conn)
	}
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx)) // nothing was done
		return nil, false, err
	}
	return conn, pooled, nil
}

// checkServer refuses databases on which ojsd cannot work, by what the server reports at the connection.
func checkServer(conn *pgconn.PgConn) error {
	if encoding := conn.ParameterStatus("server_encoding"); encoding != "" && encoding != "UTF8" {
		return fmt.Errorf("the database has encoding %s, and ojsd needs UTF8 for the texts of its clients: "+
			"make one with CREATE DATABASE … TEMPLATE template0 ENCODING 'UTF8'", encoding)
	}
	version := conn.ParameterStatus("server_version")
	digits := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if major, err := strconv.Atoi(version[:max(digits, 0)]); err == nil && major < oldestServer {
		return fmt.Errorf("the server is PostgreSQL %s, and ojsd needs %d or later", version, oldestServer)
	}
	return nil
}

// CheckLogin refuses a session that has other rights than its login, by ALTER ROLE … SET role. ojs.session_end ends the sessions of
// current_user only: one of another login would be taken for ended, and could still commit.
func CheckLogin(ctx context.Context, conn *pgx.Conn) error {
	roles, err := dbsqlc.New(conn).SystemRoles(ctx)
	if err != nil {
		return fmt.Errorf("read the role of the session: %w", err)
	}
	if roles.Login != roles.Role {
		return fmt.Errorf("sessions of role %s begin as role %s (ALTER ROLE … SET role), which is for migrations: let the server log in as %s",
			roles.Login, roles.Role, roles.Role)
	}
	return nil
}

// PinSession sets sessionSettings, unless there is a pooler.
func PinSession(ctx context.Context, conn *pgx.Conn) error {
	_, err := pinned(ctx, conn)
	return err
}

// pinned tells a pooler from a server by the process id of the session: a pooler invents the one of the handshake.
func pinned(ctx context.Context, conn *pgx.Conn) (pooled bool, err error) {
	var pid uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return false, fmt.Errorf("read backend pid: %w", err)
	}
	if pid != conn.PgConn().PID() {
		return true, nil
	}
	if _, err := conn.Exec(ctx, setStatements); err != nil {
		return false, fmt.Errorf("set session: %w", err)
	}
	return false, nil
}

var setStatements = func() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sessionSettings)) {
		fmt.Fprintf(&b, "SET %s = '%s';", name, sessionSettings[name])
	}
	return b.String()
}()
