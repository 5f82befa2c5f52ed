// Package sqlcall translates job requests into calls of the SQL function ojs.enqueue (docs/reference/sql.md, Functions), for the packages
// ojspgx and ojssql. It must not know a driver.
package sqlcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/ojsd/ojsd/ojs"
)

// Query is the call; its parameters are those of Params.
const Query = `SELECT ojs.enqueue($1::text, $2::json, $3::text, $4::json)::text`

// Request is a job with its options applied. Those of its arguments come first: an option such as WithMeta adds to what they have set.
func Request(jobType string, args any, options []ojs.EnqueueOption) ojs.JobRequest {
	r := ojs.JobRequest{Type: jobType, Args: args}
	if of, ok := args.(ojs.JobOptions); ok {
		options = slices.Concat(of.JobOptions(), options)
	}
	for _, o := range options {
		o(&r)
	}
	return r
}

// Params are the parameters of Query: type, args, queue and options.
func Params(r ojs.JobRequest) ([]any, error) {
	delay := r.Delay
	r.Delay = 0
	data, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var wire struct {
		ID      string                     `json:"id"`
		Type    string                     `json:"type"`
		Args    json.RawMessage            `json:"args"`
		Meta    json.RawMessage            `json:"meta"`
		Schema  string                     `json:"schema"`
		Options map[string]json.RawMessage `json:"options"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return nil, err
	}
	if _, found := wire.Options["rate_limit"]; found {
		return nil, refuse("rate_limit",
			"'rate_limit' must be left out of an enqueue in a transaction, because ojs.enqueue does not support it: "+
				"limit the queue in its configuration, or enqueue over HTTP")
	}
	var queue *string // nil is the default queue
	if sent := wire.Options["queue"]; sent != nil {
		if err := json.Unmarshal(sent, &queue); err != nil {
			return nil, refuse("queue", "'queue' must be a string, got %s", sent)
		}
	}
	if wire.Options["unique"] != nil {
		job := identified{Type: wire.Type, Args: wire.Args, Meta: wire.Meta}
		if queue != nil {
			job.Queue = *queue
		}
		if err := giveKey(wire.Options, job); err != nil {
			return nil, err
		}
	}
	options := map[string]any{}
	for name, value := range wire.Options {
		switch name {
		case "queue":
		case "delay_until":
			options["scheduled_at"] = value
		default:
			options[name] = value
		}
	}
	if delay > 0 { // counts from the call, by the clock of the database
		options["scheduled_at"] = fmt.Sprintf("PT%.3fS", delay.Seconds())
	}
	if wire.ID != "" {
		options["id"] = wire.ID
	}
	if wire.Schema != "" {
		options["schema"] = wire.Schema
	}
	if wire.Meta != nil {
		options["meta"] = wire.Meta
	}
	text, err := json.Marshal(options)
	if err != nil {
		return nil, err
	}
	return []any{wire.Type, string(wire.Args), queue, string(text)}, nil
}

// giveKey puts the key of a job beside its policy, unless the client has computed one, and leaves out of the policy what the key stands
// for: ojs.enqueue takes no more.
func giveKey(options map[string]json.RawMessage, job identified) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(options["unique"], &members); err != nil {
		return err
	}
	if options["unique_key"] == nil {
		var p policy
		if err := json.Unmarshal(options["unique"], &p); err != nil {
			return err
		}
		key, err := uniqueKey(job, p)
		if err != nil {
			return err
		}
		options["unique_key"] = json.RawMessage(strconv.Quote(key))
	}
	for _, name := range []string{"keys", "args_keys", "meta_keys"} {
		delete(members, name)
	}
	var err error
	options["unique"], err = json.Marshal(members)
	return err
}

// Error turns refusals of ojs.enqueue into errors of package ojs, which errors.Is can compare with its kinds. Others stay as they are.
func Error(err error) error {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return err
	}
	switch state.SQLState() {
	case "23505":
		return both("duplicate", ojs.ErrDuplicateJob, err)
	case "22023":
		return both("invalid_payload", ojs.ErrInvalidPayload, err)
	case "42501":
		return both("permission_denied", ojs.ErrPermissionDenied, err)
	}
	return err
}

// both is the error of package ojs, and that of the driver.
func both(code string, kind ojs.ErrorKind, err error) error {
	return fmt.Errorf("%w (%w)", &ojs.Error{Code: code, Type: string(kind), Message: "ojs.enqueue has refused the job"}, err)
}
