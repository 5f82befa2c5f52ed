package deadletter

import (
	"errors"

	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// ID is the id of a dead letter. Errors show it as the client sent it.
// The zero value is malformed, and so belongs to no dead letter.
type ID struct {
	text  string
	id    [16]byte
	valid bool
}

// ParseID never fails: the error of a malformed id is that of an unknown dead letter.
// A client cannot tell a malformed id from one that was pruned, and need not.
func ParseID(text string) ID {
	id, valid := spec.ParseID(text)
	return ID{text, id, valid}
}

// String is the id in its canonical form.
func (id ID) String() string { return spec.FormatID(id.id) }

func (id ID) missing() error { return spec.NotFound("dead_letter_job", id.text) }

// orMissing replaces the errors of a job that is unknown, or not discarded, by that of an unknown dead letter.
// docs/reference/retries.md, Dead-letter endpoints. Other errors, such as a duplicate, stay.
func (id ID) orMissing(err error) error {
	if errors.Is(err, &ojs.Error{Code: "not_found"}) || errors.Is(err, &ojs.Error{Code: "conflict"}) {
		return id.missing()
	}
	return err
}
