package worker

import "github.com/jackc/pgx/v5/pgtype"

// Record is a worker as it is stored. Its fields are the columns of ojs.workers, in their order. Directive, StaleAt, DeadAt
// and ReapAt are NULL for "none". LastBeatAt is that of the latest heartbeat, LastSeenAt that of the latest call of any
// kind, written with a delay (beats.go). StaleAt is set while the worker counts as dead; DeadAt is the latest death and
// guards what is done about it; ReapAt is when another node may finish that, NULL when it is finished. Stopped says that
// the worker reported terminate without jobs, so its end needs no event. FetchQueues and FetchCount are what it fetched
// with, shown if it reports no queues and no concurrency. ActiveJobIds, Queues, FetchQueues and Facts are JSON. The order
// of the fields matters: rows are converted to it without a copy of each field, and the compiler refuses the conversion if
// they differ.
type Record struct {
	ID           string
	State        string
	Directive    pgtype.Text
	StartedAt    pgtype.Timestamptz
	LastBeatAt   pgtype.Timestamptz
	LastSeenAt   pgtype.Timestamptz
	StaleAt      pgtype.Timestamptz
	DeadAt       pgtype.Timestamptz
	ReapAt       pgtype.Timestamptz
	Stopped      bool
	ActiveJobs   int32
	ActiveJobIds []byte
	Queues       []byte
	Concurrency  pgtype.Int4
	FetchQueues  []byte
	FetchCount   pgtype.Int4
	Hostname     pgtype.Text
	Pid          pgtype.Int8
	Facts        []byte
	Tenant       string // named by its calls; "": none
}

// Totals counts workers by state. A stale worker is in Stale only.
type Totals struct {
	Total     int64
	Running   int64
	Quiet     int64
	Terminate int64
	Stale     int64
}

// ReservedJob is a job that is reserved for a worker. LeaseUntil is by the clock of the database.
type ReservedJob struct {
	ID         [16]byte
	Type       string
	Queue      string
	Attempt    int32
	StartedAt  pgtype.Timestamptz
	LeaseUntil pgtype.Timestamptz
}
