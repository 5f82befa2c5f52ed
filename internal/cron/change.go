package cron

import (
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/ojs"
)

// tickEvent is the event of a tick; reason is why it made no job.
func tickEvent(reason string) string {
	if reason != "" {
		return ojs.EventCronSkipped
	}
	return ojs.EventCronTriggered
}

func tickChange(row *Record, reason string) eventlog.Change {
	return eventlog.Change{Type: tickEvent(reason), Subject: row.Name, JobType: row.Type, Queue: row.Queue, Reason: reason}
}

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
