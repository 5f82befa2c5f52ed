package ojs

import (
	"context"
	"encoding/json"
	"net/url"
	"time"
)

// QueueInfo is an entry of the list of queues.
type QueueInfo struct {
	Name   string `json:"name"`
	Status string `json:"status"` // active or paused
	Paused bool   `json:"paused"`
}

// QueueStats are counts of a queue at one instant. Rates and averages are those of the last hour.
type QueueStats struct {
	Queue               string
	Status              string
	Available           int
	Active              int
	Scheduled           int
	Retryable           int
	Discarded           int
	CompletedLastHour   int
	FailedLastHour      int
	AvgDurationMS       float64
	AvgWaitMS           float64
	ThroughputPerSecond float64
	ComputedAt          time.Time
}

// ListQueues lists the queues.
func (c *Client) ListQueues(ctx context.Context, page PageOptions) (*Page[QueueInfo], error) {
	query := url.Values{}
	page.set(query)
	return list[QueueInfo](ctx, c, "/queues", query, "queues")
}

// QueueStats counts the jobs of a queue. A queue that does not exist has zeros.
func (c *Client) QueueStats(ctx context.Context, name string) (*QueueStats, error) {
	var answer struct {
		Status     string          `json:"status"`
		Stats      json.RawMessage `json:"stats"`
		ComputedAt time.Time       `json:"computed_at"`
	}
	path := queuePath(name, "/stats")
	if err := c.do(ctx, get(path, nil), &answer); err != nil {
		return nil, err
	}
	var counts struct {
		Available           int     `json:"available"`
		Active              int     `json:"active"`
		Scheduled           int     `json:"scheduled"`
		Retryable           int     `json:"retryable"`
		Discarded           int     `json:"discarded"`
		CompletedLastHour   int     `json:"completed_last_hour"`
		FailedLastHour      int     `json:"failed_last_hour"`
		AvgDurationMS       float64 `json:"avg_duration_ms"`
		AvgWaitMS           float64 `json:"avg_wait_ms"`
		ThroughputPerSecond float64 `json:"throughput_per_second"`
	}
	if err := decodeMember(map[string]json.RawMessage{"stats": answer.Stats}, "stats", &counts); err != nil {
		return nil, badAnswer(path, err)
	}
	return &QueueStats{
		name, answer.Status, counts.Available, counts.Active, counts.Scheduled, counts.Retryable, counts.Discarded, counts.CompletedLastHour,
		counts.FailedLastHour, counts.AvgDurationMS, counts.AvgWaitMS, counts.ThroughputPerSecond, answer.ComputedAt,
	}, nil
}

// PauseQueue stops the fetches from a queue, if the server can. Jobs that run go on, and new ones are taken. Pausing a paused
// queue changes nothing. A queue that is being deleted is refused with [ErrInvalidStateTransition].
func (c *Client) PauseQueue(ctx context.Context, name string) error {
	return c.do(ctx, post(queuePath(name, "/pause"), nil).again(), nil)
}

// ResumeQueue goes on with the fetches from a queue. It ends a drain as well. Fetches that wait find the jobs at once.
func (c *Client) ResumeQueue(ctx context.Context, name string) error {
	return c.do(ctx, post(queuePath(name, "/resume"), nil).again(), nil)
}

func queuePath(name, rest string) string { return "/queues/" + url.PathEscape(name) + rest }
