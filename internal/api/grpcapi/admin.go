package grpcapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ojsd/ojsd/internal/api"
	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/workflow"
	"github.com/ojsd/ojsd/ojs"
)

// pageSize is the limit of a list: 0 is the default, more than the most is the most (docs/reference/http.md, Pagination).
// A negative limit is refused, because it is a mistake and not a wish for more.
func pageSize(limit int32) (int, error) {
	switch {
	case limit < 0:
		return 0, spec.InvalidRequest("limit", "an integer of at least 1", limit, "limit must be an integer of at least 1.")
	case limit == 0:
		return api.DefaultPage, nil
	}
	return min(int(limit), api.MaxPage), nil
}

// ListQueues gives the queues by name; the cursor is the last name.
// available_count is exact at one instant; see queue.Store.QueuesAfter.
func (a *API) ListQueues(ctx context.Context, in *ojsv1.ListQueuesRequest) (*ojsv1.ListQueuesResponse, error) {
	limit, err := pageSize(in.GetLimit())
	if err != nil {
		return nil, err
	}
	// Any name is a position, whether a queue has it or not.
	if c := in.GetCursor(); c != "" && !job.ValidQueue(c) {
		return nil, api.ErrCursor(c)
	}
	queues, more, err := a.queuesAfter(ctx, in.GetCursor(), limit)
	if err != nil {
		return nil, err
	}
	out := &ojsv1.ListQueuesResponse{}
	for _, q := range queues {
		out.Queues = append(out.Queues, &ojsv1.QueueInfo{
			Name: q.Name, Paused: q.Status == "paused", AvailableCount: q.Available, CreatedAt: momentOf(q.CreatedAt),
		})
	}
	if more {
		out.NextCursor = queues[len(queues)-1].Name
	}
	return out, nil
}

// queuesAfter are the queues whose names follow name; for a tenant those in which it has had jobs, with the number of these.
func (a *API) queuesAfter(ctx context.Context, name string, limit int) (queues []queueadmin.TenantQueue, more bool, err error) {
	if caller := tenantOf(ctx); caller != "" {
		return a.Tenants.QueuesAfter(ctx, caller, name, limit)
	}
	rows, more, err := a.Jobs.QueuesAfter(ctx, name, limit)
	for _, r := range rows {
		queues = append(queues, queueadmin.TenantQueue(r))
	}
	return queues, more, err
}

// QueueStats is GET /queues/{name}/stats.
// An unknown queue has zeros for an operator, and is NOT_FOUND for a tenant.
func (a *API) QueueStats(ctx context.Context, in *ojsv1.QueueStatsRequest) (*ojsv1.QueueStatsResponse, error) {
	if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
		return nil, err
	}
	// It creates no queue.
	s, err := a.Jobs.QueueStats(ctx, in.GetQueue())
	if caller := tenantOf(ctx); err == nil && caller != "" {
		s, err = a.Tenants.OfQueue(ctx, caller, s)
	}
	if err != nil {
		return nil, err
	}
	return &ojsv1.QueueStatsResponse{Queue: s.Name, Stats: &ojsv1.QueueStatistics{
		Available: s.Counts[ojs.StateAvailable], Active: s.Counts[ojs.StateActive], Scheduled: s.Counts[ojs.StateScheduled],
		Retryable: s.Counts[ojs.StateRetryable], Dead: s.Counts[ojs.StateDiscarded],
		CompletedLastHour: s.Rates.Completed, FailedLastHour: s.Rates.Failed,
		AvgDurationMs: api.Average(s.Rates.DurationMs, s.Rates.Completed), AvgWaitMs: api.Average(s.Rates.WaitMs, s.Rates.Started),
		ThroughputPerSecond: api.Average(s.Rates.Completed, 3600), Paused: s.Status == "paused",
	}}, nil
}

// PauseQueue is POST /queues/{name}/pause.
// It is for operators, creates an unknown queue, and is idempotent.
func (a *API) PauseQueue(ctx context.Context, in *ojsv1.PauseQueueRequest) (*ojsv1.PauseQueueResponse, error) {
	if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
		return nil, err
	}
	// The pause holds on every node when the call returns.
	_, err := a.Queues.Pause(ctx, in.GetQueue(), actor(ctx))
	return &ojsv1.PauseQueueResponse{}, err
}

