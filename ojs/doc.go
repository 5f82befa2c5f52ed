// Package ojs is the Go SDK of the Open Job Spec: a [Client] that enqueues jobs and a [Worker] that runs them, over HTTP. It also has the
// wire types that the server ojsd uses itself. Its module requires no other module.
//
// Enqueue a job:
//
//	client, err := ojs.NewClient(ojs.Config{URL: "http://localhost:8080"})
//	if err != nil {
//		return err
//	}
//	job, err := client.Enqueue(ctx, "email.send", Email{To: "ada@example.com"}, ojs.WithQueue("mail"))
//
// Run jobs until SIGTERM:
//
//	worker := ojs.NewWorker(client, ojs.WorkerConfig{Queues: []string{"mail"}})
//	worker.Register("email.send", ojs.Typed(func(ctx ojs.JobContext, email Email) error {
//		return send(ctx, email.To)
//	}))
//	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
//	defer stop()
//	return worker.Start(ctx)
//
// Jobs may finish then, for 25 s by default; a program calls [Worker.StopNow] at a second signal.
//
// # Surface
//
// [Client] enqueues ([Client.Enqueue], [Client.EnqueueBatch]), reads and cancels jobs, waits for results, starts workflows and subscribes
// to events; [Client.Do] sends any other request. [Job] is what the server says of a job, and [JobRequest] a job to be made. [Chain],
// [Group], [Batch] and [Graph] build definitions of workflows and call nobody. [Worker] runs handlers that [Worker.Register] has added;
// [Typed], [TypedResult] and [Register] make them of functions with typed arguments. A handler returns nil, an error, a [*Failure], or one
// of [Discard], [DeadLetter], [Snooze] and [Cancel]. [Middlewares] are chains of named middleware around enqueuing and around execution.
//
// Package ojsadmin has the calls of operators, ojstest is for tests without a server, ojssql enqueues in transactions of database/sql, and
// ojspgx and ojsotel, modules of their own, in those of pgx and with OpenTelemetry.
//
// # Arguments
//
// The args of a job are a JSON array. A struct, map or scalar is sent as an array of one element, and the struct of a typed handler is
// decoded from the first element. Slices and arrays are the array itself. A struct that embeds [Tuple] stands for the whole array, one
// element for each exported field. A type that encodes itself, such as a UUID, is sent as the array that it is in JSON, or in one.
//
// # Errors
//
// A refusal of the server is an [*Error]; compare with errors.Is(err, ojs.ErrNotFound) and the other kinds. A request that got no answer of
// a server of the Open Job Spec is a [*TransportError]. [OutcomeUnknown] tells whether the request may have been carried out. The client
// repeats requests by itself where that can do no harm, see [Config].
//
// # Other servers
//
// The SDK works with every server of the Open Job Spec. Long polling, batches of acks with the next fetch in them, delays of jobs that are
// handed back, and the event stream are used only if the manifest of the server has them.
package ojs
