package job

import "github.com/jackc/pgx/v5/pgtype"

// Record is a job as it is stored. Its fields are the columns of ojs.jobs, in their order, so that a row of a statement
// converts to it without a copy and the compiler notices a column that was added to one and not to the other.
type Record struct {
	ID              [16]byte
	Type            string
	Queue           string
	State           string
	Priority        int16
	Attempt         int32
	MaxAttempts     int64
	ReadySeq        pgtype.Int8
	DueAt           pgtype.Timestamptz
	CreatedAt       pgtype.Timestamptz
	EnqueuedAt      pgtype.Timestamptz
	StartedAt       pgtype.Timestamptz
	FinishedAt      pgtype.Timestamptz
	ScheduledAt     pgtype.Timestamptz
	NextAttemptAt   pgtype.Timestamptz
	ExpiresAt       pgtype.Timestamptz
	TotalDueAt      pgtype.Timestamptz
	TtlDueAt        pgtype.Timestamptz
	WorkerID        pgtype.Text
	LeaseUntil      pgtype.Timestamptz
	LeaseMs         pgtype.Int8
	StallDueAt      pgtype.Timestamptz
	VisibilityMs    pgtype.Int8
	TimeoutMs       pgtype.Int8
	GraceMs         pgtype.Int8
	StallMs         pgtype.Int8
	RetryDelayMs    pgtype.Int8
	ResultTtlS      pgtype.Int8
	PreviousState   pgtype.Text
	Failed          bool
	DeadLetteredAt  pgtype.Timestamptz
	ReEnqueuedAt    pgtype.Timestamptz
	ReplayCount     int32
	TraceID         pgtype.Text
	Cron            pgtype.Text
	CronSerial      bool
	Retry           []byte
	Args            []byte
	Meta            []byte
	Extra           []byte
	Error           []byte
	Errors          [][]byte
	PreviousErrors  [][]byte
	Progress        pgtype.Float8
	ProgressMessage pgtype.Text
	ProgressData    []byte
	ProgressAt      pgtype.Timestamptz
	Checkpoint      []byte
	CheckpointSeq   pgtype.Int8
	CheckpointAt    pgtype.Timestamptz
	Result          []byte
}
