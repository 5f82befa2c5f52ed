package app

import (
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/observe"
	"github.com/ojsd/ojsd/internal/queue"
)

// subscribe connects the parts to two buses: the commits of this node, and the notifications of all nodes.
// A notification is only a wake-up. A handler is called with an empty payload when notifications may have been lost, and then
// looks; so a lost one delays, and loses nothing but the reset of a test. None of the functions may block, because they run
// on the goroutine of the listener.
func (n *Node) subscribe() {
	n.subscribeCommits()
	n.relay.SetReaders(func() bool { return n.feed.Subscribers() > 0 || n.fanOut != nil && n.fanOut.Subscribed() })
	n.relay.OnCounts(n.metrics.Published)
	// This node need not wait for its own notification to come back.
	n.relay.OnPublished(func() { // earlier than the notification, and also without LISTEN
		n.feed.Wake()
		if n.fanOut != nil {
			n.fanOut.Published()
		}
	})
	n.listener.OnPublished(n.published)
	n.listener.OnWake(func() { // an application has enqueued in SQL
		n.relay.Wake()
		n.timer.Poll()
		n.domains.Workflows.Wake() // or cancelled the job of a workflow
		n.domains.Limits.Wake()    // or one for which others wait
	})
	n.listener.Handle("ojs_workers", func(string) { n.liveness.ReadQuiet() })
	n.listener.Handle("ojs_maintenance", func(string) { n.domains.Maintenance.Changed() })
	// A node has registered a cron, so the earliest next run may be sooner.
	n.listener.Handle("ojs_cron", func(string) { n.timer.Schedule(0) })
	n.listener.Handle("ojs_schemas", func(string) { n.domains.Schemas.Changed() })
	n.domains.OnListening(func() bool { return n.listener.Status() == eventlog.ListenerOK })
	// The configuration must be read before fetches look again, or they would look by the old one.
	n.domains.Configured.OnRead(n.domains.Jobs.QueueChanged)
	n.listener.Handle("ojs_queues", func(name string) {
		n.domains.Configured.Changed()
		n.domains.Jobs.QueueChanged(name)
	})
	n.listener.Handle("ojs_pools", func(string) { n.domains.Pools.Changed() })
	n.listener.Handle("ojs_reset", func(payload string) {
		if payload != "" { // "" means that notifications may be lost; a reset, which is for tests, is hardly among them
			n.domains.Forget()
		}
	})
	n.listener.Handle("ojs_webhooks", func(payload string) {
		if n.webhooks == nil {
			return
		}
		n.webhooks.Wake()
		if payload != "made" { // not new deliveries: a subscription has changed, or notifications may be lost
			n.fanOut.Wake()
		}
	})
}

// subscribeCommits connects logs, spans and metrics to the events of this node's commits, and wakes loops after commits.
// The order of OnChanges is that of the calls: log lines, spans, metrics. They run before the caller of the change is
// answered.
func (n *Node) subscribeCommits() {
	c := n.config
	n.commits.OnChanges(observe.NewLog(c.Logger).Changes)
	if n.tracer.Executing() {
		n.commits.OnChanges(observe.NewSpans(n.tracer).Changes)
	}
	n.commits.OnChanges(n.metrics.Changes)
	n.commits.OnCommit(n.relay.Wake)
	n.commits.OnCommit(n.timer.Notify)
	n.commits.OnCommit(n.pruner.Notify)
	n.commits.OnCommit(n.follower.Notify)
	n.commits.OnCommit(n.domains.Pools.Freed)
	n.commits.OnCommit(n.limits.Notify)
}

// published handles the notification of a relay, that of this node included.
// It runs for each pass of a relay, many times a second under load, so everything in it must be cheap when nobody waits.
func (n *Node) published(p eventlog.Published) {
	n.relay.Published()
	n.feed.Wake()
	n.timer.Notify()
	n.domains.Jobs.Published()
	n.domains.Pools.Freed()
	n.pruner.Notify()
	n.follower.Notify()
	n.limits.Notify()
	if p.All {
		n.domains.Jobs.NotifyAll()
	}
	for _, r := range p.Ready {
		if r.Node != n.commits.Node { // this node has woken its own fetchers after the commit
			n.domains.Jobs.NotifyReady(queue.Place{Queue: r.Queue, Lane: r.Lane, Priority: r.Priority, Seq: r.MinSeq})
		}
	}
	if n.webhooks == nil {
		return
	}
	n.fanOut.Published()
	if p.All { // without LISTEN, this call also replaces the notifications of webhooks
		n.webhooks.Wake()
		n.fanOut.Wake()
	}
}