// ResumeQueue is POST /queues/{name}/resume.
// As over HTTP it also ends a drain.
func (a *API) ResumeQueue(ctx context.Context, in *ojsv1.ResumeQueueRequest) (*ojsv1.ResumeQueueResponse, error) {
	if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
		return nil, err
	}
	_, err := a.Queues.Resume(ctx, in.GetQueue(), actor(ctx))
	return &ojsv1.ResumeQueueResponse{}, err
}

// RegisterCron is POST /cron.
// It is idempotent, and replaces the cron whole.
func (a *API) RegisterCron(ctx context.Context, in *ojsv1.RegisterCronRequest) (*ojsv1.RegisterCronResponse, error) {
	// overlap_policy, description and enabled have no field here and get their defaults.
	text, err := object(func(w *jsonWriter) {
		w.text("name", in.GetName())
		w.name("cron") // also if it is empty, so that the error is that of an expression
		w.quote(in.GetCron())
		w.text("timezone", in.GetTimezone())
		w.job(in.GetType(), in.GetArgs(), in.GetOptions())
	})
	if err != nil {
		return nil, err
	}
	definition, wire := cron.Decode(text, "", a.limits(ctx))
	if wire != nil {
		return nil, nameCron(wire)
	}
	// Whether it was new is not told.
	row, _, err := a.Crons.Put(ctx, definition)
	if err != nil {
		return nil, nameCron(err)
	}
	return &ojsv1.RegisterCronResponse{Name: row.Name, NextRunAt: momentOf(row.NextRunAt)}, nil
}

// nameCron calls the expression, in an error about it, as its field is called here.
// The rules of package cron name fields as HTTP does. It also changes validation_errors.
func nameCron(err error) error {
	var wire *ojs.Error
	if !errors.As(err, &wire) || wire.Details["field"] == nil {
		return err
	}
	// Details are changed below, so the map is copied, too.
	named := *wire // the original may be shared
	named.Details = maps.Clone(wire.Details)
	if named.Details["field"] == "expression" {
		named.Details["field"] = "cron"
	}
	violations := violationsOf(wire)
	problems := make([]map[string]string, len(violations))
	for i, v := range violations {
		if v.GetField() == "expression" {
			v.Field = "cron"
		}
		problems[i] = map[string]string{"path": v.GetField(), "message": v.GetDescription()}
	}
	named.Details["validation_errors"] = problems
	return &named
}

// UnregisterCron is DELETE /cron/{name}.
// A second call is NOT_FOUND. The name in the error is cut, because details travel in trailers.
func (a *API) UnregisterCron(ctx context.Context, in *ojsv1.UnregisterCronRequest) (*ojsv1.UnregisterCronResponse, error) {
	name := in.GetName()
	if name == "" {
		return nil, errMissing("name", "the name of a cron")
	}
	if !cron.ValidName(name) {
		// What cannot be a name is the name of no cron.
		return nil, spec.NotFound("cron", shorten(name, maxDetail))
	}
	if _, err := a.Crons.Delete(ctx, cron.Ref{Tenant: tenantOf(ctx), Name: name}); err != nil {
		return nil, err
	}
	return &ojsv1.UnregisterCronResponse{}, nil
}

// cronPage is how many crons are read at once.
// It is the most that HTTP gives, too.
const cronPage = 1000

// ListCron is GET /cron, all pages of it, without what does not fit into a message.
// The pages are read one after the other without a common snapshot: a cron that is deleted meanwhile may hide another one
// from the list.
func (a *API) ListCron(ctx context.Context, _ *ojsv1.ListCronRequest) (*ojsv1.ListCronResponse, error) {
	out := &ojsv1.ListCronResponse{}
	for {
		rows, _, err := a.Crons.List(ctx, cron.Filter{Tenant: tenantOf(ctx), Offset: len(out.Entries), Limit: cronPage})
		if err != nil {
			return nil, err
		}
		for i := range rows {
			row := &rows[i]
			entry := &ojsv1.CronEntry{
				Name: row.Name, Cron: row.Expression, Timezone: row.Timezone, Type: row.Type,
				Options: &ojsv1.EnqueueOptions{Queue: row.Queue}, NextRunAt: momentOf(row.NextRunAt), LastRunAt: momentOf(row.LastRunAt),
			}
			out.Entries = append(out.Entries, entry)
			// A cron whose list has cut it has only its queue as option.
			if row.Cut() {
				continue
			}
			entry.Args = valuesOf(row.Args)
			definition := cron.DefinitionOf(row)
			if job, err := definition.Template(a.JobLimits); err == nil { // it was accepted when it was registered
				entry.Options = optionsOf(job)
			}
		}
		if len(rows) < cronPage {
			break
		}
	}
	// In this order, because args are what clients need least to recognize a cron.
	shrink(out,
		func() {
			for _, e := range out.GetEntries() {
				e.Args = nil
			}
		},
		func() {
			for _, e := range out.GetEntries() {
				e.Options.Meta = nil
			}
		})
	return out, nil
}

