package httpapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/ojs"
)

// deadLetterRoutes are those of docs/reference/retries.md, Dead-letter endpoints, with their admin aliases.
func (a *API) deadLetterRoutes(v1 *echo.Group) {
	reading := []string{http.MethodGet, http.MethodHead}
	one, many := bodyLimit{a.config.Limits.Envelope(), "envelope"}, bodyLimit{a.config.MaxBatchBytes, "batch"}

	v1.Match(reading, "/dead-letter", a.listDeadLetters("jobs", api.DefaultPage, api.MaxPage))
	v1.DELETE("/dead-letter", a.purgeConfirmed)
	v1.Match(reading, "/dead-letter/stats", a.getDeadLetterStats)
	v1.POST("/dead-letter/retry", a.withBody(many, a.retryDeadLetters))
	v1.POST("/dead-letter/purge", a.withBody(one, a.postPurge))
	v1.Match(reading, "/dead-letter/:id", notCommand(a.getDeadLetter))
	v1.DELETE("/dead-letter/:id", notCommand(a.deleteDeadLetter))
	v1.POST("/dead-letter/:id/retry", a.withBody(one, a.retryDeadLetter))

	v1.Match(reading, "/admin/dead-letter", a.listDeadLetters("items", defaultAdminPage, maxAdminPage))
	v1.DELETE("/admin/dead-letter", a.withBody(one, a.adminPurge))
	v1.Match(reading, "/admin/dead-letter/stats", a.getDeadLetterStats)
	v1.POST("/admin/dead-letter/retry", a.withBody(many, a.retryDeadLetters))
	v1.DELETE("/admin/dead-letter/:id", notCommand(a.adminDeleteDeadLetter))
	v1.POST("/admin/dead-letter/:id/retry", a.withBody(one, a.adminRetryDeadLetter))
	v1.POST("/admin/jobs/:id/retry", a.withBody(one, a.adminRetryJob))
}

// notCommand is notLiteral for the names beside the ids of dead letters.
func notCommand(h echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		switch c.Param("id") {
		case "retry", "purge":
			c.Response().Header().Set(echo.HeaderAllow, http.MethodPost)
			return echo.ErrMethodNotAllowed
		case "stats":
			c.Response().Header().Set(echo.HeaderAllow, http.MethodGet+", "+http.MethodHead)
			return echo.ErrMethodNotAllowed
		}
		return h(c)
	}
}

func (a *API) getDeadLetter(c echo.Context) error {
	job, err := a.DeadLetters.Get(c.Request().Context(), deadLetterID(c))
	if err != nil {
		return err
	}
	return wrapped(c, job)
}

func deadLetterID(c echo.Context) deadletter.ID { return deadletter.ParseID(param(c, "id")) }

func wrapped(c echo.Context, job *job.Record) error {
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, shape{}, false) })
}

func (a *API) retryDeadLetter(c echo.Context, body []byte) error {
	job, err := a.deadLetterRetried(c, body)
	if err != nil {
		return err
	}
	return wrapped(c, job)
}

// adminRetryDeadLetter answers with the job at the top level as well.
func (a *API) adminRetryDeadLetter(c echo.Context, body []byte) error {
	job, err := a.deadLetterRetried(c, body)
	if err != nil {
		return err
	}
	return wrappedFlat(c, job)
}

func (a *API) deadLetterRetried(c echo.Context, body []byte) (*job.Record, error) {
	override, wire := job.DecodeRetry(body, a.limits(c))
	if wire != nil {
		return nil, wire
	}
	return a.DeadLetters.RetryOne(c.Request().Context(), deadLetterID(c), override)
}

func (a *API) adminRetryJob(c echo.Context, body []byte) error {
	override, wire := job.DecodeRetry(body, a.limits(c))
	if wire != nil {
		return wire
	}
	id, err := jobID(c)
	if err != nil {
		return err
	}
	job, err := a.Jobs.Retry(c.Request().Context(), id, override)
	if err != nil {
		return err
	}
	return wrappedFlat(c, job)
}

func wrappedFlat(c echo.Context, job *job.Record) error {
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, shape{}, true) })
}

