package ojs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojstest"
)

// Email is what the examples have as arguments.
type Email struct {
	To string `json:"to"`
}

// JobType names the jobs with these arguments.
func (Email) JobType() string { return "email.send" }

func send(to string) error {
	fmt.Println("to", to)
	return nil
}

// In a program the client is made by ojs.NewClient(ojs.Config{URL: "http://localhost:8080"}).
func Example() {
	server := ojstest.New()
	client := server.Client()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	worker := ojs.NewWorker(client, ojs.WorkerConfig{Queues: []string{"mail"}, Concurrency: 50})
	ojs.Register(worker, func(ctx context.Context, job *ojs.Job[Email]) error {
		return send(job.Args.To)
	})
	done := make(chan error)
	go func() { done <- worker.Run(ctx) }()

	job, err := ojs.Enqueue(ctx, client, Email{To: "ada@example.com"}, ojs.WithQueue("mail"))
	if err != nil {
		fmt.Println(err)
		return
	}
	for server.Job(job.ID).State != ojs.StateCompleted {
		time.Sleep(time.Millisecond)
	}
	stop()
	fmt.Println(<-done)
	// Output:
	// to ada@example.com
	// <nil>
}

func ExampleClient_Enqueue() {
	client := ojstest.New().Client()
	job, err := client.Enqueue(context.Background(), "report.build", map[string]int{"month": 2},
		ojs.WithQueue("reports"), ojs.WithDelay(time.Hour), ojs.WithMaxAttempts(5),
		ojs.WithUnique(ojs.UniquePolicy{Keys: []string{"args"}, OnConflict: "ignore"}))
	fmt.Println(job.State, string(job.RawArgs), err)
	// Output: scheduled [{"month":2}] <nil>
}

func ExampleClient_EnqueueBatch() {
	client := ojstest.New().Client()
	jobs, err := client.EnqueueBatch(context.Background(), ojs.RequestFor(Email{To: "ada@example.com"}), ojs.RequestFor(Email{To: "grace@example.com"}))
	fmt.Println(len(jobs), err)
	// Output: 2 <nil>
}

func ExampleChain() {
	client := ojstest.New().Client()
	workflow := ojs.Chain(
		ojs.NewRequest("etl.extract", "2026-03-01"),
		ojs.Group(ojs.NewRequest("etl.clean", "a"), ojs.NewRequest("etl.clean", "b")),
		ojs.NewRequest("etl.load", nil),
	).Named("nightly").WithDefaults(ojs.WithQueue("etl"))
	info, err := client.CreateWorkflow(context.Background(), workflow)
	fmt.Println(info.State, len(info.Steps), err)
	// Output: running 3 <nil>
}

func ExampleError() {
	client := ojstest.New().Client()
	_, err := client.Get(context.Background(), "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f")
	var transport *ojs.TransportError
	switch {
	case errors.Is(err, ojs.ErrNotFound):
		fmt.Println("there is no such job")
	case errors.As(err, &transport):
		fmt.Println("the server cannot be reached; carried out perhaps:", ojs.OutcomeUnknown(err))
	}
	// Output: there is no such job
}

func ExampleMiddlewares() {
	client := ojstest.New().Client()
	worker := ojs.NewWorker(client, ojs.WorkerConfig{})
	logging := func(ctx context.Context, job *ojs.JobContext, next ojs.HandlerFunc) error {
		fmt.Println("begin", job.Type, job.Attempt)
		err := next(ctx, job)
		fmt.Println("end", job.Type, err)
		return err
	}
	err := errors.Join(
		worker.Middleware.UseNamed("logging", logging),
		worker.Middleware.InsertBefore("logging", "outer", logging),
	)
	fmt.Println(worker.Middleware.Names(), err)
	// Output: [outer logging] <nil>
}

func ExampleSnooze() {
	worker := ojs.NewWorker(ojstest.New().Client(), ojs.WorkerConfig{})
	worker.Register("order.ship", func(_ context.Context, job *ojs.JobContext) error {
		switch job.Meta["stock"] {
		case "coming":
			return ojs.Snooze(time.Minute) // again in a minute, which costs no attempt
		case "never":
			return ojs.Discard(errors.New("out of stock")) // not again
		case "broken":
			return &ojs.Failure{Code: "warehouse_down", Details: map[string]any{"site": 7}, RetryAfter: 10 * time.Second}
		}
		return nil
	})
	// Output:
}

func ExampleWebhookHandler() {
	http.Handle("/hooks/ojs", ojs.WebhookHandler("whsec_the-secret-of-the-subscription", func(_ context.Context, event *ojs.Event) error {
		fmt.Println(event.Type, event.Subject)
		return nil
	}))
	// Output:
}

func ExampleClient_Events() {
	server := ojstest.New()
	client := server.Client()
	job, _ := client.Enqueue(context.Background(), "a", nil)
	for event, err := range client.Events(context.Background(), ojs.EventFilter{Types: []string{"job.*"}, Since: job.CreatedAt.Add(-time.Minute)}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(event.Type, event.Subject == job.ID)
		break
	}
	// Output: job.enqueued true
}
