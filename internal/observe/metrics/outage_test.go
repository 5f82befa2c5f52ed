package metrics

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/pg"
)

// mute is a connection whose answers stop to come when gone is closed, as from a host that has lost power.
type mute struct {
	net.Conn
	gone <-chan struct{}
}

func (c mute) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		select {
		case <-c.gone:
			if err != nil {
				return 0, err
			}
		default:
			return n, err
		}
	}
}

// A scrape does not hang with the database, and says so.
func TestDatabaseThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig(dbtest.URL(t))
	require.NoError(t, err)
	gone := make(chan struct{})
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return mute{conn, gone}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	m := setup(t, Deps{Sources: func() Sources {
		return Sources{
			Database: NewDatabase(pg.New(pool, time.Hour)),
			Webhooks: func(ctx context.Context) (int64, int64, error) { return 0, 0, pool.Ping(ctx) },
		}
	}}, readOnce)

	_, err = m.Gauges(t.Context()) // remembered from now on; the rest is read when it does not answer any more
	require.NoError(t, err)
	close(gone)
	start := time.Now()
	texts := make([]string, 3)
	var scrapes sync.WaitGroup
	for i := range texts {
		scrapes.Go(func() { texts[i] = m.text(t, false) })
	}
	scrapes.Wait()
	require.Less(t, time.Since(start), 3*roundTimeout, "one after the other they would take that long")
	for _, text := range texts {
		require.Contains(t, text, "ojs_database_up 0\n")
		require.Contains(t, text, "ojs_events_unpublished ")
		require.NotContains(t, text, "ojs_db_table_bytes")
	}
}
