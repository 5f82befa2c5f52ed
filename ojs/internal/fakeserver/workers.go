package fakeserver

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// lease is the length of a reservation for which neither the fetch nor the job says anything, cronLease that of a job of a cron.
const (
	lease     = 30 * time.Second
	cronLease = 10 * time.Minute
)

// fetchBody is the body of a fetch, and the member fetch of a batch of acks or nacks.
type fetchBody struct {
	Queues              []string `json:"queues"`
	Count               int      `json:"count"`
	WorkerID            string   `json:"worker_id"`
	WaitMS              int64    `json:"wait_ms"`
	VisibilityTimeoutMS int64    `json:"visibility_timeout_ms"`
}

var fetchNames = []string{
	"queues", "queue", "count", "max_jobs", "worker_id", "visibility_timeout_ms", "wait_ms", "pool", "strategy", "weights",
}

func readFetch(raw json.RawMessage) (body fetchBody, refused *ojs.Error) {
	p := &problems{}
	r, ok := p.open(raw)
	if !ok {
		return body, p.first
	}
	r.others(ojs.ErrInvalidRequest, fetchNames...)
	m := r.pick("queues", "queue")
	var names []json.RawMessage
	if m.name == "queue" && m.value != nil {
		names = []json.RawMessage{m.value}
	} else if json.Unmarshal(m.value, &names) != nil || len(names) == 0 || len(names) > 100 {
		r.refuseAs(ojs.ErrInvalidQueue, m, "an array of 1 to 100 names of queues")
	}
	for _, raw := range names {
		name, kind := checkQueue(raw)
		if kind != "" {
			r.refuseAs(kind, m, "an array of 1 to 100 names of queues")
		}
		body.Queues = append(body.Queues, name)
	}
	count, _ := r.integer(r.pick("count", "max_jobs"), math.MinInt64, math.MaxInt64)
	body.Count = int(max(0, min(count, 1000)))
	body.WorkerID = r.text(r.pick("worker_id"), "a string of at most 255 bytes", func(text string) bool { return len(text) <= 255 })
	body.VisibilityTimeoutMS, _ = r.integer(r.pick("visibility_timeout_ms"), 0, 604_800_000)
	wait, _ := r.integer(r.pick("wait_ms"), 0, math.MaxInt64)
	body.WaitMS = min(wait, 20_000)
	return body, p.first
}

// fetch gives out jobs, and waits for some if it is asked to. It waits without the lock and looks again after every change;
// wait_ms is in real time.
func (s *Server) fetch(ctx context.Context, r *Request) answer {
	body, refused := readFetch(r.Body)
	if refused != nil {
		return refusal(refused)
	}
	timer := time.NewTimer(time.Duration(body.WaitMS) * time.Millisecond)
	defer timer.Stop()
	for {
		s.mu.Lock()
		s.promote()
		jobs, open := []shownJob{}, s.open(body.WorkerID)
		if open && ctx.Err() == nil {
			jobs = s.claim(body)
		}
		changed, next := s.changed, s.nextStart(body.Queues)
		s.mu.Unlock()
		if len(jobs) > 0 || !open || body.WaitMS == 0 || !s.has(ojs.ExtensionLongPolling) {
			a := ok(object{"jobs": jobs})
			a.jobs = jobs
			return a
		}
		start := make(<-chan time.Time) // never, if no job has a time
		if next > 0 {
			start = time.After(next)
		}
		select {
		case <-changed:
		case <-start:
		case <-timer.C:
			return ok(object{"jobs": jobs})
		case <-ctx.Done():
			return ok(object{"jobs": jobs})
		}
	}
}

// nextStart is how long it takes until a job of the queues that waits for a time, or for its rate limit, may start; 0: there is none. The
// caller has the lock.
func (s *Server) nextStart(queues []string) (wait time.Duration) {
	for _, j := range s.order {
		if !slices.Contains(queues, j.Queue) {
			continue
		}
		at := j.due // of scheduled and retryable jobs
		if j.State == ojs.StateAvailable {
			at, _ = s.blocked(j)
		}
		if d := max(at.Sub(s.now()), time.Millisecond); !at.IsZero() && !j.State.Terminal() && (wait == 0 || d < wait) {
			wait = d
		}
	}
	return wait
}

