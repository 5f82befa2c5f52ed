package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/dbsqlc"
	"github.com/ojsd/ojsd/internal/duration"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/rawjson"
	"github.com/ojsd/ojsd/internal/store"
	"github.com/ojsd/ojsd/ojs"
)

// deadLetterRoutes are those of contract 20 §8.2, with their admin aliases.
func (a *API) deadLetterRoutes(v1 *echo.Group) {
	reading := []string{http.MethodGet, http.MethodHead}
	one, many := bodyLimit{a.envelopeBytes(), "envelope"}, bodyLimit{a.config.MaxBatchBytes, "batch"}

	v1.Match(reading, "/dead-letter", a.listDeadLetters("jobs"))
	v1.DELETE("/dead-letter", a.purgeConfirmed)
	v1.Match(reading, "/dead-letter/stats", a.getDeadLetterStats)
	v1.POST("/dead-letter/retry", withBody(many, a.retryDeadLetters))
	v1.POST("/dead-letter/purge", withBody(one, a.postPurge))
	v1.Match(reading, "/dead-letter/:id", notCommand(a.getDeadLetter))
	v1.DELETE("/dead-letter/:id", notCommand(a.deleteDeadLetter))
	v1.POST("/dead-letter/:id/retry", withBody(one, a.retryDeadLetter))

	v1.Match(reading, "/admin/dead-letter", a.listDeadLetters("items"))
	v1.DELETE("/admin/dead-letter", withBody(one, a.adminPurge))
	v1.Match(reading, "/admin/dead-letter/stats", a.getDeadLetterStats)
	v1.POST("/admin/dead-letter/retry", withBody(many, a.retryDeadLetters))
	v1.DELETE("/admin/dead-letter/:id", notCommand(a.adminDeleteDeadLetter))
	v1.POST("/admin/dead-letter/:id/retry", withBody(one, a.adminRetryDeadLetter))
	v1.POST("/admin/jobs/:id/retry", withBody(one, a.adminRetryJob))
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

// asDeadLetter turns an unknown job, or one that is not discarded, into an unknown dead letter.
func asDeadLetter(c echo.Context, err error) error {
	var wire *ojs.Error
	if errors.As(err, &wire) && (wire.Status == http.StatusNotFound || wire.Status == http.StatusConflict) {
		return ojs.ErrNotFound("dead_letter_job", param(c, "id"))
	}
	return err
}

func (a *API) getDeadLetter(c echo.Context) error {
	id, err := jobID(c)
	if err != nil {
		return asDeadLetter(c, err)
	}
	job, err := a.store.Get(c.Request().Context(), id)
	if err != nil {
		return asDeadLetter(c, err)
	}
	if job.State != string(ojs.StateDiscarded) {
		return ojs.ErrNotFound("dead_letter_job", param(c, "id"))
	}
	return wrapped(c, job)
}

func wrapped(c echo.Context, job *dbsqlc.Job) error {
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, shape{}, false) })
}

func (a *API) retryDeadLetter(c echo.Context, body []byte) error {
	job, err := a.retried(c, body)
	if err != nil {
		return asDeadLetter(c, err)
	}
	return wrapped(c, job)
}

func (a *API) adminRetryDeadLetter(c echo.Context, body []byte) error {
	return asDeadLetter(c, a.adminRetryJob(c, body))
}

// adminRetryJob answers with the job at the top level as well.
func (a *API) adminRetryJob(c echo.Context, body []byte) error {
	job, err := a.retried(c, body)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendWrapped(b, job, shape{}, true) })
}

func (a *API) retried(c echo.Context, body []byte) (*dbsqlc.Job, error) {
	override, wire := envelope.DecodeRetry(body, a.config.Limits)
	if wire != nil {
		return nil, wire
	}
	id, err := jobID(c)
	if err != nil {
		return nil, err
	}
	return a.store.Retry(c.Request().Context(), id, override)
}

func (a *API) deleteDeadLetter(c echo.Context) error {
	id, err := a.deleted(c)
	if err != nil {
		return err
	}
	return sendJSON(c, http.StatusOK, map[string]any{"deleted": true, "job_id": ojs.FormatID(id)})
}

