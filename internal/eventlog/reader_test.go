package eventlog

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/pg"
)

const insertNamed = `INSERT INTO ojs.events (type, source, time, subject, job_id, job_type, queue, worker_id, workflow_id, internal, from_state, to_state, data)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`

// row is one event to write; the zero value of a field is NULL.
type row struct {
	typ, source, subject, jobType, queue, worker, from, to, data string
	job, workflow                                                *[16]byte
	at                                                           time.Time
	internal                                                     bool
}

func (b *testBundle) write(t *testing.T, rows ...row) {
	t.Helper()
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	for _, r := range rows {
		if r.source == "" {
			r.source = "api"
		}
		if r.at.IsZero() {
			r.at = time.Now()
		}
		b.exec(t, insertNamed, r.typ, r.source, r.at, null(r.subject), r.job, null(r.jobType), null(r.queue), null(r.worker), r.workflow, r.internal,
			null(r.from), null(r.to), null(r.data))
	}
}

func jobRow(typ, queue string, id byte) row {
	return row{typ: typ, queue: queue, jobType: "test", job: &[16]byte{15: id}}
}

func types(events []Event) string {
	list := make([]string, 0, len(events))
	for _, e := range events {
		list = append(list, e.Type)
	}
	return strings.Join(list, " ")
}

func (b *testBundle) list(t *testing.T, q Query) Page {
	t.Helper()
	page, err := b.reader.ListAfter(t.Context(), q)
	require.NoError(t, err)
	return page
}