// open reports whether a worker may get jobs. A directive holds until another one is given; terminate that the worker has
// reported itself is final until it registers again.
func (s *Server) open(worker string) bool {
	w := s.workers[worker]
	if w == nil {
		return true
	}
	state := cmp.Or(w.directive, w.reported, ojs.DirectiveRunning)
	return state == ojs.DirectiveRunning && w.reported != ojs.DirectiveTerminate
}

// handBack makes jobs available whose answer nobody gets. It serves CutNext: jobs of an answer that was cut would otherwise
// stay reserved until their leases end.
func (s *Server) handBack(jobs []shownJob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range jobs {
		s.release(s.jobs[j.ID])
	}
	s.wake()
}

// release makes an active job available again without counting the attempt.
func (s *Server) release(j *record) {
	j.Attempt--
	j.StartedAt = time.Time{}
	s.available(j)
}

func (s *Server) has(extension string) bool { return slices.Contains(s.extensions, extension) }

// claim takes available jobs: by queue as listed, then priority, then age. The caller has the lock. A count below 1 counts as
// 1.
func (s *Server) claim(body fetchBody) []shownJob {
	var found []*record
	queues, visibility := body.Queues, time.Duration(body.VisibilityTimeoutMS)*time.Millisecond
	for _, j := range s.order {
		if j.State == ojs.StateAvailable && slices.Contains(queues, j.Queue) && !s.paused[j.Queue] {
			found = append(found, j)
		}
	}
	// The order is that of docs/reference/http.md, Fetch, without the turns of fair queues.
	slices.SortFunc(found, func(a, b *record) int {
		return cmp.Or(cmp.Compare(slices.Index(queues, a.Queue), slices.Index(queues, b.Queue)), cmp.Compare(b.Priority, a.Priority),
			cmp.Compare(a.tick, b.tick))
	})
	jobs := []shownJob{}
	for _, j := range found {
		if len(jobs) == max(body.Count, 1) {
			break
		}
		if until, is := s.blocked(j); is {
			s.limited(j, until)
			continue
		}
		for _, key := range s.partitions(j) {
			p := s.partition(key)
			p.starts = append(p.starts, s.now())
		}
		usual := lease
		if j.cron != "" {
			usual = cronLease
		}
		j.lease = cmp.Or(visibility, time.Duration(j.VisibilityTimeoutMS)*time.Millisecond, usual)
		j.State, j.WorkerID, j.StartedAt, j.reserved = ojs.StateActive, body.WorkerID, s.now(), s.now().Add(j.lease)
		j.Attempt++
		s.tick++
		j.LeaseToken = strconv.FormatInt(s.tick, 36)
		j.LastCheckpoint, j.Progress, j.ProgressData, j.message = j.checkpoint, 0, nil, ""
		s.emit(ojs.EventJobStarted, j, object{"worker_id": body.WorkerID, "attempt": j.Attempt})
		jobs = append(jobs, j.show())
	}
	return jobs
}

// outcome is the body of an ack or nack.
type outcome struct {
	JobID    string          `json:"job_id"`
	WorkerID string          `json:"worker_id"`
	Attempt  int             `json:"attempt"`
	Lease    string          `json:"lease_token"`
	Result   json.RawMessage `json:"result"`
	Requeue  bool            `json:"requeue"`
	DelayMS  int64           `json:"delay_ms"`
	Error    ojs.JobError    `json:"error"`
}

