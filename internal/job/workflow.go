package job

import (
	"cmp"

	"github.com/ojsd/ojsd/internal/rawjson"
)

// WorkflowStep is the id of the workflow step, or the name of the callback, that a job is, found in its Extra; "" if it is neither.
func WorkflowStep(extra []byte) string {
	if WorkflowOf(extra) == "" {
		return ""
	}
	return cmp.Or(memberText(extra, "workflow_step_id"), memberText(extra, "workflow_callback"))
}

// WorkflowOf is the id of the workflow to which a job belongs, found in its Extra; "" if it belongs to none.
func WorkflowOf(extra []byte) string { return memberText(extra, "workflow_id") }

// ErrorTexts are code and message of an error object. Package tracing uses it for the span of a workflow that has failed.
func ErrorTexts(object []byte) (code, message string) {
	for literal, value := range rawjson.Members(object) {
		switch string(rawjson.Name(literal)) {
		case "code":
			code, _ = rawjson.Text(value)
		case "message":
			message, _ = rawjson.Text(value)
		}
	}
	return code, message
}
