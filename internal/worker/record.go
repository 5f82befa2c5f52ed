package worker

import "github.com/jackc/pgx/v5/pgtype"

// Record is a worker as it is stored. Its fields are the columns of ojs.workers, in their order.
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

// Totals counts workers by state.
type Totals struct {
	Total     int64
	Running   int64
	Quiet     int64
	Terminate int64
	Stale     int64
}

// ReservedJob is a job that is reserved for a worker.
type ReservedJob struct {
	ID         [16]byte
	Type       string
	Queue      string
	Attempt    int32
	StartedAt  pgtype.Timestamptz
	LeaseUntil pgtype.Timestamptz
}
