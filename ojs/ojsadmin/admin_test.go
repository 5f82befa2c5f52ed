package ojsadmin_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

// server is a transport that records requests and answers each with the next of its answers, the last one again and again.
type server struct {
	answers  []answer
	requests []request
}

type answer struct {
	status int // 0: the answer is lost
	body   string
}

type request struct {
	method, target, body string // the target is below /ojs/v1
	header               http.Header
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := request{method: r.Method, header: r.Header}
	sent.target, _ = strings.CutPrefix(r.URL.RequestURI(), "/ojs/v1")
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		sent.body = string(body)
	}
	a := s.answers[min(len(s.requests), len(s.answers)-1)]
	s.requests = append(s.requests, sent)
	if a.status == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return &http.Response{StatusCode: a.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}, nil
}

// setup makes a client whose requests are answered as given.
func setup(t *testing.T, answers ...answer) (*server, *ojsadmin.Client) {
	t.Helper()
	s := &server{answers: answers}
	client, err := ojs.NewClient(ojs.Config{Transport: s, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s, ojsadmin.New(client)
}

func ok(body string) answer { return answer{http.StatusOK, body} }

// decoded reads JSON, so that bodies are compared whatever the order of their members is. "" is nil.
func decoded(t *testing.T, text string) (value any) {
	t.Helper()
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s\n got %+v\nwant %+v", what, got, want)
	}
}

func TestAll(t *testing.T) {
	t.Parallel()
	// readAll reads the list of queues with two entries a page and returns their names.
	readAll := func(c *ojsadmin.Client, most int) (names []string, err error) {
		for q, err := range ojsadmin.All(func(page ojsadmin.PageOptions) (*ojsadmin.Page[ojsadmin.QueueInfo], error) {
			page.Limit = 2
			return c.ListQueues(context.Background(), page)
		}) {
			if err != nil {
				return names, err
			}
			if names = append(names, q.Name); len(names) == most {
				break
			}
		}
		return names, nil
	}
	const (
		byCursor = `{"queues":[{"name":"a"},{"name":"b"}],"pagination":{"has_more":true,"next_cursor":"x/1"}}`
		nothing  = `{"queues":[],"pagination":{"has_more":true,"next_cursor":"2"}}`
		byOffset = `{"queues":[{"name":"a"},{"name":"b"}],"pagination":{"has_more":true}}`
		last     = `{"queues":[{"name":"c"}],"pagination":{"has_more":false}}`
	)
	for name, test := range map[string]struct {
		answers []string
		most    int
		names   string
		targets string
	}{
		"FollowsCursorsOverEmptyPages": {[]string{byCursor, nothing, last}, 9, "abc", "limit=2 cursor=x%2F1&limit=2 cursor=2&limit=2"},
		"CountsOffsetsWithoutCursor":   {[]string{byOffset, byOffset, last}, 9, "ababc", "limit=2 limit=2&offset=2 limit=2&offset=4"},
		"EndsAtAnEmptyPage":            {[]string{byOffset, `{"queues":[],"pagination":{"has_more":true}}`}, 9, "ab", "limit=2 limit=2&offset=2"},
		"EndsWithoutPagination":        {[]string{`{"queues":[{"name":"a"}]}`}, 9, "a", "limit=2"},
		"ReadsNoPageAfterABreak":       {[]string{byOffset}, 2, "ab", "limit=2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var answers []answer
			for _, a := range test.answers {
				answers = append(answers, ok(a))
			}
			s, c := setup(t, answers...)
			names, err := readAll(c, test.most)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "names", strings.Join(names, ""), test.names)
			var targets []string
			for _, r := range s.requests {
				targets = append(targets, strings.TrimPrefix(r.target, "/queues?"))
			}
			equal(t, "queries", strings.Join(targets, " "), test.targets)
		})
	}

	t.Run("YieldsTheErrorOfALaterPage", func(t *testing.T) {
		t.Parallel()
		s, c := setup(t, ok(byCursor), answer{http.StatusBadRequest, `{"error":{"code":"invalid_request","message":"m"}}`})
		names, err := readAll(c, 9)
		if !errors.Is(err, ojs.ErrInvalidRequest) {
			t.Errorf("got %v", err)
		}
		equal(t, "names", names, []string{"a", "b"})
		equal(t, "requests", len(s.requests), 2)
	})

	t.Run("GivesTotalAndCursor", func(t *testing.T) {
		t.Parallel()
		_, c := setup(t, ok(`{"queues":[],"pagination":{"total":7,"has_more":true,"next_cursor":"n"}}`))
		page, err := c.ListQueues(context.Background(), ojsadmin.PageOptions{})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "page", page, &ojsadmin.Page[ojsadmin.QueueInfo]{Items: []ojsadmin.QueueInfo{}, Total: 7, HasMore: true, NextCursor: "n"})
	})
}

