package ojs

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// JobRequest is a job to be enqueued, or a step of a workflow. The zero value of a field leaves the default to the server. It may
// be used for several enqueues if ID is empty.
type JobRequest struct {
	Type string // "": that of Args, if they are [JobArgs]
	Args any    // see Arguments in the package documentation
	// Meta is bounded to 64 KiB. trace_id, traceparent and tenant_id in it have a meaning for the server
	// (docs/reference/observability.md, Trace context; docs/reference/tenants.md, Enqueue).
	Meta map[string]any // data for handlers and middleware, such as a trace context
	// An ID that is taken is refused with [ErrDuplicateJob], so a caller that keeps its own can enqueue again after a crash
	// without making a second job.
	ID     string // UUIDv7; "": the client makes one, so that it can repeat an enqueue whose outcome it does not know
	Schema string // URI of the schema of args

	Queue string
	// From −100 to 100; 0 is the default.
	Priority int // higher is fetched first
	Tags     []string

	// Set one of Delay and RunAt: with both, Delay counts. The clock of the server counts for both, so a wrong clock of this process does
	// not make a Delay longer or shorter.
	Delay     time.Duration // runs that long after the enqueue; a step or the job of a cron that long after its turn has come
	RunAt     time.Time
	ExpiresAt time.Time

	Retry *RetryPolicy
	// Zero lengths have the defaults of the server: 30 min for an attempt, 30 s for its reservation, 7 days for a result, and
	// no limit for the others, unless the server or the queue is configured otherwise.
	Timeout           time.Duration // of an attempt
	VisibilityTimeout time.Duration // reservation of an attempt, which a worker renews
	EnqueueTTL        time.Duration // the job expires if it has not been started by then
	TotalTimeout      time.Duration // from the enqueue to the end, retries included
	HeartbeatTimeout  time.Duration // an attempt fails if it gives no sign of progress for that long
	ResultTTL         time.Duration // the result is kept that long; negative: as long as the job
	Unique            *UniquePolicy
	RateLimit         *RateLimit
	UniqueKey         string // 64 lower-case hex digits, in place of the key that the server computes
	Pending           bool   // waits for Client.Activate

	// What the fields above set wins over Extra.
	Extra map[string]any // other members of options, such as extensions of a server

	StepID    string   // in a workflow; "": the index of the step
	DependsOn []string // in a Graph: ids of the steps that must have completed

	completed bool // the options of Args are in it
}

// RetryPolicy says how often a job runs. Zero fields have the defaults of the server. Defaults, ranges and formulas:
// docs/reference/retries.md, Policy. A field that cannot be sent as zero keeps its default, such as MaxAttempts 0.
type RetryPolicy struct {
	// 3 by default. 1 means that a failure is final.
	MaxAttempts int // executions, the first one included
	// 1 s, 5 min and 2 by default: waits of 1, 2, 4 s and so on, up to MaxInterval, each times a random factor from 0.5 to 1.5
	// unless NoJitter is set.
	InitialInterval    time.Duration
	MaxInterval        time.Duration
	BackoffCoefficient float64
	BackoffStrategy    BackoffStrategy // exponential by default
	NoJitter           bool            // waits are not randomised
	// An error that matches ends the job at once, with attempts left.
	NonRetryableErrors []string // codes or types of errors, also as prefix.*
	// What becomes of a job that will not run again: dead_letter by default.
	OnExhaustion OnExhaustion
}

// BackoffStrategy says how the waits between attempts grow (docs/reference/retries.md, Policy).
type BackoffStrategy string

// The strategies of backoff.
const (
	BackoffExponential BackoffStrategy = "exponential"
	BackoffLinear      BackoffStrategy = "linear"
	BackoffPolynomial  BackoffStrategy = "polynomial"
	BackoffConstant    BackoffStrategy = "constant"
)

// OnExhaustion says what becomes of a job that will not run again.
type OnExhaustion string

// A dead letter can be looked at and retried by hand; a job that is discarded without one is only kept for its time.
const (
	ExhaustToDeadLetter OnExhaustion = "dead_letter"
	ExhaustToDiscard    OnExhaustion = "discard"
)

