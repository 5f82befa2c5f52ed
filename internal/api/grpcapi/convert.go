package grpcapi

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5/pgtype"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/jsonread"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

type moment = timestamppb.Timestamp

// jobOf shows a job. What is not set is what its HTTP form leaves out.
// What has no field in the message is left out (docs/reference/grpc.md, Values).
func jobOf(j *job.Record) *ojsv1.Job {
	// What the client sent is kept as it was, and is read here again.
	extra := readExtra(j.Extra)
	out := &ojsv1.Job{
		Id: spec.FormatID(j.ID), Type: j.Type, Queue: j.Queue, Args: valuesOf(j.Args), State: stateOf(j.State), Specversion: api.SpecVersion,
		Priority: int32(j.Priority), Attempt: j.Attempt, MaxAttempts: narrow(j.MaxAttempts), TraceId: j.TraceID.String, WorkflowId: extra.workflow,
		RetryPolicy: extra.retryPolicy(j.MaxAttempts), UniquePolicy: extra.uniquePolicy(j.Args), Result: wrapped(j.Result), Tags: extra.tags,
		CreatedAt: momentOf(j.CreatedAt), EnqueuedAt: momentOf(j.EnqueuedAt), StartedAt: momentOf(j.StartedAt),
		ScheduledAt: extra.scheduledAt, ExpiresAt: extra.expiresAt, Timeout: extra.timeout, VisibilityTimeout: extra.visibility,
	}
	// nil is {}, and the field is left out.
	if j.Meta != nil {
		out.Meta = structOf(j.Meta)
	}
	switch state := ojs.JobState(j.State); {
	// The message has one time of the end, shown as over HTTP: a job that was cancelled or expired has none.
	case state == ojs.StateCompleted, state == ojs.StateDiscarded && j.Failed:
		out.CompletedAt = momentOf(j.FinishedAt)
	}
	for _, e := range j.Errors {
		out.Errors = append(out.Errors, jobErrorOf(e))
	}
	return out
}

func jobsOf(jobs []*job.Record) []*ojsv1.Job {
	out := make([]*ojsv1.Job, len(jobs))
	for i, j := range jobs {
		out[i] = jobOf(j)
	}
	return out
}

// An unknown state becomes JOB_STATE_UNSPECIFIED.
func stateOf(state string) ojsv1.JobState {
	return ojsv1.JobState(ojsv1.JobState_value["JOB_STATE_"+strings.ToUpper(state)])
}

// jobErrorOf shows a stored failure.
// type stands for a missing code, because the message has no field for it.
func jobErrorOf(object jsontext.Value) *ojsv1.JobError {
	out := &ojsv1.JobError{}
	kind := ""
	for literal, value := range jsonread.Members(object) {
		switch string(jsonread.Name(literal)) {
		case "code":
			out.Code, _ = jsonread.Text(value)
		case "type":
			kind, _ = jsonread.Text(value)
		case "message":
			out.Message, _ = jsonread.Text(value)
		case "retryable":
			out.Retryable, _ = jsonread.Bool(value)
		case "attempt":
			n, _ := jsonread.Int(value)
			out.Attempt = narrow(n)
		case "occurred_at":
			out.OccurredAt = when(value)
		// Frames are lines, because the field is one text.
		case "backtrace":
			out.Backtrace = strings.Join(texts(value), "\n")
		case "details":
			out.Details = wrapped(value)
		}
	}
	// A client that looks at the code only still learns what failed.
	if out.Code == "" {
		out.Code = kind
	}
	return out
}

// retryPolicy completes what was sent; nil if nothing was.
// Fields that the client did not send have the defaults of the server, not those of the queue.
func (e extras) retryPolicy(maxAttempts int64) *ojsv1.RetryPolicy {
	if e.retry == nil {
		return nil
	}
	base := retry.Default()
	// The column wins: an enqueue may have set it beside the policy.
	base.MaxAttempts = maxAttempts
	p, err := retry.Parse(e.retry, base)
	if err != nil { // it was accepted at enqueue
		return nil
	}
	return &ojsv1.RetryPolicy{
		MaxAttempts: narrow(p.MaxAttempts), InitialInterval: durationpb.New(p.InitialInterval), BackoffCoefficient: p.BackoffCoefficient,
		MaxInterval: durationpb.New(p.MaxInterval), Jitter: p.Jitter, NonRetryableErrors: p.NonRetryable,
		OnExhaustion: cmp.Or(p.OnExhaustion, retry.ExhaustDeadLetter),
	}
}

