package grpcapi

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// options writes the options of a job (contract 40 §8.3). What is zero was not given.
func (o *object) options(in *ojsv1.EnqueueOptions) {
	if in == nil {
		return
	}
	o.begin("options")
	defer o.end()
	o.text("queue", in.GetQueue())
	o.integer("priority", int64(in.GetPriority()))
	o.moment("delay_until", in.GetDelayUntil())
	o.milliseconds("timeout_ms", "timeout", in.GetTimeout())
	o.milliseconds("visibility_timeout_ms", "visibility_timeout", in.GetVisibilityTimeout())
	o.retry(in.GetRetry())
	o.integer("max_attempts", int64(in.GetMaxAttempts()))
	o.unique(in.GetUnique())
	o.ttl(in.GetTtl())
	o.texts("tags", in.GetTags())
	o.boolean("pending", in.GetPending())
	o.meta(in)
}

func (o *object) retry(in *ojsv1.RetryPolicy) {
	if in == nil {
		return
	}
	o.begin("retry")
	defer o.end()
	o.integer("max_attempts", int64(in.GetMaxAttempts()))
	o.milliseconds("initial_interval_ms", "retry.initial_interval", in.GetInitialInterval())
	o.milliseconds("max_interval_ms", "retry.max_interval", in.GetMaxInterval())
	if c := in.GetBackoffCoefficient(); c != 0 {
		if math.IsNaN(c) || math.IsInf(c, 0) {
			o.refuse(ojs.KindValidation, "retry.backoff_coefficient", "a finite number >= 1", fmt.Sprint(c))
		}
		o.name("backoff_coefficient")
		o.b = appendNumber(o.b, c)
	}
	o.boolean("jitter", in.GetJitter())
	o.texts("non_retryable_errors", in.GetNonRetryableErrors())
	o.text("on_exhaustion", in.GetOnExhaustion())
}

func (o *object) unique(in *ojsv1.UniquePolicy) {
	if in == nil {
		return
	}
	o.begin("unique")
	defer o.end()
	o.texts("key", in.GetKey())
	o.milliseconds("period_ms", "unique.period", in.GetPeriod())
	if action := in.GetOnConflict(); action != 0 {
		o.text("on_conflict", word(action, "UNIQUE_CONFLICT_ACTION_"))
	}
	states := make([]string, len(in.GetStates()))
	for i, s := range in.GetStates() {
		states[i] = word(s, "JOB_STATE_")
	}
	o.texts("states", states)
	o.texts("args_keys", in.GetArgsKeys())
	o.texts("meta_keys", in.GetMetaKeys())
}

// word is how JSON spells an enum; a number without a name is left for the reader to refuse.
func word(e fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(e.String(), prefix))
}

// maxTTL is 36 500 days, the most of any duration (contract 10 §1.4).
const maxTTL = 36_500 * 24 * time.Hour

// ttl counts from the insert, by the database's clock.
func (o *object) ttl(d *durationpb.Duration) {
	if d.GetSeconds() == 0 && d.GetNanos() == 0 {
		return
	}
	ttl := d.AsDuration() // the nearest there is if it is out of range
	if d.CheckValid() != nil || ttl < 0 || ttl > maxTTL {
		o.refuse(ojs.KindInvalidPayload, "ttl", "a duration from 0 to 36500 days", ttl.String())
		return
	}
	o.text("expires_at", "+"+duration.Format(ttl))
}

// meta adds the trace id if meta says nothing about a trace, which goes first (contract 40 §3.4).
func (o *object) meta(in *ojsv1.EnqueueOptions) {
	if in.GetTraceId() == "" {
		o.structure("meta", ojs.KindInvalidMetadata, in.GetMeta())
		return
	}
	o.name("meta")
	start := len(o.b)
	o.members("meta", ojs.KindInvalidMetadata, in.GetMeta())
	_, taken := in.GetMeta().GetFields()["trace_id"]
	if o.err != nil || taken || job.TraceID(o.b[start:]) != "" {
		return
	}
	o.b = o.b[:len(o.b)-1]
	o.text("trace_id", in.GetTraceId())
	o.end()
}

// withDefaults gives an entry of a batch the fields that it leaves unset, each as a whole.
func withDefaults(own, defaults *ojsv1.EnqueueOptions) *ojsv1.EnqueueOptions {
	if defaults == nil {
		return own
	}
	if own == nil {
		return defaults
	}
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
func optionsOf(j *job.Job) *ojsv1.EnqueueOptions {
	extra := readExtra(j.Extra)
	out := &ojsv1.EnqueueOptions{
		Queue: j.Queue, Priority: int32(j.Priority), Timeout: extra.timeout, VisibilityTimeout: extra.visibility, Tags: extra.tags,
		Retry: extra.retryPolicy(j.MaxAttempts), Unique: extra.uniquePolicy(j.Args), MaxAttempts: narrow(j.MaxAttempts), Pending: j.Pending,
		DelayUntil: extra.scheduledAt,
	}
	if j.ExpiresAt.Relative {
		out.Ttl = durationpb.New(j.ExpiresAt.In)
	}
	if j.Meta == nil {
		return out
	}
	meta := structOf(j.Meta)
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
}

func readExtra(object []byte) extras {
	var e extras
	if object == nil {
		return e
	}
	for literal, value := range rawjson.Members(object) {
		switch string(rawjson.Name(literal)) {
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
		}
	}
	return e
}
