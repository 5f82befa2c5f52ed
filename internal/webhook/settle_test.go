package webhook_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/ojs"
)

// lossyBundle is a node whose connection breaks at a statement, and another one that looks at the database.
type lossyBundle struct {
	*bundle
	network *domaintest.Lossy
	sane    *bundle
}

func setupLossy(t *testing.T, change ...func(*domaintest.Config)) *lossyBundle {
	t.Helper()
	pool := dbtest.New(t)
	lossy, network := domaintest.NewLossy(t, pool)
	b := &lossyBundle{&bundle{domaintest.On(t, lossy, append(change, func(c *domaintest.Config) { c.Unchecked = true })...)}, network, &bundle{domaintest.On(t, pool)}}
	require.NoError(t, lossy.Ping(t.Context()))
	return b
}

// changed changes a subscription on this node.
func (b *bundle) changed(id [16]byte, change func(*webhook.Definition)) (*webhook.Webhook, error) {
	return b.Webhooks.Change(b.T.Context(), id, func(current webhook.Definition) (*webhook.Definition, webhook.Match, error) {
		change(&current)
		return &current, webhook.Match{Types: []string{"%"}}, nil
	})
}

// TestLostAnswer: when the connection breaks after a change of a subscription was sent, the caller is told what is true.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	type call struct {
		do   func(b *lossyBundle, id [16]byte) (*webhook.Webhook, error)
		done string // 1 if it is done
	}
	calls := map[string]call{
		"Create": {func(b *lossyBundle, _ [16]byte) (*webhook.Webhook, error) {
			return b.Webhooks.Create(b.T.Context(), &webhook.Definition{
				URL: "https://new.example", Events: []string{"*"}, Ordering: "none", PayloadFormat: "ojs", Secret: "the new one",
			}, webhook.Match{})
		}, `SELECT count(*) FROM ojs.webhooks w JOIN ojs.webhook_secrets s ON s.webhook_id = w.id WHERE url = 'https://new.example'`},
		"Change": {func(b *lossyBundle, id [16]byte) (*webhook.Webhook, error) {
			return b.changed(id, func(w *webhook.Definition) { w.URL = "https://new.example" })
		}, `SELECT count(*) FROM ojs.webhooks WHERE url = 'https://new.example'`},
		"ChangeOfSecret": {func(b *lossyBundle, id [16]byte) (*webhook.Webhook, error) {
			return b.changed(id, func(w *webhook.Definition) { w.Secret = "the new one" })
		}, `SELECT count(*) FROM ojs.webhook_secrets WHERE hint = ' one' AND expires_at IS NULL`},
		"Rotate": {func(b *lossyBundle, id [16]byte) (*webhook.Webhook, error) {
			return b.Webhooks.RotateSecret(b.T.Context(), id, "the new one", time.Hour)
		}, `SELECT count(*) FROM ojs.webhook_secrets WHERE hint = ' one' AND expires_at IS NULL`},
		"DropPrevious": {func(b *lossyBundle, id [16]byte) (*webhook.Webhook, error) {
			return b.Webhooks.DropPreviousSecret(b.T.Context(), id)
		}, `SELECT (count(*) = 1)::integer FROM ojs.webhook_secrets`},
		"Delete": {func(b *lossyBundle, id [16]byte) (*webhook.Webhook, error) {
			return &webhook.Webhook{Record: webhook.Record{ID: id}}, b.Webhooks.Delete(b.T.Context(), id)
		}, `SELECT (count(*) = 0)::integer FROM ojs.webhooks`},
	}
	prepared := func(t *testing.T, change ...func(*domaintest.Config)) (*lossyBundle, [16]byte) {
		t.Helper()
		b := setupLossy(t, change...)
		w := b.sane.Subscribed()
		_, err := b.sane.Webhooks.RotateSecret(t.Context(), w.ID, "the second", time.Hour)
		require.NoError(t, err)
		return b, w.ID
	}
	requireUnknown := func(t *testing.T, err error) {
		t.Helper()
		domaintest.RequireCode(t, err, ojs.ErrTimeout)
		var wire *ojs.Error
		require.ErrorAs(t, err, &wire)
		require.Equal(t, "unknown", wire.Details["outcome"])
		require.True(t, wire.Retryable)
	}
	for name, c := range calls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("Committed", func(t *testing.T) {
				t.Parallel()
				b, id := prepared(t)
				b.network.Break(domaintest.LoseAnswer, "commit")
				w, err := c.do(b, id)
				require.NoError(t, err)
				require.Equal(t, 1, b.network.Broken())
				require.Equal(t, 1, b.sane.Number(c.done))
				if name != "Delete" {
					stored, err := b.sane.Webhooks.Get(t.Context(), w.ID)
					require.NoError(t, err)
					require.Equal(t, stored, w)
				}
			})
			t.Run("NotCommitted", func(t *testing.T) {
				t.Parallel()
				b, id := prepared(t)
				b.network.Break(domaintest.LoseRequest, "commit")
				_, err := c.do(b, id)
				domaintest.RequireCode(t, err, ojs.ErrUnavailable)
				require.Equal(t, 1, b.network.Broken())
				require.Zero(t, b.sane.Number(c.done))
				_, err = c.do(b, id)
				require.NoError(t, err, "the same call again succeeds")
				require.Equal(t, 1, b.sane.Number(c.done))
			})
			t.Run("DatabaseStaysAway", func(t *testing.T) {
				t.Parallel()
				b, id := prepared(t, func(c *domaintest.Config) { c.Database.StatementTimeout = 2 * time.Second })
				b.network.BreakForGood(domaintest.LoseAnswer, "commit")
				_, err := c.do(b, id)
				requireUnknown(t, err)
			})
		})
	}

	t.Run("DatabaseThatComesBack", func(t *testing.T) {
		t.Parallel()
		b, _ := prepared(t)
		b.network.BreakForGood(domaintest.LoseAnswer, "commit")
		restore := time.AfterFunc(500*time.Millisecond, b.network.Restore)
		defer restore.Stop()
		_, err := calls["Create"].do(b, [16]byte{})
		require.NoError(t, err)
	})

	// Its own time of change is gone, so nobody can tell whether it was ever there.
	t.Run("ChangeThatWasOverwritten", func(t *testing.T) {
		t.Parallel()
		b, id := prepared(t)
		b.Exec(`CREATE FUNCTION ojs.another() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			UPDATE ojs.webhooks SET updated_at = clock_timestamp() + interval '1 s'; RETURN NULL; END $$`)
		b.Exec(`CREATE TRIGGER another AFTER UPDATE ON ojs.webhooks FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION ojs.another()`)
		b.network.Break(domaintest.LoseAnswer, "commit")
		_, err := calls["Change"].do(b, id)
		requireUnknown(t, err)
	})
}
