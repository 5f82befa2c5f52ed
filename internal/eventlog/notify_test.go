package eventlog

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
)

// ear is a SQL client that listens.
type ear struct{ conn *pgx.Conn }

func (b *testBundle) listen(t *testing.T, channel string) *ear {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), b.pool.Config().ConnString())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), "LISTEN "+channel)
	require.NoError(t, err)
	return &ear{conn}
}

func (e *ear) next(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	n, err := e.conn.WaitForNotification(ctx)
	require.NoError(t, err)
	return n.Payload
}

const insertCompleted = `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, attempt, duration_ms, trace_id, data)
	VALUES ('job.completed', 'api', clock_timestamp(), gen_random_uuid(), 'test', 'q', 1, 0, $1, $2)`

func TestNotify(t *testing.T) {
	t.Parallel()

	// PostgreSQL refuses 8 000 bytes; so the event is cut there, not below.
	t.Run("CutsAt8000Bytes", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		client := b.listen(t, "ojs_events")
		b.exec(t, insertCompleted, nil, `{"result":""}`)
		b.publishAll(t)
		base := len(client.next(t))
		for _, c := range []struct {
			bytes int
			cut   bool
		}{{7999, false}, {8000, true}, {24_000, true}} {
			// A multi-byte character: the limit is in bytes.
			b.exec(t, insertCompleted, nil, `{"result":"ß`+strings.Repeat("x", c.bytes-base-2)+`"}`)
			b.publishAll(t)
			payload := client.next(t)
			var e struct {
				ID        string          `json:"id"`
				Truncated *bool           `json:"truncated"`
				Bytes     int             `json:"truncated_bytes"`
				Ref       string          `json:"dataref"`
				Data      json.RawMessage `json:"data"`
			}
			require.NoError(t, json.Unmarshal([]byte(payload), &e))
			var whole string
			require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT ojs.event($1)::text", e.ID).Scan(&whole))
			require.Len(t, whole, c.bytes)
			if !c.cut {
				require.Equal(t, whole, payload)
				require.Nil(t, e.Truncated)
				continue
			}
			require.True(t, *e.Truncated)
			require.Equal(t, c.bytes, e.Bytes)
			require.Equal(t, "/ojs/v1/events/"+e.ID, e.Ref)
			require.JSONEq(t, `{"job_type":"test","queue":"q","attempt":1,"duration_ms":0}`, string(e.Data))
			require.Contains(t, payload, `"event":"job.completed"`)
			require.Less(t, len(payload), 8000)
		}
	})

	// Any role that may connect can listen.
	t.Run("WithoutData", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{Events: config.Events{Notify: "envelope"}})
		client := b.listen(t, "ojs_events")
		b.exec(t, insertCompleted, nil, `{"result":"a secret"}`)
		b.publishAll(t)
		payload := client.next(t)
		var id, whole string
		require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT id, payload FROM ojs.events_after()").Scan(&id, &whole))
		require.Contains(t, whole, "a secret")
		require.Equal(t, whole[:strings.Index(whole, `,"event":`)]+`,"data":{},"truncated":true,"dataref":"/ojs/v1/events/`+id+`"}`, payload)
	})

	t.Run("KeepsTheErrorOfAFailure", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		client := b.listen(t, "ojs_events")
		for message, kept := range map[string]int{ // characters of 512, without a part of an escape
			strings.Repeat("m", 512): 512, strings.Repeat("m", 513): 512, strings.Repeat(`\u0001`, 300): 85, "x" + strings.Repeat(`\\`, 300): 256, strings.Repeat(`\"`, 300): 256,
			strings.Repeat("ß", 600): 512, "short": 5,
		} {
			failure := `{"code":"E \"1\"","type":"T","message":"` + message + `","retryable":true,"stack_trace":"` + strings.Repeat("s", 8000) + `"}`
			for kind, data := range map[string]string{
				"job.discarded": `{"last_error":` + failure + `,"error":` + failure + `}`, "job.failed": `{"error":` + failure + `,"next_state":"retryable"}`,
				"job.retrying": `{"max_attempts":3,"next_retry_at":"2026-01-01T00:00:00.000Z","error":` + failure + `,"next_attempt":2}`,
			} {
				b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, attempt, data)
					VALUES ($1, 'workers/w', clock_timestamp(), gen_random_uuid(), 'test', 'q', 1, $2::json)`, kind, data)
				b.publishAll(t)
				payload := client.next(t)
				require.Less(t, len(payload), 8000)
				type cut struct{ Code, Message string }
				var e struct {
					Truncated bool
					Data      struct {
						Error     *cut
						LastError *cut `json:"last_error"`
					}
				}
				var whole string
				require.NoError(t, json.Unmarshal([]byte(payload), &e), payload)
				require.NoError(t, json.Unmarshal([]byte(`"`+message+`"`), &whole))
				require.True(t, e.Truncated)
				require.Equal(t, `E "1"`, e.Data.Error.Code)
				require.True(t, strings.HasPrefix(whole, e.Data.Error.Message))
				require.Equal(t, kept, utf8.RuneCountInString(e.Data.Error.Message), message)
				require.Equal(t, kind == "job.discarded", e.Data.LastError != nil)
			}
		}
	})

	// A notification that PostgreSQL refused would stop all that follow.
	t.Run("NeverTooLong", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		client := b.listen(t, "ojs_events")
		b.exec(t, insertCompleted, strings.Repeat("t", 9000), `{"result":1}`)
		b.exec(t, `INSERT INTO ojs.events (type, source, time, subject, worker_id, data)
			VALUES ('worker.heartbeat', 'workers/w', clock_timestamp(), repeat('w', 5000), 'w', '{"worker_id":"w"}')`)
		b.exec(t, `INSERT INTO ojs.events (type, source, time, subject, queue, data)
			VALUES ('queue.paused', 'api', clock_timestamp(), 'q', 'q', ('{"queue":"q","paused_by":"' || repeat('x', 9000) || '"}')::json)`)
		b.publishAll(t)
		first := client.next(t)
		require.Contains(t, first, `"job_id":`)
		require.Contains(t, first, `"data":{},"truncated":true`)
		require.Contains(t, client.next(t), `"type":"worker.heartbeat","time":`)
		require.Contains(t, client.next(t), `"data":{"queue":"q"},"truncated":true`)

		// PostgreSQL takes 7 999 bytes.
		notified := func(length int) string {
			b.exec(t, insertCompleted, strings.Repeat("t", length), `{"result":"`+strings.Repeat("r", 9000)+`"}`)
			b.publishAll(t)
			return client.next(t)
		}
		length := 1000 + 7999 - len(notified(1000))
		require.Len(t, notified(length), 7999)
		require.Contains(t, notified(length), `"data":{"job_type":`)
		require.Contains(t, notified(length+1), `"data":{},"truncated":true`)
	})

	t.Run("KeepsJSONAsItIs", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		client := b.listen(t, "ojs_events")
		const result = `{"a":"\u0000","b":"\ud800","c":1.00000000000000000000000001e400,"c":2,"z":{},"d":"é€😀"}`
		b.exec(t, insertCompleted, nil, `{"result":`+result+`}`)
		b.publishAll(t)
		payload := client.next(t)
		require.Contains(t, payload, `"result":`+result+`}}`)
		var after, whole string
		require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT payload FROM ojs.events_after()").Scan(&after))
		require.Equal(t, payload, after)
		require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT ojs.event(id)::text FROM ojs.events_after()").Scan(&whole))
		require.Equal(t, payload, whole)
		events := b.readAll(t)
		require.Equal(t, payload, string(events[0].Append(nil, true, false)))
	})

	t.Run("LeavesInternalRowsOut", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		client := b.listen(t, "ojs_events")
		b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state, internal)
			VALUES ('job.state_changed', 'api', clock_timestamp(), gen_random_uuid(), 'test', 'q', 'pending', true)`)
		b.exec(t, insertEvent, "public")
		b.publishAll(t)
		require.Contains(t, client.next(t), `"queue":"public"`)
		var n int
		require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT count(*) FROM ojs.events_after()").Scan(&n))
		require.Equal(t, 1, n)
	})

	t.Run("RefusesOtherCursors", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		_, err := b.pool.Exec(t.Context(), "SELECT * FROM ojs.events_after('job_1')")
		require.ErrorContains(t, err, "'after' must be an event id")
		var none *string
		require.NoError(t, b.pool.QueryRow(t.Context(), "SELECT ojs.event('job_1')::text").Scan(&none))
		require.Nil(t, none)
	})
}

