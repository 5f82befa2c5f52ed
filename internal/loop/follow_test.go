package loop_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/riverqueue/river/rivershared/riversharedtest"
	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/loop"
	"github.com/ojsd/ojsd/internal/pg"
)

// statementTimeout is that of the database of the tests.
const statementTimeout = 15 * time.Second

// valueBundle is a value that reads the number in stored. The clock of a test runs when all of its goroutines wait.
type valueBundle struct {
	*loop.Value[int64]

	stored atomic.Int64
	reads  atomic.Int64
	before func(ctx context.Context, q *dbsqlc.Queries) error // called by each read, after it has seen what is stored
	found  func(before, now *int64)

	listening bool
}

func setupValue(t *testing.T) *valueBundle {
	t.Helper()
	b := &valueBundle{before: func(context.Context, *dbsqlc.Queries) error { return nil }, found: func(*int64, *int64) {}}
	b.Value = loop.NewValue(&pg.DB{StatementTimeout: statementTimeout}, loop.ValueConfig[int64]{
		Read: func(ctx context.Context, q *dbsqlc.Queries, known *int64) (*int64, error) {
			b.reads.Add(1)
			found := b.stored.Load()
			if err := b.before(ctx, q); err != nil || known != nil && *known == found {
				return known, err
			}
			return &found, nil
		},
		Found:     func(before, now *int64) { b.found(before, now) },
		Listening: func() bool { return b.listening },
	})
	b.stored.Store(1)
	return b
}

func (b *valueBundle) listens() { b.listening = true }

// start runs a follower until the end of the test, and waits for its first read.
func (b *valueBundle) start(t *testing.T) {
	t.Helper()
	f := loop.NewFollower(riversharedtest.BaseServiceArchetype(t), b.Value, "value")
	require.NoError(t, f.Start(t.Context()))
	t.Cleanup(f.Stop)
	synctest.Wait()
}

func (b *valueBundle) view(t *testing.T) int64 {
	t.Helper()
	v, err := b.View(t.Context())
	require.NoError(t, err)
	return *v
}

// inBubble is a test with a clock of its own.
func inBubble(t *testing.T, name string, f func(t *testing.T, b *valueBundle)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { f(t, setupValue(t)) })
	})
}

func TestFollower(t *testing.T) {
	t.Parallel()

	t.Run("StartStopStress", func(t *testing.T) {
		t.Parallel()
		startstoptest.Stress(t.Context(), t, loop.NewFollower(riversharedtest.BaseServiceArchetype(t), setupValue(t).Value, "value"))
	})

	inBubble(t, "ReadsAtStartAndAfterNotifications", func(t *testing.T, b *valueBundle) {
		b.listens()
		b.start(t)
		require.EqualValues(t, 1, *b.Latest())
		b.stored.Store(2)
		b.Changed()
		synctest.Wait()
		require.EqualValues(t, 2, *b.Latest())
		require.EqualValues(t, 2, b.reads.Load())
		time.Sleep(time.Hour)
		require.EqualValues(t, 2, b.reads.Load(), "nothing moves")
	})

	inBubble(t, "FindsAMissedNotificationWhileThereAreCallers", func(t *testing.T, b *valueBundle) {
		b.listens()
		b.start(t)
		for name, ask := range map[string]func(){
			"View": func() { b.view(t) },
			"Poll": b.Poll,
			"InTx": func() { _, _ = b.InTx(t.Context(), nil) },
		} {
			want := b.stored.Add(1)
			for began := time.Now(); *b.Latest() != want; time.Sleep(10 * time.Millisecond) {
				ask()
				require.Less(t, time.Since(began), loop.Settled, name)
			}
		}
		reads := b.reads.Load()
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			b.view(t)
		}
		require.LessOrEqual(t, b.reads.Load()-reads, int64(21), "in 10 s of calls")
	})

	inBubble(t, "FindsChangesWithoutNotificationsAndCallers", func(t *testing.T, b *valueBundle) {
		b.start(t)
		for range 100 {
			want := b.stored.Add(1)
			time.Sleep(loop.Settled - 7*time.Millisecond)
			require.Equal(t, want, *b.Latest())
		}
	})

	inBubble(t, "KeepsTheLastValueWhileReadsFail", func(t *testing.T, b *valueBundle) {
		b.listens()
		var fails atomic.Bool
		b.before = func(context.Context, *dbsqlc.Queries) error {
			if fails.Load() {
				return errors.New("no connection")
			}
			return nil
		}
		b.start(t)
		fails.Store(true)
		b.stored.Store(2)
		b.Changed()
		reads := b.reads.Load()
		for range 500 {
			time.Sleep(10 * time.Millisecond)
			require.EqualValues(t, 1, b.view(t))
		}
		require.LessOrEqual(t, b.reads.Load()-reads, int64(11), "in 5 s of calls")
		require.Greater(t, b.reads.Load()-reads, int64(5), "it tries again")
		fails.Store(false)
		time.Sleep(loop.Settled) // without a call
		require.EqualValues(t, 2, *b.Latest())
	})
}

