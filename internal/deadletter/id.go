package deadletter

import (
	"errors"

	"github.com/ojsd/ojsd/ojs"
)

// ID names a dead letter. Errors repeat it as the client sent it.
type ID struct {
	text  string
	id    [16]byte
	valid bool
}

// ParseID never fails: a text that is no id belongs to no dead letter.
func ParseID(text string) ID {
	id, valid := ojs.ParseID(text)
	return ID{text, id, valid}
}

// String is the id in its canonical form.
func (id ID) String() string { return ojs.FormatID(id.id) }

func (id ID) missing() error { return ojs.ErrNotFound("dead_letter_job", id.text) }

// orMissing turns the error about an unknown job, or about one that is not discarded, into that about an unknown dead letter.
func (id ID) orMissing(err error) error {
	if errors.Is(err, &ojs.Error{Code: "not_found"}) || errors.Is(err, &ojs.Error{Code: "conflict"}) {
		return id.missing()
	}
	return err
}
