package fakeserver

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ojsd/ojsd/ojs"
)

// limitPolicy is that of docs/reference/limits.md, Policies.
type limitPolicy struct {
	Key            string
	Concurrency    *int64
	Rate, Throttle *window
	OnLimit        string
}

type window struct {
	Limit  int64
	Text   string // of the period
	Period time.Duration
}

// partition are the jobs that name a key.
type partition struct {
	policy   limitPolicy
	override *limitPolicy
	sent     map[string]any // the override as it was sent
	until    time.Time      // end of the override; zero: it has none
	starts   []time.Time
}

var limitKey = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$`)

const maxLimit = 1_000_000_000

// readLimit reads the policy of a job; nil: it has none. Without a key it is that of the queue.
func readLimit(r reader) *limitPolicy {
	in, there := r.inner(r.pick("rate_limit"))
	if !there {
		return nil
	}
	in.others(ojs.ErrInvalidPayload, "key", "concurrency", "rate", "throttle", "limit", "period", "max_per_second", "on_limit", "scope")
	p := readAmounts(in)
	p.OnLimit = in.text(in.pick("on_limit"), "one of wait, reschedule, drop", among("wait", "reschedule", "drop"))
	in.text(in.pick("scope"), "tenant or global", among("tenant", "global"))
	key := in.pick("key")
	p.Key = in.text(key, "1 to 255 letters, digits, '.', '_', ':' or '-', the first a letter or a digit", limitKey.MatchString)
	switch {
	case strings.HasPrefix(p.Key, "queue:"):
		in.refuse(key, "a name that does not begin with 'queue:'")
	case key.value != nil:
		return p
	case p.Concurrency != nil:
		in.refuse(in.pick("concurrency"), "absent, or together with a key")
	case p.Throttle != nil:
		in.refuse(in.pick("throttle"), "absent, or together with a key")
	case p.Rate == nil:
		in.refuse(key, "the name of the partition, or max_per_second or limit and period for the whole queue")
	case in.pick("rate").value != nil && in.pick("rate").value[0] == '{':
		in.refuse(in.pick("rate"), "absent, or together with a key")
	}
	return p
}

// readAmounts reads the limits of a policy or an override, in all their forms.
func readAmounts(in reader) *limitPolicy {
	p := &limitPolicy{}
	if n, there := in.integer(in.pick("concurrency"), 0, maxLimit); there {
		p.Concurrency = &n
	}
	rate := in.pick("rate")
	switch {
	case rate.value != nil && rate.value[0] != '{':
		p.Rate = readWindow(in, "rate")
	case rate.value != nil:
		if w, there := in.inner(rate); there {
			w.others(ojs.ErrInvalidPayload, "limit", "period")
			p.Rate = readWindow(w, "limit")
		}
	case in.pick("max_per_second").value != nil:
		if n, there := in.integer(in.pick("max_per_second"), 1, maxLimit); there {
			p.Rate = &window{n, "PT1S", time.Second}
		}
	case in.pick("limit").value != nil || in.pick("period").value != nil:
		p.Rate = readWindow(in, "limit")
	}
	if w, there := in.inner(in.pick("throttle")); there {
		w.others(ojs.ErrInvalidPayload, "limit", "period")
		p.Throttle = readWindow(w, "limit")
	}
	return p
}

func readWindow(r reader, limit string) *window {
	n, there := r.integer(r.pick(limit), 1, maxLimit)
	if !there {
		r.refuse(r.pick(limit), "an integer from 1 to 1000000000")
	}
	period := r.pick("period")
	text, _ := textOf(period.value)
	d, ok := readDuration(text)
	if words := map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour,
		"day": 24 * time.Hour}; words[text] > 0 {
		d, ok = words[text], true
	}
	if !ok || d <= 0 {
		r.refuse(period, "a duration above zero such as PT10S, or second, minute, hour, day")
	}
	return &window{n, text, d}
}

// policyOf is the policy in force, with the parts of the override.
func (s *Server) policyOf(p *partition) limitPolicy {
	policy := p.policy
	if o := p.override; o != nil && (p.until.IsZero() || p.until.After(s.now())) {
		if o.Concurrency != nil {
			policy.Concurrency = o.Concurrency
		}
		if o.Rate != nil {
			policy.Rate = o.Rate
		}
		if o.Throttle != nil {
			policy.Throttle = o.Throttle
		}
	}
	return policy
}

const queueKey = "queue:" // and the name of the queue: the partition of a whole queue

// nameLimit lets a job name its partition: the policy of the latest holds. A limit of the queue is none of the job.
func (s *Server) nameLimit(j *record) {
	l := j.request.Limit
	if l == nil {
		return
	}
	if l.Key == "" {
		l.Key, j.request.Limit = queueKey+j.Queue, nil
	}
	s.partition(l.Key).policy = *l
}

// partitions are those to which a job belongs.
func (s *Server) partitions(j *record) (keys []string) {
	if l := j.request.Limit; l != nil {
		keys = append(keys, l.Key)
	}
	if key := queueKey + j.Queue; s.limits[key] != nil {
		keys = append(keys, key)
	}
	return keys
}

func (s *Server) partition(key string) *partition {
	if s.limits[key] == nil {
		s.limits[key] = &partition{}
	}
	return s.limits[key]
}

// started are the starts in the period before now.
func (p *partition) started(w *window, now time.Time) (n int64, oldest time.Time) {
	for _, at := range p.starts {
		if at.After(now.Add(-w.Period)) {
			if n == 0 {
				oldest = at
			}
			n++
		}
	}
	return n, oldest
}

func (s *Server) activeOf(key string) (active, waiting int64) {
	for _, j := range s.order {
		if slices.Contains(s.partitions(j), key) {
			switch j.State {
			case ojs.StateActive:
				active++
			case ojs.StateAvailable:
				waiting++
			}
		}
	}
	return active, waiting
}

// blocked reports whether the limit of a job forbids its start, and when it may permit it.
func (s *Server) blocked(j *record) (until time.Time, is bool) {
	for _, key := range s.partitions(j) {
		if until, is := s.full(key); is {
			return until, true
		}
	}
	return time.Time{}, false
}

// full reports whether a partition permits no start now, and when it may.
func (s *Server) full(key string) (until time.Time, is bool) {
	p, now := s.partition(key), s.now()
	policy := s.policyOf(p)
	if policy.Concurrency != nil {
		if active, _ := s.activeOf(key); active >= *policy.Concurrency {
			return now.Add(time.Second), true
		}
	}
	if w := policy.Rate; w != nil {
		if n, oldest := p.started(w, now); n >= w.Limit {
			return oldest.Add(w.Period), true
		}
	}
	if w := policy.Throttle; w != nil && len(p.starts) > 0 {
		if next := p.starts[len(p.starts)-1].Add(w.Period / time.Duration(w.Limit)); next.After(now) {
			return next, true
		}
	}
	return time.Time{}, false
}

// limited does to a job that its limit blocks what its policy says.
func (s *Server) limited(j *record, until time.Time) {
	keys := s.partitions(j)
	switch s.partition(keys[0]).policy.OnLimit {
	case "drop":
		e := ojs.JobError{Code: "rate_limited", Type: "rate_limited", Message: "the limit of its key did not permit the start",
			Attempt: j.Attempt}
		j.Error = &e
		s.end(j, ojs.StateDiscarded)
		s.wake()
	case "reschedule":
		j.State, j.due, j.ScheduledAt = ojs.StateScheduled, until, until
		s.wake()
	}
}

func (s *Server) serveLimits(path []string, r *Request) answer {
	if len(path) == 0 {
		all := []object{}
		for _, key := range slices.Sorted(maps.Keys(s.limits)) {
			all = append(all, s.showLimit(key))
		}
		return page(r, "items", all)
	}
	key := path[0]
	switch {
	case r.Method == http.MethodPut:
		p := &problems{}
		in, ok := p.open(r.Body)
		if !ok {
			return refusal(p.first)
		}
		if !limitKey.MatchString(key) {
			in.refuse(member{name: "key"}, "1 to 255 letters, digits, '.', '_', ':' or '-', the first a letter or a digit")
		}
		in.others(ojs.ErrInvalidPayload, "concurrency", "rate", "throttle", "limit", "period", "max_per_second", "expires_at")
		override := readAmounts(in)
		until := in.time(in.pick("expires_at"), s.now())
		if override.Concurrency == nil && override.Rate == nil && override.Throttle == nil {
			in.refuse(member{name: "limit"}, "one or more of concurrency, rate, throttle, or limit and period")
		}
		if p.first != nil {
			return refusal(p.first)
		}
		part := s.partition(key)
		part.override, part.until, part.sent = override, until, nil
		_ = json.Unmarshal(r.Body, &part.sent) // it is an object
	case s.limits[key] == nil:
		return notFound("rate_limit", key)
	case r.Method == http.MethodDelete && len(path) == 2:
		s.limits[key].override, s.limits[key].sent = nil, nil
	case r.Method != http.MethodGet || len(path) > 1:
		return noRoute(r)
	}
	return ok(s.showLimit(key))
}

func (s *Server) showLimit(key string) object {
	p, now := s.limits[key], s.now()
	policy := s.policyOf(p)
	active, waiting := s.activeOf(key)
	o := object{"key": key, "active": active, "waiting": waiting, "waiting_count": waiting}
	if n := policy.Concurrency; n != nil {
		o["concurrency"] = object{"limit": *n, "active": active, "available": max(0, *n-active)}
	}
	if w := policy.Rate; w != nil {
		n, oldest := p.started(w, now)
		rate := object{"limit": w.Limit, "period": w.Text, "current_count": n}
		if n > 0 {
			rate["window_resets_at"] = oldest.Add(w.Period)
		}
		o["rate"], o["limit"], o["period"] = rate, w.Limit, w.Text
	}
	if w := policy.Throttle; w != nil {
		next := now
		if len(p.starts) > 0 {
			next = p.starts[len(p.starts)-1].Add(w.Period / time.Duration(w.Limit))
		}
		o["throttle"] = object{"limit": w.Limit, "period": w.Text, "next_allowed_at": next}
	}
	if p.sent != nil {
		o["override"] = p.sent
	}
	return o
}
