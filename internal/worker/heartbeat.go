package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// BeatResult answers a Beat. State is one of running, quiet, terminate. An id of the beat is in exactly one of the three
// lists, or in none if the job has completed. Time is zero in the answer to a repeated part (jobsOnly).
type BeatResult struct {
	State     string // what the worker should be
	Extended  [][16]byte
	Cancelled [][16]byte // cancelled while they were reserved for the worker
	Lost      [][16]byte // not reserved for the worker any more, and neither cancelled nor completed
	Time      time.Time  // of the database

	taken     bool       // the id is that of a living worker of somebody else: nothing was done
	locked    [][16]byte // other transactions have locked these rows
	reported  string
	directive string
}

// Heartbeat registers the worker and extends the leases of its jobs. It waits for jobs whose rows are locked. A worker of a tenant must
// not have the id of a living one of somebody else. The worker is written in the first flush; the repetitions are for
// locked jobs only, and end after the time that package queue waits for locks. A job that is still locked then is in no
// list, and its reservation is as it was. After an error the beat may have been stored without the extensions; the next one
// repeats both.
func (s *Store) Heartbeat(ctx context.Context, b Beat) (BeatResult, error) {
	res, err := s.heartbeat.Do(ctx, b)
	if res.taken {
		taken := spec.NewError(ojs.ErrNotOwner, "The id "+b.WorkerID+" is that of a worker of somebody else.",
			map[string]any{"worker_id": b.WorkerID})
		taken.Hint = "Give the worker an id that no other worker has, such as one that begins with the name of the tenant."
		return BeatResult{}, taken
	}
	for wait := s.jobs.LockWait(); err == nil && len(res.locked) > 0 && wait.Again(ctx); {
		b.Jobs.IDs, b.jobsOnly = res.locked, true
		var more BeatResult
		more, err = s.heartbeat.Do(ctx, b)
		res.Extended = append(res.Extended, more.Extended...)
		res.Cancelled = append(res.Cancelled, more.Cancelled...)
		res.Lost = append(res.Lost, more.Lost...)
		// Only those that are still locked are asked again.
		res.locked = more.locked
	}
	return res, pg.WriteError(err)
}

// flushHeartbeat writes workers and jobs in two statements, so that an error of a job does not undo the beat of its worker.
// The timer is told the time at which the workers would be dead, so that this node looks then. Several beats of one worker
// never share a flush (Key in New), because the answer of a row goes to one of them.
func (s *Store) flushHeartbeat(ctx context.Context, beats []Beat) ([]BeatResult, error) {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	res := make([]BeatResult, len(beats))
	// Workers before jobs: a worker that was dead is revived first, and its jobs from before its death are then not
	// extended.
	if err := s.beatWorkers(ctx, beats, res); err != nil {
		return nil, err
	}
	if err := s.beatJobs(ctx, beats, res); err != nil {
		return nil, err
	}
	s.timer.Schedule(s.config.Workers.DeadAfter)
	s.commits.Committed()
	// An error here fails the answer although the beat is stored; the next beat repeats it.
	if err := s.testDirectives(ctx, beats, res); err != nil {
		return nil, err
	}
	return res, s.classifyUnextended(ctx, beats, res)
}

