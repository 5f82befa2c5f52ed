package userguide_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/internal/require"
)

// TestTransport shows the page's headings The transport layer and Unit tests with mocked transport.
func TestTransport(t *testing.T) {
	t.Parallel()

	// The mock of the page, in Go.
	mock := transport(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/ojs/v1/jobs" && r.Method == http.MethodPost {
			return respond(http.StatusCreated, map[string]any{
				"job": map[string]any{"id": "test-id", "type": "email.send", "state": "available", "args": []any{"test"}},
			}), nil
		}
		return nil, errors.New("Unexpected request: " + r.Method + " " + r.URL.Path)
	})

	t.Run("MockAnswersEnqueue", func(t *testing.T) {
		t.Parallel()
		client, err := ojs.NewClient(ojs.Config{URL: "http://unused", Transport: mock})
		require.NoError(t, err)
		job, err := client.Enqueue(t.Context(), "email.send", []any{"test"})
		require.NoError(t, err)
		require.Equal(t, "test-id", job.ID)
		require.Equal(t, ojs.StateAvailable, job.State)
		require.Equal(t, []any{"test"}, job.Args)
	})

	t.Run("MockRefusesOtherRequests", func(t *testing.T) {
		t.Parallel()
		_, err := newClient(t, mock).GetJob(t.Context(), "test-id")
		require.ErrorContains(t, err, "Unexpected request: GET /ojs/v1/jobs/test-id")
	})

	t.Run("SendsBasePathAndContentType", func(t *testing.T) {
		t.Parallel()
		s := newServer()
		enqueue(t, newClient(t, s), "email.send")
		q := s.sent("")[0]
		require.Equal(t, "/ojs/v1/jobs", q.path)
		require.Equal(t, "application/openjobspec+json", q.header.Get("Content-Type"))
		require.Equal(t, "application/openjobspec+json", q.header.Get("Accept"))
	})
}

// TestEnqueue shows the page's heading enqueue(type, args, options?).
func TestEnqueue(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, want string
		args       any
	}{
		{"ListIsArgs", `["user@example.com", 1]`, []any{"user@example.com", 1}},
		{"SingleValueIsWrapped", `["user@example.com"]`, "user@example.com"},
		{"ObjectIsWrapped", `[{"to":"user@example.com"}]`, map[string]any{"to": "user@example.com"}},
		{"NothingIsAnEmptyArray", `[]`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newServer()
			_, err := newClient(t, s).Enqueue(t.Context(), "email.send", test.args)
			require.NoError(t, err)
			require.JSONEq(t, test.want, encode(t, decode(t, s.sent("POST /jobs")[0].body)["args"]))
		})
	}

	t.Run("OptionsGoIntoOptions", func(t *testing.T) {
		t.Parallel()
		s := newServer()
		_, err := newClient(t, s).Enqueue(
			t.Context(), "email.send", "user@example.com", ojs.WithQueue("email"), ojs.WithPriority(5),
			ojs.WithRetry(ojs.RetryPolicy{MaxAttempts: 3}), ojs.WithRunAt(time.Date(2026, 2, 12, 10, 30, 0, 0, time.UTC)),
		)
		require.NoError(t, err)
		body := decode(t, s.sent("POST /jobs")[0].body)
		delete(body, "id") // of the client, so that it can send the request again
		require.JSONEq(t, `{
			"type": "email.send", "args": ["user@example.com"],
			"options": {"queue": "email", "priority": 5, "retry": {"max_attempts": 3}, "delay_until": "2026-02-12T10:30:00Z"}
		}`, encode(t, body))
	})

	t.Run("WithoutOptionsThereAreNone", func(t *testing.T) {
		t.Parallel()
		s := newServer()
		enqueue(t, newClient(t, s), "email.send")
		_, there := decode(t, s.sent("POST /jobs")[0].body)["options"]
		require.False(t, there)
	})

	t.Run("JobHasWhatTheServerAssigns", func(t *testing.T) {
		t.Parallel()
		job := enqueue(t, newClient(t, newServer()), "email.send", "user@example.com")
		require.True(t, job.ID != "" && !job.CreatedAt.IsZero())
		require.Equal(t, ojs.StateAvailable, job.State)
		require.Equal(t, "default", job.Queue)
	})
}