// ListDeadLetter is GET /dead-letter.
// The page is cut again where the message is full, and the cursor is then that of the last job shown, so nothing is skipped.
func (a *API) ListDeadLetter(ctx context.Context, in *ojsv1.ListDeadLetterRequest) (*ojsv1.ListDeadLetterResponse, error) {
	filter := deadletter.Filter{Tenant: tenantOf(ctx)}
	// 0 is the default, because proto3 has no absent integer.
	limit, err := pageSize(in.GetLimit())
	if err != nil {
		return nil, err
	}
	if in.GetQueue() != "" {
		// HTTP takes any text here and finds nothing; a single name is more likely a mistake.
		if err := api.CheckQueue("queue", in.GetQueue()); err != nil {
			return nil, err
		}
		filter.Queues = []string{in.GetQueue()}
	}
	page := deadletter.Page{Limit: limit}
	if in.GetCursor() != "" {
		key, ok := deadletter.ParseKey(in.GetCursor())
		if !ok {
			return nil, api.ErrCursor(in.GetCursor())
		}
		page.Before = &key
	}
	found, err := a.DeadLetters.List(ctx, filter, page)
	if err != nil {
		return nil, err
	}
	out := &ojsv1.ListDeadLetterResponse{Jobs: jobsOf(found.Jobs), TotalCount: found.Total}
	if fit := fitting(out.Jobs); fit < len(out.Jobs) {
		// fitting keeps at least one job, so there is a last one.
		last := found.Jobs[fit-1]
		out.Jobs, found.Next = out.Jobs[:fit], &deadletter.Key{At: last.FinishedAt.Time, ID: last.ID}
	}
	if found.Next != nil {
		out.NextCursor = found.Next.String()
	}
	return out, nil
}

// deadLetterID reads the id of a dead letter, which must be sent.
func deadLetterID(text string) (deadletter.ID, error) {
	if text == "" {
		return deadletter.ID{}, errMissing("job_id", "the id of a job")
	}
	return deadletter.ParseID(text), nil
}

// RetryDeadLetter is POST /dead-letter/{id}/retry.
// A repetition is NOT_FOUND: the job is no dead letter any more.
func (a *API) RetryDeadLetter(ctx context.Context, in *ojsv1.RetryDeadLetterRequest) (*ojsv1.RetryDeadLetterResponse, error) {
	id, err := deadLetterID(in.GetJobId())
	if err != nil {
		return nil, err
	}
	// nil: nothing of the job is changed but what every manual retry changes.
	job, err := a.DeadLetters.RetryOne(ctx, id, nil)
	if err != nil {
		return nil, err
	}
	return &ojsv1.RetryDeadLetterResponse{Job: jobOf(job)}, nil
}

// DeleteDeadLetter is DELETE /dead-letter/{id}.
func (a *API) DeleteDeadLetter(ctx context.Context, in *ojsv1.DeleteDeadLetterRequest) (*ojsv1.DeleteDeadLetterResponse, error) {
	id, err := deadLetterID(in.GetJobId())
	if err != nil {
		return nil, err
	}
	// The job is gone for good.
	if err := a.DeadLetters.Delete(ctx, id); err != nil {
		return nil, err
	}
	return &ojsv1.DeleteDeadLetterResponse{}, nil
}