// uniquePolicy reads what was sent by the rules of enqueue, whose many spellings it may have, and for which the names of
// arguments must be there.
func (e extras) uniquePolicy(args []byte) *ojsv1.UniquePolicy {
	if e.unique == nil {
		return nil
	}
	// It is the parser of enqueue, so all its spellings are understood.
	u := job.ParseUnique(e.unique, args)
	if u == nil { // it was accepted at enqueue
		return nil
	}
	out := &ojsv1.UniquePolicy{Key: u.Keys, ArgsKeys: u.ArgsKeys, MetaKeys: u.MetaKeys}
	// A text as key, which only HTTP takes, is shown as the array of one.
	if u.Text != "" {
		out.Key = []string{u.Text}
	}
	if u.Period > 0 {
		out.Period = durationpb.New(u.Period)
	}
	out.OnConflict = ojsv1.UniqueConflictAction(ojsv1.UniqueConflictAction_value["UNIQUE_CONFLICT_ACTION_"+strings.ToUpper(u.OnConflict)])
	for _, s := range u.States {
		out.States = append(out.States, stateOf(string(s)))
	}
	return out
}

// It is nil for what is no time.
func when(v jsontext.Value) *moment {
	text, _ := jsonread.Text(v)
	at, ok := job.ParseTime(text)
	if !ok {
		return nil
	}
	return timestamppb.New(at)
}

// A fraction or a text, which enqueue refuses, is shown as nothing.
func millisecondsOf(v jsontext.Value) *durationpb.Duration {
	n, kind := jsonread.Int(v)
	if kind != jsonread.IsInt {
		return nil
	}
	return milliseconds(n)
}

// Elements that are no texts become "".
func texts(array jsontext.Value) []string {
	if array == nil || array[0] != '[' {
		return nil
	}
	var list []string
	for e := range jsonread.Elements(array) {
		text, _ := jsonread.Text(e)
		list = append(list, text)
	}
	return list
}

// options reads the options of a job (docs/reference/grpc.md, Values); nil if none were sent.
// Zero and unset mean the same, because proto3 cannot tell them apart: priority 0 and max_attempts 0 are the defaults.
// nil and empty options are the same.
func (r *reader) options(in *ojsv1.EnqueueOptions) *job.Options {
	if in == nil {
		return nil
	}
	return &job.Options{
		Queue: in.GetQueue(), Priority: int64(in.GetPriority()), DelayUntil: r.moment("delay_until", in.GetDelayUntil()),
		TimeoutMS: r.milliseconds("timeout", in.GetTimeout()), VisibilityMS: r.milliseconds("visibility_timeout", in.GetVisibilityTimeout()),
		Retry: r.retry(in.GetRetry()), MaxAttempts: int64(in.GetMaxAttempts()), Unique: r.unique(in.GetUnique()), TTL: r.ttl(in.GetTtl()),
		Tags: in.GetTags(), Pending: in.GetPending(), Meta: r.meta(in),
	}
}

// Only what JSON could not hold is refused here; the rules of package retry do the rest.
func (r *reader) retry(in *ojsv1.RetryPolicy) *retry.Draft {
	if in == nil {
		return nil
	}
	d := &retry.Draft{
		MaxAttempts: int64(in.GetMaxAttempts()), InitialIntervalMS: r.milliseconds("retry.initial_interval", in.GetInitialInterval()),
		MaxIntervalMS: r.milliseconds("retry.max_interval", in.GetMaxInterval()), Jitter: in.GetJitter(),
		NonRetryable: in.GetNonRetryableErrors(), OnExhaustion: in.GetOnExhaustion(),
	}
	// JSON cannot hold such a number, so the rules of HTTP do not know it.
	if c := in.GetBackoffCoefficient(); math.IsNaN(c) || math.IsInf(c, 0) {
		r.refuse(ojs.ErrValidation, "retry.backoff_coefficient", "a finite number >= 1", fmt.Sprint(c))
	} else {
		d.BackoffCoefficient = c
	}
	return d
}

