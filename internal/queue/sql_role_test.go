package queue_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/migrations"
)

// producerGrants are the lines of the README.
const producerGrants = `
GRANT USAGE ON SCHEMA ojs TO producer;
GRANT EXECUTE ON FUNCTION ojs.enqueue(text, json, text, json) TO producer;`

// roles is a database that a role without special rights has migrated, with a role for a producer.
type roles struct {
	owner, producer *pgx.Conn
	name            string // of the producer
}

func setupRoles(t *testing.T) roles {
	t.Helper()
	address := dbtest.EmptyURL(t)
	admin := login(t, address, "")
	suffix := strings.ToLower(rand.Text()[:8])
	owner, producer := "ojsd_owner_"+suffix, "ojsd_producer_"+suffix
	for _, sql := range []string{
		"CREATE ROLE " + owner + " LOGIN PASSWORD 'x'", "CREATE ROLE " + producer + " LOGIN PASSWORD 'x'",
		"DO $$ BEGIN EXECUTE 'GRANT CREATE ON DATABASE ' || current_database() || ' TO " + owner + "'; END $$",
	} {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		_, err := admin.Exec(context.Background(), "DROP OWNED BY "+owner+", "+producer+" CASCADE; DROP ROLE "+owner+", "+producer)
		require.NoError(t, err)
	})
	as := func(role string) string {
		u, err := url.Parse(address)
		require.NoError(t, err)
		u.User = url.UserPassword(role, "x")
		return u.String()
	}
	_, err := migrations.Up(t.Context(), as(owner), nil)
	require.NoError(t, err)
	r := roles{login(t, as(owner), owner), login(t, as(producer), producer), producer}
	_, err = r.owner.Exec(t.Context(), strings.ReplaceAll(producerGrants, "producer", producer))
	require.NoError(t, err)
	return r
}

func login(t *testing.T, address, role string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if role != "" {
		var user string
		var super bool
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user").Scan(&user, &super))
		require.Equal(t, role, user)
		require.False(t, super)
	}
	return conn
}

func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

func TestSQLProducerRole(t *testing.T) {
	t.Parallel()
	r := setupRoles(t)

	for _, p := range []push{
		{typ: "a", args: "[1]"}, {typ: "a", args: "[ 1 ]", queue: "new", options: `{"id":"019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f","tags":["a"],"scheduled_at":"PT5M",
			"retry":{"jitter":false,"backoff_coefficient":1.5},"meta":{"a":1,"traceparent":"x"},"schema":"http://a/b"}`},
	} {
		_, err := p.sql(t.Context(), r.producer)
		require.NoError(t, err)
	}
	_, err := push{typ: "A", args: "[]"}.sql(t.Context(), r.producer)
	require.Equal(t, "22023", sqlState(err))
	var jobs, events, queues int
	require.NoError(t, r.owner.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM ojs.jobs), (SELECT count(*) FROM ojs.events), (SELECT count(*) FROM ojs.queues)").Scan(&jobs, &events, &queues))
	require.Equal(t, []int{2, 2, 2}, []int{jobs, events, queues})

	for _, sql := range []string{
		"SELECT FROM ojs.jobs", "SELECT FROM ojs.jobs_done", "SELECT FROM ojs.events", "SELECT FROM ojs.queues", "SELECT FROM ojs.job", "DELETE FROM ojs.jobs", "TRUNCATE ojs.events",
		"INSERT INTO ojs.queues (name) VALUES ('x')", "UPDATE ojs.jobs SET priority = 1", "SELECT nextval('ojs.ready_seq')", "SELECT ojs.cancel('019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f')", "SELECT ojs.reset()",
		"SELECT ojs.event_partitions_ensure()", "SELECT ojs.jobs_done_partitions_prune('1 day')", "SELECT * FROM ojs.events_after()", "CREATE TABLE ojs.x ()",
	} {
		_, err := r.producer.Exec(t.Context(), sql)
		require.Equal(t, "42501", sqlState(err), "%s: %v", sql, err)
	}
}

