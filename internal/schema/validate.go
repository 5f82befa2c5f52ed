package schema

import (
	"encoding/json"
	"errors"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/ojs"
)

// check is nil if args, a JSON array, satisfy the schema.
func (c *compiled) check(args []byte) *ojs.Error {
	value, err := decodeJSON(args)
	if err != nil { // rawjson has accepted it: it is nested deeper than the standard library reads
		return c.refuse("$.args", err.Error())
	}
	var at []string // of the value inside args
	if list, _ := value.([]any); c.object {
		if len(list) != 1 {
			return c.refuse("$.args", "the schema describes an object, so args must be an array of one object, got "+strconv.Itoa(len(list))+" elements")
		}
		at, value = []string{"0"}, list[0]
	}
	if !numbersFit(value) {
		return c.refuse("$.args", "a number has more than 400 digits, or an exponent beyond 400")
	}
	invalid, err := c.run(value)
	switch {
	case err != nil:
		return c.refuse("$.args", "it takes too long to check args of this size against this schema; send less in one job, or make the schema simpler")
	case invalid != nil:
		return c.refusal(flatten(invalid, "$.args", at, payload.MaxProblems))
	}
	return nil
}

func (c *compiled) refuse(path, message string) *ojs.Error {
	return c.refusal([]payload.Violation{{Path: path, Message: message}})
}

// run validates a value within the budget. Its errors are errBudget and what hostile schemas make the library panic with.
func (c *compiled) run(value any) (invalid *jsonschema.ValidationError, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		if r := recover(); r != nil {
			err = errBudget
		}
	}()
	c.meter.left = budget
	if failed := c.schema.Validate(value); !errors.As(failed, &invalid) {
		return nil, failed
	}
	return invalid, nil
}

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