func TestView(t *testing.T) {
	t.Parallel()

	inBubble(t, "IsNeverOlderThanSettledWithoutNotifications", func(t *testing.T, b *valueBundle) {
		require.Nil(t, b.Latest())
		require.EqualValues(t, 1, b.view(t))
		for range 10 {
			want := b.stored.Add(1)
			time.Sleep(loop.Settled + 1)
			require.Equal(t, want, b.view(t))
		}
	})

	inBubble(t, "SharesTheReadOfAnotherCaller", func(t *testing.T, b *valueBundle) {
		b.before = func(context.Context, *dbsqlc.Queries) error {
			time.Sleep(time.Millisecond)
			return nil
		}
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() { b.view(t) })
		}
		callers.Wait()
		require.EqualValues(t, 1, b.reads.Load())
	})

	inBubble(t, "EndsWithTheTimeLimitHoweverManyWait", func(t *testing.T, b *valueBundle) {
		b.before = func(ctx context.Context, _ *dbsqlc.Queries) error {
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				_, err := b.View(context.Background())
				require.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		synctest.Wait()
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := b.View(hurried)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began), "its own limit")
		callers.Wait()
		require.Equal(t, statementTimeout, time.Since(began))
	})
}

// A read that runs on the pool may wait for a connection that a transaction has, which must not wait for that read.
func TestInTxWaitsForNoOtherCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupValue(t)
		own, connection := dbsqlc.New(nil), make(chan struct{})
		b.before = func(_ context.Context, q *dbsqlc.Queries) error {
			if q != own {
				<-connection
			}
			return nil
		}
		var callers sync.WaitGroup
		for range 3 {
			callers.Go(func() { b.view(t) })
		}
		synctest.Wait()
		v, err := b.InTx(t.Context(), own)
		require.NoError(t, err)
		require.EqualValues(t, 1, *v)
		close(connection)
		callers.Wait()
	})
}

func TestOrderOfReads(t *testing.T) {
	t.Parallel()

	// slow is a read in a transaction that has seen 1 and ends when it is let go.
	slow := func(t *testing.T, b *valueBundle) (end func() int64) {
		t.Helper()
		own, hold, found := dbsqlc.New(nil), make(chan struct{}), make(chan int64)
		b.before = func(_ context.Context, q *dbsqlc.Queries) error {
			if q == own {
				<-hold
			}
			return nil
		}
		go func() {
			v, _ := b.InTx(context.Background(), own)
			found <- *v
		}()
		synctest.Wait()
		time.Sleep(time.Millisecond)
		b.stored.Store(2)
		return func() int64 {
			close(hold)
			return <-found
		}
	}

	inBubble(t, "ALateReadReplacesNoLaterOne", func(t *testing.T, b *valueBundle) {
		end := slow(t, b)
		v, err := b.Read(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 2, *v)
		require.EqualValues(t, 2, end())
		require.EqualValues(t, 2, *b.Latest())
	})

	inBubble(t, "WhatIsForgottenStaysSo", func(t *testing.T, b *valueBundle) {
		end := slow(t, b)
		b.Forget()
		require.EqualValues(t, 1, end(), "its transaction may be older")
		require.Nil(t, b.Latest())
		require.EqualValues(t, 2, b.view(t))
	})

	inBubble(t, "ReadSeesWhatIsCommittedWhileAnotherReads", func(t *testing.T, b *valueBundle) {
		hold := make(chan struct{})
		b.before = func(context.Context, *dbsqlc.Queries) error {
			<-hold
			return nil
		}
		go func() { _, _ = b.Read(context.Background()) }()
		synctest.Wait()
		time.Sleep(time.Millisecond)
		b.stored.Store(2)
		got := make(chan int64)
		go func() {
			v, _ := b.Read(context.Background())
			got <- *v
		}()
		synctest.Wait()
		time.Sleep(time.Millisecond)
		close(hold)
		require.EqualValues(t, 2, <-got)
	})
}

func TestFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setupValue(t)
		var told [][2]int64
		b.found = func(before, now *int64) {
			require.Equal(t, now, b.Latest(), "who is told of a change sees it")
			if before == nil {
				before = new(int64)
			}
			told = append(told, [2]int64{*before, *now})
		}
		for _, stored := range []int64{1, 1, 2, 2, 3} {
			time.Sleep(time.Millisecond)
			b.stored.Store(stored)
			_, err := b.Read(t.Context())
			require.NoError(t, err)
		}
		require.Equal(t, [][2]int64{{0, 1}, {1, 2}, {2, 3}}, told)
	})
}