func (s *Server) serveWorkers(path []string, r *Request) answer {
	switch strings.Join(path, "/") {
	case "ack":
		return s.one(r, s.ack)
	case "nack":
		return s.one(r, s.nack)
	case "ack/batch":
		return s.many(r, s.ack)
	case "nack/batch":
		return s.many(r, s.nack)
	case "heartbeat", "beat":
		return s.heartbeat(r)
	case "progress":
		return s.progress(r)
	case "register":
		return s.register(r)
	case "":
		return s.listWorkers(r)
	}
	return noRoute(r)
}

// one answers a report about a job that was cancelled with acknowledged false and changes nothing.
func (s *Server) one(r *Request, act func(outcome) (*record, *ojs.Error)) answer {
	o, refused := readOutcome(r.Body, isNack(r))
	if refused != nil {
		return refusal(refused)
	}
	j, refused := act(o)
	if refused != nil {
		return refusal(refused)
	}
	body := object{"acknowledged": j.State != ojs.StateCancelled, "id": j.ID, "job_id": j.ID, "state": j.State, "attempt": j.Attempt,
		"max_attempts": j.MaxAttempts, "job": j.show()}
	for name, at := range map[string]time.Time{"completed_at": j.CompletedAt, "discarded_at": j.DiscardedAt, "enqueued_at": j.EnqueuedAt,
		"scheduled_at": j.ScheduledAt, "next_attempt_at": j.NextAttemptAt} {
		if !at.IsZero() {
			body[name] = at
		}
	}
	if j.State == ojs.StateRetryable {
		body["retry_delay_ms"] = j.RetryDelayMS
	}
	return ok(body)
}

// many goes on after a refused item. The fetch sees what the acks have made available.
func (s *Server) many(r *Request, act func(outcome) (*record, *ojs.Error)) answer {
	if !s.has(ojs.ExtensionBatchAck) {
		return noRoute(r)
	}
	p := &problems{}
	in, isObject := p.open(r.Body)
	if !isObject {
		return refusal(p.first)
	}
	name := map[bool]string{true: "nacks", false: "acks"}[isNack(r)]
	in.others(ojs.ErrInvalidRequest, name, "fetch")
	var list []json.RawMessage
	if m := in.pick(name); json.Unmarshal(m.value, &list) != nil || len(list) == 0 {
		in.refuse(m, "an array of at least one item")
	}
	if p.first != nil {
		return refusal(p.first)
	}
	var next *fetchBody
	if m := in.pick("fetch"); m.value != nil {
		body, refused := readFetch(m.value)
		if refused != nil {
			return refusal(refused)
		}
		if body.WaitMS > 0 {
			in.refuse(member{"wait_ms", m.value}, "absent or 0: the outcomes of the jobs would wait, too")
			return refusal(p.first)
		}
		next = &body
	}
	items := []object{}
	for _, raw := range list {
		o, refused := readOutcome(raw, isNack(r))
		var j *record
		if refused == nil {
			j, refused = act(o)
		}
		if refused != nil {
			items = append(items, object{"job_id": o.JobID, "status": "failed", "error": refused})
		} else {
			items = append(items, object{"job_id": o.JobID, "status": "ok", "job": j.show()})
		}
	}
	if next == nil {
		return ok(object{"items": items})
	}
	jobs := []shownJob{}
	if s.open(next.WorkerID) {
		jobs = s.claim(*next)
	}
	a := ok(object{"items": items, "jobs": jobs})
	a.jobs = jobs
	return a
}

var leaseToken = regexp.MustCompile(`^[0-9a-z]{1,13}$`)

func isNack(r *Request) bool { return strings.Contains(r.Path, "nack") }

var (
	ackNames  = []string{"job_id", "result", "worker_id", "attempt", "lease_token"}
	nackNames = []string{"job_id", "error", "worker_id", "attempt", "lease_token", "requeue", "delay_ms"}
)

