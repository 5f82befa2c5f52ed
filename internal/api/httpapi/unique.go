package httpapi

import (
	"net/http"

	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/spec"
)

// listUnique lists the jobs that hold unique keys (docs/reference/unique.md, List).
// It is a list of jobs and pages by id, newest first; the jobs that were looked at are bounded. Keys of tenants are those
// that their jobs have.
func (a *API) listUnique(r *request) error {
	p, err := readPageOf(r, defaultAdminPage, maxAdminPage)
	if err != nil {
		return err
	}
	l := queue.UniqueList{Tenant: a.tenant(r.Request()), Offset: p.offset, Limit: p.limit}
	if l.Before, err = p.behind(); err != nil {
		return err
	}
	page, err := a.Jobs.ListUnique(r.Request().Context(), l)
	if err != nil {
		return err
	}
	next := ""
	// The cursor is the id of the last job shown, while lists of jobs have that of the last one looked at: here the page is
	// not cut by its bytes.
	if page.More {
		next = spec.FormatID(page.Jobs[len(page.Jobs)-1].ID)
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"items":[`...)
		for i, j := range page.Jobs {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendUniqueJob(b, &j)
		}
		return append(p.append(append(b, `],"pagination":`...), page.Total, page.More, next), '}')
	})
}

// The key is a hash in hexadecimal and needs no quotes. locked_until is left out if the policy has no period.
// The job is not shown whole, so the page stays small and is built whole.
func appendUniqueJob(b []byte, j *queue.UniqueJob) []byte {
	b = spec.AppendID(append(append(append(b, `{"key":"`...), j.Key...), `","job_id":"`...), j.ID)
	b = appendText(append(b, '"'), "type", j.Type)
	b = appendText(b, "queue", j.Queue)
	b = appendText(b, "state", j.State)
	b = appendMoment(b, "locked_until", &j.LockedUntil)
	return append(b, '}')
}
