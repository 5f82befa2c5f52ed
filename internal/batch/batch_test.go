package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
)

var errBad = errors.New("bad statement")

// double answers 2·n, counts flushes and refuses a flush that holds a negative number.
type double struct {
	flushes atomic.Int64
	largest atomic.Int64
	gate    chan struct{} // if set, every flush takes one from it
}

func (d *double) flush(_ context.Context, reqs []int) ([]int, error) {
	d.flushes.Add(1)
	for {
		old := d.largest.Load()
		if int64(len(reqs)) <= old || d.largest.CompareAndSwap(old, int64(len(reqs))) {
			break
		}
	}
	if d.gate != nil {
		<-d.gate
	}
	res := make([]int, len(reqs))
	for i, n := range reqs {
		if n < 0 {
			return nil, errBad
		}
		res[i] = 2 * n
	}
	return res, nil
}

func TestBatcher(t *testing.T) {
	t.Parallel()
	ctx := context.Background()

	t.Run("CountsTheRequestsOfAFlush", func(t *testing.T) {
		t.Parallel()
		d := &double{gate: make(chan struct{})}
		flushed := make(chan int, 10)
		b := New(Config[int, int]{Flush: d.flush, Flushed: func(requests int, took time.Duration) {
			require.GreaterOrEqual(t, took, time.Duration(0))
			flushed <- requests
		}})
		var callers sync.WaitGroup
		callers.Go(func() { _, _ = b.Do(ctx, 1) })
		d.gate <- struct{}{} // the first flush has one request; the calls that arrive while it is in flight share the second
		require.Equal(t, 1, <-flushed)
		callers.Wait()
		var errs []error
		callers.Go(func() { _, errs = b.DoMany(ctx, []int{2, 3, 4}) })
		d.gate <- struct{}{}
		require.Equal(t, 3, <-flushed)
		callers.Wait()
		require.Nil(t, errs)
	})

	t.Run("AnswersEveryCallerWithItsOwnResult", func(t *testing.T) {
		t.Parallel()
		d := &double{}
		b := New(Config[int, int]{Flush: d.flush, Max: 64})
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				for n := range 200 {
					res, err := b.Do(ctx, i*1000+n)
					require.NoError(t, err)
					require.Equal(t, 2*(i*1000+n), res)
				}
			})
		}
		wg.Wait()
		require.LessOrEqual(t, d.largest.Load(), int64(64))
		require.Zero(t, b.flushing)
		require.Empty(t, b.pending)
		require.Zero(t, b.weight)
	})

	t.Run("CollectsWhileAFlushIsInFlight", func(t *testing.T) {
		t.Parallel()
		d := &double{gate: make(chan struct{})}
		b := New(Config[int, int]{Flush: d.flush})
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = b.Do(ctx, 1) })
		require.Eventually(t, func() bool { return d.flushes.Load() == 1 }, waitFor, tick)
		for i := range 100 {
			wg.Go(func() { _, _ = b.Do(ctx, i) })
		}
		require.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.pending) == 100 }, waitFor, tick)
		close(d.gate)
		wg.Wait()
		require.Equal(t, int64(2), d.flushes.Load())
		require.Equal(t, int64(100), d.largest.Load())
	})

	t.Run("WaitsForTheCallersOfTheLatestFlush", func(t *testing.T) {
		t.Parallel()
		d := &double{}
		b := New(Config[int, int]{Flush: func(ctx context.Context, reqs []int) ([]int, error) {
			time.Sleep(200 * time.Millisecond) // the wait is a fraction of it
			return d.flush(ctx, reqs)
		}})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 6 {
					_, _ = b.Do(ctx, 1)
					time.Sleep(2 * time.Millisecond) // what a client does before its next call
				}
			})
		}
		wg.Wait()
		// Without the wait one caller and the other three take turns.
		require.Equal(t, int64(4), d.largest.Load())
	})

	t.Run("NeverWaitsForALoneCaller", func(t *testing.T) {
		t.Parallel()
		b := New(Config[int, int]{Flush: (&double{}).flush})
		for range 3 {
			_, err := b.Do(ctx, 1)
			require.NoError(t, err)
			require.Equal(t, 1, b.cohort)
		}
		b.took, b.ended = time.Hour, time.Now() // a quarter of it is more than the test may take
		_, err := b.Do(ctx, 1)
		require.NoError(t, err)
	})

	t.Run("WaitsForTheCallersOfTheLatestFlush", func(t *testing.T) {
		t.Parallel()
		type batcher = Batcher[int, int]
		for name, change := range map[string]func(b *batcher){
			"":              func(*batcher) {},
			"OneCaller":     func(b *batcher) { b.cohort = 1 },
			"TooMany":       func(b *batcher) { b.cohort = maxGathered + 1 },
			"TheLast":       func(b *batcher) { b.pending = append(b.pending, &call[int, int]{}) },
			"NoTimeLeft":    func(b *batcher) { b.ended = time.Now().Add(-time.Hour) },
			"AnotherLeader": func(b *batcher) { b.flushing = 2 },
			"AFullBatch":    func(b *batcher) { b.weight = 10 },
		} {
			b := New(Config[int, int]{Flush: (&double{}).flush, Max: 10})
			b.cohort, b.took, b.ended, b.flushing, b.weight, b.pending = 2, time.Hour, time.Now(), 1, 9, []*call[int, int]{{}}
			change(b)
			gathered := make(chan struct{})
			go func() {
				b.gather()
				close(gathered)
			}()
			if name == "" {
				require.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.complete != nil }, waitFor, tick)
				require.Empty(t, gathered)
				close(b.complete)
			}
			select {
			case <-gathered:
			case <-time.After(waitFor):
				require.Fail(t, "it waits", name)
			}
		}
	})

	t.Run("GivesUpOnCallersThatDoNotComeBack", func(t *testing.T) {
		t.Parallel()
		b := New(Config[int, int]{Flush: (&double{}).flush})
		b.cohort, b.took, b.ended = 2, 40*time.Millisecond, time.Now()
		_, err := b.Do(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, 1, b.cohort, "the next call does not wait")
		require.Nil(t, b.complete)
	})

	t.Run("StartsASecondFlushOnlyForAFullBatch", func(t *testing.T) {
		t.Parallel()
		d := &double{gate: make(chan struct{})}
		b := New(Config[int, int]{Flush: d.flush, Max: 10})
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = b.Do(ctx, 1) })
		require.Eventually(t, func() bool { return d.flushes.Load() == 1 }, waitFor, tick)
		for i := range 9 {
			wg.Go(func() { _, _ = b.Do(ctx, i) })
		}
		require.Eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.pending) == 9 }, waitFor, tick)
		require.Equal(t, int64(1), d.flushes.Load())
		wg.Go(func() { _, _ = b.Do(ctx, 10) })
		require.Eventually(t, func() bool { return d.flushes.Load() == 2 }, waitFor, tick)
		close(d.gate)
		wg.Wait()
		require.Zero(t, b.flushing)
	})

	t.Run("ABadRequestFailsAlone", func(t *testing.T) {
		t.Parallel()
		d := &double{}
		b := New(Config[int, int]{Flush: d.flush, Split: func(err error) bool { return errors.Is(err, errBad) }})
		reqs := make([]int, 100)
		for i := range reqs {
			reqs[i] = i
		}
		reqs[37] = -1
		res, errs := b.DoMany(ctx, reqs)
		for i := range reqs {
			if i == 37 {
				require.ErrorIs(t, errs[i], errBad)
				continue
			}
			require.NoError(t, errs[i])
			require.Equal(t, 2*i, res[i])
		}
	})

	t.Run("EqualKeysNeverShareAFlushAndKeepTheirOrder", func(t *testing.T) {
		t.Parallel()
		var mu sync.Mutex
		order := map[byte][]int{}
		b := New(Config[[2]int, int]{
			Key: func(r [2]int) ([16]byte, bool) { return [16]byte{byte(r[0])}, true },
			Flush: func(_ context.Context, reqs [][2]int) ([]int, error) {
				seen := map[int]bool{}
				mu.Lock()
				defer mu.Unlock()
				for _, r := range reqs {
					if seen[r[0]] {
						return nil, fmt.Errorf("key %d twice", r[0])
					}
					seen[r[0]] = true
					order[byte(r[0])] = append(order[byte(r[0])], r[1])
				}
				return make([]int, len(reqs)), nil
			},
		})
		_, errs := b.DoMany(ctx, [][2]int{{1, 1}, {2, 1}, {1, 2}, {1, 3}, {2, 2}})
		require.Nil(t, errs)
		require.Equal(t, map[byte][]int{1: {1, 2, 3}, 2: {1, 2}}, order)

		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				_, err := b.Do(ctx, [2]int{i % 3, 0})
				require.NoError(t, err)
			})
		}
		wg.Wait()
	})

	// A call that has to wait because of its first key keeps later calls from overtaking it by its second one.
	t.Run("ALaterKeyOfAWaitingCallIsNotOvertaken", func(t *testing.T) {
		t.Parallel()
		b := New(Config[byte, int]{Key: func(r byte) ([16]byte, bool) { return [16]byte{r}, true }})
		for _, reqs := range [][]byte{{1}, {1, 2}, {2}, {3}} {
			b.pending = append(b.pending, &call[byte, int]{reqs: reqs})
		}
		for _, want := range [][]byte{{1, 3}, {1, 2}, {2}} {
			_, reqs := b.take()
			require.Equal(t, want, reqs)
		}
	})

	t.Run("AHeavyCallIsNotOvertaken", func(t *testing.T) {
		t.Parallel()
		b := New(Config[byte, int]{Max: 10})
		for i, weight := range []int{6, 6, 3} {
			b.pending = append(b.pending, &call[byte, int]{reqs: []byte{byte(i)}, weight: weight})
		}
		for _, want := range [][]byte{{0}, {1, 2}} {
			_, reqs := b.take()
			require.Equal(t, want, reqs)
		}
	})

	t.Run("TriesADeadlockAgain", func(t *testing.T) {
		t.Parallel()
		var tries atomic.Int64
		b := New(Config[int, int]{
			Flush: func(context.Context, []int) ([]int, error) {
				if tries.Add(1) < 3 {
					return nil, errBad
				}
				return []int{7}, nil
			},
			Retry: func(err error) bool { return errors.Is(err, errBad) },
		})
		res, err := b.Do(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, 7, res)
	})

	// A call over several flushes: the error must be that of its own item, whichever flush that is in.
	t.Run("BadItemOfALaterRound", func(t *testing.T) {
		t.Parallel()
		b := New(Config[int, int]{
			Max:   2,
			Split: func(err error) bool { return errors.Is(err, errBad) },
			Flush: func(_ context.Context, reqs []int) ([]int, error) {
				if slices.Contains(reqs, 3) {
					return nil, errBad
				}
				return reqs, nil
			},
		})
		res, errs := b.DoMany(ctx, []int{0, 1, 2, 3, 4, 5})
		require.Equal(t, []error{nil, nil, nil, errBad, nil, nil}, errs)
		require.Equal(t, []int{0, 1, 2, 0, 4, 5}, res)
	})

	t.Run("SurvivesAPanic", func(t *testing.T) {
		t.Parallel()
		b := New(Config[int, int]{Flush: func(_ context.Context, reqs []int) ([]int, error) {
			if reqs[0] == 0 {
				panic("boom")
			}
			return reqs, nil
		}})
		_, err := b.Do(ctx, 0)
		require.ErrorContains(t, err, "boom")
		res, err := b.Do(ctx, 1)
		require.NoError(t, err)
		require.Equal(t, 1, res)
	})

	t.Run("FlushesAHeavyCallAlone", func(t *testing.T) {
		t.Parallel()
		b := New(Config[int, int]{
			Weight: func(n int) int { return n },
			Max:    10,
			Flush: func(_ context.Context, reqs []int) ([]int, error) {
				sum := 0
				for _, n := range reqs {
					sum += n
				}
				if sum > 10 && len(reqs) > 1 {
					return nil, fmt.Errorf("weight %d in one flush", sum)
				}
				return reqs, nil
			},
		})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, err := b.Do(ctx, 25)
				require.NoError(t, err)
				_, err = b.Do(ctx, 3)
				require.NoError(t, err)
			})
		}
		wg.Wait()
	})
}

// A call that is kept for reuse must not keep the requests and results of its last user.
func TestRequestsAreNotKept(t *testing.T) {
	t.Parallel()
	type large [1 << 10]byte
	b := New(Config[*large, *large]{Flush: func(_ context.Context, reqs []*large) ([]*large, error) { return slices.Clone(reqs), nil }})
	req := new(large)
	kept := weak.Make(req)
	_, errs := b.DoMany(t.Context(), []*large{req})
	require.Nil(t, errs)
	runtime.KeepAlive(req)
	runtime.GC() // the first collection leaves the calls in the pool
	require.True(t, kept.Value() == nil, "the request is kept")
	runtime.KeepAlive(b)
}
