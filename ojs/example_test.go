package ojs_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
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
	ojs.Register(worker, func(_ ojs.JobContext, args Email) error {
		return send(args.To)
	})
	completed := make(chan string, 1)
	worker.OnEvent("job.completed", func(e ojs.Event) { completed <- e.JobID })
	done := make(chan error)
	go func() { done <- worker.Start(ctx) }()

	job, err := ojs.Enqueue(ctx, client, Email{To: "ada@example.com"}, ojs.WithQueue("mail"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(<-completed == job.ID)
	stop()
	fmt.Println(<-done)
	// Output:
	// to ada@example.com
	// true
	// <nil>
}

// The first signal lets jobs finish for the grace period. A second one hands back those that still run.
func ExampleWorker_StopNow() {
	worker := ojs.NewWorker(ojstest.New().Client(), ojs.WorkerConfig{})
	ojs.Register(worker, func(_ ojs.JobContext, args Email) error { return send(args.To) })

	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals
		worker.StopNow()
		signal.Stop(signals) // a third one ends the process
	}()
	signals <- os.Interrupt // instead of Ctrl-C
	fmt.Println(worker.Start(ctx))
	signals <- os.Interrupt // again, when there is nothing left to stop
	// Output: <nil>
}

// Of the twenty jobs that run at the same time, at most two are of the queue video.
func ExampleWorkerConfig_queueConcurrency() {
	client := ojstest.New().Client()
	worker := ojs.NewWorker(client, ojs.WorkerConfig{
		Queues: []string{"video", "mail"}, Concurrency: 20, QueueConcurrency: map[string]int{"video": 2},
	})
	ctx, stop := context.WithCancel(context.Background())
	ojs.Register(worker, func(_ ojs.JobContext, args Email) error {
		defer stop()
		return send(args.To)
	})
	_, err := ojs.Enqueue(ctx, client, Email{To: "ada@example.com"}, ojs.WithQueue("mail"))
	fmt.Println(err)
	fmt.Println(worker.Start(ctx))
	// Output:
	// <nil>
	// to ada@example.com
	// <nil>
}

func ExampleClient_Enqueue() {
	client := ojstest.New().Client()
	job, err := client.Enqueue(context.Background(), "report.build", map[string]int{"month": 2},
		ojs.WithQueue("reports"), ojs.WithDelay(time.Hour), ojs.WithMaxAttempts(5),
		ojs.WithUnique(ojs.UniquePolicy{Keys: []string{"args"}, OnConflict: ojs.ConflictIgnore}))
	fmt.Println(job.State, job.Args, err)
	// Output: scheduled [map[month:2]] <nil>
}

func ExampleClient_EnqueueBatch() {
	client := ojstest.New().Client()
	jobs, err := client.EnqueueBatch(context.Background(), []ojs.JobRequest{{Args: Email{To: "ada@example.com"}}, {Args: Email{To: "grace@example.com"}}})
	fmt.Println(len(jobs), err)
	// Output: 2 <nil>
}

func ExampleChain() {
	client := ojstest.New().Client()
	workflow := ojs.Chain(
		ojs.JobRequest{Type: "etl.extract", Args: "2026-03-01"},
		ojs.Group(ojs.JobRequest{Type: "etl.clean", Args: "a"}, ojs.JobRequest{Type: "etl.clean", Args: "b"}),
		ojs.JobRequest{Type: "etl.load"},
	)
	workflow.Name, workflow.Defaults = "nightly", &ojs.JobRequest{Queue: "etl"}
	info, err := client.CreateWorkflow(context.Background(), workflow)
	fmt.Println(info.State, len(info.Steps), err)
	// Output: running 3 <nil>
}

func ExampleError() {
	client := ojstest.New().Client()
	_, err := client.GetJob(context.Background(), "019a3c10-5a00-7b11-9c22-0a1b2c3d4e5f")
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
	logging := func(ctx ojs.JobContext, next ojs.HandlerFunc) error {
		fmt.Println("begin", ctx.Job.Type, ctx.Job.Attempt)
		err := next(ctx)
		fmt.Println("end", ctx.Job.Type, err)
		return err
	}
	worker.UseNamed("logging", logging)
	worker.Middleware.InsertBefore("logging", "outer", logging)
	fmt.Println(worker.Middleware.Names())
	// Output: [outer logging]
}

