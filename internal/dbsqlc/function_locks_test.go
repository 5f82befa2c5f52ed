package dbsqlc_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/dbtest"
)

// returns calls a function that returns what it took.
func returns(sql string) func(c *call) ([]string, error) {
	return func(c *call) ([]string, error) { return c.texts(sql) }
}

// changes calls a function, and reads what it changed.
func changes(sql, changed string) func(c *call) ([]string, error) {
	return func(c *call) ([]string, error) {
		if _, err := c.tx.Exec(c.ctx, sql); err != nil {
			return nil, err
		}
		return c.texts(changed)
	}
}

// waitsFor makes functions wait as long for locks: their own second is too short for a busy machine, and too long for a test that fails.
func waitsFor(timeout string) string {
	return `ALTER FUNCTION ojs.limit_admit(text[], integer) SET lock_timeout = '` + timeout + `';
		ALTER FUNCTION ojs.limit_handle_blocked(text[], text, integer) SET lock_timeout = '` + timeout + `';`
}

const (
	// parkedJobs wait for limit k, which has room.
	parkedJobs = jobs + `INSERT INTO ojs.limits (key, policy) VALUES ('k', '{}');
		UPDATE ojs.jobs SET limit_key = 'k', limit_seq = right(id::text, 1)::bigint, enqueued_at = created_at;`
	blockLimit = `UPDATE ojs.limits SET blocked_until = now() + interval '1 hour' WHERE key = `
	firstQueue = `SELECT FROM ojs.queues WHERE name = '1' FOR UPDATE`
	jobNumbers = `SELECT right(id::text, 1) FROM ojs.jobs WHERE `
)

// functions has the functions of the migrations that lock rows, or exclude one another; behind the slash is what they lock.
var functions = map[string]lockCase{
	"jobs_done_partitions_ensure/itself": {
		other: `SELECT ojs.jobs_done_partitions_ensure(9)`, waits: true, gets: []string{"9"},
		call: changes(`SELECT ojs.jobs_done_partitions_ensure(9)`, `SELECT (count(*) - 1)::text FROM pg_inherits WHERE inhparent = 'ojs.jobs_done'::regclass`),
	},
	"event_partitions_ensure/itself": {
		other: `SELECT ojs.event_partitions_ensure(9)`, waits: true, gets: []string{"9"},
		call: changes(`SELECT ojs.event_partitions_ensure(9)`, `SELECT (count(*) - 1)::text FROM ojs.event_partitions()`),
	},
	"limit_withdraw/jobs": {
		rows: parkedJobs + `UPDATE ojs.jobs SET ready_seq = limit_seq, limit_seq = NULL`, other: firstJob, gets: both,
		call: changes(`SELECT ojs.limit_withdraw('k', 1::smallint, 10)`, jobNumbers+`limit_seq IS NOT NULL ORDER BY id`),
	},
	"limit_admit/partitions": {
		rows: waitsFor("1min") + parkedJobs, other: blockLimit + `'k'`, waits: true, gets: []string{},
		call: changes(`SELECT ojs.limit_admit('{k}', 1)`, jobNumbers+`ready_seq IS NOT NULL`),
	},
	"limit_admit/jobs": {
		rows: waitsFor("50ms") + parkedJobs, other: firstJob, gets: both,
		call: changes(`SELECT ojs.limit_admit('{k}', 1)`, jobNumbers+`ready_seq IS NOT NULL ORDER BY id`),
	},
	"limit_queue_allowances/partitions": {
		rows: `SELECT ojs.limit_set('queue:q', '{"concurrency":5}')`, other: blockLimit + `'queue:q'`, waits: true, gets: []string{"0"},
		call: returns(`SELECT allowance::text FROM ojs.limit_queue_allowances('{q}', ARRAY['{"concurrency":5}'::json])`),
	},
	"limit_handle_blocked/partitions": {
		rows: waitsFor("1min") + parkedJobs, other: blockLimit + `'k'`, waits: true, gets: []string{"handled", "handled"},
		call: returns(`SELECT outcome FROM ojs.limit_handle_blocked('{q}', '', 1)`),
	},
	"limit_handle_blocked/jobs": {
		rows: waitsFor("50ms") + parkedJobs, other: firstJob, gets: both,
		call: returns(`SELECT right(id::text, 1) FROM ojs.limit_handle_blocked('{q}', '', 1)`),
	},
	"limit_handle_blocked/jobs of other queues": { // job 1 has been admitted, and makes way for job 2
		rows:  waitsFor("50ms") + parkedJobs + `SELECT ojs.limit_set('k', '{"concurrency":1}'); UPDATE ojs.jobs SET queue = 'other', ready_seq = limit_seq, limit_seq = NULL` + first,
		other: firstJob, gets: []string{"1"},
		call: changes(`SELECT ojs.limit_handle_blocked('{q}', '', 1)`, jobNumbers+`limit_seq IS NOT NULL AND queue = 'other'`),
	},
	"limit_queue_handle_blocked/jobs": {
		rows: jobs + `SELECT ojs.limit_set('queue:q', '{"concurrency":0}'); UPDATE ojs.jobs SET ready_seq = right(id::text, 1)::bigint`, other: firstJob, gets: both,
		call: returns(`SELECT right(id::text, 1) FROM ojs.limit_queue_handle_blocked('q', 'drop', '{""}', '{0}', '{0}', 10, 1)`),
	},
	"limit_prune/partitions": {
		rows:  `INSERT INTO ojs.limits (key, policy, used_at) VALUES ('1', '{}', '2026-01-01Z'), ('2', '{}', '2026-01-01Z')`,
		other: `SELECT FROM ojs.limits WHERE key = '1' FOR UPDATE`, gets: both,
		call: changes(`SELECT ojs.limit_prune(10)`, `SELECT n FROM unnest('{1,2}'::text[]) n WHERE NOT EXISTS (SELECT FROM ojs.limits l WHERE l.key = n) ORDER BY n`),
	},
	"queues_prune/queues": {
		rows: queues + `UPDATE ojs.queues SET used_at = '2026-01-01Z'`, other: firstQueue, gets: both,
		call: changes(`SELECT ojs.queues_prune(10)`, `SELECT n FROM unnest('{1,2}'::text[]) n WHERE NOT EXISTS (SELECT FROM ojs.queues q WHERE q.name = n) ORDER BY n`),
	},
	"outage_check/jobs": { // one is being renewed
		rows: jobs + `SELECT setval('ojs.served_at', (date_part('epoch', now()) * 1000)::bigint - 60000);
			UPDATE ojs.jobs SET state = 'active', due_at = now(), lease_until = now()`, other: firstJob, gets: both,
		call: changes(`SELECT ojs.outage_check(false)`, jobNumbers+`due_at > now() ORDER BY id`),
	},
	"pool_reserve/pool": {
		rows:  `INSERT INTO ojs.pools (name, definition, concurrency) VALUES ('p', '{}', 5)`,
		other: `UPDATE ojs.pools SET concurrency = 1`, waits: true, gets: []string{"1"},
		call: returns(`SELECT ojs.pool_reserve('p', gen_random_uuid(), 3)::text`),
	},
}

