package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
)

// TestFeedProperty: writers with delayed commits and rollbacks, and streams of any speed: each reads all, once, in order.
func TestFeedProperty(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	url := dbtest.URL(t)
	w := &world{gapDelay: 2 * time.Millisecond, seed: uint64(env("OJSD_PROPERTY_SEED", int(rand.Uint32())))}
	t.Logf("seed %d", w.seed)
	w.pool = connect(t, url, writers+8)
	_, err := w.pool.Exec(t.Context(), `
		CREATE TABLE subject (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), queue text, state text, n integer NOT NULL DEFAULT 0);
		INSERT INTO subject (queue) SELECT 'q' || i % 4 FROM generate_series(1, $1) i`, pgx.QueryExecModeSimpleProtocol, subjects)
	require.NoError(t, err)
	rows, err := w.pool.Query(t.Context(), "SELECT id FROM subject")
	require.NoError(t, err)
	w.subjects, err = pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	require.NoError(t, err)
	archetype := riversharedtest.BaseServiceArchetype(t)
	feed := eventlog.NewFeed(archetype, eventlog.NewReader(pg.New(connect(t, url, 8), time.Minute), nil), eventlog.FeedConfig{MaxEvents: 64})
	for i := range w.relays {
		w.relays[i] = eventlog.NewRelay(archetype, connect(t, url, 2), eventlog.RelayConfig{GapDelay: w.gapDelay, Rest: time.Millisecond, AfterPublish: feed.Wake})
		require.NoError(t, w.relays[i].Start(t.Context()))
		t.Cleanup(w.relays[i].Stop)
	}
	require.NoError(t, feed.Start(t.Context()))
	t.Cleanup(feed.Stop)

	reading, stopReading := context.WithCancel(t.Context())
	var streams []*trace
	for i := range 6 {
		streams = append(streams, w.stream(t, reading, feed, i))
	}
	w.writeAll(t)
	for _, s := range streams {
		require.Eventually(t, func() bool { return s.count() >= w.committed.Load() }, waitFor, 10*time.Millisecond,
			"%s: %d of %d", s.name, s.count(), w.committed.Load())
	}
	stopReading()
	w.wg.Wait()
	for _, s := range streams {
		s.check(t, w.committed.Load())
	}
}

// stream reads with pauses that grow with i; every second one comes back all the time, from where it was.
func (w *world) stream(t *testing.T, ctx context.Context, f *eventlog.Feed, i int) *trace {
	tr := &trace{name: fmt.Sprintf("stream %d", i)}
	w.wg.Go(func() {
		at := &eventlog.Position{}
		for ctx.Err() == nil {
			s, err := f.Subscribe(t.Context(), eventlog.Query{Internal: i%3 == 0}, at)
			if !assertNoError(t, err) {
				return
			}
			for k := 0; ctx.Err() == nil && (i%2 == 0 || k < 5); k++ {
				items, missed, err := s.Next(ctx, nil, 1+rand.IntN(40))
				if errors.Is(err, context.Canceled) {
					break
				}
				if !assertNoError(t, err) || missed != nil {
					t.Error("missed", missed)
					break
				}
				for _, item := range items {
					tr.add(item.Shown(0, func(e *eventlog.Event) []byte { return e.Append(nil, true, false) }))
					at = &item.Event.Position
				}
				pauseUpTo(ctx, time.Duration(i*i)*time.Millisecond)
			}
			s.Close()
		}
	})
	return tr
}

func pauseUpTo(ctx context.Context, most time.Duration) {
	if most == 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(rand.Int64N(int64(most)))):
	}
}
