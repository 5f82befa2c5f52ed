package worker

import (
	"bytes"
	"math"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// Leave is the deregistration of a worker. Reason and JobsCompleted go into the event worker.stopped.
type Leave struct {
	Ref
	Reason        string // shutdown, signal or error
	JobsCompleted int64  // -1: not reported
}

// DecodeLeave reads the optional body of a deregistration. Members with other values than expected are ignored: they are no
// reason to keep the worker registered.
func DecodeLeave(worker Ref, raw []byte) (Leave, *ojs.Error) {
	r := Leave{Ref: worker, Reason: "shutdown", JobsCompleted: -1}
	if len(bytes.TrimSpace(raw)) == 0 {
		return r, nil
	}
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
