package eventlog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/pg"
)

// feed starts one on the bundle's database; the test wakes it.
func (b *testBundle) feed(t *testing.T, c FeedConfig) *Feed {
	t.Helper()
	f := NewFeed(riversharedtest.BaseServiceArchetype(t), b.reader, c)
	require.NoError(t, f.Start(t.Context()))
	t.Cleanup(f.Stop)
	return f
}

func (f *Feed) subscribe(t *testing.T, q Query, from *Position) *Subscription {
	t.Helper()
	s, err := f.Subscribe(t.Context(), q, from)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// take reads n events.
func (s *Subscription) takeN(t *testing.T, n, limit int) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	for len(names) < n {
		items, missed, err := s.Next(ctx, nil, limit)
		require.NoError(t, err)
		require.Nil(t, missed)
		require.LessOrEqual(t, len(items), limit)
		for _, item := range items {
			names = append(names, item.Event.Queue)
		}
	}
	return names
}

func (s *Subscription) nothing(t *testing.T) {
	t.Helper()
	idle := make(chan time.Time)
	close(idle)
	items, missed, err := s.Next(t.Context(), idle, 1)
	require.NoError(t, err)
	require.Nil(t, missed)
	require.Empty(t, items)
}

// caughtUp waits until the feed has read all that is published. What a stream has returned does not show it: until the
// feed follows the log, streams read the table.
func (f *Feed) caughtUp(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	head, _, err := f.bounds(ctx)
	require.NoError(t, err)
	for {
		recent := f.after(head)
		if recent.complete && !recent.end.Before(head) {
			return
		}
		select {
		case <-recent.changed:
		case <-ctx.Done():
			require.NoError(t, ctx.Err(), "the feed has not come to %s", head)
		}
	}
}

func numbered(from, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(from+i))
	}
	return names
}

func (b *testBundle) publish(t *testing.T, f *Feed, names ...string) {
	t.Helper()
	for _, name := range names {
		b.exec(t, insertEvent, name)
	}
	b.publishAll(t)
	f.Wake()
}

// watchedContext calls waiting before a select that includes its end.
type watchedContext struct {
	context.Context
	waiting func()
}

func (c watchedContext) Done() <-chan struct{} {
	c.waiting()
	return c.Context.Done()
}