func (a *API) deleteDeadLetter(c echo.Context) error {
	id := deadLetterID(c)
	if err := a.DeadLetters.Delete(c.Request().Context(), id); err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, map[string]any{"deleted": true, "job_id": id.String()})
}

func (a *API) adminDeleteDeadLetter(c echo.Context) error {
	if err := a.DeadLetters.Delete(c.Request().Context(), deadLetterID(c)); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// listDeadLetters gives full envelopes under the name.
func (a *API) listDeadLetters(name string, standard, largest int) echo.HandlerFunc {
	return func(c echo.Context) error {
		page, err := readPageOf(c, standard, largest)
		if err != nil {
			return err
		}
		want := deadletter.Page{Offset: page.offset, Limit: page.limit}
		if page.cursor != "" {
			key, ok := deadletter.ParseKey(page.cursor)
			if !ok {
				return api.ErrCursor(page.cursor)
			}
			want.Before = &key
		}
		switch include := c.QueryParam("include"); include {
		case "":
		case "all":
			want.Everything = true
		default:
			return ojs.ErrInvalidRequest("include", "all", include, "include must be all, which lists every discarded job, or absent.")
		}
		filter, err := a.deadLetterQuery(c)
		if err != nil {
			return err
		}
		found, err := a.DeadLetters.List(c.Request().Context(), filter, want)
		if err != nil {
			return err
		}
		cursor := ""
		if found.Next != nil {
			cursor = found.Next.String()
		}
		return respondEach(c, http.StatusOK, shownBytes(found.Jobs), func(b []byte, next flush) []byte {
			b = append(append(append(b, `{"`...), name...), `":`...)
			b = appendJobs(b, found.Jobs, shape{}, next)
			b = append(b, `,"total":`...)
			b = strconv.AppendInt(b, found.Total, 10)
			b = page.append(append(b, `,"pagination":`...), found.Total, cursor != "", cursor)
			return append(b, '}')
		})
	}
}

// deadLetterQuery reads the filters of lists and purges.
func (a *API) deadLetterQuery(c echo.Context) (f deadletter.Filter, err error) {
	f.Tenant = a.tenant(c.Request())
	for _, condition := range []struct {
		name string
		to   *[]string
	}{{"queue", &f.Queues}, {"type", &f.Types}, {"error_type", &f.ErrorTypes}, {"error_code", &f.ErrorCodes}} {
		if *condition.to, err = plainList(c, condition.name); err != nil {
			return f, err
		}
	}
	for _, bound := range []struct {
		name string
		to   *job.When
	}{{"since", &f.Since}, {"until", &f.Until}, {"older_than", &f.OlderThan}} {
		if *bound.to, err = ageParameter(c, bound.name); err != nil {
			return f, err
		}
	}
	return f, nil
}

// ageParameter reads a point in time, which may be given as an age.
func ageParameter(c echo.Context, name string) (w job.When, err error) {
	text := timeText(c, name)
	if text == "" {
		return w, nil
	}
	w, ok := job.ParseAge(text)
	if !ok {
		const expected = "an RFC 3339 time with offset, or an age such as 7d or P7D"
		return w, ojs.ErrInvalidRequest(name, expected, text, name+" must be "+expected+".")
	}
	return w, nil
}

func (a *API) retryDeadLetters(c echo.Context, body []byte) error {
	filter, wire := deadletter.DecodeRetry(body, a.maxItems())
	if wire != nil {
		return a.batchError(c, wire)
	}
	filter.Tenant = a.tenant(c.Request())
	res, err := a.DeadLetters.Retry(c.Request().Context(), filter)
	if err != nil {
		return err
	}
	failed := make([]map[string]string, len(res.Failed))
	for i, f := range res.Failed {
		failed[i] = map[string]string{"job_id": ojs.FormatID(f.ID), "error": f.Reason}
	}
	return sendJSON(c, http.StatusOK, map[string]any{
		"action": "retry", "matched": res.Matched, "succeeded": res.Succeeded, "retried": res.Succeeded, "failed": len(res.Failed), "errors": failed,
	})
}

// purgeConfirmed takes everything from the query.
func (a *API) purgeConfirmed(c echo.Context) error {
	if err := nothingEmpty(c); err != nil {
		return err
	}
	if c.QueryParam("confirm") != "true" {
		return ojs.ErrInvalidRequest("confirm", "true", c.QueryParam("confirm"), "confirm must be true: this deletes every dead letter that matches.")
	}
	return a.purge(c)
}

// nothingEmpty refuses parameters without a value: an unset variable of a script must not delete everything.
func nothingEmpty(c echo.Context) error {
	for name, values := range c.QueryParams() {
		if strings.TrimSpace(strings.Join(values, "")) == "" {
			return ojs.ErrInvalidRequest(name, "a value", "", name+" is empty; leave it out to delete without that filter.")
		}
	}
	return nil
}

// postPurge: the call is the confirmation.
func (a *API) postPurge(c echo.Context, body []byte) error {
	if err := checkCommand(body); err != nil {
		return err
	}
	if err := nothingEmpty(c); err != nil {
		return err
	}
	if !blank(body) {
		for literal := range rawjson.Members(body) {
			name := string(rawjson.Name(literal))
			return ojs.ErrInvalidPayload(name, "no body, or {}", name, "The filters of a purge stand in its query; a body with members is refused rather than ignored.")
		}
	}
	return a.purge(c)
}

func (a *API) purge(c echo.Context) error {
	filter, err := a.deadLetterQuery(c)
	if err != nil {
		return err
	}
	return a.purged(c, filter)
}

// adminPurge takes its filter from the body, if there is one.
func (a *API) adminPurge(c echo.Context, body []byte) error {
	if blank(body) {
		return a.purgeConfirmed(c)
	}
	filter, wire := deadletter.DecodePurge(body, a.maxItems())
	if wire != nil {
		return a.batchError(c, wire)
	}
	filter.Tenant = a.tenant(c.Request())
	return a.purged(c, filter)
}

func (a *API) purged(c echo.Context, filter deadletter.Filter) error {
	n, err := a.DeadLetters.Purge(c.Request().Context(), filter)
	if err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, map[string]any{"action": "purge", "deleted": n, "purged_count": n})
}

