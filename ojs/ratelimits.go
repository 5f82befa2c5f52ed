package ojs

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Rate is a number of starts in a period. Limit is at least 1, and Period above zero.
type Rate struct {
	Limit  int
	Period time.Duration
}

func (r *Rate) wire() map[string]any {
	return map[string]any{"limit": r.Limit, "period": isoDuration(r.Period)}
}

// RateLimit bounds the jobs that name the same key. Fields that are nil bound nothing. Give a Key: the limit of a whole queue
// is set by [Client.ConfigureQueue].
type RateLimit struct {
	Key         string
	Concurrency *int   // jobs that are active at the same time
	Rate        *Rate  // starts in any period of that length
	Throttle    *Rate  // starts, evenly spaced
	OnLimit     string // of a job that may not start: wait (default), reschedule, drop
}

func (l *RateLimit) wire() map[string]any {
	o := optionSet{}
	o.text("key", l.Key)
	o.text("on_limit", l.OnLimit)
	if l.Concurrency != nil {
		o["concurrency"] = *l.Concurrency
	}
	if l.Rate != nil {
		o["rate"] = l.Rate.wire()
	}
	if l.Throttle != nil {
		o["throttle"] = l.Throttle.wire()
	}
	return o
}

// WithRateLimit has the job start only if the limit of its key permits it. The limit of a key is that of the job that has named it last.
// Its parts must all permit the start (docs/reference/limits.md, When a job may start).
func WithRateLimit(l RateLimit) EnqueueOption { return func(r *JobRequest) { r.RateLimit = &l } }

// RateLimitInfo is what the server says of the jobs with one key. Parts that do not exist are nil. Active and Waiting are of
// this moment and may be counted up to a bound.
type RateLimitInfo struct {
	Key         string `json:"key"`
	Concurrency *struct {
		Limit     int `json:"limit"`
		Active    int `json:"active"`
		Available int `json:"available"`
	} `json:"concurrency"`
	Rate *struct {
		Limit    int       `json:"limit"`
		Period   string    `json:"period"`
		Count    int       `json:"current_count"`
		ResetsAt time.Time `json:"window_resets_at"`
	} `json:"rate"`
	Throttle *struct {
		Limit         int       `json:"limit"`
		Period        string    `json:"period"`
		NextAllowedAt time.Time `json:"next_allowed_at"`
	} `json:"throttle"`
	Active       int            `json:"active"`
	Waiting      int            `json:"waiting"`
	BlockedUntil time.Time      `json:"blocked_until"`
	Override     map[string]any `json:"override"`
}

// ListRateLimits lists limits by key.
func (c *Client) ListRateLimits(ctx context.Context, page PageOptions) (*Page[RateLimitInfo], error) {
	query := url.Values{}
	page.set(query)
	return list[RateLimitInfo](ctx, c, "/rate-limits", query, "items", "rate_limits") // of ojsd, rate_limits has another form
}

// GetRateLimit reads the limit of a key; that of a queue has the key queue:<name>. A key that no job and no override has named
// is [ErrNotFound].
func (c *Client) GetRateLimit(ctx context.Context, key string) (*RateLimitInfo, error) {
	info := &RateLimitInfo{}
	return info, c.do(ctx, get(rateLimitPath(key), nil), info)
}

// OverrideRateLimit replaces those parts of the limit of a key that are set, until a time, or for ever if that is zero. It replaces an
// earlier override. OnLimit does not count. It holds for jobs that wait already, too.
func (c *Client) OverrideRateLimit(ctx context.Context, l RateLimit, until time.Time) (*RateLimitInfo, error) {
	body := l.wire()
	delete(body, "key")
	delete(body, "on_limit")
	optionSet(body).time("expires_at", until)
	info := &RateLimitInfo{}
	return info, c.do(ctx, call{method: http.MethodPut, path: rateLimitPath(l.Key) + "/override", body: body, repeatable: true}, info)
}

// EndRateLimitOverride lets the limit of a key hold as the jobs name it.
func (c *Client) EndRateLimitOverride(ctx context.Context, key string) error {
	return c.do(ctx, call{method: http.MethodDelete, path: rateLimitPath(key) + "/override"}, nil)
}

func rateLimitPath(key string) string { return "/rate-limits/" + url.PathEscape(key) }
