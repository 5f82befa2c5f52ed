package eventlog

import (
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

type listenerBundle struct {
	pool      *pgxpool.Pool
	listener  *Listener
	published chan Publication
	woken     chan struct{}
	other     chan string
}

func setupListener(t *testing.T, config ListenerConfig) *listenerBundle {
	t.Helper()
	dbtest.WritesTables(t)
	pool := dbtest.New(t)
	if config.URL == "" {
		config.URL = pool.Config().ConnString()
	}
	archetype := riversharedtest.BaseServiceArchetype(t)
	archetype.Logger = discardLogger()
	b := &listenerBundle{pool: pool, published: make(chan Publication, 1000), woken: make(chan struct{}, 1000), other: make(chan string, 1000)}
	config.Handlers = map[string]func(payload string){
		"ojs_published": func(payload string) { offer(b.published, DecodePublication(payload)) },
		"ojs_wake":      func(string) { offer(b.woken, struct{}{}) },
		"other":         func(payload string) { offer(b.other, payload) },
	}
	b.listener = NewListener(archetype, config)
	b.listener.TestSignals.Init(t)
	return b
}

// offer never blocks, as callbacks must not.
func offer[T any](c chan T, v T) {
	select {
	case c <- v:
	default:
	}
}

func (b *listenerBundle) start(t *testing.T) {
	t.Helper()
	require.NoError(t, b.listener.Start(t.Context()))
	t.Cleanup(b.listener.Stop)
}

func (b *listenerBundle) notify(t *testing.T, channel, payload string) {
	t.Helper()
	_, err := b.pool.Exec(t.Context(), "SELECT pg_notify($1, $2)", channel, payload)
	require.NoError(t, err)
}

func TestListener(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setupListener(t, ListenerConfig{})
		b.listener.TestSignals = ListenerTestSignals{}
		startstoptest.Stress(t.Context(), t, b.listener)
	})

	t.Run("PassesNotificationsOn", func(t *testing.T) {
		t.Parallel()
		b := setupListener(t, ListenerConfig{})
		require.Equal(t, ListenerDegraded, b.listener.Status())
		b.start(t)
		await(t, b.listener.TestSignals.Listening.WaitC())
		require.Equal(t, ListenerOK, b.listener.Status())

		// At first anything may have been missed.
		require.True(t, await(t, b.published).All)
		await(t, b.woken)
		require.Empty(t, await(t, b.other))

		b.notify(t, "ojs_published", `{"w":7,"q":[["a",1,2,3]]}`)
		require.Equal(t, Publication{Watermark: 7, Ready: []Ready{{"a", "", 1, 2, 3}}}, await(t, b.published))
		b.notify(t, "ojs_wake", "")
		await(t, b.woken)
		b.notify(t, "other", "x")
		require.Equal(t, "x", await(t, b.other))
	})

	t.Run("ComesBack", func(t *testing.T) {
		t.Parallel()
		b := setupListener(t, ListenerConfig{})
		b.start(t)
		await(t, b.listener.TestSignals.Listening.WaitC())
		await(t, b.published)
		_, err := b.pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'ojsd listen'`)
		require.NoError(t, err)
		await(t, b.listener.TestSignals.Lost.WaitC())
		await(t, b.listener.TestSignals.Listening.WaitC())
		require.True(t, await(t, b.published).All) // what was said meanwhile is lost
		require.Equal(t, ListenerOK, b.listener.Status())
	})

	t.Run("PollsWithoutConnection", func(t *testing.T) {
		t.Parallel()
		for url, reason := range map[string]string{"postgres://127.0.0.1:1/none": "failed to connect", "postgres://127.0.0.1:none": "parse listen url"} {
			b := setupListener(t, ListenerConfig{URL: url, PollFallback: time.Millisecond})
			lines := make(logLines, 100)
			b.listener.Logger = slog.New(slog.NewTextHandler(lines, nil))
			b.start(t)
			await(t, b.listener.TestSignals.Lost.WaitC())
			require.Equal(t, ListenerDegraded, b.listener.Status())
			require.Contains(t, await(t, lines), reason)
			for range 3 {
				require.True(t, await(t, b.published).All)
				await(t, b.woken)
			}
		}
	})

	// A transaction pooler accepts LISTEN, and notifications get lost.
	t.Run("PollsBehindPooler", func(t *testing.T) {
		t.Parallel()
		b := setupListener(t, ListenerConfig{PollFallback: time.Millisecond})
		b.listener.config.URL = "postgres://postgres@" + fakePooler(t) + "/x?sslmode=disable"
		b.start(t)
		await(t, b.listener.TestSignals.Listening.WaitC())
		require.Equal(t, ListenerDegraded, b.listener.Status())
		for range 3 {
			require.True(t, await(t, b.published).All)
		}
	})
}

// fakePooler answers as a pooler does: the process it promises at login is not the one that runs statements.
func fakePooler(t *testing.T) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			if err := serveFakePooler(conn); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Log(err)
			}
		}
	}()
	return ln.Addr().String()
}

func serveFakePooler(conn net.Conn) error {
	defer func() { _ = conn.Close() }()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return err
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	backend.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	backend.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 2}})
	for {
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if err := backend.Flush(); err != nil {
			return err
		}
		message, err := backend.Receive()
		if err != nil {
			return nil // the listener has closed
		}
		query, ok := message.(*pgproto3.Query)
		if !ok {
			return nil
		}
		if query.String == "SELECT pg_backend_pid()" {
			backend.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{{Name: []byte("pid"), DataTypeOID: 23, DataTypeSize: 4}}})
			backend.Send(&pgproto3.DataRow{Values: [][]byte{[]byte("4711")}})
		}
		backend.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	}
}

// An idle node that gets the notifications of its relay: no statement at all on either connection beyond the relay's look.
func TestIdleListener(t *testing.T) {
	t.Parallel()
	b := setupListener(t, ListenerConfig{})
	b.start(t)
	await(t, b.listener.TestSignals.Listening.WaitC())
	var before, after time.Time
	query := `SELECT query_start FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'ojsd listen'`
	require.NoError(t, b.pool.QueryRow(t.Context(), query).Scan(&before))
	for range 3 {
		b.notify(t, "ojs_wake", "")
		await(t, b.woken)
	}
	require.NoError(t, b.pool.QueryRow(t.Context(), query).Scan(&after))
	require.Equal(t, before, after)
}
