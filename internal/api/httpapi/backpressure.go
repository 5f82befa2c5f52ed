package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/ojs"
)

// Names of the headers of bounded queues (docs/reference/backpressure.md).
const (
	headerBlockTimeout  = "OJS-Block-Timeout"
	headerQueueDepth    = "X-OJS-Queue-Depth"
	headerQueueBound    = "X-OJS-Queue-Bound"
	headerQueuePressure = "X-OJS-Queue-Pressure"
)

// blockFor sets how long the enqueue of the jobs may wait for room, as the header says. nil jobs are left out.
func blockFor(c echo.Context, jobs ...*job.Job) error {
	wait, err := blockTimeout(c)
	for _, j := range jobs {
		if j != nil {
			j.BlockFor = wait
		}
	}
	return err
}

func blockTimeout(c echo.Context) (time.Duration, error) {
	return api.ParseBlockTimeout(headerBlockTimeout, c.Request().Header.Get(headerBlockTimeout))
}

// showPressure shows how full the fullest queue of the jobs is.
func showPressure(c echo.Context, jobs ...*job.Job) {
	var most *job.Pressure
	for _, j := range jobs {
		if p := j.Outcome.Pressure; p != nil && (most == nil || p.Share >= most.Share) {
			most = p
		}
	}
	if most == nil {
		return
	}
	h := c.Response().Header()
	h.Set(headerQueueDepth, strconv.FormatInt(most.Depth, 10))
	if most.MaxDepth > 0 {
		h.Set(headerQueueBound, strconv.FormatInt(most.MaxDepth, 10))
	}
	h.Set(headerQueuePressure, strconv.FormatFloat(most.Share, 'f', 2, 64))
}

// queueFull are the details of a full queue that clients look for beside the code.
type queueFull struct {
	Queue    any `json:"queue,omitempty"`
	Depth    any `json:"depth,omitempty"`
	Bound    any `json:"bound,omitempty"`
	Strategy any `json:"strategy,omitempty"`
}

// newQueueFull repeats the details in the headers, too.
func newQueueFull(h http.Header, e *ojs.Error) *queueFull {
	for name, key := range map[string]string{"Retry-After": "retry_after_seconds", headerQueueDepth: "depth", headerQueueBound: "bound"} {
		switch n := e.Details[key].(type) {
		case int:
			h.Set(name, strconv.Itoa(max(1, n)))
		case int64:
			h.Set(name, strconv.FormatInt(n, 10))
		}
	}
	return &queueFull{e.Details["queue"], e.Details["depth"], e.Details["bound"], e.Details["strategy"]}
}
