package domaintest

import (
	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/job"
)

// InsertDeadLetters inserts n dead letters with their event rows. They are a second apart, and the newest is a minute old.
func (b *Bundle) InsertDeadLetters(n int) {
	b.T.Helper()
	b.Exec(`WITH made AS (
			INSERT INTO ojs.jobs (id, type, queue, state, attempt, created_at, finished_at, dead_lettered_at, failed, args, retry, error, errors)
			SELECT gen_random_uuid(), 'a.b' || g % 7, 'q' || g % 3, 'discarded', 1, now(), t, t, true, '[]', '{"max_attempts":1,"on_exhaustion":"dead_letter"}', e.e, ARRAY[e.e]
			FROM generate_series(1, $1::int) g, LATERAL (SELECT now() - interval '1 minute' - ($1 - g) * interval '1 second' AS t) t,
				LATERAL (SELECT ('{"attempt":1,"code":"c' || g % 5 || '","type":"t","message":"\u0000","retryable":true}')::json AS e) e
			RETURNING *)
		INSERT INTO ojs.events (type, source, time, job_id, job_type, queue, to_state) SELECT 'job.discarded', 'api', now(), id, type, queue, state FROM made`, n)
	b.Exec(`VACUUM ANALYZE ojs.jobs`)
}

// RequireCounts compares the counts by queue and state, summed up from the events, with the tables.
func (b *Bundle) RequireCounts() {
	b.T.Helper()
	require.Zero(b.T, b.Number(`SELECT count(*) FROM (
		SELECT c.queue, c.state, sum(c.n) AS n FROM (
			SELECT v.queue, v.state, v.n FROM (SELECT e.queue, e.to_state AS state, 1 AS n FROM ojs.events e UNION ALL SELECT e.queue, e.from_state, -1 FROM ojs.events e) v
			WHERE v.state IS NOT NULL
			UNION ALL SELECT j.queue, j.state, -1 FROM ojs.jobs j
			UNION ALL SELECT d.queue, d.state, -1 FROM ojs.jobs_done d
		) c GROUP BY 1, 2 HAVING sum(c.n) <> 0) wrong`))
}

// DeadLetter returns a dead letter, made by a failing job.
func (b *Bundle) DeadLetter(change ...func(j *job.Job)) *job.Record {
	b.T.Helper()
	in := NewJob("q")
	in.MaxAttempts, in.Retry = 1, []byte(`{"max_attempts":1,"on_exhaustion":"dead_letter"}`)
	for _, c := range change {
		c(in)
	}
	stored := b.Enqueued(in)[0]
	require.Len(b.T, b.Fetched(1, in.Queue), 1)
	stored, err := b.Fail(b.T.Context(), job.Nack{JobID: stored.ID, Attempt: -1, Error: DecodeError(b.T, `{"message":"m"}`)})
	require.NoError(b.T, err)
	require.True(b.T, stored.DeadLetteredAt.Valid)
	require.Equal(b.T, stored.FinishedAt, stored.DeadLetteredAt)
	return stored
}