func readOutcome(raw json.RawMessage, nack bool) (o outcome, refused *ojs.Error) {
	p := &problems{}
	r, ok := p.open(raw)
	if !ok {
		return o, p.first
	}
	names := ackNames
	if nack {
		names = nackNames
	}
	r.others(ojs.ErrInvalidRequest, names...)
	o.readRun(r)
	if o.JobID == "" {
		r.refuse(r.pick("job_id"), "the id of a job")
	}
	o.Requeue = r.boolean(r.pick("requeue"))
	o.DelayMS, _ = r.integer(r.pick("delay_ms"), 0, maxDuration.Milliseconds())
	// null is a result, too.
	var sent struct {
		Result json.RawMessage `json:"result"`
	}
	if json.Unmarshal(raw, &sent) == nil {
		o.Result = sent.Result
	}
	if m := r.pick("error"); nack && !o.Requeue {
		o.readError(r, m)
	}
	return o, p.first
}

// readRun reads what names a run of a job.
func (o *outcome) readRun(r reader) {
	o.JobID = strings.TrimPrefix(r.text(r.pick("job_id"), "the id of a job", nil), "job_")
	o.WorkerID = r.text(r.pick("worker_id"), "a string of at most 255 bytes", func(text string) bool { return len(text) <= 255 })
	attempt, _ := r.integer(r.pick("attempt"), math.MinInt32, math.MaxInt32)
	o.Attempt = int(attempt)
	o.Lease = r.text(r.pick("lease_token"), "the lease_token of a fetch", leaseToken.MatchString)
}

// readError reads a failure. What does not fit in it is replaced and not refused: a failure must not be lost. retryable is true if it was
// not sent, but for the codes of docs/reference/retries.md, Failure.
func (o *outcome) readError(r reader, m member) {
	members, isObject := objectOf(m.value)
	if !isObject {
		r.refuse(m, "an object")
		return
	}
	e := &o.Error
	e.Code, _ = textOf(members["code"])
	e.Type, _ = textOf(members["type"])
	var isText bool
	if e.Message, isText = textOf(members["message"]); !isText {
		e.Message = string(members["message"])
	}
	if details := members["details"]; details != nil && json.Unmarshal(details, &e.Details) != nil {
		e.Details = map[string]any{"value": details}
	}
	trace := members["backtrace"]
	if trace == nil {
		trace = members["stack_trace"]
	}
	if text, isText := textOf(trace); isText {
		e.Backtrace = strings.Split(text, "\n")
	} else if json.Unmarshal(trace, &e.Backtrace) != nil {
		e.Backtrace = nil
	}
	final := []string{
		"cancelled", "invalid_payload", "invalid_request", "schema_validation", "not_found", "duplicate", "unsupported",
		"job_cancelled", "non_retryable_error",
	}
	if json.Unmarshal(members["retryable"], &e.Retryable) != nil {
		e.Retryable = !slices.Contains(final, strings.ToLower(e.Code))
	}
}

// held finds the job of an outcome, if it is that of its present run. A cancelled job is answered to the worker that ran it
// without an error.
func (s *Server) held(o outcome) (*record, *ojs.Error) {
	j := s.jobs[o.JobID]
	switch {
	case j == nil:
		return nil, noSuch("job", o.JobID)
	case j.State == ojs.StateCancelled && j.ran && j.WorkerID == o.WorkerID:
		return j, nil
	case j.State != ojs.StateActive:
		return nil, wrongState(j, ojs.StateActive)
	case o.WorkerID != "" && o.WorkerID != j.WorkerID:
		return nil, newError(ojs.ErrNotOwner, object{"job_id": j.ID, "worker_id": o.WorkerID},
			"Job %s is reserved for worker_id %s, not for %s.", j.ID, j.WorkerID, o.WorkerID)
	case o.Attempt != 0 && o.Attempt != j.Attempt:
		return nil, newError(ojs.ErrStaleAttempt, object{"job_id": j.ID}, "attempt %d is not the current attempt of job %s, which is %d.",
			o.Attempt, j.ID, j.Attempt)
	case o.Lease != "" && o.Lease != j.LeaseToken:
		return nil, newError(ojs.ErrStaleAttempt, object{"job_id": j.ID}, "lease_token is not that of the current run of job %s.", j.ID)
	}
	return j, nil
}

