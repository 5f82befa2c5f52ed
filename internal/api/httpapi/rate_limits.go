package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/ojsd/ojsd/internal/api"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/limit"
	"github.com/ojsd/ojsd/internal/spec"
	"github.com/ojsd/ojsd/ojs"
)

// rateLimitRoutes are those of docs/reference/limits.md.
// A key is one segment of the path; that of a tenant, as operators see it, has a slash, which clients send as %2F.
func (a *API) rateLimitRoutes() []route {
	return []route{
		{"GET", "/rate-limits", api.Confined, noBody, paging, a.listRateLimits},
		{"GET", "/rate-limits/:key", api.Confined, noBody, "", a.getRateLimit},
		{"PUT", "/rate-limits/:key", api.Confined, oneBody, "", a.putRateLimit},
		{"PUT", "/rate-limits/:key/override", api.Confined, oneBody, "", a.putRateLimit},
		{"DELETE", "/rate-limits/:key/override", api.Confined, noBody, "", a.deleteRateLimit},
	}
}

// limitKey reads the key in the path; what is no key is unknown. To a tenant, its keys are without its name, as its jobs have them, and the
// limits of whole queues, which are not its own, do not exist.
// It returns the key of the partition as it is stored.
func (a *API) limitKey(c echo.Context) (string, error) {
	key, caller := param(c, "key"), a.tenant(c.Request())
	switch {
	case caller == "" && job.ValidPartitionKey(key):
		return key, nil
	case caller != "" && job.ValidLimitKey(key) && !strings.HasPrefix(key, job.QueueLimitPrefix):
		return job.PartitionKey(caller, key, nil), nil
	}
	return "", spec.NotFound("rate_limit", key)
}

// shownKey is the key of a partition as the caller knows it.
// It undoes limitKey.
func (a *API) shownKey(c echo.Context, key string) string {
	if caller := a.tenant(c.Request()); caller != "" {
		return strings.TrimPrefix(key, job.PartitionKey(caller, "", nil))
	}
	return key
}

// shownPartition is the partition as the caller knows it. The error of an unknown one names it so, too.
// It changes p, which belongs to this request. Any other error is passed on as it is.
func (a *API) shownPartition(c echo.Context, p *limit.Partition, err error) (*limit.Partition, error) {
	if wire, ok := errors.AsType[*ojs.Error](err); ok && wire.Type == string(ojs.ErrNotFound) {
		return nil, spec.NotFound("rate_limit", param(c, "key"))
	}
	if err == nil {
		p.Key = a.shownKey(c, p.Key)
	}
	return p, err
}