func TestFeed(t *testing.T) {
	t.Parallel()

	t.Run("FollowsAnEmptyLog", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		f := b.feed(t, FeedConfig{})
		s := f.subscribe(t, Query{}, nil)
		s.nothing(t)
		b.publish(t, f, "1", "2")
		require.Equal(t, numbered(1, 2), s.takeN(t, 2, 10))
		s.nothing(t)
	})

	t.Run("HasDefaults", func(t *testing.T) {
		t.Parallel()
		for want, given := range map[FeedConfig]FeedConfig{
			{MaxEvents: 8192, MaxBytes: 64 << 20, MaxReads: 4}: {},
			{MaxEvents: 1, MaxBytes: 1, MaxReads: 1}:           {MaxEvents: 1, MaxBytes: 1, MaxReads: 1},
		} {
			f := NewFeed(riversharedtest.BaseServiceArchetype(t), NewReader(&pg.DB{}, nil), given)
			require.Equal(t, want, f.config)
			require.Equal(t, want.MaxReads, cap(f.reads))
		}
	})

	t.Run("LiveAndReplay", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		f := b.feed(t, FeedConfig{})
		b.publish(t, f, "1", "2", "3")
		first := b.readAll(t)[0].Position
		live, replay, all := f.subscribe(t, Query{}, nil), f.subscribe(t, Query{}, &first), f.subscribe(t, Query{Since: time.Now().Add(-time.Hour)}, nil)
		b.publish(t, f, "4")
		require.Equal(t, numbered(4, 1), live.takeN(t, 1, 1))
		require.Equal(t, numbered(2, 3), replay.takeN(t, 3, 2))
		require.Equal(t, numbered(1, 4), all.takeN(t, 4, 3))
	})

	t.Run("FallsOutOfMemoryAndComesBack", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		f := b.feed(t, FeedConfig{MaxEvents: 3})
		slow, fast := f.subscribe(t, Query{}, nil), f.subscribe(t, Query{}, nil)
		for i := range 5 {
			b.publish(t, f, numbered(4*i, 4)...)
			require.Equal(t, numbered(4*i, 4), fast.takeN(t, 4, 10))
		}
		f.caughtUp(t)
		require.False(t, f.after(slow.at).complete)
		require.Equal(t, numbered(0, 20), slow.takeN(t, 20, 3))
		require.True(t, f.after(slow.at).complete)
		b.publish(t, f, "20")
		require.Equal(t, numbered(20, 1), slow.takeN(t, 1, 3))
	})

	t.Run("BytesBoundTheMemory", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		f := b.feed(t, FeedConfig{MaxBytes: 5000})
		s := f.subscribe(t, Query{}, nil)
		b.publish(t, f, numbered(0, 50)...)
		require.Equal(t, numbered(0, 50), s.takeN(t, 50, 7))
		f.mu.Lock()
		defer f.mu.Unlock()
		require.Less(t, len(f.recent), 6)
		require.LessOrEqual(t, f.bytes, 5000)
	})

	t.Run("ShowsOnceForAll", func(t *testing.T) {
		t.Parallel()
		item := &Item{Event: &Event{}}
		made := 0
		for range 3 {
			require.Equal(t, "x", string(item.Shown(1, func(*Event) []byte { made++; return []byte("x") })))
		}
		require.Equal(t, 1, made)
	})

	t.Run("RetentionOvertakes", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		f := b.feed(t, FeedConfig{MaxEvents: 1})
		s := f.subscribe(t, Query{}, nil)
		b.publish(t, f, "1", "2", "3")
		require.Equal(t, numbered(1, 1), s.takeN(t, 1, 1))
		at := s.Position()
		f.subscribe(t, Query{}, nil).nothing(t) // so that the feed has read on and dropped the event at that position
		require.Eventually(t, func() bool { return !f.after(at).complete }, waitFor, time.Millisecond)
		b.reset(t)
		b.exec(t, insertEvent, "4")
		b.publishAll(t)
		f.Wake()
		_, missed, err := s.Next(t.Context(), nil, 10)
		require.NoError(t, err)
		require.Equal(t, at, missed.Start)
		require.Equal(t, int64(3), missed.End.Seq)
		require.Equal(t, numbered(4, 1), s.takeN(t, 1, 10))

		// Also if nothing is left, and once only.
		b.reset(t)
		old := f.subscribe(t, Query{}, &at)
		f.Wake()
		_, missed, err = old.Next(t.Context(), nil, 10)
		require.NoError(t, err)
		require.NotNil(t, missed)
		old.nothing(t)
		b.publish(t, f, "5")
		require.Equal(t, numbered(5, 1), old.takeN(t, 1, 10))
		again := f.subscribe(t, Query{}, &missed.End)
		require.Equal(t, numbered(5, 1), again.takeN(t, 1, 10))
	})

	// A stream that reads slowly is told that it has missed what is outside of the limits by now, although the feed has it in memory.
	t.Run("RetentionOvertakesMemory", func(t *testing.T) {
		t.Parallel()
		const age = 300 * time.Millisecond
		for name, test := range map[string]struct {
			config FeedConfig
			limit  func(b *testBundle)
			left   []string
		}{
			"ByAge":   {FeedConfig{Events: config.Events{RetentionPeriod: age}}, func(b *testBundle) { b.limit(t, "0.3 s", 0) }, nil},
			"ByCount": {FeedConfig{Events: config.Events{MaxCount: 2}}, func(b *testBundle) { b.limit(t, "", 2) }, numbered(2, 2)},
		} {
			b := setup(t, RelayConfig{})
			f := b.feed(t, test.config)
			s := f.subscribe(t, Query{}, nil)
			s.nothing(t) // it follows the log in memory from here on
			f.caughtUp(t)
			b.publish(t, f, "1", "2", "3")
			f.caughtUp(t)
			test.limit(b)
			time.Sleep(age)
			_, missed, err := s.Next(t.Context(), nil, 10)
			require.NoError(t, err, name)
			require.NotNil(t, missed, name)
			require.Equal(t, test.left, s.takeN(t, len(test.left), 10), name)
		}
	})

	t.Run("TrimKeepsTheNewest", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		f := b.feed(t, FeedConfig{MaxEvents: 4})
		start, err := b.reader.Head(t.Context())
		require.NoError(t, err)
		b.publish(t, f, numbered(0, 6)...)
		s := f.subscribe(t, Query{}, &start)
		d, err := s.Trim(t.Context(), 2)
		require.NoError(t, err)
		require.Nil(t, d, "what was asked for is not dropped")
		require.Equal(t, numbered(0, 6), s.takeN(t, 6, 10))
		s.nothing(t)
		other := f.subscribe(t, Query{}, nil)
		b.publish(t, f, numbered(6, 10)...)
		require.Equal(t, numbered(6, 10), other.takeN(t, 10, 100))
		f.caughtUp(t)
		d, err = s.Trim(t.Context(), 3)
		require.NoError(t, err)
		require.NotNil(t, d)
		require.Equal(t, 7, d.Count)
		all := b.readAll(t)
		require.Equal(t, []Position{all[6].Position, all[12].Position}, []Position{d.Oldest, d.Newest})
		require.Equal(t, d.Newest, s.Position())
		require.Equal(t, numbered(13, 2), s.takeN(t, 2, 2))
		require.Equal(t, all[14].Position, s.Position())
		d, err = s.Trim(t.Context(), 3)
		require.NoError(t, err)
		require.Nil(t, d)
		require.Equal(t, numbered(15, 1), s.takeN(t, 1, 2))
	})

	t.Run("ReadsNothingWithoutSubscribers", func(t *testing.T) {
		t.Parallel()
		f := NewFeed(riversharedtest.BaseServiceArchetype(t), NewReader(&pg.DB{}, nil), FeedConfig{}) // a statement would panic
		require.NoError(t, f.Start(t.Context()))
		for range 100 {
			f.Wake()
			require.Eventually(t, func() bool { return len(f.wake) == 0 }, waitFor, time.Microsecond)
		}
		f.Stop()
	})

	t.Run("LetsGoWhenTheLastOneLeaves", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		f := b.feed(t, FeedConfig{})
		s := f.subscribe(t, Query{}, nil)
		b.publish(t, f, "1")
		s.takeN(t, 1, 1)
		s.Close()
		s.Close()
		require.Zero(t, f.Subscribers())
		require.Empty(t, f.recent)
		s = f.subscribe(t, Query{}, nil)
		b.publish(t, f, "2")
		require.Equal(t, numbered(2, 1), s.takeN(t, 1, 1))
	})

	t.Run("FewReadTheTableAtOnce", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		b.exec(t, insertEvent, "1")
		b.publishAll(t)
		f := NewFeed(riversharedtest.BaseServiceArchetype(t), b.reader, FeedConfig{MaxReads: 2})
		lock, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = lock.Exec(t.Context(), "LOCK TABLE ojs.events")
		require.NoError(t, err)
		var reading sync.WaitGroup
		asked := make(chan struct{}, 6) // for a turn
		for range 6 {
			s := f.subscribe(t, Query{}, &Position{})
			reading.Go(func() {
				var once sync.Once
				ctx := watchedContext{t.Context(), func() { once.Do(func() { asked <- struct{}{} }) }}
				items, _, err := s.Next(ctx, nil, 10)
				if err != nil || len(items) != 1 {
					t.Errorf("%d items, %v", len(items), err)
				}
			})
		}
		waiting := func() (n int) {
			// The databases of other tests are copies, in which the table has the same oid.
			require.NoError(t, lock.QueryRow(t.Context(), `SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
				WHERE NOT l.granted AND l.relation = 'ojs.events'::regclass AND d.datname = current_database()`).Scan(&n))
			return n
		}
		require.Eventually(t, func() bool { return waiting() == 2 }, waitFor, time.Millisecond)
		for range 6 {
			await(t, asked)
		}
		for range 20 {
			require.LessOrEqual(t, waiting(), 2)
		}
		require.NoError(t, lock.Rollback(t.Context()))
		reading.Wait()
	})

	t.Run("GoesOnAfterAnError", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		f := NewFeed(riversharedtest.BaseServiceArchetype(t), b.reader, FeedConfig{})
		f.Logger = discardLogger()
		s := f.subscribe(t, Query{}, nil)
		b.exec(t, "ALTER FUNCTION ojs.event_last() RENAME TO event_last_gone")
		require.NoError(t, f.Start(t.Context()))
		t.Cleanup(f.Stop)
		_, _, err := s.Next(t.Context(), nil, 1)
		require.Error(t, err)
		b.exec(t, "ALTER FUNCTION ojs.event_last_gone() RENAME TO event_last")
		b.publish(t, f, "1")
		require.Equal(t, numbered(1, 1), s.takeN(t, 1, 1))
	})

	t.Run("DoesNotStartAfterTheLastSubscriberLeft", func(t *testing.T) {
		t.Parallel()
		f := NewFeed(riversharedtest.BaseServiceArchetype(t), NewReader(&pg.DB{}, nil), FeedConfig{})
		at := NewPosition(time.Now(), 7, 0)
		f.subscribe(t, Query{}, &at).Close() // while the feed reads the bounds of the log
		f.follow(at)
		require.False(t, f.after(at).complete)
		f.subscribe(t, Query{}, &at)
		f.follow(at)
		require.True(t, f.after(at).complete)
		f.subscribe(t, Query{}, &at).Close()
		require.True(t, f.after(at).complete, "somebody is still there")
	})

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		b := setup(t, RelayConfig{})
		f := NewFeed(riversharedtest.BaseServiceArchetype(t), b.reader, FeedConfig{})
		f.Logger = discardLogger()
		s := f.subscribe(t, Query{}, nil)
		startstoptest.Stress(t.Context(), t, f)
		require.NoError(t, f.Start(t.Context()))
		t.Cleanup(f.Stop)
		b.publish(t, f, "1")
		require.Equal(t, numbered(1, 1), s.takeN(t, 1, 1))
	})
}

