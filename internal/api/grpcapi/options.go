package grpcapi

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

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
		case "workflow_id":
			e.workflow, _ = rawjson.Text(value)
		}
	}
	return e
}
