package httpapi

import (
	"net/http"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/ojs"
)

// listUnique lists the jobs that hold unique keys (docs/reference/unique.md, List).
func (a *API) listUnique(c echo.Context) error {
	p, err := readPageOf(c, defaultAdminPage, maxAdminPage)
	if err != nil {
		return err
	}
	l := queue.UniqueList{Tenant: a.tenant(c.Request()), Offset: p.offset, Limit: p.limit}
	if p.cursor != "" {
		id, ok := ojs.ParseID(p.cursor)
		if !ok {
			return api.ErrCursor(p.cursor)
		}
		l.Before = &id
	}
	page, err := a.Jobs.ListUnique(c.Request().Context(), l)
	if err != nil {
		return err
	}
	next := ""
	if page.More {
		next = ojs.FormatID(page.Jobs[len(page.Jobs)-1].ID)
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
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

func appendUniqueJob(b []byte, j *queue.UniqueJob) []byte {
	b = ojs.AppendID(append(append(append(b, `{"key":"`...), j.Key...), `","job_id":"`...), j.ID)
	b = appendText(append(b, '"'), "type", j.Type)
	b = appendText(b, "queue", j.Queue)
	b = appendText(b, "state", j.State)
	b = appendTime(b, "locked_until", pgtype.Timestamptz{Time: j.LockedUntil, Valid: !j.LockedUntil.IsZero()})
	return append(b, '}')
}
