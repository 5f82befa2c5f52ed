package queue

import (
	"bytes"
	"context"
	"errors"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/ojs"
)

// Answer is the stored reply of an idempotent call.
type Answer struct {
	Status   int
	Body     []byte
	Replayed bool
}

// IdempotencyKey names a call; Hash is of what was asked.
type IdempotencyKey struct {
	Operation string
	Key       string
	Hash      []byte
}

// errDiscarded rolls back a transaction whose answer says that nothing was changed.
var errDiscarded = errors.New("nothing was changed")

// Once runs do in a transaction with its key, so that the change and the memory of it commit together. The key's row is
// written first: a concurrent call with the same key waits for this one and then replays its answer. An empty key only
// runs do. keep is false for an answer that changed nothing and may be tried again.
func (s *Store) Once(ctx context.Context, k IdempotencyKey, do func(tx *Tx) (answer Answer, keep bool, err error)) (Answer, error) {
	var answer Answer
	err := s.InTx(ctx, func(tx *Tx) (err error) {
		q := dbsqlc.New(tx.tx)
		if k.Key != "" {
			replay, err := k.claim(ctx, q)
			if err != nil || replay.Replayed {
				answer = replay
				return err
			}
		}
		var keep bool
		if answer, keep, err = do(tx); err != nil {
			return err
		}
		if !keep {
			return errDiscarded
		}
		if k.Key == "" {
			return nil
		}
		return q.IdempotencyKeyAnswer(ctx, dbsqlc.IdempotencyKeyAnswerParams{
			Operation: k.Operation, Key: k.Key, Status: int32(answer.Status), Response: answer.Body,
		})
	})
	if errors.Is(err, errDiscarded) {
		err = nil
	}
	return answer, err
}

// claim writes the key's row, or reads the answer of the call that did.
func (k IdempotencyKey) claim(ctx context.Context, q *dbsqlc.Queries) (Answer, error) {
	n, err := q.IdempotencyKeyInsert(ctx, dbsqlc.IdempotencyKeyInsertParams{Operation: k.Operation, Key: k.Key, BodyHash: k.Hash})
	if err != nil || n == 1 {
		return Answer{}, err
	}
	row, err := q.IdempotencyKeyGet(ctx, k.Operation, k.Key)
	if err != nil {
		return Answer{}, err
	}
	if !bytes.Equal(row.BodyHash, k.Hash) {
		return Answer{}, ojs.ErrIdempotencyConflict(k.Key)
	}
	return Answer{Status: int(row.Status), Body: row.Response, Replayed: true}, nil
}
