package queue

func (s *Store) weights(queue string) weights { return weights{} }
