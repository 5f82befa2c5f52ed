package ojsadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// Cron is a schedule that makes jobs. Fields and expressions: docs/reference/scheduling.md, Cron fields.
type Cron struct {
	Name       string
	Expression string // five or six fields, or @hourly and the like
	Timezone   string // IANA name; "": UTC
	// Job is a template. Its Delay counts from each tick; its ID, Schema and the fields of workflows are not used.
	Job         ojs.JobRequest
	Overlap     Overlap // skip by default
	Paused      bool
	Description string
}

// Overlap is the policy of a tick at which an earlier job of the cron has not ended (docs/reference/scheduling.md, Overlap).
type Overlap string

// The overlap policies.
const (
	OverlapSkip           Overlap = "skip"            // the tick makes no job
	OverlapAllow          Overlap = "allow"           // the new job runs beside the earlier ones
	OverlapCancelPrevious Overlap = "cancel_previous" // earlier jobs are cancelled, active ones too
	OverlapEnqueue        Overlap = "enqueue"         // the new job waits until no earlier one is active
)

// CronInfo is what the server shows of a cron.
type CronInfo struct {
	Name        string          `json:"name"`
	Expression  string          `json:"expression"`
	Timezone    string          `json:"timezone"`
	Type        string          `json:"type"`
	RawArgs     json.RawMessage `json:"args"`
	Meta        map[string]any  `json:"meta"`
	Options     map[string]any  `json:"options"`
	Overlap     Overlap         `json:"overlap_policy"`
	Enabled     bool            `json:"enabled"`
	Description string          `json:"description"`
	LastRunAt   time.Time       `json:"last_run_at"`
	NextRunAt   time.Time       `json:"next_run_at"`
	RunCount    int             `json:"run_count"`
	CreatedAt   time.Time       `json:"created_at"`
}

// CronRun is a tick of a cron. JobID is empty for a tick that made no job; Reason then is why.
type CronRun struct {
	JobID       string       `json:"job_id"`
	State       ojs.JobState `json:"state"`
	Outcome     string       `json:"outcome"` // fired, skipped, manual
	Reason      string       `json:"reason"`
	ScheduledAt time.Time    `json:"scheduled_at"`
}

// PutCron registers a cron, or replaces the one with its name. The next tick stays as it is if the schedule does, so programs can
// call it whenever they start.
func (c *Client) PutCron(ctx context.Context, cron Cron) (*CronInfo, error) {
	body, err := cron.body()
	if err != nil {
		return nil, fmt.Errorf("ojsadmin: put cron %q: %w", cron.Name, err)
	}
	return c.cron(ctx, ojs.Call{Method: http.MethodPost, Path: "/cron", Body: body, Idempotent: true})
}

// cronBody is the request that registers a cron.
type cronBody struct {
	Name        string                     `json:"name"`
	Cron        string                     `json:"cron"` // servers read one of the two names
	Expression  string                     `json:"expression"`
	Timezone    string                     `json:"timezone,omitempty"`
	Type        string                     `json:"type"`
	Args        json.RawMessage            `json:"args"`
	Meta        json.RawMessage            `json:"meta,omitempty"`
	Options     map[string]json.RawMessage `json:"options,omitempty"`
	Overlap     Overlap                    `json:"overlap_policy,omitempty"`
	Enabled     *bool                      `json:"enabled,omitempty"`
	Description string                     `json:"description,omitempty"`
}

func (cron Cron) body() (*cronBody, error) {
	job, err := encodeJob(cron.Job)
	if err != nil {
		return nil, err
	}
	body := &cronBody{
		Name: cron.Name, Cron: cron.Expression, Expression: cron.Expression, Timezone: cron.Timezone,
		Type: job.Type, Args: job.Args, Meta: job.Meta, Options: job.Options,
		Overlap: cron.Overlap, Description: cron.Description,
	}
	if cron.Paused {
		body.Enabled = new(false)
	}
	return body, nil
}

