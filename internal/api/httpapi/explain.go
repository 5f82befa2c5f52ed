package httpapi

import (
	"net/http"

	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/tenant"
)

// getExplanation tells why a job is not running (docs/reference/jobs.md, Explain).
// The answer is made in SQL, so that applications get the same from ojs.explain. It is computed at the moment of the call and
// locks nothing. For a tenant the figures that count jobs or workers of others are taken out; the job itself was checked by
// confine.
func (a *API) getExplanation(r *request) error {
	id, err := jobID(r)
	if err != nil {
		return err
	}
	explanation, err := a.Jobs.Explain(r.Request().Context(), id)
	if err != nil {
		return err
	}
	if caller := a.tenant(r.Request()); caller != "" {
		if explanation, err = tenant.Explanation(explanation, caller); err != nil {
			return err
		}
	}
	return send(r, http.StatusOK, rawjson.Compact(explanation))
}
