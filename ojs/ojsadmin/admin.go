// Package ojsadmin has the calls of operators: lists, bulk changes, the history of jobs, dead letters, crons, queues, rate limits,
// workers, pools, schemas, webhooks and statistics. Programs that enqueue or run jobs need package ojs only.
//
// It owns the paths, bodies and answers of these calls, and paging ([Page], [All]). It must use only what package ojs exports, and
// nothing else but the standard library: [ojs.Client.Do] sends the requests, repeats them and makes the errors, and [ojs.JobRequest]
// encodes arguments and options.
//
//	admin := ojsadmin.New(client)
//	err := admin.PauseQueue(ctx, "mail")
//
// A refusal of the server is an [*ojs.Error], as from the calls of package ojs; see [ojs.ErrorKind].
package ojsadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// Client has the calls of operators. It may be used by any number of goroutines.
type Client struct{ client *ojs.Client }

// New makes a client that sends its requests through the given one, with its URL, token, timeout and retries.
func New(client *ojs.Client) *Client {
	if client == nil {
		panic("ojsadmin: the client is nil")
	}
	return &Client{client}
}

// Page is a part of a list. Read on with NextCursor, or Offset, while HasMore is true; a page may be empty before that.
// Total is counted up to a bound by some lists, and 0 from those that do not count.
type Page[T any] struct {
	Items      []T
	Total      int
	HasMore    bool
	NextCursor string
}

// PageOptions choose a part of a list. Zero values have the server's defaults (docs/reference/http.md, Pagination). Of Offset and
// Cursor use one. A cursor neither skips nor repeats entries while others are added.
type PageOptions struct {
	Limit  int
	Offset int
	Cursor string // NextCursor of the page before; not every list has one
}

// All reads a whole list, page by page, while the loop goes on. An error is the last thing that it yields.
//
//	for job, err := range ojsadmin.All(func(page ojsadmin.PageOptions) (*ojsadmin.Page[ojs.Job], error) {
//		return admin.ListJobs(ctx, ojsadmin.JobFilter{Queues: []string{"mail"}, PageOptions: page})
//	}) { … }
//
// Each call of read gets the Offset or Cursor to use; read may set a Limit. With offsets, entries that are added or removed
// meanwhile may be skipped or repeated.
func All[T any](read func(PageOptions) (*Page[T], error)) iter.Seq2[*T, error] {
	if read == nil {
		panic("ojsadmin: the function that reads a page is nil")
	}
	return func(yield func(*T, error) bool) {
		options := PageOptions{}
		for {
			page, err := read(options)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page.Items {
				if !yield(&page.Items[i], nil) {
					return
				}
			}
			// Without a cursor, a page without entries would be asked for again for ever.
			if !page.HasMore || page.NextCursor == "" && len(page.Items) == 0 {
				return
			}
			if page.NextCursor != "" {
				options = PageOptions{Cursor: page.NextCursor}
			} else {
				options = PageOptions{Offset: options.Offset + len(page.Items)}
			}
		}
	}
}

func (o PageOptions) query() url.Values {
	query := url.Values{}
	if o.Limit > 0 {
		query.Set("limit", strconv.Itoa(o.Limit))
	}
	if o.Offset > 0 {
		query.Set("offset", strconv.Itoa(o.Offset))
	}
	setText(query, "cursor", o.Cursor)
	return query
}

func setText[S ~string](query url.Values, name string, value S) {
	if value != "" {
		query.Set(name, string(value))
	}
}

// setList joins alternatives with commas.
func setList[S ~string](query url.Values, name string, values []S) {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = string(v)
	}
	setText(query, name, strings.Join(texts, ","))
}

func setTime(query url.Values, name string, t time.Time) {
	if !t.IsZero() {
		query.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}

func get(path string, query url.Values) ojs.Call {
	return ojs.Call{Method: http.MethodGet, Path: path, Query: query}
}

// object reads an answer.
func object[T any](ctx context.Context, c *Client, call ojs.Call) (*T, error) {
	into := new(T)
	if err := c.client.Do(ctx, call, into); err != nil {
		return nil, err
	}
	return into, nil
}

// member reads one member of an answer. An answer without it comes from something else than a server of the Open Job Spec.
func member[T any](ctx context.Context, c *Client, call ojs.Call, name string) (*T, error) {
	answer, err := object[map[string]json.RawMessage](ctx, c, call)
	if err != nil {
		return nil, err
	}
	var into *T
	if data, ok := (*answer)[name]; ok {
		if err := json.Unmarshal(data, &into); err != nil {
			return nil, badAnswer(call, fmt.Errorf("read the answer: %w", err))
		}
	}
	if into == nil {
		return nil, badAnswer(call, fmt.Errorf("the answer has no member %q", name))
	}
	return into, nil
}

// list reads a page. Servers name the items differently: the first of the names that is there counts.
func list[T any](ctx context.Context, c *Client, call ojs.Call, names ...string) (*Page[T], error) {
	answer, err := object[map[string]json.RawMessage](ctx, c, call)
	if err != nil {
		return nil, err
	}
	var pagination struct {
		Total      int    `json:"total"`
		HasMore    bool   `json:"has_more"`
		NextCursor string `json:"next_cursor"`
	}
	if data, ok := (*answer)["pagination"]; ok {
		if err := json.Unmarshal(data, &pagination); err != nil {
			return nil, badAnswer(call, fmt.Errorf("read the pagination: %w", err))
		}
	}
	page := &Page[T]{Total: pagination.Total, HasMore: pagination.HasMore, NextCursor: pagination.NextCursor}
	for _, name := range names {
		if data, ok := (*answer)[name]; ok {
			if err := json.Unmarshal(data, &page.Items); err != nil {
				return nil, badAnswer(call, fmt.Errorf("read the list: %w", err))
			}
			return page, nil
		}
	}
	return nil, badAnswer(call, fmt.Errorf("the answer has no member %q", names[0]))
}

func badAnswer(call ojs.Call, err error) error {
	return &ojs.TransportError{Method: call.Method, Path: call.Path, Sent: true, Err: err}
}

// encodedJob has the members of a job as package ojs encodes them, for bodies that carry some of them.
type encodedJob struct {
	Type    string                     `json:"type"`
	Args    json.RawMessage            `json:"args"`
	Meta    json.RawMessage            `json:"meta"`
	Options map[string]json.RawMessage `json:"options"`
}

func encodeJob(request ojs.JobRequest) (job encodedJob, err error) {
	data, err := request.MarshalJSON()
	if err != nil {
		return job, err
	}
	return job, json.Unmarshal(data, &job)
}
