package job

import (
	"bytes"

	"github.com/ojsd/ojsd/internal/rawjson"
)

// WorkflowStep is the id of the workflow step, or the name of the callback, that a job is, found in its Extra; "" if it is neither.
func WorkflowStep(extra []byte) (step string) {
	if !bytes.Contains(extra, []byte(`"workflow_id":`)) {
		return ""
	}
	for literal, value := range rawjson.Members(extra) {
		switch string(rawjson.Name(literal)) {
		case "workflow_step_id", "workflow_callback":
			step, _ = rawjson.Text(value)
		}
	}
	return step
}

// WorkflowOf is the id of the workflow to which a job belongs, found in its Extra; "" if it belongs to none.
func WorkflowOf(extra []byte) (id string) {
	if !bytes.Contains(extra, []byte(`"workflow_id":`)) {
		return ""
	}
	for literal, value := range rawjson.Members(extra) {
		if string(rawjson.Name(literal)) == "workflow_id" {
			id, _ = rawjson.Text(value)
		}
	}
	return id
}

// ErrorTexts are code and message of an error object.
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