// beatWorkers writes the beats of workers. at has those that still need an answer; a row that came back takes its entry away. The flush
// is no transaction, so a second try reads what the other node has committed.
//
// nil of a list means "not reported" and keeps what is stored. What the worker fetches on this node is sent along, for
// workers that report no queues.
func (s *Store) beatWorkers(ctx context.Context, beats []Beat, res []BeatResult) error {
	at := make(map[string]int, len(beats))
	for i, b := range beats {
		if !b.jobsOnly {
			at[b.WorkerID] = i
		}
	}
	// If the first beats of a worker reach two nodes at the same moment, one node inserts it and the other one finds it in its
	// second try.
	for tries := 0; len(at) > 0 && tries < 3; tries++ {
		p := dbsqlc.WorkerHeartbeatParams{Node: s.commits.Node, HeartbeatEvents: s.config.Events.WorkerHeartbeat}
		for i, b := range beats {
			if j, wanted := at[b.WorkerID]; !wanted || j != i {
				continue
			}
			// Only what it has fetched on this node; the row keeps what another node has stored.
			queues, count := s.workers.Fetches(b.WorkerID)
			p.Ids = append(p.Ids, b.WorkerID)
			p.Registers = append(p.Registers, b.Register)
			p.States = append(p.States, b.State)
			// The column has 32 bits; a larger number is a mistake that must not fail the beat.
			p.ActiveJobs = append(p.ActiveJobs, int32(min(b.ActiveJobs, 1<<31-1)))
			p.ActiveJobIds = append(p.ActiveJobIds, textList(b.Jobs.Texts))
			p.Queues = append(p.Queues, jsonList(b.Queues))
			p.Concurrency = append(p.Concurrency, int32(min(b.Concurrency, 1<<31-1)))
			p.FetchQueues = append(p.FetchQueues, jsonList(queues))
			p.FetchCounts = append(p.FetchCounts, int32(min(count, 1<<31-1)))
			p.Hostnames = append(p.Hostnames, b.Hostname)
			p.Tenants = append(p.Tenants, b.Tenant)
			p.Pids = append(p.Pids, b.PID)
			p.Facts = append(p.Facts, b.Facts)
			p.Loads = append(p.Loads, b.Load)
			p.Sources = append(p.Sources, eventlog.WorkerSource(b.WorkerID))
		}
		rows, err := s.db.Q.WorkerHeartbeat(ctx, p)
		if err != nil {
			return err
		}
		eventlog.Emit(ctx, s.commits, rows, beatChange)
		for _, r := range rows {
			answer := &res[at[r.ID]]
			delete(at, r.ID)
			if answer.taken = r.Taken; r.Taken {
				continue
			}
			answer.Time, answer.reported, answer.directive = r.LastBeatAt.Time, r.State, r.Directive
			answer.State = desiredState(r.State, r.Directive, "")
			s.workers.SetQuiet(r.ID, isQuiet(answer.State))
		}
	}
	if len(at) > 0 {
		return fmt.Errorf("%d first beats of workers were not written: other nodes insert and delete the same workers", len(at))
	}
	return nil
}

func jsonList(values []string) []byte {
	if values == nil {
		return nil
	}
	b, _ := json.Marshal(values) // strings always marshal
	return b
}

// textList is a JSON array of texts that a client sent. Unlike jsonList it keeps their characters as they are.
func textList(texts []string) []byte {
	b := []byte{'['}
	for i, text := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b, _ = jsontext.AppendQuote(b, text) // the texts are valid: they were decoded from JSON
	}
	return append(b, ']')
}

// beatJobs skips rows that other transactions have locked, and rows that the worker does not have. A lease never
// becomes shorter.
func (s *Store) beatJobs(ctx context.Context, beats []Beat, res []BeatResult) error {
	p := dbsqlc.JobHeartbeatParams{
		EventType:        ojs.EventJobHeartbeat,
		DefaultTimeoutMs: s.config.Jobs.Timeout.Milliseconds(), Node: s.commits.Node,
		EventIntervalS: s.config.Events.JobHeartbeatMinInterval.Seconds(),
	}
	at := map[string]int{}
	for i, b := range beats {
		at[b.WorkerID] = i
		if res[i].taken {
			continue
		}
		for _, id := range b.Jobs.IDs {
			p.Ids = append(p.Ids, id)
			p.Workers = append(p.Workers, b.WorkerID)
			p.LeasesMs = append(p.LeasesMs, b.VisibilityMS)
			p.Sources = append(p.Sources, eventlog.WorkerSource(b.WorkerID))
			p.Starts = append(p.Starts, b.Starts[id])
		}
	}
	if len(p.Ids) == 0 {
		return nil
	}
	rows, err := s.db.Q.JobHeartbeat(ctx, p)
	if err != nil {
		return err
	}
	eventlog.Emit(ctx, s.commits, rows, heartbeatChange)
	for _, r := range rows {
		i := at[r.WorkerID]
		res[i].Extended = append(res[i].Extended, r.ID)
		// Both times are of the database, so the difference does not depend on the clock of the node.
		s.timer.Schedule(r.DueAt.Time.Sub(r.Now.Time))
	}
	return nil
}

