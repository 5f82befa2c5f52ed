package ojsadmin

import (
	"context"
	"net/url"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// Stats are figures of the whole deployment, or of one queue.
type Stats struct {
	Queues     int                  `json:"queues"`
	Workers    int                  `json:"workers"`
	Jobs       map[ojs.JobState]int `json:"jobs"` // exact
	Throughput struct {
		ProcessedPerMinute float64 `json:"processed_per_minute"`
		FailedPerMinute    float64 `json:"failed_per_minute"`
		AvgLatencyMS       float64 `json:"avg_latency_ms"` // of runs
	} `json:"throughput"` // of the last minute
	UptimeSeconds int64 `json:"uptime_seconds"` // of the node that has answered
}

// Stats counts jobs; queue may be empty, for all queues.
func (c *Client) Stats(ctx context.Context, queue string) (*Stats, error) {
	query := url.Values{}
	setText(query, "queue", queue)
	return object[Stats](ctx, c, get("/admin/stats", query))
}

// StatsPoint has the figures of one period.
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

// StatsHistory lists the figures by period. Points of less than an hour reach back for a day, others for 30 days. Periods in
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
	err := c.client.Do(ctx, get("/admin/stats/history", query), &answer)
	if err != nil {
		return nil, err
	}
	return answer.Data, nil
}

// QueueStats are counts of a queue at one instant. Rates and averages are those of the last hour.
type QueueStats struct {
	Queue               string    `json:"-"`
	Status              string    `json:"-"`
	ComputedAt          time.Time `json:"-"`
	Available           int       `json:"available"`
	Active              int       `json:"active"`
	Scheduled           int       `json:"scheduled"`
	Retryable           int       `json:"retryable"`
	Discarded           int       `json:"discarded"`
	CompletedLastHour   int       `json:"completed_last_hour"`
	FailedLastHour      int       `json:"failed_last_hour"`
	AvgDurationMS       float64   `json:"avg_duration_ms"`
	AvgWaitMS           float64   `json:"avg_wait_ms"`
	ThroughputPerSecond float64   `json:"throughput_per_second"`
}

// QueueStats counts the jobs of a queue. A queue that does not exist has zeros.
func (c *Client) QueueStats(ctx context.Context, name string) (*QueueStats, error) {
	var answer struct {
		Status     string     `json:"status"`
		Stats      QueueStats `json:"stats"`
		ComputedAt time.Time  `json:"computed_at"`
	}
	if err := c.client.Do(ctx, get(queuePath(name, "/stats"), nil), &answer); err != nil {
		return nil, err
	}
	stats := answer.Stats
	stats.Queue, stats.Status, stats.ComputedAt = name, answer.Status, answer.ComputedAt
	return &stats, nil
}

// PriorityCount is the number of available jobs of a priority.
type PriorityCount struct {
	Priority int `json:"priority"`
	Count    int `json:"count"`
}

// QueuePriorities counts the available jobs of a queue by priority, the highest first.
func (c *Client) QueuePriorities(ctx context.Context, name string) ([]PriorityCount, error) {
	var answer struct {
		Distribution []PriorityCount `json:"distribution"`
	}
	err := c.client.Do(ctx, get(queuePath(name, "/priority-stats"), nil), &answer)
	if err != nil {
		return nil, err
	}
	return answer.Distribution, nil
}