// TestForeignAnswers: an answer without what the call returns is an error, and not a value with zeros.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{}`:                            `no member "queues"`,
		`{"queues":7}`:                  "read the list",
		`{"queues":[],"pagination":[]}`: "read the pagination",
		`[]`:                            "read the answer",
	} {
		_, c := setup(t, ok(text))
		page, err := c.ListQueues(context.Background(), ojsadmin.PageOptions{})
		refusedAs(t, text, page == nil, err, want)
	}
	for text, want := range map[string]string{
		`{}`:                `no member "cron_job"`,
		`{"cron_job":null}`: `no member "cron_job"`,
		`{"cron_job":7}`:    "read the answer",
	} {
		_, c := setup(t, ok(text))
		cron, err := c.GetCron(context.Background(), "x")
		refusedAs(t, text, cron == nil, err, want)
	}
}

func refusedAs(t *testing.T, answer string, empty bool, err error, want string) {
	t.Helper()
	transport, is := errors.AsType[*ojs.TransportError](err)
	if !is || !empty || !strings.Contains(err.Error(), want) || transport.Method != http.MethodGet || !transport.Sent {
		t.Errorf("%s: got %v, want %q", answer, err, want)
	}
}

// TestEncodeErrors: what cannot be encoded is not sent, and the error names the thing.
func TestEncodeErrors(t *testing.T) {
	t.Parallel()
	s, c := setup(t, ok(`{}`))
	no := make(chan int)
	_, err1 := c.PutCron(context.Background(), ojsadmin.Cron{Name: "daily", Job: ojs.JobRequest{Type: "a", Args: no}})
	_, err2 := c.UpdateCron(context.Background(), "daily", ojsadmin.CronChange{Args: no})
	_, err3 := c.RetryDeadLetterWith(context.Background(), "id-1", ojsadmin.JobOverride{Args: no})
	for name, err := range map[string]error{`put cron "daily"`: err1, `update cron "daily"`: err2, "retry dead letter id-1": err3} {
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "unsupported type: chan int") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	equal(t, "requests", len(s.requests), 0)
}

// TestDeadLettersWithPage: the server would ignore the limit of a purge and delete everything.
func TestDeadLettersWithPage(t *testing.T) {
	t.Parallel()
	s, c := setup(t, ok(`{}`))
	filter := ojsadmin.DeadLetterFilter{Queues: []string{"q"}, PageOptions: ojsadmin.PageOptions{Limit: 1}}
	if _, err := c.PurgeDeadLetters(context.Background(), filter); err == nil {
		t.Error("purge takes a limit")
	}
	if _, err := c.RetryDeadLetters(context.Background(), filter); err == nil {
		t.Error("retry takes a limit")
	}
	equal(t, "requests", len(s.requests), 0)
}

// TestDependencies: users of the package get no other module with it.
func TestDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	slices.Sort(packages)
	equal(t, "packages", packages, []string{"github.com/ojsd/ojsd/ojs", "github.com/ojsd/ojsd/ojs/ojsadmin"})
}

// TestNothingBesideAnError: what a call returns beside an error is zero, so that nobody takes it for an answer.
func TestNothingBesideAnError(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	// Each answer begins well and has one member of another type.
	for name, call := range map[string]struct {
		answer string
		call   func(*ojsadmin.Client) (any, error)
	}{
		"RetryDeadLetters": {`{"succeeded":5.5}`, func(c *ojsadmin.Client) (any, error) { return c.RetryDeadLetters(ctx, ojsadmin.DeadLetterFilter{}) }},
		"PurgeDeadLetters": {`{"deleted":5.5}`, func(c *ojsadmin.Client) (any, error) { return c.PurgeDeadLetters(ctx, ojsadmin.DeadLetterFilter{}) }},
		"PurgeQueue": {`{"deleted":5,"has_more":"x"}`, func(c *ojsadmin.Client) (any, error) {
			n, _, err := c.PurgeQueue(ctx, "q", ojs.StateCompleted)
			return n, err
		}},
		"DrainQueue": {`{"remaining":5.5}`, func(c *ojsadmin.Client) (any, error) { return c.DrainQueue(ctx, "q") }},
		"DeleteQueue": {`{"state":"deleted"`, func(c *ojsadmin.Client) (any, error) {
			return c.DeleteQueue(ctx, "q", ojsadmin.DeleteIfEmpty, "")
		}},
		"QueueConfig":     {`{"queue":"q","config":{"a":1},"config":7}`, func(c *ojsadmin.Client) (any, error) { return c.QueueConfig(ctx, "q") }},
		"QueuePriorities": {`{"distribution":[{"priority":1},7]}`, func(c *ojsadmin.Client) (any, error) { return c.QueuePriorities(ctx, "q") }},
		"StatsHistory": {`{"data":[{"timestamp":"2026-03-01T10:00:00Z"},7]}`, func(c *ojsadmin.Client) (any, error) {
			return c.StatsHistory(ctx, ojsadmin.StatsFilter{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, c := setup(t, ok(call.answer))
			got, err := call.call(c)
			if err == nil || got != nil && !reflect.ValueOf(got).IsZero() {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

// TestMistakes: what a program can only do by mistake panics with a sentence, where the mistake is.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for text, mistake := range map[string]func(){
		"ojsadmin: the client is nil": func() { ojsadmin.New(nil) },
		"ojsadmin: the function that reads a page is nil": func() {
			ojsadmin.All[ojs.Job](nil)
		},
	} {
		func() {
			defer func() { equal(t, text, recover(), any(text)) }()
			mistake()
		}()
	}
}
