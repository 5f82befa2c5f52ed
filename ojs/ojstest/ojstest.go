// Package ojstest is for tests of programs that use package ojs, without a server:
//
//	func TestSignUp(t *testing.T) {
//		server := ojstest.New()
//		signUp(t.Context(), server.Client(), "ada@example.com")
//		server.RequireEnqueued(t, "email.send", ojstest.WithArgs(Email{To: "ada@example.com"}))
//	}
//
// A [Server] is a server in memory: nothing listens, and [Server.Advance] moves its clock. [Server.Drain] runs a worker against it
// until there is nothing left to do. [NewContext] is for a test that calls a handler by itself.
//
// # The server
//
// It does what clients, workers and package ojsadmin need: jobs with retries, workflows, crons, rate limits, dead letters, bulk changes,
// events. It refuses what ojsd refuses, with the same kind of error and the same details.field: malformed types, queues, times and
// policies, crons that cannot fire, workflows that cannot run, and names that a call does not know. Differences:
//
//   - retries come exactly after their intervals, without jitter;
//   - a cron fires once for all ticks that an Advance passes over, as after an outage, and knows nothing of daylight saving;
//   - it has no schemas, tenants, pools, configurations of queues, histories and idempotency keys, and no timeouts but those of
//     reservations and executions; calls about what it does not have are answered with 404;
//   - it delivers no webhooks; those are kept only to be read.
//
// Of the conformance suites of the Open Job Spec it passes all 65 cases of level 0, 22 of 24 of level 1, and all of level 2 (13), level
// 3 (14) and level 4 (16). The two are about directives that a server gives to workers in tests of its own. One more of level 1 no
// server passes. OJS_CONFORMANCE_DIR=… go test ./ojstest -run TestConformance checks the numbers, with the folder of the runner.
//
// # Transactions
//
// Code that enqueues in its own transaction, by package ojssql, needs a real PostgreSQL, and no server. [RequireEnqueuedTx] looks into the
// transaction while it is open; package ojspgxtest has the same for pgx:
//
//	tx, err := db.BeginTx(t.Context(), nil)
//	…
//	defer tx.Rollback() // the database stays as it is
//	err = acceptOrder(t.Context(), tx, order)
//	…
//	ojstest.RequireEnqueuedTx(t, tx, "invoice.render", ojstest.WithArgs(order))
//
// The database gets its schema from the function Up of package github.com/ojsd/ojsd/migrations, in the module of the server. It works as
// a role with CREATE on the database, which owns the schema from then on. The role of the test needs what the code under test needs
// (docs/reference/sql.md, Roles) and SELECT on the view ojs.job.
package ojstest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/enqueued"
	"github.com/ojsd/ojsd/ojs/internal/fakeserver"
)

// Server is a server in memory. It is made by New and used by any number of goroutines. It is never closed.
type Server struct {
	fake *fakeserver.Server
}

// New makes an empty server.
func New() *Server { return &Server{fakeserver.New()} }

// Client makes a client of this server. Each call gives another client, all of the same server.
func (s *Server) Client() *ojs.Client {
	c, err := ojs.NewClient(ojs.Config{Transport: s.fake})
	if err != nil {
		panic(err) // with a transport there is nothing that could fail
	}
	return c
}

// Advance moves the clock of the server: delayed jobs and retries whose time has come can be fetched then, crons fire, and reservations
// that are over end. Timers of workers do not move with it: heartbeats and pauses of a running worker go on in real time.
func (s *Server) Advance(d time.Duration) { s.fake.Advance(d) }

// Drain runs a worker until no job is available or active, then stops it. It fails the test if that takes longer than limit. Jobs that
// wait for their time are left; see [Server.Advance]. The worker cannot be used again, because a worker runs once; make another
// one for the next Drain. A job whose handler fails waits for its retry, so Drain returns; Advance makes it available for a
// later one.
func (s *Server) Drain(t testing.TB, w *ojs.Worker, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer cancel() // a worker that cannot begin leaves the jobs where they are
		done <- w.Start(ctx)
	}()
	s.fake.AwaitIdle(ctx)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) { // the worker has its grace period to stop, for which the test does not wait
		t.Fatalf("jobs are still available or active after %v: %s", limit, enqueued.Describe(s.Jobs()))
		return
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("the worker has ended with an error: %v", err)
	}
}

// Match chooses jobs in assertions. For what no function here has, write one: func(j *ojs.Job) bool { return j.MaxAttempts == 5 }. The
// job is a copy: changing it changes nothing in the server.
type Match func(*ojs.Job) bool

// InQueue matches the queue.
func InQueue(name string) Match { return func(j *ojs.Job) bool { return j.Queue == name } }

// InState matches the state.
func InState(state ojs.JobState) Match { return func(j *ojs.Job) bool { return j.State == state } }

