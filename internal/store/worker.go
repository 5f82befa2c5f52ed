package store

import "context"

// BuryWorkers declares the silent workers dead, gives their jobs back and returns how many workers that were.
func (s *Store) BuryWorkers(ctx context.Context) (int, error) {
	return 0, nil
}