// UniquePolicy prevents equivalent jobs. Defaults and conflicts: docs/reference/unique.md, Policy. With OnConflict reject the
// enqueue fails with [ErrDuplicateJob]; with ignore it returns the existing job, with Deduplicated set.
type UniquePolicy struct {
	// What makes two jobs equivalent: type, which always does, queue, args, meta. Without Keys, ArgsKeys and MetaKeys it is type, queue and
	// args; to compare the type alone, say "type".
	Keys []string
	// Digits address an element of args, any other name a member of the first object in it that has it. A name that addresses
	// nothing is refused. ArgsKeys and MetaKeys imply args and meta in Keys.
	ArgsKeys []string      // only these members of args count
	MetaKeys []string      // only these members of meta count
	Period   time.Duration // older jobs do not count
	// By default all states in which a job has not ended.
	States     []JobState // only jobs in these states count
	OnConflict OnConflict // reject by default
}

// OnConflict says what becomes of an enqueue if an equivalent job exists (docs/reference/unique.md, Conflicts).
type OnConflict string

// Reject refuses the enqueue, ignore returns the existing job, and replace gives the existing job the content of the new one.
const (
	ConflictReject                OnConflict = "reject"
	ConflictIgnore                OnConflict = "ignore"
	ConflictReplace               OnConflict = "replace"
	ConflictReplaceExceptSchedule OnConflict = "replace_except_schedule"
)

// EnqueueOption changes a JobRequest. Options are applied in their order; of two that set the same field the last one counts.
type EnqueueOption func(*JobRequest)

// complete sets the type that the arguments name, and the options that they have, as far as no others are given. Options are set once: an
// option of an enqueue, or middleware, may remove what the arguments have.
func (r *JobRequest) complete() {
	if args, ok := r.Args.(JobArgs); ok && r.Type == "" {
		r.Type = args.JobType()
	}
	args, ok := r.Args.(JobOptions)
	if !ok || r.completed {
		return
	}
	r.completed = true
	of := JobRequest{}
	of.apply(args.JobOptions(), "JobOptions")
	own, from := reflect.ValueOf(r).Elem(), reflect.ValueOf(of)
	for i := range own.NumField() {
		if f := own.Field(i); f.CanSet() && f.IsZero() {
			f.Set(from.Field(i))
		}
	}
}

func (r *JobRequest) apply(options []EnqueueOption, of string) {
	for i, o := range options {
		if o == nil {
			panic(fmt.Sprintf("ojs: option %d of %s is nil", i, of))
		}
		o(r)
	}
}

// withID is a copy that has an id.
func (r JobRequest) withID() *JobRequest {
	if r.ID == "" {
		r.ID = NewID()
	}
	return &r
}

// WithID chooses the id of the job. A second job with it is refused with ErrDuplicateJob.
func WithID(id string) EnqueueOption { return func(r *JobRequest) { r.ID = id } }

// WithQueue chooses the queue.
func WithQueue(queue string) EnqueueOption { return func(r *JobRequest) { r.Queue = queue } }

// WithPriority sets the priority; higher is fetched first. The range is −100 to 100; 0 is the default.
func WithPriority(priority int) EnqueueOption { return func(r *JobRequest) { r.Priority = priority } }

// WithDelay runs the job that long after the server has stored it; a step or the job of a cron that long after its turn. It is sent as a
// duration of ISO 8601. A server of others that takes times only refuses it; [WithRunAt] works there, too.
func WithDelay(d time.Duration) EnqueueOption { return func(r *JobRequest) { r.Delay = d } }

// WithRunAt runs the job at a time.
func WithRunAt(at time.Time) EnqueueOption { return func(r *JobRequest) { r.RunAt = at } }

// WithExpiresAt discards the job if it has not been started by then. A job that runs is not ended by it.
func WithExpiresAt(at time.Time) EnqueueOption { return func(r *JobRequest) { r.ExpiresAt = at } }

// WithRetry sets the retry policy. It replaces the whole policy, also what [WithMaxAttempts] has set before it.
func WithRetry(p RetryPolicy) EnqueueOption { return func(r *JobRequest) { r.Retry = &p } }

// WithMaxAttempts bounds the number of executions and leaves the rest of the retry policy as it is.
func WithMaxAttempts(n int) EnqueueOption {
	return func(r *JobRequest) {
		p := RetryPolicy{}
		if r.Retry != nil {
			p = *r.Retry
		}
		p.MaxAttempts = n
		r.Retry = &p
	}
}

