package deadletter

import (
	"context"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/pg"
)

// Stats are the figures of all dead letters, or of those of some queues.
// A map has no key without dead letters. Error types are decoded from JSON.
type Stats struct {
	Total                        int64
	ByQueue, ByType, ByErrorType map[string]int64
	Oldest, Newest               time.Time // zero if there are no dead letters
	Now                          time.Time // by the clock of the database
}

// Stats reads the figures in one statement. Without queues, or a tenant, it reads those of all.
// It groups all dead letters that match, so it costs as much as there are, and takes a place among the slow reads. Now is read
// before them, and may be a little older.
func (s *Store) Stats(ctx context.Context, tenant string, queues []string) (Stats, error) {
	stats := Stats{ByQueue: map[string]int64{}, ByType: map[string]int64{}, ByErrorType: map[string]int64{}}
	now, err := s.db.Now(ctx)
	if err != nil {
		return stats, pg.ClientError(err)
	}
	stats.Now = now
	ctx, done, err := s.db.Reading(ctx)
	if err != nil {
		return stats, pg.ClientError(err)
	}
	defer done()
	// An error leaves the sums of the rows that have come; the caller must look at the error first.
	groups, err := s.db.Q.DeadLetterStats(ctx, pg.Strings(queues), tenant)
	for _, g := range groups {
		stats.Total += g.Count
		stats.ByQueue[g.Queue] += g.Count
		stats.ByType[g.Type] += g.Count
		stats.ByErrorType[unquoted(g.ErrorType)] += g.Count
		if stats.Oldest.IsZero() || g.Oldest.Time.Before(stats.Oldest) {
			stats.Oldest = g.Oldest.Time
		}
		if g.Newest.Time.After(stats.Newest) {
			stats.Newest = g.Newest.Time
		}
	}
	return stats, pg.ClientError(err)
}

// It is the reverse of literals.
func unquoted(literal string) string {
	text, _ := jsontext.AppendUnquote(nil, `"`+literal+`"`) // SQL has cut the literal out of valid JSON
	return string(text)
}
