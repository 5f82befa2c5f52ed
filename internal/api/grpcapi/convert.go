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
		Id: spec.FormatID(j.ID), Type: j.Type, Queue: j.Queue, Args: valuesOf(j.Args), State: stateOf(j.State),
		Specversion: api.SpecVersion, Priority: int32(j.Priority), Attempt: j.Attempt, MaxAttempts: narrow(j.MaxAttempts),
		TraceId: j.TraceID.String, WorkflowId: extra.workflow, RetryPolicy: extra.retryPolicy(j.MaxAttempts),
		UniquePolicy: extra.uniquePolicy(j.Args), Result: wrapped(j.Result), Tags: extra.tags, CreatedAt: momentOf(j.CreatedAt),
		EnqueuedAt: momentOf(j.EnqueuedAt), StartedAt: momentOf(j.StartedAt), ScheduledAt: extra.scheduledAt, ExpiresAt: extra.expiresAt,
		Timeout: extra.timeout, VisibilityTimeout: extra.visibility,
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

func stateOf(state string) ojsv1.JobState {
	return enumOf[ojsv1.JobState](ojsv1.JobState_value, "JOB_STATE_", state)
}

// enumOf is the value of an enum that JSON spells so; 0, unspecified, for a word that the enum has not. word is its inverse.
func enumOf[E ~int32](values map[string]int32, prefix, word string) E {
	return E(values[prefix+strings.ToUpper(word)])
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
	base := job.DefaultRetry()
	// The column wins: an enqueue may have set it beside the policy.
	base.MaxAttempts = maxAttempts
	p, err := job.ParseRetry(e.retry, base)
	if err != nil { // it was accepted at enqueue
		return nil
	}
	return &ojsv1.RetryPolicy{
		MaxAttempts: narrow(p.MaxAttempts), InitialInterval: durationpb.New(p.InitialInterval), BackoffCoefficient: p.BackoffCoefficient,
		MaxInterval: durationpb.New(p.MaxInterval), Jitter: p.Jitter, NonRetryableErrors: p.NonRetryable,
		OnExhaustion: cmp.Or(p.OnExhaustion, job.ExhaustDeadLetter),
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
	out.OnConflict = enumOf[ojsv1.UniqueConflictAction](ojsv1.UniqueConflictAction_value, "UNIQUE_CONFLICT_ACTION_", u.OnConflict)
	for _, s := range u.States {
		out.States = append(out.States, stateOf(string(s)))
	}
	return out
}

// when is nil for what is no time.
func when(v jsontext.Value) *moment {
	text, _ := jsonread.Text(v)
	at, ok := job.ParseTime(text)
	if !ok {
		return nil
	}
	return timestamppb.New(at)
}

// millisecondsOf shows a fraction or a text, which enqueue refuses, as nothing.
func millisecondsOf(v jsontext.Value) *durationpb.Duration {
	n, kind := jsonread.Int(v)
	if kind != jsonread.IsInt {
		return nil
	}
	// The division cuts towards zero and the rest has the same sign, as protobuf asks.
	return &durationpb.Duration{Seconds: n / 1000, Nanos: int32(n % 1000 * int64(time.Millisecond))}
}

// texts makes elements that are no texts to "".
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

// readExtra takes a value of another form than the server stores as if it were not there.
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
		f, _ := strconv.ParseFloat(string(v), 64) // infinite if it is out of range, which protojson cannot show
		return structpb.NewNumberValue(min(max(f, -math.MaxFloat64), math.MaxFloat64))
	case '{':
		return structpb.NewStructValue(structOf(v))
	case '[':
		return structpb.NewListValue(&structpb.ListValue{Values: valuesOf(v)})
	}
	return structpb.NewNullValue()
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

// momentOf is nil for NULL and for infinite times, which protobuf cannot hold.
func momentOf(t pgtype.Timestamptz) *timestamppb.Timestamp {
	if !t.Valid || t.InfinityModifier != pgtype.Finite {
		return nil
	}
	return timestamppb.New(t.Time)
}

// narrow is the nearest int32.
// Fields of the message are int32 where the server stores int64.
func narrow(n int64) int32 { return int32(min(max(n, math.MinInt32), math.MaxInt32)) }

// jsonWriter writes a message as the JSON that a client of HTTP sends for the same, so that both transports enter one decoder, which has
// the rules. What proto3 cannot tell from unset is left out: "", 0, false and empty lists. The text is valid JSON by its making.
type jsonWriter struct {
	b []byte
	// It is the first thing that a message says and JSON cannot hold, such as a number that is not finite. The text is of no use then;
	// writing goes on, so that callers look at it once.
	err *ojs.Error
}

