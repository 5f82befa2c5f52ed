package cron

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// The time of a gap is the instant that the old offset would give, so it is unique per cron.
func addGaps(p *dbsqlc.CronRunInsertGapParams, row *Record, gaps []time.Time) {
	for _, at := range gaps {
		p.Ids, p.ScheduledAt = append(p.Ids, row.ID), append(p.ScheduledAt, pg.Timestamp(at))
		p.EventData = append(p.EventData, append(cronEvent(row, skippedGap), '}'))
	}
}

// cronEvent begins the payload of a cron's event; reason is "" if the cron fired. The caller closes the object
// (docs/reference/events.md, Payloads).
func cronEvent(row *Record, reason string) []byte {
	b := []byte{'{'}
	for _, member := range [][2]string{{"cron_name", row.Name}, {"cron_expr", row.Expression}, {"job_type", row.Type}, {"queue", row.Queue}, {"reason", reason}} {
		if member[1] == "" {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), member[0]...), `":`...)
		b, _ = jsontext.AppendQuote(b, member[1]) // valid UTF-8: the decoder has checked it
	}
	return b
}

// eventData is the payload of the event of a tick: the job that it enqueued, or why there is none, and the job that
// prevented it. It is made before the job is inserted; a tick that turns out to be a duplicate is recorded anew.
func (t *tick) eventData() []byte {
	b := cronEvent(t.row, t.reason)
	if t.reason == "" {
		b = spec.AppendID(append(b, `,"job_id":"`...), t.job.ID)
		return append(append(append(b, `","scheduled_at":"`...), spec.FormatTime(t.scheduled)...), `"}`...)
	}
	if t.existing != nil {
		b = append(spec.AppendID(append(b, `,"existing_job_id":"`...), *t.existing), '"')
	}
	return append(b, '}')
}

// tickEvent is the type of the event of a tick; reason says why it enqueued no job. The statement writes one type for all
// ticks of a call, see record.
func tickEvent(reason string) string {
	if reason != "" {
		return ojs.EventCronSkipped
	}
	return ojs.EventCronTriggered
}

// The bus does not need the job: it has an event of its own.
func tickChange(row *Record, reason string) eventlog.Change {
	return eventlog.Change{Type: tickEvent(reason), Subject: row.Name, JobType: row.Type, Queue: row.Queue, Reason: reason}
}

// They are made from the rows that were inserted, not from those that were asked for.
func gapChanges(rows []dbsqlc.CronRunInsertGapRow) []eventlog.Change {
	changes := make([]eventlog.Change, len(rows))
	for i, r := range rows {
		changes[i] = eventlog.Change{Type: ojs.EventCronSkipped, Subject: r.Name, JobType: r.JobType, Queue: r.Queue, Reason: skippedGap}
	}
	return changes
}

func sameChange(changes []eventlog.Change, c *eventlog.Change) []eventlog.Change {
	return append(changes, *c)
}