// GetCron reads a cron.
func (c *Client) GetCron(ctx context.Context, name string) (*CronInfo, error) {
	return c.cron(ctx, get(cronPath(name, ""), nil))
}

// CronChange is what changes of a cron. Zero fields stay as they are.
type CronChange struct {
	Expression  string
	Timezone    string
	Overlap     Overlap
	Description *string // "" removes it
	Paused      *bool
	Args        any            // see Arguments in the documentation of package ojs
	Options     map[string]any // of its jobs, by their names in docs/reference/jobs.md; nil as a value removes one
}

// UpdateCron changes a part of a cron. A change of the expression or the time zone computes the next tick anew.
func (c *Client) UpdateCron(ctx context.Context, name string, change CronChange) (*CronInfo, error) {
	body := map[string]any{}
	if change.Expression != "" {
		body["expression"] = change.Expression
	}
	if change.Timezone != "" {
		body["timezone"] = change.Timezone
	}
	if change.Overlap != "" {
		body["overlap_policy"] = change.Overlap
	}
	if d := change.Description; d != nil && *d != "" {
		body["description"] = *d
	} else if d != nil {
		body["description"] = nil
	}
	if change.Paused != nil {
		body["enabled"] = !*change.Paused
	}
	if change.Args != nil {
		job, err := encodeJob(ojs.JobRequest{Args: change.Args})
		if err != nil {
			return nil, fmt.Errorf("ojsadmin: update cron %q: %w", name, err)
		}
		body["args"] = job.Args
	}
	if len(change.Options) > 0 {
		body["options"] = change.Options
	}
	return c.cron(ctx, ojs.Call{Method: http.MethodPatch, Path: cronPath(name, ""), Body: body, Idempotent: true})
}

// PauseCron stops the ticks of a cron. Ticks of the pause are not made up for.
func (c *Client) PauseCron(ctx context.Context, name string) (*CronInfo, error) {
	return c.cron(ctx, ojs.Call{Method: http.MethodPost, Path: cronPath(name, "/pause"), Idempotent: true})
}

// ResumeCron ends a pause.
func (c *Client) ResumeCron(ctx context.Context, name string) (*CronInfo, error) {
	return c.cron(ctx, ojs.Call{Method: http.MethodPost, Path: cronPath(name, "/resume"), Idempotent: true})
}

// TriggerCron makes a job now. The schedule stays as it is. The request is not repeated after a lost answer, because each one
// makes a job.
func (c *Client) TriggerCron(ctx context.Context, name string) (*ojs.Job, error) {
	return member[ojs.Job](ctx, c, ojs.Call{Method: http.MethodPost, Path: cronPath(name, "/trigger")}, "job")
}

// DeleteCron removes a cron. Jobs that it has made stay.
func (c *Client) DeleteCron(ctx context.Context, name string) error {
	return c.client.Do(ctx, ojs.Call{Method: http.MethodDelete, Path: cronPath(name, "")}, nil)
}

// ListCrons lists crons by name.
func (c *Client) ListCrons(ctx context.Context, page PageOptions) (*Page[CronInfo], error) {
	return list[CronInfo](ctx, c, get("/cron", page.query()), "cron_jobs", "crons")
}

// CronHistory lists the ticks of a cron, newest first.
func (c *Client) CronHistory(ctx context.Context, name string, page PageOptions) (*Page[CronRun], error) {
	return list[CronRun](ctx, c, get(cronPath(name, "/history"), page.query()), "executions")
}

func cronPath(name, rest string) string { return "/cron/" + url.PathEscape(name) + rest }

// cron reads an answer in which the member cron is a text from some servers and the object from others; cron_job is always the object.
func (c *Client) cron(ctx context.Context, call ojs.Call) (*CronInfo, error) {
	return member[CronInfo](ctx, c, call, "cron_job")
}