// TestEnqueueBatch shows the page's heading enqueueBatch(jobs).
func TestEnqueueBatch(t *testing.T) {
	t.Parallel()
	requests := []ojs.JobRequest{
		{Type: "email.send", Args: []any{"user1@example.com"}},
		{Type: "email.send", Args: []any{"user2@example.com"}},
		{Type: "report.make", Args: []any{2026, "csv"}},
	}
	const want = `{"jobs": [
		{"type": "email.send", "args": ["user1@example.com"]},
		{"type": "email.send", "args": ["user2@example.com"]},
		{"type": "report.make", "args": [2026, "csv"]}
	]}`
	type enqueueBatch func(context.Context, []ojs.JobRequest) ([]ojs.Job, error)
	for name, of := range map[string]func(*ojs.Client) enqueueBatch{
		"CodeOfThePage": func(c *ojs.Client) enqueueBatch { return (&Client{&poster{c}}).EnqueueBatch },
		"Client": func(c *ojs.Client) enqueueBatch {
			return func(ctx context.Context, requests []ojs.JobRequest) ([]ojs.Job, error) {
				return c.EnqueueBatch(ctx, requests)
			}
		},
	} {
		t.Run(name+"PostsJobsAndReturnsThemInOrder", func(t *testing.T) {
			t.Parallel()
			s := newServer()
			jobs, err := of(newClient(t, s))(t.Context(), requests)
			require.NoError(t, err)
			require.Len(t, s.sent(""), 1)
			body := decode(t, s.sent("POST /jobs/batch")[0].body)
			for _, job := range body["jobs"].([]any) {
				delete(job.(map[string]any), "id") // Client chooses ids, so that it can send the request again
			}
			require.JSONEq(t, want, encode(t, body))

			require.Len(t, jobs, len(requests))
			for i, want := range [][]any{{"user1@example.com"}, {"user2@example.com"}, {2026.0, "csv"}} {
				require.Equal(t, want, jobs[i].Args)
				require.Equal(t, requests[i].Type, jobs[i].Type)
				require.Equal(t, s.jobs[i]["id"], any(jobs[i].ID))
			}
		})

		t.Run(name+"ReturnsTheRefusal", func(t *testing.T) {
			t.Parallel()
			c := newClient(t, transport(func(*http.Request) (*http.Response, error) {
				return respond(http.StatusBadRequest, refusal("invalid_payload")), nil
			}))
			_, err := of(c)(t.Context(), requests)
			require.ErrorIs(t, err, ojs.ErrInvalidPayload)
		})
	}
}

// TestReadAndCancel shows the page's headings getJob(id) and cancelJob(id).
func TestReadAndCancel(t *testing.T) {
	t.Parallel()

	t.Run("GetJobReturnsTheEnvelope", func(t *testing.T) {
		t.Parallel()
		s := newServer()
		c := newClient(t, s)
		made := enqueue(t, c, "email.send", "user@example.com")
		job, err := c.GetJob(t.Context(), made.ID)
		require.NoError(t, err)
		require.Equal(t, made, job)
		require.Len(t, s.sent("GET /jobs/"+made.ID), 1)
	})

	t.Run("CancelJobReturnsItCancelled", func(t *testing.T) {
		t.Parallel()
		s := newServer()
		c := newClient(t, s)
		made := enqueue(t, c, "email.send", "user@example.com")
		job, err := c.CancelJob(t.Context(), made.ID, "")
		require.NoError(t, err)
		require.Equal(t, made.ID, job.ID)
		require.Equal(t, ojs.StateCancelled, job.State)
		require.Len(t, s.sent("DELETE /jobs/"+made.ID), 1)
	})
}

// TestErrors shows the page's headings Structured errors, and Transport errors vs application errors.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code   string
		status int
		kind   ojs.ErrorKind
	}{
		{"invalid_payload", 400, ojs.ErrInvalidPayload},
		{"not_found", 404, ojs.ErrNotFound},
		{"invalid_state_transition", 409, ojs.ErrInvalidStateTransition},
		{"duplicate", 409, ojs.ErrDuplicateJob},
		{"internal_error", 500, ojs.ErrInternal},
	} {
		t.Run("Structured/"+test.code, func(t *testing.T) {
			t.Parallel()
			retryable := test.status == 500
			c := newClient(t, transport(func(*http.Request) (*http.Response, error) {
				return respond(test.status, map[string]any{"error": map[string]any{
					"code": test.code, "message": "what went wrong", "retryable": retryable, "details": map[string]any{"field": "args"},
				}}), nil
			}))
			_, err := c.GetJob(t.Context(), "test-id")
			var refused *ojs.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, test.code, refused.Code)
			require.Equal(t, "what went wrong", refused.Message)
			require.Equal(t, retryable, refused.Retryable)
			require.Equal(t, map[string]any{"field": "args"}, refused.Details)
			require.Equal(t, test.status, refused.Status)
			require.Equal(t, retryable, ojs.Retryable(err))
			require.ErrorIs(t, err, test.kind)
			require.NotErrorIs(t, err, ojs.ErrPermissionDenied)

			var broken *ojs.TransportError
			require.False(t, errors.As(err, &broken))
		})
	}

	offline := errors.New("connection refused")
	for _, test := range []struct {
		name      string
		transport transport
		status    int
		cause     error
	}{
		{"NoConnection", func(*http.Request) (*http.Response, error) { return nil, offline }, 0, offline},
		{"Timeout", func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}, 0, context.DeadlineExceeded},
		{"AnswerOfAProxy", func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusBadGateway, Body: io.NopCloser(strings.NewReader("<html>"))}, nil
		}, http.StatusBadGateway, nil},
	} {
		bubble(t, "Transport/"+test.name, func(t *testing.T) {
			_, err := newClient(t, test.transport).GetJob(t.Context(), "test-id")
			var broken *ojs.TransportError
			require.ErrorAs(t, err, &broken)
			require.Equal(t, test.status, broken.Status)
			require.True(t, ojs.Retryable(err))
			if test.cause != nil {
				require.ErrorIs(t, err, test.cause)
			}

			var refused *ojs.Error
			require.False(t, errors.As(err, &refused))
		})
	}
}

