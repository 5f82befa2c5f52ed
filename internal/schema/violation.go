package schema

import (
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// maxMessage is how long a message about one violation is: that of an enum lists all its values. Fifty of them stay a
// readable answer.
const maxMessage = 300

var english = message.NewPrinter(language.English)

// flatten lists the innermost causes of a validation error, up to a number of them. root is the JSONPath of the value in which the one
// that was checked has the location base. Only innermost causes tell what to change; the others say that a part does not
// fit. anyOf lists those of all its branches.
func flatten(err *jsonschema.ValidationError, root string, base []string, most int) (list []payload.Violation) {
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 && len(list) < most {
			location := slices.Concat(base, e.InstanceLocation)
			list = append(list, payload.Violation{
				Path: jsonPath(root, location), Pointer: jsonPointer(location),
				Message: job.Shorten(e.ErrorKind.LocalizedString(english), maxMessage),
			})
		}
		for _, cause := range e.Causes {
			// The walk ends early: args with a million mistakes have a million causes.
			if len(list) == most {
				return
			}
			walk(cause)
		}
	}
	walk(err)
	slices.SortStableFunc(list, func(a, b payload.Violation) int { return strings.Compare(a.Pointer, b.Pointer) }) // members come in random order
	return list
}

// A name may be as long as args, so it is shortened.
func jsonPointer(location []string) string {
	var b strings.Builder
	for _, token := range location {
		b.WriteByte('/')
		b.WriteString(pointerEscapes.Replace(job.Shorten(token, maxMessage)))
	}
	return b.String()
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// Path is for people and pointer for programs (docs/reference/schemas.md, Violations).
func jsonPath(root string, location []string) string {
	b := []byte(root)
	for _, token := range location {
		token = job.Shorten(token, maxMessage)
		switch {
		case payload.AllIn(token, digit) && token != "":
			b = append(append(append(b, '['), token...), ']')
		case payload.AllIn(token, isWord) && token != "":
			b = append(append(b, '.'), token...)
		default:
			b = append(strconv.AppendQuote(append(b, '['), token), ']')
		}
	}
	return string(b)
}

func isWord(c byte) bool { return alphanumeric(c) || c == '_' }

// refusal is the 422 for args that violate a schema. list has at least one element.
func (c *compiled) refusal(list []payload.Violation) *ojs.Error {
	return spec.NewError(ojs.ErrSchemaValidation, "args violate the schema "+c.info.URI+": at "+list[0].Path+": "+list[0].Message+".", map[string]any{
		"field": "args", "schema": c.info.URI, "schema_type": c.info.Type, "schema_version": c.info.Version, "validation_errors": list,
	})
}
