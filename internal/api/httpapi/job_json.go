package httpapi

import (
	"bytes"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// shape chooses between the few forms of a job.
// The zero value is the job as GET shows it.
type shape struct {
	fetched   bool   // lease_token, and never timeout, which a worker reads as milliseconds
	previous  string // previous_state, in answers to CANCEL and ACTIVATE
	activated bool   // activated_at
	existing  bool   // deduplicated: the job was there before the request
	noWrapper bool   // leave out an unknown attribute named job, which would clash with the wrapper
}

// appendJob appends the full envelope (docs/reference/jobs.md, Attributes). It is made by hand because args, meta and what
// the client sent besides are stored as the text that is shown.
// Every value that it appends raw was checked when it was stored, or is made by the server. What a client names freely
// (worker, message) is quoted.
func appendJob(b []byte, j *job.Record, as shape) []byte {
	b = append(b, '{')
	b = appendJobFields(b, j, as)
	return append(b, '}')
}

// appendJobFields appends the members without braces, for answers that have them beside others. type and queue are appended
// unquoted because their syntax needs no escapes. The order of members is part of the promise that two reads are byte for
// byte equal (docs/reference/http.md, Read); do not range over a map here.
func appendJobFields(b []byte, j *job.Record, as shape) []byte {
	b = append(b, `"specversion":"1.0","id":"`...)
	b = spec.AppendID(b, j.ID)
	b = append(b, `","type":"`...)
	b = append(b, j.Type...)
	b = append(b, `","queue":"`...)
	b = append(b, j.Queue...)
	b = append(b, '"')
	// The statement of a list leaves args, meta and extra out of large jobs.
	if !j.Cut() {
		b = append(b, `,"args":`...)
		b = append(b, j.Args...)
		b = append(b, `,"meta":`...)
		if j.Meta == nil {
			b = append(b, '{', '}')
		} else {
			b = append(b, j.Meta...)
		}
	}
	b = append(b, `,"priority":`...)
	b = strconv.AppendInt(b, int64(j.Priority), 10)
	b = append(b, `,"state":"`...)
	b = append(b, j.State...)
	b = append(b, `","attempt":`...)
	b = strconv.AppendInt(b, int64(j.Attempt), 10)
	b = append(b, `,"max_attempts":`...)
	b = strconv.AppendInt(b, j.MaxAttempts, 10)
	if as.fetched {
		b = append(b, `,"lease_token":"`...)
		b = j.AppendLeaseToken(b)
		b = append(b, '"')
	}
	// What the client sent besides: a valid object or nil. A job that was fetched shows no timeout, because a worker of the JS SDK reads
	// that number as milliseconds and it is in seconds.
	extra := j.Extra
	if as.fetched {
		extra = job.WithoutTimeout(extra)
	}
	switch {
	case len(extra) <= len(`{}`):
	case !as.noWrapper:
		b = append(b, ',')
		b = append(b, extra[1:len(extra)-1]...)
	default:
		for literal, value := range jsonread.Members(extra) {
			if string(jsonread.Name(literal)) != "job" {
				b = append(b, ',')
				b = append(b, literal...)
				b = append(b, ':')
				b = append(b, value...)
			}
		}
	}
	// The times that belong to the state. FinishedAt is one column: its name in the answer follows from the state.
	b = appendTime(b, "created_at", j.CreatedAt)
	b = appendTime(b, "enqueued_at", j.EnqueuedAt)
	b = appendTime(b, "started_at", j.StartedAt)
	state := ojs.JobState(j.State)
	if state == ojs.StateCompleted || state == ojs.StateDiscarded && j.Failed {
		b = appendTime(b, "completed_at", j.FinishedAt)
	}
	switch state {
	case ojs.StateCancelled:
		b = appendTime(b, "cancelled_at", j.FinishedAt)
	case ojs.StateDiscarded:
		b = appendTime(b, "discarded_at", j.FinishedAt)
	case ojs.StateRetryable:
		b = appendTime(b, "next_attempt_at", j.NextAttemptAt)
	}
	// There is no column for it: the activation is what made the job available.
	if as.activated {
		b = appendTime(b, "activated_at", j.EnqueuedAt)
	}
	return appendJobOutcome(b, j, as)
}

// appendJobOutcome appends what became of the attempts, and what workers have reported and left.
func appendJobOutcome(b []byte, j *job.Record, as shape) []byte {
	state := ojs.JobState(j.State)
	if j.RetryDelayMs.Valid {
		b = append(b, `,"retry_delay_ms":`...)
		b = strconv.AppendInt(b, j.RetryDelayMs.Int64, 10)
	}
	if j.Error != nil {
		b = append(b, `,"error":`...)
		b = append(b, j.Error...)
	}
	if len(j.Errors) > 0 {
		b = append(b, `,"errors":[`...)
		b = append(b, bytes.Join(j.Errors, []byte{','})...)
		b = append(b, ']')
	}
	// The dead-letter mark and manual retries (docs/reference/retries.md, Dead letters). dead_lettered_at is absent for a discarded job
	// that is no dead letter. total_attempts repeats attempt under the name of the dead-letter API.
	if len(j.PreviousErrors) > 0 {
		b = append(b, `,"previous_errors":[`...)
		b = append(b, bytes.Join(j.PreviousErrors, []byte{','})...)
		b = append(b, ']')
	}
	if j.ReplayCount > 0 {
		b = append(b, `,"replay_count":`...)
		b = strconv.AppendInt(b, int64(j.ReplayCount), 10)
	}
	b = appendTime(b, "re_enqueued_at", j.ReEnqueuedAt)
	b = appendTime(b, "dead_lettered_at", j.DeadLetteredAt)
	if state == ojs.StateDiscarded {
		b = append(b, `,"total_attempts":`...)
		b = strconv.AppendInt(b, int64(j.Attempt), 10)
	}
	if j.Result != nil {
		b = append(b, `,"result":`...)
		b = append(b, j.Result...)
	}
	if j.Progress.Valid {
		b = appendFloat(append(b, `,"progress":`...), j.Progress.Float64)
	}
	if j.ProgressData != nil {
		b = append(append(b, `,"progress_data":`...), j.ProgressData...)
	}
	if as.fetched { // only the worker that fetches the job is shown it
		if checkpoint, _, _ := job.CheckpointParts(j.Checkpoint); checkpoint != nil {
			b = append(append(b, `,"last_checkpoint":`...), checkpoint...)
		}
	}
	// These three come with a result that is kept.
	if j.Result != nil && state == ojs.StateCompleted {
		b = appendTime(b, "result_stored_at", j.FinishedAt)
		// -1 means as long as the job, so no time is shown. NULL means the default, whose end is not shown either.
		if ttl := j.ResultTtlS; ttl.Valid && ttl.Int64 >= 0 {
			// A client's number of seconds may be larger than a time.Duration, which ends at 292 years.
			const day = 86_400
			expires := j.FinishedAt.Time.AddDate(0, 0, int(ttl.Int64/day)).Add(time.Duration(ttl.Int64%day) * time.Second)
			b = appendMoment(b, "result_expires_at", &expires)
		}
		b = strconv.AppendInt(append(b, `,"result_size_bytes":`...), int64(len(j.Result)), 10)
	}
	// While the job is active only; the column keeps it to answer late acks.
	if j.WorkerID.Valid && state == ojs.StateActive {
		b = appendText(b, "worker_id", j.WorkerID.String)
	}
	if as.previous != "" {
		b = appendText(b, "previous_state", as.previous)
	}
	if as.existing {
		b = append(b, `,"deduplicated":true`...)
	}
	return b
}

// appendText appends a string member with a leading comma.
// name must need no escapes: it is a constant of the caller.
func appendText(b []byte, name, value string) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendQuoted(b, value)
}

