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

// RateLimitInfo is what the server shows of the jobs with one key. Parts that do not exist are nil. Active and Waiting are of
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
		Period   string    `json:"period"` // ISO 8601
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
	// Of ojsd, rate_limits has another form.
	return list[RateLimitInfo](ctx, c, get("/rate-limits", page.query()), "items", "rate_limits")
}

// GetRateLimit reads the limit of a key; that of a queue has the key queue:<name>. A key that no job and no override has named
// is [ojs.ErrNotFound].
func (c *Client) GetRateLimit(ctx context.Context, key string) (*RateLimitInfo, error) {
	return object[RateLimitInfo](ctx, c, get(rateLimitPath(key), nil))
}

// OverrideRateLimit replaces those parts of the limit of l.Key that are set, until a time, or for ever if that is zero. It replaces
// an earlier override. OnLimit does not count. It holds for jobs that wait already, too.
func (c *Client) OverrideRateLimit(ctx context.Context, l ojs.RateLimit, until time.Time) (*RateLimitInfo, error) {
	path := rateLimitPath(l.Key) + "/override"
	l.Key, l.OnLimit = "", ""
	job, err := encodeJob(ojs.JobRequest{RateLimit: &l})
	body := map[string]any{}
	if err == nil {
		err = json.Unmarshal(job.Options["rate_limit"], &body)
	}
	if err != nil {
		return nil, fmt.Errorf("ojsadmin: encode rate limit: %w", err)
	}
	if !until.IsZero() {
		body["expires_at"] = until.UTC()
	}
	return object[RateLimitInfo](ctx, c, ojs.Call{Method: http.MethodPut, Path: path, Body: body, Idempotent: true})
}

// EndRateLimitOverride removes an override: the limit of the jobs holds again.
func (c *Client) EndRateLimitOverride(ctx context.Context, key string) error {
	return c.client.Do(ctx, ojs.Call{Method: http.MethodDelete, Path: rateLimitPath(key) + "/override"}, nil)
}

func rateLimitPath(key string) string { return "/rate-limits/" + url.PathEscape(key) }