// TestSQLGrants compares the grants of all objects, so that a later migration cannot add one unnoticed.
func TestSQLGrants(t *testing.T) {
	t.Parallel()
	r := setupRoles(t)
	list := func(sql string) []string {
		rows, err := r.owner.Query(t.Context(), sql, r.name)
		require.NoError(t, err)
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return names
	}
	// event_floor runs as its owner, because every reader of ojs.event_published needs it. It returns two numbers.
	require.ElementsMatch(t, []string{"ojs.enqueue(text,json,text,json)", "ojs.event_floor(bigint)", "ojs.event_rewritten(timestamp with time zone,bigint)"}, list(`
		SELECT p.oid::regprocedure::text FROM pg_proc p
		WHERE p.pronamespace = 'ojs'::regnamespace AND (p.provolatile = 'v' OR p.prosecdef) AND has_function_privilege($1, p.oid, 'EXECUTE')`),
		"revoke EXECUTE from PUBLIC on functions that change something")
	require.Empty(t, list(`
		SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'ojs'::regnamespace AND c.relkind IN ('r', 'p', 'v')
			AND has_table_privilege($1, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')`))
	require.Empty(t, list(`
		SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'ojs'::regnamespace AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege($1, c.oid, 'USAGE, SELECT, UPDATE') END`))
	require.Empty(t, list(`
		SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.pronamespace = 'ojs'::regnamespace AND p.prosecdef AND $1 <> ''
			AND NOT COALESCE(p.proconfig, '{}') @> '{"search_path=pg_catalog, pg_temp"}'`), "functions with their owner's rights need a pinned search path")
}

// TestSQLEnqueueIgnoresSearchPath: functions that run with the rights of the owner must not call functions of the caller.
func TestSQLEnqueueIgnoresSearchPath(t *testing.T) {
	t.Parallel()
	r := setupRoles(t)
	_, err := r.owner.Exec(t.Context(), "CREATE SCHEMA evil; GRANT ALL ON SCHEMA evil TO "+r.name)
	require.NoError(t, err)
	for _, sql := range []string{
		"CREATE FUNCTION evil.octet_length(text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$",
		"CREATE FUNCTION evil.strpos(text, text) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$",
		"CREATE FUNCTION evil.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'evil'; END $$",
		"CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.eq)",
		"CREATE TEMP TABLE queues (name text, status text)", "SET search_path = evil, pg_temp, pg_catalog, ojs",
	} {
		_, err := r.producer.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	_, err = r.producer.Exec(t.Context(), "SELECT 'a'::text = 'b'::text")
	require.ErrorContains(t, err, "evil", "the function of the caller shadows the built-in one")
	_, err = push{typ: "a", args: "[ 1 ]", options: `{"priority":7,"tags":["a"],"scheduled_at":"PT5M"}`}.sql(t.Context(), r.producer)
	require.NoError(t, err)
}

// TestSQLEnqueueUnderAnySettings: session settings do not change how dates, numbers and quotes are read.
func TestSQLEnqueueUnderAnySettings(t *testing.T) {
	t.Parallel()
	b := setup(t, unchecked)
	conn, err := b.Pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	for _, sql := range []string{
		"SET extra_float_digits = -15", "SET DateStyle = 'SQL, DMY'", "SET IntervalStyle = 'sql_standard'", "SET TimeZone = 'Asia/Kolkata'",
		"SET standard_conforming_strings = off", "SET backslash_quote = off", "SET xmloption = document", "SET transform_null_equals = on", "SET lc_messages = 'C'",
	} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	for _, members := range []string{
		`"scheduled_at":"2030-02-01T00:00:00.123456789+05:00","expires_at":"P1DT0.5S"`, `"retry":{"backoff_coefficient":1.1234567890123457,"non_retryable_errors":["\\\"\n"]}`,
		`"meta":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","a":["\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["]}`, `"tags":["a\\b","\""]`, `"timeout_ms":1e3,"priority":5`,
	} {
		require.Empty(t, b.differenceOn(conn, options(members)), members)
	}
}
