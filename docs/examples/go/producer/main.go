// Command producer enqueues a job of type text.count for each argument, then prints the result of each.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	"github.com/ojsd/ojsd/ojs"
)

// job is what this producer sends of a job.
type job struct {
	ID        string         `json:"id,omitempty"`
	Type      string         `json:"type"`
	Args      []any          `json:"args"`
	Queue     string         `json:"queue"`
	TimeoutMS int            `json:"timeout_ms"`
	Retry     map[string]any `json:"retry"`
}

func main() {
	log.SetFlags(0)
	texts := os.Args[1:]
	if len(texts) == 0 {
		texts = []string{"to be or not to be"}
	}
	var ids []string
	for _, text := range texts {
		// It runs at most five times, with 2 s, 4 s, 8 s and 16 s in between.
		retry := map[string]any{"max_attempts": 5, "initial_interval": "PT2S", "on_exhaustion": "dead_letter"}
		var stored struct{ Job job }
		call(http.MethodPost, "/jobs", job{
			Type: "text.count", Args: []any{text}, Queue: cmp.Or(os.Getenv("OJS_QUEUE"), "default"), TimeoutMS: 60_000, Retry: retry,
		}, &stored)
		ids = append(ids, stored.Job.ID)
	}
	for _, id := range ids {
		var outcome struct {
			State  ojs.JobState    `json:"state"`
			Result json.RawMessage `json:"result"`
		}
		// The request waits until the job has ended, up to 60 s; after that it is answered 408.
		call(http.MethodGet, "/jobs/"+id+"/result?wait=true&timeout=60", nil, &outcome)
		fmt.Printf("[%q,%q,%s]\n", id, outcome.State, outcome.Result)
	}
}

// call sends a request and decodes the answer. It ends the program if the answer is an error.
func call(method, path string, body, answer any) {
	data, err := json.Marshal(body)
	check(err)
	request, err := http.NewRequest(method, cmp.Or(os.Getenv("OJS_URL"), "http://127.0.0.1:8080")+"/ojs/v1"+path, bytes.NewReader(data))
	check(err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+os.Getenv("OJS_API_KEY"))
	response, err := http.DefaultClient.Do(request)
	check(err)
	data, err = io.ReadAll(response.Body)
	check(errors.Join(err, response.Body.Close()))
	if response.StatusCode >= 300 {
		var refusal struct{ Error ojs.Error }
		check(json.Unmarshal(data, &refusal))
		log.Fatalf("%s: %s (request %s)", response.Status, refusal.Error.Message, refusal.Error.RequestID)
	}
	check(json.Unmarshal(data, answer))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
