// Package api owns what both transports do: who may call, whose doing a failure is and what a client is told about it, the
// line in the log and the span of each request, checks of parameters that both have, limits of streams, health and the
// manifest's facts. httpapi and grpcapi speak the protocols and call the same operations of the domains.
//
// It must never speak a protocol, hold a rule about jobs, or read the database other than through a domain.
package api

import (
	"github.com/ojsd/ojsd/internal/cron"
	"github.com/ojsd/ojsd/internal/deadletter"
	"github.com/ojsd/ojsd/internal/eventlog"
	"github.com/ojsd/ojsd/internal/limit"
	"github.com/ojsd/ojsd/internal/pg"
	"github.com/ojsd/ojsd/internal/pool"
	"github.com/ojsd/ojsd/internal/queue"
	"github.com/ojsd/ojsd/internal/queueadmin"
	"github.com/ojsd/ojsd/internal/queueconfig"
	"github.com/ojsd/ojsd/internal/schema"
	"github.com/ojsd/ojsd/internal/webhook"
	"github.com/ojsd/ojsd/internal/worker"
	"github.com/ojsd/ojsd/internal/workflow"
)

// Domains are the parts of a node that requests are about.
// It is filled once by package app and shared by both interfaces; none of the fields is nil in a server, except in tests of a
// part. Events and Feed are added after the others, when the relay exists.
type Domains struct {
	DB          *pg.DB
	Jobs        *queue.Store
	Pools       *pool.Store
	Progress    *queue.ProgressStore
	Queues      *queueadmin.Store
	DeadLetters *deadletter.Store
	Workers     *worker.Store
	Crons       *cron.Store
	Workflows   *workflow.Store
	Maintenance *queueconfig.Maintenance
	Stats       *queueadmin.Statistics
	Limits      *limit.Store
	Webhooks    *webhook.Store
	Schemas     *schema.Store
	Tenants     *queueadmin.Tenants
	Events      *eventlog.Reader
	Feed        *eventlog.Feed
}
