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
)

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

// Limits of the connection to the server: one that is dead is given up after 19 s without traffic, 15 s with.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 3 * time.Second, Count: 3}

const (
	oldestServer   = 14
	userTimeout    = 15 * time.Second
	connectTimeout = 5 * time.Second
)

// Prepare sets how a connection is made. It sets nothing that a pooler refuses.
func Prepare(config *pgx.ConnConfig, application string) {
	config.RuntimeParams["application_name"] = application
	maps.Copy(config.RuntimeParams, poolerSettings)
	config.ConnectTimeout = connectTimeout
	refused := config.OnPgError
	config.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		return err.Code != readOnly && refused(conn, err) // false closes the connection: the next one may find the primary
	}
	config.DialFunc = (&net.Dialer{KeepAliveConfig: keepAlive, Control: limitUnacknowledged}).DialContext
}

// ConnectSession opens a connection of its own, which may lead to a pooler. It sets sessionSettings, but not behind a
// pooler: there another client would get the session. pooled tells which.
func ConnectSession(ctx context.Context, config *pgx.ConnConfig) (conn *pgx.Conn, pooled bool, err error) {
	conn, err = pgx.ConnectConfig(ctx, config)
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
