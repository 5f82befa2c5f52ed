package fakeserver

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/ojsd/ojsd/ojs"
)

// Jobs lists copies of all jobs that keep, in the order in which they were enqueued. Jobs that have ended are among them.
func (s *Server) Jobs(keep func(*ojs.Job) bool) []*ojs.Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promote()
	list := []*ojs.Job{}
	for _, j := range s.order {
		info := j.Job
		_ = json.Unmarshal(info.RawArgs, &info.Args) // it was an array when it was enqueued
		if keep == nil || keep(&info) {
			list = append(list, &info)
		}
	}
	return list
}

// Job reads a job; nil: there is none with this id.
func (s *Server) Job(id string) *ojs.Job {
	list := s.Jobs(func(j *ojs.Job) bool { return j.ID == id })
	if len(list) == 0 {
		return nil
	}
	return list[0]
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

// AwaitIdle waits until no job is available or active, or ctx is done. It takes the channel together with the look, under one lock,
// so that no change in between is missed.
func (s *Server) AwaitIdle(ctx context.Context) {
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
