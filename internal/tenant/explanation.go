package tenant

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ojsd/ojsd/internal/job"
)

// shared are the reasons for which a job waits that are not its tenant's alone, with what tenants are told of them. The members of these
// reasons count the jobs and workers of others. A reason that is added to ojs.explain and tells of others must be added
// here, or tenants see it whole.
var shared = map[string]string{
	"queue_limited": "A limit of queue %s lets no job start now.",
	"no_workers":    "No living worker fetches queue %s. Workers that send no heartbeats are not known.",
	"workers_quiet": "The workers of queue %s are quiet or terminate.",
	"workers_busy":  "The workers of queue %s run as many jobs as they can.",
}

// Explanation is why a job of a tenant is not running, as the tenant may see it: without counts of the jobs and workers of others, and
// with its limit key as the job has it. The order of members is kept. whole is the object of ojs.explain; members that are
// not named here are left out, so a new one stays hidden until somebody has decided about it. It has no access to the
// database and may be called by any caller that has checked whose the job is.
func Explanation(whole []byte, tenant string) ([]byte, error) {
	var e struct {
		JobID      json.RawMessage              `json:"job_id"`
		Type       json.RawMessage              `json:"type"`
		Queue      string                       `json:"queue"`
		State      json.RawMessage              `json:"state"`
		Priority   json.RawMessage              `json:"priority"`
		Running    json.RawMessage              `json:"running"`
		Summary    string                       `json:"summary"`
		Reasons    []map[string]json.RawMessage `json:"reasons"`
		Estimate   json.RawMessage              `json:"estimate"`
		Deadline   json.RawMessage              `json:"deadline"`
		WorkflowID json.RawMessage              `json:"workflow_id"`
		ComputedAt json.RawMessage              `json:"computed_at"`
	}
	if err := json.Unmarshal(whole, &e); err != nil {
		return nil, fmt.Errorf("read explanation: %w", err)
	}
	for i, r := range e.Reasons {
		var code, message, key string
		// A member that is missing leaves its text empty.
		_, _, _ = json.Unmarshal(r["code"], &code), json.Unmarshal(r["message"], &message), json.Unmarshal(r["key"], &key)
		switch told, isShared := shared[code]; {
		case isShared:
			message = fmt.Sprintf(told, e.Queue)
			// All other members of the reason are left out: they count what others have.
			e.Reasons[i] = map[string]json.RawMessage{"code": r["code"], "message": quoted(message)}
		// The stored key has the tenant in front of the one that the job has sent.
		case code == "limited":
			own := strings.TrimPrefix(key, job.PartitionKey(tenant, "", nil))
			message = strings.Replace(message, key, own, 1)
			r["key"], r["message"] = quoted(own), quoted(message)
		}
		// The summary is the sentence of the first reason (docs/reference/jobs.md, Explain).
		if i == 0 {
			e.Summary = message
		}
	}
	out, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("show explanation: %w", err)
	}
	return out, nil
}

// Characters such as < are escaped, which JSON permits.
func quoted(text string) json.RawMessage {
	b, _ := json.Marshal(text) // a string always encodes
	return b
}
