package grpcapi

import (
	"context"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
)

// TODO: when the store has workflows, call it here.
var errNoWorkflows = errNotOffered("This server does not run workflows.", map[string]any{"feature": "workflows"})

// CreateWorkflow is not offered yet.
func (a *API) CreateWorkflow(context.Context, *ojsv1.CreateWorkflowRequest) (*ojsv1.CreateWorkflowResponse, error) {
	return nil, errNoWorkflows
}

// GetWorkflow is not offered yet.
func (a *API) GetWorkflow(context.Context, *ojsv1.GetWorkflowRequest) (*ojsv1.GetWorkflowResponse, error) {
	return nil, errNoWorkflows
}

// CancelWorkflow is not offered yet.
func (a *API) CancelWorkflow(context.Context, *ojsv1.CancelWorkflowRequest) (*ojsv1.CancelWorkflowResponse, error) {
	return nil, errNoWorkflows
}
