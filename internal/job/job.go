// Package job owns what a job is: its states and attributes, the requests about jobs that the stores take, their limits and
// defaults, and every rule by which they are accepted or refused, with the message that says why; the retry policy, and what
// becomes of a job when an attempt fails. A new job is read in two stages: each attribute is put in its place, then one set of
// rules makes a Job of it. Errors that workers report are normalised here.
//
// It must never read a database, and never change what a client's JSON says: number literals, string escapes and key order reach
// the store as they came; only white space goes. Package clock, which knows the time of the database, is asked for the time in
// new ids, and to refuse a pending job with a schedule in the future; no other time comes from here.
//
// Errors are collected, not returned at the first one: an answer lists up to 50 problems of a body. Only what makes the rest
// unreadable (size, broken JSON, a batch that is no array) ends a decoder at once.
package job

import (
	"cmp"
	"crypto/rand"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/oklog/ulid/v2"

	"github.com/ojsd/ojsd/internal/clock"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// Job is a validated new job, ready for the store. It owns its bytes: the request body may be reused. Decoders fill what the
// client says. The domains set the fields from Producer on, Lane, WorkflowID and ID before the insert, and the store sets
// Outcome. One goroutine at a time owns a Job: it goes from the decoder to the flush and back to the caller.
type Job struct {
	ID       [16]byte // zero unless ClientID
	ClientID bool     // the id was chosen by the client; otherwise the store makes one

	Type     string
	Queue    string
	Priority int16
	// MaxAttempts may be 0, which means one attempt like 1.
	MaxAttempts  int64
	Retry        []byte // merged policy as RetryPolicy.Encode gives it; nil: the default policy (MaxAttempts may still differ)
	OnExhaustion string // Policy.OnExhaustion of Retry, in a column of its own for statements that discard jobs

	// Compact JSON; literals and key order are the client's.
	Args  []byte
	Meta  []byte // nil: {}
	Extra []byte // one object with every other attribute that is echoed, under canonical names; nil: none. See WithoutTimeout

	Schema        string // the URI of a schema, as sent; "": not sent
	SchemaVersion string // the text of the attribute version, if it is a string or an integer

	Pending     bool
	ScheduledAt When
	ExpiresAt   When

	// Lengths in milliseconds are at most 36 500 days, visibility at most 7 days (docs/reference/http.md, Bodies).
	TimeoutMS          int64 // 0: the server's default
	VisibilityMS       int64 // 0: the server's default
	GraceMS            int64
	TotalTimeoutMS     int64  // 0: none
	EnqueueTTLMS       int64  // 0: none
	HeartbeatTimeoutMS int64  // 0: none
	ResultTTL          *int64 // seconds; nil: the server's default, 0: do not keep, -1: keep with the row

	// UniqueKey, Lane and LimitKey are computed from what was sent.
	Unique     *Unique      // nil: no policy
	UniqueKey  string       // fingerprint by Unique; "": no policy
	WorkflowID [16]byte     // root of the workflow to which the job belongs; zero: none
	Lane       string       // the part of its queue in which it waits; "": none
	LimitKey   string       // key of its rate limit; "": none
	OnLimit    string       // what that limit does when it blocks the job: reschedule or drop; "": it waits
	Limit      *LimitPolicy // the policy for LimitKey or, without one, for the whole queue; nil: none was sent

	// A queue may admit the jobs of some producers only (queue/insert.go).
	Producer  string        // the principal that enqueues the job; "": nobody has authenticated
	Admitted  bool          // its queue took it when the workflow was created whose step it is; rules for new jobs are not applied again
	BlockFor  time.Duration // how long the enqueue waits for room in a queue whose policy is to block
	Unbounded bool          // the bounds of its queue do not hold for the job: it belongs to work that was accepted before

	TraceID string // "" if the job carries no trace context
	Source  string // of its first event; "": api. The same for all jobs of one insert

	// Outcome is set by the store when it has tried to insert the job.
	Outcome Outcome
}

// AvailableAtOnce reports whether the job begins as available, as far as a node can tell: a scheduled time that is over has the same
// effect, but only the clock of the database decides that.
func (j *Job) AvailableAtOnce() bool { return !j.Pending && !j.ScheduledAt.Set }

// Outcome is what its unique policy and its queue have made of a job. It is valid once the insert has returned without an error
// for this job.
type Outcome struct {
	Deduplicated bool      // an equivalent job exists, with which the store has answered; this one is not stored
	Replaced     []*Record // the jobs that were cancelled for this one, as they are now
	Pressure     *Pressure // how full its queue is with it; nil: the queue has no bound, or is not as full as its threshold

	// The caller looks after both when the insert has committed: workflows go on without the jobs, and room in the limits
	// admits others.
	// Of the jobs that were discarded to make room for this one and others: the roots of their workflows, and their limit keys.
	Dropped       [][16]byte
	DroppedLimits []string
}

// Pressure is how full a bounded queue is.
type Pressure struct {
	Depth    int64   // waiting jobs
	MaxDepth int64   // 0: not bounded by their number
	Share    float64 // of the bound, at most 1
}

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
	OnExhaustion    pgtype.Text        // what Retry makes of a job that will not run again: discard or dead_letter; NULL: it does not say
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
	ProgressAt      pgtype.Timestamptz // latest report
	ProgressSentAt  pgtype.Timestamptz // latest report with an event; see ProgressUnsent
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

// MaxWholeSize is the largest Size of a job that is read whole, if a statement reads n. A statement leaves out the texts of
// larger ones (see Cut), so that n jobs have MaxBytes together at most.
func MaxWholeSize(n int) int32 {
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
	return r.ProgressSentAt.Valid && r.ProgressAt.Time.After(r.ProgressSentAt.Time)
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

var (
	// WaitingStates are those of jobs that wait in their queue. They take up room in it; active jobs do not
	// (docs/reference/backpressure.md), so a fetch makes room. A bulk cancel takes these. SQL has the list in several statements.
	WaitingStates = []ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateRetryable}

	// LiveStates are those of jobs that have not ended. A single cancel takes these.
	LiveStates = []ojs.JobState{ojs.StateScheduled, ojs.StatePending, ojs.StateAvailable, ojs.StateActive, ojs.StateRetryable}
)

// CountWaiting is how many of the jobs, counted by state, wait in their queue.
func CountWaiting(counts map[ojs.JobState]int64) (n int64) {
	for _, state := range WaitingStates {
		n += counts[state]
	}
	return n
}

// Limits bounds what is accepted (docs/reference/jobs.md, Limits).
// One value serves a whole request. It is passed by value, so a decoder cannot change it for others.
type Limits struct {
	MaxJobBytes int // one job object as received, and the result of an ack, compact; 0: not bounded

	// QueueRetry gives the policy that jobs of a queue inherit, with its max_attempts; nil, or false: the default one.
	QueueRetry func(queue string) (RetryPolicy, bool)

	// NoTenants makes meta.tenant_id a member like any other.
	NoTenants bool

	// Tenant is that of the caller, to which everything belongs that it sends; "": what it sends says to which tenant it belongs.
	Tenant string

	// TenantRequired refuses what a caller without a tenant sends.
	TenantRequired bool
}

const (
	// MaxMetaBytes bounds meta after merging, compact.
	MaxMetaBytes = 65_536

	// MaxNesting bounds the levels of nesting that one attribute may have, itself included.
	MaxNesting = 32

	maxTypeBytes  = 255
	maxQueueBytes = 128
	maxKeyChars   = 256 // of an idempotency key

	maxMS = 36500 * 86_400 * 1000 // 36 500 days (docs/reference/http.md, Bodies)
)

// checkSize refuses a job or a result that is too large.
func (l Limits) checkSize(of string, bytes int) *ojs.Error {
	if l.MaxJobBytes > 0 && bytes > l.MaxJobBytes {
		return spec.TooLarge(of, l.MaxJobBytes, bytes)
	}
	return nil
}

// flatten is the hint for what is nested too deeply.
const flatten = "Flatten the value, or send its inner part as a string of JSON."

// shallow says how deep a value may be nested.
var shallow = "nested at most " + strconv.Itoa(MaxNesting) + " levels"

// ids makes UUIDv7 that increase within this process: monotonic ULID entropy with the version and variant bits set. Their time
// is that of the database, because lists are sorted by ids that several nodes have made. mu guards both other fields: entropy
// is not safe for concurrent use, and latest must never decrease.
type ids struct {
	mu      sync.Mutex
	entropy *ulid.MonotonicEntropy
	latest  uint64 // ms
}

var processIDs = ids{entropy: ulid.Monotonic(rand.Reader, 0)}

// NewID returns a new UUIDv7. Ids of one process ascend, also within a millisecond and when the clock goes back. Those of two
// nodes are in the order of their clocks, which are that of the database as each node knows it.
func NewID() [16]byte {
	processIDs.mu.Lock()
	defer processIDs.mu.Unlock()
	for {
		// The database may have been replaced by one whose clock is behind.
		processIDs.latest = max(processIDs.latest, ulid.Timestamp(clock.Now()))
		id, err := ulid.New(processIDs.latest, processIDs.entropy)
		if err != nil { // the millisecond's entropy is used up: the next one has new
			processIDs.latest++
			continue
		}
		// Version 7 and the variant take six bits of the entropy; 74 are left.
		id[6] = id[6]&0x0f | 0x70
		id[8] = id[8]&0x3f | 0x80
		return id
	}
}

// WorkflowStep is the id of the workflow step, or the name of the callback, that a job is, found in its Extra; "" if it is neither.
func WorkflowStep(extra []byte) string {
	if WorkflowOf(extra) == "" {
		return ""
	}
	return cmp.Or(memberText(extra, "workflow_step_id"), memberText(extra, "workflow_callback"))
}

// WorkflowOf is the id of the workflow to which a job belongs, found in its Extra; "" if it belongs to none.
func WorkflowOf(extra []byte) string { return memberText(extra, "workflow_id") }

// ErrorTexts are code and message of an error object. Package tracing uses it for the span of a workflow that has failed.
func ErrorTexts(object []byte) (code, message string) {
	for literal, value := range jsonread.Members(object) {
		switch string(jsonread.Name(literal)) {
		case "code":
			code, _ = jsonread.Text(value)
		case "message":
			message, _ = jsonread.Text(value)
		}
	}
	return code, message
}
