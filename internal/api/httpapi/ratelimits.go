package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/limit"
	"github.com/ojsd/ojsd/ojs"
)

// rateLimitRoutes are those of docs/reference/limits.md.
func (a *API) rateLimitRoutes(v1 *echo.Group, one bodyLimit) {
	v1.Match([]string{http.MethodGet, http.MethodHead}, "/rate-limits", a.listRateLimits)
	v1.Match([]string{http.MethodGet, http.MethodHead}, "/rate-limits/:key", a.getRateLimit)
	for _, path := range []string{"/rate-limits/:key", "/rate-limits/:key/override"} {
		v1.PUT(path, a.withBody(one, a.putRateLimit))
	}
	v1.DELETE("/rate-limits/:key/override", a.deleteRateLimit)
	v1.PUT("/admin/queues/:name/rate-limit", a.withBody(one, a.putQueueRateLimit))
}

// limitKey reads the key in the path; what is no key is unknown.
func limitKey(c echo.Context) (string, error) {
	key := param(c, "key")
	if !job.ValidLimitKey(key) {
		return "", ojs.ErrNotFound("rate_limit", key)
	}
	return key, nil
}

func (a *API) listRateLimits(c echo.Context) error {
	p, err := readPageOf(c, defaultAdminPage, maxAdminPage)
	if err != nil {
		return err
	}
	if p.cursor != "" && !job.ValidLimitKey(p.cursor) {
		return api.ErrCursor(p.cursor)
	}
	page, err := a.Limits.List(c.Request().Context(), limit.List{After: p.cursor, Offset: p.offset, Limit: p.limit})
	if err != nil {
		return err
	}
	next := ""
	if page.More {
		next = page.Partitions[len(page.Partitions)-1].Key
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = append(b, `{"items":[`...)
		for i := range page.Partitions {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendPartition(b, &page.Partitions[i])
		}
		b = append(b, `],"rate_limits":[`...)
		for i := range page.Partitions {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendFlatPartition(b, &page.Partitions[i])
		}
		return append(p.append(append(b, `],"pagination":`...), page.Total, page.More, next), '}')
	})
}

func (a *API) getRateLimit(c echo.Context) error {
	key, err := limitKey(c)
	if err != nil {
		return err
	}
	p, err := a.Limits.Get(c.Request().Context(), key)
	return respondPartition(c, p, err)
}

func (a *API) putRateLimit(c echo.Context, body []byte) error {
	key := param(c, "key")
	if !job.ValidLimitKey(key) { // it would be created
		return ojs.ErrInvalidRequest("key", job.LimitKeyForm, key, "The key must be "+job.LimitKeyForm+".")
	}
	o, wire := job.DecodeLimitOverride(body)
	if wire != nil {
		return wire
	}
	p, err := a.Limits.SetOverride(c.Request().Context(), key, o)
	return respondPartition(c, p, err)
}

func (a *API) deleteRateLimit(c echo.Context) error {
	key, err := limitKey(c)
	if err != nil {
		return err
	}
	p, err := a.Limits.DeleteOverride(c.Request().Context(), key)
	return respondPartition(c, p, err)
}

func (a *API) putQueueRateLimit(c echo.Context, body []byte) error {
	name := param(c, "name")
	if err := api.CheckQueue("name", name); err != nil {
		return err
	}
	policy, wire := job.DecodeQueueLimit(body)
	if wire != nil {
		return wire
	}
	if err := a.Jobs.SetQueueLimit(c.Request().Context(), name, policy); err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte {
		b = appendQuoted(append(b, `{"queue":`...), name)
		return append(append(append(b, `,"rate_limit":`...), policy.Encode()...), '}')
	})
}

func respondPartition(c echo.Context, p *limit.Partition, err error) error {
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendPartition(b, p) })
}

