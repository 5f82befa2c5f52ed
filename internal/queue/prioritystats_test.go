package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbsqlc"
)

func TestPriorityCounter(t *testing.T) {
	t.Parallel()
	level := func(priority int16, counted, first, last, end int64) dbsqlc.JobPriorityListRow {
		return dbsqlc.JobPriorityListRow{Priority: priority, Counted: counted, FirstSeq: first, CountedSeq: last, LastSeq: end}
	}
	for name, c := range map[string]struct {
		levels  []dbsqlc.JobPriorityListRow
		waiting []dbsqlc.JobPriorityListWaitingRow
		total   int64
		want    PriorityStats
	}{
		"LanesAreAddedUp": {
			levels: []dbsqlc.JobPriorityListRow{level(5, 2, 1, 2, 2), level(0, 1, 3, 3, 3), level(5, 4, 10, 13, 13)}, total: 7,
			want: PriorityStats{Counts: []PriorityCount{{5, 6}, {0, 1}}, Total: 7},
		},
		"WhatWasNotCountedIsEstimated": {
			levels: []dbsqlc.JobPriorityListRow{level(5, 100, 1, 100, 300), level(0, 100, 1, 200, 400), level(-5, 7, 1, 9, 9)}, total: 507,
			want: PriorityStats{Counts: []PriorityCount{{5, 300}, {0, 200}, {-5, 7}}, Total: 507, Estimated: true},
		},
		"JobsBehindALimit": {
			levels: []dbsqlc.JobPriorityListRow{level(5, 2, 1, 2, 2)}, total: 5,
			waiting: []dbsqlc.JobPriorityListWaitingRow{{Priority: 1, Counted: 3}},
			want:    PriorityStats{Counts: []PriorityCount{{5, 2}, {1, 3}}, Total: 5},
		},
		"JobsThatWereNotFound": {
			levels: []dbsqlc.JobPriorityListRow{level(5, 2, 1, 2, 2), level(1, 1, 3, 3, 3)}, total: 10,
			want: PriorityStats{Counts: []PriorityCount{{5, 7}, {1, 3}}, Total: 10, Estimated: true},
		},
		"NothingWasFound": {total: 3, want: PriorityStats{Counts: []PriorityCount{}, Total: 3, Estimated: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p priorityCounter
			p.addLevels(c.levels)
			p.rest = c.total - p.counted
			p.addWaiting(c.waiting)
			require.Equal(t, c.want, p.stats())
		})
	}
}