// TestFeedLeaksNothing is alone, because goleak looks at all goroutines.
func TestFeedLeaksNothing(t *testing.T) { //nolint:paralleltest // see above
	b := setup(t, RelayConfig{})
	before := goleak.IgnoreCurrent()
	f := NewFeed(riversharedtest.BaseServiceArchetype(t), b.reader, FeedConfig{})
	require.NoError(t, f.Start(t.Context()))
	for range 20 {
		s := f.subscribe(t, Query{}, nil)
		f.Wake()
		s.nothing(t)
		s.Close()
	}
	f.Stop()
	b.pool.Reset()
	require.Eventually(t, func() bool { return goleak.Find(before) == nil }, waitFor, time.Millisecond)
}

// TestMatcher: the filter in Go takes what the filter in SQL takes.
func TestMatcher(t *testing.T) {
	t.Parallel()
	b := setup(t, RelayConfig{Events: config.Events{ServiceName: "shop"}})
	noon := time.Date(2026, 5, 4, 12, 0, 0, 123_456_000, time.UTC)
	eventTypes := []string{"job.enqueued", "job.started", "job.state_changed", "job.discarded", "worker.started", "workflow.step_completed", "queue.paused", "jobx"}
	sources := []string{"api", "scheduler", "workers/w-1", "workers/w%2F1", "workers/w_1", "cron"}
	names := []string{"", "a", "b", "a-b", "a.b"}
	ids := []*[16]byte{nil, {15: 1}, {15: 2}}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		r := row{
			typ: pick(rng, eventTypes), source: pick(rng, sources), queue: pick(rng, names), jobType: pick(rng, names),
			job: pick(rng, ids), workflow: pick(rng, ids), to: pick(rng, []string{"", "active"}), at: noon.Add(time.Duration(i%7) * time.Microsecond), data: "{}",
		}
		r.internal = r.typ == "job.state_changed"
		if r.job == nil {
			r.subject = "s"
		}
		b.write(t, r)
	}
	_, err := b.pool.Exec(t.Context(), `UPDATE ojs.events SET lane = (ARRAY['', '/key', 'acme', 'acme/key', 'ac', 'acme.eu/acme'])[1 + seq % 6]`)
	require.NoError(t, err)
	b.publishAll(t)
	page := b.list(t, Query{Internal: true, Limit: 1000})
	require.Len(t, page.Events, 300)
	rapid.Check(t, func(rt *rapid.T) {
		some := func(name string, from ...string) []string {
			return rapid.SliceOfN(rapid.SampledFrom(from), 0, 3).Draw(rt, name)
		}
		q := Query{
			Types:   some("types", "", "*", "job.*", "job.s*", "job.state_changed", "job.dead", "job.enqueued", "jobx", "workflow.step_completed", "workflow.stepxcompleted", "wor*", "job*"),
			Sources: some("sources", "", "*", "ojs://shop/*", "ojs://shop/api", "ojs://shop/workers/*", "ojs://shop/workers/w%2F1", "ojs://shop/workers/w_1", "ojs://shop/workers/w-1", "ojs://ojs/api", "api"),
			Queues:  some("queues", names...), JobTypes: some("job_types", names...),
			JobID: rapid.SampledFrom(ids).Draw(rt, "job"), WorkflowID: rapid.SampledFrom(ids).Draw(rt, "workflow"),
			Tenant:   rapid.SampledFrom([]string{"", "acme", "ac", "key", "none"}).Draw(rt, "tenant"),
			Internal: rapid.Bool().Draw(rt, "internal"), Limit: 1000,
		}
		if rapid.Bool().Draw(rt, "bounded") {
			q.Since = noon.Add(time.Duration(rapid.IntRange(-1, 8).Draw(rt, "since")) * time.Microsecond)
			q.Until = noon.Add(time.Duration(rapid.IntRange(-1, 8).Draw(rt, "until")) * time.Microsecond)
		}
		found, err := b.reader.ListAfter(t.Context(), q)
		require.NoError(rt, err)
		m, err := NewMatcher(q)
		require.NoError(rt, err)
		matched := []Position{}
		for i := range page.Events {
			if m.Match(&page.Events[i]) {
				matched = append(matched, page.Events[i].Position)
			}
		}
		listed := []Position{}
		for _, e := range found.Events {
			listed = append(listed, e.Position)
		}
		require.Equal(rt, listed, matched)
	})
}

func pick[T any](rng *rand.Rand, from []T) T { return from[rng.IntN(len(from))] }