// Names of states and actions are given as JSON has them, so that one set of rules reads both.
func (r *reader) unique(in *ojsv1.UniquePolicy) *job.UniqueDraft {
	if in == nil {
		return nil
	}
	d := &job.UniqueDraft{Key: in.GetKey(), PeriodMS: r.milliseconds("unique.period", in.GetPeriod()), ArgsKeys: in.GetArgsKeys(), MetaKeys: in.GetMetaKeys()}
	// 0 is unspecified, which leaves the default.
	if action := in.GetOnConflict(); action != 0 {
		d.OnConflict = word(action, "UNIQUE_CONFLICT_ACTION_")
	}
	for _, s := range in.GetStates() {
		d.States = append(d.States, word(s, "JOB_STATE_"))
	}
	return d
}

// word is how JSON spells an enum; a number without a name is left for the reader to refuse.
func word(e fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(e.String(), prefix))
}

// maxTTL is 36 500 days, the most of any duration (docs/reference/jobs.md, Times and durations).
const maxTTL = 36_500 * 24 * time.Hour

// ttl counts from the insert, by the database's clock.
// It is relative, so the clocks of client and node do not matter.
func (r *reader) ttl(d *durationpb.Duration) time.Duration {
	if d.GetSeconds() == 0 && d.GetNanos() == 0 {
		return 0
	}
	// A time.Duration ends at 292 years, beyond the limit.
	ttl := d.AsDuration() // the nearest there is if it is out of range
	if d.CheckValid() != nil || ttl < 0 || ttl > maxTTL {
		r.refuse(ojs.ErrInvalidPayload, "ttl", "a duration from 0 to 36500 days", ttl.String())
	}
	return ttl
}

// meta adds the trace id if meta has no trace context of its own (docs/reference/events.md, Trace id).
// The copy of trace_id in meta is where HTTP clients have it, too.
func (r *reader) meta(in *ojsv1.EnqueueOptions) []byte {
	meta := r.object("meta", ojs.ErrInvalidMetadata, in.GetMeta())
	// Also one that is no text: the client has said something about it.
	_, taken := in.GetMeta().GetFields()["trace_id"]
	if in.GetTraceId() == "" || r.err != nil || taken || job.TraceID(meta) != "" {
		return meta
	}
	if len(meta) <= len(`{}`) {
		meta = []byte{'{'}
	} else {
		meta = append(meta[:len(meta)-1], ',')
	}
	return append(appendText(append(meta, `"trace_id":`...), in.GetTraceId()), '}')
}

// withDefaults gives an entry of a batch the fields that it leaves unset, each as a whole.
// A field is taken whole: retry of the entry hides retry of the defaults, even if it sets one member. Neither argument is
// changed; their parts are shared.
func withDefaults(own, defaults *ojsv1.EnqueueOptions) *ojsv1.EnqueueOptions {
	if defaults == nil {
		return own
	}
	if own == nil {
		return defaults
	}
	// Range passes only over fields that are set.
	merged := &ojsv1.EnqueueOptions{}
	m := merged.ProtoReflect()
	for _, options := range []*ojsv1.EnqueueOptions{defaults, own} {
		options.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
			m.Set(field, value)
			return true
		})
	}
	return merged
}

// optionsOf shows the options of a cron's template.
// What the message has no field for is left out.
func optionsOf(j *job.Job) *ojsv1.EnqueueOptions {
	extra := readExtra(j.Extra)
	out := &ojsv1.EnqueueOptions{
		Queue: j.Queue, Priority: int32(j.Priority), Timeout: extra.timeout, VisibilityTimeout: extra.visibility, Tags: extra.tags,
		Retry: extra.retryPolicy(j.MaxAttempts), Unique: extra.uniquePolicy(j.Args), MaxAttempts: narrow(j.MaxAttempts), Pending: j.Pending,
		DelayUntil: extra.scheduledAt,
	}
	// The message has ttl only, so an absolute time, which HTTP takes, is not shown.
	if j.ExpiresAt.Relative {
		out.Ttl = durationpb.New(j.ExpiresAt.In)
	}
	if j.Meta == nil {
		return out
	}
	meta := structOf(j.Meta)
	// They would be wrong for the template.
	delete(meta.Fields, "cron_name") // those two are of each firing
	delete(meta.Fields, "cron_triggered_at")
	if len(meta.Fields) > 0 {
		out.Meta = meta
	}
	return out
}

