package workflow

import "context"

// LookAt makes lists look at fewer roots.
func (s *Store) LookAt(roots int64) { s.maxLooked = roots }

// CheckNow runs a check. again: the next one is run even if no job moves until then.
func (f *Follower) CheckNow(ctx context.Context) (again bool) {
	f.check(ctx)
	return f.running.Load()
}
