package schema

import (
	"encoding/json"
	"errors"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/ojs"
)

// check is nil if args, a JSON array, satisfy the schema. It does not change args and may be called by any number of
// goroutines, one of which runs at a time. An error tells up to payload.MaxProblems violations.
func (c *compiled) check(args []byte) *ojs.Error {
	value, err := decodeJSON(args)
	if err != nil { // rawjson has accepted it: it is nested deeper than the standard library reads
		return c.refuse(err.Error())
	}
	var at []string // of the value inside args
	// The path of a violation then begins with [0], as args are an array for the client.
	if list, _ := value.([]any); c.object {
		if len(list) != 1 {
			return c.refuse("the schema describes an object, so args must be an array of one object, got " + strconv.Itoa(len(list)) + " elements")
		}
		at, value = []string{"0"}, list[0]
	}
	// Before the library, which would compute with them.
	if !numbersFit(value) {
		return c.refuse("a number has more than 400 digits, or an exponent beyond 400")
	}
	invalid, err := c.run(value)
	switch {
	// A check that was given up refuses the job: to accept it would let clients pass any schema by making args large.
	case err != nil:
		return c.refuse("it takes too long to check args of this size against this schema; send less in one job, or make the schema simpler")
	case invalid != nil:
		return c.refusal(flatten(invalid, "$.args", at, payload.MaxProblems))
	}
	return nil
}

func (c *compiled) refuse(message string) *ojs.Error {
	return c.refusal([]payload.Violation{{Path: "$.args", Message: message}})
}

// run validates a value within the budget. Its errors are errBudget and what hostile schemas make the library panic with.
// The lock is taken for the meter, which is shared by all formats and patterns of the schema.
func (c *compiled) run(value any) (invalid *jsonschema.ValidationError, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Any panic counts as errBudget: a defect of the library must refuse one job, not end the node.
	defer func() {
		if r := recover(); r != nil {
			err = errBudget
		}
	}()
	// Each check has the whole budget; what the one before has left does not count.
	c.meter.left = budget
	if failed := c.schema.Validate(value); !errors.As(failed, &invalid) {
		return nil, failed
	}
	return invalid, nil
}

// The depth is that of args, which rawjson has bounded.
func numbersFit(value any) bool {
	switch v := value.(type) {
	case json.Number:
		return numberFits(v)
	case []any:
		for _, e := range v {
			if !numbersFit(e) {
				return false
			}
		}
	case map[string]any:
		for _, e := range v {
			if !numbersFit(e) {
				return false
			}
		}
	}
	return true
}
