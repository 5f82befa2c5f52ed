// Package ojs is the Go SDK of the Open Job Spec: a [Client] that enqueues jobs and a [Worker] that runs them, over HTTP. It also
// has the wire types that the server ojsd uses itself. It needs the standard library only.
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
//	ojs.RegisterFunc(worker, "email.send", func(ctx context.Context, job *ojs.Job[Email]) error {
//		return send(ctx, job.Args.To)
//	})
//	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
//	defer stop()
//	return worker.Run(ctx)
//
// # Surface
//
// [Transport] carries requests; [HTTPTransport] is the one that is used by default, and package ojstest has one in memory for tests.
// [Client] enqueues ([Client.Enqueue], [Client.EnqueueBatch]), reads, cancels, and manages workflows, crons, queues, dead letters,
// rate limits, pools, schemas, events and webhooks. Lists are pages; [All] reads them to the end. [JobRequest] is a job to be made, [JobInfo] what the server says of a job, and [Job] what a handler gets: a
// JobInfo with typed arguments. The name JobInfo leaves Job to the type that handlers name most.
// [Chain], [Group], [Batch] and [Graph] build definitions of workflows and call nobody.
// [Worker] runs handlers that [Register], [RegisterFunc], [RegisterResult] and [Worker.Register] have added. A handler returns nil, an
// error, a [*Failure], or one of [Discard], [DeadLetter], [Snooze] and [Cancel].
// [Middlewares] are chains of named middleware around enqueuing and around execution.
//
// # Arguments
//
// The args of a job are a JSON array. A struct, map or scalar is sent as an array of one element, and a handler's struct is decoded
// from the first element. Slices and arrays are the array itself. A struct that embeds [Tuple] stands for the whole array, one
// element for each exported field.
//
// # Errors
//
// A refusal of the server is an [*Error]; compare with errors.Is(err, ojs.ErrNotFound) and the other kinds. A request that got no
// answer of a server of the Open Job Spec is a [*TransportError]. [OutcomeUnknown] tells whether the request may have been carried
// out. The client repeats requests by itself where that can do no harm, see [Config].
//
// # Other servers
//
// The SDK works with every server of the Open Job Spec. Long polling, batches of acks with the next fetch in them, delays of jobs that are
// handed back, and the event stream are used only if the manifest of the server has them.
package ojs