// WithPriority matches the priority.
func WithPriority(priority int) Match { return func(j *ojs.Job) bool { return j.Priority == priority } }

// WithTags matches jobs that have all of these tags, and maybe more.
func WithTags(tags ...string) Match {
	return func(j *ojs.Job) bool {
		return !slices.ContainsFunc(tags, func(tag string) bool { return !slices.Contains(j.Tags, tag) })
	}
}

// WithMeta matches jobs that have the member in meta. Values are compared as arguments are by [WithArgs].
func WithMeta(key string, value any) Match {
	want, err := json.Marshal(value)
	return func(j *ojs.Job) bool {
		found, there := j.Meta[key]
		got, gotErr := json.Marshal(found)
		return there && err == nil && gotErr == nil && canonical(got) == canonical(want)
	}
}

// RunsAt matches jobs that were enqueued to run at a time, or at most tolerance before or after it. A delay counts from the enqueue, so a
// test does not know its end exactly.
func RunsAt(at time.Time, tolerance time.Duration) Match {
	return func(j *ojs.Job) bool { return !j.ScheduledAt.IsZero() && j.ScheduledAt.Sub(at).Abs() <= tolerance }
}

// WithArgs matches the arguments, which are encoded as those of an enqueue. Comparison is by value: the order of members and
// white space do not matter, but 1 and "1" differ. Numbers are compared as float64, so integers above 2⁵³ may compare as equal.
func WithArgs(args any) Match {
	want, err := encodeArgs(args)
	return func(j *ojs.Job) bool { return err == nil && canonical(j.RawArgs) == canonical(want) }
}

func encodeArgs(args any) (json.RawMessage, error) {
	data, err := json.Marshal(ojs.JobRequest{Args: args})
	if err != nil {
		return nil, err
	}
	var wire struct {
		Args json.RawMessage `json:"args"`
	}
	return wire.Args, json.Unmarshal(data, &wire)
}

// canonical is JSON without the differences of white space and order of members.
func canonical(data []byte) string {
	var v any
	if json.Unmarshal(data, &v) != nil {
		return string(data)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return string(data)
	}
	return string(text)
}

// Jobs lists all jobs that match, in the order in which they were enqueued. Jobs that have ended are among them. The result is
// a copy of this moment; call it again after a worker has run.
func (s *Server) Jobs(matches ...Match) []*ojs.Job {
	return enqueued.Jobs(s.fake.Jobs(nil), matches)
}

// RequireEnqueued fails the test unless exactly one job of the type was enqueued that matches, and returns it.
// Jobs count whatever has become of them since. The message of a failure lists all jobs of the server.
func (s *Server) RequireEnqueued(t testing.TB, jobType string, matches ...Match) *ojs.Job {
	t.Helper()
	return enqueued.RequireOne(t, s.Jobs(), "", jobType, matches)
}

// RequireNotEnqueued fails the test if a job of the type was enqueued that matches.
func (s *Server) RequireNotEnqueued(t testing.TB, jobType string, matches ...Match) {
	t.Helper()
	enqueued.RequireNone(t, s.Jobs(), "", jobType, matches)
}

// RequireState fails the test unless a job is in a state, and returns it. It looks once and does not wait: use it after
// [Server.Drain], or after an answer.
func (s *Server) RequireState(t testing.TB, id string, state ojs.JobState) *ojs.Job {
	t.Helper()
	j := s.fake.Job(id)
	if j == nil {
		t.Fatalf("there is no job %s; all jobs: %s", id, enqueued.Describe(s.Jobs()))
		return nil
	}
	if j.State != state {
		t.Fatalf("job %s is %s, not %s; its error: %v", id, j.State, state, j.Error)
	}
	return j
}

// NewContext makes the context of a job of its first attempt, for a test that calls a handler by itself. The job is in no server:
// what the handler reports goes nowhere, and Result gives what it has set. Change the fields of its Job, such as Attempt or Meta,
// before the handler gets it. Arguments that cannot be encoded fail the test.
func NewContext(t testing.TB, jobType string, args any) ojs.JobContext {
	t.Helper()
	raw, err := encodeArgs(args)
	if err != nil {
		t.Fatalf("encode args: %v", err)
	}
	data, err := json.Marshal(map[string]any{
		"id": ojs.NewID(), "type": jobType, "queue": "default", "state": ojs.StateActive, "attempt": 1, "max_attempts": 3,
		"meta": map[string]any{}, "args": raw,
	})
	job := &ojs.Job{}
	if err == nil {
		err = json.Unmarshal(data, job)
	}
	if err != nil {
		t.Fatalf("make the job: %v", err)
	}
	return ojs.JobContext{Context: t.Context(), Job: job}
}
