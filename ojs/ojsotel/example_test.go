package ojsotel_test

import (
	"context"
	"database/sql"
	"fmt"

	"go.opentelemetry.io/otel/trace"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsotel"
	"github.com/ojsd/ojsd/ojs/ojssql"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// request is a context as a program has it while it handles a request, with the span of that request.
func request() context.Context {
	return trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{0: 1, 15: 2}, SpanID: trace.SpanID{0: 3, 7: 4}, TraceFlags: trace.FlagsSampled,
	}))
}

func ExampleTraceContext() {
	enqueue := func(ctx context.Context, tx *sql.Tx) error {
		_, err := ojssql.Enqueue(ctx, tx, "invoice.render", 7, ojsotel.TraceContext(ctx))
		return err
	}
	_ = enqueue // in a transaction

	ctx := request()
	requests := []ojs.JobRequest{{Type: "a"}, {Type: "b", Meta: map[string]any{"k": "v"}}}
	for i := range requests {
		ojsotel.TraceContext(ctx)(&requests[i])
		fmt.Println(requests[i].Meta)
	}
	// Output:
	// map[traceparent:00-01000000000000000000000000000002-0300000000000004-01]
	// map[k:v traceparent:00-01000000000000000000000000000002-0300000000000004-01]
}

func ExampleTraceWorkflow() {
	ctx := request()
	server := ojstest.New()
	client := server.Client()
	workflow := ojs.Chain(ojs.JobRequest{Type: "etl.extract"}, ojs.JobRequest{Type: "etl.load"})
	info, err := client.CreateWorkflow(ctx, ojsotel.TraceWorkflow(ctx, workflow))
	if err != nil {
		fmt.Println(err)
		return
	}
	job, err := client.GetJob(ctx, info.Steps[0].JobID)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(job.Type, job.Meta["traceparent"])
	// Output: etl.extract 00-01000000000000000000000000000002-0300000000000004-01
}
