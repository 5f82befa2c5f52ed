package grpcapi

import (
	"cmp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ojsd/ojsd/internal/api"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/job/retry"
	"github.com/ojsd/ojsd/internal/rawjson"
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
	for literal, value := range rawjson.Members(object) {
		switch string(rawjson.Name(literal)) {
		case "code":
			out.Code, _ = rawjson.Text(value)
		case "type":
			kind, _ = rawjson.Text(value)
		case "message":
			out.Message, _ = rawjson.Text(value)
		case "retryable":
			out.Retryable, _ = rawjson.Bool(value)
		case "attempt":
			n, _ := rawjson.Int(value)
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
	text, _ := rawjson.Text(v)
	at, ok := job.ParseTime(text)
	if !ok {
		return nil
	}
	return timestamppb.New(at)
}

// A fraction or a text, which enqueue refuses, is shown as nothing.
func millisecondsOf(v jsontext.Value) *durationpb.Duration {
	n, kind := rawjson.Int(v)
	if kind != rawjson.IsInt {
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
	for e := range rawjson.Elements(array) {
		text, _ := rawjson.Text(e)
		list = append(list, text)
	}
	return list
}