func TestListAfter(t *testing.T) {
	t.Parallel()

	t.Run("Filters", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{Events: config.Events{ServiceName: "shop"}})
		noon := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
		flow := [16]byte{1}
		b.write(t,
			row{typ: "job.enqueued", queue: "a", jobType: "x.y", job: &[16]byte{15: 1}, at: noon},
			row{typ: "job.started", source: "workers/w-1", queue: "a", jobType: "x.y", job: &[16]byte{15: 1}, worker: "w-1", at: noon.Add(time.Second)},
			row{typ: "job.state_changed", queue: "a", jobType: "x.y", job: &[16]byte{15: 1}, internal: true, from: "active", to: "available", at: noon.Add(2 * time.Second)},
			row{typ: "job.discarded", source: "scheduler", queue: "b", jobType: "x.z", job: &[16]byte{15: 2}, at: noon.Add(3 * time.Second)},
			row{typ: "worker.started", source: "workers/w-1", subject: "w-1", worker: "w-1", data: "{}", at: noon.Add(4 * time.Second)},
			row{typ: "workflow.step_completed", subject: "f", workflow: &flow, data: "{}", at: noon.Add(5 * time.Second)},
		)
		b.publishAll(t)
		for _, c := range []struct {
			name  string
			query Query
			want  string
		}{
			{"None", Query{}, "job.enqueued job.started job.discarded worker.started workflow.step_completed"},
			{"Literal", Query{Types: []string{"job.started"}}, "job.started"},
			{"UnderscoreIsNoWildcard", Query{Types: []string{"workflow.stepxcompleted"}}, ""},
			{"Underscore", Query{Types: []string{"workflow.step_completed"}}, "workflow.step_completed"},
			{"Prefix", Query{Types: []string{"job.*"}}, "job.enqueued job.started job.discarded"},
			{"Any", Query{Types: []string{"*"}}, "job.enqueued job.started job.discarded worker.started workflow.step_completed"},
			{"Ored", Query{Types: []string{"worker.*", "job.enqueued"}}, "job.enqueued worker.started"},
			{"Alias", Query{Types: []string{"job.dead", "worker.registered"}}, "job.discarded worker.started"},
			{"Unknown", Query{Types: []string{"job.unknown"}}, ""},
			{"Empty", Query{Types: []string{""}, Queues: []string{""}, Sources: []string{""}}, "job.enqueued job.started job.discarded worker.started workflow.step_completed"},
			{"Queues", Query{Queues: []string{"b", "c"}}, "job.discarded"},
			{"QueuesCaseSensitive", Query{Queues: []string{"B"}}, ""},
			{"JobTypes", Query{JobTypes: []string{"x.y"}}, "job.enqueued job.started"},
			{"Source", Query{Sources: []string{"ojs://shop/scheduler"}}, "job.discarded"},
			{"SourcePrefix", Query{Sources: []string{"ojs://shop/workers/*"}}, "job.started worker.started"},
			{"Job", Query{JobID: &[16]byte{15: 1}}, "job.enqueued job.started"},
			{"JobAndType", Query{JobID: &[16]byte{15: 1}, Types: []string{"job.s*"}}, "job.started"},
			{"Workflow", Query{WorkflowID: &flow}, "workflow.step_completed"},
			{"Since", Query{Since: noon.Add(3 * time.Second)}, "job.discarded worker.started workflow.step_completed"},
			{"Until", Query{Until: noon.Add(3 * time.Second)}, "job.enqueued job.started"},
			{"Anded", Query{Types: []string{"job.*"}, Queues: []string{"a"}, Since: noon.Add(time.Second)}, "job.started"},
			{"GapRowByPatternNever", Query{Internal: true, Types: []string{"job.s*"}}, "job.started"},
			{"GapRowByName", Query{Internal: true, Types: []string{"job.state_changed"}}, "job.state_changed"},
			{"GapRowNotOffered", Query{Types: []string{"job.state_changed"}}, ""},
			{"GapRowUnfiltered", Query{Internal: true, JobID: &[16]byte{15: 1}}, "job.enqueued job.started job.state_changed"},
		} {
			page := b.list(t, c.query)
			require.Equal(t, c.want, types(page.Events), c.name)
			require.False(t, page.HasMore, c.name)
			require.Equal(t, b.list(t, Query{}).Cursor, page.Cursor, c.name) // all has been examined

			reversed, total, err := b.reader.ListNewest(t.Context(), c.query, 0)
			require.NoError(t, err)
			require.EqualValues(t, len(page.Events), total, c.name)
			for i, e := range reversed {
				require.Equal(t, page.Events[len(page.Events)-1-i], e, c.name)
			}
		}
		_, err := b.reader.ListAfter(t.Context(), Query{Types: []string{"job:done"}})
		var bad *PatternError
		require.ErrorAs(t, err, &bad)
	})

	t.Run("PagesExactly", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		page := b.list(t, Query{})
		require.Equal(t, Page{Events: []Event{}}, page)
		for i := range byte(5) {
			b.write(t, jobRow("job.enqueued", "q", i), jobRow("job.started", "other", i))
		}
		b.publishAll(t)
		all := b.list(t, Query{Queues: []string{"q"}})
		require.Len(t, all.Events, 5)

		var got []Event
		query := Query{Queues: []string{"q"}, Limit: 2}
		for n := 0; ; n++ {
			require.Less(t, n, 3)
			page := b.list(t, query)
			got = append(got, page.Events...)
			p, err := ParsePosition(page.Cursor)
			require.NoError(t, err)
			query.After = &p
			if !page.HasMore {
				require.Equal(t, all.Cursor, page.Cursor)
				break
			}
			require.Equal(t, page.Events[1].ID(), page.Cursor)
		}
		require.Equal(t, all.Events, got)

		// Nothing came since.
		page = b.list(t, query)
		require.Empty(t, page.Events)
		require.Equal(t, all.Cursor, page.Cursor)
	})

	t.Run("RefusesCursorsBeyondTheEnd", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		newest := func() string {
			if all := b.readAll(t); len(all) > 0 {
				return all[len(all)-1].ID()
			}
			return ""
		}
		for range 3 {
			watermark := b.count(t, "SELECT watermark FROM ojs.event_relay")
			future := NewPosition(time.Now(), watermark+1, 0)
			_, err := b.reader.ListAfter(t.Context(), Query{After: &future})
			var expired *ExpiredError
			require.ErrorAs(t, err, &expired)
			require.True(t, expired.Ahead)
			if id := newest(); id != "" {
				require.Equal(t, id, expired.OldestID)
			}
			// The client goes on at the end, and a stream does so by itself.
			end, err := ParsePosition(expired.OldestID)
			require.NoError(t, err)
			f := b.feed(t, FeedConfig{})
			s := f.subscribe(t, Query{}, &future)
			_, missed, err := s.Next(t.Context(), nil, 1)
			require.NoError(t, err)
			require.Equal(t, future, missed.Start)
			require.Equal(t, expired.Pruned.place(), missed.End.place())
			b.write(t, jobRow("job.enqueued", "q", 1))
			b.publishAll(t)
			require.Len(t, b.list(t, Query{After: &end}).Events, 1)
			f.Wake()
			items, _, err := s.Next(t.Context(), nil, 1)
			require.NoError(t, err)
			require.Len(t, items, 1)
		}
	})

	t.Run("HasMoreAtTheLimit", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.write(t, jobRow("job.enqueued", "q", 1), jobRow("job.enqueued", "q", 2))
		b.publishAll(t)
		require.False(t, b.list(t, Query{Limit: 2}).HasMore)
		require.True(t, b.list(t, Query{Limit: 1}).HasMore)
	})

	t.Run("ReportsExpiredCursors", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, "UPDATE ojs.event_relay SET pruned = 10, floor_place = 10 << 16, lost_place = 10 << 16, watermark = 10")
		b.exec(t, "SELECT setval('ojs.event_seq', 10)")
		old, last := NewPosition(time.Now(), 9, 0), NewPosition(time.Now(), 10, 0)
		_, err := b.reader.ListAfter(t.Context(), Query{After: &old})
		var expired *ExpiredError
		require.ErrorAs(t, err, &expired)
		require.Empty(t, expired.OldestID)

		b.write(t, jobRow("job.enqueued", "q", 1))
		b.publishAll(t)
		event := b.list(t, Query{}).Events[0]
		_, err = b.reader.ListAfter(t.Context(), Query{After: &old})
		require.ErrorAs(t, err, &expired)
		require.Equal(t, event.ID(), expired.OldestID)
		require.Equal(t, event.Time, expired.OldestTime)
		require.Len(t, b.list(t, Query{After: &last}).Events, 1) // nothing is missing behind it

		// The log may begin between rows with one number.
		b.exec(t, "UPDATE ojs.event_relay SET floor_place = $1 << 16, lost_place = $1 << 16", event.Position.Seq)
		b.exec(t, "UPDATE ojs.events SET sub = 1 WHERE seq = $1", event.Position.Seq)
		_, err = b.reader.ListAfter(t.Context(), Query{After: &old})
		require.ErrorAs(t, err, &expired)
		require.Equal(t, NewPosition(event.Time, event.Position.Seq, 1).String(), expired.OldestID)
	})
}

