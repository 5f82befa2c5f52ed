package webhook

import (
	"math/rand/v2"
	"net/http"
	"time"
)

// maxLost is how many leases in a row may expire before that counts as a failed attempt: a request that makes the node crash
// must not be repeated without end. A node that is killed loses its leases, too, so one or two prove nothing.
const maxLost = 5

// decide returns the outcome of an attempt (docs/reference/webhooks.md, Outcomes). try is its number within the schedule, from
// 1. gone means that the endpoint answered 410. 410 ends a delivery at once, whatever is left of the schedule. A status of
// 2xx is a failure if the response could not be read to its end. It has no effect of its own: record stores what it
// returns.
func (c Config) decide(res Result, try int) (o DeliveryOutcome, gone bool) {
	o = DeliveryOutcome{Code: res.Code, Error: res.Error, Snippet: res.Snippet, Duration: res.Duration}
	switch {
	case res.accepted():
		o.Status = "delivered"
	case res.Error == "" && res.Code == http.StatusGone:
		o.Status, gone = "dead", true
	case try > len(c.RetrySchedule):
		o.Status = "dead"
	default:
		o.Status, o.Delay = "failed", max(c.pause(try), res.RetryAfter)
	}
	return o, gone
}

// pause is the pause of the schedule plus a random part, so that deliveries that failed together are not retried together.
// decide has checked that try is inside the schedule.
func (c Config) pause(try int) time.Duration {
	pause := c.RetrySchedule[try-1]
	return pause + time.Duration(rand.Float64()*c.RetryJitter*float64(pause))
}
