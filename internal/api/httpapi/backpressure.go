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
// OJS-Block-Timeout is a request header, the others are of answers.
const (
	headerBlockTimeout  = "OJS-Block-Timeout"
	headerQueueDepth    = "X-OJS-Queue-Depth"
	headerQueueBound    = "X-OJS-Queue-Bound"
	headerQueuePressure = "X-OJS-Queue-Pressure"
)

// blockFor sets how long the enqueue of the jobs may wait for room, as the header says. nil jobs are left out.
// It must be called after decoding and before the store, which reads BlockFor of the first job for all jobs of a call. An
// invalid header is 400 even if no queue of the call is bounded, so that a mistake is found before the queue is full.
func blockFor(c echo.Context, jobs ...*job.Job) error {
	wait, err := blockTimeout(c)
	for _, j := range jobs {
		if j != nil {
			j.BlockFor = wait
		}
	}
	return err
}

// blockTimeout is 0 without the header: a full queue is answered at once.
func blockTimeout(c echo.Context) (time.Duration, error) {
	return api.ParseBlockTimeout(headerBlockTimeout, c.Request().Header.Get(headerBlockTimeout))
}

// showPressure shows how full the fullest queue of the jobs is.
// It may be called only after the enqueue, which sets Outcome, and before the body is begun. Jobs of queues without a bound,
// or with enough room, have no pressure, and the answer no headers.
func showPressure(c echo.Context, jobs ...*job.Job) {
	var most *job.Pressure
	for _, j := range jobs {
		// The last of equally full queues is shown; which one does not matter.
		if p := j.Outcome.Pressure; p != nil && (most == nil || p.Share >= most.Share) {
			most = p
		}
	}
	if most == nil {
		return
	}
	h := c.Response().Header()
	h.Set(headerQueueDepth, strconv.FormatInt(most.Depth, 10))
	// A queue that only its bytes bound has no number of jobs to show.
	if most.MaxDepth > 0 {
		h.Set(headerQueueBound, strconv.FormatInt(most.MaxDepth, 10))
	}
	// Two decimals, at most 1.00.
	h.Set(headerQueuePressure, strconv.FormatFloat(most.Share, 'f', 2, 64))
}

// queueFull are the details of a full queue that clients look for beside the code.
// The members are any because Details are: absent ones stay absent, and a number keeps its type. It is embedded by pointer in
// shownError, so an error of another kind has none of them.
type queueFull struct {
	Queue    any `json:"queue,omitempty"`
	Depth    any `json:"depth,omitempty"`
	Bound    any `json:"bound,omitempty"`
	Strategy any `json:"strategy,omitempty"`
}

// newQueueFull repeats the details in the headers, too.
// Retry-After is the setting of this server and at least 1 s, which the header needs: 0 would make clients repeat at once.
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