// listRateLimits pages by stored key. The cursor of a tenant is a key without its name, so that no cursor leads into the keys
// of others. items and rate_limits are the same partitions in the forms of the dashboard and of the command line.
func (a *API) listRateLimits(r *request) error {
	p, err := readPageOf(r, defaultAdminPage, maxAdminPage)
	if err != nil {
		return err
	}
	l := limit.List{Tenant: a.tenant(r.Request()), After: p.cursor, Offset: p.offset, Limit: p.limit}
	switch {
	case p.cursor == "":
	// Such a key cannot contain a slash, so the result stays among the keys of the tenant.
	case l.Tenant != "" && job.ValidLimitKey(p.cursor):
		l.After = job.PartitionKey(l.Tenant, p.cursor, nil)
	case l.Tenant != "" || !job.ValidPartitionKey(p.cursor):
		return api.ErrCursor(p.cursor)
	}
	page, err := a.Limits.List(r.Request().Context(), l)
	if err != nil {
		return err
	}
	for i := range page.Partitions {
		page.Partitions[i].Key = a.shownKey(r, page.Partitions[i].Key)
	}
	next := ""
	if page.More {
		next = page.Partitions[len(page.Partitions)-1].Key
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
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

// The error is handed on, because it names the stored key, which a tenant must not see.
func (a *API) getRateLimit(r *request) error {
	key, err := a.limitKey(r)
	if err != nil {
		return err
	}
	p, err := a.Limits.Get(r.Request().Context(), key)
	return a.respondPartition(r, p, err)
}

// putRateLimit replaces the override, if there is one, and is idempotent. It creates an unknown partition, so that a limit
// can be set before the first job names it.
func (a *API) putRateLimit(r *request) error {
	if text := param(r, "key"); !job.ValidPartitionKey(text) { // it would be created
		return spec.InvalidRequest("key", job.LimitKeyForm, text, "The key must be "+job.LimitKeyForm+".")
	}
	key, err := a.limitKey(r)
	if err != nil {
		return err
	}
	// limit and period beside each other stand for a rate.
	o, wire := job.DecodeLimitOverride(r.body)
	if wire != nil {
		return wire
	}
	p, err := a.Limits.SetOverride(r.Request().Context(), key, o)
	return a.respondPartition(r, p, err)
}

// It leaves the partition and the policy that jobs have brought.
func (a *API) deleteRateLimit(r *request) error {
	key, err := a.limitKey(r)
	if err != nil {
		return err
	}
	p, err := a.Limits.DeleteOverride(r.Request().Context(), key)
	return a.respondPartition(r, p, err)
}

// putQueueRateLimit writes the member rate_limit of the configuration of the queue, which it creates if need be. The answer
// shows the policy in its normal form.
func (a *API) putQueueRateLimit(r *request) error {
	name := param(r, "name")
	if err := api.CheckQueue("name", name); err != nil {
		return err
	}
	policy, wire := job.DecodeQueueLimit(r.body)
	if wire != nil {
		return wire
	}
	// Fetches of all nodes follow it within a second.
	if err := a.Jobs.SetQueueLimit(r.Request().Context(), name, policy); err != nil {
		return err
	}
	return respond(r, http.StatusOK, func(b []byte) []byte {
		b = appendQuoted(append(b, `{"queue":`...), name)
		return append(append(append(b, `,"rate_limit":`...), policy.Encode()...), '}')
	})
}

// It takes the error of the store, so that every call shows errors in the same way.
func (a *API) respondPartition(c echo.Context, p *limit.Partition, err error) error {
	if p, err = a.shownPartition(c, p, err); err != nil {
		return err
	}
	return respond(c, http.StatusOK, func(b []byte) []byte { return appendPartition(b, p) })
}

// appendPartition shows a partition in the nested form and in that of the dashboard, which has flat members.
// A limit that the policy does not have is left out. active and waiting_count end at 10 000. available at the top level is
// absent if only a throttle limits the key; that in concurrency is about that limit alone.
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
		b = append(appendMoment(b, "window_resets_at", &p.ResetAt), '}')
	}
	if w := p.Policy.Throttle; w != nil {
		b = appendWindow(append(b, `,"throttle":{`...), w)
		b = append(appendMoment(b, "next_allowed_at", &p.NextAt), '}')
	}
	b = strconv.AppendInt(append(b, `,"waiting_count":`...), p.Waiting, 10)
	b = append(appendShortWindow(append(b, ','), p.Policy), ',')
	b = strconv.AppendInt(append(b, `"active":`...), p.Active, 10)
	if n, limited := p.Available(); limited {
		b = strconv.AppendInt(append(b, `,"available":`...), n, 10)
	}
	b = strconv.AppendInt(append(b, `,"waiting":`...), p.Waiting, 10)
	b = appendMoment(b, "blocked_until", &p.BlockedUntil)
	// The policy above is shown with the override; here is what was replaced, and until when.
	if p.Override != nil {
		b = append(appendOverride(append(b, `,"override":{`...), p), '}')
	}
	return append(b, '}')
}

// The period is shown as the client wrote it.
func appendWindow(b []byte, w *job.Window) []byte {
	b = strconv.AppendInt(append(b, `"limit":`...), w.Limit, 10)
	return appendText(b, "period", w.PeriodText)
}

// appendShortWindow shows one of the limits: rate, else throttle, else concurrency.
// The dashboard shows one limit for each key. Without any, limit is null.
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

// It shows only the parts that are replaced, without the braces of the object.
func appendOverride(b []byte, p *limit.Partition) []byte {
	o := p.Override
	b = appendShortWindow(b, *o)
	if o.Concurrency != nil {
		b = strconv.AppendInt(append(b, `,"concurrency":`...), *o.Concurrency, 10)
	}
	if o.Throttle != nil {
		b = append(appendWindow(append(b, `,"throttle":{`...), o.Throttle), '}')
	}
	return appendMoment(b, "expires_at", &p.OverrideUntil)
}

// appendFlatPartition is the form that the command line reads.
// It has fewer members than appendPartition.
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

// rateLimitHeaders tells of the partition of a job that was stored, if that has a rate or a throttle. The job is stored whatever the
// look-up says.
// The figures are read after the insert, so other jobs may have started meanwhile; they promise nothing. It must be called
// before the status is written.
func (a *API) rateLimitHeaders(c echo.Context, j *job.Job) {
	p, err := a.Limits.OfJob(c.Request().Context(), j)
	// An error here must not turn a stored job into a failure that its client repeats.
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
	// The header has whole seconds. They are rounded up: a client that waits until then must not come too early.
	h.Set("X-RateLimit-Reset", strconv.FormatInt(reset.Add(time.Second-1).Unix(), 10))
}