// object gives the text of the object whose members write has written.
func object(write func(w *jsonWriter)) (jsontext.Value, error) {
	w := jsonWriter{b: append(make([]byte, 0, 256), '{')}
	write(&w)
	if w.err != nil {
		return nil, w.err
	}
	return append(w.b, '}'), nil
}

// refuse keeps the first problem; HTTP lists all, which the decoders do for what they check.
func (w *jsonWriter) refuse(kind ojs.ErrorKind, field, expected, received string) {
	if w.err == nil {
		w.err = spec.InvalidField(kind, field, expected, received, fmt.Sprintf("'%s' must be %s, got %s.", field, expected, received))
	}
}

func (w *jsonWriter) raw(text string) { w.b = append(w.b, text...) }

// name begins a member of the object that is open.
func (w *jsonWriter) name(name string) {
	if w.b[len(w.b)-1] != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(append(append(w.b, '"'), name...), `":`...)
}

func (w *jsonWriter) quote(text string) {
	w.b, _ = jsontext.AppendQuote(w.b, text) // what was decoded as a proto3 string is valid UTF-8
}

func (w *jsonWriter) text(name, text string) {
	if text != "" {
		w.name(name)
		w.quote(text)
	}
}

func (w *jsonWriter) texts(name string, list []string) {
	for i, text := range list {
		if i == 0 {
			w.name(name)
			w.raw("[")
		} else {
			w.raw(",")
		}
		w.quote(text)
	}
	if len(list) > 0 {
		w.raw("]")
	}
}

func (w *jsonWriter) integer(name string, n int64) {
	if n != 0 {
		w.name(name)
		w.b = strconv.AppendInt(w.b, n, 10)
	}
}

func (w *jsonWriter) yes(name string, sent bool) {
	if sent {
		w.name(name)
		w.raw("true")
	}
}

// milliseconds writes a duration, which field is called in an error, rounded away from zero: one of a microsecond does not become "not
// sent". A negative one is for the rules to refuse.
func (w *jsonWriter) milliseconds(name, field string, d *durationpb.Duration) {
	if err := d.CheckValid(); err != nil && d != nil {
		w.refuse(ojs.ErrInvalidPayload, field, "a valid duration", strconv.FormatInt(d.GetSeconds(), 10)+" s")
		return
	}
	// CheckValid has made sure that both parts have the same sign, and at most 10 000 years, so nothing overflows.
	ms, rest := d.GetSeconds()*1000+int64(d.GetNanos())/1e6, d.GetNanos()%1e6
	switch {
	case rest > 0:
		ms++
	case rest < 0:
		ms--
	}
	w.integer(name, ms)
}

// job writes the members of a new job (docs/reference/grpc.md, Values). Options have canonical names and a fixed order, so that what is
// stored of equal messages is equal.
func (w *jsonWriter) job(kind string, args []*structpb.Value, in *ojsv1.EnqueueOptions) {
	w.text("type", kind)
	w.name("args")
	w.list("args", ojs.ErrInvalidArgs, args)
	if in == nil {
		return
	}
	w.name("options")
	w.raw("{")
	w.text("queue", in.GetQueue())
	w.integer("priority", int64(in.GetPriority()))
	// The zero timestamp is 1970 and counts as not sent.
	if t := in.GetDelayUntil(); t.GetSeconds() != 0 || t.GetNanos() != 0 {
		if t.CheckValid() != nil {
			w.refuse(ojs.ErrInvalidPayload, "delay_until", "a timestamp from year 1 to 9999", strconv.FormatInt(t.GetSeconds(), 10)+" s")
		}
		w.text("delay_until", t.AsTime().Format(time.RFC3339Nano))
	}
	w.milliseconds("timeout_ms", "timeout", in.GetTimeout())
	w.milliseconds("visibility_timeout_ms", "visibility_timeout", in.GetVisibilityTimeout())
	w.retry(in.GetRetry())
	w.integer("max_attempts", int64(in.GetMaxAttempts()))
	w.unique(in.GetUnique())
	// It counts from the insert, by the database's clock, so the clocks of client and node do not matter. What is below a millisecond is
	// cut.
	if d := in.GetTtl(); d.GetSeconds() != 0 || d.GetNanos() != 0 {
		ttl := d.AsDuration() // the nearest there is if it is out of range; a time.Duration ends at 292 years
		if d.CheckValid() != nil || ttl < 0 || ttl > maxTTL {
			w.refuse(ojs.ErrInvalidPayload, "ttl", "a duration from 0 to 36500 days", ttl.String())
		}
		w.text("expires_at", "+"+jsonread.FormatDuration(ttl))
	}
	w.texts("tags", in.GetTags())
	w.yes("pending", in.GetPending())
	w.meta(in.GetMeta(), in.GetTraceId())
	w.raw("}")
}