// CreateWorkflow is POST /workflows with steps that depend on each other.
// Everything is stored in one transaction, or nothing. A client that got no answer should repeat the call with its key.
func (a *API) CreateWorkflow(ctx context.Context, in *ojsv1.CreateWorkflowRequest) (*ojsv1.CreateWorkflowResponse, error) {
	text, err := object(func(w *jsonWriter) {
		w.text("name", in.GetName())
		w.name("steps")
		w.raw("[")
		for i, s := range in.GetSteps() {
			if i > 0 {
				w.raw(",")
			}
			w.raw("{")
			w.text("id", s.GetId())
			w.texts("depends_on", s.GetDependsOn())
			w.job(s.GetType(), s.GetArgs(), s.GetOptions())
			w.raw("}")
			if w.err != nil { // that of the first step that cannot be read
				w.err.Message = fmt.Sprintf("steps[%d]: %s", i, w.err.Message)
				return
			}
		}
		w.raw("]")
	})
	if err != nil {
		return nil, err
	}
	definition, wire := a.Workflows.Decode(text, a.limits(ctx))
	if wire != nil {
		return nil, wire
	}
	// Only the jobs that begin at once need room.
	wait, err := api.ParseBlockTimeout(blockKey, sent(ctx, blockKey))
	if err != nil {
		return nil, err
	}
	out := &ojsv1.CreateWorkflowResponse{}
	// The transaction of a key is within the wait, so no key is locked while the call waits.
	return out, a.Jobs.RetryFull(ctx, wait, func() error {
		if sent(ctx, idempotencyKey) == "" {
			w, err := a.Workflows.Create(ctx, definition)
			if err == nil {
				out.Workflow = workflowOf(w)
			}
			return err
		}
		return a.once(ctx, "grpc workflow", in, out, func(key queue.IdempotencyKey) (queue.Answer, error) {
			return a.Workflows.CreateOnce(ctx, definition, key, func(w *workflow.Workflow) (queue.Answer, error) {
				body, err := protojson.Marshal(&ojsv1.CreateWorkflowResponse{Workflow: workflowOf(w)})
				return queue.Answer{Body: body}, err
			})
		})
	})
}

// GetWorkflow is GET /workflows/{id}.
// The tree is read in one snapshot; nested workflows are steps here, to be asked for by their own ids.
func (a *API) GetWorkflow(ctx context.Context, in *ojsv1.GetWorkflowRequest) (*ojsv1.GetWorkflowResponse, error) {
	id, err := workflowID(in.GetWorkflowId())
	if err != nil {
		return nil, err
	}
	w, err := a.Workflows.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return &ojsv1.GetWorkflowResponse{Workflow: workflowOf(w)}, nil
}

// CancelWorkflow is DELETE /workflows/{id}. The reason is checked as that of a job; no event of a workflow carries it.
// Active jobs run on: the message has no force.
func (a *API) CancelWorkflow(ctx context.Context, in *ojsv1.CancelWorkflowRequest) (*ojsv1.CancelWorkflowResponse, error) {
	id, err := workflowID(in.GetWorkflowId())
	if err != nil {
		return nil, err
	}
	cancel, err := api.NewCancel(actor(ctx), in.GetReason())
	if err != nil {
		return nil, err
	}
	// The counts of cancelled steps have no field in the message.
	w, _, err := a.Workflows.Cancel(ctx, id, false, cancel.By)
	if err != nil {
		return nil, err
	}
	return &ojsv1.CancelWorkflowResponse{Workflow: workflowOf(w)}, nil
}

// workflowID takes a missing id for a mistake of the call, a malformed one for an unknown workflow.
func workflowID(text string) ([16]byte, error) {
	if text == "" {
		return [16]byte{}, errMissing("workflow_id", "the id of a workflow")
	}
	id, ok := spec.ParseID(text)
	if !ok {
		return id, spec.NotFound("workflow", shorten(text, maxDetail))
	}
	return id, nil
}

// workflowOf shows the steps of the workflow itself, and behind them those that were sent as callbacks.
// Steps of nested workflows are read by the id of that workflow.
func workflowOf(w *workflow.Workflow) *ojsv1.Workflow {
	out := &ojsv1.Workflow{Id: spec.FormatID(w.ID), Name: w.Name, State: enumOf[ojsv1.WorkflowState](ojsv1.WorkflowState_value,
		"WORKFLOW_STATE_", w.State), CreatedAt: timestamppb.New(w.CreatedAt)}
	if w.EndedAt != nil {
		out.CompletedAt = timestamppb.New(*w.EndedAt)
	}
	for i := range w.Steps {
		out.Steps = append(out.Steps, stepOf(&w.Steps[i]))
	}
	for i := range w.Callbacks {
		// Callbacks of another form cannot be shown as steps, because they have no ids.
		if w.StepsForm {
			// A callback waits for all members.
			s := stepOf(&w.Callbacks[i])
			for j := range w.Steps {
				s.DependsOn = append(s.DependsOn, w.Steps[j].ID)
			}
			out.Steps = append(out.Steps, s)
		}
	}
	shrink(out, func() {
		for _, s := range out.GetSteps() {
			s.DependsOn = nil
		}
	})
	return out
}

