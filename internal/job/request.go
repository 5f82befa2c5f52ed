package job

import (
	"github.com/ojsd/ojsd/internal/payload"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// AnyAttempt stands for an attempt that the client did not send: every attempt matches. It is not 0, which is the attempt of a
// job that was never fetched.
const AnyAttempt = -1

// noAttempt matches the attempt of no job. Attempts are 32-bit counters that begin with 1.
const noAttempt = 1<<31 - 1

// ParseID reads the id of a job. A text that is no id belongs to no job, so the error is not_found. It is therefore checked
// after the fields, where the existence of the job is (docs/reference/http.md, Check order).
func ParseID(text string) ([16]byte, *ojs.Error) {
	id, ok := spec.ParseID(text)
	if !ok {
		return id, spec.NotFound("job", text)
	}
	return id, nil
}

// IDList is a list of job ids as a client sent it. A text that is no id belongs to no job, but answers repeat it.
// Answers go by Texts, statements by IDs.
type IDList struct {
	Texts   []string   // as sent, in order
	IDs     [][16]byte // of the texts that are ids, each once, in order of first appearance
	Invalid []string   // the texts that are no ids
}

// NewIDList parses the ids. Two texts of one id, with and without a prefix, are one id and two texts.
func NewIDList(texts []string) IDList {
	l := IDList{Texts: texts}
	seen := make(map[[16]byte]bool, len(texts))
	for _, text := range texts {
		id, ok := spec.ParseID(text)
		switch {
		case !ok:
			l.Invalid = append(l.Invalid, text)
		case !seen[id]:
			seen[id] = true
			l.IDs = append(l.IDs, id)
		}
	}
	return l
}

// AllDistinct reports whether every text is an id, and each id is listed once.
func (l IDList) AllDistinct() bool { return len(l.IDs) == len(l.Texts) }

// body reads the requests about jobs. It adds to payload.Body what is about jobs: ids, attempts and the objects of reports.
type body struct{ payload.Body }

// idText gives the id of the job that the request is about: that of the path, or else job_id. It is parsed after everything else
// has been checked, because what is wrong with a body is reported before a job that does not exist.
func (b *body) idText(path string) string {
	if path != "" {
		return path
	}
	return b.JobID()
}

// attempt reads the optional fence: AnyAttempt if it was not sent, and for a number that no job can have one that matches
// no job. Such a fence must not be refused: the answer is the same as for any other run that the job does not have, a conflict.
func (b *body) attempt() int32 {
	n, sent := b.Attempt()
	switch {
	case !sent:
		return AnyAttempt
	case n < 0 || n > noAttempt:
		return noAttempt
	}
	return int32(n)
}
