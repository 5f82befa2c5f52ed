package webhook

import "github.com/jackc/pgx/v5/pgtype"

// Record is a subscription as it is stored. Its fields are the columns of ojs.webhooks, in their order. The order of the
// fields matters, because a row is converted to it as a whole. SuccessCount and FailureCount are changed by
// WebhookDeliveryRecord only, under the lock of the row.
type Record struct {
	ID                  [16]byte
	Url                 string
	Events              []string // patterns, as sent
	Filter              []byte   // as sent
	Types               []string // Types to JobTypes are Events and Filter in the form of ojs.event_matches
	Sources             []string
	Queues              []string
	JobTypes            []string
	Metadata            []byte
	Active              bool
	FromPlace           int64       // it gets events behind this place (seq * 65536 + sub)
	UptoPlace           pgtype.Int8 // of an inactive one: it still gets events up to this place
	TimeoutMs           int32       // of one request
	MaxInFlight         int32       // requests at the same time, over all nodes
	Ordering            string
	PayloadFormat       string
	StandardWebhooks    bool
	ProvenSecret        pgtype.UUID        // the secret that signed the latest success
	SuccessCount        int64              // deliveries
	FailureCount        int64              // deliveries that were given up
	ConsecutiveFailures int32              // attempts since the latest success
	FailingSince        pgtype.Timestamptz // the first of them
	LastDeliveryAt      pgtype.Timestamptz
	LastDeliveryStatus  pgtype.Int4 // HTTP status; 0: no response
	DisabledReason      pgtype.Text // why the server disabled it; NULL: it did not
	DisabledAt          pgtype.Timestamptz
	CreatedAt           pgtype.Timestamptz
	UpdatedAt           pgtype.Timestamptz
	Tenant              pgtype.Text // whose events it gets; NULL: those of all
	ReorderPending      bool        // its unfinished deliveries have to follow a change of Ordering
	ResumePending       bool        // they have to follow an activation
}

// SecretRecord is a secret as it is stored. At most two of a subscription are valid; an expired one may stay until the next
// rotation.
type SecretRecord struct {
	ID        [16]byte
	WebhookID [16]byte
	Secret    []byte // sealed, unless KeyID is ""
	KeyID     string // of the key that opens it
	Hint      string // its last four characters
	CreatedAt pgtype.Timestamptz
	ExpiresAt pgtype.Timestamptz // NULL: the current secret
}

// DeliveryRecord is a delivery as it is stored. The outcomes of attempts, claims and releases are guarded by Claims and
// Status in the statements, not by a lock that is held during a request.
type DeliveryRecord struct {
	ID             [16]byte
	WebhookID      [16]byte
	EventSeq       int64 // position of the event; 0: a test
	EventSub       int32
	EventTime      pgtype.Timestamptz
	EventType      string
	Subject        string
	TraceID        pgtype.Text
	Ordered        bool   // waits for earlier ones of its subject
	Body           string // of the request, byte for byte
	Format         string
	Status         string
	NextAttemptAt  pgtype.Timestamptz // while a node sends it: the end of the lease. NULL: ended, or it waits for another one
	Leased         bool               // a node sends it
	Claims         int32              // tells the outcome of a lost lease from that of the current one
	Lost           int32              // leases in a row that ended without an outcome
	AttemptCount   int32              // attempts with an outcome
	RoundStart     int32              // those before the latest manual retry, which begins the schedule again
	LastStatusCode pgtype.Int4        // HTTP status; 0: no response
	LastError      pgtype.Text
	CreatedAt      pgtype.Timestamptz
	CompletedAt    pgtype.Timestamptz
}

// AttemptRecord is one attempt of a delivery as it is stored. Snippet is at most 1 024 bytes. StartedAt is the time of the
// record less the duration, so it is that of the database.
type AttemptRecord struct {
	DeliveryID [16]byte
	Attempt    int32
	StartedAt  pgtype.Timestamptz
	DurationMs int64
	StatusCode int32
	Error      pgtype.Text
	Snippet    pgtype.Text
}
