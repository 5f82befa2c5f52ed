package app

import (
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/observe"
)

// subscribe connects the parts to the two buses: what this node has committed, and what some node has published.
func (n *Node) subscribe() {
	n.subscribeCommits()
	n.relay.OnCounts(n.metrics.Published)
	n.relay.OnPublished(func() { // sooner than the notification, and without LISTEN
		n.feed.Wake()
		if n.fanOut != nil {
			n.fanOut.Published()
		}
	})
	n.listener.OnPublished(n.published)
	n.listener.OnWake(func() { // an application has enqueued in SQL
		n.relay.Wake()
		n.timer.Poll()
	})
	n.listener.Handle("ojs_workers", func(string) { n.liveness.ReadQuiet() })
	// Another node has registered a cron: from now on this one, too, wakes for the earliest next run.
	n.listener.Handle("ojs_cron", func(string) { n.timer.Schedule(0) })
	n.listener.Handle("ojs_reset", func(payload string) {
		if payload != "" { // else some notification may have been missed, but hardly this one
			n.domains.Forget()
		}
	})
	n.listener.Handle("ojs_webhooks", func(payload string) {
		if n.webhooks == nil {
			return
		}
		n.webhooks.Wake()
		if payload != "made" { // a subscription has changed, or something may have been missed
			n.fanOut.Wake()
		}
	})
}

// subscribeCommits says who sees the events of this node's commits, and who runs sooner for them.
func (n *Node) subscribeCommits() {
	c := n.config
	n.commits.OnChanges(observe.NewLog(c.Logger, observe.LogConfig{Payloads: c.LogPayloads}).Changes)
	if n.tracer.Executing() {
		n.commits.OnChanges(observe.NewSpans(n.tracer).Changes)
	}
	n.commits.OnChanges(n.metrics.Changes)
	n.commits.OnCommit(n.relay.Wake)
	n.commits.OnCommit(n.timer.Notify)
	n.commits.OnCommit(n.pruner.Notify)
}

// published is called for every notification of a relay, this node's included.
func (n *Node) published(p eventlog.Published) {
	n.feed.Wake()
	n.timer.Notify()
	n.domains.Jobs.Published()
	n.pruner.Notify()
	if p.All {
		n.domains.Jobs.AnnounceAll()
	}
	for _, r := range p.Ready {
		if r.Node != n.commits.Node { // else this node's commit has done it
			n.domains.Jobs.Announce(r.Queue, r.Priority, r.MinSeq)
		}
	}
	if n.webhooks == nil {
		return
	}
	n.fanOut.Published()
	if p.All { // perhaps for want of LISTEN
		n.webhooks.Wake()
		n.fanOut.Wake()
	}
}