func ExampleSnooze() {
	worker := ojs.NewWorker(ojstest.New().Client(), ojs.WorkerConfig{})
	worker.Register("order.ship", func(ctx ojs.JobContext) error {
		switch ctx.Job.Meta["stock"] {
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

// Middleware that tells outcomes apart: an attempt that snoozes or cancels its job is no failure.
func ExampleIsSnooze() {
	outcome := func(ctx ojs.JobContext, next ojs.HandlerFunc) error {
		err := next(ctx)
		switch {
		case ojs.IsSnooze(err):
			fmt.Println("later")
		case ojs.IsCancel(err):
			fmt.Println("cancelled")
		case ojs.IsDiscard(err), ojs.IsDeadLetter(err):
			fmt.Println("not again:", err)
		case err != nil:
			fmt.Println("failed:", err)
		}
		return err
	}
	ctx := ojs.JobContext{Context: context.Background(), Job: &ojs.Job{}}
	_ = outcome(ctx, func(ojs.JobContext) error { return ojs.Snooze(time.Minute) })
	_ = outcome(ctx, func(ojs.JobContext) error { return fmt.Errorf("find the user: %w", ojs.Discard(errors.New("gone"))) })
	_ = outcome(ctx, func(ojs.JobContext) error { return errors.New("no connection") })
	// Output:
	// later
	// not again: find the user: discard: gone
	// failed: no connection
}

// Report is built once a month. All of its jobs are in the queue reports and run at most twice.
type Report struct {
	Month int `json:"month"`
}

func (Report) JobType() string { return "report.build" }

// JobOptions are the options of all jobs with these arguments; those of an enqueue come after them.
func (Report) JobOptions() []ojs.EnqueueOption {
	return []ojs.EnqueueOption{ojs.WithQueue("reports"), ojs.WithMaxAttempts(2)}
}

func ExampleJobOptions() {
	client := ojstest.New().Client()
	job, err := ojs.Enqueue(context.Background(), client, Report{Month: 2})
	fmt.Println(job.Queue, job.MaxAttempts, err)
	job, err = ojs.Enqueue(context.Background(), client, Report{Month: 3}, ojs.WithQueue("urgent"))
	fmt.Println(job.Queue, job.MaxAttempts, err)
	// Output:
	// reports 2 <nil>
	// urgent 2 <nil>
}

// A type of jobs with limits and middleware of its own.
func ExampleHandlerTimeout() {
	worker := ojs.NewWorker(ojstest.New().Client(), ojs.WorkerConfig{})
	audit := func(ctx ojs.JobContext, next ojs.HandlerFunc) error {
		fmt.Println("report", ctx.Job.ID)
		return next(ctx)
	}
	ojs.Register(worker, func(ctx ojs.JobContext, args Report) error { return build(ctx, args.Month) },
		ojs.HandlerTimeout(time.Minute),
		ojs.HandlerBackoff(func(attempt int, _ error) time.Duration { return time.Duration(attempt) * time.Hour }),
		ojs.HandlerMiddleware(audit))
	// Output:
}

func build(context.Context, int) error { return nil }

// The result of a job has a type on both sides.
func ExampleTypedResult() {
	client := ojstest.New().Client()
	worker := ojs.NewWorker(client, ojs.WorkerConfig{})
	worker.Register("text.count", ojs.TypedResult(func(_ ojs.JobContext, text string) (int, error) {
		return len(text), nil
	}))
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- worker.Start(ctx) }()

	job, err := client.Enqueue(ctx, "text.count", "hello")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ojs.WaitResult[int](ctx, client, job.ID))
	stop()
	fmt.Println(<-done)
	// Output:
	// 5 <nil>
	// <nil>
}

// A handler enqueues the next job through the client of its worker.
func ExampleJobContext_Client() {
	server := ojstest.New()
	worker := ojs.NewWorker(server.Client(), ojs.WorkerConfig{})
	ojs.Register(worker, func(ctx ojs.JobContext, args Report) error {
		_, err := ojs.Enqueue(ctx, ctx.Client(), Email{To: "ada@example.com"})
		return err
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
