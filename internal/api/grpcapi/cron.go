package grpcapi

import (
	"context"
	"errors"
	"maps"

	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// RegisterCron is POST /cron.
// It is idempotent, and replaces the cron whole.
func (a *API) RegisterCron(ctx context.Context, in *ojsv1.RegisterCronRequest) (*ojsv1.RegisterCronResponse, error) {
	var r reader
	// overlap_policy, description and enabled have no field here and get their defaults.
	draft := cron.Draft{
		Name: in.GetName(), Expression: in.GetCron(), Timezone: in.GetTimezone(), Job: r.draft(in.GetType(), in.GetArgs(), in.GetOptions()),
	}
	if r.err != nil {
		return nil, r.err
	}
	definition, wire := cron.Define(draft, a.limits(ctx))
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
		return nil, spec.InvalidPayload("name", "the name of a cron", nil, "'name' is required: send the name of a cron.")
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
			out.Entries = append(out.Entries, a.cronOf(&rows[i]))
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

// A cron whose list has cut it has only its queue as option.
func (a *API) cronOf(row *cron.Record) *ojsv1.CronEntry {
	out := &ojsv1.CronEntry{
		Name: row.Name, Cron: row.Expression, Timezone: row.Timezone, Type: row.Type,
		Options: &ojsv1.EnqueueOptions{Queue: row.Queue}, NextRunAt: momentOf(row.NextRunAt), LastRunAt: momentOf(row.LastRunAt),
	}
	if row.Cut() {
		return out
	}
	out.Args = valuesOf(row.Args)
	definition := cron.DefinitionOf(row)
	if job, err := definition.Template(a.config.Limits); err == nil { // it was accepted when it was registered
		out.Options = optionsOf(job)
	}
	return out
}