// extras are the attributes of a job that are kept as they were sent.
type extras struct {
	timeout, visibility    *durationpb.Duration
	scheduledAt, expiresAt *moment
	tags                   []string
	retry, unique          []byte
	workflow               string
}

// A value of another form than the server stores is as if it were not there.
func readExtra(object []byte) extras {
	var e extras
	if object == nil {
		return e
	}
	for literal, value := range jsonread.Members(object) {
		switch string(jsonread.Name(literal)) {
		case "timeout_ms":
			e.timeout = millisecondsOf(value)
		case "visibility_timeout_ms":
			e.visibility = millisecondsOf(value)
		case "scheduled_at":
			e.scheduledAt = when(value)
		case "expires_at":
			e.expiresAt = when(value)
		case "tags":
			e.tags = texts(value)
		case "retry":
			e.retry = value
		case "unique":
			e.unique = value
		case "workflow_id":
			e.workflow, _ = jsonread.Text(value)
		}
	}
	return e
}

// valueOf is stored JSON as a message. Numbers become doubles; those beyond them the largest there is.
// Integers beyond 2^53 lose digits, as in every Struct.
// It recurses; the nesting of what is stored was bounded when it came in.
func valueOf(v jsontext.Value) *structpb.Value {
	switch v.Kind() {
	case 't', 'f':
		b, _ := jsonread.Bool(v)
		return structpb.NewBoolValue(b)
	case '"':
		text, _ := jsonread.Text(v)
		return structpb.NewStringValue(text)
	case '0':
		return structpb.NewNumberValue(number(v))
	case '{':
		return structpb.NewStructValue(structOf(v))
	case '[':
		return structpb.NewListValue(&structpb.ListValue{Values: valuesOf(v)})
	}
	return structpb.NewNullValue()
}

// protojson cannot show infinities, so the largest double stands for them.
func number(v jsontext.Value) float64 {
	f, _ := strconv.ParseFloat(string(v), 64) // infinite if it is out of range
	return min(max(f, -math.MaxFloat64), math.MaxFloat64)
}

func valuesOf(array jsontext.Value) []*structpb.Value {
	var list []*structpb.Value
	for e := range jsonread.Elements(array) {
		list = append(list, valueOf(e))
	}
	return list
}

// structOf wants an object.
// The members of equal names are merged to the last one, as HTTP has it.
func structOf(object jsontext.Value) *structpb.Struct {
	s := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for literal, value := range jsonread.Members(object) {
		s.Fields[string(jsonread.Name(literal))] = valueOf(value)
	}
	return s
}

// wrapped is a result: a Struct holds only objects, so anything else is its one member, value.
func wrapped(result jsontext.Value) *structpb.Struct {
	// No result and a result of null differ: the latter is value: null.
	if result == nil {
		return nil
	}
	if result[0] == '{' {
		return structOf(result)
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"value": valueOf(result)}}
}

// It is nil for NULL and for infinite times, which protobuf cannot hold.
func momentOf(t pgtype.Timestamptz) *timestamppb.Timestamp {
	if !t.Valid || t.InfinityModifier != pgtype.Finite {
		return nil
	}
	return timestamppb.New(t.Time)
}

// The division cuts towards zero and the rest has the same sign, as protobuf asks.
func milliseconds(n int64) *durationpb.Duration {
	return &durationpb.Duration{Seconds: n / 1000, Nanos: int32(n % 1000 * int64(time.Millisecond))}
}

// narrow is the nearest int32.
// Fields of the message are int32 where the server stores int64.
func narrow(n int64) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }

// reader reads messages into the types that the domains work with. err is the first thing that a message says and those types
// cannot hold, such as a number that is not finite.
// After an error the result is of no use, but reading goes on, so that callers look at err once, at the end.
type reader struct{ err *ojs.Error }

