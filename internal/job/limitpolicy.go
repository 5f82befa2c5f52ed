package job

import "time"

// LimitPolicy is a normalised rate-limit policy, without its key.
type LimitPolicy struct {
	Concurrency    *int64  // most active jobs; nil: no limit, 0: none may start
	Rate, Throttle *Window // nil: none
	OnLimit        string  // what becomes of a job that is blocked: wait, reschedule or drop; "": wait
	Scope          string  // tenant or global; "": tenant
}

// Window is a number of starts in a time.
type Window struct {
	Limit      int64
	Period     time.Duration
	PeriodText string // as it was sent
}
