package webhook

import (
	"math/rand/v2"
	"net/http"
	"time"
)

// maxLost is how many leases in a row may be lost before that counts as a failed attempt: a request that kills its sender
// must not be repeated for ever.
const maxLost = 5

// judge decides what becomes of a delivery (docs/reference/webhooks.md, Outcomes). try is the attempt's number within the schedule, from 1.
func (c Config) judge(res Result, try int) (o DeliveryOutcome, gone bool) {
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

// pause is what the schedule says, and a little more, so that what failed together does not come back together.
func (c Config) pause(try int) time.Duration {
	pause := c.RetrySchedule[try-1]
	return pause + time.Duration(rand.Float64()*c.RetryJitter*float64(pause))
}