// The first problem counts; HTTP lists all, which the decoders of the domains do for what they check.
func (r *reader) refuse(kind ojs.ErrorKind, field, expected, received string) {
	if r.err == nil {
		r.err = spec.InvalidField(kind, field, expected, received, fmt.Sprintf("'%s' must be %s, got %s.", field, expected, received))
	}
}

// milliseconds rounds a duration away from zero. A negative one is for the rules to refuse.
// Away from zero, so that a duration of a microsecond does not become "not given".
func (r *reader) milliseconds(field string, d *durationpb.Duration) int64 {
	if d.GetSeconds() == 0 && d.GetNanos() == 0 {
		return 0
	}
	if err := d.CheckValid(); err != nil {
		r.refuse(ojs.ErrInvalidPayload, field, "a valid duration", strconv.FormatInt(d.GetSeconds(), 10)+" s")
		return 0
	}
	// CheckValid has made sure that both parts have the same sign.
	nanos := int64(d.GetNanos())
	ms, rest := nanos/1e6, nanos%1e6
	switch {
	case rest > 0:
		ms++
	case rest < 0:
		ms--
	}
	// A valid duration has at most 10 000 years, so it cannot overflow.
	return d.GetSeconds()*1000 + ms
}

// moment is nil for a timestamp that was not sent.
// The zero timestamp is 1970 and counts as not sent.
func (r *reader) moment(field string, t *timestamppb.Timestamp) *time.Time {
	if t.GetSeconds() == 0 && t.GetNanos() == 0 {
		return nil
	}
	if err := t.CheckValid(); err != nil {
		r.refuse(ojs.ErrInvalidPayload, field, "a timestamp from year 1 to 9999", strconv.FormatInt(t.GetSeconds(), 10)+" s")
		return nil
	}
	at := t.AsTime()
	return &at
}

// array encodes values as they are stored.
func (r *reader) array(field string, kind ojs.ErrorKind, list []*structpb.Value) []byte {
	return r.appendArray(nil, field, kind, list)
}

// object encodes a Struct as it is stored; nil if it was not sent.
func (r *reader) object(field string, kind ojs.ErrorKind, s *structpb.Struct) []byte {
	if s == nil {
		return nil
	}
	return r.appendObject(nil, field, kind, s)
}

func (r *reader) appendArray(b []byte, field string, kind ojs.ErrorKind, list []*structpb.Value) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = r.appendValue(b, field, kind, v)
	}
	return append(b, ']')
}

// appendValue appends any value; one without a kind is null. field and kind are for what JSON cannot hold.
// It recurses; protobuf itself bounds the nesting of a message that it decodes.
func (r *reader) appendValue(b []byte, field string, kind ojs.ErrorKind, v *structpb.Value) []byte {
	switch v := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		if math.IsNaN(v.NumberValue) || math.IsInf(v.NumberValue, 0) {
			r.refuse(kind, field, "free of numbers that are not finite", fmt.Sprint(v.NumberValue))
			return append(b, "null"...)
		}
		// A whole number is stored without a fraction, as HTTP clients send it.
		return jsonread.AppendNumber(b, v.NumberValue)
	case *structpb.Value_StringValue:
		return appendText(b, v.StringValue)
	case *structpb.Value_BoolValue:
		return strconv.AppendBool(b, v.BoolValue)
	case *structpb.Value_StructValue:
		return r.appendObject(b, field, kind, v.StructValue)
	case *structpb.Value_ListValue:
		return r.appendArray(b, field, kind, v.ListValue.GetValues())
	default:
		return append(b, "null"...)
	}
}

// appendObject appends the members of a Struct by name, because a map has no order and equal requests should be stored alike.
func (r *reader) appendObject(b []byte, field string, kind ojs.ErrorKind, s *structpb.Struct) []byte {
	b = append(b, '{')
	// The hash of an idempotency key and a unique key by args depend on it.
	for i, name := range slices.Sorted(maps.Keys(s.GetFields())) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendText(b, name), ':')
		b = r.appendValue(b, field, kind, s.Fields[name])
	}
	return append(b, '}')
}

func appendText(b []byte, text string) []byte {
	b, _ = jsontext.AppendQuote(b, text) // what was decoded as a proto3 string is valid UTF-8
	return b
}