func stepOf(st *workflow.Step) *ojsv1.WorkflowStepStatus {
	state := enumOf[ojsv1.WorkflowStepState](ojsv1.WorkflowStepState_value, "WORKFLOW_STEP_STATE_", st.State)
	out := &ojsv1.WorkflowStepStatus{Id: st.ID, Type: st.Type, State: state}
	// Without a job the field is empty: the step waits, or its job could not be made.
	if st.JobID != nil {
		out.JobId = spec.FormatID(*st.JobID)
	}
	if st.Callback == "" {
		out.DependsOn = st.DependsOn
	}
	return out
}

// Manifest is GET /ojs/manifest.
// It needs no key.
func (a *API) Manifest(context.Context, *ojsv1.ManifestRequest) (*ojsv1.ManifestResponse, error) {
	return &ojsv1.ManifestResponse{
		OjsVersion: api.SpecVersion, ConformanceLevel: api.ConformanceLevel, Protocols: api.Protocols(true), Backend: api.Backend,
		Implementation: &ojsv1.Implementation{Name: api.Name, Version: a.Version, Language: api.Language},
		Extensions:     api.Extensions(a.config.Webhooks.Enabled), SchemaValidation: true,
	}, nil
}

// Health is GET /ojs/v1/health. A node without its database is an answer, no error.
// It shares its look at the database with the probes of HTTP.
func (a *API) Health(ctx context.Context, _ *ojsv1.HealthRequest) (*ojsv1.HealthResponse, error) {
	state, at, body := a.Deps.Health.Report(ctx)
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("show health: %w", err)
	}
	return &ojsv1.HealthResponse{
		Status: enumOf[ojsv1.HealthStatus](ojsv1.HealthStatus_value, "HEALTH_STATUS_", state), Timestamp: timestamppb.New(at),
		Details: structOf(text),
	}, nil
}

// healthAPI is the health service that load balancers ask; it mirrors readiness.
// Its messages are the standard ones, so that any load balancer can ask.
type healthAPI struct {
	grpc_health_v1.UnimplementedHealthServer
	api *API
}

type serving = grpc_health_v1.HealthCheckResponse_ServingStatus

// status of a service; none for an unknown one.
func (h *healthAPI) status(ctx context.Context, service string) (serving, bool) {
	switch service {
	case "", ojsv1.OJSService_ServiceDesc.ServiceName, eventsv1.OJSEvents_ServiceDesc.ServiceName:
	default:
		return grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN, false
	}
	if ready, _ := h.api.Deps.Health.Ready(ctx); ready {
		return grpc_health_v1.HealthCheckResponse_SERVING, true
	}
	return grpc_health_v1.HealthCheckResponse_NOT_SERVING, true
}

// Check answers for one service.
// NOT_SERVING is an answer and no error.
func (h *healthAPI) Check(ctx context.Context, in *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	status, known := h.status(ctx, in.GetService())
	if !known {
		return nil, spec.NotFound("service", shorten(in.GetService(), maxDetail))
	}
	return &grpc_health_v1.HealthCheckResponse{Status: status}, nil
}

// List answers for all.
func (h *healthAPI) List(ctx context.Context, _ *grpc_health_v1.HealthListRequest) (*grpc_health_v1.HealthListResponse, error) {
	statuses := map[string]*grpc_health_v1.HealthCheckResponse{}
	// "" is the server as a whole.
	for _, name := range []string{"", ojsv1.OJSService_ServiceDesc.ServiceName, eventsv1.OJSEvents_ServiceDesc.ServiceName} {
		status, _ := h.status(ctx, name)
		statuses[name] = &grpc_health_v1.HealthCheckResponse{Status: status}
	}
	return &grpc_health_v1.HealthListResponse{Statuses: statuses}, nil
}

// watchInterval is how often a watched service is looked at; all share one look.
const watchInterval = time.Second

// Watch tells each change.
// A watch counts as a stream, against the limits of streams. An unknown service is SERVICE_UNKNOWN, and stays so.
func (h *healthAPI) Watch(in *grpc_health_v1.HealthCheckRequest,
	stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	s, err := h.api.open(stream)
	if err != nil {
		return err
	}
	return s.run(func() error {
		ticks := time.NewTicker(watchInterval)
		defer ticks.Stop()
		// No status has this value, so the first one is always sent.
		last := serving(-1)
		for {
			status, _ := h.status(s.ctx, in.GetService())
			if s.ctx.Err() != nil {
				return s.ctx.Err()
			}
			if status != last {
				if err := s.send(func() error { return stream.Send(&grpc_health_v1.HealthCheckResponse{Status: status}) }); err != nil {
					return err
				}
				last = status
			}
			select {
			case <-ticks.C:
			case <-s.ctx.Done():
				return s.ctx.Err()
			}
		}
	})
}
