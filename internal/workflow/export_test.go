package workflow

// LookAt makes lists look at fewer roots.
func (s *Store) LookAt(roots int64) { s.maxLooked = roots }