func TestPublication(t *testing.T) {
	t.Parallel()

	t.Run("ListsPlacesOfReadyJobs", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		client := b.listen(t, "ojs_published")
		b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state, priority, ready_seq, node)
			SELECT 'job.enqueued', 'api', clock_timestamp(), gen_random_uuid(), 'test', v.q, 'available', v.p, v.r, v.n
			FROM (VALUES ('a', 0, 12, 7), ('a', 0, 11, 7), ('a', 5, 13, 7), ('b"', 0, 14, NULL), ('claimed', 0, 15, 7)) v (q, p, r, n)`)
		b.exec(t, `INSERT INTO ojs.jobs (id, type, queue, state, priority, max_attempts, ready_seq, created_at, args)
			SELECT gen_random_uuid(), 'test', v.q, 'available', v.p, 3, v.r, clock_timestamp(), '[]'
			FROM (VALUES ('a', 0, 12), ('a', 5, 13), ('b"', 0, 14), ('claimed', 0, 16), ('claimed', 1, 15)) v (q, p, r)`)
		b.publishAll(t)
		got := DecodePublication(client.next(t))
		require.False(t, got.All)
		require.EqualValues(t, 5, got.Watermark)
		require.ElementsMatch(t, []Ready{{"a", "", 0, 11, 7}, {"a", "", 5, 13, 7}, {`b"`, "", 0, 14, 0}}, got.Ready)
	})

	t.Run("SaysAllIfTooMany", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		client := b.listen(t, "ojs_published")
		b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state, priority, ready_seq)
			SELECT 'job.enqueued', 'api', clock_timestamp(), gen_random_uuid(), 'test', 'queue-' || g, 'available', 0, g FROM generate_series(1, 1000) g`)
		b.exec(t, `INSERT INTO ojs.jobs (id, type, queue, state, priority, max_attempts, ready_seq, created_at, args)
			SELECT gen_random_uuid(), 'test', 'queue-' || g, 'available', 0, 3, g, clock_timestamp(), '[]' FROM generate_series(1, 1000) g`)
		b.publishAll(t)
		require.Equal(t, Publication{Watermark: 1000, All: true}, DecodePublication(client.next(t)))
	})

	t.Run("TakesNonsenseForAnything", func(t *testing.T) {
		t.Parallel()
		for _, payload := range []string{"", "{", `{"w":1}`, `{"w":1,"q":[["a"]]}`, `{"w":1,"q":[[1,2,3,4]]}`, `[]`} {
			require.True(t, DecodePublication(payload).All, payload)
		}
	})
}
