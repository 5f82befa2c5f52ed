package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/tenant"
)

// getExplanation tells why a job is not running (docs/reference/jobs.md, Explain).
// The answer is made in SQL, so that applications get the same from ojs.explain. It is computed at the moment of the call and
// locks nothing. For a tenant the figures that count jobs or workers of others are taken out; the job itself was checked by
// confine.
func (a *API) getExplanation(c echo.Context) error {
	id, err := jobID(c)
	if err != nil {
		return err
	}
	explanation, err := a.Jobs.Explain(c.Request().Context(), id)
	if err != nil {
		return err
	}
	if caller := a.tenant(c.Request()); caller != "" {
		if explanation, err = tenant.Explanation(explanation, caller); err != nil {
			return err
		}
	}
	return send(c, http.StatusOK, rawjson.Compact(explanation))
}