func (s *Server) ack(o outcome) (*record, *ojs.Error) {
	j, refused := s.held(o)
	if refused != nil || j.State == ojs.StateCancelled {
		return j, refused
	}
	j.Result, j.Error = o.Result, nil
	s.end(j, ojs.StateCompleted)
	return j, nil
}

// nack ignores delay_ms without the extension, so that the job is available at once, or after its backoff.
func (s *Server) nack(o outcome) (*record, *ojs.Error) {
	j, refused := s.held(o)
	if refused != nil || j.State == ojs.StateCancelled {
		return j, refused
	}
	if o.Requeue {
		s.release(j)
		if o.DelayMS > 0 && s.has(ojs.ExtensionRequeueDelay) {
			j.State, j.due = ojs.StateScheduled, s.now().Add(time.Duration(o.DelayMS)*time.Millisecond)
			j.ScheduledAt = j.due
		}
		return j, nil
	}
	if !s.has(ojs.ExtensionRetryDelay) {
		o.DelayMS = 0
	}
	s.fail(j, o.Error, o.Error.Code, time.Duration(o.DelayMS)*time.Millisecond)
	return j, nil
}

func (s *Server) known(id string) *worker {
	if s.workers[id] == nil {
		s.workers[id] = &worker{}
	}
	return s.workers[id]
}

func (s *Server) register(r *Request) answer {
	var body struct {
		WorkerID string `json:"worker_id"`
	}
	if refused := readWorker(r.Body, &body, &body.WorkerID); refused != nil {
		return refusal(refused)
	}
	s.known(body.WorkerID).reported = ""
	return ok(object{"ok": true})
}

// readWorker reads what a worker says of itself; what else it sends is passed over.
func readWorker(body json.RawMessage, into any, id *string) *ojs.Error {
	p := &problems{}
	r, ok := p.open(body)
	if !ok {
		return p.first
	}
	m := r.pick("worker_id")
	if *id = r.text(m, "a string of 1 to 255 bytes", func(text string) bool { return text != "" && len(text) <= 255 }); m.value == nil {
		r.refuse(m, "a string of 1 to 255 bytes")
	}
	var texts map[string]string
	r.texts(r.pick("active_job_ids"), false, "an array of ids of jobs", func(string) bool { return true })
	r.integer(r.pick("visibility_timeout_ms"), 0, 604_800_000)
	if tokens := r.pick("lease_tokens"); tokens.value != nil && json.Unmarshal(tokens.value, &texts) != nil {
		r.refuse(tokens, "an object of lease_tokens by the id of the job")
	}
	if p.first == nil {
		_ = json.Unmarshal(body, into) // numbers in the place of lists are those of other SDKs
	}
	return p.first
}

// heartbeat has a completed job in none of the three lists: its worker knows.
func (s *Server) heartbeat(r *Request) answer {
	var body struct {
		WorkerID     string            `json:"worker_id"`
		State        ojs.Directive     `json:"state"`
		ActiveJobIDs []string          `json:"active_job_ids"`
		ActiveJobs   json.RawMessage   `json:"active_jobs"` // ids, or their number
		LeaseTokens  map[string]string `json:"lease_tokens"`
		VisibilityMS int64             `json:"visibility_timeout_ms"`
	}
	if refused := readWorker(r.Body, &body, &body.WorkerID); refused != nil {
		return refusal(refused)
	}
	var also []string
	if json.Unmarshal(body.ActiveJobs, &also) == nil {
		body.ActiveJobIDs = append(body.ActiveJobIDs, also...)
	}
	w := s.known(body.WorkerID)
	w.seen, w.active = s.now(), len(body.ActiveJobIDs)
	// A worker that has reported terminate stays so; a new process of the same name registers first.
	if w.reported != ojs.DirectiveTerminate {
		w.reported = body.State
	}
	extended, cancelled, lost := []string{}, []string{}, []string{}
	for _, id := range body.ActiveJobIDs {
		switch j := s.jobs[id]; {
		case j != nil && j.State == ojs.StateActive && j.WorkerID == body.WorkerID &&
			(body.LeaseTokens[id] == "" || body.LeaseTokens[id] == j.LeaseToken):
			length := cmp.Or(time.Duration(body.VisibilityMS)*time.Millisecond, j.lease)
			if until := s.now().Add(length); until.After(j.reserved) { // nothing shortens a reservation
				j.reserved = until
			}
			extended = append(extended, id)
		case j != nil && j.State == ojs.StateCancelled:
			cancelled = append(cancelled, id)
		case j == nil || j.State != ojs.StateCompleted:
			lost = append(lost, id)
		}
	}
	state := cmp.Or(w.directive, w.reported, ojs.DirectiveRunning)
	if w.reported == ojs.DirectiveTerminate {
		state = w.reported
	}
	return ok(object{"acknowledged": true, "state": state, "jobs_extended": extended, "jobs_cancelled": cancelled, "jobs_lost": lost,
		"server_time": s.now()})
}

