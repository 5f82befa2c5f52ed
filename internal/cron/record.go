package cron

import "github.com/jackc/pgx/v5/pgtype"

// Record is a cron as it is stored. Its fields are the columns of ojs.crons, in their order. LastRunAt is the scheduled
// time of the latest job, or the time of the latest manual run. RunCount counts jobs, manual ones included. Args, Meta and
// Options are as sent, compact; Meta and Options are nil if empty. All times are of the database.
type Record struct {
	Name          string
	ID            [16]byte // a name that is deleted and registered again gets another
	Expression    string   // as sent
	Timezone      string
	Type          string
	Queue         string
	Args          []byte
	Meta          []byte
	Options       []byte
	TraceID       pgtype.Text
	OverlapPolicy string
	Enabled       bool
	Description   pgtype.Text
	LastRunAt     pgtype.Timestamptz
	NextRunAt     pgtype.Timestamptz // NULL: paused, or the schedule has no run any more
	RunCount      int64
	CreatedAt     pgtype.Timestamptz
	UpdatedAt     pgtype.Timestamptz
	Tenant        string // to which its jobs belong; "": none
}

// Cut reports whether a list has left out what the client sent. A cron always has args, so nil can only mean that.
func (r *Record) Cut() bool { return r.Args == nil }

// Run is the outcome of one tick, or of a manual run. State and the two times are those of the job now, so an old run
// changes when its job does.
type Run struct {
	ScheduledAt pgtype.Timestamptz // of a manual run: when it was triggered
	Outcome     string             // fired, skipped or manual
	Reason      pgtype.Text        // of skipped
	JobID       pgtype.UUID
	State       string             // of the job, now; "": retention has removed it, or there is none
	StartedAt   pgtype.Timestamptz // of the job
	FinishedAt  pgtype.Timestamptz
}
