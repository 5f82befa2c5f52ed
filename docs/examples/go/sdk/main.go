// Command sdk is a small application on package ojs: a web handler that enqueues in the transaction of its order, a worker, and a
// workflow.
//
//	OJS_URL=http://127.0.0.1:8080 DATABASE_URL=postgres://… go run ./docs/examples/go/sdk
//	curl -X POST 'localhost:9000/orders?email=ada@example.com'
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojspgx"
)

// Order is what the jobs of this application have as arguments.
type Order struct {
	ID    int64  `json:"id"`
	Email string `json:"email"`
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// onSignals calls first at the first Ctrl-C or SIGTERM, and second at the second one. A third one ends the process.
func onSignals(first, second func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		first()
		<-signals
		second()
		signal.Stop(signals)
	}()
}

func run(ctx context.Context) error {
	queue := cmp.Or(os.Getenv("OJS_QUEUE"), "orders")
	client, err := ojs.NewClient(ojs.Config{URL: cmp.Or(os.Getenv("OJS_URL"), "http://127.0.0.1:8080"), Token: os.Getenv("OJS_API_KEY")})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	const schema = "CREATE TABLE IF NOT EXISTS sdk_orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL, packed boolean NOT NULL DEFAULT false)"
	if _, err := pool.Exec(ctx, schema); err != nil {
		return err
	}

	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:9000"))
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	server := &http.Server{Handler: orders(pool, queue), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Print(err)
		}
	}()
	defer func() { _ = server.Close() }()
	return work(ctx, client, pool, queue)
}

// orders stores an order and enqueues its job in one transaction: neither exists without the other.
func orders(pool *pgxpool.Pool, queue string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var job string
		err := pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error {
			order := Order{Email: r.FormValue("email")}
			err := tx.QueryRow(r.Context(), "INSERT INTO sdk_orders (email) VALUES ($1) RETURNING id", order.Email).Scan(&order.ID)
			if err != nil {
				return err
			}
			job, err = ojspgx.Enqueue(r.Context(), tx, "order.accept", order, ojs.WithQueue(queue))
			return err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = fmt.Fprintln(w, job)
	})
}

// work runs the jobs of the application until a signal comes.
func work(ctx context.Context, client *ojs.Client, pool *pgxpool.Pool, queue string) error {
	worker := ojs.NewWorker(client, ojs.WorkerConfig{Queues: []string{queue}, Concurrency: 20})
	worker.Register("order.accept", ojs.Typed(func(ctx ojs.JobContext, order Order) error {
		workflow := ojs.Chain(ojs.JobRequest{Type: "order.pack", Args: order}, ojs.JobRequest{Type: "order.mail", Args: order})
		workflow.ID = ctx.Job.ID // a second run of this job makes no second workflow
		workflow.Name, workflow.Defaults = "order", &ojs.JobRequest{Queue: queue}
		if _, err := client.CreateWorkflow(ctx, workflow); err != nil && !errors.Is(err, ojs.ErrDuplicateJob) {
			return err
		}
		return ctx.SetResult(workflow.ID)
	}))
	worker.Register("order.pack", ojs.Typed(func(ctx ojs.JobContext, order Order) error {
		_, err := pool.Exec(ctx, "UPDATE sdk_orders SET packed = true WHERE id = $1", order.ID)
		return err
	}))
	worker.Register("order.mail", ojs.Typed(func(_ ojs.JobContext, order Order) error {
		if order.Email == "" {
			return ojs.Discard(errors.New("the order has no address"))
		}
		fmt.Println("mail to", order.Email)
		return nil
	}))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	onSignals(stop, worker.StopNow) // jobs may finish first, and are handed back at a second Ctrl-C
	return worker.Start(ctx)
}