// lockedElsewhere has the functions whose locks keep the order of a pass of the relay, or need more than one call, with their tests.
var lockedElsewhere = map[string]string{
	"jobs_done_partitions_prune": "eventlog.TestRetentionLetsThePassOfTheRelayEnd",
	"event_partition_close":      "eventlog.TestRetentionLetsThePassOfTheRelayEnd",
	"event_partitions_prune":     "eventlog.TestRetentionLetsThePassOfTheRelayEnd",
	"event_partition_leave":      "eventlog.TestRetentionLetsThePassOfTheRelayEnd",
	"counts_add":                 "eventlog.TestRetentionLetsThePassOfTheRelayEnd, by jobs_done_partitions_prune",
	"queues_prune":               "eventlog.TestQueueUsedDuringThePrune, for the relay",
	"reset":                      "eventlog.TestResetWaitsForRetention",
	"event_epoch_check":          "eventlog.TestRelayPass, whose relays make their first pass while others work",
	"bounds_check_noted":         "queue.TestBoundsHoldForSQL",
	"unique_check":               "queue.TestUniqueInSQLWaitsForOpenTransactions",
}

func TestFunctionsAndLockedRows(t *testing.T) {
	t.Parallel()
	covered := map[string]bool{}
	for name := range lockedElsewhere {
		covered[name] = true
	}
	for name := range functions {
		function, _, _ := strings.Cut(name, "/")
		covered[function] = true
	}
	require.Equal(t, withLocks(t, "../../migrations/*.sql", regexp.MustCompile(`^CREATE (?:OR REPLACE )?FUNCTION ojs\.(\w+)`)), covered,
		"each function with locks, and no other")
	pool := dbtest.New(t)
	for name, c := range functions {
		t.Run(name, func(t *testing.T) { c.run(t, pool) })
	}
}
