package job

import (
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

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
	WorkflowID      pgtype.UUID
	UniqueKey       pgtype.Text
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
	Size            pgtype.Int4
}

// MaxBytes bounds, together with one more job, what one statement reads of jobs and what one answer shows of them: with
// 1 000 jobs of 1 MiB in an answer a node runs out of memory, and jobs that it has claimed are lost until their leases end.
const MaxBytes = 8 << 20

// smallSize is what a job without Size counts: less than that has no effect on memory, and is not stored.
const smallSize = 8192

// Weight is what the job counts towards MaxBytes.
func (r *Record) Weight() int {
	if r.Size.Valid {
		return int(r.Size.Int32)
	}
	return smallSize
}

// ClientBytes is the size of what the client has sent, as far as answers show it.
func (j *Job) ClientBytes() int { return len(j.Args) + len(j.Meta) + len(j.Extra) }

// StoredSize is the column size of a new job; 0: none. ojs.stored_size is the same in SQL.
func (j *Job) StoredSize() int32 {
	if size := j.ClientBytes(); size >= smallSize {
		return int32(size) //nolint:gosec // a request is smaller
	}
	return 0
}

// SizeOfEach is the largest Size of a job that is read whole, if a statement reads n.
func SizeOfEach(n int) int32 {
	if n <= 1 {
		return math.MaxInt32
	}
	return int32(MaxBytes / n)
}

// Cut reports whether the statement has left out what the client sent, because the job is large and not the only one.
func (r *Record) Cut() bool { return r.Args == nil }

// ProgressUnsent reports whether the latest report of progress had no event of its own, so that the end of the run wrote it. See
// the statement JobProgress.
func (r *Record) ProgressUnsent() bool {
	return r.ProgressAt.Valid && !r.ProgressAt.Time.Equal(r.ProgressAt.Time.Truncate(time.Millisecond))
}

// CutPage returns the jobs of a page, up to limit and MaxBytes but at least one, and whether there are more. The statement
// has read one job beyond either limit.
func CutPage[Row any](rows []Row, limit int, record func(*Row) *Record) (jobs []*Record, more bool) {
	bytes := 0
	for i := range rows {
		r := record(&rows[i])
		if bytes += r.Weight(); i == limit || i > 0 && bytes > MaxBytes {
			return jobs, true
		}
		jobs = append(jobs, r)
	}
	return jobs, false
}