// WithTimeout bounds the time of an attempt. When it is over, the context of the handler is cancelled with [ErrJobTimeout] as
// its cause, and the server fails the attempt (docs/reference/retries.md, Timeouts).
func WithTimeout(d time.Duration) EnqueueOption { return func(r *JobRequest) { r.Timeout = d } }

// WithUnique prevents equivalent jobs. The check is made when the job is enqueued, in the same transaction; see [UniquePolicy].
func WithUnique(p UniquePolicy) EnqueueOption { return func(r *JobRequest) { r.Unique = &p } }

// WithTags adds tags. Repetitions are dropped by the server.
func WithTags(tags ...string) EnqueueOption {
	return func(r *JobRequest) { r.Tags = append(slices.Clip(r.Tags), tags...) }
}

// WithMeta adds one member to meta.
func WithMeta(key string, value any) EnqueueOption {
	return func(r *JobRequest) { r.SetMeta(key, value) }
}

// WithStep names the step of a workflow, and what it waits for in a [Graph].
func WithStep(id string, dependsOn ...string) EnqueueOption {
	return func(r *JobRequest) { r.StepID, r.DependsOn = id, dependsOn }
}

// SetMeta adds one member to meta, for middleware. It leaves the map that the caller has passed as it is.
func (r *JobRequest) SetMeta(key string, value any) {
	meta := make(map[string]any, len(r.Meta)+1)
	maps.Copy(meta, r.Meta)
	meta[key] = value
	r.Meta = meta
}

// MarshalJSON gives the body of an enqueue.
func (r JobRequest) MarshalJSON() ([]byte, error) {
	return r.marshal(map[string]any{}, r.ID)
}

// step gives the request as a member of a workflow.
func (r JobRequest) step() ([]byte, error) {
	m := map[string]any{}
	if r.DependsOn != nil {
		m["depends_on"] = r.DependsOn
	}
	return r.marshal(m, r.StepID)
}

func (r JobRequest) marshal(m map[string]any, id string) ([]byte, error) {
	r.complete()
	args, err := encodeArgs(r.Args)
	if err != nil {
		return nil, err
	}
	m["type"], m["args"] = r.Type, args
	if id != "" {
		m["id"] = id
	}
	if len(r.Meta) > 0 {
		m["meta"] = r.Meta
	}
	if r.Schema != "" {
		m["schema"] = r.Schema
	}
	if options := r.options(); len(options) > 0 {
		m["options"] = options
	}
	return json.Marshal(m)
}

// options are those of the request. A delay is sent as a duration, which counts from the enqueue or the turn of a step by the clock of the
// server (docs/reference/jobs.md, Times and durations).
func (r JobRequest) options() map[string]any {
	o := optionSet{}
	maps.Copy(o, r.Extra)
	o.text("queue", r.Queue)
	o.number("priority", int64(r.Priority))
	if len(r.Tags) > 0 {
		o["tags"] = r.Tags
	}
	o.time("delay_until", r.RunAt)
	if r.Delay > 0 {
		o["delay_until"] = isoDuration(r.Delay)
	}
	o.time("expires_at", r.ExpiresAt)
	o.number("timeout_ms", milliseconds(r.Timeout))
	o.number("visibility_timeout_ms", milliseconds(r.VisibilityTimeout))
	o.seconds("enqueue_ttl", r.EnqueueTTL)
	o.seconds("total_timeout", r.TotalTimeout)
	o.seconds("heartbeat_timeout", r.HeartbeatTimeout)
	if r.ResultTTL < 0 {
		o["result_ttl"] = -1
	} else {
		o.seconds("result_ttl", r.ResultTTL)
	}
	if r.Retry != nil {
		o["retry"] = r.Retry.wire()
	}
	if r.Unique != nil {
		o["unique"] = r.Unique.wire(r.UniqueKey == "")
	}
	if r.RateLimit != nil {
		o["rate_limit"] = r.RateLimit.wire()
	}
	o.text("unique_key", r.UniqueKey)
	if r.Pending {
		o["pending"] = true
	}
	return o
}