// appendPartition shows a partition in the nested form and in that of the dashboard, which has flat members.
func appendPartition(b []byte, p *limit.Partition) []byte {
	b = appendQuoted(append(b, `{"key":`...), p.Key)
	if n := p.Policy.Concurrency; n != nil {
		b = strconv.AppendInt(append(b, `,"concurrency":{"limit":`...), *n, 10)
		b = strconv.AppendInt(append(b, `,"active":`...), p.Active, 10)
		b = append(strconv.AppendInt(append(b, `,"available":`...), max(0, *n-p.Active), 10), '}')
	}
	if w := p.Policy.Rate; w != nil {
		b = appendWindow(append(b, `,"rate":{`...), w)
		b = strconv.AppendInt(append(b, `,"current_count":`...), p.Started, 10)
		b = append(appendTime(b, "window_resets_at", timestamp(p.ResetAt)), '}')
	}
	if w := p.Policy.Throttle; w != nil {
		b = appendWindow(append(b, `,"throttle":{`...), w)
		b = append(appendTime(b, "next_allowed_at", timestamp(p.NextAt)), '}')
	}
	b = strconv.AppendInt(append(b, `,"waiting_count":`...), p.Waiting, 10)
	b = append(appendShortWindow(append(b, ','), p.Policy), ',')
	b = strconv.AppendInt(append(b, `"active":`...), p.Active, 10)
	if n, limited := p.Available(); limited {
		b = strconv.AppendInt(append(b, `,"available":`...), n, 10)
	}
	b = strconv.AppendInt(append(b, `,"waiting":`...), p.Waiting, 10)
	b = appendTime(b, "blocked_until", timestamp(p.BlockedUntil))
	if p.Override != nil {
		b = append(appendOverride(append(b, `,"override":{`...), p), '}')
	}
	return append(b, '}')
}

func appendWindow(b []byte, w *job.Window) []byte {
	b = strconv.AppendInt(append(b, `"limit":`...), w.Limit, 10)
	return appendText(b, "period", w.PeriodText)
}

// appendShortWindow shows one of the limits: rate, else throttle, else concurrency.
func appendShortWindow(b []byte, p job.LimitPolicy) []byte {
	switch {
	case p.Rate != nil:
		return appendWindow(b, p.Rate)
	case p.Throttle != nil:
		return appendWindow(b, p.Throttle)
	case p.Concurrency != nil:
		return appendWindow(b, &job.Window{Limit: *p.Concurrency})
	}
	return append(b, `"limit":null,"period":""`...)
}

func appendOverride(b []byte, p *limit.Partition) []byte {
	o := p.Override
	b = appendShortWindow(b, *o)
	if o.Concurrency != nil {
		b = strconv.AppendInt(append(b, `,"concurrency":`...), *o.Concurrency, 10)
	}
	if o.Throttle != nil {
		b = append(appendWindow(append(b, `,"throttle":{`...), o.Throttle), '}')
	}
	if !p.OverrideUntil.IsZero() {
		b = appendTime(b, "expires_at", timestamp(p.OverrideUntil))
	}
	return b
}

// appendFlatPartition is the form that the command line reads.
func appendFlatPartition(b []byte, p *limit.Partition) []byte {
	b = appendQuoted(append(b, `{"key":`...), p.Key)
	if p.Policy.Concurrency != nil {
		b = strconv.AppendInt(append(b, `,"concurrency":`...), *p.Policy.Concurrency, 10)
	}
	b = strconv.AppendInt(append(b, `,"active":`...), p.Active, 10)
	if n, limited := p.Available(); limited {
		b = strconv.AppendInt(append(b, `,"available":`...), n, 10)
	}
	return append(b, '}')
}

func timestamp(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

// rateLimitHeaders tells of the partition of a job that was stored, if that has a rate or a throttle. The job is stored whatever the
// look-up says.
func (a *API) rateLimitHeaders(c echo.Context, j *job.Job) {
	p, err := a.Limits.OfJob(c.Request().Context(), j)
	if err != nil || p == nil {
		return
	}
	var most, left int64
	reset := p.NextAt
	if w := p.Policy.Rate; w != nil {
		most, left, reset = w.Limit, max(0, w.Limit-p.Started), p.ResetAt
	} else if most = p.Policy.Throttle.Limit; !p.NextAt.After(p.ResetAt) {
		left = 1
	}
	h := c.Response().Header()
	h.Set("X-RateLimit-Limit", strconv.FormatInt(most, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(left, 10))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Add(time.Second-1).Unix(), 10))
}
