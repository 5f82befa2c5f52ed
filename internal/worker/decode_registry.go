package worker

import (
	"math"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// LeaveRequest is the optional body of a worker's deregistration (docs/reference/workers.md, Registry).
type LeaveRequest struct {
	Reason        string // shutdown, signal or error
	JobsCompleted int64  // -1: not said
}

// DecodeLeave reads it. A worker is never kept from leaving by what it says about it.
func DecodeLeave(raw []byte) (LeaveRequest, *ojs.Error) {
	r := LeaveRequest{Reason: "shutdown", JobsCompleted: -1}
	v, err := rawjson.Check(raw)
	if err != nil {
		return r, err
	}
	f, _ := payload.Read(v, []string{"reason", "jobs_completed"})
	switch text, _ := rawjson.Text(f.Get("reason")); text {
	case "signal", "error":
		r.Reason = text
	}
	if n, kind := rawjson.Int(f.Get("jobs_completed")); kind == rawjson.IsInt && n >= 0 && n < math.MaxInt64 {
		r.JobsCompleted = n
	}
	return r, nil
}

// DecodeDirective reads an operator's directive: running, quiet or terminate.
func DecodeDirective(raw []byte) (string, *ojs.Error) {
	v, err := rawjson.Check(raw)
	if err != nil {
		return "", err
	}
	b := payload.Body{}
	b.Fields, _ = payload.Read(v, []string{"directive"})
	switch text, _ := rawjson.Text(b.Get("directive")); text {
	case "running", "resume":
		return "running", nil
	case "quiet", "terminate":
		return text, nil
	}
	b.Refuse("directive", "quiet, terminate, running or resume")
	return "", b.Problems.Err()
}
