package grpcapi

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"

	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/internal/tenant"
)

// tenantKey is job.TenantHeader as metadata spell it.
var tenantKey = strings.ToLower(job.TenantHeader)

// callerTenant is the tenant that a call names; "": an operator's.
// More than one value, or a malformed one, is refused.
func (a *API) callerTenant(ctx context.Context) (string, error) {
	return a.config.Tenancy.Caller(metadata.ValueFromIncomingContext(ctx, tenantKey))
}

// tenantOf is the tenant of a call that has begun.
func tenantOf(ctx context.Context) string { return callOf(ctx).caller.Tenant }

// limits are those for what a call sends.
func (a *API) limits(ctx context.Context) job.Limits {
	return a.config.Tenancy.Limits(a.config.Limits, tenantOf(ctx))
}

// reach is what a method shows to, and does for, a call that names a tenant.
// The zero value refuses, so a method that is forgotten shows nothing.
type reach int

const (
	operators       reach = iota // nothing: the call is refused
	everybody                    // the same as to others: it shows nothing of any tenant
	confined                     // what is the tenant's, by the method
	aboutJob                     // what is about the job in the message, which must be the tenant's
	aboutDeadLetter              // and so on
	aboutWorkflow
)

// methodReach has the methods. One that is missing is for operators, so that one which somebody adds shows nothing of other tenants.
// PauseQueue and ResumeQueue are missing on purpose: queues are shared by tenants.
var methodReach = map[string]reach{
	ojsv1.OJSService_Manifest_FullMethodName: everybody, ojsv1.OJSService_Health_FullMethodName: everybody,

	ojsv1.OJSService_Enqueue_FullMethodName: confined, ojsv1.OJSService_EnqueueBatch_FullMethodName: confined,
	ojsv1.OJSService_GetJob_FullMethodName: aboutJob, ojsv1.OJSService_CancelJob_FullMethodName: aboutJob, ojsv1.OJSService_ActivateJob_FullMethodName: aboutJob,
	ojsv1.OJSService_Fetch_FullMethodName: confined, ojsv1.OJSService_Ack_FullMethodName: aboutJob, ojsv1.OJSService_Nack_FullMethodName: aboutJob,
	ojsv1.OJSService_Heartbeat_FullMethodName: confined, ojsv1.OJSService_StreamJobs_FullMethodName: confined,
	ojsv1.OJSService_StreamEvents_FullMethodName: confined, eventsv1.OJSEvents_StreamEvents_FullMethodName: confined,
	ojsv1.OJSService_ListQueues_FullMethodName: confined, ojsv1.OJSService_QueueStats_FullMethodName: confined,
	ojsv1.OJSService_ListDeadLetter_FullMethodName: confined, ojsv1.OJSService_RetryDeadLetter_FullMethodName: aboutDeadLetter,
	ojsv1.OJSService_DeleteDeadLetter_FullMethodName: aboutDeadLetter,
	ojsv1.OJSService_RegisterCron_FullMethodName:     confined, ojsv1.OJSService_UnregisterCron_FullMethodName: confined,
	ojsv1.OJSService_ListCron_FullMethodName: confined, ojsv1.OJSService_CreateWorkflow_FullMethodName: confined,
	ojsv1.OJSService_GetWorkflow_FullMethodName: aboutWorkflow, ojsv1.OJSService_CancelWorkflow_FullMethodName: aboutWorkflow,
}

// confine lets a call that names a tenant reach nothing that is not the tenant's (docs/reference/tenants.md, What a call reaches).
// It runs when the message has been read. Health and reflection show nothing of tenants.
func (a *API) confine(ctx context.Context, req any) error {
	call := callOf(ctx)
	if call.caller.Tenant == "" || isLibrary(call.method) {
		return nil
	}
	switch of := methodReach[call.method]; of {
	case operators:
		return tenant.ErrOperators()
	case everybody, confined:
		return nil
	default:
		return a.inReach(ctx, of, req)
	}
}

// inReach refuses what the message names if it is not the tenant's, as if it did not exist. What cannot name anything is left
// to the method. The tenant of a job or workflow never changes, so the look holds for what the method does next.
func (a *API) inReach(ctx context.Context, of reach, req any) (err error) {
	caller, found := tenantOf(ctx), true
	text, kind := subjectOf(of, req)
	id, isID := spec.ParseID(text)
	switch {
	case of == aboutWorkflow && isID:
		found, err = a.Tenants.HasWorkflow(ctx, caller, id)
	case isID:
		found, err = a.Tenants.HasJob(ctx, caller, id)
	}
	if err == nil && !found {
		err = spec.NotFound(kind, text)
	}
	return err
}

// subjectOf is what a message names, and the kind of it that an error names.
// Each of these methods has a message with that accessor.
func subjectOf(of reach, req any) (text, kind string) {
	switch of {
	case aboutWorkflow:
		named, _ := req.(interface{ GetWorkflowId() string })
		return named.GetWorkflowId(), "workflow"
	case aboutDeadLetter:
		named, _ := req.(interface{ GetJobId() string })
		return named.GetJobId(), "dead_letter_job"
	default:
		named, _ := req.(interface{ GetJobId() string })
		return named.GetJobId(), "job"
	}
}

// ownBeat is the id of the job that a heartbeat extends, "" if it is not the caller's.
// The heartbeat itself is carried out, and extends nothing.
func (a *API) ownBeat(ctx context.Context, text string) (string, error) {
	caller := tenantOf(ctx)
	id, isID := spec.ParseID(text)
	if caller == "" || !isID {
		return text, nil
	}
	own, err := a.Tenants.HasJob(ctx, caller, id)
	if err != nil || !own {
		return "", err
	}
	return text, nil
}