func TestListNewest(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue)
		SELECT 'job.enqueued', 'api', clock_timestamp(), gen_random_uuid(), 'test', 'q' || g FROM generate_series(1, 10050) g`)
	b.publishAll(t)
	events, total, err := b.reader.ListNewest(t.Context(), Query{Limit: 3}, 10_020)
	require.NoError(t, err)
	require.EqualValues(t, 10_024, total) // counted no further
	_, total, err = b.reader.ListNewest(t.Context(), Query{Limit: 3}, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1000, total)
	require.Equal(t, []string{"q30", "q29", "q28"}, queues(events))
	events, total, err = b.reader.ListNewest(t.Context(), Query{Queues: []string{"q7"}}, 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, total)
	require.Empty(t, events)
}

func TestGet(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.write(t, jobRow("job.enqueued", "q", 1), row{typ: "job.state_changed", job: &[16]byte{15: 1}, jobType: "t", queue: "q", internal: true})
	b.publishAll(t)
	page := b.list(t, Query{Internal: true})
	require.Len(t, page.Events, 2)

	event, found, err := b.reader.Get(t.Context(), page.Events[0].Position, page.Events[0].ID())
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, page.Events[0], event)

	_, found, err = b.reader.Get(t.Context(), page.Events[1].Position, page.Events[1].ID())
	require.NoError(t, err)
	require.False(t, found, "internal rows are no events")

	other := NewPosition(event.Time.Add(time.Hour), event.Position.Seq, 0) // right place, wrong time
	_, found, err = b.reader.Get(t.Context(), other, other.String())
	require.NoError(t, err)
	require.False(t, found)
}

func TestHistory(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	id := [16]byte{15: 1}
	b.write(t, row{typ: "job.enqueued", job: &id, jobType: "t", queue: "q", to: "available"},
		jobRow("job.enqueued", "q", 2),
		row{typ: "job.state_changed", job: &id, jobType: "t", queue: "q", internal: true, from: "active", to: "available", data: `{"reason":"requeue"}`})
	history, _, err := b.reader.History(t.Context(), id)
	require.NoError(t, err)
	require.Empty(t, history, "not published yet")
	b.publishAll(t)
	history, _, err = b.reader.History(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, history, 2)
	require.Equal(t, "available", history[0].To)
	require.Equal(t, "job.state_changed active available", fmt.Sprint(history[1].Type, " ", history[1].From, " ", history[1].To))
	require.JSONEq(t, `{"job_type":"t","queue":"q","reason":"requeue"}`, history[1].Data)
	_, err = ParsePosition(history[1].ID)
	require.NoError(t, err)
}

// TestHistoryInParts: whatever a statement looks at, the pages have every entry once, also of rows that share a number.
func TestHistoryInParts(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	var want []string
	for i := range byte(20) {
		b.write(t, jobRow("job.enqueued", "q", i+1))
	}
	b.publishAll(t)
	b.exec(t, `UPDATE ojs.events SET sub = seq % 5, seq = seq - seq % 5 WHERE seq >= 5 AND seq % 5 < 3`)
	for _, e := range b.readAll(t) {
		want = append(want, e.Position.String())
	}
	slices.Reverse(want)
	require.Len(t, want, 20)
	for looked := int64(2); looked < 10; looked++ {
		b.reader.maxLooked = looked
		for _, limit := range []int{1, 2, 50} {
			var got []string
			query := HistoryQuery{Limit: limit}
			for more := true; more; {
				page, err := b.reader.HistoryNewest(t.Context(), query)
				require.NoError(t, err)
				for _, e := range page.Events {
					got = append(got, e.Position.String())
				}
				query.Before, more = &page.End, page.More
			}
			require.Equal(t, want, got, "%d looked at, %d shown", looked, limit)
		}
	}
}

func TestEventAppend(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.write(t, row{typ: "job.progress", job: &[16]byte{15: 1}, jobType: "t", queue: "q", worker: "w",
		data: `{"progress_percent":99.9,"progress_message":"a\u0000b"}`})
	b.write(t, jobRow("job.progress", "q", 1))
	b.publishAll(t)
	events := b.readAll(t)
	require.True(t, strings.HasSuffix(string(events[0].Append(nil, true, false)),
		`"worker_id":"w","progress":99,"message":"a\u0000b","data":{"job_type":"t","queue":"q","worker_id":"w","progress_percent":99.9,"progress_message":"a\u0000b"}}`))
	require.NotContains(t, string(events[1].Append(nil, true, false)), `"progress":`)

	plain := string(events[0].Append([]byte("x"), false, false))
	require.Equal(t, "x"+events[0].Head+`,"data":`+events[0].Data+"}", plain)

	var cloud map[string]any
	require.NoError(t, json.Unmarshal(events[0].Append(nil, true, true), &cloud))
	require.Equal(t, "org.openjobspec.job.progress", cloud["type"])
	require.Equal(t, "application/json", cloud["datacontenttype"])
	require.NotContains(t, cloud, "event")
	require.Len(t, cloud, 8)
}

// Readers must walk the key from their cursor to their limit, whatever the planner thinks of the filters: not sort, not
// scan a partition, and not walk what is not published yet.
// TestReadsWithoutAPlace: reads of clients that get no place until their time is over fail. They must not look like an empty log.
func TestReadsWithoutAPlace(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	r := NewReader(pg.New(b.pool, 20*time.Millisecond), nil)
	for {
		_, done, err := r.db.Reading(t.Context())
		if err != nil {
			break
		}
		defer done()
	}
	for name, read := range map[string]func() error{
		"ListAfter":     func() error { _, err := r.ListAfter(t.Context(), Query{Limit: 1}); return err },
		"ListNewest":    func() error { _, _, err := r.ListNewest(t.Context(), Query{Limit: 1}, 0); return err },
		"NewestOfJob":   func() error { _, err := r.NewestOfJob(t.Context(), [16]byte{}, Query{Limit: 1}); return err },
		"History":       func() error { _, _, err := r.History(t.Context(), [16]byte{}); return err },
		"JobHistory":    func() error { _, err := r.JobHistory(t.Context(), [16]byte{}, nil, 1); return err },
		"HistoryNewest": func() error { _, err := r.HistoryNewest(t.Context(), HistoryQuery{Limit: 1}); return err },
	} {
		require.ErrorIs(t, read(), context.DeadlineExceeded, name)
	}
}

func TestReadingPlans(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{})
	b.exec(t, `INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state, priority)
		SELECT 'job.enqueued', 'api', clock_timestamp(), gen_random_uuid(), 'test', 'q', 'available', 0 FROM generate_series(1, 30000)`)
	b.exec(t, "UPDATE ojs.event_relay SET watermark = 20000")
	b.exec(t, "VACUUM ANALYZE ojs.events") // empty partitions tempt most when they are known to be empty

	config, err := pgx.ParseConfig(b.pool.Config().ConnString())
	require.NoError(t, err)
	var plans []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { plans = append(plans, n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	_, err = conn.Exec(t.Context(), `LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
		SET auto_explain.log_analyze = on; SET auto_explain.log_buffers = on; SET client_min_messages = log`, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	for _, sql := range []string{
		`SELECT * FROM ojs.event_page(-1, 0, 100000, 11, false, '{}', '{}', '{}', '{}', NULL, NULL, NULL, NULL, NULL)`,
		`SELECT * FROM ojs.event_page(15000, 0, 115000, 11, false, '{job.%}', '{ojs://ojs/%}', '{q,r}', '{test}', NULL, NULL, NULL, '2020-01-01', '2099-01-01')`,
		`SELECT * FROM ojs.event_page(20000, 0, 120000, 11, false, '{}', '{}', '{}', '{}', NULL, NULL, NULL, NULL, NULL)`,
		`SELECT * FROM ojs.event_page(-1, 0, 100000, 11, false, '{}', '{}', '{}', '{}', '00000000-0000-0000-0000-000000000000', NULL, NULL, NULL, NULL)`,
		`SELECT * FROM ojs.event_page(-1, 0, 100000, 11, false, '{}', '{}', '{}', '{}', NULL, '00000000-0000-0000-0000-000000000000', NULL, NULL, NULL)`,
		`SELECT * FROM ojs.event_newest(0, 11, false, '{}', '{}', '{}', '{}', NULL, 'worker-00000000-0000', NULL, NULL, NULL)`,
		`SELECT * FROM ojs.event_newest(0, 11, false, '{}', '{}', '{}', '{}', NULL, NULL, NULL, NULL, NULL)`,
		`SELECT * FROM ojs.event_last()`,
		`SELECT * FROM ojs.events_after(NULL, 11)`,
	} {
		plans = nil
		_, err = conn.Exec(t.Context(), sql)
		require.NoError(t, err)
		inner := ""
		for _, p := range plans {
			if strings.Contains(p, "Append") {
				inner += p
			}
		}
		require.NotEmpty(t, inner, sql)
		require.NotContains(t, inner, "Seq Scan on events_p", sql)
		if !strings.Contains(sql, "00000000-0000") {
			require.NotContains(t, inner, "Sort", sql)
		}
		// The first line with buffers is the whole statement: the limit's rows, a descent per partition.
		_, after, ok := strings.Cut(inner, "Buffers: shared hit=")
		require.True(t, ok)
		var hit int
		_, err = fmt.Sscan(after, &hit)
		require.NoError(t, err)
		require.Less(t, hit, 100, "%s\n%s", sql, inner)
	}
}
