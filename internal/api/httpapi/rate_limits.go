package httpapi

import (
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
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
		{"GET", "/rate-limits/:key", api.Confined, noBody, "", about(a.limitKey, a.getRateLimit)},
		{"PUT", "/rate-limits/:key", api.Confined, oneBody, "", a.putRateLimit},
		{"PUT", "/rate-limits/:key/override", api.Confined, oneBody, "", a.putRateLimit},
		{"DELETE", "/rate-limits/:key/override", api.Confined, noBody, "", about(a.limitKey, a.deleteRateLimit)},
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

// listRateLimits pages by stored key. The cursor of a tenant is a key without its name, so that no cursor leads into the keys
// of others. items and rate_limits are the same partitions in the forms of the dashboard and of the command line.
func (a *API) listRateLimits(r *request) error {
	p := r.page(defaultAdminPage, maxAdminPage)
	l := limit.List{Tenant: a.tenant(r.Request()), After: p.cursor, Offset: p.offset, Limit: p.limit}
	switch {
	case p.cursor == "":
	// Such a key cannot contain a slash, so the result stays among the keys of the tenant.
	case l.Tenant != "" && job.ValidLimitKey(p.cursor):
		l.After = job.PartitionKey(l.Tenant, p.cursor, nil)
	case l.Tenant != "" || !job.ValidPartitionKey(p.cursor):
		r.refuse(api.ErrCursor(p.cursor))
	}
	if r.err != nil {
		return r.err
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
	flat := each(page.Partitions, func(p *limit.Partition) object {
		shown := object{{"key", p.Key}}
		if n := p.Policy.Concurrency; n != nil {
			shown = append(shown, member{"concurrency", *n})
		}
		return append(shown, object{{"active", p.Active}, {"available", available(p)}}...)
	})
	return r.answer(http.StatusOK, object{
		{"items", each(page.Partitions, showPartition)}, {"rate_limits", flat}, {"pagination", p.shown(page.Total, page.More, next)},
	})
}

func (a *API) getRateLimit(r *request, key string) error {
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

// deleteRateLimit leaves the partition and the policy that jobs have brought.
func (a *API) deleteRateLimit(r *request, key string) error {
	p, err := a.Limits.DeleteOverride(r.Request().Context(), key)
	return a.respondPartition(r, p, err)
}

// putQueueRateLimit writes the member rate_limit of the configuration of the queue, which it creates if need be. The answer
// shows the policy in its normal form.
func (a *API) putQueueRateLimit(r *request, name string) error {
	policy, wire := job.DecodeQueueLimit(r.body)
	if wire != nil {
		return wire
	}
	// Fetches of all nodes follow it within a second.
	if err := a.Jobs.SetQueueLimit(r.Request().Context(), name, policy); err != nil {
		return err
	}
	return r.answer(http.StatusOK, object{{"queue", name}, {"rate_limit", jsontext.Value(policy.Encode())}})
}

// respondPartition takes the error of the store, so that every call shows errors in the same way: the store names the stored key, which a
// tenant must not see. It changes p, which belongs to this request.
func (a *API) respondPartition(r *request, p *limit.Partition, err error) error {
	if wire, ok := errors.AsType[*ojs.Error](err); ok && wire.Type == string(ojs.ErrNotFound) {
		return spec.NotFound("rate_limit", param(r, "key"))
	} else if err != nil {
		return err
	}
	p.Key = a.shownKey(r, p.Key)
	return r.answer(http.StatusOK, showPartition(p))
}

// showPartition shows a partition in the nested form and in that of the dashboard, which has flat members.
// A limit that the policy does not have is left out. active and waiting_count end at 10 000. available in concurrency is about that limit
// alone.
func showPartition(p *limit.Partition) object {
	shown := object{{"key", p.Key}}
	if n := p.Policy.Concurrency; n != nil {
		shown = append(shown, member{"concurrency", object{{"limit", *n}, {"active", p.Active}, {"available", max(0, *n-p.Active)}}})
	}
	if w := p.Policy.Rate; w != nil {
		shown = append(shown, member{"rate", append(showWindow(w),
			object{{"current_count", p.Started}, {"window_resets_at", p.ResetAt}}...)})
	}
	if w := p.Policy.Throttle; w != nil {
		shown = append(shown, member{"throttle", append(showWindow(w), member{"next_allowed_at", p.NextAt})})
	}
	shown = append(append(shown, member{"waiting_count", p.Waiting}), showShortWindow(p.Policy)...)
	shown = append(shown, object{{"active", p.Active}, {"available", available(p)}, {"waiting", p.Waiting},
		{"blocked_until", p.BlockedUntil}}...)
	// The policy above is shown with the override; here are the parts that were replaced, and until when.
	if o := p.Override; o != nil {
		override := showShortWindow(*o)
		if o.Concurrency != nil {
			override = append(override, member{"concurrency", *o.Concurrency})
		}
		if o.Throttle != nil {
			override = append(override, member{"throttle", showWindow(o.Throttle)})
		}
		shown = append(shown, member{"override", append(override, member{"expires_at", p.OverrideUntil})})
	}
	return shown
}

// available is left out if only a throttle limits the key.
func available(p *limit.Partition) any {
	if n, limited := p.Available(); limited {
		return n
	}
	return omitted{}
}

// showWindow has the period as the client wrote it.
func showWindow(w *job.Window) object { return object{{"limit", w.Limit}, {"period", w.PeriodText}} }

// showShortWindow shows one of the limits: rate, else throttle, else concurrency.
// The dashboard shows one limit for each key. Without any, limit is null.
func showShortWindow(p job.LimitPolicy) object {
	switch {
	case p.Rate != nil:
		return showWindow(p.Rate)
	case p.Throttle != nil:
		return showWindow(p.Throttle)
	case p.Concurrency != nil:
		return showWindow(&job.Window{Limit: *p.Concurrency})
	}
	return object{{"limit", nil}, {"period", ""}}
}

// rateLimitHeaders tells of the partition of a job that was stored, if that has a rate or a throttle. The job is stored whatever the
// look-up says.
// The figures are read after the insert, so other jobs may have started meanwhile; they promise nothing. It must be called
// before the status is written.
func (a *API) rateLimitHeaders(c echo.Context, j *job.Job) {
	p, err := a.Limits.OfJob(c.Request().Context(), j)
	// An error here must not turn a stored job into a failure that its client repeats.
	if err != nil && c.Request().Context().Err() == nil {
		a.logger.WarnContext(c.Request().Context(), "the answer to an enqueue has no X-RateLimit headers: the partition was not read",
			slog.String("category", "http"), slog.Any("error", err))
	}
	if p == nil {
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
