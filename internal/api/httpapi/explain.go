package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/rawjson"
)

// getExplanation tells why a job is not running (docs/reference/jobs.md, Explain).
func (a *API) getExplanation(c echo.Context) error {
	id, err := jobID(c)
	if err != nil {
		return err
	}
	explanation, err := a.Jobs.Explain(c.Request().Context(), id)
	if err != nil {
		return err
	}
	return send(c, http.StatusOK, rawjson.Compact(explanation))
}
