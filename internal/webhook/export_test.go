package webhook

import "context"

// RecordDeliveries records several outcomes in one statement, as concurrent callers do.
func (s *Store) RecordDeliveries(ctx context.Context, outcomes []DeliveryOutcome) error {
	_, err := s.flushDeliveries(ctx, outcomes)
	return err
}