func (p *RetryPolicy) wire() map[string]any {
	o := optionSet{}
	o.number("max_attempts", int64(p.MaxAttempts))
	o.duration("initial_interval", p.InitialInterval)
	o.duration("max_interval", p.MaxInterval)
	if p.BackoffCoefficient != 0 {
		o["backoff_coefficient"] = p.BackoffCoefficient
	}
	o.text("backoff_strategy", string(p.BackoffStrategy))
	if p.NoJitter {
		o["jitter"] = false
	}
	if len(p.NonRetryableErrors) > 0 {
		o["non_retryable_errors"] = p.NonRetryableErrors
	}
	o.text("on_exhaustion", string(p.OnExhaustion))
	return o
}

// wire has what makes the key if the server computes it.
func (p *UniquePolicy) wire(computed bool) map[string]any {
	o := optionSet{}
	keys := slices.Clone(p.Keys)
	if len(p.ArgsKeys) > 0 && !slices.Contains(keys, "args") {
		keys = append(keys, "args")
	}
	if len(p.MetaKeys) > 0 && !slices.Contains(keys, "meta") {
		keys = append(keys, "meta")
	}
	if computed && len(keys) == 0 {
		keys = []string{"type", "queue", "args"} // a server takes no keys for the type alone
	}
	for name, list := range map[string][]string{"keys": keys, "args_keys": p.ArgsKeys, "meta_keys": p.MetaKeys} {
		if len(list) > 0 {
			o[name] = list
		}
	}
	o.duration("period", p.Period)
	if len(p.States) > 0 {
		o["states"] = p.States
	}
	o.text("on_conflict", string(p.OnConflict))
	return o
}

// Rate is a number of starts in a period. Limit is at least 1, and Period above zero.
type Rate struct {
	Limit  int
	Period time.Duration
}

func (r *Rate) wire() map[string]any {
	return map[string]any{"limit": r.Limit, "period": isoDuration(r.Period)}
}

// RateLimit bounds the jobs that name the same key. Fields that are nil bound nothing. Give a Key: the limit of a whole queue
// is in its configuration (docs/reference/limits.md, Policies).
type RateLimit struct {
	Key         string
	Concurrency *int    // jobs that are active at the same time
	Rate        *Rate   // starts in any period of that length
	Throttle    *Rate   // starts, evenly spaced
	OnLimit     OnLimit // wait by default
}

// OnLimit says what becomes of a job that may not start now (docs/reference/limits.md, When a limit blocks a job).
type OnLimit string

// A job that waits starts as soon as the limit permits it, one that is rescheduled comes back later, and one that is dropped is discarded.
const (
	OnLimitWait       OnLimit = "wait"
	OnLimitReschedule OnLimit = "reschedule"
	OnLimitDrop       OnLimit = "drop"
)

func (l *RateLimit) wire() map[string]any {
	o := optionSet{}
	o.text("key", l.Key)
	o.text("on_limit", string(l.OnLimit))
	if l.Concurrency != nil {
		o["concurrency"] = *l.Concurrency
	}
	if l.Rate != nil {
		o["rate"] = l.Rate.wire()
	}
	if l.Throttle != nil {
		o["throttle"] = l.Throttle.wire()
	}
	return o
}

// WithRateLimit has the job start only if the limit of its key permits it. The limit of a key is that of the job that has named it last.
// Its parts must all permit the start (docs/reference/limits.md, When a job may start).
func WithRateLimit(l RateLimit) EnqueueOption { return func(r *JobRequest) { r.RateLimit = &l } }

// optionSet leaves out what is zero.
type optionSet map[string]any

func (o optionSet) text(name, value string) {
	if value != "" {
		o[name] = value
	}
}

func (o optionSet) number(name string, value int64) {
	if value != 0 {
		o[name] = value
	}
}

// seconds rounds up, so that no limit becomes none.
func (o optionSet) seconds(name string, d time.Duration) {
	o.number(name, int64((d+time.Second-1)/time.Second))
}

// milliseconds rounds up: 0 means the default on the wire.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return ms
}

func (o optionSet) duration(name string, d time.Duration) {
	if d != 0 {
		o[name] = isoDuration(d)
	}
}

func (o optionSet) time(name string, t time.Time) {
	if !t.IsZero() {
		o[name] = t.UTC().Format(time.RFC3339Nano)
	}
}

// isoDuration gives an ISO 8601 duration in seconds.
func isoDuration(d time.Duration) string {
	return "PT" + strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "S"
}
