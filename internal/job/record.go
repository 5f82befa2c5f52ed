package job

import (
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Record is a job as it is stored. Its fields are the columns of ojs.jobs, in their order, so that a row of a statement
// converts to it without a copy and the compiler notices a column that was added to one and not to the other.
// A Record is a copy of one moment. It may be shown or compared, but a change must guard state, worker and attempt in its
// statement. Records are shared by callers of one flush and by subscribers of commits, so none of them may change one.
//
// ReadySeq is set while the job is active, or available without a limit or another job of its cron holding it back; else NULL.
//
// DueAt: each statement that changes the job computes it from the times below. NULL: nothing is due, and the job is not in the
// index of the sweep.
//
// Columns with JSON have the type json, which keeps the text as it came.
type Record struct {
	ID              [16]byte
	Type            string
	Queue           string
	State           string // completed and cancelled jobs are in ojs.jobs_done, the others in ojs.jobs
	Priority        int16  // -100 to 100, higher first
	Attempt         int32  // the current or latest one; 0: never fetched
	MaxAttempts     int64
	ReadySeq        pgtype.Int8        // while available its place in the fetch order; while active the number of its claim, negative
	DueAt           pgtype.Timestamptz // the earliest time at which a sweep has to act on it
	CreatedAt       pgtype.Timestamptz
	EnqueuedAt      pgtype.Timestamptz // latest entry into available
	StartedAt       pgtype.Timestamptz // latest entry into active
	FinishedAt      pgtype.Timestamptz // entry into completed, cancelled or discarded
	ScheduledAt     pgtype.Timestamptz // requested time of the first entry into available
	NextAttemptAt   pgtype.Timestamptz // end of the backoff, while retryable
	ExpiresAt       pgtype.Timestamptz // a job that is not active then is discarded
	TotalDueAt      pgtype.Timestamptz // end of total_timeout
	TtlDueAt        pgtype.Timestamptz // end of enqueue_ttl; NULL from the first fetch on
	WorkerID        pgtype.Text        // kept at the end, to answer a late ack
	LeaseUntil      pgtype.Timestamptz // end of the reservation, while active
	LeaseMs         pgtype.Int8        // its length; a heartbeat without one uses it again
	StallDueAt      pgtype.Timestamptz // end of heartbeat_timeout, while active
	VisibilityMs    pgtype.Int8        // length of the reservation that the job asks for; NULL: the default
	TimeoutMs       pgtype.Int8        // of one attempt; NULL: the default
	GraceMs         pgtype.Int8        // added to TimeoutMs
	StallMs         pgtype.Int8        // heartbeat_timeout; NULL: none
	RetryDelayMs    pgtype.Int8        // backoff of the latest failure
	ResultTtlS      pgtype.Int8        // seconds; NULL: the default, 0: not kept, -1: as long as the job
	PreviousState   pgtype.Text        // before cancelled or discarded
	Failed          bool               // a failed attempt discarded the job
	DeadLetteredAt  pgtype.Timestamptz // valid: the job is a dead letter
	ReEnqueuedAt    pgtype.Timestamptz // latest manual retry
	ReplayCount     int32              // manual retries
	TraceID         pgtype.Text        // found in Meta
	Cron            pgtype.Text        // name of the cron that enqueued it
	CronSerial      bool               // one job of the cron runs at a time
	WorkflowID      pgtype.UUID        // root of its workflow; NULL: it belongs to none
	UniqueKey       pgtype.Text        // fingerprint by its unique policy; NULL: it has none
	Lane            string             // the part of its queue in which it waits; "" for most
	LimitKey        pgtype.Text        // key of its rate limit; NULL: it has none
	LimitSeq        pgtype.Int8        // its place in the fetch order, while its rate limit holds it back
	OnLimit         pgtype.Text        // what the limit does when it blocks the job: reschedule or drop; NULL: it waits
	Retry           []byte             // merged policy; nil: the default one
	Args            []byte
	Meta            []byte        // nil: {}
	Extra           []byte        // other attributes of the client that are echoed, as one object
	Error           []byte        // latest failure
	Errors          [][]byte      // failures, oldest first
	PreviousErrors  [][]byte      // those before the latest manual retry
	Progress        pgtype.Float8 // 0 to 1
	ProgressMessage pgtype.Text
	ProgressData    []byte
	ProgressAt      pgtype.Timestamptz // latest report; see ProgressUnsent for its microseconds
	Checkpoint      []byte             // kept when the job ends
	CheckpointSeq   pgtype.Int8        // from 1
	CheckpointAt    pgtype.Timestamptz
	Result          []byte
	Size            pgtype.Int4 // bytes of what the client sent, if 8 KiB or more; see Weight
}

// MaxBytes bounds, together with one more job, what one statement reads of jobs and what one answer shows of them: with
// 1 000 jobs of 1 MiB in an answer a node runs out of memory, and jobs that it has claimed are lost until their leases end.
// A client cannot raise it; it asks for the rest with the next page or the next fetch.
const MaxBytes = 8 << 20

// smallSize is what a job without Size counts: less than that has no effect on memory, and is not stored.
const smallSize = 8192

// Weight is what the job counts towards MaxBytes. For small jobs it counts more than they have, so a page may end a little
// early.
func (r *Record) Weight() int {
	if r.Size.Valid {
		return int(r.Size.Int32)
	}
	return smallSize
}

// ClientBytes is the size of what the client has sent, as far as answers show it. It bounds queues by bytes too
// (docs/reference/backpressure.md, Bytes).
func (j *Job) ClientBytes() int { return len(j.Args) + len(j.Meta) + len(j.Extra) }

// SizeColumn is the column of a job whose client sent and whose worker returned so many bytes.
func SizeColumn(bytes int32) pgtype.Int4 {
	if bytes < smallSize {
		return pgtype.Int4{}
	}
	return pgtype.Int4{Int32: bytes, Valid: true}
}

// StoredSize is the column size of a new job; 0: none. ojs.stored_size is the same in SQL.
func (j *Job) StoredSize() int32 {
	if size := j.ClientBytes(); size >= smallSize {
		return int32(size) //nolint:gosec // a request is smaller
	}
	return 0
}

// SizeOfEach is the largest Size of a job that is read whole, if a statement reads n. A statement leaves out the texts of
// larger ones (see Cut), so that n jobs have MaxBytes together at most.
func SizeOfEach(n int) int32 {
	if n <= 1 {
		return math.MaxInt32
	}
	return int32(MaxBytes / n)
}

// Cut reports whether the statement has left out what the client sent, because the job is large and not the only one.
func (r *Record) Cut() bool { return r.Args == nil }

// ProgressUnsent reports whether the latest report of progress had no event of its own, so that the end of the run wrote it. See
// the statement JobProgress. The microseconds of the time say it: a report with an event has whole milliseconds.
func (r *Record) ProgressUnsent() bool {
	return r.ProgressAt.Valid && !r.ProgressAt.Time.Equal(r.ProgressAt.Time.Truncate(time.Millisecond))
}

// CutPage returns the jobs of a page, up to limit and MaxBytes but at least one, and whether there are more. The statement
// has read one job beyond either limit. At least one is returned whatever its size, or a list could never get past it.
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
