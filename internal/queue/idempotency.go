package queue

import (
	"bytes"
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/spec"
)

// Answer is the stored reply of an idempotent call.
type Answer struct {
	Status   int
	Body     []byte
	Replayed bool
}

// IdempotencyKey identifies a call. A call with the same key and another Hash, of its body, is a conflict.
// See docs/reference/http.md, Idempotency keys. The same key may be used by another holder, that is with another API key or for another
// tenant, or for another operation.
type IdempotencyKey struct {
	Holder    string // the caller's API key, by its hash, and the tenant of the call (api.Caller.Holder); "": neither
	Operation string
	Key       string
	Hash      []byte
}

// errNotKept rolls back a transaction whose answer is not stored, because nothing was changed.
var errNotKept = errors.New("nothing was changed")

// Once runs do in a transaction with its key, so that the change and the stored answer commit together. The row of the key
// is inserted first: a concurrent call with the same key waits for this one and then replays its answer. With an empty key,
// Once only runs do. keep is false for an answer that changed nothing; the same call may then be tried again.
//
// do may run twice, after a deadlock, so it must not touch anything but the transaction and its own variables. If the answer to
// the commit was lost, Once finds out by a job that do has changed (Tx.committed).
func (s *Store) Once(ctx context.Context, k IdempotencyKey, do func(tx *Tx) (answer Answer, keep bool, err error)) (Answer, error) {
	var answer Answer
	err := s.InTx(ctx, func(tx *Tx) (err error) {
		replay, err := k.Claim(ctx, tx.tx)
		if err != nil || replay.Replayed {
			answer = replay
			return err
		}
		var keep bool
		if answer, keep, err = do(tx); err != nil {
			return err
		}
		// The rollback deletes the row of the key, too.
		if !keep {
			return errNotKept
		}
		return k.Keep(ctx, tx.tx, answer)
	})
	if errors.Is(err, errNotKept) {
		err = nil
	}
	return answer, err
}

// Claim inserts the row of the key in the caller's transaction, or reads the answer of the call that has inserted it. It does
// nothing for an empty key.
//
// The wait for a concurrent call is that for its uncommitted row; it ends with the timeouts of the transaction. If that call
// rolls back, this one inserts.
func (k IdempotencyKey) Claim(ctx context.Context, tx pgx.Tx) (Answer, error) {
	if k.Key == "" {
		return Answer{}, nil
	}
	q := dbsqlc.New(tx)
	n, err := q.IdempotencyKeyInsert(ctx, dbsqlc.IdempotencyKeyInsertParams{Holder: k.Holder, Operation: k.Operation, Key: k.Key, BodyHash: k.Hash})
	if err != nil || n == 1 {
		return Answer{}, err
	}
	// A statement of its own, whose snapshot has the row that the insert has waited for.
	row, err := q.IdempotencyKeyGet(ctx, dbsqlc.IdempotencyKeyGetParams{Holder: k.Holder, Operation: k.Operation, Key: k.Key})
	if err != nil {
		return Answer{}, err
	}
	if !bytes.Equal(row.BodyHash, k.Hash) {
		return Answer{}, spec.IdempotencyConflict(k.Key)
	}
	return Answer{Status: int(row.Status), Body: row.Response, Replayed: true}, nil
}

// Keep stores the answer of the call that has claimed the key, in the same transaction.
// Without it the key would be stored without an answer.
func (k IdempotencyKey) Keep(ctx context.Context, tx pgx.Tx, a Answer) error {
	if k.Key == "" {
		return nil
	}
	return dbsqlc.New(tx).IdempotencyKeyAnswer(ctx, dbsqlc.IdempotencyKeyAnswerParams{
		Holder: k.Holder, Operation: k.Operation, Key: k.Key, Status: int32(a.Status), Response: a.Body,
	})
}
