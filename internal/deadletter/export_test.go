package deadletter

// LookAt makes lists look at fewer jobs.
func (s *Store) LookAt(jobs int64) { s.maxLooked = jobs }
