// Command worker runs jobs of type text.count, one at a time, until SIGTERM or Ctrl-C.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

var (
	server  = cmp.Or(os.Getenv("OJS_URL"), "http://127.0.0.1:8080") + "/ojs/v1"
	queue   = cmp.Or(os.Getenv("OJS_QUEUE"), "default")
	host, _ = os.Hostname()
	worker  = fmt.Sprintf("go-%s-%d", host, os.Getpid())
	beat, _ = strconv.ParseFloat(cmp.Or(os.Getenv("HEARTBEAT_SECONDS"), "5"), 64)
	pause   = time.Duration(beat * float64(time.Second))
)

type job struct {
	ID      string            `json:"id"`
	Type    string            `json:"type"`
	Args    []json.RawMessage `json:"args"`
	Attempt int               `json:"attempt"`
}

type object map[string]any

func main() {
	stopping, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	go func() {
		<-stopping.Done()
		stop() // a second Ctrl-C ends the program at once
		// The server then answers a fetch that waits, and hands out nothing more. To cancel the fetch could lose its answer: the
		// jobs in it would wait for the end of their reservation.
		leave(object{})
	}()
	for stopping.Err() == nil {
		var got struct{ Jobs []job }
		if _, err := send(context.Background(), "/workers/fetch", object{"queues": []string{queue}, "wait_ms": 10_000}, &got); err != nil {
			log.Print(err)
			select {
			case <-time.After(time.Second):
			case <-stopping.Done():
			}
		}
		for _, j := range got.Jobs {
			run(j)
		}
		time.Sleep(100 * time.Millisecond) // a worker that was set to quiet gets its empty answers at once
	}
	leave(object{"active_jobs": []string{}})
}

// leave tells the server that this worker ends.
func leave(heartbeat object) {
	heartbeat["state"] = "terminate"
	if _, err := send(context.Background(), "/workers/heartbeat", heartbeat, nil); err != nil {
		log.Print(err)
	}
}

// run does not look at the signal: the job in hand is finished.
func run(j job) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go heartbeats(ctx, j.ID, cancel)

	report, path := object{"job_id": j.ID, "attempt": j.Attempt}, "/workers/ack"
	result, err := work(ctx, j)
	if err == nil {
		report["result"] = result
	} else {
		report["error"], path = object{"code": "handler_error", "message": err.Error()}, "/workers/nack"
	}
	if ctx.Err() != nil { // it was cancelled
		return
	}
	if err := post(ctx, path, report, nil); err != nil { // e.g. 409: the job belongs to another worker now
		log.Print(j.ID, ": ", err)
	}
}

// heartbeats renew the reservation of the job, and cancel it if the server says so.
func heartbeats(ctx context.Context, id string, cancel context.CancelFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		var answer struct {
			Cancelled []string `json:"jobs_cancelled"`
		}
		if err := post(ctx, "/workers/heartbeat", object{"queues": []string{queue}, "active_jobs": []string{id}}, &answer); err != nil && ctx.Err() == nil {
			log.Print(err)
		}
		if slices.Contains(answer.Cancelled, id) {
			cancel()
		}
	}
}

func work(ctx context.Context, j job) (any, error) {
	var text string
	var seconds float64
	switch {
	case j.Type != "text.count":
		return nil, errors.New("this worker knows text.count only")
	case len(j.Args) == 0 || json.Unmarshal(j.Args[0], &text) != nil:
		return nil, errors.New("args[0] must be a text")
	case len(j.Args) > 1 && json.Unmarshal(j.Args[1], &seconds) != nil:
		return nil, errors.New("args[1] must be a number")
	}
	select { // as if it took long
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	case <-ctx.Done():
	}
	return object{"words": len(strings.Fields(text))}, nil
}

// post repeats a request if that may help.
func post(ctx context.Context, path string, body object, answer any) error {
	for try := 1; ; try++ {
		again, err := send(ctx, path, body, answer)
		if !again || try == 5 || ctx.Err() != nil {
			return err
		}
		time.Sleep(time.Second)
	}
}

// send reports whether a failed request may succeed later.
func send(ctx context.Context, path string, body object, answer any) (again bool, err error) {
	body["worker_id"] = worker
	data, err := json.Marshal(body)
	if err != nil {
		return false, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server+path, bytes.NewReader(data))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+os.Getenv("OJS_API_KEY"))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return true, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		refused := struct{ Error ojs.Error }{ojs.Error{Message: response.Status}}
		_ = json.NewDecoder(response.Body).Decode(&refused) // a proxy may have answered
		return response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests, &refused.Error
	}
	if answer == nil {
		return false, nil
	}
	return false, json.NewDecoder(response.Body).Decode(answer)
}
