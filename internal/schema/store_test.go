package schema_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivershared/startstoptest"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/ojs"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// bundle is the domains of a node on a database of the test's own.
type bundle struct{ *domaintest.Bundle }

func setup(t *testing.T, change ...func(*domaintest.Config)) *bundle {
	t.Helper()
	return &bundle{domaintest.New(t, change...)}
}

// unchecked is for tests that reset the database.
func unchecked(c *domaintest.Config) { c.Unchecked = true }

func registration(t *testing.T, version, document string) *schema.Registration {
	t.Helper()
	in, err := schema.DecodePut(schema.Key{Type: "test.job", Version: version}, []byte(`{"schema":`+document+`,"enforce":true}`))
	require.Nil(t, err)
	return in
}

func (b *bundle) put(version, document string) {
	b.T.Helper()
	_, created, err := b.Schemas.Put(b.T.Context(), registration(b.T.(*testing.T), version, document))
	require.NoError(b.T, err)
	require.True(b.T, created)
}

func (b *bundle) refuses(args string) bool {
	b.T.Helper()
	_, err := b.Enqueue(b.T.Context(), &job.Job{Type: "test.job", Queue: "q", MaxAttempts: 3, Args: []byte(args)})
	if err != nil {
		domaintest.RequireCode(b.T, err, ojs.ErrSchemaValidation)
	}
	return err != nil
}

func TestNewestVersionIsEnforced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.False(t, b.refuses(`[]`))
	b.put("9", `{"minItems":1}`)
	require.True(t, b.refuses(`[]`))
	b.put("10", `{"maxItems":1}`)
	require.False(t, b.refuses(`[]`))
	require.True(t, b.refuses(`[1,2]`))
	b.put("8", `{"minItems":5}`) // older than the newest, although it was registered later
	require.False(t, b.refuses(`[]`))
	_, err := b.Schemas.Delete(t.Context(), schema.Key{Type: "test.job", Version: "10"})
	require.NoError(t, err)
	require.True(t, b.refuses(`[]`))
}

// TestRegisteredAgain has the compiled form of a deleted schema not outlive it.
func TestRegisteredAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.put("1", `{"minItems":1}`)
	require.True(t, b.refuses(`[]`))
	_, err := b.Schemas.Delete(t.Context(), schema.Key{Type: "test.job", Version: "1"})
	require.NoError(t, err)
	b.put("1", `{"maxItems":0}`)
	require.False(t, b.refuses(`[]`))
	require.True(t, b.refuses(`[1]`))
}

// TestFollower has a node that misses the notifications learn of changes of another one because it checks jobs.
func TestFollower(t *testing.T) {
	t.Parallel()
	dbtest.WritesTables(t)
	b := setup(t, unchecked)
	other := &bundle{b.Node(unchecked, func(c *domaintest.Config) { c.Listening = func() bool { return true } })}
	require.False(t, other.refuses(`[]`))
	b.put("1", `{"minItems":1}`)
	require.False(t, other.refuses(`[]`), "it does not know yet")
	follower := schema.NewFollower(other.Archetype, other.Schemas)
	require.NoError(t, follower.Start(t.Context()))
	defer follower.Stop()
	require.Eventually(t, func() bool { return other.refuses(`[]`) }, domaintest.WaitFor, 20*time.Millisecond)
	require.NoError(t, b.DB.Reset(t.Context()))
	b.put("1", `{"maxItems":0}`) // a node that missed the reset
	require.Eventually(t, func() bool { return other.refuses(`[1]`) }, domaintest.WaitFor, 20*time.Millisecond)
}

func TestFollowerStartStopStress(t *testing.T) {
	t.Parallel()
	b := setup(t)
	startstoptest.Stress(t.Context(), t, schema.NewFollower(b.Archetype, b.Schemas))
}