func (a *API) adminDeleteDeadLetter(c echo.Context) error {
	if _, err := a.deleted(c); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

func (a *API) deleted(c echo.Context) (id [16]byte, err error) {
	if id, err = jobID(c); err != nil {
		return id, asDeadLetter(c, err)
	}
	ok, err := a.store.DeleteDiscarded(c.Request().Context(), id)
	if err == nil && !ok {
		err = ojs.ErrNotFound("dead_letter_job", param(c, "id"))
	}
	return id, err
}

// listDeadLetters gives full envelopes under the name.
func (a *API) listDeadLetters(name string) echo.HandlerFunc {
	return func(c echo.Context) error {
		page, err := readPage(c)
		if err != nil {
			return err
		}
		want := store.DeadLetterPage{Offset: page.offset, Limit: page.limit}
		if page.cursor != "" {
			key, ok := store.ParseDeadLetterKey(page.cursor)
			if !ok {
				return errCursor(page.cursor)
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
		jobs, more, total, err := a.store.ListDeadLetters(c.Request().Context(), filter, want)
		if err != nil {
			return err
		}
		next := ""
		if more {
			last := jobs[len(jobs)-1]
			next = store.DeadLetterKey{At: last.FinishedAt.Time, ID: last.ID}.String()
		}
		return respond(c, http.StatusOK, func(b []byte) []byte {
			b = append(append(append(b, `{"`...), name...), `":`...)
			b = appendJobs(b, jobs, shape{})
			b = append(b, `,"total":`...)
			b = strconv.AppendInt(b, total, 10)
			b = page.append(append(b, `,"pagination":`...), total, more, next)
			return append(b, '}')
		})
	}
}

// deadLetterQuery reads the filters of lists and purges.
func (a *API) deadLetterQuery(c echo.Context) (store.DeadLetters, error) {
	var f envelope.DeadLetterFilter
	for name, values := range map[string]*[]string{"queue": &f.Queues, "type": &f.Types, "error_type": &f.ErrorTypes, "error_code": &f.ErrorCodes} {
		var err error
		if *values, err = plainList(c, name); err != nil {
			return store.DeadLetters{}, err
		}
	}
	for name, when := range map[string]*envelope.When{"since": &f.Since, "until": &f.Until, "older_than": &f.OlderThan} {
		text := c.QueryParam(name)
		var ok bool
		if *when, ok = envelope.ParseAge(text); text != "" && !ok {
			const expected = "an RFC 3339 time with offset, or an age such as 7d or P7D"
			return store.DeadLetters{}, ojs.ErrInvalidRequest(name, expected, text, name+" must be "+expected+".")
		}
	}
	return a.deadLetters(c.Request().Context(), f)
}

// shownCut is what times lose when they are shown: a job is not later than the discarded_at it shows.
const shownCut = time.Millisecond - time.Microsecond

// deadLetters resolves ages against the database's clock.
func (a *API) deadLetters(ctx context.Context, f envelope.DeadLetterFilter) (store.DeadLetters, error) {
	res := store.DeadLetters{Queues: f.Queues, ErrorTypes: f.ErrorTypes, ErrorCodes: f.ErrorCodes}
	for _, t := range f.Types {
		if n := len(t) - 1; n >= 0 && t[n] == '*' {
			res.TypePrefixes = append(res.TypePrefixes, t[:n])
		} else {
			res.Types = append(res.Types, t)
		}
	}
	if f.IDs != nil {
		res.IDs = [][16]byte{{}} // no job has it: an empty list would mean all
		for _, text := range f.IDs {
			if id, ok := ojs.ParseID(text); ok {
				res.IDs = append(res.IDs, id)
			}
		}
	}
	moment, err := a.moments(ctx, f.Since.Relative || f.Until.Relative || f.OlderThan.Relative)
	if err != nil {
		return res, err
	}
	res.Since = moment(f.Since)
	if res.Until = earliest(moment(f.Until), moment(f.OlderThan)); !res.Until.IsZero() {
		res.Until = res.Until.Add(shownCut)
	}
	return res, nil
}

func (a *API) retryDeadLetters(c echo.Context, body []byte) error {
	f, confirmed, wire := envelope.DecodeDeadLetterFilter(body)
	switch {
	case wire != nil:
		return wire
	case !confirmed:
		return ojs.ErrInvalidPayload("confirm", "true", false, "'confirm' must be true: this retries every dead letter that matches.")
	case len(f.IDs) > a.maxItems():
		return a.batchError(c, ojs.ErrBatchSize(a.maxItems(), len(f.IDs)))
	}
	filter, err := a.deadLetters(c.Request().Context(), f)
	if err != nil {
		return err
	}
	res, err := a.store.RetryDeadLetters(c.Request().Context(), filter)
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

// adminPurge takes its filter from the body, if there is one (contract 30 §9.4).
func (a *API) adminPurge(c echo.Context, body []byte) error {
	if blank(body) {
		return a.purgeConfirmed(c)
	}
	f, confirmed, wire := envelope.DecodeDeadLetterFilter(body)
	switch {
	case wire != nil:
		return wire
	case !confirmed:
		return ojs.ErrInvalidPayload("confirm", "true", false, "'confirm' must be true: this deletes every dead letter that matches.")
	case len(f.IDs) > a.maxItems():
		return a.batchError(c, ojs.ErrBatchSize(a.maxItems(), len(f.IDs)))
	}
	filter, err := a.deadLetters(c.Request().Context(), f)
	if err != nil {
		return err
	}
	return a.purged(c, filter)
}

func (a *API) purged(c echo.Context, filter store.DeadLetters) error {
	n, err := a.store.PurgeDeadLetters(c.Request().Context(), filter)
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
	s, err := a.store.DeadLetterStats(c.Request().Context(), queues)
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

// appendReplays appends what a job shows of its dead-letter mark and of manual retries (contract 20 §8).
func appendReplays(b []byte, j *dbsqlc.Job) []byte {
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