func (a *API) getDeadLetterStats(c echo.Context) error {
	queues, err := plainList(c, "queue")
	if err != nil {
		return err
	}
	s, err := a.DeadLetters.Stats(c.Request().Context(), a.tenant(c.Request()), queues)
	if err != nil {
		return err
	}
	retention := map[string]any{"next_prune_at": ojs.FormatTime(s.Now.Add(a.prune()))}
	if age := a.config.DeadLetterMaxAge; age > 0 {
		retention["max_age"] = days(age)
	}
	if count := a.config.DeadLetterMaxCount; count > 0 {
		retention["max_count"] = count
	}
	body := map[string]any{"total": s.Total, "by_queue": s.ByQueue, "by_type": s.ByType, "by_error_type": s.ByErrorType, "retention": retention}
	if s.Total > 0 {
		body["oldest_at"], body["newest_at"] = ojs.FormatTime(s.Oldest), ojs.FormatTime(s.Newest)
	}
	return sendJSON(c, http.StatusOK, body)
}

// days prints whole days as such.
func days(d time.Duration) string {
	if day := 24 * time.Hour; d >= day && d%day == 0 {
		return "P" + strconv.FormatInt(int64(d/day), 10) + "D"
	}
	return duration.Format(d)
}

// appendReplays appends what a job shows of its dead-letter mark and of manual retries (docs/reference/retries.md, Dead letters).
func appendReplays(b []byte, j *job.Record) []byte {
	if len(j.PreviousErrors) > 0 {
		b = append(b, `,"previous_errors":[`...)
		for i, e := range j.PreviousErrors {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, e...)
		}
		b = append(b, ']')
	}
	if j.ReplayCount > 0 {
		b = append(b, `,"replay_count":`...)
		b = strconv.AppendInt(b, int64(j.ReplayCount), 10)
	}
	b = appendTime(b, "re_enqueued_at", j.ReEnqueuedAt)
	b = appendTime(b, "dead_lettered_at", j.DeadLetteredAt)
	if j.State == string(ojs.StateDiscarded) {
		b = append(b, `,"total_attempts":`...)
		b = strconv.AppendInt(b, int64(j.Attempt), 10)
	}
	return b
}
