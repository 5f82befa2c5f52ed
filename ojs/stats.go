package ojs

import (
	"context"
	"net/url"
	"time"
)

// Stats are figures of the whole deployment, or of one queue.
type Stats struct {
	Queues     int              `json:"queues"`
	Workers    int              `json:"workers"`
	Jobs       map[JobState]int `json:"jobs"` // exact
	Throughput struct {
		ProcessedPerMinute float64 `json:"processed_per_minute"`
		FailedPerMinute    float64 `json:"failed_per_minute"`
		AvgLatencyMS       float64 `json:"avg_latency_ms"` // of runs
	} `json:"throughput"` // of the last minute
	UptimeSeconds int64 `json:"uptime_seconds"`
}

// Stats counts jobs; queue may be empty, for all queues.
func (c *Client) Stats(ctx context.Context, queue string) (*Stats, error) {
	query := url.Values{}
	setText(query, "queue", queue)
	s := &Stats{}
	return s, c.do(ctx, get("/admin/stats", query), s)
}

// StatsPoint is what happened in one period.
type StatsPoint struct {
	Timestamp    time.Time `json:"timestamp"` // when the period begins
	Enqueued     int       `json:"enqueued"`
	Completed    int       `json:"completed"`
	Failed       int       `json:"failed"`
	Discarded    int       `json:"discarded"`
	Cancelled    int       `json:"cancelled"`
	LatencyP50MS float64   `json:"latency_p50_ms"`
	LatencyP99MS float64   `json:"latency_p99_ms"`
}

// StatsFilter chooses the points of a history. Zero fields have the server's defaults: five minutes each, for an hour.
type StatsFilter struct {
	Period       string // 1m, 5m, 1h, 1d
	Since, Until time.Time
	Queue        string
}

// StatsHistory lists what happened, by period. Points of less than an hour reach back for a day, others for 30 days. Periods in
// which nothing happened are there with zeros.
func (c *Client) StatsHistory(ctx context.Context, filter StatsFilter) ([]StatsPoint, error) {
	query := url.Values{}
	setText(query, "period", filter.Period)
	setText(query, "queue", filter.Queue)
	setTime(query, "since", filter.Since)
	setTime(query, "until", filter.Until)
	var answer struct {
		Data []StatsPoint `json:"data"`
	}
	err := c.do(ctx, get("/admin/stats/history", query), &answer)
	return answer.Data, err
}