// TestOneOfManyRegistersAVersion has two nodes register different schemas under one version.
func TestOneOfManyRegistersAVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stores := []*schema.Store{b.Schemas, b.Node().Schemas}
	var group sync.WaitGroup
	created, refused := make(chan int, 20), make(chan error, 20)
	for i := range 20 {
		in := registration(t, "1", fmt.Sprintf(`{"minItems":%d}`, i))
		group.Go(func() {
			_, first, err := stores[i%2].Put(t.Context(), in)
			if first {
				created <- i
			}
			if err != nil {
				refused <- err
			}
		})
	}
	group.Wait()
	require.Len(t, created, 1)
	require.Len(t, refused, 19)
	domaintest.RequireCode(t, <-refused, ojs.ErrSchemaExists)
}

func TestMostSchemas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.put("1", `{"minItems":1}`)
	_, err := b.Pool.Exec(t.Context(), `INSERT INTO ojs.schemas (type, version, version_number, uri, schema, enforce)
		SELECT 'crowd', i::text, true, 'urn:' || i, '{}', false FROM generate_series(2, $1) i`, schema.MaxSchemas)
	require.NoError(t, err)
	_, _, err = b.Schemas.Put(t.Context(), registration(t, "2", `{}`))
	domaintest.RequireCode(t, err, ojs.ErrUnsupported)
	_, created, err := b.Schemas.Put(t.Context(), registration(t, "1", `{"minItems":1}`))
	require.NoError(t, err)
	require.False(t, created)
	list, err := b.Schemas.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, schema.MaxSchemas)
}

// TestManyLargeSchemas checks by more schemas than a node keeps compiled.
func TestManyLargeSchemas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	title := strings.Repeat("x", 250<<10)
	for i := range 30 {
		b.put(fmt.Sprint(i), fmt.Sprintf(`{"title":%q,"minItems":%d}`, title, i))
	}
	for range 2 {
		for i := range 30 {
			j := &job.Job{Type: "test.job", Queue: "q", MaxAttempts: 3, Args: []byte(`[]`), SchemaVersion: fmt.Sprint(i)}
			_, err := b.Enqueue(t.Context(), j)
			require.Equal(t, i > 0, err != nil)
		}
	}
}

func TestIndependentJobsAreCheckedEach(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.put("1", `{"minItems":1}`)
	jobs := make([]*job.Job, 5)
	for i := range jobs {
		jobs[i] = &job.Job{Type: "test.job", Queue: "q", MaxAttempts: 3, Args: []byte(`[]`)}
	}
	jobs[1].Args, jobs[4].Args = []byte(`[1]`), []byte(`[1]`)
	stored, errs := b.EnqueueEach(t.Context(), jobs)
	for i := range jobs {
		require.Equal(t, i == 1 || i == 4, errs[i] == nil, i)
		require.Equal(t, i == 1 || i == 4, stored[i] != nil, i)
	}
	_, at, err := b.EnqueueAll(t.Context(), jobs[1:])
	domaintest.RequireCode(t, err, ojs.ErrSchemaValidation)
	require.Equal(t, 1, at)
}

// waiting is a connection that the pool does not give yet.
type waiting struct {
	dbsqlc.DBTX

	asked chan struct{}
	given chan struct{}
}

func (w *waiting) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	w.asked <- struct{}{}
	<-w.given
	return w.DBTX.QueryRow(ctx, sql, args...)
}

// TestReadingHoldsNoLock: whoever reads the schemas in a transaction does not wait for one that waits for a connection.
func TestReadingHoldsNoLock(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"Names": false, "Document": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.put("1", `{"type":"array"}`)
			other := b.Node().Schemas // which has read nothing
			if known {
				_, err := other.Check(t.Context(), b.DB.Q, &job.Job{Type: "another"})
				require.NoError(t, err)
			}
			w := &waiting{DBTX: b.DB.Pool, asked: make(chan struct{}, 10), given: make(chan struct{})}
			first, second := make(chan error, 1), make(chan error, 1)
			check := func(db dbsqlc.DBTX, done chan error) {
				_, err := other.Check(t.Context(), dbsqlc.New(db), &job.Job{Type: "test.job", Args: []byte(`[]`)})
				done <- err
			}
			go check(w, first)
			domaintest.Await(t, w.asked)
			go check(b.DB.Pool, second)
			require.NoError(t, domaintest.Await(t, second))
			close(w.given)
			require.NoError(t, domaintest.Await(t, first))
		})
	}
}
