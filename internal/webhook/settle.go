package webhook

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/pg"
)

// look reads what the database holds of a change whose commit was not answered. changed is what its transaction has returned.
type look func(ctx context.Context, changed *Webhook) (pg.Found, error)

// inWebhookTx is for subscriptions and secrets. Their tables are small, so every plan is good. It is tried again after a
// deadlock, too, and maps errors for clients. If the commit was not answered, found tells whether it is done.
func (s *Store) inWebhookTx(ctx context.Context, found look, do func(ctx context.Context, q *dbsqlc.Queries) (*Webhook, error)) (changed *Webhook, err error) {
	bounded, cancel := s.db.Bounded(ctx)
	defer cancel()
	err = pg.Retry(func() error {
		return s.db.InTx(bounded, func(tx pgx.Tx) (err error) {
			changed, err = do(bounded, dbsqlc.New(tx))
			return err
		})
	})
	err = s.db.Settle(ctx, err, func(ctx context.Context) (pg.Found, error) { return found(ctx, changed) })
	if err != nil {
		return nil, pg.ClientError(err)
	}
	return changed, nil
}

func (s *Store) lookForWebhook(ctx context.Context, created *Webhook) (pg.Found, error) {
	rows, err := s.db.Q.WebhookGet(ctx, created.ID)
	return foundIf(len(rows) > 0), err
}

// lookForDeletion finds that there is no such subscription any more, whoever has deleted it.
func (s *Store) lookForDeletion(id [16]byte) look {
	return func(ctx context.Context, _ *Webhook) (pg.Found, error) {
		rows, err := s.db.Q.WebhookGet(ctx, id)
		return foundIf(len(rows) == 0), err
	}
}

// lookForChange tells a change from the one before by updated_at, which every change sets. before is set by the transaction.
func (s *Store) lookForChange(before *Record) look {
	return func(ctx context.Context, changed *Webhook) (pg.Found, error) {
		rows, err := s.db.Q.WebhookGet(ctx, changed.ID)
		switch {
		case err != nil:
			return pg.Absent, err
		case len(rows) == 0: // deleted since
			return pg.Overwritten, nil
		case rows[0].UpdatedAt.Time.Equal(changed.UpdatedAt.Time):
			return pg.Present, nil
		case rows[0].UpdatedAt.Time.Equal(before.UpdatedAt.Time):
			return pg.Absent, nil
		}
		return pg.Overwritten, nil
	}
}

// lookForSecret finds the new secret of a rotation. Two more rotations would have removed it; that this one has no effect is
// true then, too.
func (s *Store) lookForSecret(ctx context.Context, rotated *Webhook) (pg.Found, error) {
	there, err := s.db.Q.WebhookSecretExists(ctx, rotated.Secrets[0].ID)
	return foundIf(there), err
}

// lookForNoPrevious finds that a subscription has no previous secret, whoever has dropped it.
func (s *Store) lookForNoPrevious(ctx context.Context, changed *Webhook) (pg.Found, error) {
	there, err := s.db.Q.WebhookSecretHasPrevious(ctx, changed.ID)
	return foundIf(!there), err
}

func foundIf(there bool) pg.Found {
	if there {
		return pg.Present
	}
	return pg.Absent
}
