package job

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// placement checks queue, priority and pending.
func (d *decoder) placement(j *Job) {
	// The usual name is compared as bytes first, because most jobs are in it.
	if g := d.pick(queueAttr); g.value != nil && string(g.value) != `"default"` {
		text, isText := d.text(g)
		kind, expected := queueProblem(text, isText)
		if kind != "" {
			d.refuse(kind, g, expected)
		}
		j.Queue = text
	}
	if g := d.pick(priorityAttr); g.value != nil {
		p, ok := d.priority(g)
		if !ok {
			d.refuse(ojs.ErrInvalidPayload, g, "an integer from -100 to 100, or HIGH, NORMAL or LOW")
		}
		j.Priority = p
	}
	if g := d.pick(pendingAttr); g.value != nil {
		var ok bool
		if j.Pending, ok = d.boolean(g); !ok {
			d.refuse(ojs.ErrInvalidPayload, g, "a boolean")
		}
	}
}

func (d *decoder) priority(g given) (int16, bool) {
	if d.typedOf(g) != nil {
		n, kind := d.integer(g)
		return int16(n), kind == rawjson.IsInt && validPriority(n)
	}
	return priority(g.value)
}

// The column is a smallint; only this check keeps it in the range that clients are told (docs/reference/jobs.md, Priority).
func validPriority(n int64) bool { return n >= -100 && n <= 100 }

// The three words are compared in any letter case. A number that does not fit into an int16 is out of range, so its conversion
// is never used.
func priority(v jsontext.Value) (int16, bool) {
	if text, ok := rawjson.Text(v); ok {
		switch strings.ToUpper(text) {
		case "HIGH":
			return 10, true
		case "NORMAL":
			return 0, true
		case "LOW":
			return -10, true
		default:
			return 0, false
		}
	}
	n, kind := rawjson.Int(v)
	return int16(n), kind == rawjson.IsInt && validPriority(n)
}

// times checks schedule and expiry. A pending job waits for activate and not for a time. A time that is past means now.
func (d *decoder) times(j *Job) {
	schedule := d.pick(scheduledAtAttr, delayUntilAttr)
	j.ScheduledAt = d.when(schedule)
	j.ExpiresAt = d.when(d.pick(expiresAtAttr))
	if j.Pending && j.ScheduledAt.future() {
		d.refuse(ojs.ErrInvalidPayload, schedule, "absent or past when 'pending' is true")
	}
}

// Whether the time is past is not asked: a job that is due at once is available at once.
func (d *decoder) when(g given) When {
	if g.value == nil {
		return When{}
	}
	w, ok := d.time(g)
	if !ok {
		d.refuse(ojs.ErrInvalidPayload, g, "an RFC 3339 time with offset such as 2026-05-04T03:02:01Z, or a duration such as +PT5M")
	}
	return w
}

// durations checks everything that lasts. 0 means the server's default for all but result_ttl (docs/reference/retries.md,
// Timeouts).
func (d *decoder) durations(j *Job) {
	timeout := d.pick(timeoutMSAttr, timeoutAttr)
	j.TimeoutMS = d.lasting(timeout, unitOf(timeout.attr == timeoutAttr))
	j.VisibilityMS = d.visibility()
	j.GraceMS = d.lasting(d.pick(graceAttr), 1000)
	j.EnqueueTTLMS = d.lasting(d.pick(enqueueTTLAttr), 1000)
	j.HeartbeatTimeoutMS = d.lasting(d.pick(heartbeatTimeoutAttr), 1000)
	total := d.pick(totalTimeoutAttr)
	j.TotalTimeoutMS = d.lasting(total, 1000)
	// Otherwise the job could never run for as long as its own timeout permits. Only what the job itself says is compared: the
	// server's default timeout may be longer than its total.
	if j.TotalTimeoutMS > 0 && j.TotalTimeoutMS < j.TimeoutMS {
		d.refuse(ojs.ErrInvalidPayload, total, "at least the execution timeout ("+strconv.FormatInt(j.TimeoutMS, 10)+" ms)")
	}
	if g := d.pick(resultTTLAttr); g.value != nil {
		n, kind := d.integer(g)
		if kind != rawjson.IsInt || n < -1 || n > maxMS/1000 {
			d.refuse(ojs.ErrInvalidPayload, g, "an integer of seconds >= 0, or -1 to keep the result with the job")
		}
		j.ResultTTL = &n
	}
}

func unitOf(seconds bool) int64 {
	if seconds {
		return 1000
	}
	return 1
}

// lasting reads an integer of unit ms each; 0 if absent. The range is checked before the multiplication, which therefore cannot
// overflow.
func (d *decoder) lasting(g given, unit int64) int64 {
	if g.value == nil {
		return 0
	}
	n, kind := d.integer(g)
	if kind == rawjson.IsInt && n >= 0 && n <= maxMS/unit {
		return n * unit
	}
	d.refuse(ojs.ErrInvalidPayload, g, "an integer >= 0 of "+unitName(unit)+", at most 36500 days")
	return 0
}

func unitName(unit int64) string {
	if unit == 1000 {
		return "seconds"
	}
	return "milliseconds"
}

// visibility: visibility_timeout_ms is an integer of ms; visibility_timeout one of seconds, or a duration.
// Its range is narrower than that of other durations (docs/reference/retries.md, Reservations).
func (d *decoder) visibility() int64 {
	g := d.pick(visibilityMSAttr, visibilityAttr)
	if g.value == nil {
		return 0
	}
	// Only this name takes a duration; a text under the other falls through to the refusal.
	if text, ok := d.text(g); ok && g.attr == visibilityAttr {
		if length, err := duration.Parse(text); err == nil && length.Milliseconds() <= payload.MaxVisibilityMS {
			return length.Milliseconds()
		}
	}
	n, kind := d.integer(g)
	if unit := unitOf(g.attr == visibilityAttr); kind == rawjson.IsInt && n >= 0 && n <= payload.MaxVisibilityMS/unit {
		return n * unit
	}
	d.refuse(ojs.ErrInvalidPayload, g, "an integer >= 0 of milliseconds (visibility_timeout: seconds or a duration such as PT30S), at most 7 days")
	return 0
}
