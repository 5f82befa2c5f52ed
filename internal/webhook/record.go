package webhook

import "github.com/jackc/pgx/v5/pgtype"

// Record is a subscription as it is stored. Its fields are the columns of ojs.webhooks, in their order.
type Record struct {
	ID                  [16]byte
	Url                 string
	Events              []string
	Filter              []byte
	Types               []string
	Sources             []string
	Queues              []string
	JobTypes            []string
	Metadata            []byte
	Active              bool
	FromPlace           int64
	UptoPlace           pgtype.Int8
	TimeoutMs           int32
	MaxInFlight         int32
	Ordering            string
	PayloadFormat       string
	StandardWebhooks    bool
	ProvenSecret        pgtype.UUID
	SuccessCount        int64
	FailureCount        int64
	ConsecutiveFailures int32
	FailingSince        pgtype.Timestamptz
	LastDeliveryAt      pgtype.Timestamptz
	LastDeliveryStatus  pgtype.Int4
	DisabledReason      pgtype.Text
	DisabledAt          pgtype.Timestamptz
	CreatedAt           pgtype.Timestamptz
	UpdatedAt           pgtype.Timestamptz
}

// SecretRecord is a secret as it is stored.
type SecretRecord struct {
	ID        [16]byte
	WebhookID [16]byte
	Secret    []byte
	KeyID     string
	Hint      string
	CreatedAt pgtype.Timestamptz
	ExpiresAt pgtype.Timestamptz
}

// DeliveryRecord is a delivery as it is stored.
type DeliveryRecord struct {
	ID             [16]byte
	WebhookID      [16]byte
	EventSeq       int64
	EventSub       int32
	EventTime      pgtype.Timestamptz
	EventType      string
	Subject        string
	TraceID        pgtype.Text
	Ordered        bool
	Body           string
	Format         string
	Status         string
	NextAttemptAt  pgtype.Timestamptz
	Leased         bool
	Claims         int32
	Lost           int32
	AttemptCount   int32
	RoundStart     int32
	LastStatusCode pgtype.Int4
	LastError      pgtype.Text
	CreatedAt      pgtype.Timestamptz
	CompletedAt    pgtype.Timestamptz
}

// AttemptRecord is one attempt of a delivery as it is stored.
type AttemptRecord struct {
	DeliveryID [16]byte
	Attempt    int32
	StartedAt  pgtype.Timestamptz
	DurationMs int64
	StatusCode int32
	Error      pgtype.Text
	Snippet    pgtype.Text
}