// appendQuoted gets values of the database, which holds valid UTF-8, or of checked parameters; the replacement only guards against a
// mistake.
func appendQuoted(b []byte, value string) []byte {
	b, _ = jsontext.AppendQuote(b, value) // invalid UTF-8 becomes U+FFFD
	return b
}

// appendTime appends nothing for NULL.
func appendTime(b []byte, name string, t pgtype.Timestamptz) []byte {
	if !t.Valid {
		return b
	}
	return appendMoment(b, name, &t.Time)
}

// appendMoment appends a time; nothing for nil and for the zero time.
func appendMoment(b []byte, name string, at *time.Time) []byte {
	if at == nil || at.IsZero() {
		return b
	}
	b = append(append(append(b, ',', '"'), name...), '"', ':', '"')
	return append(appendClock(b, at.UTC()), '"')
}

// appendClock is AppendFormat with spec.TimeFormat in 30 ns instead of 140: a job shows three or four times.
// It agrees with spec.FormatTime, in ms, rounded down. t must be in UTC: nothing here looks at a zone.
func appendClock(b []byte, t time.Time) []byte {
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	// A client may choose such a year, for example in scheduled_at.
	if year < 1000 || year > 9999 {
		return t.AppendFormat(b, spec.TimeFormat)
	}
	b = append(appendTwo(appendTwo(b, year/100), year%100), '-')
	b = append(appendTwo(b, int(month)), '-')
	b = append(appendTwo(b, day), 'T')
	b = append(appendTwo(b, hour), ':')
	b = append(appendTwo(b, minute), ':')
	b = append(appendTwo(b, second), '.')
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(appendTwo(b, ms/10), byte('0'+ms%10), 'Z')
}

func appendTwo(b []byte, n int) []byte { return append(b, byte('0'+n/10), byte('0'+n%10)) }

// appendWrapped appends {"job":{…}} and, for clients that read flat fields, the same fields beside it.
// In a clash of names the wrapper wins: an unknown attribute of the client named job is left out of the flat members
// (docs/reference/http.md, Official clients).
func appendWrapped(b []byte, j *job.Record, as shape, flat bool) []byte {
	existing := as.existing
	as.existing = false
	b = append(b, `{"job":`...)
	b = appendJob(b, j, as)
	if flat {
		as.noWrapper = true
		b = append(b, ',')
		b = appendJobFields(b, j, as)
	}
	if existing { // beside the wrapper
		b = append(b, `,"deduplicated":true`...)
	}
	return append(b, '}')
}
