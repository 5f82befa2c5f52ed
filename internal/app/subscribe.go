package app

import (
	"context"

	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/observe"
	"github.com/ojsd/ojsd/internal/queue"
)

// Who is told of what. There are two buses: the commits of this node (changeSubscribers, commitSubscribers) and the notifications of all
// nodes (notificationHandlers). The other functions are what single parts call in others. What package queue calls in the domains above it
// is in api.NewDomains, what the timer calls in api.TimerSources.
//
// The parts are given these functions when they are built, before the parts that the functions name. So each function reads the fields of
// Node when it is called; no part calls before build has returned. None of the functions may block.

// changeSubscribers get the events of this node's commits before the caller of a change is answered: calls that wait for room in a queue,
// log lines, spans, metrics, in this order.
func (n *Node) changeSubscribers() []func(ctx context.Context, changes []eventlog.Change) {
	subscribers := []func(ctx context.Context, changes []eventlog.Change){
		func(ctx context.Context, changes []eventlog.Change) { n.domains.Jobs.WakeRoomWaiters(ctx, changes) },
		observe.NewLog(n.config.Logger).Changes,
	}
	if n.tracer.Executing() {
		subscribers = append(subscribers, observe.NewSpans(n.tracer).Changes)
	}
	return append(subscribers, n.metrics.Changes)
}

// commitSubscribers are the loops that look sooner after a commit of this node.
func (n *Node) commitSubscribers() []func() {
	return []func(){
		func() { n.relay.Wake() },
		func() { n.timer.Notify() },
		func() { n.pruner.Notify() },
		func() { n.follower.Notify() },
		func() { n.domains.Pools.Freed() },
		func() { n.limits.Notify() },
		func() { n.outages.Notify() },
	}
}

// notificationHandlers are what this node does about notifications, by channel. A notification is only a wake-up. A handler is called with
// an empty payload when notifications may have been lost, and then looks; so a lost one delays, and loses nothing but the reset of a test.
// The handlers run on the goroutine of the listener.
func (n *Node) notificationHandlers() map[string]func(payload string) {
	return map[string]func(payload string){
		"ojs_published": func(payload string) { n.handlePublication(eventlog.DecodePublication(payload)) },
		"ojs_wake": func(string) { // an application has enqueued in SQL
			n.relay.Wake()
			n.timer.Poll()
			n.domains.Workflows.Wake() // or cancelled the job of a workflow
			n.domains.Limits.Wake()    // or one for which others wait
		},
		"ojs_workers":     func(string) { n.liveness.ReadQuiet() },
		"ojs_maintenance": func(string) { n.domains.Maintenance.Changed() },
		// A node has registered a cron, so the earliest next run may be sooner.
		"ojs_cron":    func(string) { n.timer.Schedule(0) },
		"ojs_schemas": func(string) { n.domains.Schemas.Changed() },
		"ojs_queues": func(name string) {
			n.domains.Configured.Changed()
			n.domains.Jobs.QueueChanged(name)
		},
		"ojs_pools": func(string) { n.domains.Pools.Changed() },
		"ojs_reset": func(payload string) {
			// "" means that notifications may be lost; a reset, which is for tests, is hardly among them. Any role may send one.
			if payload != "" && n.config.Tests.EnableReset {
				n.domains.Forget()
			}
		},
		"ojs_webhooks": func(payload string) {
			if n.webhooks == nil {
				return
			}
			n.webhooks.Wake()
			if payload != "made" { // not new deliveries: a subscription has changed, or notifications may be lost
				n.fanOut.Wake()
			}
		},
	}
}

// handlePublication handles the notification of a relay, that of this node included.
// It runs for each pass of a relay, many times a second under load, so everything in it must be cheap when nobody waits.
func (n *Node) handlePublication(p eventlog.Publication) {
	n.relay.BeginRest()
	n.feed.Wake()
	n.timer.Notify()
	n.domains.Jobs.NotifyPublished()
	n.domains.Pools.Freed()
	n.pruner.Notify()
	n.follower.Notify()
	n.limits.Notify()
	n.outages.Notify()
	if p.All {
		n.domains.Jobs.NotifyAll()
	}
	for _, r := range p.Ready {
		if r.Node != n.node { // this node has woken its own fetchers after the commit
			n.domains.Jobs.NotifyReady(queue.Place{Queue: r.Queue, Lane: r.Lane, Priority: r.Priority, Seq: r.MinSeq})
		}
	}
	if n.webhooks == nil {
		return
	}
	n.fanOut.WakeIfSubscribed()
	if p.All { // without LISTEN, this call also replaces the notifications of webhooks
		n.webhooks.Wake()
		n.fanOut.Wake()
	}
}

// afterOwnPublish is called by the relay of this node, earlier than its notification comes back, and also without LISTEN.
func (n *Node) afterOwnPublish() {
	n.feed.Wake()
	if n.fanOut != nil {
		n.fanOut.WakeIfSubscribed()
	}
}

// hasReaders has the relay rest less.
func (n *Node) hasReaders() bool {
	return n.feed.Subscribers() > 0 || n.fanOut != nil && n.fanOut.Subscribed()
}

// listening tells the caches of the domains whether they are notified of changes.
func (n *Node) listening() bool { return n.listener.Status() == eventlog.ListenerOK }

// queueConfigured is called when a new configuration of a queue was read: earlier, fetches that look again would look by the old one.
func (n *Node) queueConfigured(name string) { n.domains.Jobs.QueueChanged(name) }

// maintenanceEnded has due jobs promoted at once, and parked fetches of all queues look again.
func (n *Node) maintenanceEnded() {
	n.timer.Schedule(0)
	n.domains.Jobs.NotifyAll()
}
