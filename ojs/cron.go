package ojs

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// Cron is a schedule that makes jobs. Job is a template: its ID is not used, and its Delay counts from each tick. Fields and
// expressions: docs/reference/scheduling.md, Cron fields.
type Cron struct {
	Name        string
	Expression  string // five or six fields, or @hourly and the like
	Timezone    string // IANA name; "": UTC
	Job         *JobRequest
	Overlap     string // skip (default), allow, cancel_previous, enqueue
	Paused      bool
	Description string
}

// CronInfo is what the server says of a cron.
type CronInfo struct {
	Name        string          `json:"name"`
	Expression  string          `json:"expression"`
	Timezone    string          `json:"timezone"`
	Type        string          `json:"type"`
	RawArgs     json.RawMessage `json:"args"`
	Meta        map[string]any  `json:"meta"`
	Options     map[string]any  `json:"options"`
	Overlap     string          `json:"overlap_policy"`
	Enabled     bool            `json:"enabled"`
	Description string          `json:"description"`
	LastRunAt   time.Time       `json:"last_run_at"`
	NextRunAt   time.Time       `json:"next_run_at"`
	RunCount    int             `json:"run_count"`
	CreatedAt   time.Time       `json:"created_at"`
}

// CronRun is a tick of a cron. JobID is empty for a tick that made no job; Reason then says why.
type CronRun struct {
	JobID       string    `json:"job_id"`
	State       JobState  `json:"state"`
	Outcome     string    `json:"outcome"` // fired, skipped, manual
	Reason      string    `json:"reason"`
	ScheduledAt time.Time `json:"scheduled_at"`
}

// MarshalJSON gives the body of a registration. It says the expression under both names that servers read.
func (c *Cron) MarshalJSON() ([]byte, error) {
	args, err := encodeArgs(c.Job.Args)
	if err != nil {
		return nil, err
	}
	options := c.Job.options()
	if c.Job.Delay > 0 {
		options["delay_until"] = isoDuration(c.Job.Delay)
	}
	m := optionSet{"name": c.Name, "cron": c.Expression, "expression": c.Expression, "type": c.Job.Type, "args": args, "options": options}
	m.text("timezone", c.Timezone)
	m.text("overlap_policy", c.Overlap)
	m.text("description", c.Description)
	if len(c.Job.Meta) > 0 {
		m["meta"] = c.Job.Meta
	}
	if c.Paused {
		m["enabled"] = false
	}
	return json.Marshal(m)
}

// PutCron registers a cron, or replaces the one with its name. The next tick stays as it is if the schedule does, so programs can
// call it whenever they start.
func (c *Client) PutCron(ctx context.Context, cron Cron) (*CronInfo, error) {
	return c.cronCall(ctx, post("/cron", &cron).again())
}

// GetCron reads a cron.
func (c *Client) GetCron(ctx context.Context, name string) (*CronInfo, error) {
	return c.cronCall(ctx, get(cronPath(name, ""), nil))
}

// CronChange is what changes of a cron. Zero fields stay as they are.
type CronChange struct {
	Expression  string
	Timezone    string
	Overlap     string
	Description *string // "" removes it
	Paused      *bool
	Args        any            // see Arguments in the package documentation
	Options     map[string]any // of its jobs, by their names in docs/reference/jobs.md; nil as a value removes one
}

// UpdateCron changes a part of a cron. A change of the expression or the time zone computes the next tick anew.
func (c *Client) UpdateCron(ctx context.Context, name string, change CronChange) (*CronInfo, error) {
	m := optionSet{}
	m.text("expression", change.Expression)
	m.text("timezone", change.Timezone)
	m.text("overlap_policy", change.Overlap)
	if change.Description != nil {
		m["description"] = nil
		m.text("description", *change.Description)
	}
	if change.Paused != nil {
		m["enabled"] = !*change.Paused
	}
	if change.Args != nil {
		args, err := encodeArgs(change.Args)
		if err != nil {
			return nil, err
		}
		m["args"] = args
	}
	if len(change.Options) > 0 {
		m["options"] = change.Options
	}
	return c.cronCall(ctx, call{method: http.MethodPatch, path: cronPath(name, ""), body: m, repeatable: true})
}

// PauseCron stops the ticks of a cron. Ticks of the pause are not made up for.
func (c *Client) PauseCron(ctx context.Context, name string) (*CronInfo, error) {
	return c.cronCall(ctx, post(cronPath(name, "/pause"), nil).again())
}

// ResumeCron goes on with the ticks of a cron.
func (c *Client) ResumeCron(ctx context.Context, name string) (*CronInfo, error) {
	return c.cronCall(ctx, post(cronPath(name, "/resume"), nil).again())
}

// TriggerCron makes a job now. The schedule stays as it is. The request is not repeated after a lost answer, because each one
// makes a job.
func (c *Client) TriggerCron(ctx context.Context, name string) (*JobInfo, error) {
	return c.jobCall(ctx, post(cronPath(name, "/trigger"), nil))
}

// DeleteCron removes a cron. Jobs that it has made stay.
func (c *Client) DeleteCron(ctx context.Context, name string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: cronPath(name, "")}, nil)
}

// ListCrons lists crons by name.
func (c *Client) ListCrons(ctx context.Context, page PageOptions) (*Page[CronInfo], error) {
	query := url.Values{}
	page.set(query)
	return list[CronInfo](ctx, c, "/cron", query, "cron_jobs", "crons")
}

// CronHistory lists the ticks of a cron, newest first.
func (c *Client) CronHistory(ctx context.Context, name string, page PageOptions) (*Page[CronRun], error) {
	query := url.Values{}
	page.set(query)
	return list[CronRun](ctx, c, cronPath(name, "/history"), query, "executions")
}

func cronPath(name, rest string) string { return "/cron/" + url.PathEscape(name) + rest }

func (c *Client) cronCall(ctx context.Context, r call) (*CronInfo, error) {
	var answer struct {
		Cron *CronInfo `json:"cron_job"`
	}
	if err := c.do(ctx, r, &answer); err != nil {
		return nil, err
	}
	if answer.Cron == nil {
		return nil, noMember(r.method, r.path, "cron_job")
	}
	return answer.Cron, nil
}
