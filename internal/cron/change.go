package cron

import (
	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
)

func cronChangeOf(row *Record, reason string) eventlog.Change {
	c := eventlog.Change{Type: "cron.triggered", Subject: row.Name, JobType: row.Type, Queue: row.Queue, Reason: reason}
	if reason != "" {
		c.Type = "cron.skipped"
	}
	return c
}

func gapChanges(rows []dbsqlc.CronRunInsertGapRow) []eventlog.Change {
	changes := make([]eventlog.Change, len(rows))
	for i, r := range rows {
		changes[i] = eventlog.Change{Type: "cron.skipped", Subject: r.Name, JobType: r.JobType, Queue: r.Queue, Reason: skippedGap}
	}
	return changes
}

func sameChange(changes []eventlog.Change, c *eventlog.Change) []eventlog.Change {
	return append(changes, *c)
}
