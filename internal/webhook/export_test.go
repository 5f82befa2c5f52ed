package webhook

import "context"

// LookAt sets how many deliveries a list looks at.
func (s *Store) LookAt(deliveries int32) { s.maxLooked = deliveries }

// RecordDeliveries records several outcomes in one statement, as concurrent callers do.
func (s *Store) RecordDeliveries(ctx context.Context, outcomes []DeliveryOutcome) error {
	_, err := s.flushDeliveries(ctx, outcomes)
	return err
}
