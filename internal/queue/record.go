package queue

import "github.com/jackc/pgx/v5/pgtype"

// Result is what became of a job.
type Result struct {
	ID         [16]byte
	State      string
	FinishedAt pgtype.Timestamptz
	Error      []byte
	Result     []byte
	Failed     bool
	Pruned     bool
}