// progress renews the reservation, by the length that was chosen when the job was fetched. A job that is not active stays as it is.
func (s *Server) progress(r *Request) answer {
	p := &problems{}
	in, isObject := p.open(r.Body)
	if !isObject {
		return refusal(p.first)
	}
	in.others(ojs.ErrInvalidRequest, "job_id", "worker_id", "attempt", "progress", "percentage", "message", "data", "checkpoint")
	var o outcome
	o.readRun(in)
	message := in.text(in.pick("message"), "a string", nil)
	number, data := in.pick("percentage"), in.pick("data")
	var percentage float64
	switch {
	case number.value == nil && data.value == nil, number.value != nil && json.Unmarshal(number.value, &percentage) != nil:
		in.refuse(number, "a number from 0 to 100, unless data is sent")
	case data.value != nil:
		in.inner(data) // it has to be an object
	}
	if p.first != nil {
		return refusal(p.first)
	}
	j := s.jobs[o.JobID]
	if j == nil {
		return notFound("job", o.JobID)
	}
	if j.State == ojs.StateActive {
		if _, refused := s.held(o); refused != nil {
			return refusal(refused)
		}
		share := max(0, min(percentage/100, 1))
		j.Progress, j.ProgressData, j.message, j.reserved = max(j.Progress, share), data.value, message, s.now().Add(j.lease)
		s.emit(ojs.EventJobProgress, j, object{"progress_percent": j.Progress * 100})
	}
	return ok(object{"job_id": j.ID, "state": j.State, "accepted": j.State == ojs.StateActive, "progress": j.Progress, "message": j.message,
		"data": j.ProgressData})
}

// saveCheckpoint is shown with the next fetch of the job (last_checkpoint).
func (s *Server) saveCheckpoint(id string, r *Request) answer {
	p := &problems{}
	in, isObject := p.open(r.Body)
	if !isObject {
		return refusal(p.first)
	}
	in.others(ojs.ErrInvalidRequest, "state", "worker_id", "attempt", "lease_token", "sequence", "step_index", "metadata", "job_id")
	var body struct {
		State json.RawMessage `json:"state"`
	}
	if json.Unmarshal(r.Body, &body) != nil || body.State == nil {
		in.refuse(member{name: "state"}, "any JSON")
	}
	if p.first != nil {
		return refusal(p.first)
	}
	j := s.jobs[id]
	if j == nil {
		return notFound("job", id)
	}
	if j.State.Terminal() {
		return conflict(j, ojs.StateActive)
	}
	var o outcome
	if o.readRun(in); j.State == ojs.StateActive {
		o.JobID = id
		if _, refused := s.held(o); refused != nil {
			return refusal(refused)
		}
		j.reserved = s.now().Add(j.lease)
	}
	j.checkpoint = body.State
	return ok(object{"job_id": j.ID})
}