// TestWorkflows shows the page's heading Workflow helpers: definitions are made without a client, and sent by a call.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	step := func(jobType string, args any) ojs.JobRequest { return ojs.JobRequest{Type: jobType, Args: args} }
	report := step("batch.report", []any{})
	alert := step("batch.alert", []any{})
	for _, test := range []struct {
		name, want string
		workflow   *ojs.Workflow
	}{
		{
			"Chain", `{"type": "chain", "steps": [
				{"type": "data.fetch", "args": [{"url": "..."}]},
				{"type": "data.transform", "args": [{"format": "csv"}]},
				{"type": "data.load", "args": [{"dest": "warehouse"}]}
			]}`,
			ojs.Chain(
				step("data.fetch", map[string]any{"url": "..."}),
				step("data.transform", map[string]any{"format": "csv"}),
				step("data.load", map[string]any{"dest": "warehouse"}),
			),
		},
		{
			"Group", `{"type": "group", "jobs": [
				{"type": "export.csv", "args": [{"reportId": "rpt_456"}]},
				{"type": "export.pdf", "args": [{"reportId": "rpt_456"}]},
				{"type": "export.xlsx", "args": [{"reportId": "rpt_456"}]}
			]}`,
			ojs.Group(
				step("export.csv", map[string]any{"reportId": "rpt_456"}),
				step("export.pdf", map[string]any{"reportId": "rpt_456"}),
				step("export.xlsx", map[string]any{"reportId": "rpt_456"}),
			),
		},
		{
			"Batch", `{"type": "batch", "jobs": [
				{"type": "email.send", "args": ["user1@example.com"]},
				{"type": "email.send", "args": ["user2@example.com"]}
			], "callbacks": {
				"on_complete": {"type": "batch.report", "args": []},
				"on_failure": {"type": "batch.alert", "args": []}
			}}`,
			ojs.Batch(
				ojs.Callbacks{OnComplete: &report, OnFailure: &alert},
				step("email.send", []any{"user1@example.com"}),
				step("email.send", []any{"user2@example.com"}),
			),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.JSONEq(t, test.want, encode(t, test.workflow))

			s := newServer()
			info, err := newClient(t, s).CreateWorkflow(t.Context(), test.workflow)
			require.NoError(t, err)
			require.Equal(t, "test-workflow", info.ID)
			require.Len(t, s.sent(""), 1)
			body := decode(t, s.sent("POST /workflows")[0].body)
			delete(body, "id") // of the client, so that it can send the request again
			require.JSONEq(t, test.want, encode(t, body))
			require.JSONEq(t, test.want, encode(t, test.workflow), "the definition after the call")
		})
	}
}

// TestEnqueueMiddleware shows the page's heading Enqueue middleware.
func TestEnqueueMiddleware(t *testing.T) {
	t.Parallel()

	t.Run("ChangesTheRequestBeforeItIsSent", func(t *testing.T) {
		t.Parallel()
		s := newServer()
		c := newClient(t, s)
		c.Use(func(ctx context.Context, request *ojs.JobRequest, next ojs.EnqueueFunc) (*ojs.Job, error) {
			require.Len(t, s.sent(""), 0)
			request.SetMeta("trace_id", "trace-1")
			return next(ctx, request)
		})
		job := enqueue(t, c, "email.send")
		require.Equal(t, any(map[string]any{"trace_id": "trace-1"}), decode(t, s.sent("POST /jobs")[0].body)["meta"])
		require.Equal(t, map[string]any{"trace_id": "trace-1"}, job.Meta)
	})

	t.Run("WithoutNextNothingIsSent", func(t *testing.T) {
		t.Parallel()
		s := newServer()
		c := newClient(t, s)
		refused := errors.New("not today")
		c.Use(func(context.Context, *ojs.JobRequest, ojs.EnqueueFunc) (*ojs.Job, error) { return nil, refused })
		_, err := c.Enqueue(t.Context(), "email.send", nil)
		require.ErrorIs(t, err, refused)
		require.Len(t, s.sent(""), 0)
	})

	t.Run("HasNamesAndAnOrder", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, newServer())
		var order []string
		named := func(name string) ojs.EnqueueMiddleware {
			return func(ctx context.Context, request *ojs.JobRequest, next ojs.EnqueueFunc) (*ojs.Job, error) {
				order = append(order, name)
				return next(ctx, request)
			}
		}
		c.UseNamed("logging", named("logging"))
		c.UseNamed("metrics", named("metrics"))
		c.Middleware.InsertBefore("metrics", "tracing", named("tracing"))
		c.Middleware.Remove("logging")
		enqueue(t, c, "email.send")
		require.Equal(t, []string{"tracing", "metrics"}, order)
	})
}