// classifyUnextended finds out why jobs were not extended. It reads after the extension, in a snapshot of its own: a job
// that has ended in between is shown as what it is now.
func (s *Store) classifyUnextended(ctx context.Context, beats []Beat, res []BeatResult) error {
	var ids [][16]byte
	for i, b := range beats {
		if len(res[i].Extended) < len(b.Jobs.IDs) {
			ids = append(ids, b.Jobs.IDs...)
		}
	}
	if ids == nil {
		return nil
	}
	// All ids of the beats are asked, as the extended ones are known anyway.
	rows, err := s.db.Q.JobListUnextended(ctx, ids)
	if err != nil {
		return err
	}
	done := make(map[[16]byte]dbsqlc.JobListUnextendedRow, len(rows))
	for _, r := range rows {
		done[r.ID] = r
	}
	for i, b := range beats {
		extended := make(map[[16]byte]bool, len(res[i].Extended))
		for _, id := range res[i].Extended {
			extended[id] = true
		}
		for _, id := range b.Jobs.IDs {
			d, found := done[id]
			switch {
			// It is still the worker's and was not extended, so its row was locked: it is tried again.
			case found && !extended[id] && !d.Taken && d.State == string(ojs.StateActive) && b.isRun(d):
				res[i].locked = append(res[i].locked, id)
			case extended[id], found && d.State == string(ojs.StateCompleted):
			case found && d.PreviousState.String == string(ojs.StateActive) && b.isRun(d):
				res[i].Cancelled = append(res[i].Cancelled, id)
			// It belongs to another run or worker, or does not exist: the worker must stop it.
			default:
				res[i].Lost = append(res[i].Lost, id)
			}
		}
	}
	return nil
}

// isRun reports whether a job is, or was at its end, in the run that the worker has.
func (r *Beat) isRun(d dbsqlc.JobListUnextendedRow) bool {
	run := queue.JobRun{WorkerID: r.WorkerID, Start: r.Starts[d.ID]}
	return run.Owns(d.WorkerID) && run.Began(d.StartedAt)
}

// writeBeats writes the collected calls of workers. Without any it sends no statement. Ages are sent instead of times,
// because the clock of the node may be wrong; the statement subtracts them from the clock of the database and never moves
// last_seen_at back, so nodes may write in any order. Beats that are not written when the node stops are lost; the worker
// has by then called another node, or will.
func (s *Store) writeBeats(ctx context.Context) error {
	// From here on the beats are only in this variable, until they are written or returned.
	beats := s.workers.TakeBeats()
	if len(beats) == 0 {
		return nil
	}
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	ids, ages := make([]string, 0, len(beats)), make([]int64, 0, len(beats))
	for id, at := range beats {
		ids, ages = append(ids, id), append(ages, time.Since(at).Milliseconds())
	}
	err := s.db.Q.WorkerUpdateSeen(ctx, ids, ages)
	// If the write has committed in spite of the error, writing it again changes nothing.
	if err != nil {
		s.workers.ReturnBeats(beats)
	}
	return pg.WriteError(err)
}

// readQuiet reads which workers are quiet. BeginRead comes before the statement, so that a change by this node during the
// read wins over what was read.
func (s *Store) readQuiet(ctx context.Context) error {
	ctx, cancel := s.db.Bounded(ctx)
	defer cancel()
	s.workers.BeginRead()
	ids, err := s.db.Q.WorkerListQuiet(ctx)
	if err != nil {
		return err
	}
	s.workers.EndRead(ids)
	return nil
}
