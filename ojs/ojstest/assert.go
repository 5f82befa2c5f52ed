package ojstest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// Match chooses jobs in assertions. The job is a copy: changing it changes nothing in the server. A Match must not call the
// server, whose lock is held.
type Match func(*ojs.JobInfo) bool

// InQueue matches the queue.
func InQueue(name string) Match { return func(j *ojs.JobInfo) bool { return j.Queue == name } }

// WithArgs matches the arguments, which are encoded as those of an enqueue. Comparison is by value: the order of members and
// white space do not matter, but 1 and "1" differ. Numbers are compared as float64, so integers above 2⁵³ may compare as equal.
func WithArgs(args any) Match {
	data, err := json.Marshal(ojs.NewRequest("any", args))
	var want struct {
		Args json.RawMessage `json:"args"`
	}
	if err == nil {
		err = json.Unmarshal(data, &want)
	}
	return func(j *ojs.JobInfo) bool { return err == nil && canonical(j.RawArgs) == canonical(want.Args) }
}

// InState matches the state.
func InState(state ojs.JobState) Match {
	return func(j *ojs.JobInfo) bool { return j.State == state }
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
func (s *Server) Jobs(matches ...Match) []*ojs.JobInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promote()
	list := []*ojs.JobInfo{}
	for _, j := range s.order {
		info := j.JobInfo
		if !slices.ContainsFunc(matches, func(m Match) bool { return !m(&info) }) {
			list = append(list, &info)
		}
	}
	return list
}

// Job reads a job; nil: there is none with this id.
func (s *Server) Job(id string) *ojs.JobInfo {
	list := s.Jobs(func(j *ojs.JobInfo) bool { return j.ID == id })
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

func ofType(jobType string) Match {
	return func(j *ojs.JobInfo) bool { return j.Type == jobType }
}

// RequireEnqueued fails the test unless exactly one job of the type was enqueued that matches, and returns it.
// Jobs count whatever has become of them since. The message of a failure lists all jobs of the server.
func (s *Server) RequireEnqueued(t testing.TB, jobType string, matches ...Match) *ojs.JobInfo {
	t.Helper()
	list := s.Jobs(append([]Match{ofType(jobType)}, matches...)...)
	if len(list) != 1 {
		t.Fatalf("%d jobs of type %s match, not one; all jobs: %s", len(list), jobType, s.describe())
		return nil // a test in disguise may go on
	}
	return list[0]
}

// RequireNotEnqueued fails the test if a job of the type was enqueued that matches.
func (s *Server) RequireNotEnqueued(t testing.TB, jobType string, matches ...Match) {
	t.Helper()
	if list := s.Jobs(append([]Match{ofType(jobType)}, matches...)...); len(list) > 0 {
		t.Fatalf("%d jobs of type %s match, not none; all jobs: %s", len(list), jobType, s.describe())
	}
}

// RequireState fails the test unless a job is in a state, and returns it. It looks once and does not wait: use it after
// [Server.Drain], or after an answer.
func (s *Server) RequireState(t testing.TB, id string, state ojs.JobState) *ojs.JobInfo {
	t.Helper()
	j := s.Job(id)
	if j == nil {
		t.Fatalf("there is no job %s; all jobs: %s", id, s.describe())
		return nil
	}
	if j.State != state {
		t.Fatalf("job %s is %s, not %s; its error: %v", id, j.State, state, j.Error)
	}
	return j
}

func (s *Server) describe() string {
	var text strings.Builder
	for _, j := range s.Jobs() {
		fmt.Fprintf(&text, "\n\t%s %s in %s: %s, args %s", j.ID, j.Type, j.Queue, j.State, j.RawArgs)
	}
	if text.Len() == 0 {
		return "none"
	}
	return text.String()
}

// LoseLease takes an active job away from its worker, as if its reservation were over. The worker learns of it with its next
// heartbeat, or when its report is refused. With attempts left the job is available at once, else discarded. Any other job, and
// an unknown id, is left as it is.
func (s *Server) LoseLease(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[id]; j != nil && j.State == ojs.StateActive {
		s.loseLease(j)
		s.wake()
	}
}

// Complete ends a job well, as if another worker had done it. It has no result. A job that has ended, and an unknown id, is
// left as it is.
func (s *Server) Complete(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.jobs[id]; j != nil && !j.State.Terminal() {
		s.end(j, ojs.StateCompleted)
		s.wake()
	}
}

// Heal forgets the failures that are still to come.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Drain runs a worker until no job is available or active, then stops it. It fails the test if that takes longer than limit. Jobs that
// wait for their time are left; see [Server.Advance]. The worker cannot be used again, because a worker runs once; make another
// one for the next Drain. A job whose handler fails waits for its retry, so Drain returns; Advance makes it available for a
// later one.
func (s *Server) Drain(t testing.TB, w *ojs.Worker, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	s.awaitIdle(ctx)
	late := ctx.Err() != nil
	cancel()
	if err := <-done; err != nil {
		t.Fatalf("the worker has ended with an error: %v", err)
	}
	if late {
		t.Fatalf("jobs were left after %v: %s", limit, s.describe())
	}
}

// It takes the channel together with the look, under one lock, so that no change in between is missed.
func (s *Server) awaitIdle(ctx context.Context) {
	for {
		s.mu.Lock()
		s.promote()
		busy := slices.ContainsFunc(s.order, func(j *record) bool { return j.State == ojs.StateAvailable || j.State == ojs.StateActive })
		changed := s.changed
		s.mu.Unlock()
		if !busy {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// NewJob makes a job for a test that calls a handler by itself. Its result can be read with RunResult; what it reports goes nowhere.
// The job is in no server. Change the fields of its JobInfo, such as Attempt or Meta, before the handler gets it.
func NewJob[Args any](jobType string, args Args) *ojs.Job[Args] {
	info := &ojs.JobInfo{ID: ojs.NewID(), Type: jobType, Queue: "default", State: ojs.StateActive, Attempt: 1, MaxAttempts: 3, Meta: map[string]any{}}
	return &ojs.Job[Args]{JobContext: &ojs.JobContext{JobInfo: info}, Args: args}
}
