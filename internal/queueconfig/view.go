package queueconfig

import (
	"bytes"
	"slices"
)

// View is what a node knows of all queues at one time. It does not change. version is that of ojs.queue_version in the same
// snapshot.
type View struct {
	version   int64
	queues    map[string]*Queue // those with a row that says more than that they exist
	inherited *Queue            // of Default; nil: it has no configuration
}

// Queue is a queue by name; nil: it is active, and nothing is configured for it. A queue that only inherits gets a copy
// under its name, so it does not need an entry.
func (v *View) Queue(name string) *Queue {
	if q := v.queues[name]; q != nil {
		return q
	}
	if v.inherited == nil || name == Default {
		return nil
	}
	// A copy for each call: callers may keep it, and the one in the view must not change.
	q := *v.inherited
	q.Name, q.own, q.Discarded = name, nil, nil
	return &q
}

// Inherited is the stored configuration of Default; nil: none. It must not be changed.
func (v *View) Inherited() []byte {
	if v.inherited == nil {
		return nil
	}
	return v.inherited.own
}

// Plain reports whether Queue answers nil for every name. Default has an entry like a queue, so a configuration of Default
// makes it false.
func (v *View) Plain() bool { return len(v.queues) == 0 }

// Each calls f for the queues that have a configuration or a status of their own, Default included. In no order.
func (v *View) Each(f func(q *Queue)) {
	for _, q := range v.queues {
		f(q)
	}
}

// changedSince names the queues that differ from those of an older view; "" if Default does. nil for the first view. It
// compares pointers; newView keeps those of queues that have not changed.
func (v *View) changedSince(old *View) (names []string) {
	if old == nil {
		return nil
	}
	for name, q := range v.queues {
		if old.queues[name] != q {
			names = append(names, name)
		}
	}
	for name := range old.queues {
		if v.queues[name] == nil {
			names = append(names, name)
		}
	}
	// All queues inherit from it, also those that are not in the view.
	if slices.Contains(names, Default) {
		return []string{""}
	}
	return names
}

// same reports whether a queue is as it was, so that its configuration need not be decoded again. The inherited part is
// compared by the caller.
func (q *Queue) same(own []byte, status string, deleting bool) bool {
	return q != nil && q.Status == status && q.Deleting == deleting && bytes.Equal(q.own, own)
}
