package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/dbtest"
)

// TestReadOnlyDatabase: a node whose database becomes read-only says so and gets no traffic; it goes on when the database can
// be written again.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	a := setup(t)
	a.ready()
	a.setReadOnly("on")
	// On a busy machine a look at the database may also fail because it takes longer than a second.
	eventually(t, func() bool { r := a.get("/readyz"); return r.status == 503 && r.at("checks.database") == "read_only" })
	var health reply
	eventually(t, func() bool {
		health = a.get("/health").is(503)
		return health.at("backend.connection") == "read_only"
	})
	require.Equal(t, "unhealthy", health.at("status"))
	require.Equal(t, "unhealthy", health.at("backend.status"))
	require.Contains(t, health.at("backend.error"), "read-only")
	r := a.post("/ojs/v1/jobs", `{"type":"t","args":[]}`).is(503)
	requireRetryAfter(t, r)
	require.Contains(t, a.findings(), "the database is read-only")

	a.setReadOnly("off")
	eventually(t, func() bool { return a.get("/readyz").status == 200 })
	eventually(t, func() bool { return a.post("/ojs/v1/jobs", `{"type":"t","args":[]}`).status == 201 })
	eventually(t, func() bool { r := a.get("/health"); return r.status == 200 && r.at("backend.status") == "ok" })
}

// setReadOnly changes the database, and ends the sessions of the node as a restart does. Only new sessions see the change.
func (a *node) setReadOnly(value string) {
	a.t.Helper()
	conn := a.connect()
	defer func() { _ = conn.Close(context.Background()) }()
	_, err := conn.Exec(a.t.Context(), fmt.Sprintf(`BEGIN READ WRITE; ALTER DATABASE %s SET default_transaction_read_only = %s; COMMIT`, conn.Config().Database, value))
	require.NoError(a.t, err)
	if value == "on" {
		_, err = conn.Exec(a.t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		require.NoError(a.t, err)
	}
}

// TestRefusedDatabases: the message says what is wrong with the database and what to do.
func TestRefusedDatabases(t *testing.T) {
	t.Parallel()
	migrate := func(c *app.Config) { c.Database.Migrate = true }

	t.Run("Encoding", func(t *testing.T) {
		t.Parallel()
		address := dbtest.EmptyURL(t)
		conn, err := pgx.Connect(t.Context(), address)
		require.NoError(t, err)
		name := conn.Config().Database + "_latin1"
		_, err = conn.Exec(t.Context(), "CREATE DATABASE "+name+" TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
		require.NoError(t, err)
		t.Cleanup(func() {
			_, err := conn.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)")
			require.NoError(t, err)
			require.NoError(t, conn.Close(context.Background()))
		})
		c := settings(strings.Replace(address, conn.Config().Database, name, 1))
		_, err = app.Start(t.Context(), c)
		require.ErrorContains(t, err, "encoding LATIN1")
		require.ErrorContains(t, err, "TEMPLATE template0 ENCODING 'UTF8'")
	})

	t.Run("PoolerWithoutAnAddressToListen", func(t *testing.T) {
		t.Parallel()
		address := dbtest.URL(t)
		pooler := fakePooler(t, address)
		_, err := app.Start(t.Context(), settings(pooler))
		require.ErrorContains(t, err, "DATABASE_LISTEN_URL is not set")
		a := setup(t, on(pooler), func(c *app.Config) { c.Database.ListenURL = address })
		a.push(`"type":"t","args":[],"queue":"q"`)
		a.ack(a.fetch("q").at("jobs.0.id")).is(200)
	})

	t.Run("SchemaOfAnotherRole", func(t *testing.T) {
		t.Parallel()
		address := dbtest.EmptyURL(t)
		asRole, role := newRole(t, address)
		conn, err := pgx.Connect(t.Context(), address)
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close(context.Background())) }()
		_, err = conn.Exec(t.Context(), "CREATE SCHEMA ojs")
		require.NoError(t, err)
		c := settings(asRole)
		migrate(&c)
		_, err = app.Start(t.Context(), c)
		require.ErrorContains(t, err, "ojsd works as the owner of schema ojs, and role \""+role+"\" does not have the rights of ")
		require.ErrorContains(t, err, "hand the schema over to \""+role+"\"")

		// A role that is no superuser and may create the schema is enough.
		_, err = conn.Exec(t.Context(), "DROP SCHEMA ojs; GRANT CREATE ON DATABASE "+conn.Config().Database+" TO "+role)
		require.NoError(t, err)
		a := setup(t, on(asRole), migrate)
		a.push(`"type":"t","args":[],"queue":"q"`)
		a.ack(a.fetch("q").at("jobs.0.id")).is(200)
	})
}

// newRole makes a role that may only connect, and returns the address with it.
func newRole(t *testing.T, address string) (asRole, role string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	role = "role_of_" + conn.Config().Database
	_, err = conn.Exec(t.Context(), "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := conn.Exec(context.Background(), "DROP OWNED BY "+role+" CASCADE; DROP ROLE "+role)
		require.NoError(t, err)
		require.NoError(t, conn.Close(context.Background()))
	})
	u, err := url.Parse(address)
	require.NoError(t, err)
	u.User = url.UserPassword(role, "secret")
	return u.String(), role
}

// fakePooler leads to the server of the address and behaves as PgBouncer: it invents the process id of a session, and refuses start-up
// parameters that it does not know.
func fakePooler(t *testing.T, address string) (pooled string) {
	t.Helper()
	target, err := pgconn.ParseConfig(address)
	require.NoError(t, err)
	network, host := pgconn.NetworkAddress(target.Host, target.Port)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = client.Close() }()
				server, err := net.Dial(network, host)
				if err != nil {
					return
				}
				defer func() { _ = server.Close() }()
				poolSession(client, server)
			}()
		}
	}()
	u, err := url.Parse(address)
	require.NoError(t, err)
	u.Host, u.RawQuery = ln.Addr().String(), "sslmode=disable"
	if target.User != "" {
		u.User = url.UserPassword(target.User, target.Password)
	}
	return u.String()
}

// poolSession passes everything on but what a pooler changes.
func poolSession(client, server net.Conn) {
	backend, frontend := pgproto3.NewBackend(client, client), pgproto3.NewFrontend(server, server)
	message, err := backend.ReceiveStartupMessage()
	if err != nil {
		return
	}
	startup, isStartup := message.(*pgproto3.StartupMessage)
	if !isStartup { // a request to cancel
		return
	}
	for name := range startup.Parameters {
		if !slices.Contains([]string{"user", "database", "application_name", "client_encoding", "standard_conforming_strings", "datestyle", "timezone"}, strings.ToLower(name)) {
			backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
			_ = backend.Flush()
			return
		}
	}
	frontend.Send(startup)
	if frontend.Flush() != nil {
		return
	}
	go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
	for ready := false; !ready; {
		message, err := frontend.Receive()
		if err != nil {
			return
		}
		switch m := message.(type) {
		case *pgproto3.BackendKeyData:
			m.ProcessID++
		case *pgproto3.ReadyForQuery:
			ready = true
		}
		backend.Send(message)
		if backend.Flush() != nil {
			return
		}
	}
	_, _ = io.Copy(client, server)
}