// maxTTL is 36 500 days, the most of any duration (docs/reference/jobs.md, Times and durations).
const maxTTL = 36_500 * 24 * time.Hour

func (w *jsonWriter) retry(in *ojsv1.RetryPolicy) {
	if in == nil {
		return
	}
	w.name("retry")
	w.raw("{")
	w.integer("max_attempts", int64(in.GetMaxAttempts()))
	w.milliseconds("initial_interval_ms", "retry.initial_interval", in.GetInitialInterval())
	w.milliseconds("max_interval_ms", "retry.max_interval", in.GetMaxInterval())
	if c := in.GetBackoffCoefficient(); math.IsNaN(c) || math.IsInf(c, 0) {
		w.refuse(ojs.ErrValidation, "retry.backoff_coefficient", "a finite number >= 1", fmt.Sprint(c))
	} else if c != 0 {
		w.name("backoff_coefficient")
		w.b = jsonread.AppendNumber(w.b, c)
	}
	w.yes("jitter", in.GetJitter())
	w.texts("non_retryable_errors", in.GetNonRetryableErrors())
	w.text("on_exhaustion", in.GetOnExhaustion())
	w.raw("}")
}

func (w *jsonWriter) unique(in *ojsv1.UniquePolicy) {
	if in == nil {
		return
	}
	w.name("unique")
	w.raw("{")
	w.texts("key", in.GetKey())
	w.milliseconds("period_ms", "unique.period", in.GetPeriod())
	if action := in.GetOnConflict(); action != 0 {
		w.text("on_conflict", word(action, "UNIQUE_CONFLICT_ACTION_"))
	}
	var states []string
	for _, s := range in.GetStates() {
		states = append(states, word(s, "JOB_STATE_"))
	}
	w.texts("states", states)
	w.texts("args_keys", in.GetArgsKeys())
	w.texts("meta_keys", in.GetMetaKeys())
	w.raw("}")
}

// word is how JSON spells an enum; a number without a name is left for the decoder to refuse.
func word(e fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(e.String(), prefix))
}

// meta adds the trace id if meta has no trace context of its own (docs/reference/events.md, Trace id).
// The copy of trace_id in meta is where HTTP clients have it, too.
func (w *jsonWriter) meta(meta *structpb.Struct, trace string) {
	if meta == nil && trace == "" {
		return
	}
	w.name("meta")
	start := len(w.b)
	w.members("meta", ojs.ErrInvalidMetadata, meta)
	// Also one that is no text: the client has said something about it.
	if _, taken := meta.GetFields()["trace_id"]; !taken && trace != "" && job.TraceID(w.b[start:]) == "" {
		w.b = w.b[:len(w.b)-1]
		w.text("trace_id", trace)
		w.raw("}")
	}
}

// list writes values. field and kind are for what JSON cannot hold.
func (w *jsonWriter) list(field string, kind ojs.ErrorKind, list []*structpb.Value) {
	w.raw("[")
	for i, v := range list {
		if i > 0 {
			w.raw(",")
		}
		w.value(field, kind, v)
	}
	w.raw("]")
}

// value writes any value; one without a kind is null.
// It recurses; protobuf itself bounds the nesting of a message that it decodes.
func (w *jsonWriter) value(field string, kind ojs.ErrorKind, v *structpb.Value) {
	switch v := v.GetKind().(type) {
	case *structpb.Value_NumberValue:
		if math.IsNaN(v.NumberValue) || math.IsInf(v.NumberValue, 0) {
			w.refuse(kind, field, "free of numbers that are not finite", fmt.Sprint(v.NumberValue))
			w.raw("null")
			return
		}
		// A whole number is written without a fraction, as HTTP clients send it.
		w.b = jsonread.AppendNumber(w.b, v.NumberValue)
	case *structpb.Value_StringValue:
		w.quote(v.StringValue)
	case *structpb.Value_BoolValue:
		w.b = strconv.AppendBool(w.b, v.BoolValue)
	case *structpb.Value_StructValue:
		w.members(field, kind, v.StructValue)
	case *structpb.Value_ListValue:
		w.list(field, kind, v.ListValue.GetValues())
	default:
		w.raw("null")
	}
}

// members writes a Struct by name, because a map has no order: the hash of an idempotency key and a unique key by args depend on it.
func (w *jsonWriter) members(field string, kind ojs.ErrorKind, s *structpb.Struct) {
	w.raw("{")
	for i, name := range slices.Sorted(maps.Keys(s.GetFields())) {
		if i > 0 {
			w.raw(",")
		}
		w.quote(name)
		w.raw(":")
		w.value(field, kind, s.GetFields()[name])
	}
	w.raw("}")
}
