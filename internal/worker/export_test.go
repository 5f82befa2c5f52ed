package worker

import "context"

// WriteBeats writes the calls of workers that the node has collected, as Liveness does.
func WriteBeats(ctx context.Context, s *Store) error { return s.writeBeats(ctx) }

// ReadQuiet reads which workers are quiet, as Liveness does.
func ReadQuiet(ctx context.Context, s *Store) error { return s.readQuiet(ctx) }
